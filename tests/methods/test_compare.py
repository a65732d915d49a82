"""The table: complete, honest about what is missing, equal to its parts measured one by one."""

from __future__ import annotations

import io
import re
import threading
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from hydra_core.cost import cost_of
from hydra_core.errors import Cancelled, HydraError, UnknownNameError
from hydra_core.heads.mask import HeadMask
from hydra_core.methods.choose import choose_setting, ranked
from hydra_core.methods.compare import LogitStore, compare, page
from hydra_core.methods.hydra_rows import PLANS, Setting, plan_of, rest_of, search_sets
from hydra_core.methods.registry import DEFAULT_ROWS, ROWS, parse_row
from hydra_core.methods.table import SHOWN, Comparison
from hydra_core.metrics import evaluate_logits
from tests.methods.conftest import bundle, tiny

SETTING = Setting(keep=2, layers=(1, 2), id_samples=40, ood_samples=20)
TRAINED = {name for name, row in ROWS.items() if row.command}


@pytest.fixture(scope="module")
def table() -> Comparison:
    return compare(
        tiny(), bundle(), setting=SETTING, replicas=[tiny(1), tiny(2)], bootstrap=20, latency=False, store=LogitStore()
    )


def test_every_row_has_figures_or_a_reason(table):
    assert [row.name for row in table.rows] == list(DEFAULT_ROWS)
    for row in table.rows:
        if row.name in TRAINED:  # nobody trained these from a random model
            assert not row.measured
            assert row.command in row.status
        else:
            assert row.measured, row.status
            assert all(np.isfinite(row.values[metric]) for metric in SHOWN), row.name
            assert row.costs["macs"] > 0


def test_figures_are_those_of_the_single_model(table):
    data = bundle()
    logits = {s.name: tiny().module(tiny().prepare(s)).detach() for s in (data.test, *data.ood_test.values())}
    report = evaluate_logits(
        logits["test"],
        data.test.labels,
        {k: logits[k] for k in data.ood_test},
        shifts={"near-t": "near", "far-t": "far"},
    )
    alone = compare(tiny(), data, ["single"], bootstrap=0, latency=False)["single"]
    for metric in SHOWN:
        assert alone.values[metric] == pytest.approx(report.row()[metric], abs=1e-5), metric


def test_mean_and_spread_are_over_the_three_models(table):
    alone = [compare(v, bundle(), ["single"], bootstrap=0, latency=False)["single"] for v in map(tiny, range(3))]
    values = [row.values["auroc"] for row in alone]
    row = table["single"]
    assert row.repeats == 3
    assert row.values["auroc"] == pytest.approx(np.mean(values))
    assert row.std["auroc"] == pytest.approx(np.std(values, ddof=1))
    assert table["deep_ensemble"].repeats == 1
    assert row.first["auroc"] == pytest.approx(values[0])


def test_costs(table):
    assert table["single"].costs["mac_ratio"] == 1
    assert table["deep_ensemble"].costs["mac_ratio"] == 3
    assert 7 < table["mc_dropout"].costs["mac_ratio"] < 8  # the stem runs once
    plan = plan_of("circ", tiny(), bundle(), SETTING)
    assert table["hydra_circ"].costs["macs"] == cost_of(tiny(), plan).macs
    assert table["hydra_circ"].costs["macs"] < table["hydra_circ_unfused"].costs["macs"]


def test_fused_and_unfused_rows_agree(table):
    for metric in SHOWN:
        a, b = table["hydra_circ"].values[metric], table["hydra_circ_unfused"].values[metric]
        assert a == pytest.approx(b, abs=1e-6)


def test_temperature_row_keeps_the_accuracy(table):
    assert table["temperature(single)"].values["accuracy"] == table["single"].values["accuracy"]


def test_forms_on_paper_hold_the_table(table):
    frame = pd.read_csv(io.StringIO(table.to_csv()))
    assert list(frame["name"]) == list(DEFAULT_ROWS)
    assert frame.set_index("name").loc["single", "ece"] == pytest.approx(table["single"].values["ece"])
    again = Comparison.from_json(table.to_json())
    assert again["hydra_circ"].values == dict(table["hydra_circ"].values)
    text = table.to_markdown()
    assert "Hydra (Circ)" in text
    assert "Rows without figures" in text


def test_draws_repeat_by_seed_without_replicas():
    rows = compare(tiny(), bundle(), ["single", "hydra_random"], setting=SETTING, bootstrap=0, latency=False)
    assert (rows["single"].repeats, rows["hydra_random"].repeats) == (1, 3)
    assert rows["hydra_random"].std["nll"] > 0


def test_latency_is_measured_against_single_and_once_a_network():
    rows = compare(tiny(), bundle(), ["single", "mc_dropout", "temperature(mc_dropout)"], bootstrap=0, seeds=(0,))
    assert rows["single"].costs["latency_ratio"] == 1
    ratio = rows["mc_dropout"].costs["latency_ratio"]
    assert ratio > 2  # eight passes; the machine may be busy
    assert rows["temperature(mc_dropout)"].costs["latency_ratio"] == ratio


