"""Fine-tuning of pruned members, one after another; then they can be fused (method.md, section 3)."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.methods.base import FixedStatistics, tail_names
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress, step_of
from hydra_core.training.loop import Recipe, fit

RECIPE = Recipe(epochs=1, batch=64, lr=2e-4, weight_decay=0.01, shift=2, flip=True, outlier_weight=0.3)


def finetune_members(
    view: ModelView,
    plan: Plan,
    x: torch.Tensor,
    y: torch.Tensor,
    recipe: Recipe = RECIPE,
    *,
    outliers: torch.Tensor | None = None,
    from_layer: int | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> list[nn.Module]:
    """Train each pruned model on its own (AdamW), with another seed each.

    Embeddings stay as they are, so that the members can be fused; so do the blocks before `from_layer`, so that
    they go on sharing the trunk.

    Args:
        x, y: prepared train inputs (N, ...) and labels (N,); never validation or test samples.
        outliers: prepared inputs (K, ...) on which a member shall be undecided, as the recipe weighs it; a model that
            was trained with some forgets them otherwise.
        from_layer: first layer of heads whose block is trained; None: the first layer that a mask prunes.
        folder: where each member's checkpoint lies; a run that was stopped goes on from there.

    Returns:
        One pruned model a mask, for `fuse(view, plan, members=...)` and for running them one after another.

    Raises:
        CheckpointError: a checkpoint is of another recipe.
        Cancelled: `cancel` was set; finished epochs stay in `folder`.
    """
    if from_layer is None:
        from_layer = min(mask.first_pruned_layer for mask in plan)
    first = view.layers[min(from_layer, len(view.layers) - 1)].block
    models = []
    for m, mask in enumerate(plan):
        model = trainable_member(view, mask, first)
        checkpoint = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            checkpoint = folder / f"member-{m}-{mask.digest}.pt"
        part = step_of(progress, m, len(plan), f"Member {m + 1} of {len(plan)}")
        fit(
            FixedStatistics(model),
            x,
            y,
            replace(recipe, seed=recipe.seed + m),
            outliers=outliers,
            checkpoint=checkpoint,
            progress=part,
            cancel=cancel,
        )
        models.append(model.eval().requires_grad_(False))
    return models


def trainable_member(view: ModelView, mask: HeadMask, first_block: int) -> nn.Module:
    """A pruned copy of which the blocks from `first_block` on, and what comes after them, can be trained."""
    model = prune_model(view, mask, own=True, gate=True).requires_grad_(False)
    for path in (*view.blocks[first_block:], *tail_names(view)):
        model.get_submodule(path).requires_grad_(True)
    return model
