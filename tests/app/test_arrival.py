"""A session comes to its model and data with progress and Cancel, and loses nothing of its link on the way."""

from __future__ import annotations

import threading
import time

import pytest
from streamlit.testing.v1 import AppTest

from app import lab
from app.lab import store
from app.lab.loading import LOADS, uninterrupted
from app.registry import ROOT
from hydra_core.data import corruptions
from hydra_core.errors import BudgetError, Cancelled, CheckpointError
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.models import load
from hydra_core.models.demo import load_demo
from tests.app.test_pages import DATA, MODEL, SHAPE, settle, visit

SLOW = "slow/model"


@pytest.fixture
def gate(monkeypatch):
    """A model whose loading waits for an event: the demo's under another name."""
    lab.model(MODEL), lab.data(DATA)
    opened = threading.Event()

    def slow(name, checkpoint, num_classes):
        opened.wait(60)
        if name == "broken":
            raise CheckpointError("The weights are broken")
        return load_demo("fashion-vit-s1")

    monkeypatch.setitem(load.SOURCES, "slow", load.Source("slow", "", slow, lambda: ("model", "broken")))
    yield opened
    opened.set()
    time.sleep(0.2)
    for name in (SLOW, "slow/broken"):
        if name in store.models:
            store.models.bytes -= store.models._values.pop(name)[1]


def start(page="cost", **query):
    at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=120)
    for key, value in query.items():
        at.query_params[key] = value
    return at.switch_page(f"../pages/{page}.py").run()


def progress(at):
    """Texts of the progress lines."""
    return [item.proto.text for item in at.get("progress")]


def button(at, label):
    return next(item for item in at.button if item.label == label)


def type_model(at, name):
    picker = at.selectbox(key="hydra/pick_model")
    picker.options.append(name)  # typed by hand
    return picker.set_value(name).run()


def asked(at, key):
    value = at.query_params[key]  # what a script wrote is a text, what a browser sent is a list
    return value if isinstance(value, str) else value[0]


def state_of(at):
    return at.session_state["hydra/session"]


PLAN = Plan((HeadMask.full(SHAPE).prune(5, 1), HeadMask.full(SHAPE).prune(0, 0)))


def test_a_link_shows_progress_and_nothing_else_then_restores_all(gate):
    at = start("heads", model=SLOW, data=DATA, plan=PLAN.text, member="1", locked="B", criterion_left="Magnitude")
    assert progress(at)[0].startswith(f"Loading {SLOW} and {DATA}: ")
    assert not at.title
    assert not at.selectbox
    assert [item.label for item in at.button] == ["Cancel"]
    gate.set()
    at = settle(at)
    assert not at.exception
    assert not at.warning
    state = state_of(at)
    assert (state.model, state.plan, state.active, state.locked) == (SLOW, PLAN, 1, {"B"})
    assert asked(at, "criterion_left") == "Magnitude"
    assert at.selectbox(key="criterion_left").value == "magnitude"


def test_a_cancelled_link_gives_the_defaults_and_says_so(gate):
    at = start(model=SLOW, data=DATA, plan=PLAN.text)
    began = time.monotonic()
    at = settle(button(at, "Cancel").click().run())
    assert time.monotonic() - began < 20, "the load itself never ends in this test"
    assert [box.value for box in at.warning] == [f"**Loading {SLOW} was cancelled.**"]
    assert state_of(at).model == MODEL
    assert state_of(at).plan == PLAN, "it fits the default too"
    assert at.title[0].value == "Cost"
    assert asked(at, "model") == MODEL


def test_a_link_to_weights_that_cannot_be_loaded(gate):
    gate.set()
    at = settle(start(model="slow/broken", plan=PLAN.text))
    assert "The weights are broken" in at.warning[0].value
    assert (state_of(at).model, state_of(at).plan) == (MODEL, PLAN)


def test_what_is_at_hand_never_flashes(gate):
    at = start(model=MODEL, data=DATA)
    assert not progress(at)
    assert at.title[0].value == "Cost"


def test_a_link_to_corrupted_data_is_cancelled_between_images(gate, monkeypatch):
    name, done = f"{DATA}~contrast-4", []
    entered, go_on = threading.Event(), threading.Event()
    real = corruptions.corrupt_image

    def slow(*args):
        done.append(1)
        entered.set()
        go_on.wait(30)
        return real(*args)

    monkeypatch.setattr(corruptions, "corrupt_image", slow)
    at = start(model=MODEL, data=name, plan=PLAN.text)
    assert entered.wait(10)
    assert "contrast-4" in progress(at)[0].replace("\\", "")
    assert not at.title
    at = button(at, "Cancel").click().run()
    go_on.set()
    at = settle(at)
    assert "was cancelled" in at.warning[0].value
    assert (state_of(at).data, state_of(at).plan) == (DATA, PLAN)
    assert len(done) < 200, "the rest of the images was not touched"
    assert name not in store.data


