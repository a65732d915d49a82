"""ViLU: a small network that foretells a zero-shot model's errors from its features alone.

Lafon et al., "ViLU: Learning Vision-Language Uncertainties for Failure Prediction", ICCV 2025. It reads three vectors
of a sample: the image feature, the text feature of the predicted class, and a text feature conditioned on the image
(cross-attention of the image over all class texts). A perceptron turns them into the chance that the prediction is
wrong; a weighted binary cross-entropy on right and wrong predictions trains it. The zero-shot model is left alone.

Fill-ins: one attention head, the sizes, the weight log(1 + right / wrong) of wrong predictions, and where it learns:
on validation samples, cross-fitted (see `CrossFitted`), where the paper uses a training set.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from hydra_core.errors import DataError
from hydra_core.progress import Progress, step_of
from hydra_core.training.loop import fit
from hydra_core.training.recipe import Recipe

RECIPE = Recipe(epochs=40, batch=128, lr=1e-3, weight_decay=0.05)
HIDDEN = 64
FOLDS = 2


class ViLU(nn.Module):
    """Unit image features (B, D) -> logits (B,) of "the prediction is wrong".

    Args:
        texts: unit text features of the classes, (C, D). They stay as they are; their order changes nothing.
    """

    def __init__(self, texts: torch.Tensor, hidden: int = HIDDEN) -> None:
        super().__init__()
        width = texts.shape[1]
        self.register_buffer("texts", texts)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.read = nn.Sequential(nn.Linear(3 * width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        texts: torch.Tensor = self.texts  # type: ignore[assignment]
        predicted = texts[(images @ texts.T).argmax(-1)]  # (B, D)
        return self.read(torch.cat([images, predicted, self.conditioned(images)], -1)).squeeze(-1)

    def conditioned(self, images: torch.Tensor) -> torch.Tensor:
        """The classes' texts as this image asks for them: cross-attention, (B, D)."""
        texts: torch.Tensor = self.texts  # type: ignore[assignment]
        scores = self.query(images) @ self.key(texts).T / math.sqrt(texts.shape[1])  # (B, C)
        return scores.softmax(-1) @ self.value(texts)


def weighted_loss(logits: torch.Tensor, wrong: torch.Tensor, weight: float) -> torch.Tensor:
    """Binary cross-entropy in which a wrong prediction counts `weight` times: logits (B,), wrong (B,) of 0 and 1."""
    return F.binary_cross_entropy_with_logits(logits, wrong, pos_weight=logits.new_tensor(weight))


def fit_vilu(
    images: torch.Tensor,
    labels: torch.Tensor,
    texts: torch.Tensor,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> ViLU:
    """Learn from the zero-shot model's own right and wrong predictions.

    Args:
        images: unit image features (N, D) of labelled samples.
        labels: their classes (N,).
        texts: unit text features of the classes (C, D).

    Raises:
        DataError: all predictions are right, or all are wrong: there is nothing to tell apart.
        Cancelled: `cancel` was set.
    """
    wrong = ((images @ texts.T).argmax(-1) != labels).to(images.dtype)
    errors = int(wrong.sum())
    if not 0 < errors < len(wrong):
        raise DataError(
            "ViLU learns from right and wrong predictions",
            expected="some of both",
            got=f"{errors} of {len(wrong)} wrong",
        )
    weight = math.log(1 + (len(wrong) - errors) / errors)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ViLU(texts).to(images.dtype)
    recipe = Recipe(**{**vars(RECIPE), "seed": seed})
    fit(
        model,
        images,
        wrong,
        recipe,
        loss=lambda out, y: weighted_loss(out, y, weight),
        progress=progress,
        cancel=cancel,
    )
    return model


@dataclass(frozen=True)
class CrossFitted:
    """ViLU heads that each leave a fold of the samples out, so that each sample can be judged by one that never saw it.

    Attributes:
        heads: one a fold.
        fold_of: sample id -> the head that did not learn from it.
    """

    heads: tuple[ViLU, ...]
    fold_of: dict[str, int]

    @classmethod
    def fit(
        cls,
        ids: Sequence[str],
        images: torch.Tensor,
        labels: torch.Tensor,
        texts: torch.Tensor,
        *,
        seed: int = 0,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> CrossFitted:
        """Stratified folds by label and seed; arguments as in `fit_vilu`, `ids` (N,) beside them."""
        fold = folds(labels.numpy(), seed)
        heads = []
        for f in range(FOLDS):
            keep = torch.from_numpy(fold != f)
            part = step_of(progress, f, FOLDS, "ViLU")
            heads.append(fit_vilu(images[keep], labels[keep], texts, seed=seed, progress=part, cancel=cancel))
        return cls(tuple(heads), dict(zip(ids, fold.tolist(), strict=True)))

    @torch.inference_mode()
    def doubt(self, ids: Sequence[str], images: torch.Tensor) -> np.ndarray:
        """The chance that a prediction is wrong, (N,) float64: by the head that never saw it, else the heads' mean."""
        each = torch.stack([head(images).sigmoid() for head in self.heads], 1).double().numpy()  # (N, folds)
        known = [self.fold_of.get(name) for name in ids]
        return np.array([row.mean() if f is None else row[f] for row, f in zip(each, known, strict=True)])


def folds(labels: np.ndarray, seed: int = 0) -> np.ndarray:
    """A fold (N,) for each sample, even within each class."""
    rng, out = np.random.default_rng(seed), np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        where = rng.permutation(np.flatnonzero(labels == label))
        out[where] = np.arange(len(where)) % FOLDS
    return out
