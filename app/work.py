"""Work that several pages start: equal work has one key, so that it runs once whichever page asks first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app import lab, widgets
from app.cache import digest
from app.jobs import Job
from app.lab import live
from app.session import Session
from hydra_core.heads.mask import Plan


def score(state: Session, criterion: str = "taylor", title: str = "Scoring the heads") -> Job:
    """Head scores of the session's model by a criterion."""
    model, data = state.model, state.data
    return widgets.start(
        digest("criterion", model, data, criterion),
        lambda job: lab.scores(model, data, criterion, progress=job.progress, cancel=job.cancel),
        title,
    )


def evaluate(
    state: Session, options: lab.Options, title: str = "Evaluating the plan", *, against: Plan | None = None,
    group: str = "",
) -> Job:  # fmt: skip
    """(report of the plan, report of a reference: the unpruned model unless another plan is given)."""
    model, data, plan, other = state.model, state.data, state.plan, against or lab.unpruned(state.model)

    def work(job: Job) -> Any:
        before = lab.report(model, data, other, options, progress=job.progress, cancel=job.cancel)
        return lab.report(model, data, plan, options, progress=job.progress, cancel=job.cancel), before

    return widgets.start(digest("evaluate", model, data, plan.text, other.text, options), work, title, group=group)


def intervals(state: Session, options: lab.Options, resamples: int) -> Job:
    """The report of the plan with bootstrap intervals."""
    model, data, plan, options = state.model, state.data, state.plan, replace(options, bootstrap=resamples)
    return widgets.start(
        digest("intervals", model, data, plan.text, options),
        lambda job: lab.report(model, data, plan, options, progress=job.progress, cancel=job.cancel),
        "Resampling for intervals",
        group="intervals",
    )


def loss_changes(state: Session) -> Job:
    """First-order loss changes of the model's heads, for estimates."""
    model, data = state.model, state.data
    return widgets.start(
        digest("loss changes", model, data),
        lambda job: live.loss_changes(model, data, progress=job.progress, cancel=job.cancel),
        "Gradients for estimates",
    )


def reading(model: str, data: str) -> Job:
    """(what an evaluation takes in memory, how many of the texts are cut off)."""
    both = lambda: (lab.memory(model, data), lab.cut_texts(model, data))  # noqa: E731
    return widgets.start(
        digest("reading", model, data),
        lambda job: lab.uninterrupted(both, "The estimate", cancel=job.cancel),
        "Estimating memory",
    )


def base(model: str, data: str) -> Job:
    """The report of the unpruned model on validation samples."""
    return widgets.start(
        digest("base", model, data),
        lambda job: lab.report(model, data, lab.unpruned(model), progress=job.progress, cancel=job.cancel),
        f"Evaluating {model}, unpruned",
    )
