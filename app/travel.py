"""Ways from one page to another with everything in place: settings in the session, controls in the address."""

from __future__ import annotations

from typing import NoReturn

import streamlit as st

from app import frame
from app.registry import PAGES, page
from app.session import Settings, to_query

REPLACED = "This opened another plan. **Undo** on What if brings yours back, with its model and data."


def has_page(name: str) -> bool:
    """Whether a page is there (its name is its file's stem)."""
    return any(entry.name == name for entry in PAGES)


def go(name: str, settings: Settings | None = None, **controls: object) -> NoReturn:
    """Open a page. Where that replaces the reader's settings it says so; undo on What if brings them back.

    Args:
        settings: model, data and plan to open it with; None: those of the session.
        controls: values of the page's controls that are bound to the address, by key.
    """
    state = frame.session()
    if settings is not None and settings != state.settings:
        state.open(settings)
        frame.leave_notice(REPLACED)
    query = to_query(state) | {key: str(value) for key, value in controls.items()}
    st.switch_page(page(name).path, query_params=query)
