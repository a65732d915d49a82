"""Plain attention with a bias by relative position: BEiT, RelPos-ViT, SAM."""

from __future__ import annotations

from typing import Any

from torch import nn

from hydra_core.models.attention import Index, channels, clone_with
from hydra_core.models.families.common import (
    add,
    columns,
    cut_parts,
    even_heads,
    of_heads,
    part_rows,
    projection_in,
    rows,
    with_bias,
)
from hydra_core.models.families.cut import CutBiased, TableBias
from hydra_core.models.families.maxxvit import cut_bias

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


def _cut_biased(module: Any, keep: Index) -> nn.Module:
    norms = {"q_norm": module.q_norm, "k_norm": module.k_norm}
    new = CutBiased(*cut_parts(module, keep), **norms, rel_pos=cut_bias(module.rel_pos, keep))
    return new.train(module.training)


def _cut_beit(module: Any, keep: Index) -> nn.Module:
    qkv, table = with_bias(module.qkv, module.q_bias, module.k_bias, module.v_bias), module.relative_position_bias_table
    rel_pos = None if table is None else TableBias(of_heads(table, keep, axis=1), module.relative_position_index)
    norms = {"q_norm": nn.Identity(), "k_norm": nn.Identity()}
    return CutBiased(*cut_parts(module, keep, qkv), **norms, rel_pos=rel_pos).train(module.training)


_RELPOS = ["timm.models.vision_transformer_relpos.RelPosAttention", "hydra_core.models.families.cut.CutBiased"]
add("BEiT", "timm.models.beit.Attention", slice=_cut_beit, grouped=False)
add("ViT relative position", _RELPOS, slice=_cut_biased, grouped=False)
add("SAM", "timm.models.vision_transformer_sam.Attention", slice=_cut_sam)
