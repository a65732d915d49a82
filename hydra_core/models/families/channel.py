"""Attention between channels instead of tokens (cross-covariance), and factorised attention."""

from __future__ import annotations

from hydra_core.models.families.common import add

add("XCiT", "timm.models.xcit.XCA")
add("EdgeNeXt", "timm.models.edgenext.CrossCovarianceAttn")
add("DaViT channels", "timm.models.davit.ChannelAttention")
add("CoaT", "timm.models.coat.FactorAttnConvRelPosEnc")
