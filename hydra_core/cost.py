"""What a model or an ensemble costs: parameters, multiply-adds, and latency measured on this machine.

Multiply-adds are counted on the very module that runs, so shared trunks and padded heads are in
the figure. `vit_macs` is the closed form for plain ViTs; tests hold the two together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from hydra_core.errors import Cancelled
from hydra_core.fusion.ensemble import HydraEnsemble, fuse
from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.models.view import ModelView


@dataclass(frozen=True)
class Cost:
    """Cost of one sample.

    Attributes:
        parameters: distinct weights.
        macs: multiply-adds of one forward of one sample.
        single_parameters, single_macs: the same for the unpruned model.
    """

    parameters: int
    macs: int
    single_parameters: int
    single_macs: int

    @property
    def parameter_ratio(self) -> float:
        """Parameters over those of the unpruned model."""
        return self.parameters / self.single_parameters

    @property
    def mac_ratio(self) -> float:
        """Multiply-adds over those of the unpruned model."""
        return self.macs / self.single_macs


def cost_of(view: ModelView, what: Plan | HeadMask | HydraEnsemble) -> Cost:
    """Cost of one pruned model (a mask), of a plan fused, or of an ensemble that is fused already."""
    single = _single(view)
    if isinstance(what, HeadMask):
        if what.is_full:
            return Cost(*single, *single)
        module: nn.Module = prune_model(view, what)
    else:
        module = (what if isinstance(what, HydraEnsemble) else fuse(view, what)).net
    return Cost(count_parameters(module), count_macs(module, example_input(view)), *single)


_singles: WeakKeyDictionary[nn.Module, dict[tuple[int, ...], tuple[int, int]]] = WeakKeyDictionary()


def _single(view: ModelView) -> tuple[int, int]:
    """Parameters and multiply-adds of the unpruned model: a view's module never changes, so once is enough."""
    known = _singles.setdefault(view.module, {})
    if view.input_size not in known:
        known[view.input_size] = (count_parameters(view.module), count_macs(view.module, example_input(view)))
    return known[view.input_size]


def example_input(view: ModelView, batch: int = 1) -> torch.Tensor:
    """An input of the right form: images of zeros, or texts of the greatest length, without padding."""
    if view.info.get("kind") == "text":
        word = 1 if view.pad_id != 1 else 2  # a padded text would be a shorter one, or none at all
        return torch.full((batch, *view.input_size), word, dtype=torch.long, device=view.device)
    return torch.zeros(batch, *view.input_size, dtype=view.dtype, device=view.device)


def count_parameters(module: nn.Module) -> int:
    """Distinct parameters; a tensor used twice counts once."""
    return sum(p.numel() for p in {id(p): p for p in module.parameters()}.values())


def count_macs(module: nn.Module, x: torch.Tensor) -> int:
    """Multiply-adds of `module(x)`: torch's own counter, made to see attention.

    The counter reads 0 for fused attention on CPU, so attention is taken apart into its two products.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with torch.inference_mode(False), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        counter = FlopCounterMode(display=False)
        with counter:
            module(x.clone())
    return counter.get_total_flops() // 2


def vit_macs(
    *,
    tokens: int,
    width: int,
    head_dim: int,
    mlp: int,
    stem: int,
    classes: int,
    heads: Sequence[Sequence[int]],
) -> int:
    """Closed form for a plain ViT or its fused ensemble, one sample.

    Args:
        tokens: T, with class and register tokens.
        mlp: hidden width of the MLP.
        stem: multiply-adds before the first block.
        classes: outputs of the classifier, which runs once a group of the last block.
        heads: for each block, the heads of each group that runs there (one group: shared trunk).
    """
    total = stem
    for groups in heads:
        for k in groups:
            inner = k * head_dim
            total += tokens * width * 3 * inner  # q, k, v
            total += 2 * tokens * tokens * inner  # scores and weighted sum
            total += tokens * inner * width  # output projection
            total += 2 * tokens * width * mlp
    return total + len(heads[-1]) * width * classes


# -- latency ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Latency:
    """Time of one forward.

    Attributes:
        median, low, high: milliseconds a batch: median and quartiles.
        batch: samples a batch.
        precision: "fp32" or "bf16".
    """

    name: str
    batch: int
    precision: str
    median: float
    low: float
    high: float
    runs: int

    @property
    def per_sample(self) -> float:
        """Milliseconds a sample."""
        return self.median / self.batch


PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measure_latency(
    name: str,
    run: Callable[[torch.Tensor], Any],
    x: torch.Tensor,
    *,
    precision: str = "fp32",
    seconds: float = 0.4,
    cancel: threading.Event | None = None,
) -> Latency:
    """Time `run(x)` on this machine: warm-up, then as many runs as fit in `seconds` (at least 3)."""
    from torch.utils.benchmark import Timer

    if cancel is not None and cancel.is_set():
        raise Cancelled("The measurement")
    enabled = precision != "fp32"

    def once() -> None:
        with torch.inference_mode(), torch.autocast(x.device.type, dtype=PRECISIONS[precision], enabled=enabled):
            run(x)
        if x.device.type == "cuda":
            torch.cuda.synchronize()

    once()
    timer = Timer("once()", globals={"once": once}, num_threads=torch.get_num_threads())
    times = timer.blocked_autorange(min_run_time=seconds).times
    while len(times) < 3:
        times = [*times, timer.timeit(1).mean]
    low, median, high = (1e3 * float(q) for q in torch.tensor(times).quantile(torch.tensor([0.25, 0.5, 0.75])))
    return Latency(name, len(x), precision, median, low, high, len(times))
