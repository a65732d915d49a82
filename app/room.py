"""A head's room: what goes without it, what it looks at, which samples it moves, how it ranks."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from app import cards, lab, travel, widgets
from app.cache import digest
from app.charts.attention import layer_strip, overlay_figure, token_bars
from app.errors import error_box, escape
from app.glossary import help_of
from app.session import Session, Settings
from hydra_core.errors import HydraError
from hydra_core.heads.mask import HeadMask

Head = tuple[int, int]
TOP = 8
BY = {"effect": "Effect on the answer", "norm": "Size of its output"}


def text_of(head: Head) -> str:
    """(3, 7) -> '3.7'."""
    return f"{head[0]}.{head[1]}"


def head_of(text: str) -> Head:
    """'3.7' -> (3, 7)."""
    layer, head = text.split(".")
    return int(layer), int(head)


def all_heads(state: Session) -> list[str]:
    """Every head of the model, in order of layers."""
    return [text_of((l, h)) for l, heads in enumerate(state.plan.shape) for h in range(heads)]


def room(state: Session, head: Head) -> None:
    """The whole room of one head."""
    st.subheader(f"The room of head {text_of(head)}", anchor=False)
    answer = st.container()
    with answer:
        found = widgets.result_of(_alone(state, head), patience=3.0)
    if found is None:
        return
    before, after, tops = found
    with answer:
        alone(state, head, before, after)
    with st.container(horizontal=True, gap="medium"):  # side by side where there is room
        with st.container(width=580):
            at, name = sample_controls(state, tops)
            look(state, head, at, name)
        with st.container(width="stretch"):
            standing(state, head)
    moved(state, head, tops)


# -- without it ----------------------------------------------------------------------------------


def _alone(state: Session, head: Head) -> Any:
    """A job: (report with all heads, report without this one, its top samples)."""
    model, data, by = state.model, state.data, st.session_state.get("by", "effect")

    def run(job: Any) -> Any:
        before = lab.report(model, data, lab.unpruned(model), progress=job.progress, cancel=job.cancel)
        after = lab.report(model, data, lab.without(model, head), progress=job.progress, cancel=job.cancel)
        return before, after, lab.top_samples(model, data, head, by=by, count=TOP)

    return widgets.start(digest("room", model, data, head, by), run, f"Removing head {text_of(head)} alone")


def alone(state: Session, head: Head, before: Any, after: Any) -> None:
    """What removing this head, and no other, does to each figure: exact."""
    values = cards.values_of(after, lab.cost(state.model, lab.without(state.model, head)[0]))
    base = cards.values_of(before, lab.cost(state.model, HeadMask.full(state.plan.shape)))
    st.markdown("**Removed alone**, exactly: every other head stays.")
    widgets.metric_cards({name: card for name, card in cards.ALL.items() if name in values}, values, base)
    if st.button("Open this in What if", icon=":material/tune:", key="room/what_if"):
        travel.go("what_if", Settings(state.model, state.data, lab.without(state.model, head)))


# -- its standing --------------------------------------------------------------------------------


def standing(state: Session, head: Head) -> None:
    """Rank by every criterion, those not scored yet on request."""
    st.markdown("**How it ranks** (1 = matters most)")
    table = lab.standing(state.model, state.data, head)
    number = st.column_config.NumberColumn
    columns = {name: number(format="%.4g") for name in ("Score", "Low", "High")} | {"Rank": number(width="small")}
    widgets.show_table(table.dropna(axis=1, how="all"), f"head-{text_of(head)}-ranks", column_config=columns,
                       column_order=("Criterion", "Rank", "Score"))  # fmt: skip
    if len(table):
        st.caption(f"Of {table['Of'].iloc[0]} heads. The CSV holds 95 % bootstrap intervals, where there are some.")
    missing = lab.missing_criteria(state.model, state.data)
    key = digest("all criteria", state.model, state.data)
    if missing and st.session_state.get("room/all") != key:
        names = ", ".join(lab.criteria()[name].label for name in missing)
        st.caption(f"Not scored yet: {names}.")
        if st.button(f"Score by {len(missing)} more", key="room/score", icon=":material/play_arrow:"):
            st.session_state["room/all"] = key
            st.rerun()
    elif missing:
        job = widgets.start(
            key,
            lambda job: lab.score_missing(state.model, state.data, progress=job.progress, cancel=job.cancel),
            "Scoring by the other criteria",
        )
        refused = widgets.result_of(job)
        for line in refused or ():
            st.caption(f"Cannot be scored: {escape(line)}.")


# -- what it looks at ----------------------------------------------------------------------------


def sample_controls(state: Session, tops: list[lab.Moved]) -> tuple[str, str]:
    """Which sample to look at: one of the head's top samples, or any other; returns (id, its name on screen)."""
    rows = {row.id: row for row in lab.sample_rows(state.data)}
    options = [f"top {i + 1}" for i in range(len(tops))] + list(rows)

    def label(option: str) -> str:
        return f"{option}: {tops[int(option[4:]) - 1].kind}" if option.startswith("top ") else rows[option].title

    option = st.selectbox("Sample", options, key="sample", bind="query-params", format_func=label,
                          help="The samples that this head moves most come first; any other of the page's samples "
                               "can be chosen.")  # fmt: skip
    return (tops[int(option[4:]) - 1].id if option.startswith("top ") else option), label(option)


