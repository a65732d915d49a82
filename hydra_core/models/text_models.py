"""Text encoders of the transformers library as views: token ids (B, T) in, logits or features out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hydra_core.data.sets import SampleSet
from hydra_core.errors import CheckpointError, DataError, HydraError, UnsupportedModel
from hydra_core.models.load import Weights
from hydra_core.models.view import ModelView, build_view
from hydra_core.optional import require

SUPPORTED = ("BERT", "RoBERTa", "XLM-RoBERTa", "CamemBERT", "DistilBERT", "ELECTRA", "MPNet", "DeBERTa")
LONGEST = 512  # tokens, where neither model nor tokenizer sets a limit
OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl"}  # count from pad_id + 1


def library() -> Any:
    """The transformers package.

    Raises:
        DependencyError: it is not installed.
    """
    hint = 'Install the extra: pip install "hydra-lab[text]".'
    return require("transformers", "Text models need the transformers library", hint)


class TextClassifier(nn.Module):
    """A sequence classifier whose one input is token ids: the attention mask follows from the pad id.

    (B, T) long -> logits (B, C). Padding at the end changes nothing.
    """

    def __init__(self, net: nn.Module, pad_id: int) -> None:
        super().__init__()
        self.net, self.pad_id = net, pad_id

    @property
    def num_classes(self) -> int:
        return int(self.net.config.num_labels)  # type: ignore[union-attr, arg-type]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.net(input_ids=ids, attention_mask=(ids != self.pad_id).long()).logits


class TextEncoder(nn.Module):
    """An encoder that gives one feature vector a text: (B, T) long -> (B, D).

    Args:
        pooling: "mean" over the tokens that are not padding, or "first" (the class token).
    """

    num_classes = 0

    def __init__(self, net: nn.Module, pad_id: int, pooling: str = "mean") -> None:
        super().__init__()
        if pooling not in ("mean", "first"):
            raise HydraError("Tokens are pooled in one of two ways", expected="'mean' or 'first'", got=repr(pooling))
        self.net, self.pad_id, self.pooling = net, pad_id, pooling

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = (ids != self.pad_id).long()
        hidden = self.net(input_ids=ids, attention_mask=mask).last_hidden_state  # (B, T, D)
        if self.pooling == "first":
            return hidden[:, 0]
        # members of a fused ensemble lie on the batch axis: (G*B, T, D) over ids (B, T)
        weight = mask.repeat(hidden.shape[0] // mask.shape[0], 1)[..., None].to(hidden.dtype)
        return (hidden * weight).sum(1) / weight.sum(1).clamp(min=1)


class TextPreparer:
    """A `ModelView.prepare` for texts: the model's own tokenizer -> ids padded to the longest, (N, T) long.

    Texts over `limit` tokens are truncated; `truncated(samples)` counts them.
    """

    def __init__(self, tokenizer: Any, limit: int) -> None:
        self.tokenizer, self.limit = tokenizer, limit

    def __call__(self, samples: SampleSet) -> torch.Tensor:
        texts = self._texts(samples)
        return self._encode(texts, padding=True, truncation=True, max_length=self.limit, return_tensors="pt")

    def truncated(self, samples: SampleSet) -> int:
        """How many texts are longer than the model can read."""
        # a token holds at least one byte, so short texts need no second look
        long = [text for text in self._texts(samples) if len(text.encode()) + 2 > self.limit]
        rows = self._encode(long, truncation=True, max_length=self.limit + 1) if long else []
        return sum(len(row) > self.limit for row in rows)

    def tokens(self, text: str) -> list[str]:
        """The tokens of one text, as the model sees them."""
        ids = self._encode([text], truncation=True, max_length=self.limit)[0]
        return self.tokenizer.convert_ids_to_tokens(ids)

    def _encode(self, texts: list[str], **options: Any) -> Any:
        return self.tokenizer(texts, return_attention_mask=False, **options)["input_ids"]

    def _texts(self, samples: SampleSet) -> list[str]:
        if samples.kind != "text":
            raise DataError(f"{samples.name} does not fit this model", expected="texts", got=f"{samples.kind}s")
        if not len(samples):
            raise DataError(f"{samples.name} is empty", expected="one text or more", got="none")
        return [str(text) for text in np.asarray(samples.inputs, dtype=object)]


def load_text(
    name: str, *, checkpoint: Weights | None = None, num_classes: int | None = None, pooling: str = "mean"
) -> ModelView:
    """A text encoder by its name on the hub, or from a local folder.

    A sequence classifier gives logits. An encoder without a classifier gives features (num_classes 0): fit a
    linear probe on it with `probe.with_probe`.

    Args:
        name: "org/name", or the path of a folder with config, weights and tokenizer.
        checkpoint: weights for that config: a safetensors file, or a folder with all of it.
        num_classes: make a classifier of this size (with a checkpoint that holds one).
        pooling: how an encoder's tokens become one vector, "mean" or "first".

    Raises:
        DependencyError, CheckpointError, UnsupportedModel.
    """
    hf = library()
    is_folder = isinstance(checkpoint, str | Path) and Path(checkpoint).is_dir()
    folder = str(checkpoint) if is_folder else name
    config = _fetch(name, lambda: hf.AutoConfig.from_pretrained(folder))
    if num_classes is not None:
        config.num_labels = num_classes
    classifier = num_classes is not None or any("Classification" in a for a in config.architectures or ())
    auto = hf.AutoModelForSequenceClassification if classifier else hf.AutoModel
    _check_type(name, config)
    if checkpoint is not None and folder == name:
        net = _from_file(auto, config, checkpoint)
    else:
        net = _fetch(name, lambda: auto.from_pretrained(folder, config=config))
    tokenizer = _fetch(name, lambda: hf.AutoTokenizer.from_pretrained(folder))
    return text_view(f"hf/{name}", net, tokenizer, pooling=pooling)


def text_view(name: str, net: Any, tokenizer: Any, *, pooling: str = "mean", **extra: Any) -> ModelView:
    """A view of a transformers encoder or sequence classifier.

    Raises:
        UnsupportedModel: not an encoder whose heads can be pruned.
    """
    _check_type(name, net.config)
    pad = net.config.pad_token_id if net.config.pad_token_id is not None else getattr(tokenizer, "pad_token_id", None)
    if pad is None:
        raise UnsupportedModel(f"{name} has no padding token", expected="an encoder that reads padded batches")
    classifier = hasattr(net, "classifier") or "Classification" in type(net).__name__
    module = TextClassifier(net, pad) if classifier else TextEncoder(net, pad, pooling)
    names = extra.pop("class_names", None) or _class_names(net.config) if classifier else ()
    limit = longest(net.config, tokenizer)
    prepare = TextPreparer(tokenizer, limit) if tokenizer is not None else None
    info = {"longest": limit, "kind": "text", "pad_id": int(pad), **extra.pop("info", {})}
    return build_view(name, module, prepare=prepare, class_names=names, input_size=(limit,), info=info, **extra)


def longest(config: Any, tokenizer: Any) -> int:
    """The most tokens that model and tokenizer can read."""
    positions = int(getattr(config, "max_position_embeddings", 0) or 0)
    if positions and config.model_type in OFFSET_POSITIONS:
        positions -= int(config.pad_token_id) + 1
    limits = [positions, int(getattr(tokenizer, "model_max_length", 0) or 0)]
    return min((n for n in limits if 0 < n < 10**6), default=LONGEST)


def _check_type(name: str, config: Any) -> None:
    if getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModel(
            f"The heads of {name} cannot be pruned exactly",
            expected=f"a text encoder: {', '.join(SUPPORTED)}",
            got=f"a model that writes text ({config.model_type})",
        )


def _class_names(config: Any) -> tuple[str, ...]:
    """The names that the checkpoint gives its classes."""
    names = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    return names if len(set(names)) == len(names) else tuple(f"class {i}" for i in range(config.num_labels))


def _from_file(auto: Any, config: Any, checkpoint: Weights) -> nn.Module:
    from hydra_core.data.checkpoints import load_into, read_weights

    state = read_weights(checkpoint)
    return load_into(auto.from_config(config), state)


def _fetch(name: str, make: Callable[[], Any]) -> Any:
    """Run what may reach for the hub; a failure says what to download and where to put it."""
    try:
        return make()
    except HydraError:
        raise
    except Exception as error:  # hubs raise many kinds: no network, no such name, a gated model
        raise CheckpointError(
            f"{name} could not be fetched",
            expected="a reachable model hub, or a folder with config.json, the weights and the tokenizer",
            got=f"{type(error).__name__}: {str(error)[:200]}",
            hint=f"Download all files of {name} on another machine and give the folder: checkpoint='FOLDER'.",
        ) from error
