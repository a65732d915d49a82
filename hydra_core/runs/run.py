"""The big run of a recipe: all samples, intervals, a checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hydra_core.cost import cost_of
from hydra_core.data.sets import labelled
from hydra_core.metrics import Report, evaluate_logits
from hydra_core.progress import Progress
from hydra_core.runs.recipe import versions
from hydra_core.runs.spread import HYDRA, SINGLE, Loaded, Shard, Spread, Work, here, load, shards


def run_recipe(
    work: Work, out: Path, *, bootstrap: int = 500, spread: Spread = here, progress: Progress | None = None
) -> dict[str, Any]:
    """Fuse, evaluate on the whole split, write report and checkpoint.

    Writes `recipe.json`, `report.json` and `hydra.safetensors` into `out`.

    Args:
        bootstrap: resamples for the intervals; 0 for none.
        spread: where the forward passes run: `here`, or a `RayCluster`.

    Returns:
        What `report.json` holds: rows "single" and "hydra", and the cost.

    Raises:
        HydraError: see `hydra_core.runs.spread.load`.
    """
    found = load(work)
    pieces = shards(work)
    logits = _joined(pieces, list(spread(pieces, progress)))
    rows = {
        who: _report(found, {name: logits[who, name] for name in found.sets}, bootstrap).row(intervals=bootstrap > 0)
        for who in (SINGLE, HYDRA)
    }
    result = {
        "split": work.split,
        "samples": len(found.sets[""]),
        "rows": rows,
        "cost": asdict(cost_of(found.view, found.hydra)),
        "versions": versions(),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "recipe.json").write_text(work.recipe.to_json(), encoding="utf-8")
    (out / "report.json").write_text(json.dumps(result, indent=1, default=float) + "\n", encoding="utf-8")
    found.hydra.save(out / "hydra.safetensors")
    return result


def _joined(pieces: list[Shard], logits: list[np.ndarray]) -> dict[tuple[str, str], np.ndarray]:
    """Logits of each predictor on each set, their shards in order: (who, set) -> (N, C) or (M, N, C)."""
    parts: dict[tuple[str, str], list[np.ndarray]] = {}
    for piece, rows in zip(pieces, logits, strict=True):
        parts.setdefault((piece.who, piece.name), []).append(rows)
    return {key: np.concatenate(rows, axis=-2) for key, rows in parts.items()}


def _report(found: Loaded, logits: dict[str, np.ndarray], bootstrap: int) -> Report:
    ood = {name: rows for name, rows in logits.items() if name}
    shifts = {name: part.shift for name, part in found.sets.items() if name}
    return evaluate_logits(logits[""], labelled(found.sets[""]), ood or None, shifts=shifts, bootstrap=bootstrap)
