"""The demo models: small vision transformers with a convolutional stem, trained here on Fashion-MNIST.

Three seeds of one recipe (see hydra_core/training/demo.py), so that deep ensembles have members.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from hydra_core.data.demo import CLASS_NAMES
from hydra_core.data.sets import SampleSet
from hydra_core.errors import CheckpointError, DataError, UnknownNameError
from hydra_core.models.view import ModelView, build_view

ASSETS = Path(__file__).resolve().parents[2] / "assets"
CARD = ASSETS / "fashion-vit.json"
DEMO_NAMES: tuple[str, ...] = ("fashion-vit", "fashion-vit-s1", "fashion-vit-s2")
RESTORE = "Restore it from the repository, or rebuild it: python -m hydra_core.training.demo"
SIZE = 28
MEAN, STD = 0.2860, 0.3530  # of the Fashion-MNIST train split
WIDTH, DEPTH, HEADS = 96, 6, 8


class ConvStem(nn.Module):
    """Patch embedding by convolutions: they see edges and texture from the first step on.

    Stands in for timm's PatchEmbed. Two strides of two turn 28 x 28 pixels into 7 x 7 tokens.
    """

    def __init__(self, img_size: int, patch_size: int, in_chans: int, embed_dim: int, **_: Any) -> None:
        super().__init__()
        side = img_size // patch_size
        self.grid_size, self.num_patches = (side, side), side * side
        self.patch_size = (patch_size, patch_size)
        half, quarter = embed_dim // 2, embed_dim // 4
        self.layers = nn.Sequential(
            *conv(in_chans, quarter, stride=1),
            *conv(quarter, half, stride=2),
            *conv(half, half, stride=1),
            *conv(half, embed_dim, stride=2),
            nn.Conv2d(embed_dim, embed_dim, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images (B, 1, 28, 28) -> tokens (B, 49, width)."""
        return self.layers(x).flatten(2).transpose(1, 2)


def conv(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    """A 3 x 3 convolution with batch norm and ReLU."""
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()


def demo_module(*, num_classes: int = len(CLASS_NAMES), patch_drop: float = 0.0) -> VisionTransformer:
    """The untrained network: a plain timm VisionTransformer, 6 layers x 8 heads, pre-norm, class token.

    Args:
        num_classes: size of the classifier.
        patch_drop: share of the patch tokens dropped in training; it holds no weights.
    """
    return VisionTransformer(
        img_size=SIZE,
        patch_size=4,
        in_chans=1,
        num_classes=num_classes,
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
        mlp_ratio=2.0,
        patch_drop_rate=patch_drop,
        embed_layer=ConvStem,  # type: ignore[arg-type]
    )


def load_demo(name: str) -> ModelView:
    """A demo model by name, as a read-only view.

    Raises:
        UnknownNameError: no such demo model.
        CheckpointError: its weights are missing or do not fit.
    """
    if name not in DEMO_NAMES:
        raise UnknownNameError("demo model", name, DEMO_NAMES)
    module = demo_module()
    try:
        module.load_state_dict(read_weights(ASSETS / f"{name}.safetensors"))
    except (RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"The weights {name}.safetensors are damaged or of another network",
            expected="the file of the repository",
            got=str(error).splitlines()[0],
            hint=RESTORE,
        ) from None
    return build_view(
        f"demo/{name}",
        module,
        class_names=CLASS_NAMES,
        prepare=prepare,
        input_size=(1, SIZE, SIZE),
        info=card(name),
    )


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Weights stored in half precision, as float32 (counters stay integers)."""
    if not path.is_file():
        raise CheckpointError(
            f"The weights {path.name} are missing",
            expected=f"the file {path.name} in assets/",
            hint=RESTORE,
        )
    return {key: t.float() if t.is_floating_point() else t for key, t in load_file(path).items()}


def card(name: str) -> dict[str, object]:
    """What assets/fashion-vit.json says about one model: origin, licence, recipe, measured figures."""
    if not CARD.is_file():
        return {}
    facts = json.loads(CARD.read_text(encoding="utf-8"))
    common = {key: value for key, value in facts.items() if key not in ("models", "tried")}
    return {**common, **facts["models"].get(name, {})}


def prepare(samples: SampleSet) -> torch.Tensor:
    """Images of any size, grey or RGB, as the demo model's input (N, 1, 28, 28) float32."""
    if samples.kind != "image":
        raise DataError(f"{samples.name} does not fit this model", expected="images", got=samples.kind)
    if not len(samples):
        raise DataError(f"{samples.name} is empty", expected="one image or more", got="none")
    images = samples.inputs
    if images.dtype == object or images.shape[1:] != (SIZE, SIZE):
        images = np.stack([to_grey(image) for image in images])
    return to_input(images)


def to_input(images: np.ndarray) -> torch.Tensor:
    """Grey images (N, 28, 28) uint8 -> (N, 1, 28, 28) float32, normalised."""
    x = torch.from_numpy(images.astype(np.float32)).unsqueeze(1)
    return x.div_(255).sub_(MEAN).div_(STD)


def to_grey(image: np.ndarray) -> np.ndarray:
    """Any uint8 image as (28, 28) grey: luma, the largest centred square, area-weighted resize."""
    picture = Image.fromarray(np.ascontiguousarray(image)).convert("L")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side))
    return np.asarray(square.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
