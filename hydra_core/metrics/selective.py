"""How well confidence ranks right before wrong: the risk-coverage curve and its area."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hydra_core.metrics.check import check_confidence


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The error among the most confident samples, as more of them are answered.

    Attributes:
        coverage: (N,) share of samples answered, 1/N to 1.
        risk: (N,) share of wrong answers among them.
    """

    coverage: np.ndarray
    risk: np.ndarray

    @property
    def aurc(self) -> float:
        """Mean risk over all coverages."""
        return float(self.risk.mean())


def risk_coverage(confidence: Any, correct: Any) -> RiskCoverage:
    """Answer the most confident samples first.

    Samples of equal confidence come in no order: each counts with the mean error of its tie.

    Args:
        confidence: (N,) any score that is high where the model is sure; within 0..1.
        correct: (N,) whether the prediction was right.

    Raises:
        MetricError: see `check_confidence`.

    Examples:
        >>> curve = risk_coverage([0.9, 0.8, 0.6], [1, 1, 0])
        >>> curve.risk.round(3).tolist()
        [0.0, 0.0, 0.333]
    """
    conf, right = check_confidence(confidence, correct)
    order, starts = _ties(conf)
    sizes = np.diff(np.append(starts, len(conf)))
    rate = np.add.reduceat(1.0 - right[order], starts) / sizes  # mean error of each tie
    answered = np.arange(1, len(conf) + 1)
    return RiskCoverage(answered / len(conf), np.cumsum(np.repeat(rate, sizes)) / answered)


def aurc(confidence: Any, correct: Any) -> float:
    """Area under the risk-coverage curve: the mean over k = 1..N of the error among the k most confident.

    Source: Geifman, Uziel, El-Yaniv, Bias-Reduced Uncertainty Estimation, ICLR 2019.
    """
    conf, right = check_confidence(confidence, correct)
    return float(aurc_weighted(conf, right, np.ones((1, len(conf))))[0][0])


def excess_aurc(confidence: Any, correct: Any) -> float:
    """AURC minus that of a perfect ranking with as many errors: 0 where no wrong answer outranks a right one.

    Examples:
        >>> excess_aurc([0.9, 0.8, 0.6], [1, 1, 0])
        0.0
    """
    conf, right = check_confidence(confidence, correct)
    return float(aurc_weighted(conf, right, np.ones((1, len(conf))))[1][0])


def aurc_weighted(confidence: np.ndarray, correct: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """AURC and excess AURC, each (B,), with whole-number weights (B, N): a weight of 2 is the sample twice.

    In a tie of n samples with error rate e, after K samples with E errors, the risks sum to
    n e + (E - K e)(H(K + n) - H(K)), H being harmonic numbers: no loop over k is needed.
    """
    order, starts = _ties(confidence)
    size = np.add.reduceat(weight[:, order], starts, axis=1)  # (B, ties)
    wrong = np.add.reduceat(weight[:, order] * (1.0 - correct[order]), starts, axis=1)
    seen, seen_wrong = np.cumsum(size, axis=1), np.cumsum(wrong, axis=1)
    before, before_wrong = seen - size, seen_wrong - wrong
    rate = np.divide(wrong, size, out=np.zeros_like(wrong), where=size > 0)
    total = round(seen[0, -1])
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, total + 1))])
    steps = harmonic[seen.round().astype(np.int64)] - harmonic[before.round().astype(np.int64)]
    area = (wrong + (before_wrong - before * rate) * steps).sum(axis=1) / total
    errors = seen_wrong[:, -1]
    right = (total - errors).round().astype(np.int64)
    best = (errors - right * (harmonic[total] - harmonic[right])) / total
    return area, np.maximum(area - best, 0.0)


def _ties(confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(order from most to least confident, where in it each run of equal confidences starts)."""
    order = np.argsort(-confidence, kind="stable")
    ranked = confidence[order]
    return order, np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
