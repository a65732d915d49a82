"""Attention inside windows. Windows sit batch-major on the first axis, so gates a sample repeat over its windows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hydra_core.models.attention import Index, channels, clone_with
from hydra_core.models.families.common import add, columns, even_heads, of_heads, part_rows, projection_in, rows, width

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
add("Swin v2", "timm.models.swin_transformer_v2.WindowAttention")
add("Swin v2 CR", "timm.models.swin_transformer_v2_cr.WindowMultiHeadAttention")
add("GCViT", "timm.models.gcvit.WindowAttentionGlobal")


def _interleaved(module: Any) -> torch.Tensor:
    """NesT puts heads last: channel c belongs to head c mod H."""
    return torch.arange(width(module.proj)) % int(module.num_heads)


add("NesT", "timm.models.nest.Attention", owner=_interleaved)
