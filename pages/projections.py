"""Do ID and OOD samples separate in a head? The six most and the six least important ones, or any other."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from app import frame, lab, widgets, work
from app.cache import digest
from app.charts.scatter import point_cloud, small_multiples, table_of
from app.errors import escape
from app.gallery import gallery, hover_texts
from app.head_grid import Stroke, head_grid, paint_selection
from app.lab.spaces import SAMPLES
from app.session import Session
from hydra_core.heads.mask import HeadMask, Plan

CHOSEN = "projections/heads"


def ranked_heads(scores: Any) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The six most and the six least important heads."""
    order = [(int(r.layer), int(r.head)) for r in scores.frame().sort_values("rank").itertuples()]
    return order[:6], order[-6:]


def panels(pictures: list[Any]) -> list[tuple[str, Any]]:
    """(title with a linear probe's AUROC and the share of variance on show, in two lines; points) of each picture."""
    return [
        (f"{p.head[0]}.{p.head[1]}: AUROC {p.auroc:.2f}<br>{p.explained.sum():.0%} of variance", p.points)
        for p in pictures
    ]


def groups(chosen: lab.Sample) -> list[tuple[str, str, slice]]:
    return [(name or "ID", part.shift, chosen.slices[name]) for name, part in chosen.sets.items()]


def mask_shown(state: Session, pruned: bool) -> HeadMask | None:
    return state.mask if pruned and not state.mask.is_full else None


def draw(
    state: Session, heads: list[tuple[int, int]], name: str, title: str, mask: HeadMask | None, n: int
) -> float | None:
    """One row of small multiples; returns the mean AUROC of a linear probe."""
    job = widgets.start(
        digest("projections", state.model, state.data, tuple(heads), mask.text if mask else "", n),
        lambda job: lab.projections(state.model, state.data, heads, mask, n=n),
        f"Projecting: {title}",
    )
    result = widgets.result_of(job, patience=4.0)
    if result is None:
        return None
    chosen, pictures = result
    st.subheader(title, anchor=False)
    mean = sum(p.auroc for p in pictures) / len(pictures)
    alt = f"ID and OOD samples in {len(pictures)} heads; mean AUROC of a linear probe {mean:.2f}"
    widgets.show_figure(small_multiples(panels(pictures), groups(chosen), hover_texts(chosen)), name, alt)
    ids = [i for part in chosen.sets.values() for i in part.ids]
    sets = [name_ or "ID" for name_, part in chosen.sets.items() for _ in part.ids]
    widgets.csv_button(table_of(panels(pictures), ids, sets), name, "Points as CSV")
    return mean


def any_head(state: Session, scores: Any, mask: HeadMask | None, n: int) -> None:
    """One head large, in two or three dimensions."""
    st.subheader("Any head, large", anchor=False)
    selected = st.session_state.setdefault(CHOSEN, (ranked_heads(scores)[0][0],))
    with st.container(horizontal=True, gap="medium"):  # side by side where there is room, else one above the other
        left, right = st.container(width=430), st.container(width="stretch")

    def on_paint(strokes: list[Stroke]) -> None:
        st.session_state[CHOSEN] = paint_selection(selected, strokes, multi=False) or selected

    with left:
        head_grid(state.mask, key="projections/grid", on_paint=on_paint, scores=scores, title="Taylor score",
                  mode="select", selected=selected, multi=False, label="Choose a head to project")  # fmt: skip
        how = st.segmented_control("Method", ["pca", "umap"], default="pca", required=True, key="how",
                                   bind="query-params", format_func=str.upper,
                                   help="UMAP keeps neighbours together; its first run takes ten seconds.")  # fmt: skip
        dims = st.segmented_control("Dimensions", [2, 3], default=2, required=True, key="dims", bind="query-params")
    job = widgets.start(
        digest("projection", state.model, state.data, selected, how, dims, mask.text if mask else "", n),
        lambda job: lab.projections(state.model, state.data, list(selected), mask, dims=dims, how=how, n=n),
        "Projecting",
    )
    with right:
        result = widgets.result_of(job, patience=2.0)
        if result is None:
            return
        chosen, (picture,) = result
        rows = cloud(chosen, picture)
    if rows:
        chosen_samples(state, mask, n, rows)


