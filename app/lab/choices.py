"""What can be chosen: what the model cards say, and whether a model of a registry can be pruned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.cache import digest
from app.lab import store
from hydra_core.errors import UnknownNameError

if TYPE_CHECKING:
    import threading

    from hydra_core.progress import Progress


def prunable(name: str, *, progress: Progress | None = None, cancel: threading.Event | None = None) -> Any:
    """Build a model of timm or open_clip without weights and try masks on it: a row of `hydra_core.models.coverage`.

    Args:
        name: "timm/NAME" or "open_clip/NAME".

    Raises:
        UnknownNameError: no such registry or model; the text names the nearest.
    """
    from hydra_core.models.coverage import SOURCES, census

    source, _, rest = name.strip().partition("/")
    if source not in SOURCES:
        raise UnknownNameError("registry", source or name, SOURCES)
    if rest not in SOURCES[source][0]():
        raise UnknownNameError(f"model of {source}", rest, SOURCES[source][0]())
    find = lambda: census(source, [rest], progress=progress, cancel=cancel).iloc[0]  # noqa: E731
    return store.results.get(digest("prunable", source, rest), find)
