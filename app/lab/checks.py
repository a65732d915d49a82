"""Before long work starts: what it takes in memory, and whether the model works on the data at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.cache import digest
from app.lab import store
from app.lab.sources import Options, Sample, model, sample

if TYPE_CHECKING:
    from hydra_core.data.sets import SampleSet
    from hydra_core.memory import Estimate
    from hydra_core.models.sanity import BaseAccuracy


def memory(model_name: str, data_name: str, options: Options | None = None) -> Estimate:
    """What an evaluation of a model on the sample of some data takes. For jobs: a first pass may take seconds."""
    chosen = sample(data_name, options)
    key = digest("memory", model_name, chosen.key)
    return store.results.get(key, lambda: store.infer(lambda: estimate_of(model_name, chosen)))


def estimate_of(model_name: str, chosen: Sample) -> Estimate:
    """The same for a sample, measured on its longest text or first image; for the inference thread only.

    Not cached: the inference thread must never wait for a value that another thread has it compute.
    """
    from hydra_core.memory import estimate

    view = model(model_name)
    one = view.inputs(_heaviest(list(chosen.sets.values())))
    total = sum(map(len, chosen.sets.values()))
    return estimate(view, total, one=one, masks=2, budget_mb=store.EVALUATOR_BUDGET_MB)


def _heaviest(sets: list[SampleSet]) -> SampleSet:
    """The one sample that takes the most: the longest of texts; images all become the model's size."""
    if sets[0].kind != "text":
        return sets[0].take([0])
    part = max(sets, key=lambda part: max(map(len, part.inputs)))
    return part.take([max(range(len(part)), key=lambda i: len(part.inputs[i]))])


def cut_texts(model_name: str, data_name: str) -> int:
    """How many texts of the sample are longer than the model can read; 0 for images."""
    chosen = sample(data_name)

    def compute() -> int:
        count = getattr(model(model_name).prepare, "truncated", None)
        return 0 if count is None else sum(count(part) for part in chosen.sets.values())

    return store.results.get(digest("cut texts", model_name, chosen.key), compute)


def weights_warning(path: str) -> str:
    """What to beware of in a weights file, by its ending; "" for safetensors."""
    from hydra_core.data.checkpoints import TORCH_ENDINGS, TORCH_WARNING

    return TORCH_WARNING if path.strip().lower().endswith(tuple(TORCH_ENDINGS)) else ""


def base(data_name: str, accuracy: float) -> BaseAccuracy:
    """The accuracy of a report of the unpruned model, beside what a constant answer reaches."""
    from hydra_core.models.sanity import base_accuracy

    labels = sample(data_name).id.labels
    assert labels is not None
    return base_accuracy(accuracy, labels)
