"""Rebuilds a trained row of the comparison: `python -m hydra_core.training.rows NAME ...`

Names: batch_ensemble, packed, lora_ensemble, hydra_circ_tuned. Weights go to assets/rows-NAME.safetensors in half
precision, how they were made to assets/rows.json. A run that was stopped goes on from its last epoch (.scratch/).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from hydra_core.data.demo import load_fashion
from hydra_core.data.sets import labelled
from hydra_core.errors import CheckpointError
from hydra_core.evaluation import forward_set
from hydra_core.heads.mask import Plan
from hydra_core.methods.base import Method, module_digest
from hydra_core.methods.batch_ensemble import batch_ensemble
from hydra_core.methods.ensembles import hydra
from hydra_core.methods.lora import lora_ensemble
from hydra_core.methods.packed import packed
from hydra_core.metrics.report import evaluate_logits
from hydra_core.models.demo import ASSETS, to_input
from hydra_core.models.view import ModelView
from hydra_core.training import demo
from hydra_core.training.finetune import RECIPE, finetune_members, trainable_member
from hydra_core.training.outliers import outliers
from hydra_core.training.recipe import Recipe

FACTS = ASSETS / "rows.json"
TUNED = "hydra_circ_tuned"
FEW = 6_400  # train images of a short fine-tuning: minutes on one core


@dataclass(frozen=True)
class Trained:
    """How a row is made before and in training.

    Attributes:
        make: view -> method with the weights that training starts from.
        recipe: how it is trained.
        samples: train images; None: all. Few keep a rebuild on a CPU within minutes.
    """

    make: Callable[[ModelView], Method]
    recipe: Recipe
    samples: int | None = None


SHORT = Recipe(epochs=1, batch=64, weight_decay=0.01, shift=2, flip=True, outlier_weight=0.3)  # from Single's weights
TRAINED: dict[str, Trained] = {
    "batch_ensemble": Trained(lambda view: batch_ensemble(view, spread=0.1), replace(SHORT, lr=3e-4), FEW),
    "lora_ensemble": Trained(lora_ensemble, replace(SHORT, lr=1e-3, weight_decay=0.0), FEW),
    # from nothing by Single's recipe, cut to a quarter of its steps: the rest is not affordable here
    "packed": Trained(lambda view: packed(view, patch_drop=demo.PATCH_DROP), replace(demo.RECIPE, epochs=2), 23_000),
}
NAMES = (*TRAINED, TUNED)


def command(name: str) -> str:
    """What to type to rebuild a row's weights."""
    return f"python -m hydra_core.training.rows {name}"


def row_file(name: str) -> Path:
    """Where a row's weights lie."""
    return ASSETS / f"rows-{name}.safetensors"


def read_row(name: str, view: ModelView, *, anew: bool = False) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and header of a row's file.

    Raises:
        CheckpointError: there is none, or it was made from other weights than the view's.
    """
    path = row_file(name)
    if not path.is_file():
        raise CheckpointError(
            "This row has not been trained yet",
            expected=f"the file {path.name} in assets/",
            hint=f"Run: {command(name)}",
        )
    with safe_open(path, "pt") as stored:
        meta = stored.metadata() or {}
        tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
    if meta.get("base") != module_digest(view.module):
        raise CheckpointError(
            "This row was trained from other weights of the model",
            expected=f"weights that start from {view.name} as it is now",
            hint=f"Run: {command(name)}",
        )
    return {k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}, meta


def load_row(name: str, view: ModelView) -> Method:
    """A trained row with its stored weights.

    Raises:
        CheckpointError: see `read_row`.
    """
    tensors, _ = read_row(name, view)
    method = TRAINED[name].make(view)
    method.load(tensors)
    method.net.requires_grad_(False)
    return method


def load_members(name: str, view: ModelView) -> tuple[Plan, list[nn.Module]]:
    """The masks and fine-tuned pruned models of a Hydra.

    Raises:
        CheckpointError: see `read_row`.
    """
    tensors, meta = read_row(name, view)
    plan = Plan.from_json(json.loads(meta["plan"]))
    models = []
    for m, mask in enumerate(plan):
        model = trainable_member(view, mask, len(view.blocks) - 1).requires_grad_(False)
        own = {key.partition(".")[2]: t for key, t in tensors.items() if key.startswith(f"{m}.")}
        missing = model.load_state_dict(own, strict=False)
        if missing.unexpected_keys:
            raise CheckpointError("The weights do not fit this row", got=", ".join(missing.unexpected_keys[:3]))
        models.append(model.eval())
    return plan, models


def store_row(name: str, view: ModelView, tensors: Mapping[str, torch.Tensor], **facts: Any) -> Path:
    """Write weights in half precision, and how they were made."""
    meta = {"row": name, "base": module_digest(view.module), "command": command(name)}
    if "plan" in facts:
        meta["plan"] = json.dumps(facts["plan"])
    half = {k: (t.half() if t.is_floating_point() else t).contiguous() for k, t in tensors.items()}
    save_file(half, row_file(name), metadata=meta)
    known = json.loads(FACTS.read_text(encoding="utf-8")) if FACTS.is_file() else {}
    known[name] = meta | facts
    FACTS.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    return row_file(name)


def train_inputs(
    view: ModelView, samples: int | None, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prepared train images, their labels, and the prepared outliers: what the demo models were trained on."""
    from hydra_core.data.demo import load_fashion_train

    train = load_fashion_train()
    train = train if samples is None else train.sample(samples, seed)
    assert train.labels is not None
    return view.inputs(train), torch.from_numpy(train.labels), to_input(outliers(demo.OUTLIERS, seed))


