"""How much each head matters: one registry of criteria, one table out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from hydra_core.data.sets import SampleSet, labelled
from hydra_core.errors import DataError, UnknownNameError
from hydra_core.memory import by_chunks
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress

Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class HeadScores:
    """A score a head; higher means that the head matters more.

    Attributes:
        criterion: its name in the registry.
        values: one row a layer (ragged allowed).
        low, high: 95 % bootstrap interval over samples, where the criterion is a mean over samples.
        samples: how many samples it was measured on; 0 for criteria of the weights alone.
    """

    criterion: str
    values: Rows
    low: Rows | None = None
    high: Rows | None = None
    samples: int = 0

    @property
    def matrix(self) -> list[np.ndarray]:
        """One float64 array (H_l,) a layer: what `HeadMask.top` takes."""
        return [np.asarray(row, dtype=np.float64) for row in self.values]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.values))

    @property
    def flat(self) -> np.ndarray:
        """All scores in layer order, (sum of H_l,)."""
        return np.concatenate(self.matrix)

    def frame(self) -> pd.DataFrame:
        """Columns layer, head, score, low, high, rank (1 = most important over all layers); rows in layer order."""
        nan = np.full(self.flat.shape, np.nan)
        return pd.DataFrame(
            {
                "layer": np.repeat(np.arange(len(self.values)), self.shape),
                "head": np.concatenate([np.arange(h) for h in self.shape]),
                "score": self.flat,
                "low": nan if self.low is None else np.concatenate(self.low),
                "high": nan if self.high is None else np.concatenate(self.high),
                "rank": _ranks(self.flat),
            }
        )

    @classmethod
    def from_samples(cls, criterion: str, table: np.ndarray, shape: Sequence[int], seed: int = 0) -> HeadScores:
        """The mean over samples and its bootstrap interval from a table (N, heads of all layers)."""
        rng = np.random.default_rng(seed)
        n = len(table)
        weights = rng.multinomial(n, np.full(n, 1 / n), size=300) / n  # (300, N)
        low, high = np.quantile(weights @ table, [0.025, 0.975], axis=0)
        split = lambda flat: to_rows(flat, shape)  # noqa: E731
        return cls(criterion, split(table.mean(0)), split(low), split(high), n)


def to_rows(flat: np.ndarray, shape: Sequence[int]) -> Rows:
    """(sum of H_l,) -> one tuple a layer."""
    return tuple(tuple(map(float, row)) for row in np.split(np.asarray(flat), np.cumsum(shape)[:-1]))


def _ranks(values: np.ndarray) -> np.ndarray:
    order = np.argsort(-values, kind="stable")
    ranks = np.empty(len(values), dtype=int)
    ranks[order] = np.arange(1, len(values) + 1)
    return ranks


@dataclass(frozen=True)
class Criterion:
    """A way to score heads.

    Attributes:
        name, label, about: for code, for a picker, and one plain sentence for a help text.
        run: (view, samples, *, ood, seed, progress, cancel, **options) -> HeadScores.
        needs_ood: whether it needs OOD samples.
    """

    name: str
    label: str
    about: str
    run: Callable[..., HeadScores]
    needs_ood: bool = False


CRITERIA: dict[str, Criterion] = {}


def criterion(name: str, label: str, about: str, *, needs_ood: bool = False) -> Callable:
    """Registers a function as a criterion."""

    def register(run: Callable[..., HeadScores]) -> Callable[..., HeadScores]:
        CRITERIA[name] = Criterion(name, label, about, run, needs_ood)
        return run

    return register


def score_heads(
    view: ModelView,
    samples: SampleSet,
    criterion: str = "taylor",
    *,
    ood: Mapping[str, SampleSet] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    **options: Any,
) -> HeadScores:
    """Score every head of a model.

    Args:
        samples: labelled in-distribution samples, never the test set.
        criterion: a name in `CRITERIA`.
        ood: OOD validation samples, for criteria that need them.

    Raises:
        UnknownNameError: no such criterion.
        DataError: no labels, no samples, or no OOD where the criterion needs it.
        Cancelled: `cancel` was set.
    """
    if criterion not in CRITERIA:
        raise UnknownNameError("criterion", criterion, CRITERIA)
    chosen = CRITERIA[criterion]
    if chosen.needs_ood and not ood:
        raise DataError(f"{chosen.label} needs out-of-distribution samples", expected="one OOD validation set or more")
    return chosen.run(view, samples, ood=ood, seed=seed, progress=progress, cancel=cancel, **options)


@criterion(
    "taylor",
    "Taylor",
    "First-order estimate of how much the loss changes when the head is removed, averaged over samples.",
)
def taylor(
    view: ModelView,
    samples: SampleSet,
    *,
    ood: Mapping[str, SampleSet] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    chunk: int = 128,
) -> HeadScores:
    """I_h = mean over samples of |dL/dxi_h| at xi = 1, L the cross-entropy (paper, Taylor; method.md section 2).

    One backward pass gives every head: each sample has its own gate, so that absolute values are
    taken a sample before the mean.
    """
    table = gate_gradients(view, samples, progress=progress, cancel=cancel, chunk=chunk)
    return HeadScores.from_samples("taylor", np.abs(table), view.shape, seed)


def gate_gradients(
    view: ModelView,
    samples: SampleSet,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    chunk: int = 128,
) -> np.ndarray:
    """dL/dxi of every sample and head, (N, heads of all layers), float64.

    Minus it is the first-order estimate of the loss change when the head is removed.
    """
    labels = torch.as_tensor(labelled(samples))

    def run(start: int, stop: int) -> np.ndarray:
        x = view.inputs(samples.take(np.arange(start, stop))).to(view.device)
        return _gradients(view, x, labels[start:stop].to(view.device))

    return np.concatenate(by_chunks(len(samples), chunk, run, name="Scoring", progress=progress, cancel=cancel))


def _gradients(view: ModelView, x: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    # inference tensors cannot take part in autograd: make sure that we are outside
    with torch.inference_mode(False), torch.enable_grad():
        dtype = view.dtype
        gates = [torch.ones(len(x), h, dtype=dtype, device=x.device, requires_grad=True) for h in view.shape]
        logits = view.stages().forward_gated(x.clone(), gates)  # (B, C)
        loss = F.cross_entropy(logits, labels.clone(), reduction="sum")
        grads = torch.autograd.grad(loss, gates)  # one (B, H_l) a layer
    return torch.cat([g.double() for g in grads], 1).cpu().numpy()


# these register the other criteria, and need the names above
from hydra_core.heads import criteria, leave_one_out  # noqa: E402, F401
