"""Exact effect of removing each head alone: one pass of the prefix tree, five scores, remembered."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from torch import nn

from hydra_core.data.sets import SampleSet
from hydra_core.errors import DataError
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.scores import HeadScores, criterion, to_rows
from hydra_core.heads.validation import StackedSets
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress, step_of


@dataclass(frozen=True)
class Measure:
    """One S of the leave-one-out: its label, a plain sentence, and the OOD shift it needs (None: no OOD)."""

    label: str
    about: str
    shift: str | None = None


LOO: dict[str, Measure] = {
    "acc": Measure("accuracy", "Accuracy lost when the head alone is removed: exact."),
    "nll": Measure("NLL", "Negative log-likelihood gained when the head alone is removed, in nats: exact."),
    "ece": Measure("ECE", "Calibration error gained when the head alone is removed (15 bins): exact."),
    "auroc_near": Measure("AUROC, near OOD", "AUROC on near OOD lost when the head alone is removed: exact.", "near"),
    "auroc_far": Measure("AUROC, far OOD", "AUROC on far OOD lost when the head alone is removed: exact.", "far"),
}

KEPT = 4  # passes remembered a model
_passes: WeakKeyDictionary[nn.Module, OrderedDict[tuple, dict[str, HeadScores]]] = WeakKeyDictionary()
_lock = threading.Lock()


def leave_one_out(
    view: ModelView,
    samples: SampleSet,
    ood: Mapping[str, SampleSet] | None = None,
    *,
    need: str = "nll",
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    budget_mb: float = 1024,
) -> dict[str, HeadScores]:
    """All leave-one-out scores of all heads; positive: the head matters, its removal worsens the measure.

    AUROC (of 1 - max probability) is the mean over the OOD sets of a shift. Accuracy and NLL come with
    bootstrap intervals over samples. The last passes are remembered: five criteria cost one.

    Args:
        ood: OOD validation sets; AUROC is given for the shifts that they hold.
        need: a name in `LOO` that must come out.

    Returns:
        Scores by criterion: "loo_acc", "loo_nll", "loo_ece", and "loo_auroc_near", "loo_auroc_far" where there is OOD.

    Raises:
        DataError: no labels, an empty set, or no OOD set of the shift that `need` asks for.
        MetricError: logits that are not finite.
        Cancelled: `cancel` was set.
    """
    ood = dict(ood or {})
    shift = LOO[need].shift
    if shift is not None and all(part.shift != shift for part in ood.values()):
        raise DataError(
            f"Leave-one-out {LOO[need].label} needs a {shift} OOD set",
            expected=f'an OOD set with shift "{shift}"',
            got=", ".join(f"{name} ({part.shift})" for name, part in ood.items()) or "none",
        )
    key = (view.prepare, samples.digest, tuple((n, p.shift, p.digest) for n, p in sorted(ood.items())), seed)
    with _lock:
        passes = _passes.setdefault(view.module, OrderedDict())
        if key in passes:
            return passes[key]
    found = _measure(view, samples, ood, seed, budget_mb, progress, cancel)
    with _lock:
        passes[key] = found
        while len(passes) > KEPT:
            passes.popitem(last=False)
    return found


def single_removals(view: ModelView) -> list[list[HeadMask]]:
    """Every mask that lacks one head, one list a layer."""
    full = HeadMask.full(view.shape)
    return [[full.prune(l, h) for h in range(heads)] for l, heads in enumerate(view.shape)]


def _measure(
    view: ModelView,
    samples: SampleSet,
    ood: Mapping[str, SampleSet],
    seed: int,
    budget_mb: float,
    progress: Progress | None,
    cancel: threading.Event | None,
) -> dict[str, HeadScores]:
    sets = StackedSets(view, samples, ood, budget_mb=budget_mb)
    shifts = {shift: [name for name, part in ood.items() if part.shift == shift] for shift in ("near", "far")}
    groups = [[HeadMask.full(view.shape)], *single_removals(view)]
    read = []
    for done, group in enumerate(groups):  # layer by layer: logits of one layer's masks at a time
        table = sets.evaluator.many(group, progress=step_of(progress, done, len(groups)), cancel=cancel)
        read += [_read(sets, logits, shifts) for logits in table]
    whole, without = read[0], read[1:]
    out = {}
    for name, sign in (("acc", -1.0), ("nll", 1.0)):  # means over samples
        table = sign * np.stack([item[name] - whole[name] for item in without], 1)  # (N, heads)
        out[f"loo_{name}"] = HeadScores.from_samples(f"loo_{name}", table, view.shape, seed)
    for name in whole.keys() - {"acc", "nll"}:
        change = np.array([item[name] - whole[name] for item in without])
        rows = to_rows(change if name == "ece" else -change, view.shape)
        out[f"loo_{name}"] = HeadScores(f"loo_{name}", rows, samples=len(sets))
    return out


def _read(sets: StackedSets, logits: np.ndarray, shifts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Accuracy and NLL a sample, (N,) each; ECE and AUROC a shift."""
    e = sets.read(logits)
    out: dict[str, Any] = {"acc": e.correct.astype(float), "nll": e.surprise, "ece": sets.ece(e)}
    return out | {f"auroc_{shift}": sets.auroc(e, names) for shift, names in shifts.items() if names}


def _register(name: str) -> None:
    s = LOO[name]

    @criterion(f"loo_{name}", f"Leave-one-out {s.label}", s.about, needs_ood=s.shift is not None)
    def run(
        view: ModelView, samples: SampleSet, *, ood: Mapping[str, SampleSet] | None = None, **options: Any
    ) -> HeadScores:
        return leave_one_out(view, samples, ood, need=name, **options)[f"loo_{name}"]


for _name in LOO:
    _register(_name)
