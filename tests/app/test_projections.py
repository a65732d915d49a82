"""The Projections page: its controls, and the samples that are chosen in the large picture."""

from types import SimpleNamespace

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app import lab
from app.charts.scatter import point_cloud, small_multiples
from app.gallery import gallery_table, hover_texts, locate
from app.registry import ROOT
from hydra_core.data.sets import SampleSet
from hydra_core.heads.mask import HeadMask, Plan

MODEL, DATA = "demo/fashion-vit", "demo/fashion"
FULL = HeadMask.full((8,) * 6)


@pytest.fixture(scope="module", autouse=True)
def warm():
    lab.scores(MODEL, DATA)
    for n in (100, 300):
        lab.projections(MODEL, DATA, [(0, 0)], n=n)


def settle(at):
    for _ in range(20):
        active = at.session_state["hydra/jobs"].active() if "hydra/jobs" in at.session_state else []
        if not active:
            return at.run()
        for job in active:
            job.wait(60)
        at.run()
    return at


def visit(**query):
    at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=120)
    for key, value in query.items():
        at.query_params[key] = value
    return settle(at.switch_page("../pages/projections.py").run())


def captions(at):
    return "\n".join(item.value for item in at.caption)


def test_controls_set_the_number_of_samples_dimensions_and_mask():
    at = visit(n="100", plan=Plan((FULL.prune(0, 1),)).text)
    assert "100 of 2,000 validation samples" in captions(at)
    settle(at.segmented_control(key="dims").set_value(3).run())
    assert "Choose samples in 2 dimensions" in captions(at)
    settle(at.toggle(key="pruned").set_value(True).run())
    _, (plain,) = lab.projections(MODEL, DATA, [(0, 0)], n=100)
    assert plain.points.shape[1] == 2
    assert not at.exception
    assert not at.error


def test_data_without_ood_says_so():
    from dataclasses import replace

    from hydra_core.data.load import DATA as REGISTERED
    from hydra_core.data.load import register_data

    bundle = lab.data(DATA)
    register_data("test/no-ood", lambda: replace(bundle, ood_val={}, ood_test={}))
    try:
        at = visit(data="test/no-ood")
        assert any("no OOD set" in info.value for info in at.info)
        assert not at.exception
    finally:
        REGISTERED.pop("test/no-ood", None)


def test_the_variance_on_show_is_that_of_the_ids_own_axes():
    chosen, (picture,) = lab.projections(MODEL, DATA, [(5, 3)], n=100)
    plain = lab.model(MODEL)
    from hydra_core.heads.attention_maps import head_outputs

    rows = head_outputs(plain, plain.inputs(chosen.id))[5][:, 3].double().numpy()
    values = np.linalg.svd(rows - rows.mean(0), compute_uv=False) ** 2
    assert picture.explained.sum() == pytest.approx(values[:2].sum() / values.sum(), rel=1e-4)


# -- chosen samples --------------------------------------------------------------------------------


def page_module():
    import importlib.util

    spec = importlib.util.spec_from_file_location("projections_page", ROOT / "pages" / "projections.py")
    module = importlib.util.module_from_spec(spec)
    source = (ROOT / "pages" / "projections.py").read_text().rsplit("\n\n\npage()", 1)[0]
    exec(compile(source, "projections", "exec"), module.__dict__)
    return module


def test_rows_come_from_the_selection_and_nonsense_is_left_out():
    points = [{"customdata": [3]}, {"customdata": 5}, {"customdata": [3]}, {"customdata": ["x"]}, {"customdata": [99]},
              {"customdata": [-1]}, {"customdata": [1.5]}, {"customdata": []}, {}]  # fmt: skip
    event = SimpleNamespace(selection=SimpleNamespace(points=points))
    assert page_module().chosen_rows(event, 10) == [3, 5]


