"""Every metric's name on screen, unit, direction and plain words, for tables and pages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hydra_core.metrics.ood import CONVENTION


@dataclass(frozen=True)
class Metric:
    """How to show a metric.

    Attributes:
        label: column title.
        unit: "share" (0 to 1), "nats", or "" where it has none.
        better: whether "high" or "low" values are good.
        help: one or two sentences for a tooltip, convention included.
    """

    label: str
    unit: str
    better: Literal["high", "low"]
    help: str

    def improves(self, new: float, old: float) -> bool:
        """Whether `new` is better than `old`; never true where one of them is not defined."""
        return new > old if self.better == "high" else new < old

    def format(self, value: float | None, digits: int = 3) -> str:
        """The value as text; a dash where it is not defined.

        Examples:
            >>> METRICS["ece"].format(0.01234), METRICS["auroc"].format(float("nan"))
            ('0.012', '–')
        """
        return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _ood(label: str, better: Literal["high", "low"], text: str) -> Metric:
    return Metric(label, "share", better, f"{text} {CONVENTION}.")


_AUROC = "Chance that a random OOD sample scores higher than a random ID sample; 0.5 is guessing."
_AUPR = "Average precision at finding OOD samples. Depends on how many there are: compare on the same sets only."
_FPR = "Share of ID samples flagged by mistake when 95 % of OOD samples are caught."
_ALL, _NEAR, _FAR = "Mean over all OOD sets.", "Mean over near-OOD sets.", "Mean over far-OOD sets."

METRICS: dict[str, Metric] = {
    "accuracy": Metric("Accuracy", "share", "high", "Share of samples whose most probable class is the true one."),
    "nll": Metric(
        "NLL",
        "nats",
        "low",
        "Mean of -log of the probability given to the true class (the members' mean). Punishes confident mistakes.",
    ),
    "brier": Metric(
        "Brier", "", "low", "Mean squared distance between probabilities and truth, summed over classes: 0 to 2."
    ),
    "ece": Metric(
        "ECE",
        "share",
        "low",
        "Mean gap between confidence and accuracy over bins of equal width, weighted by samples. Biased upwards "
        "on small samples.",
    ),
    "aece": Metric("aECE", "share", "low", "As ECE, but over bins that hold about equal numbers of samples."),
    "smece": Metric(
        "smECE", "share", "low", "Calibration error without bins: a smooth curve whose width is the error itself."
    ),
    "mce": Metric("MCE", "share", "low", "Largest gap of any bin; a bin with few samples can decide it."),
    "aurc": Metric(
        "AURC",
        "share",
        "low",
        "Mean error when only the most confident samples are answered, over all shares of answered samples.",
    ),
    "eaurc": Metric(
        "E-AURC", "share", "low", "AURC above that of a perfect ranking with as many errors: the ranking's own fault."
    ),
    "auroc": _ood("AUROC", "high", f"{_AUROC} {_ALL}"),
    "aupr": _ood("AUPR", "high", f"{_AUPR} {_ALL}"),
    "fpr95": _ood("FPR95", "low", f"{_FPR} {_ALL}"),
    "auroc_near": _ood("AUROC near", "high", f"{_AUROC} {_NEAR}"),
    "aupr_near": _ood("AUPR near", "high", f"{_AUPR} {_NEAR}"),
    "fpr95_near": _ood("FPR95 near", "low", f"{_FPR} {_NEAR}"),
    "auroc_far": _ood("AUROC far", "high", f"{_AUROC} {_FAR}"),
    "aupr_far": _ood("AUPR far", "high", f"{_AUPR} {_FAR}"),
    "fpr95_far": _ood("FPR95 far", "low", f"{_FPR} {_FAR}"),
    "disagreement": Metric(
        "Disagreement",
        "share",
        "high",
        "Share of member pairs that predict different classes. High means diverse, not good by itself.",
    ),
    "mutual_information": Metric(
        "Mutual information",
        "nats",
        "high",
        "Entropy of the mean prediction minus the members' mean entropy: 0 when members agree. High means diverse.",
    ),
    "pairwise_kl": Metric(
        "Pairwise KL",
        "nats",
        "high",
        "Mean Kullback-Leibler divergence between two members, over both directions. High means diverse.",
    ),
}
