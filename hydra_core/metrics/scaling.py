"""Temperature and vector scaling: repair the calibration of any row, on validation data, never on a test set.

An ensemble's members share one temperature, applied to each member's logits and fitted on the NLL of their mean
probability: what the ensemble predicts is what gets calibrated (fill-in; the published methods know one model).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hydra_core.errors import MetricError
from hydra_core.metrics.check import as_float, check_labels
from hydra_core.metrics.classification import Predictions, nll

LOG_BOUND = np.log(100.0)  # temperatures from 0.01 to 100


@dataclass(frozen=True)
class TemperatureScaling:
    """Divides logits by one number. Never changes a single model's class; may change an ensemble's.

    Attributes:
        temperature: above 1 softens, below 1 sharpens.
        nll_before, nll_after: on the data it was fitted on.
        at_bound: the best temperature lies outside what was searched (separable data): do not trust it.
    """

    temperature: float
    nll_before: float
    nll_after: float
    at_bound: bool = False

    def __call__(self, logits: Any) -> np.ndarray:
        """Scaled logits, same shape, float64."""
        return as_float(logits, "logits") / self.temperature


@dataclass(frozen=True, eq=False)
class VectorScaling:
    """Scales and shifts the logits of each class: weight (C,), bias (C,) of mean 0."""

    weight: np.ndarray
    bias: np.ndarray
    nll_before: float
    nll_after: float

    def __call__(self, logits: Any) -> np.ndarray:
        """Scaled logits, same shape, float64.

        Raises:
            MetricError: another number of classes than it was fitted on.
        """
        array = as_float(logits, "logits")
        if array.shape[-1:] != self.weight.shape:
            raise MetricError(
                "The logits have another number of classes", expected=len(self.weight), got=array.shape[-1:]
            )
        return array * self.weight + self.bias


def fit_temperature(logits: Any, labels: Any) -> TemperatureScaling:
    """The temperature with the lowest NLL.

    Args:
        logits: validation samples, (N, C) or (M, N, C).
        labels: (N,).

    Raises:
        MetricError: see `metrics.nll`.

    Source: Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """
    from scipy.optimize import minimize_scalar

    p, y = _checked(logits, labels)

    def loss(log_t: float) -> float:
        return float(Predictions(p.logits * np.exp(-log_t)).surprise(y).mean())

    # a mixture's NLL need not have one valley only: look around first, then go down from the best
    grid = np.linspace(-LOG_BOUND, LOG_BOUND, 33)
    best = int(np.argmin([loss(t) for t in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-8})
    at_bound = best in (0, len(grid) - 1)
    return TemperatureScaling(float(np.exp(found.x)), loss(0.0), float(found.fun), at_bound)


def fit_vector_scaling(logits: Any, labels: Any) -> VectorScaling:
    """The scale and shift of each class with the lowest NLL; starts at the best temperature, so never worse than it.

    Scales stay within 0 and 100, shifts within -50 and 50, so that separable data has an answer.

    Args:
        logits: validation samples, (N, C) or (M, N, C).
        labels: (N,).
    """
    from scipy.optimize import minimize

    p, y = _checked(logits, labels)
    c = p.classes
    start = np.concatenate([np.full(c, 1.0 / fit_temperature(p, y).temperature), np.zeros(c)])
    found = minimize(
        lambda x: mixture_loss(p.logits, y, x[:c], x[c:]),
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 100.0)] * c + [(-50.0, 50.0)] * c,
        options={"maxiter": 500},
    )
    weight, bias = found.x[:c], found.x[c:] - found.x[c:].mean()
    return VectorScaling(weight, bias, nll(p, y), float(found.fun))


def mixture_loss(
    logits: np.ndarray, labels: np.ndarray, weight: np.ndarray, bias: np.ndarray
) -> tuple[float, np.ndarray]:
    """NLL of the mean probability of scaled logits (M, N, C), and its gradient by [weight, bias], (2C,)."""
    scaled = Predictions(logits * weight + bias)
    surprise = scaled.surprise(labels)
    true = np.take_along_axis(scaled.log_probs, np.broadcast_to(labels[None, :, None], (*logits.shape[:2], 1)), -1)
    # how much of the mean probability comes from each member, (M, N, 1)
    part = np.exp(true[..., 0] + surprise - np.log(len(logits)))[..., None] / len(labels)
    slope = part * scaled.member_probs
    np.put_along_axis(slope, labels[None, :, None], np.take_along_axis(slope, labels[None, :, None], -1) - part, -1)
    return float(surprise.mean()), np.concatenate([(slope * logits).sum((0, 1)), slope.sum((0, 1))])


def _checked(logits: Any, labels: Any) -> tuple[Predictions, np.ndarray]:
    p = Predictions.of(logits)
    return p, check_labels(labels, len(p), p.classes)
