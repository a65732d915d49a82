"""Scaling of a row's logits after training, fitted on validation data (Guo et al., ICML 2017).

Members are pooled first, then calibrated (Rahaman and Thiery, NeurIPS 2021): the scaled thing is the log of
their mean probability. So one temperature never changes a prediction, whatever the ensemble.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hydra_core.errors import MetricError, UnknownNameError
from hydra_core.metrics.check import check_labels
from hydra_core.metrics.classification import Predictions, log_softmax

SPAN = 3.0  # temperatures from exp(-3) to exp(3)


@dataclass(frozen=True, eq=False)
class Scaling:
    """pooled log probability * weight + bias; weight and bias (C,)."""

    kind: str
    weight: np.ndarray
    bias: np.ndarray

    @property
    def temperature(self) -> float:
        """1 / weight, for temperature scaling."""
        return float(1 / self.weight[0])

    def __call__(self, logits: Any) -> np.ndarray:
        """Scaled logits (1, N, C) of (N, C) or (M, N, C)."""
        return (pooled(logits) * self.weight + self.bias)[None]


def pooled(logits: Any) -> np.ndarray:
    """Log of the members' mean probability, (N, C), finite where a probability underflows."""
    from scipy.special import logsumexp

    predictions = Predictions.of(logits)
    return logsumexp(predictions.log_probs, axis=0) - np.log(predictions.members)


def fit_scaling(logits: Any, labels: Any, kind: str = "temperature") -> Scaling:
    """The scaling with the least NLL on validation logits.

    Args:
        logits: (N, C) or (M, N, C) on validation samples.
        kind: "temperature" (one number) or "vector" (a factor and a shift a class).

    Raises:
        UnknownNameError: another kind.
        MetricError: fewer than two classes in the labels.
    """
    if kind not in ("temperature", "vector"):
        raise UnknownNameError("scaling", kind, ("temperature", "vector"))
    z = pooled(logits)
    y = check_labels(labels, len(z), z.shape[1])
    if len(np.unique(y)) < 2:
        raise MetricError("Scaling cannot be fitted on one class", expected="two classes or more", got=f"class {y[0]}")
    weight = np.full(z.shape[1], 1 / _temperature(z, y))
    bias = np.zeros(z.shape[1])
    return Scaling(kind, weight, bias) if kind == "temperature" else Scaling(kind, *_vector(z, y, weight, bias))


def nll_of(z: np.ndarray, y: np.ndarray) -> float:
    """Mean -log probability of the true class, from logits (N, C)."""
    return float(-log_softmax(z)[np.arange(len(y)), y].mean())


def _temperature(z: np.ndarray, y: np.ndarray) -> float:
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(
        lambda t: nll_of(z * np.exp(-t), y), bounds=(-SPAN, SPAN), method="bounded", options={"xatol": 1e-6}
    )
    return float(np.exp(found.x)) if found.fun < nll_of(z, y) else 1.0  # a flat valley: leave things as they are


def _vector(z: np.ndarray, y: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Started from the temperature, so that it never does worse on validation."""
    from scipy.optimize import minimize

    classes, hot = z.shape[1], np.eye(z.shape[1])[y]

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = theta[:classes], theta[classes:]
        log_p = log_softmax(z * w + b)
        slope = (np.exp(log_p) - hot) / len(y)  # (N, C)
        return float(-(hot * log_p).sum(-1).mean()), np.concatenate([(slope * z).sum(0), slope.sum(0)])

    found = minimize(loss, np.concatenate([weight, bias]), jac=True, method="L-BFGS-B")
    return found.x[:classes], found.x[classes:]
