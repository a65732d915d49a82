"""Any row with its logits scaled after training; the scaling is fitted on validation data (metrics.scaling)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hydra_core.cost import Cost
from hydra_core.errors import UnknownNameError
from hydra_core.methods.base import Method
from hydra_core.metrics.scaling import fit_temperature, fit_vector_scaling

SCALINGS: dict[str, Callable[[Any, Any], Callable[[Any], np.ndarray]]] = {
    "temperature": fit_temperature,
    "vector": fit_vector_scaling,
}


class Scaled(Method):
    """A row and its scaling.

    Args:
        method: the row; its cost is this row's cost.
        val_logits: its logits on validation samples, (M, N, C).
        labels: (N,).
        kind: a name in SCALINGS.

    Raises:
        UnknownNameError: no such scaling.
        MetricError: the logits cannot be used.
    """

    def __init__(self, method: Method, val_logits: Any, labels: Any, kind: str = "temperature") -> None:
        if kind not in SCALINGS:
            raise UnknownNameError("scaling", kind, SCALINGS)
        super().__init__(method.view, method.net)
        self.method, self.scaling = method, SCALINGS[kind](val_logits, labels)

    def member_logits(self, x: torch.Tensor) -> torch.Tensor:
        """Scaled logits of every member, (M, B, C) float64."""
        return torch.from_numpy(self.scaling(self.method.member_logits(x).cpu().numpy()))

    def cost(self) -> Cost:
        """That of the row below: a few products a sample more are not counted."""
        return self.method.cost()
