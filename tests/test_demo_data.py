"""The demo data and models: what lies in assets/ is what the code builds, and measures what its card says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from sklearn.metrics import roc_auc_score
from timm.models.vision_transformer import Attention, Block, VisionTransformer

from hydra_core.data import idx
from hydra_core.data.demo import (
    CLASS_NAMES,
    FILE,
    KEPT,
    PARTS,
    last_of_each,
    load_fashion,
    load_fashion_train,
    renumber,
)
from hydra_core.data.sets import SampleSet
from hydra_core.errors import CheckpointError, DataError, UnknownNameError
from hydra_core.models import demo
from hydra_core.models.demo import ASSETS, CARD, DEMO_NAMES, demo_module, load_demo, prepare
from hydra_core.models.view import ModelView
from hydra_core.training import demo_data
from hydra_core.training.demo import rounded

DATA = load_fashion()
SETS = {"val": DATA.val, "test": DATA.test, **DATA.ood_val, **DATA.ood_test}
DIGEST = "f1d456ba99de620f"  # of all splits; changes only when the demo data are rebuilt differently


@pytest.fixture(scope="module", params=DEMO_NAMES)
def view(request: pytest.FixtureRequest) -> ModelView:
    return load_demo(request.param)


def test_sizes_and_form() -> None:
    expected = {"val": 2000, "test": 2000, "coat": 500, "digits": 500, "noise": 250, "textures": 250}
    expected |= {"sandal": 500, "mnist": 500, "photos": 341}
    assert {name: len(samples) for name, samples in SETS.items()} == expected
    for samples in SETS.values():
        assert samples.inputs.dtype == np.uint8
        assert samples.inputs.shape[1:] == (28, 28)
        assert samples.total >= len(samples)
        assert samples.source
        assert samples.licence


def test_classes_are_balanced_and_named() -> None:
    for samples in (DATA.val, DATA.test):
        assert samples.class_names == CLASS_NAMES
        assert np.bincount(samples.labels).tolist() == [250] * 8
    assert all(samples.labels is None for name, samples in SETS.items() if name not in ("val", "test"))


def test_near_and_far_are_told_apart() -> None:
    assert {name: s.shift for name, s in DATA.ood_val.items()} == {
        "coat": "near",
        "digits": "far",
        "noise": "far",
        "textures": "far",
    }
    assert {name: s.shift for name, s in DATA.ood_test.items()} == {"sandal": "near", "mnist": "far", "photos": "far"}


def test_no_image_stands_in_two_sets() -> None:
    """By id and by content: validation and test share nothing."""
    ids = [i for samples in SETS.values() for i in samples.ids]
    assert len(set(ids)) == len(ids)
    chosen = {image.tobytes() for s in (DATA.val, *DATA.ood_val.values()) for image in s.inputs}
    held = {image.tobytes() for s in (DATA.test, *DATA.ood_test.values()) for image in s.inputs}
    assert not chosen & held


def test_read_once_and_read_only() -> None:
    assert load_fashion() is DATA
    for samples in SETS.values():
        with pytest.raises(ValueError, match="read-only"):
            samples.inputs[0] = 0
    assert DATA.digest == DIGEST


def test_file_is_small() -> None:
    files = [path for path in ASSETS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files if path.suffix == ".npz") <= 12e6
    assert all(path.stat().st_size <= 5e6 for path in files if path.suffix == ".safetensors")


def test_every_asset_has_its_origin_written_down() -> None:
    text = (ASSETS / "README.md").read_text(encoding="utf-8")
    missing = [p.name for p in ASSETS.glob("*") if p.name != "README.md" and p.name not in text]
    assert not missing
    assert all(part.name in text for part in PARTS)


@pytest.mark.parametrize("name", ["digits", "noise", "textures", "photos"])
def test_stored_ood_sets_are_what_the_code_builds(name: str) -> None:
    built = demo_data.BUILDERS[name]()
    assert np.array_equal(built["images"], SETS[name].inputs)
    assert [f"{i}" for i in built["index"]] == [i.rpartition("/")[2] for i in SETS[name].ids]


@pytest.mark.skipif(not idx.FOLDER.is_dir(), reason=f"needs the Debian package {idx.PACKAGE}")
@pytest.mark.parametrize("name", ["val", "test", "coat", "sandal"])
def test_stored_fashion_is_the_package(name: str) -> None:
    built = demo_data.BUILDERS[name]()
    assert np.array_equal(built["images"], SETS[name].inputs)
    if SETS[name].labels is not None:
        assert np.array_equal(built["labels"], SETS[name].labels)


@pytest.mark.skipif(not idx.FOLDER.is_dir(), reason=f"needs the Debian package {idx.PACKAGE}")
def test_train_split_leaves_validation_out() -> None:
    train = load_fashion_train()
    assert len(train) == 46_000
    assert not set(train.ids) & (set(DATA.val.ids) | set(DATA.ood_val["coat"].ids))


def test_last_of_each_and_renumber_by_hand() -> None:
    labels = np.array([0, 4, 0, 1, 5, 9, 9, 9, *KEPT])
    assert renumber(np.array([0, 3, 6, 9])).tolist() == [0, 3, 4, 7]
    found = last_of_each(labels, 2)
    assert found.tolist() == [2, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15]


def write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def test_idx_files_round_trip(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    labels = np.arange(5, dtype=np.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", labels)
    got = idx.read_split("train", tmp_path)
    assert np.array_equal(got[0], images)
    assert np.array_equal(got[1], labels)
    with pytest.raises(DataError, match="no such split"):
        idx.read_split("valid", tmp_path)


def test_missing_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        idx.read_split("test", tmp_path)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"no gzip", "unpacked"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x09ab"), "damaged"),
        (gzip.compress(b"hello"), "damaged"),
    ],
    ids=["not gzip", "too short", "no header"],  # gzip holds the time: bytes would give each worker other names
)
def test_damaged_idx_is_refused(tmp_path: Path, raw: bytes, text: str) -> None:
    (tmp_path / "x.gz").write_bytes(raw)
    with pytest.raises(DataError, match=text):
        idx.read_idx(tmp_path / "x.gz")


def test_missing_asset_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hydra_core.data.demo.FILE", tmp_path / FILE.name)
    with pytest.raises(DataError, match=r"hydra_core\.training\.demo"):
        load_fashion.__wrapped__()
    monkeypatch.setattr(demo, "ASSETS", tmp_path)
    with pytest.raises(CheckpointError, match=r"hydra_core\.training\.demo"):
        load_demo("fashion-vit")


@pytest.mark.parametrize("raw", [b"not a safetensors file", save({"head.weight": torch.zeros(3, 3)})])
def test_damaged_weights_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "fashion-vit.safetensors").write_bytes(raw)
    monkeypatch.setattr(demo, "ASSETS", tmp_path)
    with pytest.raises(CheckpointError, match="damaged"):
        load_demo("fashion-vit")


def test_unknown_demo_model_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="fashion-vit"):
        load_demo("fashion-vt")


def test_structure(view: ModelView) -> None:
    assert type(view.module) is VisionTransformer
    assert all(type(block) is Block and type(block.attn) is Attention for block in view.module.blocks)
    assert view.shape == (8,) * 6
    assert view.class_names == CLASS_NAMES
    assert view.input_size == (1, 28, 28)
    assert all(p.dtype == torch.float32 and not p.requires_grad for p in view.module.parameters())
    assert view.parameters == view.info["parameters"] == sum(p.numel() for p in demo_module().parameters())


def test_view_is_the_module(view: ModelView) -> None:
    x = prepare(DATA.val.take(range(32)))
    with torch.inference_mode():
        torch.testing.assert_close(view(x), view.module(x), rtol=1e-5, atol=1e-5)


def test_prepare_normalises_and_converts() -> None:
    grey = DATA.val.take(range(4))
    x = prepare(grey)
    assert x.shape == (4, 1, 28, 28)
    torch.testing.assert_close(x[:, 0], (torch.tensor(grey.inputs) / 255 - demo.MEAN) / demo.STD)
    colour = SampleSet("rgb", np.repeat(grey.inputs[..., None], 3, -1), None, grey.ids)
    torch.testing.assert_close(prepare(colour), x)
    wide = np.zeros((1, 56, 90), np.uint8)
    wide[:, :, 17:73] = 200  # the centred square is all 200
    middle = prepare(SampleSet("wide", wide, None, ("a",)))
    torch.testing.assert_close(middle, torch.full((1, 1, 28, 28), (200 / 255 - demo.MEAN) / demo.STD))
    mixed = np.empty(2, object)
    mixed[:] = [np.full((40, 30, 3), 9, np.uint8), np.full((28, 28), 9, np.uint8)]
    out = prepare(SampleSet("mixed", mixed, None, ("a", "b")))
    torch.testing.assert_close(out[0], out[1])


def test_prepare_refuses_texts_and_nothing() -> None:
    texts = np.array(["a"], object)
    with pytest.raises(DataError, match="does not fit"):
        prepare(SampleSet("t", texts, None, ("a",), kind="text"))
    with pytest.raises(DataError, match="empty"):
        prepare(DATA.val.take([]))


@pytest.mark.slow
def test_card_says_what_is_measured(view: ModelView) -> None:
    """Accuracy, NLL and AUROC of the card, computed anew and by scikit-learn."""
    card = view.info["test"]
    p = {s.name: view(prepare(s)).double().softmax(-1).numpy() for s in (DATA.test, *DATA.ood_test.values())}
    own, labels = p["test"], DATA.test.labels
    assert (own.argmax(1) == labels).mean() == pytest.approx(card["accuracy"], abs=1e-3)
    assert card["accuracy"] >= 0.90
    assert -np.log(own[np.arange(len(labels)), labels]).mean() == pytest.approx(card["nll"], abs=2e-3)
    for name, value in card["auroc"].items():
        truth = np.r_[np.zeros(len(own)), np.ones(len(p[name]))]
        found = roc_auc_score(truth, -np.r_[own.max(1), p[name].max(1)])
        assert found == pytest.approx(value, abs=2e-3)
    assert np.mean(list(card["auroc"].values())) == pytest.approx(card["auroc_mean"], abs=1e-3)
    assert card["auroc_mean"] >= 0.80


def test_card_tells_origin_licence_and_recipe(view: ModelView) -> None:
    for key in ("licence", "origin", "architecture", "command", "seed", "recipe", "seconds", "val", "test", "history"):
        assert view.info.get(key) not in (None, "", {}), key
    assert view.info["recipe"]["seed"] == view.info["seed"]
    assert len(view.info["history"]) == view.info["recipe"]["epochs"]


def test_seeds_differ() -> None:
    weights = [load_demo(name).module.head.weight for name in DEMO_NAMES]
    assert not any(torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])
    assert len(json.loads(CARD.read_text())["tried"]) >= 3


def test_rounded_goes_deep() -> None:
    assert rounded({"a": 0.123456, "b": {"c": 1.00004}}) == {"a": 0.1235, "b": {"c": 1.0}}
