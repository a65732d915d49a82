"""What if these heads go? Prune with a click, and watch calibration and OOD detection."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from app import cards, frame, lab, widgets, work
from app.charts.distributions import confidence_histogram, risk_coverage
from app.charts.reliability import describe_bins, reliability_figure
from app.head_grid import Stroke, head_grid, paint_mask
from app.session import MAX_MEMBERS, Session
from hydra_core import metrics
from hydra_core.errors import HydraError
from hydra_core.heads.mask import HeadMask, Plan

PICTURES = ("Reliability", "Confidence", "Risk and coverage")


def act(change: str, *args: object) -> None:
    """A change of the session from a callback; what goes wrong is shown above the page."""
    try:
        getattr(frame.session(), change)(*args)
    except HydraError as error:
        frame.report_problem(error)


def on_paint(strokes: list[Stroke]) -> None:
    state = frame.session()
    act("change_mask", paint_mask(state.mask, strokes))


# -- settings ------------------------------------------------------------------------------------


def settings() -> lab.Options:
    with st.expander("Data and bins", icon=":material/settings:"), st.container(horizontal=True):
        final = st.toggle(
            "Final check on test data",
            key="final",
            bind="query-params",
            help="Settings are chosen on validation data. Look at test data last, and change nothing after it.",
        )
        bins = st.slider("Bins", 5, 30, 15, key="bins", bind="query-params", width=220)
        kind = st.segmented_control(
            "Bins of",
            ["width", "count"],
            default="width",
            required=True,
            key="bins_kind",
            bind="query-params",
            format_func=lambda kind: f"equal {kind}",
        )
    if final:
        st.warning(
            "**Test data: look, do not choose.** A setting picked because it does well here is no longer tested by it.",
            icon=":material/lock:",
        )
    return lab.Options(split="test" if final else "val", bins=bins, bins_kind="count" if kind == "count" else "width")


# -- left: members, tools, the grid --------------------------------------------------------------


def member_bar(state: Session) -> None:
    st.session_state["what_if/member"] = state.active
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.segmented_control(
            "Members of the ensemble",
            range(len(state.plan)),
            required=True,
            key="what_if/member",
            on_change=lambda: act("choose", st.session_state["what_if/member"]),
            format_func=lambda m: f"{state.plan.names[m]} · {state.plan[m].kept}/{state.plan[m].total}",
            help="Heads kept of all heads. The grid shows the chosen member; the figures above are the ensemble's.",
        )
        full = len(state.plan) >= MAX_MEMBERS
        st.button(
            "",
            icon=":material/add:",
            help="Add a member with all heads",
            key="what_if/add",
            on_click=act,
            args=("add_member",),
            disabled=full,
        )
        st.button(
            "",
            icon=":material/content_copy:",
            help="Add a copy of this member",
            key="what_if/copy",
            on_click=act,
            args=("add_member", state.mask),
            disabled=full,
        )
        st.button("", icon=":material/delete:", help="Remove this member", key="what_if/remove",
                  on_click=act, args=("drop_member",), disabled=len(state.plan) == 1)  # fmt: skip


def history_bar(state: Session) -> None:
    with st.container(horizontal=True):
        st.button(
            "Undo",
            icon=":material/undo:",
            key="what_if/undo",
            on_click=act,
            args=("undo",),
            disabled=not state.undo_stack,
        )
        st.button(
            "Redo",
            icon=":material/redo:",
            key="what_if/redo",
            on_click=act,
            args=("redo",),
            disabled=not state.redo_stack,
        )
        st.button("Reset", icon=":material/restart_alt:", key="what_if/reset", on_click=act, args=("reset",),
                  help="All heads of all members back", disabled=all(mask.is_full for mask in state.plan))  # fmt: skip


def prune_tools(state: Session, scores: object) -> None:
    layers = len(state.plan.shape)
    with st.expander("Keep only some heads", icon=":material/content_cut:"):
        keep = st.slider("Heads kept a layer", 0, max(state.plan.shape), max(state.plan.shape) // 2, key="keep",
                         bind="query-params")  # fmt: skip
        first, last = (
            st.slider("In the layers", 0, layers - 1, (0, layers - 1), key="layers", bind="query-params")
            if layers > 1
            else (0, 0)
        )
        seed = st.number_input("Seed for random heads", 0, 9999, 0, key="seed", bind="query-params")
        within, keeps = range(first, last + 1), [min(keep, heads) for heads in state.plan.shape]
        with st.container(horizontal=True):
            if scores is not None:
                top = HeadMask.top(scores, keeps, within)
                st.button("Keep the top by Taylor", key="what_if/top", on_click=act, args=("change_mask", top))
                low = HeadMask.top(scores, keeps, within, lowest=True)
                st.button("Keep the lowest", key="what_if/lowest", on_click=act, args=("change_mask", low))
            random = HeadMask.random(state.plan.shape, min(keeps), int(seed), within)
            st.button("Keep random ones", key="what_if/random", on_click=act, args=("change_mask", random))


def left(state: Session) -> None:
    scores = widgets.result_of(work.score(state), patience=3.0)
    member_bar(state)
    head_grid(
        state.mask,
        key="what_if/grid",
        on_paint=on_paint,
        scores=scores,
        title="Taylor score",
        label=f"Heads of member {state.plan.names[state.active]}: press space to prune or restore",
    )
    st.caption("Click or drag to prune and restore. A layer's number does all its heads. Arrow keys and space work.")
    history_bar(state)
    prune_tools(state, scores)


# -- right: pictures -----------------------------------------------------------------------------


def right(state: Session, options: lab.Options, now: Any, before: Any) -> None:
    picture = st.segmented_control(
        "Picture", PICTURES, default=PICTURES[0], required=True, key="picture", bind="query-params",
        label_visibility="collapsed",
    )  # fmt: skip
    if picture == "Reliability":
        bins = now.reliability
        widgets.show_figure(reliability_figure(bins, before.reliability), "reliability", describe_bins(bins))
        widgets.csv_button(bins_table(bins), "reliability-bins", "Bins as CSV")
    elif picture == "Confidence":
        chosen, probs = lab.probabilities(state.model, state.data, state.plan, options)
        confidence = {name: p.max(-1) for name, p in probs.items()}
        correct = probs[""].argmax(-1) == chosen.id.labels
        id_confidence = confidence.pop("")
        figure = confidence_histogram(id_confidence, correct, confidence)
        widgets.show_figure(figure, "confidence", "Histogram of confidences of right, wrong and OOD samples")
    else:
        curves = {}
        for name, plan in (("pruned", state.plan), ("unpruned", lab.unpruned(state.model))):
            chosen, probs = lab.probabilities(state.model, state.data, plan, options)
            curve = metrics.risk_coverage(probs[""].max(-1), probs[""].argmax(-1) == chosen.id.labels)
            curves[name] = curve.coverage, curve.risk
        widgets.show_figure(risk_coverage(curves), "risk-coverage", "Error rate over the share of samples answered")


def bins_table(bins: Any) -> pd.DataFrame:
    return pd.DataFrame(
        {"from": bins.edges[:-1], "to": bins.edges[1:], "samples": bins.count, "accuracy": bins.accuracy,
         "confidence": bins.confidence}
    )  # fmt: skip


def members_table(state: Session, options: lab.Options) -> None:
    """Each member alone; its logits are there already."""
    rows = []
    for name, mask in zip(state.plan.names, state.plan, strict=True):
        alone = Plan((mask,))
        values = cards.values_of(lab.report(state.model, state.data, alone, options), lab.cost(state.model, mask))
        rows.append({"member": name, "heads": mask.kept, **{cards.ALL[k].label: v for k, v in values.items()}})
    with st.expander(f"Each of the {len(rows)} members alone", icon=":material/table_rows:"):
        widgets.show_table(pd.DataFrame(rows), "members")


# -- the page ------------------------------------------------------------------------------------


def page() -> None:
    state = frame.page_head("what_if")
    answer = st.container()
    with st.container(horizontal=True, gap="medium"):  # side by side where there is room, else one above the other
        grid, side = st.container(width=430), st.container(width="stretch")
    pictures, below = side.container(), side.container()
    with below:
        options = settings()
    job = work.evaluate(state, options)  # first in the queue: the answer matters more than the colours
    with grid:
        left(state)
    with answer:
        both = widgets.result_of(job, patience=4.0)
    if both is None:
        return
    now, before = both
    with answer:
        values = cards.values_of(now, lab.cost(state.model, state.plan))
        base = cards.values_of(before, lab.cost(state.model, HeadMask.full(state.plan.shape)))
        shown = {name: card for name, card in cards.ALL.items() if name in values}
        widgets.metric_cards(shown, values, base)
        st.caption(f"Changes are against the unpruned model. {lab.sample(state.data, options).note}.")
    with pictures:
        right(state, options, now, before)
    with below:
        if len(state.plan) > 1:
            members_table(state, options)


page()
