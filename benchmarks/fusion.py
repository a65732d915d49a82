"""The fused ensemble against its pruned members one after another, and the shared trunk against the formula."""

from __future__ import annotations

from collections.abc import Iterator

import timm
import torch

from benchmarks.common import Row, ratio
from hydra_core.fusion.ensemble import FusionOptions, fuse
from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask
from hydra_core.models.timm_models import timm_view
from hydra_core.models.view import ModelView

M = 3


def run() -> Iterator[Row]:
    torch.manual_seed(0)
    view = timm_view("timm/vit_tiny_patch16_224", timm.create_model("vit_tiny_patch16_224"))
    for batch, limit in ((1, 0.85), (32, 1.0)):
        yield unshared(view, batch, limit)
    for trunk in (6, 9):
        yield shared(view, trunk, batch=8)


@torch.inference_mode()
def unshared(view: ModelView, batch: int, limit: float) -> Row:
    masks = [HeadMask.random(view.shape, 1, seed=s) for s in range(M)]  # H / 3 heads a layer
    hydra = fuse(view, masks, options=FusionOptions(share_trunk=False))
    members = [prune_model(view, mask) for mask in masks]
    x = torch.randn(batch, *view.input_size)
    one_by_one = lambda: torch.stack([member(x) for member in members])  # noqa: E731
    same = (hydra(x) - one_by_one()).abs().max()
    value, ours, other = ratio(lambda: hydra(x), one_by_one, repeats=25 if batch == 1 else 5)
    detail = f"{1e3 * ours:.1f} ms against {1e3 * other:.1f} ms, max |difference| {same:.1e}"
    return Row(f"fused / members one by one, M = {M}, no trunk, batch {batch}", value, limit, detail)


@torch.inference_mode()
def shared(view: ModelView, trunk: int, batch: int) -> Row:
    layers = len(view.shape)
    masks = [HeadMask.random(view.shape, 1, seed=s, layers=range(trunk, layers)) for s in range(M)]
    masks = [
        HeadMask.full(view.shape).with_layer(trunk, _only(m, view.shape[trunk])) & mask for m, mask in enumerate(masks)
    ]
    hydra = fuse(view, masks)
    x = torch.randn(batch, *view.input_size)
    value, ours, other = ratio(lambda: hydra(x), lambda: view.module(x), repeats=7)
    limit = 1.15 * (trunk + M * (layers - trunk)) / layers
    detail = f"{1e3 * ours:.1f} ms against {1e3 * other:.1f} ms, groups a block {hydra.groups}"
    return Row(f"fused, trunk of {trunk} of {layers} / single, batch {batch}", value, limit, detail)


def _only(head: int, heads: int) -> list[bool]:
    """Members part for certain at the first layer after the trunk: each keeps another head there."""
    return [h == head % heads for h in range(heads)]
