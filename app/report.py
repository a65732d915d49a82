"""The report of a setting: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from app import cards
from app.session import Session
from app.widgets import change, number

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
body{color:#222;background:#fff}
table{border-collapse:collapse}td,th{padding:.3rem .8rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}td{overflow-wrap:anywhere}
pre{overflow:auto;background:#f4f4f4;padding:1rem}"""


Picture = tuple[str, Any, str]  # title, Plotly figure, the same in words


def report_html(
    state: Session,
    now: Mapping[str, float],
    before: Mapping[str, float],
    pictures: Sequence[Picture],
    facts: Mapping[str, str],
    recipe: str,
) -> str:
    """Settings, figures with changes, pictures (with their script inside), and the recipe that makes them again.

    Args:
        now, before: values by name in `cards.ALL`, of the plan and of the unpruned model.
        facts: further settings by their names: samples, bins, OOD score.
        recipe: text of the recipe file.
    """
    rows = "".join(_row(card, now.get(name), before.get(name)) for name, card in cards.ALL.items() if name in now)
    title = "Hydra Lab report"
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1><h2>Settings</h2><table>{_settings(state, facts)}</table>"
        f"<h2>Figures</h2><table><tr><th>figure</th><th>unpruned</th><th>this plan</th><th>change</th></tr>{rows}"
        f"</table>{''.join(_picture(i, *picture) for i, picture in enumerate(pictures))}"
        f"<h2>The recipe</h2><p>Saved as recipe.json, it opens on the page Export.</p><pre>{escape(recipe)}</pre>"
        "</html>"
    )


def _settings(state: Session, facts: Mapping[str, str]) -> str:
    members = {
        f"member {name}": f"{mask.kept} of {mask.total} heads kept; in each layer {', '.join(map(str, mask.counts))}"
        for name, mask in zip(state.plan.names, state.plan, strict=True)
    }
    lines = {"model": state.model, "data": state.data} | dict(facts) | members | {"plan": state.plan.text}
    return "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in lines.items())


def _picture(place: int, title: str, figure: Any, words: str) -> str:
    """A picture and its words; the first one carries the script for all."""
    drawn = figure.to_html(full_html=False, include_plotlyjs=place == 0, config={"displaylogo": False})
    return f"<h2>{escape(title)}</h2><p>{escape(words)}</p>{drawn}"


def _row(card: Any, now: float | None, before: float | None) -> str:
    cells = (card.label, number(before, card.style), number(now, card.style), change(now, before, card.style))
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
