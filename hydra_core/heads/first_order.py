"""What a first-order expansion says about a plan before anything is run."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from hydra_core.data.sets import SampleSet
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.scores import HeadScores, gate_gradients, to_rows
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress


def loss_changes(
    view: ModelView,
    samples: SampleSet,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> HeadScores:
    """The signed Taylor term a head: -mean over samples of dL/dxi at xi = 1, in nats; positive: removal hurts.

    Raises:
        DataError: no samples or no labels.
        Cancelled: `cancel` was set.
    """
    mean = -gate_gradients(view, samples, progress=progress, cancel=cancel).mean(0)
    return HeadScores("first_order", to_rows(mean, view.shape), samples=len(samples))


def predicted_change(changes: HeadScores, masks: Iterable[HeadMask]) -> float:
    """First-order change of the ensemble's NLL when the masks' heads go, in nats.

    Where all heads are kept the members are equal, so a gate of one of M members moves the mean probability, and
    with it log of it, by 1/M of what it does alone: the mean over members of the sums over their removed heads.

    Raises:
        MaskError: a mask of another shape.
    """
    sums = [sum(changes.values[layer][head] for layer, head in mask.check(changes.shape).pruned()) for mask in masks]
    return sum(sums) / len(sums)
