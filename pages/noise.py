"""Does pruning help when the data are noisy? Proposition 1 of the paper, measured; clean against noisy reliability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from app import bring, frame, lab, widgets, work
from app.cache import digest
from app.charts.noise import gap_figure, terms_figure
from app.charts.reliability import describe_bins, reliability_figure
from app.errors import escape
from app.session import Session
from hydra_core.heads.mask import HeadMask, Plan

SEVERITIES = (1, 2, 3, 4, 5)
SAMPLES = 200  # as many as the stored study: derivatives of second order take their time
PATHS = {
    "taylor": "by Taylor",
    "magnitude": "by magnitude",
    "random": "drawn",
    "plan": "as in my plan",
}
TOLD = {True: "yes", False: "no", None: "not clear"}
PROPOSITION = """\
Let $L_c$ and $L_n$ be the loss on clean and on noisy images, $\delta$ minus the weights of the pruned heads, $g$ and
$H$ gradient and Hessian. To second order, pruning adds to the gap $L_n - L_c$

$$(g_n - g_c)\cdot\delta \;+\; \tfrac12\,\delta^\top (H_n - H_c)\,\delta .$$

The paper's Proposition 1 says that the gap grows where $g_c = 0$, $g_n\cdot\delta \ge 0$ and the curvature along
$\delta$ is higher under noise. Here both terms are computed exactly, by automatic differentiation, and the change is
measured by really pruning. Clean validation images stand for the training data. An answer is *not clear* where its 95 %
interval over images holds zero; the first premise counts as met where it does. Removing whole heads is a large step:
the two terms need not suffice, and the picture shows where they do not.
"""


# -- controls ------------------------------------------------------------------------------------


def noise_controls(state: Session) -> tuple[str, int, str]:
    """(corruption, severity, way in which heads go)."""
    known = lab.corruptions()
    stored = lab.stored_noise(state.model, state.data) is not None
    wait = " Stored for this model, with heads going by Taylor; other orders are measured, in a minute or more."
    with st.container(horizontal=True, vertical_alignment="bottom"):
        corruption = widgets.pick(
            "Noise",
            list(known),
            "corruption",
            "gaussian_noise",
            format_func=lambda name: known[name],
            width=220,
            help=f"Common corruptions after Hendrycks and Dietterich (2019).{wait if stored else ''}",
        )
        severity = st.slider("Severity", 1, 5, 3, key="severity", bind="query-params", width=220)
        path = st.segmented_control(
            "Heads go",
            list(PATHS),
            default="taylor",
            required=True,
            key="path",
            bind="query-params",
            format_func=PATHS.get,
            help="The order in which heads are pruned, in every layer; or your plan's members as they are.",
        )
    return corruption, severity, path


# -- the study -----------------------------------------------------------------------------------


def find_rows(state: Session, corruption: str, severity: int, path: str) -> list[Any]:
    """Rows of one corruption, all severities: the stored ones, or measured now (those there are so far)."""
    stored = lab.stored_noise(state.model, state.data)
    known = () if stored is None or path != stored.provenance["criterion"] else stored.rows
    rows = [row for row in known if row.corruption == corruption]
    if rows:
        return rows
    masks = {HeadMask.parse(row.mask): row.keep for row in known} or masks_of(state, path)
    if not masks:
        return []
    model, data = state.model, state.data
    order = sorted(SEVERITIES, key=lambda s: s != severity)  # what is looked at comes first
    job = widgets.start(
        digest("noise", model, data, corruption, *(mask.text for mask in masks)),
        lambda job: lab.noise_study(
            model, data, list(masks), corruption, order, n=SAMPLES, keeps=list(masks.values()), publish=job.publish,
            progress=job.progress, cancel=job.cancel,
        ),
        "Measuring",
    )  # fmt: skip
    return [row for part in widgets.parts_of(job) for row in part]


def keeps_of(state: Session) -> list[int]:
    """Three quarters, half and a quarter of the heads."""
    most = max(state.plan.shape)
    return list(dict.fromkeys(max(1, most * quarters // 4) for quarters in (3, 2, 1) if most > 1))


def masks_of(state: Session, path: str) -> dict[HeadMask, int | None]:
    """The masks to measure, with the heads kept a layer; none while scores are made or where nothing is pruned."""
    if path == "plan":
        masks: dict[HeadMask, int | None] = {mask: None for mask in state.plan if not mask.is_full}
        if not masks:
            st.info("Your plan keeps all heads: prune some on What if, or let heads go by a criterion.",
                    icon=":material/tune:")  # fmt: skip
        return masks
    if not keeps_of(state):
        st.info("Every layer of this model has one head: nothing can be pruned in part.", icon=":material/info:")
        return {}
    criterion = lab.criteria()[path]
    scores = widgets.result_of(work.score(state, path, f"Scoring by {criterion.label}"), patience=3.0)
    if scores is None:
        return {}
    return {HeadMask.top(scores, [min(k, heads) for heads in state.plan.shape]): k for k in keeps_of(state)}


def name_of(state: Session, row: Any) -> str:
    """How a row's mask is called on screen."""
    if row.keep is not None:
        return f"{row.keep} of {max(state.plan.shape)}"
    member = next(name for name, mask in zip(state.plan.names, state.plan, strict=True) if mask.text == row.mask)
    return f"member {member}"


