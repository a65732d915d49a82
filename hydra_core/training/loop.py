"""One training loop: AdamW, warm-up and cosine, averaged weights, checkpoints, cancel.

Everything random comes from (seed, epoch), so a run that was interrupted and resumed gives
the same weights as one that was not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hydra_core.errors import Cancelled, CheckpointError, DataError, ModelError
from hydra_core.progress import Progress
from hydra_core.training import augment
from hydra_core.training.recipe import Recipe, decay_groups, learning_rate

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass
class Fit:
    """What a training run did: one row an epoch."""

    history: list[dict[str, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Wall time of all epochs."""
        return sum(row["seconds"] for row in self.history)


def fit(
    module: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    recipe: Recipe,
    *,
    loss: Loss | None = None,
    outliers: torch.Tensor | None = None,
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Fit:
    """Train the parameters of `module` that require gradients; the module ends with the averaged weights.

    Args:
        module: maps a batch of inputs to logits (B, C), or to anything `loss` understands; with outliers: to logits
            (B, C), or (M, B, C) of several members.
        x, y: inputs (N, ...) and labels (N,).
        recipe: how to train.
        loss: (logits, labels) -> scalar; None: cross-entropy with the recipe's smoothing.
        outliers: inputs (K, ...) without labels for `outlier_weight`.
        evaluate: called after each epoch on the averaged module; its figures join the history.
        checkpoint: file written after each epoch; if it exists, training goes on from it.
        progress, cancel: as everywhere.

    Returns:
        The history: loss, seconds and `evaluate`'s figures an epoch.

    Raises:
        DataError: no samples, or labels that do not match them.
        ModelError: nothing to train, or the loss is no longer finite.
        CheckpointError: the checkpoint is of another recipe.
        Cancelled: `cancel` was set; the last epoch's checkpoint stays.
    """
    if len(x) != len(y) or not len(x):
        raise DataError("Nothing to train on", expected="one label a sample, at least one", got=(len(x), len(y)))
    run = _Run(module, x, y, recipe, loss or _cross_entropy(recipe), outliers)
    result = Fit(run.resume(checkpoint))
    for epoch in range(len(result.history), recipe.epochs):
        start = time.perf_counter()
        row = {"epoch": float(epoch + 1), "loss": run.epoch(epoch, progress, cancel)}
        if evaluate:
            row |= run.averaged(evaluate)
        row["seconds"] = time.perf_counter() - start
        result.history.append(row)
        run.save(checkpoint, result.history)
    run.finish()
    return result


def _cross_entropy(recipe: Recipe) -> Loss:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=recipe.smoothing)

    return loss


