"""A read-only view over a native transformer: which heads it has, and a forward that takes a mask."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from hydra_core.errors import ModelError, UnsupportedModel
from hydra_core.heads.mask import HeadMask, shape_text
from hydra_core.models.attention import AttentionKind, class_path, kind_of
from hydra_core.models.blocks import ENCLOSING
from hydra_core.models.shadow import freeze, shadow

if TYPE_CHECKING:
    from hydra_core.data.sets import SampleSet
    from hydra_core.models.stages import Stages


@dataclass(frozen=True)
class HeadLayer:
    """One layer of heads: an attention module and where its heads are gated."""

    path: str  # dotted path of the attention module, e.g. "blocks.3.attn"
    proj: str  # dotted path of the child at whose input heads are gated
    block: int  # index into ModelView.blocks of the block that holds it
    heads: int
    head_dim: int
    kind: AttentionKind


@dataclass(frozen=True)
class ModelView:
    """A frozen model and the map of its heads. Shared by threads; nothing on it changes.

    Attributes:
        name: the name it was loaded by.
        module: the native model, in eval mode, without gradients.
        layers: the layers of heads in the order in which they run.
        blocks: dotted paths of the residual blocks in the order in which they run.
        class_names: names of the logits, where known.
        prepare: turns a SampleSet into the model's input tensor (N, ...): the model's OWN preprocessing.
        info: origin, licence, measured figures and other facts for cards.
    """

    name: str
    module: nn.Module
    layers: tuple[HeadLayer, ...]
    blocks: tuple[str, ...]
    class_names: tuple[str, ...] = ()
    prepare: Callable[[SampleSet], torch.Tensor] | None = None
    input_size: tuple[int, ...] = (3, 224, 224)
    info: dict[str, object] = field(default_factory=dict)
    _local: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    def __repr__(self) -> str:
        heads = shape_text(self.shape).replace("x", " x ")
        return f"<ModelView {self.name}: {heads} heads, {self.num_classes} classes, {self.parameters:,} parameters>"

    @property
    def shape(self) -> tuple[int, ...]:
        """Heads of each layer."""
        return tuple(layer.heads for layer in self.layers)

    @property
    def num_classes(self) -> int:
        return len(self.class_names) or int(getattr(self.module, "num_classes", 0))

    @property
    def pad_id(self) -> int | None:
        """The token id that fills short texts up; None for images."""
        found = self.info.get("pad_id")
        return found if isinstance(found, int) else None

    @property
    def parameters(self) -> int:
        """Number of parameters of the native model."""
        return sum(p.numel() for p in self.module.parameters())

    @property
    def dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def inputs(self, *sets: SampleSet) -> torch.Tensor:
        """Samples of one set or more, one after another, through the model's own preprocessing: (N, ...).

        Texts of all sets are filled up to the longest of any.

        Raises:
            ModelError: the view was built without preprocessing.
        """
        if self.prepare is None:
            raise ModelError(f"{self.name} cannot read samples", expected="a view with its own preprocessing")
        parts = [self.prepare(part) for part in sets]
        if len(parts) == 1:
            return parts[0]
        if self.pad_id is not None:  # token ids, (N, T), T of each set's longest text
            width = max(part.shape[1] for part in parts)
            parts = [nn.functional.pad(part, (0, width - part.shape[1]), value=self.pad_id) for part in parts]
        return torch.cat(parts)

    @property
    def sliceable(self) -> bool:
        """Whether every layer can be physically cut."""
        return all(layer.kind.slice is not None for layer in self.layers)

    def stages(self) -> Stages:
        """This thread's runner: a private shadow of the model that takes masks."""
        from hydra_core.models.stages import Stages

        runner = getattr(self._local, "stages", None)
        if runner is None:
            with torch.inference_mode(False):  # its tensors must be fit for gradients too
                runner = self._local.stages = Stages(self)
        return runner

    @torch.inference_mode()
    def __call__(self, x: torch.Tensor, mask: HeadMask | None = None) -> torch.Tensor:
        """Logits (B, C) with the heads that `mask` removes gated to zero at the projection's input."""
        return self.stages().forward(x, mask)


