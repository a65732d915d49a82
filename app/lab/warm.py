"""Work done before the first visitor asks."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

from app.lab.results import report, scores
from app.lab.sources import default_data, default_model, shape
from hydra_core.heads.mask import Plan

if TYPE_CHECKING:
    pass

_warm = threading.Lock()


def warm_up() -> None:
    """Load the default model, data and scores in the background, once a process."""
    if _warm.acquire(blocking=False):
        threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()


def _warm_up() -> None:
    try:
        name, data_name = default_model(), default_data()
        shape(name)
        settle()
        report(name, data_name, Plan.full(shape(name)))
        scores(name, data_name)
    except Exception:  # the page that needs it will say what is wrong
        return
    finally:
        settle()


def settle() -> None:
    """Take what is loaded out of garbage collection: it stays for the life of the process.

    Streamlit collects all generations after every run of a page and every poll of a job. With torch and timm loaded
    that took 277 ms of CPU time each, in which no other Python thread runs; of what comes later, next to nothing.
    """
    gc.collect()
    gc.freeze()
