"""Rows of the comparison: cost against quality, spread over seeds, each OOD set apart, reliability side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.charts.base import finish, plain
from app.theme import BLUE, GREEN, GREY, NOW, ORANGE, VERMILION

# families of rows: (name, colour, symbol); a row belongs to the first whose test its name passes
FAMILIES = (
    ("one model", GREY, "circle"),
    ("models trained apart", BLUE, "diamond"),
    ("one pruned model", ORANGE, "square"),
    ("Hydra Ensembles", VERMILION, "star"),
    ("other ensembles in one network", GREEN, "triangle-up"),
)
PRUNED = ("taylor", "magnitude", "circ_avg", "circ_acc", "circ_auroc")
# labelled in the picture beside the best row; where the label stands, so that the three never meet
NAMED = {"single": "bottom right", "deep_ensemble": "middle right", "hydra_circ": "middle right"}


def family_of(name: str) -> int:
    """Index into FAMILIES of a row's name; a scaled row belongs to the family of the row below it."""
    inner = name[:-1].partition("(")[2] if name.endswith(")") else name
    if inner.startswith("hydra"):
        return 3
    if inner in PRUNED:
        return 2
    return {"single": 0, "deep_ensemble": 1}.get(inner, 4)


@dataclass(frozen=True)
class Value:
    """One figure of a row.

    Attributes:
        mean: over repeats; None where the row has no such figure.
        std: over repeats, None for a single one.
        low, high: 95 % bootstrap interval over samples; None where there is none.
    """

    mean: float | None
    std: float | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, row: Any, metric: str, score: str | None = None, ood: str | None = None) -> Value:
        """The figure of a `RowResult`.

        Args:
            metric: a name in METRICS.
            score: the OOD score of AUROC, AUPR and FPR95; None: the one of the table.
            ood: of this OOD set alone (with `score`).
        """
        from hydra_core.methods.detection import FIGURES, MEANS

        figure, _, shift = metric.partition("_")
        if score is not None and (ood is not None or figure in FIGURES):
            where = ood or next(name for name, of in MEANS.items() if (of or "") == shift)
            found = row.detection.get(score, {}).get(where, {})
            return cls(found.get(figure), found.get(f"{figure}_std"))
        low, high = row.intervals.get(metric) or (None, None)
        return cls(row.values.get(metric), row.std.get(metric), low, high)

    @property
    def span(self) -> tuple[float | None, float | None]:
        """The mean less and plus one standard deviation."""
        return (None, None) if self.mean is None or self.std is None else (self.mean - self.std, self.mean + self.std)

    @property
    def text(self) -> str:
        """As people read it."""
        if self.mean is None:
            return "–"
        spread = "" if self.std is None else f" ± {self.std:.4f} over repeats"
        interval = "" if self.low is None else f"<br>95 % interval over samples {self.low:.4f} to {self.high:.4f}"
        return f"{self.mean:.4f}{spread}{interval}"


def pareto_figure(
    rows: Sequence[Any], metric: str, label: str, *, better: str, values: Sequence[Value] | None = None
) -> go.Figure:
    """Multiply-adds over those of one model against a figure; the area of a bubble is the number of parameters.

    Args:
        rows: `RowResult`s that were measured; those without the figure are left out.
        better: "high" or "low".
        values: the figure of each row; None: `metric` of the table. Bars: standard deviation over repeats.
    """
    values = [Value.of(row, metric) for row in rows] if values is None else values
    shown = [(row, value) for row, value in zip(rows, values, strict=True) if value.mean is not None]
    front = front_of([(row.costs["mac_ratio"], value.mean) for row, value in shown], better)
    fig = go.Figure()
    line = {"color": GREY, "dash": "dot", "shape": "hv", "width": 1.5}
    x, y = [p[0] for p in front], [p[1] for p in front]
    name = "nothing is both cheaper and better"
    fig.add_trace(go.Scatter(x=x, y=y, mode="lines", hoverinfo="skip", line=line, name=name))
    for family, (name, colour, symbol) in enumerate(FAMILIES):
        members = [(row, value) for row, value in shown if family_of(row.name) == family]
        if members:
            fig.add_trace(_bubbles(members, name, colour, symbol, front[-1]))
    finish(fig, height=460, x="multiply-adds / single", y=f"{label} ({better} is better)")
    fig.update_xaxes(type="log", tickvals=[1, 1.5, 2, 3, 5, 8], ticktext=["1x", "1.5x", "2x", "3x", "5x", "8x"])
    fig.update_layout(margin_t=70)
    return fig


def _bubbles(
    members: Sequence[tuple[Any, Value]], name: str, colour: str, symbol: str, best: tuple[float, float]
) -> go.Scatter:
    named = [row.name in NAMED or (row.costs["mac_ratio"], value.mean) == best for row, value in members]
    gap = "\u2002"  # keeps a label off its mark
    text = [f"{gap}{row.label}{gap}" if shown else "" for (row, _), shown in zip(members, named, strict=True)]
    hollow = [f"{symbol}-open" if "(" in row.name and row.name.endswith(")") else symbol for row, _ in members]
    spread = [value.std for _, value in members]
    return go.Scatter(
        x=[row.costs["mac_ratio"] for row, _ in members],
        y=[value.mean for _, value in members],
        error_y={"array": spread, "thickness": 1, "width": 3, "color": colour} if any(spread) else None,
        mode="markers+text",
        name=name,
        text=text,
        textposition=[NAMED.get(row.name, "top right") for row, _ in members],
        textfont={"size": 11},
        hovertext=[f"{row.label}<br>{row.costs['parameter_ratio']:.2f} x parameters" for row, _ in members],
        hovertemplate="%{hovertext}<br>%{x:.2f} x multiply-adds, %{y:.4f}<extra></extra>",
        marker={
            "size": [11 * row.costs["parameter_ratio"] ** 0.5 for row, _ in members],
            "color": colour,
            "symbol": hollow,
            "opacity": 0.85,
            "line": {"width": 1.5, "color": colour},
        },
    )


