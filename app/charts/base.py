"""What all figures share: margins, legend, the saving of pictures."""

from __future__ import annotations

import html
from typing import Any

import plotly.graph_objects as go


def plain(text: object) -> str:
    """Text from outside as plain text inside a figure: Plotly obeys tags and, in hover templates, `%{...}`."""
    return html.escape(str(text), quote=False).replace("%{", "%&#123;")  # it knows numbers, and few names, of entities


def finish(fig: go.Figure, *, height: int = 380, x: str = "", y: str = "", legend: bool = True) -> go.Figure:
    """House style: quiet grid, the legend above the plot, axis titles in plain words.

    Colours of text, grid and paper are left to Streamlit's theme, so that light and dark both fit.
    """
    fig.update_layout(
        height=height,
        margin={"l": 10, "r": 10, "t": 36 if legend else 12, "b": 10},
        showlegend=legend,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0, "font": {"size": 12}},
        hoverlabel={"namelength": -1},
        bargap=0.02,
    )
    if x:
        fig.update_xaxes(title_text=x)
    if y:
        fig.update_yaxes(title_text=y)
    return fig


def save_options(name: str, kind: str = "png", scale: int = 2, *, selectable: bool = False) -> dict[str, Any]:
    """Plotly's config: its camera button saves `name` as PNG (twice the size) or SVG.

    Args:
        selectable: keep the buttons that choose points by box and lasso.
    """
    return {
        "displaylogo": False,
        "modeBarButtonsToRemove": ["autoScale2d"] if selectable else ["select2d", "lasso2d", "autoScale2d"],
        "toImageButtonOptions": {"format": kind, "filename": name, "scale": scale},
    }
