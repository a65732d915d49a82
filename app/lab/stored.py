"""What the demo carries measured: logits, image features, head scores, and the Hydra that validation data chose.

    python -m app.lab.stored      # measures the first three again (a minute or two)

Stored values are used for the very weights and samples they were measured on, and for nothing else.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from app.lab.sources import Sample, default_data, default_model, model, sample
from app.registry import ROOT
from hydra_core.heads.mask import HeadMask, Plan

if TYPE_CHECKING:
    from hydra_core.heads.scores import HeadScores

ASSETS = ROOT / "assets"
SCORES = ASSETS / "head-scores-demo.json"
ROWS = {"logits": ASSETS / "logits-demo.npz", "features": ASSETS / "features-demo-clip.npz"}
COMMAND = "python -m app.lab.stored"
DIGITS = 9  # significant; more than float32 logits carry


def stored_scores(model_name: str, chosen: Sample, criterion: str) -> HeadScores | None:
    """The stored scores of a criterion, where they are of these weights and samples."""
    from hydra_core.heads.scores import HeadScores

    if not model_name.startswith("demo/"):
        return None
    facts = _read(SCORES)
    if criterion not in facts.get("scores", {}) or facts["measured_on"] != _origin(model_name, chosen):
        return None
    values, low, high = (_rows(facts["scores"][criterion][part]) for part in ("values", "low", "high"))
    assert values is not None
    return HeadScores(criterion, values, low, high, facts["scores"][criterion]["samples"])


def stored_rows(what: str, model_name: str, chosen: Sample, mask: HeadMask) -> np.ndarray | None:
    """What an unpruned demo model gives each sample, (N, ...), where it was measured on these weights and samples.

    Args:
        what: "logits", or "features" of images, unit vectors (N, D).
    """
    path = ROWS[what]
    if not model_name.startswith("demo/") or not mask.is_full or not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as parts:
        same = json.loads(str(parts["measured_on"])) == _origin(model_name, chosen)
        return parts["rows"] if same else None


def stored_hydra(model_name: str, data_name: str) -> Plan | None:
    """The members of Hydra (Circ) that were chosen on validation data for these weights; None for others."""
    from hydra_core.methods.compare import CHOICE

    if not model_name.startswith("demo/"):
        return None
    facts = _read(CHOICE)
    weights, digest = _weights(model_name), _data_digest(data_name)
    if facts.get("base", {}).get("weights") != weights or facts["base"]["data"] != digest:
        return None
    return Plan.from_json(facts["plan"])


@cache
def _read(path: Path) -> dict[str, Any]:
    """A JSON file of ours, read once a process; {} where it is missing."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _rows(rows: Any) -> tuple[tuple[float, ...], ...] | None:
    return None if rows is None else tuple(tuple(map(float, row)) for row in rows)


@cache
def _weights(model_name: str) -> str:
    from hydra_core.methods.base import module_digest

    return module_digest(model(model_name).module)


def _data_digest(data_name: str) -> str:
    from app.lab.sources import data

    return data(data_name).digest


def _origin(model_name: str, chosen: Sample) -> dict[str, str]:
    return {"model": model_name, "weights": _weights(model_name), "samples": chosen.key}


def measure() -> dict[str, Any]:
    """All criteria of the demo model on the samples that the pages score on."""
    from hydra_core.heads.scores import CRITERIA, score_heads

    name, chosen = default_model(), sample(default_data())
    scores = {}
    for criterion in CRITERIA:
        found = score_heads(model(name), chosen.id, criterion, ood=chosen.ood)
        parts = {part: _short(getattr(found, part)) for part in ("values", "low", "high")}
        scores[criterion] = {**parts, "samples": found.samples}
    return {"command": COMMAND, "measured_on": _origin(name, chosen), "note": chosen.note, "scores": scores}


def measure_rows(what: str, model_name: str) -> dict[str, np.ndarray]:
    """Logits or image features of an unpruned model on those samples, by its own forward, and what they are of."""
    import torch
    from torch.nn.functional import normalize

    view, chosen = model(model_name), sample(default_data())
    module: Any = view.module
    forward = module if what == "logits" else lambda x: normalize(module.visual(x), dim=-1)
    with torch.no_grad():
        rows = forward(view.inputs(*chosen.sets.values())).numpy()  # (N, C) or (N, D)
    return {"rows": rows, "measured_on": np.array(json.dumps(_origin(model_name, chosen)))}


def _short(rows: Any) -> Any:
    return None if rows is None else [[float(f"{value:.{DIGITS}g}") for value in row] for row in rows]


if __name__ == "__main__":
    for what, name in {"logits": default_model(), "features": "demo/fashion-clip"}.items():
        np.savez_compressed(ROWS[what], allow_pickle=False, **measure_rows(what, name))
    SCORES.write_text(json.dumps(measure(), separators=(",", ":")) + "\n", encoding="utf-8")
