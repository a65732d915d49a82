"""Attention with fewer heads than its input has channels, for classes of timm that cannot hold that.

Their forwards reshape the heads' output to the input's width. These modules compute the same function
with the kept heads only; families cut into them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class CutAttention(nn.Module):
    """softmax(score(q, k) + bias) v for each head, then the projection. (B, N, C) -> (B, N, C).

    Args:
        qkv: C -> 3 * heads * head_dim, laid out q | k | v.
        proj: heads * head_dim -> C.
        kept: indices of the heads in the module it was cut from, for biases that come from outside.
    """

    kept: torch.Tensor

    def __init__(self, qkv: nn.Linear, proj: nn.Linear, head_dim: int, kept: torch.Tensor) -> None:
        super().__init__()
        self.qkv, self.proj = qkv, proj
        self.num_heads, self.head_dim = len(kept), head_dim
        self.register_buffer("kept", kept, persistent=False)

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v, each (B, H, N, d)."""
        qkv = self.qkv(x).reshape(*x.shape[:2], 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def join(self, z: torch.Tensor) -> torch.Tensor:
        """Heads' outputs (B, H, N, d) -> (B, N, C)."""
        return self.proj(z.transpose(1, 2).flatten(2))


class CutBiased(CutAttention):
    """With a bias by relative position, its own (`rel_pos`) or handed in by the model: BEiT, RelPos-ViT."""

    def __init__(self, *parts: Any, q_norm: nn.Module, k_norm: nn.Module, rel_pos: nn.Module | None) -> None:
        super().__init__(*parts)
        self.q_norm, self.k_norm, self.rel_pos = q_norm, k_norm, rel_pos

    def forward(
        self,
        x: torch.Tensor,
        shared_rel_pos: torch.Tensor | None = None,
        shared_rel_pos_bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """RelPos-ViT takes the model's bias where it has none of its own, BEiT adds the two."""
        q, k, v = self.split(x)
        bias = None if self.rel_pos is None else self.rel_pos.get_bias()  # type: ignore[operator]
        shared = shared_rel_pos if bias is None else None
        for outside in (shared, shared_rel_pos_bias):  # (..., all heads, N, N)
            if outside is not None:
                own = outside[..., self.kept, :, :]
                bias = own if bias is None else bias + own
        return self.join(F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, attn_mask=bias))


class TableBias(nn.Module):
    """BEiT's and Swin's table: one value an offset and head. `get_bias` gives (1, H, N, N)."""

    index: torch.Tensor

    def __init__(self, table: nn.Parameter, index: torch.Tensor) -> None:
        super().__init__()
        self.table = table  # (offsets, H)
        self.register_buffer("index", index, persistent=False)  # (N, N)

    def get_bias(self) -> torch.Tensor:
        return self.table[self.index].permute(2, 0, 1)[None]


class LogBias(nn.Module):
    """Swin v2: a small network over log-spaced offsets. `get_bias` gives (1, H, N, N)."""

    offsets: torch.Tensor
    index: torch.Tensor | None

    def __init__(self, mlp: nn.Module, offsets: torch.Tensor, index: torch.Tensor | None) -> None:
        super().__init__()
        self.mlp = mlp
        self.register_buffer("offsets", offsets, persistent=False)
        self.register_buffer("index", index, persistent=False)

    def get_bias(self) -> torch.Tensor:
        values = self.mlp(self.offsets)
        heads = values.shape[-1]
        if self.index is None:  # the CR variant holds one row for every pair of tokens, and no sigmoid
            area = math.isqrt(values.numel() // heads)
            return values.transpose(0, 1).reshape(1, heads, area, area)
        return 16 * torch.sigmoid(values.view(-1, heads)[self.index].permute(2, 0, 1)[None])


class CutCosine(CutAttention):
    """Swin v2 and its CR variant: cosine scores with a scale a head, windows with an optional shift mask."""

    def __init__(self, *parts: Any, logit_scale: nn.Parameter, rel_pos: nn.Module) -> None:
        super().__init__(*parts)
        self.logit_scale, self.rel_pos = logit_scale, rel_pos

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.split(x)  # windows of all images on the first axis
        scale = self.logit_scale.reshape(-1, 1, 1).clamp(max=math.log(100.0)).exp()
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * scale
        scores = scores + self.rel_pos.get_bias()  # type: ignore[operator]
        if mask is not None:  # (windows, N, N)
            windows = scores.reshape(-1, mask.shape[0], *scores.shape[1:])
            scores = (windows + mask[None, :, None]).reshape(scores.shape)
        return self.join(scores.softmax(-1) @ v)


class CutChannels(CutAttention):
    """Attention between a head's channels, with a temperature a head: XCiT, EdgeNeXt."""

    def __init__(self, *parts: Any, temperature: nn.Parameter) -> None:
        super().__init__(*parts)
        self.temperature = temperature

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.transpose(-2, -1) for part in self.split(x))  # (B, H, d, N)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.temperature
        return self.join((scores.softmax(-1) @ v).transpose(-2, -1))


class CutMap(CutAttention):
    """Plain attention over a map: (B, C, H, W) -> (B, C, H, W). FastViT."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(x.flatten(2).transpose(1, 2))
        z = self.join(F.scaled_dot_product_attention(q, k, v))  # (B, N, C)
        return z.transpose(1, 2).reshape(x.shape)


class CutClass(nn.Module):
    """Only the first token asks, all answer: (B, N, C) -> (B, 1, C). CaiT, XCiT, CrossViT.

    Args:
        q, k, v: C -> heads * head_dim.
        proj: heads * head_dim -> C.
    """

    def __init__(self, q: nn.Linear, k: nn.Linear, v: nn.Linear, proj: nn.Linear, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.proj, self.num_heads = q, k, v, proj, heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            linear(tokens).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, H, N, d)
            for linear, tokens in ((self.q, x[:, :1]), (self.k, x), (self.v, x))
        )
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
