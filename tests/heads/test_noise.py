"""Proposition 1 on float64 models: derivatives against weights really moved, against autograd, and in closed form."""

import copy
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.nn import functional as F

from hydra_core.errors import Cancelled, DataError, MaskError
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.noise import Estimate, Side, compare_sides, derivatives, measure_side, pruning_path
from hydra_core.models.view import build_view
from tests.heads.conftest import make_case, prepare

MASKS = [
    HeadMask.full((4, 4, 4)).prune(0, 1).prune(2, 3),
    HeadMask.full((4, 4, 4)).prune(1, 0),
    HeadMask.full((4, 4, 4)).with_layer(2, False),
]


def moved(view, mask, t):
    """A copy of the native module at theta + t delta: the pruned heads' columns of W_O times 1 - t."""
    module = copy.deepcopy(view.module)
    for layer, row in zip(view.layers, mask.rows, strict=True):
        gate = torch.tensor([1.0 if kept else 1.0 - t for kept in row], dtype=torch.float64)
        module.get_submodule(layer.proj).weight.mul_(gate.repeat_interleave(layer.head_dim))
    return module


def losses(module, samples):
    """Cross-entropy a sample by the native model, (N,)."""
    with torch.no_grad():
        logits = module(prepare(samples))
    return F.cross_entropy(logits, torch.as_tensor(samples.labels), reduction="none").numpy()


@pytest.mark.parametrize("k", range(3))
def test_the_derivatives_are_those_of_the_native_model_with_its_weights_moved(k):
    case, step = make_case(), 1e-4
    slopes, curves = derivatives(case.view, case.val, MASKS, chunk=16)
    down, here, up = (losses(moved(case.view, MASKS[k], t), case.val) for t in (-step, 0.0, step))
    assert slopes.shape == (3, 40)
    np.testing.assert_allclose(slopes[k], (up - down) / (2 * step), atol=1e-6)
    np.testing.assert_allclose(curves[k], (up - 2 * here + down) / step**2, atol=1e-4)
    assert np.abs(curves[k]).max() > 0.01  # not two zeros


def test_the_terms_are_the_inner_products_with_gradient_and_hessian_of_the_weights():
    case, mask = make_case(), MASKS[0]
    module = copy.deepcopy(case.view.module)
    weights = [module.get_submodule(layer.proj).weight.requires_grad_(True) for layer in case.view.layers]
    delta = [
        -w.detach() * torch.tensor([not kept for kept in row]).repeat_interleave(layer.head_dim)
        for w, row, layer in zip(weights, mask.rows, case.view.layers, strict=True)
    ]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = F.cross_entropy(module(prepare(case.val)), torch.as_tensor(case.val.labels))
        gradient = torch.autograd.grad(loss, weights, create_graph=True)
        slope = sum((g * d).sum() for g, d in zip(gradient, delta, strict=True))
        bends = torch.autograd.grad(slope, weights)
    curve = sum((b * d).sum() for b, d in zip(bends, delta, strict=True))
    slopes, curves = derivatives(case.view, case.val, [mask])
    assert slopes.mean() == pytest.approx(slope.item(), rel=1e-9)
    assert curves.mean() == pytest.approx(curve.item(), rel=1e-9)


def test_in_closed_form_where_logits_are_linear_in_the_heads():
    """One block, no norms, no MLP: z(t) = z + t dz, so the slope is (p - y) . dz and the curve the variance of dz."""
    torch.manual_seed(3)
    module = VisionTransformer(
        img_size=28, patch_size=7, in_chans=1, embed_dim=24, depth=1, num_heads=4, num_classes=5, norm_layer=nn.Identity
    ).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2)
    nn.init.zeros_(module.blocks[0].mlp.fc2.weight)
    nn.init.zeros_(module.blocks[0].mlp.fc2.bias)
    view = build_view("linear", module, class_names=tuple("abcde"), input_size=(1, 28, 28), prepare=prepare)
    samples, mask = make_case().val, HeadMask.of([[1, 0, 1, 0]])
    x, y = prepare(samples), samples.labels
    z, gone = view(x).numpy(), view(x, mask).numpy()
    p, dz = torch.softmax(torch.from_numpy(z), -1).numpy(), gone - z
    truth = np.eye(5)[y]
    slopes, curves = derivatives(view, samples, [mask])
    np.testing.assert_allclose(slopes[0], ((p - truth) * dz).sum(1), atol=1e-10)
    np.testing.assert_allclose(curves[0], (p * dz**2).sum(1) - ((p * dz).sum(1)) ** 2, atol=1e-10)


def test_losses_are_those_of_the_masked_native_model():
    case = make_case()
    side = measure_side(case.view, case.val, MASKS)
    y = torch.as_tensor(case.val.labels)
    for row, mask in zip(side.losses, [HeadMask.full((4, 4, 4)), *MASKS], strict=True):
        want = F.cross_entropy(torch.from_numpy(case.naive(mask, case.val)), y, reduction="none").numpy()
        np.testing.assert_allclose(row, want, atol=1e-6)


def test_late_masks_give_the_same_without_the_trunk():
    """Derivatives start at the first pruned layer; with an earlier mask beside it they start at the first one."""
    case, late = make_case(), HeadMask.full((4, 4, 4)).prune(2, 1)
    alone = derivatives(case.view, case.val, [late])
    beside = derivatives(case.view, case.val, [MASKS[0], late])
    np.testing.assert_allclose(np.stack(alone)[:, 0], np.stack(beside)[:, 1], atol=1e-12)


def noisy_side(case, masks, sigma=40.0):
    rng = np.random.default_rng(1)
    pixels = np.clip(case.val.inputs + rng.normal(0, sigma, case.val.inputs.shape), 0, 255).astype(np.uint8)
    noise = replace(case.val, inputs=pixels)
    return noise, measure_side(case.view, noise, masks)


