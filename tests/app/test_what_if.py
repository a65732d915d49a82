"""The What-if page on the demo: defaults, every control, undo, and addresses that cannot be read."""

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app import lab
from app.registry import ROOT
from hydra_core.heads.mask import HeadMask, Plan

MODEL, DATA = "demo/fashion-vit", "demo/fashion"
SHAPE = (8,) * 6
FULL = HeadMask.full(SHAPE)


def visit(**query):
    at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=120)
    for key, value in query.items():
        at.query_params[key] = value
    return at.switch_page("../pages/what_if.py").run()


def state(at):
    return at.session_state["hydra/session"]


def address_plan(at):
    value = at.query_params["plan"]
    return Plan.parse(value if isinstance(value, str) else value[0])


def figures(at):
    return {metric.label: metric.value for metric in at.metric}


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Load the demo once, so that a page's patience is enough on a busy machine."""
    lab.report(MODEL, DATA, Plan.full(SHAPE))
    lab.scores(MODEL, DATA)


def settle(at):
    """Run again while work is under way (a busy machine outlasts the page's patience)."""
    for _ in range(20):
        if at.metric or at.error:
            return at
        for job in at.session_state["hydra/jobs"].active():
            job.wait(60)
        at.run()
    return at


def test_defaults_show_the_answer_with_nothing_changed():
    at = settle(visit())
    assert not at.exception
    assert not at.error
    assert not at.warning
    assert at.title[0].value == "What if"
    assert len(at.metric) == 11
    assert {metric.delta for metric in at.metric} == {"0"}
    report = lab.report(MODEL, DATA, Plan.full(SHAPE))
    assert figures(at)["Accuracy"] == f"{100 * report.accuracy:.1f} %"
    assert figures(at)["ECE"] == f"{report.ece:.4f}"
    assert any("500 of" in caption.value and "validation" in caption.value for caption in at.caption)


def test_a_plan_in_the_address_is_shown_and_its_figures_are_the_ensembles():
    plan = Plan((FULL.prune(0, 0), FULL.with_layer(5, False)))
    at = settle(visit(plan=plan.text, member="1"))
    assert not at.warning
    assert (state(at).plan, state(at).active) == (plan, 1)
    chosen = lab.sample(DATA)
    rows = lab.logits(MODEL, chosen, plan.masks)[:, chosen.slices[""]].astype(np.float64)
    p = np.exp(rows) / np.exp(rows).sum(-1, keepdims=True)
    accuracy = (p.mean(0).argmax(-1) == chosen.id.labels).mean()
    assert figures(at)["Accuracy"] == f"{100 * accuracy:.1f} %"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"plan": "garbage"}, "This is not a plan of masks"),
        ({"plan": "2x4.vw"}, "2x4"),
        ({"plan": "6x8.AAAA"}, "not a head mask"),
        ({"model": "demo/fashion-vitt"}, "fashion-vit"),
        ({"data": "nope"}, "demo/fashion"),
        ({"member": "7"}, "member"),
    ],
)
def test_what_cannot_be_read_is_said_and_the_default_is_shown(query, words):
    at = settle(visit(**query))
    assert not at.exception
    assert words in at.warning[0].value.replace("\\", "")
    assert "Expected" in at.warning[0].value
    assert state(at).plan == Plan.full(SHAPE)
    assert len(at.metric) == 11
    at.button(key="frame/dismiss").click().run()
    assert not at.warning


def test_undo_redo_and_reset_walk_through_the_changes_and_the_address_follows():
    at = settle(visit())
    assert at.button(key="what_if/undo").disabled
    at.slider(key="keep").set_value(4).run()
    at.button(key="what_if/top").click().run()
    pruned = state(at).mask
    assert pruned.counts == (4,) * 6
    assert address_plan(at)[0] == pruned
    at.button(key="what_if/undo").click().run()
    assert address_plan(at)[0] == FULL
    at.button(key="what_if/redo").click().run()
    assert address_plan(at)[0] == pruned
    at.button(key="what_if/reset").click().run()
    assert address_plan(at)[0] == FULL
    at.button(key="what_if/undo").click().run()
    assert state(at).mask == pruned


