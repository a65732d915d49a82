"""Tools that the family modules share. Classes are matched by where they are defined, so nothing is imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from hydra_core.models.attention import AttentionKind, Index, class_path, register

PROJECTIONS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


def projection_in(*children: str) -> Callable[[nn.Module], str]:
    """(module) -> path of the first linear or convolution inside the first of these children that has one.

    Projections often sit in a small sequence: activation, linear, norm.
    """

    def find(module: nn.Module) -> str:
        for child in children:
            inner = getattr(module, child, None)
            for name, part in [] if inner is None else inner.named_modules():
                if isinstance(part, PROJECTIONS):
                    return f"{child}.{name}" if name else child
        raise AttributeError(f"{class_path(module)} has no projection in {', '.join(children)}")

    return find


def width(projection: nn.Module) -> int:
    """Number of input channels of a linear or a convolution."""
    return int(projection.in_features if isinstance(projection, nn.Linear) else projection.in_channels)  # type: ignore[arg-type]


def even_heads(proj: Callable[[nn.Module], str], count: str = "num_heads") -> Callable[[nn.Module], tuple[int, int]]:
    """(module) -> (heads, channels a head) where the heads share the projection's input evenly."""

    def heads(module: nn.Module) -> tuple[int, int]:
        number = int(getattr(module, count))
        return number, width(module.get_submodule(proj(module))) // number

    return heads


def add(
    name: str,
    classes: str | Sequence[str],
    *,
    proj: str | Callable[[nn.Module], str] = "proj",
    heads: Callable[[nn.Module], tuple[int, int]] | None = None,
    when: Callable[[nn.Module], bool] = lambda module: True,
    slice: Callable[[nn.Module, Index], nn.Module] | None = None,
    grouped: bool = True,
    owner: Callable[[nn.Module], torch.Tensor] | None = None,
) -> AttentionKind:
    """Register a kind for these classes (full paths); `when` narrows it to some of their modules."""
    paths = {classes} if isinstance(classes, str) else set(classes)
    find = projection_in(proj) if isinstance(proj, str) else proj
    return register(
        AttentionKind(
            name=name,
            matches=lambda module: class_path(module) in paths and when(module),
            heads=heads or even_heads(find),
            proj=find,
            slice=slice,
            grouped=grouped,
            owner=owner,
        )
    )
