"""The demo CLIP "demo/fashion-clip": open_clip's own classes, small, trained here on Fashion-MNIST with captions.

It knows eight garments and a few hundred words (see hydra_core/training/captions.py): a demonstration of the method,
no general model. `python -m hydra_core.training.demo_clip` rebuilds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from hydra_core.data.demo import CLASS_NAMES
from hydra_core.data.sets import SampleSet
from hydra_core.errors import CheckpointError
from hydra_core.models.demo import ASSETS, MEAN, RESTORE, SIZE, STD, prepare, read_weights
from hydra_core.models.open_clip_models import library, open_clip_view
from hydra_core.models.view import ModelView

NAME = "fashion-clip"
CARD = ASSETS / f"{NAME}.json"
WEIGHTS = ASSETS / f"{NAME}.safetensors"
MERGES = ASSETS / f"{NAME}-bpe.txt.gz"
CONTEXT = 32  # tokens a text, start and end included
COMMAND = "python -m hydra_core.training.demo_clip"
EMBED = 64
VISION: dict[str, Any] = {
    "image_size": SIZE,
    "patch_size": 4,
    "width": 96,
    "layers": 6,
    "head_width": 12,
    "mlp_ratio": 2.0,
    "no_ln_pre": True,  # as in the demo ViT, whose blocks it starts from
}
TEXT: dict[str, Any] = {"context_length": CONTEXT, "width": 64, "layers": 3, "heads": 4, "mlp_ratio": 2.0}


def demo_clip_module(vocabulary: int, *, patch_drop: float = 0.0) -> nn.Module:
    """The untrained network: open_clip's CLIP, image tower 6 layers x 8 heads, text tower 3 x 4.

    Args:
        vocabulary: tokens of the tokenizer.
        patch_drop: share of the patch tokens dropped in training; it holds no weights.
    """
    model = library().model.CLIP(EMBED, VISION | {"patch_dropout": patch_drop}, TEXT | {"vocab_size": vocabulary})
    model.visual.preprocess_cfg = {"size": SIZE, "mean": (MEAN,) * 3, "std": (STD,) * 3, "interpolation": "bilinear"}
    return model


def demo_tokenizer(merges: Path = MERGES) -> Callable[[list[str]], torch.Tensor]:
    """open_clip's SimpleTokenizer over a short list of its own merges; a word that it lacks falls into pieces.

    Raises:
        CheckpointError: the list is missing.
    """
    if not merges.is_file():
        raise _missing(merges)
    return library().SimpleTokenizer(bpe_path=str(merges), context_length=CONTEXT)


def load_demo_clip() -> ModelView:
    """The demo CLIP as a zero-shot view of the demo's eight classes.

    Raises:
        CheckpointError: its files are missing or do not fit.
        DependencyError: open_clip is not installed.
    """
    tokenizer: Any = demo_tokenizer()
    if not WEIGHTS.is_file():
        raise _missing(WEIGHTS)
    module = demo_clip_module(tokenizer.vocab_size)
    try:
        module.load_state_dict(read_weights(WEIGHTS))
    except (RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"The weights {WEIGHTS.name} are damaged or of another network",
            expected="the file of the repository",
            got=str(error).splitlines()[0],
            hint=_restore(),
        ) from None
    facts = json.loads(CARD.read_text(encoding="utf-8")) if CARD.is_file() else {}
    return open_clip_view(f"demo/{NAME}", module, tokenizer, CLASS_NAMES, prepare=prepare_grey, **facts)


def prepare_grey(samples: SampleSet) -> torch.Tensor:
    """Images of any size as (N, 3, 28, 28) float32: the demo's grey preprocessing, three times the same channel.

    For 28 x 28 images this is open_clip's own transform with the model's mean and deviation.
    """
    return prepare(samples).expand(-1, 3, -1, -1)


def _missing(file: Path) -> CheckpointError:
    return CheckpointError(f"{file.name} is missing", expected=f"the file {file.name} in assets/", hint=_restore())


def _restore() -> str:
    return RESTORE.rpartition(": ")[0] + f": {COMMAND}"
