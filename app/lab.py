"""The only door from the pages to hydra_core. What one page computed, another has.

Everything here is cached by small digests (names, data digests, mask texts) for all sessions and is
read-only. Inference runs in one thread a process: torch uses all cores anyway, and the model's
private shadow is built once. Functions that may take long accept `progress` and `cancel`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from app.cache import MIB, BoundedCache, digest
from app.session import Settings
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.progress import Progress

if TYPE_CHECKING:
    import torch

    from hydra_core.cost import Cost
    from hydra_core.data.sets import DataBundle, SampleSet
    from hydra_core.fusion.evaluator import MaskEvaluator
    from hydra_core.heads.scores import HeadScores
    from hydra_core.metrics import Report
    from hydra_core.models.view import ModelView

T = TypeVar("T")
Split = Literal["val", "test"]

EVALUATOR_BUDGET_MB = 384
_models = BoundedCache("models", 4096 * MIB)
_data = BoundedCache("data", 2048 * MIB)
_evaluators = BoundedCache("evaluators", 2 * (EVALUATOR_BUDGET_MB + 256) * MIB)
_logits = BoundedCache("logits", 256 * MIB)
_results = BoundedCache("results", 128 * MIB)

_worker = ThreadPoolExecutor(1, thread_name_prefix="inference")


def infer(work: Callable[[], T]) -> T:
    """Run `work` in the inference thread and wait for it."""
    if threading.current_thread().name.startswith("inference"):
        return work()
    return _worker.submit(work).result()


# -- models and data -------------------------------------------------------------------------


def model_names() -> tuple[str, ...]:
    """Names for the picker: the models that work at once. Others can be typed."""
    from hydra_core.models.load import list_models

    return tuple(list_models("demo"))


def data_names() -> tuple[str, ...]:
    """Names of the data sets at hand."""
    from hydra_core.data.load import list_data

    return tuple(list_data())


def default_model() -> str:
    return model_names()[0]


def default_data() -> str:
    return data_names()[0]


def model(name: str) -> ModelView:
    """A model as a read-only view, shared by all sessions.

    Raises:
        HydraError: it does not exist, or cannot be loaded or pruned.
    """
    from hydra_core.models.load import load_model

    return _models.get(name, lambda: load_model(name), lambda view: 4 * view.parameters)


def shape(name: str) -> tuple[int, ...]:
    """Heads of each layer of a model."""
    return model(name).shape


def data(name: str) -> DataBundle:
    """A data set with its validation, test and OOD parts, shared by all sessions."""
    from hydra_core.data.load import load_data

    return _data.get(name, lambda: load_data(name), _bundle_bytes)


def _bundle_bytes(bundle: DataBundle) -> int:
    sets = (bundle.val, bundle.test, *bundle.ood_val.values(), *bundle.ood_test.values())
    return sum(int(s.inputs.nbytes) for s in sets)


# -- samples ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """How a report is made; part of every key.

    Attributes:
        split: "val" may choose settings; "test" is for a last look and must choose nothing.
        n: ID samples, and OOD samples over all sets together (stratified, fixed seed).
        bins, bins_kind: of the reliability diagram; "width" or "count".
        ood_score: name of the OOD score.
        bootstrap: resamples for intervals; 0 for none.
    """

    split: Split = "val"
    n: int = 500
    bins: int = 15
    bins_kind: Literal["width", "count"] = "width"
    ood_score: str = "msp"
    bootstrap: int = 0


@dataclass(frozen=True)
class Sample:
    """The samples behind a report: ID first, then the OOD sets, as rows of one array."""

    id: SampleSet
    ood: Mapping[str, SampleSet]
    split: Split
    key: str = field(default="")

    @property
    def sets(self) -> dict[str, SampleSet]:
        return {"": self.id, **self.ood}

    @property
    def slices(self) -> dict[str, slice]:
        """Rows of each set; the ID set is named ""."""
        out, start = {}, 0
        for name, part in self.sets.items():
            out[name] = slice(start, start + len(part))
            start += len(part)
        return out

    @property
    def shifts(self) -> dict[str, str]:
        return {name: part.shift for name, part in self.ood.items()}

    @property
    def note(self) -> str:
        """'500 of 4,000 validation samples; OOD: coat 250 of 1,000 (near), ...'"""
        kind = "validation" if self.split == "val" else "test"
        parts = [f"{len(p):,} of {p.total:,} {name} ({p.shift})" for name, p in self.ood.items()]
        text = f"{len(self.id):,} of {self.id.total:,} {kind} samples"
        return f"{text}; OOD: {', '.join(parts)}" if parts else f"{text}; no OOD set"


def sample(data_name: str, options: Options | None = None) -> Sample:
    """The stratified sample that reports use; the same for all sessions and pages."""
    options = options or Options()
    return _data.get(digest("sample", data_name, options.split, options.n), lambda: _sample(data_name, options))


def _sample(data_name: str, options: Options) -> Sample:
    bundle = data(data_name)
    base = bundle.val if options.split == "val" else bundle.test
    sources = bundle.ood_val if options.split == "val" else bundle.ood_test
    ood = {name: part.sample(n) for (name, part), n in zip(sources.items(), _shares(sources, options.n), strict=True)}
    chosen = Sample(base.sample(options.n), ood, options.split)
    key = digest(options.split, chosen.id.digest, *(part.digest for part in ood.values()))
    return Sample(chosen.id, ood, options.split, key)


def _shares(sources: Mapping[str, SampleSet], n: int) -> list[int]:
    """Samples of each OOD set: near, far and other OOD weigh alike, and so do the sets of one kind."""
    kinds = [part.shift for part in sources.values()]
    return [max(1, round(n / len(set(kinds)) / kinds.count(kind))) for kind in kinds]


# -- logits ----------------------------------------------------------------------------------


def evaluator(model_name: str, chosen: Sample) -> MaskEvaluator:
    """The evaluator of a model on a sample; use it inside `infer` only."""

    from hydra_core.fusion.evaluator import MaskEvaluator

    def make() -> MaskEvaluator:
        view = model(model_name)
        return MaskEvaluator(view, view.inputs(*chosen.sets.values()), budget_mb=EVALUATOR_BUDGET_MB)

    size = (EVALUATOR_BUDGET_MB + 64) * MIB
    return _evaluators.get(digest("evaluator", model_name, chosen.key), make, lambda _: size)


def logits(
    model_name: str,
    chosen: Sample,
    masks: Sequence[HeadMask],
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> np.ndarray:
    """Logits of masks on a sample, (M, N, C); only masks not seen before are computed.

    N runs over ID and OOD samples: see `Sample.slices`.
    """
    keys = {mask: digest("logits", model_name, chosen.key, mask.text) for mask in masks}
    missing = [mask for mask in keys if keys[mask] not in _logits]
    fresh: dict[HeadMask, np.ndarray] = {}
    if missing:
        compute = lambda: evaluator(model_name, chosen).many(missing, progress=progress, cancel=cancel)  # noqa: E731
        fresh = dict(zip(missing, np.asarray(infer(compute), dtype=np.float32), strict=True))
        for mask, rows in fresh.items():
            _logits.get(keys[mask], lambda rows=rows: rows)  # type: ignore[misc]
    # a value may be gone by now where the cache is small: compute it once more
    return np.stack([fresh[m] if m in fresh else _again(model_name, chosen, m, keys[m]) for m in masks])


def _again(model_name: str, chosen: Sample, mask: HeadMask, key: str) -> np.ndarray:
    return _logits.get(key, lambda: infer(lambda: np.asarray(evaluator(model_name, chosen).logits(mask), np.float32)))


# -- reports, scores, cost -------------------------------------------------------------------


def report(
    model_name: str,
    data_name: str,
    plan: Plan,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Report:
    """All metrics of the ensemble of a plan's members (mean of their softmaxes).

    The members are exact: masking, slicing and fusing give the same logits (method.md, section 3).
    """
    options = options or Options()
    chosen = sample(data_name, options)

    def compute() -> Report:
        from hydra_core.metrics import evaluate_logits

        rows = logits(model_name, chosen, plan.masks, progress=progress, cancel=cancel)  # (M, N, C)
        parts = {name: rows[:, where] for name, where in chosen.slices.items()}
        ood = {name: part for name, part in parts.items() if name}
        return evaluate_logits(
            parts[""],
            chosen.id.labels,
            ood or None,
            shifts=chosen.shifts,
            bins=options.bins,
            bins_kind=options.bins_kind,
            ood_score=options.ood_score,
            bootstrap=options.bootstrap,
        )

    return _results.get(digest("report", model_name, chosen.key, plan.text, options), compute)


def probabilities(
    model_name: str, data_name: str, plan: Plan, options: Options | None = None
) -> tuple[Sample, dict[str, np.ndarray]]:
    """Class probabilities of the ensemble a set: (sample, {"": (N, C), ood name: (N_o, C)})."""
    from hydra_core.metrics import Predictions

    chosen = sample(data_name, options)
    mean = Predictions.of(logits(model_name, chosen, plan.masks)).probs  # (N, C)
    return chosen, {name: mean[where] for name, where in chosen.slices.items()}


def scores(
    model_name: str,
    data_name: str,
    criterion: str = "taylor",
    *,
    n: int = 500,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    **settings: Any,
) -> HeadScores:
    """Head scores of the unpruned model on validation samples, one row a layer."""
    chosen = sample(data_name, Options(n=n))

    def compute() -> HeadScores:
        from hydra_core.heads.scores import score_heads

        view = model(model_name)
        return infer(
            lambda: score_heads(
                view, chosen.id, criterion, ood=chosen.ood, progress=progress, cancel=cancel, **settings
            )
        )

    return _results.get(digest("scores", model_name, chosen.key, criterion, sorted(settings.items())), compute)


def cost(model_name: str, plan: Plan | HeadMask) -> Cost:
    """Parameters and multiply-adds of the fused ensemble of a plan (or of one pruned model)."""

    def compute() -> Cost:
        from hydra_core.cost import cost_of

        return infer(lambda: cost_of(model(model_name), plan))

    return _results.get(digest("cost", model_name, type(plan).__name__, plan.text), compute)


# -- warm start ------------------------------------------------------------------------------

_warm = threading.Lock()


def warm_up() -> None:
    """Load the default model, data and scores in the background, once a process."""
    if _warm.acquire(blocking=False):
        threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()


def _warm_up() -> None:
    try:
        name, data_name = default_model(), default_data()
        report(name, data_name, Plan.full(shape(name)))
        scores(name, data_name)
    except Exception:  # the page that needs it will say what is wrong
        return


# -- criteria, ways to run a plan ------------------------------------------------------------

SINGLE, DEEP, HYDRA, HYDRA_TRUNK = "Single", "Deep ensemble", "Hydra, no shared trunk", "Hydra, shared trunk"


def criteria() -> Mapping[str, Any]:
    """The registry of head criteria by name: label, about, needs_ood."""
    from hydra_core.heads.scores import CRITERIA

    return CRITERIA


def costs(model_name: str, plan: Plan) -> dict[str, Cost]:
    """Cost of the plan in each way to run it, beside one model and a deep ensemble of as many members."""

    def compute() -> dict[str, Cost]:
        from hydra_core.cost import Cost, cost_of
        from hydra_core.fusion.ensemble import FusionOptions, fuse

        view = model(model_name)
        single = cost_of(view, HeadMask.full(view.shape))
        many = Cost(len(plan) * single.parameters, len(plan) * single.macs, single.parameters, single.macs)
        apart = fuse(view, plan, options=FusionOptions(share_trunk=False))
        return {SINGLE: single, DEEP: many, HYDRA: cost_of(view, apart), HYDRA_TRUNK: cost_of(view, plan)}

    return _results.get(digest("costs", model_name, plan.text), lambda: infer(compute))


def latencies(
    model_name: str,
    plan: Plan,
    batches: Sequence[int],
    precisions: Sequence[str],
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> list[Any]:
    """Measured latency of each way, batch size and precision; a list of `hydra_core.cost.Latency`."""
    import itertools

    from hydra_core.cost import example_input, measure_latency
    from hydra_core.fusion.ensemble import FusionOptions, fuse

    view = model(model_name)
    runs: dict[str, Callable[[Any], Any]] = {
        SINGLE: view.module,
        DEEP: lambda x: [view.module(x) for _ in range(len(plan))],
        HYDRA: fuse(view, plan, options=FusionOptions(share_trunk=False)),
        HYDRA_TRUNK: fuse(view, plan),
    }
    cases = list(itertools.product(precisions, batches, runs))
    out = []
    for done, (precision, batch, name) in enumerate(cases):
        if progress is not None:
            progress(done / len(cases), f"{name}, batch {batch}, {precision}")
        x = example_input(view, batch)
        work = lambda n=name, x=x, p=precision: measure_latency(n, runs[n], x, precision=p, cancel=cancel)  # noqa: E731
        out.append(infer(work))
    return out


# -- taking a setting away -------------------------------------------------------------------


def unpruned(model_name: str) -> Plan:
    """The plan of one member with all heads."""
    return Plan.full(shape(model_name))


def recipe(model_name: str, data_name: str, plan: Plan, note: str = "") -> str:
    """The recipe file of a setting."""
    from hydra_core.runs.recipe import Recipe

    return Recipe(model_name, data_name, plan, note=note).to_json()


def read_recipe(content: bytes) -> Settings:
    """Settings from an uploaded recipe; checked against the model it names.

    Raises:
        HydraError: not a recipe, an unknown model or data set, or masks that do not fit.
    """
    from hydra_core.runs.recipe import Recipe

    read = Recipe.from_json(content.decode("utf-8", errors="replace"))
    read.plan[0].check(shape(read.model))
    data(read.data)
    return Settings(read.model, read.data, read.plan)


def fused_file(model_name: str, plan: Plan) -> bytes:
    """The fused ensemble as a safetensors file."""
    from hydra_core.fusion.ensemble import fuse

    return _file(lambda path: fuse(model(model_name), plan).save(path))


def pruned_file(model_name: str, mask: HeadMask) -> bytes:
    """One pruned member as a safetensors file; the mask stands in its header."""

    def write(path: Any) -> None:
        from hydra_core.fusion.surgery import save_pruned

        save_pruned(model(model_name), mask, path)

    return _results.get(digest("pruned", model_name, mask.text), lambda: _file(write))


def _file(write: Callable[[Any], object]) -> bytes:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.safetensors"
        write(path)
        return path.read_bytes()


# -- projections -----------------------------------------------------------------------------


def projections(
    model_name: str,
    data_name: str,
    heads: Sequence[tuple[int, int]],
    mask: HeadMask | None = None,
    *,
    dims: int = 2,
    how: str = "pca",
    n: int = 300,
) -> tuple[Sample, list[Any]]:
    """(sample, `hydra_core.heads.projection.Projection` of each head) on validation data; rows as in the sample."""
    chosen = sample(data_name, Options(n=n))
    key = digest("projection", model_name, chosen.key, tuple(heads), mask.text if mask else "", dims, how)

    def compute() -> list[Any]:
        from hydra_core.heads.projection import project_heads

        plain, shown = _head_outputs(model_name, chosen), _head_outputs(model_name, chosen, mask)
        return project_heads(plain, shown, len(chosen.id), heads, dims=dims, how=how)

    return chosen, _results.get(key, lambda: infer(compute))


def _head_outputs(model_name: str, chosen: Sample, mask: HeadMask | None = None) -> list[torch.Tensor]:
    """What every head hands on, one (N, H, d_h) a layer: one forward serves all panels of a page."""
    from hydra_core.heads.attention_maps import head_outputs

    def compute() -> list[torch.Tensor]:
        view = model(model_name)
        return head_outputs(view, view.inputs(*chosen.sets.values()), mask=mask)

    key = digest("head outputs", model_name, chosen.key, mask.text if mask else "")
    return _results.get(key, lambda: infer(compute), lambda layers: sum(layer.nbytes for layer in layers))


# -- the comparison --------------------------------------------------------------------------


def stored_comparison(model_name: str, data_name: str) -> Any | None:
    """The demo's comparison as it was measured for these very weights and data; None for anything else."""
    from hydra_core.methods.base import module_digest
    from hydra_core.methods.compare import TABLE, Comparison

    if not TABLE.is_file() or not model_name.startswith("demo/"):
        return None

    def read() -> Any | None:
        table = Comparison.from_json(TABLE.read_text(encoding="utf-8"))
        view, bundle = model(model_name), data(data_name)
        same = table.provenance["data"]["digest"] == bundle.digest
        return table if same and table.provenance["models"].get(view.name) == module_digest(view.module) else None

    return _results.get(digest("stored", model_name, data_name, TABLE.stat().st_mtime_ns), read)


def comparison(
    model_name: str,
    data_name: str,
    rows: Sequence[str],
    *,
    split: Split = "val",
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Any:
    """`hydra_core.methods.compare.compare` with other seeds of the demo as replicas where there are some."""
    from hydra_core.methods.compare import compare, demo_models

    view, bundle = model(model_name), data(data_name)
    replicas = [v for v in demo_models() if v.name != view.name] if model_name.startswith("demo/") else []
    work = lambda: compare(  # noqa: E731
        view, bundle, rows, split=split, replicas=replicas, bootstrap=100, progress=progress, cancel=cancel
    )
    key = digest("comparison", model_name, bundle.digest, tuple(rows), split)
    return _results.get(key, lambda: infer(work))


def row_names() -> dict[str, str]:
    """Rows that can be compared: name -> label."""
    from hydra_core.methods.registry import DEFAULT_ROWS, parse_row

    labels = {name: parse_row(name) for name in DEFAULT_ROWS}
    return {
        name: f"{row.label} + {scaling} scaling" if scaling else row.label for name, (row, scaling) in labels.items()
    }
