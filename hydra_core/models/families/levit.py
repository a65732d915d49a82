"""Attention whose keys and values have different widths, with a bias by offset: LeViT, TinyViT, EfficientFormer."""

from __future__ import annotations

from hydra_core.models.families.common import add

add("LeViT", ["timm.models.levit.Attention", "timm.models.levit.AttentionDownsample"])
add("TinyViT", "timm.models.tiny_vit.Attention")
add("EfficientFormer", "timm.models.efficientformer.Attention")
# talking heads and a convolution over the values: the heads meet before the projection, so gate only
add(
    "EfficientFormer v2",
    ["timm.models.efficientformer_v2.Attention2d", "timm.models.efficientformer_v2.Attention2dDownsample"],
)
# each head's output feeds the next head: what is removed is its part in the projection
add("EfficientViT cascade", "timm.models.efficientvit_msra.CascadedGroupAttention")
