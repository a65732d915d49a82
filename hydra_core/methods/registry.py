"""The rows of the comparison by name, and how each is built (method.md, section 7)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from hydra_core.data.sets import DataBundle
from hydra_core.errors import HydraError, UnknownNameError
from hydra_core.fusion.ensemble import FusionOptions
from hydra_core.heads.mask import Plan
from hydra_core.heads.validation import Validation
from hydra_core.methods import ensembles
from hydra_core.methods.base import Method
from hydra_core.methods.dropout import mc_dropout
from hydra_core.methods.hydra_rows import Setting, plan_of, search_sets
from hydra_core.methods.temperature import SCALINGS
from hydra_core.models.view import ModelView
from hydra_core.training import rows as trained


@dataclass
class Context:
    """What a row may be built from. Plans are searched once and shared by the rows that need them.

    Attributes:
        view: the model of this repeat.
        bundle: its validation sets may be looked at, its test sets never.
        setting: of the pruned rows.
        seed: of everything drawn.
        replicas: models of other seeds, for deep ensembles.
    """

    view: ModelView
    bundle: DataBundle
    setting: Setting
    seed: int = 0
    replicas: Sequence[ModelView] = ()
    cancel: threading.Event | None = None
    _plans: dict[str, Plan] = field(default_factory=dict)

    def plan(self, name: str) -> Plan:
        """The masks of a kind of pruned row; see `hydra_rows.plan_of`."""
        if name not in self._plans:
            known = self._validation if name.startswith("circ") else None
            self._plans[name] = plan_of(
                name, self.view, self.bundle, self.setting, self.seed, validation=known, cancel=self.cancel
            )
        return self._plans[name]

    @cached_property
    def _validation(self) -> Validation:
        """What circuit searches have found out; they share it."""
        return Validation(self.view, *search_sets(self.bundle, self.setting, self.seed))


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        label, about: for tables and help texts.
        build: Context -> Method.
        varies: over what "mean +- std" is: "model" (the base model's seed), "draw" (that, or where there is one
            model only, what the row itself draws), or "once" (there is one of it).
        command: rebuilds the weights of a trained row; "" for rows without any.
    """

    name: str
    label: str
    about: str
    build: Callable[[Context], Method]
    varies: Literal["model", "draw", "once"] = "model"
    command: str = ""


ROWS: dict[str, Row] = {}


def register_row(row: Row) -> Row:
    """Add a row."""
    ROWS[row.name] = row
    return row


def parse_row(text: str) -> tuple[Row, str]:
    """A row's name, or SCALING(NAME), as (row, scaling or "").

    Raises:
        UnknownNameError: no such row or scaling.

    Examples:
        >>> row, scaling = parse_row("temperature(single)")
        >>> row.name, scaling
        ('single', 'temperature')
    """
    scaling, _, inner = text[:-1].partition("(") if text.endswith(")") else ("", "", text)
    if scaling and scaling not in SCALINGS:
        raise UnknownNameError("scaling", scaling, SCALINGS)
    if inner not in ROWS:
        raise UnknownNameError("row", inner, ROWS)
    return ROWS[inner], scaling


def _deep(context: Context) -> Method:
    if len(context.replicas) < 2:
        raise HydraError(
            "A deep ensemble needs models of several seeds", expected="two or more", got=len(context.replicas)
        )
    return ensembles.deep_ensemble(context.replicas)


def _pruned(plan: str) -> Callable[[Context], Method]:
    return lambda c: ensembles.pruned(c.view, c.plan(plan)[0])


def _trained(name: str) -> Callable[[Context], Method]:
    return lambda c: trained.load_row(name, c.view)


def _tuned(options: FusionOptions | None) -> Callable[[Context], Method]:
    """The fine-tuned members, fused as `options` say; None: one after another."""

    def build(c: Context) -> Method:
        plan, models = trained.load_members("hydra_circ_tuned", c.view)
        if options is None:
            return ensembles.unfused(c.view, plan, models)
        return ensembles.hydra(c.view, plan, models, options)

    return build


