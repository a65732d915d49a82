"""Masks, cuts and fusion on one small model of every attention class, in float64 with noisy weights.

The oracle is the native model itself: with hooks of this test's own for "a head is removed", member by
member for fusion.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hydra_core.errors import UnsupportedModel
from hydra_core.fusion.ensemble import fuse
from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask
from hydra_core.models.view import ModelView, build_view
from tests.models.family_cases import CASES, build

TOLERANCE = 1e-12


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference, relative to the largest value of `b`."""
    return float((a - b).abs().max() / b.abs().max())


def masks_of(view: ModelView) -> list[HeadMask]:
    """One head of the last layer; all heads of a middle layer; the last head of every layer; none."""
    full, middle, last = HeadMask.full(view.shape), len(view.shape) // 2, len(view.shape) - 1
    return [full.prune(last, 0), full.with_layer(middle, False), last_head_of_each(full, view), full]


def last_head_of_each(mask: HeadMask, view: ModelView) -> HeadMask:
    """Every class in a model is cut, wherever its layers are."""
    for layer, heads in enumerate(view.shape):
        mask = mask.prune(layer, heads - 1)
    return mask


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[ModelView, torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """(view, images, native logits, masked logits of `masks_of`)."""
    model, images = build(request.param)
    with torch.inference_mode():
        native = model(images)
    view = build_view(request.param, model)
    return view, images, native, [view(images, mask) for mask in masks_of(view)]


def test_all_kept_is_the_native_model(case) -> None:
    _, _, native, masked = case
    assert native.shape == (2, 10)
    assert native.std(0).max() > 0, "the images must matter, or nothing is tested"
    assert distance(masked[3], native) < TOLERANCE


def test_each_head_changes_the_logits(case) -> None:
    view, images, native, _ = case
    full = HeadMask.full(view.shape)
    for layer, heads in enumerate(view.shape):
        for head in {0, heads - 1}:
            assert distance(view(images, full.prune(layer, head)), native) > 1e-4, (layer, head)


def test_masked_equals_cut(case) -> None:
    view, images, _, masked = case
    for mask, want in zip(masks_of(view), masked, strict=True):
        with torch.inference_mode():
            got = prune_model(view, mask, gate=True)(images)
        assert distance(got, want) < TOLERANCE


def test_cut_is_smaller_or_refused(case) -> None:
    """Without `gate`, surgery makes a smaller model or says which layer cannot be cut."""
    view, _, _, _ = case
    mask = masks_of(view)[0]
    if view.layers[-1].kind.slice is None:
        with pytest.raises(UnsupportedModel, match="cannot be cut"):
            prune_model(view, mask)
        return
    cut = prune_model(view, mask)
    assert sum(p.numel() for p in cut.parameters()) < view.parameters


def test_what_was_cut_is_cut_again(case) -> None:
    """Many kinds cut into classes of this package, which then are attention classes of their own."""
    view, images, _, _ = case
    layers = [i for i, heads in enumerate(view.shape) if heads > 1]
    first = both = HeadMask.full(view.shape)
    for i in layers:
        first, both = first.prune(i, 1), both.prune(i, 1).prune(i, 0)
    smaller = build_view("cut", prune_model(view, first, gate=True))
    assert smaller.shape == tuple(
        h - (h > 1 and y.kind.slice is not None) for h, y in zip(view.shape, view.layers, strict=True)
    )
    second = HeadMask.full(smaller.shape)
    for i in layers:
        second = second.prune(i, 0)
    with torch.inference_mode():
        got = prune_model(smaller, second, gate=True)(images)
    assert distance(smaller(images, second), got) < TOLERANCE
    assert distance(got, view(images, both)) < TOLERANCE


def test_gates_of_each_sample_are_its_own(case) -> None:
    """A row of gates a sample: windows and inner tokens must follow their own image."""
    view, images, native, _ = case
    layer = len(view.shape) // 2
    gates = [torch.ones(2, heads, dtype=images.dtype) for heads in view.shape]
    gates[layer][0, 0] = 0
    with torch.inference_mode():
        got = view.stages().forward_gated(images, gates)
    want = view(images, HeadMask.full(view.shape).prune(layer, 0))
    assert distance(got[:1], want[:1]) < TOLERANCE
    assert distance(got[1:], native[1:]) < TOLERANCE


def test_from_block_to_block(case) -> None:
    """Stopping before any block and going on gives the same logits."""
    view, images, _, masked = case
    stages, mask = view.stages(), masks_of(view)[2]
    gates = stages.gates_of(mask)
    with torch.inference_mode():
        stream = stages.start(images)
        for block in range(len(view.blocks) + 1):
            stream = stages.advance(stream, block, gates)
            assert distance(stages.finish(stream, gates), masked[2]) < TOLERANCE, block


def test_fused_equals_mean_of_members(case) -> None:
    view, images, _, masked = case
    hydra = fuse(view, masks_of(view))
    for got, want in zip(hydra(images), masked, strict=True):
        assert distance(got, want) < TOLERANCE
    mean = torch.stack([logits.softmax(-1) for logits in masked]).mean(0)
    assert distance(hydra.predict_proba(images), mean) < TOLERANCE


def test_mask_is_a_zeroed_projection_input() -> None:
    """NesT interleaves its heads: against a hook of this test's own that zeroes every H-th channel."""
    model, images = build("nest")
    view = build_view("nest", model)
    layer = view.layers[-1]
    channels = slice(1, None, layer.heads)

    def zero(module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        z = args[0].clone()
        z[..., channels] = 0
        return (z,)

    handle = model.get_submodule(layer.proj).register_forward_pre_hook(zero)
    with torch.inference_mode():
        want = model(images)
    handle.remove()
    got = view(images, HeadMask.full(view.shape).prune(len(view.shape) - 1, 1))
    assert distance(got, want) < TOLERANCE
