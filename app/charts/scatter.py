"""Heads or samples as points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.charts.base import finish, plain
from app.charts.looks import looks_of
from app.theme import COLORSCALE, GREY

MOST_SVG_POINTS = 5_000  # of one figure; up to here SVG is there before WebGL has started


def agreement_figure(a: Any, b: Any, labels: Sequence[str]) -> tuple[go.Figure, float]:
    """Two scores a head against each other, coloured by layer, and their Spearman correlation (NaN if constant)."""
    from hydra_core.heads.criteria import rank_correlation

    both = a.frame().merge(b.frame(), on=["layer", "head"], suffixes=("_a", "_b"))
    rho = float(rank_correlation([a, b]).iloc[0, 1])
    names = [f"layer {layer}, head {head}" for layer, head in zip(both["layer"], both["head"], strict=True)]
    marker = {"size": 9, "color": both["layer"], "colorscale": COLORSCALE, "line": {"width": 1, "color": GREY},
              "colorbar": {"title": {"text": "layer", "side": "right"}, "thickness": 12}}  # fmt: skip
    fig = go.Figure(go.Scatter(x=both["score_a"], y=both["score_b"], mode="markers", text=names, marker=marker,
                               hovertemplate="%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>"))  # fmt: skip
    return finish(fig, x=labels[0], y=labels[1], legend=False), rho


def small_multiples(
    panels: Sequence[tuple[str, np.ndarray]],
    groups: Sequence[tuple[str, str, slice]],
    hover: Sequence[str] = (),
    *,
    columns: int = 3,
) -> go.Figure:
    """Samples in two dimensions, one panel a head, one colour and symbol a set.

    Args:
        panels: (title, of one line or two, points (N, 2)).
        groups: (name, shift, rows) of each set.
        hover: (N,) what a point says, in Plotly's markup (see `plain`); none: the name of its set.
    """
    from plotly.subplots import make_subplots

    kind = "scatter" if sum(len(points) for _, points in panels) <= MOST_SVG_POINTS else "scattergl"
    texts = np.array(hover, dtype=object)  # plotly looks at every item of a list
    rows, looks = -(-len(panels) // columns), looks_of(shift for _, shift, _ in groups)
    fig = make_subplots(rows=rows, cols=columns, subplot_titles=[title for title, _ in panels],
                        horizontal_spacing=0.03, vertical_spacing=0.3 / rows)  # fmt: skip
    traces = []
    for at, (_, points) in enumerate(panels):
        for (name, _, where), look in zip(groups, looks, strict=True):
            marker = {"size": 5, "opacity": 0.6, "color": look.colour, "symbol": look.symbol}
            traces.append({"type": kind, **_points(points[where], plain(name), marker, texts[where], first=at == 0)})
    places = [divmod(at, columns) for at in range(len(panels)) for _ in groups]
    fig.add_traces(traces, rows=[row + 1 for row, _ in places], cols=[column + 1 for _, column in places])
    finish(fig, height=90 + 230 * rows)
    fig.update_layout(margin_t=90, legend_y=1 + 50 / (230 * rows), legend_itemsizing="constant")  # above the titles
    fig.update_annotations(font_size=13)
    fig.update_xaxes(showticklabels=False, zeroline=False)
    fig.update_yaxes(showticklabels=False, zeroline=False)
    return fig


def _points(points: np.ndarray, name: str, marker: dict[str, Any], hover: np.ndarray, *, first: bool) -> dict[str, Any]:
    says = "%{text}<extra></extra>" if len(hover) else f"{name}<extra></extra>"
    return {"x": points[:, 0], "y": points[:, 1], "mode": "markers", "name": name, "legendgroup": name,
            "showlegend": first, "marker": marker, "text": hover, "hovertemplate": says}  # fmt: skip


def table_of(panels: Sequence[tuple[str, np.ndarray]], ids: Sequence[str], sets: Sequence[str]) -> pd.DataFrame:
    """The points of all panels as one table: head, set, id, x, y."""
    parts = [
        pd.DataFrame({"head": t.replace("<br>", ", "), "set": sets, "id": ids, "x": p[:, 0], "y": p[:, 1]})
        for t, p in panels
    ]
    return pd.concat(parts, ignore_index=True)


def point_cloud(picture: Any, groups: Sequence[tuple[str, str, slice]], hover: Sequence[str]) -> go.Figure:
    """One head large: `picture.points` in two or three dimensions; each point knows its row (customdata).

    Args:
        groups: (name, shift, rows) of each set.
        hover: (N,) what a point says, in Plotly's markup (see `plain`).
    """
    fig, flat = go.Figure(), picture.points.shape[1] == 2
    for (name, _, where), look in zip(groups, looks_of(shift for _, shift, _ in groups), strict=True):
        part, symbol = picture.points[where], look.symbol
        if not flat:  # plotly draws fewer symbols in three dimensions
            symbol = symbol.replace("triangle-up", "square-open").replace("star", "circle-open")
        marker = {"size": 6 if flat else 3, "opacity": 0.7, "color": look.colour, "symbol": symbol}
        rows = list(range(*where.indices(len(picture.points))))
        same = {"mode": "markers", "name": plain(name), "text": hover[where], "marker": marker,
                "customdata": [[row] for row in rows], "hovertemplate": "%{text}<extra></extra>"}  # fmt: skip
        trace = go.Scattergl(x=part[:, 0], y=part[:, 1], **same) if flat else go.Scatter3d(
            x=part[:, 0], y=part[:, 1], z=part[:, 2], **same)  # fmt: skip
        fig.add_trace(trace)
    share = picture.explained
    axis = lambda i: f"axis {i + 1}" if share is None else f"component {i + 1} ({share[i]:.0%})"  # noqa: E731
    return finish(fig, height=460, x=axis(0), y=axis(1))
