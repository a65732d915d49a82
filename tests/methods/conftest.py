"""A tiny random ViT in float64 and a bundle of random images for it."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.models.view import ModelView, build_view

CLASSES = ("a", "b", "c", "d", "e")


def prepare(samples: SampleSet) -> torch.Tensor:
    return torch.from_numpy(samples.inputs.astype(np.float64) / 128 - 1).unsqueeze(1)


@cache
def tiny(seed: int = 0) -> ModelView:
    """3 layers of 4 heads; weights are redrawn so that no zero init hides anything."""
    torch.manual_seed(seed)
    module = VisionTransformer(
        img_size=16, patch_size=4, in_chans=1, embed_dim=24, depth=3, num_heads=4, num_classes=5, mlp_ratio=2.0
    ).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.25)
    return build_view(f"tiny/{seed}", module, class_names=CLASSES, input_size=(1, 16, 16), prepare=prepare)


def batch(n: int = 6) -> torch.Tensor:
    return torch.randn(n, 1, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def images(name: str, n: int, seed: int, shift: str = "id") -> SampleSet:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 5
    pixels = rng.integers(0, 256, (n, 16, 16))
    pixels[:, :, :3] = (labels * 50)[:, None, None]  # something to learn
    return SampleSet(
        name, pixels.astype(np.uint8), labels if shift == "id" else None, tuple(f"{name}/{i}" for i in range(n)),
        CLASSES if shift == "id" else (), shift=shift,  # type: ignore[arg-type]
    )  # fmt: skip


@cache
def bundle() -> DataBundle:
    return DataBundle(
        "tiny", val=images("val", 60, 1), test=images("test", 50, 2),
        ood_val={"near-v": images("near-v", 30, 3, "near"), "far-v": images("far-v", 30, 4, "far")},
        ood_test={"near-t": images("near-t", 30, 5, "near"), "far-t": images("far-t", 30, 6, "far")},
    )  # fmt: skip
