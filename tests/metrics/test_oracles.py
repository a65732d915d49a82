"""Every figure against another library, a closed form, or a loop."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torchmetrics.functional.classification import multiclass_calibration_error

import hydra_core.metrics as hm
from hydra_core.errors import MetricError, UnknownNameError
from hydra_core.heads.mask import HeadMask


@pytest.fixture(scope="module")
def case():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 400)
    logits = rng.normal(size=(3, 400, 5)) + 2.5 * np.eye(5)[labels]
    ood = {"a": rng.normal(size=(3, 150, 5)), "b": 1.5 * rng.normal(size=(3, 90, 5))}
    return logits, labels, ood


@pytest.fixture(scope="module")
def report(case):
    logits, labels, ood = case
    return hm.evaluate_logits(logits, labels, ood, shifts={"a": "near", "b": "far"})


def of(report, name):
    return next(s for s in report.sets if s.name == name)


def mean_probs(logits):
    return torch.as_tensor(logits).softmax(-1).mean(0).numpy()


def test_classification_against_scikit_learn(case, report):
    logits, labels, _ = case
    p = mean_probs(logits)
    assert report.accuracy == pytest.approx(sk.accuracy_score(labels, p.argmax(1)))
    assert report.nll == pytest.approx(sk.log_loss(labels, p, labels=range(5)))
    assert report.brier == pytest.approx(((p - np.eye(5)[labels]) ** 2).sum(1).mean())


def test_ece_against_torchmetrics_away_from_confidence_one(case, report):
    logits, labels, _ = case
    p = torch.as_tensor(mean_probs(logits))
    want = multiclass_calibration_error(p, torch.as_tensor(labels), num_classes=5, n_bins=15, norm="l1")
    assert report.ece == pytest.approx(float(want), abs=1e-6)
    want = multiclass_calibration_error(p, torch.as_tensor(labels), num_classes=5, n_bins=15, norm="max")
    assert report.mce == pytest.approx(float(want), abs=1e-6)


def test_confidence_one_belongs_to_the_last_bin():
    bars = hm.reliability([0.95, 1.0], [1, 0])
    assert bars.ece == pytest.approx(0.475)  # the textbook value; torchmetrics says 0.525
    assert bars.count[-1] == 2


@pytest.mark.parametrize("kind", ["width", "count"])
@pytest.mark.parametrize("bins", [1, 7, 15])
def test_bins_sum_to_n_and_ece_to_the_bars(case, kind, bins):
    p = mean_probs(case[0])
    bars = hm.reliability(p.max(1), p.argmax(1) == case[1], bins, kind)
    assert bars.count.sum() == 400
    full = bars.count > 0
    assert np.isnan(bars.accuracy[~full]).all()
    by_hand = (bars.count[full] / 400 * abs(bars.accuracy[full] - bars.confidence[full])).sum()
    assert bars.ece == pytest.approx(by_hand)
    edges = np.searchsorted(bars.edges[1:-1], p.max(1), side="right")
    for b in np.flatnonzero(full):
        assert bars.accuracy[b] == pytest.approx((p.argmax(1) == case[1])[edges == b].mean())


def test_bins_of_equal_count_hold_equally_many(case, report):
    p = mean_probs(case[0])
    bars = hm.reliability(p.max(1), p.argmax(1) == case[1], 10, "count")
    assert set(bars.count) == {40}
    order = np.argsort(p.max(1))
    gap = (p.argmax(1) == case[1])[order].astype(float) - p.max(1)[order]
    assert bars.ece == pytest.approx(np.abs(gap.reshape(10, 40).sum(1)).sum() / 400)


def test_ood_against_scikit_learn(case, report):
    logits, _, ood = case
    scores = {name: 1 - mean_probs(part).max(1) for name, part in {"id": logits, **ood}.items()}
    for name in ood:
        y = np.r_[np.zeros(400), np.ones(len(scores[name]))]
        s = np.r_[scores["id"], scores[name]]
        assert of(report, name).auroc == pytest.approx(sk.roc_auc_score(y, s))
        assert of(report, name).aupr == pytest.approx(sk.average_precision_score(y, s))
        fpr, tpr, _ = sk.roc_curve(y, s, drop_intermediate=False)
        assert of(report, name).fpr95 == pytest.approx(fpr[np.argmax(tpr >= 0.95)])
    assert report.auroc == pytest.approx(np.mean([s.auroc for s in report.sets]))
    assert report.auroc_near == of(report, "a").auroc
    assert report.fpr95_far == of(report, "b").fpr95


def test_ties_count_one_half():
    assert hm.auroc([0.5, 0.5], [0.5]) == 0.5
    assert hm.auroc([0, 1], [1, 2]) == pytest.approx(sk.roc_auc_score([0, 0, 1, 1], [0, 1, 1, 2]))


def test_aurc_is_the_mean_error_of_growing_sets(case, report):
    p = mean_probs(case[0])
    order = np.argsort(-p.max(1), kind="stable")
    wrong = (p.argmax(1) != case[1])[order]
    assert report.aurc == pytest.approx(np.mean([wrong[: k + 1].mean() for k in range(400)]))
    best = np.sort(wrong)
    assert report.eaurc == pytest.approx(report.aurc - np.mean([best[: k + 1].mean() for k in range(400)]))


def test_diversity_by_loops(case, report):
    logits = case[0]
    votes = logits.argmax(-1)
    pairs = list(itertools.combinations(range(3), 2))
    assert report.disagreement == pytest.approx(np.mean([(votes[i] != votes[j]).mean() for i, j in pairs]))
    p = torch.as_tensor(logits).softmax(-1).numpy()
    h = lambda q: -(q * np.log(q)).sum(-1)  # noqa: E731
    assert report.mutual_information == pytest.approx((h(p.mean(0)) - h(p).mean(0)).mean())
    kl = [(p[i] * np.log(p[i] / p[j])).sum(-1).mean() for i, j in itertools.permutations(range(3), 2)]
    assert report.pairwise_kl == pytest.approx(np.mean(kl))


def test_equal_members_are_one_model(case):
    logits, labels, ood = case
    one = hm.evaluate_logits(logits[0], labels, {k: v[0] for k, v in ood.items()})
    three = hm.evaluate_logits(logits[[0, 0, 0]], labels, {k: v[[0, 0, 0]] for k, v in ood.items()})
    assert three.disagreement == 0
    assert three.mutual_information == 0
    for name, value in one.row().items():
        if name not in ("disagreement", "mutual_information", "pairwise_kl"):  # undefined for one member
            assert three.row()[name] == pytest.approx(value, abs=1e-12, nan_ok=True), name


def test_order_of_samples_does_not_matter(case, report):
    logits, labels, ood = case
    order = np.random.default_rng(1).permutation(400)
    again = hm.evaluate_logits(logits[:, order], labels[order], ood, shifts={"a": "near", "b": "far"})
    assert again.row() == pytest.approx(report.row(), nan_ok=True)


def test_intervals_hold_the_estimate_and_shrink_like_the_standard_error(case):
    logits, labels, ood = case
    report = hm.evaluate_logits(logits, labels, ood, bootstrap=300)
    low, high = report.interval("accuracy")
    assert low < report.accuracy < high
    se = np.sqrt(report.accuracy * (1 - report.accuracy) / 400)
    assert (high - low) == pytest.approx(2 * 1.96 * se, rel=0.25)
    for name in ("nll", "auroc", "aurc"):
        low, high = report.interval(name)
        assert low < getattr(report, name) < high
    assert report.row(intervals=True)["accuracy_low"] == report.interval("accuracy")[0]
    with pytest.raises(UnknownNameError, match="accuracy"):
        report.interval("acuracy")


@pytest.mark.parametrize("name", [n for n, s in hm.OOD_SCORES.items() if s.needs == "logits"])
def test_every_score_ranks_and_is_defined_for_ensembles(case, name):
    logits, labels, ood = case
    assert hm.ood_score(logits, name).shape == (400,)
    report = hm.evaluate_logits(logits, labels, ood, ood_score=name)
    assert 0.5 < report.auroc <= 1


def test_energy_and_entropy_are_their_closed_forms(case):
    logits = torch.as_tensor(case[0])
    np.testing.assert_allclose(hm.ood_score(case[0], "energy"), -logits.logsumexp(-1).mean(0))
    p = logits.softmax(-1).mean(0)
    np.testing.assert_allclose(hm.ood_score(case[0], "entropy"), torch.distributions.Categorical(p).entropy())


def test_overlap_is_jaccard():
    a, b = HeadMask.of([[1, 1, 0, 0]]), HeadMask.of([[0, 1, 1, 0]])
    assert hm.head_overlap([a, b]).mean == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda z, y, o: (z * np.nan, y, o), "finite"),
        (lambda z, y, o: (z[:, :0], y[:0], o), "sample"),
        (lambda z, y, o: (z[..., :1], y * 0, o), "one class"),
        (lambda z, y, o: (z, y + 9, o), "label"),
        (lambda z, y, o: (z, y[:-1], o), "label"),
        (lambda z, y, o: (z, y, {"a": o["a"][:2]}), "members"),
    ],
)
def test_bad_input_is_named(case, change, text):
    logits, labels, ood = change(*case)
    with pytest.raises(MetricError, match=rf"(?i){text}"):
        hm.evaluate_logits(logits, labels, ood)
