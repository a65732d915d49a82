"""Proposition 1 of the paper, measured: does pruning make a model worse under noise (method.md, section 5)?

Let L_c, L_n be the mean loss on clean and on noisy images, delta = minus the weights of the pruned heads (their columns
of the output projection). The gap L_n - L_c changes by pruning, to second order, by

    (g_n - g_c) . delta  +  1/2 delta^T (H_n - H_c) delta.

The proposition says that it grows where g_c = 0, g_n . delta >= 0 and the quadratic form is >= 0. Weights
theta + t delta are gates 1 - t on the pruned heads, the same function: so g . delta and delta^T H delta are the first
and second derivative by t, two passes of automatic differentiation a mask. All are means over samples, so that each
comes with an interval. The gradient on training data is not at hand: clean validation samples stand for it (fill-in).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from hydra_core.data.sets import SampleSet, labelled
from hydra_core.errors import Cancelled, DataError, MaskError
from hydra_core.fusion.evaluator import MaskEvaluator
from hydra_core.heads.mask import HeadMask
from hydra_core.metrics.classification import Predictions
from hydra_core.models.stages import Gates
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress, step_of

Z95 = 1.959964  # a normal 95 % interval is this many standard errors to each side


@dataclass(frozen=True)
class Estimate:
    """A mean over samples and its 95 % interval (normal approximation; NaN with one sample)."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: np.ndarray) -> Estimate:
        """From one value a sample, (N,)."""
        mean = float(values.mean())
        half = Z95 * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return cls(mean, mean - half, mean + half)

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies on one side of zero, else 0: the samples do not tell."""
        return int(self.low > 0) - int(self.high < 0)


@dataclass(frozen=True)
class NoiseGap:
    """One mask under one noise.

    Attributes:
        corruption, severity: of the noisy samples.
        keep: heads kept in each pruned layer, where the mask is one of a path; else None.
        pruned, total: heads.
        mask: its text.
        clean, noisy: mean loss (nats) of the unpruned model.
        clean_pruned, noisy_pruned: of the pruned one.
        change: how much pruning moves the gap noisy - clean: what the proposition is about.
        slope_clean, slope_noisy: g . delta.
        slope: (g_n - g_c) . delta, the first predicted term.
        curvature: 1/2 delta^T (H_n - H_c) delta, the second one.
        predicted: their sum.
    """

    corruption: str
    severity: int
    keep: int | None
    pruned: int
    total: int
    mask: str
    clean: float
    noisy: float
    clean_pruned: float
    noisy_pruned: float
    change: Estimate
    slope_clean: Estimate
    slope_noisy: Estimate
    slope: Estimate
    curvature: Estimate
    predicted: Estimate

    @property
    def gap(self) -> float:
        """Loss on noisy minus loss on clean images, unpruned."""
        return self.noisy - self.clean

    @property
    def gap_pruned(self) -> float:
        """The same of the pruned model."""
        return self.noisy_pruned - self.clean_pruned

    @property
    def premises(self) -> dict[str, bool | None]:
        """The proposition's three premises: whether each holds; None where the interval does not tell."""
        told: Callable[[Estimate], bool | None] = lambda e: None if e.sign == 0 else e.sign > 0  # noqa: E731
        return {
            "stationary": self.slope_clean.sign == 0,
            "slope": told(self.slope_noisy),
            "curvature": told(self.curvature),
        }

    @property
    def grows(self) -> bool | None:
        """The proposition's claim, measured: whether the gap grows; None where the interval does not tell."""
        return None if self.change.sign == 0 else self.change.sign > 0

    def row(self) -> dict[str, Any]:
        """Flat values for a table: an estimate NAME gives NAME, NAME_low, NAME_high, a premise holds_NAME."""
        out: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Estimate):
                out |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
            else:
                out[name] = value
        premises = {f"holds_{name}": holds for name, holds in self.premises.items()}
        return out | {"gap": self.gap, "gap_pruned": self.gap_pruned, **premises, "grows": self.grows}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NoiseGap:
        """What `asdict` made of it, back from JSON."""
        values: dict[str, Any] = {k: Estimate(**v) if isinstance(v, Mapping) else v for k, v in data.items()}
        return cls(**values)


@dataclass(frozen=True, eq=False)
class Side:
    """What one set of samples, clean or noisy, says of K masks.

    Attributes:
        losses: (1 + K, N) cross-entropy a sample in nats: of the whole model, then under each mask.
        slopes, curves: (K, N) first and second derivative of it by t at t = 0, the pruned heads gated by 1 - t.
    """

    losses: np.ndarray
    slopes: np.ndarray
    curves: np.ndarray


