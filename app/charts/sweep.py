"""The sweep's lines: a metric over pruned heads, over members or over cost, with a band over repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from app.charts.base import finish
from app.theme import DASHES, GREY, MEMBERS, rgba

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")
AXES = {"pruned": "heads pruned in each layer", "members": "members", "mac_ratio": "multiply-adds / single"}


def sweep_figure(
    table: pd.DataFrame,
    x: str,
    labels: Mapping[str, str],
    *,
    title: str,
    baseline: tuple[float, float] | None = None,
    chosen: tuple[str, int, int] | None = None,
    height: int = 430,
) -> go.Figure:
    """One line a method; a band of one standard deviation over repeats where there are several.

    Args:
        table: columns method, keep, members, `x`, mean, std.
        x: a name in `AXES`.
        labels: method -> label, in the order of the legend; its place gives colour, dash and symbol.
        title: of the vertical axis.
        baseline: mean and standard deviation of the unpruned model.
        chosen: (method, keep, members) of the point to ring.

    Every marker carries (method, keep, members) as customdata: what a click says.
    """
    fig = go.Figure()
    if baseline is not None:
        _add_baseline(fig, *baseline)
    for place, (method, label) in enumerate(labels.items()):
        line = table[table["method"] == method].sort_values(x)
        if len(line):
            _add_line(fig, line, x, label, place)
    if chosen is not None:
        _add_ring(fig, table, x, chosen)
    finish(fig, height=height, x=AXES[x], y=title)
    if x != "mac_ratio":
        fig.update_xaxes(tickmode="array", tickvals=sorted(set(table[x].tolist())))
    return fig


def _add_baseline(fig: go.Figure, mean: float, std: float) -> None:
    if std == std and std > 0:
        fig.add_hrect(y0=mean - std, y1=mean + std, fillcolor=rgba(GREY, 0.15), line_width=0, layer="below")
    fig.add_hline(y=mean, line={"color": GREY, "dash": "dash", "width": 1.5})
    # lines drawn across have no entry in the legend
    fig.add_trace(go.Scatter(x=[None], y=[None], mode="lines", name="unpruned",
                             line={"color": GREY, "dash": "dash", "width": 1.5}))  # fmt: skip


def _add_line(fig: go.Figure, line: pd.DataFrame, x: str, label: str, place: int) -> None:
    colour, method = MEMBERS[place % len(MEMBERS)], line["method"].iloc[0]
    spread = line[line["std"].notna()]
    if len(spread) > 1:
        low, high = spread["mean"] - spread["std"], spread["mean"] + spread["std"]
        fig.add_trace(
            go.Scatter(x=[*spread[x], *spread[x][::-1]], y=[*high, *low[::-1]], fill="toself", mode="lines",
                       line={"width": 0}, fillcolor=rgba(colour, 0.14), hoverinfo="skip", legendgroup=method,
                       showlegend=False)
        )  # fmt: skip
    points = line[["method", "keep", "members"]].assign(std=line["std"].fillna(0.0)).to_numpy().tolist()
    fig.add_trace(
        go.Scatter(
            x=line[x], y=line["mean"], mode="lines+markers", name=label, legendgroup=method, customdata=points,
            line={"color": colour, "width": 2.5, "dash": DASHES[place % len(DASHES)]},
            marker={"size": 9, "symbol": SYMBOLS[place % len(SYMBOLS)], "color": colour},
            hovertemplate=label + "<br>%{customdata[1]} heads kept, M = %{customdata[2]}<br>%{y:.4f} ± "
            "%{customdata[3]:.4f}<extra></extra>",
        )
    )  # fmt: skip


def _add_ring(fig: go.Figure, table: pd.DataFrame, x: str, chosen: tuple[str, int, int]) -> None:
    keys = zip(table["method"], table["keep"], table["members"], strict=True)
    here = table[[key == chosen for key in keys]]
    fig.add_trace(
        go.Scatter(x=here[x], y=here["mean"], mode="markers", name="chosen", hoverinfo="skip", showlegend=False,
                   marker={"size": 18, "symbol": "circle-open", "color": GREY, "line": {"width": 3}})
    )  # fmt: skip


def describe_sweep(table: pd.DataFrame, x: str, labels: Mapping[str, str], title: str) -> str:
    """The lines in words, for readers who cannot see them."""
    parts: list[str] = []
    for method, label in labels.items():
        line: Sequence = table[table["method"] == method].sort_values(x)[[x, "mean"]].to_numpy().tolist()
        if line:
            parts.append(f"{label} from {line[0][1]:.3f} at {line[0][0]:.3g} to {line[-1][1]:.3f} at {line[-1][0]:.3g}")
    return f"{title} over {AXES[x]}: {'; '.join(parts) or 'no points'}."
