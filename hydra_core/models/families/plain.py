"""Plain softmax attention over a sequence of tokens, under many names.

Several classes read their width off the input, so a smaller one cannot run; where what they compute is
timm's `Attention` exactly, that is what they are cut into.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from hydra_core.models.attention import Index, channels
from hydra_core.models.families.common import add, columns, cut_parts, even_heads, part_rows, projection_in, rows
from hydra_core.models.families.cut import CutMap

_heads = even_heads(projection_in("proj"))


def _cut_to_attention(module: Any, keep: Index) -> nn.Module:
    """timm's Attention with the kept heads of a module that has `qkv` (q | k | v), `proj` and a scale of d^-0.5."""
    from timm.layers.attention import Attention

    heads, head_dim = _heads(module)
    one = channels(keep, head_dim)
    new = Attention(8, 1, device="meta").train(module.training)
    new.num_heads, new.head_dim, new.attn_dim, new.scale = len(keep), head_dim, len(one), head_dim**-0.5
    new.qkv = rows(module.qkv, part_rows(keep, heads, head_dim))
    new.proj = columns(module.proj, one)
    return new


def _cut_map(module: Any, keep: Index) -> nn.Module:
    return CutMap(*cut_parts(module, keep)).train(module.training)


add("PVT v2", "timm.models.pvt_v2.Attention")
add("Twins global", "timm.models.twins.GlobalSubSampleAttn")
add("Twins local", "timm.models.twins.LocallyGroupedAttn")
add("TNT", "timm.models.tnt.Attention")
add("MetaFormer", "timm.models.metaformer.Attention", slice=_cut_to_attention)
add("FastViT", ["timm.models.fastvit.Attention", f"{CutMap.__module__}.CutMap"], slice=_cut_map)
add("ConViT", "timm.models.convit.MHSA", slice=_cut_to_attention)
add("ConViT gated positional", "timm.models.convit.GPSA")
add("NextViT", "timm.models.nextvit.EfficientAttention")
add("VOLO", "timm.models.volo.Attention")
add("VOLO outlook", "timm.models.volo.OutlookAttention")
add("differential attention", "timm.layers.diff_attention.DiffAttention")
add("DaViT windows", "timm.models.davit.WindowAttention", slice=_cut_to_attention)
