"""What sessions share: caches bounded in bytes, and the one thread that runs inference.

Inference runs in one thread a process: torch uses all cores anyway, and the model's private shadow is built once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from app.cache import MIB, BoundedCache

T = TypeVar("T")

EVALUATOR_BUDGET_MB = 384
models = BoundedCache("models", 4096 * MIB)
data = BoundedCache("data", 2048 * MIB)
evaluators = BoundedCache("evaluators", 2 * (EVALUATOR_BUDGET_MB + 256) * MIB)
logits = BoundedCache("logits", 256 * MIB)
results = BoundedCache("results", 128 * MIB)

_worker = ThreadPoolExecutor(1, thread_name_prefix="inference")


def infer(work: Callable[[], T]) -> T:
    """Run `work` in the inference thread and wait for it."""
    if threading.current_thread().name.startswith("inference"):
        return work()
    return _worker.submit(work).result()
