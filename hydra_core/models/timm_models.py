"""timm's vision transformers as views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hydra_core.errors import CheckpointError, HydraError, UnknownNameError
from hydra_core.models.images import preparer, timm_transform
from hydra_core.models.load import Weights
from hydra_core.models.view import ModelView, build_view


def load_timm(
    name: str, *, checkpoint: Weights | None = None, num_classes: int | None = None, **options: Any
) -> ModelView:
    """A timm model by its name ("vit_tiny_patch16_224", with or without a ".tag").

    Args:
        checkpoint: local weights; None fetches the pretrained ones.
        num_classes: size of the classifier; with a checkpoint, None reads it off the weights.
        options: handed to `timm.create_model`.

    Raises:
        UnknownNameError, UnsupportedModel, CheckpointError.
    """
    import timm

    base = name.split(".")[0]
    if not timm.is_model(base):
        raise UnknownNameError("timm model", name, timm.list_models())
    if checkpoint is None:
        module = _pretrained(name, num_classes, options)
    else:
        module = _from_checkpoint(name, checkpoint, num_classes, options)
    return timm_view(f"timm/{name}", module)


def timm_view(name: str, module: nn.Module, **extra: Any) -> ModelView:
    """A view of a timm module with timm's own preprocessing."""
    transform, size, mode = timm_transform(module)
    extra.setdefault("class_names", _class_names(module))
    return build_view(name, module, prepare=preparer(transform, mode), input_size=size, **extra)


def _from_checkpoint(name: str, checkpoint: Weights, num_classes: int | None, options: dict[str, Any]) -> nn.Module:
    """A safetensors file is read only once its header fits the model; a torch file has no header to look at."""
    import timm

    from hydra_core.data.checkpoints import expected_of, load_into, read_weights, weight_shapes

    shapes = weight_shapes(checkpoint)
    state = None if shapes is not None else read_weights(checkpoint)
    if num_classes is None:
        num_classes = _classes_in(name, shapes if shapes is not None else state or {})
    options = {**options, "num_classes": num_classes}
    if state is None:
        with torch.device("meta"):  # nothing is allocated for a file that does not fit
            expected = expected_of(timm.create_model(name, pretrained=False, **options))
        state = read_weights(checkpoint, expected=expected)
    return load_into(timm.create_model(name, pretrained=False, **options), state)


def _classes_in(name: str, tensors: Mapping[str, Any]) -> int:
    """The classifier's rows in a state dict or its shapes, by timm's own name for it; 0 for a bare backbone."""
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg(name, allow_unregistered=True)
    named = getattr(config, "classifier", None) or ()
    for part in ((named,) if isinstance(named, str) else tuple(named)) or ("head", "head.fc", "fc", "classifier"):
        found = tensors.get(f"{part}.weight")
        if found is not None:
            shape = getattr(found, "shape", found)
            return int(shape[0]) if len(shape) else 0
    return 0


def _pretrained(name: str, num_classes: int | None, options: dict[str, Any]) -> nn.Module:
    import timm

    if num_classes is not None:
        options = {**options, "num_classes": num_classes}
    try:
        return timm.create_model(name, pretrained=True, **options)
    except HydraError:
        raise
    except Exception as error:  # the hub raises many kinds: no network, no such tag, no weights
        raise CheckpointError(
            f"The pretrained weights of {name} could not be fetched",
            expected="a reachable model hub, or a local file",
            got=f"{type(error).__name__}: {str(error)[:200]}",
            hint=f"Download the weights elsewhere ({_origin(name)}), copy the file here, and give its path: "
            f"load_model('timm/{name}', checkpoint='FILE'), or on the page Your data.",
        ) from error


def _origin(name: str) -> str:
    """Where the pretrained weights of a model lie, as timm has it."""
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg(name, allow_unregistered=True)
    hub = getattr(config, "hf_hub_id", None)
    return f"model.safetensors of {hub} on the hub" if hub else getattr(config, "url", "") or "as its authors have it"


def _class_names(module: Any) -> tuple[str, ...]:
    """ImageNet-1k names for a 1000-way classifier that says it was trained there; numbers otherwise."""
    count = int(getattr(module, "num_classes", 0))
    if count != 1000:
        return tuple(f"class {i}" for i in range(count))
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    return tuple(info.index_to_description(i).split(",")[0] for i in range(1000))
