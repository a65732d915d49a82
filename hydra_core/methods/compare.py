"""Every row on one split, one table: `compare`. As a command it measures the demo once:

python -m hydra_core.methods.compare            choose a setting on validation, then measure the test split
python -m hydra_core.methods.compare --choose   choose only
    --rows NAME ...   these rows only, the others stay as they were        --bootstrap N        --no-latency

It writes assets/hydra-demo.json (the choice), assets/comparison-demo.json and docs/comparison-demo.md.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hydra_core.cost import example_input, measure_latency
from hydra_core.data.sets import DataBundle
from hydra_core.errors import Cancelled, CheckpointError, HydraError, UnknownNameError
from hydra_core.methods.base import Method, module_digest
from hydra_core.methods.choose import choose_setting
from hydra_core.methods.detection import FEATURE_SCORES, over_repeats
from hydra_core.methods.ensembles import single
from hydra_core.methods.hydra_rows import Setting
from hydra_core.methods.registry import DEFAULT_ROWS, Context, Row, parse_row
from hydra_core.methods.study import LogitStore, Measured, Study
from hydra_core.methods.table import Comparison, RowResult
from hydra_core.methods.temperature import SCALINGS
from hydra_core.metrics.registry import METRICS
from hydra_core.metrics.report import Report
from hydra_core.metrics.scores import OOD_SCORES, score_named
from hydra_core.models.demo import ASSETS, DEMO_NAMES
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress
from hydra_core.training import rows as trained

CHOICE = ASSETS / "hydra-demo.json"
TABLE = ASSETS / "comparison-demo.json"
PAGE = ASSETS.parent / "docs" / "comparison-demo.md"
COMMAND = "python -m hydra_core.methods.compare"


def compare(
    view: ModelView,
    bundle: DataBundle,
    rows: Sequence[str] | None = None,
    *,
    split: Literal["test", "val"] = "test",
    bootstrap: int = 200,
    seeds: Sequence[int] = (0, 1, 2),
    setting: Setting | None = None,
    replicas: Sequence[ModelView] = (),
    ood_score: str = "msp",
    also: Sequence[str] = (),
    latency: bool = True,
    store: LogitStore | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Comparison:
    """Measure every row.

    A row that cannot be built (weights not trained, too few models) keeps its place and says why.

    Args:
        rows: names in `registry.ROWS`, or "temperature(NAME)", "vector(NAME)"; None: all.
        split: "test" measures; "val" is for looking before anything is chosen.
        bootstrap: resamples of the test samples for 95 % intervals; 0 for none.
        seeds: repeats of rows that draw, where there is one model only.
        setting: of the pruned rows; None: half of the heads of the last third of the layers.
        replicas: models of other seeds: repeats of every row, and members of the deep ensemble.
        ood_score: of the table's AUROC, AUPR and FPR95; a name in OOD_SCORES.
        also: more OOD scores, for `Comparison.detection`. Those of features are fitted on the validation samples.
        store: where logits are kept.

    Raises:
        UnknownNameError: no such row, scaling or score.
        Cancelled: `cancel` was set.
    """
    names = list(DEFAULT_ROWS if rows is None else rows)
    parsed = [parse_row(name) for name in names]
    if split not in ("test", "val"):
        raise UnknownNameError("split", split, ("test", "val"))
    setting = setting or Setting.half(view)
    scores = tuple(dict.fromkeys((ood_score, *also)))
    for score in scores:
        score_named(score)
    study = Study(bundle, split, bootstrap, scores, store or LogitStore(), cancel)
    contexts = _Contexts(view, bundle, setting, replicas, seeds, cancel)
    ratios = {single(view).digest: 1.0} if latency else None
    results = []
    for i, (name, (row, scaling)) in enumerate(zip(names, parsed, strict=True)):
        if cancel is not None and cancel.is_set():
            raise Cancelled("The comparison")
        study.progress = _at(progress, i / len(names), f"{row.label} ({i + 1} of {len(names)})")
        results.append(_measure(name, row, scaling, contexts, study, ratios))
    return Comparison(tuple(results), _provenance(view, bundle, setting, replicas, split, bootstrap, scores))


def _at(progress: Progress | None, share: float, label: str) -> Progress | None:
    """Progress inside a row: its words move on, the share does not, as nobody knows how long the row will take."""
    if progress is None:
        return None
    progress(share, label)
    return lambda _, text: progress(share, f"{label}: {text}")


@dataclass
class _Contexts:
    """A context a repeat, made when first asked for and shared by all rows."""

    view: ModelView
    bundle: DataBundle
    setting: Setting
    replicas: Sequence[ModelView]
    seeds: Sequence[int]
    cancel: threading.Event | None
    made: dict[tuple[int, int], Context] = field(default_factory=dict)

    def of(self, row: Row) -> Iterator[Context]:
        models = (self.view, *self.replicas)
        if row.varies == "once":
            yield self._get(0, self.seeds[0])
        elif self.replicas:
            yield from (self._get(i, self.seeds[0] + i) for i in range(len(models)))
        else:
            yield from (self._get(0, seed) for seed in (self.seeds if row.varies == "draw" else self.seeds[:1]))

    def _get(self, model: int, seed: int) -> Context:
        models = (self.view, *self.replicas)
        if (model, seed) not in self.made:
            context = Context(models[model], self.bundle, self.setting, seed, models, self.cancel)
            self.made[model, seed] = context
        return self.made[model, seed]


def _measure(
    name: str, row: Row, scaling: str, contexts: _Contexts, study: Study, ratios: dict[str, float] | None
) -> RowResult:
    label = f"{row.label} + {scaling} scaling" if scaling else row.label
    found: list[Measured] = []
    first: Method | None = None
    try:
        for context in contexts.of(row):
            method = row.build(context)
            first = first or method
            found.append(study.measure(method, scaling, 0 if found else study.bootstrap))
            if study.scores[0] in found[0].undefined and study.scores[0] in FEATURE_SCORES:
                raise HydraError(found[0].undefined[study.scores[0]])
    except Cancelled:
        raise
    except HydraError as error:
        return RowResult(name, label, status=str(error), command=row.command)
    assert first is not None
    values, std = _spread([one.report.row() for one in found])
    facts = found[0].report.to_json()
    return RowResult(
        name, label, members=found[0].report.members, repeats=len(found), values=values, std=std,
        first=facts["metrics"], intervals=facts["intervals"], costs=_costs(first, ratios),
        reliability=facts["reliability"],
        command=row.command,
        detection={score: over_repeats([one.detection[score] for one in found]) for score in found[0].detection},
        undefined=found[0].undefined,
    )  # fmt: skip


def _spread(rows: Sequence[dict[str, float]]) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Mean and standard deviation (n - 1) of each figure; what is not defined is None."""
    table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    number = lambda v: None if np.isnan(v) else float(v)  # noqa: E731
    mean = {name: number(values.mean()) for name, values in table.items()}
    return mean, {name: number(v.std(ddof=1)) for name, v in table.items()} if len(rows) > 1 else {}


