"""The Sweep page: stored points at once, a point carried to What if, a sweep made now with parts, cancel and resume."""

import json
from dataclasses import replace

import numpy as np
import pytest

from app import cards, lab
from app.charts.sweep import describe_sweep, sweep_figure
from app.widgets import number
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.methods.sweep import STORED
from hydra_core.methods.sweep_table import Sweep
from tests.app.test_pages import DATA, MODEL, settle, texts, visit

LABELS = {"taylor": "Taylor", "hydra_circ": "Hydra"}


@pytest.fixture(scope="module")
def stored():
    return lab.stored_sweep(MODEL, DATA)


def mean(found, metric, **facts):
    values = [p.values[metric] for p in found.points if all(getattr(p, k) == v for k, v in facts.items())]
    return float(np.mean(values))


def figures(at):
    return {metric.label: metric.value for metric in at.metric}


def test_the_demo_carries_a_sweep_of_these_weights_and_data_with_every_line(stored):
    assert stored is not None
    methods = {p.method for p in stored.points}
    assert methods == {"single", *lab.sweep_methods()}
    assert {p.model for p in stored.points} == {"demo/fashion-vit", "demo/fashion-vit-s1", "demo/fashion-vit-s2"}
    assert {p.members for p in stored.points if p.method == "hydra_circ"} == {1, 2, 3, 4, 5}
    for method in lab.sweep_methods():
        assert {p.keep for p in stored.points if (p.method, p.layers) == (method, (3, 4, 5))} == set(range(1, 8))
    assert lab.stored_sweep("demo/fashion-vit", "demo/fashion~fog-1") is None  # other images


def test_it_opens_on_the_stored_points_with_an_answer_and_the_means_over_repeats(stored):
    at = visit("sweep")
    assert not at.exception
    assert not at.error
    chosen = {"method": "hydra_circ", "keep": 4, "members": 3, "layers": (3, 4, 5)}
    shown = figures(at)
    for name in ("accuracy", "ece", "auroc_near"):
        card = cards.ALL[name]
        assert shown[card.label] == number(mean(stored, name, **chosen), card.style)
    text = texts(at)
    assert "can do without" in text
    assert "The best AUROC near is" in text
    assert "Test data are not touched" in text


def test_the_answer_names_the_most_heads_that_may_go_and_the_best_point(stored):
    at = visit("sweep", metric="accuracy", within="4-5")
    base = mean(stored, "accuracy", method="single")
    means = {k: mean(stored, "accuracy", method="circ_avg", layers=(4, 5), keep=k) for k in range(1, 8)}
    kept = [k for k in range(7, 0, -1) if all(means[j] >= base - 0.01 for j in range(k, 8))]
    text = texts(at)
    assert f"CircAvg without {8 - kept[-1]}" in text or f"CircAvg can do without {8 - kept[-1]} of 8" in text
    table = stored.summary("accuracy")
    best = table[[layers == (4, 5) for layers in table["layers"]]]["mean"].max()
    assert f"The best Accuracy is **{best:.3f}**" in text


def test_a_point_goes_along_to_what_if_with_the_masks_of_this_model(stored):
    at = visit("sweep", line="hydra_random", kept="2", members="5", within="4-5")
    at = at.button(key="sweep/carry").click().run()
    own = next(p for p in stored.points if (p.method, p.keep, p.members, p.layers, p.model)
               == ("hydra_random", 2, 5, (4, 5), MODEL))  # fmt: skip
    assert at.session_state["hydra/session"].plan.masks == tuple(HeadMask.parse(text) for text in own.masks)


def test_another_seed_of_the_demo_carries_its_own_masks(stored):
    at = visit("sweep", model="demo/fashion-vit-s1", line="circ_avg", kept="6")
    at = at.button(key="sweep/carry").click().run()
    own = next(p for p in stored.points if (p.method, p.keep, p.layers, p.model)
               == ("circ_avg", 6, (3, 4, 5), "demo/fashion-vit-s1"))  # fmt: skip
    assert at.session_state["hydra/session"].plan == Plan((HeadMask.parse(own.masks[0]),))


