"""MaxViT and CoAtNet, channels last and channels first."""

from __future__ import annotations

from typing import Any

from torch import nn

from hydra_core.models.attention import Index, channels, class_path, clone_with
from hydra_core.models.families.common import add, columns, of_heads, part_rows, rows


def _cut(module: Any, keep: Index) -> nn.Module:
    """q, k, v of one head sit together (`head_first`) or in three blocks of all heads."""
    heads, head_dim = module.num_heads, module.dim_head
    index = channels(keep, 3 * head_dim) if module.head_first else part_rows(keep, heads, head_dim)
    return clone_with(
        module,
        num_heads=len(keep),
        qkv=rows(module.qkv, index),
        proj=columns(module.proj, channels(keep, head_dim)),
        rel_pos=cut_bias(module.rel_pos, keep),
    )


def cut_bias(bias: Any, keep: Index) -> Any:
    """timm's relative position modules with the kept heads only."""
    kind = "" if bias is None else class_path(bias).rpartition(".")[2]
    if kind == "RelPosBias":
        table = of_heads(bias.relative_position_bias_table, keep, axis=1)
        return clone_with(bias, relative_position_bias_table=table, bias_shape=(*bias.bias_shape[:2], len(keep)))
    if kind == "RelPosBiasTf":
        table = of_heads(bias.relative_position_bias_table, keep)
        shape = (len(keep), *bias.bias_shape[1:])
        return clone_with(bias, relative_position_bias_table=table, bias_shape=shape, num_heads=len(keep))
    if kind == "RelPosMlp":
        return clone_with(
            bias, mlp=cut_mlp(bias.mlp, keep), bias_shape=(*bias.bias_shape[:2], len(keep)), num_heads=len(keep)
        )
    if kind == "TableBias":
        return clone_with(bias, table=of_heads(bias.table, keep, axis=1))
    if kind == "LogBias":
        return clone_with(bias, mlp=cut_mlp(bias.mlp, keep))
    return bias


def cut_mlp(mlp: Any, keep: Index) -> Any:
    """A network over offsets with one output a head, the kept ones only: timm's Mlp or a sequence."""
    if isinstance(mlp, nn.Sequential):
        new: Any = clone_with(mlp)
        new[-1] = rows(mlp[-1], channels(keep, 1))
        return new
    return clone_with(mlp, fc2=rows(mlp.fc2, channels(keep, 1)))


add("MaxViT", "timm.models.maxxvit.AttentionCl", slice=_cut, grouped=False)
add("CoAtNet", "timm.models.maxxvit.Attention2d", slice=_cut, grouped=False)
