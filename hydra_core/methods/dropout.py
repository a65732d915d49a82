"""MC Dropout: the trained model with dropout left on, several passes (Gal and Ghahramani, ICML 2016)."""

from __future__ import annotations

import torch
from torch import nn

from hydra_core.errors import ModelError, UnsupportedModel
from hydra_core.fusion.grouped import pack_members, unpack_members
from hydra_core.methods.base import Method, OnRows, on_rows
from hydra_core.models.blocks import unchained
from hydra_core.models.shadow import set_child, shadow
from hydra_core.models.view import ModelView

PART = 16  # samples that go through together


class FixedDropout(nn.Module):
    """Dropout of passes on the batch axis, (P*B, ...); a pass's mask is shared by all its samples.

    The mask is drawn from (seed, pass, place). Fill-in: the usual way draws anew for each sample, so that an answer
    depends on the batch it came in.
    """

    def __init__(self, p: float, seed: int, passes: int) -> None:
        super().__init__()
        self.p, self.seed, self.passes = p, seed, passes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.p:
            return x
        keep = torch.stack([self._draw(turn, x.shape[1:]) for turn in range(self.passes)]) >= self.p  # (P, 1, ...)
        scaled = keep.to(x) / (1 - self.p)
        return pack_members(unpack_members(x, self.passes) * scaled)

    def _draw(self, turn: int, shape: torch.Size) -> torch.Tensor:
        generator = torch.Generator().manual_seed((self.seed * 10_007 + turn) % 2**63)
        return torch.rand(1, *shape, generator=generator)

    def extra_repr(self) -> str:
        return f"p={self.p}, seed={self.seed}, passes={self.passes}"


class InParts(nn.Module):
    """Members on rows, a few samples at a time: all passes of a part fit the processor's cache."""

    def __init__(self, rows: OnRows, size: int) -> None:
        super().__init__()
        self.rows, self.size = rows, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.rows(part) for part in x.split(self.size)], dim=1)  # (P, B, C)


class Repeated(nn.Module):
    """A model that gets its input once a pass: for models whose blocks form no chain."""

    def __init__(self, model: nn.Module, passes: int) -> None:
        super().__init__()
        self.model, self.passes = model, passes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.repeat(self.passes, *(1,) * (x.ndim - 1)))


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
        set_child(model, path, FixedDropout(p, seed * 1_009 + i, passes))
    for module in model.modules():
        if getattr(module, "fused_attn", False):
            module.fused_attn = False  # type: ignore[assignment]  # the fused kernel has no place after the softmax
    if unchained(view.module):
        rows = OnRows(Repeated(model, passes), range(passes))
    else:  # what comes before the first dropout is the same for all passes: it runs once
        rows = on_rows(view, model, passes)
    return Method(view, InParts(rows, PART))


def dropout_paths(model: nn.Module) -> list[str]:
    """Dotted paths of the model's dropout modules; in most checkpoints their share is 0."""
    return [path for path, module in model.named_modules() if isinstance(module, nn.Dropout)]
