"""Models and data come to hand: with progress, and a way to stop that works at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, TypeVar

from app.lab import store
from app.lab.shifts import shift_of, shifted
from app.lab.sources import bundle_bytes, data, default_data, default_model, model
from hydra_core.errors import BudgetError, Cancelled

if TYPE_CHECKING:
    from hydra_core.data.sets import DataBundle
    from hydra_core.models.view import ModelView
    from hydra_core.progress import Progress

T = TypeVar("T")
LOADS = threading.BoundedSemaphore(4)  # at a time, over all sessions, with those that nobody waits for any more


def at_hand(model_name: str, data_name: str) -> bool:
    """Whether both are loaded, so that no page has to wait for them; "" is the default. Costs next to nothing."""
    if not len(store.models):  # the process has just started: do not import the engine to look for names
        return False
    return _has_model(model_name or default_model()) and _has_data(data_name or default_data())


def _has_model(name: str) -> bool:
    from hydra_core.models.load import VIEWS

    return name in store.models or name in VIEWS


def _has_data(name: str) -> bool:
    from hydra_core.data.load import DATA, YOURS

    return name in store.data or (name.startswith(YOURS) and name in DATA)


def bring_model(name: str, *, progress: Progress | None = None, cancel: threading.Event | None = None) -> ModelView:
    """A model as `model` gives it.

    Raises:
        HydraError: as `model`; Cancelled; BudgetError where it is too large to be kept.
    """
    if _has_model(name):  # even for a job that was cancelled over something else
        return model(name)
    view = uninterrupted(lambda: model(name), f"Loading {name}", progress=progress, cancel=cancel)
    if not _has_model(name):
        raise _too_large(name, 4 * view.parameters, store.models.max_bytes)
    return view


def bring_data(name: str, *, progress: Progress | None = None, cancel: threading.Event | None = None) -> DataBundle:
    """A data set as `data` gives it, clean or corrupted.

    Raises:
        HydraError: as `data`; Cancelled; BudgetError where it is too large to be kept.
    """
    if _has_data(name):
        return data(name)
    parts = shift_of(name)
    clean = parts[0] if parts else name
    bundle = uninterrupted(lambda: data(clean), f"Loading {clean}", progress=progress, cancel=cancel)
    if parts:
        bundle = shifted(name, progress=progress, cancel=cancel)
    if not _has_data(name):
        raise _too_large(name, bundle_bytes(bundle), store.data.max_bytes)
    return bundle


def _too_large(name: str, size: int, room: int) -> BudgetError:
    from hydra_core.data.limits import size_text

    return BudgetError(
        f"{name} is too large for the dashboard",
        expected=f"at most {size_text(room)}",
        got=size_text(size),
        hint="Take a smaller one, or use hydra_core from Python.",
    )


def uninterrupted(
    work: Callable[[], T], title: str, *, progress: Progress | None = None, cancel: threading.Event | None = None
) -> T:
    """The result of work that looks at no cancel event, such as a download: who cancels stops waiting for it.

    What was begun goes on to its end, and caches keep it: asked for again, it is there sooner.

    Raises:
        Cancelled: `cancel` was set first. Whatever `work` raises.
    """
    found: Future[T] = Future()
    if progress is not None:
        progress(0.0, "loading")
    threading.Thread(target=_fill, args=(found, work), name=f"load-{title[:24]}", daemon=True).start()
    while not wait([found], timeout=0.1).done:
        if cancel is not None and cancel.is_set():
            raise Cancelled(title)
    return found.result()


def _fill(found: Future[T], work: Callable[[], T]) -> None:
    with LOADS:
        try:
            found.set_result(work())
        except BaseException as error:
            found.set_exception(error)
