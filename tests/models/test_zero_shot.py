"""Zero-shot views: text features against open_clip's own recipe, editing classes, and the MCM score."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from hydra_core.errors import CheckpointError, DataError, MetricError, ModelError
from hydra_core.fusion.ensemble import fuse
from hydra_core.fusion.evaluator import MaskEvaluator
from hydra_core.heads.mask import HeadMask
from hydra_core.metrics import mcm_score, ood_score
from hydra_core.models import open_clip_models
from hydra_core.models.open_clip_models import load_open_clip, open_clip_view
from hydra_core.models.view import ModelView
from hydra_core.models.zero_shot import (
    check_names,
    check_templates,
    library_templates,
    with_classes,
    zero_shot_parts,
)
from tests.models.test_open_clip import NAMES, native, tokenize, view_of

open_clip = pytest.importorskip("open_clip")

TEMPLATES = ("a photo of a {}.", "{}, drawn by hand", "one {} and another {}")


@pytest.fixture(scope="module")
def view() -> ModelView:
    return view_of("clip")[0]


def images(n: int = 3) -> torch.Tensor:
    return torch.randn(n, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


# -- text features ---------------------------------------------------------------------------


@pytest.mark.parametrize("lists", [TEMPLATES, "ImageNet, 7 sentences", "ImageNet, 80 sentences"])
def test_text_features_are_open_clips_own_classifier(lists: Any) -> None:
    model: Any = native("clip")
    templates = library_templates()[lists] if isinstance(lists, str) else lists
    own = open_clip.build_zero_shot_classifier(model, tokenize, NAMES, [t.replace("{}", "{0}") for t in templates]).T
    tower = open_clip_view("clip", model, tokenize, NAMES).info["text_tower"]
    torch.testing.assert_close(tower.features(NAMES, templates), own, rtol=1e-10, atol=1e-10)  # type: ignore[attr-defined]


def test_the_librarys_lists_are_all_there() -> None:
    lists = library_templates()
    assert [len(t) for t in lists.values()] == [1, 7, 80]
    assert lists["ImageNet, 80 sentences"][0] == open_clip.OPENAI_IMAGENET_TEMPLATES[0]("{}")
    assert all(check_templates(t) == t for t in lists.values())


def test_only_new_names_go_through_the_text_tower(view: ModelView) -> None:
    tower = zero_shot_parts(view)[1]
    first = with_classes(view, ["a", "b", "c"], TEMPLATES)
    before = tower.encoded
    second = with_classes(first, ["c", "a", "new"], TEMPLATES)
    assert tower.encoded == before + len(TEMPLATES), "one name is new"
    features = [zero_shot_parts(v)[0].text_features for v in (first, second)]
    assert torch.equal(features[0][2], features[1][0])  # type: ignore[index]
    with_classes(second, ["a", "b", "c"], TEMPLATES)
    assert tower.encoded == before + len(TEMPLATES), "nothing is new"
    with_classes(second, ["a", "b"], TEMPLATES[:1])
    assert tower.encoded == before + len(TEMPLATES) + 2, "other templates are other texts"


# -- editing classes ---------------------------------------------------------------------------


def test_with_classes_is_a_fresh_view_over_the_same_weights(view: ModelView) -> None:
    new = with_classes(view, ["boat", "cat", "house", "old boat"], TEMPLATES)
    fresh = open_clip_view("clip", native("clip"), tokenize, new.class_names, TEMPLATES)
    x, mask = images(), HeadMask.full(view.shape).prune(1, 2)
    torch.testing.assert_close(new(x, mask), fresh(x, mask), rtol=1e-12, atol=1e-12)
    assert new(x).shape == (3, 4)
    assert new.num_classes == 4
    assert view(x).shape == (3, 3), "the first view keeps its classes"
    own = {p.data_ptr() for p in view.module.parameters()}
    assert all(p.data_ptr() in own for p in new.module.parameters())


def test_the_order_of_classes_only_permutes_logits(view: ModelView) -> None:
    turned = with_classes(view, NAMES[::-1])
    torch.testing.assert_close(turned(images()).flip(-1), view(images()), rtol=1e-12, atol=1e-12)


def test_masks_and_ensembles_follow_the_new_classes(view: ModelView) -> None:
    new = with_classes(view, ["boat", "cat"])
    masks = [HeadMask.full(view.shape).prune(2, h) for h in range(3)]
    logits = torch.stack([new(images(), mask) for mask in masks])
    torch.testing.assert_close(fuse(new, masks)(images()), logits, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(MaskEvaluator(new, images()).many(masks), logits.numpy(), atol=1e-5)


@pytest.mark.parametrize("names", [[], ["cat"], ["cat", "cat"], ["cat", " "], ["cat", " cat "]])
def test_class_names_that_cannot_be_used(view: ModelView, names: list[str]) -> None:
    with pytest.raises(DataError, match="two or more different names"):
        with_classes(view, names)


@pytest.mark.parametrize("templates", [[], ["a photo"], ["a {}", "{name}"]])
def test_templates_that_cannot_be_used(view: ModelView, templates: list[str]) -> None:
    with pytest.raises(DataError, match="class name goes"):
        with_classes(view, NAMES, templates)


def test_braces_and_markup_in_names_are_plain_text(view: ModelView) -> None:
    assert check_names(["{0}", "<b>{}</b>"]) == ["{0}", "<b>{}</b>"]
    assert with_classes(view, ["{0}", "<b>{}</b>", "ünï 猫"], "a {}").num_classes == 3


def test_other_models_are_not_zero_shot() -> None:
    import timm

    from hydra_core.models.timm_models import timm_view

    with pytest.raises(ModelError, match="not a zero-shot model"):
        with_classes(timm_view("vit", timm.create_model("test_vit")), NAMES)


# -- loading -----------------------------------------------------------------------------------


@pytest.fixture
def small_config(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small config of our own in open_clip's registry, where names are looked up; the registry is put back after."""
    import json

    from open_clip import factory

    monkeypatch.setattr(factory, "_MODEL_CONFIG_PATHS", list(factory._MODEL_CONFIG_PATHS))
    monkeypatch.setattr(factory, "_MODEL_CONFIGS", dict(factory._MODEL_CONFIGS))
    vision = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 8}
    text = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    file = tmp_path / "hydra-small-test.json"
    file.write_text(json.dumps({"embed_dim": 24, "vision_cfg": vision, "text_cfg": text}))
    open_clip.add_model_config(file)
    return file.stem


