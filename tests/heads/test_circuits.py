"""The circuit search against a hand-written one with hooks and scikit-learn, and what it refuses."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from hydra_core.data.sets import DataBundle
from hydra_core.errors import Cancelled, DataError, MaskError, MetricError, UnknownNameError
from hydra_core.heads.circuits import OBJECTIVES, find_circuit
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.overlap import low_overlap_scores
from hydra_core.heads.validation import Validation
from tests.heads.conftest import Case, images


def naive_s(case: Case, mask: HeadMask, objective: str) -> float:
    logits = case.naive(mask, case.val).astype(np.float64)
    acc = float((logits.argmax(1) == case.val.labels).mean())
    doubt = lambda z: 1 - (np.exp(z) / np.exp(z).sum(1, keepdims=True)).max(1)  # noqa: E731
    inside = doubt(logits)
    areas = []
    for part in case.ood.values():
        outside = doubt(case.naive(mask, part))
        areas.append(roc_auc_score(np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside]))
    avg = (acc + float(np.mean(areas))) / 2
    top, right = 1 - inside, logits.argmax(1) == case.val.labels
    bins = np.ceil(top * 15).astype(int)  # 15 bins of equal width, closed on the right
    ece = sum(abs(right[bins == b].sum() - top[bins == b].sum()) for b in np.unique(bins)) / len(top)
    return {"acc": acc, "auroc": float(np.mean(areas)), "avg": avg, "avg_ece": avg - ece}[objective]


def naive_search(case: Case, keep: int, objective: str, conditioning: str, layers: range):
    current = mask = HeadMask.full(case.view.shape)
    scores = {}
    for layer in layers:
        base = naive_s(case, current, objective)
        row = [base - naive_s(case, current.prune(layer, h), objective) for h in range(case.view.shape[layer])]
        kept = sorted(range(len(row)), key=lambda h: (-round(row[h], 9), h))[:keep]
        scores |= {(layer, h): s for h, s in enumerate(row)}
        mask = mask.with_layer(layer, [h in kept for h in range(len(row))])
        stays = [(h in kept) == (conditioning == "greedy_prune") for h in range(len(row))]
        current = current.with_layer(layer, stays)
    return mask, scores


@pytest.mark.parametrize("conditioning", ["greedy_prune", "headmap"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_search_equals_the_hand_written_one(case3, objective, conditioning):
    got = find_circuit(case3.view, case3.val, case3.ood, 2, objective, conditioning)
    mask, scores = naive_search(case3, 2, objective, conditioning, range(3))
    assert got.mask == mask
    for step in got.path:
        assert step.score == pytest.approx(scores[step.layer, step.head], abs=1e-7)
        assert step.kept == mask[step.layer, step.head]
    assert got.value == pytest.approx(naive_s(case3, mask, objective), abs=1e-7)
    assert got.full == pytest.approx(naive_s(case3, HeadMask.full(case3.view.shape), objective), abs=1e-7)
    assert len(got.frame()) == 12
    assert max(abs(s.score) for s in got.path) > 0  # the masks bite


def test_late_layers_only_and_one_keep_a_layer(case3):
    got = find_circuit(case3.view, case3.val, case3.ood, [4, 1, 3], "avg", layers=[1, 2])
    assert got.mask.counts == (4, 1, 3)
    assert np.isnan(got.scores.matrix[0]).all()
    assert not np.isnan(got.scores.matrix[1]).any()
    assert naive_search(case3, 1, "avg", "greedy_prune", range(1, 2))[0].rows[1] == got.mask.rows[1]


def test_scores_and_ties_give_the_mask_again(case3):
    got = find_circuit(case3.view, case3.val, None, 2, "acc")  # accuracy of 40 samples ties often
    assert HeadMask.top(got.scores, 2) == got.mask


def test_bootstrap_is_a_resample_by_seed(case3):
    first, again, other = (
        find_circuit(case3.view, case3.val, case3.ood, 2, bootstrap=True, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.scores != other.scores
    rng = np.random.default_rng(1)
    ids = np.sort(rng.integers(0, 40, 40))
    logits = case3.naive(HeadMask.full(case3.view.shape), case3.val)
    accuracy = find_circuit(case3.view, case3.val, case3.ood, 2, "acc", bootstrap=True, seed=1).full
    assert accuracy == pytest.approx((logits.argmax(1) == case3.val.labels)[ids].mean())


def test_shared_validation_changes_nothing_and_runs_less(case3, monkeypatch):
    shared = Validation(case3.view, case3.val, case3.ood)
    alone = [find_circuit(case3.view, case3.val, case3.ood, 2, o) for o in OBJECTIVES]
    asked = []
    many = shared.evaluator.many
    monkeypatch.setattr(shared.evaluator, "many", lambda masks, **k: asked.extend(masks) or many(masks, **k))
    together = [find_circuit(case3.view, case3.val, case3.ood, 2, o, validation=shared) for o in OBJECTIVES]
    for a, b in zip(alone, together, strict=True):
        assert a.mask == b.mask
        np.testing.assert_allclose(a.scores.flat, b.scores.flat, atol=1e-12)
    assert len(asked) == len(set(asked))  # no mask is run twice


def test_overlap_weight_keeps_other_heads(case3):
    first = find_circuit(case3.view, case3.val, case3.ood, 2)
    second = find_circuit(case3.view, case3.val, case3.ood, 2, earlier=[first.mask], overlap_weight=1.5)
    assert not any(first.mask[l, h] and second.mask[l, h] for l in range(3) for h in range(4))
    scores = np.array([0.1, 0.9, 0.5])
    assert np.argsort(-low_overlap_scores(scores, [], 0.5)).tolist() == [1, 2, 0]
    with pytest.raises(MaskError, match="-1"):
        low_overlap_scores(scores, [], -1)


def test_refusals_name_the_value(case3):
    view, val, ood = case3.view, case3.val, case3.ood
    with pytest.raises(MaskError, match=r"cannot keep 5 heads.*0 to 4"):
        find_circuit(view, val, ood, 5)
    with pytest.raises(MaskError, match=r"no such layer.*Got 7"):
        find_circuit(view, val, ood, 2, layers=[7])
    with pytest.raises(UnknownNameError, match="Did you mean auroc"):
        find_circuit(view, val, ood, 2, "aurok")
    with pytest.raises(UnknownNameError, match="conditioning"):
        find_circuit(view, val, ood, 2, "acc", "other")
    for missing in (None, {}):
        with pytest.raises(DataError, match="out-of-distribution"):
            find_circuit(view, val, missing, 2, "auroc")
    with pytest.raises(DataError, match="OOD set near is empty"):
        find_circuit(view, val, {"near": ood["near"].take([])}, 2)
    with pytest.raises(DataError, match=r"one class only.*Got c"):
        find_circuit(view, replace(val, labels=np.full(40, 2)), ood, 2)
    with pytest.raises(DataError, match=r"1 classes have no sample.*Got d"):
        find_circuit(view, val.take(np.flatnonzero(val.labels != 3)), ood, 2)
    with pytest.raises(DataError, match="no labels"):
        find_circuit(view, replace(val, labels=None), ood, 2)


def test_samples_of_a_known_test_set_are_refused(case3):
    clean = images("test", 10, 5, 1.0, labels=True)
    bundle = DataBundle("b", val=case3.val, test=clean, ood_test={"late": images("late", 5, 6, 1.0)})
    find_circuit(case3.view, case3.val, case3.ood, 2, bundle=bundle)
    with pytest.raises(DataError, match="10 validation samples of test stand in the test set test"):
        find_circuit(case3.view, clean, case3.ood, 2, bundle=bundle)
    with pytest.raises(DataError, match="test set late"):
        find_circuit(case3.view, case3.val, {"x": bundle.ood_test["late"]}, 2, bundle=bundle)


def test_logits_that_are_not_finite_are_named(case3):
    broken = replace(case3.view, prepare=lambda s: case3.view.prepare(s) * float("nan"))
    with pytest.raises(MetricError, match="nan"):
        find_circuit(broken, case3.val, case3.ood, 2)


def test_progress_ends_at_one_and_cancel_stops(case3):
    seen = []
    find_circuit(case3.view, case3.val, case3.ood, 2, progress=lambda share, text: seen.append(share))
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        find_circuit(case3.view, case3.val, case3.ood, 2, cancel=cancel)
