"""Whether a confidence of 0.8 is right 8 times in 10: reliability bins, ECE, aECE, MCE, smooth ECE.

Every error here is computed from weights a sample, (B, N): a row of ones is the estimate itself, a row of
counts is a bootstrap resample. So both come from the same lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hydra_core.errors import MetricError
from hydra_core.metrics.check import check_bins, check_confidence, check_labels
from hydra_core.metrics.classification import Predictions

if TYPE_CHECKING:
    import pandas as pd

BinKind = Literal["width", "count"]


@dataclass(frozen=True, eq=False)
class Reliability:
    """The bars of a reliability diagram, one entry a bin.

    Attributes:
        edges: (bins + 1,) rising; bin b holds edges[b] <= confidence < edges[b + 1], the last one its right edge too.
        count: (bins,) samples a bin; they sum to N.
        accuracy, confidence: (bins,) means of the bin; NaN where the bin is empty.
        gap: accuracy - confidence: below 0 is overconfident; NaN where the bin is empty.
        kind: bins of equal "width" or of equal "count".
    """

    edges: np.ndarray
    count: np.ndarray
    accuracy: np.ndarray
    confidence: np.ndarray
    gap: np.ndarray
    kind: BinKind = "width"

    @property
    def share(self) -> np.ndarray:
        """Share of the samples in each bin, (bins,); sums to 1."""
        return self.count / self.count.sum()

    @property
    def ece(self) -> float:
        """Sum over the bars of share * |gap|: the expected calibration error of these very bins."""
        return float(np.nansum(self.share * np.abs(self.gap)))

    @property
    def mce(self) -> float:
        """The largest |gap| of a bin that is not empty."""
        return float(np.nanmax(np.abs(self.gap)))

    def frame(self) -> pd.DataFrame:
        """One row a bin: low, high, count, accuracy, confidence, gap."""
        import pandas as pd

        return pd.DataFrame(
            {
                "low": self.edges[:-1],
                "high": self.edges[1:],
                "count": self.count,
                "accuracy": self.accuracy,
                "confidence": self.confidence,
                "gap": self.gap,
            }
        )


def reliability(confidence: Any, correct: Any, bins: int = 15, kind: BinKind = "width") -> Reliability:
    """Sort samples into bins by confidence.

    Args:
        confidence: (N,) top probability of each sample.
        correct: (N,) whether the prediction was right.
        bins: how many.
        kind: "width": equal parts of 0..1. "count": about equal numbers of samples; samples of equal confidence
            stay together, so that heavy ties leave some bins empty rather than depend on the order of samples.

    Raises:
        MetricError: see `check_confidence`; unknown kind; bad number of bins.

    Examples:
        >>> bars = reliability([0.95, 1.0], [1, 0], bins=10)
        >>> int(bars.count[-1]), round(bars.ece, 3)  # 1.0 belongs to the last bin
        (2, 0.475)
    """
    conf, right = check_confidence(confidence, correct)
    edges = _edges(conf, check_bins(bins), kind)
    index = np.searchsorted(edges[1:-1], conf, side="right")  # 1.0 lies right of every inner edge: last bin
    count = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):  # 0 / 0 of an empty bin is the NaN that is wanted
        accuracy = np.bincount(index, right, minlength=bins) / count
        mean = np.bincount(index, conf, minlength=bins) / count
    return Reliability(edges, count, accuracy, mean, accuracy - mean, kind)


def _edges(confidence: np.ndarray, bins: int, kind: str) -> np.ndarray:
    if kind == "width":
        return np.linspace(0.0, 1.0, bins + 1)
    if kind == "count":
        ranked = np.sort(confidence)
        inner = ranked[len(ranked) * np.arange(1, bins) // bins]
        return np.concatenate([ranked[:1], inner, ranked[-1:]])
    raise MetricError("Bins are of equal width or of equal count", expected="'width' or 'count'", got=repr(kind)[:80])


@dataclass(frozen=True, eq=False)
class CalibrationErrors:
    """Calibration errors of one set of samples under any weights; sorted and binned once.

    Attributes:
        confidence, correct: (N,) float64, checked.
        bins: for ECE, aECE and MCE.
    """

    confidence: np.ndarray
    correct: np.ndarray
    bins: int = 15

    @property
    def _gaps(self) -> np.ndarray:
        return self.correct - self.confidence

    def width(self, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ECE and MCE over bins of equal width, each (B,), from weights (B, N)."""
        edges = _edges(self.confidence, self.bins, "width")
        index = np.searchsorted(edges[1:-1], self.confidence, side="right")
        member = np.zeros((len(index), self.bins))
        member[np.arange(len(index)), index] = 1.0
        count = weight @ member  # (B, bins)
        gap = np.abs(weight @ (member * self._gaps[:, None]))
        ece = gap.sum(axis=1) / weight.sum(axis=1)
        return ece, np.divide(gap, count, out=np.zeros_like(gap), where=count > 0).max(axis=1)

    def count(self, weight: np.ndarray) -> np.ndarray:
        """aECE, (B,): bins of equal count; each resample gets its own edges, as `reliability` would choose them."""
        order = np.argsort(self.confidence, kind="stable")
        ranked = self.confidence[order]
        first = np.searchsorted(ranked, ranked, side="left")  # where the tie that a sample belongs to starts
        sorted_weight = weight[:, order]
        below = np.cumsum(sorted_weight, axis=1)  # (B, N) samples up to and with this one
        total = round(below[0, -1])
        at = total * np.arange(1, self.bins) // self.bins
        gaps = np.zeros((len(weight), len(ranked) + 1))
        np.cumsum(sorted_weight * self._gaps[order], axis=1, out=gaps[:, 1:])
        cut = np.zeros((len(weight), self.bins + 1), dtype=np.int64)
        cut[:, -1] = len(ranked)
        for row, counts in enumerate(below):
            cut[row, 1:-1] = first[np.searchsorted(counts, at, side="right")]
        return np.abs(np.diff(np.take_along_axis(gaps, cut, axis=1), axis=1)).sum(axis=1) / total

    def smooth(self, weight: np.ndarray) -> np.ndarray:
        """Smooth ECE, (B,)."""
        mass = np.stack([_to_grid(self.confidence, row * self._gaps) for row in weight])
        return _smooth_error(mass / weight.sum(axis=1, keepdims=True))


