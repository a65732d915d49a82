"""All metrics of one model or ensemble on one ID set and its OOD sets, with intervals: `evaluate_logits`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hydra_core.errors import MetricError, UnknownNameError
from hydra_core.metrics.bootstrap import Weights, bootstrap_intervals
from hydra_core.metrics.calibration import BinKind, CalibrationErrors, Reliability, reliability
from hydra_core.metrics.check import check_bins, check_labels, check_scores
from hydra_core.metrics.classification import Predictions
from hydra_core.metrics.diversity import disagreement_samples, pairwise_kl_samples
from hydra_core.metrics.ood import CONVENTION, Ranking
from hydra_core.metrics.registry import METRICS
from hydra_core.metrics.scores import ood_score as score_of
from hydra_core.metrics.selective import aurc_weighted

if TYPE_CHECKING:
    import pandas as pd

Interval = tuple[float, float]
OOD_METRICS = ("auroc", "aupr", "fpr95")
CALIBRATION_ERRORS = ("ece", "aece", "smece", "mce")  # resampling makes them larger; see `bootstrap_intervals`
NAN = float("nan")


@dataclass(frozen=True)
class OODResult:
    """One OOD set: its name, how far it lies ("near", "far" or "other"), its size and its three figures."""

    name: str
    shift: str
    samples: int
    auroc: float
    aupr: float
    fpr95: float


@dataclass(frozen=True, eq=False)
class Report:
    """What `evaluate_logits` found. A figure that is not defined (no OOD set, a single member) is NaN.

    `ece`, `mce` use bins of equal width, `aece` of equal count; `reliability` has the kind that was asked for,
    and its bars sum to `ece` or to `aece`. `auroc`, `aupr`, `fpr95` are means over OOD sets, `_near` and `_far` over
    those of that shift. METRICS says what each figure means.
    """

    accuracy: float
    nll: float
    brier: float
    ece: float
    aece: float
    smece: float
    mce: float
    aurc: float
    eaurc: float
    auroc: float
    aupr: float
    fpr95: float
    auroc_near: float
    aupr_near: float
    fpr95_near: float
    auroc_far: float
    aupr_far: float
    fpr95_far: float
    disagreement: float
    mutual_information: float
    pairwise_kl: float
    reliability: Reliability
    sets: tuple[OODResult, ...] = ()
    samples: int = 0
    members: int = 1
    ood_score: str = "msp"
    bootstrap: int = 0
    intervals: Mapping[str, Interval] = field(default_factory=dict)

    convention = CONVENTION

    def row(self, *, intervals: bool = False) -> dict[str, float]:
        """Every figure by its name in METRICS; with intervals also NAME_low and NAME_high."""
        out: dict[str, float] = {}
        for name in METRICS:
            out[name] = getattr(self, name)
            if intervals:
                out[f"{name}_low"], out[f"{name}_high"] = self.interval(name)
        return out

    def interval(self, name: str, ood: str | None = None) -> Interval:
        """The 95 % bootstrap interval of a figure, (low, high); of calibration errors centred on the figure.

        Args:
            name: as in METRICS.
            ood: for "auroc", "aupr" and "fpr95": of this OOD set alone.

        Raises:
            UnknownNameError: there is no such metric or OOD set.
            MetricError: the report was made without bootstrap.
        """
        if name not in METRICS:
            raise UnknownNameError("metric", name, METRICS)
        if ood is not None and (ood not in {s.name for s in self.sets} or name not in OOD_METRICS):
            raise UnknownNameError("figure of an OOD set", f"{name} of {ood}", [s.name for s in self.sets])
        if not self.bootstrap:
            raise MetricError(
                "This report has no intervals", expected="bootstrap above 0", got=0, hint="Evaluate with bootstrap=200."
            )
        return self.intervals[name if ood is None else _of_set(name, ood)]

    def table(self) -> pd.DataFrame:
        """One row an OOD set: set, shift, samples, auroc, aupr, fpr95, and low and high of each with bootstrap."""
        import pandas as pd

        rows = []
        for result in self.sets:
            row: dict[str, Any] = {"set": result.name, "shift": result.shift, "samples": result.samples}
            for name in OOD_METRICS:
                row[name] = getattr(result, name)
                if self.bootstrap:
                    row[f"{name}_low"], row[f"{name}_high"] = self.interval(name, result.name)
            rows.append(row)
        return pd.DataFrame(rows, columns=None if rows else ["set", "shift", "samples", *OOD_METRICS])

    def to_json(self) -> dict[str, Any]:
        """Plain data for a JSON file; what is not defined is null."""
        bars = self.reliability
        return {
            "metrics": {name: _plain(value) for name, value in self.row().items()},
            "intervals": {name: [_plain(v) for v in pair] for name, pair in self.intervals.items()},
            "sets": [{k: _plain(v) for k, v in vars(result).items()} for result in self.sets],
            "reliability": {
                "kind": bars.kind,
                "count": bars.count.tolist(),
                **{k: [_plain(v) for v in getattr(bars, k).tolist()] for k in ("edges", "accuracy", "confidence")},
            },
            "samples": self.samples,
            "members": self.members,
            "ood_score": self.ood_score,
            "bootstrap": self.bootstrap,
            "convention": CONVENTION,
        }


def evaluate_logits(
    logits: Any,
    labels: Any,
    ood: Mapping[str, Any] | None = None,
    *,
    shifts: Mapping[str, str] | None = None,
    bins: int = 15,
    bins_kind: BinKind = "width",
    ood_score: str = "msp",
    scores: tuple[Any, Mapping[str, Any]] | None = None,
    bootstrap: int = 0,
    seed: int = 0,
) -> Report:
    """Every metric of METRICS at once, in float64.

    Args:
        logits: ID samples, (N, C) or (M, N, C), numpy or torch.
        labels: (N,) class indices.
        ood: name -> logits of an OOD set, (N_o, C) or (M, N_o, C).
        shifts: name -> "near" or "far"; sets that are not named count in the overall mean only.
        bins, bins_kind: of the reliability diagram; `bins` of ECE, aECE and MCE too.
        ood_score: a score of logits in OOD_SCORES. With `scores`, only its name in the report.
        scores: computed elsewhere (from features): (ID scores (N,), name -> OOD scores (N_o,)); higher is more OOD.
        bootstrap: resamples for 95 % intervals; 0 for none. ID and each OOD set are resampled separately.
        seed: of the resamples.

    Raises:
        MetricError: values that are not finite, wrong shapes, labels out of range, an empty set; the text names it.
        UnknownNameError: an unknown score.

    Examples:
        >>> report = evaluate_logits([[2.0, 0.0], [0.0, 2.0]], [0, 1], {"noise": [[0.1, 0.0]]})
        >>> report.accuracy, report.auroc, report.fpr95
        (1.0, 1.0, 0.0)
    """
    predictions = Predictions.of(logits)
    y = check_labels(labels, len(predictions), predictions.classes)
    id_scores, sets = _scores(predictions, ood or {}, ood_score, scores)
    study = _Study(predictions, y, id_scores, sets, shifts or {}, check_bins(bins))
    values = {name: float(value[0]) for name, value in study.estimate([np.ones((1, n)) for n in study.sizes]).items()}
    intervals: Mapping[str, Interval] = {}
    if bootstrap:
        around = {name: values[name] for name in CALIBRATION_ERRORS}
        intervals = bootstrap_intervals(study.estimate, study.sizes, bootstrap, seed=seed, around=around)
    return Report(
        **{name: values[name] for name in METRICS},
        reliability=reliability(predictions.confidence, study.correct, bins, bins_kind),
        sets=tuple(
            OODResult(name, study.shifts[name], len(s), *(values[_of_set(m, name)] for m in OOD_METRICS))
            for name, s in sets.items()
        ),
        samples=len(predictions),
        members=predictions.members,
        ood_score=ood_score,
        bootstrap=bootstrap,
        intervals=intervals,
    )


class _Study:
    """Everything that does not depend on the weights, computed once; `estimate` gives all figures for any weights."""

    def __init__(
        self,
        predictions: Predictions,
        labels: np.ndarray,
        id_scores: np.ndarray | None,
        sets: Mapping[str, np.ndarray],
        shifts: Mapping[str, str],
        bins: int,
    ) -> None:
        self.sizes = [len(predictions), *map(len, sets.values())]
        self.shifts = _checked_shifts(shifts, sets)
        self.confidence, self.correct = predictions.confidence, predictions.correct(labels)
        self.calibration = CalibrationErrors(self.confidence, self.correct, bins)
        self.rankings = {name: Ranking.of(id_scores, s) for name, s in sets.items()}
        self.means = {  # figures that are means over samples, (N,) each
            "accuracy": self.correct,
            "nll": predictions.surprise(labels),
            "brier": predictions.squared_error(labels),
            "disagreement": disagreement_samples(predictions),
            "mutual_information": predictions.mutual_information,
            "pairwise_kl": pairwise_kl_samples(predictions),
        }

    def estimate(self, weights: Weights) -> dict[str, np.ndarray]:
        """All figures, (B,) each, from weights (B, N) of the ID set and (B, N_o) of each OOD set."""
        w = weights[0]
        out = dict(zip(self.means, (w @ np.stack(list(self.means.values()), axis=1) / w.sum(1, keepdims=True)).T))
        out["ece"], out["mce"] = self.calibration.width(w)
        out["aece"], out["smece"] = self.calibration.count(w), self.calibration.smooth(w)
        out["aurc"], out["eaurc"] = aurc_weighted(self.confidence, self.correct, w)
        return out | self._ood(weights)

    def _ood(self, weights: Weights) -> dict[str, np.ndarray]:
        found = {
            name: ranking.metrics(weights[0], weight)
            for (name, ranking), weight in zip(self.rankings.items(), weights[1:], strict=True)
        }
        out = {_of_set(m, name): values[m] for name, values in found.items() for m in OOD_METRICS}
        for end, shift in (("", None), ("_near", "near"), ("_far", "far")):
            chosen = [values for name, values in found.items() if shift in (None, self.shifts[name])]
            for m in OOD_METRICS:
                undefined = np.full(len(weights[0]), NAN)
                out[m + end] = np.mean([v[m] for v in chosen], axis=0) if chosen else undefined
        return out


def _scores(
    predictions: Predictions, ood: Mapping[str, Any], name: str, given: tuple[Any, Mapping[str, Any]] | None
) -> tuple[np.ndarray | None, dict[str, np.ndarray]]:
    """The OOD scores of the ID set and of each OOD set."""
    if given is not None:
        id_scores, sets = check_scores(given[0], "scores of ID samples"), given[1]
        if len(id_scores) != len(predictions):
            raise MetricError("There must be one score a sample", expected=len(predictions), got=len(id_scores))
        return id_scores, {key: check_scores(s, f"scores of OOD set {key!r}") for key, s in sets.items()}
    checked = {
        key: _same_model(predictions, Predictions.of(x, f"logits of OOD set {key!r}"), key) for key, x in ood.items()
    }
    # even without an OOD set, so that an unknown name is found at once
    return score_of(predictions, name), {key: score_of(p, name) for key, p in checked.items()}


def _same_model(ours: Predictions, theirs: Predictions, key: str) -> Predictions:
    if (ours.members, ours.classes) != (theirs.members, theirs.classes):
        raise MetricError(
            f"OOD set {key!r} does not come from the same model",
            expected=f"{ours.members} members and {ours.classes} classes",
            got=f"{theirs.members} and {theirs.classes}",
        )
    return theirs


def _checked_shifts(shifts: Mapping[str, str], sets: Iterable[str]) -> dict[str, str]:
    """Every set's shift; one that is not named, or that nobody set ("id" is SampleSet's default), is "other"."""
    bad = {name: shift for name, shift in shifts.items() if shift not in ("near", "far", "other", "id")}
    if bad:
        raise MetricError("An OOD set lies near or far", expected="'near', 'far' or 'other'", got=bad)
    return {name: shifts.get(name, "other").replace("id", "other") for name in sets}


def _of_set(metric: str, name: str) -> str:
    return f"{metric}:{name}"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
