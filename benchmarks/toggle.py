"""A click on the What-if page: one head toggled on the demo, against one hooked forward of the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import cycle

from benchmarks.common import Row, ratio
from benchmarks.evaluator import hooked
from hydra_core.data.load import load_data
from hydra_core.fusion.evaluator import MaskEvaluator
from hydra_core.heads.mask import HeadMask
from hydra_core.models.load import load_model

LIMITS = {"last": 0.05, "first": 0.70}  # of a full forward


def run() -> Iterator[Row]:
    view, data = load_model("demo/fashion-vit"), load_data("demo/fashion")
    x = view.inputs(data.val.sample(500))
    for name, layer in (("last", len(view.shape) - 1), ("first", 0)):
        evaluator = MaskEvaluator(view, x, budget_mb=384)  # as the dashboard's
        full = HeadMask.full(view.shape)
        evaluator.logits(full)
        # a new head every time: an answer that is there already is no toggle
        masks = cycle([full.prune(layer, head) for head in range(view.shape[layer])])
        value, ours, other = ratio(
            partial(_toggle, evaluator, masks), partial(hooked, view, x, [next(masks)]), repeats=3
        )
        detail = f"{ours:.3f} s against {other:.3f} s, {len(x)} images"
        yield Row(f"a toggle in the {name} layer of the demo / one hooked forward", value, LIMITS[name], detail)


def _toggle(evaluator: MaskEvaluator, masks: Iterator[HeadMask]) -> None:
    evaluator.logits(next(masks))
