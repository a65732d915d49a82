"""Copies of a module tree that share its tensors: the way to change structure without touching a shared model."""

from __future__ import annotations

import copy
from itertools import chain

import torch
from torch import nn


def shadow(module: nn.Module) -> nn.Module:
    """A new module tree over the SAME parameters and buffers.

    Hooks, replaced children and attributes of the shadow are its own, so each thread can
    gate its own shadow of one shared model. Costs milliseconds and no tensor memory.
    """
    shared = {id(t): t for t in chain(module.parameters(), module.buffers())}
    return copy.deepcopy(module, shared)


def set_child(root: nn.Module, path: str, child: nn.Module) -> None:
    """Put `child` at the dotted `path` below `root`."""
    parent, _, name = path.rpartition(".")
    owner = root.get_submodule(parent) if parent else root
    setattr(owner, name, child)


def freeze(module: nn.Module) -> nn.Module:
    """Eval mode, no gradients to weights: what a shared model must be."""
    return module.eval().requires_grad_(False)


def same_tensor(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two tensors hold the same values (the same storage answers at once)."""
    if a is b:
        return True
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_meta or b.is_meta:
        return False
    return bool(torch.equal(a, b))
