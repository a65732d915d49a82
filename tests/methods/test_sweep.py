"""The sweep: a point is what fusing and evaluating its masks gives; cells are remembered; no sample is seen twice."""

import threading
from dataclasses import replace
from io import StringIO

import numpy as np
import pandas as pd
import pytest
import torch

import hydra_core as hc
from hydra_core.cli import main
from hydra_core.errors import Cancelled, DataError, MaskError, UnknownNameError
from hydra_core.heads.circuits import find_circuit
from hydra_core.methods.sweep import METHODS, CellFile, Grid, Sizes, layer_choice, sweep
from hydra_core.methods.sweep_table import SINGLE, Sweep
from hydra_core.metrics import evaluate_logits
from tests.methods.conftest import bundle, tiny

SIZES = Sizes(search=25, search_ood=12, report=30, report_ood=15)
GRID = Grid(tuple(METHODS), (3, 2), (1, 2, 4), ((1, 2),))


@pytest.fixture(scope="module")
def found():
    return sweep([tiny()], bundle(), [GRID], sizes=SIZES, seeds=(0, 1))


def points(found, **facts):
    return [p for p in found.points if all(getattr(p, k) == v for k, v in facts.items())]


def test_there_is_one_point_a_method_heads_members_and_repeat(found):
    ensembles = [name for name, method in METHODS.items() if method.ensemble]
    assert len(found.points) == 2 * (1 + 2 * (len(METHODS) - len(ensembles)) + 2 * 3 * len(ensembles))
    keys = [(p.method, p.keep, p.members, p.seed) for p in found.points]
    assert len(set(keys)) == len(keys)
    for p in found.points:
        masks = [hc.HeadMask.parse(text) for text in p.masks]
        assert len(masks) == p.members
        if p.method != SINGLE:
            assert {mask.counts for mask in masks} == {(4, p.keep, p.keep)}


@pytest.mark.parametrize("method", ["taylor", "hydra_taylor", "hydra_circ", "hydra_random"])
def test_a_point_is_what_the_fused_ensemble_gives_in_float64(found, method):
    (point,) = points(found, method=method, keep=2, members=4 if METHODS[method].ensemble else 1, seed=1)
    _, (samples, oods) = SIZES.split(bundle(), 1)
    view = tiny()
    hydra = hc.fuse(view, hc.Plan(tuple(hc.HeadMask.parse(text) for text in point.masks)))
    logits = {s.name: hydra(view.inputs(s)).numpy() for s in (samples, *oods.values())}
    report = evaluate_logits(
        logits.pop(samples.name), samples.labels, logits, shifts={n: p.shift for n, p in oods.items()}
    )
    for name, value in report.row().items():
        assert point.values[name] == (None if np.isnan(value) else pytest.approx(value, abs=1e-6)), name
    cost = hc.cost_of(view, hydra)
    assert (point.macs, point.parameters) == (cost.macs, cost.parameters)


def test_circ_avg_is_the_circuit_and_the_first_member_of_the_hydra_of_objectives(found):
    (ids, oods), _ = SIZES.split(bundle(), 0)
    for keep in GRID.keeps:
        circuit = find_circuit(tiny(), ids, oods, keep, "avg", layers=(1, 2))
        (alone,) = points(found, method="circ_avg", keep=keep, seed=0)
        assert alone.masks == (circuit.mask.text,)
        (four,) = points(found, method="hydra_circ", keep=keep, seed=0, members=4)
        (one,) = points(found, method="hydra_circ", keep=keep, seed=0, members=1)
        assert four.masks[0] == alone.masks[0]
        assert one.values == alone.values
        others = [find_circuit(tiny(), ids, oods, keep, what, layers=(1, 2)).mask.text for what in ("acc", "auroc")]
        assert list(four.masks[1:3]) == others


def test_taylor_keeps_the_best_heads_of_its_scores_for_every_number(found):
    (ids, _), _ = SIZES.split(bundle(), 0)
    scores = hc.score_heads(tiny(), ids, "taylor")
    for keep in GRID.keeps:
        (point,) = points(found, method="taylor", keep=keep, seed=0)
        assert point.masks == (hc.HeadMask.top(scores, keep, (1, 2)).text,)


