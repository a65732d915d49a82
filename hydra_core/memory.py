"""Memory: what work will take, said before it starts; and smaller chunks when it runs out all the same."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from hydra_core.data.checkpoints import free_memory
from hydra_core.data.limits import size_text
from hydra_core.errors import BudgetError, Cancelled
from hydra_core.progress import Progress

if TYPE_CHECKING:
    from hydra_core.data.sets import SampleSet
    from hydra_core.models.view import ModelView

T = TypeVar("T")

# what torch says on a CPU, by allocator and system
_WORDS = ("not enough memory", "out of memory", "can't allocate memory", "cannot allocate memory")
LOWER = "Lower the number of samples, choose a smaller model or smaller images, or close other programs."


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a CPU or a GPU."""
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _WORDS)


def by_chunks(
    total: int,
    chunk: int,
    work: Callable[[int, int], T],
    *,
    name: str = "The work",
    on_halved: Callable[[int], None] = lambda chunk: None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> list[T]:
    """`work(start, stop)` over 0 to `total` in chunks; where memory runs out the chunk is halved and tried again.

    Args:
        name: of the work, for `Cancelled`.
        on_halved: called with the new chunk, to drop what is kept and to remember the size.

    Raises:
        BudgetError: not even one sample fits.
        Cancelled: `cancel` was set; looked at before each chunk.
    """
    start, found = 0, []
    while start < total:
        if cancel is not None and cancel.is_set():
            raise Cancelled(name)
        stop = min(start + chunk, total)
        try:
            found.append(work(start, stop))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            full = True
        else:
            full = False
        if not full:
            start = stop
            if progress is not None:
                progress(stop / total, f"{stop:,} of {total:,} samples")
            continue
        # outside of `except`: the error's frames, which hold the tensors, are gone by now
        if stop - start == 1:
            raise BudgetError("Memory ran out with one sample at a time", expected="more memory", hint=LOWER)
        chunk = (stop - start) // 2
        on_halved(chunk)
        _free()
    return found


def by_batches(
    samples: SampleSet,
    batch: int,
    work: Callable[[SampleSet], np.ndarray],
    *,
    axis: int = 0,
    name: str = "The work",
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> np.ndarray:
    """`work` over a set in batches of texts of like length; the rows come back in the set's own order.

    Args:
        axis: of the results, along which samples run.

    Raises:
        BudgetError, Cancelled: see `by_chunks`.
    """
    order = samples.reading_order()  # texts are padded batch by batch
    run = lambda start, stop: work(samples.take(order[start:stop]))  # noqa: E731
    parts = by_chunks(len(samples), batch, run, name=name, progress=progress, cancel=cancel)
    return np.take(np.concatenate(parts, axis), np.argsort(order), axis)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# -- the estimate --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """Bytes that reading a set of samples through a model takes at its peak.

    Attributes:
        inputs: all samples as the model's input.
        activations: one chunk's streams, a level a block, and the widest layer's working set.
        logits: of every mask and sample.
        free: what the machine could give then; None where it does not say.
    """

    inputs: int
    activations: int
    logits: int
    free: int | None

    @property
    def total(self) -> int:
        return self.inputs + self.activations + self.logits

    @property
    def text(self) -> str:
        """'about 1.2 GB (samples 0.9 GB, activations 0.3 GB, logits 2.0 MB), 12.0 GB free'."""
        parts = {"samples": self.inputs, "activations": self.activations, "logits": self.logits}
        sizes = ", ".join(f"{name} {size_text(size)}" for name, size in parts.items())
        free = "" if self.free is None else f"; {size_text(self.free)} free"
        return f"about {size_text(self.total)} ({sizes}){free}"

    def now(self) -> Estimate:
        """The same, beside what the machine can give now."""
        return replace(self, free=free_memory())

    def check(self) -> Estimate:
        """This estimate, where it fits.

        Raises:
            BudgetError: it does not; the text says what to lower.
        """
        if self.free is None or self.total <= self.free:
            return self
        raise BudgetError("This work does not fit into memory", expected=f"at most {size_text(self.free)}",
                          got=self.text, hint=LOWER)  # fmt: skip


def estimate(view: ModelView, samples: int, *, one: torch.Tensor, masks: int = 1, budget_mb: float = 1024) -> Estimate:
    """What `samples` samples through a model take in a `MaskEvaluator`, measured on one sample.

    Args:
        one: one prepared sample (1, ...): its stream is measured.
        masks: how many masks' logits are kept.
        budget_mb: the evaluator's memory for streams.
    """
    from hydra_core.fusion.evaluator import MIB, MaskEvaluator

    evaluator = MaskEvaluator(view, one[:1], budget_mb=budget_mb)
    quick = evaluator.chunk_for(samples)
    working = evaluator.sample_bytes * quick  # one chunk on its way
    kept = min(int(budget_mb * MIB), evaluator.stream_bytes * len(view.blocks) * samples)  # streams of the last masks
    inputs = one[:1].numel() * one.element_size() * samples
    return Estimate(inputs, working + kept, 4 * masks * samples * max(1, view.num_classes), free_memory())