def test_a_checkpoint_of_the_whole_model_loads(small_config: str, tmp_path: Any) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(5)
    model = open_clip.create_model(small_config)
    with torch.no_grad():
        model.logit_scale.fill_(math.log(50.0))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, tmp_path / "clip.safetensors")
    view = load_open_clip(small_config, checkpoint=tmp_path / "clip.safetensors", class_names=NAMES)
    x = images().float()
    tokenizer = open_clip.get_tokenizer(small_config)
    weights = open_clip.build_zero_shot_classifier(model.eval(), tokenizer, NAMES, ["a photo of a {}."])
    with torch.no_grad():
        want = 50.0 * model.encode_image(x, normalize=True) @ weights
    torch.testing.assert_close(view(x), want, rtol=1e-4, atol=1e-4)
    assert view.info["logit_scale"] == pytest.approx(50.0)
    half = {k: v.contiguous() for k, v in model.state_dict().items() if "resblocks.1" not in k}
    save_file(half, tmp_path / "half.safetensors")
    with pytest.raises(CheckpointError, match="do not fit"):
        load_open_clip(small_config, checkpoint=tmp_path / "half.safetensors", class_names=NAMES)


def test_without_weights_the_text_says_what_to_do(small_config: str) -> None:
    with pytest.raises(CheckpointError, match="lists no pretrained weights"):
        load_open_clip(small_config)


def test_offline_the_text_names_the_weights_to_download(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*args: Any, **kwargs: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(open_clip, "create_model", offline)
    with pytest.raises(CheckpointError, match="laion2b_s34b_b79k") as found:
        load_open_clip("ViT-B-32:laion2b_s34b_b79k")
    assert "checkpoint='FILE'" in str(found.value)
    assert "no route to host" in str(found.value)


def test_every_config_with_a_text_tokenizer_names_it() -> None:
    assert "ViT-B-16-SigLIP" in open_clip_models._origin("ViT-B-16-SigLIP")


# -- MCM ---------------------------------------------------------------------------------------


def test_mcm_by_hand() -> None:
    cosines = np.array([[0.3, 0.1], [0.2, 0.2]])
    want = [1 - math.exp(0.3) / (math.exp(0.3) + math.exp(0.1)), 0.5]
    np.testing.assert_allclose(mcm_score(100 * cosines, 100.0), want)
    np.testing.assert_allclose(mcm_score(100 * cosines - 12.0, 100.0), want)  # a shared bias


def test_mcm_at_the_models_temperature_is_msp(view: ModelView) -> None:
    scale = float(view.info["logit_scale"])  # type: ignore[arg-type]
    logits = view(images()).numpy()
    np.testing.assert_allclose(mcm_score(logits, scale, 1 / scale), ood_score(logits, "msp"), rtol=1e-10)


def test_mcm_of_an_ensemble_is_of_the_mean_probability() -> None:
    logits = np.random.default_rng(0).normal(size=(3, 5, 4)) * 10
    soft = torch.from_numpy(logits / 20.0).softmax(-1).mean(0).amax(-1).numpy()
    np.testing.assert_allclose(mcm_score(logits, 20.0), 1 - soft)


@pytest.mark.parametrize(("scale", "temperature"), [(0.0, 1.0), (1.0, 0.0), (float("nan"), 1.0), (-1.0, 1.0)])
def test_mcm_needs_positive_numbers(scale: float, temperature: float) -> None:
    with pytest.raises(MetricError, match="positive"):
        mcm_score([[1.0, 2.0]], scale, temperature)
