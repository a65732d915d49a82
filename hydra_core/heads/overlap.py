"""Members that keep other heads than those before them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hydra_core.errors import MaskError


def low_overlap_scores(scores: np.ndarray, earlier: Sequence[Sequence[bool]], weight: float) -> np.ndarray:
    """Standing of one layer's heads when heads that earlier members keep count less, (H,).

    A fill-in (the paper gives no rule): the head's place in its layer, 1 for the best down to 0 for the
    worst, minus `weight` times the number of earlier members that keep it. Places, not scores, so that one
    weight means the same for every criterion and layer. Weight 0 keeps the order; above 1 no head is kept
    once more while a head kept less often is free.

    Args:
        scores: (H,), higher matters more; ties stand by head index.
        earlier: the layer's row of each earlier member's mask.

    Raises:
        MaskError: a negative weight.

    Examples:
        >>> low_overlap_scores(np.array([3.0, 2.0, 1.0]), [[True, False, False]], 1.5).tolist()
        [-0.5, 0.5, 0.0]
    """
    if weight < 0:
        raise MaskError("The overlap weight is out of range", expected="0 or more", got=weight)
    order = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")
    place = np.empty(len(order))
    place[order] = np.linspace(1.0, 0.0, len(order)) if len(order) > 1 else 1.0
    if not len(earlier):
        return place
    return place - weight * np.asarray(earlier, dtype=np.float64).sum(axis=0)
