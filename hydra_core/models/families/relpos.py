"""Plain attention with a bias by relative position: BEiT, RelPos-ViT, SAM."""

from __future__ import annotations

from typing import Any

from torch import nn

from hydra_core.models.attention import Index, channels, clone_with
from hydra_core.models.families.common import add, columns, even_heads, part_rows, projection_in, rows

_heads = even_heads(projection_in("proj"))


def _cut_sam(module: Any, keep: Index) -> nn.Module:
    """SAM's positions are added by head width, so all heads share them."""
    heads, head_dim = _heads(module)
    return clone_with(
        module,
        num_heads=len(keep),
        qkv=rows(module.qkv, part_rows(keep, heads, head_dim)),
        proj=columns(module.proj, channels(keep, head_dim)),
    )


add("BEiT", "timm.models.beit.Attention")
add("ViT relative position", "timm.models.vision_transformer_relpos.RelPosAttention")
add("SAM", "timm.models.vision_transformer_sam.Attention", slice=_cut_sam)
