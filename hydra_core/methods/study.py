"""One row on one split: its logits, kept; its report; and what each OOD score makes of it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hydra_core.data.sets import DataBundle, SampleSet, labelled
from hydra_core.errors import MetricError, UnsupportedModel
from hydra_core.evaluation import forward_set
from hydra_core.methods.base import Method
from hydra_core.methods.detection import (
    FEATURE_SCORES,
    LOGIT_SCORES,
    Detection,
    Scores,
    detect,
    feature_scores,
    logit_scores,
)
from hydra_core.methods.features import FeatureReader, Outputs
from hydra_core.methods.temperature import SCALINGS
from hydra_core.metrics.report import Report, evaluate_logits
from hydra_core.progress import Progress


@dataclass
class LogitStore:
    """Logits by the digest of method and samples, in memory, and in `folder` where there is one."""

    folder: Path | None = None
    batch: int = 128
    known: dict[str, np.ndarray] = field(default_factory=dict)

    def logits(self, method: Method, samples: SampleSet, **options: Any) -> np.ndarray:
        """(M, N, C) float32. `options`: progress and cancel."""
        key = self._key(method, samples)
        if key not in self.known:
            run = lambda: forward_set(method.view, method.member_logits, samples, self.batch, **options)  # noqa: E731
            self.known[key] = self._kept(key, run)
        return self.known[key]

    def outputs(self, method: Method, reader: FeatureReader, samples: SampleSet, **options: Any) -> Outputs:
        """Logits and features, in one pass where neither is known; features are large: kept in `folder` only."""
        key = self._key(method, samples)
        read: list[Outputs] = []

        def run() -> np.ndarray:
            read.append(reader.read(samples, self.batch, **options))
            return read[0].features  # type: ignore[return-value]

        features = self._kept(f"{key}-features", run)
        if read:
            self.known[key] = self._kept(key, lambda: read[0].logits)
        return Outputs(self.logits(method, samples, **options), features)

    def _key(self, method: Method, samples: SampleSet) -> str:
        return hashlib.blake2b(f"{method.digest}|{samples.digest}".encode(), digest_size=8).hexdigest()

    def _kept(self, key: str, run: Callable[[], np.ndarray]) -> np.ndarray:
        path = None if self.folder is None else self.folder / f"{key}.npy"
        if path is not None and path.is_file():
            return np.load(path, allow_pickle=False)
        array = run()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, array)
        return array


@dataclass(frozen=True)
class Measured:
    """One repeat: the report, detection by score, and why scores are missing."""

    report: Report
    detection: Mapping[str, Detection]
    undefined: Mapping[str, str]


@dataclass
class Study:
    """The data of one split and how it is judged; `scores[0]` is the one of the table."""

    bundle: DataBundle
    split: str
    bootstrap: int
    scores: tuple[str, ...]
    store: LogitStore
    cancel: threading.Event | None = None
    progress: Progress | None = None

    def measure(self, method: Method, scaling: str, bootstrap: int) -> Measured:
        """One repeat of a row."""
        bundle = self.bundle
        samples, ood = (bundle.test, bundle.ood_test) if self.split == "test" else (bundle.val, bundle.ood_val)
        sets = {"": samples, **ood}
        scale: Callable[[Any], np.ndarray] = lambda logits: logits  # noqa: E731
        undefined: dict[str, str] = {}
        found = {} if scaling else self._of_features(method, sets, undefined)
        if scaling:
            undefined |= dict.fromkeys(self._asked_of_features(), "Scaling changes logits, not features.")
            scale = SCALINGS[scaling](self._logits(method, bundle.val), labelled(bundle.val))
        logits = {where: scale(self._logits(method, part)) for where, part in sets.items()}
        own = self._own_scores(method, sets)
        if own is not None:
            found = {self.scores[0]: own}
        else:
            for name in self.scores:
                values = logit_scores(name, logits) if name in LOGIT_SCORES else None
                if values is not None:
                    found[name] = values
                elif name in LOGIT_SCORES:
                    undefined[name] = "It measures how members differ; this row has one."
        main = found.get(self.scores[0])
        shifts = {name: part.shift for name, part in ood.items()}
        report = evaluate_logits(
            logits[""],
            labelled(samples),
            {name: logits[name] for name in ood},
            shifts=shifts,
            ood_score=self.scores[0],
            scores=None if main is None else (main[""], {name: main[name] for name in ood}),
            bootstrap=bootstrap,
        )
        return Measured(report, {name: detect(values, shifts) for name, values in found.items()}, undefined)

    def _logits(self, method: Method, samples: SampleSet) -> np.ndarray:
        return self.store.logits(method, samples, progress=self.progress, cancel=self.cancel)

    def _asked_of_features(self) -> list[str]:
        return [name for name in self.scores if name in FEATURE_SCORES]

    def _of_features(
        self, method: Method, sets: Mapping[str, SampleSet], undefined: dict[str, str]
    ) -> dict[str, Scores]:
        """The scores of features on each set; why there is none goes into `undefined`."""
        names = self._asked_of_features()
        if not names:
            return {}
        val = self.bundle.val
        try:
            reader = FeatureReader(method)
        except UnsupportedModel as error:
            undefined |= dict.fromkeys(names, str(error))
            return {}
        options: Any = {"progress": self.progress, "cancel": self.cancel}
        fit: Any = self.store.outputs(method, reader, val, **options).features
        features: Any = {
            where: self.store.outputs(method, reader, part, **options).features for where, part in sets.items()
        }
        found = {}
        for name in names:
            try:
                found[name] = feature_scores(name, fit, labelled(val), features, reader.classifiers(len(fit)))
            except MetricError as error:
                undefined[name] = str(error)
        return found

    def _own_scores(self, method: Method, sets: Mapping[str, SampleSet]) -> Scores | None:
        """The OOD scores of a row that brings its own; None for the others."""
        own = {where: method.doubt(part, self._logits(method, part)) for where, part in sets.items()}
        return None if own[""] is None else own  # type: ignore[return-value]
