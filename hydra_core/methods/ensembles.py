"""Rows that run whole models: one, several trained apart, or pruned members one after another."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from hydra_core.errors import ModelError
from hydra_core.fusion.ensemble import FusionOptions, HydraEnsemble, fuse
from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.methods.base import Members, Method, OnRows
from hydra_core.models.view import ModelView


def single(view: ModelView) -> Method:
    """The model as it is: one member."""
    return Method(view, Members([view.module]))


def deep_ensemble(views: Sequence[ModelView]) -> Method:
    """Models trained apart, from different seeds (Lakshminarayanan et al., NeurIPS 2017).

    Raises:
        ModelError: they do not predict the same classes.
    """
    first = views[0]
    for view in views[1:]:
        if (view.class_names, view.num_classes) != (first.class_names, first.num_classes):
            raise ModelError(
                "The members of an ensemble predict the same classes",
                expected=f"the {first.num_classes} classes of {first.name}",
                got=f"{view.num_classes} classes of {view.name}",
            )
    return Method(first, Members([view.module for view in views]))


def pruned(view: ModelView, mask: HeadMask) -> Method:
    """One pruned model, physically smaller: the rows Taylor and CircAvg."""
    return Method(view, Members([prune_model(view, mask, gate=True)]))


def unfused(view: ModelView, plan: Plan, models: Sequence[nn.Module] | None = None) -> Method:
    """The same members one after another: what fusion is measured against."""
    return Method(view, Members(models or [prune_model(view, mask, gate=True) for mask in plan]))


def hydra(
    view: ModelView, plan: Plan, models: Sequence[nn.Module] | None = None, options: FusionOptions | None = None
) -> Method:
    """Pruned members fused into one network; `models`: fine-tuned members, as `prune_model` built them."""
    return of_hydra(fuse(view, plan, members=models, options=options))


def of_hydra(ensemble: HydraEnsemble) -> Method:
    """The row of an ensemble that is fused already."""
    return Method(ensemble.view, OnRows(ensemble.net, ensemble.leaves))
