"""Work done before the first visitor asks."""

from __future__ import annotations

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
        report(name, data_name, Plan.full(shape(name)))
        scores(name, data_name)
    except Exception:  # the page that needs it will say what is wrong
        return
