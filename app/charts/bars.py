"""Bars of measured times."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from app.charts.base import finish
from app.theme import MEMBERS

PATTERNS = {"fp32": "", "bf16": "/"}


def latency_figure(table: pd.DataFrame) -> go.Figure:
    """Median milliseconds a batch with quartiles; one colour a way, hatched for bf16.

    Args:
        table: columns name, batch, precision, median, low, high.
    """
    fig = go.Figure()
    colours = {name: MEMBERS[i % len(MEMBERS)] for i, name in enumerate(dict.fromkeys(table["name"]))}
    for (name, precision), part in table.groupby(["name", "precision"], sort=False):
        error = {"type": "data", "symmetric": False, "array": part["high"] - part["median"],
                 "arrayminus": part["median"] - part["low"]}  # fmt: skip
        marker = {"color": colours[name], "pattern": {"shape": PATTERNS.get(precision, "x")}}
        hover = f"{name}, {precision}<br>batch %{{x}}: %{{y:.2f}} ms<extra></extra>"
        label = name if table["precision"].nunique() == 1 else f"{name}, {precision}"
        x = part["batch"].astype(str)
        fig.add_trace(go.Bar(x=x, y=part["median"], name=label, error_y=error, marker=marker, hovertemplate=hover))
    finish(fig, x="samples a batch", y="milliseconds a batch")
    fig.update_layout(bargap=0.2)
    fig.update_xaxes(type="category")
    return fig
