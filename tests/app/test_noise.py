"""The Noise page: stored rows at once, rows measured now, signs, clean against noisy reliability, wrong data."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from app import lab
from app.charts.noise import gap_figure, terms_figure
from hydra_core.data.corruptions import CORRUPTIONS, corrupt
from hydra_core.evaluation import evaluate
from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.methods.noise_study import STORED, NoiseStudy, path_study, quarters
from hydra_core.metrics import evaluate_logits
from tests.app.test_pages import DATA, FULL, MODEL, settle, texts, visit


@pytest.fixture(scope="module")
def stored():
    return lab.stored_noise(MODEL, DATA)


def test_the_demo_carries_a_study_of_these_weights_data_and_noise(stored):
    assert stored is not None
    cells = {(row.corruption, row.severity, row.keep) for row in stored.rows}
    assert len(cells) == len(stored.rows) == len(CORRUPTIONS) * 5 * 3
    assert {row.corruption for row in stored.rows} == set(CORRUPTIONS)
    samples = lab.data(DATA).val.sample(stored.provenance["samples"]["number"])
    assert stored.provenance["samples"]["digest"] == samples.digest
    for name in CORRUPTIONS:  # the noise of today, not of some earlier code
        assert stored.provenance["noise"][f"{name}-3"] == corrupt(samples, name, 3).digest
    assert lab.stored_noise("demo/fashion-vit-s1", DATA) is None
    assert lab.stored_noise(MODEL, f"{DATA}~fog-1") is None


def test_the_stored_rows_are_what_the_engine_measures(stored):
    row = next(r for r in stored.rows if (r.corruption, r.severity, r.keep) == ("gaussian_noise", 5, 4))
    view, samples = lab.model(MODEL), lab.data(DATA).val.sample(stored.provenance["samples"]["number"])
    noisy = corrupt(samples, "gaussian_noise", 5)
    mask = HeadMask.parse(row.mask)
    assert mask.counts == (4,) * 6
    assert evaluate(view, samples, bootstrap=0).nll == pytest.approx(row.clean, abs=1e-4)
    assert evaluate(view, noisy, bootstrap=0).nll == pytest.approx(row.noisy, abs=1e-4)
    with torch.inference_mode():
        logits = prune_model(view, mask)(view.inputs(noisy)).numpy()
    assert evaluate_logits(logits, samples.labels).nll == pytest.approx(row.noisy_pruned, abs=1e-4)


def test_it_opens_on_the_stored_rows_with_an_answer_and_both_diagrams(stored):
    at = visit("noise")
    assert not at.exception
    assert not at.error
    row = next(r for r in stored.rows if (r.corruption, r.severity, r.keep) == ("gaussian_noise", 3, 4))
    text = texts(at)
    assert f"pruning adds **{row.change.value:+.3f}**" in text
    assert f"predict {row.predicted.value:+.3f}" in text
    table = at.dataframe[0].value
    assert len(table) == 15
    here = table[(table["severity"] == 3) & (table["kept"] == "4 of 8")].iloc[0]
    words = {True: "yes", False: "no", None: "not clear"}
    assert [here["stationary"], here["slope"], here["curved"]] == [words[v] for v in row.premises.values()]
    assert here["grows"] == words[row.grows]
    assert "**Clean images**" in text
    assert "**Gaussian noise, severity 3**" in text


def test_the_reliability_is_that_of_the_plan_on_the_corrupted_images():
    plan = Plan((FULL.with_layer(5, [True] * 4 + [False] * 4), FULL.prune(4, 1)))
    at = visit("noise", plan=plan.text, corruption="contrast", severity="1")
    assert not at.error
    view, clean = lab.model(MODEL), lab.sample(DATA).id
    noisy = corrupt(clean, "contrast", 1)
    want = []
    for samples in (clean, noisy):
        rows = np.stack([view(view.inputs(samples), mask).numpy() for mask in plan])
        report = evaluate_logits(rows, samples.labels)
        want.append(f"your plan's accuracy is {report.accuracy:.3f} and its ECE {report.ece:.3f}")
    text = texts(at)
    assert all(words in text for words in want)


def test_a_link_restores_noise_severity_and_heads(stored):
    at = visit("noise", corruption="contrast", severity="4", heads="6 of 8")
    row = next(r for r in stored.rows if (r.corruption, r.severity, r.keep) == ("contrast", 4, 6))
    assert f"costs {row.gap_pruned:.3f} nats over clean images" in texts(at)


def test_severity_and_heads_kept_choose_the_row(stored):
    at = visit("noise", corruption="gaussian_blur")
    at = settle(at.slider(key="severity").set_value(5).run())
    at = at.selectbox(key="heads").set_value("2 of 8").run()
    row = next(r for r in stored.rows if (r.corruption, r.severity, r.keep) == ("gaussian_blur", 5, 2))
    assert f"costs {row.gap_pruned:.3f} nats over clean images instead of {row.gap:.3f}" in texts(at)
    assert not at.error


def test_other_noise_is_measured_now_one_severity_after_the_other(monkeypatch):
    samples, masks = 24, [FULL.with_layer(5, [True] * 4 + [False] * 4)]
    parts = []
    found = lab.noise_study(MODEL, DATA, masks, "impulse_noise", (4, 2), n=samples, keeps=[4], publish=parts.append)
    assert [[row.severity for row in part] for part in parts] == [[4], [2]]
    assert [row for part in parts for row in part] == list(found.rows)
    again = []
    original = lab.store.infer
    monkeypatch.setattr(lab.store, "infer", lambda work: again.append(work) or original(work))
    assert lab.noise_study(MODEL, DATA, masks, "impulse_noise", (4, 2), n=samples, keeps=[4]).rows == found.rows
    assert again == []  # every side was kept


def test_the_plan_itself_can_be_measured(monkeypatch):
    plan = Plan((FULL.with_layer(5, [True] * 4 + [False] * 4), FULL.prune(5, 1)), ("early", "late"))
    whole = lab.noise_study
    monkeypatch.setattr(lab, "noise_study", lambda *a, n, **options: whole(*a, n=16, **options))
    at = visit("noise", plan=plan.text, names="early,late", path="as in my plan", corruption="gaussian_noise")
    assert not at.exception
    assert not at.error
    assert at.selectbox(key="heads").options == ["member late", "member early"]  # by heads pruned
    assert len(at.dataframe[0].value) == 10


def test_a_plan_that_keeps_all_heads_says_what_to_do():
    at = visit("noise", path="as in my plan")
    assert not at.error
    assert any("prune some on What if" in info.value for info in at.info)
    assert not at.dataframe


def test_corrupted_data_are_compared_with_their_clean_images(stored):
    at = visit("noise", data=f"{DATA}~fog-2")
    assert not at.error
    row = next(r for r in stored.rows if (r.corruption, r.severity, r.keep) == ("gaussian_noise", 3, 4))
    assert f"pruning adds **{row.change.value:+.3f}**" in texts(at)


def test_texts_are_told_that_noise_is_for_images(monkeypatch):
    original = lab.data
    monkeypatch.setattr(lab, "data", lambda name: replace(
        original(name), val=replace(original(name).val, kind="text")))  # fmt: skip
    at = visit("noise")
    assert not at.exception
    assert any("made for images" in info.value for info in at.info)


def test_a_link_that_names_no_noise_shows_the_default():
    at = visit("noise", corruption="rain", severity="9", path="sideways")
    assert not at.exception
    assert not at.error
    assert at.selectbox(key="corruption").value == "gaussian_noise"
    assert at.query_params["corruption"] in ("gaussian_noise", ["gaussian_noise"])


def test_a_study_of_other_weights_is_not_shown(tmp_path, monkeypatch):
    data = json.loads(STORED.read_text())
    data["provenance"]["model"]["weights"] = "0" * 16
    path = tmp_path / "noise.json"
    path.write_text(json.dumps(data))
    monkeypatch.setattr("hydra_core.methods.noise_study.STORED", path)
    assert lab.stored_noise(MODEL, DATA) is None


def test_the_study_survives_json(stored):
    assert NoiseStudy.from_json(stored.to_json()) == stored
    assert len(stored.frame()) == len(stored.rows)


def test_the_pictures_show_gap_terms_and_intervals(stored):
    rows = [row for row in stored.rows if row.corruption == "contrast"]
    four = [row for row in rows if row.keep == 4]
    unpruned, measured, predicted = gap_figure(four).data
    assert list(unpruned.y) == [row.gap for row in four]
    assert list(measured.y) == [row.gap_pruned for row in four]
    assert list(predicted.y) == pytest.approx([row.gap + row.slope.value + row.curvature.value for row in four])
    now = [row for row in rows if row.severity == 5]
    slope, curvature, total, change = terms_figure(now, ["6", "4", "2"]).data
    assert np.add(slope.y, curvature.y) == pytest.approx(np.array(total.y), abs=1e-6)
    assert np.add(change.y, change.error_y.array) == pytest.approx([row.change.high for row in now])


def test_a_path_of_quarters_is_scored_on_the_samples_of_the_study():
    view, bundle = lab.model(MODEL), lab.data(DATA)
    assert quarters(view) == (6, 4, 2)
    found = path_study(view, bundle, ["fog"], keeps=(6,), samples=16, severities=(2,), layers=(5,))
    scores = lab.scores(MODEL, DATA, "taylor", n=16)
    assert found.rows[0].mask == HeadMask.top(scores, 6, [5]).text
    assert found.provenance["layers"] == [5]
