"""Writing over what nobody else holds: on a CPU, fresh memory for an MLP's hidden layer costs more than its GELU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hydra_core.models.attention import class_path

PLAIN_MLP = "timm.layers.mlp.Mlp"


class InPlaceGELU(nn.GELU):
    """GELU of the hidden layer (..., d_hidden), written over its input unless gradients are wanted."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.gelu(hidden) if torch.is_grad_enabled() else torch.ops.aten.gelu_(hidden)


def reuse_hidden(root: nn.Module) -> nn.Module:
    """Lets the plain MLPs of a shadow (see `shadow`) write over their hidden layer; gives the shadow back.

    Only where a linear layer, whose output nobody else holds, goes straight into an exact GELU.
    """
    for module in root.modules():
        mlp: Any = module
        if class_path(mlp) == PLAIN_MLP and type(mlp.act) is nn.GELU and mlp.act.approximate == "none":
            mlp.act = InPlaceGELU()
    return root
