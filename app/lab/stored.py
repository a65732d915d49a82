"""What the demo carries measured: head scores by every criterion, and the Hydra that validation data chose.

    python -m app.lab.stored      # measures the scores of the demo model again (a minute or two)

Stored values are used for the very weights and samples they were measured on, and for nothing else.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.lab.sources import Sample, default_data, default_model, model, sample
from hydra_core.heads.mask import Plan

if TYPE_CHECKING:
    from hydra_core.heads.scores import HeadScores

SCORES = Path(__file__).resolve().parents[2] / "assets" / "head-scores-demo.json"
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


def _short(rows: Any) -> Any:
    return None if rows is None else [[float(f"{value:.{DIGITS}g}") for value in row] for row in rows]


if __name__ == "__main__":
    SCORES.write_text(json.dumps(measure(), separators=(",", ":")) + "\n", encoding="utf-8")
