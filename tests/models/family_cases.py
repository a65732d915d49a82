# ruff: noqa: E501  (one case a line)
"""One small model for every attention class of timm that is claimed: (name, options, image size)."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch
from torch import nn

SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}


def _mvit() -> Any:
    from timm.models.mvitv2 import MultiScaleVitCfg

    return MultiScaleVitCfg(depths=(1, 2), embed_dim=16, num_heads=2)


def _self_attention(layer: str, block_size: int | None = None) -> Any:
    from timm.models.byobnet import ByoBlockCfg, ByoModelCfg, interleave_blocks

    blocks = (
        ByoBlockCfg(type="bottle", d=1, c=32, s=2, gs=0, br=0.25),
        *interleave_blocks(types=("bottle", "self_attn"), every=1, d=2, c=64, s=2, gs=0, br=0.5),
    )
    options = {} if block_size is None else {"block_size": block_size, "halo_size": 1}
    return ByoModelCfg(
        blocks=blocks, stem_chs=16, stem_pool="", act_layer="silu", self_attn_layer=layer, self_attn_kwargs=options
    )


def _halo() -> Any:
    return _self_attention("halo", 4)


def _bottleneck() -> Any:
    return _self_attention("bottleneck")


def _lambda() -> Any:
    return _self_attention("lambda")


def _mqa() -> Any:
    """Multi-query attention with and without strided keys and queries, as MobileNet v4 mixes them."""
    from timm.models._efficientnet_builder import decode_arch_def

    return decode_arch_def(
        [
            ["cn_r1_k3_s2_c16"],
            ["uir_r1_a3_k3_s2_e2_c16", "mqa_r1_k3_h4_s1_v2_d16_c16", "uir_r1_a0_k3_s1_e2_c16"],
            ["uir_r1_a3_k3_s2_e2_c32", "mqa_r1_k3_h2_s1_d8_c32", "uir_r1_a0_k3_s1_e2_c32"],
        ]
    )


def _mixers() -> Any:
    from timm.models.metaformer import Attention, SepConv

    return [SepConv, SepConv, Attention, Attention]


def _norms() -> Any:
    from timm.models.metaformer import LayerNorm2dNoBias, LayerNormNoBias

    return [LayerNorm2dNoBias] * 2 + [LayerNormNoBias] * 2


# fmt: off
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "vit": ("vit_tiny_patch16_224", SMALL, 32),
    "vit parallel blocks": ("vit_small_patch16_36x1_224", SMALL, 32),
    "vit map pooling": ("vit_base_patch16_siglip_224", SMALL, 32),
    "vit scale_norm": ("vit_tiny_patch16_224", {**SMALL, "scale_attn_norm": True}, 32),
    "deit distilled": ("deit_tiny_distilled_patch16_224", SMALL, 32),
    "differential": ("vit_dwee_patch16_reg1_gap_256", SMALL, 32),
    "xp block": ("vit_base_patch16_xp_224", SMALL, 32),
    "differential xp block": ("vit_dpwee_patch16_reg1_gap_256", SMALL, 32),
    "naflex": ("naflexvit_base_patch16_gap", {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}, 32),
    "eva": ("eva02_tiny_patch14_224", {**SMALL, "num_heads": 2}, 32),
    "eva separate qkv": ("eva02_base_patch14_224", {**SMALL, "num_heads": 2}, 32),
    "eva scale_norm": ("eva02_base_patch16_clip_224", {**SMALL, "num_heads": 2}, 32),
    "eva rope": ("vit_base_patch16_rope_224", {**SMALL, "num_heads": 2}, 32),
    "eva rope grouped queries": ("vit_base_patch16_rope_224", {**SMALL, "num_kv_heads": (4, 2), "qkv_fused": False, "depth": 2}, 32),
    "eva rope scale_norm": ("vit_base_patch16_rope_224", {**SMALL, "num_heads": 2, "scale_attn_inner": True}, 32),
    "eva mixed rope": ("vit_base_patch16_rope_mixed_224", {**SMALL, "num_heads": 2}, 32),
    "beit": ("beit_base_patch16_224", SMALL, 32),
    "beit shared": ("beit_base_patch16_224", {**SMALL, "use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}, 32),
    "relpos mlp": ("vit_relpos_base_patch16_224", SMALL, 32),
    "relpos shared": ("vit_srelpos_small_patch16_224", SMALL, 32),
    "sam": ("samvit_base_patch16", {**SMALL, "window_size": 2, "global_attn_indexes": (1,), "depth": 2}, 32),
    "cait": ("cait_xxs24_224", SMALL, 32),
    "xcit": ("xcit_nano_12_p8_224", {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 4}, 32),
    "tnt": ("tnt_s_legacy_patch16_224", {"embed_dim": 32, "inner_dim": 8, "depth": 2, "num_heads_inner": 2, "num_heads_outer": 4, "img_size": 32}, 32),
    "convit": ("convit_tiny", {**SMALL, "local_up_to_layer": 1}, 32),
    "crossvit": ("crossvit_9_240", {"img_size": 48, "img_scale": (1.0, 1.0), "patch_size": (8, 16), "embed_dim": (16, 32), "depth": ((1, 2, 0),) * 2, "num_heads": (2, 4)}, 48),
    "swin": ("swin_tiny_patch4_window7_224", {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}, 64),
    "swin v2": ("swinv2_tiny_window8_256", {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}, 64),
    "swin v2 cr": ("swinv2_cr_tiny_224", {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}, 64),
    "davit": ("davit_tiny", {"embed_dims": (16, 32), "depths": (1, 1), "num_heads": (2, 4), "window_size": 4}, 64),
    "davit fl": ("davit_base_fl", {"embed_dims": (16, 32), "depths": (1, 1), "num_heads": (2, 4), "window_size": 4}, 64),
    "gcvit": ("models.gcvit.GlobalContextVit", {"img_size": 64, "embed_dim": 16, "depths": (1, 2), "num_heads": (2, 4), "window_ratio": (16, 16)}, 64),
    "nest": ("models.nest.Nest", {"img_size": 32, "num_levels": 2, "embed_dims": (16, 32), "num_heads": (2, 4), "depths": (1, 2)}, 32),
    "maxvit": ("test_maxvit", {"img_size": 64}, 64),
    "maxvit tf": ("maxvit_tiny_tf_224", {"img_size": 64, "embed_dim": (32, 64), "depths": (1, 1), "stem_width": 16}, 64),
    "maxvit rmlp": ("maxvit_rmlp_pico_rw_256", {"img_size": 64, "embed_dim": (32, 64), "depths": (1, 1), "stem_width": 16}, 64),
    "coatnet": ("test_coatnet", {"img_size": 64}, 64),
    "coatnet rmlp": ("coatnet_rmlp_nano_rw_224", {"img_size": 64, "embed_dim": (16, 32, 64, 64), "depths": (1, 1, 1, 1), "stem_width": 16}, 64),
    "levit": ("levit_128s", {"img_size": 64, "embed_dim": (32, 64), "key_dim": 8, "num_heads": (2, 4), "depth": (1, 1)}, 64),
    "levit conv": ("levit_conv_128s", {"img_size": 64, "embed_dim": (32, 64), "key_dim": 8, "num_heads": (2, 4), "depth": (1, 1)}, 64),
    "tinyvit": ("tiny_vit_5m_224", {"embed_dims": (16, 32), "depths": (1, 2), "num_heads": (2, 4), "window_sizes": (4, 4)}, 64),
    "efficientformer": ("efficientformer_l1", {"img_size": 224, "embed_dims": (8, 8, 16, 32), "depths": (1, 1, 1, 2), "num_vit": 1}, 224),
    "efficientformer v2": ("efficientformerv2_s0", {"img_size": 64, "embed_dims": (8, 16, 16, 32), "depths": (1, 1, 2, 2), "num_vit": 1}, 64),
    "efficientvit msra": ("efficientvit_m0", {"img_size": 64, "embed_dim": (16, 32, 64), "key_dim": (4, 4, 4), "depth": (1, 1, 1), "num_heads": (2, 2, 4)}, 64),
    "mvit": ("models.mvitv2.MultiScaleVit", {"img_size": (64, 64), "cfg": _mvit}, 64),
    "hiera": ("hiera_tiny_224", {"img_size": (64, 64), "embed_dim": 16, "num_heads": 2, "stages": (1, 1, 2, 1)}, 64),
    "hiera sam2": ("sam2_hiera_tiny", {"embed_dim": 16, "num_heads": 2, "stages": (1, 1, 2, 1), "global_att_blocks": (3,), "window_spec": (2, 2, 2, 2)}, 64),
    "pvt": ("pvt_v2_b0", {"embed_dims": (16, 32), "depths": (1, 2), "num_heads": (2, 4), "sr_ratios": (4, 1), "mlp_ratios": (2, 2)}, 64),
    "pvt linear": ("pvt_v2_b2_li", {"embed_dims": (16, 32), "depths": (1, 2), "num_heads": (2, 4), "sr_ratios": (4, 1), "mlp_ratios": (2, 2)}, 64),
    "twins pcpvt": ("twins_pcpvt_small", {"embed_dims": (16, 32), "depths": (1, 2), "num_heads": (2, 4), "sr_ratios": (4, 1), "mlp_ratios": (2, 2), "img_size": 64}, 64),
    "twins svt": ("twins_svt_small", {"embed_dims": (16, 32), "depths": (2, 2), "num_heads": (2, 4), "sr_ratios": (4, 2), "mlp_ratios": (2, 2), "wss": (4, 4), "img_size": 64}, 64),
    "pit": ("pit_ti_224", {"img_size": 64, "base_dims": (8, 8), "depth": (1, 2), "heads": (2, 4)}, 64),
    "volo": ("models.volo.VOLO", {"layers": (1, 1, 1, 1), "img_size": 64, "embed_dims": (16, 32, 32, 32), "num_heads": (2, 4, 4, 4), "stem_hidden_dim": 16}, 64),
    "coat": ("coat_tiny", {"img_size": 64, "embed_dims": (16, 16, 16, 16), "serial_depths": (1, 1, 1, 1), "parallel_depth": 1, "num_heads": 8}, 64),
    "coat lite": ("coat_lite_tiny", {"img_size": 64, "embed_dims": (16, 16, 32, 32), "serial_depths": (1, 1, 1, 1), "num_heads": 8}, 64),
    "convnet fastvit": ("fastvit_sa12", {"embed_dims": (16, 32, 32, 64), "layers": (1, 1, 1, 2)}, 64),
    "edgenext": ("edgenext_xx_small", {}, 64),
    "caformer": ("models.metaformer.MetaFormer", {"dims": (8, 16, 64, 64), "depths": (1, 1, 2, 1), "token_mixers": _mixers, "norm_layers": _norms}, 64),
    "nextvit": ("models.nextvit.NextViT", {"in_chans": 3, "stem_chs": (8, 8, 8), "depths": (1, 4, 5, 1), "head_dim": 32}, 64),
    "visformer": ("visformer_tiny", {"img_size": 64, "embed_dim": 48, "num_heads": 3, "init_channels": 8, "depth": (1, 1, 1)}, 64),
    "mobilevit": ("mobilevit_xxs", {}, 64),
    "mobilenet v4": ("models.mobilenetv3.MobileNetV3", {"block_args": _mqa}, 64),
    "mobilenet v5": ("models.mobilenetv5.MobileNetV5", {"block_args": _mqa, "num_features": 64, "msfa_output_resolution": 4}, 64),
    "csatv2": ("models.csatv2.CSATv2", {"dims": (8, 16, 32, 32), "depths": (1, 1, 1, 1), "transformer_depths": (0, 0, 1, 1)}, 256),
    "cpubone": ("models.cpubone.CPUBone", {"width_list": (8, 16, 32, 64, 128), "depth_list": (0, 1, 1, 1, 1), "head_widths": (64, 64)}, 64),
    "lowformer": ("models.lowformer.LowFormer", {"width_list": (8, 16, 32, 64, 128), "depth_list": (0, 1, 1, 1, 1), "head_widths": (64, 64)}, 64),
    "botnet": ("models.byobnet.ByobNet", {"cfg": _bottleneck, "img_size": 64}, 64),
    "halonet": ("models.byobnet.ByobNet", {"cfg": _halo}, 64),
    "lambda": ("models.byobnet.ByobNet", {"cfg": _lambda}, 64),
    "qwen3": ("models.qwen3_vit.Qwen3VitClassifier", {**SMALL, "img_size": 64, "num_heads": 2, "embed_dim": 32}, 64),
    "deepseek": ("models.deepseek_vit.DeepseekVitClassifier", {**SMALL, "img_size": 48, "num_heads": 2, "embed_dim": 32}, 48),
    "gemma4": ("models.gemma4_vit.Gemma4VitClassifier", {**SMALL, "img_size": 48, "head_dim": 8, "intermediate_size": 64, "num_kv_heads": 2}, 48),
}
# fmt: on


def build(case: str) -> tuple[nn.Module, torch.Tensor]:
    """(model in float64 with noisy weights, images (2, 3, s, s)): zero layer scales and norms would hide heads."""
    import timm

    name, options, size = CASES[case]
    torch.manual_seed(0)
    options = {key: value() if callable(value) else value for key, value in options.items()}
    if name.startswith("models."):  # names whose widths are fixed: the class itself
        path, _, cls = name.rpartition(".")
        make = getattr(importlib.import_module(f"timm.{path}"), cls)
    else:
        make = partial(timm.create_model, name)
    model = make(num_classes=10, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            fan = parameter[0].numel() if parameter.ndim > 1 else 25
            centre = 1.0 if parameter.ndim == 1 and parameter.mean() > 0.5 else 0.0
            parameter.copy_(centre + torch.randn_like(parameter) / max(fan, 1) ** 0.5)
    return model, torch.randn(2, 3, size, size, dtype=torch.float64)
