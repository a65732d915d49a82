"""Work done before the first visitor asks."""

from __future__ import annotations

import gc
import inspect
import threading
from importlib import import_module

from app.lab.results import report, scores
from app.lab.sources import Options, default_data, default_model, sample, shape
from app.lab.spaces import SAMPLES, head_outputs
from hydra_core.heads.mask import Plan

ENGINE = (
    "torch",
    "timm.models.vision_transformer",
    "pandas",
    "plotly.graph_objects",
    "scipy.fft",
    "sklearn.decomposition",
    "sklearn.discriminant_analysis",
    "sklearn.model_selection",
    "open_clip",
    "hydra_core.metrics.report",
)
_warm = threading.Lock()


def load_engine() -> None:
    """Import what pages need (seconds, most of them torch's), before a server answers.

    In a thread beside the server it takes longer, and holds up every file that the browser asks for: imports share one
    lock with all other Python code. scikit-learn is for Projections, open_clip for Zero-shot: each takes a second that
    a first visit to the page would wait.
    """
    gc.disable()  # nothing of it is garbage, and looking takes a fifth of the time
    try:
        for name in ENGINE:
            import_module(name)
        # Streamlit looks at the stack once, at its first element; for a page's code that reads the file of every module
        inspect.getmodule(compile("", "no module's", "exec"))
    finally:
        gc.enable()
    gc.freeze()


def warm_up() -> None:
    """Load the default model, data, scores and what its heads hand on in the background, once a process."""
    if _warm.acquire(blocking=False):
        threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()


def _warm_up() -> None:
    try:
        name, data_name = default_model(), default_data()
        report(name, data_name, Plan.full(shape(name)))
        scores(name, data_name)
        head_outputs(name, sample(data_name, Options(n=SAMPLES)))  # Projections would wait a second for them
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
