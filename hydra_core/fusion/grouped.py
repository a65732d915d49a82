"""Modules that hold several members on the batch axis: (G*B, ...) in, (G*B, ...) out, member-major.

`stack` walks G modules of the same structure. What is equal in all of them is kept once and
serves all rows; what differs becomes grouped: a grouped linear (one batched product, the GFC of
method.md section 3), a grouped norm, or, where the structure is not known, members one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hydra_core.models.blocks import carried
from hydra_core.models.shadow import same_tensor


def pack_members(x: torch.Tensor) -> torch.Tensor:
    """(G, B, ...) -> (G*B, ...), member-major."""
    return x.reshape(-1, *x.shape[2:])


def unpack_members(x: torch.Tensor, members: int) -> torch.Tensor:
    """(G*B, ...) -> (G, B, ...); the inverse of `pack_members`."""
    return x.reshape(members, -1, *x.shape[1:])


class GroupedLinear(nn.Module):
    """y_g = x_g W_g^T + b_g: the paper's grouped fully-connected layer, as one batched product.

    Input (G*B, ..., d_in), output (G*B, ..., d_out).
    """

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.groups = len(linears)
        self.in_features, self.out_features = linears[0].in_features, linears[0].out_features
        self.weight = nn.Parameter(torch.stack([linear.weight.detach() for linear in linears]))  # (G, d_out, d_in)
        has_bias = any(linear.bias is not None for linear in linears)
        zeros = torch.zeros(self.out_features, dtype=self.weight.dtype, device=self.weight.device)
        biases = [zeros if linear.bias is None else linear.bias.detach() for linear in linears]
        self.bias = nn.Parameter(torch.stack(biases)) if has_bias else None  # (G, d_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.out_features or not self.in_features:  # a layer that lost all its heads
            out = x.new_zeros(self.groups, x.shape[0] // self.groups, *x.shape[1:-1], self.out_features)
            if self.bias is not None:
                out = out + self.bias.view(self.groups, *(1,) * (x.ndim - 1), -1)
            return pack_members(out)
        # Measured on CPU: one product a member beats baddbmm (no copy of the weights' transpose, and the
        # library picks its best kernel for a plain linear); on a GPU one batched product saves launches.
        if x.device.type == "cpu":
            return self._one_by_one(x)
        flat = x.reshape(self.groups, -1, x.shape[-1])  # (G*B, ..., d_in) -> (G, N, d_in)
        weight = self.weight.transpose(1, 2)  # (G, d_in, d_out)
        out = torch.bmm(flat, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], flat, weight)
        return out.reshape(*x.shape[:-1], self.out_features)  # (G, N, d_out) -> (G*B, ..., d_out)

    def _one_by_one(self, x: torch.Tensor) -> torch.Tensor:
        """The members' products in turn, each written to its place: joining them afterwards would cost a copy."""
        biases = (None,) * self.groups if self.bias is None else self.bias.unbind()
        if torch.is_grad_enabled():  # autograd cannot follow a product that is written into a given tensor
            parts = zip(x.chunk(self.groups), self.weight.unbind(), biases, strict=True)
            return torch.cat([F.linear(part, weight, bias) for part, weight, bias in parts])
        flat = x.reshape(self.groups, -1, x.shape[-1])  # (G*B, ..., d_in) -> (G, N, d_in)
        out = x.new_empty(self.groups, flat.shape[1], self.out_features)
        turns = zip(flat.unbind(), self.weight.transpose(1, 2).unbind(), biases, out.unbind(), strict=True)
        for rows, weight, bias, place in turns:
            if bias is None:
                torch.mm(rows, weight, out=place)
            else:
                torch.addmm(bias, rows, weight, out=place)
        return out.reshape(*x.shape[:-1], self.out_features)

    def extra_repr(self) -> str:
        return f"groups={self.groups}, in_features={self.in_features}, out_features={self.out_features}"


