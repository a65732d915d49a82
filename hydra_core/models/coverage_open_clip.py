"""The image towers of open_clip's configs for the census: built on the meta device, without weights or network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hydra_core.models.open_clip_models import library, open_clip_names, split_tower
from hydra_core.models.zero_shot import ZeroShot

CLASSES = 4


def names() -> list[str]:
    """Every config name."""
    return list(open_clip_names())


def model(name: str) -> tuple[nn.Module, torch.Tensor]:
    """(zero-shot classifier of 4 classes, a batch of 2 images), both on the meta device."""
    config: dict[str, Any] = library().get_model_config(name)
    with torch.device("meta"):
        visual = tower(config)
        text = torch.empty(CLASSES, config["embed_dim"])
        module = ZeroShot(split_tower(visual), text, 100.0)
        size = visual.image_size  # type: ignore[union-attr]
        height, width = (size, size) if isinstance(size, int) else tuple(size)  # type: ignore[arg-type]
        return module.eval(), torch.empty(2, 3, height, width)


def tower(config: dict[str, Any]) -> nn.Module:
    """The image tower of a config, as open_clip builds it; a timm tower without its pretrained weights."""
    from open_clip.model import _build_vision_tower

    vision = {**config["vision_cfg"], "timm_model_pretrained": False}
    return _build_vision_tower(config["embed_dim"], vision, config.get("quick_gelu", False))
