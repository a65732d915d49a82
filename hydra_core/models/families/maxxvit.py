"""MaxViT and CoAtNet, channels last and channels first."""

from __future__ import annotations

from hydra_core.models.families.common import add

add("MaxViT", "timm.models.maxxvit.AttentionCl")
add("CoAtNet", "timm.models.maxxvit.Attention2d")
