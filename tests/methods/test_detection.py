"""Features of every kind of row against the logits they must give; scores x sets against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from hydra_core.errors import UnknownNameError, UnsupportedModel
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.methods.batch_ensemble import batch_ensemble
from hydra_core.methods.compare import compare
from hydra_core.methods.detection import ALL, FAR, FEATURE_SCORES, LOGIT_SCORES, NEAR, detect, over_repeats
from hydra_core.methods.dropout import mc_dropout
from hydra_core.methods.ensembles import deep_ensemble, hydra, pruned, single, unfused
from hydra_core.methods.features import FeatureReader
from hydra_core.methods.lora import lora_ensemble
from hydra_core.methods.packed import packed
from hydra_core.methods.study import LogitStore
from hydra_core.methods.table import Comparison
from hydra_core.metrics import OOD_SCORES, fit_feature_score
from hydra_core.models.view import build_view
from hydra_core.training.finetune import finetune_members
from hydra_core.training.loop import Recipe
from tests.methods.conftest import batch, bundle, tiny


def plan() -> Plan:
    return Plan(tuple(HeadMask.random((4, 4, 4), 2, seed, layers=(1, 2)) for seed in range(3)))


def tuned():
    models = finetune_members(tiny(), plan(), batch(16), torch.arange(16) % 5, Recipe(epochs=1, batch=8, lr=1e-2))
    return hydra(tiny(), plan(), models)


ROWS = {
    "single": lambda: single(tiny()),
    "deep ensemble": lambda: deep_ensemble([tiny(0), tiny(1), tiny(2)]),
    "deep ensemble of one model": lambda: deep_ensemble([tiny()] * 2),
    "mc dropout": lambda: mc_dropout(tiny(), p=0.2),
    "batch ensemble": lambda: batch_ensemble(tiny(), spread=0.3),
    "packed": lambda: packed(tiny()),
    "lora": lambda: lora_ensemble(tiny()),
    "pruned": lambda: pruned(tiny(), plan()[0]),
    "hydra": lambda: hydra(tiny(), plan()),
    "hydra with a member twice": lambda: hydra(tiny(), Plan((plan()[1], plan()[0], plan()[1]))),
    "hydra, fine-tuned": tuned,
    "unfused": lambda: unfused(tiny(), plan()),
}


@pytest.mark.parametrize("name", ROWS)
def test_features_under_the_classifiers_are_the_rows_logits(name):
    method, samples = ROWS[name](), bundle().test
    reader = FeatureReader(method)
    got = reader.read(samples)
    logits = method.member_logits(tiny().prepare(samples)).numpy()
    np.testing.assert_allclose(got.logits, logits, rtol=1e-5, atol=1e-5)
    weight, bias = reader.classifiers(len(logits))
    again = np.einsum("mnd,mcd->mnc", got.features.astype(np.float64), weight) + bias[:, None]
    np.testing.assert_allclose(again, logits, rtol=1e-4, atol=1e-4)


def test_features_of_single_are_the_models_own_and_the_row_stays_as_it_was():
    method, samples = single(tiny()), bundle().val
    before = [name for name, _ in method.net.named_modules()]
    got = FeatureReader(method).read(samples).features[0]
    with torch.no_grad():
        module = tiny().module
        own = module.forward_head(module.forward_features(tiny().prepare(samples)), pre_logits=True)
    np.testing.assert_allclose(got, own.numpy(), rtol=1e-5, atol=1e-5)
    assert [name for name, _ in method.net.named_modules()] == before


def test_models_without_a_classifier_have_no_features():
    view = build_view("bare", torch.nn.Sequential(*tiny(0).module.blocks), input_size=(17, 24))
    with pytest.raises(UnsupportedModel, match="no features"):
        FeatureReader(single(view))


def test_detect_equals_scikit_learn():
    rng = np.random.default_rng(0)
    scores = {"": rng.normal(0, 1, 60), "all": rng.normal(1, 1, 40), "near": rng.normal(0.3, 1, 30)}
    found = detect(scores, {"all": "far", "near": "near"})
    for name in ("all", "near"):
        truth = np.r_[np.zeros(60), np.ones(len(scores[name]))]
        both = np.r_[scores[""], scores[name]]
        assert found[name]["auroc"] == pytest.approx(roc_auc_score(truth, both))
        assert found[name]["aupr"] == pytest.approx(average_precision_score(truth, both))
    assert found[ALL]["auroc"] == pytest.approx((found["all"]["auroc"] + found["near"]["auroc"]) / 2)
    assert (found[NEAR], found[FAR]) == (found["near"], found["all"])
    assert detect({"": scores[""], "x": scores["all"]}, {})[NEAR]["auroc"] is None


def test_repeats_give_mean_and_spread():
    one = lambda value: {"x": {"auroc": value, "aupr": None, "fpr95": value}}  # noqa: E731
    got = over_repeats([one(0.5), one(0.7)])["x"]
    assert (got["auroc"], got["auroc_std"]) == (pytest.approx(0.6), pytest.approx(np.std([0.5, 0.7], ddof=1)))
    assert got["aupr"] is got["aupr_std"] is None
    assert "auroc_std" not in over_repeats([one(0.5)])["x"]


@pytest.fixture(scope="module")
def table():
    return compare(
        tiny(), bundle(), ["single", "hydra_random", "temperature(single)"], replicas=[tiny(1)], also=tuple(OOD_SCORES),
        bootstrap=20, latency=False,
    )  # fmt: skip


def test_every_score_of_every_row_is_there_or_says_why(table):
    for row in table.rows:
        assert row.measured, row.status
        assert set(row.detection) | set(row.undefined) == set(OOD_SCORES)
        assert not set(row.detection) & set(row.undefined)
    assert set(table["hydra_random"].detection) == set(OOD_SCORES)
    assert set(table["single"].undefined) == {"mutual_information", "variation_ratio"}
    assert set(FEATURE_SCORES) <= set(table["temperature(single)"].undefined)
    assert set(LOGIT_SCORES) > set(table["temperature(single)"].detection)


def test_the_tables_own_score_is_the_same_in_both_places(table):
    for row in table.rows:
        for mean, end in ((ALL, ""), (NEAR, "_near"), (FAR, "_far")):
            for figure in ("auroc", "aupr", "fpr95"):
                assert row.detection["msp"][mean][figure] == pytest.approx(row.values[f"{figure}{end}"])
        assert row.detection["msp"][ALL]["auroc_std"] == pytest.approx(row.std["auroc"])
        assert "auroc:near-t" in row.intervals


def test_feature_scores_are_fitted_on_validation_samples(table):
    data = bundle()
    alone = compare(tiny(), data, ["single"], also=("mahalanobis",), bootstrap=0, latency=False)["single"]
    read = FeatureReader(single(tiny())).read
    fitted = fit_feature_score("mahalanobis", read(data.val).features, data.val.labels)
    inside = fitted(read(data.test).features)
    for name, part in data.ood_test.items():
        outside = fitted(read(part).features)
        truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
        want = roc_auc_score(truth, np.r_[inside, outside])
        assert alone.detection["mahalanobis"][name]["auroc"] == pytest.approx(want)


def test_any_score_can_be_the_tables_own():
    rows = compare(tiny(), bundle(), ["single"], ood_score="knn", bootstrap=20, latency=False)
    assert rows["single"].values["auroc"] == pytest.approx(rows["single"].detection["knn"][ALL]["auroc"])
    assert rows.provenance["ood_score"] == "knn"
    with pytest.raises(UnknownNameError, match="OOD score"):
        compare(tiny(), bundle(), ["single"], ood_score="mood", bootstrap=0, latency=False)


def test_features_are_read_back_from_the_folder(tmp_path, monkeypatch):
    options = {"also": ("knn",), "bootstrap": 0, "latency": False}
    first = compare(tiny(), bundle(), ["single"], store=LogitStore(tmp_path), **options)
    monkeypatch.setattr("hydra_core.methods.features.forward_set", None)  # any forward would fail
    again = compare(tiny(), bundle(), ["single"], store=LogitStore(tmp_path), **options)
    assert first["single"].detection == again["single"].detection


def test_tables_of_scores_and_sets_hold_the_figures(table):
    frame = table.detection().set_index(["name", "score", "set"])
    for where in ("near-t", "far-t"):
        line = frame.loc[("hydra_random", "entropy", where)]
        assert line["auroc"] == table["hydra_random"].detection["entropy"][where]["auroc"]
        assert line["shift"] == where.partition("-")[0]
    mean = frame.loc[("single", "msp", "mean of all"), "auroc"]
    assert mean == pytest.approx(table["single"].values["auroc"])
    text = table.to_markdown()
    assert "near-t (near)" in text
    assert "| Row | 1 - max probability |" in text.replace("Mahalanobis distance | k-nearest neighbours | ViM | ", "")
    assert Comparison.from_json(table.to_json()).detection().equals(table.detection())
