"""What users bring: their own data, and a probe that fits a model to its classes.

Each gets a name that nobody can guess and no list shows, so that one session never meets another's.
The newest few are kept for the whole process; nothing is written to disk.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app import lab
from hydra_core.data.load import DATA, register_data
from hydra_core.data.report import IntakeReport
from hydra_core.data.sets import DataBundle
from hydra_core.errors import DataError, UnsupportedModel

KEPT = 12
_order: OrderedDict[str, None] = OrderedDict()
_lock = threading.Lock()


@dataclass(frozen=True)
class Brought:
    """A data set that was read: its secret name, how reading went, and the bundle."""

    name: str
    reports: tuple[IntakeReport, ...]
    bundle: DataBundle


def read_data(
    title: str, content: bytes, ood: Mapping[str, tuple[bytes, str]], *, progress: Any = None, cancel: Any = None
) -> Brought:
    """Read uploads into a data set of this session.

    Args:
        title: a name for people.
        content: a zip of class folders, a table of texts and labels, or an npz.
        ood: name -> (content, "near" or "far").

    Raises:
        HydraError: the file cannot be used; the text says why.
    """
    from hydra_core.data.sources import build_bundle

    sources = {name: part for name, (part, _) in ood.items()}
    shifts = {name: shift for name, (_, shift) in ood.items()}
    bundle, reports = build_bundle(content, sources, name=title, shifts=shifts, progress=progress, cancel=cancel)  # type: ignore[arg-type]
    name = f"yours/{secrets.token_urlsafe(9)}"
    register_data(name, lambda: bundle)
    _remember(name)
    return Brought(name, tuple(reports), bundle)


def _remember(name: str) -> None:
    with _lock:
        _order[name] = None
        while len(_order) > KEPT:
            old, _ = _order.popitem(last=False)
            DATA.pop(old, None)
            _views().pop(old, None)


def _views() -> dict[str, Any]:
    from hydra_core.models.load import VIEWS

    return VIEWS


def fits(model_name: str, bundle: DataBundle) -> bool:
    """Whether every class of the data is one of the model's, by name."""
    known = {name.casefold() for name in lab.model(model_name).class_names}
    return {name.casefold() for name in bundle.class_names} <= known


def align(brought: Brought, model_name: str) -> Brought:
    """The data numbered as the model numbers its classes, under the same name."""
    from hydra_core.data.splits import align_classes

    names = lab.model(model_name).class_names
    val, test = (align_classes(part, names) for part in (brought.bundle.val, brought.bundle.test))
    bundle = replace(brought.bundle, val=val, test=test)
    register_data(brought.name, lambda: bundle)
    return replace(brought, bundle=bundle)


def fit_probe(model_name: str, bundle: DataBundle, *, progress: Any = None, cancel: Any = None) -> str:
    """A classifier for the data's classes on the frozen model; returns the new model's secret name.

    Raises:
        DataError: there is no training part.
        UnsupportedModel: the model does not give its features.
    """
    from hydra_core.models.probe import with_probe

    train = bundle.train
    if train is None or not len(train):
        raise DataError("A probe needs training samples", expected="data with a train part, or one to split")
    view = lab.infer(lambda: with_probe(features(model_name), train, progress=progress, cancel=cancel))
    name = f"yours/{secrets.token_urlsafe(9)}"
    _views()[name] = replace(view, name=name)
    _remember(name)
    return name


def features(model_name: str) -> Any:
    """A view of the model that gives features instead of logits; weights are shared."""
    from hydra_core.models.shadow import shadow
    from hydra_core.models.view import build_view

    view = lab.model(model_name)
    module: Any = shadow(view.module)
    if not hasattr(module, "reset_classifier"):
        raise UnsupportedModel(
            f"{model_name} does not give its features",
            expected="a model whose classifier can be taken off, such as those of timm",
            got=type(module).__name__,
        )
    module.reset_classifier(0)
    return build_view(model_name, module, prepare=view.prepare, input_size=view.input_size, info=dict(view.info))
