"""Runs a private shadow of a model block by block, with head gates, so that a prefix is computed once.

A `Stream` is the state between two blocks. Two ways to continue from one:

- direct: blocks are called one after another with the arguments that the model gave its first
  block, and a known tail (norm, head) closes. Chosen only where a check at start shows that
  it gives the native logits bit for bit.
- replay: the model's own forward runs; blocks before the start return blanks of the right shape, the
  block just before it returns its stored output. Whether that is right from a given block on is
  checked on one sample (a model may read an early block late); where it is not, the stream only
  remembers its gates and the forward runs anew. Slower, never wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hydra_core.errors import MaskError
from hydra_core.heads.mask import HeadMask
from hydra_core.models.attention import owner_of
from hydra_core.models.inplace import reuse_hidden
from hydra_core.models.shadow import set_child, shadow

if TYPE_CHECKING:
    from hydra_core.models.view import ModelView

Gates = Sequence[torch.Tensor | None]  # one a layer of heads: (H,), (B, H), or None for all kept


class _Stop(Exception):
    """Leaves a native forward early, carrying the arguments of the first block or the output of a later one."""

    def __init__(self, found: Any) -> None:
        self.found = found


class _Gate:
    """Multiplies the input of one output projection by the gates of its heads."""

    def __init__(self, owner: torch.Tensor, axis: int, device: torch.device) -> None:
        self.owner = owner.to(device)  # (C,): head of each channel, -1 for channels of no head
        self.axis = axis  # of the channels: -1, or 1 before a convolution
        self.shared = bool((owner < 0).any())
        self.value: torch.Tensor | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self.value is None:
            return None
        z = args[0]  # (B', ..., C), or (B', C, ...) before a convolution
        gate = self.value.to(z.dtype)
        if self.shared:
            gate = torch.cat([gate, torch.ones_like(gate[..., :1])], -1)  # index -1: channels of no head stay
        gate = gate[..., self.owner]  # (H,) -> (C,), (B, H) -> (B, C)
        if gate.ndim == 2:
            # windows sit batch-major on the first axis: every sample's rows share its gates
            gate = gate.repeat_interleave(z.shape[0] // gate.shape[0], 0)
        shape = [1] * z.ndim
        shape[self.axis] = gate.shape[-1]
        if gate.ndim == 2:
            shape[0] = gate.shape[0]
        return (z * gate.view(shape), *args[1:])


def channel_axis(projection: nn.Module) -> int:
    """Where a projection's input has its channels: convolutions read (B, C, H, W)."""
    return 1 if isinstance(projection, nn.Conv1d | nn.Conv2d | nn.ConvTranspose2d) else -1


class _Slot(nn.Module):
    """Stands where a block stood: runs it, returns a blank or a stored output, or stops before or after it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.mode = "run"
        self.stored: Any = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.mode == "run":
            return self.block(*args, **kwargs)
        if self.mode == "before":
            raise _Stop((args, kwargs))
        if self.mode == "after":
            raise _Stop(self.block(*args, **kwargs))
        return _fresh(self.stored)

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
        behind: gates of the blocks passed, where the state cannot be kept (see replay above).
    """

    hidden: Any
    at: int
    x: torch.Tensor
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    behind: Gates | None = None

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in _tensors(self.hidden))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _tensors(item)]
    return []


def _fresh(value: Any) -> Any:
    """A copy, so that a model that works in place does not spoil a stored state."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return type(value)(_fresh(item) for item in value) if isinstance(value, list | tuple) else value


def _blank(like: Any, rows: int) -> Any:
    """Zeros in the form of a block's output for one sample, for `rows` samples."""
    if isinstance(like, torch.Tensor):
        return like.new_zeros((like.shape[0] * rows, *like.shape[1:]))
    return type(like)(_blank(item, rows) for item in like) if isinstance(like, list | tuple) else like


