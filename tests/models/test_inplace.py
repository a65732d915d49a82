"""The in-place GELU: the same values, no edit of the user's model, and gradients where they are wanted."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

from hydra_core.fusion.ensemble import fuse
from hydra_core.heads.mask import HeadMask
from hydra_core.models.inplace import InPlaceGELU, reuse_hidden
from hydra_core.models.shadow import shadow
from hydra_core.models.view import build_view


def tiny(**options) -> nn.Module:
    torch.manual_seed(0)
    make = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
    return timm.models.VisionTransformer(**make | options).eval()


def test_it_writes_over_its_input_and_gives_gelu_to_the_bit():
    x = torch.randn(4, 7, generator=torch.Generator().manual_seed(1))
    want = F.gelu(x)
    with torch.no_grad():
        got = InPlaceGELU()(x)
    assert got is x
    assert torch.equal(got, want)


def test_gradients_pass_and_leave_the_input_alone():
    x = torch.randn(4, 7, requires_grad=True)
    before = x.detach().clone()
    InPlaceGELU()(x).sum().backward()
    assert torch.equal(x.detach(), before)
    other = before.clone().requires_grad_()
    F.gelu(other).sum().backward()
    assert torch.equal(x.grad, other.grad)


def test_a_fused_model_uses_it_and_the_users_model_does_not():
    module = tiny()
    view = build_view("tiny", module, class_names=tuple("abcde"), input_size=(3, 16, 16))
    full = HeadMask.full(view.shape)
    fused = fuse(view, [full, full.prune(1, 0)])
    assert any(type(m) is InPlaceGELU for m in fused.net.modules())
    assert not any(type(m) is InPlaceGELU for m in module.modules())
    x = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        assert (fused(x)[0] - module(x)).abs().max() < 1e-6


@pytest.mark.parametrize("act", [nn.ReLU, lambda: nn.GELU(approximate="tanh")])
def test_other_activations_stay(act):
    module = tiny()
    for block in module.blocks:
        block.mlp.act = act()
    reused = reuse_hidden(shadow(module))
    assert not any(type(m) is InPlaceGELU for m in reused.modules())