def ece(confidence: Any, correct: Any, bins: int = 15) -> float:
    """Expected calibration error: sum over bins of equal width of share * |accuracy - confidence|.

    Source: Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """
    return reliability(confidence, correct, bins).ece


def aece(confidence: Any, correct: Any, bins: int = 15) -> float:
    """ECE over bins of equal count. Source: Nixon et al., Measuring Calibration in Deep Learning, 2019."""
    return reliability(confidence, correct, bins, "count").ece


def mce(confidence: Any, correct: Any, bins: int = 15) -> float:
    """Maximum calibration error: the largest |accuracy - confidence| of a bin of equal width."""
    return reliability(confidence, correct, bins).mce


def classwise_ece(logits: Any, labels: Any, bins: int = 15) -> float:
    """Mean over classes of the ECE of that class's probability against "is it that class".

    Source: Kull et al., Beyond temperature scaling, NeurIPS 2019.
    """
    predictions = Predictions.of(logits)
    y = check_labels(labels, len(predictions), predictions.classes)
    errors = [ece(predictions.probs[:, c], y == c, bins) for c in range(predictions.classes)]
    return float(np.mean(errors))


# -- smooth ECE ----------------------------------------------------------------------------

GRID = 1024  # cells of 0..1


def smooth_ece(confidence: Any, correct: Any) -> float:
    """Smooth ECE: no bins, one Gaussian kernel, reflected at 0 and 1, whose width is the error itself.

    The residuals (correct - confidence) are smoothed along the confidence; the error at width s is the
    integral of their absolute value; smECE is the s at which error and width are equal.
    Source: Blasiok and Nakkiran, Smooth ECE, ICLR 2024.

    Examples:
        >>> round(smooth_ece([0.9] * 10, [1] * 6 + [0] * 4), 4)  # one confidence: |0.6 - 0.9|
        0.3
    """
    conf, right = check_confidence(confidence, correct)
    return float(CalibrationErrors(conf, right).smooth(np.ones((1, len(conf))))[0])


def smooth_reliability(
    confidence: Any, correct: Any, width: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The curve that belongs to smooth ECE.

    Args:
        width: of the kernel, in confidence; None: the smooth ECE itself, at least 0.01.

    Returns:
        (confidence, accuracy, density), each (1024,): smoothed accuracy at each confidence, and how many samples
        lie there (integrates to 1). Accuracy is NaN where there are practically none.
    """
    conf, right = check_confidence(confidence, correct)
    s = max(0.01, smooth_ece(conf, right)) if width is None else float(width)
    mass = _blur(_to_grid(conf, np.full(len(conf), 1.0 / len(conf))), s)
    hits = _blur(_to_grid(conf, right / len(conf)), s)
    grid = (np.arange(GRID) + 0.5) / GRID
    seen = mass * GRID > 1e-3
    accuracy = np.divide(hits, mass, out=np.full(GRID, np.nan), where=seen)
    return grid, np.clip(accuracy, 0.0, 1.0), np.maximum(mass * GRID, 0.0)


def _to_grid(confidence: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Share each sample's mass between the two cell centres next to it, (GRID,)."""
    at = np.clip(confidence * GRID - 0.5, 0.0, GRID - 1.0)
    left = np.minimum(at.astype(np.int64), GRID - 2)
    part = at - left
    return np.bincount(left, mass * (1 - part), GRID) + np.bincount(left + 1, mass * part, GRID)


def _blur(mass: np.ndarray, width: float) -> np.ndarray:
    """Gaussian blur of (..., GRID), reflected at both ends."""
    from scipy.fft import dct, idct

    return idct(dct(mass, axis=-1) * _damping(np.asarray(width)), axis=-1)


def _damping(width: np.ndarray) -> np.ndarray:
    """What a reflected Gaussian of this width leaves of each cosine of the grid: (...) -> (..., GRID)."""
    return np.exp(-0.5 * (np.pi * np.arange(GRID) * width[..., None]) ** 2)


def _smooth_error(mass: np.ndarray, steps: int = 18) -> np.ndarray:
    """The width at which the blurred error equals the width, by bisection; mass (B, GRID) -> (B,).

    Blurring more can only lower the error, so the two cross once.
    """
    from scipy.fft import dct, idct

    waves = dct(mass, axis=-1)
    low, high = np.zeros(len(mass)), np.ones(len(mass))
    for _ in range(steps):
        middle = (low + high) / 2
        above = np.abs(idct(waves * _damping(middle), axis=-1)).sum(axis=-1) > middle
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return (low + high) / 2
