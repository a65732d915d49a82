"""Chosen samples: pictures or texts with class, prediction and confidence; and their words on hover."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from app import lab, widgets
from app.charts.base import plain
from app.errors import escape

SHOWN = 24  # pictures at a time; the table has all


def hover_texts(chosen: lab.Sample) -> list[str]:
    """A few lines a sample, row by row: its class or set, the text of a text, and its id."""
    out = []
    for name, part in chosen.sets.items():
        for i, sample_id in enumerate(part.ids):
            kind = name or class_of(part, i)
            words = _lines(str(part.inputs[i])) if part.kind == "text" else ""
            out.append(f"<b>{plain(kind)}</b><br>{words}{plain(sample_id)}")
    return out


def _lines(text: str, *, width: int = 60, lines: int = 4) -> str:
    """The start of a text from outside as lines of a hover box; markup in it is shown, not obeyed."""
    wrapped = textwrap.wrap(text, width)
    kept = [*wrapped[:lines], *(["…"] if len(wrapped) > lines else [])]
    return "".join(f"{plain(line)}<br>" for line in kept)


def class_of(part: Any, i: int) -> str:
    """The class of a sample by name, or by number, or "" without labels."""
    if part.labels is None:
        return ""
    label = int(part.labels[i])
    return part.class_names[label] if label < len(part.class_names) else str(label)


def gallery_table(chosen: lab.Sample, probs: np.ndarray, rows: Sequence[int], names: Sequence[str]) -> pd.DataFrame:
    """One line a sample: set, class, prediction, whether it is right, confidence, id, and the text of a text.

    Args:
        probs: (N, C) of all rows of the sample.
        rows: which, as rows of the sample.
        names: of the classes of `probs`.
    """
    out = []
    for row in rows:
        name, part, i = locate(chosen, row)
        top = int(probs[row].argmax())
        predicted = names[top] if top < len(names) else str(top)
        line = {"set": name or "ID", "class": class_of(part, i) if not name else "", "prediction": predicted,
                "right": None if name else bool(part.labels is not None and part.labels[i] == top),
                "confidence": float(probs[row, top]), "id": part.ids[i]}  # fmt: skip
        out.append({"text": str(part.inputs[i])[:200], **line} if part.kind == "text" else line)
    return pd.DataFrame(out)


def locate(chosen: lab.Sample, row: int) -> tuple[str, Any, int]:
    """(set, its samples, index in it) of a row of the sample."""
    for name, where in chosen.slices.items():
        if where.start <= row < where.stop:
            return name, chosen.sets[name], row - where.start
    raise IndexError(row)


def gallery(chosen: lab.Sample, probs: np.ndarray, rows: Sequence[int], names: Sequence[str], name: str) -> None:
    """Pictures of the first SHOWN rows, and a table of all with a CSV button."""
    table = gallery_table(chosen, probs, rows, names)
    inside, wrong = table["set"] == "ID", (table["right"] == False).sum()  # noqa: E712  (None: not ID)
    st.markdown(
        f"**{len(table)} samples chosen**: {inside.sum()} ID, {wrong} of them wrong, {(~inside).sum()} OOD; "
        f"mean confidence {table['confidence'].mean():.2f}."
    )
    if chosen.id.kind == "image":
        with st.container(horizontal=True, gap="small"):
            for row, line in zip(rows[:SHOWN], table.to_dict("records"), strict=False):
                _, part, i = locate(chosen, row)
                kind, said = line["class"] or line["set"], line["prediction"]
                caption = f"{escape(kind)} → {escape(said)}, {line['confidence']:.0%}"
                st.image(part.inputs[i], caption=caption, width=112, alt=f"{kind}, predicted {said}")
        if len(rows) > SHOWN:
            st.caption(f"The first {SHOWN} of {len(rows)} as pictures.")
    widgets.show_table(table, name, column_config={
        "confidence": st.column_config.ProgressColumn("confidence", min_value=0, max_value=1, format="%.2f"),
        "right": st.column_config.CheckboxColumn("right"),
    })  # fmt: skip