# -- the answer ----------------------------------------------------------------------------------


def answer(state: Session, row: Any, noise: str) -> None:
    change = row.change
    st.markdown(
        f"{verdict(row)} With {name_of(state, row)} heads kept, {noise.lower()} of severity {row.severity} costs "
        f"{row.gap_pruned:.3f} nats over clean images instead of {row.gap:.3f}: pruning adds **{change.value:+.3f}** "
        f"({change.low:+.3f} to {change.high:+.3f}) to this gap. Proposition 1's two terms predict "
        f"{row.predicted.value:+.3f}; {premises_text(row)}. The loss on noisy images goes from {row.noisy:.3f} to "
        f"{row.noisy_pruned:.3f}, on clean ones from {row.clean:.3f} to {row.clean_pruned:.3f}."
    )


def verdict(row: Any) -> str:
    """The page's question answered for one mask and severity; a smaller gap alone is no help."""
    if row.grows is None:
        return "**These images do not tell** whether noise hurts the pruned model more."
    better = row.noisy_pruned < row.noisy
    if row.grows:
        return "**No**: noise hurts the pruned model more." if not better else (
            "**Partly**: the loss on noisy images falls, but noise hurts the pruned model more."
        )  # fmt: skip
    return "**Yes**: the loss on noisy images falls, and the gap to clean ones shrinks." if better else (
        "**Not really**: noise hurts the pruned model less, yet its loss is higher on clean and on noisy images."
    )  # fmt: skip


def premises_text(row: Any) -> str:
    failed = sum(holds is not True for holds in row.premises.values())
    return "its three premises hold here" if not failed else f"{failed} of its 3 premises cannot be shown to hold here"


SIGNS = {
    "severity": st.column_config.Column("severity"),
    "kept": st.column_config.Column("heads kept"),
    "clean": st.column_config.NumberColumn(
        "g·δ clean", format="%+.4f", help="Slope of the clean loss along the pruning."
    ),
    "stationary": st.column_config.Column("zero?", help="First premise: the clean gradient is zero along the pruning."),
    "noisy": st.column_config.NumberColumn("g·δ noisy", format="%+.4f", help="Slope of the noisy loss."),
    "slope": st.column_config.Column("above 0?", help="Second premise."),
    "curvature": st.column_config.NumberColumn("curvature term", format="%+.4f", help="½ δᵀ (H noisy - H clean) δ"),
    "curved": st.column_config.Column("above 0?", help="Third premise: the curvature is higher under noise."),
    "predicted": st.column_config.NumberColumn("predicted", format="%+.4f", help="Both terms together."),
    "measured": st.column_config.NumberColumn(
        "measured", format="%+.4f", help="What pruning adds to the gap, in nats."
    ),
    "grows": st.column_config.Column("gap grows?", help="The claim, measured."),
}


def signs_table(state: Session, rows: Sequence[Any]) -> pd.DataFrame:
    """One line a severity and mask: which premises hold, and whether the claim does."""
    lines = []
    for row in sorted(rows, key=lambda row: (row.severity, row.pruned)):
        holds = [TOLD[answer] for answer in row.premises.values()]
        lines.append(
            (row.severity, name_of(state, row), row.slope_clean.value, holds[0], row.slope_noisy.value, holds[1],
             row.curvature.value, holds[2], row.predicted.value, row.change.value, TOLD[row.grows])
        )  # fmt: skip
    return pd.DataFrame(lines, columns=list(SIGNS))


# -- reliability ---------------------------------------------------------------------------------


