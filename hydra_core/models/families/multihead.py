"""torch's nn.MultiheadAttention, and open_clip's own attention block.

`nn.MultiheadAttention` calls its output projection as a function, so hooks on it never fire, and it cannot hold
fewer heads than its width divided by theirs. So a view holds `SplitMultihead` in its place: the same function of
the same tensors, with both projections as modules. `split_multihead` makes that exchange on a private shadow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hydra_core.errors import UnsupportedModel
from hydra_core.models.attention import (
    AttentionKind,
    Index,
    channels,
    clone_with,
    register,
    take_columns,
    take_qkv,
)
from hydra_core.models.families.common import add, of_heads
from hydra_core.models.shadow import set_child, shadow


class SplitAttention(nn.Module):
    """Softmax self-attention with its own head width, so that it can hold any number of heads.

    Input and output (B, T, d). `q_norm`, `k_norm` act on one head's channels; `head_scale` (H, 1, 1) scales heads.
    """

    def __init__(self, qkv: nn.Linear, out_proj: nn.Linear, heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.dropout = heads, head_dim, dropout
        self.qkv, self.out_proj = qkv, out_proj
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        self.head_scale: nn.Parameter | None = None

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # (B, T, 3*H*d_h) -> three of (B, T, H*d_h)
        return self.attend(q, k, v, None if attn_mask is None else additive(attn_mask, q.dtype))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Attention of queries (B, T, H*d_h) over keys and values (B, S, H*d_h) -> (B, T, d)."""
        q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for t in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        z = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v, attn_mask=bias, dropout_p=dropout)
        if self.head_scale is not None:
            z = z * self.head_scale
        return self.out_proj(z.transpose(1, 2).flatten(2))  # (B, H, T, d_h) -> (B, T, H*d_h) -> (B, T, d)


class SplitMultihead(SplitAttention):
    """`SplitAttention` that is called as `nn.MultiheadAttention` is. Attention weights are not returned."""

    def __init__(self, *args: Any, batch_first: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batch_first = batch_first

    def forward(  # type: ignore[override]
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, None]:
        same = key is query and value is query
        if not self.batch_first:  # heads are gated batch-first in any case
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        if same:
            q, k, v = self.qkv(query).chunk(3, dim=-1)
        else:
            q, k, v = (self.qkv(t).chunk(3, dim=-1)[i] for i, t in enumerate((query, key, value)))
        out = self.attend(q, k, v, _joined(attn_mask, key_padding_mask, q.dtype, self.num_heads))
        return (out if self.batch_first else out.transpose(0, 1)), None


def additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask to add to scores; in a boolean one True means "may not look", as in nn.MultiheadAttention."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))


def _joined(
    mask: torch.Tensor | None, padding: torch.Tensor | None, dtype: torch.dtype, heads: int
) -> torch.Tensor | None:
    """One additive mask, broadcast over (B, H, T, S), from a mask (T, S) or (B*H, T, S) and padding (B, S)."""
    bias = None if mask is None else additive(mask, dtype)
    if bias is not None and bias.ndim == 3:
        bias = bias.unflatten(0, (-1, heads))
    if padding is None:
        return bias
    pad = additive(padding, dtype)[:, None, None]
    return pad if bias is None else bias + pad


# -- from native modules ---------------------------------------------------------------------


def split_multihead(model: nn.Module, skip: tuple[str, ...] = ()) -> nn.Module:
    """A shadow of `model` in which every self-attention `nn.MultiheadAttention` is a `SplitMultihead`.

    Tensors are shared with `model`, which stays as it is. Attention inside modules of the classes named
    in `skip` (pools that read a result out) is left alone.

    Raises:
        UnsupportedModel: a module adds bias tokens or a zero token to its keys.
    """
    pools = [path for path, m in model.named_modules() if type(m).__name__ in skip]
    found = [(path, m) for path, m in model.named_modules() if isinstance(m, nn.MultiheadAttention)]
    new = shadow(model)
    for path, module in found:
        if not any(path.startswith(f"{pool}.") for pool in pools):
            set_child(new, path, _split(path, module))
    return new


def _split(path: str, module: nn.MultiheadAttention) -> SplitMultihead:
    if module.bias_k is not None or module.add_zero_attn or module.in_proj_weight is None:
        raise UnsupportedModel(
            f"The heads of {path} cannot be pruned exactly",
            expected="nn.MultiheadAttention with one width for queries, keys and values",
            got="added key tokens, or keys of another width",
        )
    qkv = linear_of(module.in_proj_weight, module.in_proj_bias)
    out = linear_of(module.out_proj.weight, module.out_proj.bias)
    split = SplitMultihead(qkv, out, module.num_heads, module.head_dim, module.dropout, batch_first=module.batch_first)
    return split.train(module.training)


def linear_of(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A linear over these very tensors."""
    new = nn.Linear(1, 1, bias=False, device="meta")
    new.out_features, new.in_features = weight.shape
    new.weight = weight  # type: ignore[assignment]
    new.bias = bias  # type: ignore[assignment]
    return new


# -- kinds -----------------------------------------------------------------------------------


def _heads(module: Any) -> tuple[int, int]:
    return module.num_heads, module.head_dim


def _cut(module: Any, keep: Index) -> nn.Module:
    changes: dict[str, Any] = {
        "num_heads": len(keep),
        "qkv": take_qkv(module.qkv, keep, module.num_heads, module.head_dim),
        "out_proj": take_columns(module.out_proj, channels(keep, module.head_dim, module.out_proj.weight.device)),
    }
    if module.head_scale is not None:
        changes["head_scale"] = of_heads(module.head_scale, keep)
    return clone_with(module, **changes)


def _cut_open_clip(module: Any, keep: Index) -> nn.Module:
    """open_clip's Attention reads its width off the input: the smaller one is a SplitAttention."""
    qkv = linear_of(module.in_proj_weight, module.in_proj_bias)
    new = SplitAttention(qkv, module.out_proj, module.num_heads, module.head_dim, module.attn_drop.p)
    new.q_norm, new.k_norm, new.head_scale = module.ln_q, module.ln_k, module.head_scale
    return _cut(new.train(module.training), keep)


def _is_open_clip(module: nn.Module) -> bool:
    """By structure, as 3.x and 4.x have it: one joint input tensor and an output projection that is called."""
    parts = ("in_proj_weight", "out_proj", "num_heads", "head_dim", "ln_inner")
    return not isinstance(module, nn.MultiheadAttention) and all(hasattr(module, part) for part in parts)


def _gate_only(module: Any) -> bool:
    """A norm over all heads before the projection, or cosine scores: gated, not cut."""
    return not isinstance(module.ln_inner, nn.Identity) or module.logit_scale is not None


SPLIT = add(
    "torch multi-head attention",
    [f"{__name__}.SplitAttention", f"{__name__}.SplitMultihead"],
    proj="out_proj",
    heads=_heads,
    slice=_cut,
)

OPEN_CLIP = register(
    AttentionKind(
        name="open_clip Attention",
        matches=lambda module: _is_open_clip(module) and not _gate_only(module),
        heads=_heads,
        proj=lambda module: "out_proj",
        slice=_cut_open_clip,
    )
)

OPEN_CLIP_GATED = register(
    AttentionKind(
        name="open_clip Attention with inner norm or cosine scores",
        matches=lambda module: _is_open_clip(module) and _gate_only(module),
        heads=_heads,
        proj=lambda module: "out_proj",
    )
)

__all__ = ["SplitAttention", "SplitMultihead", "split_multihead"]
