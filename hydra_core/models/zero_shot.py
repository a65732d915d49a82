"""Zero-shot classifiers: an image tower, and one text feature a class made from its name and prompt templates."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hydra_core.errors import ModelError
from hydra_core.heads.mask import HeadMask
from hydra_core.models.shadow import shadow
from hydra_core.models.text_tower import (
    DEFAULT_TEMPLATES,
    Templates,
    TextTower,
    check_names,
    check_templates,
    library_templates,
)
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress

__all__ = [
    "DEFAULT_TEMPLATES",
    "TextTower",
    "ZeroShot",
    "check_names",
    "check_templates",
    "image_features_view",
    "library_templates",
    "with_classes",
    "zero_shot_parts",
]


class ZeroShot(nn.Module):
    """logits = scale * normalised image features @ text features^T + bias.

    Args:
        visual: images (B, 3, H, W) -> features (B, D), or a tuple that starts with them.
        text_features: one unit vector a class, (C, D).
        scale: the checkpoint's logit scale, after its exponential.
        bias: SigLIP's logit bias; 0 where the model has none.
    """

    def __init__(self, visual: nn.Module, text_features: torch.Tensor, scale: float, bias: float = 0.0) -> None:
        super().__init__()
        self.visual = visual
        self.register_buffer("text_features", text_features)
        self.scale, self.bias = float(scale), float(bias)

    @property
    def num_classes(self) -> int:
        return int(self.text_features.shape[0])  # type: ignore[index, union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.visual(x))

    def logits(self, features: Any) -> torch.Tensor:
        """Logits (B, C) from the tower's output."""
        if isinstance(features, tuple | list):  # towers that also give their tokens
            features = features[0]
        return self.of_features(F.normalize(features, dim=-1))

    def of_features(self, features: torch.Tensor) -> torch.Tensor:
        """Logits (..., C) from unit image features (..., D)."""
        logits = self.scale * features @ self.text_features.T  # type: ignore[operator, union-attr]
        return logits + self.bias if self.bias else logits

    def forward_head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits from the stream after the last block; stages use it where it proves to be the native tail."""
        visual: Any = self.visual
        if hasattr(visual, "trunk"):  # a timm tower
            return self.logits(visual.head(visual.trunk.forward_head(visual.trunk.norm(hidden))))
        pooled, _ = visual._pool(hidden)
        return self.logits(pooled if visual.proj is None else pooled @ visual.proj)


def zero_shot_parts(view: ModelView) -> tuple[ZeroShot, TextTower]:
    """The classifier and text tower behind a zero-shot view.

    Raises:
        ModelError: the view has none.
    """
    tower = view.info.get("text_tower")
    if not isinstance(view.module, ZeroShot) or not isinstance(tower, TextTower):
        raise ModelError(
            f"{view.name} is not a zero-shot model", expected="an open_clip model", got=type(view.module).__name__
        )
    return view.module, tower


def with_classes(
    view: ModelView,
    names: Sequence[str],
    templates: Templates = DEFAULT_TEMPLATES,
    *,
    text_mask: HeadMask | None = None,
    progress: Progress | None = None,
) -> ModelView:
    """The same image tower with other classes: a new view that shares all weights.

    Args:
        text_mask: heads of the text tower to keep; None: all.

    Raises:
        DataError: names or templates that cannot be used.
        MaskError: the mask does not fit the text tower.
        ModelError: not a zero-shot view.
    """
    _, tower = zero_shot_parts(view)
    names = check_names(names)
    features = tower.features(names, templates, mask=text_mask, progress=progress).to(view.device, view.dtype)
    info = {**view.info, "templates": check_templates(templates)}
    return replace(_with_features(view, features), class_names=tuple(names), info=info)


def image_features_view(view: ModelView) -> ModelView:
    """The same image tower, whose "logits" are unit image features (B, D): computed once, they serve any class names.

    `ZeroShot.of_features` makes logits of them.

    Raises:
        ModelError: not a zero-shot view.
    """
    module, _ = zero_shot_parts(view)
    width = int(module.text_features.shape[1])  # type: ignore[index, union-attr, arg-type]
    new = _with_features(view, torch.eye(width, dtype=view.dtype, device=view.device))
    new.module.scale, new.module.bias = 1.0, 0.0  # type: ignore[assignment]
    return replace(new, class_names=())


def _with_features(view: ModelView, features: torch.Tensor) -> ModelView:
    new = shadow(view.module)
    new.register_buffer("text_features", features)
    return replace(view, module=new, _local=threading.local())
