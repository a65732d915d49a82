"""What every row of the comparison is: a network that gives the logits of M members."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from hydra_core.cost import Cost, count_macs, count_parameters, example_input
from hydra_core.data.sets import SampleSet
from hydra_core.errors import CheckpointError, UnsupportedModel
from hydra_core.fusion.ensemble import Branch
from hydra_core.fusion.grouped import unpack_members
from hydra_core.models.blocks import unchained
from hydra_core.models.shadow import set_child
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress
from hydra_core.training.loop import Fit, Recipe, fit


class Method:
    """One row: a network from a batch (B, ...) to the logits of its members (M, B, C).

    Attributes:
        view: the model that it starts from.
        net: the network; `cost` and latency are those of this very module.
        trainable: names of the tensors in `net` that `fit` trains and `state` stores; none: nothing to train.
    """

    def __init__(self, view: ModelView, net: nn.Module) -> None:
        self.view = view
        self.trainable = tuple(name for name, p in net.named_parameters() if p.requires_grad)
        if getattr(net, "learns_statistics", False):
            self.trainable += tuple(name for name, _ in net.named_buffers())
        self.net = net.eval()

    @torch.inference_mode()
    def member_logits(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of every member, (M, B, C), from a batch (B, ...)."""
        return self.net(x)

    def predict_proba(self, x: torch.Tensor) -> torch.Tensor:
        """Mean over members of their softmax, (B, C)."""
        return self.member_logits(x).softmax(-1).mean(0)

    def doubt(self, samples: SampleSet, logits: np.ndarray) -> np.ndarray | None:
        """The row's own OOD score of each sample, (N,), higher is more OOD; None: the score that a comparison asks for.

        Args:
            logits: what the row gave for these samples, (M, N, C).
        """
        return None

    def cost(self) -> Cost:
        """Distinct parameters and multiply-adds a sample, beside those of the unpruned model."""
        x = example_input(self.view)
        single = self.view.module
        return Cost(
            count_parameters(self.net), count_macs(self.net, x), count_parameters(single), count_macs(single, x)
        )

    def fit(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        recipe: Recipe,
        *,
        outliers: torch.Tensor | None = None,
        checkpoint: Path | None = None,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> Fit:
        """Train the method's own tensors: the members' mean cross-entropy; see `training.loop.fit`.

        Args:
            x, y: prepared inputs (N, ...) and labels (N,).
            outliers: prepared inputs (K, ...) on which every member shall be undecided, as the recipe weighs it.

        Raises:
            ModelError: there is nothing to train, or training diverged.
        """
        return fit(
            self.net, x, y, recipe, loss=member_loss, outliers=outliers, checkpoint=checkpoint, progress=progress,
            cancel=cancel,
        )  # fmt: skip

    def state(self) -> dict[str, torch.Tensor]:
        """The trained tensors by name."""
        own = dict(self.net.named_parameters()) | dict(self.net.named_buffers())
        return {name: own[name].detach() for name in self.trainable}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put trained tensors in; stored in half precision, used in the model's own.

        Raises:
            CheckpointError: names or shapes do not fit.
        """
        own = self.state()
        wrong = [n for n in own.keys() | tensors.keys() if n not in own or n not in tensors]
        wrong += [n for n in own.keys() & tensors.keys() if own[n].shape != tensors[n].shape]
        if wrong:
            raise CheckpointError(
                "The weights do not fit this method", expected=f"{len(own)} tensors", got=", ".join(sorted(wrong)[:3])
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(tensors[name])

    @cached_property
    def digest(self) -> str:
        """A short digest of the network's structure and tensors: the key of cached logits."""
        tree = [m.parents for m in self.net.modules() if isinstance(m, Branch)]
        return module_digest(self.net, f"{self.net!r}{tree}")


def module_digest(module: nn.Module, salt: str = "") -> str:
    """The same text for the same tensors in every process."""
    h = hashlib.blake2b(salt.encode(), digest_size=8)
    for name, tensor in module.state_dict().items():
        h.update(name.encode())
        h.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return h.hexdigest()


def member_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean over members of their own cross-entropy: logits (M, B, C), labels (B,)."""
    return F.cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)))


class Members(nn.Module):
    """Whole models one after another: (B, ...) -> (M, B, C)."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([model(x) for model in self.models])


class FixedStatistics(nn.Module):
    """A network whose batch norms keep the statistics that they came with: fine-tuning is too short for new ones."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def train(self, mode: bool = True) -> FixedStatistics:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()
        return self


class OnRows(FixedStatistics):
    """A network whose blocks carry the members on the batch axis: (B, ...) -> (M, B, C).

    `leaves[m]` is the group of rows that belongs to member m.
    """

    def __init__(self, net: nn.Module, leaves: Sequence[int]) -> None:
        super().__init__(net)
        self.leaves = tuple(leaves)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return unpack_members(self.net(x), max(self.leaves) + 1)[list(self.leaves)]  # (G*B, C) -> (M, B, C)

    def extra_repr(self) -> str:
        return f"leaves={self.leaves}"


def on_rows(view: ModelView, net: nn.Module, members: int) -> OnRows:
    """Let the stream of `net` (a copy of the view's module) branch into `members` before the first block."""
    for b, path in enumerate(view.blocks):
        parents, before = ((0,) * members, 1) if b == 0 else (tuple(range(members)), members)
        set_child(net, path, Branch(net.get_submodule(path), parents, before))
    return OnRows(net, range(members))


def check_linears(view: ModelView, what: str) -> None:
    """Refuse models whose linears cannot be replaced one by one.

    Raises:
        UnsupportedModel: blocks do not form a chain, or attention reads weights past its modules.
    """
    fused = [path for path, m in view.module.named_modules() if isinstance(m, nn.MultiheadAttention)]
    if unchained(view.module) or fused:
        raise UnsupportedModel(
            f"{what} cannot be put on {view.name}",
            expected="a chain of blocks whose projections are linear modules",
            got=f"fused attention at {fused[0]}" if fused else "blocks that do not form a chain",
        )


def tail_names(view: ModelView) -> list[str]:
    """Children of the module that run after the blocks (final norm, classifier)."""
    names = [name for name, _ in view.module.named_children()]
    last = max(names.index(path.split(".")[0]) for path in view.blocks)
    return names[last + 1 :]


def linear_paths(view: ModelView, *, tail: bool = True) -> list[str]:
    """Dotted paths of the linears in the blocks, and of those after them."""
    inside = (*view.blocks, *(tail_names(view) if tail else ()))
    found = [path for path, m in view.module.named_modules() if isinstance(m, nn.Linear)]
    return [path for path in found if any(f"{path}.".startswith(f"{name}.") for name in inside)]
