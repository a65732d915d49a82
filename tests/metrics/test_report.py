"""The report as a value: names, texts, tables, JSON; and the examples in the docstrings."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import json
import pkgutil

import numpy as np
import pytest
import torch

import hydra_core.metrics as hm
from hydra_core.errors import MetricError, UnknownNameError
from hydra_core.heads.mask import HeadMask, Plan

MODULES = [m.name for m in pkgutil.iter_modules(hm.__path__)]


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 120)
    logits = rng.normal(size=(2, 120, 4)) + 2 * np.eye(4)[labels]
    return logits, labels, {"coat": rng.normal(size=(2, 40, 4)), "noise": rng.normal(size=(2, 30, 4))}


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(f"hydra_core.metrics.{name}")).failed == 0


def test_every_metric_is_a_field_and_says_what_it_means():
    fields = {f.name for f in dataclasses.fields(hm.Report)}
    for name, metric in hm.METRICS.items():
        assert name in fields
        assert metric.better in ("high", "low")
        assert metric.help.endswith(".")
        assert (hm.CONVENTION in metric.help) == name.startswith(("auroc", "aupr", "fpr95"))
    assert hm.METRICS["ece"].improves(0.01, 0.02)
    assert not hm.METRICS["auroc"].improves(float("nan"), 0.5)


def test_torch_half_and_lists_give_the_same_report(case):
    logits, labels, ood = case
    half = torch.tensor(logits).half().requires_grad_()
    a = hm.evaluate_logits(half, torch.tensor(labels), {k: torch.tensor(v) for k, v in ood.items()})
    b = hm.evaluate_logits(half.detach().numpy().tolist(), labels.tolist(), ood)
    assert a.row() == pytest.approx(b.row(), nan_ok=True)
    assert (a.samples, a.members) == (120, 2)


def test_table_and_intervals_of_each_set(case):
    report = hm.evaluate_logits(*case, shifts={"coat": "near"}, bootstrap=40)
    table = report.table().set_index("set")
    assert table["shift"].to_dict() == {"coat": "near", "noise": "other"}
    assert table["samples"].to_dict() == {"coat": 40, "noise": 30}
    assert report.auroc == pytest.approx(table["auroc"].mean())
    assert tuple(table.loc["coat", ["auroc_low", "auroc_high"]]) == report.interval("auroc", "coat")
    assert report.interval("auroc", "coat") == report.interval("auroc_near")
    with pytest.raises(UnknownNameError, match="coat"):
        report.interval("auroc", "cost")


def test_json_is_strict_and_whole(case):
    report = hm.evaluate_logits(*case, bootstrap=30)
    data = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert data["metrics"].keys() == hm.METRICS.keys()
    assert data["metrics"]["auroc_near"] is None
    assert sum(data["reliability"]["count"]) == 120
    assert [s["name"] for s in data["sets"]] == ["coat", "noise"]


def test_report_without_ood_or_bootstrap_says_what_is_missing(case):
    report = hm.evaluate_logits(*case[:2])
    assert np.isnan(report.auroc)
    assert hm.METRICS["auroc"].format(report.auroc) == "–"
    assert list(report.table().columns) == ["set", "shift", "samples", "auroc", "aupr", "fpr95"]
    with pytest.raises(MetricError, match="bootstrap=200"):
        report.interval("ece")


def test_errors_name_value_and_place(case):
    logits, labels, ood = case
    broken = logits.copy()
    broken[1, 7, 2] = np.inf
    with pytest.raises(MetricError, match="inf at member 1, sample 7, class 2"):
        hm.evaluate_logits(broken, labels)
    with pytest.raises(MetricError, match=r"'coat'.*at member 1, sample 7"):
        hm.evaluate_logits(logits, labels, {"coat": broken})
    with pytest.raises(MetricError, match=r"4 at sample 0"):
        hm.evaluate_logits(logits, np.r_[4, labels[1:]])
    with pytest.raises(MetricError, match=r"0\.5 at sample 0"):
        hm.evaluate_logits(logits, np.r_[0.5, labels[1:]])
    with pytest.raises(MetricError, match="'near', 'far'"):
        hm.evaluate_logits(logits, labels, ood, shifts={"coat": "close"})
    with pytest.raises(MetricError, match="scores of ID samples have the wrong shape"):
        hm.auroc([], [1.0])
    with pytest.raises(MetricError, match="not numbers"):
        hm.accuracy([["a", "b"]], [0])
    with pytest.raises(MetricError, match="1 to 1000"):
        hm.evaluate_logits(logits, labels, bins=0)


def test_pair_matrices_agree_with_their_means(case):
    logits = np.random.default_rng(0).normal(size=(4, 80, 3))
    away = ~np.eye(4, dtype=bool)
    assert hm.disagreement_matrix(logits)[away].mean() == pytest.approx(hm.disagreement(logits))
    assert hm.kl_matrix(logits)[away].mean() == pytest.approx(hm.pairwise_kl(logits))
    assert not np.diag(hm.kl_matrix(logits)).any()


def test_overlap_of_plans_layers_and_empty_masks():
    a, b = HeadMask.of([[1, 1], [1, 0]]), HeadMask.of([[1, 1], [0, 1]])
    plan = Plan((a, b, a), ("one", "two", "three"))
    found = hm.head_overlap(plan)
    assert found.names == ("one", "two", "three")
    np.testing.assert_allclose(found.matrix, [[1, 0.5, 1], [0.5, 1, 0.5], [1, 0.5, 1]])
    assert hm.head_overlap(plan, layers=[1]).mean == pytest.approx(1 / 3)
    assert hm.head_overlap([HeadMask.empty((2, 2))] * 2).mean == 1
    assert np.isnan(hm.head_overlap([a]).mean)
    for bad in ([], [a, HeadMask.full((2, 3))]):
        with pytest.raises(MetricError, match="belong together"):
            hm.head_overlap(bad)
    with pytest.raises(MetricError, match="0 to 1"):
        hm.head_overlap([a], layers=[2])


def test_roc_curve_encloses_the_auroc():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 50), rng.integers(3, 12, 40)
    fpr, tpr, threshold = hm.roc_curve(a, b)
    assert np.trapezoid(tpr, fpr) == pytest.approx(hm.auroc(a, b))
    for f, t, s in zip(fpr, tpr, threshold, strict=True):
        assert (f, t) == pytest.approx(((a >= s).mean(), (b >= s).mean()))
    assert hm.fpr95(a, b) == fpr[tpr >= 0.95].min()


def test_risk_coverage_curve_ends_at_the_error_rate():
    rng = np.random.default_rng(0)
    conf, right = rng.random(90).round(1), rng.integers(0, 2, 90)
    curve = hm.risk_coverage(conf, right)
    assert curve.coverage[-1] == 1
    assert curve.risk[-1] == pytest.approx(1 - right.mean())
    assert curve.aurc == pytest.approx(hm.aurc(conf, right))
    orders = [np.lexsort((rng.random(90), -conf)) for _ in range(4000)]  # ties in random order, on average
    loops = np.mean([((1 - right[o]).cumsum() / np.arange(1, 91)).mean() for o in orders])
    assert curve.aurc == pytest.approx(loops, abs=2e-3)
