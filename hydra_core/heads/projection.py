"""ID and OOD samples as a head sees them, in two or three dimensions (paper: six most and six least important heads).

The axes are fitted on ID samples of the unpruned model and frozen: pruning earlier heads moves points, never axes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hydra_core.errors import DataError, HydraError, MaskError
from hydra_core.heads.criteria import probe_auroc

Head = tuple[int, int]
_umap_lock = threading.Lock()  # numba entered by two threads at once can abort the process


@dataclass(frozen=True, eq=False)
class Projection:
    """One head's picture.

    Attributes:
        head: (layer, head).
        points: (N, dims), ID rows first, then OOD.
        explained: share of the ID variance that each axis carries, (dims,); None for UMAP.
        auroc: cross-validated AUROC of a linear probe, ID against OOD, on the head's full output (not on the picture).
    """

    head: Head
    points: np.ndarray
    explained: np.ndarray | None
    auroc: float


def project_heads(
    plain: Sequence[torch.Tensor],
    shown: Sequence[torch.Tensor],
    inside: int,
    heads: Sequence[Head],
    *,
    dims: int = 2,
    how: str = "pca",
    seed: int = 0,
) -> list[Projection]:
    """Project what each head hands to the output projection (class token, or mean over tokens).

    Args:
        plain: `attention_maps.head_outputs` of the unpruned model, one (N + N_o, H, d_h) a layer: fixes the axes.
        shown: the same under a mask (or `plain` itself): gives the points.
        inside: N, how many of the rows, from the first, are ID.
        heads: which, as (layer, head).
        dims: 2 or 3.
        how: "pca" or "umap" (the first UMAP of a process compiles for about ten seconds).

    Raises:
        DataError: too few samples.
        MaskError: no such head.
        HydraError: unknown `how` or `dims`.
    """
    if how not in ("pca", "umap") or dims not in (2, 3):
        raise HydraError("There is no such projection", expected="pca or umap, in 2 or 3 dimensions", got=(how, dims))
    if inside <= dims or len(plain[0]) <= inside:
        raise DataError("Too few samples to project", expected=f"more than {dims} ID and one OOD", got=inside)
    shape = tuple(layer.shape[1] for layer in plain)
    for layer, head in heads:
        if not (0 <= layer < len(shape) and 0 <= head < shape[layer]):
            raise MaskError("There is no such head", expected=f"layers x heads {shape}", got=(layer, head))
    return [_one(head, plain, shown, inside, dims, how, seed) for head in heads]


def _one(
    head: Head, plain: Sequence[torch.Tensor], shown: Sequence[torch.Tensor], n: int, dims: int, how: str, seed: int
) -> Projection:
    layer, h = head
    fit = plain[layer][:n, h].double().numpy()  # (N, d_h)
    all_rows = shown[layer][:, h].double()  # (N + N_o, d_h)
    points, explained = _fit(fit, all_rows.numpy(), dims, how, seed)
    return Projection(head, points, explained, probe_auroc(all_rows[:n], all_rows[n:], seed=seed))


def _fit(fit: np.ndarray, rows: np.ndarray, dims: int, how: str, seed: int) -> tuple[np.ndarray, np.ndarray | None]:
    if how == "pca":
        from sklearn.decomposition import PCA

        pca = PCA(min(dims, fit.shape[1]), random_state=seed).fit(fit)
        points = pca.transform(rows)
        missing = dims - points.shape[1]  # heads narrower than the picture
        return np.pad(points, ((0, 0), (0, missing))), np.pad(pca.explained_variance_ratio_, (0, missing))
    with _umap_lock:
        import umap

        reducer = umap.UMAP(n_components=dims, random_state=seed, n_jobs=1).fit(fit)
        return np.asarray(reducer.transform(rows)), None
