"""Named settings, kept to compare with: a table of their figures, a click to open one or to measure against it."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from app import cards, frame, lab, widgets
from app.cache import digest
from app.errors import escape
from app.jobs import Job
from app.session import Session, Settings, pins_text
from app.what_if.actions import act

FIGURES = ("accuracy", "ece", "nll", "auroc_near", "auroc_far", "macs")


def pins_panel(state: Session, options: lab.Options) -> None:
    """Pin the present setting; what is pinned, with figures measured on the same samples."""
    with st.expander(f"Pinned settings ({len(state.pins)})", icon=":material/keep:", expanded=bool(state.pins)):
        with (
            st.form("what_if/pin", border=False, clear_on_submit=True),
            st.container(horizontal=True, vertical_alignment="bottom"),
        ):
            st.text_input("Name", key="what_if/pin_name", max_chars=40, placeholder=f"Setting {len(state.pins) + 1}")
            st.form_submit_button("Pin this setting", icon=":material/keep:", on_click=_pin)
        if not state.pins:
            st.caption("Pin a setting to see its figures beside the next one, or to measure changes against it.")
            return
        figures(state, options)
        _rows(state)
        st.caption(
            "Pins of this model and data travel in the address of the page."
            if pins_text(state)
            else "These pins are too long for the address: they last as long as this tab."
        )


def _pin() -> None:
    act("pin", st.session_state.get("what_if/pin_name", ""))


def figures(state: Session, options: lab.Options) -> None:
    """The pins' figures as one table."""
    pins = dict(state.pins)

    def work(job: Job) -> Any:
        return {
            name: cards.values_of(
                lab.report(pin.model, pin.data, pin.plan, options, progress=job.progress, cancel=job.cancel),
                lab.cost(pin.model, pin.plan),
            )
            for name, pin in pins.items()
        }

    key = digest("pins", options, *(f"{name}{pin}" for name, pin in pins.items()))
    found = widgets.result_of(widgets.start(key, work, "Measuring the pins", group="pins"), patience=1.0)
    if found is not None:
        widgets.show_table(pins_table(pins, found), "pins")


def pins_table(pins: dict[str, Settings], values: dict[str, dict[str, float]]) -> pd.DataFrame:
    """One row a pin: name, members, heads kept, and the figures of FIGURES that are defined."""
    rows = []
    for name, pin in pins.items():
        row: dict[str, Any] = {"pin": name, "members": len(pin.plan), "heads": sum(mask.kept for mask in pin.plan)}
        row |= {cards.ALL[f].label: values[name][f] for f in FIGURES if f in values[name]}
        rows.append(row)
    return pd.DataFrame(rows)


def _rows(state: Session) -> None:
    """A line of buttons a pin, and what changes are measured against."""
    for i, (name, pin) in enumerate(state.pins.items()):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            shown = pin == state.settings
            st.button(escape(name), key=f"what_if/open/{i}", on_click=_open, args=(name,), disabled=shown,
                      icon=":material/check:" if shown else ":material/undo:",
                      help="This is what you see" if shown else "Open this setting; undo goes back")  # fmt: skip
            st.button("", icon=":material/close:", key=f"what_if/unpin/{i}", on_click=act, args=("unpin", name),
                      help=f"Forget {escape(name)}")  # fmt: skip
    here = [name for name, pin in state.pins.items() if (pin.model, pin.data) == (state.model, state.data)]
    st.session_state["what_if/against"] = state.against if state.against in here else ""
    st.selectbox("Changes are against", ["", *here], key="what_if/against", on_change=_measure_against,
                 format_func=lambda name: name or "the unpruned model")  # fmt: skip


def _open(name: str) -> None:
    pin = frame.session().pins.get(name)
    if pin is not None:
        act("open", pin)


def _measure_against() -> None:
    frame.session().against = st.session_state["what_if/against"] or ""
