"""Weights must mean what repeating samples means; intervals must cover."""

from __future__ import annotations

import numpy as np
import pytest

import hydra_core.metrics as hm
from hydra_core.errors import MetricError
from hydra_core.metrics.bootstrap import resample_counts, resamples_of
from hydra_core.metrics.classification import Predictions
from hydra_core.metrics.report import _Study


def tied_case(seed: int, members: int = 3):
    """Logits on a coarse grid, so that confidences and scores tie often, as they do in half precision."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 60)
    logits = np.round(rng.normal(size=(members, 60, 3)) + 1.5 * np.eye(3)[labels])
    return logits, labels, {"a": np.round(rng.normal(size=(members, 35, 3))), "b": rng.normal(size=(members, 20, 3))}


@pytest.mark.parametrize("seed", range(4))
def test_weights_equal_repeated_samples(seed):
    logits, labels, ood = tied_case(seed)
    sets = {name: hm.ood_score(part) for name, part in ood.items()}
    shifts = {"a": "near", "b": "far"}
    study = _Study(Predictions.of(logits), labels, hm.ood_score(logits), sets, shifts, 7)
    rng = np.random.default_rng(seed)
    counts = [resample_counts(n, 5, rng) for n in study.sizes]
    got = study.estimate(counts)
    for b in range(5):
        pick = [np.repeat(np.arange(len(c[b])), c[b].astype(int)) for c in counts]
        again = {name: part[:, i] for (name, part), i in zip(ood.items(), pick[1:], strict=True)}
        want = hm.evaluate_logits(logits[:, pick[0]], labels[pick[0]], again, shifts=shifts, bins=7)
        assert {n: got[n][b] for n in hm.METRICS} == pytest.approx(want.row(), abs=1e-9, nan_ok=True)


def test_resamples_keep_sizes_and_do_not_depend_on_the_other_sets():
    (a, b), *more = resamples_of([30, 50], 40, seed=3)
    assert not more
    assert (a.sum(1) == 30).all()
    assert (b.sum(1) == 50).all()
    assert (next(resamples_of([30, 9], 40, seed=3))[0] == a).all()


def test_memory_budget_splits_resamples(monkeypatch):
    monkeypatch.setattr("hydra_core.metrics.bootstrap.BUDGET", 1000)
    parts = list(resamples_of([100, 150], 10, seed=0))
    assert [len(p[0]) for p in parts] == [4, 4, 2]
    assert len({row.tobytes() for p in parts for row in p[0]}) == 10  # no part repeats another


def test_same_seed_same_interval():
    logits, labels, ood = tied_case(0)
    a, b, c = (hm.evaluate_logits(logits, labels, ood, bootstrap=50, seed=s).intervals for s in (1, 1, 2))
    assert str(a) == str(b) != str(c)


def test_coverage_of_the_accuracy_interval():
    """Of 200 data sets with true accuracy 0.8, about 95 % of the intervals hold it (binomial sd: 1.5 %)."""
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        right = (rng.random(200) < 0.8).astype(float)
        found = hm.bootstrap_intervals(lambda w, r=right: {"acc": w[0] @ r / 200}, [200], 200, seed=trial)["acc"]
        held += found[0] <= 0.8 <= found[1]
    assert 0.90 <= held / 200 <= 0.99


@pytest.mark.parametrize("name", ["ece", "aece", "smece", "mce"])
def test_a_calibration_error_lies_inside_its_own_interval(name):
    """On 36 samples every resample's error is above the figure; the interval tells its spread all the same."""
    rng = np.random.default_rng(5)
    logits = 2 * rng.normal(size=(36, 4))
    labels = (logits + 1.5 * rng.normal(size=logits.shape)).argmax(1)
    report = hm.evaluate_logits(logits, labels, bootstrap=200)
    low, high = report.interval(name)
    assert 0 <= low <= getattr(report, name) <= high


def test_a_centred_interval_is_the_plain_one_moved():
    values = np.random.default_rng(0).normal(0.3, 0.02, 400)
    low, high = hm.percentile_interval(values)
    moved = hm.percentile_interval(values, around=0.1)
    assert moved == pytest.approx((low - values.mean() + 0.1, high - values.mean() + 0.1))
    assert hm.percentile_interval(values, around=0.0)[0] == 0.0


def test_undefined_figures_have_undefined_intervals():
    logits, labels, _ = tied_case(0, members=1)
    report = hm.evaluate_logits(logits, labels, bootstrap=30)
    assert np.isnan(report.interval("auroc")).all()
    assert np.isnan(report.interval("disagreement")).all()
    assert not np.isnan(report.interval("nll")).any()


@pytest.mark.parametrize("resamples", [1, 19, -5, 2.5])
def test_too_few_resamples_are_refused(resamples):
    logits, labels, _ = tied_case(0)
    with pytest.raises(MetricError, match="20 or more"):
        hm.evaluate_logits(logits, labels, bootstrap=resamples)
