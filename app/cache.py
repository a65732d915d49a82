"""Bounded caches shared by all sessions: small digests as keys, a limit in bytes, one computation a key.

Values are read-only for their users. What a session may change travels as an argument and
is part of the key (model name, data digest, mask text, dtype).
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from hydra_core.errors import Cancelled

T = TypeVar("T")
MIB = 1024 * 1024


def digest(*parts: object) -> str:
    """A short digest of the texts of `parts`, the same in every process.

    Examples:
        >>> digest("a", 1) == digest("a", 1), digest("a", 1) == digest("a1")
        (True, False)
    """
    h = hashlib.blake2b(digest_size=10)
    for part in parts:
        text = str(part).encode()
        h.update(len(text).to_bytes(4, "big") + text)  # the length keeps ("a", "b") apart from ("ab",)
    return h.hexdigest()


def size_of(value: Any) -> int:
    """Bytes of a value: arrays and tensors exactly, containers summed, anything else counted as 4 KiB."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return 4096


class _Flight:
    """A computation under way, awaited by all who asked for the same key."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None


class BoundedCache:
    """Least-recently-used values under a limit in bytes; safe for threads.

    Args:
        name: shown in `stats`.
        max_bytes: the sum of the values' sizes stays at or under it; a single value
            above it is returned but not kept.
    """

    def __init__(self, name: str, max_bytes: int) -> None:
        self.name, self.max_bytes = name, max_bytes
        self.bytes = 0
        self._values: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._flights: dict[str, _Flight] = {}
        self._lock = threading.Lock()

    def get(self, key: str, compute: Callable[[], T], size: Callable[[T], int] = size_of) -> T:
        """The value of `key`, computed at most once at a time whoever asks.

        An error reaches everyone who waited and is not kept. A cancelled computation is no
        one else's fault: those who waited compute for themselves.
        """
        while True:
            with self._lock:
                if key in self._values:
                    self._values.move_to_end(key)
                    return self._values[key][0]
                flight = self._flights.get(key)
                mine = flight is None
                if flight is None:
                    flight = self._flights[key] = _Flight()
            if mine:
                return self._compute(key, flight, compute, size)
            flight.done.wait()
            if flight.error is None:
                return flight.value
            if isinstance(flight.error, Exception) and not isinstance(flight.error, Cancelled):
                raise flight.error

    def peek(self, key: str) -> Any | None:
        """The value of `key` if it is there already."""
        with self._lock:
            return self._values[key][0] if key in self._values else None

    def _compute(self, key: str, flight: _Flight, compute: Callable[[], T], size: Callable[[T], int]) -> T:
        try:
            flight.value = compute()
            self._keep(key, flight.value, size(flight.value))
            return flight.value
        except BaseException as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                self._flights.pop(key, None)
            flight.done.set()

    def _keep(self, key: str, value: Any, size: int) -> None:
        if size > self.max_bytes:
            return
        with self._lock:
            if key in self._values:
                self.bytes -= self._values.pop(key)[1]
            self._values[key] = (value, size)
            self.bytes += size
            while self.bytes > self.max_bytes:
                _, (_, gone) = self._values.popitem(last=False)
                self.bytes -= gone

    def __contains__(self, key: str) -> bool:
        with self._lock:
            return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Drop all values (computations under way still finish)."""
        with self._lock:
            self._values.clear()
            self.bytes = 0