def toy(kind="image"):
    inputs = np.zeros((3, 2, 2), np.uint8) if kind == "image" else np.array(["a <b>", "b " * 200, "c"], dtype=object)
    inside = SampleSet("toy", inputs, np.array([0, 1, 1]), ("i0", "i1", "i2"), ("cat", "d<o>g"), kind=kind)
    outside = SampleSet("far", inputs[:2], None, ("o0", "o1"), kind=kind, shift="far")
    return lab.Sample(inside, {"far": outside}, "val")


PROBS = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.5, 0.5], [0.3, 0.7]])


def test_the_table_says_what_the_model_says_of_each_chosen_sample():
    table = gallery_table(toy(), PROBS, [1, 2, 4], ("cat", "d<o>g"))
    assert list(table["set"]) == ["ID", "ID", "far"]
    assert list(table["class"]) == ["d<o>g", "d<o>g", ""]
    assert list(table["prediction"]) == ["cat", "d<o>g", "d<o>g"]
    assert list(table["right"])[:2] == [False, True]
    assert table["right"][2] is None
    assert list(table["confidence"]) == [0.6, 0.8, 0.7]
    assert list(table["id"]) == ["i1", "i2", "o1"]


def test_rows_are_found_in_their_sets():
    chosen = toy()
    assert [(locate(chosen, row)[0], locate(chosen, row)[2]) for row in range(5)] == [
        ("", 0), ("", 1), ("", 2), ("far", 0), ("far", 1)]  # fmt: skip


def test_texts_on_hover_are_shown_and_not_obeyed():
    texts = hover_texts(toy("text"))
    assert "a &lt;b&gt;" in texts[0]
    assert texts[1].startswith("<b>d&lt;o&gt;g</b>")
    assert texts[1].count("<br>") == 6  # class, four lines, dots
    assert texts[4].endswith("o1")


def test_points_know_their_rows_in_every_set():
    picture = SimpleNamespace(points=np.arange(10.0).reshape(5, 2), explained=None)
    groups = [("ID", "id", slice(0, 3)), ("far", "far", slice(3, 5))]
    fig = point_cloud(picture, groups, list("abcde"))
    assert [list(map(list, t.customdata)) for t in fig.data] == [[[0], [1], [2]], [[3], [4]]]
    assert list(fig.data[1].text) == ["d", "e"]
    small = small_multiples([("x", picture.points)], groups, list("abcde"))
    assert list(small.data[0].text) == ["a", "b", "c"]
    assert "far" in small_multiples([("x", picture.points)], groups).data[1].hovertemplate


def gallery_page():

    from app.gallery import gallery
    from tests.app.test_projections import PROBS, toy

    gallery(toy(), PROBS, [0, 1, 3], ("cat", "d<o>g"), "chosen")


def test_the_gallery_counts_right_wrong_and_ood():
    at = AppTest.from_function(gallery_page).run()
    assert not at.exception
    assert "**3 samples chosen**: 2 ID, 1 of them wrong, 1 OOD; mean confidence 0.67." in at.markdown[0].value
    assert len(at.dataframe[0].value) == 3


def test_sets_of_one_shift_differ_in_symbol_and_colour_in_two_and_three_dimensions():
    groups = [("ID", "id", slice(0, 1)), *((name, "far", slice(i, i + 1)) for i, name in enumerate("abcd", 1))]
    for dims in (2, 3):
        picture = SimpleNamespace(points=np.zeros((5, dims)), explained=np.ones(dims) / dims)
        fig = point_cloud(picture, groups, list("vwxyz"))
        assert len({trace.marker.symbol for trace in fig.data}) == 5
        assert len({trace.marker.color for trace in fig.data}) == 5


@pytest.mark.parametrize(("samples", "drawn"), [(100, "scatter"), (4000, "scattergl")])
def test_many_points_are_drawn_by_webgl_and_few_are_not(samples, drawn):
    points = np.arange(2.0 * samples).reshape(samples, 2)
    fig = small_multiples([("a", points), ("b", points)], [("ID", "id", slice(0, samples))])
    assert [trace.type for trace in fig.data] == [drawn] * 2
    assert all(np.array_equal(trace.y, points[:, 1]) for trace in fig.data)