def test_the_rows_hold_gap_change_and_both_terms():
    case = make_case()
    noise, noisy = noisy_side(case, MASKS)
    clean = measure_side(case.view, case.val, MASKS)
    rows = compare_sides(clean, noisy, MASKS, corruption="gaussian_noise", severity=2, keeps=[3, 2, 1])
    for k, (row, mask) in enumerate(zip(rows, MASKS, strict=True)):
        pruned = moved(case.view, mask, 1.0)
        before = losses(case.view.module, noise).mean() - losses(case.view.module, case.val).mean()
        after = losses(pruned, noise).mean() - losses(pruned, case.val).mean()
        assert row.gap == pytest.approx(before, abs=1e-6)  # logits come in float32
        assert row.gap_pruned == pytest.approx(after, abs=1e-6)
        assert row.change.value == pytest.approx(after - before, abs=1e-6)
        assert row.predicted.value == pytest.approx(row.slope.value + row.curvature.value)
        assert row.slope.value == pytest.approx(row.slope_noisy.value - row.slope_clean.value)
        assert row.curvature.value == pytest.approx((noisy.curves[k] - clean.curves[k]).mean() / 2)
        assert (row.pruned, row.total, row.keep) == (mask.total - mask.kept, 12, [3, 2, 1][k])


def test_the_two_terms_predict_small_steps_to_third_order():
    """Halving delta divides the error of the prediction by about 8."""
    case, mask = make_case(), MASKS[1]
    noise, noisy = noisy_side(case, [mask])
    clean = measure_side(case.view, case.val, [mask])
    slope = (noisy.slopes - clean.slopes).mean()
    half = (noisy.curves - clean.curves).mean() / 2
    errors = []
    for t in (0.2, 0.1, 0.05):
        gaps = [losses(moved(case.view, mask, s), noise).mean() - losses(moved(case.view, mask, s), case.val).mean()
                for s in (0.0, t)]  # fmt: skip
        errors.append(abs(gaps[1] - gaps[0] - t * slope - t**2 * half))
    ratios = [errors[0] / errors[1], errors[1] / errors[2]]
    assert all(6 < ratio < 10 for ratio in ratios), ratios


def test_without_noise_nothing_changes():
    case = make_case()
    side = measure_side(case.view, case.val, MASKS)
    for row in compare_sides(side, side, MASKS):
        assert (row.gap, row.change.value, row.slope.value, row.curvature.value) == (0, 0, 0, 0)
        assert row.grows is None


def test_an_estimate_is_the_mean_with_its_standard_errors():
    values = np.random.default_rng(0).normal(1.0, 2.0, 400)
    estimate = Estimate.of(values)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.high - estimate.low == pytest.approx(2 * 1.959964 * values.std(ddof=1) / 20)
    assert [Estimate(0, a, b).sign for a, b in ((0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1), (np.nan, np.nan))] == [
        1,
        -1,
        0,
        0,
    ]
    assert Estimate.of(values[:1]).sign == 0


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = [e.low < 0.3 < e.high for e in (Estimate.of(rng.normal(0.3, 1, 100)) for _ in range(600))]
    assert 0.92 < np.mean(hits) < 0.975


def test_premises_and_claim_follow_the_signs():
    def side(change, slope_noisy, curve):
        spread = np.array([-0.01, 0.01] * 20)
        clean = Side(np.stack([spread, spread]), np.array([spread]), np.array([spread]))
        noisy = Side(np.stack([spread, spread[::-1] + change]), np.array([spread[::-1] + slope_noisy]),
                     np.array([spread[::-1] + curve]))  # fmt: skip
        return compare_sides(clean, noisy, MASKS[:1])[0]

    row = side(1.0, 0.5, 0.7)
    assert row.premises == {"stationary": True, "slope": True, "curvature": True}
    assert row.grows is True
    row = side(-1.0, -0.5, 0.0)
    assert row.premises == {"stationary": True, "slope": False, "curvature": None}
    assert row.grows is False
    flat = row.row()
    assert flat["change_low"] < -0.9
    assert (flat["holds_slope"], flat["slope"]) == (False, pytest.approx(-0.5))


def test_a_path_keeps_fewer_and_fewer_of_the_best():
    scores = [[4.0, 3.0, 2.0, 1.0], [1.0, 2.0]]
    path = pruning_path(scores, (4, 2), [3, 1], layers=[0, 1])
    assert [mask.rows for mask in path] == [
        ((True, True, True, False), (True, True)), ((True, False, False, False), (False, True)),
    ]  # fmt: skip


def test_what_makes_no_sense_is_refused():
    case = make_case()
    with pytest.raises(MaskError, match="keeps all heads"):
        measure_side(case.view, case.val, [HeadMask.full((4, 4, 4))])
    with pytest.raises(MaskError, match="no mask"):
        measure_side(case.view, case.val, [])
    with pytest.raises(DataError, match="no labels"):
        measure_side(case.view, case.ood["near"], MASKS)
    one, two = measure_side(case.view, case.val.take([0, 1]), MASKS), measure_side(case.view, case.val.take([0]), MASKS)
    with pytest.raises(DataError, match="do not belong together"):
        compare_sides(one, two, MASKS)
    assert np.isnan(compare_sides(two, two, MASKS)[0].change.low)


def test_it_reports_progress_and_stops_when_asked():
    case, shares, stop = make_case(), [], threading.Event()
    measure_side(case.view, case.val, MASKS, progress=lambda share, text: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)
    stop.set()
    with pytest.raises(Cancelled):
        derivatives(case.view, case.val, MASKS, cancel=stop)
