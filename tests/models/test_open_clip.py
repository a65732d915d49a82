"""open_clip's image towers: masks, slices and fusion against the native model, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hydra_core.data.sets import SampleSet
from hydra_core.errors import CheckpointError, UnknownNameError, UnsupportedModel
from hydra_core.fusion.ensemble import fuse
from hydra_core.fusion.evaluator import MaskEvaluator
from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask
from hydra_core.models.families.multihead import SplitMultihead, split_multihead
from hydra_core.models.load import list_models
from hydra_core.models.open_clip_models import load_open_clip, open_clip_view
from hydra_core.models.view import ModelView

open_clip = pytest.importorskip("open_clip")

VISION: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 3, "head_width": 8, "mlp_ratio": 2}
TEXT: dict[str, Any] = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
TIMM = {"timm_model_name": "test_vit", "timm_pool": "avg", "timm_proj": "linear", "image_size": 160}
NAMES = ["cat", "dog", "old boat"]

# case -> (class, vision options, model options)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "clip": ("CLIP", {}, {}),
    "quick gelu": ("CLIP", {}, {"quick_gelu": True}),
    "average pool, layer scale": ("CLIP", {"pool_type": "avg", "ls_init_value": 0.5, "final_ln_after_pool": True}, {}),
    "attentional pool": ("CLIP", {"attentional_pool": True, "attn_pooler_heads": 2}, {}),
    "siglip bias": ("CustomTextCLIP", {}, {"init_logit_bias": -3.0}),
    "custom block": ("CLIP", {"block_type": "custom"}, {}),
    "qk norm, scaled heads": ("CLIP", {"qk_norm": True, "scale_heads": True, "scale_attn": True}, {}),
    "inner norm": ("CLIP", {"scale_attn_inner": True, "scale_fc": True}, {}),
    "timm tower": ("CustomTextCLIP", TIMM, {}),
}


def native(case: str) -> nn.Module:
    """A small model in float64 with noisy weights: zero biases and equal scales would hide a wrong slice."""
    kind, vision, options = CASES[case]
    torch.manual_seed(0)
    vision = dict(vision) if "timm_model_name" in vision else {**VISION, **vision}
    model = getattr(open_clip.model, kind)(embed_dim=24, vision_cfg=vision, text_cfg=dict(TEXT), **options)
    with torch.no_grad():
        for parameter in model.visual.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double().eval()


def tokenize(texts: list[str]) -> torch.Tensor:
    return open_clip.SimpleTokenizer(context_length=16)(texts)


def view_of(case: str) -> tuple[ModelView, nn.Module, torch.Tensor]:
    model = native(case)
    size = CASES[case][1].get("image_size", 32)
    x = torch.randn(2, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return open_clip_view(case, model, tokenize, NAMES), model, x


def masks_of(view: ModelView) -> list[HeadMask]:
    full = HeadMask.full(view.shape)
    last = len(view.shape) - 1
    return [full.prune(last, 0), full.prune(0, 1).prune(last, 1), full.prune(last, 0).prune(1, 0).prune(1, 1)]


@torch.no_grad()
def own_logits(model: Any, x: torch.Tensor) -> torch.Tensor:
    """open_clip's own zero-shot recipe: its classifier, its features, its scale."""
    weights = open_clip.build_zero_shot_classifier(model, tokenize, NAMES, ["a photo of a {}."])
    logits = model.logit_scale.exp() * model.encode_image(x, normalize=True) @ weights
    return logits if model.logit_bias is None else logits + model.logit_bias


