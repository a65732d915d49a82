"""What a training run is set to: the recipe, its learning rate, and what decays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from hydra_core.errors import ModelError


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        epochs, batch: passes over the data, samples a step.
        lr: peak of the learning rate; it rises linearly over `warmup` (a share of all steps)
            and falls by a cosine to a hundredth.
        weight_decay: on matrices and filters only; biases, norms and tokens stay free.
        clip: largest norm of the gradient.
        smoothing: label smoothing.
        mixup: alpha of mixup's Beta distribution; 0 for none.
        shift, flip, erase: augmentation of images: pixels, mirror or not, share erased.
        ema: decay a step of the averaged weights; 0 for none.
        outlier_weight: weight of the loss that asks for uniform predictions on `outliers`.
        outlier_share: outliers a step, as a share of `batch`.
        seed: of everything random.
    """

    epochs: int = 10
    batch: int = 128
    lr: float = 1e-3
    warmup: float = 0.1
    weight_decay: float = 0.05
    clip: float = 1.0
    smoothing: float = 0.0
    mixup: float = 0.0
    shift: int = 0
    flip: bool = False
    erase: float = 0.0
    ema: float = 0.0
    outlier_weight: float = 0.0
    outlier_share: float = 0.125
    seed: int = 0


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Linear warm-up, then a cosine from the peak to a hundredth of it."""
    warm = max(1, round(recipe.warmup * steps))
    if step < warm:
        return recipe.lr * (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return recipe.lr * (0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2)


def decay_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices and filters decay; vectors, norms, class tokens and positions do not."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise ModelError("This model has nothing to train", expected="parameters that require gradients")
    free = [p for name, p in named if p.ndim < 2 or name.endswith(("_token", "pos_embed"))]
    held = {id(p) for p in free}
    return [
        {"params": [p for _, p in named if id(p) not in held], "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
