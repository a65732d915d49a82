"""LoRA-Ensemble: one frozen model, low-rank changes to q, k and v a member (Muehlematter et al., 2024)."""

from __future__ import annotations

import copy

import torch
from torch import nn

from hydra_core.errors import ModelError
from hydra_core.fusion.grouped import GroupedLinear, pack_members, unpack_members
from hydra_core.methods.base import Method, check_linears, linear_paths, on_rows
from hydra_core.models.shadow import set_child
from hydra_core.models.view import ModelView


class LoRALinear(nn.Module):
    """y_m = W x + b + B_m A_m x over members on the batch axis: (M*B, ..., in) -> (M*B, ..., out).

    A fused (q | k | v) projection has three parts, each with a low rank of its own.
    """

    def __init__(self, linear: nn.Linear, members: int, rank: int, parts: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear, self.members, self.parts = linear, members, parts
        out, inner = linear.weight.shape
        a = torch.randn(members, parts, rank, inner, generator=generator) / inner**0.5
        self.a = nn.Parameter(a.to(linear.weight))
        self.b = nn.Parameter(linear.weight.new_zeros(members, parts, out // parts, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = unpack_members(x, self.members).flatten(1, -2)  # (M, N, in)
        low = torch.bmm(rows, self.a.flatten(1, 2).transpose(1, 2)).unflatten(-1, (self.parts, -1))  # (M, N, P, r)
        change = torch.einsum("mnpr,mpor->mnpo", low, self.b).flatten(2)  # (M, N, out)
        return self.linear(x) + pack_members(change.unflatten(1, (-1, *x.shape[1:-1])))


def lora_ensemble(view: ModelView, *, members: int = 3, rank: int = 8, seed: int = 0) -> Method:
    """Low-rank changes in every layer and a classifier a member; everything else is shared and frozen.

    Before training the changes are zero: every member is the single model.

    Raises:
        ModelError: the rank is not positive.
        UnsupportedModel: the linears of the model cannot be replaced.
    """
    if rank < 1:
        raise ModelError("The rank is too small", expected="1 or more", got=rank)
    check_linears(view, "LoRA-Ensemble")
    net = copy.deepcopy(view.module).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for path, parts in projections(view):
        linear = net.get_submodule(path)
        set_child(net, path, LoRALinear(linear, members, rank, parts, generator))  # type: ignore[arg-type]
    inside = set(linear_paths(view, tail=False))
    for path in linear_paths(view):
        if path not in inside:
            set_child(net, path, GroupedLinear([net.get_submodule(path)] * members))  # type: ignore[list-item]
    return Method(view, on_rows(view, net, members))


def projections(view: ModelView) -> list[tuple[str, int]]:
    """Paths of the linears that make q, k and v, and how many of the three each makes."""
    found = []
    for layer in view.layers:
        width = layer.heads * layer.head_dim
        for path in linear_paths(view, tail=False):
            if path.startswith(f"{layer.path}.") and path != layer.proj:
                out = view.module.get_submodule(path).out_features
                found.append((path, 3 if out == 3 * width else 1))
    return found
