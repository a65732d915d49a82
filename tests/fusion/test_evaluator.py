"""The evaluator's own promises: memory, restarts, duplicates, cancel."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import torch

from hydra_core.errors import BudgetError, Cancelled, DataError
from hydra_core.fusion.evaluator import MIB, MaskEvaluator
from hydra_core.heads.mask import HeadMask
from hydra_core.models.view import build_view
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
    blocks = [slot.block for slot in view.stages().slots]
    ran: list[tuple[int, str]] = []
    handles = [
        part.register_forward_hook(lambda m, a, o, at=(b, name): ran.append(at))
        for b, block in enumerate(blocks)
        for name, part in (("attention", block.attn.qkv), ("rest", block.norm2))
    ]
    try:
        got = evaluator.logits(full.prune(2, 1))
        assert set(ran) == {(2, "rest")}  # the last block's heads were there already
        ran.clear()
        evaluator.logits(full.prune(1, 1))
        assert {at for at in ran if at[0] < 2} == {(1, "rest")}
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


@pytest.mark.parametrize("masks", [1, 2])
def test_one_mask_or_two_report_progress_and_can_be_cancelled_too(masks):
    view, x = variant("plain")
    evaluator = MaskEvaluator(view, x, chunk=1)
    seen: list[float] = []
    evaluator.many(single_removals(view.shape)[:masks], progress=lambda share, text: seen.append(share))
    assert seen == pytest.approx([(i + 1) / (4 * masks) for i in range(4 * masks)])
    cancel = threading.Event()

    def stop_early(share, text):
        cancel.set()

    with pytest.raises(Cancelled):
        evaluator.logits(HeadMask.full(view.shape).prune(0, 3), progress=stop_early, cancel=cancel)


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


def test_a_linear_that_is_more_than_its_weights_is_left_to_the_module():
    class Shifted(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    view, x = variant("plain")
    module = copy.deepcopy(view.module)
    layer = module.blocks[1].attn.proj
    other = Shifted(layer.in_features, layer.out_features, dtype=layer.weight.dtype)
    other.load_state_dict(layer.state_dict())
    module.blocks[1].attn.proj = other
    changed = build_view("shifted", module, class_names=tuple("abcde"), input_size=(1, 16, 16))
    evaluator = MaskEvaluator(changed, x)
    mask = HeadMask.full(view.shape).prune(0, 1)
    np.testing.assert_allclose(evaluator.logits(mask), changed(x, mask), atol=1e-6)
    assert evaluator._shortcuts().plain == [True, False, True]
