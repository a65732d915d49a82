"""The tour of Learn: ten steps on the demo, each a picture, something to notice and something to do.

Every figure in a text is read from what was measured for the picture; none is written down here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import plotly.graph_objects as go

from app import lab
from app.charts.attention import overlay_figure
from app.charts.compare import pareto_figure
from app.charts.distributions import ood_histogram
from app.charts.heatmap import head_heatmap
from app.charts.learn import cost_bars, keep_curves, member_figure
from app.charts.reliability import describe_bins, reliability_figure
from app.charts.scatter import agreement_figure, small_multiples
from app.session import Settings
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.progress import Progress, step_of

CLOSE = 0.03  # AUROC: a smaller difference of two means over three heads says nothing
KEEPS = (8, 6, 4, 2, 1)
# rows of the last picture: enough to see the families, few enough to read
PICTURED = ("single", "deep_ensemble", "mc_dropout", "taylor", "circ_avg", "hydra_taylor", "hydra_circ",
            "hydra_circ_tuned", "hydra_random")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Scene:
    """What a step shows.

    Attributes:
        figure, alt: the picture, and it in words.
        notice: what to notice, with measured figures (Markdown).
        settings: model, data and plan with which the step's page opens.
        controls: the page's controls there, by key.
    """

    figure: go.Figure
    alt: str
    notice: str
    settings: Settings
    controls: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One step of the tour.

    Attributes:
        name, title: for code, and on screen.
        idea: the point in a few sentences.
        task: what to do on the page that opens.
        page: its name.
        make: (progress, cancel) -> Scene.
    """

    name: str
    title: str
    idea: str
    task: str
    page: str
    make: Callable[[Progress | None, threading.Event | None], Scene]


def model() -> str:
    return lab.default_model()


def data() -> str:
    return lab.default_data()


def _settings(plan: Plan | None = None) -> Settings:
    return Settings(model(), data(), plan or lab.unpruned(model()))


def head_text(row: Any) -> str:
    """A row of a score table as 'layer.head'."""
    return f"{row['layer']:.0f}.{row['head']:.0f}"


def ranked(criterion: str, **watch: Any) -> Any:
    """Heads by a criterion, the most important first."""
    return lab.scores(model(), data(), criterion, **watch).frame().sort_values("rank")


# -- the steps -----------------------------------------------------------------------------------


def _sure(progress: Progress | None, cancel: threading.Event | None) -> Scene:
    report = lab.report(model(), data(), lab.unpruned(model()), progress=progress, cancel=cancel)
    bins = report.reliability
    gap = float(np.nansum((bins.confidence - bins.accuracy) * bins.count)) / bins.count.sum()
    lean = "more confident than right" if gap > 0 else "less confident than right"
    notice = (
        f"It is right on **{report.accuracy:.1%}** of the samples, and on the whole {lean} (by {abs(gap):.1%}). "
        f"The mean gap between confidence and accuracy over the bins is the ECE: **{report.ece:.3f}**. "
        f"{int((bins.count == 0).sum())} of {len(bins.count)} bins are empty and say nothing."
    )
    figure = reliability_figure(bins, now_name="unpruned")
    return Scene(figure, describe_bins(bins), notice, _settings(), {"picture": "Reliability"})


def _unknown(progress: Progress | None, cancel: threading.Event | None) -> Scene:
    report = lab.report(model(), data(), lab.unpruned(model()), progress=progress, cancel=cancel)
    chosen, probs = lab.probabilities(model(), data(), lab.unpruned(model()))
    scores = {name or "known": 1 - p.max(-1) for name, p in probs.items()}
    shifts = {name or "known": part.shift for name, part in chosen.sets.items()}
    harder = "harder" if report.auroc_near < report.auroc_far else "easier, for once"
    notice = (
        f"AUROC is 0.5 for guessing and 1 for a perfect split. Far things: **{report.auroc_far:.3f}**. Near things, "
        f"which resemble the known classes: **{report.auroc_near:.3f}**, {harder}. To catch 95 % of the near ones it "
        f"would have to flag **{report.fpr95_near:.0%}** of the known samples by mistake."
    )
    figure = ood_histogram(scores, shifts, title="1 - confidence")
    return Scene(figure, "Doubt about known, near and far samples", notice, _settings(), {"picture": "Confidence"})


