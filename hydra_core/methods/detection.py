"""How well each OOD score of a row tells each OOD set: scores x sets, for ensembles as for single models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hydra_core.metrics.classification import Predictions
from hydra_core.metrics.features import FeatureScore, fit_feature_score
from hydra_core.metrics.ood import aupr, auroc, fpr95
from hydra_core.metrics.scores import OOD_SCORES, ood_score, score_named

FIGURES = {"auroc": auroc, "aupr": aupr, "fpr95": fpr95}
ALL, NEAR, FAR = "*", "*near", "*far"  # the means over sets; no set has such a name
MEANS = {ALL: None, NEAR: "near", FAR: "far"}
FEATURE_SCORES = tuple(name for name, score in OOD_SCORES.items() if score.needs == "features")
LOGIT_SCORES = tuple(name for name in OOD_SCORES if name not in FEATURE_SCORES)

Scores = dict[str, np.ndarray]  # set -> (N,); the ID set is named ""
Detection = dict[str, dict[str, float | None]]  # set, or ALL, NEAR, FAR -> auroc, aupr, fpr95


def logit_scores(name: str, logits: Mapping[str, np.ndarray]) -> Scores | None:
    """A score of logits (M, N, C) on every set; None where it says nothing: how members differ, of one member."""
    if score_named(name).members_only and len(logits[""]) < 2:
        return None
    return {where: ood_score(Predictions.of(rows), name) for where, rows in logits.items()}


def feature_scores(
    name: str,
    fit: np.ndarray,
    labels: np.ndarray,
    features: Mapping[str, np.ndarray],
    classifiers: tuple[np.ndarray, np.ndarray],
) -> Scores:
    """A score of features (M, N, D) on every set, fitted a member on ID samples that are no test samples.

    Args:
        fit, labels: features (M, N_fit, D) and classes of the samples to fit on.
        classifiers: (M, C, D) and (M, C), for ViM.
    """
    weight, bias = classifiers
    neighbours = min(50, fit.shape[1])
    fitted: FeatureScore = fit_feature_score(name, fit, labels, weight=weight, bias=bias, neighbours=neighbours)
    return {where: fitted(rows) for where, rows in features.items()}


def detect(scores: Scores, shifts: Mapping[str, str]) -> Detection:
    """AUROC, AUPR and FPR95 of each OOD set, and their means over all, near and far sets (None: there is none)."""
    inside = scores[""]
    sets: Detection = {
        where: {name: figure(inside, rows) for name, figure in FIGURES.items()}
        for where, rows in scores.items()
        if where
    }
    found = dict(sets)
    for mean, shift in MEANS.items():
        chosen = [sets[where] for where in sets if shift in (None, shifts.get(where))]
        found[mean] = {m: float(np.mean([c[m] for c in chosen])) if chosen else None for m in FIGURES}
    return found


def over_repeats(repeats: Sequence[Detection]) -> Detection:
    """Means over repeats, and their standard deviations (n - 1) as NAME_std where there are two or more."""
    out: Detection = {}
    for where in repeats[0]:
        row: dict[str, float | None] = {}
        for name in FIGURES:
            values = [r[where][name] for r in repeats]
            known = None if None in values else np.array(values, dtype=np.float64)
            row[name] = None if known is None else float(known.mean())
            if len(repeats) > 1:
                row[f"{name}_std"] = None if known is None else float(known.std(ddof=1))
        out[where] = row
    return out
