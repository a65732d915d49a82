"""From samples to a vision model's input tensor, by the model's own preprocessing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from hydra_core.data.sets import SampleSet
from hydra_core.errors import DataError

Transform = Callable[[Image.Image], torch.Tensor]


def preparer(transform: Transform, mode: str = "RGB") -> Callable[[SampleSet], torch.Tensor]:
    """A `ModelView.prepare`: applies `transform` to every image of a set -> (N, C, H, W) float32.

    Args:
        transform: the model's own evaluation transform, from a PIL image to a tensor.
        mode: the PIL mode the model expects, "RGB" or "L".
    """

    def prepare(samples: SampleSet) -> torch.Tensor:
        if samples.kind != "image":
            raise DataError(f"{samples.name} does not fit this model", expected="images", got=samples.kind)
        if not len(samples):
            raise DataError(f"{samples.name} is empty", expected="one image or more", got="none")
        return torch.stack([transform(to_pil(image, mode)) for image in samples.inputs])

    return prepare


def to_pil(image: np.ndarray, mode: str = "RGB") -> Image.Image:
    """A uint8 image, (H, W) grey or (H, W, 3) RGB, as PIL in `mode`."""
    return Image.fromarray(np.ascontiguousarray(image)).convert(mode)


def timm_transform(model: Any) -> tuple[Transform, tuple[int, ...], str]:
    """timm's own evaluation transform of a model.

    Returns:
        (transform, input size (C, H, W), PIL mode).
    """
    from timm.data import create_transform, resolve_model_data_config

    config = resolve_model_data_config(model)
    size = tuple(config["input_size"])
    return create_transform(**config, is_training=False), size, "RGB" if size[0] == 3 else "L"
