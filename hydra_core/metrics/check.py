"""What every metric asks of its input, so that a wrong value is named before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hydra_core.errors import MetricError

AXES = ("member", "sample", "class")


def as_float(values: Any, what: str) -> np.ndarray:
    """Any array or torch tensor as float64.

    Raises:
        MetricError: it holds something else than numbers.
    """
    if hasattr(values, "detach"):  # a torch tensor, without importing torch
        values = values.detach().cpu().double()
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MetricError(f"The {what} are not numbers", expected="an array of numbers", got=_short(error)) from error


def check_finite(values: np.ndarray, what: str, axes: Sequence[str]) -> np.ndarray:
    """The same array, if every value is finite; the error names the first that is not and how many there are."""
    bad = ~np.isfinite(values)
    if bad.any():
        at = np.argwhere(bad)[0]
        where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, at.tolist(), strict=True))
        raise MetricError(
            f"The {what} hold {int(bad.sum())} of {values.size} values that are not finite",
            expected="finite numbers",
            got=f"{values[tuple(at)]} at {where}",
            hint="Half precision can overflow: compute in float32, or look for a model that diverged.",
        )
    return values


def check_logits(logits: Any, what: str = "logits") -> np.ndarray:
    """Logits as (M, N, C) float64; (N, C) becomes one member.

    Raises:
        MetricError: wrong number of axes, no member, no sample, one class only, or a value that is not finite.
    """
    array = as_float(logits, what)
    if array.ndim == 2:
        array = array[None]  # (N, C) -> (1, N, C)
    if array.ndim != 3:
        raise MetricError(
            f"The {what} have the wrong shape",
            expected="(samples, classes) or (members, samples, classes)",
            got=array.shape,
        )
    members, samples, classes = array.shape
    if not members or not samples:
        raise MetricError(f"The {what} are empty", expected="at least one member and one sample", got=array.shape)
    if classes < 2:
        raise MetricError(f"The {what} have one class only", expected="two classes or more", got=classes)
    return check_finite(array, what, AXES)


def check_labels(labels: Any, samples: int, classes: int) -> np.ndarray:
    """Labels as (N,) int64.

    Raises:
        MetricError: not one label a sample, not whole numbers, or outside 0..C-1; names the first bad one.
    """
    array = as_float(labels, "labels")
    if array.shape != (samples,):
        raise MetricError("There must be one label a sample", expected=f"shape ({samples},)", got=array.shape)
    bad = ~((array >= 0) & (array < classes) & (array == np.floor(array)))
    if bad.any():
        at = int(np.argmax(bad))
        raise MetricError(
            f"{int(bad.sum())} labels do not name a class",
            expected=f"whole numbers from 0 to {classes - 1}",
            got=f"{array[at]:g} at sample {at}",
            hint="Out-of-distribution samples have no label: pass their logits as `ood`.",
        )
    return array.astype(np.int64)


def check_scores(scores: Any, what: str) -> np.ndarray:
    """OOD scores as (N,) float64, finite and not empty."""
    array = as_float(scores, what)
    if array.ndim != 1 or not array.size:
        raise MetricError(f"The {what} have the wrong shape", expected="(samples,), at least one", got=array.shape)
    return check_finite(array, what, ("sample",))


def check_confidence(confidence: Any, correct: Any) -> tuple[np.ndarray, np.ndarray]:
    """Top probabilities and whether they were right, both (N,) float64.

    Raises:
        MetricError: empty, different lengths, or values outside 0..1.
    """
    conf, right = check_scores(confidence, "confidences"), check_scores(correct, "correctness values")
    if conf.shape != right.shape:
        raise MetricError("Confidence and correctness differ in number", expected=conf.shape, got=right.shape)
    slack = 1e-9  # a sum of probabilities may round to a little over 1
    for array, what in ((conf, "confidence"), (right, "correctness value")):
        bad = (array < -slack) | (array > 1 + slack)
        if bad.any():
            at = int(np.argmax(bad))
            raise MetricError(
                f"A {what} lies outside its range", expected="0 to 1", got=f"{array[at]:g} at sample {at}"
            )
    return np.clip(conf, 0.0, 1.0), right


def check_bins(bins: Any) -> int:
    """A number of bins, 1 to 1000."""
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or not 1 <= bins <= 1000:
        raise MetricError(
            "The number of bins is out of range", expected="a whole number, 1 to 1000", got=repr(bins)[:80]
        )
    return int(bins)


def _short(error: Exception) -> str:
    return str(error)[:120]
