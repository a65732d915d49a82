"""Attention whose keys and values have different widths, with a bias by offset: LeViT, TinyViT, EfficientFormer."""

from __future__ import annotations

from typing import Any

from torch import nn

from hydra_core.models.attention import Index, channels, clone_with
from hydra_core.models.families.common import add, columns, norm_rows, of_heads, rows


def _biases(module: Any, keep: Index) -> dict[str, Any]:
    """The bias of each head; the cache of looked-up biases starts empty."""
    return {"attention_biases": of_heads(module.attention_biases, keep), "attention_bias_cache": {}}


def _normed_rows(pair: Any, keep: Index, size: int) -> nn.Module:
    """LeViT's linear (or convolution) with its batch norm."""
    index = channels(keep, size)
    return clone_with(pair, linear=rows(pair.linear, index), bn=norm_rows(pair.bn, index))


def _cut_levit(module: Any, keep: Index) -> nn.Module:
    key, value = module.key_dim, module.val_dim
    ln = module.proj.ln
    proj = clone_with(module.proj)
    proj.ln = clone_with(ln, linear=columns(ln.linear, channels(keep, value)))
    changes: dict[str, Any] = {"proj": proj, **_biases(module, keep)}
    if hasattr(module, "qkv"):
        changes["qkv"] = _normed_rows(module.qkv, keep, 2 * key + value)
    else:
        changes["kv"] = _normed_rows(module.kv, keep, key + value)
        changes["q"] = clone_with(module.q)
        changes["q"].ln = _normed_rows(module.q.ln, keep, key)
    sizes = {"num_heads": len(keep), "key_attn_dim": len(keep) * key, "val_attn_dim": len(keep) * value}
    return clone_with(module, **sizes, **changes)


def _cut_joint(module: Any, keep: Index) -> nn.Module:
    """TinyViT and EfficientFormer: plain linears, each head's q, k and v together."""
    key, value = module.key_dim, module.val_dim
    sizes = {"key_attn_dim": len(keep) * key, "val_attn_dim": len(keep) * value, "out_dim": len(keep) * value}
    return clone_with(
        module,
        num_heads=len(keep),
        qkv=rows(module.qkv, channels(keep, 2 * key + value)),
        proj=columns(module.proj, channels(keep, value)),
        **{name: size for name, size in sizes.items() if hasattr(module, name)},
        **_biases(module, keep),
    )


add("LeViT", ["timm.models.levit.Attention", "timm.models.levit.AttentionDownsample"], slice=_cut_levit, grouped=False)
add("TinyViT", "timm.models.tiny_vit.Attention", slice=_cut_joint, grouped=False)
add("EfficientFormer", "timm.models.efficientformer.Attention", slice=_cut_joint, grouped=False)
# talking heads and a convolution over the values: the heads meet before the projection, so gate only
add(
    "EfficientFormer v2",
    ["timm.models.efficientformer_v2.Attention2d", "timm.models.efficientformer_v2.Attention2dDownsample"],
)
# each head's output feeds the next head: what is removed is its part in the projection
add("EfficientViT cascade", "timm.models.efficientvit_msra.CascadedGroupAttention")
