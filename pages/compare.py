"""Which method gives the best uncertainty for its cost? All rows in one table."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from app import frame, lab, widgets
from app.cache import digest
from app.charts.compare import Value, pareto_figure, reliability_multiples, spread_figure
from app.errors import escape
from app.session import Session
from hydra_core.metrics import METRICS, OOD_SCORES

QUICK = ("single", "mcm", "vilu", "deep_ensemble", "mc_dropout", "taylor", "circ_avg", "hydra_taylor", "hydra_circ",
         "hydra_random", "temperature(single)")  # fmt: skip
OOD_FIGURES = ("auroc_near", "auroc_far", "auroc", "aupr", "fpr95")
BY_SCORE = ("auroc", "aupr", "fpr95")  # figures that depend on the OOD score
COSTS = {"parameter_ratio": "Parameters", "mac_ratio": "Multiply-adds", "latency_ratio": "Latency"}
COST_HELP = {
    "parameter_ratio": "Weights, as a ratio to one model.",
    "mac_ratio": "Multiplications and additions of one sample, as a ratio to one model. A shared trunk counts once.",
    "latency_ratio": "Time of a batch of 16 on the machine that measured, as a ratio to one model.",
}
VIEWS = {
    "key": ("Key figures", ("accuracy", "nll", "ece", "auroc_near", "auroc_far", "auroc", "fpr95")),
    "calibration": ("Calibration", ("accuracy", "nll", "brier", "ece", "aece", "aurc")),
    "sets": ("Each OOD set", ()),
    "diversity": ("Diversity", ("disagreement", "mutual_information", "pairwise_kl")),
    "all": ("Everything", ("accuracy", "nll", "brier", "ece", "aece", "aurc", *OOD_FIGURES, "fpr95_near", "fpr95_far")),
}
CHOICES = ("auroc", "auroc_near", "auroc_far", "fpr95_near", "ece", "nll", "accuracy")


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
    return stored if source == "stored" else measure_now(state)


def measure_now(state: Session) -> Any | None:
    """Which rows, on which split; the table when it is there."""
    labels = lab.row_names(state.model)
    zero_shot = lab.is_zero_shot(state.model)  # other rows, so another widget
    rows = st.multiselect("Rows", list(labels), [n for n in QUICK if n in labels], format_func=labels.get,
                          key="zero_shot_rows" if zero_shot else "rows", bind="query-params")  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="bottom"):
        split = st.segmented_control("Measure on", ["val", "test"], default="val", required=True, key="split",
                                     bind="query-params",
                                     format_func={"val": "validation", "test": "test"}.get,
                                     help="Validation may choose settings; look at test data last.")  # fmt: skip
        features = st.toggle("Scores of features too", key="features", bind="query-params",
                             help="Mahalanobis, nearest neighbours and ViM: fitted on the validation samples, so every "
                                  "row runs on those as well.")  # fmt: skip
    key = digest("compare", state.model, state.data, tuple(rows), split, features)
    if st.button("Measure", type="primary", icon=":material/play_arrow:", key="compare/go", disabled=not rows):
        st.session_state["compare/asked"] = key
    if st.session_state.get("compare/asked") != key:
        st.info("Measuring all rows takes up to some minutes; it can be cancelled.", icon=":material/info:")
        return None
    job = widgets.start(
        key,
        lambda job: lab.comparison(
            state.model, state.data, rows, split=split, features=features, progress=job.progress, cancel=job.cancel
        ),
        "Comparing",
    )
    return widgets.result_of(job)


def answer(table: Any) -> None:
    """Hydra (Circ) beside one model and a deep ensemble, by the table's own OOD score."""
    rows = {row.name: row for row in table.rows if row.measured}
    if not {"single", "hydra_circ"} <= rows.keys():
        return
    single, hydra = rows["single"], rows["hydra_circ"]
    words = {m: _verdict(m, Value.of(hydra, m), Value.of(single, m)) for m in ("auroc", "ece")}
    text = (
        f"**Hydra (Circ)** finds unknown samples with AUROC **{hydra.values['auroc']:.3f}** (one model: "
        f"{single.values['auroc']:.3f}, {words['auroc']}) and has a calibration error of "
        f"**{hydra.values['ece']:.3f}** ({single.values['ece']:.3f}, {words['ece']}), at "
        f"**{hydra.costs['mac_ratio']:.2f} x** the multiply-adds."
    )
    if "deep_ensemble" in rows:
        deep = rows["deep_ensemble"]
        text += (
            f" **Deep Ensembles** reach {deep.values['auroc']:.3f} and {deep.values['ece']:.3f} at "
            f"{deep.costs['mac_ratio']:.2f} x."
        )
    st.markdown(text)


