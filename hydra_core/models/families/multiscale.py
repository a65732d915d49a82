"""Attention that pools its queries between stages: MViT v2, Hiera, SAM 2's Hiera."""

from __future__ import annotations

from hydra_core.models.families.common import add, even_heads, projection_in

add("MViT v2", "timm.models.mvitv2.MultiScaleAttention")
add("Hiera SAM 2", "timm.models.hieradet_sam2.MultiScaleAttention")
add("Hiera", "timm.models.hiera.MaskUnitAttention", heads=even_heads(projection_in("proj"), count="heads"))
