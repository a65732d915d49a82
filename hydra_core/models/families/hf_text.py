"""Encoders of the transformers library: BERT and its relatives, DistilBERT, ALBERT, MPNet, DeBERTa.

transformers 5 takes `head_mask=` and ignores it, so heads are gated here at the input of the output projection.
Classes are told by structure, as many copies of BERT's attention live under other names.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from hydra_core.models.attention import AttentionKind, Index, channels, clone_with, register, take_columns, take_rows
from hydra_core.models.families.common import even_heads


def _has(module: nn.Module, *names: str) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in names)


def _cut_linears(module: Any, keep: Index, head_dim: int, names: tuple[str, ...]) -> dict[str, nn.Linear]:
    """The named projections with the rows of the kept heads."""
    rows = channels(keep, head_dim, getattr(module, names[0]).weight.device)
    return {name: take_rows(getattr(module, name), rows) for name in names}


# -- BERT, RoBERTa, ELECTRA and other copies: .self holds the heads, .output.dense mixes them ----


def _inner_has(module: nn.Module, *names: str) -> bool:
    inner, output = getattr(module, "self", None), getattr(module, "output", None)
    if not isinstance(inner, nn.Module) or not isinstance(output, nn.Module):
        return False
    return _has(output, "dense") and _has(inner, *names) and hasattr(inner, "num_attention_heads")


def _inner_heads(module: Any) -> tuple[int, int]:
    return module.self.num_attention_heads, module.output.dense.in_features // module.self.num_attention_heads


def _cut_bert(module: Any, keep: Index) -> nn.Module:
    inner, (_, head_dim) = module.self, _inner_heads(module)
    changes: dict[str, Any] = dict(_cut_linears(inner, keep, head_dim, ("query", "key", "value")))
    new = clone_with(inner, num_attention_heads=len(keep), all_head_size=len(keep) * head_dim, **changes)
    columns = channels(keep, head_dim, module.output.dense.weight.device)
    output = clone_with(module.output, dense=take_columns(module.output.dense, columns))
    return clone_with(module, self=new, output=output)


def _refuse_decoder(module: Any) -> str:
    return "it is a decoder, whose later tokens read the cache of earlier ones" if module.self.is_decoder else ""


BERT = register(
    AttentionKind(
        name="BERT attention",
        matches=lambda module: _inner_has(module, "query", "key", "value") and hasattr(module.self, "is_decoder"),
        heads=_inner_heads,
        proj=lambda module: "output.dense",
        slice=_cut_bert,
        refuse=_refuse_decoder,
    )
)

# Positions enter every head's scores by tables that a smaller module would misread: gated, not cut.
DEBERTA = register(
    AttentionKind(
        name="DeBERTa disentangled attention",
        matches=lambda module: (
            (_inner_has(module, "in_proj") or _inner_has(module, "query_proj", "key_proj", "value_proj"))
            and hasattr(module.self, "relative_attention")
        ),
        heads=_inner_heads,
        proj=lambda module: "output.dense",
    )
)

# -- DistilBERT ------------------------------------------------------------------------------

_DISTIL = ("q_lin", "k_lin", "v_lin")


def _cut_distil(module: Any, keep: Index) -> nn.Module:
    size = module.attention_head_size
    out = take_columns(module.out_lin, channels(keep, size, module.out_lin.weight.device))
    changes: dict[str, Any] = dict(_cut_linears(module, keep, size, _DISTIL))
    return clone_with(module, n_heads=len(keep), out_lin=out, **changes)


def _distil_heads(module: Any) -> tuple[int, int]:
    return module.n_heads, module.attention_head_size


DISTILBERT = register(
    AttentionKind(
        name="DistilBERT attention",
        matches=lambda module: _has(module, *_DISTIL, "out_lin") and hasattr(module, "attention_head_size"),
        heads=_distil_heads,
        proj=lambda module: "out_lin",
        slice=_cut_distil,
    )
)

# -- ALBERT ----------------------------------------------------------------------------------


def _refuse_shared(module: Any) -> str:
    config = module.config
    if config.num_hidden_groups == config.num_hidden_layers and config.inner_group_num == 1:
        return ""
    return "its layers share their weights, so that one head stands in several layers at once"


def _cut_albert(module: Any, keep: Index) -> nn.Module:
    size = module.attention_head_size
    dense = take_columns(module.dense, channels(keep, size, module.dense.weight.device))
    changes: dict[str, Any] = dict(_cut_linears(module, keep, size, ("query", "key", "value")))
    return clone_with(module, num_attention_heads=len(keep), all_head_size=len(keep) * size, dense=dense, **changes)


def _albert_heads(module: Any) -> tuple[int, int]:
    return module.num_attention_heads, module.attention_head_size


ALBERT = register(
    AttentionKind(
        name="ALBERT attention",
        matches=lambda module: (
            _has(module, "query", "key", "value", "dense") and hasattr(module, "attention_head_size")
        ),
        heads=_albert_heads,
        proj=lambda module: "dense",
        slice=_cut_albert,
        refuse=_refuse_shared,
    )
)

# -- MPNet: one bias a head comes from outside, so it is gated, not cut ---------------------------

MPNET = register(
    AttentionKind(
        name="MPNet attention",
        matches=lambda module: _has(module, "q", "k", "v", "o") and hasattr(module, "attention_head_size"),
        heads=even_heads(lambda module: "o", "num_attention_heads"),
        proj=lambda module: "o",
    )
)
