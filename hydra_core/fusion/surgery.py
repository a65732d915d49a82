"""Physical pruning: a mask becomes a smaller native module (method.md, section 1)."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from hydra_core.errors import UnsupportedModel
from hydra_core.heads.mask import HeadMask
from hydra_core.models.attention import cut
from hydra_core.models.shadow import set_child, shadow
from hydra_core.models.view import ModelView


def prune_model(view: ModelView, mask: HeadMask, *, own: bool = False, gate: bool = False) -> nn.Module:
    """The native model with the mask's heads cut out of its weights.

    Rows of W_Q, W_K, W_V and columns of W_O are dropped; everything else is untouched. The
    result is a plain module of the same classes, without hooks.

    Args:
        own: copy the untouched weights too (to train or save); otherwise they are shared with the view.
        gate: where a layer cannot be cut, zero the columns of W_O instead: as exact, but not smaller.

    Raises:
        MaskError: the mask does not fit.
        UnsupportedModel: a layer that should lose heads can only be gated.
    """
    mask.check(view.shape)
    model = shadow(view.module)
    if own:
        import copy

        model = copy.deepcopy(model)
    for i, layer in enumerate(view.layers):
        if all(mask.rows[i]):
            continue
        if layer.kind.slice is None and not gate:
            raise UnsupportedModel(
                f"{layer.path} cannot be cut",
                expected="an attention kind with exact slicing",
                got=layer.kind.name,
                hint="Its heads can still be gated: use the mask itself, or prune_model(..., gate=True).",
            )
        set_child(model, layer.path, cut(layer.kind, model.get_submodule(layer.path), mask.keep_index(i)))
    return model


def save_pruned(view: ModelView, mask: HeadMask, path: str | Path) -> Path:
    """Write one pruned model as safetensors; model name and mask stand in the header."""
    from safetensors.torch import save

    path = Path(path)
    state = prune_model(view, mask, gate=True).state_dict()
    tensors = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in state.items()}
    meta = {"format": "hydra-pruned-1", "model": view.name, "mask": mask.text}
    path.write_bytes(save(tensors, metadata=meta))
    return path
