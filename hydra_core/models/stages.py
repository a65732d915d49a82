"""Runs a private shadow of a model block by block, with head gates, so that a prefix is computed once.

A `Stream` is the state between two blocks. Two ways to continue from one:

- direct: blocks are called one after another with the arguments that the model gave its first
  block, and a known tail (norm, head) closes. Chosen only where a check at start shows that
  it gives the native logits bit for bit.
- replay: the model's own forward runs; blocks before the start hand their input on, the block
  just before it returns the stored state. Works for any model whose blocks keep their input's
  shape, at the price of the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hydra_core.errors import MaskError
from hydra_core.heads.mask import HeadMask
from hydra_core.models.shadow import set_child, shadow

if TYPE_CHECKING:
    from hydra_core.models.view import ModelView

Gates = Sequence[torch.Tensor | None]  # one a layer of heads: (H,), (B, H), or None for all kept


class _Stop(Exception):
    """Leaves a native forward early, carrying the arguments of the block it reached."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.call = (args, kwargs)


class _Gate:
    """Multiplies the input of one output projection by the gates of its heads."""

    def __init__(self, head_dim: int) -> None:
        self.head_dim = head_dim
        self.value: torch.Tensor | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self.value is None:
            return None
        z = args[0]  # (B', ..., H * d_h)
        gate = self.value.to(z.dtype).repeat_interleave(self.head_dim, -1)  # (H,) -> (H * d_h,)
        if gate.ndim == 2:
            # windows sit batch-major on the first axis: every sample's rows share its gates
            gate = gate.repeat_interleave(z.shape[0] // gate.shape[0], 0)
            gate = gate.view(gate.shape[0], *(1,) * (z.ndim - 2), gate.shape[1])
        return (z * gate, *args[1:])


class _Slot(nn.Module):
    """Stands where a block stood: runs it, skips it, returns a stored state, or stops before it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.mode = "run"
        self.stored: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.mode == "run":
            return self.block(*args, **kwargs)
        if self.mode == "stop":
            raise _Stop(args, kwargs)
        return self.stored if self.mode == "stored" else args[0]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)  # models that read attributes of their blocks


@dataclass(frozen=True)
class Stream:
    """The state before block `at`: what that block will be given.

    Attributes:
        hidden: residual stream, (B, T, d) for plain transformers; the model's own form otherwise.
        at: index of the next block.
        x: the model's input (B, ...), needed by replay only.
        args, kwargs: what the model hands its blocks beside the stream (rope, masks).
    """

    hidden: Any
    at: int
    x: torch.Tensor
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in _tensors(self.hidden))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _tensors(item)]
    return []


class Stages:
    """A runner over a private shadow of one view. Not for use by two threads at once."""

    def __init__(self, view: ModelView) -> None:
        self.view = view
        self.model = shadow(view.module)
        self.slots = [_Slot(self.model.get_submodule(path)) for path in view.blocks]
        self.gates = [_Gate(layer.head_dim) for layer in view.layers]
        for layer, gate in zip(view.layers, self.gates, strict=True):
            self.model.get_submodule(layer.proj).register_forward_pre_hook(gate)
        for path, slot in zip(view.blocks, self.slots, strict=True):
            set_child(self.model, path, slot)
        self.layers_of = [[i for i, y in enumerate(view.layers) if y.block == b] for b in range(len(view.blocks))]
        self._tail: Callable[[Any], torch.Tensor] | None = None
        self._checked = False

    # -- whole forwards ----------------------------------------------------------------------

    def forward(self, x: torch.Tensor, mask: HeadMask | None = None) -> torch.Tensor:
        """Logits (B, C) with the mask's heads gated away."""
        return self.forward_gated(x, self.gates_of(mask))

    def forward_gated(self, x: torch.Tensor, gates: Gates) -> torch.Tensor:
        """Logits (B, C) with any gates: zeros and ones, or (B, H) tensors that carry gradients."""
        with _Setting(self, gates):
            return self.model(x)

    def gates_of(self, mask: HeadMask | None) -> Gates:
        """One gate tensor a layer; None where every head is kept, which costs nothing."""
        if mask is None:
            return [None] * len(self.gates)
        mask.check(self.view.shape)
        device = self.view.device
        return [None if all(row) else torch.tensor(row, dtype=torch.float32, device=device) for row in mask.rows]

    # -- by parts ----------------------------------------------------------------------------

    def start(self, x: torch.Tensor) -> Stream:
        """The stream before the first block."""
        return self._until(x, 0, None, [None] * len(self.gates))

    def advance(self, stream: Stream, stop: int, gates: Gates) -> Stream:
        """The stream before block `stop`, from an earlier one."""
        if not stream.at <= stop <= len(self.slots):
            raise MaskError("A stream only moves forward", expected=f"{stream.at} to {len(self.slots)}", got=stop)
        if stop == stream.at:
            return stream
        if self.direct(stream.x):
            return self._call_blocks(stream, stop, gates)
        if stop == len(self.slots):
            return self._last(stream, gates)
        return self._until(stream.x, stop, stream, gates)

    def finish(self, stream: Stream, gates: Gates) -> torch.Tensor:
        """Logits (B, C) from any stream."""
        if self.direct(stream.x):
            assert self._tail is not None
            return self._tail(self._call_blocks(stream, len(self.slots), gates).hidden)
        with _Setting(self, gates, stream):
            return self.model(stream.x)

    def _call_blocks(self, stream: Stream, stop: int, gates: Gates) -> Stream:
        hidden = stream.hidden
        with _Setting(self, gates):
            for b in range(stream.at, stop):
                hidden = self.slots[b].block(hidden, *stream.args, **dict(stream.kwargs))
        return replace(stream, hidden=hidden, at=stop)

    def _until(self, x: torch.Tensor, stop: int, stream: Stream | None, gates: Gates) -> Stream:
        with _Setting(self, gates, stream):
            self.slots[stop].mode = "stop"
            try:
                self.model(x)
            except _Stop as reached:
                (hidden, *args), kwargs = reached.call
                return Stream(hidden, stop, x, tuple(args), tuple(kwargs.items()))
        raise RuntimeError(f"{self.view.name}: block {stop} was never called")

    def _last(self, stream: Stream, gates: Gates) -> Stream:
        """Replay to the very end: keep what the last block returns."""
        kept: list[Any] = []
        last = self.slots[-1]
        handle = last.register_forward_hook(lambda module, args, output: kept.append(output))
        try:
            with _Setting(self, gates, stream):
                self.model(stream.x)
        finally:
            handle.remove()
        return replace(stream, hidden=kept[0], at=len(self.slots))

    # -- the direct way ------------------------------------------------------------------------

    def direct(self, x: torch.Tensor) -> bool:
        """Whether blocks may be called one by one; found out once, on one sample."""
        if not self._checked:
            self._checked = True
            with torch.no_grad():
                self._tail = self._find_tail(x[:1])
        return self._tail is not None

    def _find_tail(self, x: torch.Tensor) -> Callable[[Any], torch.Tensor] | None:
        if not self._calls_alike(x):
            return None
        none: Gates = [None] * len(self.gates)
        want = self.forward_gated(x, none)
        first = self._until(x, 0, None, none)
        for tail in _known_tails(self.model):
            try:
                got = tail(self._call_blocks(first, len(self.slots), none).hidden)
            except (AttributeError, TypeError, RuntimeError, ValueError):
                continue
            if got.shape == want.shape and torch.equal(got, want):
                return tail
        return None

    def _calls_alike(self, x: torch.Tensor) -> bool:
        """Whether every block gets the previous block's output and otherwise the same arguments."""
        calls: list[tuple[Any, Any, Any]] = []
        handles = [
            slot.register_forward_hook(
                lambda module, args, kwargs, out: calls.append((args, kwargs, out)), with_kwargs=True
            )
            for slot in self.slots
        ]
        try:
            self.forward_gated(x, [None] * len(self.gates))
        finally:
            for handle in handles:
                handle.remove()
        if len(calls) != len(self.slots) or not isinstance(calls[0][2], torch.Tensor):
            return False
        chained = all(after[0] and after[0][0] is before[2] for before, after in zip(calls, calls[1:], strict=False))
        (_, *extra), kwargs, _ = calls[0][0], calls[0][1], calls[0][2]
        same = all(
            len(args) - 1 == len(extra)
            and all(a is b for a, b in zip(args[1:], extra, strict=True))
            and keywords.keys() == kwargs.keys()
            and all(keywords[k] is kwargs[k] for k in kwargs)
            for args, keywords, _ in calls
        )
        return chained and same


def _known_tails(model: nn.Module) -> list[Callable[[Any], torch.Tensor]]:
    """Ways in which model families end; each is tried and must give the native logits exactly."""
    m: Any = model
    return [
        lambda h: m.forward_head(m.norm(h)),
        lambda h: m.forward_head(h),
        lambda h: m.head(m.norm(h)),
    ]


class _Setting:
    """Sets gates and slots for one forward and clears them whatever happens."""

    def __init__(self, stages: Stages, gates: Gates, stream: Stream | None = None) -> None:
        self.stages, self.values, self.stream = stages, gates, stream

    def __enter__(self) -> None:
        for gate, value in zip(self.stages.gates, self.values, strict=True):
            gate.value = value
        if self.stream is not None:
            for b in range(self.stream.at):
                self.stages.slots[b].mode = "skip"
            if self.stream.at:
                before = self.stages.slots[self.stream.at - 1]
                before.mode, before.stored = "stored", self.stream.hidden

    def __exit__(self, *exc: object) -> None:
        for gate in self.stages.gates:
            gate.value = None
        for slot in self.stages.slots:
            slot.mode, slot.stored = "run", None
