"""The evaluator's own promises: memory, restarts, duplicates, cancel."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from hydra_core.errors import BudgetError, Cancelled, DataError
from hydra_core.fusion.evaluator import MIB, MaskEvaluator
from hydra_core.heads.mask import HeadMask
from tests.fusion.conftest import variant


def single_removals(shape):
    full = HeadMask.full(shape)
    return [full.prune(l, h) for l, n in enumerate(shape) for h in range(n)]


@pytest.mark.parametrize("count", [3, 12, 80])
def test_streams_stay_under_the_budget_whatever_the_number_of_masks(count):
    view, x = variant("plain")
    x = x.repeat(16, 1, 1, 1)
    evaluator = MaskEvaluator(view, x, budget_mb=0.5)
    evaluator.many([HeadMask.random(view.shape, 2, seed=s) for s in range(count)])
    assert 0 < evaluator.peak <= 0.5 * MIB
    assert sum(spine.used for spine in evaluator._spines.values()) <= 0.5 * MIB


def test_a_toggle_in_a_late_layer_runs_only_from_there():
    view, x = variant("plain")
    evaluator = MaskEvaluator(view, x)
    full = HeadMask.full(view.shape)
    evaluator.logits(full)
    ran: list[int] = []
    stages = view.stages()
    handles = [
        slot.block.register_forward_hook(lambda m, a, o, b=b: ran.append(b)) for b, slot in enumerate(stages.slots)
    ]
    try:
        got = evaluator.logits(full.prune(2, 1))
        assert set(ran) <= {2}
        ran.clear()
        evaluator.logits(full.prune(1, 1))
        assert 0 not in ran
        assert 1 in ran
    finally:
        for handle in handles:
            handle.remove()
    np.testing.assert_allclose(got, view(x, full.prune(2, 1)), atol=1e-5)


def test_duplicates_come_back_in_their_places():
    view, x = variant("plain")
    a, b, *_ = single_removals(view.shape)
    got = MaskEvaluator(view, x).many([a, b, a, a])
    assert np.array_equal(got[0], got[2])
    assert np.array_equal(got[0], got[3])
    assert not np.allclose(got[0], got[1])


def test_cancel_and_progress():
    view, x = variant("plain")
    evaluator = MaskEvaluator(view, x)
    seen: list[float] = []
    evaluator.many(single_removals(view.shape), progress=lambda share, text: seen.append(share))
    assert seen == sorted(seen)
    assert seen[-1] == 1
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        evaluator.many(single_removals(view.shape), cancel=cancel)


def test_bad_input_is_named():
    view, x = variant("plain")
    with pytest.raises(DataError, match="no samples"):
        MaskEvaluator(view, x[:0])
    with pytest.raises(BudgetError, match="does not fit"):
        MaskEvaluator(view, x, budget_mb=0.001)


def test_any_batch_gives_the_same_logits():
    view, x = variant("no class token")
    masks = single_removals(view.shape)
    np.testing.assert_allclose(
        MaskEvaluator(view, x, chunk=1).many(masks), MaskEvaluator(view, x, chunk=4).many(masks), atol=1e-6
    )


def test_the_last_block_is_cut_to_the_token_that_is_read():
    view, x = variant("plain")
    evaluator = MaskEvaluator(view, x)
    with torch.inference_mode():
        assert evaluator._shortcuts().last is not None
    view, x = variant("no class token")
    evaluator = MaskEvaluator(view, x)
    with torch.inference_mode():
        assert evaluator._shortcuts().last is None
