"""Work that several pages start: equal work has one key, so that it runs once whichever page asks first."""

from __future__ import annotations

from typing import Any

from app import lab, widgets
from app.cache import digest
from app.jobs import Job
from app.session import Session


def score(state: Session, criterion: str = "taylor", title: str = "Scoring the heads") -> Job:
    """Head scores of the session's model by a criterion."""
    model, data = state.model, state.data
    return widgets.start(
        digest("criterion", model, data, criterion),
        lambda job: lab.scores(model, data, criterion, progress=job.progress, cancel=job.cancel),
        title,
    )


def evaluate(state: Session, options: lab.Options, title: str = "Evaluating the plan") -> Job:
    """(report of the plan, report of the unpruned model)."""
    model, data, plan, full = state.model, state.data, state.plan, lab.unpruned(state.model)

    def work(job: Job) -> Any:
        before = lab.report(model, data, full, options, progress=job.progress, cancel=job.cancel)
        return lab.report(model, data, plan, options, progress=job.progress, cancel=job.cancel), before

    return widgets.start(digest("evaluate", model, data, plan.text, options), work, title)


def base(model: str, data: str) -> Job:
    """The report of the unpruned model on validation samples."""
    return widgets.start(
        digest("base", model, data),
        lambda job: lab.report(model, data, lab.unpruned(model), progress=job.progress, cancel=job.cancel),
        f"Evaluating {model}, unpruned",
    )
