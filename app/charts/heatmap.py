"""A table of layers x heads as a heat map; ragged rows end where their heads do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from app.charts.base import finish
from app.theme import COLORSCALE, DIVERGING_SCALE


def head_heatmap(
    matrix: Sequence[Sequence[float]],
    *,
    title: str = "score",
    low: Sequence[Sequence[float]] | None = None,
    high: Sequence[Sequence[float]] | None = None,
    diverging: bool = False,
    height: int | None = None,
) -> go.Figure:
    """Colours by value, the interval (where there is one) on hover.

    Args:
        matrix: one row a layer.
        low, high: bounds of the interval, shaped like `matrix`.
        diverging: centre the colours at zero (for changes).
    """
    widest = max(len(row) for row in matrix)
    z = _padded(matrix, widest)
    extra = "" if low is None else "<br>95 % interval %{customdata[0]:.3g} to %{customdata[1]:.3g}"
    limit = float(np.nanmax(np.abs(z))) if np.isfinite(z).any() else 1.0
    interval = None if low is None or high is None else np.stack([_padded(low, widest), _padded(high, widest)], -1)
    fig = go.Figure(
        go.Heatmap(
            z=z,
            x=[str(h) for h in range(widest)],
            y=[str(l) for l in range(len(matrix))],
            customdata=interval,
            colorscale=DIVERGING_SCALE if diverging else COLORSCALE,
            zmin=-limit if diverging else None,
            zmax=limit if diverging else None,
            xgap=2,
            ygap=2,
            hoverongaps=False,
            colorbar={"title": {"text": title, "side": "right"}, "thickness": 12},
            hovertemplate="layer %{y}, head %{x}<br>" + title + " %{z:.4g}" + extra + "<extra></extra>",
        )
    )
    finish(fig, height=height or 90 + 34 * len(matrix), x="head", y="layer", legend=False)
    fig.update_xaxes(type="category", showgrid=False)
    fig.update_yaxes(type="category", autorange="reversed", showgrid=False)  # layer 0 on top, as in the grid
    return fig


def _padded(rows: Sequence[Sequence[float]], width: int) -> np.ndarray:
    """(L, width) with NaN where a layer has fewer heads."""
    out = np.full((len(rows), width), np.nan)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