def _costs(method: Method, ratios: dict[str, float] | None) -> dict[str, float | None]:
    """`ratios`: latency ratios by digest, measured once, so that scaled rows have that of their row; None: none."""
    cost = method.cost()
    if ratios is not None and method.digest not in ratios:
        ratios[method.digest] = latency_ratio(method)
    ratio = None if ratios is None else ratios[method.digest]
    return {
        "parameters": cost.parameters, "parameter_ratio": cost.parameter_ratio,
        "macs": cost.macs, "mac_ratio": cost.mac_ratio, "latency_ratio": ratio,
    }  # fmt: skip


def latency_ratio(method: Method, batch: int = 16, rounds: int = 5) -> float:
    """Time of a batch over that of the single model, float32; measured in turn, so that a busy machine slows both."""
    x, base = example_input(method.view, batch), single(method.view)

    def time_of(one: Method) -> float:
        return measure_latency("", one.member_logits, x, seconds=0.2).median

    return float(np.median([time_of(method) / time_of(base) for _ in range(rounds)]))


def _provenance(
    view: ModelView, bundle: DataBundle, setting: Setting, replicas: Sequence[ModelView], split: str,
    bootstrap: int, scores: Sequence[str],
) -> dict[str, Any]:  # fmt: skip
    import torch

    samples, ood = (bundle.test, bundle.ood_test) if split == "test" else (bundle.val, bundle.ood_val)
    return {
        "models": {v.name: module_digest(v.module) for v in (view, *replicas)},
        "data": {"name": bundle.name, "digest": bundle.digest, "split": split},
        "samples": {part.name: len(part) for part in (samples, *ood.values())},
        "shifts": {name: part.shift for name, part in ood.items()},
        "setting": setting.to_json(),
        "bootstrap": bootstrap,
        "ood_score": scores[0],
        "ood_scores": list(scores),
        "conventions": Report.convention + "; latency: one batch of 16, float32, on the machine that measured",
        "device": f"{view.device.type}, {torch.get_num_threads()} threads, torch {torch.__version__}",
    }


