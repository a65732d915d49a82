"""Linear probes: a classifier fitted on the features of a frozen backbone, images or texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hydra_core.data.sets import SampleSet, stratified_index
from hydra_core.errors import DataError
from hydra_core.memory import by_batches
from hydra_core.models.view import ModelView, build_view
from hydra_core.progress import Progress

if TYPE_CHECKING:
    import threading

LARGE = 20_000_000  # parameters from which a batch of 64 takes too long on a CPU to tell no progress
HELD_OUT = 0.2  # share of the samples that measures the probe, when no other set is given
PENALTY = 1.0  # scikit-learn's C on standardised features (fill-in: its default; no test set chooses it)


@dataclass(frozen=True)
class Probe:
    """logits = features @ weight^T + bias.

    Attributes:
        weight, bias: (C, D) and (C,) float64.
        accuracy: on samples that the measured fit did not see.
        fitted, measured: numbers of samples.
    """

    weight: np.ndarray
    bias: np.ndarray
    accuracy: float
    fitted: int
    measured: int

    def logits(self, features: np.ndarray) -> np.ndarray:
        """(N, D) -> (N, C)."""
        return np.asarray(features, np.float64) @ self.weight.T + self.bias


def linear_probe(
    features: np.ndarray,
    labels: np.ndarray,
    classes: int | None = None,
    *,
    held_out: tuple[np.ndarray, np.ndarray] | None = None,
    seed: int = 0,
) -> Probe:
    """Multinomial logistic regression (scikit-learn) on standardised features.

    Args:
        features: (N, D).
        labels: (N,) class indices.
        classes: number of classes C; None: the largest label + 1.
        held_out: (features, labels) that measure the accuracy. None: a stratified fifth measures a first fit,
            then all samples make the probe.

    Raises:
        DataError: fewer than two classes, a class without samples, or too few samples to hold any out.
    """
    features, labels = np.asarray(features, np.float64), np.asarray(labels, np.int64)
    count = _check(features, labels, classes)
    if held_out is None:
        rng = np.random.default_rng(seed)
        test = np.zeros(len(labels), bool)
        test[stratified_index(labels, max(1, round(HELD_OUT * len(labels))), rng)] = True
        _check(features[~test], labels[~test], count)
        first = _fit(features[~test], labels[~test])
        held_out = features[test], labels[test]
    else:
        first = None
    final = _fit(features, labels)
    weight, bias = first or final
    right = (np.asarray(held_out[0], np.float64) @ weight.T + bias).argmax(1) == np.asarray(held_out[1])
    return Probe(*final, float(right.mean()), len(labels), len(right))


def _check(features: np.ndarray, labels: np.ndarray, classes: int | None) -> int:
    if features.ndim != 2 or len(features) != len(labels) or not np.isfinite(features).all():
        raise DataError("A probe needs one finite feature vector a label", got=f"{features.shape}, {labels.shape}")
    count = classes or int(labels.max(initial=-1)) + 1
    missing = sorted(set(range(count)) - set(labels.tolist()))
    if count < 2 or missing:
        raise DataError(
            "A probe needs samples of every class",
            expected=f"two classes or more, each with samples, out of {count}",
            got=f"{len(labels)} samples, none of class {missing[:5]}" if missing else f"{count} classes",
        )
    return count


def _fit(features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(weight (C, D), bias (C,)) on the features as they are: the standardisation is folded in."""
    from sklearn.linear_model import LogisticRegression

    mean, spread = features.mean(0), features.std(0)
    spread[spread < 1e-12] = 1.0
    model = LogisticRegression(C=PENALTY, max_iter=2000).fit((features - mean) / spread, labels)
    weight, bias = model.coef_, model.intercept_
    if len(model.classes_) == 2:  # one row for two classes: half each way gives the same softmax
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    weight = weight / spread
    return weight, bias - weight @ mean


class Probed(nn.Module):
    """A backbone that gives features (B, D), and a linear classifier on them."""

    def __init__(self, backbone: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    @property
    def num_classes(self) -> int:
        return self.head.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))

    def forward_head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits from the last block's output, where the backbone ends as timm's do; stages check it."""
        backbone: Any = self.backbone
        return self.head(backbone.forward_head(backbone.norm(hidden)))


def features_of(
    view: ModelView,
    samples: SampleSet,
    *,
    batch: int | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> np.ndarray:
    """What the view gives for every sample, (N, D) float64: features, where it has no classifier.

    Args:
        batch: samples at a time, between which progress is told; None: 64, or 8 for a model that takes its time.

    Raises:
        Cancelled: `cancel` was set.
    """
    step = batch or (64 if view.parameters < LARGE else 8)

    def run(part: SampleSet) -> np.ndarray:
        x = view.inputs(part).to(view.device)
        return view(x.to(view.dtype) if x.is_floating_point() else x).double().cpu().numpy()

    return by_batches(samples, step, run, name="Computing features", progress=progress, cancel=cancel)


def with_probe(
    view: ModelView,
    train: SampleSet,
    val: SampleSet | None = None,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> ModelView:
    """A classifier view: the frozen backbone with a linear probe fitted on labelled samples.

    Args:
        view: a view whose output is features, such as `timm` with num_classes=0 or a text encoder.
        train: labelled samples.
        val: measures the accuracy; None: a stratified fifth of `train`.

    Returns:
        A view whose `info["probe_accuracy"]` says how good the probe is, on `info["probe_measured"]` samples.

    Raises:
        DataError: samples without labels, or without samples of a class.
    """
    for samples in (train, val):
        if samples is not None and samples.labels is None:
            raise DataError(f"{samples.name} has no labels", expected="labelled samples to fit a classifier")
    found = features_of(view, train, progress=progress, cancel=cancel)
    held_out = None if val is None else (features_of(view, val, cancel=cancel), val.labels)
    classes = len(train.class_names) or None
    probe = linear_probe(found, train.labels, classes, held_out=held_out)  # type: ignore[arg-type]
    return probed_view(view, probe, train.class_names)


def probed_view(view: ModelView, probe: Probe, class_names: tuple[str, ...] = ()) -> ModelView:
    """The backbone of `view` with this probe; all weights are shared."""
    head = nn.Linear(probe.weight.shape[1], probe.weight.shape[0], dtype=view.dtype, device=view.device)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(probe.weight))
        head.bias.copy_(torch.from_numpy(probe.bias))
    info = {
        **view.info,
        "probe_accuracy": probe.accuracy,
        "probe_fitted": probe.fitted,
        "probe_measured": probe.measured,
    }
    names = class_names or tuple(f"class {i}" for i in range(len(probe.bias)))
    module = Probed(view.module, head)
    return build_view(
        f"{view.name}+probe", module, prepare=view.prepare, class_names=names, input_size=view.input_size, info=info
    )
