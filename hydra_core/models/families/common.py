"""Tools that the family modules share. Classes are matched by where they are defined, so nothing is imported."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from hydra_core.models.attention import AttentionKind, Index, channels, class_path, register

PROJECTIONS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


def projection_in(*children: str) -> Callable[[Any], str]:
    """(module) -> path of the first linear or convolution inside the first of these children that has one.

    Projections often sit in a small sequence: activation, linear, norm.
    """

    def find(module: Any) -> str:
        for child in children:
            inner = getattr(module, child, None)
            for name, part in [] if inner is None else inner.named_modules():
                if isinstance(part, PROJECTIONS):
                    return f"{child}.{name}" if name else child
        raise AttributeError(f"{class_path(module)} has no projection in {', '.join(children)}")

    return find


def width(projection: Any) -> int:
    """Number of input channels of a linear or a convolution."""
    return int(projection.in_features if isinstance(projection, nn.Linear) else projection.in_channels)


def even_heads(proj: Callable[[Any], str], count: str = "num_heads") -> Callable[[Any], tuple[int, int]]:
    """(module) -> (heads, channels a head) where the heads share the projection's input evenly."""

    def heads(module: Any) -> tuple[int, int]:
        number = int(getattr(module, count))
        return number, width(module.get_submodule(proj(module))) // number

    return heads


def add(
    name: str,
    classes: str | Sequence[str],
    *,
    proj: str | Callable[[Any], str] = "proj",
    heads: Callable[[Any], tuple[int, int]] | None = None,
    when: Callable[[Any], bool] = lambda module: True,
    slice: Callable[[Any, Index], nn.Module] | None = None,
    grouped: bool = True,
    owner: Callable[[Any], torch.Tensor] | None = None,
    in_model: Callable[[Any], AttentionKind | None] = lambda root: None,
) -> AttentionKind:
    """Register a kind for these classes (full paths); `when` narrows it to some of their modules."""
    paths = frozenset({classes} if isinstance(classes, str) else classes)
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
            in_model=in_model,
            classes=paths,
        )
    )


# -- cutting ------------------------------------------------------------------------------------


def part_rows(keep: Index, heads: int, size: int, parts: int = 3) -> torch.Tensor:
    """The same in a projection laid out (part, head, channel), such as q | k | v."""
    one = channels(keep, size)
    return torch.cat([one + part * heads * size for part in range(parts)])


def rows(projection: Any, index: torch.Tensor) -> Any:
    """A linear or 1x1 convolution with only these outputs."""
    bias = None if projection.bias is None else projection.bias[index.to(projection.weight.device)]
    return _resized(projection, projection.weight[index.to(projection.weight.device)], bias)


def columns(projection: Any, index: torch.Tensor) -> Any:
    """A linear or 1x1 convolution with only these inputs."""
    return _resized(projection, projection.weight[:, index.to(projection.weight.device)], projection.bias)


def _resized(projection: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    new = copy.copy(projection)
    new._parameters = {"weight": _parameter(weight, projection), "bias": None}
    if bias is not None:
        new._parameters["bias"] = _parameter(bias, projection)
    names = ("in_features", "out_features") if isinstance(projection, nn.Linear) else ("in_channels", "out_channels")
    for name, count in zip(names, (weight.shape[1], weight.shape[0]), strict=True):
        setattr(new, name, count)
    return new


def _parameter(tensor: torch.Tensor, like: Any) -> nn.Parameter:
    return nn.Parameter(tensor.detach().clone(), requires_grad=like.weight.requires_grad)


def of_heads(tensor: torch.Tensor, keep: Index, axis: int = 0) -> nn.Parameter:
    """The kept heads' part of a parameter with one entry a head."""
    index = torch.as_tensor(list(keep), device=tensor.device)
    return nn.Parameter(tensor.detach().index_select(axis, index), requires_grad=tensor.requires_grad)


def norm_rows(norm: Any, index: torch.Tensor) -> Any:
    """A batch norm over only these channels."""
    new = copy.copy(norm)
    index = index.to(norm.running_mean.device)
    new._parameters = {k: None if p is None else _keep(p, index) for k, p in norm._parameters.items()}
    new._buffers = {k: b if b is None or b.ndim == 0 else b[index].clone() for k, b in norm._buffers.items()}
    new.num_features = len(index)
    return new


def _keep(parameter: torch.Tensor, index: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach()[index], requires_grad=parameter.requires_grad)


def with_bias(projection: Any, *biases: torch.Tensor | None) -> Any:
    """A linear that adds what a module keeps as separate q, k and v biases."""
    if biases[0] is None:
        return projection
    bias = torch.cat([b for b in biases if b is not None])
    return _resized(projection, projection.weight, bias)


def cut_parts(module: Any, keep: Index, qkv: Any = None) -> tuple[nn.Linear, nn.Linear, int, torch.Tensor]:
    """(qkv, proj, head_dim, kept heads): what the modules of `families.cut` start from."""
    heads = int(module.num_heads)
    qkv = module.qkv if qkv is None else qkv
    head_dim = width(module.proj) // heads
    proj = columns(module.proj, channels(keep, head_dim))
    kept = torch.as_tensor(list(keep), device=module.proj.weight.device)
    if hasattr(module, "kept"):
        kept = module.kept[kept]  # cut again: heads of the first module
    return rows(qkv, part_rows(keep, heads, head_dim)), proj, head_dim, kept
