"""Exact savings inside blocks, for many masks on the same samples.

- At the block where masks part, everything up to the output projection is the same for all of them
  (heads are gated at its input): `heads` runs attention once and `step` the rest once a mask.
- The residual sums write over their products, which nobody else holds.
- A classifier that reads one token needs only that token's row of the last block: `LastToken`.

Each is used only for structures it is written for, after a check on one sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hydra_core.models.attention import class_path
from hydra_core.models.stages import Gates, Stages, Stream

PLAIN_BLOCK = "timm.models.vision_transformer.Block"
PLAIN_ATTENTION = "timm.layers.attention.Attention"
PLAIN_MODEL = "timm.models.vision_transformer.VisionTransformer"


class _Heads(Exception):
    """Leaves a block at the input of its output projection."""

    def __init__(self, z: torch.Tensor) -> None:
        self.z = z


class Shortcuts:
    """What can be saved on one model; built once a runner."""

    def __init__(self, stages: Stages, x: torch.Tensor) -> None:
        self.stages = stages
        direct = stages.direct(x)
        self.plain = [direct and _is_plain(slot.block) for slot in stages.slots]
        self.last = LastToken.of(stages) if self.plain[-1] else None
        if self.last is not None and not self._right(x[:1]):
            self.last = None
        if any(self.plain) and not self._right(x[:1]):
            self.plain = [False] * len(self.plain)

    def _right(self, x: torch.Tensor) -> bool:
        """Whether the native logits come out, up to rounding."""
        none: Gates = [None] * len(self.stages.gates)
        start = self.stages.start(x)
        want, got = self.stages.finish(start, none), self.finish(start, none)
        scale = want.abs().max().clamp_min(1e-6)
        return (
            bool((want - got).abs().max() <= 1e-4 * scale) if want.dtype == torch.float32 else torch.allclose(want, got)
        )

    def heads(self, stream: Stream) -> torch.Tensor | None:
        """What the next block's heads hand to the output projection, whatever their gates.

        (B, T, H * d_h), or (B, 1, H * d_h) where only the class token of the last block is read; None where the
        block is not plain.
        """
        b = stream.at
        if b >= len(self.plain) or not self.plain[b]:
            return None
        if self.last is not None and b == len(self.plain) - 1:
            return self.last.heads(stream.hidden)
        block: Any = self.stages.slots[b].block
        return _heads_of(block.attn, block.norm1(stream.hidden))

    def step(self, stream: Stream, gates: Gates, z: torch.Tensor | None = None) -> Stream:
        """The stream after the next block; `z` is what `heads` gave for it, if it is at hand."""
        b = stream.at
        if not self.plain[b]:
            return self.stages.advance(stream, b + 1, gates)
        block: Any = self.stages.slots[b].block
        z = _heads_of(block.attn, block.norm1(stream.hidden)) if z is None else z
        return replace(stream, hidden=_rest(block, stream.hidden, z, gates[self.stages.layers_of[b][0]]), at=b + 1)

    def advance(self, stream: Stream, stop: int, gates: Gates) -> Stream:
        """The stream before block `stop`; as `Stages.advance`."""
        while stream.at < stop and self.plain[stream.at]:
            stream = self.step(stream, gates)
        return self.stages.advance(stream, stop, gates)

    def finish(self, stream: Stream, gates: Gates, z: torch.Tensor | None = None) -> torch.Tensor:
        """Logits (B, C) from any stream; as `Stages.finish`, with the last block cut to the token that is read.

        Args:
            z: what `heads` gave for this very stream, if it is at hand.
        """
        end = len(self.plain) - (self.last is not None)
        if z is not None and stream.at < end:
            stream, z = self.step(stream, gates, z), None
        stream = self.advance(stream, max(end, stream.at), gates)
        if self.last is None or stream.at == len(self.plain):
            return self.stages.finish(stream, gates)
        z = self.heads(stream) if z is None else z
        assert z is not None
        return self.last.logits(stream.hidden, z, gates[self.stages.layers_of[-1][0]])

    def branch(self, stream: Stream, variants: Sequence[Gates]) -> Iterator[Stream]:
        """The stream after the next block under each of several gates, one at a time."""
        z = self.heads(stream) if len(variants) > 1 else None
        for gates in variants:
            yield self.step(stream, gates, z)

    def finish_each(self, stream: Stream, variants: Sequence[Gates]) -> Iterator[torch.Tensor]:
        """Logits under each of several gates that first part at the stream's next block."""
        z = self.heads(stream)
        for gates in variants:
            yield self.finish(stream, gates, z)


