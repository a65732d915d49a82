"""Attention with rotary positions: EVA, timm's AttentionRope, Gemma 4."""

from __future__ import annotations

from hydra_core.models.families.common import add

add("EVA", "timm.models.eva.EvaAttention")
add("timm AttentionRope", "timm.layers.attention.AttentionRope")
add("Gemma 4", "timm.models.gemma4_vit.Gemma4Attention", proj="o_proj")