def test_a_pick_leaves_the_old_model_until_the_new_one_is_there(gate):
    at = type_model(start(plan=PLAN.text), SLOW)
    assert progress(at)[0].startswith(f"Loading {SLOW}: ")
    assert at.title[0].value == "Cost"
    assert state_of(at).model == MODEL
    assert at.selectbox(key="hydra/pick_model").value == MODEL
    gate.set()
    at = settle(at)
    assert state_of(at).model == SLOW
    assert at.selectbox(key="hydra/pick_model").value == SLOW
    assert not progress(at)
    assert asked(at, "model") == SLOW


def test_a_cancelled_pick_returns_to_the_old_model(gate):
    at = type_model(start(plan=PLAN.text), SLOW)
    at = settle(button(at, "Cancel").click().run())
    assert (state_of(at).model, state_of(at).plan) == (MODEL, PLAN)
    assert not progress(at)
    assert not at.warning
    gate.set()
    at = settle(type_model(at, SLOW))  # and may be picked again
    assert state_of(at).model == SLOW


def test_the_newest_pick_counts(gate):
    at = type_model(start(), SLOW)
    at = settle(at.selectbox(key="hydra/pick_model").set_value("demo/fashion-vit-s2").run())
    gate.set()
    at = settle(at)
    assert state_of(at).model == "demo/fashion-vit-s2"
    assert not progress(at)


def test_a_pick_that_cannot_be_loaded_is_told_above_the_page(gate):
    gate.set()
    at = settle(type_model(start(), "slow/broken"))
    assert "The weights are broken" in at.warning[0].value
    assert state_of(at).model == MODEL


def test_a_model_that_left_the_cache_comes_back_with_the_session(gate):
    at = type_model(start(), SLOW)
    gate.set()
    at = settle(at)
    state_of(at).change(PLAN)
    gate.clear()
    store.models.bytes -= store.models._values.pop(SLOW)[1]  # other sessions need the room
    at.run()
    assert progress(at)[0].startswith(f"Loading {SLOW} and {DATA}: ")
    gate.set()
    at = settle(at)
    assert (state_of(at).model, state_of(at).plan) == (SLOW, PLAN)
    assert state_of(at).undo_stack
    assert not at.warning


def test_nothing_is_imported_to_see_that_nothing_is_loaded(monkeypatch):
    monkeypatch.setattr(store, "models", type(store.models)("models", 1))
    monkeypatch.setattr("app.lab.loading.default_model", lambda: pytest.fail("the engine was asked"))
    assert not lab.at_hand("", "")


def test_what_is_too_large_to_be_kept_is_refused(monkeypatch):
    monkeypatch.setattr(store, "models", type(store.models)("models", 100))
    with pytest.raises(BudgetError, match="too large"):
        lab.bring_model(MODEL)
    monkeypatch.setattr(store, "data", type(store.data)("data", 100))
    with pytest.raises(BudgetError, match="too large"):
        lab.bring_data(DATA)


def test_who_cancels_does_not_wait_for_work_that_cannot_be_stopped():
    cancel, entered, go_on = threading.Event(), threading.Event(), threading.Event()

    def work():
        entered.set()
        go_on.wait(30)

    threading.Thread(target=lambda: (entered.wait(10), cancel.set())).start()
    with pytest.raises(Cancelled):
        uninterrupted(work, "Loading", cancel=cancel)
    go_on.set()
    with pytest.raises(ZeroDivisionError):
        uninterrupted(lambda: 1 / 0, "Loading")
    assert uninterrupted(lambda: 42, "Loading") == 42
    for _ in range(4):  # errors and cancelled work give their place back
        assert LOADS.acquire(timeout=5)
    for _ in range(4):
        LOADS.release()


@pytest.mark.parametrize(
    ("page", "asked", "named"),
    [
        ("noise", {"severity": "99"}, "severity=99"),
        ("heads", {"head": "99.99"}, "head=99.99"),
        ("sweep", {"source": "Measure now", "samples": "-5"}, "samples=-5"),
        ("cost", {"batch": ["8", "nine"]}, "batch=8,nine"),
        ("projections", {"dims": "<b>4</b>"}, "dims="),
    ],
)
def test_a_control_of_a_link_that_cannot_be_as_asked_is_named_once(page, asked, named):
    at = visit(page, **asked)
    (box,) = [w.value for w in at.warning]
    assert named in box.replace("\\", "")
    assert "could not be used" in box
    assert not at.exception
    at.button(key="frame/dismiss").click().run()
    assert not at.warning


def test_a_control_of_a_link_that_spells_its_default_is_no_problem():
    assert not visit("noise", severity="3.0").warning
    assert not visit("projections", dims="2", how="PCA", nobody="99").warning