def _is_plain(block: Any) -> bool:
    if class_path(block) != PLAIN_BLOCK:
        return False
    attention = block.attn
    if class_path(attention) != PLAIN_ATTENTION or getattr(attention, "gate", None) is not None:
        return False
    # linears of another class (LoRA and the like) are more than their weights
    linears = all(type(linear) is nn.Linear for linear in (attention.qkv, attention.proj))
    return linears and isinstance(attention.norm, nn.Identity)


def _rest(block: Any, x: torch.Tensor, z: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """A plain block from its heads' outputs on, (B, T, d): projection under a gate (H,), residuals, MLP."""
    proj = block.attn.proj
    weight = proj.weight
    if gate is not None:  # gate the columns, not z: the same sum, less memory
        weight = weight * gate.to(weight.dtype).repeat_interleave(block.attn.head_dim)
    x = block.ls1(F.linear(z, weight, proj.bias)).add_(x)  # in place: a product of ours, nobody else holds it
    return block.ls2(block.mlp(block.norm2(x))).add_(x)


def _heads_of(attention: Any, x: torch.Tensor) -> torch.Tensor:
    """What the heads hand to the output projection, (B, T, H * d_h)."""

    def leave(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        raise _Heads(args[0])

    handle = attention.proj.register_forward_pre_hook(leave, prepend=True)
    try:
        attention(x)
    except _Heads as reached:
        return reached.z
    finally:
        handle.remove()
    raise RuntimeError("the attention module never called its output projection")


class LastToken:
    """The last block and the classifier of a plain ViT, for the class token's row only."""

    def __init__(self, model: Any, block: Any) -> None:
        self.model, self.block = model, block

    @classmethod
    def of(cls, stages: Stages) -> LastToken | None:
        model: Any = stages.model
        if class_path(model) != PLAIN_MODEL or model.global_pool != "token" or model.attn_pool is not None:
            return None
        block: Any = stages.slots[-1].block
        return cls(model, block) if isinstance(block.attn.k_norm, nn.Identity) else None  # see `_heads`

    def logits(self, x: torch.Tensor, z: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
        """Logits (B, C) under a gate (H,) from the stream before the last block (B, T, d) and its `heads`."""
        return self.model.forward_head(self.model.norm(_rest(self.block, x[:, :1], z, gate)))

    def heads(self, stream: torch.Tensor) -> torch.Tensor:
        """The class token's heads, (B, 1, H * d_h), from the stream before the last block (B, T, d).

        One query needs no keys and values: q . (W_k x_t + b_k) = (W_k^T q) . x_t + a constant, which softmax
        drops, and the attended mean of W_v x_t + b_v is W_v (attended mean of x_t) + b_v. That takes T * d * H
        multiply-adds in place of T * d * d.
        """
        attn, x = self.block.attn, self.block.norm1(stream)
        B, _, d = x.shape
        H, d_h = attn.num_heads, attn.head_dim
        w_q, w_k, w_v = attn.qkv.weight.view(3, H * d_h, d)
        b_q, _, b_v = (None,) * 3 if attn.qkv.bias is None else attn.qkv.bias.view(3, H * d_h)
        q = attn.q_norm(F.linear(x[:, 0], w_q, b_q).view(B, H, d_h)) * d_h**-0.5
        look = torch.einsum("bhe,hed->bhd", q, w_k.view(H, d_h, d))  # (B, H, d)
        seen = (look @ x.transpose(1, 2)).softmax(-1) @ x  # (B, H, T) @ (B, T, d) -> (B, H, d)
        z = torch.einsum("bhd,hed->bhe", seen, w_v.view(H, d_h, d)).reshape(B, 1, H * d_h)
        return z if b_v is None else z + b_v
