"""How a session comes to its model and data: from its address, a pick, a recipe; never in the middle of a page.

What is not loaded yet is loaded by a job, with progress and Cancel; until it is there, a new session shows nothing
else, and a pick leaves the session as it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from app import frame, lab, widgets
from app.cache import digest
from app.jobs import Job
from app.session import URL_KEYS, Session, Settings, from_query, to_query
from hydra_core.errors import HydraError
from hydra_core.heads.mask import Plan

PATIENCE = 0.8  # seconds before progress is drawn: what is quick must not flash
OPENING = "opening"  # key of the job that opens a session
PICKED, FIRST = "hydra/picked", "hydra/first"  # under "hydra/", so that "Reset this page" leaves them


# -- opening a session -----------------------------------------------------------------------------


def ready() -> bool:
    """Whether the session is there, with its model and data at hand.

    Else their progress has been drawn, and nothing else should be: the script runs again when they are there. What
    cannot be loaded, or is cancelled, becomes the default, with a box that says so.

    Raises:
        HydraError: not even the default model or data can be loaded.
    """
    state = st.session_state.get(frame.SESSION)
    query = st.query_params.to_dict() if state is None else to_query(state)
    if lab.at_hand(query.get("model", ""), query.get("data", "")):
        if state is None:
            _begin(*_opened(query))
        return True
    names = [query[key][:60] for key in ("model", "data") if key in query]
    work = partial(_opened, query)
    job = frame.jobs().run(OPENING, work, f"Loading {' and '.join(names) or 'the demo'}", queued=False)
    found = widgets.result_of(job, patience=PATIENCE)
    if found is None:
        return False
    frame.jobs().forget(OPENING)
    made, problems = found
    if state is None or problems:  # a session whose model had to be loaded again keeps its undo and its pins
        _begin(made, problems)
    return True


def _opened(query: dict[str, str], job: Job | None = None) -> tuple[Session, list[HydraError]]:
    """The session of an address, and what of it could not be used."""
    how: dict[str, Any] = {} if job is None else {"progress": job.progress, "cancel": job.cancel}
    return from_query(
        query,
        default_model=lab.default_model(),
        default_data=lab.default_data(),
        check_model=lambda name: lab.bring_model(name, **how),
        check_data=lambda name: lab.bring_data(name, **how),
        shape_of=lab.shape,
    )


def _begin(made: Session, problems: list[HydraError]) -> None:
    if frame.SESSION not in st.session_state:
        controls = st.query_params.keys() - set(URL_KEYS)
        st.session_state[frame.ASKED] = {key: st.query_params.get_all(key) for key in controls}
    st.session_state[frame.SESSION] = made
    for problem in problems:
        frame.report_problem(problem)


def refused_controls(page: str) -> list[HydraError]:
    """What the address of a new session asked of the controls of its first page, and they could not take.

    Streamlit puts such a control at its default and takes the value out of the address, without a word. Each is looked
    at once, when the page has drawn it.
    """
    asked: dict[str, list[str]] = st.session_state.get(frame.ASKED, {})
    if st.session_state.setdefault(FIRST, page) != page:
        asked.clear()  # controls of other pages have the same names
    there = {key: asked.pop(key) for key in list(asked) if key in st.session_state}
    return [_refused(key, values) for key, values in there.items() if not _taken(key, values)]


def _taken(key: str, asked: list[str]) -> bool:
    """Whether a control stands at what was asked: the address still says so, or it is the default, left out there."""
    value = st.session_state[key]
    if st.query_params.get_all(key) == asked:
        return True
    values = list(value) if isinstance(value, list | tuple) else [value]
    return list(map(_plain, values)) == list(map(_plain, asked))


def _plain(value: Any) -> str | float:
    """A value of a control and its spelling in an address, made equal: 1.50 and 1.5, True and true."""
    try:
        return float(str(value))
    except ValueError:
        return str(value).casefold()


def _refused(key: str, asked: list[str]) -> HydraError:
    value = st.session_state[key]
    now = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return HydraError(
        "A part of this link could not be used",
        expected="a value that the control offers",
        got=repr(f"{key}={','.join(asked)}"[:80]),
        hint="" if now in (None, "") else f"It stands at {str(now)[:80]} now.",
    )


# -- another model or other data ---------------------------------------------------------------------


@dataclass(frozen=True)
class Pick:
    """What a session shall switch to.

    Attributes:
        model, data: names.
        plan: None: the one that the session has for the model.
        done: what to say when it is there.
    """

    model: str
    data: str
    plan: Plan | None = None
    done: str = ""


def pick(*, model: str = "", data: str = "") -> None:
    """Switch the session to another model or other data: now where they are at hand, else when they are loaded.

    For callbacks: what goes wrong is shown above the page, and the session stays as it is.
    """
    state = frame.session()
    _take(Pick(model or state.model, data or state.data))


def open_settings(settings: Settings, done: str) -> None:
    """The same for a model, data and a plan from elsewhere, such as a recipe; then says `done`."""
    _take(Pick(settings.model, settings.data, settings.plan, done))


def _take(choice: Pick) -> None:
    if lab.at_hand(choice.model, choice.data):
        _switch(choice)
    else:
        st.session_state[PICKED] = choice


def settle_pick() -> Job | None:
    """Switch if what was picked is there now; the job that loads it while it is not."""
    choice: Pick | None = st.session_state.get(PICKED)
    if choice is None:
        return None
    job = frame.jobs().run(
        digest("pick", choice.model, choice.data),
        lambda job: _bring(choice, job),
        f"Loading {_what(choice)[:60]}",
        group="pick",
        queued=False,
    )
    widgets.wait_for(job, max(0.0, job.started + PATIENCE - time.monotonic()))
    if job.active:
        return job
    frame.jobs().forget(job.key)
    del st.session_state[PICKED]
    if job.state == "done":
        _switch(choice)
    elif job.error is not None:
        frame.report_problem(job.error)
    return None


def _bring(choice: Pick, job: Job) -> None:
    lab.bring_model(choice.model, progress=job.progress, cancel=job.cancel)
    lab.bring_data(choice.data, progress=job.progress, cancel=job.cancel)


def _what(choice: Pick) -> str:
    """What of a pick is new."""
    state = frame.session()
    return choice.model if choice.model != state.model else choice.data


def _switch(choice: Pick) -> None:
    st.session_state.pop(PICKED, None)  # the newest pick counts
    state = frame.session()
    try:
        if choice.plan is not None:
            choice.plan[0].check(lab.shape(choice.model))
            state.open(Settings(choice.model, choice.data, choice.plan))
            st.toast(choice.done)
        else:
            state.use_model(choice.model, lab.shape(choice.model))
            state.data = choice.data
    except HydraError as error:
        frame.report_problem(error)
