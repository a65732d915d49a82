"""Circuit search, leave-one-out and Taylor on the demo, against one hooked forward a head."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
import torch

import hydra_core as hc
from benchmarks.common import Row, ratio
from benchmarks.evaluator import hooked
from hydra_core.data.sets import SampleSet
from hydra_core.heads.circuits import find_circuit
from hydra_core.heads.leave_one_out import _passes, leave_one_out, single_removals
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.scores import score_heads
from hydra_core.metrics.classification import Predictions
from hydra_core.metrics.ood import auroc
from hydra_core.models.view import ModelView

REPEATS = 1  # each side takes a minute; a warm-up comes before


def run() -> Iterator[Row]:
    view, data = hc.load_model("demo/fashion-vit"), hc.load_data("demo/fashion")
    val = data.val.sample(500)
    ood = {name: part.sample(125) for name, part in data.ood_val.items()}  # 4 sets: 500 samples
    x = view.inputs(val, *ood.values())
    yield circuit(view, val, ood, x)
    yield removals(view, val, ood, x)
    yield taylor(view, val, ood, x)


def circuit(view: ModelView, val: SampleSet, ood: dict[str, SampleSet], x: torch.Tensor) -> Row:
    found: dict[str, HeadMask] = {}
    search = lambda: found.update(tree=find_circuit(view, val, ood, 4).mask)  # noqa: E731
    by_hand = lambda: found.update(hand=naive_search(view, x, val, ood, 4))  # noqa: E731
    value, ours, other = ratio(search, by_hand, repeats=REPEATS)
    same = "the same mask" if found["tree"] == found["hand"] else "ANOTHER mask"
    detail = f"{ours:.2f} s against {other:.2f} s, {sum(view.shape)} heads, {len(x)} images, {same}"
    return Row("circuit search, demo: tree / one forward a head", value, 0.40, detail)


def naive_search(view: ModelView, x: torch.Tensor, val: SampleSet, ood: dict[str, SampleSet], keep: int) -> HeadMask:
    """What a hand-written script does: L * H hooked forwards, greedy_prune. The constant S(current) ranks nothing."""
    mask = HeadMask.full(view.shape)
    for layer, heads in enumerate(view.shape):
        values = []
        for head in range(heads):
            seen = Predictions.of(in_batches(view, x, mask.prune(layer, head)))
            values.append(naive_s(seen, val, ood))
        kept = np.argsort(values, kind="stable")[:keep]
        mask = mask.with_layer(layer, [h in kept for h in range(heads)])
    return mask


def in_batches(view: ModelView, x: torch.Tensor, mask: HeadMask) -> torch.Tensor:
    """One hooked forward over all samples, in batches small enough to be quick too."""
    return torch.cat([hooked(view, part, [mask])[0] for part in x.split(128)])


def naive_s(seen: Predictions, val: SampleSet, ood: dict[str, SampleSet]) -> float:
    n = len(val)
    parts = np.split(seen.doubt, np.cumsum([n, *map(len, ood.values())])[:-1])
    areas = [auroc(parts[0], part) for part in parts[1:]]
    return ((seen.predicted[:n] == val.labels).mean() + np.mean(areas)) / 2


def removals(view: ModelView, val: SampleSet, ood: dict[str, SampleSet], x: torch.Tensor) -> Row:
    def ours() -> None:
        _passes.clear()  # measure the pass, not the memory of the last one
        leave_one_out(view, val, ood)

    def by_hand() -> None:  # the same five figures, of logits by hooks
        for mask in [HeadMask.full(view.shape), *chain(*single_removals(view))]:
            naive_s(Predictions.of(in_batches(view, x, mask)), val, ood)

    value, mine, other = ratio(ours, by_hand, repeats=REPEATS)
    detail = f"{mine:.2f} s against {other:.2f} s, five scores of {sum(view.shape)} heads"
    return Row("exact leave-one-out of all heads, demo: tree / one forward a head", value, 0.40, detail)


def taylor(view: ModelView, val: SampleSet, ood: dict[str, SampleSet], x: torch.Tensor) -> Row:
    everything = hc.SampleSet("all", np.concatenate([p.inputs for p in (val, *ood.values())]), np.zeros(len(x), int),
                              tuple(map(str, range(len(x)))))  # fmt: skip

    def forward() -> None:
        with torch.inference_mode():
            for part in x.split(128):
                view.module(part)

    value, mine, other = ratio(lambda: score_heads(view, everything), forward, repeats=5)
    return Row("Taylor, demo / one forward", value, 4.0, f"{mine:.2f} s against {other:.2f} s, {len(x)} images")
