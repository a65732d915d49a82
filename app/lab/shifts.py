"""Corrupted versions of data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.cache import digest
from app.lab import store
from app.lab.sources import bundle_bytes, data

if TYPE_CHECKING:
    import threading

    import numpy as np

    from hydra_core.data.sets import DataBundle
    from hydra_core.progress import Progress


def shift_of(name: str) -> tuple[str, str, int] | None:
    """(clean data set, corruption, severity) of a corrupted data set's name; None for a clean one."""
    from hydra_core.data.corruptions import parse_shift

    return parse_shift(name)


def shifted_name(clean: str, corruption: str, severity: int) -> str:
    """The name under which `data` has a corrupted version: "demo/fashion~fog-3"."""
    from hydra_core.data import corruptions

    return corruptions.shifted_name(clean, corruption, severity)


def shifted(name: str, *, progress: Progress | None = None, cancel: threading.Event | None = None) -> DataBundle:
    """A corrupted data set by its name, made with progress; `data` has it from then on."""
    from hydra_core.data.corruptions import corrupt_bundle

    parts = shift_of(name)
    if parts is None:
        return data(name)
    clean, change, severity = parts
    make = lambda: corrupt_bundle(data(clean), change, severity, progress=progress, cancel=cancel)  # noqa: E731
    return store.data.get(name, make, bundle_bytes)


def severities(data_name: str, corruption: str) -> list[np.ndarray]:
    """The first validation image, clean and at each of the five severities."""
    from hydra_core.data.corruptions import SEVERITIES, corrupt

    def compute() -> list[np.ndarray]:
        first = data(data_name).val.take([0])
        return [first.inputs[0], *(corrupt(first, corruption, severity).inputs[0] for severity in SEVERITIES)]

    return store.results.get(digest("severities", data(data_name).val.digest, corruption), compute)
