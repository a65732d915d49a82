"""How much the members of a plan differ, as pruned models and inside the fused network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import nn

from hydra_core.data.sets import SampleSet
from hydra_core.errors import DataError
from hydra_core.evaluation import forward_set
from hydra_core.fusion.ensemble import HydraEnsemble, fuse
from hydra_core.fusion.evaluator import MaskEvaluator
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.metrics.classification import Predictions
from hydra_core.metrics.diversity import Overlap, disagreement, head_overlap, mutual_information, pairwise_kl
from hydra_core.models.view import ModelView

FIGURES = {"disagreement": disagreement, "mutual_information": mutual_information, "pairwise_kl": pairwise_kl}


@dataclass(frozen=True, eq=False)
class DiversityReport:
    """Members against each other.

    Attributes:
        overlap: Jaccard overlap of the kept heads over all layers.
        pruned_overlap: the same over layers that some member prunes; None where none is pruned.
        before, after: disagreement (0..1), mutual_information and pairwise_kl (nats) of the members run one by
            one, and of the fused network's members. Equal up to rounding without fine-tuning.
        gap: largest difference between the two sets of member probabilities.
        samples: how many samples.
    """

    overlap: Overlap
    pruned_overlap: Overlap | None
    before: dict[str, float]
    after: dict[str, float]
    gap: float
    samples: int

    def frame(self) -> pd.DataFrame:
        """Rows "before fusion" and "after fusion"; a column a figure, and the overlap."""
        rows = pd.DataFrame([self.before, self.after], index=["before fusion", "after fusion"])
        return rows.assign(overlap=self.overlap.mean)


def diversity_report(
    view: ModelView,
    plan: Plan | Sequence[HeadMask],
    samples: SampleSet,
    *,
    members: Sequence[nn.Module] | None = None,
    hydra: HydraEnsemble | None = None,
) -> DiversityReport:
    """Overlap, disagreement, mutual information and pairwise KL, before and after fusion.

    Args:
        samples: labels are not needed.
        members: the fine-tuned members, as `prune_model` built them; None: no fine-tuning.
        hydra: the fused network, if there is one already.

    Raises:
        DataError: no samples.
        MaskError: a mask does not fit the model.
    """
    if not len(samples):
        raise DataError(f"{samples.name} is empty", expected="one sample or more")
    plan = plan if isinstance(plan, Plan) else Plan(tuple(plan))
    before = Predictions.of(_one_by_one(view, plan, samples, members))
    after = Predictions.of(forward_set(view, hydra or fuse(view, plan, members=members), samples))
    pruned = [l for l in range(len(view.shape)) if not all(all(mask.rows[l]) for mask in plan)]
    return DiversityReport(
        head_overlap(plan),
        head_overlap(plan, pruned) if pruned else None,
        {name: figure(before) for name, figure in FIGURES.items()},
        {name: figure(after) for name, figure in FIGURES.items()},
        float(np.abs(before.member_probs - after.member_probs).max()),
        len(samples),
    )


def _one_by_one(view: ModelView, plan: Plan, samples: SampleSet, members: Sequence[nn.Module] | None) -> np.ndarray:
    """Logits of the members, (M, N, C)."""
    if members is None:
        return MaskEvaluator(view, view.inputs(samples)).many(plan.masks)
    with torch.inference_mode():
        return np.stack([forward_set(view, member, samples) for member in members])
