"""What a search may look at: validation samples, checked, and what each mask does to them, computed once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import DataError
from hydra_core.fusion.evaluator import MaskEvaluator
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.scores import labelled
from hydra_core.metrics.classification import Predictions
from hydra_core.metrics.ood import auroc
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress


def check_validation(
    id_val: SampleSet,
    ood_val: Mapping[str, SampleSet] | None,
    *,
    needs_ood: bool = True,
    bundle: DataBundle | None = None,
) -> None:
    """Refuse validation sets on which a search is worthless.

    Raises:
        DataError: no labels, one class only, an empty class, no OOD samples where needed, an empty OOD set, samples
            that stand in a test set of `bundle`; the text names the value.
    """
    labels = labelled(id_val)
    present = np.unique(labels)
    names = id_val.class_names or tuple(map(str, range(labels.max() + 1)))
    if len(present) < 2:
        raise DataError(f"{id_val.name} holds one class only", expected="two classes or more", got=names[present[0]])
    absent = [name for c, name in enumerate(names) if c not in set(present.tolist())]
    if id_val.class_names and absent:
        raise DataError(
            f"{id_val.name}: {len(absent)} classes have no sample",
            expected="one sample or more of each class",
            got=", ".join(absent[:5]),
            hint="Take more samples, or samples stratified by class.",
        )
    if needs_ood and not ood_val:
        raise DataError(
            "The search needs out-of-distribution validation samples",
            expected="one OOD validation set or more",
            got="none",
            hint='Give ood_val, or choose the objective "acc", which needs none.',
        )
    for name, part in (ood_val or {}).items():
        if not len(part):
            raise DataError(f"The OOD set {name} is empty", expected="one sample or more", got=0)
    if bundle is not None:
        _check_apart([id_val, *(ood_val or {}).values()], bundle)


def _check_apart(sets: Sequence[SampleSet], bundle: DataBundle) -> None:
    tested = {i: s.name for s in (bundle.test, *bundle.ood_test.values()) for i in s.ids}
    for part in sets:
        shared = sorted(i for i in part.ids if i in tested)
        if shared:
            raise DataError(
                f"{len(shared)} validation samples of {part.name} stand in the test set {tested[shared[0]]}",
                expected="validation samples that no test set holds",
                got=", ".join(shared[:3]),
                hint="What is chosen on test samples is worthless; take the validation split.",
            )


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that an objective needs to know of one mask; small enough to keep for every mask of a search.

    Attributes:
        correct: (N_id,) whether the prediction is right.
        doubt: (N_id + all OOD,) 1 - max probability.
    """

    correct: np.ndarray
    doubt: np.ndarray


class Validation:
    """Validation samples of one model, with what is known of each mask so far.

    Args:
        id_val, ood_val: samples, checked by `check_validation`.
        budget_mb: memory for streams.
    """

    def __init__(
        self,
        view: ModelView,
        id_val: SampleSet,
        ood_val: Mapping[str, SampleSet] | None = None,
        *,
        budget_mb: float = 1024,
    ) -> None:
        sets = [id_val, *(ood_val or {}).values()]
        self.labels = labelled(id_val)
        self.ends = np.cumsum([0, *map(len, sets)])
        self.evaluator = MaskEvaluator(view, view.inputs(*sets), budget_mb=budget_mb)
        self._known: dict[HeadMask, Evidence] = {}

    @property
    def samples(self) -> int:
        """ID and OOD samples together."""
        return int(self.ends[-1])

    def evidence(
        self,
        masks: Sequence[HeadMask],
        *,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> list[Evidence]:
        """What each mask does; only masks not seen before are run.

        Raises:
            MetricError: logits that are not finite.
            Cancelled: `cancel` was set.
        """
        new = [mask for mask in dict.fromkeys(masks) if mask not in self._known]
        if new:
            table = self.evaluator.many(new, progress=progress, cancel=cancel)
            self._known |= {mask: self._read(logits) for mask, logits in zip(new, table, strict=True)}
        return [self._known[mask] for mask in masks]

    def _read(self, logits: np.ndarray) -> Evidence:
        seen = Predictions.of(logits)
        return Evidence(seen.predicted[: len(self.labels)] == self.labels, seen.doubt)

    def objective(self, name: str, seed: int | None = None) -> Callable[[Evidence], float]:
        """S: "acc", "auroc" or "avg" (see `find_circuit`), on a resample of each set where a seed is given."""
        rng = None if seed is None else np.random.default_rng(seed)
        ids, *oods = (
            np.arange(a, b) if rng is None else np.sort(rng.integers(a, b, b - a)) for a, b in pairwise(self.ends)
        )

        def accuracy(e: Evidence) -> float:
            return float(e.correct[ids].mean())

        def detection(e: Evidence) -> float:
            return float(np.mean([auroc(e.doubt[ids], e.doubt[ood]) for ood in oods]))

        both = lambda e: (accuracy(e) + detection(e)) / 2  # noqa: E731
        return {"acc": accuracy, "auroc": detection, "avg": both}[name]
