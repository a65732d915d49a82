"""Rows of the comparison: cost against quality, and reliability side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from app.charts.base import finish
from app.theme import GREY, MEMBERS, NOW, VERMILION


def pareto_figure(rows: Sequence[Any], metric: str, label: str, *, better: str) -> go.Figure:
    """Multiply-adds over those of one model against a metric; the size of a bubble is its parameters.

    Args:
        rows: `RowResult`s that were measured.
        better: "high" or "low".
    """
    x = [row.costs["mac_ratio"] for row in rows]
    y = [row.values.get(metric) for row in rows]
    sizes = [14 + 12 * row.costs["parameter_ratio"] for row in rows]
    colours = [MEMBERS[i % len(MEMBERS)] for i in range(len(rows))]
    text = [f"{row.label}<br>{row.costs['parameter_ratio']:.2f} x parameters" for row in rows]
    fig = go.Figure()
    front = front_of(list(zip(x, y, strict=True)), better)
    fig.add_trace(go.Scatter(x=[p[0] for p in front], y=[p[1] for p in front], mode="lines", hoverinfo="skip",
                             line={"color": GREY, "dash": "dot", "shape": "hv"}))  # fmt: skip
    fig.add_trace(go.Scatter(x=x, y=y, mode="markers+text", text=[row.label for row in rows], hovertext=text,
                             textposition="top center", marker={"size": sizes, "color": colours, "opacity": 0.75},
                             hovertemplate="%{hovertext}<br>%{x:.2f} x, %{y:.4f}<extra></extra>"))  # fmt: skip
    return finish(fig, height=440, x="multiply-adds / single", y=f"{label} ({better} is better)", legend=False)


def front_of(points: Sequence[tuple[Any, Any]], better: str) -> list[tuple[float, float]]:
    """Points that no other beats in both cost and quality, by rising cost."""
    sign = 1 if better == "high" else -1
    front: list[tuple[float, float]] = []
    for x, y in sorted((p for p in points if p[1] is not None), key=lambda p: (p[0], -sign * p[1])):
        if not front or sign * y > sign * front[-1][1]:
            front.append((x, y))
    return front


def reliability_multiples(rows: Sequence[Any], *, columns: int = 4) -> go.Figure:
    """A small reliability diagram a row; empty bins are empty."""
    from plotly.subplots import make_subplots

    lines = -(-len(rows) // columns)
    titles = [f"{row.label}<br>ECE {row.values['ece']:.3f}" for row in rows]
    fig = make_subplots(rows=lines, cols=columns, subplot_titles=titles, shared_xaxes=True, shared_yaxes=True,
                        horizontal_spacing=0.03, vertical_spacing=0.3 / max(1, lines))  # fmt: skip
    for at, row in enumerate(rows):
        edges, accuracy, count = (row.reliability[name] for name in ("edges", "accuracy", "count"))
        middle = [(a + b) / 2 for a, b in pairwise(edges)]
        width = [b - a for a, b in pairwise(edges)]
        bar = go.Bar(x=middle, y=accuracy, width=width, marker_color=NOW, customdata=count,
                     hovertemplate="at %{x:.2f}: %{y:.3f}<br>%{customdata} samples<extra></extra>")  # fmt: skip
        where = {"row": at // columns + 1, "col": at % columns + 1}
        fig.add_trace(bar, **where)
        line = {"color": VERMILION, "dash": "dash", "width": 1}
        fig.add_trace(go.Scatter(x=[0, 1], y=[0, 1], mode="lines", line=line, hoverinfo="skip"), **where)
    finish(fig, height=80 + 210 * lines, legend=False)
    fig.update_annotations(font_size=12)
    fig.update_xaxes(range=[0, 1])
    fig.update_yaxes(range=[0, 1])
    return fig
