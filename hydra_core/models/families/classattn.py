"""Attention in which only the class token asks: CaiT, XCiT, VOLO, CrossViT; and talking heads."""

from __future__ import annotations

from typing import Any

from torch import nn

from hydra_core.models.attention import Index, channels, clone_with
from hydra_core.models.families.common import add, columns, part_rows, rows, width
from hydra_core.models.families.cut import CutClass


def _cut(module: Any, keep: Index) -> nn.Module:
    """CrossViT names its linears wq, wk, wv; the function is the same."""
    one = channels(keep, width(module.proj) // module.num_heads)
    prefix = "w" if hasattr(module, "wq") else ""
    q, k, v = (rows(getattr(module, prefix + name), one) for name in "qkv")
    return CutClass(q, k, v, proj=columns(module.proj, one), heads=len(keep)).train(module.training)


def _cut_volo(module: Any, keep: Index) -> nn.Module:
    one = channels(keep, module.head_dim)
    kv = rows(module.kv, part_rows(keep, module.num_heads, module.head_dim, parts=2))
    return clone_with(module, num_heads=len(keep), q=rows(module.q, one), kv=kv, proj=columns(module.proj, one))


_CUT = "hydra_core.models.families.cut.CutClass"
add("class attention", ["timm.models.cait.ClassAttn", _CUT], slice=_cut)
add("VOLO class attention", "timm.models.volo.ClassAttention", slice=_cut_volo)
add("CrossViT", "timm.models.crossvit.CrossAttention", slice=_cut)
# Heads are mixed before and after the softmax: removing one's output is exact, removing its computation is not.
add("talking heads", "timm.models.cait.TalkingHeadAttn")
