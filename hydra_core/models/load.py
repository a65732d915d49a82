"""Models by name: "demo/NAME", "timm/NAME", "open_clip/NAME", "hf/NAME". One loader a prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hydra_core.errors import DependencyError, UnknownNameError
from hydra_core.models.view import ModelView

PathLike = str | Path
Weights = PathLike | bytes  # a file on this machine, or the bytes of an uploaded safetensors


@dataclass(frozen=True)
class Source:
    """One family of names.

    Attributes:
        prefix: the part before the first slash.
        about: one sentence for pickers.
        load: (name after the slash, checkpoint, num_classes) -> view.
        names: every name after the slash that exists.
    """

    prefix: str
    about: str
    load: Callable[[str, Weights | None, int | None], ModelView]
    names: Callable[[], Iterable[str]]


SOURCES: dict[str, Source] = {}
VIEWS: dict[str, ModelView] = {}  # views made in this process, by full name; no list shows them


def register_source(source: Source) -> Source:
    """Add a family of names."""
    SOURCES[source.prefix] = source
    return source


def load_model(name: str, *, checkpoint: Weights | None = None, num_classes: int | None = None) -> ModelView:
    """A model by name, as a read-only view: layers, heads, preprocessing, a forward that takes masks.

    Args:
        name: "demo/fashion-vit", "timm/vit_tiny_patch16_224", ...; see `list_models`.
        checkpoint: a safetensors (or, on your own machine, torch) file with the weights. None: the
            model's pretrained weights where it has any, which needs the network on first use.
        num_classes: size of the classifier; None: as the model or checkpoint has it.

    Raises:
        UnknownNameError: no such model; the text names the nearest.
        UnsupportedModel: its heads cannot be pruned exactly.
        CheckpointError: the weights do not fit, or cannot be fetched.
    """
    if name in VIEWS:
        return VIEWS[name]
    prefix, _, rest = str(name).partition("/")
    if prefix not in SOURCES or not rest:
        raise UnknownNameError("model", name, _some_names())
    return SOURCES[prefix].load(rest, checkpoint, num_classes)


def list_models(prefix: str | None = None) -> list[str]:
    """Full names of all models, or of one family."""
    sources = SOURCES.values() if prefix is None else [SOURCES[prefix]]
    return [f"{source.prefix}/{name}" for source in sources for name in source.names()]


def _some_names() -> list[str]:
    """Names to suggest; a family whose library is missing suggests nothing."""
    found: list[str] = []
    for source in SOURCES.values():
        try:
            found += [f"{source.prefix}/{name}" for name in source.names()]
        except DependencyError:
            continue
    return found


def _load_demo(name: str, checkpoint: Weights | None, num_classes: int | None) -> ModelView:
    from hydra_core.models import demo, demo_clip

    if name == demo_clip.NAME:
        return demo_clip.load_demo_clip()
    if name not in demo.DEMO_NAMES:
        raise UnknownNameError("demo model", f"demo/{name}", [f"demo/{known}" for known in _demo_names()])
    return demo.load_demo(name)


def _demo_names() -> Iterable[str]:
    from hydra_core.models import demo, demo_clip

    return (*demo.DEMO_NAMES, demo_clip.NAME)


def _load_timm(name: str, checkpoint: Weights | None, num_classes: int | None) -> ModelView:
    from hydra_core.models.timm_models import load_timm

    return load_timm(name, checkpoint=checkpoint, num_classes=num_classes)


def _timm_names() -> Iterable[str]:
    import timm

    return timm.list_models()


register_source(
    Source("demo", "Small models trained here; they work at once, without a network.", _load_demo, _demo_names)
)
register_source(Source("timm", "Vision transformers of the timm library.", _load_timm, _timm_names))


def _load_open_clip(name: str, checkpoint: Weights | None, num_classes: int | None) -> ModelView:
    from hydra_core.models.open_clip_models import load_open_clip

    return load_open_clip(name, checkpoint=checkpoint)


def _open_clip_names() -> Iterable[str]:
    from hydra_core.models.open_clip_models import open_clip_names

    return open_clip_names()


register_source(Source("open_clip", "Zero-shot models: classes are named by texts.", _load_open_clip, _open_clip_names))


def _load_text(name: str, checkpoint: Weights | None, num_classes: int | None) -> ModelView:
    from hydra_core.models.text_models import load_text

    return load_text(name, checkpoint=checkpoint, num_classes=num_classes)


register_source(Source("hf", "Text encoders by their hub name, or from a local folder.", _load_text, lambda: ()))