def test_members_of_hydra_taylor_keep_the_best_heads_of_their_own_half(found):
    (ids, _), _ = SIZES.split(bundle(), 0)
    halves = [hc.score_heads(tiny(), ids.sample(round(len(ids) / 2), member), "taylor") for member in range(4)]
    for keep in GRID.keeps:
        (point,) = points(found, method="hydra_taylor", keep=keep, seed=0, members=4)
        assert point.masks == tuple(hc.HeadMask.top(scores, keep, (1, 2)).text for scores in halves)


def test_what_is_searched_is_never_measured_and_no_test_sample_is_touched():
    data = bundle()
    tested = {i for s in (data.test, *data.ood_test.values()) for i in s.ids}
    for seed in range(3):
        (ids, oods), (left, others) = SIZES.split(data, seed)
        searched = {i for s in (ids, *oods.values()) for i in s.ids}
        measured = {i for s in (left, *others.values()) for i in s.ids}
        assert not searched & measured
        assert not (searched | measured) & tested
    huge = Sizes(10**6, 10**6, 10**6, 10**6).split(data, 0)
    assert [len(huge[0][0]), len(huge[1][0])] == [30, 30]  # the search takes half at most


def test_members_are_cheaper_together_than_apart(found):
    for p in points(found, method="hydra_random", members=4):
        assert 1 < p.mac_ratio < 4  # the first layer runs once


def test_models_of_several_seeds_are_the_repeats():
    other = replace(tiny(1), name="tiny/other")
    found = sweep([tiny(), other], bundle(), [Grid(("taylor",), (2,), (1,), ((2,),))], sizes=SIZES)
    assert [(p.method, p.model, p.seed) for p in found.points] == [
        (SINGLE, "tiny/0", 0), ("taylor", "tiny/0", 0), (SINGLE, "tiny/other", 1), ("taylor", "tiny/other", 1),
    ]  # fmt: skip
    assert set(found.provenance["models"]) == {"tiny/0", "tiny/other"}
    assert len(set(found.provenance["models"].values())) == 2


def test_the_summary_is_mean_and_standard_deviation_over_repeats(found):
    table = found.summary("accuracy").set_index(["method", "keep", "members"])
    values = [p.values["accuracy"] for p in points(found, method="hydra_circ", keep=2, members=2)]
    row = table.loc[("hydra_circ", 2, 2)]
    assert row["mean"] == pytest.approx(np.mean(values))
    assert row["std"] == pytest.approx(np.std(values, ddof=1))
    assert row["repeats"] == 2
    assert found.summary("disagreement")["members"].min() == 2  # not defined for one member


def test_it_survives_json_and_gives_a_table(found, tmp_path):
    assert Sweep.from_json(found.to_json(tmp_path / "s.json")) == found
    table = pd.read_csv(StringIO(found.to_csv()))
    assert len(table) == len(found.points)
    assert table["nll"].notna().all()
    for text in ("", "[]", '{"points": [{}], "provenance": {}}', '{"points": 3, "provenance": {}}'):
        with pytest.raises(DataError, match="not a sweep"):
            Sweep.from_json(text)


def test_finished_cells_are_kept_and_a_stopped_sweep_goes_on(found, tmp_path, monkeypatch):
    path, stop, seen = tmp_path / "cells.jsonl", threading.Event(), []

    def publish(points):
        seen.extend(points)
        if len(seen) > 4:
            stop.set()

    with pytest.raises(Cancelled):
        sweep([tiny()], bundle(), [GRID], sizes=SIZES, remember=CellFile(path), publish=publish, cancel=stop)
    finished = len(path.read_text().splitlines())
    assert 2 <= finished < 10
    with path.open("a") as file:
        file.write('{"key": "torn')  # as a killed run leaves it
    computed = []
    file = CellFile(path)

    def remember(key, compute):
        known = key in file.cells
        computed.extend([] if known else [key])
        return file(key, compute)

    again = sweep([tiny()], bundle(), [GRID], sizes=SIZES, seeds=(0, 1), remember=remember)
    assert again == found
    assert len(computed) == 2 * (1 + 2 * len(METHODS)) - finished
    monkeypatch.setattr(hc.MaskEvaluator, "many", None)  # nothing is run for what is known
    assert sweep([tiny()], bundle(), [GRID], sizes=SIZES, seeds=(0, 1), remember=CellFile(path)) == found


def test_little_memory_for_logits_changes_nothing(found, monkeypatch):
    monkeypatch.setattr("hydra_core.methods.sweep.KEPT_LOGITS", 2)
    assert sweep([tiny()], bundle(), [GRID], sizes=SIZES, seeds=(0, 1)) == found


