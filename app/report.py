"""The report of a setting: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from app import cards
from app.charts.reliability import describe_bins, reliability_figure
from app.session import Session
from app.widgets import change, number

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
body{color:#222;background:#fff}
table{border-collapse:collapse}td,th{padding:.3rem .8rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}code{word-break:break-all}"""


def report_html(
    state: Session, now: Mapping[str, float], before: Mapping[str, float], bins: Any, bins_before: Any, note: str
) -> str:
    """Settings, figures with changes, and the reliability diagram (with its script inside)."""
    picture = reliability_figure(bins, bins_before).to_html(full_html=False, include_plotlyjs=True)
    rows = "".join(_row(card, now.get(name), before.get(name)) for name, card in cards.ALL.items() if name in now)
    title = "Hydra Lab report"
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1><p><b>{escape(state.model)}</b> on <b>{escape(state.data)}</b>, {len(state.plan)} members. "
        f"{escape(note)}.</p><table><tr><th>figure</th><th>unpruned</th><th>this plan</th><th>change</th></tr>{rows}"
        f"</table><h2>Reliability</h2><p>{escape(describe_bins(bins))}</p>{picture}"
        f"<h2>The plan</h2><p><code>{escape(state.plan.text)}</code></p></html>"
    )


def _row(card: Any, now: float | None, before: float | None) -> str:
    cells = (card.label, number(before, card.style), number(now, card.style), change(now, before, card.style))
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
