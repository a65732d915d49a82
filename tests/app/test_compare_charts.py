"""Charts of the comparison: figures come from the right place, best on top, labels where they help."""

from __future__ import annotations

import pytest

from app.charts.compare import FAMILIES, Value, family_of, pareto_figure, reliability_multiples, spread_figure
from hydra_core.methods.registry import DEFAULT_ROWS
from hydra_core.methods.table import RowResult

COSTS = {"mac_ratio": 1.2, "parameter_ratio": 4.0}


def row(name, auroc, **more):
    sets = {"*": {"auroc": auroc - 0.1, "auroc_std": 0.02}, "*near": {"auroc": 0.5}, "sandal": {"auroc": 0.6}}
    return RowResult(name, name.title(), values={"auroc": auroc, "ece": 0.02}, std={"auroc": 0.01}, costs=COSTS,
                     intervals={"auroc": [auroc - 0.05, auroc + 0.05]}, detection={"energy": sets}, **more)  # fmt: skip


ROWS = [row("single", 0.8), row("hydra_circ", 0.9), row("taylor", 0.7)]


def test_a_figure_is_the_tables_or_that_of_another_score_or_of_one_set():
    assert Value.of(ROWS[0], "auroc") == Value(0.8, 0.01, 0.75, 0.8 + 0.05)
    assert Value.of(ROWS[0], "auroc", "energy") == Value(0.8 - 0.1, 0.02)
    assert Value.of(ROWS[0], "auroc_near", "energy").mean == 0.5
    assert Value.of(ROWS[0], "auroc", "energy", "sandal").mean == 0.6
    assert Value.of(ROWS[0], "auroc", "knn") == Value(None)
    assert Value.of(ROWS[0], "ece", "energy").mean == 0.02  # calibration does not depend on the score
    assert Value(0.8, 0.1).span == (pytest.approx(0.7), pytest.approx(0.9))
    assert Value(0.8).span == Value(None).span == (None, None)


def test_every_row_has_a_family_and_scaling_does_not_change_it():
    names = {FAMILIES[family_of(name)][0] for name in DEFAULT_ROWS}
    assert len(names) == len(FAMILIES)
    assert family_of("temperature(hydra_circ)") == family_of("hydra_random") != family_of("taylor")


def test_pareto_draws_bubbles_by_area_with_spread_and_leaves_out_what_is_missing():
    figure = pareto_figure(ROWS, "auroc", "AUROC", better="high")
    bubbles = {trace.name: trace for trace in figure.data[1:]}
    hydra = bubbles["Hydra Ensembles"]
    assert (list(hydra.x), list(hydra.y)) == ([1.2], [0.9])
    assert [text.strip() for text in hydra.text] == ["Hydra_Circ"]
    assert list(hydra.error_y.array) == [0.01]
    assert hydra.marker.size[0] == pytest.approx(11 * 2)  # four times the parameters, twice the width
    assert list(bubbles["one pruned model"].text) == [""]  # neither the best nor one of the three
    values = [Value(None), Value(0.5), Value(0.6)]
    shown = pareto_figure(ROWS, "auroc", "AUROC", better="high", values=values)
    assert sum(len(trace.x) for trace in shown.data[1:]) == 2


@pytest.mark.parametrize(("better", "top"), [("high", "Hydra_Circ"), ("low", "Taylor")])
def test_spread_puts_the_best_on_top(better, top):
    figure = spread_figure(ROWS, {"AUROC": [Value.of(r, "auroc") for r in ROWS]}, better=better)
    assert figure.layout.yaxis.categoryarray[-1] == top
    dots = figure.data[-1]
    assert sorted(dots.x) == [0.7, 0.8, 0.9]
    bars = [trace for trace in figure.data if trace.mode == "lines"]
    assert len(bars) == 6  # thin and thick for each of three rows


def test_each_set_gets_a_plot_of_its_own():
    columns = {name: [Value(0.5 + i / 10) for i in range(3)] for name in ("sandal", "mnist", "photos")}
    figure = spread_figure(ROWS, columns, better="high")
    assert [note.text for note in figure.layout.annotations] == ["sandal", "mnist", "photos"]
    assert {trace.xaxis for trace in figure.data} == {"x", "x2", "x3"}


def test_the_ece_in_a_title_is_that_of_the_bars_drawn():
    bars = {"edges": [0, 0.5, 1], "accuracy": [None, 0.8], "confidence": [None, 0.9], "count": [0, 10]}
    one = row("single", 0.8, reliability=bars, first={"ece": 0.1})  # the table's 0.02 is a mean over seeds
    figure = reliability_multiples([one])
    assert figure.layout.annotations[0].text.endswith("ECE 0.100")
    assert list(figure.data[0].y) == [None, 0.8]
