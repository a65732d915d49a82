"""Pieces that pages share: metric cards, figures with save buttons, tables with CSV, progress of long work."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app import frame
from app.charts.base import save_options
from app.errors import escape, guarded
from app.jobs import Job

T = TypeVar("T")
FITS = 5  # columns of a table that a window of 900 pixels shows


# -- numbers ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """One figure of a report and how to read it.

    Attributes:
        better: which direction is an improvement.
        style: "share" prints 0.913 as 91.3 %, "count" 1,234,567 as 1.23 M, "plain" four decimals.
    """

    label: str
    better: Literal["high", "low"]
    style: Literal["share", "count", "plain"] = "plain"
    help: str = ""


def number(value: float | None, style: str = "plain") -> str:
    """A value as cards and tables print it; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if style == "share":
        return f"{100 * value:.1f} %"
    return _count(value) if style == "count" else f"{value:.4f}"


def change(now: float | None, before: float | None, style: str = "plain") -> str:
    """The signed change as cards print it; "" where it rounds to nothing or is unknown."""
    if now is None or before is None or not (math.isfinite(now) and math.isfinite(before)):
        return ""
    diff = now - before
    if style == "share":
        text = f"{100 * diff:+.1f} pt"
    elif style == "count" and not before:
        text = f"{diff:+.0f}"
    elif style == "count":
        percent = 100 * diff / before
        text = f"{percent:+.1f} %" if abs(percent) >= 0.05 else f"{percent:+.1g} %"
    else:
        text = f"{diff:+.4f}"
    return "" if not any(c in "123456789" for c in text) else text


def _count(value: float) -> str:
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.2f} {unit}"
    return f"{value:.0f}"


def metric_cards(
    cards: Mapping[str, Card],
    now: Mapping[str, float],
    before: Mapping[str, float] | None = None,
    *,
    notes: Mapping[str, str] | None = None,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    width: int = 138,
) -> None:
    """A row of cards that wraps; each with its change, an arrow for its direction and a word for its worth.

    Args:
        cards: what to show, by the name of the value.
        now, before: values by name; missing ones are shown as a dash.
        notes: a few words below a card, by name; every card gets the room where there are any.
        intervals: (low, high) of `now` by name, printed below; a value before that lies inside leaves the change open.
    """
    words = None if notes is None else {**notes, **_ranges(cards, intervals or {})}
    with st.container(horizontal=True, gap="xsmall"):
        for name, card in cards.items():
            was, interval = (before or {}).get(name), (intervals or {}).get(name)
            worth = _worth(card, now.get(name), was, interval)
            if words is None:
                _metric(card, now.get(name), before, name, worth, width)
                continue
            with st.container(width=width, gap=None):
                _metric(card, now.get(name), before, name, worth, width)
                st.caption(words.get(name, "") or "\u2003")


def _ranges(cards: Mapping[str, Card], intervals: Mapping[str, tuple[float, float]]) -> dict[str, str]:
    """'91.2 to 93.8' by name."""
    times = {name: (100, 1) if cards[name].style == "share" else (1, 4) for name in intervals if name in cards}
    return {
        name: " to ".join(f"{scale * end:.{digits}f}" for end in intervals[name])
        for name, (scale, digits) in times.items()
    }


def _worth(card: Card, now: float | None, before: float | None, interval: tuple[float, float] | None) -> str:
    """Whether a change is for the better; "unclear" where the value before lies in the interval of the one now."""
    if now is None or before is None:
        return ""
    if interval is not None and interval[0] <= before <= interval[1]:
        return "unclear"
    return "better" if (now > before) == (card.better == "high") else "worse"


def _metric(
    card: Card, value: float | None, before: Mapping[str, float] | None, name: str, worth: str, width: int
) -> None:
    delta = change(value, (before or {}).get(name), card.style)
    known: Literal["normal", "inverse"] = "normal" if card.better == "high" else "inverse"
    st.metric(
        card.label,
        number(value, card.style),
        delta if delta else (0 if before is not None else None),
        delta_color="off" if worth == "unclear" else known,
        delta_description=worth if delta else ("no change" if before is not None else None),
        help=card.help or None,
        width=width,
    )


# -- pictures and tables -----------------------------------------------------------------------


def show_figure(
    figure: go.Figure, name: str, alt: str, *, key: str | None = None, selectable: bool = False, **options: Any
) -> Any:
    """A figure whose camera button saves `name`.png or .svg (side bar), with a text for screen readers.

    Args:
        selectable: points can be chosen by click, box and lasso; the page runs again, and the selection comes back.
    """
    config = save_options(name, st.session_state.get(frame.PICTURES, "png"), selectable=selectable)
    if selectable:
        options["on_select"] = "rerun"
    return st.plotly_chart(figure, key=key or f"figure/{name}", config=config, alt=alt, **options)


def side_by_side(width: int = 475) -> tuple[Any, Any]:
    """Two places for pictures: beside each other where there is room, else one above the other."""
    row = st.container(horizontal=True, gap="medium")
    return row.container(width=width), row.container(width="stretch")


def csv_button(table: pd.DataFrame, name: str, label: str = "CSV") -> None:
    """A button that saves a table; the text is made on the click."""
    st.download_button(
        label,
        lambda: table.to_csv(index=False).encode(),
        file_name=f"{name}.csv",
        mime="text/csv",
        icon=":material/download:",
        key=f"csv/{name}",
        on_click="ignore",
    )


