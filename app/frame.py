"""The frame around every page: this browser session's state, its address, its problems, the head of a page."""

from __future__ import annotations

from urllib.parse import urlencode

import streamlit as st

from app.errors import error_box
from app.jobs import JobStore
from app.registry import page
from app.session import URL_KEYS, Session, to_query
from hydra_core.errors import HydraError

# keys under "hydra/" survive "Reset this page"
SESSION, JOBS, PROBLEMS = "hydra/session", "hydra/jobs", "hydra/problems"
ASKED = "hydra/asked"  # {control: values} that the address of a new session asked for, until the control is there
PICTURES = "hydra/pictures"  # how charts are saved: "png" or "svg"


def session() -> Session:
    """The state of this browser session; `app.arrival` makes it from the address before a page runs."""
    return st.session_state[SESSION]


def jobs() -> JobStore:
    """The long work of this browser session."""
    if JOBS not in st.session_state:
        st.session_state[JOBS] = JobStore()
    return st.session_state[JOBS]


def report_problem(error: HydraError) -> None:
    """Show a problem above the page until it is dismissed (for callbacks, which cannot draw)."""
    st.session_state.setdefault(PROBLEMS, []).append(error)


def write_address() -> None:
    """Model, data and plan into the address, so that a reload or a copied link restores them."""
    query = to_query(session())
    for key in URL_KEYS:
        if key in query and st.query_params.get(key) != query[key]:
            st.query_params[key] = query[key]
        elif key not in query and key in st.query_params:
            del st.query_params[key]


def link() -> str:
    """The address that restores this session on this page, with the page's bound controls."""
    base = (st.context.url or "").split("?")[0]
    controls = {key: st.query_params.get_all(key) for key in st.query_params}  # a list of choices repeats its key
    return f"{base}?{urlencode(controls | to_query(session()), doseq=True, safe='./+,')}"


def page_head(name: str) -> Session:
    """Title and question of a page, and what of the address could not be used; returns the session."""
    entry = page(name)
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):  # one line where there is room
        st.title(entry.title, anchor=False, width="content")
        st.markdown(f"**{entry.question}**", width="content")
    return session()


def show_problems() -> None:
    """Boxes for what of the address or of a typed name could not be used."""
    problems = st.session_state.get(PROBLEMS, [])
    for error in problems:
        error_box(error, warning=True)
    if problems:
        st.button("Dismiss", key="frame/dismiss", on_click=problems.clear)
