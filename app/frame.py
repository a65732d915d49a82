"""The frame around every page: this browser session's state, its address, its problems, the head of a page."""

from __future__ import annotations

from urllib.parse import urlencode

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from app.errors import error_box
from app.jobs import JobStore
from app.registry import page
from app.session import URL_KEYS, Session, to_query
from hydra_core.errors import HydraError

# keys under "hydra/" survive "Reset this page"
SESSION, JOBS, PROBLEMS, NOTICE = "hydra/session", "hydra/jobs", "hydra/problems", "hydra/notice"
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


def leave_notice(text: str) -> None:
    """Say something on the page that is opened next; a toast of this run would be lost with it."""
    st.session_state[NOTICE] = text


def show_notice() -> None:
    """What the page before left to be said."""
    text = st.session_state.pop(NOTICE, "")
    if text:
        st.toast(text, icon=":material/undo:", duration="long")


def start_at_top(name: str) -> None:
    """A new page starts at its top: Streamlit keeps the scroll position of the page before.

    The script runs when its text changes, so once a page.
    """
    script = f"/* {name} */ document.querySelector('[data-testid=stMain]').scrollTo(0, 0)"
    st.html(f"<script>{script}</script>", unsafe_allow_javascript=True)


def write_address(**controls: str) -> None:
    """Model, data and plan into the address, so that a reload or a copied link restores them.

    All at once: each change of the address is an entry of the browser's history, and Back should need few.

    Args:
        controls: what a page adds, by key.
    """
    query = to_query(session())
    for key in URL_KEYS:
        if key not in query and key in st.query_params:
            del st.query_params[key]
    changed = {k: v for k, v in (query | controls).items() if st.query_params.get(k) != v}
    if changed:
        st.query_params.update(changed)


def went_back() -> bool:
    """Whether the browser's Back or Forward led here: then the address counts, not what the controls stood at."""
    run = get_script_run_ctx()
    return run is not None and run.is_history_navigation


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
