"""Attention inside windows. Windows sit batch-major on the first axis, so gates a sample repeat over its windows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hydra_core.models.attention import Index, channels, clone_with
from hydra_core.models.families.common import (
    add,
    columns,
    cut_parts,
    even_heads,
    of_heads,
    part_rows,
    projection_in,
    rows,
    width,
    with_bias,
)
from hydra_core.models.families.cut import CutCosine, LogBias
from hydra_core.models.families.maxxvit import cut_bias, cut_mlp

_heads = even_heads(projection_in("proj"))


def _cut_swin(module: Any, keep: Index) -> nn.Module:
    heads, head_dim = _heads(module)
    return clone_with(
        module,
        num_heads=len(keep),
        qkv=rows(module.qkv, part_rows(keep, heads, head_dim)),
        proj=columns(module.proj, channels(keep, head_dim)),
        relative_position_bias_table=of_heads(module.relative_position_bias_table, keep, axis=1),
    )


add("Swin", "timm.models.swin_transformer.WindowAttention", slice=_cut_swin, grouped=False)


def _cut_v2(module: Any, keep: Index) -> nn.Module:
    qkv = with_bias(module.qkv, module.q_bias, module.k_bias, module.v_bias)
    area = module.window_size[0] * module.window_size[1]
    rel_pos = LogBias(
        cut_mlp(module.cpb_mlp, keep),
        module.relative_coords_table,
        module.relative_position_index.view(area, area),
    )
    return _cosine(module, keep, rel_pos, qkv)


def _cut_cr(module: Any, keep: Index) -> nn.Module:
    rel_pos = LogBias(cut_mlp(module.meta_mlp, keep), module.relative_coordinates_log, None)
    return _cosine(module, keep, rel_pos, module.qkv)


def _cut_again(module: Any, keep: Index) -> nn.Module:
    return _cosine(module, keep, cut_bias(module.rel_pos, keep), module.qkv)


def _cosine(module: Any, keep: Index, rel_pos: nn.Module, qkv: Any) -> nn.Module:
    scale = of_heads(module.logit_scale, keep)
    return CutCosine(*cut_parts(module, keep, qkv), logit_scale=scale, rel_pos=rel_pos).train(module.training)


add("Swin v2", "timm.models.swin_transformer_v2.WindowAttention", slice=_cut_v2, grouped=False)
add(
    "Swin v2 CR",
    "timm.models.swin_transformer_v2_cr.WindowMultiHeadAttention",
    slice=_cut_cr,
    grouped=False,
)
add("Swin v2, cut", "hydra_core.models.families.cut.CutCosine", slice=_cut_again, grouped=False)
add("GCViT", "timm.models.gcvit.WindowAttentionGlobal")


def _interleaved(module: Any) -> torch.Tensor:
    """NesT puts heads last: channel c belongs to head c mod H."""
    return torch.arange(width(module.proj)) % int(module.num_heads)


add("NesT", "timm.models.nest.Attention", owner=_interleaved)
