"""Ways to run a plan and what each costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from app.cache import digest
from app.lab import store
from app.lab.sources import model
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.progress import Progress

if TYPE_CHECKING:
    from hydra_core.cost import Cost

SINGLE, DEEP, HYDRA, HYDRA_TRUNK = "Single", "Deep ensemble", "Hydra, no shared trunk", "Hydra, shared trunk"


def costs(model_name: str, plan: Plan) -> dict[str, Cost]:
    """Cost of the plan in each way to run it, beside one model and a deep ensemble of as many members."""

    def compute() -> dict[str, Cost]:
        from hydra_core.cost import Cost, cost_of
        from hydra_core.fusion.ensemble import FusionOptions, fuse

        view = model(model_name)
        single = cost_of(view, HeadMask.full(view.shape))
        many = Cost(len(plan) * single.parameters, len(plan) * single.macs, single.parameters, single.macs)
        apart = fuse(view, plan, options=FusionOptions(share_trunk=False))
        return {SINGLE: single, DEEP: many, HYDRA: cost_of(view, apart), HYDRA_TRUNK: cost_of(view, plan)}

    return store.results.get(digest("costs", model_name, plan.text), lambda: store.infer(compute))


def latencies(
    model_name: str,
    plan: Plan,
    batches: Sequence[int],
    precisions: Sequence[str],
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> list[Any]:
    """Measured latency of each way, batch size and precision; a list of `hydra_core.cost.Latency`."""
    import itertools

    from hydra_core.cost import example_input, measure_latency
    from hydra_core.fusion.ensemble import FusionOptions, fuse

    view = model(model_name)
    runs: dict[str, Callable[[Any], Any]] = {
        SINGLE: view.module,
        DEEP: lambda x: [view.module(x) for _ in range(len(plan))],
        HYDRA: fuse(view, plan, options=FusionOptions(share_trunk=False)),
        HYDRA_TRUNK: fuse(view, plan),
    }
    cases = list(itertools.product(precisions, batches, runs))
    out = []
    for done, (precision, batch, name) in enumerate(cases):
        if progress is not None:
            progress(done / len(cases), f"{name}, batch {batch}, {precision}")
        x = example_input(view, batch)
        work = lambda n=name, x=x, p=precision: measure_latency(n, runs[n], x, precision=p, cancel=cancel)  # noqa: E731
        out.append(store.infer(work))
    return out
