"""What blocks need to know beyond being called: which module counts as a block, and what streams through it.

Members live on the batch axis, so fusion must know which arguments of a block have one row a sample. The
first always does. Rules are by class path; tests check each on a real model.
"""

from __future__ import annotations

from torch import nn

from hydra_core.models.attention import class_path

# Blocks hand the batch size or a second stream past the blocks inside them: the outer module is the block.
ENCLOSING = {
    "timm.models.byobnet.MobileVitBlock",
    "timm.models.byobnet.MobileVitV2Block",
    "timm.models.mobilevit.MobileVitBlock",
    "timm.models.crossvit.MultiScaleBlock",  # two branches that exchange class tokens
    "timm.models.gcvit.GlobalContextVitStage",  # a global query is computed once a stage
    "timm.models.pvt_v2.PyramidVisionTransformerStage",
    "timm.models.pit.Transformer",
    "timm.models.metaformer.MetaFormerStage",
}

# Number of leading arguments with one row (or a batch-major group of rows) a sample, where it is not one.
CARRIED = {"timm.models.tnt.Block": 2, "timm.models.cait.LayerScaleBlockClassAttn": 2}

_BATCH = "the model reads the batch size before its blocks and shapes their output by it"

# Models whose blocks are not one chain: an early block's output is read again later, next to streams that
# have branched since. Their members run one after another as whole models.
UNCHAINED = {
    "timm.models.cait.Cait": "class attention reads the patch tokens of the trunk again in every block",
    "timm.models.coat.CoaT": "parallel blocks read four scales at once",
    "timm.models.mobilenetv5.MobileNetV5": "the head reads two scales at once",
    "timm.models.mobilenetv5.MobileNetV5Encoder": "the head reads two scales at once",
    "timm.models.twins.Twins": _BATCH,
    "timm.models.qwen3_vit.Qwen3VitClassifier": _BATCH,
    "timm.models.qwen3_vit.Qwen3VitEncoder": _BATCH,
    "timm.models.deepseek_vit.DeepseekVitClassifier": _BATCH,
    "timm.models.deepseek_vit.DeepseekVitEncoder": _BATCH,
    "timm.models.gemma4_vit.Gemma4VitClassifier": "positions are computed for each image before the blocks",
    "timm.models.gemma4_vit.Gemma4VitEncoder": "positions are computed for each image before the blocks",
}


def carried(block: nn.Module) -> int:
    """How many leading arguments of a block have one row a sample."""
    return CARRIED.get(class_path(block), 1)


def unchained(model: nn.Module) -> str:
    """Why a model's blocks cannot be fused one by one, whatever wraps it; "" where they can."""
    if any(getattr(module, "batch_first", True) is False for module in model.modules()):
        return "its blocks have tokens on the first axis, and samples, with which members go, on the second"
    return next((UNCHAINED[path] for path in map(class_path, model.modules()) if path in UNCHAINED), "")
