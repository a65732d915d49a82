"""What users bring: their own data and weights, and a probe that fits a model to their classes.

Each gets a name that nobody can guess and no list shows, so that one session never meets another's.
The newest are kept, up to a size, for the whole process; nothing is written to disk.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app import access, lab
from app.cache import MIB
from hydra_core.data.corruptions import MARK
from hydra_core.data.load import DATA, YOURS, register_data
from hydra_core.data.report import IntakeReport
from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import DataError, HydraError

ROOM = 4096 * MIB  # bytes of all that was brought; the oldest leave, the newest always stays
_order: OrderedDict[str, int] = OrderedDict()  # name -> bytes, oldest first
_lock = threading.Lock()

Source = bytes | str  # an upload; or a path on this machine, or "hf:NAME"


@dataclass(frozen=True)
class Brought:
    """A data set that was read: its secret name, how reading went, and the bundle."""

    name: str
    reports: tuple[IntakeReport, ...]
    bundle: DataBundle

    def is_used(self, data_name: str) -> bool:
        """Whether a data set's name is this one's, numbered for some model or corrupted, or not."""
        return data_name.partition(MARK)[0].partition(".")[0] == self.name


# -- data --------------------------------------------------------------------------------------


def read_data(
    title: str, content: Source, ood: Mapping[str, tuple[Source, str]], *, progress: Any = None, cancel: Any = None
) -> Brought:
    """Read uploads, or sources of this machine, into a data set of this session.

    Args:
        title: a name for people.
        content: a zip of class folders, a table of texts and labels, or an npz; or a path, or "hf:NAME".
        ood: name -> (content, "near" or "far").

    Raises:
        HydraError: the file cannot be used; the text says why.
    """
    from hydra_core.data.sources import build_bundle

    for path in (content, *(part for part, _ in ood.values())):
        if isinstance(path, str):
            access.check_path(path)
    sources = {name: part for name, (part, _) in ood.items()}
    shifts = {name: shift for name, (_, shift) in ood.items()}
    bundle, reports = build_bundle(content, sources, name=title, shifts=shifts, progress=progress, cancel=cancel)  # type: ignore[arg-type]
    return Brought(_register(bundle), tuple(reports), bundle)


def _register(bundle: DataBundle, name: str = "") -> str:
    name = name or f"{YOURS}{secrets.token_urlsafe(9)}"
    register_data(name, lambda: bundle)
    parts = (bundle.train, bundle.val, bundle.test, *bundle.ood_val.values(), *bundle.ood_test.values())
    _remember(name, sum(map(_bytes_of, filter(None, parts))))
    return name


def _bytes_of(samples: SampleSet) -> int:
    if samples.inputs.dtype != object:
        return int(samples.inputs.nbytes)
    return sum(len(item) if isinstance(item, str) else int(item.nbytes) for item in samples.inputs)


def _remember(name: str, size: int) -> None:
    with _lock:
        _order[name] = size
        _order.move_to_end(name)
        while len(_order) > 1 and sum(_order.values()) > ROOM:
            old, _ = _order.popitem(last=False)
            DATA.pop(old, None)
            _views().pop(old, None)


def _views() -> dict[str, Any]:
    from hydra_core.models.load import VIEWS

    return VIEWS


def parse_sources(text: str) -> dict[str, tuple[str, str]]:
    """OOD sources from lines "near PATH" or "far PATH": name -> (path, shift).

    Raises:
        DataError: a line that is neither.
    """
    found: dict[str, tuple[str, str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        shift, _, path = line.partition(" ")
        path = path.strip()
        if shift not in ("near", "far") or not path:
            raise DataError(
                "This line names no OOD source", expected='"near" or "far", a space, and a path', got=line[:80]
            )
        stem = path.removeprefix("hf:").rstrip("/\\").replace("\\", "/").rsplit("/", 1)[-1]
        name = stem.rsplit(".", 1)[0][:40] or stem
        found[name if name not in found else f"{name} {len(found) + 1}"] = (path, shift)
    return found


def fits(model_name: str, bundle: DataBundle) -> bool:
    """Whether every class of the data is one of the model's, by name."""
    known = {name.casefold() for name in lab.model(model_name).class_names}
    return {name.casefold() for name in bundle.class_names} <= known


def align(brought: Brought, model_name: str) -> Brought:
    """The data numbered as the model numbers its classes. Its name grows by a digest, as other samples need another."""
    from hydra_core.data.splits import align_bundle

    bundle = align_bundle(brought.bundle, lab.model(model_name).class_names)
    return replace(brought, name=_register(bundle, f"{brought.name}.{bundle.digest}"), bundle=bundle)