def test_logits_are_read_back_from_the_folder(tmp_path, monkeypatch):
    first = compare(tiny(), bundle(), ["single"], bootstrap=0, latency=False, store=LogitStore(tmp_path))
    monkeypatch.setattr("hydra_core.methods.study.forward_set", None)  # any forward would fail
    again = compare(tiny(), bundle(), ["single"], bootstrap=0, latency=False, store=LogitStore(tmp_path))
    assert first["single"].values == again["single"].values


def test_a_deep_ensemble_of_one_says_so():
    row = compare(tiny(), bundle(), ["deep_ensemble"], bootstrap=0, latency=False)["deep_ensemble"]
    assert "several seeds" in row.status


def test_refusals_and_cancel():
    with pytest.raises(UnknownNameError, match="row"):
        compare(tiny(), bundle(), ["hydra"])
    with pytest.raises(UnknownNameError, match="scaling"):
        parse_row("matrix(single)")
    with pytest.raises(UnknownNameError, match="split"):
        compare(tiny(), bundle(), ["single"], split="train")  # type: ignore[arg-type]
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        compare(tiny(), bundle(), ["single"], latency=False, cancel=stop)


# -- plans and the choice ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PLANS, "magnitude"])
def test_plans_prune_what_the_setting_says_and_repeat(name):
    plan = plan_of(name, tiny(), bundle(), SETTING, 1)
    assert len(plan) == (3 if name in ("circ", "taylor", "random") else 1)
    assert all(mask.counts == (4, 2, 2) for mask in plan)
    assert plan_of(name, tiny(), bundle(), SETTING, 1) == plan


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("kind", ["objective", "bootstrap"])
def test_any_number_of_circ_members(members, kind):
    assert len(plan_of("circ", tiny(), bundle(), replace(SETTING, members=members, kind=kind))) == members


def test_settings_refuse_what_cannot_be():
    with pytest.raises(HydraError, match="differ"):
        replace(SETTING, kind="mood")
    with pytest.raises(HydraError, match="member"):
        replace(SETTING, members=0)
    assert Setting.from_json(SETTING.to_json()) == SETTING


def test_choice_is_the_best_row_within_the_limits():
    row = lambda auroc, ece, macs: {"auroc": auroc, "ece": ece, "mac_ratio": macs}  # noqa: E731
    rows = [row(0.9, 0.05, 1.2), row(0.8, 0.01, 1.2), row(0.99, 0.01, 2.0), row(0.8, 0.01, 1.1)]
    assert ranked(rows, 0.02, 1.5) == ([3, 1, 0, 2], True)
    assert ranked(rows, 0.001, 1.5) == ([0, 3, 1, 2], False)


def test_choice_looks_at_validation_only_and_tells_what_it_tried():
    data = bundle()
    blind = replace(data, test=data.test.take([0]), ood_test={})
    settings = [replace(SETTING, keep=k) for k in (1, 3)]
    choice = choose_setting(tiny(), blind, settings, most_macs=9)
    assert choice == choose_setting(tiny(), data, settings, most_macs=9)
    assert [row["keep"] for row in choice.tried] == [1, 3]
    best = next(row for row in choice.tried if row["keep"] == choice.setting.keep)
    assert best["masks"] == [mask.text for mask in choice.plan]


def test_settings_are_compared_on_samples_that_no_search_saw():
    ids, oods = search_sets(bundle(), SETTING)
    assert not set(ids.ids) & set(rest_of(bundle().val, ids).ids)
    assert len(ids) + len(rest_of(bundle().val, ids)) == len(bundle().val)
    assert all(len(part) == 20 for part in oods.values())


def test_judge_agrees_with_evaluate_on_the_rest():
    choice = choose_setting(tiny(), bundle(), [SETTING], most_macs=9)
    ids, oods = search_sets(bundle(), SETTING)
    sets = [rest_of(bundle().val, ids), *(rest_of(bundle().ood_val[k], part) for k, part in oods.items())]
    full = HeadMask.full((4, 4, 4))
    with torch.no_grad():
        logits = [tiny()(tiny().prepare(s), full) for s in sets]
    report = evaluate_logits(logits[0], sets[0].labels, dict(zip(oods, logits[1:], strict=True)))
    for metric in ("accuracy", "ece", "auroc"):
        assert choice.single[metric] == pytest.approx(getattr(report, metric), abs=1e-5)


