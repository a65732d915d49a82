"""What is loaded at the start does not slow down every page after it."""

from __future__ import annotations

import gc
import time

from app.lab import warm


def test_a_collection_after_the_warm_up_is_quick():
    import timm  # noqa: F401  (hundreds of thousands of objects that stay)

    def cost():
        start = time.process_time()
        gc.collect(2)
        return time.process_time() - start

    gc.unfreeze()
    try:
        before = min(cost() for _ in range(3))
        warm.settle()
        after = min(cost() for _ in range(3))
    finally:
        gc.unfreeze()
    assert after < before / 5