def _verdict(metric: str, mine: Value, other: Value) -> str:
    """Better or worse; and whether that is less than seeds differ among themselves."""
    if mine.mean is None or other.mean is None:
        return "not measured"
    word = "better" if METRICS[metric].improves(mine.mean, other.mean) else "not better"
    spread = max(mine.std or 0.0, other.std or 0.0)
    return f"{word}, by less than seeds differ" if abs(mine.mean - other.mean) < spread else word


def once(rows: list[Any], metric: str) -> str:
    """What rows that were measured once are to be compared with, where others are means over models."""
    single = next((row for row in rows if row.name == "single"), None)
    value = single.first.get(metric) if single is not None and single.repeats > 1 else None
    if value is None:
        return ""
    return (
        f" Rows without a spread over seeds were measured once; trained ones start from the first model, where Single "
        f"has {METRICS[metric].label} {value:.3f}."
    )


def scores_of(rows: list[Any]) -> list[str]:
    """OOD scores that some row has, in the registry's order."""
    return [name for name in OOD_SCORES if any(name in row.detection for row in rows)]


def sets_of(rows: list[Any], score: str) -> list[str]:
    """Names of the OOD sets."""
    found = dict.fromkeys(where for row in rows for where in row.detection.get(score, {}))
    return [where for where in found if not where.startswith("*")]


def columns(table: Any, view: str, score: str) -> tuple[pd.DataFrame, dict[str, str], dict[str, str]]:
    """(row x figure, which direction is good a column, help a column) of a view."""
    rows = [row for row in table.rows if row.measured]
    shifts = table.provenance.get("shifts", {})
    asked = None if score == table.ood_score else score
    values: dict[str, list[float | None]] = {}
    better: dict[str, str] = {}
    helps: dict[str, str] = {}
    for name in VIEWS[view][1]:
        label = METRICS[name].label
        values[label] = [Value.of(row, name, asked).mean for row in rows]
        better[label], helps[label] = METRICS[name].better, METRICS[name].help
    for where in sets_of(rows, score) if view in ("sets", "all") else ():
        for name in ("auroc", "fpr95"):
            label = f"{METRICS[name].label} {where}"
            values[label] = [Value.of(row, name, score, where).mean for row in rows]
            better[label] = METRICS[name].better
            helps[label] = f"{METRICS[name].help} On {escape(where)} alone ({shifts.get(where, 'other')} OOD)."
    for name, label in COSTS.items():
        values[label] = [row.costs.get(name) for row in rows]
        better[label], helps[label] = "low", COST_HELP[name]
    plain = pd.DataFrame(values, dtype=float).dropna(axis=1, how="all")  # None: not measured
    plain.insert(0, "Row", [row.label for row in rows])
    return plain, better, helps


def marked(plain: pd.DataFrame, better: dict[str, str]) -> Any:
    """Best bold, second best underlined, in each figure's own direction."""
    numbers = [name for name in plain.columns if name != "Row"]
    ranks = {name: plain[name].rank(ascending=better[name] == "low", method="dense") for name in numbers}
    bold = lambda column: ["font-weight: bold" if rank == 1 else "" for rank in ranks[column.name]]  # noqa: E731
    second = {name: set(plain[name][ranks[name] == 2]) for name in numbers}
    words = {name: lambda value, mine=second[name]: number(value, underlined=value in mine) for name in numbers}
    return plain.style.apply(bold, subset=numbers).format(words, subset=numbers, na_rep="–")


def number(value: float, *, underlined: bool) -> str:
    """Three digits. Cells of a table know no underline, so each character carries its own."""
    text = f"{value:.3f}"
    return "".join(f"{c}\u0332" for c in text) if underlined else text


