"""Start: cards that agree with the engine, and scenarios that are real plans and open as such."""

import pytest

from app import lab
from app.scenarios import scenarios
from hydra_core.errors import UnknownNameError
from hydra_core.heads.mask import Plan
from tests.app.test_pages import DATA, FULL, MODEL, SHAPE, settle, texts, visit

OTHER = "demo/fashion-vit-s1"


def by_name(model=MODEL):
    return {s.name: s for s in scenarios(model, DATA, lab.scores(model, DATA))}


def test_scenarios_are_built_from_measured_scores_and_the_stored_hydra():
    found = by_name()
    assert set(found) == {"harmful", "missed", "hydra", "random", "over_pruned"}
    loss = lab.scores(MODEL, DATA, "loo_nll")
    flat = {(l, h): loss.values[l][h] for l in range(6) for h in range(8)}
    assert found["harmful"].settings.plan == Plan((FULL.prune(*min(flat, key=flat.get)),))
    assert found["missed"].settings.plan == Plan((FULL.prune(*max(flat, key=flat.get)),))
    assert found["hydra"].settings.plan == lab.stored_hydra(MODEL, DATA)
    assert found["over_pruned"].settings.plan[0].counts == (1,) * 6


def test_what_the_teaching_cards_say_is_what_the_reports_say():
    found = by_name()
    base = lab.report(MODEL, DATA, Plan.full(SHAPE)).nll
    for name, sign in (("harmful", -1), ("missed", 1)):
        change = lab.report(MODEL, DATA, found[name].settings.plan).nll - base
        assert sign * change > 0
        assert f"{abs(change):.4f} nats" in found[name].about


def test_random_heads_are_as_many_as_the_hydras_and_the_same_every_time():
    found = by_name()
    hydra, random = found["hydra"].settings.plan, found["random"].settings.plan
    assert [mask.counts for mask in random] == [mask.counts for mask in hydra]
    assert len(set(random.masks)) == len(random) == len(hydra)
    assert by_name()["random"].settings.plan == random


def test_a_model_without_stored_figures_has_the_scenarios_that_need_none():
    found = by_name(OTHER)
    assert "hydra" not in found
    assert found["random"].settings.plan[0].counts == (8, 8, 8, 8, 4, 4)
    assert found["over_pruned"].settings.model == OTHER


def test_a_click_on_a_scenario_opens_what_if_with_its_plan():
    at = visit("start")
    at.button(key="start/open/hydra").click().run()
    assert at.title[0].value == "What if"
    state = at.session_state["hydra/session"]
    assert state.plan == lab.stored_hydra(MODEL, DATA)
    assert state.undo_stack == [Plan.full(SHAPE)]


def test_cards_say_size_base_accuracy_and_ood_sets():
    at = visit("start")
    said = texts(at)
    assert not at.error
    assert "6 x 8 heads (layers x heads)" in said
    assert "0.54 M parameters" in said or "537.10 k parameters" in said
    report, known = lab.report(MODEL, DATA, Plan.full(SHAPE)), lab.model(OTHER).info["val"]
    assert f"**{100 * report.accuracy:.1f} %** accuracy, **{report.ece:.4f}** ECE (above)" in said
    assert f"**{100 * known['accuracy']:.1f} %** accuracy, **{known['ece']:.4f}** ECE (on all" in said
    assert "OOD for validation: coat (near)" in said
    assert "OOD for test: sandal (near)" in said


def test_what_a_card_says_of_another_model_is_what_it_reaches_on_all_validation_samples():
    known, every = lab.model(OTHER).info["val"], lab.Options(n=10**6)
    report = lab.report(OTHER, DATA, Plan.full(SHAPE), every)
    assert report.accuracy == pytest.approx(known["accuracy"], abs=1e-3)
    assert report.ece == pytest.approx(known["ece"], abs=1e-3)


def test_a_card_chooses_its_model_and_the_plan_stays_where_it_fits():
    plan = Plan((FULL.prune(2, 2),))
    at = visit("start", plan=plan.text)
    assert at.button(key=f"start/use/model/{MODEL}").disabled
    settle(at.button(key=f"start/use/model/{OTHER}").click().run())
    state = at.session_state["hydra/session"]
    assert (state.model, state.plan) == (OTHER, plan)


def test_whether_a_model_can_be_pruned_is_tried_without_weights():
    row = lab.prunable("timm/vit_tiny_patch16_224")
    assert (row["status"], row["heads"], row["cut"]) == ("masked and fused", "12x3", True)
    assert lab.prunable("timm/resnet18")["status"] == "no heads"
    with pytest.raises(UnknownNameError, match="vit_tiny_patch16_224"):
        lab.prunable("timm/vit_tinny_patch16_224")
    with pytest.raises(UnknownNameError, match="registry"):
        lab.prunable("vit_tiny_patch16_224")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm/vit_tiny_patch16_224", "Can be pruned"),
        ("timm/resnet18", "Cannot be pruned"),
        ("nowhere/x", "no registry"),
    ],
)
def test_the_check_answers_on_the_page(name, words):
    at = visit("start")
    settle(at.text_input(key="start/check").set_value(name).run())
    assert words in texts(at) + "".join(box.value for box in at.warning)
    assert not at.exception
