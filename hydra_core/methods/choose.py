"""Which layers to prune, how many heads to keep and how members differ: chosen on validation data only."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from hydra_core.cost import cost_of
from hydra_core.data.sets import DataBundle
from hydra_core.errors import Cancelled
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.heads.validation import StackedSets, Validation
from hydra_core.methods.hydra_rows import Setting, plan_of, rest_of, search_sets
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress

JUDGED = ("accuracy", "ece", "auroc", "mac_ratio")
WAYS = (("objective", "avg"), ("bootstrap", "avg"), ("bootstrap", "auroc"), ("bootstrap", "avg_ece"))
MEMBERS = {1: (3, 5), 2: (2, 3), 3: (2, 3)}  # by the number of pruned layers: what can stay cheap


@dataclass(frozen=True)
class Choice:
    """The setting that was chosen and every one that was tried.

    Attributes:
        setting, plan: the chosen one and its members in the first model.
        single: validation figures of the unpruned model, mean over the models.
        deep: those of the models as a deep ensemble; empty where there is one model only.
        tried: one row a setting: its fields, accuracy, auroc, ece, mac_ratio, mask texts (of the first model), and
            `models`: over how many models the figures are a mean.
        met: whether the chosen one meets all limits.
    """

    setting: Setting
    plan: Plan
    single: Mapping[str, float]
    tried: tuple[Mapping[str, Any], ...]
    met: bool
    deep: Mapping[str, float] = field(default_factory=dict)

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
            "deep": dict(self.deep),
            "tried": [dict(row) for row in self.tried],
        }


def grid(view: ModelView) -> list[Setting]:
    """The last one, two and three layers; a quarter, half and three quarters of the heads; four kinds of members."""
    layers, heads = len(view.shape), min(view.shape)
    tails = {n: tuple(range(layers - n, layers)) for n in MEMBERS if n <= layers}
    keeps = sorted({max(1, heads * q // 4) for q in (1, 2, 3)})
    return [
        Setting(keep, tail, kind, objective, members)
        for n, tail in tails.items()
        for keep in keeps
        for kind, objective in WAYS
        for members in MEMBERS[n]
    ]


def choose_setting(
    view: ModelView,
    bundle: DataBundle,
    settings: Sequence[Setting] | None = None,
    *,
    replicas: Sequence[ModelView] = (),
    shortlist: int = 6,
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
        replicas: models of other seeds. The best settings of the first model are tried on them too, and the mean
            over all models decides: so one model's luck chooses less.
        shortlist: how many of the best that are.
        most_macs: multiply-adds over those of the single model.

    Raises:
        DataError: see `heads.circuits.find_circuit`.
        Cancelled: `cancel` was set.
    """
    tries = list(settings or grid(view))
    judges = [_Judge(model, bundle, tries[0], seed, cancel) for model in (view, *replicas)]
    first, *others = judges
    steps = len(tries) + min(shortlist, len(tries)) * len(others)
    rows = []
    for i, setting in enumerate(tries):
        _tell(progress, cancel, i / steps, f"Setting {i + 1} of {len(tries)}")
        masks = [mask.text for mask in first.plan(setting)]
        rows.append(setting.to_json() | first.setting(setting) | {"masks": masks, "models": 1})
    order, met = ranked(rows, first.single["ece"], most_macs)
    if others:
        order = order[:shortlist]
        for i, place in enumerate(order):
            _tell(progress, cancel, (len(tries) + i * len(others)) / steps, f"Finalist {i + 1} of {len(order)}")
            rows[place] |= mean_of([rows[place], *(judge.setting(tries[place]) for judge in others)])
            rows[place]["models"] = len(judges)
        finals, met = ranked([rows[i] for i in order], mean_of([j.single for j in judges])["ece"], most_macs)
        order = [order[i] for i in finals]
    deep = first.figures(np.stack([judge.logits for judge in judges])) if others else {}
    best = tries[order[0]]
    return Choice(best, first.plan(best), mean_of([j.single for j in judges]), tuple(rows), met, deep)


def ranked(rows: Sequence[Mapping[str, Any]], most_ece: float, most_macs: float) -> tuple[list[int], bool]:
    """Indices of the rows from the best on, and whether the best is within all limits.

    Rows within the limits come first, then those that are cheap enough, then the rest; by AUROC among them (ties:
    fewer multiply-adds).
    """

    def standing(i: int) -> tuple[int, float, float]:
        cheap = rows[i]["mac_ratio"] <= most_macs
        return cheap + (cheap and rows[i]["ece"] <= most_ece), rows[i]["auroc"], -rows[i]["mac_ratio"]

    order = sorted(range(len(rows)), key=standing, reverse=True)
    return order, standing(order[0])[0] == 2


def mean_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean of each judged figure."""
    return {name: float(np.mean([row[name] for row in rows])) for name in JUDGED if name in rows[0]}


def _tell(progress: Progress | None, cancel: threading.Event | None, share: float, text: str) -> None:
    if cancel is not None and cancel.is_set():
        raise Cancelled("The choice")
    if progress is not None:
        progress(share, text)


class _Judge:
    """One model: searches on one part of the validation samples, figures on the part that no search has seen.

    Attributes:
        logits: of the unpruned model on that part, (N, C).
        single: its figures.
    """

    def __init__(
        self, view: ModelView, bundle: DataBundle, setting: Setting, seed: int, cancel: threading.Event | None
    ) -> None:
        self.view, self.bundle, self.seed, self.cancel = view, bundle, seed, cancel
        ids, oods = search_sets(bundle, setting, seed)
        self.known = Validation(view, ids, oods)
        unseen = {name: rest_of(bundle.ood_val[name], part) for name, part in oods.items()}
        self.sets = StackedSets(view, rest_of(bundle.val, ids), unseen)
        self._rows: dict[HeadMask, np.ndarray] = {}
        (self.logits,) = self._logits([HeadMask.full(view.shape)])
        self.single = self.figures(self.logits)

    def plan(self, setting: Setting) -> Plan:
        """The members of a setting; whatever a search has run before is not run again."""
        return plan_of("circ", self.view, self.bundle, setting, self.seed, validation=self.known, cancel=self.cancel)

    def setting(self, setting: Setting) -> dict[str, float]:
        """Figures and multiply-adds of a setting."""
        plan = self.plan(setting)
        return self.figures(self._logits(plan.masks)) | {"mac_ratio": cost_of(self.view, plan).mac_ratio}

    def figures(self, logits: np.ndarray) -> dict[str, float]:
        """Accuracy, ECE and AUROC of logits (N, C) or (M, N, C)."""
        e = self.sets.read(logits)
        return {"accuracy": self.sets.accuracy(e), "ece": self.sets.ece(e), "auroc": self.sets.auroc(e)}

    def _logits(self, masks: Sequence[HeadMask]) -> np.ndarray:
        """(M, N, C); a mask that two settings share is run once."""
        new = [mask for mask in dict.fromkeys(masks) if mask not in self._rows]
        if new:
            self._rows |= dict(zip(new, self.sets.evaluator.many(new, cancel=self.cancel), strict=True))
        return np.stack([self._rows[mask] for mask in masks])
