"""Any predictor on a labelled set and OOD sets: one report."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from hydra_core.data.sets import SampleSet, labelled
from hydra_core.fusion.ensemble import HydraEnsemble
from hydra_core.memory import by_batches
from hydra_core.metrics import Report, evaluate_logits
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress

Forward = Callable[[torch.Tensor], torch.Tensor]  # (B, ...) -> (B, C) or (M, B, C)


def evaluate(
    predictor: ModelView | HydraEnsemble,
    samples: SampleSet,
    ood: Mapping[str, SampleSet] | None = None,
    *,
    bootstrap: int = 200,
    batch: int = 128,
    **options: Any,
) -> Report:
    """Accuracy, NLL, Brier, ECE, OOD detection ... of a model or a fused ensemble.

    Args:
        samples: labelled in-distribution samples.
        ood: OOD sets by name.
        bootstrap: resamples for 95 % intervals; 0 for none.
        options: handed to `hydra_core.metrics.evaluate_logits`.
    """
    view = predictor.view if isinstance(predictor, HydraEnsemble) else predictor
    ood = ood or {}
    logits = forward_set(view, predictor, samples, batch)
    others = {name: forward_set(view, predictor, part, batch) for name, part in ood.items()}
    shifts = {name: part.shift for name, part in ood.items()}
    return evaluate_logits(logits, labelled(samples), others or None, shifts=shifts, bootstrap=bootstrap, **options)


@torch.inference_mode()
def forward_set(
    view: ModelView,
    forward: Forward,
    samples: SampleSet,
    batch: int = 128,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> np.ndarray:
    """Logits of a whole set, (N, C) or (M, N, C), prepared as the view's model wants it.

    Raises:
        Cancelled: `cancel` was set.
    """

    def run(part: SampleSet) -> np.ndarray:
        return forward(view.inputs(part).to(view.device)).float().cpu().numpy()

    return by_batches(samples, batch, run, axis=-2, name="The evaluation", progress=progress, cancel=cancel)
