"""The landing page: what this is, what is loaded, where to go."""

from __future__ import annotations

import streamlit as st

from app import cards, frame, lab, widgets
from app.cache import digest
from app.registry import PAGES
from app.session import Session
from hydra_core.heads.mask import HeadMask, Plan


def facts(state: Session) -> None:
    """Cards of the chosen model on the chosen data."""
    view, bundle = lab.model(state.model), lab.data(state.data)
    full = Plan.full(view.shape)
    job = widgets.start(
        digest("start", state.model, state.data),
        lambda job: lab.report(state.model, state.data, full, progress=job.progress, cancel=job.cancel),
        "Evaluating the unpruned model",
    )
    heads = f"{len(view.shape)} x {view.shape[0]}" if len(set(view.shape)) == 1 else f"{sum(view.shape)} in all"
    st.markdown(
        f"**{state.model}**: {heads} heads (layers x heads), {view.num_classes} classes. "
        f"**{state.data}**: {', '.join(bundle.class_names[:10])}{' ...' if len(bundle.class_names) > 10 else ''}."
    )
    report = widgets.result_of(job, patience=4.0)
    if report is not None:
        values = cards.values_of(report, lab.cost(state.model, HeadMask.full(view.shape)))
        widgets.metric_cards({n: c for n, c in cards.ALL.items() if n in values}, values)
        st.caption(f"The unpruned model on {lab.sample(state.data).note}.")


def page() -> None:
    state = frame.page_head("start")
    st.markdown(
        "Hydra Lab shows what single attention heads do for a classifier's **calibration** and for its sense of what "
        "it does **not know**. Score the heads, prune some, and fuse several pruned copies into one network that acts "
        "as an ensemble at a fraction of its cost. Every figure is computed live, on real data, on this machine."
    )
    facts(state)
    st.subheader("Where to go", anchor=False)
    for entry in PAGES[1:]:
        st.page_link(entry.path, label=f"**{entry.title}**: {entry.question}", icon=f":material/{entry.icon}:")


page()