class Stages:
    """A runner over a private shadow of one view. Not for use by two threads at once."""

    def __init__(self, view: ModelView) -> None:
        self.view = view
        self.model = reuse_hidden(shadow(view.module))
        self.slots = [_Slot(self.model.get_submodule(path)) for path in view.blocks]
        self.gates = []
        for layer in view.layers:
            projection = self.model.get_submodule(layer.proj)
            owner = owner_of(layer.kind, self.model.get_submodule(layer.path))
            self.gates.append(_Gate(owner, channel_axis(projection), view.device))
            projection.register_forward_pre_hook(self.gates[-1])
        for path, slot in zip(view.blocks, self.slots, strict=True):
            set_child(self.model, path, slot)
        self.layers_of = [[i for i, y in enumerate(view.layers) if y.block == b] for b in range(len(view.blocks))]
        self._tail: Callable[[Any], torch.Tensor] | None = None
        self._checked = False
        self._outputs: dict[torch.Size, tuple[torch.Tensor, list[Any]]] = {}  # input shape -> (logits, blocks' outputs)
        self._kept: dict[tuple[torch.Size, int], bool] = {}  # (input shape, block) -> whether replay is right

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
        if not self.direct(x):
            return Stream(None, 0, x, behind=[None] * len(self.gates))
        return self._first(x)

    def advance(self, stream: Stream, stop: int, gates: Gates) -> Stream:
        """The stream before block `stop`, from an earlier one."""
        if not stream.at <= stop <= len(self.slots):
            raise MaskError("A stream only moves forward", expected=f"{stream.at} to {len(self.slots)}", got=stop)
        if stop == stream.at:
            return stream
        if self.direct(stream.x):
            return self._call_blocks(stream, stop, gates)
        gates = self._merged(stream, gates)
        if not self._replays(stop, stream.x):
            return Stream(None, stop, stream.x, behind=gates)
        return self._until(stream, stop, gates)

    def finish(self, stream: Stream, gates: Gates) -> torch.Tensor:
        """Logits (B, C) from any stream."""
        if self.direct(stream.x):
            assert self._tail is not None
            return self._tail(self._call_blocks(stream, len(self.slots), gates).hidden)
        with _Setting(self, self._merged(stream, gates), stream):
            return self.model(stream.x)

    def _call_blocks(self, stream: Stream, stop: int, gates: Gates) -> Stream:
        hidden = stream.hidden
        with _Setting(self, gates):
            for b in range(stream.at, stop):
                hidden = self.slots[b].block(hidden, *stream.args, **dict(stream.kwargs))
        return replace(stream, hidden=hidden, at=stop)

    # -- replay --------------------------------------------------------------------------------

    def _merged(self, stream: Stream, gates: Gates) -> Gates:
        """A stream without a state brings the gates of the blocks it has passed."""
        if stream.behind is None:
            return gates
        layers = zip(self.view.layers, stream.behind, gates, strict=True)
        return [old if layer.block < stream.at else new for layer, old, new in layers]

    def _until(self, stream: Stream, stop: int, gates: Gates) -> Stream:
        """The stream after block `stop` - 1, kept as that block's output."""
        with _Setting(self, gates, stream):
            self.slots[stop - 1].mode = "after"
            try:
                self.model(stream.x)
            except _Stop as reached:
                return Stream(reached.found, stop, stream.x)
        raise RuntimeError(f"{self.view.name}: block {stop - 1} was never called")

    def _replays(self, stop: int, x: torch.Tensor) -> bool:
        """Whether the native logits come back from the state before block `stop`; found out once, on one sample."""
        key = (x.shape[1:], stop)
        if key not in self._kept:
            with torch.no_grad():
                self._kept[key] = self._comes_back(stop, x[:1])
        return self._kept[key]

    def _comes_back(self, stop: int, x: torch.Tensor) -> bool:
        want, outputs = self.outputs(x)
        if not outputs:
            return False
        stream = Stream(outputs[stop - 1], stop, x)
        try:
            with _Setting(self, [None] * len(self.gates), stream):
                got = self.model(x)
        except (
            RuntimeError,
            TypeError,
            ValueError,
            IndexError,
            AssertionError,
        ):  # blanks do not fit what the model does with them
            return False
        return same_values(got, want)

    def outputs(self, x: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
        """(logits, output of every block or none where they run in another order) for one sample of this shape."""
        if x.shape[1:] not in self._outputs:
            with torch.no_grad():
                logits, calls = self._record(x[:1])
            in_order = [b for b, *_ in calls] == list(range(len(self.slots)))
            while len(self._outputs) >= 4:  # texts come in many lengths: only the last few shapes are kept
                del self._outputs[next(iter(self._outputs))]
            self._outputs[x.shape[1:]] = (logits, [_fresh(out) for *_, out in calls] if in_order else [])
        return self._outputs[x.shape[1:]]

    def _first(self, x: torch.Tensor) -> Stream:
        """The stream before the first block, with all that the model hands it."""
        with _Setting(self, [None] * len(self.gates)):
            self.slots[0].mode = "before"
            try:
                self.model(x)
            except _Stop as reached:
                (hidden, *args), kwargs = reached.found
                return Stream(hidden, 0, x, tuple(args), tuple(kwargs.items()))
        raise RuntimeError(f"{self.view.name}: the first block was never called")

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
        first = self._first(x)
        for tail in _known_tails(self.model):
            try:
                got = tail(self._call_blocks(first, len(self.slots), none).hidden)
            except (AttributeError, TypeError, RuntimeError, ValueError):
                continue
            if got.shape == want.shape and torch.equal(got, want):
                return tail
        return None

    def _record(self, x: torch.Tensor) -> tuple[Any, list[tuple[int, Any, Any, Any]]]:
        """(logits, [(block, args, kwargs, output)] in the order of calls) of one native forward."""
        calls: list[tuple[int, Any, Any, Any]] = []

        def note(b: int) -> Callable[..., None]:
            return lambda module, args, kwargs, out: calls.append((b, args, kwargs, out))

        handles = [slot.register_forward_hook(note(b), with_kwargs=True) for b, slot in enumerate(self.slots)]
        try:
            return self.forward_gated(x, [None] * len(self.gates)), calls
        finally:
            for handle in handles:
                handle.remove()

    def _calls_alike(self, x: torch.Tensor) -> bool:
        """Whether every block gets the previous block's output and otherwise the same arguments."""
        _, calls = self._record(x)
        in_order = [b for b, *_ in calls] == list(range(len(self.slots)))
        if not in_order or not isinstance(calls[0][3], torch.Tensor) or not calls[0][1]:
            return False
        pairs = itertools.pairwise(calls)
        chained = all(args and args[0] is before for (*_, before), (_, args, *_) in pairs)
        _, (_, *extra), kwargs, _ = calls[0]
        same = all(
            len(args) - 1 == len(extra)
            and all(a is b for a, b in zip(args[1:], extra, strict=True))
            and keywords.keys() == kwargs.keys()
            and all(keywords[k] is kwargs[k] for k in kwargs)
            for _, args, keywords, _ in calls
        )
        return chained and same


def same_values(a: Any, b: Any) -> bool:
    """Whether two outputs (tensors, or lists of them) agree bit for bit."""
    x, y = _tensors(a), _tensors(b)
    return len(x) == len(y) > 0 and all(p.shape == q.shape and torch.equal(p, q) for p, q in zip(x, y, strict=True))


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
        stream, stages = self.stream, self.stages
        replayed = stream is not None and stream.behind is None and stream.at > 0
        outputs = stages.outputs(stream.x)[1] if stream is not None and replayed else []
        for gate, value in zip(stages.gates, self.values, strict=True):
            gate.value = value
        for b, output in enumerate(outputs[: stream.at] if stream is not None else []):
            last = b == stream.at - 1  # type: ignore[union-attr]
            slot = stages.slots[b]
            slot.mode, slot.stored = "stored", stream.hidden if last else _blank(output, stream.x.shape[0])  # type: ignore[union-attr]

    def __exit__(self, *exc: object) -> None:
        for gate in self.stages.gates:
            gate.value = None
        for slot in self.stages.slots:
            slot.mode, slot.stored = "run", None