def test_finalists_are_judged_on_all_models_and_the_mean_decides():
    settings = [replace(SETTING, keep=k) for k in (1, 2, 3)]
    choice = choose_setting(tiny(), bundle(), settings, replicas=[tiny(1)], shortlist=2, most_macs=9)
    alone = [choose_setting(tiny(seed), bundle(), settings, most_macs=9) for seed in (0, 1)]
    assert sorted(row["models"] for row in choice.tried) == [1, 2, 2]
    for row, *parts in zip(choice.tried, *(c.tried for c in alone), strict=True):
        for metric in ("accuracy", "ece", "auroc", "mac_ratio"):
            assert row[metric] == pytest.approx(np.mean([part[metric] for part in parts[: row["models"]]]))
    assert choice.single["ece"] == pytest.approx(np.mean([c.single["ece"] for c in alone]))
    finals = [row for row in choice.tried if row["models"] == 2]
    order, met = ranked(finals, choice.single["ece"], 9)
    assert (choice.setting.keep, choice.met) == (finals[order[0]]["keep"], met)


def test_deep_ensemble_of_the_choice_is_the_mean_of_the_models():
    choice = choose_setting(tiny(), bundle(), [SETTING], replicas=[tiny(1), tiny(2)], most_macs=9)
    ids, oods = search_sets(bundle(), SETTING)
    sets = [rest_of(bundle().val, ids), *(rest_of(bundle().ood_val[k], part) for k, part in oods.items())]
    with torch.no_grad():
        logits = [torch.stack([tiny(m).module(tiny().prepare(s)) for m in range(3)]) for s in sets]
    report = evaluate_logits(logits[0], sets[0].labels, dict(zip(oods, logits[1:], strict=True)))
    for metric in ("accuracy", "ece", "auroc"):
        assert choice.deep[metric] == pytest.approx(getattr(report, metric), abs=1e-5)


# -- what cannot be measured says so in its row -----------------------------------------------------------


def bad(**changes):
    return replace(bundle(), **changes)


def only_class(samples, *wanted):
    return samples.take(np.flatnonzero(np.isin(samples.labels, wanted)))


BAD = {
    "keep too large": (lambda: bundle(), replace(SETTING, keep=9), "cannot keep 9 heads"),
    "an empty class": (lambda: bad(val=only_class(bundle().val, 0, 1, 2, 3)), SETTING, r"no sample.*Got e"),
    "one class only": (lambda: bad(val=only_class(bundle().val, 2)), SETTING, r"one class only.*Got c"),
    "no OOD for Circ": (lambda: bad(ood_val={}), SETTING, "out-of-distribution"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_in_the_row_and_others_are_measured(name):
    make, setting, text = BAD[name]
    rows = compare(tiny(), make(), ["single", "hydra_circ"], setting=setting, bootstrap=0, latency=False)
    assert rows["single"].measured
    assert re.search(text, rows["hydra_circ"].status)


def test_logits_that_are_not_finite_are_named_in_the_row():
    broken = replace(tiny(), prepare=lambda s: tiny().prepare(s) * float("nan"))
    row = compare(broken, bundle(), ["single"], bootstrap=0, latency=False)["single"]
    assert "nan" in row.status


def test_without_ood_sets_there_are_no_ood_figures():
    row = compare(tiny(), bad(ood_test={}), ["single"], also=("entropy",), bootstrap=0, latency=False)["single"]
    assert row.values["accuracy"] is not None
    assert row.values["auroc"] is None
    assert all(figures["auroc"] is None for sets in row.detection.values() for figures in sets.values())


def test_the_page_says_by_how_much_an_aim_is_missed(table):
    choice = choose_setting(tiny(), bundle(), [SETTING], replicas=[tiny(1)], most_macs=9)
    facts = {"val_before": {"ece": 0.02}, "val": {"ece": 0.0345}, "samples": 640, "recipe": {"epochs": 1, "lr": 2e-4}}
    text = page(table, choice.to_json(), {"hydra_circ_tuned": facts})
    gap = table["hydra_circ"].values["auroc"] - table["deep_ensemble"].values["auroc"]
    word = "reached" if gap >= 0 else f"missed by {-gap:.4f}"
    assert f"AUROC at least that of Deep Ensembles: {word}" in text
    assert "Hydra (Circ) + vector scaling:" in text
    assert "ECE at most that of Single + temperature scaling:" in text
    assert "1 settings (heads kept [2], pruned layers [1, 2]" in text
    assert f"Single AUROC {choice.single['auroc']:.4f}" in text
    assert table.to_markdown() in text
    few = Comparison(table.rows[:1], table.provenance)
    assert "ECE 0.0200 -> 0.0345" in text
    assert f"Single has AUROC {table['single'].first['auroc']:.3f}" in text
    assert "a row is missing" in page(few, choice.to_json(), {})


def test_rows_measured_anew_take_their_place_in_the_table(table):
    few = Comparison(table.rows[2:], table.provenance)
    changed = replace(table["single"], label="anew")
    got = few.updated(Comparison((changed, table.rows[1], table.rows[3]), table.provenance), DEFAULT_ROWS)
    assert [row.name for row in got.rows] == list(DEFAULT_ROWS)
    assert got["single"].label == "anew"
    assert got.rows[3] == table.rows[3]
    other = dict(table.provenance) | {"bootstrap": 7}
    with pytest.raises(HydraError, match="other bootstrap"):
        few.updated(Comparison((), other))
