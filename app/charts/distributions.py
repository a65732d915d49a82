"""Distributions of confidences and of OOD scores, and the risk-coverage curve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import plotly.graph_objects as go

from app.charts.base import finish, plain
from app.charts.looks import Look, looks_of
from app.theme import BEFORE, DASHES, GREEN, MEMBERS, VERMILION, rgba


def confidence_histogram(
    confidence: np.ndarray,
    correct: np.ndarray,
    ood: Mapping[str, np.ndarray] | None = None,
    shifts: Mapping[str, str] | None = None,
    *,
    before: tuple[str, np.ndarray] | None = None,
    bins: int = 20,
) -> go.Figure:
    """Confidences of right and wrong answers, and of OOD samples where there are any.

    Args:
        confidence: (N,) probability of the predicted class.
        correct: (N,) whether the prediction was right.
        ood: confidences by OOD set, drawn as outlines.
        shifts: "near", "far" or "other" an OOD set; it gives the colour.
        before: name and (N,) ID confidences of a reference, drawn as a grey outline.

    Each curve shows the share of its own group, as the groups differ much in size.
    """
    edges = np.linspace(0, 1, bins + 1)
    fig = go.Figure()
    correct = np.asarray(correct, dtype=bool)
    for name, values, colour, shape in (
        ("right", np.asarray(confidence)[correct], GREEN, ""),
        ("wrong", np.asarray(confidence)[~correct], VERMILION, "/"),
    ):
        fig.add_trace(_share_bars(f"{name} ({len(values)})", values, edges, colour, shape))
    sets = ood or {}
    for (name, values), look in zip(sets.items(), _looks(sets, shifts or {}), strict=True):
        fig.add_trace(_share_line(f"{name} ({len(values)})", values, edges, look.colour, look.dash))
    if before is not None:
        fig.add_trace(_share_line(f"all ID, {before[0]}", before[1], edges, BEFORE, "dot"))
    fig.update_layout(barmode="overlay")
    fig.update_yaxes(tickformat=".0%")
    return finish(fig, x="confidence (probability of the predicted class)", y="share of the group")


def ood_histogram(
    scores: Mapping[str, np.ndarray], shifts: Mapping[str, str], *, title: str = "OOD score", bins: int = 30
) -> go.Figure:
    """OOD scores by source: filled bars for ID, outlines for OOD sets, told apart by colour and dash.

    Args:
        scores: (n,) score a source; higher means more unlike the training data.
        shifts: "id", "near", "far" or "other" a source.
    """
    known = [np.asarray(v)[np.isfinite(v)] for v in scores.values()]
    low, high = min(v.min() for v in known), max(v.max() for v in known)
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    fig = go.Figure()
    for (name, values), look in zip(scores.items(), _looks(scores, shifts), strict=True):
        shift = shifts.get(name, "other")
        if shift == "id":
            fig.add_trace(_share_bars(f"{name} (ID, {len(values)})", values, edges, look.colour, ""))
        else:
            fig.add_trace(_share_line(f"{name} ({shift} OOD, {len(values)})", values, edges, look.colour, look.dash))
    fig.update_layout(barmode="overlay")
    fig.update_yaxes(tickformat=".0%")
    return finish(fig, x=f"{title} (right: more unlike the training data)", y="share of the source")


def risk_coverage(curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> go.Figure:
    """Error rate among the answered samples, over the share of samples answered (most confident first).

    Args:
        curves: (coverage, risk) by name, each (N,).
    """
    fig = go.Figure()
    for i, (name, (coverage, risk)) in enumerate((plain(name), curve) for name, curve in curves.items()):
        line = {"color": MEMBERS[i % 8], "dash": DASHES[i % 6], "width": 2.5}
        fig.add_trace(
            go.Scatter(x=coverage, y=risk, mode="lines", name=name, line=line,
                       hovertemplate="answer %{x:.0%}: error %{y:.2%}<extra>" + name + "</extra>")
        )  # fmt: skip
    fig.update_xaxes(tickformat=".0%", range=[0, 1])
    fig.update_yaxes(tickformat=".0%", rangemode="tozero")
    return finish(fig, x="coverage: share of samples answered", y="risk: error among them")


def _looks(names: Iterable[str], shifts: Mapping[str, str]) -> list[Look]:
    return looks_of(shifts.get(name, "other") for name in names)


def _share(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    return np.histogram(values, edges)[0] / max(1, len(values))


def _share_bars(name: str, values: np.ndarray, edges: np.ndarray, colour: str, shape: str) -> go.Bar:
    name = plain(name)
    return go.Bar(
        x=(edges[:-1] + edges[1:]) / 2, y=_share(values, edges), width=np.diff(edges), name=name,
        marker={"color": rgba(colour, 0.45), "line": {"color": colour, "width": 1},
                "pattern": {"shape": shape, "fgcolor": colour, "solidity": 0.3}},
        hovertemplate="%{x:.3f}: %{y:.1%}<extra>" + name + "</extra>",
    )  # fmt: skip


def _share_line(name: str, values: np.ndarray, edges: np.ndarray, colour: str, dash: str) -> go.Scatter:
    name = plain(name)
    return go.Scatter(
        x=(edges[:-1] + edges[1:]) / 2, y=_share(values, edges), mode="lines", name=name,
        line={"color": colour, "width": 2.5, "shape": "hvh", "dash": dash},
        hovertemplate="%{x:.3f}: %{y:.1%}<extra>" + name + "</extra>",
    )  # fmt: skip
