"""Training: one small loop for the demo models, for fine-tuning and for baselines."""

from hydra_core.training.loop import Fit, fit
from hydra_core.training.recipe import Recipe

__all__ = ["Fit", "Recipe", "fit"]