def test_top_lowest_and_random_in_a_range_of_layers():
    at = settle(visit())
    scores = lab.scores(MODEL, DATA)
    at.slider(key="keep").set_value(3).run()
    at.slider(key="layers").set_range(3, 5).run()
    at.button(key="what_if/top").click().run()
    assert state(at).mask == HeadMask.top(scores, 3, range(3, 6))
    at.button(key="what_if/lowest").click().run()
    assert state(at).mask == HeadMask.top(scores, 3, range(3, 6), lowest=True)
    at.number_input(key="seed").set_value(7).run()
    at.button(key="what_if/random").click().run()
    assert state(at).mask == HeadMask.random(SHAPE, 3, 7, range(3, 6))


def test_members_are_added_copied_chosen_and_removed():
    at = settle(visit(plan=Plan((FULL.prune(5, 1),)).text))
    at.button(key="what_if/copy").click().run()
    assert state(at).plan.masks == (FULL.prune(5, 1),) * 2
    at.button(key="what_if/add").click().run()
    assert (len(state(at).plan), state(at).active, state(at).mask) == (3, 2, FULL)
    at.segmented_control(key="what_if/member").set_value(0).run()
    assert state(at).active == 0
    settle(at.segmented_control(key="picture").set_value("Members").run())
    table = next(frame.value for frame in at.dataframe if "member" in frame.value)
    assert list(table["member"]) == ["A", "B", "C"]
    alone = lab.report(MODEL, DATA, Plan((FULL.prune(5, 1),)))
    assert table["ECE"][0] == pytest.approx(alone.ece)
    at.button(key="what_if/remove").click().run()
    assert state(at).plan.masks == (FULL.prune(5, 1), FULL)
    assert not at.exception


def test_the_final_check_uses_test_data_and_warns():
    at = settle(visit())
    before = figures(at)
    at.toggle(key="final").set_value(True).run()
    settle(at)
    assert "choose" in at.warning[0].value
    assert any("test samples" in caption.value for caption in at.caption)
    assert figures(at) != before


def test_bins_and_pictures():
    at = settle(visit())
    at.slider(key="bins").set_value(8).run()
    settle(at)
    table = lab.report(MODEL, DATA, Plan.full(SHAPE), lab.Options(bins=8)).reliability
    assert len(table.count) == 8
    for picture in ("Confidence", "Risk and coverage", "OOD scores", "Members", "Reliability"):
        at.segmented_control(key="picture").set_value(picture).run()
        assert not at.exception
        assert not at.error
    at.segmented_control(key="bins_kind").set_value("count").run()
    assert not settle(at).error


def test_controls_come_from_the_address():
    at = settle(visit(bins="8", picture="Confidence", keep="2"))
    assert at.slider(key="bins").value == 8
    assert at.segmented_control(key="picture").value == "Confidence"
    assert at.slider(key="keep").value == 2


def test_a_head_painted_in_the_grid_changes_plan_figures_and_address():
    from app.head_grid import Stroke, paint_mask

    at = settle(visit())
    before = figures(at)
    # the browser is tested in tests/browser; here: what its stroke does to the session and the page
    state(at).change_mask(paint_mask(state(at).mask, [Stroke(tuple((5, h) for h in range(8)), False)]))
    settle(at.run())
    assert address_plan(at)[0] == FULL.with_layer(5, False)
    assert figures(at)["NLL"] != before["NLL"]


