"""A small random timm ViT, labelled images and two OOD sets: nothing is trained, everything can be recomputed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from hydra_core.data.sets import SampleSet
from hydra_core.heads.mask import HeadMask
from hydra_core.models.view import ModelView, build_view


@dataclass(frozen=True)
class Case:
    view: ModelView
    val: SampleSet
    ood: dict[str, SampleSet]

    def naive(self, mask: HeadMask, samples: SampleSet) -> np.ndarray:
        """Logits by hooks on the native model, one whole forward: what a hand-written script does."""
        handles = []
        for layer, row in zip(self.view.layers, mask.rows, strict=True):
            gate = torch.tensor(row, dtype=self.view.dtype).repeat_interleave(layer.head_dim)
            projection = self.view.module.get_submodule(layer.proj)
            handles.append(projection.register_forward_pre_hook(lambda m, a, gate=gate: (a[0] * gate,)))
        with torch.inference_mode():
            out = self.view.module(self.view.prepare(samples))
        for handle in handles:
            handle.remove()
        return out.numpy()


def images(name: str, n: int, seed: int, scale: float, labels: bool = False, shift: str = "id") -> SampleSet:
    rng = np.random.default_rng(seed)
    pixels = (rng.random((n, 28, 28)) ** scale * 255).astype(np.uint8)
    target = np.arange(n) % 5 if labels else None
    names = tuple("abcde") if labels else ()
    return SampleSet(name, pixels, target, tuple(f"{name}/{i}" for i in range(n)), names, shift=shift)


def prepare(samples: SampleSet) -> torch.Tensor:
    return torch.as_tensor(samples.inputs[:, None] / 255.0 - 0.5)


@cache
def make_case() -> Case:
    torch.manual_seed(0)
    module = VisionTransformer(
        img_size=28, patch_size=7, in_chans=1, embed_dim=24, depth=3, num_heads=4, num_classes=5
    ).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.25)
    view = build_view("tiny", module, class_names=tuple("abcde"), input_size=(1, 28, 28), prepare=prepare)
    val = images("val", 40, 0, 1.0, labels=True)
    # labels the model often predicts, so that accuracy is neither 0.2 nor constant
    predicted = view(prepare(val)).argmax(1).numpy()
    val = replace(val, labels=np.where(np.arange(40) % 3 == 0, np.arange(40) % 5, predicted))
    return Case(
        view, val, {"near": images("near", 25, 1, 1.3, shift="near"), "far": images("far", 20, 2, 0.6, shift="far")}
    )


@pytest.fixture
def case3() -> Case:
    return make_case()
