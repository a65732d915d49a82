"""Does a model work on a data set at all? What it reaches before any head goes, against a constant answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054  # two-sided 95 % of a normal distribution


@dataclass(frozen=True)
class BaseAccuracy:
    """Accuracy of an unpruned model on some samples.

    Attributes:
        accuracy: share of right answers.
        low, high: Wilson's 95 % interval.
        chance: what one constant answer would reach, the share of the most frequent class.
        samples: how many.
    """

    accuracy: float
    low: float
    high: float
    chance: float
    samples: int

    @property
    def near_chance(self) -> bool:
        """Whether a constant answer would do as well, as far as these samples can tell."""
        return self.low <= self.chance


def base_accuracy(accuracy: float, labels: Sequence[int] | np.ndarray) -> BaseAccuracy:
    """The base accuracy of a model that is right on a share `accuracy` of samples with these labels (N,), N > 0."""
    counts = np.unique(np.asarray(labels), return_counts=True)[1]
    n = int(counts.sum())
    low, high = wilson(accuracy, n)
    return BaseAccuracy(accuracy, low, high, float(counts.max() / n), n)


def wilson(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share out of n trials (E. B. Wilson, 1927)."""
    centre = share + Z95**2 / (2 * n)
    half = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n * n))
    scale = 1 + Z95**2 / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)