def _look(progress: Progress | None, cancel: threading.Event | None) -> Scene:
    best = ranked("loo_nll", progress=progress, cancel=cancel).iloc[0]
    layer, head = int(best["layer"]), int(best["head"])
    row = lab.sample_rows(data())[0]
    look = lab.attention(model(), data(), row.id, layer)
    assert look.picture is not None
    assert look.grid is not None
    weights = look.maps[head, 0]
    patch = int(weights[look.lead :].argmax())
    name = head_text(best)
    figure = overlay_figure(
        look.picture, look.grid, {f"head {name}": weights[look.lead :], "rollout": look.rollout[0, look.lead :]}
    )
    notice = (
        f"From the class token, head {name} gives **{weights[look.lead + patch]:.0%}** of its attention to one patch "
        f"({look.tokens[look.lead + patch]}); spread evenly each of the {len(weights)} tokens would get "
        f"{1 / len(weights):.0%}. The rollout over all layers is wider. Where a head looks is not yet what it does."
    )
    alt = f"A {row.label}, and what head {name} looks at, beside attention rollout"
    return Scene(figure, alt, notice, _settings(), {"head": name, "sample": row.title})


def _matter(progress: Progress | None, cancel: threading.Event | None) -> Scene:
    scores = lab.scores(model(), data(), "taylor", progress=progress, cancel=cancel)
    table = scores.frame().sort_values("rank")
    first, last = table.iloc[0], table.iloc[-1]
    half = table["score"].head(len(table) // 2).sum() / table["score"].sum()
    figure = head_heatmap(scores.values, title="Taylor", low=scores.low, high=scores.high)
    notice = (
        f"Head **{head_text(first)}** (layer.head) matters most, **{head_text(last)}** least: the first scores "
        f"{first['score'] / last['score']:.1f} times the last. The better half of the heads carries {half:.0%} of all "
        "score, so that the other half looks dispensable. Is it?"
    )
    return Scene(figure, f"Taylor scores; the highest is {head_text(first)}", notice, _settings())


def _trust(progress: Progress | None, cancel: threading.Event | None) -> Scene:
    exact = lab.scores(model(), data(), "loo_nll", progress=progress, cancel=cancel)
    guess = lab.scores(model(), data(), "taylor")
    figure, rho = agreement_figure(guess, exact, ["Taylor estimate", "loss gained when the head alone goes, nats"])
    helped = int((exact.flat < 0).sum())
    sure = int((np.concatenate(exact.low) > 0).sum()) if exact.low is not None else 0
    notice = (
        f"The rank correlation is **{rho:+.2f}**. Removing any one of **{helped} of {len(exact.flat)}** heads lowers "
        f"the loss on these samples; for {sure} heads the 95 % interval lies wholly above zero. One head at a time, "
        "the network mostly makes do; a first-order estimate is a guide and not a measurement."
    )
    controls = {"criterion_right": lab.criteria()["loo_nll"].label}
    return Scene(figure, f"Taylor against exact removal, rank correlation {rho:.2f}", notice, _settings(), controls)


def _see(progress: Progress | None, cancel: threading.Event | None) -> Scene:
    order = [(int(r.layer), int(r.head)) for r in ranked("taylor", progress=progress, cancel=cancel).itertuples()]
    heads = [*order[:3], *order[-3:]]
    chosen, pictures = lab.projections(model(), data(), heads)
    titles = ["most", "most", "most", "least", "least", "least"]
    panels = [
        (f"{t}: {p.head[0]}.{p.head[1]}, AUROC {p.auroc:.2f}", p.points) for t, p in zip(titles, pictures, strict=True)
    ]
    groups = [(name or "known", part.shift, chosen.slices[name]) for name, part in chosen.sets.items()]
    high, low = (float(np.mean([p.auroc for p in part])) for part in (pictures[:3], pictures[3:]))
    less = f"the important ones know {'more' if high > low else 'less'} about the unknown here"
    known = "both know about as much" if abs(high - low) < CLOSE else less
    notice = (
        f"A straight line through a head's output tells known from unknown with a mean AUROC of **{high:.2f}** in the "
        f"three heads that matter most for the loss, and of **{low:.2f}** in the three that matter least: "
        f"{known}. A score that looks at the loss alone does not ask for "
        "this; Circ does."
    )
    alt = f"Samples in three important and three unimportant heads; separability {high:.2f} and {low:.2f}"
    return Scene(small_multiples(panels, groups), alt, notice, _settings())


def _prune(progress: Progress | None, cancel: threading.Event | None) -> Scene:
    scores = lab.scores(model(), data(), "taylor")
    reports = {}
    for done, keep in enumerate(KEEPS):
        plan = Plan((HeadMask.top(scores, keep),))
        watch = step_of(progress, done, len(KEEPS), f"{keep} heads a layer")
        reports[keep] = lab.report(model(), data(), plan, progress=watch, cancel=cancel)
    curves = {
        "accuracy": [r.accuracy for r in reports.values()],
        "AUROC, near OOD": [r.auroc_near for r in reports.values()],
        "ECE": [r.ece for r in reports.values()],
    }
    full, half, one = (reports[k] for k in (KEEPS[0], 4, KEEPS[-1]))
    notice = (
        f"With half of the heads accuracy goes from {full.accuracy:.1%} to **{half.accuracy:.1%}**, near AUROC from "
        f"{full.auroc_near:.3f} to **{half.auroc_near:.3f}**, and ECE from {full.ece:.3f} to **{half.ece:.3f}**. With "
        f"one head a layer: {one.accuracy:.1%}, {one.auroc_near:.3f} and {one.ece:.3f}. The demo's Hydra prunes from "
        f"layer {min(mask.first_pruned_layer for mask in hydra())} on only."
    )
    settings = _settings(Plan((HeadMask.top(scores, 1),)))
    alt = "Accuracy, near AUROC and ECE over the heads kept in each layer"
    return Scene(keep_curves(KEEPS, curves), alt, notice, settings, {"picture": "Reliability"})


def hydra() -> Plan:
    """The demo's Hydra; random members where the stored one does not belong to these weights."""
    stored = lab.stored_hydra(model(), data())
    if stored is not None:
        return stored
    shape = lab.shape(model())
    late = range(len(shape) // 2, len(shape))
    return Plan(tuple(HeadMask.random(shape, max(1, min(shape) // 2), seed, late) for seed in range(3)))


def hydra_settings() -> Settings:
    """The demo's Hydra, ready to be opened on a page."""
    return _settings(hydra())


def overlap(plan: Plan) -> float:
    """Mean Jaccard overlap of the kept heads of each two members, over layers in which members differ."""
    late = range(plan.shared_layers, len(plan.shape))
    kept = [{(layer, head) for layer in late for head in mask.keep_index(layer)} for mask in plan]
    return float(np.mean([len(a & b) / len(a | b) for a, b in combinations(kept, 2)]))


def _differ(progress: Progress | None, cancel: threading.Event | None) -> Scene:
    plan = hydra()
    report = lab.report(model(), data(), plan, progress=progress, cancel=cancel)
    everywhere = sum(all(mask[l, h] for mask in plan) for l, heads in enumerate(plan.shape) for h in range(heads))
    notice = (
        f"The {len(plan)} members keep the same heads up to layer {plan.shared_layers - 1}; **{everywhere} of "
        f"{plan[0].total}** heads are kept by everyone. In the layers that differ the mean Jaccard overlap of two "
        f"members is **{overlap(plan):.2f}**. They predict different classes for **{report.disagreement:.1%}** of the "
        "known samples: an ensemble of copies that never disagreed would know no more than one of them."
    )
    alt = f"Which members keep each head; {everywhere} heads are kept by all"
    return Scene(member_figure(plan), alt, notice, _settings(plan))


def _fuse(progress: Progress | None, cancel: threading.Event | None) -> Scene:
    plan = hydra()
    costs = lab.costs(model(), plan)
    ratios = {name: (cost.parameter_ratio, cost.mac_ratio) for name, cost in costs.items()}
    deep, apart, trunk = (ratios[name] for name in (lab.DEEP, lab.HYDRA, lab.HYDRA_TRUNK))
    notice = (
        f"A deep ensemble of {len(plan)} costs {deep[1]:.0f} times one model. Fused, the Hydra needs "
        f"**{apart[1]:.2f}** times the multiply-adds, and **{trunk[1]:.2f}** times with the {plan.shared_layers} "
        f"common layers run once, at {trunk[0]:.2f} times the parameters. Attention is only part of a layer: the MLPs "
        "run for every member, so pruning alone cannot make several members as cheap as one."
    )
    alt = "Parameters and multiply-adds of one model, a deep ensemble and the fused Hydra"
    return Scene(cost_bars(ratios), alt, notice, _settings(plan))


def _result(progress: Progress | None, cancel: threading.Event | None) -> Scene:
    table = lab.stored_comparison(model(), data())
    if table is None:  # retrained weights: measure the rows that need no training of their own
        names = ("single", "deep_ensemble", "hydra_circ", "hydra_random")
        table = lab.comparison(model(), data(), names, progress=progress, cancel=cancel)
    rows = [row for row in table.rows if row.measured and row.name in PICTURED]
    figure = pareto_figure(rows, "auroc", "AUROC, mean over OOD sets", better="high")
    split = table.provenance["data"]["split"]
    notice = f"{verdict(table)} Measured on the {split} split" + (", which chose nothing." if split == "test" else ".")
    return Scene(figure, f"AUROC against multiply-adds of {len(rows)} methods", notice, hydra_settings())


def verdict(table: Any) -> str:
    """Hydra (Circ) beside Single and Deep Ensembles: better, worse or within the spread over seeds."""
    single, circ, deep = (table[name] for name in ("single", "hydra_circ", "deep_ensemble"))

    def against(other: Any, metric: str, better: str) -> str:
        gain = circ.values[metric] - other.values[metric]
        spread = max(row.std.get(metric) or 0 for row in (circ, other))
        word = "better" if (gain > 0) == (better == "high") else "worse"
        unsure = ", within the spread over seeds" if abs(gain) <= spread else ""
        return f"{circ.values[metric]:.3f} against {other.values[metric]:.3f} ({word}{unsure})"

    tuned = next((row for row in table.rows if row.name == "hydra_circ_tuned" and row.measured), None)
    trained = (
        f" {tuned.label}: AUROC {tuned.values['auroc']:.3f}, ECE {tuned.values['ece']:.3f}."
        if tuned is not None
        else ""
    )
    return (
        f"**Hydra (Circ)** beside one model: AUROC {against(single, 'auroc', 'high')}, ECE "
        f"{against(single, 'ece', 'low')}, at {circ.costs['mac_ratio']:.2f} times the multiply-adds. Beside **Deep "
        f"Ensembles**, at {deep.costs['mac_ratio']:.2f} times: AUROC {against(deep, 'auroc', 'high')}, ECE "
        f"{against(deep, 'ece', 'low')}.{trained}"
    )


STEPS: tuple[Step, ...] = (
    Step("sure", "How sure is it, and is it right?",
         "A classifier gives a class and a probability. If it says 80 % a hundred times, it should be right eighty "
         "times: then it is calibrated. The diagram sorts answers by confidence and shows how many were right.",
         "Open What if, change the bins under the picture and watch ECE. Then take equal counts.", "what_if", _sure),
    Step("unknown", "What does it do with things it was never taught?",
         "Coats were left out of the training classes: near, as they look like pullovers and shirts. Digits, noise and "
         "textures are far. A good classifier doubts them all: its confidence falls.",
         "Compare the outlines with the filled bars: which unknown set hides among the right answers?",
         "what_if", _unknown),
    Step("look", "What does one head look at?",
         "A transformer cuts the image into patches. In each layer several heads decide, each for itself, which "
         "patches every token reads from. The class token is the one that the prediction is drawn from.",
         "Choose other patches as the token that looks, then another head of the same layer.", "heads", _look),
    Step("matter", "Which heads matter?",
         "The Taylor score estimates how much the loss would change if a head were gone, from one backward pass: the "
         "size of the loss's slope along the head's gate, averaged over samples.",
         "Put another criterion on the right side. Do they agree?", "heads", _matter),
    Step("trust", "Does the estimate hold?",
         "Every head can also be removed for real, one at a time, and the loss measured: leave-one-out, exact. Here "
         "both stand against each other, one point a head.",
         "Find a head that Taylor ranks high and leave-one-out low, and open its room.", "heads", _trust),
    Step("see", "What does a head know about the unknown?",
         "Each head hands a short vector to its layer. Its two main directions make a map: do unknown samples lie "
         "apart from known ones?",
         "Choose any head in the grid and look for one that separates coats.", "projections", _see),
    Step("prune", "What happens when heads go?",
         "Now the least important heads are removed in every layer, all at once. The weights that are left are not "
         "trained again.",
         "Give single heads back with a click: which one mends most?", "what_if", _prune),
    Step("differ", "Members that differ",
         "One pruned model is no ensemble. Copies that lose different heads make different mistakes, and the "
         "mean of their answers can be wiser than each. Circ chooses what each keeps by what it does to accuracy or "
         "to OOD detection on validation data.",
         "Switch between the members above the grid, and compare their figures in the table below.",
         "what_if", _differ),
    Step("fuse", "Fuse them into one network",
         "Members run side by side in one network; attention never crosses from one to another, and layers in which "
         "they agree run once. The answer is exactly the mean of the members.",
         "Measure the latency, and compare it with the multiply-adds.", "cost", _fuse),
    Step("result", "What does it buy?",
         "All methods on the same samples, quality over cost. Up and to the left is better; the dotted line joins "
         "those that no other beats in both.",
         "Sort the table by ECE, then look at near and far OOD apart.", "compare", _result),
)  # fmt: skip
