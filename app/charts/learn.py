"""Pictures of the tour: figures over kept heads, members side by side, cost ratios, the fused network as a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.charts.base import finish
from app.theme import BEFORE, GREY, MEMBERS, SEQUENTIAL
from hydra_core.heads.mask import HeadMask, Plan, member_name


def keep_curves(keeps: Sequence[int], curves: Mapping[str, Sequence[float]]) -> go.Figure:
    """One small panel a figure, over the heads kept in each layer; a dotted line where all are kept.

    Args:
        keeps: heads kept a layer, any order.
        curves: by title, the value at each of `keeps`.
    """
    fig = make_subplots(rows=1, cols=len(curves), subplot_titles=list(curves), horizontal_spacing=0.13)
    order = np.argsort(keeps)
    x = np.asarray(keeps)[order]
    for at, (name, values) in enumerate(curves.items()):
        y = np.asarray(values, dtype=float)[order]
        line = {"color": MEMBERS[at % len(MEMBERS)], "width": 3}
        fig.add_trace(go.Scatter(x=x, y=y, mode="lines+markers", line=line, marker={"size": 9}, name=name,
                                 hovertemplate="%{x} heads a layer: %{y:.4f}<extra>" + name + "</extra>"),
                      row=1, col=at + 1)  # fmt: skip
        fig.add_hline(y=y[-1], line={"color": BEFORE, "dash": "dot", "width": 1.5}, row=1, col=at + 1)
    finish(fig, height=330, x="heads kept a layer", legend=False)
    fig.update_layout(margin={"t": 40})
    fig.update_xaxes(tickvals=x.tolist(), autorange="reversed")  # to the right: more is pruned
    return fig


def member_figure(plan: Plan) -> go.Figure:
    """Layers x heads: how many members keep each head; their letters, in the order of the plan, stand in the cell."""
    widest, letters = max(plan.shape), [member_name(m) for m in range(len(plan))]
    count, text = np.full((len(plan.shape), widest), np.nan), np.full((len(plan.shape), widest), "", dtype=object)
    for layer, heads in enumerate(plan.shape):
        for head in range(heads):
            keepers = [name for name, mask in zip(letters, plan, strict=True) if mask[layer, head]]
            count[layer, head] = len(keepers)
            text[layer, head] = " ".join(keepers) or "–"
    steps = [SEQUENTIAL[i * (len(SEQUENTIAL) - 1) // max(1, len(plan))] for i in range(len(plan) + 1)]
    scale = [(edge / len(steps), colour) for i, colour in enumerate(steps) for edge in (i, i + 1)]
    fig = go.Figure(
        go.Heatmap(
            z=count, text=text, texttemplate="%{text}", zmin=-0.5, zmax=len(plan) + 0.5, xgap=2, ygap=2,
            x=[str(h) for h in range(widest)], y=[str(l) for l in range(len(plan.shape))], colorscale=scale,
            hoverongaps=False, hovertemplate="layer %{y}, head %{x}: kept by %{text}<extra></extra>",
            colorbar={"title": {"text": "members that keep it", "side": "right"}, "thickness": 12,
                      "tickvals": list(range(len(plan) + 1))},
        )
    )  # fmt: skip
    finish(fig, height=90 + 40 * len(plan.shape), x="head", y="layer", legend=False)
    fig.update_xaxes(type="category", showgrid=False)
    fig.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return fig


def cost_bars(ratios: Mapping[str, tuple[float, float]]) -> go.Figure:
    """Parameters and multiply-adds of each way to run a plan, over those of one model.

    Args:
        ratios: (parameters, multiply-adds) by name.
    """
    fig = go.Figure()
    names = ["<br>".join(wrap(name, 10)) for name in ratios]  # long names would touch or be turned
    for i, what in enumerate(("parameters", "multiply-adds")):
        values = [pair[i] for pair in ratios.values()]
        fig.add_trace(go.Bar(x=names, y=values, name=what, text=[f"{v:.2f}" for v in values],
                             textposition="outside", marker={"color": MEMBERS[i], "pattern": {"shape": ("", "/")[i]}},
                             hovertemplate="%{x}: %{y:.2f} x<extra>" + what + "</extra>"))  # fmt: skip
    fig.add_hline(y=1, line={"color": GREY, "dash": "dot", "width": 1.5})
    finish(fig, height=380, y="times one model")
    fig.update_layout(bargap=0.3)
    fig.update_yaxes(range=[0, 1.15 * max(max(pair) for pair in ratios.values())])
    return fig


def fused_graph(plan: Plan) -> str:
    """The fused network in Graphviz's language: layers that members share once, then one branch a member group."""
    last = len(plan.shape)
    lines = [
        "digraph hydra { rankdir=TB; bgcolor=transparent; nodesep=0.3; ranksep=0.3;",
        f'node [shape=box, style=rounded, color="{GREY}", fontcolor="{GREY}", fontname="sans-serif", fontsize=13];',
        f'edge [color="{GREY}", arrowsize=0.6];',
        'x [label="sample"];',
    ]
    known: set[tuple] = set()
    for m, mask in enumerate(plan):
        before = "x"
        for start, end in _runs(plan, mask):
            key = (mask.rows[:end], start)
            node = f"n{abs(hash(key))}"
            if key not in known:
                known.add(key)
                users = [name for name, other in zip(plan.names, plan, strict=True) if other.rows[:end] == key[0]]
                lines.append(f'{node} [label="{_label(mask, start, end)}\\n{", ".join(users)}"];')
                lines.append(f"{before} -> {node};")
            before = node
        lines.append(f'p{m} [label="softmax {plan.names[m]}"]; {before} -> p{m}; p{m} -> mean;')
    lines.append(f'mean [label="mean of {len(plan)}"]; }}')
    return "\n".join(lines) if last else ""


def _runs(plan: Plan, mask: HeadMask) -> list[tuple[int, int]]:
    """Stretches of layers that this member runs with the same other members: [(first, one past the last)]."""
    layers = len(plan.shape)
    company = [tuple(other.rows[: end + 1] == mask.rows[: end + 1] for other in plan) for end in range(layers)]
    edges = [0, *(l for l in range(1, layers) if company[l] != company[l - 1]), layers]
    return list(pairwise(edges))


def _label(mask: HeadMask, start: int, end: int) -> str:
    kept = ", ".join(str(mask.counts[layer]) for layer in range(start, end))
    span = f"layer {start}" if end - start == 1 else f"layers {start} to {end - 1}"
    return f"{span}\\nheads kept: {kept}"
