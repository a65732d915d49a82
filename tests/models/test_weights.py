"""Weights from files: timm models from safetensors and torch files, uploads, and what is refused before it is read."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save, save_file

from hydra_core.data.sets import SampleSet
from hydra_core.errors import CheckpointError, DataError, UnknownNameError, UnsupportedModel
from hydra_core.models.features import features_view
from hydra_core.models.load import load_model
from hydra_core.models.probe import with_probe
from hydra_core.models.sanity import base_accuracy, wilson
from hydra_core.models.timm_models import timm_view
from hydra_core.models.view import build_view

NAME = "test_vit"


@pytest.fixture(scope="module")
def native():
    torch.manual_seed(0)
    return timm.create_model(NAME, num_classes=5).eval()


@pytest.fixture(scope="module")
def image():
    return torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(1))


def test_uploaded_bytes_and_files_give_the_native_logits(native, image, tmp_path):
    state = native.state_dict()
    save_file(state, tmp_path / "w.safetensors")
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "w.pth")
    with torch.inference_mode():
        want = native(image)
    for source in (save(state), tmp_path / "w.safetensors", str(tmp_path / "w.pth")):
        view = load_model(f"timm/{NAME}", checkpoint=source)
        assert view.num_classes == 5, "the number of classes is read off the file"
        torch.testing.assert_close(view(image), want)


def test_a_file_without_classifier_is_a_backbone_for_a_probe(native, image):
    state = {k: v for k, v in native.state_dict().items() if not k.startswith("head.")}
    view = load_model(f"timm/{NAME}", checkpoint=save(state))
    assert view.num_classes == 0
    with torch.inference_mode():
        want = native.forward_head(native.forward_features(image), pre_logits=True)
    torch.testing.assert_close(view(image), want)


def test_what_does_not_fit_is_refused_before_it_is_read(native, monkeypatch):
    import safetensors.torch

    wide = timm.create_model("test_vit2", num_classes=5)
    content = save(dict(wide.state_dict()))

    def never(*args, **kwargs):
        raise AssertionError("tensors were read")

    monkeypatch.setattr(safetensors.torch, "load", never)
    with pytest.raises(CheckpointError, match="do not fit the model"):
        load_model(f"timm/{NAME}", checkpoint=content)


@pytest.mark.parametrize("content", [pickle.dumps({"a": 1}), b"", b"PK\x03\x04junk", b"{" * 64, b"\xff" * 32])
def test_uploads_that_are_no_safetensors(content):
    with pytest.raises(CheckpointError):
        load_model(f"timm/{NAME}", checkpoint=content)


def test_an_uploaded_torch_file_is_never_unpickled(native, tmp_path):
    torch.save(native.state_dict(), tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match="pickle or torch file"):
        load_model(f"timm/{NAME}", checkpoint=(tmp_path / "w.pth").read_bytes())


def test_missing_files_and_names(tmp_path):
    with pytest.raises(CheckpointError, match="no file"):
        load_model(f"timm/{NAME}", checkpoint=tmp_path / "nowhere.safetensors")
    with pytest.raises(CheckpointError, match="no file"):
        load_model(f"timm/{NAME}", checkpoint=tmp_path / "nowhere.pth")
    with pytest.raises(UnknownNameError, match="test_vit"):
        load_model("timm/test_vitt", checkpoint=tmp_path)


def test_open_clip_weights_are_checked_like_others():
    pytest.importorskip("open_clip")
    with pytest.raises(CheckpointError, match="pickle or torch file"):
        load_model("open_clip/ViT-B-32", checkpoint=pickle.dumps({}))


def test_offline_messages_say_what_to_do(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(CheckpointError, match=r"Download the weights elsewhere \(model.safetensors of timm/test_vit"):
        load_model(f"timm/{NAME}")


def test_preprocessing_is_timms_own_for_that_model():
    """A wrong resize or a wrong mean costs points of accuracy: both are the model's, whatever the images' size."""
    images = np.random.default_rng(0).integers(0, 255, (3, 190, 230, 3), dtype=np.uint8)
    for name in (NAME, "eva02_tiny_patch14_224"):  # other means, sizes and crops
        model = timm.create_model(name, num_classes=2)
        config = timm.data.resolve_model_data_config(model)
        own = timm.data.create_transform(**config, is_training=False)
        want = torch.stack([own(Image.fromarray(image)) for image in images])
        got = timm_view(name, model).inputs(SampleSet("photos", images, None, ("a", "b", "c")))
        assert torch.equal(got, want)


# -- features ------------------------------------------------------------------------------------


def blocks(n: int = 24) -> SampleSet:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], n // 2)
    images = (rng.integers(0, 60, (n, 24, 24, 3)) + labels[:, None, None, None] * 150).astype(np.uint8)
    return SampleSet("blocks", images, labels, tuple(map(str, range(n))), ("dark", "light"))


def test_features_of_a_classifier_are_its_pre_logits(native, image):
    view = features_view(timm_view("timm/x", native))
    with torch.inference_mode():
        want = native.forward_head(native.forward_features(image), pre_logits=True)
    torch.testing.assert_close(view(image), want)
    assert native.head.out_features == 5, "the shared model keeps its classifier"


def test_features_of_a_probed_model_are_those_of_its_backbone(native, image):
    view = timm_view("timm/x", native)
    probed = with_probe(features_view(view), blocks())
    again = features_view(probed)
    torch.testing.assert_close(again(image), features_view(view)(image))
    assert "probe_accuracy" not in again.info


def test_features_of_a_zero_shot_model_are_its_images():
    from tests.models.test_open_clip import view_of

    clip, _, x = view_of("clip")
    view = features_view(clip)
    with torch.inference_mode():
        want = torch.nn.functional.normalize(clip.module.visual(x), dim=-1)
    torch.testing.assert_close(view(x), want)


def test_features_of_a_text_classifier_are_its_encoder():
    pytest.importorskip("transformers")
    from hydra_core.models.text_models import TextEncoder, text_view
    from tests.models.test_text import CASES, padded
    from tests.models.test_text import native as text_native

    for case in CASES:
        net = text_native(case)
        view = features_view(text_view(case, net, None))
        ids = padded(net)
        torch.testing.assert_close(view(ids), TextEncoder(net.base_model, net.config.pad_token_id)(ids))


def test_models_whose_classifier_cannot_be_taken_off_are_refused(native):
    view = timm_view("timm/x", native)
    bare = build_view("bare", torch.nn.Sequential(native))
    with pytest.raises(UnsupportedModel, match="does not give its features"):
        features_view(bare)
    assert features_view(view).shape == bare.shape


# -- base accuracy ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "n"), [(0, 9), (9, 9), (60, 500), (450, 500), (1, 2)])
def test_the_interval_is_scipys(right, n):
    from scipy.stats import binomtest

    want = binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert wilson(right / n, n) == pytest.approx((want.low, want.high), abs=1e-12)


def test_chance_is_the_most_frequent_class():
    labels = [0] * 70 + [1] * 20 + [2] * 10
    good, poor = base_accuracy(0.85, labels), base_accuracy(0.74, labels)
    assert good.chance == 0.7
    assert not good.near_chance
    assert poor.near_chance, "0.74 of 100 cannot be told from always saying the first class"
    assert base_accuracy(0.1, np.arange(100) % 10).near_chance


def test_labels_are_needed():
    unlabelled = SampleSet("x", np.zeros((2, 4, 4), np.uint8), None, ("a", "b"))
    with pytest.raises(DataError, match="no labels"):
        with_probe(features_view(load_model("demo/fashion-vit")), unlabelled)
