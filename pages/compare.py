"""Which method gives the best uncertainty for its cost? All rows in one table."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from app import frame, lab, widgets
from app.cache import digest
from app.charts.compare import pareto_figure, reliability_multiples
from app.session import Session
from hydra_core.metrics import METRICS

QUICK = ("single", "deep_ensemble", "mc_dropout", "taylor", "circ_avg", "hydra_taylor", "hydra_circ", "hydra_random",
         "temperature(single)")  # fmt: skip
FIGURES = ("accuracy", "nll", "brier", "ece", "aece", "aurc", "auroc_near", "fpr95_near", "auroc_far", "fpr95_far",
           "auroc", "aupr", "fpr95")  # fmt: skip
COSTS = {"parameter_ratio": "Parameters", "mac_ratio": "Multiply-adds", "latency_ratio": "Latency"}


def find_table(state: Session) -> Any | None:
    """The stored comparison of the demo, or one measured now on request."""
    stored = lab.stored_comparison(state.model, state.data)
    sources = ["stored", "now"] if stored is not None else ["now"]
    source = sources[0]
    if stored is not None:
        source = st.segmented_control(
            "Figures", sources, default="stored", required=True, key="source", bind="query-params",
            format_func={"stored": "Measured with the demo, on test data", "now": "Measure now"}.get,
            help="The demo's table was measured once on its test split, which chose nothing.",
        )  # fmt: skip
    if source == "stored":
        return stored
    labels = lab.row_names()
    rows = st.multiselect("Rows", list(labels), [n for n in QUICK if n in labels], format_func=labels.get,
                          key="compare/rows")  # fmt: skip
    split = st.segmented_control("Measure on", ["val", "test"], default="val", required=True, key="compare/split",
                                 format_func={"val": "validation", "test": "test"}.get,
                                 help="Validation may choose settings; look at test data last.")  # fmt: skip
    key = digest("compare", state.model, state.data, tuple(rows), split)
    if st.button("Measure", type="primary", icon=":material/play_arrow:", key="compare/go", disabled=not rows):
        st.session_state["compare/asked"] = key
    if st.session_state.get("compare/asked") != key:
        st.info("Measuring all rows takes up to some minutes; it can be cancelled.", icon=":material/info:")
        return None
    job = widgets.start(
        key,
        lambda job: lab.comparison(
            state.model, state.data, rows, split=split, progress=job.progress, cancel=job.cancel
        ),
        "Comparing",
    )
    return widgets.result_of(job)


def columns(table: Any) -> pd.DataFrame:
    """Row x figure, numbers as they are; labels as people read them."""
    lines = []
    for row in table.rows:
        if row.measured:
            figures = {METRICS[name].label: row.values.get(name) for name in FIGURES}
            lines.append({"Row": row.label} | figures | {label: row.costs.get(c) for c, label in COSTS.items()})
    table_ = pd.DataFrame(lines)
    numbers = [name for name in table_.columns if name != "Row"]
    table_[numbers] = table_[numbers].astype(float)  # None: not measured
    return table_.dropna(axis=1, how="all")


def marked(frame_: pd.DataFrame) -> Any:
    """Best bold, second best underlined, in each figure's own direction."""
    better = {METRICS[name].label: METRICS[name].better for name in FIGURES} | dict.fromkeys(COSTS.values(), "low")

    def mark(column: pd.Series) -> list[str]:
        ranks = column.rank(ascending=better.get(column.name) == "low", method="min")
        style = {1.0: "font-weight: bold", 2.0: "text-decoration: underline"}
        return [style.get(rank, "") for rank in ranks]

    numbers = [name for name in frame_.columns if name != "Row"]
    return frame_.style.apply(mark, subset=numbers).format("{:.3f}", subset=numbers, na_rep="–")


def answer(table: Any) -> None:
    rows = {row.name: row for row in table.rows if row.measured}
    if not {"single", "hydra_circ"} <= rows.keys():
        return
    single, hydra = rows["single"], rows["hydra_circ"]
    text = (
        f"**Hydra (Circ)**: AUROC {hydra.values['auroc']:.3f} and ECE {hydra.values['ece']:.3f} at "
        f"{hydra.costs['mac_ratio']:.2f} x the multiply-adds of one model, which has {single.values['auroc']:.3f} and "
        f"{single.values['ece']:.3f}."
    )
    if "deep_ensemble" in rows:
        deep = rows["deep_ensemble"]
        text += (
            f" **Deep Ensembles**: {deep.values['auroc']:.3f} and {deep.values['ece']:.3f} at "
            f"{deep.costs['mac_ratio']:.2f} x."
        )
    st.markdown(text)


def page() -> None:
    state = frame.page_head("compare")
    top = st.container()
    table = find_table(state)
    if table is None:
        return
    with top:
        answer(table)
    plain = columns(table)
    st.dataframe(marked(plain), hide_index=True, key="table/comparison")
    with st.container(horizontal=True):
        widgets.csv_button(table.frame(), "comparison", "All figures as CSV")
        st.download_button("Markdown", table.to_markdown, "comparison.md", icon=":material/download:",
                           key="compare/markdown", on_click="ignore")  # fmt: skip
    st.caption("Best bold, second underlined. OOD is the positive class. Costs are ratios to Single. Intervals and "
               "spreads over seeds are in the CSV and the Markdown.")  # fmt: skip
    measured = [row for row in table.rows if row.measured]
    metric = st.segmented_control("Quality", ["auroc", "auroc_near", "auroc_far", "ece", "nll"], default="auroc",
                                  required=True, key="quality", bind="query-params",
                                  format_func=lambda name: METRICS[name].label)  # fmt: skip
    label = METRICS[metric].label
    figure = pareto_figure(measured, metric, label, better=METRICS[metric].better)
    widgets.show_figure(figure, "pareto", f"{label} against multiply-adds of {len(measured)} rows")
    widgets.show_figure(reliability_multiples(measured), "reliability-rows", "A reliability diagram for each row")
    missing = [row for row in table.rows if not row.measured]
    if missing:
        with st.expander(f"{len(missing)} rows without figures", icon=":material/info:"):
            for row in missing:
                st.markdown(f"**{row.label}**: {row.status}" + (f" `{row.command}`" if row.command else ""))


page()
