"""Attention between channels instead of tokens (cross-covariance), and factorised attention."""

from __future__ import annotations

from typing import Any

from torch import nn

from hydra_core.models.attention import Index
from hydra_core.models.families.common import add, cut_parts, of_heads
from hydra_core.models.families.cut import CutChannels

_CUT = "hydra_core.models.families.cut.CutChannels"


def _cut(module: Any, keep: Index) -> nn.Module:
    return CutChannels(*cut_parts(module, keep), temperature=of_heads(module.temperature, keep)).train(module.training)


add(
    "cross-covariance",
    ["timm.models.xcit.XCA", "timm.models.edgenext.CrossCovarianceAttn", _CUT],
    slice=_cut,
    grouped=False,
)
add("DaViT channels", "timm.models.davit.ChannelAttention")
add("CoaT", "timm.models.coat.FactorAttnConvRelPosEnc")