def test_other_weights_or_samples_are_other_cells():
    keys = []

    def remember(key, compute):
        keys.append(key)
        return compute()

    grid = Grid(("taylor",), (2,), (1,), ((2,),))
    for view, sizes in ((tiny(), SIZES), (replace(tiny(1), name="tiny/0"), SIZES), (tiny(), replace(SIZES, report=29))):
        sweep([view], bundle(), [grid], sizes=sizes, seeds=(0,), remember=remember)
    assert len(set(keys)) == 6


def test_progress_rises_to_the_end_and_points_come_one_cell_at_a_time():
    shares, batches = [], []
    sweep([tiny()], bundle(), [GRID], sizes=SIZES, seeds=(0,), publish=batches.append,
          progress=lambda share, text: shares.append(share))  # fmt: skip
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] <= 1
    assert len(batches) == 1 + 2 * len(METHODS)
    assert [p.method for p in batches[0]] == [SINGLE]


def test_a_search_under_way_can_be_cancelled():
    stop = threading.Event()

    def progress(share, text):
        if "Layer 2" in text:
            stop.set()

    with pytest.raises(Cancelled):
        sweep([tiny()], bundle(), [Grid(("circ_avg",), (2,), (1,), ((1, 2),))], sizes=SIZES, progress=progress,
              cancel=stop)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"methods": ("tailor",)}, UnknownNameError, "Did you mean taylor"),
        ({"keeps": (2, 5)}, MaskError, "Expected 1 to 4. Got 5"),
        ({"keeps": (0,)}, MaskError, "Got 0"),
        ({"keeps": ()}, MaskError, "Got none"),
        ({"members": (17,)}, MaskError, "Got 17"),
        ({"layers": ((1, 3),)}, MaskError, "Expected 0 to 2. Got 3"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused_before_any_work(change, error, words):
    with pytest.raises(error, match=words):
        sweep([tiny()], bundle(), [replace(GRID, **change)], sizes=SIZES)


def test_circuits_without_ood_are_refused_and_taylor_is_not():
    data = replace(bundle(), ood_val={})
    assert set(Grid.default(tiny(), data).methods) == {"taylor", "hydra_taylor", "hydra_random"}
    with pytest.raises(DataError, match="CircAvg needs out-of-distribution"):
        sweep([tiny()], data, [GRID], sizes=SIZES)
    found = sweep([tiny()], data, [Grid(("taylor",), (2,), (1,), ((2,),))], sizes=SIZES, seeds=(0,))
    assert found.points[1].values["auroc"] is None
    assert found.summary("auroc").empty


def test_a_set_of_one_sample_cannot_be_split():
    data = bundle()
    data = replace(data, ood_val={"near-v": data.ood_val["near-v"].take([0])})
    with pytest.raises(DataError, match="near-v is too small"):
        sweep([tiny()], data, [GRID], sizes=SIZES)


@pytest.mark.parametrize(
    ("text", "layers"), [("all", (0, 1, 2, 3, 4, 5)), ("last2", (4, 5)), ("5,3,3", (3, 5)), ("0", (0,))]
)
def test_layers_by_name(text, layers):
    assert layer_choice(text, 6) == layers


@pytest.mark.parametrize("text", ["", "last0", "last7", "lastx", "6", "-1", "1;2", "first2"])
def test_what_names_no_layers_is_refused(text):
    with pytest.raises(MaskError, match="not a choice of layers"):
        layer_choice(text, 6)


def test_the_command_writes_a_table_and_goes_on_where_it_was(tmp_path, capsys):
    words = ["sweep", "demo/fashion-vit", "--layers", "last1", "--keep", "6", "--methods", "taylor", "hydra_random",
             "--members", "2", "--seeds", "1", "--samples", "40", "--out", str(tmp_path)]  # fmt: skip
    torch.manual_seed(0)
    assert main(words) == 0
    first = (tmp_path / "sweep.json").read_text()
    cells = (tmp_path / "cells.jsonl").read_text()
    assert main(words) == 0
    assert (tmp_path / "sweep.json").read_text() == first
    assert (tmp_path / "cells.jsonl").read_text() == cells
    assert [p.method for p in Sweep.from_json(first).points] == [SINGLE, "taylor", "hydra_random"]
    assert len(pd.read_csv(tmp_path / "sweep.csv")) == 3
    assert main(["sweep"]) == 1
    assert main([*words[:2], "--layers", "first", "--out", str(tmp_path)]) == 1
    assert "not a choice of layers" in capsys.readouterr().err
