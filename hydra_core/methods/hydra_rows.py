"""Plans of the rows that prune: which heads the members of Taylor, Circ and random Hydras keep."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import HydraError, MaskError, UnknownNameError
from hydra_core.heads.generators import WAYS, make_members
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.heads.scores import score_heads
from hydra_core.heads.validation import Validation
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress

# plan -> generator and what it is told beside the setting
PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "circ": ("circ", {}),
    "circ_avg": ("circ", {"members": 1, "by": "objective", "objective": "avg"}),
    "circ_acc": ("circ", {"members": 1, "by": "objective", "objective": "acc"}),
    "circ_auroc": ("circ", {"members": 1, "by": "objective", "objective": "auroc"}),
    "taylor": ("taylor", {}),
    "taylor_single": ("taylor", {"members": 1, "share": 1.0}),
    "random": ("random", {}),
}


@dataclass(frozen=True)
class Setting:
    """How the pruned rows prune; chosen on validation data (`choose_setting`).

    Attributes:
        keep: heads kept in each pruned layer.
        layers: the pruned layers; the others stay full and are shared by all members.
        kind: how Circ members differ (fill-in): by "objective" (avg, acc and auroc), or by "bootstrap" of the
            validation set.
        objective: of bootstrap members, and of the first member where they differ by objective.
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
        if self.kind not in WAYS:
            raise HydraError("Circ members differ in one of two ways", expected=" or ".join(WAYS), got=self.kind)
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


def plan_of(
    name: str,
    view: ModelView,
    bundle: DataBundle,
    setting: Setting,
    seed: int = 0,
    *,
    validation: Validation | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Plan:
    """Which heads the members of a pruned row keep, by the generator of that row.

    Args:
        name: in PLANS, or "magnitude": one member that looks at no data.
        seed: of the validation samples that are looked at, and of everything drawn.
        validation: what is known already of these very samples.

    Raises:
        UnknownNameError: no such plan.
        MaskError, DataError: see the generators.
    """
    if name == "magnitude":
        return Plan((HeadMask.top(score_heads(view, bundle.val, name), setting.keep, setting.layers),))
    if name not in PLANS:
        raise UnknownNameError("plan", name, (*PLANS, "magnitude"))
    generator, own = PLANS[name]
    ids, oods = search_sets(bundle, setting, seed)
    asked = {"members": setting.members, "by": setting.kind, "objective": setting.objective} | own
    return make_members(
        view, ids, generator, ood=oods, keep=setting.keep, layers=setting.layers, seed=seed, bundle=bundle,
        validation=validation, progress=progress, cancel=cancel, **asked,
    )  # fmt: skip
