"""Hydra Lab's engine: score, prune and fuse attention heads, and see what that does to calibration.

    import hydra_core as hc
    model = hc.load_model("demo/fashion-vit")
    data = hc.load_data("demo/fashion")
    scores = hc.score_heads(model, data.val, criterion="taylor")
    hydra = hc.fuse(model, [hc.HeadMask.top(scores, keep=4)])

Heavy parts are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hydra_core.errors import HydraError
from hydra_core.heads.mask import HeadMask, Plan

if TYPE_CHECKING:
    from hydra_core.cost import Cost, cost_of
    from hydra_core.data.load import list_data, load_data
    from hydra_core.data.sets import DataBundle, SampleSet
    from hydra_core.evaluation import evaluate
    from hydra_core.fusion.ensemble import FusionOptions, HydraEnsemble, fuse, load_hydra
    from hydra_core.fusion.evaluator import MaskEvaluator
    from hydra_core.fusion.surgery import prune_model
    from hydra_core.heads.circuits import Circuit, find_circuit
    from hydra_core.heads.generators import make_members
    from hydra_core.heads.scores import HeadScores, score_heads
    from hydra_core.methods.compare import compare
    from hydra_core.methods.diversity import DiversityReport, diversity_report
    from hydra_core.models.load import list_models, load_model
    from hydra_core.models.view import ModelView

_HOMES = {
    "Cost": "cost",
    "cost_of": "cost",
    "list_data": "data.load",
    "load_data": "data.load",
    "DataBundle": "data.sets",
    "SampleSet": "data.sets",
    "evaluate": "evaluation",
    "FusionOptions": "fusion.ensemble",
    "HydraEnsemble": "fusion.ensemble",
    "fuse": "fusion.ensemble",
    "load_hydra": "fusion.ensemble",
    "MaskEvaluator": "fusion.evaluator",
    "prune_model": "fusion.surgery",
    "Circuit": "heads.circuits",
    "find_circuit": "heads.circuits",
    "make_members": "heads.generators",
    "compare": "methods.compare",
    "DiversityReport": "methods.diversity",
    "diversity_report": "methods.diversity",
    "HeadScores": "heads.scores",
    "score_heads": "heads.scores",
    "list_models": "models.load",
    "load_model": "models.load",
    "ModelView": "models.view",
}

__all__ = [
    "Circuit",
    "Cost",
    "DataBundle",
    "DiversityReport",
    "FusionOptions",
    "HeadMask",
    "HeadScores",
    "HydraEnsemble",
    "HydraError",
    "MaskEvaluator",
    "ModelView",
    "Plan",
    "SampleSet",
    "compare",
    "cost_of",
    "diversity_report",
    "evaluate",
    "find_circuit",
    "fuse",
    "list_data",
    "list_models",
    "load_data",
    "load_hydra",
    "load_model",
    "make_members",
    "prune_model",
    "score_heads",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"hydra_core.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hydra_core' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