for _row in (
    Row("single", "Single", "The model as it is.", lambda c: ensembles.single(c.view)),
    Row("deep_ensemble", "Deep Ensembles", "Models trained apart from other seeds.", _deep, "once"),
    Row(
        "mc_dropout",
        "MC Dropout",
        "Eight passes with a tenth of the activations dropped; the model was trained without dropout.",
        lambda c: mc_dropout(c.view, seed=c.seed),
        "draw",
    ),
    Row(
        "batch_ensemble",
        "BatchEnsemble",
        "Shared weights, rank-one factors a member; fine-tuned from Single.",
        _trained("batch_ensemble"),
        "once",
        trained.command("batch_ensemble"),
    ),
    Row(
        "packed",
        "Packed-Ensembles",
        "Narrow members in one grouped network; trained from scratch.",
        _trained("packed"),
        "once",
        trained.command("packed"),
    ),
    Row(
        "lora_ensemble",
        "LoRA-Ensemble",
        "Rank-8 changes to q, k and v and a classifier a member; the rest is Single's.",
        _trained("lora_ensemble"),
        "once",
        trained.command("lora_ensemble"),
    ),
    Row("taylor", "Taylor", "One model pruned by Taylor.", _pruned("taylor_single"), "draw"),
    Row("magnitude", "Magnitude", "One model that keeps the heads of the largest weights.", _pruned("magnitude")),
    Row(
        "circ_avg",
        "CircAvg",
        "One model pruned by circuit search on (accuracy + AUROC) / 2.",
        _pruned("circ_avg"),
    ),
    Row("circ_acc", "Circ-acc", "One model pruned by circuit search on accuracy.", _pruned("circ_acc")),
    Row("circ_auroc", "Circ-auroc", "One model pruned by circuit search on AUROC.", _pruned("circ_auroc")),
    Row(
        "hydra_taylor",
        "Hydra (Taylor)",
        "Members pruned by Taylor on different samples, fused.",
        lambda c: ensembles.hydra(c.view, c.plan("taylor")),
        "draw",
    ),
    Row(
        "hydra_circ",
        "Hydra (Circ)",
        "Members pruned by circuit search, fused.",
        lambda c: ensembles.hydra(c.view, c.plan("circ")),
    ),
    Row(
        "hydra_circ_unfused",
        "Hydra (Circ), unfused",
        "The same members one after another.",
        lambda c: ensembles.unfused(c.view, c.plan("circ")),
    ),
    Row(
        "hydra_circ_tuned",
        "Hydra (Circ), fine-tuned",
        "Members fine-tuned apart, then fused: their MLPs are averaged.",
        _tuned(FusionOptions()),
        "once",
        trained.command("hydra_circ_tuned"),
    ),
    Row(
        "hydra_circ_tuned_averaged",
        "Hydra (Circ), fine-tuned, norms averaged",
        "As before, with norms and classifier averaged over the members too.",
        _tuned(FusionOptions(norms="average")),
        "once",
        trained.command("hydra_circ_tuned"),
    ),
    Row(
        "hydra_circ_tuned_unfused",
        "Hydra (Circ), fine-tuned, unfused",
        "The fine-tuned members one after another.",
        _tuned(None),
        "once",
        trained.command("hydra_circ_tuned"),
    ),
    Row(
        "hydra_random",
        "Hydra (random heads)",
        "Members whose heads are drawn: what pruning by any score must beat.",
        lambda c: ensembles.hydra(c.view, c.plan("random")),
        "draw",
    ),
):
    register_row(_row)

SCALED = tuple(f"{scaling}({name})" for scaling in SCALINGS for name in ("single", "deep_ensemble", "hydra_circ"))
DEFAULT_ROWS = (*ROWS, *SCALED)

# after DEFAULT_ROWS: these fit zero-shot models only
from hydra_core.methods import zero_shot_rows  # noqa: E402, F401
