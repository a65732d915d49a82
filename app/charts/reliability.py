"""The reliability diagram: accuracy against confidence by bin, the gaps, and how many samples each bin holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.charts.base import finish, plain
from app.theme import BEFORE, GAP, NOW, rgba


class Bins(Protocol):
    """What a diagram needs of hydra_core.metrics.Reliability."""

    @property
    def edges(self) -> np.ndarray: ...  # (B+1,)
    @property
    def count(self) -> np.ndarray: ...  # (B,)
    @property
    def accuracy(self) -> np.ndarray: ...  # (B,), NaN in empty bins
    @property
    def confidence(self) -> np.ndarray: ...  # (B,), NaN in empty bins


def reliability_figure(
    now: Bins,
    before: Bins | None = None,
    *,
    counts: bool = True,
    height: int = 430,
    now_name: str = "pruned",
    before_name: str = "unpruned",
) -> go.Figure:
    """Bars of accuracy, hatched gaps to the mean confidence, the counts below.

    Args:
        now: the bins to draw. An empty bin is left empty: it says nothing about calibration.
        before: bins of the unpruned model or another reference, drawn as a dashed outline on top.
        counts: whether to draw the number of samples of each bin below.
        now_name, before_name: what both are called.
    """
    now_name, before_name = plain(now_name), plain(before_name)
    fig = make_subplots(
        rows=2 if counts else 1,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.06,
        row_heights=[0.76, 0.24] if counts else None,
    )
    for trace in (_accuracy_bars(now, now_name), _gap_bars(now), _diagonal()):
        fig.add_trace(trace, row=1, col=1)
    if before is not None:
        fig.add_trace(_outline(before, before_name), row=1, col=1)
    if counts:
        fig.add_trace(_count_bars(now, now_name), row=2, col=1)
        if before is not None:
            fig.add_trace(_count_outline(before, before_name), row=2, col=1)
        fig.update_yaxes(title_text="samples", row=2, col=1, rangemode="tozero", nticks=4)
    finish(fig, height=height)
    fig.update_layout(barmode="overlay")
    fig.update_yaxes(title_text="accuracy", range=[0, 1.02], row=1, col=1)
    fig.update_xaxes(range=[0, 1], tickformat=".1f")
    fig.update_xaxes(title_text="confidence (probability of the predicted class)", row=2 if counts else 1, col=1)
    return fig


def small_reliability(panels: Sequence[tuple[str, Bins]], *, columns: int = 3) -> go.Figure:
    """A small reliability diagram a panel, on shared axes.

    Args:
        panels: (title, bins) of each.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    titles = [plain(title) for title, _ in panels]
    fig = make_subplots(rows=rows, cols=columns, subplot_titles=titles, shared_xaxes=True, shared_yaxes=True,
                        horizontal_spacing=0.03, vertical_spacing=0.2 / rows)  # fmt: skip
    for at, (_, bins) in enumerate(panels):
        for trace in (_accuracy_bars(bins, ""), _gap_bars(bins), _diagonal()):
            trace.name = trace.name.rstrip(", ")
            trace.legendgroup, trace.showlegend = trace.name, at == 0
            fig.add_trace(trace, row=at // columns + 1, col=at % columns + 1)
    finish(fig, height=110 + 200 * rows)
    fig.update_layout(barmode="overlay", margin_t=70)
    fig.update_annotations(font_size=13)
    fig.update_layout(legend_y=1 + 40 / (200 * rows))
    fig.update_yaxes(range=[0, 1.02])
    fig.update_yaxes(title_text="accuracy", col=1)
    fig.update_xaxes(range=[0, 1], tickformat=".1f")
    fig.update_xaxes(title_text="confidence", row=rows)
    return fig


def filled(bins: Bins) -> np.ndarray:
    """Indices of the bins that hold samples."""
    return np.flatnonzero(np.asarray(bins.count) > 0)


def _geometry(bins: Bins) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(filled bins, their centres, their widths)."""
    edges, full = np.asarray(bins.edges, dtype=float), filled(bins)
    return full, ((edges[:-1] + edges[1:]) / 2)[full], np.diff(edges)[full]


def _hover(bins: Bins, full: np.ndarray) -> np.ndarray:
    edges = np.asarray(bins.edges, dtype=float)
    columns = (edges[full], edges[full + 1], bins.count, bins.accuracy, bins.confidence)
    lows, highs, *rest = columns
    return np.stack([lows, highs, *(np.asarray(c, dtype=float)[full] for c in rest)], axis=1)


HOVER = (
    "confidence %{customdata[0]:.3f} to %{customdata[1]:.3f}<br>%{customdata[2]:.0f} samples<br>"
    "accuracy %{customdata[3]:.3f}<br>mean confidence %{customdata[4]:.3f}"
)


def _accuracy_bars(bins: Bins, name: str) -> go.Bar:
    full, centres, widths = _geometry(bins)
    return go.Bar(
        x=centres,
        y=np.asarray(bins.accuracy)[full],
        width=widths * 0.96,
        name=f"accuracy, {name}",
        marker={"color": NOW, "line": {"width": 0}},
        customdata=_hover(bins, full),
        hovertemplate=HOVER + "<extra></extra>",
    )


def _gap_bars(bins: Bins) -> go.Bar:
    """From the accuracy to the mean confidence of each bin: the bars whose weighted sum is the ECE."""
    full, centres, widths = _geometry(bins)
    accuracy, confidence = np.asarray(bins.accuracy)[full], np.asarray(bins.confidence)[full]
    return go.Bar(
        x=centres,
        y=confidence - accuracy,
        base=accuracy,
        width=widths * 0.96,
        name="gap to confidence",
        marker={
            "color": rgba(GAP, 0.28),
            "line": {"color": GAP, "width": 1},
            "pattern": {"shape": "/", "fgcolor": GAP, "size": 6, "solidity": 0.25},
        },
        hoverinfo="skip",
    )


def _diagonal() -> go.Scatter:
    return go.Scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        name="perfect calibration",
        line={"color": BEFORE, "width": 1.5, "dash": "dot"},
        hoverinfo="skip",
    )


def _steps(bins: Bins, values: np.ndarray) -> tuple[list[float | None], list[float | None]]:
    """The outline of bars as one line, broken at empty bins."""
    edges = np.asarray(bins.edges, dtype=float)
    xs: list[float | None] = []
    ys: list[float | None] = []
    for i in filled(bins):
        if xs and xs[-1] != edges[i]:
            xs.append(None)
            ys.append(None)
        xs += [float(edges[i]), float(edges[i + 1])]
        ys += [float(values[i])] * 2
    return xs, ys


def _outline(bins: Bins, name: str) -> go.Scatter:
    xs, ys = _steps(bins, np.asarray(bins.accuracy, dtype=float))
    return go.Scatter(
        x=xs, y=ys, mode="lines", name=f"accuracy, {name}", line={"color": BEFORE, "width": 2, "dash": "dash"},
        hovertemplate=name + " accuracy %{y:.3f}<extra></extra>",
    )  # fmt: skip


def _count_bars(bins: Bins, name: str) -> go.Bar:
    full, centres, widths = _geometry(bins)
    return go.Bar(
        x=centres, y=np.asarray(bins.count)[full], width=widths * 0.96, name=f"samples, {name}", showlegend=False,
        marker={"color": rgba(NOW, 0.75)}, customdata=_hover(bins, full), hovertemplate=HOVER + "<extra></extra>",
    )  # fmt: skip


def _count_outline(bins: Bins, name: str) -> go.Scatter:
    xs, ys = _steps(bins, np.asarray(bins.count, dtype=float))
    return go.Scatter(
        x=xs, y=ys, mode="lines", name=f"samples, {name}", showlegend=False,
        line={"color": BEFORE, "width": 1.5, "dash": "dash"}, hovertemplate=name + " %{y:.0f} samples<extra></extra>",
    )  # fmt: skip


def describe_bins(bins: Bins) -> str:
    """The diagram in words, for readers who cannot see it."""
    full = filled(bins)
    if not len(full):
        return "Reliability diagram without samples."
    count = np.asarray(bins.count, dtype=float)[full]
    gap = np.asarray(bins.confidence, dtype=float)[full] - np.asarray(bins.accuracy, dtype=float)[full]
    worst = int(np.argmax(np.abs(gap)))
    edges = np.asarray(bins.edges, dtype=float)
    lean = "overconfident" if float(gap @ count) > 0 else "underconfident"
    return (
        f"Reliability diagram: {count.sum():.0f} samples in {len(full)} filled bins, on the whole {lean}. "
        f"Largest gap {abs(gap[worst]):.2f} at confidence {edges[full[worst]]:.2f} to {edges[full[worst] + 1]:.2f}."
    )
