"""A row of the table, and timing two ways of doing a job turn by turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One figure: `value` should be at most `limit`."""

    name: str
    value: float
    limit: float
    detail: str = ""

    @property
    def holds(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        verdict = "holds " if self.holds else "MISSES"
        return f"{verdict}  {self.value:7.3f} <= {self.limit:5.3f}   {self.name}   {self.detail}"


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(ours: Callable[[], object], other: Callable[[], object], repeats: int = 5) -> tuple[float, float, float]:
    """Median ratio of turns that run both, one after the other, so that a busy machine slows both.

    Returns:
        (ratio, seconds of ours, seconds of the other); medians.
    """
    ours(), other()
    turns = [(seconds(ours), seconds(other)) for _ in range(repeats)]
    mine, theirs = (statistics.median(column) for column in zip(*turns, strict=True))
    return statistics.median(a / b for a, b in turns), mine, theirs
