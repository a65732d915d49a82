"""Pictures of a plan: calibration of the ensemble and of each member, confidence, selective risk, OOD scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from app import cards, lab, widgets
from app.charts.distributions import confidence_histogram, ood_histogram, risk_coverage
from app.charts.reliability import describe_bins, reliability_figure, small_reliability
from app.errors import escape
from app.lab import live
from app.session import Session
from app.what_if.answer import reference_plan
from hydra_core import metrics
from hydra_core.heads.mask import Plan

HEIGHT = 370  # pixels: the reliability diagram ends with the grid beside it, both in a first window of 900
Draw = Callable[[Session, lab.Options, Any, Any], None]


def pictures(state: Session, options: lab.Options, now: Any, before: Any) -> None:
    """One picture of several; only the one on show is made."""
    shown = {name: draw for name, draw in PICTURES.items() if name != "OOD scores" or now.sets}
    picture = st.segmented_control("Picture", list(shown), default="Reliability", required=True, key="picture",
                                   bind="query-params", label_visibility="collapsed")  # fmt: skip
    shown[picture or "Reliability"](state, options, now, before)


def names(state: Session) -> tuple[str, str]:
    """What the plan and its reference are called in pictures."""
    return "this plan", state.against if state.reference is not None else "unpruned"


def _reliability(state: Session, options: lab.Options, now: Any, before: Any) -> None:
    bins, (ours, theirs) = now.reliability, names(state)
    figure = reliability_figure(bins, before.reliability, height=HEIGHT, now_name=ours, before_name=theirs)
    widgets.show_figure(figure, "reliability", describe_bins(bins))
    table = pd.DataFrame({"from": bins.edges[:-1], "to": bins.edges[1:], "samples": bins.count,
                          "accuracy": bins.accuracy, "confidence": bins.confidence})  # fmt: skip
    widgets.csv_button(table, "reliability-bins", "Bins as CSV")


def _members(state: Session, options: lab.Options, now: Any, before: Any) -> None:
    """Each member alone, and the ensemble; the members' logits are there already."""
    parts = [(name, lab.report(state.model, state.data, Plan((mask,)), options), mask)
             for name, mask in zip(state.plan.names, state.plan, strict=True)]  # fmt: skip
    error = "ece" if options.bins_kind == "width" else "aece"
    panels = [(f"{name}: ECE {getattr(report, error):.3f}", report.reliability) for name, report, _ in parts]
    panels.append((f"ensemble: ECE {getattr(now, error):.3f}", now.reliability))
    alt = "; ".join(f"{title}. {describe_bins(bins)}" for title, bins in panels)
    widgets.show_figure(small_reliability(panels), "reliability-members", alt)
    rows = []
    for name, report, mask in parts:
        values = cards.values_of(report, lab.cost(state.model, mask))
        rows.append({"member": name, "heads": mask.kept, **{cards.ALL[k].label: v for k, v in values.items()}})
    widgets.show_table(pd.DataFrame(rows), "members")
    if len(parts) > 1:
        st.caption(
            f"Members predict differently on {100 * now.disagreement:.1f} % of samples (mean over pairs); "
            f"mutual information {now.mutual_information:.4f} nats."
        )


def _confidence(state: Session, options: lab.Options, now: Any, before: Any) -> None:
    chosen, probs = lab.probabilities(state.model, state.data, state.plan, options)
    _, others = lab.probabilities(state.model, state.data, reference_plan(state), options)
    confidence = {name: p.max(-1) for name, p in probs.items()}
    correct = probs[""].argmax(-1) == chosen.id.labels
    inside = confidence.pop("")
    before = names(state)[1], others[""].max(-1)
    figure = confidence_histogram(inside, correct, confidence, chosen.shifts, before=before)
    widgets.show_figure(figure, "confidence", "Histogram of confidences of right, wrong and OOD samples")


def _risk(state: Session, options: lab.Options, now: Any, before: Any) -> None:
    curves, areas = {}, []
    for name, plan in zip(names(state), (state.plan, reference_plan(state)), strict=True):
        chosen, probs = lab.probabilities(state.model, state.data, plan, options)
        curve = metrics.risk_coverage(probs[""].max(-1), probs[""].argmax(-1) == chosen.id.labels)
        curves[name] = curve.coverage, curve.risk
        areas.append(f"{curve.aurc:.4f} ({name})")
    widgets.show_figure(risk_coverage(curves), "risk-coverage", "Error rate over the share of samples answered")
    st.caption(f"Area under the curve (AURC, lower is better): {escape(', '.join(areas))}.")


def _ood(state: Session, options: lab.Options, now: Any, before: Any) -> None:
    label, about = live.ood_score_names()[options.ood_score]
    chosen, scores = live.ood_scores(state.model, state.data, state.plan, options)
    shifts = {name: part.shift for name, part in chosen.sets.items()}
    named = {name or chosen.id.name: values for name, values in scores.items()}
    named_shifts = {name or chosen.id.name: shift if name else "id" for name, shift in shifts.items()}
    alt = "OOD scores: " + "; ".join(f"{s.name}, AUROC {s.auroc:.3f}" for s in now.sets)
    widgets.show_figure(ood_histogram(named, named_shifts, title=label), "ood-scores", alt)
    widgets.show_table(now.table(), "ood-sets")
    st.caption(f"{about} OOD is the positive class.")


PICTURES: dict[str, Draw] = {
    "Reliability": _reliability,
    "Members": _members,
    "Confidence": _confidence,
    "Risk and coverage": _risk,
    "OOD scores": _ood,
}