def on_validation(method: Method) -> dict[str, float]:
    """What a trained row measures on the demo's validation data."""
    bundle = load_fashion()
    logits = {s.name: forward_set(method.view, method.member_logits, s) for s in (bundle.val, *bundle.ood_val.values())}
    report = evaluate_logits(logits.pop("val"), labelled(bundle.val), logits)
    return {name: round(report.row()[name], 4) for name in ("accuracy", "nll", "ece", "auroc")}


def train_row(name: str, view: ModelView, scratch: Path, progress: Any = None) -> None:
    """Train one row and store it, with what it measures on validation data as it is stored."""
    how = TRAINED[name]
    x, y, odd = train_inputs(view, how.samples)
    method = how.make(view)
    scratch.mkdir(exist_ok=True)
    checkpoint = scratch / f"rows-{name}-{module_digest(view.module)}.pt"
    done = method.fit(x, y, how.recipe, outliers=odd, checkpoint=checkpoint, progress=progress)
    facts = {"recipe": asdict(how.recipe), "samples": len(x), "history": done.history}
    store_row(name, view, method.state(), **facts)
    store_row(name, view, method.state(), **facts, val=on_validation(load_row(name, view)))


def train_tuned(view: ModelView, scratch: Path, progress: Any = None) -> None:
    """Fine-tune the members of the chosen Hydra (Circ) and store what changed."""
    from hydra_core.methods.compare import demo_setting
    from hydra_core.methods.hydra_rows import plan_of

    setting, bundle = demo_setting(view)
    plan = plan_of("circ", view, bundle, setting)
    x, y, odd = train_inputs(view, FEW)
    folder = scratch / f"rows-{TUNED}-{module_digest(view.module)}"
    models = finetune_members(view, plan, x, y, outliers=odd, folder=folder, progress=progress)
    base = view.module.state_dict()
    changed = {
        f"{m}.{key}": t
        for m, model in enumerate(models)
        for key, t in model.state_dict().items()
        if t.shape != base[key].shape or not torch.equal(t, base[key])
    }
    facts = {"recipe": asdict(RECIPE), "samples": len(x), "plan": plan.to_json()}
    facts["val_before"] = on_validation(hydra(view, plan))  # the same members without fine-tuning
    store_row(TUNED, view, changed, **facts)
    store_row(TUNED, view, changed, **facts, val=on_validation(hydra(view, *load_members(TUNED, view))))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; see the top of this file."""
    from hydra_core.models.load import load_model

    parser = argparse.ArgumentParser(
        prog="python -m hydra_core.training.rows",
        description="Train rows of the comparison and store their weights in assets/.",
    )
    parser.add_argument("names", nargs="+", choices=(*NAMES, "all"), help="rows to train")
    options = parser.parse_args(arguments)
    view, scratch = load_model("demo/fashion-vit"), ASSETS.parent / ".scratch"
    for name in NAMES if "all" in options.names else options.names:

        def show(share: float, text: str, name: str = name) -> None:
            print(f"{name}: {share:.0%} {text}", flush=True)

        train_tuned(view, scratch, show) if name == TUNED else train_row(name, view, scratch, show)


if __name__ == "__main__":
    main()
