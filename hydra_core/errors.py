"""One family of errors. Each text says what was expected, what came, and what to do.

The tree::

    HydraError
    |-- UnknownNameError      a model, data set, criterion or method that does not exist
    |-- MaskError             a mask or plan that cannot be read or does not fit the model
    |-- ModelError
    |   |-- UnsupportedModel  heads of this model cannot be pruned exactly, with the reason
    |   `-- CheckpointError   weights that do not fit the model
    |-- DataError             data that cannot be used (empty class, one class only, wrong split)
    |   `-- UploadError       a file from outside that was refused
    |-- MetricError           inputs for which a metric is not defined
    |-- BudgetError           work that does not fit in memory, with what to lower
    |-- DependencyError       an optional library that is not installed, with the extra to install
    `-- Cancelled             the user stopped the work
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HydraError(Exception):
    """Base of all errors a user can cause; its text is fit to be shown as it is.

    Args:
        problem: what is wrong, one sentence.
        expected: what would have been right.
        got: what came instead.
        hint: what to do about it.
    """

    def __init__(self, problem: str, *, expected: object = None, got: object = None, hint: str = "") -> None:
        self.problem, self.expected, self.got, self.hint = problem, expected, got, hint
        parts = [problem.rstrip(".") + "."]
        if expected is not None:
            parts.append(f"Expected {expected}.")
        if got is not None:
            parts.append(f"Got {got}.")
        if hint:
            parts.append(hint)
        super().__init__(" ".join(parts))


class UnknownNameError(HydraError):
    """A name that does not exist; tells what exists and the nearest names."""

    def __init__(self, what: str, name: object, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(str(name), names, n=3, cutoff=0.5)
        shown = ", ".join(names[:12]) + (f", and {len(names) - 12} more" if len(names) > 12 else "")
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Choose one of: {shown}."
        self.near = tuple(near)
        super().__init__(f"There is no {what} named {str(name)[:200]!r}", expected=f"one of {shown}", hint=hint)


class MaskError(HydraError):
    """A head mask or plan that cannot be read or does not fit."""


class ModelError(HydraError):
    """A model that cannot be loaded or used."""


class UnsupportedModel(ModelError):
    """The heads of this model cannot be pruned exactly; the text names the block and the reason."""


class CheckpointError(ModelError):
    """Weights that do not fit the model."""


class DataError(HydraError):
    """Data that cannot be used for what was asked."""


class UploadError(DataError):
    """A file from outside that was refused."""


class MetricError(HydraError):
    """Inputs for which a metric is not defined."""


class BudgetError(HydraError):
    """Work that does not fit into memory; the text says what to lower."""


class DependencyError(HydraError):
    """An optional library is missing; the text names the extra to install."""


class Cancelled(HydraError):
    """The work was stopped by the user."""

    def __init__(self, what: str = "The work") -> None:
        super().__init__(f"{what} was cancelled")
