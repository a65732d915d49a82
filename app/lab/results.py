"""Logits, reports, head scores and cost of a plan; what one page computed, another has."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from app.cache import MIB, digest
from app.lab import store
from app.lab.checks import estimate_of
from app.lab.sources import Options, Sample, model, sample
from app.lab.stored import stored_rows, stored_scores
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.progress import Progress

if TYPE_CHECKING:
    from hydra_core.cost import Cost
    from hydra_core.fusion.evaluator import MaskEvaluator
    from hydra_core.heads.scores import HeadScores
    from hydra_core.metrics import Report


def evaluator(model_name: str, chosen: Sample) -> MaskEvaluator:
    """The evaluator of a model on a sample; use it inside `infer` only."""

    from hydra_core.fusion.evaluator import MaskEvaluator

    def make() -> MaskEvaluator:
        view = model(model_name)
        estimate_of(model_name, chosen).check()  # refuse before anything is prepared
        return MaskEvaluator(view, view.inputs(*chosen.sets.values()), budget_mb=store.EVALUATOR_BUDGET_MB)

    size = (store.EVALUATOR_BUDGET_MB + 64) * MIB
    return store.evaluators.get(digest("evaluator", model_name, chosen.key), make, lambda _: size)


def logits(
    model_name: str,
    chosen: Sample,
    masks: Sequence[HeadMask],
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> np.ndarray:
    """Logits of masks on a sample, (M, N, C); only masks neither seen before nor carried are computed.

    N runs over ID and OOD samples: see `Sample.slices`.
    """
    keys = {mask: digest("logits", model_name, chosen.key, mask.text) for mask in masks}
    unseen = [mask for mask in keys if keys[mask] not in store.logits]
    carried = {mask: stored_rows("logits", model_name, chosen, mask) for mask in unseen}
    fresh = {mask: rows for mask, rows in carried.items() if rows is not None}
    missing = [mask for mask in unseen if mask not in fresh]
    if missing:
        compute = lambda: evaluator(model_name, chosen).many(missing, progress=progress, cancel=cancel)  # noqa: E731
        rows = np.asarray(store.infer(compute), dtype=np.float32)  # (missing, N, C)
        fresh |= dict(zip(missing, rows, strict=True))
    for mask, rows in fresh.items():
        store.logits.get(keys[mask], lambda rows=rows: rows)  # type: ignore[misc]
    # a value may be gone by now where the cache is small: compute it once more
    return np.stack([fresh[m] if m in fresh else _again(model_name, chosen, m, keys[m]) for m in masks])


def _again(model_name: str, chosen: Sample, mask: HeadMask, key: str) -> np.ndarray:
    return store.logits.get(
        key, lambda: store.infer(lambda: np.asarray(evaluator(model_name, chosen).logits(mask), np.float32))
    )


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

    return store.results.get(_report_key(model_name, chosen, plan, options), compute)


def _report_key(model_name: str, chosen: Sample, plan: Plan, options: Options) -> str:
    return digest("report", model_name, chosen.key, plan.text, options)


def report_at_hand(model_name: str, data_name: str, plan: Plan, options: Options) -> Report | None:
    """The report of a plan if it is there already."""
    key = _report_key(model_name, sample(data_name, options), plan, options)
    return report(model_name, data_name, plan, options) if key in store.results else None


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

        known = None if settings else stored_scores(model_name, chosen, criterion)
        if known is not None:
            return known
        view = model(model_name)
        return store.infer(
            lambda: score_heads(
                view, chosen.id, criterion, ood=chosen.ood, progress=progress, cancel=cancel, **settings
            )
        )

    return store.results.get(_scores_key(model_name, chosen, criterion, settings), compute)


def _scores_key(model_name: str, chosen: Sample, criterion: str, settings: Mapping[str, Any]) -> str:
    return digest("scores", model_name, chosen.key, criterion, sorted(settings.items()))


def scores_at_hand(model_name: str, data_name: str) -> dict[str, HeadScores]:
    """Scores by criterion that are there already, measured in this process or carried by the demo; computes none."""
    chosen = sample(data_name, Options(n=500))
    here = [
        name
        for name in criteria()
        if _scores_key(model_name, chosen, name, {}) in store.results
        or stored_scores(model_name, chosen, name) is not None
    ]
    return {name: scores(model_name, data_name, name) for name in here}


def cost(model_name: str, plan: Plan | HeadMask) -> Cost:
    """Parameters and multiply-adds of the fused ensemble of a plan (or of one pruned model)."""

    def compute() -> Cost:
        from hydra_core.cost import cost_of

        return store.infer(lambda: cost_of(model(model_name), plan))

    return store.results.get(digest("cost", model_name, type(plan).__name__, plan.text), compute)


def criteria() -> Mapping[str, Any]:
    """The registry of head criteria by name: label, about, needs_ood."""
    from hydra_core.heads.scores import CRITERIA

    return CRITERIA
