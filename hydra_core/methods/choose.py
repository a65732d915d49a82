"""Which layers to prune, how many heads to keep and how members differ: chosen on validation data only."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hydra_core.cost import cost_of
from hydra_core.data.sets import DataBundle
from hydra_core.errors import Cancelled
from hydra_core.fusion.evaluator import MaskEvaluator
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.heads.scores import labelled
from hydra_core.heads.validation import Validation
from hydra_core.methods.hydra_rows import KINDS, Setting, circ_plan, rest_of, search_sets
from hydra_core.metrics.calibration import ece
from hydra_core.metrics.classification import Predictions
from hydra_core.metrics.ood import auroc
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress


@dataclass(frozen=True)
class Choice:
    """The setting that was chosen and every one that was tried.

    Attributes:
        setting, plan: the chosen one and its members.
        single: validation figures of the unpruned model.
        tried: one row a setting: its fields, accuracy, auroc, ece, mac_ratio, mask texts.
        met: whether the chosen one meets all limits.
    """

    setting: Setting
    plan: Plan
    single: Mapping[str, float]
    tried: tuple[Mapping[str, Any], ...]
    met: bool

    def frame(self) -> pd.DataFrame:
        """One row a tried setting."""
        return pd.DataFrame(self.tried)

    def to_json(self) -> dict[str, Any]:
        """Plain values: setting, masks, and the validation figures of all that was tried."""
        return {
            "setting": self.setting.to_json(),
            "plan": self.plan.to_json(),
            "met": self.met,
            "single": dict(self.single),
            "tried": [dict(row) for row in self.tried],
        }


def grid(view: ModelView) -> list[Setting]:
    """The last one, two and three layers; a quarter, half and three quarters of the heads; both kinds of members."""
    layers, heads = len(view.shape), min(view.shape)
    tails = [tuple(range(layers - n, layers)) for n in (1, 2, 3) if n <= layers]
    keeps = sorted({max(1, heads * q // 4) for q in (1, 2, 3)})
    return [Setting(keep, tail, kind) for tail in tails for keep in keeps for kind in KINDS]


def choose_setting(
    view: ModelView,
    bundle: DataBundle,
    settings: Sequence[Setting] | None = None,
    *,
    most_macs: float = 1.5,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Choice:
    """The Hydra (Circ) with the highest AUROC whose ECE is no worse than the single model's.

    Searches see one part of the validation samples; settings are compared on the rest. AUROC is the mean
    over the OOD validation sets. Where no setting meets both limits, the ECE limit is dropped first.

    Args:
        settings: what to try; None: `grid`.
        most_macs: multiply-adds over those of the single model.

    Raises:
        DataError: see `heads.circuits.find_circuit`.
        Cancelled: `cancel` was set.
    """
    tries = list(settings or grid(view))
    judge = _Judge(view, bundle, tries[0], seed)
    single = judge([HeadMask.full(view.shape)])
    ids, oods = search_sets(bundle, tries[0], seed)
    known = Validation(view, ids, oods)
    rows, plans = [], []
    for i, setting in enumerate(tries):
        if cancel is not None and cancel.is_set():
            raise Cancelled("The choice")
        if progress is not None:
            progress(i / len(tries), f"Setting {i + 1} of {len(tries)}")
        plan = circ_plan(view, bundle, setting, seed, validation=known, cancel=cancel)
        macs = cost_of(view, plan).mac_ratio
        rows.append(setting.to_json() | judge(plan.masks) | {"mac_ratio": macs, "masks": [m.text for m in plan]})
        plans.append(plan)
    best, met = pick(rows, single["ece"], most_macs)
    return Choice(tries[best], plans[best], single, tuple(rows), met)


def pick(rows: Sequence[Mapping[str, Any]], most_ece: float, most_macs: float) -> tuple[int, bool]:
    """Index of the row of highest AUROC within the limits (ties: fewer multiply-adds), and whether there is one."""
    cheap = [i for i, row in enumerate(rows) if row["mac_ratio"] <= most_macs]
    good = [i for i in cheap if rows[i]["ece"] <= most_ece]
    pool = good or cheap or list(range(len(rows)))
    return max(pool, key=lambda i: (rows[i]["auroc"], -rows[i]["mac_ratio"])), bool(good)


class _Judge:
    """Validation figures of an ensemble of masks, on samples that no search has seen."""

    def __init__(self, view: ModelView, bundle: DataBundle, setting: Setting, seed: int) -> None:
        ids, oods = search_sets(bundle, setting, seed)
        val = rest_of(bundle.val, ids)
        sets = [val, *(rest_of(bundle.ood_val[name], part) for name, part in oods.items())]
        assert val.labels is not None
        self.labels, self.ends = labelled(val), np.cumsum([len(part) for part in sets])[:-1]
        self.evaluator = MaskEvaluator(view, view.inputs(*sets))

    def __call__(self, masks: Sequence[HeadMask]) -> dict[str, float]:
        p = Predictions.of(self.evaluator.many(masks))
        right = p.correct(np.pad(self.labels, (0, len(p) - len(self.labels))))[: len(self.labels)]
        doubt, *others = np.split(p.doubt, self.ends)
        return {
            "accuracy": float(right.mean()),
            "ece": ece(p.confidence[: len(right)], right),
            "auroc": float(np.mean([auroc(doubt, other) for other in others])),
        }
