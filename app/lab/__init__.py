"""The only door from the pages to hydra_core. What one page computed, another has.

Everything here is cached by small digests (names, data digests, mask texts) for all sessions and is
read-only. Functions that may take long accept `progress` and `cancel`.
"""

from app.lab.checks import base, cut_texts, memory, weights_warning
from app.lab.choices import prunable
from app.lab.loading import at_hand, bring_data, bring_model, uninterrupted
from app.lab.noise import corruptions, noise_study, noisy_report, stored_noise
from app.lab.results import cost, criteria, evaluator, logits, probabilities, report, scores, scores_at_hand
from app.lab.room import (
    Look,
    Moved,
    attention,
    find_sample,
    missing_criteria,
    sample_rows,
    score_missing,
    standing,
    top_samples,
    without,
)
from app.lab.shifts import severities, shift_of, shifted, shifted_name
from app.lab.sources import (
    Options,
    Sample,
    Split,
    data,
    data_names,
    default_data,
    default_model,
    model,
    model_names,
    sample,
    shape,
)
from app.lab.spaces import projections
from app.lab.store import infer
from app.lab.stored import stored_hydra
from app.lab.sweeps import known_sweep, stored_sweep, sweep, sweep_methods, sweep_so_far, usual_grid
from app.lab.table import comparison, row_names, stored_comparison
from app.lab.takeaway import fused_file, pruned_file, read_recipe, recipe, unpruned
from app.lab.warm import load_engine, warm_up
from app.lab.ways import DEEP, HYDRA, HYDRA_TRUNK, SINGLE, costs, latencies
from app.lab.zero_shot import (
    Words,
    ZeroShotAnswer,
    is_zero_shot,
    prompt_lists,
    stored_zero_shot,
    text_shape,
    unknown_words,
    words_of,
    zero_shot_answer,
    zero_shot_comparison,
)

__all__ = [
    "DEEP",
    "HYDRA",
    "HYDRA_TRUNK",
    "SINGLE",
    "Look",
    "Moved",
    "Options",
    "Sample",
    "Split",
    "Words",
    "ZeroShotAnswer",
    "at_hand",
    "attention",
    "base",
    "bring_data",
    "bring_model",
    "comparison",
    "corruptions",
    "cost",
    "costs",
    "criteria",
    "cut_texts",
    "data",
    "data_names",
    "default_data",
    "default_model",
    "evaluator",
    "find_sample",
    "fused_file",
    "infer",
    "is_zero_shot",
    "known_sweep",
    "latencies",
    "load_engine",
    "logits",
    "memory",
    "missing_criteria",
    "model",
    "model_names",
    "noise_study",
    "noisy_report",
    "probabilities",
    "projections",
    "prompt_lists",
    "prunable",
    "pruned_file",
    "read_recipe",
    "recipe",
    "report",
    "row_names",
    "sample",
    "sample_rows",
    "score_missing",
    "scores",
    "scores_at_hand",
    "severities",
    "shape",
    "shift_of",
    "shifted",
    "shifted_name",
    "standing",
    "stored_comparison",
    "stored_hydra",
    "stored_noise",
    "stored_sweep",
    "stored_zero_shot",
    "sweep",
    "sweep_methods",
    "sweep_so_far",
    "text_shape",
    "top_samples",
    "uninterrupted",
    "unknown_words",
    "unpruned",
    "usual_grid",
    "warm_up",
    "weights_warning",
    "without",
    "words_of",
    "zero_shot_answer",
    "zero_shot_comparison",
]
