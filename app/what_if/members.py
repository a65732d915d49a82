"""Members of the ensemble, the grid of the chosen one, and ways to prune many heads at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from app import frame
from app.head_grid import Stroke, head_grid, paint_mask
from app.session import MAX_MEMBERS, Session
from app.what_if.actions import act
from hydra_core.heads.mask import HeadMask

WAYS = {"layer": "the same in every layer", "all": "best of all layers"}


def on_paint(strokes: list[Stroke]) -> None:
    act("change_mask", paint_mask(frame.session().mask, strokes))


def member_panel(state: Session, scores: Any) -> None:
    """The members, the grid of the active one, history, and tools for many heads."""
    member_bar(state)
    head_grid(
        state.mask,
        key="what_if/grid",
        on_paint=on_paint,
        scores=scores,
        title="Taylor score",
        label=f"Heads of member {state.plan.names[state.active]}: press space to prune or restore",
        disabled=state.is_locked,
    )
    st.caption(
        "This member is locked: unlock it to change its heads."
        if state.is_locked
        else "Click or drag to prune and restore. A layer's number does all its heads. Arrow keys and space work."
    )
    history_bar(state)
    prune_tools(state, scores)


def member_bar(state: Session) -> None:
    """Which member the grid shows, and what can be done with it as a whole."""
    st.session_state["what_if/member"] = state.active
    with st.container(horizontal=True, vertical_alignment="bottom", gap="xsmall"):  # one line, for few
        st.segmented_control(
            "Members",
            range(len(state.plan)),
            required=True,
            key="what_if/member",
            on_change=lambda: act("choose", st.session_state["what_if/member"]),
            format_func=lambda m: _member(state, m),
            help="Members of the ensemble, each with the heads it keeps of all heads. The grid shows the chosen "
            "member; the figures above are the ensemble's.",
        )
        _member_tools(state)


def _member_tools(state: Session) -> None:
    """Add, copy, take over, lock and remove the chosen member."""
    full, locked = len(state.plan) >= MAX_MEMBERS, state.is_locked
    _icon("add", "Add a member with all heads", act, "add_member", disabled=full)
    _icon("content_copy", "Add a copy of this member", act, "add_member", state.mask, name="copy", disabled=full)
    with st.popover("", icon=":material/input:", help="Take the heads of another member",
                    disabled=locked or len(state.plan) == 1):  # fmt: skip
        st.caption(f"Give member {state.plan.names[state.active]} the heads of another member.")
        for m, name in enumerate(state.plan.names):
            if m != state.active:
                st.button(f"Those of {name}", key=f"what_if/take/{m}", on_click=act,
                          args=("change_mask", state.plan[m]))  # fmt: skip
    _icon("lock_open" if locked else "lock",
          "Unlock this member" if locked else "Lock this member: nothing changes its heads until it is unlocked",
          act, "toggle_lock", name="lock")  # fmt: skip
    _icon("delete", "Remove this member", act, "drop_member", name="remove",
          disabled=locked or len(state.plan) == 1)  # fmt: skip


def _member(state: Session, m: int) -> str:
    lock = ":material/lock: " if state.plan.names[m] in state.locked else ""
    return f"{lock}{state.plan.names[m]} · {state.plan[m].kept}/{state.plan[m].total}"


def _icon(
    icon: str, text: str, change: Callable[..., None], *args: object, name: str = "", disabled: bool = False
) -> None:
    st.button("", icon=f":material/{icon}:", help=text, key=f"what_if/{name or icon}", on_click=change, args=args,
              disabled=disabled)  # fmt: skip


def history_bar(state: Session) -> None:
    """Undo, redo, and all heads back."""
    with st.container(horizontal=True):
        st.button("Undo", icon=":material/undo:", key="what_if/undo", on_click=act, args=("undo",),
                  disabled=not state.undo_stack)  # fmt: skip
        st.button("Redo", icon=":material/redo:", key="what_if/redo", on_click=act, args=("redo",),
                  disabled=not state.redo_stack)  # fmt: skip
        st.button("Reset", icon=":material/restart_alt:", key="what_if/reset", on_click=act, args=("reset",),
                  help="All heads of all members back", disabled=all(mask.is_full for mask in state.plan))  # fmt: skip


def prune_tools(state: Session, scores: Any) -> None:
    """Keep some heads by rank, by layer or by share, the best, the worst or random ones."""
    shape = state.plan.shape
    layers = len(shape)
    with st.expander("Keep only some heads", icon=":material/content_cut:"):
        way = st.segmented_control("How many", list(WAYS), default="layer", required=True, key="way",
                                   bind="query-params", format_func=WAYS.__getitem__,
                                   help="Every layer keeps as many, or the best stay wherever they are.")  # fmt: skip
        if way == "layer":
            keep = st.slider("Heads kept a layer", 0, max(shape), max(shape) // 2, key="keep", bind="query-params")
            share = 0
        else:
            keep = 0
            share = st.slider("Share of heads kept", 0, 100, 50, 5, key="share", bind="query-params", format="%d %%")
        first, last = (
            st.slider("In the layers", 0, layers - 1, (0, layers - 1), key="layers", bind="query-params")
            if layers > 1
            else (0, 0)
        )
        seed = int(st.number_input("Seed for random heads", 0, 9999, 0, key="seed", bind="query-params"))
        within = range(first, last + 1)

        def chosen(scores: Any, *, lowest: bool = False) -> HeadMask:
            if way == "layer":
                return HeadMask.top(scores, [min(keep, heads) for heads in shape], within, lowest=lowest)
            return HeadMask.top_ratio([-row if lowest else row for row in scores.matrix], share / 100, within)

        with st.container(horizontal=True):
            if scores is not None:
                _keep("Keep the top by Taylor", "top", state, chosen(scores))
                _keep("Keep the lowest", "lowest", state, chosen(scores, lowest=True))
            few = min(keep, *shape) if way == "layer" else round(share / 100 * min(shape))
            _keep("Keep random ones", "random", state, HeadMask.random(shape, few, seed, within))


def _keep(label: str, name: str, state: Session, mask: HeadMask) -> None:
    st.button(label, key=f"what_if/{name}", on_click=act, args=("change_mask", mask), disabled=state.is_locked)
