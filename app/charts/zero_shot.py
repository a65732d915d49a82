"""Pictures of the zero-shot page: OOD sets judged by two scores, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from app.charts.base import finish, plain
from app.theme import MEMBERS, NOW


def two_scores(sets: Sequence[str], first: Sequence[float], second: Sequence[float]) -> go.Figure:
    """AUROC of MSP and of MCM on each OOD set; a line at 0.5, where a score tells nothing."""
    fig, places = go.Figure(), list(map(plain, sets))
    for name, values, colour, pattern in (("MSP", first, NOW, ""), ("MCM", second, MEMBERS[1], "/")):
        fig.add_trace(
            go.Bar(
                name=name, x=places, y=list(values), marker={"color": colour, "pattern": {"shape": pattern}},
                text=[f"{value:.2f}" for value in values], textposition="outside",
                hovertemplate=f"{name}, %{{x}}: AUROC %{{y:.3f}}<extra></extra>",
            )
        )  # fmt: skip
    fig.add_hline(y=0.5, line={"dash": "dot", "width": 1})
    fig.update_yaxes(range=[0, 1.1])
    fig.update_layout(barmode="group")
    return finish(fig, height=300, x="OOD set", y="AUROC (high is better)")
