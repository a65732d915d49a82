"""Exact savings inside blocks, for many masks on the same samples.

- At the block where masks part, everything up to the output projection is the same for all of them
  (heads are gated at its input): `branch` runs attention once and the rest once a mask.
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
        if self.last is not None and not self._last_is_right(x[:1]):
            self.last = None

    def _last_is_right(self, x: torch.Tensor) -> bool:
        none: Gates = [None] * len(self.stages.gates)
        stream = self.stages.advance(self.stages.start(x), len(self.plain) - 1, none)
        want, got = self.stages.finish(stream, none), self.finish(stream, none)
        scale = want.abs().max().clamp_min(1e-6)
        return (
            bool((want - got).abs().max() <= 1e-4 * scale) if want.dtype == torch.float32 else torch.allclose(want, got)
        )

    def finish(self, stream: Stream, gates: Gates) -> torch.Tensor:
        """Logits (B, C) from any stream; as `Stages.finish`, with the last block cut to the token that is read."""
        if self.last is None or stream.at == len(self.plain):
            return self.stages.finish(stream, gates)
        before = self.stages.advance(stream, len(self.plain) - 1, gates)
        return self.last(before.hidden, gates[self.stages.layers_of[-1][0]])

    def branch(self, stream: Stream, variants: Sequence[Gates]) -> Iterator[Stream]:
        """The stream after the next block under each of several gates, one at a time."""
        b = stream.at
        if not self.plain[b] or len(variants) < 2:
            for gates in variants:
                yield self.stages.advance(stream, b + 1, gates)
            return
        block: Any = self.stages.slots[b].block
        z = _heads_of(block.attn, block.norm1(stream.hidden))
        layer = self.stages.layers_of[b][0]
        for gates in variants:
            yield replace(stream, hidden=_rest(block, stream.hidden, z, gates[layer]), at=b + 1)

    def finish_each(self, stream: Stream, variants: Sequence[Gates]) -> Iterator[torch.Tensor]:
        """Logits under each of several gates that first part at the stream's next block."""
        if stream.at == len(self.plain) - 1 and self.last is not None:
            layer = self.stages.layers_of[-1][0]
            yield from self.last.each(stream.hidden, [gates[layer] for gates in variants])
            return
        for after, gates in zip(self.branch(stream, variants), variants, strict=True):
            yield self.finish(after, gates)


def _is_plain(block: nn.Module) -> bool:
    if class_path(block) != PLAIN_BLOCK:
        return False
    attention: Any = block.attn
    if class_path(attention) != PLAIN_ATTENTION or getattr(attention, "gate", None) is not None:
        return False
    return isinstance(attention.norm, nn.Identity)


def _rest(block: Any, x: torch.Tensor, z: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
    """A plain block from its heads' outputs on, (B, T, d): projection under a gate (H,), residuals, MLP."""
    proj = block.attn.proj
    weight = proj.weight
    if gate is not None:  # gate the columns, not z: the same sum, less memory
        weight = weight * gate.to(weight.dtype).repeat_interleave(block.attn.head_dim)
    x = x + block.drop_path1(block.ls1(F.linear(z, weight, proj.bias)))
    return x + block.drop_path2(block.ls2(block.mlp(block.norm2(x))))


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
        return cls(model, stages.slots[-1].block)

    def __call__(self, x: torch.Tensor, gate: torch.Tensor | None) -> torch.Tensor:
        return next(iter(self.each(x, [gate])))

    def each(self, x: torch.Tensor, gates: Sequence[torch.Tensor | None]) -> Iterator[torch.Tensor]:
        """Logits (B, C) under each gate (H,) of the last layer, from the stream before it (B, T, d)."""
        z = self._heads(self.block.norm1(x))  # (B, 1, H * d_h)
        for gate in gates:
            yield self.model.forward_head(self.model.norm(_rest(self.block, x[:, :1], z, gate)))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        attn = self.block.attn
        B, T, _ = x.shape
        inner = attn.num_heads * attn.head_dim
        weight, bias = attn.qkv.weight, attn.qkv.bias
        q_bias, kv_bias = (None, None) if bias is None else (bias[:inner], bias[inner:])
        q = F.linear(x[:, :1], weight[:inner], q_bias).reshape(B, 1, attn.num_heads, attn.head_dim).transpose(1, 2)
        kv = F.linear(x, weight[inner:], kv_bias).reshape(B, T, 2, attn.num_heads, attn.head_dim)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, T, d_h) each
        out = F.scaled_dot_product_attention(attn.q_norm(q), attn.k_norm(k), v)  # (B, H, 1, d_h)
        return out.transpose(1, 2).reshape(B, 1, inner)