def test_an_unknown_model_typed_into_the_picker_keeps_the_old_one():
    at = settle(visit(plan=Plan((FULL.prune(5, 1),)).text))
    picker = at.selectbox(key="hydra/pick_model")
    picker.options.append("demo/nope")  # typed by hand
    picker.set_value("demo/nope").run()
    assert "demo/nope" in at.warning[0].value.replace("\\", "")
    assert state(at).model == MODEL
    assert state(at).mask == FULL.prune(5, 1)


def test_two_sessions_do_not_touch_each_other():
    one, two = settle(visit()), settle(visit())
    one.button(key="what_if/random").click().run()
    two.run()
    assert state(two).plan == Plan.full(SHAPE)
    assert state(one).plan != state(two).plan
    assert one.session_state["hydra/jobs"] is not two.session_state["hydra/jobs"]


def test_start_shows_the_model_and_the_way_on():
    at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=120).run()
    settle(at)
    assert not at.exception
    assert at.title[0].value == "Start"
    assert len(at.metric) == 11


def test_the_best_of_all_layers_are_kept_by_share():
    at = settle(visit())
    scores = lab.scores(MODEL, DATA)
    at.segmented_control(key="way").set_value("all").run()
    at.slider(key="share").set_value(25).run()
    at.button(key="what_if/top").click().run()
    assert state(at).mask == HeadMask.top_ratio(scores, 0.25)
    at.button(key="what_if/lowest").click().run()
    assert state(at).mask == HeadMask.top_ratio([-row for row in scores.matrix], 0.25)


def test_a_member_takes_the_heads_of_another_and_a_locked_one_does_not():
    at = settle(visit(plan=Plan((FULL.prune(5, 1), FULL)).text, member="1"))
    at.button(key="what_if/take/0").click().run()
    assert state(at).plan.masks == (FULL.prune(5, 1),) * 2
    at.button(key="what_if/lock").click().run()
    assert at.query_params["locked"] in ("B", ["B"])
    for key in ("top", "lowest", "random", "remove"):
        assert at.button(key=f"what_if/{key}").disabled
    assert any("locked" in caption.value for caption in at.caption)
    at.button(key="what_if/reset").click().run()
    assert state(at).plan.masks == (FULL, FULL.prune(5, 1))
    at.button(key="what_if/lock").click().run()
    assert not at.button(key="what_if/remove").disabled


def notes(at):
    return [caption.value for caption in at.caption if " to " in caption.value and len(caption.value) < 30]


def test_intervals_come_below_the_cards_and_are_the_engines():
    plan = Plan((FULL.with_layer(5, False),))
    at = settle(visit(plan=plan.text))
    for _ in range(5):
        if notes(at):
            break
        at.run()
    low, high = lab.report(MODEL, DATA, plan, lab.Options(bootstrap=200)).interval("accuracy")
    assert notes(at)[0] == f"{100 * low:.1f} to {100 * high:.1f}"
    assert len(notes(at)) == 9


def test_the_estimate_is_the_first_order_sum_and_is_there_only_after_the_gradients():
    from app.lab import live, store

    plan = Plan((FULL.prune(5, 1).prune(4, 4), FULL))
    unpruned = lab.report(MODEL, DATA, Plan.full(SHAPE)).nll
    store.results.clear()
    assert live.predicted_nll(MODEL, DATA, plan, unpruned) is None
    changes = live.loss_changes(MODEL, DATA)
    want = unpruned + (changes.values[5][1] + changes.values[4][4]) / 2
    assert live.predicted_nll(MODEL, DATA, plan, unpruned) == pytest.approx(want, abs=1e-12)
    # Taylor's score is the mean of absolute values of the same terms
    taylor = lab.scores(MODEL, DATA)
    assert all(abs(c) <= t + 1e-6 for c, t in zip(changes.flat, taylor.flat, strict=True))


def estimating():
    """The estimate as the page shows it while a job is still at work."""
    import streamlit as st

    from app import arrival, frame, lab
    from app.what_if.answer import _estimate

    assert arrival.ready()
    state = frame.session()
    _estimate(state, lab.Options())
    st.write("drawn")