@pytest.mark.parametrize("metric", ["nll", "ece", "auroc", "disagreement"])
def test_every_control_changes_the_picture_without_an_error(metric):
    at = visit("sweep", metric=metric)
    assert at.selectbox(key="metric").value == metric
    for key, value in (("line", "hydra_circ_resampled"), ("kept", 2), ("members", 2)):
        at = at.selectbox(key=key).set_value(value).run()
        assert at.selectbox(key=key).value == value
    at = at.segmented_control(key="within").set_value("4-5").run()
    at = at.segmented_control(key="over").set_value("cost").run()
    assert not at.exception
    assert not at.error
    assert not at.warning


def test_what_the_address_asks_for_and_nobody_measured_becomes_the_nearest_default():
    at = visit("sweep", line="nonsense", kept="99", members="x", metric="beauty", within="7-9")
    assert not at.exception
    assert not at.error
    assert at.selectbox(key="line").value == "hydra_circ"
    assert (at.selectbox(key="kept").value, at.selectbox(key="members").value) == (4, 3)


def test_layers_without_the_chosen_number_of_heads_fall_back():
    at = visit("sweep", line="taylor", kept="7")
    assert at.selectbox(key="kept").value == 7
    at = at.segmented_control(key="within").set_value("0-5").run()
    assert at.selectbox(key="kept").value == 4


def test_layers_without_ensembles_say_so():
    at = visit("sweep", within="0-5")
    assert not at.error
    assert not at.exception
    assert any("No ensemble has been measured" in info.value for info in at.info)
    assert at.selectbox(key="line").value == "circ_avg"


def run_small(at):
    at = at.segmented_control(key="source").set_value("now").run()
    at = at.multiselect(key="lines").set_value(["taylor", "hydra_random"]).run()
    at.slider(key="last").set_value(1)
    at.multiselect(key="keeps").set_value([4, 6])
    at.slider(key="upto").set_value(2)
    at.slider(key="repeats").set_value(1)
    return at.select_slider(key="samples").set_value(100).run()


def test_a_sweep_is_measured_now_and_equals_the_engines():
    from hydra_core.methods.sweep import Sizes, sweep

    at = run_small(visit("sweep"))
    assert any("finished is kept" in info.value for info in at.info)
    at = settle(at.button(key="sweep/go").click().run())
    assert not at.exception
    assert not at.error
    grid = replace(lab.usual_grid(MODEL, DATA), methods=("taylor", "hydra_random"), keeps=(4, 6), members=(1, 2),
                   layers=((5,),))  # fmt: skip
    sizes = Sizes(search=50, search_ood=12, report=100, report_ood=25)
    want = sweep([lab.model(MODEL)], lab.data(DATA), [grid], sizes=sizes, seeds=(0,))
    job = sweeping(at)
    assert job.result == want
    assert [p for part in job.partial for p in part] == list(want.points)
    assert set(at.selectbox(key="line").options) == {"Taylor", "Hydra (random)"}
    # a second run of the same sweep, by another session, measures nothing
    cells = []
    original = lab.store.infer
    try:
        lab.store.infer = lambda work: cells.append(work) or original(work)
        assert lab.sweep(MODEL, DATA, grid, n=100, repeats=1) == want
    finally:
        lab.store.infer = original
    assert cells == []


class Counted:
    """The inference thread's door: counts the cells that go through it, and stops the sweep after some."""

    def __init__(self, monkeypatch, stop=lambda: None, after=-1):
        self.cells, original = 0, lab.store.infer

        def infer(work):
            self.cells += 1
            if self.cells == after:
                stop()
            return original(work)

        monkeypatch.setattr(lab.store, "infer", infer)


def sweeping(at):
    (job,) = [j for j in at.session_state["hydra/jobs"]._jobs.values() if j.title == "Sweeping"]
    return job