# -- models --------------------------------------------------------------------------------------


def load_weights(name: str, source: Source | None, *, progress: Any = None, cancel: Any = None) -> str:
    """Load a model and return its name: the typed one with the library's own weights, else a secret one.

    Args:
        name: "timm/NAME", "open_clip/NAME" or "hf/NAME".
        source: an uploaded safetensors, or the path of a weights file (or folder); None: pretrained, from the hub.

    Raises:
        HydraError: no such model, weights that cannot be fetched or do not fit; the text says what to do.
    """
    from hydra_core.models.load import load_model

    access.check_model(name)
    if isinstance(source, str):
        access.check_path(source)
    if progress is not None:
        progress(0.0, "reading the weights" if source is not None else "fetching the weights")
    if source is None:
        lab.bring_model(name, progress=progress, cancel=cancel)
        return name
    load = lambda: load_model(name, checkpoint=source)  # noqa: E731
    return _keep_view(lab.uninterrupted(load, f"Loading {name}", cancel=cancel))


def can_name(model_name: str, bundle: DataBundle) -> bool:
    """Whether a model has as many classes as the data and no names for them: it may have been trained on them."""
    view = lab.model(model_name)
    nameless = all(name.removeprefix("class ").removeprefix("LABEL_").isdigit() for name in view.class_names)
    return nameless and view.num_classes == len(bundle.class_names)


def name_classes(model_name: str, bundle: DataBundle) -> str:
    """The model with the data's class names on its own outputs, in their order; returns its secret name.

    Raises:
        HydraError: another number of classes, or the model names its own (see `can_name`).
    """
    if not can_name(model_name, bundle):
        raise HydraError(
            "The model's classes cannot take these names",
            expected=f"{lab.model(model_name).num_classes} classes, and a model without names of its own",
            got=f"{len(bundle.class_names)} names",
        )
    view = lab.model(model_name)
    return _keep_view(replace(view, class_names=bundle.class_names), made_from=_origin(model_name))


def title_of(model_name: str) -> str:
    """What people call a model: the name that what was brought was made from, else its own."""
    return _yours(model_name, lambda: _origin(model_name))


def data_title(data_name: str) -> str:
    """What people call a data set: the title of what was brought, else its own name."""
    return _yours(data_name, lambda: lab.data(data_name).name)


def _yours(name: str, title: Callable[[], str]) -> str:
    if not name.startswith(YOURS):
        return name
    try:
        return f"{title()} (yours)"
    except HydraError:  # it has left: there was no more room
        return name


def fit_probe(model_name: str, bundle: DataBundle, *, progress: Any = None, cancel: Any = None) -> str:
    """A classifier for the data's classes on the frozen model; returns the new model's secret name.

    Raises:
        DataError: there is no training part.
        UnsupportedModel: the model does not give its features.
    """
    from hydra_core.models.features import features_view
    from hydra_core.models.probe import with_probe

    train = bundle.train
    if train is None or not len(train):
        raise DataError(
            "A classifier needs training samples",
            expected="data with a train part, or one to split",
            hint="Upload your own samples, or choose a model that knows these classes.",
        )
    features = features_view(lab.model(model_name))
    # fitting the classifier comes after the features and tells nothing of how far it is
    reading = None if progress is None else lambda share, text="": progress(0.8 * share, text)
    made = lab.infer(lambda: with_probe(features, train, progress=reading, cancel=cancel))
    return _keep_view(made, made_from=f"{_origin(model_name)}, new classifier")


def _origin(model_name: str) -> str:
    return str(lab.model(model_name).info.get("made_from", model_name))


def _keep_view(view: Any, made_from: str = "") -> str:
    name = f"{YOURS}{secrets.token_urlsafe(9)}"
    info = {**view.info, "made_from": made_from or view.name}
    _views()[name] = replace(view, name=name, info=info, _local=threading.local())
    _remember(name, sum(p.numel() * p.element_size() for p in view.module.parameters()))
    return name


def reads(model_name: str, bundle: DataBundle) -> HydraError | None:
    """Why a model cannot read these samples (images, texts); None where it can."""
    kind = "text" if lab.model(model_name).info.get("kind") == "text" else "image"
    if kind == bundle.kind:
        return None
    return DataError(f"{title_of(model_name)} cannot read this data", expected=f"{kind}s", got=f"{bundle.kind}s",
                     hint="Choose a model and data of one kind.")  # fmt: skip
