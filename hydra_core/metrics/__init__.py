"""Metrics of predictions: accuracy, calibration, OOD detection, diversity. Numpy or torch in, numbers out.

One call for all: `evaluate_logits`. Functions of one metric take logits (N, C) or (M, N, C), or confidences, or
scores, as each says; everything is computed in float64. OOD is the positive class throughout.
"""

from hydra_core.metrics.bootstrap import bootstrap_intervals, percentile_interval
from hydra_core.metrics.calibration import (
    Reliability,
    aece,
    classwise_ece,
    ece,
    mce,
    reliability,
    smooth_ece,
    smooth_reliability,
)
from hydra_core.metrics.classification import Predictions, accuracy, brier, nll, probs_to_logits, softmax
from hydra_core.metrics.diversity import (
    Overlap,
    disagreement,
    disagreement_matrix,
    head_overlap,
    kl_matrix,
    mutual_information,
    pairwise_kl,
)
from hydra_core.metrics.features import FeatureScore, fit_feature_score
from hydra_core.metrics.ood import CONVENTION, aupr, auroc, fpr95, roc_curve
from hydra_core.metrics.registry import METRICS, Metric
from hydra_core.metrics.report import OODResult, Report, evaluate_logits
from hydra_core.metrics.scaling import (
    TemperatureScaling,
    VectorScaling,
    fit_temperature,
    fit_vector_scaling,
)
from hydra_core.metrics.scores import OOD_SCORES, Score, mcm_score, ood_score
from hydra_core.metrics.selective import RiskCoverage, aurc, excess_aurc, risk_coverage

__all__ = [
    "CONVENTION",
    "METRICS",
    "OOD_SCORES",
    "FeatureScore",
    "Metric",
    "OODResult",
    "Overlap",
    "Predictions",
    "Reliability",
    "Report",
    "RiskCoverage",
    "Score",
    "TemperatureScaling",
    "VectorScaling",
    "accuracy",
    "aece",
    "aupr",
    "aurc",
    "auroc",
    "bootstrap_intervals",
    "brier",
    "classwise_ece",
    "disagreement",
    "disagreement_matrix",
    "ece",
    "evaluate_logits",
    "excess_aurc",
    "fit_feature_score",
    "fit_temperature",
    "fit_vector_scaling",
    "fpr95",
    "head_overlap",
    "kl_matrix",
    "mce",
    "mcm_score",
    "mutual_information",
    "nll",
    "ood_score",
    "pairwise_kl",
    "percentile_interval",
    "probs_to_logits",
    "reliability",
    "risk_coverage",
    "roc_curve",
    "smooth_ece",
    "smooth_reliability",
    "softmax",
]
