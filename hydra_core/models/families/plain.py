"""Plain softmax attention over a sequence of tokens, under many names."""

from __future__ import annotations

from hydra_core.models.families.common import add

add("PVT v2", "timm.models.pvt_v2.Attention")
add("Twins global", "timm.models.twins.GlobalSubSampleAttn")
add("Twins local", "timm.models.twins.LocallyGroupedAttn")
add("TNT", "timm.models.tnt.Attention")
add("MetaFormer", "timm.models.metaformer.Attention")
add("FastViT", "timm.models.fastvit.Attention")
add("ConViT", "timm.models.convit.MHSA")
add("ConViT gated positional", "timm.models.convit.GPSA")
add("NextViT", "timm.models.nextvit.EfficientAttention")
add("VOLO", "timm.models.volo.Attention")
add("VOLO outlook", "timm.models.volo.OutlookAttention")
add("differential attention", "timm.layers.diff_attention.DiffAttention")
