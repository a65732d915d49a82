"""OOD scores of features, fitted on ID samples: Mahalanobis, k-nearest neighbours, ViM.

An ensemble has one feature array a member: each member gets its own fit, and the scores are averaged (fill-in; the
published methods know single models only).

KNN and ViM are those of pytorch-ood on cached features. Mahalanobis is written out in float64: that library computes
in float32, where the features of a layer norm (which all lie in one plane) make the shared covariance singular.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hydra_core.errors import MetricError
from hydra_core.metrics.check import as_float, check_finite, check_labels
from hydra_core.metrics.scores import OOD_SCORES, score_named

MOST_CLASSES = 1_000_000  # labels alone do not tell how many classes there are
Detector = Callable[[np.ndarray], np.ndarray]  # (N, D) -> (N,)


@dataclass(frozen=True, eq=False)
class FeatureScore:
    """A fitted score: call it with features (N, D) or (M, N, D) to get (N,), higher is more OOD."""

    name: str
    detectors: tuple[Detector, ...]
    width: int

    def __call__(self, features: Any) -> np.ndarray:
        array = check_features(features)
        expected = (len(self.detectors), self.width)
        if (array.shape[0], array.shape[2]) != expected:
            raise MetricError(
                "The features do not fit those the score was fitted on",
                expected=f"{expected[0]} members of width {expected[1]}",
                got=array.shape,
            )
        scores = [fn(member) for fn, member in zip(self.detectors, array, strict=True)]
        return np.asarray(scores, dtype=np.float64).mean(axis=0)


def fit_feature_score(
    name: str,
    features: Any,
    labels: Any,
    *,
    weight: Any = None,
    bias: Any = None,
    neighbours: int = 50,
    dim: int | None = None,
) -> FeatureScore:
    """Fit a score on ID samples (training or validation, never a test set).

    Args:
        name: "mahalanobis", "knn" or "vim".
        features: (N, D) or (M, N, D): what goes into the classifier.
        labels: (N,) class indices; every class from 0 to the highest must occur.
        weight, bias: the classifier's (C, D) and (C,), or one a member, (M, C, D) and (M, C); for ViM only.
        neighbours: k of KNN.
        dim: dimensions of ViM's principal space; None: half the width.

    Raises:
        UnknownNameError: there is no such score.
        MetricError: a score of logits, features or labels that do not fit, a class without samples, too few samples.
    """
    if score_named(name).needs != "features":
        raise MetricError(
            f"{OOD_SCORES[name].label} needs no fit",
            expected="mahalanobis, knn or vim",
            got=name,
            hint="Use ood_score.",
        )
    array = check_features(features)
    members, samples, width = array.shape
    y = check_labels(labels, samples, MOST_CLASSES)
    if name == "mahalanobis":
        fits = [_mahalanobis(z, y) for z in array]
    elif name == "knn":
        fits = [_knn(z, y, neighbours) for z in array]
    else:
        parts = zip(array, *_classifier(weight, bias, members, width), strict=True)
        fits = [_vim(z, y, w, b, dim or max(1, width // 2)) for z, w, b in parts]
    return FeatureScore(name, tuple(fits), width)


def check_features(features: Any) -> np.ndarray:
    """Features as (M, N, D) float64; (N, D) becomes one member."""
    array = as_float(features, "features")
    array = array[None] if array.ndim == 2 else array
    if array.ndim != 3 or not array.size:
        raise MetricError(
            "The features have the wrong shape",
            expected="(samples, width) or (members, samples, width), not empty",
            got=array.shape,
        )
    return check_finite(array, "features", ("member", "sample", "feature"))


def _mahalanobis(z: np.ndarray, y: np.ndarray) -> Detector:
    counts = np.bincount(y)
    if not counts.all():
        raise MetricError(
            "A class has no samples",
            expected="every class from 0 to the highest",
            got=f"none of class {int(np.argmin(counts > 0))}",
        )
    means = np.stack([z[y == c].mean(axis=0) for c in range(len(counts))])  # (C, D)
    centred = z - means[y]
    # directions in which ID samples do not vary (rounding aside) have no scale and are left out
    precision = np.linalg.pinv(centred.T @ centred / len(z), rcond=1e-10, hermitian=True)

    def score(x: np.ndarray) -> np.ndarray:
        away = x[:, None, :] - means  # (N, C, D)
        return 0.5 * np.einsum("ncd,de,nce->nc", away, precision, away, optimize=True).min(axis=1)

    return score


def _knn(z: np.ndarray, y: np.ndarray, neighbours: int) -> Detector:
    if not 1 <= neighbours <= len(z):
        raise MetricError("k is out of range", expected=f"1 to {len(z)} (the samples there are)", got=neighbours)
    import torch
    from pytorch_ood.detector import KNN

    fitted = KNN(None, k=neighbours).fit_features(torch.from_numpy(z), torch.from_numpy(y))
    return lambda x: fitted.predict_features(torch.from_numpy(x)).numpy()


def _vim(z: np.ndarray, y: np.ndarray, w: np.ndarray, b: np.ndarray, dim: int) -> Detector:
    if not 1 <= dim < z.shape[1]:
        raise MetricError(
            "The principal space is too wide", expected=f"1 to {z.shape[1] - 1} dimensions (width - 1)", got=dim
        )
    import torch
    from pytorch_ood.detector import ViM

    fitted = ViM(None, d=dim, w=torch.from_numpy(w), b=torch.from_numpy(b))
    fitted.fit_features(torch.from_numpy(z), torch.from_numpy(y))
    return lambda x: fitted.predict_features(torch.from_numpy(x)).numpy()


def _classifier(weight: Any, bias: Any, members: int, width: int) -> Sequence[np.ndarray]:
    """The classifiers as (M, C, D) and (M, C); one for all members is repeated."""
    if weight is None or bias is None:
        raise MetricError(
            "ViM needs the classifier", expected="weight (C, D) and bias (C,)", got="none", hint="Pass weight and bias."
        )
    w, b = as_float(weight, "weights"), as_float(bias, "biases")
    w = np.broadcast_to(w, (members, *w.shape)) if w.ndim == 2 else w
    b = np.broadcast_to(b, (members, *b.shape)) if b.ndim == 1 else b
    if w.ndim != 3 or w.shape[0] != members or w.shape[2] != width or b.shape != w.shape[:2]:
        raise MetricError(
            "The classifier does not fit the features",
            expected=f"weights ({members}, C, {width}) and biases ({members}, C)",
            got=f"{w.shape} and {b.shape}",
        )
    return w.copy(), b.copy()
