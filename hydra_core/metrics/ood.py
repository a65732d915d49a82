"""How well a score tells out-of-distribution samples from in-distribution ones: AUROC, AUPR, FPR95.

One convention everywhere: OOD is the positive class, and a higher score means more OOD. Libraries that take ID as
positive give the same AUROC but another AUPR and FPR95. Ties are exact: samples of one score pass a threshold together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hydra_core.errors import MetricError
from hydra_core.metrics.check import check_scores

CONVENTION = "OOD is the positive class; a higher score means more OOD"
RECALL = 0.95


@dataclass(frozen=True, eq=False)
class Ranking:
    """ID and OOD samples in one order, from the highest score down, sorted once for any weights.

    Attributes:
        order: (N_id + N_ood,) indices into [ID, OOD].
        ends: (T,) where in `order` each run of equal scores ends: the thresholds.
        scores: (T,) the score of each threshold.
        n_id, n_ood: how many samples of each.
    """

    order: np.ndarray
    ends: np.ndarray
    scores: np.ndarray
    n_id: int
    n_ood: int

    @classmethod
    def of(cls, id_scores: Any, ood_scores: Any) -> Ranking:
        """Rank scores (N_id,) and (N_ood,).

        Raises:
            MetricError: one of the two is empty, or a score is not finite.
        """
        a, b = check_scores(id_scores, "scores of ID samples"), check_scores(ood_scores, "scores of OOD samples")
        pooled = np.concatenate([a, b])
        order = np.argsort(-pooled, kind="stable")
        ranked = pooled[order]
        ends = np.flatnonzero(np.r_[ranked[1:] != ranked[:-1], True])
        return cls(order, ends, ranked[ends], len(a), len(b))

    def flagged(
        self, id_weight: np.ndarray | None = None, ood_weight: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """How much ID and OOD lies at or above each threshold, starting from none: two (B, T + 1).

        Args:
            id_weight, ood_weight: (B, N_id) and (B, N_ood); None: each sample once.
        """
        id_weight = np.ones((1, self.n_id)) if id_weight is None else id_weight
        ood_weight = np.ones((1, self.n_ood)) if ood_weight is None else ood_weight
        rows = len(id_weight)
        is_ood = self.order >= self.n_id
        out = []
        for weight, mine, offset in ((id_weight, ~is_ood, 0), (ood_weight, is_ood, self.n_id)):
            spread = np.zeros((rows, len(self.order)))
            spread[:, mine] = weight[:, self.order[mine] - offset]
            np.cumsum(spread, axis=1, out=spread)
            out.append(np.concatenate([np.zeros((rows, 1)), spread[:, self.ends]], axis=1))
        return out[0], out[1]

    def metrics(
        self, id_weight: np.ndarray | None = None, ood_weight: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """auroc, aupr and fpr95, each (B,)."""
        false, true = self.flagged(id_weight, ood_weight)
        return {"auroc": _auroc(false, true), "aupr": _aupr(false, true), "fpr95": _fpr(false, true)}


def _auroc(false: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Trapezoids under the curve: a tie between ID and OOD counts one half."""
    area = (np.diff(false, axis=1) * (true[:, 1:] + true[:, :-1])).sum(axis=1) / 2
    return area / (false[:, -1] * true[:, -1])


def _aupr(false: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Average precision: the sum over thresholds of (gain in recall) * precision."""
    both = false[:, 1:] + true[:, 1:]
    precision = np.divide(true[:, 1:], both, out=np.zeros_like(both), where=both > 0)
    return (np.diff(true, axis=1) * precision).sum(axis=1) / true[:, -1]


def _fpr(false: np.ndarray, true: np.ndarray, recall: float = RECALL) -> np.ndarray:
    """Share of ID at the first threshold that catches `recall` of OOD; no interpolation."""
    reached = true >= recall * true[:, -1:] - 1e-9  # 0.95 * n is not exact in binary
    at = reached.argmax(axis=1)
    return np.take_along_axis(false, at[:, None], axis=1)[:, 0] / false[:, -1]


def auroc(id_scores: Any, ood_scores: Any) -> float:
    """Probability that a random OOD sample scores higher than a random ID sample, ties counting one half.

    Args:
        id_scores, ood_scores: (N_id,) and (N_ood,); higher means more OOD.

    Raises:
        MetricError: one of the two is empty, or a score is not finite.

    Examples:
        >>> auroc([0.1, 0.2, 0.3], [0.3, 0.4])
        0.9166666666666666
    """
    return float(_auroc(*Ranking.of(id_scores, ood_scores).flagged())[0])


def aupr(id_scores: Any, ood_scores: Any) -> float:
    """Average precision with OOD as the positive class. Depends on the share of OOD samples: compare like with like.

    Examples:
        >>> aupr([0.1, 0.2], [0.3, 0.4])
        1.0
    """
    return float(_aupr(*Ranking.of(id_scores, ood_scores).flagged())[0])


def fpr95(id_scores: Any, ood_scores: Any, recall: float = RECALL) -> float:
    """Share of ID samples flagged at the highest threshold that flags at least 95 % of OOD samples.

    Examples:
        >>> fpr95([0.1, 0.2, 0.3, 0.4], [0.35, 0.5])
        0.25
    """
    if not 0 < recall <= 1:
        raise MetricError("The recall is out of range", expected="above 0, at most 1", got=recall)
    return float(_fpr(*Ranking.of(id_scores, ood_scores).flagged(), recall)[0])


def roc_curve(id_scores: Any, ood_scores: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(share of ID flagged, share of OOD flagged, threshold), each (T + 1,); the first threshold flags nothing."""
    ranking = Ranking.of(id_scores, ood_scores)
    false, true = ranking.flagged()
    return false[0] / ranking.n_id, true[0] / ranking.n_ood, np.r_[np.inf, ranking.scores]