# -- the demo ----------------------------------------------------------------------------------------


def demo_setting(
    view: ModelView, *, anew: bool = False, progress: Progress | None = None
) -> tuple[Setting, DataBundle]:
    """The setting chosen for the demo model on validation data; chosen now where the model has changed since."""
    from hydra_core.data.load import load_data

    bundle = load_data("demo/fashion")
    base = {"model": view.name, "weights": module_digest(view.module), "data": bundle.digest}
    if not anew and CHOICE.is_file():
        known = json.loads(CHOICE.read_text(encoding="utf-8"))
        if known["base"] == base:
            return Setting.from_json(known["setting"]), bundle
    replicas = [model for model in demo_models() if model.name != view.name]
    choice = choose_setting(view, bundle, replicas=replicas, progress=progress)
    facts = {"command": f"{COMMAND} --choose", "base": base} | choice.to_json()
    CHOICE.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return choice.setting, bundle


def demo_models() -> list[ModelView]:
    """The demo models whose weights are there."""
    from hydra_core.models.load import load_model

    found = []
    for name in DEMO_NAMES:
        try:
            found.append(load_model(f"demo/{name}"))
        except CheckpointError:
            continue
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; see the top of this file."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Choose on validation, then compare all rows on test.")
    parser.add_argument("--choose", action="store_true", help="choose the setting anew and stop")
    parser.add_argument("--rows", nargs="+", help="these rows only; the others stay")
    parser.add_argument("--bootstrap", type=int, default=200)
    parser.add_argument("--no-latency", action="store_true")
    options = parser.parse_args(arguments)
    show = lambda share, text: print(f"{share:4.0%} {text}", flush=True)  # noqa: E731
    view, *replicas = demo_models()
    setting, bundle = demo_setting(view, anew=options.choose, progress=show)
    if options.choose:
        return
    table = compare(
        view, bundle, options.rows, setting=setting, replicas=replicas, bootstrap=options.bootstrap,
        also=tuple(OOD_SCORES), latency=not options.no_latency,
        store=LogitStore(ASSETS.parent / ".scratch" / "logits"), progress=show,
    )  # fmt: skip
    if options.rows and TABLE.is_file():
        table = Comparison.from_json(TABLE.read_text(encoding="utf-8")).updated(table, DEFAULT_ROWS)
    table.to_json(TABLE)
    PAGE.parent.mkdir(exist_ok=True)
    choice, facts = (json.loads(path.read_text(encoding="utf-8")) for path in (CHOICE, trained.FACTS))
    PAGE.write_text(page(table, choice, facts), encoding="utf-8")


