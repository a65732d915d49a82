"""Blocks in which attention and MLP run side by side on one input projection; the block is the attention module."""

from __future__ import annotations

from typing import Any

import torch

from hydra_core.models.families.common import add, projection_in, width

_find = projection_in("attn_out_proj", "out_proj")


def _heads(module: Any) -> tuple[int, int]:
    return module.num_heads, module.in_split[-1] // module.num_heads


def _owner(module: Any) -> torch.Tensor:
    """Attention's channels first; where the projection is fused the MLP's follow and belong to no head."""
    heads, head_dim = _heads(module)
    owner = torch.full((width(module.get_submodule(_find(module))),), -1)
    owner[: heads * head_dim] = torch.arange(heads).repeat_interleave(head_dim)
    return owner


add(
    "parallel block",
    [f"timm.models.vision_transformer.{name}" for name in ("ParallelScalingBlock", "DiffParallelScalingBlock")],
    proj=_find,
    heads=_heads,
    owner=_owner,
)
