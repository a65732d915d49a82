"""How each set of samples is drawn, the same in every chart: a colour, a symbol and a dash of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from app.theme import BLUE, GREEN, GREY, ORANGE, PINK, SKY, VERMILION, YELLOW


class Look(NamedTuple):
    """A Plotly colour, marker symbol and line dash."""

    colour: str
    symbol: str
    dash: str


# near sets are warm; the first far colours are those that right (green) and wrong (vermilion) answers leave free
LOOKS = {
    "id": (Look(BLUE, "circle", "solid"),),
    "near": (Look(ORANGE, "diamond", "dash"), Look(YELLOW, "square", "longdashdot")),
    "far": (Look(PINK, "x", "dot"), Look(SKY, "cross", "dashdot"), Look(VERMILION, "triangle-up", "longdash"),
            Look(GREEN, "star", "dash")),
    "other": (Look(GREY, "square", "dashdot"), Look(PINK, "star", "dot")),
}  # fmt: skip


def looks_of(shifts: Iterable[str]) -> list[Look]:
    """A look a set, in order; sets of one shift differ as far as there are looks."""
    seen: Counter[str] = Counter()
    out = []
    for shift in shifts:
        choice = LOOKS[shift]
        out.append(choice[seen[shift] % len(choice)])
        seen[shift] += 1
    return out