def test_a_cancelled_sweep_keeps_its_points_goes_on_from_there_and_a_reload_finds_them(monkeypatch):
    at = run_small(visit("sweep"))
    at = at.multiselect(key="keeps").set_value([3, 5]).run()  # no other test measures these
    with monkeypatch.context() as patch:
        first = Counted(patch, lambda: sweeping(at).stop(), after=3)
        at = settle(at.button(key="sweep/go").click().run())
    job = sweeping(at)
    assert job.state == "cancelled"
    done = [point for part in job.partial for point in part]
    assert len(done) > 0
    assert not at.exception
    assert not at.error
    assert any("Sweeping: cancelled" in info.value for info in at.info)
    assert at.dataframe[0].value["method"].tolist() == [point.method for point in done]

    query = {"source": "Measure now", "lines": ["Taylor", "Hydra (random)"], "last": "1", "keeps": ["3", "5"],
             "upto": "2", "repeats": "1", "samples": "100"}  # fmt: skip
    again = visit("sweep", **query)  # another session at the same address
    assert any(f"{len(done)} points of it are here already" in info.value for info in again.info)
    assert again.dataframe[0].value["method"].tolist() == [point.method for point in done]
    with monkeypatch.context() as patch:
        second = Counted(patch)
        again = settle(again.button(key="sweep/go").click().run())
    whole = sweeping(again).result
    assert list(whole.points[: len(done)]) == done
    assert {(p.method, p.keep) for p in whole.points} >= {("taylor", 3), ("hydra_random", 3)}
    assert second.cells == 5 - len(job.partial)  # the unpruned model, and two lines at two numbers of heads
    assert first.cells == len(job.partial)

    with monkeypatch.context() as patch:
        third = Counted(patch)
        at = settle(at.button(key=f"job/{job.key}/again").click().run())
    assert sweeping(at).result == whole
    assert third.cells == 0


def test_points_of_a_sweep_under_way_are_drawn_and_cancel_keeps_them(stored):
    single = next(p for p in stored.points if p.method == "single")
    taylor = [p for p in stored.points if p.method == "taylor" and p.layers == (4, 5) and p.seed == 0]
    so_far = lab.sweep_so_far([[single], taylor[:2]])
    assert [p.method for p in so_far.points] == ["single", "taylor", "taylor"]
    assert so_far.summary("accuracy")["repeats"].tolist() == [1, 1, 1]


def test_a_model_without_a_stored_sweep_is_asked_to_measure(monkeypatch):
    monkeypatch.setattr(lab, "stored_sweep", lambda model, data: None)
    at = visit("sweep")
    assert not at.exception
    assert "sweep/go" in [button.key for button in at.button]
    assert any("Points appear as they come" in info.value for info in at.info)


def test_a_stored_sweep_of_other_weights_is_not_shown(tmp_path, monkeypatch):
    data = json.loads(STORED.read_text())
    data["provenance"]["models"] = dict.fromkeys(data["provenance"]["models"], "0" * 16)
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(data))
    monkeypatch.setattr("hydra_core.methods.sweep.STORED", path)
    assert lab.stored_sweep(MODEL, DATA) is None


# -- the chart -------------------------------------------------------------------------------------


def lines(stored, metric="accuracy"):
    table = stored.summary(metric)
    table = table[[layers == (4, 5) for layers in table["layers"]]]
    return table.assign(pruned=8 - table["keep"])


def test_the_chart_draws_the_means_bands_and_the_chosen_point(stored):
    table = lines(stored)
    taylor = table[table["method"] == "taylor"].sort_values("pruned")
    figure = sweep_figure(taylor, "pruned", LABELS, title="Accuracy", baseline=(0.9, 0.01), chosen=("taylor", 3, 1))
    by_name = {trace.name: trace for trace in figure.data if trace.name}
    assert list(by_name["Taylor"].y) == taylor["mean"].tolist()
    assert [list(point[:3]) for point in by_name["Taylor"].customdata] == [["taylor", 8 - x, 1] for x in range(1, 8)]
    (band,) = [trace for trace in figure.data if trace.fill == "toself"]
    assert max(band.y) == pytest.approx((taylor["mean"] + taylor["std"]).max())
    assert list(by_name["chosen"].x) == [5]
    assert "Hydra" not in by_name  # no points, no line
    assert figure.layout.xaxis.title.text == "heads pruned in each layer"
    assert "Taylor from" in describe_sweep(taylor, "pruned", LABELS, "Accuracy")


def test_one_repeat_has_no_band_and_no_interval():
    points = [p for p in Sweep.from_json(STORED.read_text()).points if p.seed == 0]
    figure = sweep_figure(lines(Sweep(tuple(points))), "members", {"hydra_circ": "Hydra"}, title="Accuracy")
    assert not [trace for trace in figure.data if trace.fill == "toself"]
