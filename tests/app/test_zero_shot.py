"""The zero-shot page on the demo CLIP: words change figures as the engine says; bad words are refused in place."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, roc_auc_score
from streamlit.testing.v1 import AppTest

from app import lab
from app.lab import stored
from app.registry import ROOT
from hydra_core.errors import DataError
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.models.zero_shot import with_classes
from tests.app.test_pages import settle, texts

MODEL, DATA = "demo/fashion-clip", "demo/fashion"
NAMES = ("t-shirt", "trouser", "pullover", "dress", "shirt", "sneaker", "bag", "ankle boot")
OTHER = ("tee", "pants", "sweater", "gown", "blouse", "running shoe", "handbag", "boot")
ONE = ("a photo of a {}.",)
FULL = HeadMask.full((8,) * 6)


def visit(**query):
    at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=120)
    for key, value in ({"model": MODEL} | query).items():
        at.query_params[key] = value
    return settle(at.switch_page("../pages/zero_shot.py").run())


def figures(at):
    return {metric.label: metric.value for metric in at.metric}


def share(value):
    return f"{100 * value:.1f} %"


@pytest.fixture(scope="module", autouse=True)
def warm():
    lab.zero_shot_answer(MODEL, DATA, Plan((FULL,)), lab.Words(NAMES, ONE))


# -- what the page asks for ------------------------------------------------------------------


def test_stored_image_features_are_those_of_the_native_tower():
    chosen, view = lab.sample(DATA), lab.model(MODEL)
    with torch.inference_mode():
        want = copy.deepcopy(view.module.visual).double()(view.inputs(*chosen.sets.values()).double())
    found = stored.stored_rows("features", MODEL, chosen, FULL)
    np.testing.assert_allclose(found, torch.nn.functional.normalize(want, dim=-1), atol=1e-5)
    assert stored.stored_rows("features", MODEL, chosen, FULL.prune(5, 1)) is None


def test_figures_are_those_of_the_engine_and_of_scikit_learn():
    words = lab.Words(OTHER, ("a photo of a {}.", "the {}"))
    plan = Plan((FULL.prune(5, 1), FULL.prune(4, 2)))
    found = lab.zero_shot_answer(MODEL, DATA, plan, words)
    view = with_classes(lab.model(MODEL), OTHER, words.templates)
    sample = lab.sample(DATA)
    rows = {
        name: np.stack([view(view.inputs(part), mask).numpy() for mask in plan]) for name, part in sample.sets.items()
    }
    soft = {k: np.exp(v - v.max(-1, keepdims=True)) for k, v in rows.items()}
    probs = {k: (v / v.sum(-1, keepdims=True)).mean(0) for k, v in soft.items()}
    np.testing.assert_allclose(found.probs, probs[""], atol=1e-4)
    assert found.report.accuracy == pytest.approx(accuracy_score(sample.id.labels, probs[""].argmax(-1)), abs=1e-3)
    for result in found.report.sets:
        doubt = 1 - np.concatenate([probs[""], probs[result.name]]).max(-1)
        truth = np.repeat([0, 1], [len(probs[""]), len(probs[result.name])])
        assert result.auroc == pytest.approx(roc_auc_score(truth, doubt), abs=1e-3)


def test_temperature_moves_calibration_but_neither_accuracy_nor_mcm():
    words = lab.Words(NAMES, ONE)
    plan = Plan((FULL,))
    plain, soft = (lab.zero_shot_answer(MODEL, DATA, plan, words, temperature=t) for t in (1.0, 3.0))
    assert soft.report.accuracy == plain.report.accuracy
    assert soft.report.ece > plain.report.ece
    assert [s.auroc for s in soft.mcm.sets] == pytest.approx([s.auroc for s in plain.mcm.sets])
    fitted = lab.zero_shot_answer(MODEL, DATA, plan, words, temperature=None)
    assert fitted.report.nll <= min(plain.report.nll, soft.report.nll)


def test_image_features_are_computed_once_for_all_words(monkeypatch):
    from hydra_core.fusion.evaluator import MaskEvaluator

    lab.zero_shot_answer(MODEL, DATA, Plan((FULL,)), lab.Words(NAMES, ("one {}",)))

    def never(*args, **kwargs):
        raise AssertionError("the image tower ran again")

    monkeypatch.setattr(MaskEvaluator, "many", never)
    lab.zero_shot_answer(MODEL, DATA, Plan((FULL,)), lab.Words(OTHER, ("two {}",)))


def test_pruned_text_heads_change_the_answer():
    mask = HeadMask.full((4, 4, 4)).with_layer(2, False).with_layer(1, False)
    plan = Plan((FULL,))
    whole = lab.zero_shot_answer(MODEL, DATA, plan, lab.Words(NAMES, ONE))
    pruned = lab.zero_shot_answer(MODEL, DATA, plan, lab.Words(NAMES, ONE, mask))
    assert np.abs(whole.probs - pruned.probs).max() > 1e-3


# -- the page --------------------------------------------------------------------------------


def test_the_page_answers_first():
    at = visit()
    assert not at.exception
    assert not at.error
    found = lab.zero_shot_answer(MODEL, DATA, Plan((FULL,)), lab.Words(NAMES, ONE))
    assert figures(at)["Accuracy"] == share(found.report.accuracy)
    assert f"{found.mcm.auroc:.3f} with MCM" in texts(at)
    assert "A demo CLIP, trained here on eight garments and drawn captions" in texts(at)
    assert "the paper warns against just that in zero-shot" in texts(at), "Taylor without fine-tuning"
    assert "A real one is used the same way" in texts(at)
    table = at.dataframe[0].value
    assert table["samples"].sum() == 500
    right = (table["right"] * table["samples"]).sum() / 500
    assert right == pytest.approx(found.report.accuracy)


def test_other_words_change_the_figures_at_once():
    at = visit()
    before = figures(at)
    settle(at.text_area(key="classes").set_value("\n".join(OTHER)).run())
    found = lab.zero_shot_answer(MODEL, DATA, Plan((FULL,)), lab.Words(OTHER, ONE))
    assert figures(at)["NLL"] == f"{found.report.nll:.4f}" != before["NLL"]
    assert list(at.dataframe[0].value["called"]) == list(OTHER)
    settle(at.button(key="zero_shot/reset").click().run())
    assert figures(at) == before


def test_a_link_restores_words_prompts_temperature_and_text_heads():
    mask = HeadMask.full((4, 4, 4)).prune(2, 1)
    at = visit(classes="\n".join(OTHER), prompts="My own", own="the {}\na {}", temperature="2.0", text_heads=mask.text)
    found = lab.zero_shot_answer(
        MODEL, DATA, Plan((FULL,)), lab.Words(OTHER, ("the {}", "a {}"), mask), temperature=2.0
    )
    assert not at.error
    assert figures(at)["NLL"] == f"{found.report.nll:.4f}"
    assert "11 of 12 heads kept" in texts(at)


def test_the_librarys_lists_can_be_chosen_and_the_temperature_fitted():
    at = visit()
    settle(at.selectbox(key="prompts").set_value("ImageNet, 7 sentences").run())
    seven = lab.prompt_lists()["ImageNet, 7 sentences"]
    found = lab.zero_shot_answer(MODEL, DATA, Plan((FULL,)), lab.Words(NAMES, seven))
    assert figures(at)["NLL"] == f"{found.report.nll:.4f}"
    settle(at.toggle(key="fit").set_value(True).run())
    fitted = lab.zero_shot_answer(MODEL, DATA, Plan((FULL,)), lab.Words(NAMES, seven), temperature=None)
    assert figures(at)["NLL"] == f"{fitted.report.nll:.4f}"
    assert f"Fitted temperature: {fitted.temperature:.3f}" in texts(at)


def test_the_final_check_uses_test_data_and_warns():
    at = visit(final="true")
    assert "choose" in at.warning[0].value
    assert "test samples" in texts(at)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"classes": " "}, "Each class of the data needs a name"),
        ({"classes": "boot\nbag"}, "8 lines or more"),
        ({"classes": "\n".join([*NAMES[:7], "bag"])}, "'bag' twice"),
        ({"prompts": "My own", "own": "a photo"}, "where the class name goes"),
        ({"prompts": "My own", "own": " "}, "where the class name goes"),
        ({"classes": "\n".join([*NAMES, "very " * 40 + "long"])}, "too long for this model"),
        ({"classes": "\n".join([*NAMES, "x" * 301])}, "too much text"),
    ],
)
def test_words_that_cannot_be_used_are_refused_in_place(query, says):
    at = visit(**query)
    assert not at.exception
    assert says in at.error[0].value.replace("\\", "")
    assert at.text_area(key="classes").value is not None, "the box stays, to be mended"


def test_markup_is_plain_text():
    evil = "<img src=x onerror=alert(1)> **b**"
    at = visit(classes="\n".join([*NAMES, evil]))
    assert not at.exception
    assert not at.error
    assert not any(evil in item.value for item in [*at.markdown, *at.caption])


def test_a_mask_of_text_heads_that_does_not_fit_is_reported():
    at = visit(text_heads="nonsense")
    assert not at.exception
    assert "12 of 12 heads kept" in texts(at)


def test_words_never_read_are_named():
    at = visit(classes="\n".join([*NAMES, "sandal"]))
    assert "Never read in training" in texts(at)
    assert "sandal" in texts(at)
    assert lab.unknown_words(MODEL, lab.Words(OTHER, ONE)) == []


def test_too_many_texts_are_refused():
    with pytest.raises(DataError, match="too much text"):
        lab.words_of(DATA, "\n".join(f"name {i}" for i in range(1001)), ONE)


def test_another_model_is_told_and_the_demo_clip_taken():
    at = visit(model="demo/fashion-vit")
    assert not at.error
    assert "words do nothing" in at.info[0].value
    settle(at.button(key="zero_shot/demo").click().run())
    assert at.session_state["hydra/session"].model == MODEL
    assert "Accuracy" in figures(at)


def test_rows_are_measured_on_validation_when_asked_for(monkeypatch):
    # every row is measured in tests/methods/test_zero_shot_rows.py; these need no search
    monkeypatch.setattr("app.lab.zero_shot.zero_shot_row_names", lambda: ("single", "mcm", "vilu"))
    at = visit(classes="\n".join(OTHER))
    settle(at.button(key="zero_shot/go").click().run())
    assert not at.exception
    table = next(frame.value for frame in at.dataframe if "Method" in frame.value)
    assert list(table["Method"]) == ["Single", "Single (MCM)", "ViLU"]
    by = table.set_index("Method")
    assert by.loc["Single", "Accuracy"] == by.loc["ViLU", "Accuracy"]


@pytest.mark.parametrize("page", ["heads", "what_if", "projections"])
def test_the_other_pages_work_on_the_demo_clip(page):
    at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=300)
    at.query_params["model"] = MODEL
    settle(at.switch_page(f"../pages/{page}.py").run())
    assert not at.exception
    assert not at.error
    assert at.session_state["hydra/session"].model == MODEL


def test_compare_offers_the_rows_of_zero_shot_models():
    from hydra_core.methods.zero_shot_rows import ZERO_SHOT_ROWS

    assert tuple(lab.row_names(MODEL)) == ZERO_SHOT_ROWS
    assert not {"mcm", "vilu"} & set(lab.row_names("demo/fashion-vit"))
    at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=300)
    at.query_params["model"] = MODEL
    settle(at.switch_page("../pages/compare.py").run())
    assert not at.exception
    assert not at.error
    rows = at.multiselect(key="zero_shot_rows")
    rows.set_value(["single", "mcm"]).run()
    settle(at.button(key="compare/go").click().run())
    assert not at.exception
    assert not at.error
    table = lab.comparison(MODEL, DATA, ["single", "mcm"])
    assert [row.repeats for row in table.rows] == [1, 1], "the demo ViTs are no seeds of the CLIP"
    assert table["mcm"].values["auroc"] != table["single"].values["auroc"]
