"""The features behind a classifier: the same frozen backbone, whose output is one vector a sample."""

from __future__ import annotations

from typing import Any

from torch import nn

from hydra_core.errors import UnsupportedModel
from hydra_core.models.probe import Probed
from hydra_core.models.shadow import shadow
from hydra_core.models.text_models import TextClassifier, TextEncoder
from hydra_core.models.view import ModelView, build_view
from hydra_core.models.zero_shot import ZeroShot, image_features_view


def features_view(view: ModelView) -> ModelView:
    """A view that gives features (B, D) instead of logits; all weights are shared.

    The classifier of timm's models comes off, the sequence classifier of a text model, the texts of a zero-shot
    model (its unit image features stay), and a probe that was fitted before.

    Raises:
        UnsupportedModel: the classifier cannot be taken off.
    """
    if isinstance(view.module, ZeroShot):
        return image_features_view(view)
    info = {key: value for key, value in view.info.items() if not key.startswith("probe_")}
    return build_view(view.name, backbone_of(view), prepare=view.prepare, input_size=view.input_size, info=info)


def backbone_of(view: ModelView) -> nn.Module:
    """The module behind `features_view` of any model but a zero-shot one."""
    module: Any = view.module
    if isinstance(module, Probed):
        return module.backbone
    if isinstance(module, TextEncoder):
        return module
    if isinstance(module, TextClassifier):
        return TextEncoder(module.net.base_model, module.pad_id)  # type: ignore[arg-type]
    if not hasattr(module, "reset_classifier"):
        raise UnsupportedModel(
            f"{view.name} does not give its features",
            expected="a model whose classifier can be taken off, such as those of timm",
            got=type(module).__name__,
        )
    bare: Any = shadow(module)
    bare.reset_classifier(0)
    return bare
