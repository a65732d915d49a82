"""open_clip's models as zero-shot views: the image tower can be pruned, the text tower makes the classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from hydra_core.errors import CheckpointError, HydraError, UnknownNameError
from hydra_core.models.families.multihead import split_multihead
from hydra_core.models.images import preparer
from hydra_core.models.load import Weights
from hydra_core.models.shadow import freeze
from hydra_core.models.view import IGNORED, ModelView, build_view
from hydra_core.models.zero_shot import DEFAULT_TEMPLATES, TextTower, ZeroShot, check_names, check_templates
from hydra_core.optional import require


def library() -> Any:
    """The open_clip package.

    Raises:
        DependencyError: it is not installed.
    """
    hint = "Install it: pip install open_clip_torch."
    return require("open_clip", "open_clip models need the open_clip library", hint)


def open_clip_names() -> Iterable[str]:
    """Every config that open_clip carries."""
    return library().list_models()


def load_open_clip(
    name: str,
    *,
    checkpoint: Weights | None = None,
    class_names: Sequence[str] | None = None,
    templates: Sequence[str] = DEFAULT_TEMPLATES,
    tokenizer: str | None = None,
) -> ModelView:
    """A zero-shot view of an open_clip model.

    Args:
        name: a config, "ViT-B-32", or a config with pretrained weights, "ViT-B-32:laion2b_s34b_b79k".
            Without a tag or checkpoint the first tag that open_clip lists is taken.
        checkpoint: a local file with the weights of the whole model.
        class_names: None: the 1000 names of ImageNet. Change them later with `zero_shot.with_classes`.
        templates: prompts with "{}" for the class name.
        tokenizer: another open_clip name whose tokenizer is to be used, or "local-dir:FOLDER".

    Raises:
        UnknownNameError: no such config or tag.
        CheckpointError: weights or tokenizer cannot be fetched, or do not fit.
        UnsupportedModel: the image tower has no heads that can be pruned (ResNets, ConvNeXts).
    """
    clip = library()
    config, tag = _split_name(clip, name)
    if checkpoint is None:
        tag = tag or _first_tag(clip, config)
        model = _fetch(config, lambda: clip.create_model(config, pretrained=tag, require_pretrained=True), tag)
    else:
        model = _from_checkpoint(clip, config, checkpoint)
    tokenize = _fetch(config, lambda: clip.get_tokenizer(tokenizer or config), what="tokenizer")
    names = list(class_names) if class_names is not None else list(clip.IMAGENET_CLASSNAMES)
    full = f"open_clip/{config}" + (f":{tag}" if tag and checkpoint is None else "")
    return open_clip_view(full, model, tokenize, names, templates)


def open_clip_view(
    name: str,
    model: nn.Module,
    tokenize: Callable[[list[str]], torch.Tensor],
    class_names: Sequence[str],
    templates: Sequence[str] = DEFAULT_TEMPLATES,
    **info: Any,
) -> ModelView:
    """A zero-shot view of any model with open_clip's interface: `visual`, `encode_text`, `logit_scale`.

    The model is frozen and otherwise left as it is; the view's image tower shares its weights.
    """
    model = freeze(model)
    tower = TextTower(model.encode_text, tokenize, model)  # type: ignore[arg-type]
    names = check_names(class_names)
    visual: Any = model.visual
    features = tower.features(names, templates).to(next(visual.parameters()).dtype)
    scale, bias = model.logit_scale.exp().item(), getattr(model, "logit_bias", None)  # type: ignore[operator]
    module = ZeroShot(split_tower(visual), features, scale, 0.0 if bias is None else float(bias))
    transform, size = clip_transform(visual)
    facts = {"text_tower": tower, "templates": check_templates(templates), "logit_scale": scale, **info}
    return build_view(name, module, class_names=tuple(names), prepare=preparer(transform), input_size=size, info=facts)


def split_tower(visual: nn.Module) -> nn.Module:
    """The image tower with its attention modules in a form that can be gated and cut; pools stay as they are."""
    return split_multihead(visual, tuple(IGNORED))


def clip_transform(visual: Any) -> tuple[Callable[..., torch.Tensor], tuple[int, ...]]:
    """open_clip's own evaluation transform of an image tower, and its input size (C, H, W)."""
    from open_clip.transform import PreprocessCfg, image_transform_v2

    config = getattr(visual, "preprocess_cfg", None) or {"size": visual.image_size}
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    return image_transform_v2(PreprocessCfg(**config), is_train=False), (3, height, width)


def _split_name(clip: Any, name: str) -> tuple[str, str]:
    config, _, tag = name.partition(":")
    if config not in clip.list_models():
        raise UnknownNameError("open_clip model", config, clip.list_models())
    tags = clip.list_pretrained_tags_by_model(config)
    if tag and tag not in tags:
        raise UnknownNameError(f"pretrained tag of {config}", tag, tags or ["(none: give a checkpoint)"])
    return config, tag


def _first_tag(clip: Any, config: str) -> str:
    tags = clip.list_pretrained_tags_by_model(config)
    if not tags:
        raise CheckpointError(
            f"open_clip lists no pretrained weights for {config}",
            expected="a local file with the weights",
            hint=f"load_model('open_clip/{config}', checkpoint='FILE')",
        )
    return tags[0]


def _from_checkpoint(clip: Any, config: str, checkpoint: Weights) -> nn.Module:
    from open_clip.convert import convert_state_dict

    from hydra_core.data.checkpoints import load_into, read_weights

    state = read_weights(checkpoint)
    model = _fetch(config, lambda: clip.create_model(config, pretrained_text=False))
    return load_into(model, convert_state_dict(model, state))


def _fetch(config: str, make: Callable[[], Any], tag: str = "", what: str = "weights") -> Any:
    """Run what may reach for the hub; a failure says what to download and where to put it."""
    try:
        return make()
    except HydraError:
        raise
    except Exception as error:  # hubs raise many kinds: no network, no such file, a gated model
        option = "checkpoint='FILE'" if what == "weights" else "tokenizer='local-dir:FOLDER'"
        raise CheckpointError(
            f"The {what} of open_clip's {config} could not be fetched",
            expected="a reachable model hub, or a local copy",
            got=f"{type(error).__name__}: {str(error)[:200]}",
            hint=f"Download them on another machine ({_origin(config, tag)}), copy them here, and load with {option}.",
        ) from error


def _origin(config: str, tag: str = "") -> str:
    """Where the weights of a tag (else of the first few) and the tokenizer of a config lie."""
    clip = library()
    places = []
    for each in [tag] if tag else clip.list_pretrained_tags_by_model(config)[:3]:
        found = clip.get_pretrained_cfg(config, each)
        places.append(f"{each}: {found.get('hf_hub') or found.get('url')}".rstrip("/"))
    text = (clip.get_model_config(config) or {}).get("text_cfg", {})
    if text.get("hf_tokenizer_name"):
        places.append(f"tokenizer: {text['hf_tokenizer_name']}")
    return "; ".join(places) or "as its authors publish them"
