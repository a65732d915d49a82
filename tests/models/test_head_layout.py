"""Which channels belong to which head, found out from the attention itself and not from our table.

Inside one attention module the output of head h is zeroed where timm computes it (scaled dot product, or
the softmax before `attn @ v`). The channels that change at the projection's input must be exactly those
that the kind says belong to h.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from hydra_core.models.attention import owner_of
from hydra_core.models.stages import channel_axis
from hydra_core.models.view import HeadLayer, ModelView, build_view
from tests.models.family_cases import CASES, build

# No single tensor holds the heads there: they are mixed after the softmax, cascade, or pass one norm together.
MIXED = {"talking heads", "EfficientFormer v2", "EfficientViT cascade"}
NO_MAP = {"lambda"}


def without_head(values: torch.Tensor, head: int, heads: int, batch: int) -> torch.Tensor | None:
    """Values with one head zeroed; None where it is not clear which axis holds the heads."""
    axes = [a for a in range(1, values.ndim - 2) if values.shape[a] == heads]
    out = values.clone()
    if len(axes) == 1:
        out.select(axes[0], head).zero_()
    elif not axes and values.shape[0] % (batch * heads) == 0:  # (B * H, ...), heads next to each other
        out[head::heads] = 0
    else:
        return None
    return out


class Knife:
    """Stands in for softmax and scaled dot product while an attention module runs."""

    def __init__(self, heads: int, batch: int) -> None:
        self.heads, self.batch, self.head = heads, batch, -1
        self.inside, self.clear, self.used = False, True, 0

    def cut(self, values: torch.Tensor) -> torch.Tensor:
        if not self.inside or self.head < 0:
            return values
        out = without_head(values, self.head, self.heads, self.batch)
        self.clear &= out is not None
        self.used += 1
        return values if out is None else out


@contextmanager
def patched(monkeypatch: pytest.MonkeyPatch, knife: Knife) -> Iterator[None]:
    product, soft, method = F.scaled_dot_product_attention, F.softmax, torch.Tensor.softmax
    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: knife.cut(product(*a, **k)))
        patch.setattr(F, "softmax", lambda *a, **k: knife.cut(soft(*a, **k)))
        patch.setattr(torch.Tensor, "softmax", lambda *a, **k: knife.cut(method(*a, **k)))
        yield


def projection_inputs(view: ModelView, layer: HeadLayer, knife: Knife, images: torch.Tensor) -> list[torch.Tensor]:
    """The projection's input for knife.head = -1, 0, 1, ..., H - 1."""
    seen: list[torch.Tensor] = []
    attention, projection = view.module.get_submodule(layer.path), view.module.get_submodule(layer.proj)

    def enter(*_: Any) -> None:
        knife.inside = True

    def leave(*_: Any) -> None:
        knife.inside = False

    handles = [
        attention.register_forward_pre_hook(enter),
        attention.register_forward_hook(leave),
        projection.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone())),
    ]
    try:
        with torch.inference_mode():
            for knife.head in range(-1, layer.heads):
                view.module(images)
    finally:
        for handle in handles:
            handle.remove()
    return seen


@pytest.mark.parametrize("name", [name for name in CASES if name not in NO_MAP])
def test_channels_of_each_head(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = build(name)
    images = torch.cat([images, images.flip(-1), images[:1] * 0.5])  # 5: no model here has 5 heads
    view = build_view(name, model)
    checked = 0
    for layer in {(y.kind.name, y.heads): y for y in view.layers}.values():
        mixed = layer.kind.name in MIXED or "scale_norm" in layer.kind.name
        if layer.heads == 1 or mixed:
            checked += mixed
            continue
        knife = Knife(layer.heads, len(images))
        with patched(monkeypatch, knife):
            native, *cut = projection_inputs(view, layer, knife, images)
        if not knife.clear:
            continue
        assert knife.used, "the knife was never used"
        owner = owner_of(layer.kind, model.get_submodule(layer.path))
        axis = channel_axis(model.get_submodule(layer.proj))
        for head, z in enumerate(cut):
            same = (z == native).movedim(axis, -1).flatten(0, -2).all(0)  # a NaN counts as changed
            assert torch.equal(~same, owner == head), (layer.path, head)
        checked += 1
    assert checked, "no layer of this model could be checked"
