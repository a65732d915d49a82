"""Training: one small loop for the demo models, for fine-tuning and for baselines."""

from hydra_core.training.loop import Fit, Recipe, fit

__all__ = ["Fit", "Recipe", "fit"]
