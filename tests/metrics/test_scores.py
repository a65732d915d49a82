"""OOD scores of logits and of features against pytorch-ood and loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_ood import detector

import hydra_core.metrics as hm
from hydra_core.errors import MetricError, UnknownNameError


@pytest.fixture(scope="module")
def features():
    """(train (M, N, D), labels, ID test, OOD test): three members that see the same data turned differently."""
    rng = np.random.default_rng(0)
    centres, labels = 4 * rng.normal(size=(5, 12)), np.arange(300) % 5
    turns = np.stack([np.linalg.qr(rng.normal(size=(12, 12)))[0] for _ in range(3)])
    inside = centres[labels] + rng.normal(size=(300, 12))
    near = centres[labels] + rng.normal(size=(300, 12))
    outside = 6 * rng.normal(size=(200, 12))
    return [np.einsum("nd,mde->mne", x, turns) for x in (inside, near, outside)], labels


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("msp", detector.MaxSoftmax), ("max_logit", detector.MaxLogit), ("energy", detector.EnergyBased)],
)
def test_single_model_scores_rank_like_pytorch_ood(name, theirs):
    logits = np.random.default_rng(0).normal(size=(200, 6))
    want = theirs.score(torch.from_numpy(logits)).numpy()
    ours = hm.ood_score(logits, name)
    np.testing.assert_allclose(ours - ours.mean(), want - want.mean(), atol=1e-6)  # up to a constant


def test_members_scores_by_loop():
    logits = np.random.default_rng(0).normal(size=(4, 50, 3))
    votes = logits.argmax(-1)
    want = [1 - max(np.bincount(votes[:, n])) / 4 for n in range(50)]
    np.testing.assert_allclose(hm.ood_score(logits, "variation_ratio"), want)
    np.testing.assert_allclose(hm.ood_score(logits, "max_logit"), -logits.max(-1).mean(0))


def test_scores_of_disagreement_are_zero_for_one_model():
    logits = np.random.default_rng(0).normal(size=(50, 3))
    for name, score in hm.OOD_SCORES.items():
        if score.members_only:
            assert not hm.ood_score(logits, name).any()
            assert not hm.ood_score(np.stack([logits] * 3), name).any()


def test_mahalanobis_against_pytorch_ood(features):
    (train, test, _), labels = features
    ours = hm.fit_feature_score("mahalanobis", train[0], labels)(test[0])
    theirs = detector.Mahalanobis(None).fit_features(torch.tensor(train[0]).float(), torch.tensor(labels))
    want = theirs.predict_features(torch.tensor(test[0]).float()).numpy()
    np.testing.assert_allclose(ours, want * len(labels), rtol=1e-3)  # theirs does not divide the covariance by N


def test_mahalanobis_of_features_in_a_plane_is_that_of_the_plane(features):
    """After a layer norm every feature sums to 0: one direction has no spread."""
    (train, test, _), labels = features
    wide = [np.c_[x[0], -x[0].sum(1)] for x in (train, test)]
    a = hm.fit_feature_score("mahalanobis", train[0], labels)(test[0])
    b = hm.fit_feature_score("mahalanobis", wide[0], labels)(wide[1])
    np.testing.assert_allclose(a, b, rtol=1e-8)


def test_knn_by_brute_force(features):
    (train, test, _), labels = features
    unit = [x[0] / np.linalg.norm(x[0], axis=1, keepdims=True) for x in (train, test)]
    want = np.sort(np.linalg.norm(unit[1][:, None] - unit[0], axis=-1), axis=1)[:, 6]
    np.testing.assert_allclose(hm.fit_feature_score("knn", train[0], labels, neighbours=7)(test[0]), want, rtol=1e-6)


def test_vim_by_its_formula(features):
    (train, test, _), labels = features
    rng = np.random.default_rng(1)
    w, b = rng.normal(size=(5, 12)), rng.normal(size=5)
    origin = -np.linalg.pinv(w) @ b
    rest = np.linalg.svd(train[0] - origin)[2][4:].T  # (12, 8): all but the 4 principal directions
    lost = [np.linalg.norm((x[0] - origin) @ rest, axis=1) for x in (train, test)]
    alpha = (train[0] @ w.T + b).max(1).mean() / lost[0].mean()
    want = alpha * lost[1] - np.log(np.exp(test[0] @ w.T + b).sum(1))
    ours = hm.fit_feature_score("vim", train[0], labels, weight=w, bias=b, dim=4)(test[0])
    np.testing.assert_allclose(ours, want, rtol=1e-3, atol=1e-3)  # the library computes in float32


@pytest.mark.parametrize("name", ["mahalanobis", "knn", "vim"])
def test_an_ensemble_is_the_mean_of_its_members_and_finds_ood(features, name):
    (train, test, outside), labels = features
    rng = np.random.default_rng(1)
    weight, bias = rng.normal(size=(3, 5, 12)), rng.normal(size=(3, 5))
    fitted = hm.fit_feature_score(name, train, labels, weight=weight, bias=bias)
    each = [hm.fit_feature_score(name, train[m], labels, weight=weight[m], bias=bias[m])(test[m]) for m in range(3)]
    np.testing.assert_allclose(fitted(test), np.mean(each, axis=0))
    given = (fitted(test), {"far": fitted(outside)})
    report = hm.evaluate_logits(np.eye(5)[labels], labels, shifts={"far": "far"}, ood_score=name, scores=given)
    assert report.auroc_far == hm.auroc(*given[:1], given[1]["far"]) > 0.8
    assert np.isnan(report.auroc_near)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, y: hm.fit_feature_score("energy", x, y), "needs no fit"),
        (lambda x, y: hm.fit_feature_score("mahalanobis", x, np.where(y == 2, 1, y)), "none of class 2"),
        (lambda x, y: hm.fit_feature_score("mahalanobis", x, y - 1), "-1 at sample 0"),
        (lambda x, y: hm.fit_feature_score("knn", x, y, neighbours=301), "1 to 300"),
        (lambda x, y: hm.fit_feature_score("vim", x, y), "classifier"),
        (lambda x, y: hm.fit_feature_score("vim", x, y, weight=np.ones((5, 9)), bias=np.ones(5)), "does not fit"),
        (lambda x, y: hm.fit_feature_score("vim", x, y, weight=np.ones((5, 12)), bias=np.ones(5), dim=12), "1 to 11"),
        (lambda x, y: hm.fit_feature_score("knn", x * np.nan, y), "nan at member 0, sample 0, feature 0"),
        (lambda x, y: hm.fit_feature_score("knn", x, y)(x[0]), "3 members of width 12"),
        (lambda x, y: hm.ood_score(np.ones((3, 4, 5)), "knn"), "features, not from logits"),
    ],
)
def test_bad_input_is_named(features, call, text):
    (train, *_), labels = features
    with pytest.raises(MetricError, match=text):
        call(train, labels)


def test_unknown_score_is_named_even_without_ood_sets():
    with pytest.raises(UnknownNameError, match="energy"):
        hm.evaluate_logits(np.eye(3), [0, 1, 2], ood_score="enrgy")