def show_table(table: pd.DataFrame, name: str, *, pinned: int = 1, **options: Any) -> Any:
    """A sortable table with a CSV button below; the first `pinned` columns of a wide one stay when it is scrolled."""
    wide = len(table.columns) > FITS
    if wide:
        pins = {column: st.column_config.Column(pinned=True) for column in table.columns[:pinned]}
        options["column_config"] = pins | options.get("column_config", {})
    shown = st.dataframe(table, hide_index=True, key=f"table/{name}", **options)
    with st.container(horizontal=True, vertical_alignment="center"):
        csv_button(table, name)
        if wide:
            scroll_hint()
    return shown


def scroll_hint() -> None:
    """A table that is cut at the edge shows no bar before the mouse is over it."""
    st.caption("Scroll the table sideways for columns that do not fit.", width="content")


def pick(
    label: str,
    options: Sequence[T],
    key: str,
    default: T,
    *,
    format_func: Callable[[T], str] = str,
    **look: Any,
) -> T:
    """A selectbox whose choice stands in the address, and whose options may change from run to run.

    The address may name an option or its label; what is not among the options (any more) becomes the default.
    Streamlit's own binding knows labels alone, and drops the choice where options change.
    """
    if key not in st.session_state or frame.went_back():
        st.session_state[key] = asked_for(key, options, default, format_func)
    elif st.session_state[key] not in options:
        st.session_state[key] = default
    chosen = st.selectbox(label, options, key=key, format_func=format_func, **look)
    if st.query_params.get(key) != str(chosen):
        st.query_params[key] = str(chosen)
    return chosen


def asked_for(key: str, options: Iterable[T], default: T, format_func: Callable[[T], str] = str) -> T:
    """The option that the address names, as itself or by its label; else the default."""
    asked = st.query_params.get(key)
    named = [option for option in options if asked in (str(option), format_func(option))]
    if named:
        st.session_state.get(frame.ASKED, {}).pop(key, None)
    return next(iter(named), default)


# -- long work -----------------------------------------------------------------------------------


def start(key: str, work: Callable[[Job], T], title: str, *, group: str = "") -> Job:
    """Run `work(job)` in a worker of this session; equal keys are run once. See `result_of` and `JobStore.run`."""
    return frame.jobs().run(key, work, title, group=group)


def wait_for(job: Job, seconds: float) -> None:
    """Wait until a job has ended, at most `seconds`; a newer click ends the wait and this run of the page."""
    end = time.monotonic() + seconds
    while job.active and (left := end - time.monotonic()) > 0:
        job.wait(min(left, 0.05))
        st.session_state.get(frame.SESSION)  # Streamlit looks for newer clicks where a script touches the session


def result_of(job: Job, *, patience: float = 1.0) -> Any | None:
    """The result of a job, or None while it is not there (then its progress has been drawn).

    Waits `patience` seconds first, so that quick work shows no bar at all. The page runs again
    when the work ends.

    Raises:
        HydraError: the work failed; the page's guard shows it.
    """
    wait_for(job, patience)
    if job.state == "done":
        return job.result
    if job.error is not None:
        frame.jobs().forget(job.key)  # so that "Try again" does
        raise job.error
    job_view(job)
    return None


def parts_of(job: Job, *, patience: float = 1.0) -> list[Any]:
    """What a job has published so far. While it runs its progress is drawn, and the page runs again for each new part.

    Waits up to `patience` seconds for quick work to end.

    Raises:
        HydraError: the work failed; the page's guard shows it.
    """
    job.wait(patience if job.active and not job.partial else 0)
    if job.error is not None:
        frame.jobs().forget(job.key)
        raise job.error
    ended, parts = job.state == "done", list(job.partial)  # in this order: a job publishes before it ends
    if not ended:
        job_view(job, seen=len(parts))
    return parts


def job_view(job: Job, *, seen: int | None = None) -> None:
    """Progress and a cancel button while a job runs, a way to run it again when it was cancelled.

    Args:
        seen: parts that the page has drawn; it runs again when there are more. None: it does not wait for parts.
    """
    if job.state == "cancelled":
        st.info(f"{escape(job.title)}: cancelled after {job.seconds:.0f} s.", icon=":material/block:")
        st.button("Run again", key=f"job/{job.key}/again", on_click=frame.jobs().forget, args=(job.key,))
        return

    @st.fragment(run_every=0.5)
    @guarded
    def poll() -> None:
        if not job.active or (seen is not None and len(job.partial) > seen):
            st.rerun()
        st.progress(job.fraction, text=f"{escape(job.title)}: {_status(job)}")
        st.button(
            "Cancel",
            key=f"job/{job.key}/stop",
            on_click=job.stop,
            icon=":material/close:",
            disabled=job.cancel.is_set(),
        )

    with st.container():  # Streamlit drops the fragment's own one where a poll overtakes a slow page: it would go blank
        poll()


def _status(job: Job) -> str:
    if job.cancel.is_set():
        return "stopping at the next step"
    if job.state == "waiting":
        return "waiting for other work to end"
    seconds = time.monotonic() - job.started
    left = f", about {seconds / job.fraction - seconds:.0f} s left" if job.fraction > 0.05 and seconds > 2 else ""
    return f"{escape(job.note) or 'working'} ({seconds:.0f} s{left})"
