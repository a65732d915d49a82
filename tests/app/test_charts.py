"""Figures say what the tables say: bars sum up, empty bins are empty, the gaps' weighted sum is the ECE."""

from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import pytest

from app.charts.base import save_options
from app.charts.distributions import confidence_histogram, ood_histogram, risk_coverage
from app.charts.heatmap import head_heatmap
from app.charts.reliability import describe_bins, reliability_figure, small_reliability
from app.charts.scatter import small_multiples
from hydra_core import metrics


def bins_of(confidence, correct, n=10):
    """Textbook bins (a, b], written apart from hydra_core's."""
    edges = np.linspace(0, 1, n + 1)
    which = np.clip(np.ceil(confidence * n).astype(int) - 1, 0, n - 1)
    count = np.bincount(which, minlength=n)
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(which, correct, n) / count
        mean = np.bincount(which, confidence, n) / count
    return SimpleNamespace(edges=edges, count=count, accuracy=accuracy, confidence=mean)


@pytest.fixture
def sample():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.35, 1.0, 400)
    return confidence, rng.random(400) < confidence**2


def named(fig, start):
    return next(trace for trace in fig.data if (trace.name or "").startswith(start))


def test_counts_sum_to_n_and_gaps_to_the_ece(sample):
    confidence, correct = sample
    fig = reliability_figure(bins_of(confidence, correct), now_name="now")
    counts, gaps = np.array(named(fig, "samples, now").y), np.array(named(fig, "gap").y)
    assert counts.sum() == len(confidence)
    naive = 0.0
    for i in range(10):
        inside = (confidence > i / 10) & (confidence <= (i + 1) / 10)
        if inside.any():
            naive += inside.mean() * abs(confidence[inside].mean() - correct[inside].mean())
    assert float(np.abs(gaps) @ counts / counts.sum()) == pytest.approx(naive, abs=1e-12)


def test_empty_bins_are_not_drawn(sample):
    fig = reliability_figure(bins_of(*sample))
    assert len(named(fig, "accuracy, ").x) == 7  # 0.35 to 1.0 fills seven of ten bins
    assert min(named(fig, "accuracy, ").x) > 0.3


def test_the_outline_of_the_unpruned_model_breaks_at_empty_bins():
    now = bins_of(np.array([0.15, 0.95]), np.array([0, 1]))
    fig = reliability_figure(now, now)
    assert list(named(fig, "accuracy, unpruned").x) == pytest.approx([0.1, 0.2, None, 0.9, 1.0], nan_ok=True)


def test_the_axis_says_accuracy(sample):
    fig = reliability_figure(bins_of(*sample))
    assert fig.layout.yaxis.title.text == "accuracy"
    assert "confidence" in fig.layout.xaxis2.title.text


def test_words_for_those_who_cannot_see_it(sample):
    text = describe_bins(bins_of(*sample))
    assert "400 samples in 7 filled bins" in text
    assert "overconfident" in text
    empty = SimpleNamespace(edges=np.array([0.0, 1.0]), count=np.array([0]), accuracy=np.array([np.nan]))
    assert "without samples" in describe_bins(SimpleNamespace(**vars(empty), confidence=np.array([np.nan])))


def test_shares_of_each_group_sum_to_one(sample):
    confidence, correct = sample
    fig = confidence_histogram(confidence, correct, {"digits": confidence[:50]})
    assert [sum(trace.y) for trace in fig.data] == pytest.approx([1, 1, 1])
    assert [trace.name for trace in fig.data][2] == "digits (50)"


def test_ood_histogram_shares_one_scale_and_tells_shifts_apart():
    scores = {"test": np.array([0.0, 0.5]), "coat": np.array([0.4, 0.6]), "digits": np.array([1.0, 2.0])}
    fig = ood_histogram(scores, {"test": "id", "coat": "near", "digits": "far"})
    assert isinstance(fig.data[0], go.Bar)
    assert fig.data[1].line.color != fig.data[2].line.color
    assert fig.data[1].line.dash != fig.data[2].line.dash
    assert [sum(trace.y) for trace in fig.data] == pytest.approx([1, 1, 1])


def test_ood_histogram_of_equal_scores():
    fig = ood_histogram({"a": np.ones(3), "b": np.ones(2)}, {"a": "id"})
    assert sum(fig.data[0].y) == pytest.approx(1)


def test_risk_coverage_ends_at_the_error_rate(sample):
    confidence, correct = sample
    curve = metrics.risk_coverage(confidence, correct)
    coverage, risk = curve.coverage, curve.risk
    assert coverage[-1] == 1
    assert risk[-1] == pytest.approx(1 - correct.mean())
    most_sure = np.argsort(-confidence)[:100]
    assert risk[99] == pytest.approx(1 - correct[most_sure].mean())
    assert len(risk_coverage({"now": (coverage, risk)}).data) == 1


def test_heatmap_of_ragged_layers_with_intervals():
    fig = head_heatmap([[1, 2, 3], [4]], low=[[0, 1, 2], [3]], high=[[2, 3, 4], [5]])
    z = np.array(fig.data[0].z, dtype=float)
    assert z.shape == (2, 3)
    assert np.isnan(z[1, 1:]).all()
    assert fig.data[0].customdata[0][1].tolist() == [1, 3]


def test_a_diverging_heatmap_is_centred_at_zero():
    fig = head_heatmap([[-1.0, 3.0]], diverging=True)
    assert (fig.data[0].zmin, fig.data[0].zmax) == (-3, 3)


def test_pictures_are_saved_at_twice_the_size():
    assert save_options("x", "svg")["toImageButtonOptions"] == {"format": "svg", "filename": "x", "scale": 2}


def test_small_diagrams_show_each_member_in_its_own_panel(sample):
    confidence, correct = sample
    panels = [("A", bins_of(confidence, correct)), ("B", bins_of(confidence**2, correct))]
    fig = small_reliability(panels)
    bars = [t for t in fig.data if t.name == "accuracy"]
    assert [t.xaxis for t in bars] == ["x", "x2"]
    for trace, (_, bins) in zip(bars, panels, strict=True):
        assert list(trace.y) == [a for a in bins.accuracy if a == a]
    assert [t.showlegend for t in bars] == [True, False]
    assert [a.text for a in fig.layout.annotations] == ["A", "B"]


def test_the_reference_is_drawn_under_its_own_name(sample):
    confidence, correct = sample
    bins = bins_of(confidence, correct)
    fig = reliability_figure(bins, bins, before_name="pin one")
    assert named(fig, "accuracy, pin one") is not None
    fig = confidence_histogram(confidence, correct, before=("pin one", confidence))
    assert sum(named(fig, "all ID, pin one").y) == pytest.approx(1)


def test_a_set_has_one_colour_in_all_charts(sample):
    confidence, correct = sample
    shifts = {"coat": "near", "digits": "far", "noise": "far", "textures": "far"}
    values = {name: confidence[i : i + 50] for i, name in enumerate(shifts)}
    lines = confidence_histogram(confidence, correct, values, shifts).data[2:]
    outlines = ood_histogram({"test": confidence} | values, {"test": "id"} | shifts).data[1:]
    points = np.zeros((5, 2))
    groups = [("test", "id", slice(0, 1)), *((n, s, slice(i, i + 1)) for i, (n, s) in enumerate(shifts.items(), 1))]
    marks = small_multiples([("head", points)], groups).data[1:]
    colours = [trace.marker.color for trace in marks]
    assert len(set(colours)) == 4
    assert colours == [trace.line.color for trace in lines] == [trace.line.color for trace in outlines]
