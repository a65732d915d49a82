"""Data sets by name: "demo/fashion", and those that were added in this process."""

from __future__ import annotations

from collections.abc import Callable

from hydra_core.data.sets import DataBundle
from hydra_core.errors import UnknownNameError


def _fashion() -> DataBundle:
    from hydra_core.data.demo import load_fashion

    return load_fashion()


DATA: dict[str, Callable[[], DataBundle]] = {"demo/fashion": _fashion}

YOURS = "yours/"  # begins the names of what one session brought: nobody can guess them, and no list shows them


def register_data(name: str, load: Callable[[], DataBundle]) -> None:
    """Add a data set under a name."""
    DATA[name] = load


def load_data(name: str) -> DataBundle:
    """A data set with named splits: val, test, and OOD sets for validation and for test.

    "NAME~CORRUPTION-SEVERITY" is the same set with corrupted ID images: "demo/fashion~gaussian_noise-3".

    Raises:
        UnknownNameError: no such data set or corruption; the text names the nearest.
    """
    from hydra_core.data.corruptions import corrupt_bundle, parse_shift

    shift = parse_shift(name)
    if shift is not None:
        base, change, severity = shift
        return corrupt_bundle(load_data(base), change, severity)
    if name not in DATA:
        raise UnknownNameError("data set", name, list_data())
    return DATA[name]()


def list_data() -> list[str]:
    """Names of the data sets for all; those of one session are not listed."""
    return [name for name in DATA if not name.startswith(YOURS)]
