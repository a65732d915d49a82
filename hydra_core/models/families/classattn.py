"""Attention in which only the class token asks: CaiT, VOLO, CrossViT; and talking heads."""

from __future__ import annotations

from hydra_core.models.families.common import add

add("class attention", "timm.models.cait.ClassAttn")
add("VOLO class attention", "timm.models.volo.ClassAttention")
add("CrossViT", "timm.models.crossvit.CrossAttention")
# Heads are mixed before and after the softmax: removing one's output is exact, removing its computation is not.
add("talking heads", "timm.models.cait.TalkingHeadAttn")
