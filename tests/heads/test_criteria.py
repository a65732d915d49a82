"""Criteria against brute force, closed forms and scikit-learn."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from torch import nn

from hydra_core.errors import Cancelled, DataError
from hydra_core.heads.criteria import predicted_vs_measured, probe_auroc, rank_correlation
from hydra_core.heads.leave_one_out import _passes, leave_one_out
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.scores import CRITERIA, HeadScores, score_heads
from hydra_core.metrics.calibration import ece
from hydra_core.models.view import build_view


def test_every_criterion_scores_every_head(case3):
    for name in CRITERIA:
        scores = score_heads(case3.view, case3.val, name, ood=case3.ood)
        assert scores.criterion == name
        assert scores.shape == case3.view.shape
        assert np.isfinite(scores.flat).all()
        assert np.ptp(scores.flat) > 0


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z) / np.exp(z).sum(1, keepdims=True)


def naive_measures(case, mask: HeadMask) -> dict[str, float]:
    p, y = softmax(case.naive(mask, case.val)), case.val.labels
    out = {
        "loo_acc": float((p.argmax(1) == y).mean()),
        "loo_nll": float(-np.log(p[np.arange(len(y)), y]).mean()),
        "loo_ece": ece(p.max(1), p.argmax(1) == y),
    }
    for name, part in case.ood.items():
        q = softmax(case.naive(mask, part))
        target = np.r_[np.zeros(len(p)), np.ones(len(q))]
        out[f"loo_auroc_{name}"] = roc_auc_score(target, 1 - np.r_[p.max(1), q.max(1)])
    return out


def test_leave_one_out_equals_one_hooked_forward_a_head(case3):
    got = leave_one_out(case3.view, case3.val, case3.ood, need="auroc_far")
    full = HeadMask.full(case3.view.shape)
    whole = naive_measures(case3, full)
    for layer in range(3):
        for head in range(4):
            without = naive_measures(case3, full.prune(layer, head))
            for name, value in without.items():
                worse = value - whole[name] if name in ("loo_nll", "loo_ece") else whole[name] - value
                assert got[name].values[layer][head] == pytest.approx(worse, abs=2e-5), (name, layer, head)


def test_five_criteria_cost_one_pass(case3, monkeypatch):
    from hydra_core.fusion.evaluator import MaskEvaluator

    _passes.clear()
    calls = []
    many = MaskEvaluator.many
    monkeypatch.setattr(
        MaskEvaluator, "many", lambda self, masks, **k: calls.append(len(masks)) or many(self, masks, **k)
    )
    for name in ("loo_acc", "loo_nll", "loo_ece", "loo_auroc_near", "loo_auroc_far"):
        score_heads(case3.view, case3.val, name, ood=case3.ood)
    assert sum(calls) == 1 + 12
    score_heads(case3.view, case3.val.take(np.arange(20)), "loo_acc", ood=case3.ood)
    assert sum(calls) == 2 * (1 + 12)  # other samples, another pass


def test_magnitude_is_the_norm_of_the_columns(case3):
    scores = score_heads(case3.view, case3.val, "magnitude")
    weight = case3.view.module.blocks[1].attn.proj.weight
    assert scores.values[1][2] == pytest.approx(float(weight[:, 12:18].norm()))
    assert scores.samples == 0


def test_random_follows_the_seed(case3):
    a, b, c = (score_heads(case3.view, case3.val, "random", seed=s) for s in (3, 3, 4))
    assert a == b
    assert a != c


def test_even_attention_has_entropy_log_t_and_the_mean_distance(case3):
    import copy

    module = copy.deepcopy(case3.view.module)
    for block in module.blocks:  # q = 0: every token looks at all alike
        nn.init.zeros_(block.attn.qkv.weight[:24].data)
        block.attn.qkv.weight.data[:24] = 0
        block.attn.qkv.bias.data[:24] = 0
    view = build_view("even", module, class_names=tuple("abcde"), input_size=(1, 28, 28), prepare=case3.view.prepare)
    entropy = score_heads(view, case3.val, "attention_entropy")
    np.testing.assert_allclose(entropy.flat, np.log(17))  # 4 x 4 patches and the class token
    rows, columns = np.divmod(np.arange(16), 4)
    far = np.hypot(rows[:, None] - rows, columns[:, None] - columns)
    distance = score_heads(view, case3.val, "attention_distance")
    np.testing.assert_allclose(distance.flat, far.mean())


def test_probe_tells_apart_what_a_line_can_and_no_more():
    rng = np.random.default_rng(0)
    a, b = (torch.as_tensor(rng.normal(size=(300, 4))) for _ in range(2))
    assert abs(probe_auroc(a, b) - 0.5) < 0.1
    assert probe_auroc(a, b + 10) == 1.0
    shift = torch.tensor([1.0, 0, 0, 0])  # AUROC of two unit normals one apart: Phi(1 / sqrt 2) = 0.760
    assert probe_auroc(a, b + shift) == pytest.approx(0.760, abs=0.04)


def test_rank_correlation_is_spearmans(case3):
    scores = [score_heads(case3.view, case3.val, name) for name in ("taylor", "magnitude", "random", "random")]
    table = rank_correlation(scores)
    assert list(table) == ["taylor", "magnitude", "random", "random (2)"]
    assert table.loc["taylor", "magnitude"] == pytest.approx(spearmanr(scores[0].flat, scores[1].flat).statistic)
    assert table.loc["random", "random (2)"] == pytest.approx(1)
    gaps = HeadScores("gaps", ((np.nan,) * 4, *scores[0].values[1:]))
    assert rank_correlation([gaps, scores[1]]).iloc[0, 1] == pytest.approx(
        spearmanr(scores[0].flat[4:], scores[1].flat[4:]).statistic
    )


def test_taylor_predicts_small_removals(case3):
    import copy

    table = predicted_vs_measured(case3.view, case3.val)
    assert table["measured"].to_numpy() == pytest.approx(score_heads(case3.view, case3.val, "loo_nll").flat, abs=1e-12)
    module = copy.deepcopy(case3.view.module)
    for block in module.blocks:  # heads that add little: first order is all there is
        block.attn.proj.weight.data *= 1e-3
    small = predicted_vs_measured(replace(case3.view, module=module, _local=threading.local()), case3.val)
    np.testing.assert_allclose(small["predicted"], small["measured"], atol=3e-6)
    assert np.corrcoef(small["predicted"], small["measured"])[0, 1] > 0.99


def test_refusals(case3):
    view, val, ood = case3.view, case3.val, case3.ood
    with pytest.raises(DataError, match="needs out-of-distribution"):
        score_heads(view, val, "separability")
    with pytest.raises(DataError, match=r"needs a near OOD set.*Got far \(far\)"):
        score_heads(view, val, "loo_auroc_near", ood={"far": ood["far"]})
    with pytest.raises(DataError, match=r"near is too small.*Got 3"):
        score_heads(view, val, "separability", ood={"near": ood["near"].take([0, 1, 2])})
    cancel = threading.Event()
    cancel.set()
    for name in ("attention_entropy", "separability", "taylor"):
        with pytest.raises(Cancelled):
            score_heads(view, val, name, ood=ood, cancel=cancel)
