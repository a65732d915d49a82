"""Small random timm ViTs in float64, one a structural variant of the issue."""

from __future__ import annotations

from functools import cache

import torch
from timm.models.vision_transformer import Block, ParallelScalingBlock, ParallelThingsBlock, VisionTransformer
from torch import nn

from hydra_core.models.view import ModelView, build_view

BASE = {"img_size": 16, "patch_size": 4, "in_chans": 1, "embed_dim": 24, "depth": 3, "num_heads": 4, "num_classes": 5}
VARIANTS: dict[str, dict] = {
    "plain": {},
    "no qkv bias": {"qkv_bias": False},
    "qk_norm": {"qk_norm": True},
    "no class token": {"class_token": False, "global_pool": "avg"},
    "registers": {"reg_tokens": 3},
    "no embed class": {"no_embed_class": True, "reg_tokens": 2},
    "layer scale": {"init_values": 0.5},
    "parallel scaling": {"block_fn": ParallelScalingBlock},
    "parallel things": {"block_fn": ParallelThingsBlock},
    "other grid": {"img_size": (12, 20)},
    "average pool, fc norm": {"global_pool": "avg", "fc_norm": True},
    "distilled": {},
    "gated": {},
    "swiglu": {},
}


@cache
def variant(name: str) -> tuple[ModelView, torch.Tensor]:
    """A view and four inputs; weights are redrawn so that no zero init hides a head."""
    torch.manual_seed(sum(map(ord, name)))
    module = _module(name).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.25)
    size = (1, *_pair(BASE | VARIANTS[name])) if name != "distilled" else (1, 16, 16)
    view = build_view(name, module, class_names=tuple("abcde"), input_size=size)
    return view, torch.randn(4, *size, dtype=torch.float64)


def _pair(options: dict) -> tuple[int, int]:
    size = options["img_size"]
    return size if isinstance(size, tuple) else (size, size)


def _module(name: str) -> nn.Module:
    options = BASE | VARIANTS[name]
    if name == "distilled":
        from timm.models.deit import VisionTransformerDistilled

        return VisionTransformerDistilled(**options)
    if name == "gated":
        from timm.layers import AttentionPoolLatent  # noqa: F401  (same module family; fails early on other versions)
        from timm.layers.attention import Attention

        model = VisionTransformer(**options)
        for block in model.blocks:
            assert isinstance(block, Block)
            block.attn = Attention(24, num_heads=4, qkv_bias=True, gated=True)
        return model
    if name == "swiglu":
        from timm.layers import SwiGLUPacked

        return VisionTransformer(**options, mlp_layer=SwiGLUPacked)
    return VisionTransformer(**options)
