"""Attention inside windows. Windows sit batch-major on the first axis, so gates a sample repeat over its windows."""

from __future__ import annotations

import torch
from torch import nn

from hydra_core.models.families.common import add, width

add("Swin", "timm.models.swin_transformer.WindowAttention")
add("Swin v2", "timm.models.swin_transformer_v2.WindowAttention")
add("Swin v2 CR", "timm.models.swin_transformer_v2_cr.WindowMultiHeadAttention")
add("DaViT windows", "timm.models.davit.WindowAttention")
add("GCViT", "timm.models.gcvit.WindowAttentionGlobal")


def _interleaved(module: nn.Module) -> torch.Tensor:
    """NesT puts heads last: channel c belongs to head c mod H."""
    return torch.arange(width(module.proj)) % module.num_heads


add("NesT", "timm.models.nest.Attention", owner=_interleaved)
