"""How members differ: in what they predict, in what they believe, and in which heads they keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hydra_core.errors import MetricError
from hydra_core.metrics.classification import Predictions

if TYPE_CHECKING:
    from hydra_core.heads.mask import HeadMask


def disagreement(logits: Any) -> float:
    """Share of member pairs that predict different classes, averaged over samples: 0 to 1. NaN for a single member.

    Args:
        logits: (M, N, C), or Predictions.

    Examples:
        >>> a, b = [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
        >>> disagreement([a, b]), disagreement([a, a, a])
        (0.5, 0.0)
    """
    return float(disagreement_samples(Predictions.of(logits)).mean())


def mutual_information(logits: Any) -> float:
    """Mean over samples of H(mean p) - mean H(p_m), in nats: 0 when members agree, at most log M. 0 for one member."""
    return float(Predictions.of(logits).mutual_information.mean())


def pairwise_kl(logits: Any) -> float:
    """Mean over samples and over ordered pairs of members of KL(p_m || p_k), in nats. NaN for a single member.

    Ordered pairs: each pair counts with the mean of its two directions.
    """
    return float(pairwise_kl_samples(Predictions.of(logits)).mean())


def disagreement_samples(p: Predictions) -> np.ndarray:
    """Share of member pairs that predict differently, (N,); NaN for a single member."""
    if p.members < 2:
        return np.full(len(p), np.nan)
    agreeing = (p.votes * (p.votes - 1)).sum(axis=-1)
    return 1.0 - agreeing / (p.members * (p.members - 1))


def pairwise_kl_samples(p: Predictions) -> np.ndarray:
    """Mean KL over ordered pairs, (N,), in one pass over members; NaN for a single member.

    The sum over all pairs of sum_c p_m (log p_m - log p_k) is M sum_m p_m log p_m - (sum_m p_m)(sum_k log p_k).
    """
    m = p.members
    if m < 2:
        return np.full(len(p), np.nan)
    own = m * (p.member_probs * p.log_probs).sum(axis=(0, 2))
    cross = (p.member_probs.sum(axis=0) * p.log_probs.sum(axis=0)).sum(axis=-1)
    return np.maximum(own - cross, 0.0) / (m * (m - 1))


def disagreement_matrix(logits: Any) -> np.ndarray:
    """Share of samples for which members m and k predict differently, (M, M), zeros on the diagonal."""
    predicted = Predictions.of(logits).member_predicted  # (M, N)
    return np.stack([(predicted != row).mean(axis=1) for row in predicted])


def kl_matrix(logits: Any) -> np.ndarray:
    """Mean over samples of KL(p_m || p_k) in nats, (M, M): row m, column k; zeros on the diagonal."""
    p = Predictions.of(logits)
    cross = np.einsum("mnc,knc->mk", p.member_probs, p.log_probs, optimize=True) / len(p)
    out = np.maximum(np.diag(cross)[:, None] - cross, 0.0)
    np.fill_diagonal(out, 0.0)
    return out


@dataclass(frozen=True, eq=False)
class Overlap:
    """How many kept heads members share.

    Attributes:
        matrix: (M, M) Jaccard index, heads kept by both / heads kept by either; ones on the diagonal.
        names: (M,) the members.
    """

    matrix: np.ndarray
    names: tuple[str, ...]

    @property
    def mean(self) -> float:
        """Mean over pairs of different members; NaN for a single member."""
        upper = self.matrix[np.triu_indices(len(self.matrix), 1)]
        return float(upper.mean()) if upper.size else float("nan")


def head_overlap(masks: Iterable[HeadMask], layers: Collection[int] | None = None) -> Overlap:
    """Jaccard overlap of the heads that members keep.

    Args:
        masks: a Plan, or the members' masks.
        layers: count only these layers; None: all. A trunk that no member prunes raises the overlap:
            leave it out to see the difference where pruning happens.

    Raises:
        MetricError: no mask, masks of different shapes, or no such layer.

    Examples:
        >>> from hydra_core.heads.mask import HeadMask
        >>> a, b = HeadMask.of([[1, 1, 0, 0]]), HeadMask.of([[1, 0, 1, 0]])
        >>> round(head_overlap([a, b]).mean, 4)
        0.3333
    """
    members = list(masks)
    if not members or len({mask.shape for mask in members}) != 1:
        raise MetricError(
            "The masks do not belong together",
            expected="one mask or more, all of one shape",
            got=[mask.text for mask in members][:4],
        )
    chosen = range(len(members[0].rows)) if layers is None else sorted(layers)
    if not len(chosen) or chosen[0] < 0 or chosen[-1] >= len(members[0].rows):
        raise MetricError("There is no such layer", expected=f"0 to {len(members[0].rows) - 1}", got=list(chosen))
    kept = np.array([[v for l in chosen for v in mask.rows[l]] for mask in members], dtype=np.float64)  # (M, heads)
    both = kept @ kept.T
    either = kept.sum(axis=1)[:, None] + kept.sum(axis=1) - both
    matrix = np.divide(both, either, out=np.ones_like(both), where=either > 0)  # two empty masks are equal
    names = getattr(masks, "names", None) or tuple(f"{m + 1}" for m in range(len(members)))
    return Overlap(matrix, tuple(names))
