"""What is loaded at the start does not slow down every page after it."""

from __future__ import annotations

import gc
import subprocess
import sys
import time

import pytest

from app.lab import warm
from app.registry import ROOT


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


def test_the_engine_is_loaded_before_the_server_answers_and_garbage_is_collected_afterwards():
    code = "import gc, sys; from app import lab; lab.load_engine(); print(gc.isenabled(), *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    collects, *loaded = done.stdout.split()
    assert collects == "True"
    assert set(warm.ENGINE) <= set(loaded)


def test_what_cannot_be_imported_leaves_garbage_collection_on(monkeypatch):
    monkeypatch.setattr(warm, "ENGINE", ("no_such_module",))
    with pytest.raises(ModuleNotFoundError):
        warm.load_engine()
    assert gc.isenabled()