class GroupedLayerNorm(nn.Module):
    """LayerNorm whose scale and shift differ between members. (G*B, ..., d) -> the same."""

    def __init__(self, norms: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.groups, self.eps, self.normalized_shape = len(norms), norms[0].eps, norms[0].normalized_shape
        self.weight = nn.Parameter(torch.stack([norm.weight.detach() for norm in norms]))  # (G, d)
        self.bias = nn.Parameter(torch.stack([norm.bias.detach() for norm in norms]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        shape = (self.groups, *(1,) * (x.ndim - 1), -1)
        return pack_members(
            torch.addcmul(self.bias.view(shape), unpack_members(x, self.groups), self.weight.view(shape))
        )


class MemberLoop(nn.Module):
    """Members one after another, each on its own rows: exact for any module that keeps the batch axis first."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.groups = len(members)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        stream = carried(self.members[0])
        outs = []
        for g, member in enumerate(self.members):
            own = [_part(a, g, self.groups) for a in args[:stream]]
            rest = [_rows(a, args[0], g, self.groups) for a in args[stream:]]
            named = {k: _rows(v, args[0], g, self.groups) for k, v in kwargs.items()}
            outs.append(member(*own, *rest, **named))
        return _join(outs)


def _part(value: Any, g: int, groups: int) -> Any:
    """Member g's rows of a stream; of each tensor of a list."""
    if isinstance(value, list | tuple):
        return type(value)(_part(item, g, groups) for item in value)
    return value.chunk(groups)[g]


def _rows(value: Any, stream: Any, g: int, groups: int) -> Any:
    """A member's rows of an argument with one row a sample (attention masks); anything else as it is.

    Positions (T, d) or (H, T, d) may have as many rows as the batch by chance, so only four axes count.
    """
    batched = isinstance(value, torch.Tensor) and isinstance(stream, torch.Tensor) and value.ndim >= 4
    return _part(value, g, groups) if batched and value.shape[0] == stream.shape[0] else value


def _join(outs: Sequence[Any]) -> Any:
    """Member-major outputs; of a tuple, each tensor (sizes and the like agree and stay)."""
    first = outs[0]
    if isinstance(first, list | tuple):
        return type(first)(_join(items) for items in zip(*outs, strict=True))
    return torch.cat(list(outs)) if isinstance(first, torch.Tensor) else first


def same_module(modules: Sequence[nn.Module]) -> bool:
    """Whether all modules are the same structure with equal tensors."""
    first = modules[0]
    if all(m is first for m in modules):
        return True
    own = {**dict(first.named_parameters()), **dict(first.named_buffers())}
    for other in modules[1:]:
        theirs = {**dict(other.named_parameters()), **dict(other.named_buffers())}
        if type(other) is not type(first) or own.keys() != theirs.keys():
            return False
        if not all(same_tensor(own[k], theirs[k]) for k in own):
            return False
    return True


def average(modules: Sequence[nn.Module]) -> nn.Module:
    """One module whose every parameter is the members' mean (the merged MLP of method.md section 3)."""
    if same_module(modules):
        return modules[0]
    import copy

    merged = copy.deepcopy(modules[0])
    others = [dict(m.named_parameters()) for m in modules]
    with torch.no_grad():
        for name, parameter in merged.named_parameters():
            parameter.copy_(torch.stack([o[name].double() for o in others]).mean(0).to(parameter.dtype))
    return merged


def stack(modules: Sequence[nn.Module]) -> nn.Module:
    """G modules of one structure as one module over members on the batch axis.

    Exact: row block g of the output is member g's output on row block g of the input.
    """
    first = modules[0]
    if len(modules) == 1 or same_module(modules):
        return first
    if any(type(m) is not type(first) for m in modules):
        return MemberLoop(modules)
    if isinstance(first, nn.Linear):
        shapes = {m.weight.shape for m in modules}
        return GroupedLinear(modules) if len(shapes) == 1 else MemberLoop(modules)  # type: ignore[arg-type]
    if isinstance(first, nn.LayerNorm) and type(first).forward is nn.LayerNorm.forward and first.bias is not None:
        return GroupedLayerNorm(modules)  # type: ignore[arg-type]
    own = any(not same_tensor(p, q) for m in modules[1:] for p, q in _own_pairs(first, m))
    names = [name for name, child in first.named_children() if child is not None]
    if own or not names or not _stackable(modules, names):
        return MemberLoop(modules)
    import copy

    stacked = copy.copy(first)
    stacked._modules = dict(first._modules)
    for name in names:
        stacked._modules[name] = stack([m.get_submodule(name) for m in modules])
    return stacked


def _own_pairs(a: nn.Module, b: nn.Module) -> list[tuple[torch.Tensor | None, torch.Tensor | None]]:
    """Tensors held by the module itself, not by children, side by side."""
    x = {**a._parameters, **a._buffers}
    y = {**b._parameters, **b._buffers}
    return [(x.get(k), y.get(k)) for k in x.keys() | y.keys()]


def _stackable(modules: Sequence[nn.Module], names: Sequence[str]) -> bool:
    """Children agree, and so do the plain numbers (heads, widths) that the forward reads."""
    from hydra_core.models.attention import kind_of

    first = modules[0]
    kind = kind_of(first)
    if kind is not None and not kind.grouped:
        return False
    numbers = [{k: v for k, v in vars(m).items() if isinstance(v, int | float | str | bool)} for m in modules]
    same_children = all([n for n, c in m.named_children() if c is not None] == list(names) for m in modules)
    return same_children and all(n == numbers[0] for n in numbers)