def batches(order: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Indices in batches; a last batch of one joins the one before it, since batch norm cannot train on one."""
    parts = list(order.split(size))
    if len(parts) > 1 and size > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


class _Run:
    """One run: module, optimiser and averaged weights."""

    def __init__(
        self, module: nn.Module, x: torch.Tensor, y: torch.Tensor, recipe: Recipe, loss: Loss, outliers: Any
    ) -> None:
        self.module, self.x, self.y, self.recipe, self.loss = module, x, y, recipe, loss
        self.outliers = outliers if outliers is not None and recipe.outlier_weight else None
        self.optimizer = torch.optim.AdamW(decay_groups(module, recipe.weight_decay), lr=recipe.lr, fused=True)
        self.mean = {k: t.detach().clone() for k, t in module.state_dict().items()} if recipe.ema else {}
        self.per_epoch = len(batches(torch.arange(len(x)), recipe.batch))

    def epoch(self, epoch: int, progress: Progress | None, cancel: threading.Event | None) -> float:
        """One pass over the data; the mean loss."""
        generator = torch.Generator().manual_seed(self.recipe.seed * 100_003 + epoch)
        total, steps = 0.0, self.recipe.epochs * self.per_epoch
        self.module.train()
        with torch.random.fork_rng(devices=[]):  # dropout inside the module repeats too
            torch.manual_seed(self.recipe.seed * 100_003 + epoch)
            for i, index in enumerate(batches(torch.randperm(len(self.x), generator=generator), self.recipe.batch)):
                if cancel is not None and cancel.is_set():
                    raise Cancelled("Training")
                step = epoch * self.per_epoch + i
                total += self.step(index, step, steps, generator) * len(index)
                if progress and i % 20 == 0:
                    progress((step + 1) / steps, f"epoch {epoch + 1} of {self.recipe.epochs}")
        return total / len(self.x)

    def step(self, index: torch.Tensor, step: int, steps: int, generator: torch.Generator) -> float:
        """One step of the optimiser; the loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, step, steps)
        loss = self.batch_loss(self.augmented(self.x[index], generator), self.y[index], generator)
        if not torch.isfinite(loss):
            raise ModelError("Training diverged", got=f"loss {loss.item()}", hint="Lower the learning rate.")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.module.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.average(step)
        return loss.item()

    def batch_loss(self, x: torch.Tensor, y: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Loss of one batch, with mixup and outliers where the recipe asks for them."""
        r, n = self.recipe, len(x)
        order, weight = None, 1.0
        if r.mixup:
            x, order, weight = augment.mixup(x, r.mixup, generator)
        if self.outliers is not None:
            picked = torch.randint(0, len(self.outliers), (max(1, round(n * r.outlier_share)),), generator=generator)
            x = torch.cat([x, self.augmented(self.outliers[picked], generator)])
        logits = self.module(x)
        known = logits if self.outliers is None else logits[..., :n, :]
        loss = weight * self.loss(known, y)
        if order is not None:
            loss = loss + (1 - weight) * self.loss(known, y[order])
        if self.outliers is not None:  # cross-entropy to the uniform distribution (Hendrycks et al., 2019)
            loss = loss - r.outlier_weight * logits[..., n:, :].log_softmax(-1).mean()
        return loss

    def augmented(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        r = self.recipe
        x = augment.shift(x, r.shift, generator) if r.shift else x
        x = augment.flip(x, generator) if r.flip else x
        return augment.erase(x, r.erase, generator) if r.erase else x

    @torch.no_grad()
    def average(self, step: int) -> None:
        """Move the averaged weights; early steps weigh more so that the start is forgotten."""
        decay = min(self.recipe.ema, (step + 1) / (step + 10))
        state = self.module.state_dict()
        for key, mean in self.mean.items():
            mean.lerp_(state[key], 1 - decay) if mean.is_floating_point() else mean.copy_(state[key])

    def averaged(self, use: Callable[[nn.Module], dict[str, float]]) -> dict[str, float]:
        """`use` on the averaged module in eval mode; the trained weights come back afterwards."""
        own = {k: t.clone() for k, t in self.module.state_dict().items()}
        self.finish()
        try:
            with torch.inference_mode():
                return use(self.module)
        finally:
            self.module.load_state_dict(own)

    def finish(self) -> None:
        """Averaged weights into the module, which goes to eval mode."""
        if self.mean:
            self.module.load_state_dict(self.mean)
        self.module.eval()

    def save(self, path: Path | None, history: list[dict[str, float]]) -> None:
        """Write everything a run needs to go on; a half-written file never replaces a whole one."""
        if path is None:
            return
        state = {
            "recipe": asdict(self.recipe),
            "history": history,
            "module": self.module.state_dict(),
            "mean": self.mean,
            "optimizer": self.optimizer.state_dict(),
        }
        part = path.with_suffix(path.suffix + ".part")
        torch.save(state, part)
        os.replace(part, path)

    def resume(self, path: Path | None) -> list[dict[str, float]]:
        """Go on from a checkpoint where there is one; its history."""
        if path is None or not path.is_file():
            return []
        state = torch.load(path, weights_only=True)
        if state["recipe"] != asdict(self.recipe):
            raise CheckpointError(
                f"{path.name} belongs to another recipe",
                expected=asdict(self.recipe),
                got=state["recipe"],
                hint="Remove it, or use the recipe it was made with.",
            )
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.mean = state["mean"]
        return list(state["history"])
