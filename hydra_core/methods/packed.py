"""Packed-Ensembles: one network whose every layer is grouped (Laurent et al., ICLR 2023).

M narrow members of width alpha * d / M, trained from scratch side by side; the groups never mix.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.layers import PatchDropout
from timm.models.vision_transformer import Block, VisionTransformer
from torch import nn

from hydra_core.errors import ModelError, UnsupportedModel
from hydra_core.fusion.grouped import GroupedLayerNorm, GroupedLinear, pack_members, stack, unpack_members
from hydra_core.methods.base import Method
from hydra_core.models.view import ModelView


def packed(view: ModelView, *, members: int = 3, alpha: float = 2.0, patch_drop: float = 0.0, seed: int = 0) -> Method:
    """A packed network in the form of the view's model, with fresh weights: it learns nothing from the view.

    Args:
        alpha: total width of all members over that of the single model.
        patch_drop: share of the patch tokens that each member leaves out in training.

    Raises:
        UnsupportedModel: the model is not a plain vision transformer.
        ModelError: a member would be narrower than its heads.
    """
    like = view.module
    if type(like) is not VisionTransformer or like.num_prefix_tokens != 1:
        raise UnsupportedModel(
            f"{view.name} cannot be packed", expected="a plain timm VisionTransformer with a class token",
            got=type(like).__name__,
        )  # fmt: skip
    heads = view.layers[0].heads
    width = int(alpha * like.embed_dim / members) // heads * heads
    if width < heads:
        raise ModelError("Members of this width cannot hold the heads", expected=f"{heads} or more", got=width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = PackedViT(like, members, width, heads, patch_drop)
    return Method(view, net.to(view.device, view.dtype))


class PackedViT(nn.Module):
    """M narrow vision transformers as one grouped network: (B, C, H, W) -> (M, B, classes)."""

    learns_statistics = True  # its batch norms start from nothing: what they learn is stored too

    def __init__(self, like: VisionTransformer, members: int, width: int, heads: int, patch_drop: float) -> None:
        super().__init__()
        self.members, self.width = members, width
        self.stem = pack_convs(like.patch_embed, members, width / like.embed_dim)
        tokens = 1 + like.patch_embed.num_patches
        self.cls_token = nn.Parameter(torch.zeros(members, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(members, tokens, width) * 0.02)
        self.patch_drop = PatchDropout(patch_drop) if patch_drop else nn.Identity()
        hidden: Any = like.blocks.get_submodule("0.mlp.fc1")
        ratio = hidden.out_features / like.embed_dim
        self.blocks = nn.Sequential(*(self._block(width, heads, ratio) for _ in like.blocks))
        self.norm = GroupedLayerNorm([nn.LayerNorm(width, eps=1e-6) for _ in range(members)])
        self.head = GroupedLinear([nn.Linear(width, like.num_classes) for _ in range(members)])

    def _block(self, width: int, heads: int, ratio: float) -> nn.Module:
        norm = partial(nn.LayerNorm, eps=1e-6)
        blocks = [Block(width, heads, mlp_ratio=ratio, qkv_bias=True, norm_layer=norm) for _ in range(self.members)]  # type: ignore[arg-type]
        packed = stack(blocks)
        for name in ("norm1", "norm2"):  # equal as yet: `stack` would keep one for all members
            setattr(packed, name, GroupedLayerNorm([getattr(block, name) for block in blocks]))
        return packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).flatten(2)  # (B, M*d, T)
        x = x.unflatten(1, (self.members, self.width)).permute(1, 0, 3, 2)  # (M, B, T, d)
        x = torch.cat([self.cls_token[:, None].expand(-1, x.shape[1], -1, -1), x], dim=2)
        x = self.patch_drop(pack_members(x + self.pos_embed[:, None]))  # (M*B, 1 + T, d); fewer tokens in training
        return unpack_members(self.head(self.norm(self.blocks(x))[:, 0]), self.members)


def pack_convs(stem: nn.Module, members: int, scale: float) -> nn.Sequential:
    """The convolutions of a stem, grouped; the first one shows the whole image to every member."""
    layers: list[nn.Module] = []
    inputs = 0
    for module in stem.modules():
        if isinstance(module, nn.Conv2d):
            outputs = members * max(1, round(module.out_channels * scale))
            first = not inputs
            inputs = inputs or module.in_channels
            kernel, stride, padding = module.kernel_size, module.stride, module.padding
            groups = 1 if first else members
            bias = module.bias is not None
            layers.append(nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=bias))  # type: ignore[arg-type]
            inputs = outputs
        elif isinstance(module, nn.BatchNorm2d):
            layers.append(nn.BatchNorm2d(inputs))
        elif isinstance(module, nn.ReLU | nn.GELU):
            layers.append(type(module)())
    return nn.Sequential(*layers)
