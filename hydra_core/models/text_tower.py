"""The text side of a zero-shot model: texts to unit vectors, remembered, and its heads as a view that can be pruned."""

from __future__ import annotations

import hashlib
import math
import string
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from hydra_core.errors import Cancelled, DataError, ModelError
from hydra_core.heads.mask import HeadMask
from hydra_core.models.families.multihead import split_multihead
from hydra_core.models.shadow import shadow
from hydra_core.models.view import IGNORED, ModelView, build_view
from hydra_core.progress import Progress

Templates = Sequence[str]

DEFAULT_TEMPLATES = ("a photo of a {}.",)
CACHED_CLASSES = 20_000  # feature rows kept a text tower; a row of 1024 float32 is 4 KiB


@dataclass
class TextTower:
    """Turns class names into unit vectors, and remembers them by the digest of name, templates and mask.

    Attributes:
        encode: token ids (N, T) -> features (N, D).
        tokenize: texts -> token ids (N, T).
        model: the whole model, where its text heads may be pruned.
    """

    encode: Callable[[torch.Tensor], torch.Tensor]
    tokenize: Callable[[list[str]], torch.Tensor]
    model: nn.Module | None = None
    batch: int = 256
    encoded: int = 0  # texts that went through the tower so far
    _view: ModelView | None = field(default=None, repr=False)
    _cache: OrderedDict[str, torch.Tensor] = field(default_factory=OrderedDict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def view(self) -> ModelView:
        """The tower's own heads: a view from token ids (N, T) to features (N, D).

        Raises:
            ModelError: the tower came without its model.
            UnsupportedModel: its heads cannot be pruned exactly.
        """
        if self.model is None:
            raise ModelError("The heads of this text tower are not at hand", expected="a tower made with its model")
        with self._lock:
            if self._view is None:
                self._view = text_tower_view(self.model)
            return self._view

    def features(
        self,
        names: Sequence[str],
        templates: Templates = DEFAULT_TEMPLATES,
        *,
        mask: HeadMask | None = None,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> torch.Tensor:
        """Unit vectors (C, D): the mean over templates of each text's unit vector, normalised again.

        Args:
            mask: heads of the text tower to keep; None: all.

        Raises:
            DataError: no names, names that repeat or are empty, a template without "{}", or a text that is too long.
            MaskError: the mask does not fit the text tower.
            Cancelled: `cancel` was set.
        """
        names, templates = check_names(names), check_templates(templates)
        mask = None if mask is None or mask.is_full else mask
        keys = [_digest(name, templates, mask) for name in names]
        with self._lock:
            missing = [i for i, key in enumerate(keys) if key not in self._cache]
            step = max(1, self.batch // len(templates))
            for at in range(0, len(missing), step):
                if cancel is not None and cancel.is_set():
                    raise Cancelled("Reading the class names")
                part = missing[at : at + step]
                for i, row in zip(part, self._encode([names[i] for i in part], templates, mask), strict=True):
                    self._cache[keys[i]] = row
                if progress:
                    progress(min(1.0, (at + step) / len(missing)), "class names")
            out = torch.stack([self._cache[key] for key in keys])
            while len(self._cache) > max(CACHED_CLASSES, len(names)):
                self._cache.popitem(last=False)
        return out

    @torch.no_grad()
    def _encode(self, names: list[str], templates: tuple[str, ...], mask: HeadMask | None) -> torch.Tensor:
        texts = [template.replace("{}", name) for name in names for template in templates]
        self.check_length(texts)
        encode = self.encode if mask is None else lambda ids: self.view(ids, mask)
        found = torch.cat([encode(self.tokenize(texts[i : i + self.batch])) for i in range(0, len(texts), self.batch)])
        self.encoded += len(texts)
        each = F.normalize(found, dim=-1).unflatten(0, (len(names), len(templates)))  # (N*P, D) -> (N, P, D)
        return F.normalize(each.mean(1), dim=-1)

    def check_length(self, texts: Sequence[str]) -> None:
        """Refuse texts that the tower would cut off: what is lost may be the class itself.

        Raises:
            DataError: naming the first such text.
        """
        limit = getattr(self.tokenize, "context_length", None) or math.inf
        for text in texts:
            count = token_count(self.tokenize, text) or 0
            if count > limit:
                raise DataError(
                    "A text is too long for this model",
                    expected=f"at most {limit} tokens, start and end included",
                    got=f"{count} tokens: {text[:60]!r}",
                    hint="Shorten the class name or the template.",
                )


def token_count(tokenize: Any, text: str) -> int | None:
    """Tokens of a text before anything is cut off, start and end included; None where the tokenizer does not tell."""
    if hasattr(tokenize, "encode"):  # open_clip's SimpleTokenizer
        return len(tokenize.encode(text)) + 2
    if hasattr(tokenize, "tokenizer"):  # its wrapper of a transformers tokenizer
        return len(tokenize.tokenizer(text, truncation=False)["input_ids"])
    return None


class ClipText(nn.Module):
    """The text half of an open_clip model: token ids (N, T) long -> features (N, D)."""

    num_classes = 0

    def __init__(self, clip: nn.Module) -> None:
        super().__init__()
        own = shadow(clip)
        own.visual = nn.Identity()  # its heads are those of the image tower's view
        self.clip: Any = split_multihead(own, tuple(IGNORED))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.clip.encode_text(ids)


def text_tower_view(clip: nn.Module) -> ModelView:
    """The text tower's heads as a view over the model's own weights; token ids in, features out.

    Raises:
        UnsupportedModel: its heads cannot be pruned exactly.
    """
    return build_view("text tower", ClipText(clip), input_size=(int(getattr(clip, "context_length", 77)),))


def words_of(text: str) -> list[str]:
    """Words of a text in lower case, cut at spaces and punctuation."""
    return text.lower().translate(str.maketrans(string.punctuation, " " * len(string.punctuation))).split()


def _digest(name: str, templates: tuple[str, ...], mask: HeadMask | None) -> str:
    parts = [name, *templates, "" if mask is None else f"\1{mask.text}"]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


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
