"""Zero-shot classifiers: an image tower, and one text feature a class made from its name and prompt templates."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hydra_core.errors import DataError, ModelError
from hydra_core.models.shadow import shadow
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress

Templates = Sequence[str]

DEFAULT_TEMPLATES = ("a photo of a {}.",)
CACHED_CLASSES = 20_000  # feature rows kept a text tower; a row of 1024 float32 is 4 KiB


class ZeroShot(nn.Module):
    """logits = scale * normalised image features @ text features^T + bias.

    Args:
        visual: images (B, 3, H, W) -> features (B, D), or a tuple that starts with them.
        text_features: one unit vector a class, (C, D).
        scale: the checkpoint's logit scale, after its exponential.
        bias: SigLIP's logit bias; 0 where the model has none.
    """

    def __init__(self, visual: nn.Module, text_features: torch.Tensor, scale: float, bias: float = 0.0) -> None:
        super().__init__()
        self.visual = visual
        self.register_buffer("text_features", text_features)
        self.scale, self.bias = float(scale), float(bias)

    @property
    def num_classes(self) -> int:
        return int(self.text_features.shape[0])  # type: ignore[index, union-attr]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.visual(x))

    def logits(self, features: Any) -> torch.Tensor:
        """Logits (B, C) from the tower's output."""
        if isinstance(features, tuple | list):  # towers that also give their tokens
            features = features[0]
        logits = self.scale * F.normalize(features, dim=-1) @ self.text_features.T  # type: ignore[operator, union-attr]
        return logits + self.bias if self.bias else logits

    def forward_head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits from the stream after the last block; stages use it where it proves to be the native tail."""
        visual: Any = self.visual
        if hasattr(visual, "trunk"):  # a timm tower
            return self.logits(visual.head(visual.trunk.forward_head(visual.trunk.norm(hidden))))
        pooled, _ = visual._pool(hidden)
        return self.logits(pooled if visual.proj is None else pooled @ visual.proj)


@dataclass
class TextTower:
    """Turns class names into unit vectors, and remembers them by the digest of name and templates.

    Attributes:
        encode: token ids (N, T) -> features (N, D).
        tokenize: texts -> token ids (N, T).
    """

    encode: Callable[[torch.Tensor], torch.Tensor]
    tokenize: Callable[[list[str]], torch.Tensor]
    batch: int = 256
    encoded: int = 0  # texts that went through the tower so far
    _cache: OrderedDict[str, torch.Tensor] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def features(
        self,
        names: Sequence[str],
        templates: Templates = DEFAULT_TEMPLATES,
        *,
        progress: Progress | None = None,
    ) -> torch.Tensor:
        """Unit vectors (C, D): the mean over templates of each text's unit vector, normalised again.

        Raises:
            DataError: no names, names that repeat or are empty, or a template without "{}".
        """
        names, templates = check_names(names), check_templates(templates)
        keys = [_digest(name, templates) for name in names]
        with self._lock:
            missing = [i for i, key in enumerate(keys) if key not in self._cache]
            step = max(1, self.batch // len(templates))
            for at in range(0, len(missing), step):
                part = missing[at : at + step]
                for i, row in zip(part, self._encode([names[i] for i in part], templates), strict=True):
                    self._cache[keys[i]] = row
                if progress:
                    progress(min(1.0, (at + step) / len(missing)), "class names")
            out = torch.stack([self._cache[key] for key in keys])
            while len(self._cache) > max(CACHED_CLASSES, len(names)):
                self._cache.popitem(last=False)
        return out

    @torch.no_grad()
    def _encode(self, names: list[str], templates: tuple[str, ...]) -> torch.Tensor:
        texts = [template.replace("{}", name) for name in names for template in templates]
        found = torch.cat(
            [self.encode(self.tokenize(texts[i : i + self.batch])) for i in range(0, len(texts), self.batch)]
        )
        self.encoded += len(texts)
        each = F.normalize(found, dim=-1).unflatten(0, (len(names), len(templates)))  # (N*P, D) -> (N, P, D)
        return F.normalize(each.mean(1), dim=-1)


def _digest(name: str, templates: tuple[str, ...]) -> str:
    return hashlib.blake2b("\0".join([name, *templates]).encode(), digest_size=16).hexdigest()


def check_names(names: Sequence[str]) -> list[str]:
    """Class names without surrounding space.

    Raises:
        DataError: fewer than two, an empty one, or one that repeats.
    """
    clean = [str(name).strip() for name in names]
    repeated = sorted({name for name in clean if clean.count(name) > 1}) if len(set(clean)) < len(clean) else []
    if len(clean) < 2 or not all(clean) or repeated:
        got = f"{repeated[0]!r} twice" if repeated else f"{len(clean)} names, {clean.count('')} of them empty"
        raise DataError("These class names cannot be used", expected="two or more different names", got=got)
    return clean


def check_templates(templates: Templates) -> tuple[str, ...]:
    """Prompt templates; each holds "{}" where the class name goes.

    Raises:
        DataError: none, or one without "{}".
    """
    found = (templates,) if isinstance(templates, str) else tuple(str(t) for t in templates)
    bad = next((t for t in found if "{}" not in t), None)
    if not found or bad is not None:
        raise DataError(
            "A prompt template says where the class name goes",
            expected='texts with {}, such as "a photo of a {}."',
            got="none" if bad is None else repr(bad[:80]),
        )
    return found


def library_templates() -> dict[str, tuple[str, ...]]:
    """open_clip's own prompt lists by name, as texts with "{}"."""
    import open_clip

    lists = {
        "one sentence": DEFAULT_TEMPLATES,
        "ImageNet, 7 sentences": [t("{}") for t in open_clip.SIMPLE_IMAGENET_TEMPLATES],
        "ImageNet, 80 sentences": [t("{}") for t in open_clip.OPENAI_IMAGENET_TEMPLATES],
    }
    return {name: tuple(texts) for name, texts in lists.items()}


def zero_shot_parts(view: ModelView) -> tuple[ZeroShot, TextTower]:
    """The classifier and text tower behind a zero-shot view.

    Raises:
        ModelError: the view has none.
    """
    tower = view.info.get("text_tower")
    if not isinstance(view.module, ZeroShot) or not isinstance(tower, TextTower):
        raise ModelError(
            f"{view.name} is not a zero-shot model", expected="an open_clip model", got=type(view.module).__name__
        )
    return view.module, tower


def with_classes(
    view: ModelView,
    names: Sequence[str],
    templates: Templates = DEFAULT_TEMPLATES,
    *,
    progress: Progress | None = None,
) -> ModelView:
    """The same image tower with other classes: a new view that shares all weights.

    Raises:
        DataError: names or templates that cannot be used.
        ModelError: not a zero-shot view.
    """
    module, tower = zero_shot_parts(view)
    names = check_names(names)
    features = tower.features(names, templates, progress=progress).to(view.device, view.dtype)
    new = shadow(module)
    new.register_buffer("text_features", features)
    info = {**view.info, "templates": check_templates(templates)}
    return replace(view, module=new, class_names=tuple(names), info=info, _local=threading.local())
