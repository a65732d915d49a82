"""Criteria beside Taylor and leave-one-out: of the weights, of attention, of heads' outputs; and how they agree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from hydra_core.data.sets import SampleSet
from hydra_core.errors import Cancelled, DataError
from hydra_core.heads.attention_maps import Attended, head_outputs, token_places, visit_attention
from hydra_core.heads.scores import HeadScores, criterion, gate_gradients, to_rows
from hydra_core.memory import by_chunks
from hydra_core.models.attention import owner_of
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress

Ood = Mapping[str, SampleSet] | None


@criterion("magnitude", "Magnitude", "Size of the head's part of the output projection; looks at no data.")
def magnitude(view: ModelView, samples: SampleSet | None = None, **unused: Any) -> HeadScores:
    """L2 (Frobenius) norm of the columns of W_O that read the head: defined for every family alike (fill-in)."""
    rows = []
    for layer in view.layers:
        projection: Any = view.module.get_submodule(layer.proj)
        inputs_first = isinstance(projection, nn.ConvTranspose2d)  # its weight is (in, out, k, k)
        weight = projection.weight.detach().double().movedim(0 if inputs_first else 1, 0).flatten(1)  # (C, rest)
        owner = owner_of(layer.kind, view.module.get_submodule(layer.path)).to(weight.device)
        rows.append(tuple(float(weight[owner == h].norm()) for h in range(layer.heads)))
    return HeadScores("magnitude", tuple(rows))


@criterion("random", "Random", "Drawn anew for each seed: what any criterion has to beat.")
def random(view: ModelView, samples: SampleSet | None = None, *, seed: int = 0, **unused: Any) -> HeadScores:
    """Uniform numbers by seed."""
    return HeadScores("random", to_rows(np.random.default_rng(seed).random(sum(view.shape)), view.shape))


# -- attention ---------------------------------------------------------------------------------


@criterion(
    "attention_entropy",
    "Attention entropy",
    "How widely the head spreads its attention, in nats. Describes a head; high is not known to mean important.",
)
def attention_entropy(view: ModelView, samples: SampleSet, *, seed: int = 0, **options: Any) -> HeadScores:
    """Mean over samples and looking tokens of -sum_k a log a, 0 to log T nats."""

    def reduce(attended: Attended, words: torch.Tensor | None) -> torch.Tensor:
        return _mean_over_tokens(torch.special.entr(attended.map()).sum(-1), words)  # (B, H)

    return HeadScores.from_samples(
        "attention_entropy", _attention_table(view, samples, reduce, **options), view.shape, seed
    )


@criterion(
    "attention_distance",
    "Attention distance",
    "How far the head looks on average, in patches (in tokens for texts). Describes a head; far is not known to "
    "mean important.",
)
def attention_distance(view: ModelView, samples: SampleSet, *, seed: int = 0, **options: Any) -> HeadScores:
    """Mean over samples and patches of sum_k a_qk |place_q - place_k| (Dosovitskiy et al., ICLR 2021, figure 7).

    Only patches look and are looked at: weights on class and register tokens are left out and the rest made to
    sum to 1 (fill-in). Distances are Euclidean, in patches.
    """
    known: dict[int, tuple[int, torch.Tensor]] = {}

    def reduce(attended: Attended, words: torch.Tensor | None) -> torch.Tensor:
        tokens = attended.k.shape[-2]
        if tokens not in known:
            lead, places = token_places(view, samples.kind, tokens)
            known[tokens] = lead, torch.cdist(places.double(), places.double()).to(attended.q)
        lead, far = known[tokens]
        maps = attended.map()[:, :, lead:, lead:]
        weight = maps.sum(-1).clamp_min(torch.finfo(maps.dtype).tiny)
        return _mean_over_tokens((maps * far).sum(-1) / weight, words)  # (B, H)

    return HeadScores.from_samples(
        "attention_distance", _attention_table(view, samples, reduce, **options), view.shape, seed
    )


def _mean_over_tokens(values: torch.Tensor, words: torch.Tensor | None) -> torch.Tensor:
    """(B, H, T) -> (B, H); of texts only over the tokens that are not padding, `words` (B, T)."""
    if words is None:
        return values.mean(-1)
    weight = words[:, None].to(values.device, values.dtype)
    return (values * weight).sum(-1) / weight.sum(-1).clamp_min(1)


def _attention_table(
    view: ModelView,
    samples: SampleSet,
    reduce: Callable[[Attended, torch.Tensor | None], torch.Tensor],
    *,
    chunk: int = 32,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    **unused: Any,
) -> np.ndarray:
    """(N, heads of all layers) of a number a sample and head; one layer's maps at a time."""
    if not len(samples):
        raise DataError(f"{samples.name} is empty", expected="one sample or more")

    def run(start: int, stop: int) -> np.ndarray:
        rows: dict[int, torch.Tensor] = {}
        x = view.inputs(samples.take(np.arange(start, stop)))
        words = None if view.pad_id is None else x != view.pad_id
        visit_attention(view, x, lambda layer, a: rows.update({layer: reduce(a, words)}))
        return torch.cat([rows[i] for i in range(len(view.layers))], 1).double().cpu().numpy()

    return np.concatenate(by_chunks(len(samples), chunk, run, name="Scoring", progress=progress, cancel=cancel))


