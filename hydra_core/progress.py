"""How long work tells where it stands: a share from 0 to 1, and a few words."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]


def step_of(progress: Progress | None, done: int, total: int, label: str = "") -> Progress | None:
    """The progress of step `done` (from 0) of `total` equal ones, as a part of the whole.

    Args:
        label: put before the step's own words.
    """
    if progress is None:
        return None
    return lambda share, text: progress((done + share) / total, f"{label}: {text}" if label else text)