def test_an_estimate_is_marked_and_says_nothing_of_what_it_does_not_know():
    from app.lab import live

    live.loss_changes(MODEL, DATA)
    before = lab.report(MODEL, DATA, Plan.full(SHAPE))
    at = AppTest.from_function(estimating)
    at.query_params["plan"] = Plan((FULL.prune(5, 1),)).text
    at.run()
    shown = figures(at)
    nll = before.nll + live.loss_changes(MODEL, DATA).values[5][1]
    assert shown["NLL"] == f"{nll:.4f}"
    assert shown["Accuracy"] == "–"
    assert shown["Parameters"] != "–"
    assert any("estimate" in caption.value for caption in at.caption)


def test_the_proof_is_measured_when_asked_for_and_only_for_the_plan_on_show():
    plan = Plan((FULL.prune(5, 1), FULL))
    at = settle(visit(plan=plan.text))
    settle_jobs(at.button(key="what_if/prove").click().run())
    text = "\n".join(item.value for item in at.markdown)
    assert "mask against heads cut out of the weights" in text
    assert "| what member B's mask changes, logits | nothing pruned |" in text
    from app.lab import live

    proof = live.proof(MODEL, DATA, plan)
    assert proof.holds
    shown = f"{proof.slices:.1e}" if proof.slices else "0"
    assert f"| mask against heads cut out of the weights, logits | {shown} |" in text
    assert proof.bites[0] > 1e-3
    state(at).change_mask(FULL)
    at.run()
    assert at.button(key="what_if/prove")


def settle_jobs(at):
    for _ in range(20):
        active = at.session_state["hydra/jobs"].active()
        if not active:
            return at.run()
        for job in active:
            job.wait(60)
        at.run()
    return at


def test_pins_are_shown_opened_measured_against_and_forgotten_and_survive_a_change_of_page():
    at = settle(visit(plan=Plan((FULL.with_layer(5, False),)).text))
    at.text_input(key="what_if/pin_name").set_value("no <b>last</b> layer")
    form = next(button for button in at.button if button.label == "Pin this setting")
    settle_jobs(form.click().run())
    table = next(frame.value for frame in at.dataframe if "pin" in frame.value)
    assert list(table["pin"]) == ["no <b>last</b> layer"]
    report = lab.report(MODEL, DATA, Plan((FULL.with_layer(5, False),)))
    assert table["ECE"][0] == pytest.approx(report.ece)
    at.button(key="what_if/reset").click().run()
    settle_jobs(at.selectbox(key="what_if/against").set_value("no <b>last</b> layer").run())
    full = lab.report(MODEL, DATA, Plan.full(SHAPE))
    nll = next(metric for metric in at.metric if metric.label == "NLL")
    assert nll.delta == f"{full.nll - report.nll:+.4f}"
    at.switch_page("../pages/export.py").run()
    at.switch_page("../pages/what_if.py").run()
    settle_jobs(at.button(key="what_if/open/0").click().run())
    assert state(at).mask == FULL.with_layer(5, False)
    pins = at.query_params["pins"]
    again = settle(visit(pins=pins if isinstance(pins, str) else pins[0]))
    assert state(again).pins == state(at).pins
    at.button(key="what_if/unpin/0").click().run()
    assert state(at).pins == {}
    assert not at.exception


def test_an_ood_score_ranks_the_samples():
    at = settle(visit(picture="OOD scores", ood_score="Energy"))
    options = lab.Options(ood_score="energy")
    want = lab.report(MODEL, DATA, Plan.full(SHAPE), options)
    assert figures(at)["AUROC, near"] == f"{100 * want.auroc_near:.1f} %"
    assert "Mutual information" not in at.selectbox(key="ood_score").options
    at.button(key="what_if/add").click().run()
    settle(at)
    assert "Mutual information" in at.selectbox(key="ood_score").options
    assert not at.exception
