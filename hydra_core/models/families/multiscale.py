"""Attention that pools its queries between stages: MViT v2, Hiera, SAM 2's Hiera. All heads share the pooling."""

from __future__ import annotations

from typing import Any

from torch import nn

from hydra_core.models.attention import Index, channels, clone_with
from hydra_core.models.families.common import add, columns, even_heads, part_rows, projection_in, rows


def _cut(module: Any, keep: Index) -> nn.Module:
    count = "heads" if hasattr(module, "heads") else "num_heads"
    heads, head_dim = even_heads(projection_in("proj"), count)(module)
    return clone_with(
        module,
        dim_out=len(keep) * head_dim,
        qkv=rows(module.qkv, part_rows(keep, heads, head_dim)),
        proj=columns(module.proj, channels(keep, head_dim)),
        **{count: len(keep)},
    )


add("MViT v2", "timm.models.mvitv2.MultiScaleAttention", slice=_cut)
add("Hiera SAM 2", "timm.models.hieradet_sam2.MultiScaleAttention", slice=_cut)
add("Hiera", "timm.models.hiera.MaskUnitAttention", heads=even_heads(projection_in("proj"), "heads"), slice=_cut)
