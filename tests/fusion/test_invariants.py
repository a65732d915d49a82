"""method.md section 9, in float64, on every structural variant."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from hydra_core.errors import MaskError
from hydra_core.fusion import ensemble
from hydra_core.fusion.ensemble import FusionOptions, fuse, load_hydra
from hydra_core.fusion.evaluator import MaskEvaluator
from hydra_core.fusion.grouped import GroupedLinear
from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.models.view import ModelView
from tests.fusion.conftest import VARIANTS, variant

TIGHT = {"atol": 1e-11, "rtol": 1e-10}


def masks_of(view: ModelView) -> list[HeadMask]:
    """Unequal counts, a layer without heads, and members that agree in the first layer."""
    a = HeadMask.random(view.shape, 3, seed=1)
    b = HeadMask.random(view.shape, 2, seed=2).with_layer(0, a.rows[0])
    return [a, b, b.with_layer(len(view.shape) - 1, False)]


@pytest.fixture(params=VARIANTS)
def case(request: pytest.FixtureRequest) -> tuple[ModelView, torch.Tensor]:
    return variant(request.param)


def test_all_heads_kept_is_the_native_model(case):
    view, x = case
    with torch.inference_mode():
        native = view.module(x)
    assert torch.equal(view(x), native)
    assert torch.equal(view(x, HeadMask.full(view.shape)), native)
    torch.testing.assert_close(prune_model(view, HeadMask.full(view.shape))(x), native, **TIGHT)


def test_masks_equal_slices(case):
    view, x = case
    for mask in masks_of(view):
        torch.testing.assert_close(prune_model(view, mask, gate=True)(x), view(x, mask), **TIGHT)


def test_any_removed_head_changes_the_logits(case):
    view, x = case
    full = HeadMask.full(view.shape)
    native = view(x)
    for layer, heads in enumerate(view.shape):
        for head in range(heads):
            assert (view(x, full.prune(layer, head)) - native).abs().max() > 1e-6, (layer, head)


@pytest.mark.parametrize("share_trunk", [True, False])
def test_fused_members_equal_pruned_members(case, share_trunk):
    view, x = case
    masks = masks_of(view)
    hydra = fuse(view, masks, options=FusionOptions(share_trunk=share_trunk))
    want = torch.stack([prune_model(view, mask, gate=True)(x) for mask in masks])
    torch.testing.assert_close(hydra(x), want, **TIGHT)
    torch.testing.assert_close(hydra.predict_proba(x), want.softmax(-1).mean(0), **TIGHT)


def test_a_batch_in_pieces_gives_the_same_logits(monkeypatch):
    view, x = variant("plain")
    hydra = fuse(view, masks_of(view))
    whole = hydra(x)
    sizes = []
    hydra.net.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    monkeypatch.setattr(ensemble, "CPU_ACTIVATION", 2 * hydra._widest)
    torch.testing.assert_close(hydra(torch.cat([x, x[:1]])), torch.cat([whole, whole[:, :1]], 1), **TIGHT)
    assert sizes == [2, 2, 1]
    monkeypatch.setattr(ensemble, "CPU_ACTIVATION", 1)  # less than one sample needs: one at a time
    torch.testing.assert_close(hydra(x), whole, **TIGHT)
    assert hydra(x[:0]).shape == (3, 0, 5)


def test_grouped_products_are_the_same_with_and_without_gradients():
    linears = [torch.nn.Linear(6, 4, bias=bias).double() for bias in (True, False, True)]
    for own in (linears, linears[1:2] * 2):
        grouped, x = GroupedLinear(own), torch.randn(3 * len(own), 5, 6, dtype=torch.float64)
        expected = torch.cat([linear(part) for linear, part in zip(own, x.chunk(len(own)), strict=True)])
        torch.testing.assert_close(grouped(x), expected, **TIGHT)
        with torch.inference_mode():
            torch.testing.assert_close(grouped(x), expected.detach().clone(), **TIGHT)


def test_equal_members_are_one_member(case):
    view, x = case
    mask = masks_of(view)[1]
    hydra = fuse(view, [mask] * 3)
    logits = hydra(x)
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0], logits[2])
    torch.testing.assert_close(logits[0], view(x, mask), **TIGHT)
    assert hydra.groups == (1,) * len(view.blocks)


def test_one_member(case):
    view, x = case
    mask = masks_of(view)[0]
    torch.testing.assert_close(fuse(view, [mask])(x)[0], view(x, mask), **TIGHT)


def test_saved_ensembles_come_back(case, tmp_path):
    view, x = case
    hydra = fuse(view, Plan(tuple(masks_of(view))))
    back = load_hydra(hydra.save(tmp_path / "hydra.safetensors"), view)
    assert torch.equal(back(x), hydra(x))
    assert back.plan == hydra.plan


def test_the_tree_equals_one_forward_a_mask(case):
    view, x = case
    full = HeadMask.full(view.shape)
    masks = [full, *masks_of(view), *(full.prune(l, h) for l, n in enumerate(view.shape) for h in range(n))]
    evaluator = MaskEvaluator(view, x, chunk=3)
    want = torch.stack([view(x, mask) for mask in masks]).numpy()
    np.testing.assert_allclose(evaluator.many(masks), want, atol=1e-5, rtol=1e-4)
    for mask, logits in zip(masks[:6], want, strict=False):
        np.testing.assert_allclose(evaluator.logits(mask), logits, atol=1e-5, rtol=1e-4)


def test_nothing_is_left_on_a_shared_model(case):
    view, x = case
    before = view.module(x)
    names = [(n, type(m)) for n, m in view.module.named_modules()]
    fuse(view, masks_of(view))(x)
    MaskEvaluator(view, x).many(masks_of(view))
    assert torch.equal(view.module(x), before)
    assert [(n, type(m)) for n, m in view.module.named_modules()] == names
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in view.module.modules())


def test_two_threads_with_two_masks_give_the_serial_results():
    view, x = variant("plain")
    masks = masks_of(view)[:2]
    want = [view(x, mask) for mask in masks]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(30):
            if not torch.equal(view(x, masks[i]), want[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_mask_of_another_shape_is_refused():
    view, x = variant("plain")
    with pytest.raises(MaskError, match=r"Expected 3x4.*Got 2x4"):
        view(x, HeadMask.full((4, 4)))
    with pytest.raises(MaskError, match="Expected 3x4"):
        fuse(view, [HeadMask.full((4, 4))])


def test_averaged_norms_are_an_option_for_fine_tuned_members():
    view, x = variant("plain")
    masks = masks_of(view)[:2]
    members = [prune_model(view, mask, own=True) for mask in masks]
    torch.manual_seed(0)
    with torch.no_grad():
        for member in members:
            for name, parameter in member.named_parameters():
                if name.startswith("blocks"):
                    parameter += 0.05 * torch.randn_like(parameter)
    exact = fuse(view, masks, members=members, options=FusionOptions(merge_mlp=False))
    want = torch.stack([member(x) for member in members])
    torch.testing.assert_close(exact(x), want, **TIGHT)
    merged = fuse(view, masks, members=members, options=FusionOptions(norms="average"))
    assert (merged(x) - want).abs().max() > 1e-4  # merging tuned MLPs and norms is an approximation