# -- heads' outputs ----------------------------------------------------------------------------


@criterion(
    "separability",
    "ID/OOD separability",
    "How well a straight line through the head's own output tells ID from OOD: cross-validated AUROC, 0.5 is chance.",
    needs_ood=True,
)
def separability(
    view: ModelView,
    samples: SampleSet,
    *,
    ood: Ood = None,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    folds: int = 5,
    pool: str = "auto",
) -> HeadScores:
    """AUROC of a linear discriminant on the head's output at the projection's input, mean over folds and OOD sets.

    Raises:
        DataError: fewer samples than folds in a set.
    """
    assert ood is not None
    for part in (samples, *ood.values()):
        if len(part) < folds:
            raise DataError(f"{part.name} is too small", expected=f"{folds} samples or more", got=len(part))
    inside = head_outputs(view, view.inputs(samples), pool=pool)
    outside = [head_outputs(view, view.inputs(part), pool=pool) for part in ood.values()]
    rows = []
    for layer, heads in enumerate(view.shape):
        if cancel is not None and cancel.is_set():
            raise Cancelled("Scoring")
        rows.append(
            tuple(
                float(np.mean([probe_auroc(inside[layer][:, h], o[layer][:, h], folds, seed) for o in outside]))
                for h in range(heads)
            )
        )
        if progress is not None:
            progress((layer + 1) / len(view.shape), f"Layer {layer}")
    return HeadScores("separability", tuple(rows), samples=len(samples) + sum(map(len, ood.values())))


def probe_auroc(inside: torch.Tensor, outside: torch.Tensor, folds: int = 5, seed: int = 0) -> float:
    """Cross-validated AUROC of a slightly shrunk linear discriminant between (N, d) and (N_o, d)."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    x = np.concatenate([inside.double().numpy(), outside.double().numpy()])
    y = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    probe = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-3)
    return float(cross_val_score(probe, x, y, cv=parts, scoring="roc_auc").mean())


# -- criteria against each other -----------------------------------------------------------------


def rank_correlation(scores: Sequence[HeadScores]) -> pd.DataFrame:
    """Spearman's rank correlation of every pair of criteria over all heads that both of a pair have scored."""
    names: list[str] = []
    for item in scores:
        seen = sum(name.split(" (")[0] == item.criterion for name in names)
        names.append(item.criterion if not seen else f"{item.criterion} ({seen + 1})")
    return pd.DataFrame(dict(zip(names, (item.flat for item in scores), strict=True))).corr(method="spearman")


def predicted_vs_measured(
    view: ModelView,
    samples: SampleSet,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> pd.DataFrame:
    """Taylor's first-order estimate of the loss change on removal against the exact change.

    Returns:
        Columns layer, head, predicted (-mean of dL/dxi, signed), measured (NLL without the head - NLL), in nats.
    """
    from hydra_core.heads.leave_one_out import leave_one_out

    predicted = -gate_gradients(view, samples, cancel=cancel).mean(0)
    measured = leave_one_out(view, samples, None, seed=seed, progress=progress, cancel=cancel)["loo_nll"]
    return measured.frame()[["layer", "head"]].assign(predicted=predicted, measured=measured.flat)
