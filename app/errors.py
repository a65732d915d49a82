"""What a user sees when something goes wrong: never a traceback.

A HydraError is the user's to mend: its text says what was expected, what came, and what to do.
Anything else is ours: an id, the details in the server's console, and ways on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import streamlit as st

from app.jobs import log_incident
from hydra_core import markdown
from hydra_core.errors import HydraError

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def guard() -> Iterator[None]:
    """Wrap a page or a part of one: errors inside become a view (reruns and stops pass through)."""
    try:
        yield
    except HydraError as error:
        error_box(error)
        _ways_on()
    except Exception as error:
        broken_view(log_incident(error))


def guarded(part: F) -> F:
    """`guard` as a decorator; fragments need one of their own, as they run without their page.

    Examples:
        @st.fragment
        @guarded
        def panel(): ...
    """

    @functools.wraps(part)
    def run(*args: Any, **kwargs: Any) -> Any:
        with guard():
            return part(*args, **kwargs)

    return run  # type: ignore[return-value]


def error_box(error: HydraError, *, warning: bool = False) -> None:
    """A HydraError as a box: the problem, then expected, got and what to do, each where known."""
    lines = [f"**{escape(error.problem.rstrip('.'))}.**"]
    if error.expected is not None:
        lines.append(f"Expected: {escape(error.expected)}.")
    if error.got is not None:
        lines.append(f"Got: {escape(error.got)}.")
    if error.hint:
        lines.append(escape(error.hint))
    box = st.warning if warning else st.error
    box("  \n".join(lines), icon=":material/info:" if warning else ":material/error:")


def broken_view(incident: str) -> None:
    """Something of ours broke: an id to look for in the server's console, and ways on."""
    st.error(
        f"**Something broke on our side.** The details are in the server's console under `{incident}`. "
        "Your plan is still in the address of this page.",
        icon=":material/report:",
    )
    _ways_on()


def _ways_on() -> None:
    with st.container(horizontal=True):
        st.button("Try again", icon=":material/refresh:", key="errors/again")
        st.button("Reset this page", on_click=reset_page, icon=":material/restart_alt:", key="errors/reset")
        st.button("Start over", on_click=start_over, icon=":material/home:", key="errors/over")


def reset_page() -> None:
    """Forget the controls of all pages; model, data and plan stay."""
    for key in list(st.session_state):
        if not str(key).startswith("hydra/"):
            del st.session_state[key]


def start_over() -> None:
    """Forget everything, the address included."""
    st.session_state.clear()
    st.query_params.clear()


def escape(text: object) -> str:
    """Text from outside as plain text inside Streamlit's Markdown, which knows `:icons:` too."""
    return markdown.escape(text).replace(":", "\\:")