def measure_side(
    view: ModelView,
    samples: SampleSet,
    masks: Sequence[HeadMask],
    *,
    budget_mb: float = 512,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Side:
    """Losses and their derivatives along each mask's delta.

    Raises:
        DataError: no samples or no labels. MaskError: no mask, or one that prunes nothing.
    """
    labels = labelled(samples)
    if not masks or any(mask.check(view.shape).is_full for mask in masks):
        got = "a mask that keeps all heads" if masks else "no mask"
        raise MaskError("Noise is measured on pruned models", expected="masks that remove a head", got=got)
    evaluator = MaskEvaluator(view, view.inputs(samples), budget_mb=budget_mb)
    table = evaluator.many([HeadMask.full(view.shape), *masks], progress=step_of(progress, 0, 3), cancel=cancel)
    losses = np.stack([Predictions.of(logits).surprise(labels) for logits in table])
    later = None if progress is None else lambda share, text: progress((1 + 2 * share) / 3, text)
    slopes, curves = derivatives(view, samples, masks, progress=later, cancel=cancel)
    return Side(losses, slopes, curves)


def derivatives(
    view: ModelView,
    samples: SampleSet,
    masks: Sequence[HeadMask],
    *,
    chunk: int = 64,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """d loss/dt and d2 loss/dt2 at t = 0 of every sample, (K, N) each; see `Side`.

    Blocks before the first pruned head carry no derivative and run once without a graph.
    """
    labels = torch.as_tensor(labelled(samples))
    directions = [[torch.tensor(row, dtype=view.dtype, device=view.device) - 1 for row in mask.rows] for mask in masks]
    first = min(view.layers[mask.first_pruned_layer].block for mask in masks)
    parts = []
    for start in range(0, len(samples), chunk):
        index = np.arange(start, min(start + chunk, len(samples)))
        x = view.inputs(samples.take(index)).to(view.device)
        where = f"Derivatives of {start + len(index)} of {len(samples)} samples"
        step = step_of(progress, start // chunk, -(-len(samples) // chunk), where)
        parts.append(_chunk(view, x, labels[index].to(view.device), directions, first, step, cancel))
    slopes, curves = np.concatenate(parts, axis=2)  # (2, K, N)
    return slopes, curves


def _chunk(
    view: ModelView,
    x: torch.Tensor,
    labels: torch.Tensor,
    directions: Sequence[Sequence[torch.Tensor]],
    first: int,
    progress: Progress | None,
    cancel: threading.Event | None,
) -> np.ndarray:
    """(2, K, B): first and second derivative; every sample has gates of its own, so samples stay apart."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    grad, found = torch.autograd.grad, []
    # only the plain attention kernel can be differentiated twice; inference tensors not at all
    with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        stages, none = view.stages(), [None] * len(view.layers)
        with torch.no_grad():
            stream = stages.advance(stages.start(x.clone()), first, none)
        gates = [torch.ones(len(x), h, dtype=view.dtype, device=x.device, requires_grad=True) for h in view.shape]
        live: Gates = [g if layer.block >= first else None for g, layer in zip(gates, view.layers, strict=True)]
        loss = F.cross_entropy(stages.finish(stream, live), labels.clone(), reduction="sum")
        slopes = grad(loss, gates, create_graph=True, allow_unused=True)  # one (B, H_l) a layer
        for done, direction in enumerate(directions):
            if cancel is not None and cancel.is_set():
                raise Cancelled("The measurement")
            along = _along(slopes, direction)  # (B,)
            bends = grad(along.sum(), gates, retain_graph=True, allow_unused=True)
            found.append(torch.stack([along.detach(), _along(bends, direction).detach()]))  # (2, B)
            if progress is not None:
                progress((done + 1) / len(directions), f"mask {done + 1} of {len(directions)}")
    return torch.stack(found, 1).double().cpu().numpy()


def _along(parts: Sequence[torch.Tensor | None], direction: Sequence[torch.Tensor]) -> torch.Tensor:
    """Inner product a sample: (B, H_l) a layer with (H_l,) a layer -> (B,)."""
    return torch.stack([(p * d).sum(-1) for p, d in zip(parts, direction, strict=True) if p is not None]).sum(0)


def compare_sides(
    clean: Side,
    noisy: Side,
    masks: Sequence[HeadMask],
    *,
    corruption: str = "",
    severity: int = 0,
    keeps: Sequence[int | None] | None = None,
) -> list[NoiseGap]:
    """One row a mask, from two sides measured on the same samples in the same order.

    Raises:
        DataError: the sides differ in samples or masks.
    """
    if clean.losses.shape != noisy.losses.shape or len(clean.losses) != len(masks) + 1:
        raise DataError(
            "The clean and the noisy side do not belong together",
            expected=f"{clean.losses.shape[1]} samples and {len(masks)} masks",
            got=f"{noisy.losses.shape[1]} and {len(noisy.losses) - 1}",
        )
    gaps = noisy.losses - clean.losses  # (1 + K, N)
    slopes, curves = noisy.slopes - clean.slopes, (noisy.curves - clean.curves) / 2  # (K, N)
    rows = []
    for k, mask in enumerate(masks):
        row = NoiseGap(
            corruption, severity, None if keeps is None else keeps[k], mask.total - mask.kept, mask.total, mask.text,
            clean=float(clean.losses[0].mean()), noisy=float(noisy.losses[0].mean()),
            clean_pruned=float(clean.losses[k + 1].mean()), noisy_pruned=float(noisy.losses[k + 1].mean()),
            change=Estimate.of(gaps[k + 1] - gaps[0]),
            slope_clean=Estimate.of(clean.slopes[k]), slope_noisy=Estimate.of(noisy.slopes[k]),
            slope=Estimate.of(slopes[k]), curvature=Estimate.of(curves[k]),
            predicted=Estimate.of(slopes[k] + curves[k]),
        )  # fmt: skip
        rows.append(row)
    return rows


def pruning_path(
    scores: Any, shape: Sequence[int], keeps: Sequence[int], layers: Sequence[int] | None = None
) -> list[HeadMask]:
    """Masks that keep fewer and fewer heads a layer, the best by `scores` (a layer with fewer keeps its own)."""
    return [HeadMask.top(scores, [min(keep, heads) for heads in shape], layers) for keep in keeps]
