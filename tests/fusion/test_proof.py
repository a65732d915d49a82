"""The proof measures what it says, and a wrong network does not pass it."""

from __future__ import annotations

import threading

import pytest
import torch

from hydra_core.errors import Cancelled, DataError
from hydra_core.fusion import proof
from hydra_core.fusion.proof import prove
from hydra_core.heads.mask import HeadMask, Plan
from tests.fusion.conftest import variant


def plan_of(view):
    full = HeadMask.full(view.shape)
    return Plan((full.prune(0, 1), full, full.with_layer(1, False)))


@pytest.mark.parametrize("name", ["plain", "gated", "no class token"])
def test_equalities_hold_and_masks_bite(name):
    view, x = variant(name)
    found = prove(view, plan_of(view), x)
    assert found.holds
    assert (found.samples, found.pruned) == (4, (True, False, True))
    assert found.native == 0
    assert found.bites[0] == pytest.approx(float((view(x, plan_of(view)[0]) - view(x)).abs().max()), abs=1e-12)
    assert found.bites[1] == 0
    assert max(found.slices, found.fused) < 1e-11


def test_the_shared_model_stays_in_its_own_precision():
    view, x = variant("plain")
    single = proof.in_float64(view)
    assert single.module is not view.module
    assert prove(view, plan_of(view), x.float()).holds  # inputs are raised to float64
    assert view.dtype == torch.float64


def test_a_cut_that_takes_the_wrong_head_does_not_pass(monkeypatch):
    view, x = variant("plain")
    right = proof.prune_model
    monkeypatch.setattr(proof, "prune_model", lambda v, mask, **o: right(v, mask.restore(0, 1).prune(0, 2), **o))
    found = prove(view, Plan((HeadMask.full(view.shape).prune(0, 1),)), x)
    assert found.slices > 1e-3
    assert not found.holds


def test_a_mask_that_changes_nothing_does_not_pass(monkeypatch):
    view, x = variant("plain")
    plan = Plan((HeadMask.full(view.shape).prune(0, 1),))
    monkeypatch.setattr(type(view), "__call__", lambda self, x, mask=None: self.module(x))
    assert not prove(view, plan, x).holds


def test_bad_input_and_cancel():
    view, x = variant("plain")
    with pytest.raises(DataError, match="samples"):
        prove(view, plan_of(view), x[:0])
    stop = threading.Event()
    with pytest.raises(Cancelled):
        prove(view, plan_of(view), x, progress=lambda share, text: stop.set(), cancel=stop)
