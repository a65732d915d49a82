"""The frame around every page: this browser session's state, its address, the side bar, the head of a page."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlencode

import streamlit as st

from app import lab
from app.errors import error_box
from app.jobs import JobStore
from app.registry import page
from app.session import URL_KEYS, Session, from_query, to_query
from hydra_core.errors import HydraError

# keys under "hydra/" survive "Reset this page"
SESSION, JOBS, PROBLEMS = "hydra/session", "hydra/jobs", "hydra/problems"
PICTURES = "hydra/pictures"  # how charts are saved: "png" or "svg"


def session() -> Session:
    """The state of this browser session; made from the address on the first call.

    Raises:
        HydraError: not even the default model or data can be loaded.
    """
    if SESSION not in st.session_state:
        made, problems = from_query(
            st.query_params.to_dict(),
            default_model=lab.default_model(),
            default_data=lab.default_data(),
            check_model=lab.model,
            check_data=lab.data,
            shape_of=lab.shape,
        )
        st.session_state[SESSION] = made
        st.session_state[PROBLEMS] = problems
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
    return f"{base}?{urlencode({**st.query_params.to_dict(), **to_query(session())}, safe='./+,')}"


def page_head(name: str) -> Session:
    """Title and question of a page, and what of the address could not be used; returns the session."""
    entry = page(name)
    st.title(entry.title, anchor=False)
    st.markdown(f"**{entry.question}**")
    return session()


def show_problems() -> None:
    """Boxes for what of the address or of a typed name could not be used."""
    problems = st.session_state.get(PROBLEMS, [])
    for error in problems:
        error_box(error, warning=True)
    if problems:
        st.button("Dismiss", key="frame/dismiss", on_click=problems.clear)


def sidebar() -> None:
    """Model and data pickers, and the link."""
    state = session()
    with st.sidebar:
        _picker("Model", "model", state.model, lab.model_names(), _use_model, "such as timm/vit_tiny_patch16_224")
        _picker("Data", "data", state.data, lab.data_names(), _use_data, "")
        with st.popover("Copy link", icon=":material/link:", width="stretch"):
            st.caption("This link restores model, data, plan and page.")
            st.code(link(), language=None, wrap_lines=True)
        picture_kind()
        st.caption(
            "Your settings live in the address of this page: reload it, bookmark it or send it. "
            "Nothing is stored on the server."
        )


def _picker(
    label: str, what: str, current: str, names: tuple[str, ...], choose: Callable[[], None], example: str
) -> None:
    key = f"hydra/pick_{what}"
    options = list(names) if current in names else [current, *names]
    st.session_state[key] = current  # the session is the truth; the widget shows it
    st.selectbox(
        label,
        options,
        key=key,
        on_change=choose,
        accept_new_options=bool(example),
        help=f"Pick one, or type a name {example}." if example else None,
    )


def _use_model() -> None:
    name = st.session_state["hydra/pick_model"]
    try:
        session().use_model(name, lab.shape(name))
    except HydraError as error:
        report_problem(error)


def _use_data() -> None:
    name = st.session_state["hydra/pick_data"]
    try:
        lab.data(name)
        session().data = name
    except HydraError as error:
        report_problem(error)


def picture_kind() -> None:
    """The side bar's choice of how pictures are saved."""
    st.segmented_control(
        "Save pictures as",
        ["png", "svg"],
        default="png",
        required=True,
        key=PICTURES,
        format_func=str.upper,
        persist_state="session",
        help="What the camera button of every chart saves.",
    )
