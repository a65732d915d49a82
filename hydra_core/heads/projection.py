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
from hydra_core.heads.attention_maps import head_outputs
from hydra_core.heads.criteria import probe_auroc
from hydra_core.heads.mask import HeadMask
from hydra_core.models.view import ModelView

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
    view: ModelView,
    inside: torch.Tensor,
    outside: torch.Tensor,
    heads: Sequence[Head],
    *,
    dims: int = 2,
    how: str = "pca",
    mask: HeadMask | None = None,
    seed: int = 0,
) -> list[Projection]:
    """Project what each head hands to the output projection (class token, or mean over tokens).

    Args:
        inside, outside: prepared ID and OOD samples, (N, ...) and (N_o, ...).
        heads: which, as (layer, head).
        dims: 2 or 3.
        how: "pca" or "umap" (the first UMAP of a process compiles for about ten seconds).
        mask: heads removed while the points are computed; axes stay those of the unpruned model.

    Raises:
        DataError: too few samples.
        MaskError: no such head.
        HydraError: unknown `how` or `dims`.
    """
    if how not in ("pca", "umap") or dims not in (2, 3):
        raise HydraError("There is no such projection", expected="pca or umap, in 2 or 3 dimensions", got=(how, dims))
    if len(inside) <= dims or not len(outside):
        raise DataError("Too few samples to project", expected=f"more than {dims} ID and one OOD", got=len(inside))
    for layer, head in heads:
        if not (0 <= layer < len(view.shape) and 0 <= head < view.shape[layer]):
            raise MaskError("There is no such head", expected=f"layers x heads {view.shape}", got=(layer, head))
    plain = head_outputs(view, inside)
    shown = head_outputs(view, torch.cat([inside, outside]), mask=mask)
    return [_one(head, plain, shown, len(inside), dims, how, seed) for head in heads]


def _one(head: Head, plain: list, shown: list, n: int, dims: int, how: str, seed: int) -> Projection:
    layer, h = head
    fit = plain[layer][:, h].double().numpy()  # (N, d_h)
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