def front_of(points: Sequence[tuple[Any, Any]], better: str) -> list[tuple[float, float]]:
    """Points that no other beats in both cost and quality, by rising cost."""
    sign = 1 if better == "high" else -1
    front: list[tuple[float, float]] = []
    for x, y in sorted((p for p in points if p[1] is not None), key=lambda p: (p[0], -sign * p[1])):
        if not front or sign * y > sign * front[-1][1]:
            front.append((x, y))
    return front


def spread_figure(rows: Sequence[Any], columns: Mapping[str, Sequence[Value]], *, better: str) -> go.Figure:
    """A dot a row in each column; thick bar: standard deviation over repeats, thin bar: bootstrap interval.

    Args:
        rows: `RowResult`s that were measured.
        columns: title -> one `Value` a row. Rows are ordered by the first column, best on top.
        better: "high" or "low".
    """
    first = next(iter(columns.values()))
    sign = -1 if better == "high" else 1
    known = [i for i in range(len(rows)) if any(values[i].mean is not None for values in columns.values())]
    order = sorted(known, key=lambda i: (first[i].mean is None, sign * (first[i].mean or 0)))
    fig = make_subplots(cols=len(columns), shared_yaxes=True, subplot_titles=list(map(plain, columns)),
                        horizontal_spacing=0.03)  # fmt: skip
    labels = [rows[i].label for i in order]
    for at, values in enumerate(columns.values(), start=1):
        mine = [values[i] for i in order]
        colours = [FAMILIES[family_of(rows[i].name)][1] for i in order]
        for trace in (*_interval_bars(labels, mine, colours), _dots(labels, mine, colours)):
            fig.add_trace(trace, row=1, col=at)
        single = next((v.mean for i, v in zip(order, mine, strict=True) if rows[i].name == "single"), None)
        if single is not None:
            fig.add_vline(x=single, line={"color": GREY, "dash": "dot", "width": 1}, row=1, col=at)  # type: ignore[arg-type]
    finish(fig, height=70 + 23 * len(order), legend=False)
    fig.update_layout(margin_t=34)
    fig.update_annotations(font_size=12)
    fig.update_yaxes(categoryorder="array", categoryarray=labels[::-1], automargin=True)
    return fig


def _interval_bars(labels: Sequence[str], values: Sequence[Value], colours: Sequence[str]) -> list[go.Scatter]:
    bars = []
    for label, value, colour in zip(labels, values, colours, strict=True):
        for low, high, width in ((value.low, value.high, 1.5), (*value.span, 5)):
            if low is not None:
                bars.append(go.Scatter(x=[low, high], y=[label, label], mode="lines", hoverinfo="skip", opacity=0.6,
                                       line={"color": colour, "width": width}))  # fmt: skip
    return bars


def _dots(labels: Sequence[str], values: Sequence[Value], colours: Sequence[str]) -> go.Scatter:
    return go.Scatter(
        x=[value.mean for value in values],
        y=labels,
        mode="markers",
        marker={"color": colours, "size": 9},
        hovertext=[value.text for value in values],
        hovertemplate="%{y}<br>%{hovertext}<extra></extra>",
    )


def reliability_multiples(rows: Sequence[Any], *, columns: int = 4) -> go.Figure:
    """A small reliability diagram a row, with the ECE of these very bars; empty bins are empty."""
    lines = -(-len(rows) // columns)
    titles = ["<br>".join([*wrap(row.label, 19), f"ECE {row.first.get('ece', row.values['ece']):.3f}"]) for row in rows]
    height = 80 + 240 * lines
    gap = 84 / height  # room for a title of four lines, whatever the number of lines
    fig = make_subplots(rows=lines, cols=columns, subplot_titles=titles, shared_xaxes=True, shared_yaxes=True,
                        horizontal_spacing=0.03, vertical_spacing=gap if lines > 1 else 0)  # fmt: skip
    for at, row in enumerate(rows):
        edges, accuracy, count = (row.reliability[name] for name in ("edges", "accuracy", "count"))
        middle = [(a + b) / 2 for a, b in pairwise(edges)]
        width = [b - a for a, b in pairwise(edges)]
        bar = go.Bar(x=middle, y=accuracy, width=width, marker_color=NOW, customdata=count,
                     hovertemplate="at %{x:.2f}: %{y:.3f}<br>%{customdata} samples<extra></extra>")  # fmt: skip
        where = {"row": at // columns + 1, "col": at % columns + 1}
        fig.add_trace(bar, **where)
        line = {"color": VERMILION, "dash": "dash", "width": 1}
        fig.add_trace(go.Scatter(x=[0, 1], y=[0, 1], mode="lines", line=line, hoverinfo="skip"), **where)
    finish(fig, height=height, legend=False)
    fig.update_layout(margin_t=64)
    fig.update_annotations(font_size=11)
    fig.update_xaxes(range=[0, 1])
    fig.update_yaxes(range=[0, 1])
    return fig
