"""Samples through chosen heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.cache import digest
from app.lab import store
from app.lab.sources import Options, Sample, model, sample
from hydra_core.heads.mask import HeadMask

if TYPE_CHECKING:
    import torch

SAMPLES = 300  # ID samples that are projected first, and OOD samples over all sets


def projections(
    model_name: str,
    data_name: str,
    heads: Sequence[tuple[int, int]],
    mask: HeadMask | None = None,
    *,
    dims: int = 2,
    how: str = "pca",
    n: int = SAMPLES,
) -> tuple[Sample, list[Any]]:
    """(sample, `hydra_core.heads.projection.Projection` of each head) on validation data; rows as in the sample."""
    chosen = sample(data_name, Options(n=n))
    key = digest("projection", model_name, chosen.key, tuple(heads), mask.text if mask else "", dims, how)

    def compute() -> list[Any]:
        from hydra_core.heads.projection import project_heads

        plain, shown = head_outputs(model_name, chosen), head_outputs(model_name, chosen, mask)
        return project_heads(plain, shown, len(chosen.id), heads, dims=dims, how=how)

    return chosen, store.results.get(key, lambda: store.infer(compute))


def head_outputs(model_name: str, chosen: Sample, mask: HeadMask | None = None) -> list[torch.Tensor]:
    """What every head hands on, one (N, H, d_h) a layer: one forward serves all panels of a page."""
    from hydra_core.heads import attention_maps

    def compute() -> list[torch.Tensor]:
        view = model(model_name)
        return attention_maps.head_outputs(view, view.inputs(*chosen.sets.values()), mask=mask)

    key = digest("head outputs", model_name, chosen.key, mask.text if mask else "")
    return store.results.get(key, lambda: store.infer(compute), lambda layers: sum(layer.nbytes for layer in layers))