def build_view(name: str, module: nn.Module, **extra: object) -> ModelView:
    """Find the heads of a native model.

    Raises:
        UnsupportedModel: it has no attention that can be pruned; the text names each block and reason.
    """
    module = freeze(module)
    found, refused = find_heads(module)
    if refused or not found:
        reasons = "; ".join(sorted({f"{path} ({kind}): {why}" for path, kind, why in refused})[:3])
        raise UnsupportedModel(
            f"The heads of {name} cannot be pruned exactly",
            expected="softmax self-attention whose heads meet only at an output projection",
            got=reasons or "no attention module with heads",
        )
    blocks = outermost([block_path(module, path) for path, _ in found])
    layers = []
    for path, kind in found:
        attention = module.get_submodule(path)
        heads, head_dim = kind.heads(attention)
        block = next(b for b, block in enumerate(blocks) if f"{path}.".startswith(f"{block}."))
        layers.append(HeadLayer(path, f"{path}.{kind.proj(attention)}", block, heads, head_dim, kind))
    return ModelView(name=name, module=module, layers=tuple(layers), blocks=tuple(blocks), **extra)  # type: ignore[arg-type]


def find_heads(module: nn.Module) -> tuple[list[tuple[str, AttentionKind]], list[tuple[str, str, str]]]:
    """Attention modules that can be gated, and those that cannot with the reason.

    Returns:
        ([(path, kind)], [(path, class name, reason)]) in module order.
    """
    found: list[tuple[str, AttentionKind]] = []
    refused: list[tuple[str, str, str]] = []
    pools = [path for path, child in module.named_modules() if type(child).__name__ in IGNORED]
    for path, child in module.named_modules():
        if any(path.startswith(p + ".") for p in (*(p for p, _ in found), *pools)):
            continue  # parts of an attention module or of a pool are not layers of their own
        kind = kind_of(child)
        if kind is not None:
            kind = kind.in_model(module) or kind
            reason = kind.refuse(child)
            if reason:
                refused.append((path, type(child).__name__, reason))
            else:
                found.append((path, kind))
        elif isinstance(getattr(child, "num_heads", None), int) and hasattr(child, "forward"):
            reason = unknown_reason(child)
            if reason:
                refused.append((path, type(child).__name__, reason))
    return found, refused


def unknown_reason(module: nn.Module) -> str:
    """Why an unknown module with heads blocks the view; "" for containers and pooling that we leave alone."""
    if any(kind_of(child) for child in module.modules() if child is not module):
        return ""  # a block that only remembers its number of heads
    if type(module).__name__ in IGNORED:
        return ""
    return "not a known attention structure"


# attention that pools or reads out rather than carrying the residual stream: left as it is
IGNORED = {
    "AttentionPoolLatent",
    "AttentionPool2d",
    "RotAttentionPool2d",
    "AttentionalPooler",
    # tables of positions that only remember how many heads there are
    "RelPosMlp",
    "RelPosBias",
    "RelPosBiasTf",
    "RotaryEmbeddingMixed",
}


def block_path(root: nn.Module, attention: str) -> str:
    """The residual block around an attention module: its nearest ancestor that sits in a list of blocks."""
    parts = attention.split(".")
    for cut in range(1, len(parts)):
        if class_path(root.get_submodule(".".join(parts[:cut]))) in ENCLOSING:
            return ".".join(parts[:cut])
    itself = type(root.get_submodule(attention)).__name__.endswith("Block")  # attention and MLP in one module
    for cut in range(len(parts) - (not itself), 0, -1):
        owner = root.get_submodule(".".join(parts[: cut - 1])) if cut > 1 else root
        in_list = isinstance(owner, nn.ModuleList | nn.Sequential | nn.ModuleDict)
        # parallel branches (blocks.3.attns.0) sum INSIDE a block: climb on
        if in_list and parts[cut - 2 : cut - 1] != ["attns"]:
            return ".".join(parts[:cut])
    return ".".join(parts[:-1]) or attention


def outermost(paths: Sequence[str]) -> list[str]:
    """Paths without repeats and without those that lie inside another (attention between blocks: a stage is one)."""
    distinct = list(dict.fromkeys(paths))
    return [p for p in distinct if not any(p.startswith(f"{other}.") for other in distinct)]


def stacked_gates(masks: Sequence[HeadMask], layer: int) -> torch.Tensor:
    """Gates of several members for one layer: (M, H) of zeros and ones."""
    return torch.tensor([mask.rows[layer] for mask in masks], dtype=torch.float32)


def shadow_of(view: ModelView) -> nn.Module:
    """A private shadow of a view's model."""
    return shadow(view.module)
