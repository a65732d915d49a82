"""The side bar: pickers of model and data, the link, how pictures are saved."""

from __future__ import annotations

import streamlit as st

from app import arrival, bring, frame, lab, widgets


def draw() -> None:
    """The side bar; while something picked is being loaded, its progress stands below the pickers."""
    loading = arrival.settle_pick()  # first: the pickers show what the session has
    state = frame.session()
    with st.sidebar:
        _picker("Model", "model", state.model, lab.model_names(), "such as timm/vit_tiny_patch16_224")
        _picker("Data", "data", state.data, lab.data_names(), "")
        if loading is not None:
            widgets.job_view(loading)
        with st.popover("Copy link", icon=":material/link:", width="stretch"):
            st.caption("This link restores model, data, plan and page.")
            st.code(frame.link(), language=None, wrap_lines=True)
        picture_kind()
        st.caption(
            "Your settings live in the address of this page: reload it, bookmark it or send it. "
            "Nothing is stored on the server."
        )


def _picker(label: str, what: str, current: str, names: tuple[str, ...], example: str) -> None:
    key = f"hydra/pick_{what}"
    options = list(names) if current in names else [current, *names]
    st.session_state[key] = current  # the session is the truth; the widget shows it
    st.selectbox(
        label,
        options,
        key=key,
        format_func=bring.title_of if what == "model" else bring.data_title,
        on_change=_picked,
        args=(what, key),
        accept_new_options=bool(example),
        help=f"Pick one, or type a name {example}." if example else None,
    )


def _picked(what: str, key: str) -> None:
    arrival.pick(**{what: st.session_state[key]})


def picture_kind() -> None:
    """The choice of how pictures are saved."""
    st.segmented_control(
        "Save pictures as",
        ["png", "svg"],
        default="png",
        required=True,
        key=frame.PICTURES,
        format_func=str.upper,
        persist_state="session",
        help="What the camera button of every chart saves.",
    )