@pytest.mark.parametrize("case", CASES)
def test_all_kept_is_the_native_model(case: str) -> None:
    view, model, x = view_of(case)
    want = own_logits(model, x)
    torch.testing.assert_close(view(x), want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(view(x, HeadMask.full(view.shape)), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_masked_is_sliced_and_fused_is_each_member(case: str) -> None:
    view, _, x = view_of(case)
    masks = masks_of(view)
    masked = torch.stack([view(x, mask) for mask in masks])
    assert all(float((m - view(x)).abs().max()) > 1e-6 for m in masked), "a mask removed nothing"
    with torch.inference_mode():
        sliced = torch.stack([prune_model(view, mask, gate=True)(x) for mask in masks])
    torch.testing.assert_close(sliced, masked, rtol=1e-10, atol=1e-10)
    hydra = fuse(view, masks)
    torch.testing.assert_close(hydra(x), masked, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(hydra.predict_proba(x), masked.softmax(-1).mean(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_slicing_makes_the_tower_smaller_unless_a_norm_couples_heads(case: str) -> None:
    view, _, _ = view_of(case)
    if case == "inner norm":
        assert not view.sliceable
        with pytest.raises(UnsupportedModel, match="cannot be cut"):
            prune_model(view, masks_of(view)[0])
        return
    small = prune_model(view, masks_of(view)[0])
    width, head_dim = next(iter(view.module.visual.parameters())).shape[0], view.layers[0].head_dim  # type: ignore[union-attr]
    lost = view.parameters - sum(p.numel() for p in small.parameters())
    assert lost >= 4 * width * head_dim if case != "timm tower" else lost > 0


def test_the_native_model_is_left_as_it_is() -> None:
    model = native("clip")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    view = open_clip_view("clip", model, tokenize, NAMES)
    view(torch.randn(1, 3, 32, 32, dtype=torch.float64), masks_of(view)[0])
    assert any(isinstance(m, nn.MultiheadAttention) for m in model.visual.modules())  # type: ignore[union-attr]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    own = {p.data_ptr() for p in model.parameters()}
    assert all(p.data_ptr() in own for p in view.module.visual.parameters()), "weights were copied"  # type: ignore[union-attr]


def test_blocks_are_called_one_by_one() -> None:
    for case in ("clip", "timm tower"):
        view, _, x = view_of(case)
        assert view.stages().direct(x), f"{case}: the shared prefix would be replayed"


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "padding", "a head", "both"])
def test_split_multihead_is_multihead_attention(batch_first: bool, cross: bool, mask: str) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(24, 3, batch_first=batch_first).double().eval()
    with torch.no_grad():
        module.in_proj_bias.normal_()
        module.out_proj.bias.normal_()
    holder = nn.Sequential(module)
    split = split_multihead(holder)[0]
    assert isinstance(split, SplitMultihead)
    q = torch.randn(2, 5, 24, dtype=torch.float64)
    k = torch.randn(2, 5, 24, dtype=torch.float64) if cross else q
    if not batch_first:
        q = q.transpose(0, 1)
        k = k.transpose(0, 1) if cross else q
    causal = torch.full((5, 5), float("-inf"), dtype=torch.float64).triu(1)
    pad = torch.zeros(2, 5, dtype=torch.bool)
    pad[1, 3:] = True
    options: dict[str, dict[str, torch.Tensor]] = {
        "none": {},
        "causal": {"attn_mask": causal},
        "boolean": {"attn_mask": causal < 0},
        "padding": {"key_padding_mask": pad},
        "a head": {"attn_mask": torch.randn(6, 5, 5, dtype=torch.float64)},
        "both": {"attn_mask": causal < 0, "key_padding_mask": pad},
    }
    given = options[mask]
    want, _ = module(q, k, k, need_weights=False, **given)
    got, weights = split(q, k, k, **given)
    assert weights is None
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_added_key_tokens_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="added key tokens"):
        split_multihead(nn.Sequential(nn.MultiheadAttention(8, 2, add_bias_kv=True)))


def test_preprocessing_is_open_clips_own() -> None:
    view, *_ = view_of("clip")
    images = np.random.default_rng(0).integers(0, 255, (3, 40, 50, 3), dtype=np.uint8)
    got = view.prepare(SampleSet("photos", images, None, ("a", "b", "c")))  # type: ignore[misc]
    from open_clip.transform import image_transform
    from PIL import Image

    own = image_transform(32, is_train=False)  # mean and deviation of the OpenAI models by default
    want = torch.stack([own(Image.fromarray(image)) for image in images])
    assert torch.equal(got, want)


def test_names_and_checkpoints(tmp_path: Any) -> None:
    names = list_models("open_clip")
    assert len(names) == len(open_clip.list_models())
    assert "open_clip/ViT-B-32" in names
    with pytest.raises(UnknownNameError, match="ViT-B-32"):
        load_open_clip("ViT-B-23")
    with pytest.raises(UnknownNameError, match="laion2b_s34b_b79k"):
        load_open_clip("ViT-B-32:laion2b_s34b_b97k")
    with pytest.raises(CheckpointError):
        load_open_clip("ViT-B-32", checkpoint=tmp_path / "none.safetensors")


def test_towers_with_tokens_first_are_masked_and_fused() -> None:
    """The same tower with (T, B, d) streams: logits, masks, the evaluator's streams and fusion stay the same."""
    view, _, _ = view_of("clip")
    model = native("clip")
    model.visual.transformer.batch_first = False
    for block in model.visual.transformer.resblocks:
        block.attn.batch_first = False
    other = open_clip_view("tokens first", model, tokenize, NAMES)
    x = torch.randn(5, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    masks = masks_of(view)
    want = torch.stack([view(x, mask) for mask in masks])
    torch.testing.assert_close(torch.stack([other(x, mask) for mask in masks]), want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(fuse(other, masks)(x), want, rtol=1e-10, atol=1e-10)
    many = MaskEvaluator(other, x, chunk=2).many(masks)
    np.testing.assert_allclose(many, want.numpy(), atol=1e-5)


def test_both_attention_structures_with_the_same_weights_give_the_same_masked_logits() -> None:
    """`nn.MultiheadAttention`, as 3.x has it, and a module of joint input weights, as 4.x has, whatever its name."""
    plain, own = native("clip"), native("custom block")
    own.load_state_dict(plain.state_dict(), strict=True)
    for block in own.visual.transformer.resblocks:  # type: ignore[union-attr]
        block.attn.__class__ = type("RenamedAttention", (type(block.attn),), {})
    first, second = (open_clip_view(name, model, tokenize, NAMES) for name, model in (("3", plain), ("4", own)))
    assert {layer.kind.name for layer in first.layers} != {layer.kind.name for layer in second.layers}
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for mask in masks_of(first):
        torch.testing.assert_close(second(x, mask), first(x, mask), rtol=1e-10, atol=1e-10)
        with torch.inference_mode():
            torch.testing.assert_close(prune_model(second, mask)(x), first(x, mask), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        fuse(second, masks_of(first))(x), fuse(first, masks_of(first))(x), rtol=1e-10, atol=1e-10
    )
