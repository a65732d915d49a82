"""What heads look at and what they say: attention maps, rollout, and heads' outputs before they are mixed.

Maps are rebuilt from the very queries and keys that the model hands to its fused attention call, so that norms,
rotary positions and biases are in them, whatever the family.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hydra_core.errors import MaskError, UnsupportedModel
from hydra_core.heads.mask import HeadMask
from hydra_core.memory import by_chunks
from hydra_core.models.attention import owner_of
from hydra_core.models.stages import channel_axis
from hydra_core.models.view import HeadLayer, ModelView


@dataclass(frozen=True, eq=False)
class Attended:
    """What one fused attention call was given: q (B, H, T, d_h), k and v (B, H, T', d_h or d_v), bias or None."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None
    causal: bool
    scale: float

    def map(self) -> torch.Tensor:
        """Attention weights (B, H, T, T'); rows sum to 1."""
        logits = self.q @ self.k.transpose(-2, -1) * self.scale
        if self.causal:
            logits = logits.masked_fill(~torch.ones_like(logits[0, 0], dtype=torch.bool).tril(), -math.inf)
        if self.bias is not None:
            boolean = self.bias.dtype == torch.bool
            logits = logits.masked_fill(~self.bias, -math.inf) if boolean else logits + self.bias
        return logits.softmax(-1)


Visit = Callable[[int, Attended], None]


class _Listen(TorchFunctionMode):
    """Hears every fused attention call of this thread."""

    def __init__(self, heard: Callable[[Attended], None]) -> None:
        super().__init__()
        self.heard = heard

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self.heard(_attended(*args, **kwargs))
        return func(*args, **kwargs)


def _attended(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Attended:
    return Attended(query, key, value, attn_mask, is_causal, query.shape[-1] ** -0.5 if scale is None else scale)


@torch.inference_mode()
def visit_attention(view: ModelView, x: torch.Tensor, visit: Visit, mask: HeadMask | None = None) -> None:
    """One forward; `visit(layer, attended)` is called as each layer of heads attends. Nothing is kept between layers.

    Raises:
        UnsupportedModel: a layer's attention is not one fused softmax over all tokens; the text names it.
    """
    stages = view.stages()
    at: list[int] = []
    calls = [0] * len(view.layers)

    def heard(attended: Attended) -> None:
        if at:
            calls[at[-1]] += 1
            _check_call(view.layers[at[-1]], attended, len(x))
            visit(at[-1], attended)

    with _around(stages.model, view.layers, at), _Listen(heard):
        stages.forward(x.to(view.device), mask)
    for layer, count in zip(view.layers, calls, strict=True):
        if count != 1:
            raise _no_maps(layer, f"{count} fused attention calls in one forward")


@contextmanager
def _around(model: nn.Module, layers: Sequence[HeadLayer], at: list[int]) -> Iterator[None]:
    """Knows which attention module is running; asks modules that can for their fused way."""
    handles: list[Any] = []
    slow = []

    def enter(index: int) -> Callable[..., None]:
        return lambda module, args: at.append(index)

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        at.pop()

    for index, layer in enumerate(layers):
        module: Any = model.get_submodule(layer.path)
        if getattr(module, "fused_attn", True) is False:
            slow.append(module)
            module.fused_attn = True  # a private shadow: the shared model keeps its own way
        handles += [module.register_forward_pre_hook(enter(index)), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module in slow:
            module.fused_attn = False


def _check_call(layer: HeadLayer, attended: Attended, batch: int) -> None:
    shape = tuple(attended.q.shape)
    if len(shape) != 4 or shape[:2] != (batch, layer.heads):
        raise _no_maps(layer, f"queries of shape {shape} for {batch} samples")


def _no_maps(layer: HeadLayer, got: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"There are no attention maps for {layer.path} ({layer.kind.name})",
        expected=f"one softmax of {layer.heads} heads over all tokens",
        got=got,
        hint="Windows, channels and pooled tokens have no tokens x tokens map; other criteria work.",
    )


def attention_maps(view: ModelView, x: torch.Tensor, layer: int, mask: HeadMask | None = None) -> torch.Tensor:
    """Attention weights of one layer, (B, H, T, T): row = the token that looks, column = what it looks at.

    Args:
        x: prepared samples (B, ...); memory is B * H * T * T floats, so give few.
        mask: heads removed in the layers before count.

    Raises:
        MaskError: no such layer.
        UnsupportedModel: see `visit_attention`.
    """
    if not 0 <= layer < len(view.layers):
        raise MaskError("There is no such layer", expected=f"0 to {len(view.layers) - 1}", got=layer)
    found: list[torch.Tensor] = []
    visit_attention(view, x, lambda at, a: found.append(a.map()) if at == layer else None, mask)
    return found[0].cpu()


def rollout(view: ModelView, x: torch.Tensor, mask: HeadMask | None = None) -> torch.Tensor:
    """Attention rollout (Abnar and Zuidema, ACL 2020), (B, T, T): how much each token draws on each input token.

    The product over layers of (mean over kept heads of the maps + identity) / 2; a layer with no head kept is
    the identity alone. Rows sum to 1.
    """
    total: list[torch.Tensor] = []

    def mix(layer: int, attended: Attended) -> None:
        maps = attended.map()
        if mask is not None:
            maps = maps[:, list(mask.keep_index(layer))]
        eye = torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device)
        step = (maps.mean(1) + eye) / 2 if maps.shape[1] else eye.expand(len(maps), -1, -1)
        total[:] = [step @ total[0] if total else step]

    visit_attention(view, x, mix, mask)
    return total[0].cpu()


# -- heads' outputs ----------------------------------------------------------------------------


@torch.inference_mode()
def head_outputs(
    view: ModelView, x: torch.Tensor, *, pool: str = "auto", mask: HeadMask | None = None, chunk: int = 128
) -> list[torch.Tensor]:
    """What each head hands to the output projection, one (N, H, d_h) a layer, on the CPU.

    Args:
        x: prepared samples (N, ...).
        pool: "cls": the first token; "mean": the mean over tokens (of a text, without padding); "auto": the class
            token where the model has one and the layer carries it, else the mean.
        mask: heads removed; their own outputs are given as zeros.
    """
    parts = by_chunks(len(x), chunk, lambda start, stop: _pooled(view, x[start:stop], pool, mask))
    return [torch.cat(layer) for layer in zip(*parts, strict=True)]


def _pooled(view: ModelView, x: torch.Tensor, pool: str, mask: HeadMask | None) -> list[torch.Tensor]:
    stages, found = view.stages(), {}

    def note(index: int) -> Callable[..., None]:
        return lambda module, args: found.update({index: args[0]})  # after the gates' own hook

    modules = [stages.model.get_submodule(layer.proj) for layer in view.layers]
    handles = [m.register_forward_pre_hook(note(i)) for i, m in enumerate(modules)]
    try:
        stages.forward(x.to(view.device), mask)
    finally:
        for handle in handles:
            handle.remove()
    out = []
    for index, (layer, module) in enumerate(zip(view.layers, modules, strict=True)):
        z = _one_row(view, found[index], channel_axis(module), x, pool)  # (B, C)
        owner = owner_of(layer.kind, stages.model.get_submodule(layer.path)).to(z.device)
        out.append(torch.stack([z[:, owner == h] for h in range(layer.heads)], 1).cpu())  # (B, H, d_h)
    return out


def _one_row(view: ModelView, z: torch.Tensor, axis: int, x: torch.Tensor, pool: str) -> torch.Tensor:
    """(B', ..., C) or (B', C, ...) -> (B, C). Padding of texts is no token."""
    if axis == 1:
        z = z.movedim(1, -1)
    batch = len(x)
    has_class = has_class_token(view.module) and z.ndim == 3 and len(z) == batch
    z = z.reshape(batch, -1, z.shape[-1])
    if pool == "cls" or (pool == "auto" and has_class):
        return z[:, 0]
    if view.pad_id is None:
        return z.mean(1)
    words = (x != view.pad_id).to(z.device, z.dtype)[..., None]  # (B, T, 1)
    return (z * words).sum(1) / words.sum(1).clamp_min(1)


# -- where tokens sit --------------------------------------------------------------------------


def token_places(view: ModelView, kind: str, tokens: int) -> tuple[int, torch.Tensor]:
    """(leading tokens without a place, places (T - leading, 2)): rows and columns of patches, or positions in a text.

    Raises:
        UnsupportedModel: the tokens do not form the grid that the model's patch embedding announces.
    """
    if kind == "text":
        return 0, torch.stack([torch.arange(tokens), torch.zeros(tokens, dtype=torch.long)], 1)
    grid = _grid_of(view.module)
    lead = tokens - math.prod(grid) if grid else -1
    if not grid or lead < 0:
        raise UnsupportedModel(
            f"The tokens of {view.name} have no known places",
            expected="one grid of patches in every layer",
            got=f"{tokens} tokens, grid {tuple(grid) if grid else 'unknown'}",
        )
    return lead, torch.tensor(list(itertools.product(*map(range, grid))))


def _grid_of(module: nn.Module) -> tuple[int, int] | None:
    """Rows and columns of patches, as the patch embedding or the tower that holds it announces them."""
    for child in module.modules():
        grid = getattr(child, "grid_size", None)
        if isinstance(grid, tuple | list) and len(grid) == 2 and all(isinstance(n, int) for n in grid):
            return tuple(grid)
    return None


def has_class_token(module: nn.Module) -> bool:
    """Whether some part of a model puts a class token in front of the patches, under timm's or open_clip's name."""
    names = ("cls_token", "class_embedding")
    return any(getattr(child, name, None) is not None for child in module.modules() for name in names)
