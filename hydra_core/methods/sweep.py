"""How many heads can go, and how many members pay: every number of kept heads and of members, measured.

Heads are chosen on one part of the validation samples and measured on another; test samples are never touched, so
that a point may be picked. Repeats are models of several training seeds, or several draws of the searched part.

A sweep is a list of cells (repeat, layers, kept heads, method). Finished cells are remembered by their digest,
so a sweep that was stopped goes on where it was. As a command: `python -m hydra_core sweep --help`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hydra_core.cost import cost_of
from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import Cancelled, DataError, MaskError, UnknownNameError
from hydra_core.heads.generators import circ_members, random_members, taylor_members
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.heads.scores import HeadScores, score_heads
from hydra_core.heads.validation import StackedSets, Validation
from hydra_core.methods.base import module_digest
from hydra_core.methods.hydra_rows import rest_of
from hydra_core.methods.sweep_table import SINGLE, Point, Sweep, plain
from hydra_core.metrics.report import Report, evaluate_logits
from hydra_core.models.demo import ASSETS
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress, step_of

VERSION = 1  # of what a cell means: a higher one forgets what was remembered
Compute = Callable[[], list[Point]]
Remember = Callable[[str, Compute], list[Point]]


@dataclass(frozen=True)
class Sizes:
    """Validation samples of the two parts: for the search, and for the figures (an OOD number is a set's).

    The search takes at most half of each set; what it saw is never measured.
    """

    search: int = 300
    search_ood: int = 60
    report: int = 800
    report_ood: int = 250

    def split(
        self, bundle: DataBundle, seed: int
    ) -> tuple[tuple[SampleSet, dict[str, SampleSet]], tuple[SampleSet, dict[str, SampleSet]]]:
        """((ID, OOD) for the search, drawn by `seed`; (ID, OOD) for the figures, from the rest)."""
        ids = bundle.val.sample(min(self.search, len(bundle.val) // 2), seed)
        oods = {n: part.sample(min(self.search_ood, len(part) // 2), seed) for n, part in bundle.ood_val.items()}
        left = rest_of(bundle.val, ids).sample(self.report, 0)
        others = {n: rest_of(part, oods[n]).sample(self.report_ood, 0) for n, part in bundle.ood_val.items()}
        for part in (ids, left, *oods.values(), *others.values()):
            if not len(part):
                raise DataError(f"{part.name} is too small to be split", expected="two samples or more", got=part.total)
        return (ids, oods), (left, others)


@dataclass(frozen=True)
class Grid:
    """What a sweep runs over.

    Attributes:
        methods: names in `METHODS`.
        keeps: heads kept in each pruned layer.
        members: numbers of members M, for methods that have members.
        layers: sets of pruned layers; the others stay full.
    """

    methods: tuple[str, ...]
    keeps: tuple[int, ...]
    members: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]

    def check(self, view: ModelView, bundle: DataBundle) -> Grid:
        """This grid, if it fits model and data.

        Raises:
            UnknownNameError: no such method.
            MaskError: a number of heads, members or a layer that the model lacks.
            DataError: a method needs OOD validation samples and there are none.
        """
        for name in self.methods:
            if name not in METHODS:
                raise UnknownNameError("method of a sweep", name, METHODS)
            if METHODS[name].needs_ood and not bundle.ood_val:
                raise DataError(
                    f"{METHODS[name].label} needs out-of-distribution validation samples",
                    expected="one OOD validation set or more",
                    got="none",
                    hint="Sweep Taylor or random heads.",
                )
        most, total = max(view.shape), len(view.shape)
        for what, values, low, high in (
            ("heads kept a layer", self.keeps, 1, most), ("members", self.members, 1, MOST_MEMBERS),
            ("layers", [l for chosen in self.layers for l in chosen], 0, total - 1),
        ):  # fmt: skip
            wrong = [v for v in values if not low <= v <= high]
            if wrong or not values:
                got = ", ".join(map(str, wrong)) or "none"
                raise MaskError(f"The sweep's {what} do not fit", expected=f"{low} to {high}", got=got)
        return self

    @classmethod
    def default(cls, view: ModelView, bundle: DataBundle) -> Grid:
        """Every method that the data allow, up to eight numbers of heads, one to five members, the last half."""
        most, total = max(view.shape), len(view.shape)
        keeps = sorted({int(k) for k in np.linspace(1, max(1, most - 1), 8).round()})
        methods = [name for name, method in METHODS.items() if bundle.ood_val or not method.needs_ood]
        return cls(tuple(methods), tuple(keeps), (1, 2, 3, 4, 5), (tuple(range(total // 2, total)),))


MOST_MEMBERS = 16


@dataclass(frozen=True)
class SweepMethod:
    """A line of the sweep.

    Attributes:
        label, about: for a legend, and one plain sentence.
        masks: (bench, heads kept a layer of the model, layers, most members, progress, cancel) -> masks;
            an ensemble of M members is the first M of them.
        ensemble: whether it has members; else it is one pruned model.
        needs_ood: whether it needs OOD validation samples.
    """

    label: str
    about: str
    masks: Callable[..., Sequence[HeadMask]]
    ensemble: bool = True
    needs_ood: bool = False


class Bench:
    """One repeat: a model, the samples of a seed, and all that its cells share."""

    def __init__(self, view: ModelView, bundle: DataBundle, sizes: Sizes, seed: int, *, budget_mb: float = 512) -> None:
        self.view, self.bundle, self.sizes, self.seed, self.budget = view, bundle, sizes, seed, budget_mb
        (self.ids, self.oods), (self.samples, self.others) = sizes.split(bundle, seed)
        self.weights = module_digest(view.module)
        self._logits: dict[HeadMask, np.ndarray] = {}

    @cached_property
    def known(self) -> Validation:
        """What searches have seen so far: no mask is run twice."""
        return Validation(self.view, self.ids, self.oods, budget_mb=self.budget)

    @cached_property
    def scores(self) -> HeadScores:
        """Taylor on the searched part: one pass for every number of heads."""
        return score_heads(self.view, self.ids, "taylor")

    @cached_property
    def unseen(self) -> StackedSets:
        """The samples that no search has seen."""
        return StackedSets(self.view, self.samples, self.others, budget_mb=self.budget)

    def logits(
        self, masks: Sequence[HeadMask], progress: Progress | None = None, cancel: threading.Event | None = None
    ) -> np.ndarray:
        """Logits of masks on the unseen samples, (M, N, C): the ID set, then the OOD sets."""
        while len(self._logits) > KEPT_LOGITS:  # the oldest leave: cells come back to recent masks only
            del self._logits[next(iter(self._logits))]
        new = [mask for mask in dict.fromkeys(masks) if mask not in self._logits]
        if new:
            table = self.unseen.evaluator.many(new, progress=progress, cancel=cancel)
            self._logits |= dict(zip(new, table, strict=True))
        return np.stack([self._logits[mask] for mask in masks])

    def report(self, masks: Sequence[HeadMask]) -> Report:
        """The figures of an ensemble of masks on the unseen samples."""
        rows, spans = self.logits(masks), self.unseen.spans
        ood = {name: rows[:, spans[name]] for name in self.others}
        shifts = {name: part.shift for name, part in self.others.items()}
        return evaluate_logits(rows[:, spans[""]], self.unseen.labels, ood or None, shifts=shifts)


KEPT_LOGITS = 64


def _taylor(bench: Bench, keeps: Sequence[int], layers: Sequence[int], *unused: Any) -> list[HeadMask]:
    return [HeadMask.top(bench.scores, keeps, layers)]


def _circuits(by: str) -> Callable[..., list[HeadMask]]:
    def masks(
        bench: Bench,
        keeps: Sequence[int],
        layers: Sequence[int],
        members: int,
        progress: Progress | None,
        cancel: threading.Event | None,
    ) -> list[HeadMask]:
        plan = circ_members(
            bench.view, bench.ids, ood=bench.oods, members=members, keep=keeps, layers=layers, seed=bench.seed, by=by,
            bundle=bench.bundle, validation=bench.known, progress=progress, cancel=cancel,
        )  # fmt: skip
        return list(plan.masks)

    return masks


def _taylors(bench: Bench, keeps: Sequence[int], layers: Sequence[int], members: int, *unused: Any) -> list[HeadMask]:
    plan = taylor_members(bench.view, bench.ids, members=members, keep=keeps, layers=layers, seed=bench.seed)
    return list(plan.masks)


def _random(bench: Bench, keeps: Sequence[int], layers: Sequence[int], members: int, *unused: Any) -> list[HeadMask]:
    plan = random_members(bench.view, members=members, keep=keeps, layers=layers, seed=bench.seed)
    return list(plan.masks)


METHODS: dict[str, SweepMethod] = {
    "taylor": SweepMethod("Taylor", "One model; the heads with the smallest Taylor score go.", _taylor, False),
    "circ_avg": SweepMethod(
        "CircAvg", "One model; a circuit search on (accuracy + AUROC) / 2 says which heads stay.",
        _circuits("objective"), False, True,
    ),
    "hydra_taylor": SweepMethod(
        "Hydra (Taylor)", "Members keep the best heads by Taylor, each scored on its own half of the searched samples.",
        _taylors,
    ),
    "hydra_circ": SweepMethod(
        "Hydra (Circ), objectives", "Members are circuits of different objectives: (accuracy + AUROC) / 2, accuracy, "
        "AUROC; from the fourth on again, on resamples.", _circuits("objective"), needs_ood=True,
    ),
    "hydra_circ_resampled": SweepMethod(
        "Hydra (Circ), resamples", "Members are circuits of one objective, each found on its own resample of the "
        "searched samples.", _circuits("bootstrap"), needs_ood=True,
    ),
    "hydra_random": SweepMethod(
        "Hydra (random)", "Members whose heads are drawn: what any choice has to beat.", _random
    ),
}  # fmt: skip


@dataclass(frozen=True)
class _Cell:
    """What is measured, and remembered, in one go: a method with so many heads, for all numbers of members."""

    layers: tuple[int, ...]
    keep: int
    method: str
    members: tuple[int, ...] = (1,)

    @property
    def title(self) -> str:
        return "unpruned" if self.method == SINGLE else f"{METHODS[self.method].label}, {self.keep} heads kept"

    def key(self, bench: Bench) -> str:
        """Everything that decides the cell's points."""
        facts = [VERSION, bench.view.name, bench.weights, bench.bundle.digest, asdict(bench.sizes), bench.seed]
        return hashlib.blake2b(json.dumps([facts, asdict(self)]).encode(), digest_size=10).hexdigest()

    def run(self, bench: Bench, progress: Progress | None, cancel: threading.Event | None) -> list[Point]:
        """One point a number of members."""
        if self.method == SINGLE:
            return [self._point(bench, [HeadMask.full(bench.view.shape)])]
        keeps = [min(self.keep, heads) for heads in bench.view.shape]
        search, measure = step_of(progress, 0, 2), step_of(progress, 1, 2)
        masks = METHODS[self.method].masks(bench, keeps, self.layers, max(self.members), search, cancel)
        bench.logits(masks, measure, cancel)  # all in one pass of the prefix tree
        return [self._point(bench, masks[:m]) for m in self.members]

    def _point(self, bench: Bench, masks: Sequence[HeadMask]) -> Point:
        cost = cost_of(bench.view, masks[0] if len(masks) == 1 else Plan(tuple(masks)))
        return Point(
            self.method, self.layers, self.keep, len(masks), bench.view.name, bench.seed,
            plain(bench.report(masks).row()), cost.parameters, cost.macs, cost.parameter_ratio, cost.mac_ratio,
            tuple(mask.text for mask in masks),
        )  # fmt: skip


def sweep(
    views: Sequence[ModelView],
    bundle: DataBundle,
    grids: Sequence[Grid],
    *,
    sizes: Sizes | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    remember: Remember | None = None,
    publish: Callable[[list[Point]], None] | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    budget_mb: float = 512,
) -> Sweep:
    """Measure every cell of the grids, and the unpruned model.

    Args:
        views: one model, repeated over `seeds` of the searched part; or models of several training seeds, each of
            which is one repeat with the seed of its place.
        remember: (key, compute) -> points; gives what is known of a cell, else computes and keeps it.
        publish: called with the points of each cell as they come.

    Raises:
        UnknownNameError, MaskError, DataError: see `Grid.check` and `heads.circuits.find_circuit`.
        Cancelled: `cancel` was set; finished cells have been remembered.
    """
    for view in views:
        for grid in grids:
            grid.check(view, bundle)
    sizes, remember = sizes or Sizes(), remember or (lambda key, compute: compute())
    repeats = list(zip(views, range(len(views)), strict=True)) if len(views) > 1 else [(views[0], s) for s in seeds]
    benches = [Bench(view, bundle, sizes, seed, budget_mb=budget_mb) for view, seed in repeats]
    single = _Cell((), max(views[0].shape), SINGLE)
    cells = list(dict.fromkeys([single, *(cell for grid in grids for cell in _cells(grid))]))
    points: list[Point] = []
    work = [(r, bench, cell) for r, bench in enumerate(benches) for cell in cells]
    for done, (r, bench, cell) in enumerate(work):
        if cancel is not None and cancel.is_set():
            raise Cancelled("The sweep")
        step = step_of(progress, done, len(work), f"Repeat {r + 1} of {len(benches)}, {cell.title}")
        if step is not None:
            step(0.0, "starting")
        found = remember(cell.key(bench), lambda c=cell, b=bench, s=step: c.run(b, s, cancel))  # type: ignore[misc]
        points += found
        if publish is not None:
            publish(found)
    return Sweep(tuple(points), _provenance(benches))


def _cells(grid: Grid) -> Iterator[_Cell]:
    """Gently pruned ones first."""
    members = tuple(sorted(set(grid.members)))
    for layers in grid.layers:
        for keep in sorted(set(grid.keeps), reverse=True):
            for method in grid.methods:
                yield _Cell(layers, keep, method, members if METHODS[method].ensemble else (1,))


def _provenance(benches: Sequence[Bench]) -> dict[str, Any]:
    first = benches[0]
    return {
        "models": {bench.view.name: bench.weights for bench in benches},
        "data": {"name": first.bundle.name, "digest": first.bundle.digest, "split": "validation, in two parts"},
        "searched": {part.name: len(part) for part in (first.ids, *first.oods.values())},
        "measured": {part.name: len(part) for part in (first.samples, *first.others.values())},
        "seeds": [bench.seed for bench in benches],
        "conventions": Report.convention,
    }


def layer_choice(text: str, total: int) -> tuple[int, ...]:
    """Layers by name: "all", "last2", or numbers from 0 such as "3,5".

    Raises:
        MaskError: not a choice of layers, or layers that a model of `total` layers lacks.

    Examples:
        >>> layer_choice("last2", 6), layer_choice("3,5", 6)
        ((4, 5), (3, 5))
    """
    if text == "all":
        return tuple(range(total))
    try:
        if text.startswith("last"):
            count = int(text[4:])
            if not 1 <= count <= total:
                raise ValueError(text)
            return tuple(range(total - count, total))
        chosen = tuple(sorted({int(part) for part in text.split(",")}))
        if not all(0 <= layer < total for layer in chosen):
            raise ValueError(text)
    except ValueError as error:
        raise MaskError(
            "This is not a choice of layers", expected=f'"all", "last2" or numbers from 0 to {total - 1} like "3,5"',
            got=repr(text[:40]),
        ) from error  # fmt: skip
    return chosen


class CellFile:
    """Finished cells in a file of JSON lines, so that a stopped sweep goes on. A torn last line is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: dict[str, list[Point]] = {}
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        self._break = "" if not text or text.endswith("\n") else "\n"
        for line in text.splitlines():
            try:
                cell = json.loads(line)
                self.cells[cell["key"]] = [Point.from_json(point) for point in cell["points"]]
            except (ValueError, KeyError, TypeError):
                continue

    def __call__(self, key: str, compute: Compute) -> list[Point]:
        if key not in self.cells:
            points = compute()
            line = json.dumps({"key": key, "points": [asdict(point) for point in points]})
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{self._break}{line}\n")
            self._break = ""
            self.cells[key] = points
        return self.cells[key]


# -- the demo ----------------------------------------------------------------------------------------

STORED = ASSETS / "sweep-demo.json"
COMMAND = "python -m hydra_core sweep --demo"
DEMO_SIZES = Sizes(160, 30, 500, 125)
EVERY, SOME, MEMBERS = (1, 2, 3, 4, 5, 6, 7), (2, 4, 6), (1, 2, 3, 4, 5)
LATE = ((3, 4, 5), (4, 5))
DEMO_GRIDS = (
    Grid(("taylor", "circ_avg"), EVERY, (1,), LATE),
    Grid(("hydra_taylor", "hydra_circ", "hydra_circ_resampled", "hydra_random"), EVERY, MEMBERS, LATE),
    # a search over all layers takes long: single pruned models only
    Grid(("taylor", "circ_avg"), SOME, (1,), ((0, 1, 2, 3, 4, 5),)),
)


def demo_sweep(progress: Progress | None = None) -> Sweep:
    """The demo's sweep over its three models, written to assets/; goes on where it was stopped."""
    from hydra_core.data.load import load_data
    from hydra_core.methods.compare import demo_models

    file = CellFile(ASSETS.parent / ".scratch" / "sweep-demo.jsonl")
    found = sweep(
        demo_models(), load_data("demo/fashion"), DEMO_GRIDS, sizes=DEMO_SIZES, remember=file, progress=progress
    )
    found = Sweep(found.points, dict(found.provenance) | {"command": COMMAND})
    found.to_json(STORED)
    return found
