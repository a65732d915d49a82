"""`python -m hydra_core COMMAND`: the engine from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
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
    run.add_argument("--checkpoint", default="", help="file with the model's weights, where its name has none")
    run.add_argument("--data", default="", help="your own data instead: path of a folder, zip, table, npz")
    run.add_argument("--near", nargs="*", default=[], metavar="PATH", help="near-OOD sources beside --data")
    run.add_argument("--far", nargs="*", default=[], metavar="PATH", help="far-OOD sources beside --data")
    run.add_argument("--device", default="cpu", help='"cpu", "cuda", "cuda:1" ...')
    run.add_argument(
        "--ray", nargs="?", const="local", metavar="ADDRESS",
        help='spread the forward passes over a Ray cluster ("auto" on one of its machines); alone: over this machine',
    )  # fmt: skip
    run.add_argument("--ray-cpus", type=float, default=1, help="CPUs a shard takes")
    run.add_argument("--ray-gpus", type=float, default=0, help="GPUs a shard takes; with --device cuda")

    score = commands.add_parser("score", help="head scores of a model as CSV")
    score.add_argument("model")
    score.add_argument("--data", default="demo/fashion")
    score.add_argument("--criterion", default="taylor")
    score.add_argument("--samples", type=int, default=500)

    sweep = commands.add_parser("sweep", help="how many heads can go, and how many members pay: CSV and JSON")
    sweep.add_argument("model", nargs="*", help="one model, or several training seeds of it: each is a repeat")
    sweep.add_argument("--data", default="demo/fashion")
    sweep.add_argument("--methods", nargs="+", help="lines of the sweep; all that the data allow")
    sweep.add_argument("--keep", nargs="+", type=int, help="heads kept in each pruned layer")
    sweep.add_argument("--members", nargs="+", type=int, help="numbers of members")
    sweep.add_argument(
        "--layers", nargs="+", help='"all", "last2", or numbers from 0 like 3,5; several choices allowed'
    )
    sweep.add_argument("--seeds", type=int, default=3, help="draws of the searched samples, where there is one model")
    sweep.add_argument(
        "--samples", type=int, default=800, help="ID samples to measure on, and a quarter of it of each OOD set"
    )
    sweep.add_argument("--out", type=Path, default=Path("runs/sweep"), help="folder; a stopped sweep goes on there")
    sweep.add_argument("--demo", action="store_true", help="the sweep stored in assets/, nothing else")

    noise = commands.add_parser(
        "noise", help="does pruning make the model worse under noise? loss gaps and their terms"
    )
    noise.add_argument("model", nargs="?")
    noise.add_argument("--data", default="demo/fashion")
    noise.add_argument("--corruptions", nargs="+", default=["gaussian_noise"])
    noise.add_argument("--criterion", default="taylor", help="the order in which heads go")
    noise.add_argument("--keep", nargs="+", type=int, help="heads kept in each pruned layer; three quarters, half ...")
    noise.add_argument("--layers", default="all", help='"all", "last2", or numbers from 0 like 3,5')
    noise.add_argument("--samples", type=int, default=200, help="validation images")
    noise.add_argument("--out", type=Path, default=Path("runs/noise"), help="folder for the results")
    noise.add_argument("--demo", action="store_true", help="the study stored in assets/, nothing else")

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
        return {"run": _run, "score": _score, "sweep": _sweep, "noise": _noise, "models": _models}[args.command](args)
    except HydraError as error:
        print(error, file=sys.stderr)
        return 1


def _run(args: argparse.Namespace) -> int:
    import pandas as pd

    from hydra_core.runs.recipe import Recipe
    from hydra_core.runs.run import run_recipe
    from hydra_core.runs.spread import RayCluster, Work, here

    ood = [(Path(path).stem, _full(path), shift) for shift in ("near", "far") for path in getattr(args, shift)]
    recipe = Recipe.read(args.recipe)
    work = Work(recipe, args.split, _full(args.checkpoint), _full(args.data), tuple(ood), args.device)
    spread = here
    if args.ray:
        spread = RayCluster("" if args.ray == "local" else args.ray, args.ray_cpus, args.ray_gpus)
    result = run_recipe(work, args.out, bootstrap=args.bootstrap, spread=spread, progress=_show)
    print(pd.DataFrame({who: _figures(row) for who, row in result["rows"].items()}).to_string())
    print(f"Written: {args.out}/report.json, hydra.safetensors, recipe.json")
    return 0


def _figures(row: Mapping[str, float]) -> dict[str, str]:
    """'0.9165 [0.8900, 0.9300]' a metric; the interval where there is one."""
    out = {}
    for name in [name for name in row if not name.endswith(("_low", "_high"))]:
        low, high = row.get(f"{name}_low", float("nan")), row.get(f"{name}_high", float("nan"))
        out[name] = f"{row[name]:.4f}" + (f" [{low:.4f}, {high:.4f}]" if low == low else "")
    return out


def _full(path: str) -> str:
    """An absolute path: a worker has another current folder."""
    return str(Path(path).absolute()) if path else ""


def _score(args: argparse.Namespace) -> int:
    import hydra_core as hc

    bundle = hc.load_data(args.data)
    scores = hc.score_heads(
        hc.load_model(args.model), bundle.val.sample(args.samples), args.criterion, ood=bundle.ood_val
    )
    print(scores.frame().to_csv(index=False), end="")
    return 0


def _sweep(args: argparse.Namespace) -> int:
    import hydra_core as hc
    from hydra_core.methods import sweep as engine

    if args.demo:
        engine.demo_sweep(_show)
        print(f"Written: {engine.STORED}")
        return 0
    if not args.model:
        raise HydraError("A sweep needs a model", expected="a name such as demo/fashion-vit", got="none")
    views, bundle = [hc.load_model(name) for name in args.model], hc.load_data(args.data)
    usual = engine.Grid.default(views[0], bundle)
    grid = engine.Grid(
        tuple(args.methods or usual.methods), tuple(args.keep or usual.keeps), tuple(args.members or usual.members),
        tuple(engine.layer_choice(text, len(views[0].shape)) for text in args.layers) if args.layers else usual.layers,
    )  # fmt: skip
    found = engine.sweep(
        views, bundle, [grid], seeds=range(args.seeds), remember=engine.CellFile(args.out / "cells.jsonl"),
        sizes=engine.Sizes(report=args.samples, report_ood=max(1, args.samples // 4)), progress=_show,
    )  # fmt: skip
    found.to_json(args.out / "sweep.json")
    found.to_csv(args.out / "sweep.csv")
    print(f"Written: {args.out}/sweep.json, sweep.csv")
    return 0


def _show(share: float, text: str) -> None:
    print(f"{share:4.0%} {text}", file=sys.stderr, flush=True)


def _noise(args: argparse.Namespace) -> int:
    import hydra_core as hc
    from hydra_core.methods import noise_study as engine
    from hydra_core.methods.sweep import layer_choice

    if args.demo:
        engine.demo_study(_show)
        print(f"Written: {engine.STORED}")
        return 0
    if not args.model:
        raise HydraError("A study of noise needs a model", expected="a name such as demo/fashion-vit", got="none")
    view, bundle = hc.load_model(args.model), hc.load_data(args.data)
    found = engine.path_study(
        view, bundle, args.corruptions, keeps=args.keep or engine.quarters(view), criterion=args.criterion,
        layers=layer_choice(args.layers, len(view.shape)), samples=args.samples, progress=_show,
    )  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    found.to_json(args.out / "noise.json")
    found.frame().to_csv(args.out / "noise.csv", index=False)
    print(f"Written: {args.out}/noise.json, noise.csv")
    return 0


def _models(args: argparse.Namespace) -> int:
    from hydra_core.models.load import SOURCES, list_models

    if args.source not in SOURCES:
        from hydra_core.errors import UnknownNameError

        raise UnknownNameError("source of models", args.source, SOURCES)
    print("\n".join(list_models(args.source)))
    return 0
