"""What a head looks at: weights over an image's patches or over a text's tokens."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.charts.base import finish, plain
from app.theme import DASHES, MEMBERS, ORANGE, SKY, VERMILION, rgba

# the weight is the opacity: what is not looked at stays visible as it is
GLOW = [[0.0, rgba(ORANGE, 0.0)], [0.5, rgba(ORANGE, 0.65)], [1.0, rgba(VERMILION, 0.9)]]


def overlay_figure(
    picture: np.ndarray, grid: tuple[int, int], weights: Mapping[str, np.ndarray], query: int | None = None
) -> go.Figure:
    """The image, and beside it one copy under each map; colours run from 0 to the map's own largest weight.

    Args:
        picture: (H, W) or (H, W, 3) uint8.
        grid: rows and columns of patches.
        weights: by title, the weight of each patch in reading order, (rows * columns,).
        query: number of the patch that looks, outlined; None: a token without a place.
    """
    titles = ["the image", *(f"{name}<br>most on one patch: {w.max():.2f}" for name, w in weights.items())]
    fig = make_subplots(rows=1, cols=len(titles), subplot_titles=titles, horizontal_spacing=0.03)
    rows, columns = grid
    high, wide = picture.shape[0] / rows, picture.shape[1] / columns  # pixels a patch
    for at in range(len(titles)):
        fig.add_trace(go.Image(source=_png(picture), hoverinfo="skip"), row=1, col=at + 1)
    for at, (name, flat) in enumerate(weights.items(), start=2):
        heat = go.Heatmap(
            z=flat.reshape(rows, columns), x0=wide / 2 - 0.5, dx=wide, y0=high / 2 - 0.5, dy=high,
            colorscale=GLOW, zmin=0, showscale=False, name=name,
            customdata=np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1),
            hovertemplate="row %{customdata[0]}, column %{customdata[1]}: %{z:.3f}<extra></extra>",
        )  # fmt: skip
        fig.add_trace(heat, row=1, col=at)
    if query is not None:
        r, c = divmod(query, columns)
        box = {"x0": c * wide - 0.5, "x1": (c + 1) * wide - 0.5, "y0": r * high - 0.5, "y1": (r + 1) * high - 0.5}
        fig.add_shape(type="rect", line={"color": SKY, "width": 3}, row="all", col="all", **box)
    finish(fig, height=270, legend=False)
    fig.update_layout(margin={"t": 50})
    fig.update_annotations(font_size=13)
    fig.update_xaxes(visible=False, range=[-0.5, picture.shape[1] - 0.5], constrain="domain")
    fig.update_yaxes(visible=False, range=[picture.shape[0] - 0.5, -0.5], constrain="domain")
    return fig


def _png(picture: np.ndarray) -> str:
    """An image as a data URI."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(picture).convert("RGB").save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def layer_strip(maps: np.ndarray, grid: tuple[int, int], *, chosen: int, columns: int = 8) -> go.Figure:
    """All heads of a layer from one token, small; the chosen one by name.

    Args:
        maps: (H, rows * columns) weights on patches.
    """
    lines = -(-len(maps) // columns)
    titles = [f"<b>head {h}</b>" if h == chosen else f"head {h}" for h in range(len(maps))]
    fig = make_subplots(rows=lines, cols=min(columns, len(maps)), subplot_titles=titles,
                        horizontal_spacing=0.02, vertical_spacing=0.2 / lines)  # fmt: skip
    for h, flat in enumerate(maps):
        heat = go.Heatmap(z=flat.reshape(grid), zmin=0, coloraxis="coloraxis",
                          hovertemplate=f"head {h}: %{{z:.3f}}<extra></extra>")  # fmt: skip
        fig.add_trace(heat, row=h // columns + 1, col=h % columns + 1)
    finish(fig, height=30 + 90 * lines, legend=False)
    fig.update_layout(margin={"t": 26}, coloraxis={"colorscale": "Viridis", "cmin": 0, "showscale": False})
    fig.update_annotations(font_size=12)
    fig.update_xaxes(visible=False, constrain="domain")
    fig.update_yaxes(visible=False, autorange="reversed", scaleanchor="x", constrain="domain")
    return fig


def token_bars(tokens: Sequence[str], weights: Mapping[str, np.ndarray], query: int) -> go.Figure:
    """Weights over the tokens of a text, one bar a token and map; the token that looks is marked.

    Args:
        tokens: (T,) distinct names, in reading order.
        weights: by title, (T,).
    """
    fig = go.Figure()
    for i, (name, values) in enumerate(weights.items()):
        marker: dict[str, Any] = {"color": MEMBERS[i], "pattern": {"shape": ("", "/")[i % 2]}}
        fig.add_trace(go.Bar(x=list(map(plain, tokens)), y=values, name=name, marker=marker,
                             hovertemplate="%{x}: %{y:.3f}<extra>" + name + "</extra>"))  # fmt: skip
    fig.add_vline(x=query, line={"color": SKY, "width": 3, "dash": DASHES[2]})
    finish(fig, height=360, y="weight")
    fig.update_layout(barmode="group", bargap=0.25)
    fig.update_xaxes(type="category", tickangle=-60)
    return fig