def look(state: Session, head: Head, sample_id: str, name: str) -> None:
    """Attention from one token of the sample, beside attention rolled out over all layers."""
    layer, number = head
    model, data = state.model, state.data
    job = widgets.start(
        digest("look", model, data, sample_id, layer), lambda job: lab.attention(model, data, sample_id, layer),
        "Reading attention",
    )  # fmt: skip
    try:
        seen = widgets.result_of(job, patience=2.0)
    except HydraError as error:  # windowed attention has no such maps; the rest of the room stands
        error_box(error, warning=True)
        return
    if seen is None:
        return
    query = st.selectbox(
        "Token that looks", range(len(seen.tokens)), index=first_query(seen), format_func=lambda i: seen.tokens[i],
        key="query", bind="query-params", help=help_of("attention map"),
    )  # fmt: skip
    title = f"head {text_of(head)}"
    alt = f"Attention of {title} from {seen.tokens[query]} of {name}, beside attention rollout"
    if seen.grid is None:
        weights = {title: seen.maps[number, query], "rollout over all layers": seen.rollout[query]}
        widgets.show_figure(token_bars(seen.tokens, weights, query), f"attention-{text_of(head)}", alt)
    else:
        draw_patches(seen, head, query, title, alt)
    st.caption(escape(says(seen, number, query)))


def first_query(seen: lab.Look) -> int:
    """The class token where there is one, else the patch in the middle or the first word."""
    if seen.grid is None or (seen.lead and seen.tokens[0] == "class token"):
        return 0
    rows, columns = seen.grid
    return seen.lead + (rows // 2) * columns + columns // 2


def draw_patches(seen: lab.Look, head: Head, query: int, title: str, alt: str) -> None:
    """The overlay, and all heads of the layer small below."""
    assert seen.grid is not None
    assert seen.picture is not None
    weights = {title: seen.maps[head[1], query, seen.lead :], "rollout": seen.rollout[query, seen.lead :]}
    patch = query - seen.lead if query >= seen.lead else None
    figure = overlay_figure(seen.picture, seen.grid, weights, patch)
    widgets.show_figure(figure, f"attention-{text_of(head)}", alt)
    strip = layer_strip(seen.maps[:, query, seen.lead :], seen.grid, chosen=head[1])
    widgets.show_figure(strip, f"attention-layer-{head[0]}", f"All heads of layer {head[0]} from the same token")


def says(seen: lab.Look, number: int, query: int) -> str:
    """How concentrated the row is, and what lies on tokens without a place, which no picture shows."""
    row = seen.maps[number, query]
    best = int(row.argmax())
    text = f"It looks most at {seen.tokens[best]} ({row[best]:.0%} of its attention)."
    if seen.lead:
        text += f" {row[: seen.lead].sum():.0%} lies on tokens without a place, such as the class token."
    return text + " Attention says where a head reads, not what it does with it."


# -- the samples that it moves -------------------------------------------------------------------


def moved(state: Session, head: Head, tops: list[lab.Moved]) -> None:
    """The samples on which the head matters most: pictures or texts, and one table."""
    st.markdown("**Samples that it moves most**")
    st.segmented_control("Order by", list(BY), default="effect", required=True, key="by", bind="query-params",
                         format_func=lambda by: BY[by], help=help_of("effect on the answer"))  # fmt: skip
    if lab.data(state.data).kind == "image":
        with st.container(horizontal=True, gap="small"):
            for i, row in enumerate(tops):
                one = lab.find_sample(lab.sample(state.data), row.id)
                kind = row.set or row.label
                st.image(one.inputs[0], caption=f"top {i + 1}: {escape(kind)}", width=100, alt=f"{kind}, {row.id}")
    table = pd.DataFrame([_line(state, row) for row in tops])
    widgets.show_table(table, f"head-{text_of(head)}-samples", column_config=SAMPLE_COLUMNS)


SAMPLE_COLUMNS = {
    "effect": st.column_config.NumberColumn("effect, nats", format="%.4f"),
    "size": st.column_config.NumberColumn("output size", format="%.3f"),
}


def _line(state: Session, row: lab.Moved) -> dict[str, Any]:
    text = str(lab.find_sample(lab.sample(state.data), row.id).inputs[0])[:120]
    first = {"text": text} if lab.data(state.data).kind == "text" else {}
    (was, p), (now, q) = row.before, row.after
    return {**first, "set": row.set or "ID", "class": row.label or "–", "with it": f"{was} {p:.0%}",
            "without it": f"{now} {q:.0%}", "effect": row.effect, "size": row.norm, "id": row.id}  # fmt: skip
