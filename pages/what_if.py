"""What if these heads go? Prune with a click, and watch calibration and OOD detection."""

from __future__ import annotations

import streamlit as st

from app import frame, lab, widgets, work
from app.errors import escape
from app.lab import live
from app.session import Session
from app.what_if.answer import proof_panel, reference_plan, show_answer, show_intervals
from app.what_if.members import member_panel
from app.what_if.pictures import pictures
from app.what_if.pins import pins_panel


def settings(state: Session) -> lab.Options:
    """On which samples, in which bins, by which OOD score."""
    with st.expander("Data, bins and OOD score", icon=":material/settings:"), st.container(horizontal=True):
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
        names = live.ood_score_names(members=len(state.plan))
        score = st.selectbox(
            "OOD score",
            list(names),
            key="ood_score",
            bind="query-params",
            format_func=lambda name: names[name][0],
            width=220,
            help="What AUROC and FPR95 rank samples by. " + " ".join(f"**{a}**: {b}" for a, b in names.values()),
        )
    if final:
        st.warning(
            "**Test data: look, do not choose.** A setting picked because it does well here is no longer tested by it.",
            icon=":material/lock:",
        )
    return lab.Options(
        split="test" if final else "val",
        bins=bins,
        bins_kind="count" if kind == "count" else "width",
        ood_score=score or "msp",
    )


def measured_on(state: Session, options: lab.Options) -> None:
    """One line below the cards: what changes are against, and on which samples; the OOD sets are in its help."""
    against = f"the pin **{escape(state.against)}**" if state.reference is not None else "the unpruned model"
    inside, _, outside = escape(lab.sample(state.data, options).note).partition("; ")
    help = (
        "Ranges are 95 % bootstrap intervals; a change that stays within is called unclear. Of larger sets a part is "
        "used, the same one every time."
    )
    st.caption(f"Changes are against {against}, on {inside}.", help=f"{help} {outside}." if outside else help)


def page() -> None:
    state = frame.page_head("what_if")
    answer = st.container()
    cards = answer.empty()
    with st.container(horizontal=True, gap="medium"):  # side by side where there is room, else one above the other
        grid, side = st.container(width=430), st.container(width="stretch")
    shown, below = side.container(), side.container()
    with below:
        options = settings(state)
    # first in the queue: the answer matters more than the colours
    job = work.evaluate(state, options, against=reference_plan(state), group="what_if")
    with grid:
        member_panel(state, widgets.result_of(work.score(state), patience=3.0))
    with answer:
        both = show_answer(cards, state, options, job)
        line = st.container(horizontal=True, vertical_alignment="center", gap="small")
        caption, proof = line.container(width="content"), line.container(width="content")
    if both is None:
        return
    with caption:
        measured_on(state, options)
    with proof:
        proof_panel(state)
    with shown:
        pictures(state, options, *both)
    with below:
        pins_panel(state, options)
    with below:  # its progress, when it is slow, must not push the grid away from under a hand
        show_intervals(cards, state, options, both)
    work.loss_changes(state)  # last: the next toggle has an estimate


page()