def cloud(chosen: lab.Sample, picture: Any) -> list[int]:
    """The large picture; returns the rows of the samples that are chosen in it."""
    layer, head = picture.head
    flat = picture.points.shape[1] == 2
    alt = f"Samples as layer {layer}, head {head} sees them; AUROC of a linear probe {picture.auroc:.2f}"
    figure = point_cloud(picture, groups(chosen), hover_texts(chosen))
    event = widgets.show_figure(figure, f"head-{layer}-{head}", alt, selectable=flat)
    kept = "" if picture.explained is None else f" The axes carry {picture.explained.sum():.0%} of the ID variance."
    tip = (
        " Click a point, or draw a box or a lasso, to see the samples." if flat else " Choose samples in 2 dimensions."
    )
    st.caption(
        f"Layer {layer}, head {head}: a linear probe on its full output has AUROC {picture.auroc:.3f}.{kept} {tip}"
    )
    return chosen_rows(event, picture.points.shape[0]) if flat else []


def chosen_rows(event: Any, samples: int) -> list[int]:
    """Rows of the sample from a chart's selection; what does not fit is left out: it comes from the browser."""
    found = []
    for point in event.selection.points:
        data = point.get("customdata")
        row = data[0] if isinstance(data, list) and data else data
        if isinstance(row, int | float) and row == int(row) and 0 <= row < samples:
            found.append(int(row))
    return list(dict.fromkeys(found))


def chosen_samples(state: Session, mask: HeadMask | None, n: int, rows: list[int]) -> None:
    """The chosen samples with what the model says of them."""
    plan = Plan((mask,)) if mask else lab.unpruned(state.model)
    job = widgets.start(
        digest("predictions", state.model, state.data, plan.text, n),
        lambda job: lab.probabilities(state.model, state.data, plan, lab.Options(n=n)),
        "Predicting",
    )
    result = widgets.result_of(job, patience=3.0)
    if result is not None:
        chosen, probs = result
        every = np.concatenate([probs[name] for name in chosen.sets])  # (N, C), rows as in the sample
        gallery(chosen, every, rows, lab.model(state.model).class_names, "chosen-samples")


def page() -> None:
    state = frame.page_head("projections")
    if not lab.data(state.data).ood_val:
        st.info(
            "This data has no OOD set to compare with. Choose data with one in the side bar.", icon=":material/info:"
        )
        return
    scores = widgets.result_of(work.score(state), patience=3.0)
    if scores is None:
        return
    answer = st.container()
    pruned = st.toggle(
        f"Show the points under member {state.plan.names[state.active]}'s mask", key="pruned", bind="query-params",
        help="Axes stay fitted on ID samples of the unpruned model, so that pruning moves points and not axes.",
        disabled=state.mask.is_full,
    )  # fmt: skip
    n = st.select_slider("Samples, ID and OOD each", [100, SAMPLES, 600, 1000], SAMPLES, key="n", bind="query-params",
                         help="Drawn by class and by OOD set, the same ones every time.", width=300)  # fmt: skip
    most, least = ranked_heads(scores)
    mask = mask_shown(state, pruned)
    high = draw(state, most, "most-important", "The six heads that matter most (Taylor)", mask, n)
    low = draw(state, least, "least-important", "The six heads that matter least", mask, n)
    if high is not None and low is not None:
        answer.markdown(
            f"A linear probe tells ID from OOD with a mean AUROC of **{high:.2f}** in the six most important heads and "
            f"of **{low:.2f}** in the six least important ones."
        )
    any_head(state, scores, mask, n)
    st.caption(f"{escape(lab.sample(state.data, lab.Options(n=n)).note)}. Heads are named layer.head.")


page()
