"""Plain attention with a bias by relative position: BEiT, RelPos-ViT, SAM."""

from __future__ import annotations

from hydra_core.models.families.common import add

add("BEiT", "timm.models.beit.Attention")
add("ViT relative position", "timm.models.vision_transformer_relpos.RelPosAttention")
add("SAM", "timm.models.vision_transformer_sam.Attention")
