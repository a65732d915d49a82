"""One small model for every attention class of timm that is claimed: (name, options, image size)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
LAST = {"drop_path_rate": 0.0}

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
    "eva scale_norm": ("eva02_base_patch14_224", {**SMALL, "num_heads": 2}, 32),
    "eva rope": ("vit_base_patch16_rope_224", {**SMALL, "num_heads": 2}, 32),
    "eva mixed rope": ("vit_base_patch16_rope_mixed_224", {**SMALL, "num_heads": 2}, 32),
    "beit": ("beit_base_patch16_224", SMALL, 32),
    "relpos mlp": ("vit_relpos_base_patch16_224", SMALL, 32),
    "relpos shared": ("vit_srelpos_small_patch16_224", SMALL, 32),
    "sam": ("samvit_base_patch16", {**SMALL, "window_size": 2, "global_attn_indexes": (1,), "depth": 2}, 32),
    "cait": ("cait_xxs24_224", SMALL, 32),
    "xcit": ("xcit_nano_12_p8_224", {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 4}, 32),
    "tnt": ("tnt_s_legacy_patch16_224", {"embed_dim": 32, "inner_dim": 8, "depth": 2, "num_heads_inner": 2, "num_heads_outer": 4, "img_size": 32}, 32),
    "convit": ("convit_tiny", {**SMALL, "local_up_to_layer": 1}, 32),
    "crossvit": ("crossvit_9_240", {"img_size": 48, "embed_dim": (16, 32), "depth": ((1, 1, 1),) * 2, "num_heads": (2, 4)}, 48),
    "swin": ("swin_tiny_patch4_window7_224", {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}, 64),
    "swin v2": ("swinv2_tiny_window8_256", {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}, 64),
    "swin v2 cr": ("swinv2_cr_tiny_224", {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}, 64),
    "davit": ("davit_tiny", {"embed_dims": (16, 32), "depths": (1, 1), "num_heads": (2, 4), "window_size": 4}, 64),
    "davit fl": ("davit_base_fl", {"embed_dims": (16, 32), "depths": (1, 1), "num_heads": (2, 4), "window_size": 4}, 64),
    "gcvit": ("gcvit_xxtiny", {"img_size": 64, "embed_dim": 16, "depths": (1, 2), "num_heads": (2, 4), "window_size": (4, 4)}, 64),
    "nest": ("nest_tiny", {"img_size": 32, "num_levels": 2, "embed_dims": (16, 32), "num_heads": (2, 4), "depths": (1, 1)}, 32),
    "maxvit": ("test_maxvit", {}, 64),
    "maxvit tf": ("maxvit_tiny_tf_224", {"img_size": 64, "embed_dim": (32, 64), "depths": (1, 1), "stem_width": 16}, 64),
    "maxvit rmlp": ("maxvit_rmlp_pico_rw_256", {"img_size": 64, "embed_dim": (32, 64), "depths": (1, 1), "stem_width": 16}, 64),
    "coatnet": ("test_coatnet", {}, 64),
    "coatnet rmlp": ("coatnet_rmlp_nano_rw_224", {"img_size": 64, "embed_dim": (16, 32, 64), "depths": (1, 1, 1), "stem_width": 16}, 64),
    "levit": ("levit_128s", {"img_size": 64, "embed_dim": (32, 64), "key_dim": 8, "num_heads": (2, 4), "depth": (1, 1)}, 64),
    "levit conv": ("levit_conv_128s", {"img_size": 64, "embed_dim": (32, 64), "key_dim": 8, "num_heads": (2, 4), "depth": (1, 1)}, 64),
    "tinyvit": ("tiny_vit_5m_224", {"embed_dims": (16, 32), "depths": (1, 2), "num_heads": (2, 4), "window_sizes": (4, 4)}, 64),
    "efficientformer": ("efficientformer_l1", {"img_size": 224, "embed_dims": (8, 8, 16, 32), "depths": (1, 1, 1, 2), "num_vit": 1}, 224),
    "efficientformer v2": ("efficientformerv2_s0", {"img_size": 64, "embed_dims": (8, 16, 16, 32), "depths": (1, 1, 3, 3), "num_vit": 2}, 64),
    "efficientvit msra": ("efficientvit_m0", {"img_size": 64, "embed_dim": (16, 32, 64), "key_dim": (4, 4, 4), "depth": (1, 1, 1), "num_heads": (2, 2, 4)}, 64),
    "mvit": ("mvitv2_tiny", {"img_size": 64, "embed_dim": 16, "depths": (1, 2), "num_heads": 2}, 64),
    "hiera": ("hiera_tiny_224", {"img_size": (64, 64), "embed_dim": 16, "num_heads": 2, "stages": (1, 1, 2, 1)}, 64),
    "hiera sam2": ("sam2_hiera_tiny", {"embed_dim": 16, "num_heads": 2, "stages": (1, 1, 2, 1), "global_att_blocks": (3,), "window_spec": (2, 2, 2, 2)}, 64),
    "pvt": ("pvt_v2_b0", {"embed_dims": (16, 32), "depths": (1, 2), "num_heads": (2, 4), "sr_ratios": (4, 1), "mlp_ratios": (2, 2)}, 64),
    "pvt linear": ("pvt_v2_b2_li", {"embed_dims": (16, 32), "depths": (1, 2), "num_heads": (2, 4), "sr_ratios": (4, 1), "mlp_ratios": (2, 2)}, 64),
    "twins pcpvt": ("twins_pcpvt_small", {"embed_dims": (16, 32), "depths": (1, 2), "num_heads": (2, 4), "sr_ratios": (4, 1), "mlp_ratios": (2, 2), "img_size": 64}, 64),
    "twins svt": ("twins_svt_small", {"embed_dims": (16, 32), "depths": (2, 2), "num_heads": (2, 4), "sr_ratios": (4, 2), "mlp_ratios": (2, 2), "wss": (4, 4), "img_size": 64}, 64),
    "pit": ("pit_ti_224", {"img_size": 64, "base_dims": (8, 8), "depth": (1, 2), "heads": (2, 4)}, 64),
    "volo": ("volo_d1_224", {"img_size": 64, "embed_dims": (16, 32, 32, 32), "num_heads": (2, 4, 4, 4), "layers": (1, 1, 1, 1)}, 64),
    "coat": ("coat_tiny", {"img_size": 64, "embed_dims": (16, 16, 16, 16), "serial_depths": (1, 1, 1, 1), "parallel_depth": 1, "num_heads": 8}, 64),
    "coat lite": ("coat_lite_tiny", {"img_size": 64, "embed_dims": (16, 16, 32, 32), "serial_depths": (1, 1, 1, 1), "num_heads": 8}, 64),
    "convnet fastvit": ("fastvit_sa12", {"embed_dims": (16, 32, 32, 64), "layers": (1, 1, 1, 2)}, 64),
    "edgenext": ("edgenext_xx_small", {}, 64),
    "caformer": ("caformer_s18", {"dims": (16, 32, 64, 64), "depths": (1, 1, 2, 1)}, 64),
    "nextvit": ("nextvit_small", {}, 64),
    "visformer": ("visformer_tiny", {"img_size": 64, "embed_dim": 48, "num_heads": 3, "init_channels": 8, "depth": (1, 1, 1)}, 64),
    "mobilevit": ("mobilevit_xxs", {}, 64),
    "mobilenet v4": ("mobilenetv4_hybrid_medium_075", {}, 64),
    "mobilenet v5": ("mobilenetv5_base", {}, 64),
    "csatv2": ("csatv2", {}, 256),
    "cpubone": ("cpubone_nano", {}, 64),
    "lowformer": ("lowformer_b0", {}, 64),
    "botnet": ("botnet26t_256", {"img_size": 64}, 64),
    "halonet": ("halonet26t", {}, 128),
    "lambda": ("lambda_resnet26rpt_256", {"img_size": 64}, 64),
    "qwen3": ("qwen3_vit_88m", {}, 32),
    "deepseek": ("deepseek_vit_412m", {}, 32),
    "gemma4": ("gemma4_vit_167m", {}, 32),
}
# fmt: on


def build(case: str) -> tuple[nn.Module, torch.Tensor]:
    """(model in float64 with noisy weights, images (2, 3, s, s)): zero layer scales and norms would hide heads."""
    import timm

    name, options, size = CASES[case]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10, **options).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            fan = parameter[0].numel() if parameter.ndim > 1 else 25
            centre = 1.0 if parameter.ndim == 1 and parameter.mean() > 0.5 else 0.0
            parameter.copy_(centre + torch.randn_like(parameter) / max(fan, 1) ** 0.5)
    return model, torch.randn(2, 3, size, size, dtype=torch.float64)
