"""Bounded caches: one computation a key, a limit in bytes, errors for all and for no one later."""

import threading

import numpy as np
import pytest

from app.cache import BoundedCache, digest, size_of
from hydra_core.errors import Cancelled


def run_threads(target, n):
    threads = [threading.Thread(target=target) for _ in range(n)]
    for t in threads:
        t.start()
    return threads


def test_one_computation_a_key_however_many_ask():
    cache, calls, gate = BoundedCache("t", 1000), [], threading.Event()
    results = []

    def compute():
        calls.append(1)
        gate.wait(5)
        return np.arange(3)

    threads = run_threads(lambda: results.append(cache.get("k", compute)), 6)
    gate.set()
    for t in threads:
        t.join()
    assert len(calls) == 1
    assert len(results) == 6
    assert all(r is results[0] for r in results)


def test_different_keys_do_not_wait_for_each_other():
    cache, gate = BoundedCache("t", 1000), threading.Event()
    thread = threading.Thread(target=lambda: cache.get("slow", lambda: gate.wait(5)))
    thread.start()
    assert cache.get("quick", lambda: 7) == 7  # would hang if one lock guarded all computations
    gate.set()
    thread.join()


def test_stays_under_its_limit_and_drops_the_least_recently_used():
    cache = BoundedCache("t", 100)
    for key in "abc":
        cache.get(key, lambda: np.zeros(40, np.uint8))
        if key == "b":
            cache.get("a", lambda: pytest.fail("a was kept"))  # touch: now b is the oldest
    assert cache.bytes <= 100
    assert ("a" in cache, "b" in cache, "c" in cache) == (True, False, True)


def test_a_value_above_the_limit_is_returned_but_not_kept():
    cache = BoundedCache("t", 10)
    assert cache.get("big", lambda: np.zeros(50, np.uint8)).shape == (50,)
    assert len(cache) == 0
    assert cache.bytes == 0


def test_an_error_reaches_the_caller_and_is_not_kept():
    cache = BoundedCache("t", 100)
    with pytest.raises(ZeroDivisionError):
        cache.get("k", lambda: 1 / 0)
    assert cache.get("k", lambda: 3) == 3


def test_those_who_waited_for_a_cancelled_computation_compute_themselves():
    cache, started, gate, results = BoundedCache("t", 100), threading.Event(), threading.Event(), []

    def cancelled():
        started.set()
        gate.wait(5)
        raise Cancelled

    def first():
        with pytest.raises(Cancelled):
            cache.get("k", cancelled)

    one = threading.Thread(target=first)
    one.start()
    started.wait(5)
    two = threading.Thread(target=lambda: results.append(cache.get("k", lambda: 11)))
    two.start()
    gate.set()
    one.join()
    two.join()
    assert results == [11]


def test_digest_keeps_parts_apart():
    assert digest("a", "b") != digest("ab")
    assert digest("a", "b") != digest("b", "a")
    assert digest(1, None) == digest("1", "None")


def test_sizes_add_up():
    assert size_of({"a": np.zeros(3), "b": [np.zeros(2, np.uint8)]}) == 26


def test_a_peek_computes_and_keeps_nothing():
    cache = BoundedCache("test", 1_000_000)
    assert cache.peek("a") is None
    assert "a" not in cache
    cache.get("a", lambda: "value")
    assert cache.peek("a") == "value"
