"""Circ: which heads carry accuracy and OOD detection, found layer by layer with forward passes only.

HeadMap (Wang et al., ICLR 2025) made to maximise a metric (method.md, section 2). All H + 1 masks of a
layer share everything before it, so they are one call of the prefix tree, which goes on from the streams
of the layer before: earlier layers are never computed again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd

from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import UnknownNameError
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.overlap import low_overlap_scores
from hydra_core.heads.scores import HeadScores
from hydra_core.heads.validation import Validation, check_validation
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress, step_of

Objective = Literal["acc", "auroc", "avg", "avg_ece"]
Conditioning = Literal["greedy_prune", "headmap"]
OBJECTIVES: tuple[str, ...] = get_args(Objective)
CONDITIONINGS: tuple[str, ...] = get_args(Conditioning)


@dataclass(frozen=True)
class Step:
    """One head looked at: `score` = S(current mask) - S(current mask without it)."""

    layer: int
    head: int
    score: float
    kept: bool


@dataclass(frozen=True)
class Circuit:
    """What the search found and how it got there.

    Attributes:
        mask: the kept heads; layers that were not searched are full.
        objective, conditioning: what was maximised, and under which mask later layers were scored.
        path: every head in the order in which it was scored.
        scores: the same scores as a table; NaN in layers that were not searched.
        full, value: S of the whole model and of `mask`, on the validation samples of the search.
        seed: of the resample; None where every sample counted once.
    """

    mask: HeadMask
    objective: str
    conditioning: str
    path: tuple[Step, ...]
    scores: HeadScores
    full: float
    value: float
    seed: int | None = None

    def frame(self) -> pd.DataFrame:
        """The path: columns layer, head, score, kept."""
        return pd.DataFrame([vars(step) for step in self.path], columns=["layer", "head", "score", "kept"])


def find_circuit(
    view: ModelView,
    id_val: SampleSet,
    ood_val: Mapping[str, SampleSet] | None,
    keep: int | Sequence[int],
    objective: Objective = "avg",
    conditioning: Conditioning = "greedy_prune",
    *,
    layers: Iterable[int] | None = None,
    bootstrap: bool = False,
    seed: int = 0,
    bundle: DataBundle | None = None,
    earlier: Sequence[HeadMask] = (),
    overlap_weight: float = 0.0,
    validation: Validation | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Circuit:
    """Keep the heads whose removal costs most of S, layer by layer from the first to the last.

    S is the accuracy on `id_val` ("acc"), the mean over OOD sets of the AUROC of 1 - max probability
    ("auroc"), the mean of both ("avg", the paper's CircAvg; fill-in), or that mean minus the calibration error
    ("avg_ece", ours). Equal scores keep the lower head index, so `HeadMask.top(circuit.scores, keep)` gives the same
    mask again (without `earlier`).

    Args:
        id_val, ood_val: validation samples; never test samples. `ood_val` may be None for "acc".
        keep: heads kept a searched layer: one number, or one for each layer of the model.
        conditioning: "greedy_prune": later layers are scored in the network pruned so far, the one that will be
            deployed. "headmap": they are scored with the earlier layers' kept heads masked, as in HeadMap.
        layers: search and prune only these; the others stay full. None: all.
        bootstrap: draw each set anew with replacement, by `seed`; else every sample counts once and
            `seed` changes nothing.
        bundle: data whose test sets must not share a sample with the validation sets.
        earlier, overlap_weight: lower the standing of heads that earlier members keep (see `low_overlap_scores`).
        validation: from another search on the same samples, to share what it has computed.

    Raises:
        MaskError: `keep` or `layers` do not fit the model.
        DataError: one class only, an empty class, no OOD where S needs it, samples shared with a test set.
        MetricError: logits that are not finite.
        Cancelled: `cancel` was set.
    """
    for what, name, names in (("objective", objective, OBJECTIVES), ("conditioning", conditioning, CONDITIONINGS)):
        if name not in names:
            raise UnknownNameError(what, name, names)
    searched = sorted(set(range(len(view.shape)) if layers is None else layers))
    final = HeadMask.top([np.zeros(h) for h in view.shape], keep, searched)  # refuses what does not fit
    counts = final.counts
    check_validation(id_val, ood_val, needs_ood=objective != "acc", bundle=bundle)
    known = validation or Validation(view, id_val, ood_val)
    value_of = known.objective(objective, seed if bootstrap else None)

    mask = current = HeadMask.full(view.shape)
    rows = [np.full(h, np.nan) for h in view.shape]
    path: list[Step] = []
    for done, layer in enumerate(searched):
        base, *without = known.evidence(
            [current, *(current.prune(layer, h) for h in range(view.shape[layer]))],
            progress=step_of(progress, done, len(searched), f"Layer {layer}"),
            cancel=cancel,
        )
        rows[layer] = value_of(base) - np.array([value_of(item) for item in without])
        kept = _best(rows[layer], counts[layer], [m.rows[layer] for m in earlier], overlap_weight)
        path += [Step(layer, h, float(s), h in kept) for h, s in enumerate(rows[layer])]
        chosen = [h in kept for h in range(view.shape[layer])]
        mask = mask.with_layer(layer, chosen)
        stays = chosen if conditioning == "greedy_prune" else [not c for c in chosen]
        current = current.with_layer(layer, stays)
    full, value = (value_of(e) for e in known.evidence([HeadMask.full(view.shape), mask], cancel=cancel))
    scores = HeadScores(f"circ_{objective}", tuple(tuple(map(float, row)) for row in rows), samples=len(known))
    return Circuit(mask, objective, conditioning, tuple(path), scores, full, value, seed if bootstrap else None)


def _best(scores: np.ndarray, k: int, earlier: Sequence[Sequence[bool]], weight: float) -> set[int]:
    """The k heads of one layer to keep."""
    standing = low_overlap_scores(scores, earlier, weight) if weight else scores
    return set(HeadMask.top([standing], k).keep_index(0))
