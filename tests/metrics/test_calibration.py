"""Ties, edges, smooth ECE and scaling, against loops and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import norm

import hydra_core.metrics as hm
from hydra_core.errors import MetricError
from hydra_core.metrics.calibration import GRID, _blur, _to_grid
from hydra_core.metrics.classification import log_softmax, softmax
from hydra_core.metrics.scaling import mixture_loss


def draw(n=2000, classes=4, seed=0, members=1, scale=2.0):
    """Logits and labels drawn from their softmax: calibrated at temperature 1."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(members, n, classes)) * scale
    p = softmax(logits).mean(0)
    return logits, (p.cumsum(1) > rng.random((n, 1))).argmax(1)


@pytest.mark.parametrize("kind", ["width", "count"])
def test_ties_do_not_depend_on_order(kind):
    rng = np.random.default_rng(0)
    conf, right = rng.choice([0.4, 0.6, 1.0], 100), rng.integers(0, 2, 100)
    order = rng.permutation(100)
    a, b = hm.reliability(conf, right, 15, kind), hm.reliability(conf[order], right[order], 15, kind)
    np.testing.assert_array_equal(a.count, b.count)
    np.testing.assert_allclose(a.accuracy, b.accuracy)
    assert a.count.sum() == 100
    assert (a.count > 0).sum() == 3  # one bar a value; the rest is empty, and NaN
    assert np.isnan(a.gap[a.count == 0]).all()
    assert hm.aurc(conf, right) == pytest.approx(hm.aurc(conf[order], right[order]))


def test_inner_edges_belong_to_the_bin_above_and_the_ends_to_theirs():
    bars = hm.reliability([0.0, 0.5, 1.0], [0, 1, 1], 2)
    assert bars.count.tolist() == [1, 2]


def test_fewer_samples_than_bins():
    for kind in ("width", "count"):
        bars = hm.reliability([0.3, 0.9], [1, 1], 15, kind)
        assert bars.count.sum() == 2
        assert bars.ece == pytest.approx((0.7 + 0.1) / 2)


def test_float32_confidence_one_and_rounding_over_one():
    assert hm.reliability(np.float32([1.0, 1.0]), [True, True]).count[-1] == 2
    assert hm.ece([1 + 1e-12], [1]) == 0
    with pytest.raises(MetricError, match=r"1\.1 at sample 1"):
        hm.ece([0.5, 1.1], [1, 1])


def test_report_draws_the_kind_that_was_asked_for():
    logits, labels = draw(300)
    for kind, name in (("width", "ece"), ("count", "aece")):
        report = hm.evaluate_logits(logits, labels, bins=9, bins_kind=kind)
        assert report.reliability.ece == pytest.approx(getattr(report, name), abs=1e-12)
        assert report.reliability.frame()["count"].sum() == 300
    with pytest.raises(MetricError, match="'width' or 'count'"):
        hm.evaluate_logits(logits, labels, bins_kind="size")


def test_classwise_ece_by_loop():
    logits, labels = draw(500)
    p, want = softmax(logits[0]), []
    for c in range(4):
        index = np.minimum((p[:, c] * 15).astype(int), 14)
        want.append(sum(abs((p[index == b, c] - (labels[index == b] == c)).sum()) for b in range(15)) / 500)
    assert hm.classwise_ece(logits, labels) == pytest.approx(np.mean(want))


@pytest.mark.parametrize(("conf", "share"), [(0.9, 0.6), (0.5, 0.8), (1.0, 0.75)])
def test_smooth_ece_of_one_confidence_is_its_gap(conf, share):
    right = np.arange(20) < 20 * share
    assert hm.smooth_ece(np.full(20, conf), right) == pytest.approx(abs(share - conf), abs=1e-4)


def test_smooth_ece_is_the_fixed_point_of_a_direct_kernel_sum():
    rng = np.random.default_rng(1)
    conf = rng.beta(4, 2, 300)
    right = rng.random(300) < conf**2
    s = hm.smooth_ece(conf, right)
    t = np.linspace(0, 1, 4001)
    images = [2 * k + sign * conf for k in range(-2, 3) for sign in (1, -1)]  # reflections at 0 and 1
    smoothed = sum(norm.pdf(t[:, None], at, s) for at in images) @ (right - conf) / 300
    assert trapezoid(np.abs(smoothed), t) == pytest.approx(s, abs=1e-4)


