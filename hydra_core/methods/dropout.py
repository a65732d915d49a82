"""MC Dropout: the trained model with dropout left on, several passes (Gal and Ghahramani, ICML 2016)."""

from __future__ import annotations

import torch
from torch import nn

from hydra_core.errors import ModelError, UnsupportedModel
from hydra_core.methods.base import Method
from hydra_core.models.shadow import set_child, shadow
from hydra_core.models.view import ModelView


class FixedDropout(nn.Module):
    """Dropout whose mask is drawn from (seed, pass, place) and shared by all samples of the batch.

    Fill-in: the usual way draws anew for each sample, so that an answer depends on the batch it came in.
    """

    def __init__(self, p: float, seed: int) -> None:
        super().__init__()
        self.p, self.seed, self.turn = p, seed, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.p:
            return x
        generator = torch.Generator().manual_seed((self.seed * 10_007 + self.turn) % 2**63)
        keep = torch.rand(1, *x.shape[1:], generator=generator) >= self.p  # (1, ...): one draw for all samples
        return x * (keep.to(x) / (1 - self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}, seed={self.seed}"


class Passes(nn.Module):
    """One model, run with another dropout mask in each pass: (B, ...) -> (passes, B, C)."""

    def __init__(self, model: nn.Module, passes: int) -> None:
        super().__init__()
        self.model, self.passes = model, passes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drops = [m for m in self.model.modules() if isinstance(m, FixedDropout)]
        outs = []
        for turn in range(self.passes):
            for drop in drops:
                drop.turn = turn
            outs.append(self.model(x))
        return torch.stack(outs)


def mc_dropout(view: ModelView, *, passes: int = 8, p: float = 0.1, seed: int = 0) -> Method:
    """Dropout active in attention and MLP, at every place where the model's own code has one.

    Args:
        passes: members.
        p: share of the values dropped.

    Raises:
        ModelError: p is no share.
        UnsupportedModel: the model has no place for dropout.
    """
    if not 0 <= p < 1:
        raise ModelError("The share of dropped values is out of range", expected="0 to under 1", got=p)
    model = shadow(view.module)
    inside = [path for path in dropout_paths(model) if any(path.startswith(f"{b}.") for b in view.blocks)]
    if not inside:
        raise UnsupportedModel(
            f"{view.name} has no place for dropout", expected="dropout modules in its blocks", got="none"
        )
    for i, path in enumerate(inside):
        set_child(model, path, FixedDropout(p, seed * 1_009 + i))
    for module in model.modules():
        if getattr(module, "fused_attn", False):
            module.fused_attn = False  # type: ignore[assignment]  # the fused kernel has no place after the softmax
    return Method(view, Passes(model, passes))


def dropout_paths(model: nn.Module) -> list[str]:
    """Dotted paths of the model's dropout modules; in most checkpoints their share is 0."""
    return [path for path, module in model.named_modules() if isinstance(module, nn.Dropout)]