def page(table: Comparison, choice: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The Markdown page of the demo's table.

    Args:
        choice: what stands in hydra-demo.json.
        facts: what stands in rows.json.
    """
    p = table.provenance
    models = ", ".join(p["models"])
    tuned = f"\n\n{fine_tuned(facts[trained.TUNED])}" if trained.TUNED in facts else ""
    notes = (
        f"# The rows on the demo, measured\n\nWritten by `{COMMAND}`. Models: {models}. Data: {p['data']['name']}, "
        f"split {p['data']['split']} ({', '.join(f'{n} {name}' for name, n in p['samples'].items())}).\n\n"
        f"{aims(table)}\n\n{searched(choice)}{tuned}\n\n## The table\n\n"
        "Cells: mean ± standard deviation over models or draws where there are several, else the value with its 95 % "
        f"bootstrap interval ({p['bootstrap']} resamples of the test samples). {p['conventions']}. "
        f"{first_model(table)}\n\n"
    )
    return notes + table.to_markdown()


def first_model(table: Comparison) -> str:
    """What rows of one repeat are to be compared with."""
    if "single" not in table or table["single"].repeats < 2:
        return ""
    first = table["single"].first
    return (
        "Rows of one repeat that are trained start from the first model, which is not the average one: Single has "
        f"AUROC {first['auroc']:.3f} (near {first['auroc_near']:.3f}) and ECE {first['ece']:.3f} there."
    )


def aims(table: Comparison) -> str:
    """What was aimed at and by how much Hydra (Circ) meets or misses it, on the table's split; scaled rows too."""
    parts = []
    for wrap in ("{}", *(f"{scaling}({{}})" for scaling in SCALINGS)):
        names = [wrap.format(name) for name in ("single", "deep_ensemble", "hydra_circ")]
        if all(name in table and table[name].measured for name in names):
            parts.append(_aims_of(*(table[name] for name in names)))
    return "\n\n".join(["## The aims", *parts]) if parts else "The aims are not measured: a row is missing."


def _aims_of(single: RowResult, deep: RowResult, hydra: RowResult) -> str:
    lines = [
        _aim(f"AUROC at least that of {deep.label}", hydra.values["auroc"], deep.values["auroc"], 1),
        _aim(f"AUROC above {single.label}", hydra.values["auroc"], single.values["auroc"], 1),
        _aim(f"ECE at most that of {single.label}", hydra.values["ece"], single.values["ece"], -1),
        _aim("multiply-adds at most 1.5 x Single", hydra.costs["mac_ratio"], 1.5, -1),
    ]
    return f"{hydra.label}:\n\n" + "\n".join(lines)


def _aim(text: str, value: Any, limit: Any, sign: int) -> str:
    reached = sign * (value - limit) >= 0
    word = "reached" if reached else f"missed by {abs(value - limit):.4f}"
    return f"- {text}: {word} ({value:.4f} against {limit:.4f})"


def searched(choice: Mapping[str, Any]) -> str:
    """What was tried on validation data, and what the chosen setting measured there."""
    tried, setting = choice["tried"], Setting.from_json(choice["setting"])
    best = next(row for row in tried if all(row[k] == v for k, v in setting.to_json().items()))
    keeps, members = sorted({row["keep"] for row in tried}), sorted({row["members"] for row in tried})
    tails = sorted({tuple(row["layers"]) for row in tried}, key=len)
    ways = sorted({f"{row['kind']} ({row['objective']})" for row in tried})
    figures = lambda row: f"AUROC {row['auroc']:.4f}, ECE {row['ece']:.4f}"  # noqa: E731
    deep = f"; Deep Ensembles {figures(choice['deep'])}" if choice.get("deep") else ""
    return (
        f"## How the setting was chosen\n\nOn validation data only: {len(tried)} settings (heads kept {keeps}, pruned "
        f"layers {', '.join(str(list(t)) for t in tails)}, members {members} that differ by {', '.join(ways)}); "
        f"searches saw {setting.id_samples} ID samples and {setting.ood_samples} of each OOD set, the rest judged. "
        f"Tried on the first model; the best {sum(row['models'] > 1 for row in tried)} on all models, and their mean "
        f"decided. Chosen: {setting.members} members, layers {list(setting.layers)}, {setting.keep} heads kept in "
        f"each, {setting.kind} ({setting.objective}). There, on the samples that judged: {figures(best)} at "
        f"{best['mac_ratio']:.2f} x "
        f"multiply-adds; Single {figures(choice['single'])}{deep}."
    )


def fine_tuned(facts: Mapping[str, Any]) -> str:
    """What a short fine-tuning of the chosen members changed on validation data."""
    before, after = facts["val_before"], facts["val"]
    figures = [f"{METRICS[name].label} {before[name]:.4f} -> {after[name]:.4f}" for name in before]
    return (
        f"Fine-tuning of these members ({facts['samples']} train images, {facts['recipe']['epochs']} epoch, learning "
        f"rate {facts['recipe']['lr']}), before -> after, on all validation samples, first model: "
        f"{', '.join(figures)}. The main row is not fine-tuned; the fine-tuned rows stand beside it."
    )


if __name__ == "__main__":
    main()
