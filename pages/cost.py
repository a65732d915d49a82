"""What does it cost? Parameters, multiply-adds, and latency measured on this machine."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app import frame, lab, widgets
from app.cache import digest
from app.charts.bars import latency_figure
from app.session import Session
from app.widgets import number

BATCHES = (1, 8, 32, 128)


def counted(state: Session) -> pd.DataFrame | None:
    """Parameters and multiply-adds of each way to run the plan; None while they are counted."""
    model, plan = state.model, state.plan
    job = widgets.start(digest("costs", model, plan.text), lambda job: lab.costs(model, plan), "Counting")
    found = widgets.result_of(job)
    if found is None:
        return None
    rows = []
    for name, cost in found.items():
        rows.append(
            {
                "way": name,
                "parameters": cost.parameters,
                "parameters / single": cost.parameter_ratio,
                "multiply-adds": cost.macs,
                "multiply-adds / single": cost.mac_ratio,
            }
        )
    return pd.DataFrame(rows)


def answer(table: pd.DataFrame) -> None:
    hydra = table[table["way"] == lab.HYDRA_TRUNK].iloc[0]
    st.markdown(
        f"Your plan, fused with a shared trunk, has **{number(hydra['parameters'], 'count')} parameters** "
        f"({hydra['parameters / single']:.2f} x single) and takes **{number(hydra['multiply-adds'], 'count')} "
        f"multiply-adds** an image ({hydra['multiply-adds / single']:.2f} x single)."
    )


def latency(state: Session) -> None:
    st.subheader("Latency on this machine", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        batches = st.segmented_control(
            "Batch sizes", BATCHES, default=[1, 32], selection_mode="multi", key="batch", bind="query-params"
        )
        precisions = st.segmented_control(
            "Precision", ["fp32", "bf16"], default=["fp32"], selection_mode="multi", key="precision",
            bind="query-params",
            help="bf16 is quick on GPUs and on CPUs with matrix units, and slow on others: measure, do not assume.",
        )  # fmt: skip
        go = st.button("Measure", icon=":material/timer:", key="cost/go", disabled=not (batches and precisions))
    key = digest("latency", state.model, state.plan.text, tuple(batches), tuple(precisions))
    if go:
        st.session_state["cost/asked"] = key
    if st.session_state.get("cost/asked") != key:
        st.info(
            "Latency is measured when you ask for it: it keeps the machine busy for some seconds.",
            icon=":material/timer:",
        )
        return
    job = widgets.start(
        key,
        lambda job: lab.latencies(
            state.model, state.plan, tuple(batches), tuple(precisions), progress=job.progress, cancel=job.cancel
        ),
        "Measuring",
    )
    rows = widgets.result_of(job)
    if rows is None:
        return
    table = pd.DataFrame([vars(row) | {"ms a sample": row.per_sample} for row in rows])
    said = in_words(table)
    st.markdown(said)
    widgets.show_figure(latency_figure(table), "latency", f"Milliseconds for each way and batch. {said}")
    widgets.show_table(table, "latency")


def in_words(table: pd.DataFrame) -> str:
    """At the largest batch: the fused plan over one model in each precision, and what bf16 does to one model."""
    largest = table["batch"].max()
    times = table[table["batch"] == largest].set_index(["precision", "name"])["median"]
    precisions = list(dict.fromkeys(table["precision"]))
    ratios = [f"{times[p, lab.HYDRA_TRUNK] / times[p, lab.SINGLE]:.2f} times one model in {p}" for p in precisions]
    text = f"In batches of {largest} your plan, fused with a shared trunk, takes {' and '.join(ratios)}."
    if len(precisions) == 1:
        return text
    slower = times["bf16", lab.SINGLE] / times["fp32", lab.SINGLE]
    return f"{text} One model in bf16 takes {slower:.2f} times its time in fp32 on this machine."


def show(table: pd.DataFrame) -> None:
    answer(table)
    widgets.show_table(
        table,
        "cost",
        column_config={
            "parameters": st.column_config.NumberColumn(format="compact"),
            "multiply-adds": st.column_config.NumberColumn(format="compact", help="of one sample"),
            # short heads: all five columns fit into a window of 900 pixels
            "parameters / single": st.column_config.NumberColumn("/ single", format="%.2f x", help="parameters"),
            "multiply-adds / single": st.column_config.NumberColumn("/ single", format="%.2f x", help="multiply-adds"),
        },
    )


def page() -> None:
    state = frame.page_head("cost")
    table = counted(state)
    if table is not None:
        show(table)
    latency(state)
    with st.expander("Why multiply-adds and latency differ", icon=":material/help:"):
        st.markdown(
            "The paper reports 1.07 x the latency of one ViT-B/16 for three fused members in BF16 on a GPU, against "
            "about 3 x for a deep ensemble. By arithmetic the same fused model does 2.28 x the multiply-adds when 4 of "
            "12 heads are kept: a large GPU is not full with one model, so three members in one call cost little extra "
            "time. On a CPU, or with large batches, the device is full and time follows the multiply-adds. **Layers in "
            "which the members agree run once**: keep the pruned layers late, and both figures fall."
        )


page()
