"""Colours that charts and the grid share: Okabe-Ito, safe for colour-blind eyes, on light and dark.

The looks of the page itself live in .streamlit/config.toml.
"""

from __future__ import annotations

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
VERMILION, SKY, YELLOW, GREY = "#D55E00", "#56B4E9", "#F0E442", "#8A8A8A"

# what a colour stands for, the same on every page; the colours of sets: charts/looks.py
NOW, BEFORE, GAP = SKY, GREY, VERMILION
MEMBERS = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW, GREY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

# viridis, ten stops: dark = low, bright = high, even steps for colour-blind eyes too
SEQUENTIAL = (
    "#440154", "#482878", "#3E4989", "#31688E", "#26828E",
    "#1F9E89", "#35B779", "#6ECE58", "#B5DE2B", "#FDE725",
)  # fmt: skip
DIVERGING = ("#0072B2", "#56B4E9", "#F2F2F2", "#E69F00", "#D55E00")


def rgb(colour: str) -> tuple[int, int, int]:
    """'#0072B2' -> (0, 114, 178)."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def rgba(colour: str, alpha: float) -> str:
    """A hex colour with an opacity, as Plotly wants it."""
    return f"rgba({','.join(map(str, rgb(colour)))},{alpha})"


GRID_PALETTE = tuple(rgb(colour) for colour in SEQUENTIAL)
COLORSCALE = [[i / (len(SEQUENTIAL) - 1), colour] for i, colour in enumerate(SEQUENTIAL)]
DIVERGING_SCALE = [[i / (len(DIVERGING) - 1), colour] for i, colour in enumerate(DIVERGING)]