def start_reports(state: Session, corruption: str, severity: int) -> Any:
    """The job of four reports: the unpruned model and your plan, each on clean and on noisy images."""
    model, data, plan, full = state.model, state.data, state.plan, lab.unpruned(state.model)

    def measure(job: Any) -> list[Any]:
        out = []
        for chosen in dict.fromkeys((full, plan)):  # a plan that keeps all heads is measured once
            out.append(lab.report(model, data, chosen, progress=job.progress, cancel=job.cancel))
            out.append(lab.noisy_report(model, data, chosen, corruption, severity, progress=job.progress,
                                        cancel=job.cancel))  # fmt: skip
        return [*out, *out][:4]

    return widgets.start(digest("noisy", model, data, plan.text, corruption, severity), measure, "Evaluating")


def reliability(plan: Plan, found: list[Any] | None, severity: int, noise: str) -> None:
    """Your plan against the unpruned model, on clean and on noisy images."""
    if found is None:
        return
    for column, title, before, now in zip(
        widgets.side_by_side(),
        ("Clean images", f"{noise}, severity {severity}"),
        found[:2],
        found[2:],
        strict=True,
    ):
        with column:
            st.markdown(
                f"**{title}**: your plan's accuracy is {now.accuracy:.3f} and its ECE {now.ece:.3f}; unpruned "
                f"{before.accuracy:.3f} and {before.ece:.3f}."
            )
            figure = reliability_figure(now.reliability, before.reliability, height=360, now_name="your plan")
            widgets.show_figure(
                figure, "reliability-" + title.split()[0].lower(), f"{title}. {describe_bins(now.reliability)}"
            )
    if all(mask.is_full for mask in plan):
        st.caption("Your plan keeps all heads, so both are the same model: prune some on What if.")


# -- the page ------------------------------------------------------------------------------------


def gap(state: Session, rows: Sequence[Any], severity: int, noise: str, top: Any) -> None:
    """Both pictures and the table; the answer goes to the top."""
    now = sorted((row for row in rows if row.severity == severity), key=lambda row: row.pruned)
    if not now:
        return
    names = [name_of(state, row) for row in now]
    name = widgets.pick("Heads kept in each layer", names, "heads", names[len(names) // 2], width=220)
    row = now[names.index(name)]
    with top:
        answer(state, row, noise)
    over_noise, over_heads = widgets.side_by_side()
    with over_noise:
        st.markdown(f"**The gap over noise**, {name} heads kept")
        same = [other for other in rows if other.mask == row.mask]
        alt = "; ".join(f"severity {r.severity}: {r.gap:.3f} unpruned, {r.gap_pruned:.3f} pruned" for r in same)
        widgets.show_figure(gap_figure(same), "noise-gap", f"Loss gap between noisy and clean images. {alt}")
    with over_heads:
        st.markdown(f"**What pruning adds to it**, severity {severity}")
        alt = "; ".join(
            f"{n} heads: {r.change.value:+.3f}, predicted {r.predicted.value:+.3f}" for n, r in zip(names, now)
        )
        widgets.show_figure(terms_figure(now, names), "noise-terms", f"Change of the loss gap by pruning. {alt}")
    with st.expander("Signs: which premises hold, and is the claim true?", icon=":material/fact_check:", expanded=True):
        st.dataframe(
            signs_table(state, rows), hide_index=True, key="table/signs", column_config=SIGNS, height="content"
        )
        with st.container(horizontal=True, vertical_alignment="center"):
            widgets.csv_button(pd.DataFrame([r.row() for r in rows]), "noise", "All figures with intervals as CSV")
            widgets.scroll_hint()
    with st.expander("What the proposition says, and how it is measured", icon=":material/help:"):
        st.markdown(PROPOSITION)


def page() -> None:
    state = frame.page_head("noise")
    shift = lab.shift_of(state.data)
    if shift is not None:  # noise on noise would be compared with noise
        state = replace(state, data=shift[0])
    if lab.data(state.data).kind != "image":
        st.info("Noise is made for images; these data are texts. Pick image data in the side bar.",
                icon=":material/image:")  # fmt: skip
        return
    top = st.container()
    corruption, severity, path = noise_controls(state)
    noise = lab.corruptions()[corruption]
    reports = start_reports(state, corruption, severity)  # first in the queue: it is the quicker one
    rows = find_rows(state, corruption, severity, path)
    gap(state, rows, severity, noise, top)
    st.subheader("Reliability, clean against noisy", anchor=False)
    reliability(state.plan, widgets.result_of(reports, patience=2.0), severity, noise)
    st.caption(
        f"Losses and their derivatives on {SAMPLES} validation images of {escape(bring.data_title(state.data))}, "
        f"reliability on {escape(lab.sample(state.data).note)}."
    )


page()