def show_rows(table: Any, score: str) -> None:
    """The table and its files."""
    view = st.segmented_control("Columns", list(VIEWS), default="key", required=True, key="view", bind="query-params",
                                format_func=lambda name: VIEWS[name][0])  # fmt: skip
    plain, better, helps = columns(table, view, score)
    config: dict[str, Any] = {name: st.column_config.NumberColumn(help=text) for name, text in helps.items()}
    config["Row"] = st.column_config.TextColumn(pinned=True, width=245)
    st.dataframe(marked(plain, better), hide_index=True, key="table/comparison", column_config=config,
                 height=min(38 + 35 * len(plain), 880))  # fmt: skip
    with st.container(horizontal=True):
        widgets.csv_button(table.frame(), "comparison", "All figures as CSV")
        widgets.csv_button(table.detection(), "comparison-ood", "OOD scores and sets as CSV")
        st.download_button("Markdown", table.to_markdown, "comparison.md", icon=":material/download:",
                           key="compare/markdown", on_click="ignore")  # fmt: skip
    st.caption(
        "Best bold, second underlined; click a title to sort, scroll sideways for columns that do not fit. OOD is the "
        f"positive class; OOD score: {OOD_SCORES[score].label}. Costs are ratios to Single."
    )


def pick_score(rows: list[Any], own: str) -> str:
    """The OOD score of all figures below."""
    names = scores_of(rows)
    if len(names) < 2:
        return own
    chosen = st.selectbox(
        "OOD score", names, index=names.index(own) if own in names else 0, key="score", bind="query-params",
        format_func=lambda name: OOD_SCORES[name].label, width=260,
        help="What makes a sample look unknown; higher means more unknown. AUROC and FPR95 depend on it, accuracy and "
             "calibration do not.",
    )  # fmt: skip
    st.caption(OOD_SCORES[chosen].about)
    without = [row.label for row in rows if chosen not in row.detection]
    if without:
        reasons = dict.fromkeys(row.undefined.get(chosen, "Not measured.") for row in rows if row.label in without)
        st.caption(f"Without it: {', '.join(without)}. {' '.join(reasons)}")
    return str(chosen)


def pictures(table: Any, rows: list[Any], score: str) -> None:
    """Cost against quality, spread, each OOD set, reliability."""
    metric = st.segmented_control("Figure", CHOICES, default="auroc", required=True, key="quality", bind="query-params",
                                  format_func=lambda name: METRICS[name].label)  # fmt: skip
    label, better = METRICS[metric].label, METRICS[metric].better
    own = score == table.ood_score
    values = [Value.of(row, metric, None if own else score) for row in rows]
    note = once(rows, metric) if own or not metric.startswith(BY_SCORE) else ""
    cost, spread, sets, reliability = st.tabs(["Cost and quality", "Spread", "Each OOD set", "Calibration"])
    with cost:
        figure = pareto_figure(rows, metric, label, better=better, values=values)
        widgets.show_figure(figure, "pareto", f"{label} against multiply-adds of {len(rows)} rows")
        st.caption("The area of a mark is the number of parameters, a bar the standard deviation over seeds, an open "
                   "mark a row with its logits scaled afterwards. The dotted line joins the rows that no other beats "
                   f"in both.{note}")  # fmt: skip
    with spread:
        figure = spread_figure(rows, {f"{label} ({better} is better)": values}, better=better)
        widgets.show_figure(figure, "spread", f"{label} of each row with its intervals")
        st.caption("Thick: one standard deviation over seeds or draws. Thin: 95 % bootstrap interval over the test "
                   f"samples, of the first seed. Dotted: one model.{note}")  # fmt: skip
    with sets:
        by_set = {
            f"{where} ({table.provenance.get('shifts', {}).get(where, 'other')})": [
                Value.of(row, "auroc", score, where) for row in rows
            ]
            for where in sets_of(rows, score)
        }
        if by_set:
            figure = spread_figure(rows, by_set, better="high")
            widgets.show_figure(figure, "ood-sets", f"AUROC of each row on {len(by_set)} OOD sets, each apart")
            st.caption("AUROC, each OOD set on a scale of its own. Rows are ordered by the first set.")
        else:
            st.info("There is no OOD set in these data.", icon=":material/info:")
    with reliability:
        widgets.show_figure(reliability_multiples(rows), "reliability-rows", "A reliability diagram for each row")
        st.caption("Accuracy of the samples of each confidence; on the dashed line confidence is right. First seed.")


def page() -> None:
    state = frame.page_head("compare")
    top = st.container()
    table = find_table(state)
    if table is None:
        return
    rows = [row for row in table.rows if row.measured]
    with top:
        answer(table)
    if rows:
        score = pick_score(rows, table.ood_score)
        show_rows(table, score)
        pictures(table, rows, score)
    missing = [row for row in table.rows if not row.measured]
    if missing:
        with st.expander(f"{len(missing)} rows without figures", icon=":material/info:"):
            for row in missing:
                st.markdown(f"**{row.label}**: {escape(row.status)}" + (f" `{row.command}`" if row.command else ""))


page()
