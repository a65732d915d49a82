"""BatchEnsemble: shared weights, and vectors of each member's own (Wen et al., ICLR 2020)."""

from __future__ import annotations

import copy

import torch
from torch import nn

from hydra_core.fusion.grouped import pack_members, unpack_members
from hydra_core.methods.base import Method, check_linears, linear_paths, on_rows
from hydra_core.models.shadow import set_child
from hydra_core.models.view import ModelView


class RankOneLinear(nn.Module):
    """y_m = (W (x * r_m)) * s_m + b_m over members on the batch axis: (M*B, ..., in) -> (M*B, ..., out)."""

    def __init__(self, linear: nn.Linear, members: int) -> None:
        super().__init__()
        weight = linear.weight.detach()
        zeros = weight.new_zeros(weight.shape[0])
        bias = zeros if linear.bias is None else linear.bias.detach()
        self.in_features, self.out_features, self.members = linear.in_features, linear.out_features, members
        self.weight = nn.Parameter(weight.clone())
        self.r = nn.Parameter(weight.new_ones(members, weight.shape[1]))
        self.s = nn.Parameter(weight.new_ones(members, weight.shape[0]))
        self.b = nn.Parameter(bias.repeat(members, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = (self.members, *(1,) * (x.ndim - 1), -1)
        x = unpack_members(x, self.members) * self.r.view(wide)  # (M, B, ..., in)
        return pack_members((x @ self.weight.T) * self.s.view(wide) + self.b.view(wide))


def batch_ensemble(view: ModelView, *, members: int = 3, spread: float = 0.0, seed: int = 0) -> Method:
    """Every linear of the blocks and of the classifier becomes rank-one, started from the view's weights.

    Args:
        spread: standard deviation of the members' vectors around 1 before training; 0: all equal the single model.

    Raises:
        UnsupportedModel: the linears of the model cannot be replaced.
    """
    check_linears(view, "BatchEnsemble")
    net = copy.deepcopy(view.module).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for path in linear_paths(view):
        layer = RankOneLinear(net.get_submodule(path), members)  # type: ignore[arg-type]
        with torch.no_grad():
            for vector in (layer.r, layer.s):
                vector.add_(torch.randn(vector.shape, generator=generator).to(vector), alpha=spread)
        set_child(net, path, layer)
    return Method(view, on_rows(view, net, members))
