"""What each attention class looks like to head pruning: where heads are mixed, and how to cut some out.

A kind describes one structure, not one model: it says how many heads a module has, which
child is the output projection (heads are gated at its INPUT; after it they are mixed), and
how to build a smaller module of the same class. Kinds register themselves; the first whose
`matches` is true is used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hydra_core.models.shadow import shadow

Index = Sequence[int]


@dataclass(frozen=True)
class AttentionKind:
    """One attention structure.

    Attributes:
        name: shown in tables, e.g. "timm Attention".
        matches: whether a module has this structure.
        heads: (module) -> (number of heads, channels of one head at the projection's input).
        proj: (module) -> dotted name of the child at whose input heads are gated.
        slice: (module, kept head indices) -> a new module with those heads only; None when
            only gating is exact for this kind.
        refuse: (module) -> a reason why heads of this module cannot be removed exactly, or "".
        grouped: whether a sliced module handles several members on its batch axis once its
            linears are grouped (see fusion.grouped); False: members run one after another.
        owner: (module) -> head of each channel at the projection's input, (C,) long, -1 where a channel
            belongs to no head. None: head-major, channel c belongs to head c // head_dim.
        in_model: (root) -> another kind to use in that model, where something outside the module decides.
        classes: full paths of the classes that `matches` asks for; empty where structure alone decides.
    """

    name: str
    matches: Callable[[Any], bool]
    heads: Callable[[Any], tuple[int, int]]
    proj: Callable[[Any], str]
    slice: Callable[[Any, Index], nn.Module] | None = None
    refuse: Callable[[Any], str] = lambda module: ""
    grouped: bool = True
    owner: Callable[[Any], torch.Tensor] | None = None
    in_model: Callable[[Any], AttentionKind | None] = lambda root: None
    classes: frozenset[str] = frozenset()


_KINDS: list[AttentionKind] = []


def register(kind: AttentionKind) -> AttentionKind:
    """Add a kind; later ones are asked first, so a special case may follow the general one."""
    _KINDS.insert(0, kind)
    return kind


def kinds() -> tuple[AttentionKind, ...]:
    """Every registered kind, in the order in which they are asked."""
    from hydra_core.models import families  # noqa: F401  (registers every family on first use)

    return tuple(_KINDS)


def kind_of(module: nn.Module) -> AttentionKind | None:
    """The kind of an attention module, or None when it is not one we know."""
    return next((kind for kind in kinds() if kind.matches(module)), None)


# -- slicing tools, shared by the kinds -------------------------------------------------------


def channels(keep: Index, head_dim: int, device: torch.device | None = None) -> torch.Tensor:
    """Channel indices of the kept heads, head-major: (len(keep) * head_dim,)."""
    heads = torch.as_tensor(list(keep), dtype=torch.long, device=device)
    return (heads[:, None] * head_dim + torch.arange(head_dim, device=device)).reshape(-1)


def take_rows(linear: nn.Linear, rows: torch.Tensor) -> nn.Linear:
    """A linear with only these outputs."""
    return _linear(linear, linear.weight[rows], None if linear.bias is None else linear.bias[rows])


def take_columns(linear: nn.Linear, columns: torch.Tensor) -> nn.Linear:
    """A linear with only these inputs; the bias stays."""
    return _linear(linear, linear.weight[:, columns], linear.bias)


def _linear(like: nn.Linear, weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    new = nn.Linear(1, 1, bias=False, device="meta")
    new.in_features, new.out_features = weight.shape[1], weight.shape[0]
    new.weight = nn.Parameter(weight.detach().clone(), requires_grad=like.weight.requires_grad)
    if bias is not None:
        new.bias = nn.Parameter(bias.detach().clone(), requires_grad=like.weight.requires_grad)
    return new.train(like.training)


def take_qkv(linear: nn.Linear, keep: Index, heads: int, head_dim: int) -> nn.Linear:
    """Rows of the kept heads in a fused (q | k | v) projection."""
    one = channels(keep, head_dim, linear.weight.device)
    return take_rows(linear, torch.cat([one + part * heads * head_dim for part in range(3)]))


def clone_with(module: nn.Module, **changes: object) -> nn.Module:
    """A copy of `module` that owns nothing of the old tensors' memory, with attributes replaced."""
    new = copy.copy(module)
    # copy.copy shares the dictionaries of children: give the copy its own
    for name in ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"):
        setattr(new, name, dict(getattr(module, name)))
    for name, child in module._modules.items():
        if name not in changes and child is not None:
            new._modules[name] = copy.deepcopy(child)
    for name, value in changes.items():
        setattr(new, name, value)
    return new


def pad_to(kind: AttentionKind, module: nn.Module, heads: int) -> nn.Module | None:
    """The module with `heads` heads, the new ones adding nothing; None where that is not known to be exact.

    Done by slicing with repeated indices (a copy of head 0) and zeroing the copies' projection columns.
    """
    have, _ = kind.heads(module)
    if have == heads:
        return module
    if have == 0 or kind.slice is None or not kind.grouped:
        return None
    padded = kind.slice(module, [*range(have), *[0] * (heads - have)])
    return zero_heads(kind, padded, range(have))


# -- cutting: physically where a kind can, by zero columns where it cannot ------------------------


def owner_of(kind: AttentionKind, module: nn.Module) -> torch.Tensor:
    """Head of each channel at the projection's input, (C,); -1 where a channel belongs to no head."""
    if kind.owner is not None:
        return kind.owner(module)
    heads, head_dim = kind.heads(module)
    return torch.arange(heads).repeat_interleave(head_dim)


def zero_heads(kind: AttentionKind, module: nn.Module, keep: Index) -> nn.Module:
    """A module of the same size whose projection does not read the other heads: exact for every kind.

    All tensors but the projection's weight are shared with `module`.
    """
    owner = owner_of(kind, module)
    gone = torch.nonzero((owner >= 0) & ~torch.isin(owner, torch.as_tensor(list(keep), dtype=torch.long)))[:, 0]
    new = shadow(module)
    projection: Any = new.get_submodule(kind.proj(module))
    weight = projection.weight.detach().clone()
    inputs_first = isinstance(projection, nn.ConvTranspose2d)  # its weight is (in, out, k, k)
    weight.index_fill_(0 if inputs_first else 1, gone.to(weight.device), 0.0)
    projection.weight = nn.Parameter(weight, requires_grad=projection.weight.requires_grad)
    return new


def cut(kind: AttentionKind, module: nn.Module, keep: Index) -> nn.Module:
    """The module without the other heads: smaller where the kind can be sliced, else by zero columns."""
    if kind.slice is None:
        return zero_heads(kind, module, keep)
    if keep:
        return kind.slice(module, keep)
    # not every class runs with no heads at all: one stays and is not read
    return zero_heads(kind, kind.slice(module, [0]), [])


# -- timm's Attention: one fused qkv and a projection -------------------------------------------


def class_path(module: nn.Module) -> str:
    """Where a module's class is defined, e.g. "timm.layers.attention.Attention": matched without importing it."""
    return f"{type(module).__module__}.{type(module).__qualname__}"


def couples(module: nn.Module) -> bool:
    """Whether a norm between the heads and the projection reads all heads at once (method.md, 1)."""
    return not isinstance(getattr(module, "norm", None), nn.Identity | type(None))


_TIMM = frozenset({"timm.layers.attention.Attention"})


def _is_timm_attention(module: nn.Module) -> bool:
    return class_path(module) in _TIMM


def _slice_timm_attention(module: Any, keep: Index) -> nn.Module:
    heads, head_dim = module.num_heads, module.head_dim
    one = channels(keep, head_dim, module.proj.weight.device)
    return clone_with(
        module,
        num_heads=len(keep),
        attn_dim=len(keep) * head_dim,
        qkv=take_qkv(module.qkv, keep, heads, head_dim),
        gate=None if module.gate is None else take_rows(module.gate, one),
        proj=take_columns(module.proj, one),
    )


TIMM_ATTENTION = register(
    AttentionKind(
        name="timm Attention",
        matches=_is_timm_attention,
        heads=lambda module: (module.num_heads, module.head_dim),
        proj=lambda module: "proj",
        slice=_slice_timm_attention,
        classes=_TIMM,
    )
)

# The mask acts after the norm, so gating stays exact; a smaller module would change the norm's statistics.
TIMM_ATTENTION_NORMED = register(
    AttentionKind(
        name="timm Attention with scale_norm",
        matches=lambda module: _is_timm_attention(module) and couples(module),
        heads=lambda module: (module.num_heads, module.head_dim),
        proj=lambda module: "proj",
        classes=_TIMM,
    )
)
