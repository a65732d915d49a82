"""Plans of the rows that prune: which heads the members of Taylor, Circ and random Hydras keep."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import HydraError, MaskError
from hydra_core.heads.generators import ROUND, search_members
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.heads.scores import score_heads
from hydra_core.heads.validation import Validation
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress

KINDS = ("objective", "bootstrap")


@dataclass(frozen=True)
class Setting:
    """How the pruned rows prune; chosen on validation data (`choose_setting`).

    Attributes:
        keep: heads kept in each pruned layer.
        layers: the pruned layers; the others stay full and are shared by all members.
        kind: how Circ members differ (fill-in): by "objective" (avg, acc, auroc), or by "bootstrap" of the validation
            set.
        objective: of single circuits and of bootstrap members.
        members: how many.
        id_samples, ood_samples: validation samples that a search looks at: ID, and a set of OOD.
    """

    keep: int
    layers: tuple[int, ...]
    kind: str = "objective"
    objective: str = "avg"
    members: int = 3
    id_samples: int = 500
    ood_samples: int = 125

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(sorted(int(layer) for layer in self.layers)))
        if self.kind not in KINDS:
            raise HydraError("Circ members differ in one of two ways", expected=" or ".join(KINDS), got=self.kind)
        if self.members < 1:
            raise MaskError("An ensemble needs a member", expected="1 or more", got=self.members)

    @classmethod
    def half(cls, view: ModelView) -> Setting:
        """Half of the heads of the last third of the layers: a start where nothing has been chosen yet."""
        layers = len(view.shape)
        return cls(max(1, min(view.shape) // 2), tuple(range(layers - max(1, layers // 3), layers)))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"layers": list(self.layers)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Setting:
        """What `to_json` wrote."""
        return cls(**dict(data) | {"layers": tuple(data["layers"])})


def search_sets(bundle: DataBundle, setting: Setting, seed: int = 0) -> tuple[SampleSet, dict[str, SampleSet]]:
    """The validation samples that a search looks at; the rest stays for choosing between settings."""
    oods = {name: part.sample(setting.ood_samples, seed) for name, part in bundle.ood_val.items()}
    return bundle.val.sample(setting.id_samples, seed), oods


def rest_of(whole: SampleSet, seen: SampleSet) -> SampleSet:
    """The samples of `whole` that are not in `seen`."""
    used = set(seen.ids)
    return whole.take([i for i, name in enumerate(whole.ids) if name not in used])


def taylor_mask(view: ModelView, bundle: DataBundle, setting: Setting, seed: int = 0) -> HeadMask:
    """The best heads by Taylor on one calibration subset of the validation set."""
    samples = bundle.val.sample(setting.id_samples, seed)
    return HeadMask.top(score_heads(view, samples, "taylor"), setting.keep, setting.layers)


def taylor_plan(view: ModelView, bundle: DataBundle, setting: Setting, seed: int = 0) -> Plan:
    """Members by calibration subset: disjoint parts of the subset that one Taylor mask would use.

    Fill-in: the paper gives no rule. Small parts make the rankings differ at all.
    """
    samples = bundle.val.sample(setting.id_samples, seed)
    order = np.random.default_rng(seed).permutation(len(samples))
    parts = [samples.take(np.sort(index)) for index in np.array_split(order, setting.members)]
    scores = [score_heads(view, part, "taylor") for part in parts]
    return Plan(tuple(HeadMask.top(s, setting.keep, setting.layers) for s in scores))


def random_plan(view: ModelView, setting: Setting, seed: int = 0) -> Plan:
    """Members whose heads are drawn."""
    seeds = np.random.default_rng(seed).integers(0, 2**31, setting.members)
    return Plan(tuple(HeadMask.random(view.shape, setting.keep, int(s), setting.layers) for s in seeds))


def circ_mask(
    view: ModelView,
    bundle: DataBundle,
    setting: Setting,
    seed: int = 0,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> HeadMask:
    """One circuit by the setting's objective."""
    one = replace(setting, members=1, kind="objective", objective=setting.objective)
    return circ_plan(view, bundle, one, seed, progress=progress, cancel=cancel)[0]


def circ_plan(
    view: ModelView,
    bundle: DataBundle,
    setting: Setting,
    seed: int = 0,
    *,
    validation: Validation | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Plan:
    """Members by circuit search; all searches share what the first one computed.

    Args:
        validation: what is known already of these very samples.
    """
    ids, oods = search_sets(bundle, setting, seed)
    searches = [(what, None if draw is None else seed * 1_009 + draw) for what, draw in _searches(setting)]
    masks = search_members(
        view, ids, oods, setting.keep, searches, validation or Validation(view, ids, oods),
        layers=setting.layers, bundle=bundle, progress=progress, cancel=cancel,
    )  # fmt: skip
    return Plan(tuple(masks))


def _searches(setting: Setting) -> Sequence[tuple[str, int | None]]:
    """(objective, bootstrap draw or None) of each member."""
    if setting.members == 1:
        return [(setting.objective, None)]
    if setting.kind == "bootstrap":
        return [(setting.objective, draw) for draw in range(setting.members)]
    # more members than objectives: go round again, on resamples
    return [(ROUND[m % 3], m // 3 or None) for m in range(setting.members)]
