"""Which heads matter? Two criteria side by side, how far they agree, heads by rank, and a room for each head."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import frame, lab, travel, widgets, work
from app.charts.heatmap import head_heatmap
from app.charts.scatter import agreement_figure
from app.errors import escape
from app.head_grid import Stroke, head_grid, paint_mask, paint_selection
from app.room import all_heads, head_of, room, text_of
from app.session import Session
from hydra_core.heads.mask import HeadMask

HALF = 460  # pixels
CHOSEN, CHOSEN_FOR = "heads/chosen", "heads/chosen_for"


def pick(side: str, default: str) -> str:
    criteria = lab.criteria()
    names = list(criteria)
    return st.selectbox(
        "Criterion",
        names,
        index=names.index(default) if default in names else 0,
        format_func=lambda name: criteria[name].label,
        key=f"criterion_{side}",
        bind="query-params",
        help="What makes a head important. Every criterion is measured on validation data of the unpruned model.",
    )


def one_side(state: Session, side: str, default: str) -> Any:
    """A picker, its heat map and its sentence; returns the scores when they are there."""
    name = pick(side, default)
    criterion = lab.criteria()[name]
    st.caption(criterion.about)
    scores = widgets.result_of(work.score(state, name, f"Scoring by {criterion.label}"), patience=3.0)
    if scores is None:
        return None
    figure = head_heatmap(scores.values, title=criterion.label, low=scores.low, high=scores.high)
    best = scores.frame().sort_values("rank").iloc[0]
    alt = f"Heads by {criterion.label}; the highest is layer {best['layer']:.0f}, head {best['head']:.0f}"
    widgets.show_figure(figure, f"heads-{name}", alt, key=f"heads/{side}")
    return scores


def answer(scores: Any, label: str) -> None:
    frame_ = scores.frame().sort_values("rank")
    top = ", ".join(f"{r.layer}.{r.head}" for r in frame_.head(6).itertuples())
    low = ", ".join(f"{r.layer}.{r.head}" for r in frame_.tail(6).itertuples())
    st.markdown(
        f"By **{label}** the six heads that matter most are **{top}**, "
        f"and the six that matter least are {low} (layer.head)."
    )


def choose(state: Session, scores: Any, label: str) -> None:
    """Choose heads by hand or by rank, and take the choice along."""
    st.subheader("Choose heads and carry them along", anchor=False)
    if st.session_state.get(CHOSEN_FOR) != state.plan.shape:  # another model: its heads are others
        st.session_state[CHOSEN], st.session_state[CHOSEN_FOR] = (), state.plan.shape
    selected = st.session_state[CHOSEN]

    def on_paint(strokes: list[Stroke]) -> None:
        st.session_state[CHOSEN] = chosen = paint_selection(selected, strokes)
        fresh = [head for head in strokes[-1].cells if head in chosen]
        if len(fresh) == 1:
            st.session_state["head"] = text_of(fresh[0])  # a click opens the head's room

    with st.container(horizontal=True, gap="medium"):
        with st.container(width=430):
            head_grid(state.mask, key="heads/grid", on_paint=on_paint, scores=scores, title=label, mode="select",
                      selected=selected, label="Heads: press space to choose")  # fmt: skip
            st.caption("Click or drag to choose; a click also opens the head's room below. Arrow keys and space work.")
        with st.container(width="stretch"):
            carry(state, scores, selected)
            door(state)


def door(state: Session) -> None:
    """Whose room is open."""
    st.selectbox("Enter the room of a head", all_heads(state), index=None, key="head", bind="query-params",
                 placeholder="layer.head", help="Named layer.head, counted from 0.", width=260)  # fmt: skip


def carry(state: Session, scores: Any, selected: tuple[tuple[int, int], ...]) -> None:
    """Prune the member that What-if edits: by the chosen heads, or by rank."""
    name = state.plan.names[state.active]
    st.markdown(f"**{len(selected)} chosen**: {', '.join(map(text_of, selected)) or 'none yet'}")
    with st.container(horizontal=True):
        if st.button(f"Prune them in member {name}, open What if", type="primary", key="heads/prune",
                     icon=":material/content_cut:", disabled=not selected):  # fmt: skip
            frame.session().change_mask(paint_mask(state.mask, [Stroke(selected, False)]))
            travel.go("what_if")
        st.button("Choose none", key="heads/none", on_click=st.session_state.update, args=({CHOSEN: ()},),
                  disabled=not selected)  # fmt: skip
    most = max(state.plan.shape)
    st.markdown("**Or by rank** of the left criterion")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        keep = st.slider("Keep in each layer", 0, most, most // 2, key="top", bind="query-params", width=260)
        mask = HeadMask.top(scores, [min(keep, heads) for heads in state.plan.shape])
        if st.button(f"Prune member {name} so", key="heads/carry", icon=":material/content_cut:"):
            frame.session().change_mask(mask)
            st.toast(f"Member {name} keeps {mask.kept} of {mask.total} heads. Look at What if.")


def two() -> tuple[Any, Any]:
    """Two containers side by side where there is room, else one above the other."""
    with st.container(horizontal=True, gap="medium"):
        return st.container(width=HALF), st.container(width=HALF)


def page() -> None:
    state = frame.page_head("heads")
    top = st.container()
    sides = two()
    with sides[0]:
        left = one_side(state, "left", "taylor")
    with sides[1]:
        right = one_side(state, "right", "magnitude")
    if left is None or right is None:
        door(state)  # a control that is not drawn while scores are made would lose its place in the address
        return
    criteria = lab.criteria()
    labels = [criteria[scores.criterion].label for scores in (left, right)]
    with top:
        answer(left, labels[0])
    ranked, agree = two()
    with agree:
        figure, rho = agreement_figure(left, right, labels)
        st.markdown(f"Rank correlation (Spearman) of the two: **{rho:+.2f}**")
        widgets.show_figure(
            figure, "agreement", f"Each head by {labels[0]} and {labels[1]}, rank correlation {rho:.2f}"
        )
    with ranked:
        table, names = left.frame(), (f" ({labels[0]})", f" ({labels[1]})")
        if left.criterion != right.criterion:  # else both halves would have the same names
            table = table.merge(right.frame(), on=["layer", "head"], suffixes=names)
        table = table.dropna(axis=1, how="all")
        four = {name: st.column_config.NumberColumn(format="%.4f") for name in table if table[name].dtype == float}
        widgets.show_table(table, "heads", pinned=2, height=360, column_config=four)
    st.caption(f"Measured on {escape(lab.sample(state.data).note)}.")
    choose(state, left, labels[0])
    if st.session_state.get("head") in all_heads(state):
        room(state, head_of(st.session_state["head"]))


page()
