"""Attention inside convolutional networks: projections are convolutions, channels come second."""

from __future__ import annotations

from typing import Any

from torch import nn

from hydra_core.models.attention import Index, channels, clone_with
from hydra_core.models.families.common import add, columns, part_rows, projection_in, rows, width


def _cut_visformer(module: Any, keep: Index) -> nn.Module:
    return clone_with(
        module,
        num_heads=len(keep),
        qkv=rows(module.qkv, part_rows(keep, module.num_heads, module.head_dim)),
        proj=columns(module.proj, channels(keep, module.head_dim)),
    )


add("Visformer", "timm.models.visformer.Attention", slice=_cut_visformer)


def _cut_queries(module: Any, keep: Index) -> nn.Module:
    """Keys and values are one for all heads and stay."""
    query, output = clone_with(module.query), clone_with(module.output)
    query.proj = rows(query.proj, channels(keep, module.key_dim))
    output.proj = columns(output.proj, channels(keep, module.value_dim))
    return clone_with(module, num_heads=len(keep), query=query, output=output)


add("multi-query 2d", "timm.layers.attention2d.MultiQueryAttention2d", proj="output", slice=_cut_queries, grouped=False)
# with a fused output projection `o_proj` is an identity and the upsampling convolution mixes the heads
add(
    "LowFormer",
    ["timm.models.lowformer.ConvAttention", "timm.models.cpubone.ConvAttention"],
    proj=projection_in("o_proj", "upsampling"),
)

_NO_PROJECTION = {"BottleneckAttn", "HaloAttn", "LambdaLayer"}
_find = projection_in("conv3_1x1")


def _block_heads(module: Any) -> tuple[int, int]:
    number = int(module.self_attn.num_heads)
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
