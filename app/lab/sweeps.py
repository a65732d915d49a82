"""Sweeps over kept heads and members: the stored one of the demo, and those made now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.cache import digest
from app.lab import store
from app.lab.sources import data, model
from hydra_core.progress import Progress

if TYPE_CHECKING:
    from hydra_core.methods.sweep import Grid, SweepMethod
    from hydra_core.methods.sweep_table import Point, Sweep


def stored_sweep(model_name: str, data_name: str) -> Sweep | None:
    """The demo's sweep as it was measured for these very weights and data; None for anything else."""
    from hydra_core.methods.base import module_digest
    from hydra_core.methods.sweep import STORED
    from hydra_core.methods.sweep_table import Sweep

    if not STORED.is_file() or not model_name.startswith("demo/"):
        return None

    def read() -> Sweep | None:
        found = Sweep.from_json(STORED.read_text(encoding="utf-8"))
        view, facts = model(model_name), found.provenance
        same = facts["data"]["digest"] == data(data_name).digest
        return found if same and facts["models"].get(view.name) == module_digest(view.module) else None

    return store.results.get(digest("stored sweep", model_name, data_name, STORED.stat().st_mtime_ns), read)


def sweep_methods() -> Mapping[str, SweepMethod]:
    """The lines that a sweep can have, by name: label, about, ensemble, needs_ood."""
    from hydra_core.methods.sweep import METHODS

    return METHODS


def usual_grid(model_name: str, data_name: str) -> Grid:
    """What a sweep of this model on these data runs over unless told otherwise."""
    from hydra_core.methods.sweep import Grid

    return Grid.default(model(model_name), data(data_name))


def sweep(
    model_name: str,
    data_name: str,
    grid: Grid,
    *,
    n: int,
    repeats: int,
    publish: Callable[[list[Point]], None] | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Sweep:
    """`hydra_core.methods.sweep.sweep` on validation samples; finished cells are kept for all sessions.

    Each cell is one piece of work of the inference thread, so that other pages get their turn in between.

    Args:
        n: ID samples to measure on, and a quarter of it of each OOD set; a search sees half as many of its own.
        repeats: draws of the searched samples.
    """

    def remember(key: str, compute: Callable[[], list[Any]]) -> list[Any]:
        return store.results.get(_cell_key(key), lambda: store.infer(compute))

    return _run(model_name, data_name, grid, n, repeats, remember, publish=publish, progress=progress, cancel=cancel)


def known_sweep(model_name: str, data_name: str, grid: Grid, *, n: int, repeats: int) -> Sweep:
    """What of a sweep has been measured already, by whoever asked for it; measures nothing."""

    def remember(key: str, compute: Callable[[], list[Any]]) -> list[Any]:
        return store.results.peek(_cell_key(key)) or []

    return _run(model_name, data_name, grid, n, repeats, remember)


def _cell_key(key: str) -> str:
    return digest("sweep cell", key)


def _run(
    model_name: str, data_name: str, grid: Grid, n: int, repeats: int, remember: Callable[..., Any], **watch: Any
) -> Sweep:
    from hydra_core.methods import sweep as engine

    sizes = engine.Sizes(search=n // 2, search_ood=max(8, n // 8), report=n, report_ood=max(8, n // 4))
    return engine.sweep(
        [model(model_name)], data(data_name), [grid], sizes=sizes, seeds=range(repeats), remember=remember,
        budget_mb=store.EVALUATOR_BUDGET_MB / 2, **watch,
    )  # fmt: skip


def sweep_so_far(parts: Sequence[list[Point]]) -> Sweep:
    """What a sweep that is under way has published."""
    from hydra_core.methods.sweep_table import Sweep

    return Sweep(tuple(point for part in parts for point in part))
