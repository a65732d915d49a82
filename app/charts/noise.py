"""The loss gap under noise, and what pruning adds to it: measured, and as Proposition 1 predicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from app.charts.base import finish
from app.theme import BEFORE, BLUE, GREEN, ORANGE, VERMILION

if TYPE_CHECKING:
    from hydra_core.heads.noise import Estimate, NoiseGap


def gap_figure(rows: Sequence[NoiseGap]) -> go.Figure:
    """Loss gap (noisy - clean) over severity, unpruned and pruned, and the pruned one as predicted.

    Args:
        rows: one mask at several severities.
    """
    rows = sorted(rows, key=lambda row: row.severity)
    x = [row.severity for row in rows]
    predicted = [row.gap + row.predicted.value for row in rows]
    fig = go.Figure()
    _line(fig, x, [row.gap for row in rows], "unpruned", BEFORE, "dash", "circle")
    _line(fig, x, [row.gap_pruned for row in rows], "pruned, measured", BLUE, "solid", "square")
    _line(fig, x, predicted, "pruned, predicted by the two terms", ORANGE, "dot", "diamond")
    finish(fig, x="severity of the noise", y="loss gap, noisy - clean (nats)")
    fig.update_xaxes(tickmode="array", tickvals=x)
    return fig


def _line(fig: go.Figure, x: list, y: list, name: str, colour: str, dash: str, symbol: str) -> None:
    fig.add_trace(
        go.Scatter(x=x, y=y, name=name, mode="lines+markers", line={"color": colour, "width": 2.5, "dash": dash},
                   marker={"size": 9, "symbol": symbol}, hovertemplate=f"{name}: %{{y:.4f}}<extra></extra>")
    )  # fmt: skip


def terms_figure(rows: Sequence[NoiseGap], names: Sequence[str]) -> go.Figure:
    """What pruning adds to the gap: the two predicted terms as bars, their sum and the measured change as points.

    Args:
        rows: several masks at one severity.
        names: of the masks.
    """
    fig = go.Figure()
    _bars(fig, names, [row.slope.value for row in rows], "first term: slope", GREEN, "")
    _bars(fig, names, [row.curvature.value for row in rows], "second term: curvature", ORANGE, "/")
    _points(fig, names, [row.predicted for row in rows], "predicted: their sum", VERMILION, "diamond")
    _points(fig, names, [row.change for row in rows], "measured", BLUE, "square")
    fig.add_hline(y=0, line={"color": BEFORE, "width": 1})
    finish(fig, x="heads kept", y="added to the gap by pruning (nats)")
    fig.update_layout(barmode="relative", bargap=0.45)
    fig.update_xaxes(type="category")
    return fig


def _bars(fig: go.Figure, x: Sequence[str], y: list[float], name: str, colour: str, pattern: str) -> None:
    marker = {"color": colour, "opacity": 0.75, "pattern": {"shape": pattern}}
    hover = f"{name}: %{{y:.4f}}<extra></extra>"
    fig.add_trace(go.Bar(x=list(x), y=y, name=name, marker=marker, hovertemplate=hover))


def _points(fig: go.Figure, x: Sequence[str], found: Sequence[Estimate], name: str, colour: str, symbol: str) -> None:
    error = {"type": "data", "symmetric": False, "array": [e.high - e.value for e in found],
             "arrayminus": [e.value - e.low for e in found], "thickness": 1.5}  # fmt: skip
    fig.add_trace(
        go.Scatter(x=list(x), y=[e.value for e in found], name=name, mode="markers", error_y=error,
                   marker={"size": 11, "symbol": symbol, "color": colour, "line": {"width": 1, "color": "white"}},
                   hovertemplate=f"{name}: %{{y:.4f}}<extra></extra>")
    )  # fmt: skip
