"""Generators against the definitions they state; diversity against loops over pairs."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from hydra_core.errors import DataError, MaskError, UnknownNameError
from hydra_core.heads.circuits import find_circuit
from hydra_core.heads.generators import GENERATORS, make_members
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.scores import gate_gradients, score_heads
from hydra_core.methods.diversity import diversity_report


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_each_generator_prunes_the_asked_layers_only_and_repeats(case3, name):
    make = lambda: make_members(case3.view, case3.val, name, ood=case3.ood, keep=2, layers=[1, 2], seed=3)  # noqa: E731
    plan = make()
    assert plan == make()
    assert len(plan) == len(set(plan.names)) == 3
    assert plan.shared_layers >= 1  # the trunk before the pruned layers
    assert plan[0].counts == (4, 2, 2)
    want = [(2, 2), (3, 3), (1, 1)] if name == "taylor_ratio" else [(2, 2)] * 3
    assert [mask.counts[1:] for mask in plan] == want


def test_taylor_members_are_taylor_on_their_subsets(case3):
    plan = make_members(case3.view, case3.val, "taylor", keep=1, share=0.25, seed=5)
    table = np.abs(gate_gradients(case3.view, case3.val))
    for m, mask in enumerate(plan):
        part = case3.val.sample(10, 5 + m)
        assert mask == HeadMask.top(score_heads(case3.view, part, "taylor"), 1)
        index = [case3.val.ids.index(name) for name in part.ids]
        np.testing.assert_allclose(score_heads(case3.view, part).flat, table[index].mean(0), rtol=1e-9)


def test_circ_members_are_circuits_by_objective_then_by_resample(case3):
    plan = make_members(case3.view, case3.val, "circ", ood=case3.ood, keep=2, members=4, layers=[2])
    for m, objective in enumerate(("avg", "acc", "auroc", "avg")):
        options = {"bootstrap": m == 3, "seed": m, "layers": [2]}
        assert plan[m] == find_circuit(case3.view, case3.val, case3.ood, 2, objective, **options).mask
    assert plan.names == ("Circ avg", "Circ acc", "Circ auroc", "Circ avg 3")
    drawn = make_members(case3.view, case3.val, "circ", ood=case3.ood, keep=2, members=2, by="bootstrap", layers=[2])
    assert drawn[1] == find_circuit(case3.view, case3.val, case3.ood, 2, bootstrap=True, seed=1, layers=[2]).mask


@pytest.mark.parametrize("name", ["taylor", "random", "circ"])
def test_low_overlap_leaves_no_head_to_two_members_while_others_are_free(case3, name):
    options = {"ood": case3.ood, "keep": 2, "members": 2, "layers": [1, 2], "overlap_weight": 1.5}
    plan = make_members(case3.view, case3.val, name, **options)
    report = diversity_report(case3.view, plan, case3.val)
    assert report.pruned_overlap.mean == 0
    assert report.overlap.mean == pytest.approx(4 / 12)  # the trunk's four heads of twelve kept by either


def test_diversity_equals_loops_over_pairs_and_fusion_changes_nothing(case3):
    plan = make_members(case3.view, case3.val, "random", keep=2, members=3, layers=[1, 2])
    report = diversity_report(case3.view, plan, case3.val)
    z = np.stack([case3.naive(mask, case3.val) for mask in plan])
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    differ = np.mean([(p[a].argmax(1) != p[b].argmax(1)).mean() for a, b in pairs])
    kl = np.mean([(p[a] * np.log(p[a] / p[b])).sum(1).mean() for a, b in pairs])
    entropy = lambda q: -(q * np.log(q)).sum(-1)  # noqa: E731
    information = (entropy(p.mean(0)) - entropy(p).mean(0)).mean()
    want = {"disagreement": differ, "mutual_information": information, "pairwise_kl": kl}
    for figures in (report.before, report.after):
        assert figures == pytest.approx(want, rel=1e-4)
    assert differ > 0
    assert report.gap < 1e-5
    assert report.frame().loc["after fusion", "overlap"] == report.overlap.mean


def test_fine_tuned_members_are_told_from_their_fusion(case3):
    from hydra_core.fusion.surgery import prune_model

    plan = make_members(case3.view, case3.val, "random", keep=2, members=2, layers=[2])
    members = [copy.deepcopy(prune_model(case3.view, mask, gate=True)) for mask in plan]  # own tensors
    members[0].blocks[2].mlp.fc2.weight.data *= 2  # merged MLPs average: no longer exact
    report = diversity_report(case3.view, plan, case3.val, members=members)
    assert report.gap > 1e-3
    assert report.before != report.after


def test_refusals_come_before_any_work(case3):
    view, val = case3.view, case3.val
    with pytest.raises(UnknownNameError, match="Did you mean taylor"):
        make_members(view, val, "tailor", keep=2)
    with pytest.raises(MaskError, match="cannot keep 9 heads"):
        make_members(view, val, "taylor", keep=9)
    with pytest.raises(MaskError, match=r"at least one member.*Got 0"):
        make_members(view, val, "random", keep=2, members=0)
    with pytest.raises(MaskError, match="would keep no head"):
        make_members(view, val, "taylor_ratio", keep=1)
    with pytest.raises(DataError, match=r"share.*Got 1\.5"):
        make_members(view, val, "taylor", keep=2, share=1.5)
    with pytest.raises(DataError, match="needs out-of-distribution"):
        make_members(view, val, "circ", keep=2)
    with pytest.raises(UnknownNameError, match="bootstrap"):
        make_members(view, val, "circ", ood=case3.ood, keep=2, by="seed")
    with pytest.raises(DataError, match="val is empty"):
        diversity_report(view, [HeadMask.full(view.shape)], val.take([]))
