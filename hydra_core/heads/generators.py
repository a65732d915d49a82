"""Members of an ensemble: several masks that should err differently, from one registry of generators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import DataError, MaskError, UnknownNameError
from hydra_core.heads.circuits import find_circuit
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.heads.overlap import low_overlap_scores
from hydra_core.heads.scores import gate_gradients, to_rows
from hydra_core.heads.validation import Validation, check_validation
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress, step_of

Ood = Mapping[str, SampleSet] | None
ROUND = ("avg", "acc", "auroc")  # objectives of Circ members; the first alone is CircAvg
WAYS = ("objective", "bootstrap")  # how Circ members differ


@dataclass(frozen=True)
class Generator:
    """A way to choose members.

    Attributes:
        name, label, about: for code, for a picker, and one plain sentence for a help text.
        run: (view, samples, *, ood, members, keep, layers, seed, ...) -> Plan.
        needs_ood: whether it needs OOD validation samples.
    """

    name: str
    label: str
    about: str
    run: Callable[..., Plan]
    needs_ood: bool = False


GENERATORS: dict[str, Generator] = {}


def generator(name: str, label: str, about: str, *, needs_ood: bool = False) -> Callable:
    """Registers a function as a generator."""

    def register(run: Callable[..., Plan]) -> Callable[..., Plan]:
        GENERATORS[name] = Generator(name, label, about, run, needs_ood)
        return run

    return register


def make_members(view: ModelView, samples: SampleSet, generator: str = "taylor", **options: Any) -> Plan:
    """The plan of a named generator; `options` as its function takes them.

    Raises:
        UnknownNameError: no such generator.
        MaskError, DataError: see the generators.
    """
    if generator not in GENERATORS:
        raise UnknownNameError("member generator", generator, GENERATORS)
    return GENERATORS[generator].run(view, samples, **options)


@generator(
    "taylor", "Taylor, by subset", "The best heads by Taylor, each member scored on its own part of the samples."
)
def taylor_members(
    view: ModelView,
    samples: SampleSet,
    *,
    members: int = 3,
    keep: int | Sequence[int],
    layers: Iterable[int] | None = None,
    seed: int = 0,
    share: float = 0.5,
    overlap_weight: float = 0.0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    **unused: Any,
) -> Plan:
    """Taylor on a calibration subset a member: `share` of the samples, stratified by class, by seed + member.

    One backward pass over all samples serves every member. The masks of two members can be equal where
    the criterion is sure; `overlap_weight` (see `low_overlap_scores`) makes them differ.

    Args:
        keep: heads kept a pruned layer: one number, or one a layer.
        layers: prune only these, so that members share the trunk before them.

    Raises:
        MaskError: `keep` or `layers` do not fit, or fewer than one member.
        DataError: no labels, or `share` leaves no sample.
    """
    _check_members(members)
    count = round(share * len(samples))
    if not 0 < share <= 1 or not count:
        raise DataError("A member's share of the samples is out of range", expected="above 0, at most 1", got=share)
    chosen = _layers(view, keep, layers)
    table = np.abs(gate_gradients(view, samples, progress=progress, cancel=cancel))  # (N, heads)
    row_of = {name: i for i, name in enumerate(samples.ids)}
    masks: list[HeadMask] = []
    for m in range(members):
        part = [row_of[name] for name in samples.sample(count, seed + m).ids]
        rows = to_rows(table[part].mean(0), view.shape)
        masks.append(_top(rows, keep, chosen, masks, overlap_weight))
    return Plan(tuple(masks), tuple(f"Taylor {seed + m}" for m in range(members)))


@generator(
    "taylor_ratio", "Taylor, by ratio", "The best heads by Taylor on all samples, each member keeping another number."
)
def ratio_members(
    view: ModelView,
    samples: SampleSet,
    *,
    members: int = 3,
    keep: int | Sequence[int],
    layers: Iterable[int] | None = None,
    step: int = 1,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    **unused: Any,
) -> Plan:
    """Members keep keep + step * (0, 1, -1, 2, -2, ...) heads a pruned layer (fill-in).

    Raises:
        MaskError: a member would keep none or more heads than there are; the text names the number.
    """
    _check_members(members)
    counts = list(np.broadcast_to(keep, len(view.shape)))
    steps = [step * (-(m // 2) if m % 2 == 0 else (m + 1) // 2) for m in range(members)]
    keeps = [[int(k) + s for k in counts] for s in steps]
    chosen = _layers(view, keep, layers)
    for mine in keeps:
        _layers(view, mine, chosen, least=1)
    rows = to_rows(np.abs(gate_gradients(view, samples, progress=progress, cancel=cancel)).mean(0), view.shape)
    names = tuple(f"Taylor keep {s:+d}" if s else "Taylor" for s in steps)
    return Plan(tuple(_top(rows, mine, chosen, [], 0.0) for mine in keeps), names)


@generator("random", "Random", "Heads drawn anew for each member: the baseline for every generator.")
def random_members(
    view: ModelView,
    samples: SampleSet | None = None,
    *,
    members: int = 3,
    keep: int | Sequence[int],
    layers: Iterable[int] | None = None,
    seed: int = 0,
    overlap_weight: float = 0.0,
    **unused: Any,
) -> Plan:
    """Uniform draws, one seed sequence (seed, member) a member."""
    _check_members(members)
    chosen = _layers(view, keep, layers)
    masks: list[HeadMask] = []
    for m in range(members):
        drawn = np.random.default_rng([seed, m]).random(sum(view.shape))
        masks.append(_top(to_rows(drawn, view.shape), keep, chosen, masks, overlap_weight))
    return Plan(tuple(masks), tuple(f"Random {m + 1}" for m in range(members)))


@generator(
    "circ",
    "Circ",
    "Circuits found on ID and OOD validation samples: one an objective, or one a bootstrap sample.",
    needs_ood=True,
)
def circ_members(
    view: ModelView,
    samples: SampleSet,
    *,
    ood: Ood = None,
    members: int = 3,
    keep: int | Sequence[int],
    layers: Iterable[int] | None = None,
    seed: int = 0,
    by: str = "objective",
    objective: str = "avg",
    conditioning: str = "greedy_prune",
    overlap_weight: float = 0.0,
    bundle: DataBundle | None = None,
    validation: Validation | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    **unused: Any,
) -> Plan:
    """Circuits that differ by objective (`objective` first, then the others of avg, acc, auroc, then again on
    resamples) or by bootstrap sample.

    How the paper's Circ members differ is not known (fill-in). All searches share what they compute: a mask
    that two of them try is run once.

    Args:
        by: "objective" or "bootstrap"; the latter maximises `objective` on a resample by seed + member.
        validation: what is known already of these very samples; shared with other plans.

    Raises:
        UnknownNameError, MaskError, DataError: see `find_circuit`.
    """
    _check_members(members)
    if by not in WAYS:
        raise UnknownNameError("way in which Circ members differ", by, WAYS)
    chosen = _layers(view, keep, layers)
    check_validation(samples, ood, bundle=bundle)
    # more members than objectives: go round again, on resamples
    order = (objective, *(other for other in ROUND if other != objective))
    rounds = [(order[m % len(order)], seed + m if m >= len(order) else None) for m in range(members)]
    searches = rounds if by == "objective" else [(objective, seed + m) for m in range(members)]
    masks = search_members(
        view, samples, ood, keep, searches, validation or Validation(view, samples, ood), layers=chosen,
        conditioning=conditioning, overlap_weight=overlap_weight, progress=progress, cancel=cancel,
    )  # fmt: skip
    names = [f"Circ {mine}" if draw is None else f"Circ {mine} {draw}" for mine, draw in searches]
    return Plan(tuple(masks), tuple(names))


def search_members(
    view: ModelView,
    samples: SampleSet,
    ood: Ood,
    keep: int | Sequence[int],
    searches: Sequence[tuple[str, int | None]],
    shared: Validation,
    *,
    overlap_weight: float = 0.0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    **options: Any,
) -> list[HeadMask]:
    """One circuit a search; all share what they compute.

    Args:
        searches: (objective, seed of a bootstrap resample, or None for the samples as they are) of each member.
        shared: what is known already of these very samples.
        options: handed to `find_circuit`.
    """
    masks: list[HeadMask] = []
    for m, (objective, draw) in enumerate(searches):
        circuit = find_circuit(
            view, samples, ood, keep, objective,  # type: ignore[arg-type]
            bootstrap=draw is not None, seed=draw or 0, earlier=masks, overlap_weight=overlap_weight,
            validation=shared, progress=step_of(progress, m, len(searches), f"Member {m + 1} of {len(searches)}"),
            cancel=cancel, **options,
        )  # fmt: skip
        masks.append(circuit.mask)
    return masks


# -- inside ------------------------------------------------------------------------------------


def _check_members(members: int) -> None:
    if members < 1:
        raise MaskError("A plan needs at least one member", expected="1 or more", got=members)


def _layers(view: ModelView, keep: int | Sequence[int], layers: Iterable[int] | None, least: int = 0) -> list[int]:
    """The layers to prune, after a check that `keep` fits them: before any costly work."""
    chosen = sorted(set(range(len(view.shape)) if layers is None else layers))
    mask = HeadMask.top([np.zeros(h) for h in view.shape], keep, chosen)
    if min((mask.counts[l] for l in chosen), default=least) < least:
        raise MaskError("A member would keep no head", expected=f"{least} or more a layer", got=keep)
    return chosen


def _top(
    rows: Sequence[Sequence[float]],
    keep: int | Sequence[int],
    layers: Sequence[int],
    earlier: Sequence[HeadMask],
    weight: float,
) -> HeadMask:
    """The best heads of the chosen layers, less of those that earlier members keep."""
    if not weight:
        return HeadMask.top(rows, keep, layers)
    standing = [
        low_overlap_scores(np.asarray(row), [mask.rows[layer] for mask in earlier], weight)
        for layer, row in enumerate(rows)
    ]
    return HeadMask.top(standing, keep, layers)
