"""The prefix tree against one hooked forward a head, on ViT-Ti/16 at 224; and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import timm
import torch

from benchmarks.common import Row, ratio
from hydra_core.fusion.evaluator import MIB, MaskEvaluator
from hydra_core.heads.leave_one_out import single_removals
from hydra_core.heads.mask import HeadMask
from hydra_core.models.timm_models import timm_view
from hydra_core.models.view import ModelView


def run() -> Iterator[Row]:
    torch.manual_seed(0)
    view = timm_view("timm/vit_tiny_patch16_224", timm.create_model("vit_tiny_patch16_224"))
    x = torch.randn(64, 3, 224, 224)
    yield leave_one_out(view, x)
    yield from memory(view, x[:8])


def hooked(view: ModelView, x: torch.Tensor, masks: list[HeadMask]) -> torch.Tensor:
    """What a hand-written script does: one hook at the projection's input, one forward a head."""
    outs = []
    for mask in masks:
        handles = []
        for layer, row in zip(view.layers, mask.rows, strict=True):
            if all(row):
                continue
            gate = torch.tensor(row, dtype=x.dtype).repeat_interleave(layer.head_dim)
            projection = view.module.get_submodule(layer.proj)
            handles.append(projection.register_forward_pre_hook(lambda m, a, gate=gate: (a[0] * gate,)))
        with torch.inference_mode():
            outs.append(view.module(x))
        for handle in handles:
            handle.remove()
    return torch.stack(outs)


def leave_one_out(view: ModelView, x: torch.Tensor) -> Row:
    masks = list(chain(*single_removals(view)))
    evaluator = MaskEvaluator(view, x)
    same = (torch.as_tensor(evaluator.many(masks)) - hooked(view, x, masks)).abs().max()
    value, ours, other = ratio(lambda: evaluator.many(masks), lambda: hooked(view, x, masks), repeats=3)
    detail = f"{ours:.2f} s against {other:.2f} s, {len(masks)} heads, {len(x)} images, max |difference| {same:.1e}"
    return Row("leave-one-out of all heads, ViT-Ti/16: tree / hooks", value, 0.40, detail)


def memory(view: ModelView, x: torch.Tensor) -> Iterator[Row]:
    budget = 64
    for count in (3, 30, 120):
        evaluator = MaskEvaluator(view, x, budget_mb=budget)
        evaluator.many([HeadMask.random(view.shape, 2, seed=s, layers=range(8, 12)) for s in range(count)])
        kept = sum(spine.used for spine in evaluator._spines.values())
        share = max(evaluator.peak, kept) / (budget * MIB)
        yield Row(f"memory of streams / budget, {count} masks", share, 1.0, f"peak {evaluator.peak / MIB:.1f} MiB")
