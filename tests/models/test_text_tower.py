"""The text tower's heads: masks against the native model with edited weights, float64; image features; long texts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hydra_core.errors import DataError, MaskError, ModelError
from hydra_core.fusion.ensemble import fuse
from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask
from hydra_core.models.open_clip_models import open_clip_view
from hydra_core.models.text_tower import TextTower, token_count
from hydra_core.models.view import ModelView
from hydra_core.models.zero_shot import image_features_view, with_classes, zero_shot_parts
from tests.models.test_open_clip import NAMES, TEXT, VISION, tokenize
from tests.models.test_zero_shot import images

open_clip = pytest.importorskip("open_clip")

TWO_LAYERS = TEXT | {"layers": 2, "heads": 4, "width": 32}
TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("CLIP", {}),
    "siglip bias": ("CustomTextCLIP", {"init_logit_bias": -3.0}),
    "average pool, no causal mask": ("CustomTextCLIP", {"text": {"pool_type": "last", "no_causal_mask": True}}),
}


def native(case: str = "clip") -> Any:
    """A small model in float64 whose biases are not zero."""
    kind, options = TOWERS[case]
    options = dict(options)
    text = TWO_LAYERS | options.pop("text", {})
    torch.manual_seed(2)
    model = getattr(open_clip.model, kind)(embed_dim=24, vision_cfg=dict(VISION), text_cfg=text, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double().eval()


def view_of(model: Any) -> ModelView:
    return open_clip_view("clip", model, tokenize, NAMES)


def edited(model: Any, mask: HeadMask) -> Any:
    """The native model with the columns of its text output projections zeroed: no code of ours."""
    out = copy.deepcopy(model)
    blocks = (out.transformer if hasattr(out, "transformer") else out.text.transformer).resblocks
    with torch.no_grad():
        for block, row in zip(blocks, mask.rows, strict=True):
            for head, kept in enumerate(row):
                if not kept:
                    block.attn.out_proj.weight[:, head * 8 : head * 8 + 8] = 0
    return out


MASKS = [HeadMask.full((4, 4)).prune(0, 1), HeadMask.full((4, 4)).prune(1, 3).prune(1, 0).prune(0, 2)]


@pytest.mark.parametrize("case", TOWERS)
def test_the_text_towers_heads_are_pruned_as_in_the_native_model(case: str) -> None:
    model = native(case)
    tower = zero_shot_parts(view_of(model))[1]
    ids = tokenize(["a photo of a cat", "dog", "one old boat, seen from far"])
    with torch.no_grad():
        want = model.encode_text(ids)
        assert tower.view.shape == (4, 4)
        torch.testing.assert_close(tower.view(ids), want, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(tower.view(ids, HeadMask.full((4, 4))), want, rtol=1e-10, atol=1e-10)
        for mask in MASKS:
            masked = tower.view(ids, mask)
            assert float((masked - want).abs().max()) > 1e-4, "the mask removed nothing"
            torch.testing.assert_close(masked, edited(model, mask).encode_text(ids), rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(prune_model(tower.view, mask)(ids), masked, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", TOWERS)
def test_a_text_mask_changes_the_classes_and_nothing_else(case: str) -> None:
    model = native(case)
    view = view_of(model)
    before = view(images())
    pruned = with_classes(view, NAMES, text_mask=MASKS[0])
    own = edited(model, MASKS[0])
    weights = open_clip.build_zero_shot_classifier(own, tokenize, NAMES, ["a photo of a {}."])
    with torch.no_grad():
        want = own.logit_scale.exp() * own.encode_image(images(), normalize=True) @ weights
    want = want if own.logit_bias is None else want + own.logit_bias
    torch.testing.assert_close(pruned(images()), want, rtol=1e-10, atol=1e-10)
    assert float((pruned(images()) - before).abs().max()) > 1e-4
    torch.testing.assert_close(with_classes(pruned, NAMES)(images()), before, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        with_classes(view, NAMES, text_mask=HeadMask.full((4, 4)))(images()), before, rtol=0, atol=0
    )


def test_pruned_texts_are_remembered_apart_from_whole_ones() -> None:
    tower = zero_shot_parts(view_of(native()))[1]
    before = tower.encoded
    first = tower.features(NAMES, mask=MASKS[0])
    assert tower.encoded == before + len(NAMES)
    assert torch.equal(tower.features(NAMES, mask=MASKS[0]), first)
    assert tower.encoded == before + len(NAMES), "the same mask again is no new text"
    assert not torch.equal(tower.features(NAMES, mask=MASKS[1]), first)
    assert not torch.equal(tower.features(NAMES), first)


def test_a_mask_of_another_shape_and_a_tower_without_its_model_are_refused() -> None:
    view = view_of(native())
    with pytest.raises(MaskError):
        with_classes(view, NAMES, text_mask=HeadMask.full((4, 4, 4)).prune(0, 0))
    lone = TextTower(native().encode_text, tokenize)
    with pytest.raises(ModelError, match="not at hand"):
        lone.features(NAMES, mask=MASKS[0])


# -- image features once, any classes --------------------------------------------------------


@pytest.mark.parametrize("case", ["clip", "siglip bias"])
def test_image_features_serve_any_classes_masks_and_members(case: str) -> None:
    model = native(case)
    view = view_of(model)
    features = image_features_view(view)
    with torch.no_grad():
        torch.testing.assert_close(
            features(images()), model.encode_image(images(), normalize=True), rtol=1e-10, atol=1e-10
        )
    other = with_classes(view, ["boat", "cat", "house", "old boat"], ["the {}"])
    masks = [HeadMask.full(view.shape).prune(2, 0), HeadMask.full(view.shape).prune(1, 1).prune(2, 3)]
    for mask in masks:
        got = zero_shot_parts(other)[0].of_features(features(images(), mask))
        torch.testing.assert_close(got, other(images(), mask), rtol=1e-10, atol=1e-10)
    fused = zero_shot_parts(other)[0].of_features(fuse(features, masks)(images()))  # (M, B, D) -> (M, B, C)
    torch.testing.assert_close(fused, fuse(other, masks)(images()), rtol=1e-10, atol=1e-10)


# -- long texts --------------------------------------------------------------------------------


def test_a_text_that_would_be_cut_off_is_refused() -> None:
    tokenizer = open_clip.SimpleTokenizer(context_length=16)
    view = open_clip_view("clip", native(), tokenizer, NAMES)
    fits = " ".join(["cat"] * 14)
    assert token_count(tokenizer, fits) == 16
    assert int((tokenizer([fits]) != 0).sum()) == 16
    with_classes(view, [fits, "dog"], "{}")
    with pytest.raises(DataError, match="at most 16 tokens") as found:
        with_classes(view, [fits + " cat", "dog"], "{}")
    assert "17 tokens" in str(found.value)


def test_one_template_is_the_texts_own_feature() -> None:
    features = F.normalize(native().encode_text(tokenize(["a photo of a cat."])), dim=-1)
    tower = zero_shot_parts(view_of(native()))[1]
    torch.testing.assert_close(tower.features(["cat", "dog"])[:1], features.detach(), rtol=1e-12, atol=1e-12)
