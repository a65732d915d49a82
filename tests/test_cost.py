"""The counter against the closed form, single, pruned, fused, with and without shared trunk."""

from __future__ import annotations

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer

from hydra_core.cost import cost_of, count_macs, measure_latency, vit_macs
from hydra_core.fusion.ensemble import FusionOptions, fuse
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.models.view import ModelView, build_view

TOKENS, WIDTH, DIM, MLP = 17, 24, 6, 96
STEM = 16 * 24 * 16  # 16 patches, 24 channels, 4 x 4 pixels


@pytest.fixture(scope="module")
def view() -> ModelView:
    torch.manual_seed(0)
    model = VisionTransformer(img_size=16, patch_size=4, in_chans=1, embed_dim=24, depth=3, num_heads=4, num_classes=5)
    return build_view("tiny", model, class_names=tuple("abcde"), input_size=(1, 16, 16))


def formula(heads: list[list[int]]) -> int:
    return vit_macs(tokens=TOKENS, width=WIDTH, head_dim=DIM, mlp=MLP, stem=STEM, classes=5, heads=heads)


def test_single_model(view):
    cost = cost_of(view, HeadMask.full(view.shape))
    assert cost.macs == cost.single_macs == formula([[4]] * 3)
    assert cost.parameters == cost.single_parameters == sum(p.numel() for p in view.module.parameters())
    assert cost.mac_ratio == cost.parameter_ratio == 1


def test_pruned_model(view):
    mask = HeadMask.random(view.shape, 1, seed=0)
    cost = cost_of(view, mask)
    assert cost.macs == formula([[1]] * 3)
    a_head = DIM * (3 * WIDTH + 3) + DIM * WIDTH  # q, k, v with bias, and columns of the projection
    assert cost.single_parameters - cost.parameters == 9 * a_head


def test_fused_without_a_trunk(view):
    plan = Plan((HeadMask.random(view.shape, 2, seed=1), HeadMask.random(view.shape, 2, seed=2)))
    hydra = fuse(view, plan, options=FusionOptions(share_trunk=False))
    assert count_macs(hydra.net, torch.zeros(1, 1, 16, 16)) == formula([[2, 2]] * 3)


def test_fused_with_a_trunk(view):
    full = HeadMask.full(view.shape)
    plan = Plan((full.with_layer(2, [True, True, False, False]), full.with_layer(2, [False, False, True, True])))
    cost = cost_of(view, plan)
    assert cost.macs == formula([[4], [4], [2, 2]])
    # two members keep disjoint halves of one layer: the attention weights of both are exactly those of one model,
    # but for the projection's bias, which each member has
    assert cost.parameters - cost.single_parameters in (0, WIDTH)


def test_latency_is_measured(view):
    got = measure_latency("single", view, torch.zeros(2, 1, 16, 16), seconds=0.02)
    assert 0 < got.low <= got.median <= got.high
    assert got.runs >= 3
    assert got.per_sample == got.median / 2
