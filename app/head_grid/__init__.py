"""The layers x heads grid: click, drag or keys prune or choose heads (components v2, no build step).

The mask lives in the session and is drawn as data; the grid only sends strokes, which a callback
applies before the page runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import streamlit as st

from app.theme import GRID_PALETTE
from hydra_core.heads.mask import HeadMask

HERE = Path(__file__).parent
Head = tuple[int, int]  # (layer, head)
Rows = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Stroke:
    """Heads set by one click, drag or key."""

    cells: tuple[Head, ...]
    on: bool


@cache
def _component() -> Any:
    return st.components.v2.component(
        "hydra_lab.head_grid", js=(HERE / "grid.js").read_text("utf-8"), css=(HERE / "grid.css").read_text("utf-8")
    )


def head_grid(
    mask: HeadMask,
    *,
    key: str,
    on_paint: Callable[[list[Stroke]], None],
    scores: Any = None,
    title: str = "score",
    mode: Literal["prune", "select"] = "prune",
    selected: Collection[Head] = (),
    multi: bool = True,
    scale: Literal["linear", "rank"] = "linear",
    palette: Sequence[tuple[int, int, int]] = GRID_PALETTE,
    label: str = "Attention heads by layer",
    disabled: bool = False,
) -> None:
    """Draw the grid.

    Args:
        mask: the heads kept. In mode "prune" a stroke keeps or removes heads; in mode "select"
            it chooses heads and pruned ones are only shown as such.
        key: names the grid in the session; one grid a key and page.
        on_paint: called before the page runs again, with the new strokes in order. See `paint_mask`.
        scores: one row a layer (or anything with a `.matrix`), for colours and hints.
        selected: chosen heads, in mode "select"; `multi` False lets one be chosen at a time.
        scale: colours by value, or by rank over the whole grid (for heavy-tailed scores).
    """
    matrix = None if scores is None else [np.asarray(row, dtype=float) for row in getattr(scores, "matrix", scores)]
    _component()(
        key=key,
        data={
            "mode": mode,
            "multi": multi,
            "on": _rows(mask, mode, selected),
            "pruned": None if mode == "prune" else [[not kept for kept in row] for row in mask.rows],
            "shades": None if matrix is None else shades(matrix, scale),
            "hints": None if matrix is None else hints(matrix, title),
            "legend": None if matrix is None else _legend(matrix, title, scale),
            "palette": [list(colour) for colour in palette],
            "layer_labels": [str(layer) for layer in range(len(mask.shape))],
            "head_labels": [str(head) for head in range(max(mask.shape))],
            "label": label,
            "disabled": disabled,
            "ack": st.session_state.get(_ack_key(key), 0),
        },
        on_paint_change=lambda: _receive(key, mask.shape, on_paint),
    )


def _rows(mask: HeadMask, mode: str, selected: Collection[Head]) -> list[list[bool]]:
    if mode == "prune":
        return [list(row) for row in mask.rows]
    chosen = set(selected)
    return [[(l, h) in chosen for h in range(heads)] for l, heads in enumerate(mask.shape)]


def _ack_key(key: str) -> str:
    return f"{key}/ack"


def _receive(key: str, shape: Sequence[int], on_paint: Callable[[list[Stroke]], None]) -> None:
    """Take the strokes that are new; the browser sends unconfirmed ones again."""
    event = st.session_state.get(key)
    strokes, last = read_strokes(event.get("paint") if event else None, shape, st.session_state.get(_ack_key(key), 0))
    st.session_state[_ack_key(key)] = last
    if strokes:
        on_paint(strokes)


def read_strokes(payload: Any, shape: Sequence[int], ack: int) -> tuple[list[Stroke], int]:
    """Strokes newer than `ack` from what the browser sent, and the number of the newest.

    What does not fit (wrong types, heads that do not exist) is left out: it comes from outside.
    """
    strokes, last = [], ack
    ops = payload.get("ops") if isinstance(payload, dict) else None
    for op in ops if isinstance(ops, list) else []:
        seq = op.get("seq") if isinstance(op, dict) else None
        if not isinstance(seq, int) or seq <= ack:
            continue
        last = max(last, seq)
        sent = op.get("cells")
        cells = [_head(cell, shape) for cell in sent] if isinstance(sent, list) else []
        good = tuple(cell for cell in cells if cell is not None)
        if good and isinstance(op.get("on"), bool):
            strokes.append(Stroke(good, op["on"]))
    return strokes, last


def _head(cell: Any, shape: Sequence[int]) -> Head | None:
    try:
        layer, head = (int(v) for v in cell)
    except (TypeError, ValueError):
        return None
    return (layer, head) if 0 <= layer < len(shape) and 0 <= head < shape[layer] else None


def paint_mask(mask: HeadMask, strokes: Sequence[Stroke]) -> HeadMask:
    """The mask after the strokes: `on` keeps, not `on` prunes."""
    rows = [list(row) for row in mask.rows]
    for stroke in strokes:
        for layer, head in stroke.cells:
            rows[layer][head] = stroke.on
    return HeadMask.of(rows)


def paint_selection(selected: Collection[Head], strokes: Sequence[Stroke], *, multi: bool = True) -> tuple[Head, ...]:
    """The chosen heads after the strokes, in order of layer and head."""
    chosen = set(selected)
    for stroke in strokes:
        if stroke.on and not multi:
            chosen = set()
        chosen = chosen | set(stroke.cells) if stroke.on else chosen - set(stroke.cells)
    return tuple(sorted(chosen))


def shades(matrix: Sequence[np.ndarray], scale: str = "linear") -> list[list[float | None]]:
    """0 to 1 a head, by value or by rank over the grid; None where the score is not a number."""
    flat = np.concatenate(matrix)
    known = flat[np.isfinite(flat)]
    if scale == "rank":
        order = np.unique(known)
        place = {v: i / max(1, len(order) - 1) for i, v in enumerate(order.tolist())}
        return [[place.get(v) for v in row.tolist()] for row in matrix]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    width = (high - low) or 1.0
    return [[round(float((v - low) / width), 4) if np.isfinite(v) else None for v in row] for row in matrix]


def hints(matrix: Sequence[np.ndarray], title: str) -> list[list[str]]:
    """'Taylor 0.0123, rank 3 of 48' a head (rank 1 is the highest score)."""
    flat = np.concatenate(matrix)
    ranks = np.empty(len(flat), dtype=int)
    ranks[np.argsort(-flat, kind="stable")] = np.arange(1, len(flat) + 1)
    out, i = [], 0
    for row in matrix:
        out.append([f"{title} {v:.3g}, rank {ranks[i + h]} of {len(flat)}" for h, v in enumerate(row)])
        i += len(row)
    return out


def _legend(matrix: Sequence[np.ndarray], title: str, scale: str) -> dict[str, str]:
    known = np.concatenate(matrix)
    known = known[np.isfinite(known)]
    low, high = (f"{known.min():.3g}", f"{known.max():.3g}") if len(known) else ("–", "–")
    return {"title": title + (" (by rank)" if scale == "rank" else ""), "low": low, "high": high}
