"""Bootstrap intervals: how much a figure would move with another sample of the same size.

A resample is not drawn as data but as counts: how often each sample is in it. Metrics take such counts as weights,
hundreds of resamples in one array operation. Each set (ID, every OOD set) is resampled by itself, so its size stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from hydra_core.errors import MetricError

Weights = Sequence[np.ndarray]  # one (B, N) a set
Estimator = Callable[[Weights], Mapping[str, np.ndarray]]  # name -> (B,)

BUDGET = 2_000_000  # counts held at a time: 16 MB in float64


def resample_counts(samples: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """How often each sample is drawn when N are drawn with replacement, (resamples, N); each row sums to N."""
    drawn = rng.integers(0, samples, size=(resamples, samples))
    drawn += np.arange(resamples)[:, None] * samples  # one range of bins a row
    return np.bincount(drawn.ravel(), minlength=resamples * samples).reshape(resamples, samples).astype(np.float64)


def resamples_of(sizes: Sequence[int], resamples: int, seed: int) -> Iterator[list[np.ndarray]]:
    """Weights of `resamples` stratified resamples, in parts that stay under the memory budget."""
    rngs = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(len(sizes))]
    step = max(1, BUDGET // max(1, sum(sizes)))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        yield [resample_counts(n, rows, rng) for n, rng in zip(sizes, rngs, strict=True)]


def percentile_interval(values: np.ndarray, level: float = 0.95, around: float | None = None) -> tuple[float, float]:
    """The middle `level` of resampled values; NaN where the metric is not defined.

    Args:
        around: shift the interval so that the resamples' mean falls here, and cut it at 0: for errors that resampling
            itself makes larger.

    Examples:
        >>> percentile_interval(np.arange(101.0), level=0.5)
        (25.0, 75.0)
    """
    if np.isnan(values).any():
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    if around is None:
        return float(low), float(high)
    bias = float(values.mean()) - around
    return max(0.0, float(low) - bias), max(0.0, float(high) - bias)


def bootstrap_intervals(
    estimate: Estimator,
    sizes: Sequence[int],
    resamples: int,
    *,
    seed: int = 0,
    level: float = 0.95,
    around: Mapping[str, float] | None = None,
) -> dict[str, tuple[float, float]]:
    """Percentile intervals of every value that `estimate` gives.

    Calibration errors over bins grow when samples repeat, so the resamples of a small set can lie above the figure
    altogether. Their spread is what is asked for: give such figures in `around`, and their interval is centred there.

    Args:
        around: name -> the figure itself, of metrics that resampling biases upwards.
        estimate: weights, one (B, N) a set -> values, (B,) each.
        sizes: samples in each set.
        resamples: how many, at least 20.
        level: share of resamples inside the interval.

    Raises:
        MetricError: too few resamples, or a level that is no share.
    """
    if not isinstance(resamples, int | np.integer) or resamples < 20:
        raise MetricError("Too few resamples for an interval", expected="20 or more (200 is usual)", got=resamples)
    if not 0 < level < 1:
        raise MetricError("The level of the interval is out of range", expected="between 0 and 1", got=level)
    parts = [estimate(weights) for weights in resamples_of(sizes, int(resamples), seed)]
    centre = around or {}
    return {
        name: percentile_interval(np.concatenate([p[name] for p in parts]), level, centre.get(name))
        for name in parts[0]
    }
