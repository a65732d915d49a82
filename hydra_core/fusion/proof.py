"""Numbers behind "exact": masks against cut weights, and the fused network against its members, in float64."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from hydra_core.errors import Cancelled, DataError
from hydra_core.fusion.ensemble import fuse
from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress

TOLERANCE = 1e-9  # float64 rounding over a deep network stays far below; a wrong cut lies far above


@dataclass(frozen=True)
class Proof:
    """The largest differences over some samples, all classes and all members, in float64.

    Attributes:
        samples: how many samples.
        bites: |logits under the mask - logits of the unpruned model|, one a member; 0 where nothing is pruned.
        native: |logits with all heads kept - logits of the untouched native model|.
        slices: |logits under the mask - logits of the model with the heads cut out of its weights|.
        fused: |probabilities of the fused network - mean of the members' probabilities|.
        pruned: which members lack heads.
    """

    samples: int
    bites: tuple[float, ...]
    native: float
    slices: float
    fused: float
    pruned: tuple[bool, ...]

    @property
    def holds(self) -> bool:
        """Whether the three equalities hold, and every mask changes something."""
        equal = max(self.native, self.slices, self.fused) <= TOLERANCE
        return equal and all(bite > TOLERANCE for bite, p in zip(self.bites, self.pruned, strict=True) if p)


def in_float64(view: ModelView) -> ModelView:
    """A copy of a view whose weights are float64."""
    return replace(view, module=copy.deepcopy(view.module).double(), _local=threading.local())


@torch.inference_mode()
def prove(
    view: ModelView,
    plan: Plan | Sequence[HeadMask],
    x: torch.Tensor,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Proof:
    """Measure on a few prepared samples (B, ...) what the invariants promise (method.md, section 9).

    Raises:
        DataError: no samples.
        Cancelled: `cancel` was set.
    """
    if not len(x):
        raise DataError("A proof needs samples", expected="one or more")
    plan = plan if isinstance(plan, Plan) else Plan(tuple(plan))
    steps, done = 2 + len(plan), 0

    def tell(text: str) -> None:
        nonlocal done
        if cancel is not None and cancel.is_set():
            raise Cancelled("The proof")
        if progress is not None:
            progress(done / steps, text)
        done += 1

    tell("The untouched model in float64")
    exact = in_float64(view)
    x = (x.double() if x.is_floating_point() else x).to(exact.device)
    native, kept = exact.module(x), exact(x)  # (B, C) each
    bites, cuts, masked = [], [], []
    for name, mask in zip(plan.names, plan, strict=True):
        tell(f"Member {name}: mask against cut weights")
        logits = exact(x, mask)
        masked.append(logits)
        bites.append(_largest(logits - kept))
        cuts.append(_largest(logits - prune_model(exact, mask, gate=True)(x)))
    tell("The fused network against its members")
    mean = torch.stack(masked).softmax(-1).mean(0)  # (B, C)
    fused = fuse(exact, plan).predict_proba(x)
    return Proof(
        samples=len(x),
        bites=tuple(bites),
        native=_largest(native - kept),
        slices=max(cuts),
        fused=_largest(fused - mean),
        pruned=tuple(not mask.is_full for mask in plan),
    )


def _largest(difference: torch.Tensor) -> float:
    return float(difference.abs().max())