def test_smooth_ece_of_calibrated_predictions_is_small_and_of_others_is_the_gap():
    logits, labels = draw(20_000)
    p = softmax(logits[0])
    right = p.argmax(1) == labels
    assert hm.smooth_ece(p.max(1), right) < 0.015
    shifted = np.clip(p.max(1) - 0.2, 0, 1)  # every sample too humble by 0.2
    assert hm.smooth_ece(shifted, right) == pytest.approx(0.2, abs=0.015)


def test_blur_keeps_mass_and_smooth_curve_integrates_to_one():
    mass = _to_grid(np.array([0.0, 0.3, 1.0]), np.array([0.2, 0.5, 0.3]))
    assert mass.sum() == pytest.approx(1)
    assert _blur(mass, 0.1).sum() == pytest.approx(1)
    logits, labels = draw(20_000)
    p = softmax(logits[0])
    grid, accuracy, density = hm.smooth_reliability(p.max(1), p.argmax(1) == labels, width=0.05)
    assert density.sum() / GRID == pytest.approx(1)
    middle = (grid > 0.5) & (grid < 0.95)
    assert np.abs(accuracy - grid)[middle].max() < 0.05
    assert np.isnan(accuracy[0])  # the top of four classes never has confidence 0


# -- scaling -------------------------------------------------------------------------------


@pytest.mark.parametrize("members", [1, 3])
def test_temperature_is_found_again(members):
    logits, labels = draw(20_000, members=members)
    found = hm.fit_temperature(3.0 * logits, labels)
    assert found.temperature == pytest.approx(3.0, rel=0.05)
    assert not found.at_bound
    assert hm.nll(found(3.0 * logits), labels) == pytest.approx(found.nll_after)
    assert found.nll_after < found.nll_before
    around = [hm.nll(3.0 * logits / (found.temperature * f), labels) for f in (0.97, 0.99, 1.01, 1.03)]
    assert min(around) > found.nll_after


def test_separable_data_reaches_the_bound_and_says_so():
    labels = np.arange(30) % 3
    assert hm.fit_temperature(np.eye(3)[labels], labels).at_bound


def test_mixture_gradient_against_differences():
    logits, labels = draw(50, members=3)
    rng = np.random.default_rng(0)
    x = np.r_[rng.uniform(0.5, 2, 4), rng.normal(size=4)]
    _, slope = mixture_loss(logits, labels, x[:4], x[4:])
    for i in range(8):
        step = 1e-6 * np.eye(8)[i]
        up, down = (mixture_loss(logits, labels, *np.split(x + d, 2))[0] for d in (step, -step))
        assert slope[i] == pytest.approx((up - down) / 2e-6, abs=1e-7)


def test_vector_scaling_is_found_again_and_no_worse_than_a_temperature():
    logits, labels = draw(20_000)
    weight, bias = np.array([0.5, 1.0, 2.0, 1.5]), np.array([1.0, -1.0, 0.5, -0.5])
    bent = (logits - bias) / weight
    found = hm.fit_vector_scaling(bent, labels)
    np.testing.assert_allclose(found.weight, weight, rtol=0.08)
    np.testing.assert_allclose(found.bias, bias, atol=0.08)
    assert found.nll_after <= hm.fit_temperature(bent, labels).nll_after <= found.nll_before
    with pytest.raises(MetricError, match="another number of classes"):
        found(logits[..., :3])


def test_huge_logits_stay_finite():
    logits = np.array([[[1e4, 0.0], [-1e4, 0.0]]])
    assert np.isfinite(log_softmax(logits)).all()
    assert hm.nll(logits, [1, 0]) == pytest.approx(1e4)
    assert hm.ood_score(np.array([[40.0, 0.0], [41.0, 0.0]])).tolist() == pytest.approx([np.exp(-40), np.exp(-41)])
