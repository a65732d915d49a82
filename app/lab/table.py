"""The comparison of methods: the stored one, or made now."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.cache import digest
from app.lab import store
from app.lab.sources import Split, data, model
from app.lab.zero_shot import is_zero_shot, zero_shot_row_names
from hydra_core.progress import Progress

if TYPE_CHECKING:
    pass


def stored_comparison(model_name: str, data_name: str) -> Any | None:
    """The demo's comparison as it was measured for these very weights and data; None for anything else."""
    from hydra_core.methods.base import module_digest
    from hydra_core.methods.compare import TABLE, Comparison

    if not TABLE.is_file() or not model_name.startswith("demo/"):
        return None

    def read() -> Any | None:
        table = Comparison.from_json(TABLE.read_text(encoding="utf-8"))
        view, bundle = model(model_name), data(data_name)
        same = table.provenance["data"]["digest"] == bundle.digest
        return table if same and table.provenance["models"].get(view.name) == module_digest(view.module) else None

    return store.results.get(digest("stored", model_name, data_name, TABLE.stat().st_mtime_ns), read)


def comparison(
    model_name: str,
    data_name: str,
    rows: Sequence[str],
    *,
    split: Split = "val",
    features: bool = False,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Any:
    """`hydra_core.methods.compare.compare` with other seeds of the demo as replicas where there are some.

    Args:
        features: whether OOD scores of features are measured as well.
    """
    from hydra_core.methods.compare import compare, demo_models
    from hydra_core.methods.detection import FEATURE_SCORES, LOGIT_SCORES

    view, bundle = model(model_name), data(data_name)
    seeds = demo_models()
    replicas = [v for v in seeds if v.name != view.name] if view.name in {v.name for v in seeds} else []
    also = (*LOGIT_SCORES, *(FEATURE_SCORES if features else ()))
    work = lambda: compare(  # noqa: E731
        view, bundle, rows, split=split, replicas=replicas, bootstrap=100, also=also, progress=progress, cancel=cancel
    )
    key = digest("comparison", model_name, bundle.digest, tuple(rows), split, also)
    return store.results.get(key, lambda: store.infer(work))


def row_names(model_name: str) -> dict[str, str]:
    """Rows that can be compared on a model: name -> label."""
    from hydra_core.methods.registry import DEFAULT_ROWS, parse_row

    names = zero_shot_row_names() if is_zero_shot(model_name) else DEFAULT_ROWS
    labels = {name: parse_row(name) for name in names}
    return {
        name: f"{row.label} + {scaling} scaling" if scaling else row.label for name, (row, scaling) in labels.items()
    }
