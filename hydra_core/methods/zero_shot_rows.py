"""Rows of the comparison for zero-shot models: other OOD scores on the same predictions, none of them trained on them.

The rows that prune work on zero-shot models as they are. Of Taylor the paper says: do not use it there without
fine-tuning (method.md, section 5); the row is measured all the same, so that the warning can be checked.

`python -m hydra_core.methods.zero_shot_rows` measures the demo CLIP on the test split and writes
assets/zero-shot-demo.json: one seed, no latency. The pruned rows have the default setting: nothing was searched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from hydra_core.cost import Cost, count_macs, count_parameters
from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.evaluation import forward_set
from hydra_core.heads.scores import labelled
from hydra_core.methods import ensembles
from hydra_core.methods.base import Method, module_digest
from hydra_core.methods.registry import Context, Row, register_row
from hydra_core.methods.table import Comparison
from hydra_core.methods.vilu import CrossFitted
from hydra_core.metrics.scores import mcm_score
from hydra_core.models.demo import ASSETS
from hydra_core.models.view import ModelView
from hydra_core.models.zero_shot import image_features_view, zero_shot_parts

Judge = Callable[[SampleSet, np.ndarray], np.ndarray]  # samples, logits (M, N, C) -> OOD scores (N,)

TABLE = ASSETS / "zero-shot-demo.json"
COMMAND = "python -m hydra_core.methods.zero_shot_rows"
ZERO_SHOT_ROWS = (
    "single", "mcm", "temperature(single)", "vilu", "taylor", "circ_avg", "hydra_taylor", "hydra_circ", "hydra_random",
)  # fmt: skip


class Judged(Method):
    """A row's predictions under an OOD score of its own; its logits are those of the row."""

    def __init__(self, method: Method, judge: Judge, extra: tuple[int, int] = (0, 0)) -> None:
        super().__init__(method.view, method.net)
        self.method, self.judge, self.extra = method, judge, extra

    @cached_property
    def digest(self) -> str:
        return self.method.digest

    def doubt(self, samples: SampleSet, logits: np.ndarray) -> np.ndarray:
        """What the judge says, (N,)."""
        return self.judge(samples, logits)

    def cost(self) -> Cost:
        """That of the row, and the parameters and multiply-adds of what judges."""
        base = self.method.cost()
        parameters, macs = self.extra
        return Cost(base.parameters + parameters, base.macs + macs, base.single_parameters, base.single_macs)


def mcm(view: ModelView) -> Method:
    """The unpruned model, judged by maximum concept matching (Ming et al., NeurIPS 2022).

    Raises:
        ModelError: not a zero-shot view.
    """
    scale = zero_shot_parts(view)[0].scale
    return Judged(ensembles.single(view), lambda _, logits: mcm_score(logits, scale))


def vilu(context: Context) -> Method:
    """The unpruned model, judged by ViLU heads that learned from its errors on the validation samples.

    Raises:
        ModelError: not a zero-shot view.
        DataError: no labels, or a model that errs always or never.
        Cancelled: the context's event was set.
    """
    view, val = context.view, context.bundle.val
    module, _ = zero_shot_parts(view)
    features = image_features_view(view)
    read = lambda samples: torch.from_numpy(forward_set(features, features, samples))  # noqa: E731
    texts: torch.Tensor = module.text_features.float()  # type: ignore[union-attr, operator, assignment]
    labels = torch.tensor(labelled(val))
    fitted = CrossFitted.fit(val.ids, read(val), labels, texts, seed=context.seed, cancel=context.cancel)
    head = fitted.heads[0]
    # each head once a sample: what a deployment would run
    extra = (sum(map(count_parameters, fitted.heads)), len(fitted.heads) * count_macs(head, texts[:1]))
    return Judged(ensembles.single(view), lambda samples, _: fitted.doubt(samples.ids, read(samples)), extra)


register_row(
    Row(
        "mcm",
        "Single (MCM)",
        "The zero-shot model as it is; the OOD score is 1 - the top class of the cosines' own softmax.",
        lambda c: mcm(c.view),
    )
)
register_row(
    Row(
        "vilu",
        "ViLU",
        "The zero-shot model as it is; the OOD score is a small network's guess that the prediction is wrong. It "
        "learned from validation samples, each judged by a network that never saw it.",
        vilu,
        "draw",
    )
)


def facts_of(view: ModelView) -> dict[str, Any]:
    """What tells whether a table is of these weights and words; text features may differ in their last digits."""
    module, _ = zero_shot_parts(view)
    return {
        "image_tower": module_digest(module.visual),
        "class_names": list(view.class_names),
        "templates": list(view.info["templates"]),  # type: ignore[call-overload]
    }


def made_with(table: Comparison, view: ModelView, bundle: DataBundle) -> bool:
    """Whether a stored table was measured with this model, these words and this data."""
    made = table.provenance
    return made["data"]["digest"] == bundle.digest and made.get("zero_shot") == facts_of(view)


def main() -> None:
    """Measure the demo CLIP on the test split, once."""
    from hydra_core.data.load import load_data
    from hydra_core.methods.compare import compare
    from hydra_core.models.load import load_model

    show = lambda share, text: print(f"{share:4.0%} {text}", flush=True)  # noqa: E731
    view = load_model("demo/fashion-clip")
    table = compare(
        view, load_data("demo/fashion"), ZERO_SHOT_ROWS, bootstrap=200, seeds=(0,), latency=False, progress=show
    )
    provenance = {**table.provenance, "command": COMMAND, "zero_shot": facts_of(view)}
    table = replace(table, provenance=provenance)
    table.to_json(TABLE)
    print(table.to_markdown())


if __name__ == "__main__":
    main()
