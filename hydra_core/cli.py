"""`python -m hydra_core COMMAND`: the engine from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra_core.errors import HydraError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m hydra_core", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="fuse and evaluate a recipe, write report and checkpoint")
    run.add_argument("recipe", type=Path)
    run.add_argument("--out", type=Path, default=Path("runs/hydra"), help="folder for the results")
    run.add_argument("--bootstrap", type=int, default=500, help="resamples for the intervals; 0 for none")
    run.add_argument("--split", choices=("val", "test"), default="test")

    score = commands.add_parser("score", help="head scores of a model as CSV")
    score.add_argument("model")
    score.add_argument("--data", default="demo/fashion")
    score.add_argument("--criterion", default="taylor")
    score.add_argument("--samples", type=int, default=500)

    models = commands.add_parser("models", help="names of models")
    models.add_argument("--source", default="demo")

    coverage = commands.add_parser("coverage", help="which models of a library can be pruned, and why not")
    coverage.add_argument("rest", nargs=argparse.REMAINDER)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["coverage"]:  # it has options of its own
        from hydra_core.models.coverage import main as coverage

        return coverage(words[1:])
    args = parser().parse_args(words)
    try:
        return {"run": _run, "score": _score, "models": _models}[args.command](args)
    except HydraError as error:
        print(error, file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> int:
    import pandas as pd

    from hydra_core.runs.recipe import Recipe, run_recipe

    result = run_recipe(Recipe.read(args.recipe), args.out, bootstrap=args.bootstrap, split=args.split)
    print(pd.DataFrame(result["rows"]).to_string(float_format=lambda v: f"{v:.4f}"))
    print(f"Written: {args.out}/report.json, hydra.safetensors, recipe.json")
    return 0


def _score(args: argparse.Namespace) -> int:
    import hydra_core as hc

    bundle = hc.load_data(args.data)
    scores = hc.score_heads(
        hc.load_model(args.model), bundle.val.sample(args.samples), args.criterion, ood=bundle.ood_val
    )
    print(scores.frame().to_csv(index=False), end="")
    return 0


def _models(args: argparse.Namespace) -> int:
    from hydra_core.models.load import SOURCES, list_models

    if args.source not in SOURCES:
        from hydra_core.errors import UnknownNameError

        raise UnknownNameError("source of models", args.source, SOURCES)
    print("\n".join(list_models(args.source)))
    return 0
