"""What the What-if page shows beside a report: a first-order estimate, the proof, OOD scores of samples."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from app.cache import digest
from app.lab import store
from app.lab.results import logits
from app.lab.sources import Options, Sample, model, sample
from hydra_core.heads.mask import Plan
from hydra_core.progress import Progress, step_of

if TYPE_CHECKING:
    from hydra_core.fusion.proof import Proof
    from hydra_core.heads.scores import HeadScores

# an estimate must not hold up what it stands in for: parameters times samples, a step (the page's own work waits for
# one at most) and in all
STEP_WORK, ALL_WORK, FEWEST = 50_000_000, 500_000_000, 50
PROOF_SAMPLES = 8


def loss_changes(
    model_name: str,
    data_name: str,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> HeadScores:
    """The signed first-order loss change of removing each head of the unpruned model, on validation samples."""
    chosen = sample(data_name, Options())

    def compute() -> HeadScores:
        from hydra_core.heads.first_order import loss_changes as of
        from hydra_core.heads.scores import HeadScores, to_rows

        view = model(model_name)
        few = chosen.id.sample(max(FEWEST, ALL_WORK // view.parameters))
        n, step = len(few), max(1, STEP_WORK // view.parameters)
        total, starts = np.zeros(sum(view.shape)), range(0, n, step)
        for i, start in enumerate(starts):
            part = few.take(np.arange(start, min(start + step, n)))
            work = lambda p=part, i=i: of(view, p, progress=step_of(progress, i, len(starts)), cancel=cancel)  # noqa: E731
            total += store.infer(work).flat * len(part)
        return HeadScores("first_order", to_rows(total / n, view.shape), samples=n)

    return store.results.get(_changes_key(model_name, chosen), compute)


def _changes_key(model_name: str, chosen: Sample) -> str:
    return digest("loss changes", model_name, chosen.key)


def predicted_nll(model_name: str, data_name: str, plan: Plan, unpruned: float) -> float | None:
    """The NLL that a first-order expansion gives for a plan, from the unpruned model's; None where it is not at hand.

    Answers at once: computes nothing but a sum.
    """
    from hydra_core.heads.first_order import predicted_change

    if _changes_key(model_name, sample(data_name, Options())) not in store.results:
        return None
    return unpruned + predicted_change(loss_changes(model_name, data_name), plan)


def proof(
    model_name: str,
    data_name: str,
    plan: Plan,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Proof:
    """`hydra_core.fusion.proof.prove` on a few validation samples."""
    chosen = sample(data_name, Options())

    def compute() -> Proof:
        from hydra_core.fusion.proof import prove

        view, few = model(model_name), chosen.id.take(np.arange(min(PROOF_SAMPLES, len(chosen.id))))
        return store.infer(lambda: prove(view, plan, view.inputs(few), progress=progress, cancel=cancel))

    return store.results.get(digest("proof", model_name, chosen.key, plan.text), compute)


def ood_scores(
    model_name: str, data_name: str, plan: Plan, options: Options | None = None
) -> tuple[Sample, dict[str, np.ndarray]]:
    """The options' OOD score of every sample by set: (sample, {"": (N,), ood name: (N_o,)}); higher is more OOD."""
    from hydra_core.metrics import ood_score

    options = options or Options()
    chosen = sample(data_name, options)
    rows = logits(model_name, chosen, plan.masks)  # (M, N, C)
    return chosen, {name: ood_score(rows[:, where], options.ood_score) for name, where in chosen.slices.items()}


def ood_score_names(members: int = 2) -> dict[str, tuple[str, str]]:
    """OOD scores of logits that tell something for so many members: name -> (label, what it is)."""
    from hydra_core.metrics import OOD_SCORES

    return {
        name: (score.label, score.about)
        for name, score in OOD_SCORES.items()
        if score.fn is not None and (members > 1 or not score.members_only)
    }
