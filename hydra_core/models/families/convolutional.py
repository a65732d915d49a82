"""Attention inside convolutional networks: projections are convolutions, channels come second."""

from __future__ import annotations

from torch import nn

from hydra_core.models.families.common import add, projection_in, width

add("Visformer", "timm.models.visformer.Attention")
add("multi-query 2d", "timm.layers.attention2d.MultiQueryAttention2d", proj="output")
# with a fused output projection `o_proj` is an identity and the upsampling convolution mixes the heads
add(
    "LowFormer",
    ["timm.models.lowformer.ConvAttention", "timm.models.cpubone.ConvAttention"],
    proj=projection_in("o_proj", "upsampling"),
)

_NO_PROJECTION = {"BottleneckAttn", "HaloAttn", "LambdaLayer"}
_find = projection_in("conv3_1x1")


def _block_heads(module: nn.Module) -> tuple[int, int]:
    number = int(module.self_attn.num_heads)  # type: ignore[union-attr, arg-type]
    return number, width(module.get_submodule(_find(module))) // number


# These layers have no projection of their own. Norm, activation and pooling after them keep channels apart,
# so the heads first meet at the block's closing 1x1 convolution.
add(
    "bottleneck attention",
    "timm.models.byobnet.SelfAttnBlock",
    when=lambda module: type(module.self_attn).__name__ in _NO_PROJECTION,
    proj=_find,
    heads=_block_heads,
)
