"""Attention with rotary positions: EVA, timm's AttentionRope, Gemma 4."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hydra_core.models.attention import AttentionKind, Index, channels, clone_with, couples
from hydra_core.models.families.common import add, columns, part_rows, rows

_ROPE, _EVA = "timm.layers.attention.AttentionRope", "timm.models.eva.EvaAttention"


def _heads(module: Any) -> tuple[int, int]:
    return module.num_heads, module.head_dim


def _cut(module: Any, keep: Index) -> nn.Module:
    one = channels(keep, module.head_dim)
    changes: dict[str, Any] = {
        "num_heads": len(keep),
        "num_kv_heads": len(keep),
        "attn_dim": len(one),
        "kv_dim": len(one),
        "proj": columns(module.proj, one),
        "gate": None if module.gate is None else rows(module.gate, one),
    }
    if module.qkv is not None:
        changes["qkv"] = rows(module.qkv, part_rows(keep, module.num_heads, module.head_dim))
    else:
        changes |= {name: rows(getattr(module, name), one) for name in ("q_proj", "k_proj", "v_proj")}
    return clone_with(module, **changes)


def _cut_eva(module: Any, keep: Index) -> nn.Module:
    """EvaAttention reads its width off the input, so the smaller module is an AttentionRope: the same function."""
    return _cut(_as_rope(module), keep)


def _as_rope(module: Any) -> nn.Module:
    from timm.layers.attention import AttentionRope

    new = AttentionRope(8, 1, norm_layer=nn.LayerNorm, device="meta").train(module.training)
    for name in ("num_heads", "head_dim", "scale", "num_prefix_tokens", "fused_attn", "rotate_half"):
        setattr(new, name, getattr(module, name))
    for name in (
        "qkv",
        "q_proj",
        "k_proj",
        "v_proj",
        "q_norm",
        "k_norm",
        "attn_drop",
        "norm",
        "gate",
        "proj",
        "proj_drop",
    ):
        setattr(new, name, getattr(module, name))
    new.num_kv_heads, new.num_kv_groups = module.num_heads, 1
    if module.q_bias is not None:  # kept beside the projection in EVA
        bias = torch.cat([module.q_bias, module.k_bias, module.v_bias])
        new.qkv = nn.Linear(1, 1, bias=False, device="meta")
        new.qkv.in_features, new.qkv.out_features = module.qkv.in_features, module.qkv.out_features
        new.qkv.weight = module.qkv.weight
        new.qkv.bias = nn.Parameter(bias, requires_grad=module.q_bias.requires_grad)
    return new


def _mixed(root: nn.Module) -> AttentionKind | None:
    """Mixed rotary positions differ between heads and come from outside: a smaller module would misread them."""
    return ROPE_MIXED if any(type(m).__name__ == "RotaryEmbeddingMixed" for m in root.modules()) else None


def _shares_keys(module: Any) -> bool:
    return getattr(module, "num_kv_groups", 1) > 1


add("EVA", _EVA, heads=_heads, slice=_cut_eva)
add("EVA with scale_norm", _EVA, heads=_heads, when=couples)
ROPE_MIXED = add("timm AttentionRope, mixed", _ROPE, heads=_heads, when=lambda module: False)
add("timm AttentionRope", _ROPE, heads=_heads, slice=_cut, in_model=_mixed)
add("timm AttentionRope, grouped queries", _ROPE, heads=_heads, when=_shares_keys)
add("timm AttentionRope with scale_norm", _ROPE, heads=_heads, when=couples)
add("Gemma 4", "timm.models.gemma4_vit.Gemma4Attention", proj="o_proj")
