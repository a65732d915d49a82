"""The figures of a plan: an estimate while they are on their way, then exact, then with intervals; and the proof."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import cards, lab, widgets, work
from app.cache import digest
from app.jobs import Job
from app.lab import live
from app.lab.results import report_at_hand
from app.session import Session
from hydra_core.heads.mask import HeadMask, Plan

PATIENCE = 0.25  # seconds before an estimate shows: quicker answers come without one
RESAMPLES = 200
WIDTH = 132  # pixels a card: two rows in a wide window, and room for "+0.0115 unclear"


def reference_plan(state: Session) -> Plan:
    """The plan that changes are measured against."""
    return state.reference or lab.unpruned(state.model)


def show_answer(slot: Any, state: Session, options: lab.Options, job: Job) -> tuple[Any, Any] | None:
    """The cards in `slot`; returns (report of the plan, report of the reference), or None while they are not there."""
    widgets.wait_for(job, PATIENCE)
    if job.active:
        with slot.container():
            _estimate(state, options)
    both = widgets.result_of(job, patience=4.0)
    if both is not None:
        with slot.container():
            _cards(state, *both)
    return both


def show_intervals(slot: Any, state: Session, options: lab.Options, both: tuple[Any, Any]) -> None:
    """The cards once more, with intervals below them; last on the page, so that nothing waits for them."""
    job = work.intervals(state, options, RESAMPLES)
    report = widgets.result_of(job, patience=1.5)
    if report is not None:
        with slot.container():
            _cards(state, *both, intervals_of(report))


def intervals_of(report: Any) -> dict[str, tuple[float, float]]:
    """(low, high) by name: the middle 95 % of resamples, where they are defined."""
    found = {name: report.interval(name) for name in (*cards.CALIBRATION, *cards.OOD)}
    return {name: (low, high) for name, (low, high) in found.items() if low == low}


def _cards(state: Session, now: Any, before: Any, intervals: dict[str, tuple[float, float]] | None = None) -> None:
    values = cards.values_of(now, lab.cost(state.model, state.plan))
    plan = state.reference
    base = cards.values_of(before, lab.cost(state.model, plan or HeadMask.full(state.plan.shape)))
    widgets.metric_cards(_shown(values), values, base, notes={}, intervals=intervals, width=WIDTH)


def _shown(values: dict[str, float]) -> dict[str, widgets.Card]:
    return {name: card for name, card in cards.ALL.items() if name in values}


def _estimate(state: Session, options: lab.Options) -> None:
    """What is known at once: the cost, and the NLL to first order; all else is a dash until it is measured."""
    before = report_at_hand(state.model, state.data, lab.unpruned(state.model), options)
    if before is None:
        return
    base = cards.values_of(before, lab.cost(state.model, HeadMask.full(state.plan.shape)))
    now = cards.values_of(None, lab.cost(state.model, state.plan))
    nll = live.predicted_nll(state.model, state.data, state.plan, before.nll)
    notes = {}
    if nll is not None:
        now["nll"], notes["nll"] = nll, ":orange-badge[estimate]"
    widgets.metric_cards(_shown(base), now, {k: base[k] for k in now}, notes=notes, width=WIDTH)


# -- proof -----------------------------------------------------------------------------------


def proof_panel(state: Session) -> None:
    """A badge with numbers, measured when asked for; each plan is proven by itself."""
    asked = st.session_state.setdefault("what_if/proven", set())
    key = digest("proof", state.model, state.data, state.plan.text)
    if key not in asked:
        st.button("Prove it", icon=":material/verified:", type="tertiary", key="what_if/prove",
                  on_click=asked.add, args=(key,),
                  help="Measures in float64, on a few samples, that masks change the output, that they equal cut "
                       "weights, and that the fused network equals the mean of its members.")  # fmt: skip
        return
    model, data, plan = state.model, state.data, state.plan
    job = widgets.start(key, lambda job: live.proof(model, data, plan, progress=job.progress, cancel=job.cancel),
                        "Proving the plan in float64")  # fmt: skip
    proof = widgets.result_of(job, patience=1.0)
    if proof is None:
        return
    worst = max(proof.native, proof.slices, proof.fused)
    exact = f"Exact to {worst:.0e}" if worst else "Exact: no difference"
    label = exact if proof.holds else "Does not hold"
    icon = ":material/verified:" if proof.holds else ":material/error:"
    with st.popover(label, icon=icon, type="tertiary", help="The numbers behind it"):
        st.markdown(proof_text(state, proof))


def proof_text(state: Session, proof: Any) -> str:
    """The proof as a table: what was compared, and by how much it differs at most."""
    rows = [
        ("mask against heads cut out of the weights, logits", proof.slices),
        ("fused network against the mean of its members, probabilities", proof.fused),
        ("all heads kept against the untouched model, logits", proof.native),
    ]
    lines = [f"| {text} | {f'{value:.1e}' if value else '0'} |" for text, value in rows]
    for name, bite, pruned in zip(state.plan.names, proof.bites, proof.pruned, strict=True):
        lines.append(f"| what member {name}'s mask changes, logits | {f'{bite:.3f}' if pruned else 'nothing pruned'} |")
    head = f"Largest differences over {proof.samples} validation samples, in float64:\n\n| | |\n|---|---|\n"
    return head + "\n".join(lines)
