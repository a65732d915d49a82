"""Which figures pages show, how they read, and where a report or a cost keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.widgets import Card

if TYPE_CHECKING:
    from hydra_core.cost import Cost
    from hydra_core.metrics import Report

CALIBRATION: dict[str, Card] = {
    "accuracy": Card("Accuracy", "high", "share", "Share of samples whose most probable class is the right one."),
    "ece": Card(
        "ECE", "low", "plain",
        "Expected calibration error: mean gap between confidence and accuracy over bins of equal width, "
        "each weighted by its samples. 0 is perfect.",
    ),
    "aece": Card("Adaptive ECE", "low", "plain", "As ECE, with bins that hold equally many samples."),
    "nll": Card("NLL", "low", "plain", "Negative log-likelihood of the right class, in nats. Punishes sure mistakes."),
    "brier": Card(
        "Brier score", "low", "plain",
        "Squared distance between the probabilities and the right answer, summed over classes.",
    ),
}  # fmt: skip
OOD: dict[str, Card] = {
    "auroc_near": Card(
        "AUROC, near", "high", "share",
        "Chance that a near-OOD sample (an unknown class of the same kind) looks more unfamiliar than a known one. "
        "50 % is guessing.",
    ),
    "auroc_far": Card(
        "AUROC, far", "high", "share",
        "Chance that a far-OOD sample (another source altogether) looks more unfamiliar than a known one. "
        "50 % is guessing.",
    ),
    "fpr95_near": Card(
        "FPR95, near", "low", "share", "Share of known samples flagged as unfamiliar when 95 % of near-OOD ones are."
    ),
    "fpr95_far": Card(
        "FPR95, far", "low", "share", "Share of known samples flagged as unfamiliar when 95 % of far-OOD ones are."
    ),
}  # fmt: skip
COST: dict[str, Card] = {
    "parameters": Card("Parameters", "low", "count", "Of the fused ensemble, pruned heads cut out."),
    "macs": Card("Multiply-adds", "low", "count", "For one sample; layers that members share count once."),
}  # fmt: skip
# two rows of six on a wide screen: calibration and OOD detection, each closed by a cost
ALL: dict[str, Card] = {**CALIBRATION, "parameters": COST["parameters"], **OOD, "macs": COST["macs"]}


def values_of(report: Report | None, cost: Cost | None = None) -> dict[str, float]:
    """The cards' values, by name; what a report lacks (no OOD set) is left out."""
    found = {} if report is None else {name: getattr(report, name, None) for name in (*CALIBRATION, *OOD)}
    if cost is not None:
        found |= {name: getattr(cost, name) for name in COST}
    return {
        name: float(value) for name, value in found.items() if value is not None and value == value
    }  # NaN: not defined
