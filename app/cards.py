"""Which figures pages show, how they read, and where a report or a cost keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from app.widgets import Card
from hydra_core.metrics.registry import METRICS

if TYPE_CHECKING:
    from hydra_core.cost import Cost
    from hydra_core.metrics import Report


def _card(name: str, label: str, style: Literal["share", "plain"]) -> Card:
    """A card that says of a metric what the engine says of it: direction and convention in one place."""
    metric = METRICS[name]
    return Card(label, metric.better, style, metric.help)


CALIBRATION: dict[str, Card] = {
    "accuracy": _card("accuracy", "Accuracy", "share"),
    "ece": _card("ece", "ECE", "plain"),
    "aece": _card("aece", "Adaptive ECE", "plain"),
    "nll": _card("nll", "NLL", "plain"),
    "brier": _card("brier", "Brier score", "plain"),
}
OOD: dict[str, Card] = {
    "auroc_near": _card("auroc_near", "AUROC, near", "share"),
    "auroc_far": _card("auroc_far", "AUROC, far", "share"),
    "fpr95_near": _card("fpr95_near", "FPR95, near", "share"),
    "fpr95_far": _card("fpr95_far", "FPR95, far", "share"),
}
COST: dict[str, Card] = {
    "parameters": Card("Parameters", "low", "count", "Of the fused ensemble, pruned heads cut out."),
    "macs": Card("Multiply-adds", "low", "count", "For one sample; layers that members share count once."),
}
ALL: dict[str, Card] = {**CALIBRATION, **OOD, **COST}


def values_of(report: Report | None, cost: Cost | None = None) -> dict[str, float]:
    """The cards' values, by name; what a report lacks (no OOD set) is left out."""
    found = {} if report is None else {name: getattr(report, name, None) for name in (*CALIBRATION, *OOD)}
    if cost is not None:
        found |= {name: getattr(cost, name) for name in COST}
    return {
        name: float(value) for name, value in found.items() if value is not None and value == value
    }  # NaN: not defined
