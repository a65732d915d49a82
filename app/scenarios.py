"""Finished scenarios: real plans that open at one click, built alike every time from what is known of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from app import lab
from app.session import Settings
from hydra_core.heads.mask import HeadMask, Plan

SEED = 0


@dataclass(frozen=True)
class Scenario:
    """A setting worth looking at.

    Attributes:
        name: for code and keys.
        title, about: for its card; figures in `about` are measured.
        icon: a Material icon.
    """

    name: str
    title: str
    about: str
    icon: str
    settings: Settings


def scenarios(model: str, data: str, taylor: Any) -> list[Scenario]:
    """The scenarios that this model has; those that need figures nobody has measured yet are left out.

    Args:
        taylor: Taylor scores of the model on the data.
    """
    make: dict[str, Any] = {"model": model, "data": data, "shape": lab.shape(model)}
    known = lab.scores_at_hand(model, data).get("loo_nll")
    found = [*(_single_heads(known, **make) if known is not None else ()), _hydra(**make), _random(**make)]
    return [scenario for scenario in (*found, _over_pruned(taylor, **make)) if scenario is not None]


def _single_heads(scores: Any, *, model: str, data: str, shape: tuple[int, ...]) -> list[Scenario]:
    """The head that does most harm and the one that is missed most, by exact leave-one-out of the loss."""
    table = scores.frame().sort_values("score", kind="stable")
    worst, best = table.iloc[0], table.iloc[-1]
    out = []
    if worst["score"] < 0:
        sure = "" if worst["high"] < 0 else " (on these samples: the interval reaches over zero)"
        out.append(
            Scenario(
                "harmful",
                "Teaching: one harmful head",
                f"Head {_name(worst)} does more harm than good{sure}: without it the loss falls by "
                f"{-worst['score']:.4f} nats.",
                "sentiment_dissatisfied",
                Settings(model, data, _without(worst, shape)),
            )
        )
    missed = Scenario(
        "missed",
        "Teaching: one head that is missed",
        f"Head {_name(best)} is needed most: without it the loss rises by {best['score']:.4f} nats.",
        "priority_high",
        Settings(model, data, _without(best, shape)),
    )
    return [*out, missed]


def _name(row: Any) -> str:
    return f"{row['layer']:.0f}.{row['head']:.0f}"


def _without(row: Any, shape: tuple[int, ...]) -> Plan:
    return Plan((HeadMask.full(shape).prune(int(row["layer"]), int(row["head"])),))


def _hydra(*, model: str, data: str, shape: tuple[int, ...]) -> Scenario | None:
    plan = lab.stored_hydra(model, data)
    if plan is None:
        return None
    return Scenario(
        "hydra",
        "Hydra (Circ), chosen on validation",
        f"{len(plan)} members from circuit searches; {_pruned(plan)}; layers before {plan.shared_layers} are shared. "
        "Test data chose nothing.",
        "hub",
        Settings(model, data, plan),
    )


def _random(*, model: str, data: str, shape: tuple[int, ...]) -> Scenario:
    """As many heads as the Hydra keeps where there is one, drawn; else half of those in the last third of layers."""
    hydra = lab.stored_hydra(model, data)
    late = len(shape) - max(1, len(shape) // 3)
    half = tuple(heads if layer < late else max(1, heads // 2) for layer, heads in enumerate(shape))
    keeps = [mask.counts for mask in hydra] if hydra else [half] * 3
    rng = np.random.default_rng(SEED)
    plan = Plan(tuple(HeadMask.top([rng.random(heads) for heads in shape], keep) for keep in keeps))
    against = "as many as the Hydra keeps" if hydra else _pruned(plan)
    return Scenario(
        "random",
        "Random heads",
        f"{len(plan)} members whose heads are drawn, {against}: what any way of choosing has to beat.",
        "casino",
        Settings(model, data, plan),
    )


def _over_pruned(taylor: Any, *, model: str, data: str, shape: tuple[int, ...]) -> Scenario:
    plan = Plan((HeadMask.top(taylor, 1),))
    return Scenario(
        "over_pruned",
        "Over-pruned: what breaks",
        f"Only the best head of each layer stays (Taylor): {plan[0].kept} of {plan[0].total}. "
        "See which figure breaks first.",
        "broken_image",
        Settings(model, data, plan),
    )


def _pruned(plan: Plan) -> str:
    """'6 of 48 heads gone in each', or the range where members differ."""
    gone = sorted({mask.total - mask.kept for mask in plan})
    return f"{gone[0] if len(gone) == 1 else f'{gone[0]} to {gone[-1]}'} of {plan[0].total} heads gone in each"
