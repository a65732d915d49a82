"""What a search may look at: validation samples, checked, and what each mask does to them, computed once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hydra_core.data.sets import DataBundle, SampleSet, labelled
from hydra_core.errors import DataError
from hydra_core.fusion.evaluator import MaskEvaluator
from hydra_core.heads.mask import HeadMask
from hydra_core.metrics.calibration import ece
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
    """All that a measure needs to know of one mask, or of an ensemble of masks; small enough to keep for every mask.

    Attributes:
        correct: (N_id,) whether the prediction is right.
        surprise: (N_id,) -log of the probability of the true class, in nats.
        doubt: (N_id + all OOD,) 1 - max probability.
    """

    correct: np.ndarray
    surprise: np.ndarray
    doubt: np.ndarray


class StackedSets:
    """ID samples and OOD sets as one run of samples, and what logits of them say.

    Attributes:
        labels: (N_id,).
        spans: where each set lies: the ID set under "", each OOD set under its name.
        evaluator: gives the logits of masks on all of them.
    """

    def __init__(
        self,
        view: ModelView,
        id_set: SampleSet,
        oods: Mapping[str, SampleSet] | None = None,
        *,
        budget_mb: float = 1024,
    ) -> None:
        sets = {"": id_set, **(oods or {})}
        self.labels = labelled(id_set)
        ends = np.cumsum([0, *map(len, sets.values())]).tolist()
        self.spans = {name: slice(a, b) for name, (a, b) in zip(sets, pairwise(ends), strict=True)}
        self.evaluator = MaskEvaluator(view, view.inputs(*sets.values()), budget_mb=budget_mb)

    def __len__(self) -> int:
        """ID and OOD samples together."""
        return len(self.evaluator)

    @property
    def oods(self) -> tuple[str, ...]:
        """Names of the OOD sets."""
        return tuple(self.spans)[1:]

    def read(self, logits: np.ndarray) -> Evidence:
        """From logits of all samples, (N, C), or (M, N, C) of an ensemble.

        Raises:
            MetricError: logits that are not finite.
        """
        seen = Predictions.of(logits)
        known = Predictions(seen.logits[:, self.spans[""]])
        return Evidence(seen.predicted[self.spans[""]] == self.labels, known.surprise(self.labels), seen.doubt)

    def accuracy(self, e: Evidence) -> float:
        """Share of ID samples that are right."""
        return float(e.correct.mean())

    def ece(self, e: Evidence) -> float:
        """Calibration error of the ID samples, 15 bins of equal width."""
        return ece(1 - e.doubt[self.spans[""]], e.correct)

    def auroc(self, e: Evidence, oods: Sequence[str] | None = None) -> float:
        """Mean over OOD sets (None: all) of the AUROC of 1 - max probability."""
        inside = e.doubt[self.spans[""]]
        return float(np.mean([auroc(inside, e.doubt[self.spans[name]]) for name in oods or self.oods]))


class Validation(StackedSets):
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
        super().__init__(view, id_val, ood_val, budget_mb=budget_mb)
        self._known: dict[HeadMask, Evidence] = {}

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
            self._known |= {mask: self.read(logits) for mask, logits in zip(new, table, strict=True)}
        return [self._known[mask] for mask in masks]

    def objective(self, name: str, seed: int | None = None) -> Callable[[Evidence], float]:
        """S by name (see `find_circuit`), on a resample of each set where a seed is given."""
        rng = None if seed is None else np.random.default_rng(seed)
        ids, *oods = (
            np.arange(s.start, s.stop) if rng is None else np.sort(rng.integers(s.start, s.stop, s.stop - s.start))
            for s in self.spans.values()
        )

        def accuracy(e: Evidence) -> float:
            return float(e.correct[ids].mean())

        def detection(e: Evidence) -> float:
            return float(np.mean([auroc(e.doubt[ids], e.doubt[ood]) for ood in oods]))

        both = lambda e: (accuracy(e) + detection(e)) / 2  # noqa: E731
        calm = lambda e: both(e) - ece(1 - e.doubt[ids], e.correct[ids])  # noqa: E731
        return {"acc": accuracy, "auroc": detection, "avg": both, "avg_ece": calm}[name]
