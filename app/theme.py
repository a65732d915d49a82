"""Colours that charts and the grid share: Okabe-Ito, safe for colour-blind eyes, on light and dark.

The looks of the page itself live in .streamlit/config.toml.
"""

from __future__ import annotations

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
VERMILION, SKY, YELLOW, GREY = "#D55E00", "#56B4E9", "#F0E442", "#8A8A8A"

# what a colour stands for, the same on every page
ID, NEAR, FAR = BLUE, ORANGE, PINK
NOW, BEFORE, GAP = SKY, GREY, VERMILION
MEMBERS = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILION, YELLOW, GREY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

# cividis, ten stops: dark = low, bright = high, made for colour-blind eyes (Nunez et al. 2018)
CIVIDIS = (
    "#00224E", "#123570", "#3B496C", "#575D6D", "#707173",
    "#8A8678", "#A59C74", "#C3B369", "#E1CC55", "#FEE838",
)  # fmt: skip
DIVERGING = ("#0072B2", "#56B4E9", "#F2F2F2", "#E69F00", "#D55E00")


def rgb(colour: str) -> tuple[int, int, int]:
    """'#0072B2' -> (0, 114, 178)."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def rgba(colour: str, alpha: float) -> str:
    """A hex colour with an opacity, as Plotly wants it."""
    return f"rgba({','.join(map(str, rgb(colour)))},{alpha})"


GRID_PALETTE = tuple(rgb(colour) for colour in CIVIDIS)
COLORSCALE = [[i / (len(CIVIDIS) - 1), colour] for i, colour in enumerate(CIVIDIS)]
DIVERGING_SCALE = [[i / (len(DIVERGING) - 1), colour] for i, colour in enumerate(DIVERGING)]
