"""How many heads can go, and how many members pay? Every number of both, measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import streamlit as st

from app import cards, frame, lab, travel, widgets
from app.cache import digest
from app.charts.sweep import describe_sweep, sweep_figure
from app.session import Session, Settings
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.metrics import METRICS

FIGURES = ("accuracy", "nll", "ece", "auroc_near", "auroc_far", "auroc", "fpr95_near", "fpr95", "aurc", "brier", "aece",
           "disagreement")  # fmt: skip
TOLERANCE = 0.01  # of accuracy: what a pruned model may lose and still count as one whose heads could go


# -- where the points come from ------------------------------------------------------------------


def find_sweep(state: Session) -> Any | None:
    """The stored sweep of the demo, or one that runs now; its points so far while it does."""
    stored = lab.stored_sweep(state.model, state.data)
    source = "now"
    if stored is not None:
        source = st.segmented_control(
            "Figures", ["stored", "now"], default="stored", required=True, key="source", bind="query-params",
            format_func={"stored": "Measured with the demo", "now": "Measure now"}.get,
            help="The demo's sweep was measured once on three training seeds of the model.",
        )  # fmt: skip
    return stored if source == "stored" and stored is not None else measured_now(state)


def measured_now(state: Session) -> Any | None:
    grid, n, repeats = settings(state)
    key = digest("sweep", state.model, state.data, grid, n, repeats)
    if st.button("Measure", type="primary", icon=":material/play_arrow:", key="sweep/go", disabled=not grid.methods):
        st.session_state["sweep/asked"] = key
    model, data = state.model, state.data
    if st.session_state.get("sweep/asked") != key:
        known = lab.known_sweep(model, data, grid, n=n, repeats=repeats) if grid.methods else None
        st.info(
            f"{of_it(known)}A sweep takes from a minute to an hour: many layers, many members and large models take "
            "longest. Points appear as they come. What is finished is kept when you cancel, and a new run goes on from "
            "there.",
            icon=":material/info:",
        )
        return known if known is not None and known.points else None
    job = widgets.start(
        key,
        lambda job: lab.sweep(
            model, data, grid, n=n, repeats=repeats, publish=job.publish, progress=job.progress, cancel=job.cancel
        ),
        "Sweeping",
    )
    parts = widgets.parts_of(job)
    return job.result or lab.sweep_so_far(parts)


def of_it(known: Any | None) -> str:
    """How much of a sweep has been measured before, by this reader or another."""
    count = len(known.points) if known is not None else 0
    return (
        f"**{count} point{'s' if count > 1 else ''} of it are here already**; Measure adds the rest. " if count else ""
    )


def settings(state: Session) -> tuple[Any, int, int]:
    """(grid, samples, repeats) of a sweep to be measured."""
    usual, methods, total = lab.usual_grid(state.model, state.data), lab.sweep_methods(), len(state.plan.shape)
    lines = st.multiselect("Lines", usual.methods, usual.methods, format_func=lambda name: methods[name].label,
                           key="lines", bind="query-params", help=about(usual.methods))  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="bottom"):
        last = st.slider("Prune the last layers", 1, total, max(1, total // 3), key="last", bind="query-params",
                         width=200,
                         help="The layers before stay full; members share them, so late pruning is cheap.")  # fmt: skip
        keeps = st.multiselect("Heads kept a layer", range(1, max(state.plan.shape) + 1), usual.keeps[1::2],
                               key="keeps", bind="query-params", width=300)  # fmt: skip
        most = st.slider("Members up to", 1, 8, 3, key="upto", bind="query-params", width=160)
        repeats = st.slider("Repeats", 1, 5, 2, key="repeats", bind="query-params", width=160,
                            help="Each repeat searches another draw of validation samples.")  # fmt: skip
        n = st.select_slider("Samples", [100, 200, 400, 800], 200, key="samples", bind="query-params", width=200,
                             help="ID validation samples that each point is measured on.")  # fmt: skip
    layers = (tuple(range(total - last, total)),)
    grid = replace(usual, methods=tuple(lines), keeps=tuple(keeps) or usual.keeps, members=tuple(range(1, most + 1)),
                   layers=layers)  # fmt: skip
    return grid, n, repeats


def about(names: Sequence[str]) -> str:
    """What lines are, for a help text."""
    methods = lab.sweep_methods()
    return "  \n".join(f"**{methods[name].label}**: {methods[name].about}" for name in names)


# -- the point under the finger ------------------------------------------------------------------


def choose_clicked(chart: str) -> None:
    """A click on a marker chooses its point for both charts."""
    points = st.session_state[chart].selection.points
    if points and points[0].get("customdata"):
        method, keep, members = points[0]["customdata"][:3]
        st.session_state.update({"line": method, "kept": int(keep), "members": int(members)})


def choose_point(table: pd.DataFrame, labels: Mapping[str, str], most: int) -> tuple[str, int, int]:
    """Pickers of the chosen point; each offers what has been measured for the ones before it."""
    present = [name for name in labels if (table["method"] == name).any()]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        usual = next((name for name in ("hydra_circ", "circ_avg") if name in present), present[0])
        line = widgets.pick(
            "Chosen point",
            present,
            "line",
            usual,
            width=250,
            format_func=lambda name: labels[name],
            help=about(present),
        )
        mine = table[table["method"] == line]
        keeps = sorted(map(int, set(mine["keep"])))
        keep = widgets.pick("Heads kept", keeps, "kept", min(keeps, key=lambda k: abs(k - most / 2)), width=120)
        members = sorted(map(int, set(table["members"])))
        number = widgets.pick("Members", members, "members", min(members, key=lambda m: abs(m - 3)), width=120,
                      help="Of ensembles; Taylor and CircAvg are single models.")  # fmt: skip
    return line, keep, number if lab.sweep_methods()[line].ensemble else 1


def take_along(state: Session, found: Any, chosen: tuple[str, int, int]) -> None:
    """The chosen point's figures beside the unpruned model's, and its masks on the way to What if."""
    points = [p for p in found.points if (p.method, p.keep, p.members) == chosen]
    singles = [p for p in found.points if p.method == "single"]
    now, before = mean_of(points), mean_of(singles)
    shown = {name: card for name, card in cards.ALL.items() if name in now}
    widgets.metric_cards(shown, now, before)
    own = next((p for p in points if p.model == state.model), None)
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Open this setting in What if", type="primary", icon=":material/tune:", key="sweep/carry",
                     disabled=own is None):  # fmt: skip
            plan = Plan(tuple(HeadMask.parse(text, state.plan.shape) for text in own.masks))
            travel.go("what_if", Settings(state.model, state.data, plan))
        st.caption(f"Means over {len(points)} repeats; changes are against the unpruned model.")


def mean_of(points: Sequence[Any]) -> dict[str, float]:
    """Mean of each figure and cost; what is not defined in every repeat is left out."""
    rows = [{**p.values, "parameters": p.parameters, "macs": p.macs} for p in points]
    table = pd.DataFrame(rows).astype(float).dropna(axis=1)
    return table.mean().to_dict()


# -- the answer ----------------------------------------------------------------------------------


def answer(
    table: pd.DataFrame, accuracy: pd.DataFrame, metric: str, labels: Mapping[str, str], base: Baselines, most: int
) -> None:
    st.markdown(f"{heads_text(accuracy, labels, base['accuracy'][0], most)} {best_text(table, metric, labels, base)}")


def heads_text(accuracy: pd.DataFrame, labels: Mapping[str, str], base: float, most: int) -> str:
    single = [name for name in labels if not lab.sweep_methods()[name].ensemble]
    gone = {name: heads_that_can_go(accuracy[accuracy["method"] == name], base, most) for name in single}
    known = {name: n for name, n in gone.items() if n is not None}
    if not known:
        return ""
    best = max(known, key=lambda name: known[name])
    return (
        f"**{labels[best]} can do without {known[best]} of {most} heads** in each pruned layer before accuracy falls "
        f"by more than {100 * TOLERANCE:.0f} point{others(known, best, labels)}."
    )


def best_text(table: pd.DataFrame, metric: str, labels: Mapping[str, str], base: Baselines) -> str:
    high, text = METRICS[metric].better == "high", METRICS[metric].format
    row = table.loc[table["mean"].idxmax() if high else table["mean"].idxmin()]
    spread = f" ± {row['std']:.3f}" if row["std"] == row["std"] else ""
    beside = f", which has {text(base[metric][0])}" if metric in base else ""
    return (
        f"The best {METRICS[metric].label} is **{text(row['mean'])}**{spread} ({labels[row['method']]}, {row['keep']} "
        f"heads kept, {row['members']} member{'s' if row['members'] > 1 else ''}), at {row['mac_ratio']:.2f} x the "
        f"multiply-adds of the unpruned model{beside}."
    )


def others(alone: Mapping[str, int], best: str, labels: Mapping[str, str]) -> str:
    rest = [f"{labels[name]} without {n}" for name, n in alone.items() if name != best]
    return f" ({', '.join(rest)})" if rest else ""


def heads_that_can_go(line: pd.DataFrame, base: float, most: int) -> int | None:
    """The largest number of pruned heads up to which every measured number keeps the accuracy; None: not measured."""
    if not len(line):
        return None
    count = 0
    for row in line.sort_values("keep", ascending=False).itertuples():
        if row.mean < base - TOLERANCE:
            break
        count = most - row.keep
    return count


# -- the page ------------------------------------------------------------------------------------


def charts(
    table: pd.DataFrame, labels: Mapping[str, str], metric: str, base: Baselines, chosen: Any, most: int
) -> None:
    title = f"{METRICS[metric].label} ({METRICS[metric].better} is better)"
    ensembles = [name for name in labels if lab.sweep_methods()[name].ensemble]
    measured = table["method"].isin(ensembles).any()
    heads, many = widgets.side_by_side()
    with heads:
        members = st.session_state["members"]
        of = f" Ensembles have {members} member{'s' if members > 1 else ''}." if measured else ""
        st.markdown(f"**How many heads can go?**{of}")
        wanted = table[(table["members"] == members) | ~table["method"].isin(ensembles)]
        draw(wanted, "pruned", labels, title, base.get(metric), chosen, "sweep/heads")
    with many:
        if not measured:
            st.markdown("**How many members pay?**")
            st.info("No ensemble has been measured with these layers pruned.", icon=":material/info:")
            return
        keep = nearest_keep(table, chosen[1])
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.markdown(f"**How many members pay?** {keep} of {most} heads kept.")
            axis = st.segmented_control("Over", ["members", "cost"], default="members", required=True, key="over",
                                        bind="query-params", label_visibility="collapsed")  # fmt: skip
        x = "mac_ratio" if axis == "cost" else "members"
        draw(table[table["keep"] == keep], x, labels, title, base.get(metric), chosen, "sweep/many")


def nearest_keep(table: pd.DataFrame, keep: int) -> int:
    """The number of heads nearest to the chosen one for which ensembles were measured; else the chosen one."""
    several = sorted(set(table.loc[table["members"] > 1, "keep"]))
    return int(min(several, key=lambda k: abs(k - keep))) if several else keep


def draw(
    table: pd.DataFrame,
    x: str,
    labels: Mapping[str, str],
    title: str,
    base: Any,
    chosen: tuple[str, int, int],
    key: str,
) -> None:
    figure = sweep_figure(table, x, labels, title=title, baseline=base, chosen=chosen)
    widgets.show_figure(figure, key.replace("/", "-"), describe_sweep(table, x, labels, title), key=key,
                        on_select=lambda: choose_clicked(key), selection_mode="points")  # fmt: skip


def layers_of(found: Any) -> tuple[int, ...] | None:
    """The set of pruned layers to look at."""
    choices = {span(p.layers): p.layers for p in found.points if p.layers}
    if not choices:
        return None
    name = st.segmented_control(
        "Pruned layers",
        list(choices),
        default=next(iter(choices)),
        required=True,
        key="within",
        bind="query-params",
        help="Counted from 0. The other layers stay full and are shared by the members.",
    )
    return choices[name]


def span(layers: tuple[int, ...]) -> str:
    """(3, 4, 5) -> '3-5', (1, 3) -> '1,3'."""
    return (
        f"{layers[0]}-{layers[-1]}" if layers == tuple(range(layers[0], layers[-1] + 1)) else ",".join(map(str, layers))
    )


def page() -> None:
    state = frame.page_head("sweep")
    top = st.container()
    found = find_sweep(state)
    if found is None:
        return
    labels = {name: method.label for name, method in lab.sweep_methods().items()}
    controls = st.container(horizontal=True, vertical_alignment="bottom")
    with controls:
        layers = layers_of(found)
    if layers is None:
        st.info("The first points are on their way.", icon=":material/hourglass_top:")
        return
    most = max(state.plan.shape)
    here = lab.sweep_so_far([[point for point in found.points if point.layers in ((), layers)]])
    with controls:
        metric = pick_metric(here.defined(FIGURES))
    means = {name: here.summary(name) for name in (metric, "accuracy")}
    lines = {name: lines_of(table, most) for name, table in means.items()}
    base = {name: value for name, table in means.items() if (value := baseline(table)) is not None}
    with top:
        answer(lines[metric], lines["accuracy"], metric, labels, base, most)
    with controls:
        chosen = choose_point(lines[metric], labels, most)
    charts(lines[metric], labels, metric, base, chosen, most)
    take_along(state, here, chosen)
    notes(found)


Baselines = Mapping[str, tuple[float, float]]


def pick_metric(defined: list[str]) -> str:
    return widgets.pick(
        "Metric",
        defined,
        "metric",
        "auroc_near" if "auroc_near" in defined else "accuracy",
        format_func=lambda name: METRICS[name].label,
        width=200,
        help="  \n".join(f"**{METRICS[name].label}**: {METRICS[name].help}" for name in defined),
    )


def baseline(means: pd.DataFrame) -> tuple[float, float] | None:
    """Mean and standard deviation of the unpruned model, where the figure is defined for it."""
    rows = means[means["method"] == "single"]
    return (float(rows["mean"].iloc[0]), float(rows["std"].iloc[0])) if len(rows) else None


def lines_of(means: pd.DataFrame, most: int) -> pd.DataFrame:
    """The pruned points."""
    table = means[means["method"] != "single"]
    return table.assign(pruned=most - table["keep"]).reset_index(drop=True)


def notes(found: Any) -> None:
    facts = found.provenance
    if facts:
        count = lambda part: ", ".join(f"{n:,} {name}" for name, n in facts[part].items())  # noqa: E731
        st.caption(
            f"Validation data in two parts: heads were searched on {count('searched')}; every figure is measured on "
            f"{count('measured')}, which no search has seen. Test data are not touched, so a point may be picked. "
            "Bands: one standard deviation over repeats; each repeat has its own search and its own unseen samples. A "
            "layer with fewer heads keeps all of its own."
        )
    with st.expander("All points", icon=":material/table_rows:"):
        widgets.show_table(found.frame().drop(columns="masks").dropna(axis=1, how="all"), "sweep", height=320)


page()
