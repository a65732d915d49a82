"""Many masks on one set of samples: what masks share is computed once (method.md, section 3).

Masks form a prefix tree over the blocks. It is walked depth first, chunk by chunk of samples, so
that at any time only one stream a level of one branch is held: memory does not grow with the
number of masks. Single masks keep the streams of the last ones: a toggle in layer l restarts at l.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hydra_core.errors import BudgetError, Cancelled, DataError
from hydra_core.heads.mask import HeadMask
from hydra_core.memory import by_chunks
from hydra_core.models.shortcuts import Shortcuts
from hydra_core.models.stages import Gates, Stages, Stream
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress, step_of

MIB = 1 << 20


class _Spine:
    """What the last masks left on one chunk; the oldest leaves.

    Streams are keyed by the kept heads of all blocks before, and so are the heads' outputs in the block that
    comes next (they are the same whatever that block's gates).
    """

    def __init__(self, room: int) -> None:
        self.room, self.used = room, 0
        self._kept: OrderedDict[tuple[str, tuple], tuple[Any, int]] = OrderedDict()

    def resume(self, prefixes: Sequence[tuple], part: torch.Tensor, stages: Stages) -> Stream:
        """The stream of the longest prefix that is kept; else the chunk's start, which is kept from now on."""
        for prefix in reversed(prefixes):
            found = self._get("stream", prefix)
            if found is not None:
                return found
        start = stages.start(part)
        self.keep((), start)
        return start

    def keep(self, prefix: tuple, stream: Stream) -> None:
        self._keep("stream", prefix, stream, stream.nbytes)

    def heads(self, prefix: tuple, stream: Stream, short: Shortcuts) -> torch.Tensor | None:
        """`Shortcuts.heads` of a stream, kept for the next toggle in its block."""
        found = self._get("heads", prefix)
        if found is None:
            found = short.heads(stream)
            if found is not None:
                self._keep("heads", prefix, found, found.nbytes)
        return found

    def _get(self, kind: str, prefix: tuple) -> Any:
        if (kind, prefix) not in self._kept:
            return None
        self._kept.move_to_end((kind, prefix))
        return self._kept[kind, prefix][0]

    def _keep(self, kind: str, prefix: tuple, value: Any, size: int) -> None:
        if size > self.room or (kind, prefix) in self._kept:
            return
        while self.used + size > self.room:
            self.used -= self._kept.popitem(last=False)[1][1]
        self._kept[kind, prefix] = value, size
        self.used += size


@dataclass(frozen=True)
class _Leaf:
    """A distinct mask and its place in the answer."""

    index: int
    mask: HeadMask
    gates: Gates


class MaskEvaluator:
    """Logits of any masks of one model on fixed samples.

    Args:
        view: the model.
        inputs: preprocessed samples, (N, C, H, W) for images; or what the view's `prepare` gives.
        budget_mb: memory for streams, in MiB, whatever the number of masks.
        chunk: samples that go through together; None: chosen so that the working set is small enough
            to be quick and to fit the budget.

    Where memory runs out, the chunk is halved and kept streams are dropped.

    Raises:
        DataError: no samples.
        BudgetError: not even one sample fits.
    """

    def __init__(self, view: ModelView, inputs: torch.Tensor, *, budget_mb: float = 1024, chunk: int | None = None):
        if not len(inputs):
            raise DataError("There are no samples to evaluate", expected="one or more")
        self.view, self.inputs, self.budget = view, inputs, int(budget_mb * MIB)
        self._lock = threading.Lock()
        self.stream_bytes = self._measure()
        self.chunk = chunk or self.chunk_for(len(inputs))
        self._spines: dict[tuple[int, int], _Spine] = {}  # (start, stop) of a chunk -> its streams
        self.peak = 0  # bytes of streams held at once by the last `many`
        self._held = 0

    def __len__(self) -> int:
        return len(self.inputs)

    @torch.inference_mode()
    def _measure(self) -> int:
        """Bytes of one sample's stream, from one sample."""
        stages = self.view.stages()
        one = self.inputs[:1].to(self.view.device)
        start = stages.start(one)
        size = start.nbytes
        if not size:  # replay: the state is known after the first block
            size = stages.advance(start, 1, [None] * len(self.view.layers)).nbytes
        return max(1, size)

    @property
    def sample_bytes(self) -> int:
        """What one sample takes on its way: a stream and heads' outputs a level, and the widest layer's working set."""
        return (2 * (len(self.view.blocks) + 1) + 12) * self.stream_bytes

    def chunk_for(self, samples: int) -> int:
        """How many of some samples go through together."""
        fits = self.budget // self.sample_bytes
        if fits < 1:
            raise BudgetError(
                "One sample does not fit the memory budget",
                expected=f"{self.sample_bytes / MIB:.0f} MiB or more",
                got=f"{self.budget / MIB:.0f} MiB",
                hint="Raise the budget or use a smaller model.",
            )
        quick = max(1, QUICK_BYTES // self.stream_bytes)
        return int(min(fits, quick, samples))

    # -- chunks --------------------------------------------------------------------------------

    def _each_chunk(
        self,
        work: Callable[[int, torch.Tensor, _Spine], torch.Tensor],
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        """`work(start, chunk, its streams)` along the samples, joined along the samples' axis, the last but one."""

        def run(start: int, stop: int) -> torch.Tensor:
            return work(start, self.inputs[start:stop].to(self.view.device), self._spine(start, stop))

        parts = by_chunks(len(self.inputs), self.chunk, run, name="The evaluation", on_halved=self._halved,
                          progress=progress, cancel=cancel)  # fmt: skip
        return torch.cat(parts, -2)

    def _spine(self, start: int, stop: int) -> _Spine:
        if (start, stop) not in self._spines:
            room = self.budget * self.chunk // max(self.chunk, len(self.inputs))
            self._spines[start, stop] = _Spine(room)
        return self._spines[start, stop]

    def _halved(self, chunk: int) -> None:
        self.chunk = chunk
        self._spines.clear()

    # -- one mask ------------------------------------------------------------------------------

    @torch.inference_mode()
    def logits(
        self,
        mask: HeadMask | None = None,
        *,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> np.ndarray:
        """Logits (N, C) under a mask; restarts where the mask departs from the last ones.

        Raises:
            Cancelled: `cancel` was set.
        """
        mask = HeadMask.full(self.view.shape) if mask is None else mask.check(self.view.shape)
        stages = self.view.stages()
        gates = stages.gates_of(mask)
        with self._lock:
            short = self._shortcuts()
            work = lambda _, part, spine: self._along(part, spine, mask, gates, short).float().cpu()  # noqa: E731
            return self._each_chunk(work, progress, cancel).numpy()

    def _along(self, part: torch.Tensor, spine: _Spine, mask: HeadMask, gates: Gates, short: Shortcuts) -> torch.Tensor:
        prefixes = [self._prefix(mask, b) for b in range(len(self.view.blocks))]
        stream = spine.resume(prefixes, part, short.stages)
        while stream.at < len(self.view.blocks) - 1:
            stream = short.step(stream, gates, spine.heads(prefixes[stream.at], stream, short))
            spine.keep(prefixes[stream.at], stream)
        return short.finish(stream, gates, spine.heads(prefixes[-1], stream, short))

    def _prefix(self, mask: HeadMask, block: int) -> tuple:
        """The kept heads of all layers in blocks before `block`."""
        return tuple(row for row, layer in zip(mask.rows, self.view.layers, strict=True) if layer.block < block)

    def _shortcuts(self) -> Shortcuts:
        """This thread's shortcuts; found out once a runner."""
        stages = self.view.stages()
        short = getattr(stages, "shortcuts", None)
        if short is None:
            short = Shortcuts(stages, self.inputs[:1].to(self.view.device))
            stages.shortcuts = short  # type: ignore[attr-defined]
        return short

    # -- many masks ----------------------------------------------------------------------------

    @torch.inference_mode()
    def many(
        self,
        masks: Sequence[HeadMask],
        *,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> np.ndarray:
        """Logits (len(masks), N, C) of many masks, as a prefix tree that starts where the last calls' streams allow.

        Raises:
            Cancelled: `cancel` was set.
        """
        masks = [mask.check(self.view.shape) for mask in masks]
        distinct = list(dict.fromkeys(masks))
        if len(distinct) <= FEW:
            rows = {
                mask: self.logits(mask, progress=step_of(progress, i, len(distinct)), cancel=cancel)
                for i, mask in enumerate(distinct)
            }
            return np.stack([rows[mask] for mask in masks])
        stages = self.view.stages()
        leaves = [_Leaf(i, mask, stages.gates_of(mask)) for i, mask in enumerate(distinct)]
        with self._lock:
            short = self._shortcuts()
            self.peak = 0

            def work(start: int, part: torch.Tensor, spine: _Spine) -> torch.Tensor:
                self._held, rows = 0, dict[int, torch.Tensor]()
                stream = self._common(part, spine, leaves, short)
                for count, (leaf, logits) in enumerate(self._visit(stream, leaves, short), 1):
                    if cancel is not None and cancel.is_set():
                        raise Cancelled("The evaluation")
                    rows[leaf.index] = logits.float().cpu()
                    if progress is not None:
                        share = (start + len(part) * count / len(leaves)) / len(self.inputs)
                        progress(share, f"{count} of {len(leaves)} masks, samples to {start + len(part):,}")
                return torch.stack([rows[i] for i in range(len(leaves))])  # (M, B, C)

            table = self._each_chunk(work).numpy()
        where = {mask: i for i, mask in enumerate(distinct)}
        return table if len(distinct) == len(masks) else table[[where[mask] for mask in masks]]

    def _common(self, part: torch.Tensor, spine: _Spine, leaves: Sequence[_Leaf], short: Shortcuts) -> Stream:
        """The stream before the first block at which masks part; kept, so that a search by layers goes on there."""
        first = leaves[0]
        prefixes = [self._prefix(first.mask, b) for b in range(self._parting(leaves, 0) + 1)]
        stream = short.advance(spine.resume(prefixes, part, short.stages), len(prefixes) - 1, first.gates)
        spine.keep(prefixes[-1], stream)
        return stream

    def _visit(self, stream: Stream, leaves: Sequence[_Leaf], short: Shortcuts) -> Iterator[tuple[_Leaf, torch.Tensor]]:
        """Depth first below one stream; `leaves` agree in every block before it."""
        if len(leaves) == 1:
            yield leaves[0], short.finish(stream, leaves[0].gates)
            return
        part = self._parting(leaves, stream.at)
        stream = short.advance(stream, part, leaves[0].gates)
        with self._holding(stream, short.plain[part]):
            groups = self._groups(leaves, part)
            firsts = [group[0].gates for group in groups]
            if all(len(group) == 1 for group in groups):
                for group, logits in zip(groups, short.finish_each(stream, firsts), strict=True):
                    yield group[0], logits
                return
            for group, after in zip(groups, short.branch(stream, firsts), strict=True):
                yield from self._visit(after, group, short)

    def _parting(self, leaves: Sequence[_Leaf], at: int) -> int:
        """The first block at which the leaves' masks differ."""
        for block in range(at, len(self.view.blocks)):
            if len({self._rows(leaf.mask, block) for leaf in leaves}) > 1:
                return block
        raise AssertionError("distinct masks differ somewhere")

    def _groups(self, leaves: Sequence[_Leaf], block: int) -> list[list[_Leaf]]:
        groups: dict[tuple, list[_Leaf]] = {}
        for leaf in leaves:
            groups.setdefault(self._rows(leaf.mask, block), []).append(leaf)
        return list(groups.values())

    def _rows(self, mask: HeadMask, block: int) -> tuple:
        return tuple(row for row, layer in zip(mask.rows, self.view.layers, strict=True) if layer.block == block)

    @contextmanager
    def _holding(self, stream: Stream, with_heads: bool) -> Iterator[None]:
        """Counts the bytes of a stream while it is held."""
        size = stream.nbytes * (2 if with_heads else 1)
        self._held += size
        self.peak = max(self.peak, self._held)
        try:
            yield
        finally:
            self._held -= size


FEW = 2  # so few masks are a live what-if: keep their streams for the next toggle
QUICK_BYTES = 5 * MIB // 4  # one stream of a chunk: measured best where it and the MLP's hidden layer stay in cache
