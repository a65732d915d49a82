"""What a row's classifier reads: the penultimate features of each member, from the same pass as the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hydra_core.data.sets import SampleSet
from hydra_core.errors import UnsupportedModel
from hydra_core.evaluation import forward_set
from hydra_core.fusion.grouped import pack_members, unpack_members
from hydra_core.methods.base import Method, OnRows, linear_paths
from hydra_core.models.shadow import set_child, shadow


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a row says about samples: logits (M, N, C), and features (M, N, D) where they were asked for."""

    logits: np.ndarray
    features: np.ndarray | None = None


class Both(nn.Module):
    """A classifier that hands on what it read beside what it says: (..., D) -> (..., D + C)."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.classifier(x)], dim=-1)


class FeatureReader:
    """Runs a row so that its features come out too. The row itself is not touched.

    Attributes:
        weight, bias: the classifiers of the members, (M, C, D) and (M, C).

    Raises:
        UnsupportedModel: the model has no linear classifier of its own.
    """

    def __init__(self, method: Method) -> None:
        self.method, self.net = method, shadow(method.net)
        path = classifier_path(method)
        names = [name for name, _ in self.net.named_modules() if name == path or name.endswith(f".{path}")]
        self.classes = method.view.num_classes
        classifiers: list[Any] = [self.net.get_submodule(name) for name in names]
        for name, classifier in zip(names, classifiers, strict=True):
            set_child(self.net, name, Both(classifier))
        self._affine = [affine(classifier) for classifier in classifiers]

    def read(self, samples: SampleSet, batch: int = 128, **options: Any) -> Outputs:
        """Logits and features of a set; `options` as `forward_set` takes them."""
        both = forward_set(self.method.view, self._run, samples, batch, **options)
        return Outputs(both[..., -self.classes :].copy(), both[..., : -self.classes].copy())

    @torch.inference_mode()
    def _run(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def classifiers(self, members: int) -> tuple[np.ndarray, np.ndarray]:
        """Weights (M, C, D) and biases (M, C) of all members."""
        weight = np.concatenate([w for w, _ in self._affine])
        bias = np.concatenate([b for _, b in self._affine])
        if len(weight) == 1:  # one for all
            return np.repeat(weight, members, 0), np.repeat(bias, members, 0)
        rows = next((m for m in self.net.modules() if isinstance(m, OnRows)), None)
        leaves = list(range(members)) if rows is None else list(rows.leaves)
        return weight[leaves], bias[leaves]


def classifier_path(method: Method) -> str:
    """Dotted path of the linear that makes the logits, in the model that the row starts from.

    Raises:
        UnsupportedModel: there is none after the blocks.
    """
    view = method.view
    inside = set(linear_paths(view, tail=False))
    after = [path for path in linear_paths(view) if path not in inside]
    if not after or view.module.get_submodule(after[-1]).out_features != view.num_classes:
        raise UnsupportedModel(
            f"{view.name} has no features to score",
            expected="a linear classifier after the last block",
            got=after[-1] if after else "none",
        )
    return after[-1]


@torch.inference_mode()
def affine(classifier: Any) -> tuple[np.ndarray, np.ndarray]:
    """Weight (G, C, D) and bias (G, C) of a linear module for G groups of rows, found by asking it.

    So every kind serves: plain, grouped, rank-one.
    """
    groups: int = getattr(classifier, "groups", None) or getattr(classifier, "members", 1)  # type: ignore[assignment]
    like = next(classifier.parameters())
    origin, axes = like.new_zeros(1, classifier.in_features), torch.eye(classifier.in_features).to(like)
    points = torch.cat([origin, axes])
    out = unpack_members(classifier(pack_members(points.expand(groups, -1, -1))), groups)  # (G, 1 + D, C)
    return (out[:, 1:] - out[:, :1]).transpose(1, 2).cpu().numpy(), out[:, 0].cpu().numpy()
