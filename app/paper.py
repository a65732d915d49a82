"""The paper's figures and numbers beside our own measurements on the demo (arXiv 2510.18358)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from app import lab, tour

CITE = "[arXiv 2510.18358](https://arxiv.org/abs/2510.18358)"


@dataclass(frozen=True)
class Claim:
    """OOD figures of the paper, in percent: Hydra (Circ) and what it is put beside there."""

    data: str
    hydra: tuple[float, float]  # AUROC, FPR95
    rival: str
    other: tuple[float, float]


# as printed in the paper; never our own result
CLAIMS = (
    Claim("ImageNet-1K", (86.29, 47.62), "Deep Ensembles", (85.48, 46.93)),
    Claim("CIFAR-100", (89.43, 36.44), "Deep Ensembles", (86.08, 38.67)),
    Claim("SST-2", (77.60, 55.06), "Deep Ensembles", (74.81, 62.69)),
    Claim("CLIP, zero-shot", (76.82, 68.05), "ViLU", (75.38, 71.59)),
)


def claims_table(table: Any | None) -> pd.DataFrame:
    """The paper's OOD figures, and below them ours; all in percent.

    Args:
        table: our comparison, where it is of these weights and data.
    """
    lines = [_line(f"{c.data} (paper)", c.hydra, c.rival, c.other) for c in CLAIMS]
    if table is not None:
        circ, deep = (table[name].values for name in ("hydra_circ", "deep_ensemble"))
        ours = [(100 * values["auroc"], 100 * values["fpr95"]) for values in (circ, deep)]
        lines.append(_line("Demo (measured here)", ours[0], "Deep Ensembles", ours[1]))
    return pd.DataFrame(lines)


def _line(data: str, hydra: tuple[float, float], rival: str, other: tuple[float, float]) -> dict[str, Any]:
    ours = {"Hydra AUROC": hydra[0], "Hydra FPR95": hydra[1]}
    theirs = {"Beside": rival, "Its AUROC": other[0], "Its FPR95": other[1]}
    gained = {"AUROC gained": hydra[0] - other[0], "FPR95 gained": other[1] - hydra[1]}
    return {"Data": data, **ours, **theirs, **gained}


@dataclass(frozen=True)
class Figure:
    """One of the paper's figures.

    Attributes:
        title: what it shows.
        says: how to read it.
        ours: our own measurement, in a sentence.
        page, controls: where to see it live.
        step: the tour's step on it, if there is one.
    """

    title: str
    says: str
    ours: str
    page: str
    step: str = ""


def figures() -> list[Figure]:
    """The paper's figures with our own measurements; only what is measured already is read, nothing is run."""
    table = lab.stored_comparison(tour.model(), tour.data())
    plan = tour.hydra()
    costs = lab.costs(tour.model(), plan)
    return [
        Figure(
            "How members are pruned and fused",
            "One model is copied; each copy loses other heads; the copies become one network.",
            f"Here {len(plan)} copies share {plan.shared_layers} layers and keep "
            f"{', '.join(str(mask.kept) for mask in plan)} of {plan[0].total} heads.",
            "what_if", "differ",
        ),
        Figure(
            "Fused attention",
            "Grouped products hold every member's own weights; one attention call serves all members' heads.",
            "Fused and member by member give the same logits; What if shows the largest difference.",
            "what_if", "fuse",
        ),
        Figure(
            "Cost of one model, deep ensembles and Hydra",
            "The paper reports 1.07 times the latency of one model (ViT-B/16, BF16, three members). That is time on "
            "a device that is not full; multiply-adds rise more.",
            f"Here: {costs[lab.HYDRA].mac_ratio:.2f} times the multiply-adds fused, "
            f"{costs[lab.HYDRA_TRUNK].mac_ratio:.2f} times with the shared trunk, {costs[lab.DEEP].mac_ratio:.0f} "
            "times for deep ensembles.",
            "cost", "fuse",
        ),
        Figure(
            "Known and unknown samples in the six most and the six least important heads",
            "Each panel is one head's output in two dimensions.", separability_sentence(), "projections", "see",
        ),
        Figure(
            "Pruned heads against every figure",
            "How far can one go, and does it matter how heads are chosen?",
            sweep_sentence(lab.stored_sweep(tour.model(), tour.data())),
            "sweep", "prune",
        ),
        Figure(
            "Noise against the loss gap (Proposition 1)",
            "Under three premises a pruned model loses more to noise than the whole one.",
            noise_sentence(lab.stored_noise(tour.model(), tour.data())),
            "noise",
        ),
        Figure(
            "Reliability diagrams", "Accuracy over confidence for every method.", reliability_sentence(table),
            "compare", "sure",
        ),
        Figure(
            "Overlap of the kept heads",
            "Members that keep the same heads give the same answers: Jaccard overlap 1.",
            f"Here the mean overlap of two members, in the layers that differ, is {tour.overlap(plan):.2f}.",
            "what_if", "differ",
        ),
    ]  # fmt: skip


def separability_sentence() -> str:
    """Mean separability of the six heads that matter most and least by Taylor, where both have been scored."""
    known = lab.scores_at_hand(tour.model(), tour.data())
    if not {"taylor", "separability"} <= known.keys():
        return "Score the heads by ID/OOD separability to see it here."
    order = np.argsort(-known["taylor"].flat, kind="stable")
    most, least = (known["separability"].flat[part].mean() for part in (order[:6], order[-6:]))
    where = f"{most:.2f} in the six most important heads, {least:.2f} in the six least"
    return (
        f"Here a straight line of its own for each OOD set separates with a mean AUROC of {where}. One line for all "
        "sets together, as on Projections, has less to give."
    )


def reliability_sentence(table: Any | None) -> str:
    """ECE of the main rows of our comparison."""
    if table is None:
        return "Measure the rows on Compare to see them here."
    rows = [table[name] for name in ("single", "deep_ensemble", "hydra_circ") if table[name].measured]
    return "Here: " + ", ".join(f"{row.label} {row.values['ece']:.3f}" for row in rows) + " (ECE, test split)."


def sweep_sentence(sweep: Any | None) -> str:
    """CircAvg against Taylor with half of the heads kept in the longest stretch of layers of the stored sweep."""
    if sweep is None:
        return "Sweep measures it on your model."
    table = sweep.summary("auroc")
    single = table[table["method"] == "single"].iloc[0]
    layers = max(table["layers"], key=len)
    at = table[(table["layers"] == layers) & (table["keep"] == single["keep"] // 2)].set_index("method")["mean"]
    return (
        f"Here, with {single['keep'] // 2} of {single['keep']} heads kept in layers {layers[0]} to {layers[-1]} "
        f"(validation data): AUROC {at['circ_avg']:.3f} by CircAvg and {at['taylor']:.3f} by Taylor; all heads have "
        f"{single['mean']:.3f}."
    )


def noise_sentence(study: Any | None) -> str:
    """In how many of the stored cases pruning widens the gap, narrows it, or cannot be told."""
    if study is None:
        return "Noise measures the gap and the sign of each premise."
    grows = [row.grows for row in study.rows]
    yes, no = (sum(answer is told for answer in grows) for told in (True, False))
    return (
        f"Here, of {len(grows)} cases (kind and strength of noise, heads kept), the gap clearly widens in {yes}, "
        f"clearly narrows in {no}, and cannot be told in {len(grows) - yes - no} (95 % intervals over images)."
    )
