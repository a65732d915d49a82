"""What a session holds, its undo, and its round trip through the address."""

from urllib.parse import parse_qsl, urlencode

import pytest

from app.session import (
    MAX_MEMBERS,
    MAX_PIN_TEXT,
    MAX_PINS,
    UNDO_LIMIT,
    Session,
    Settings,
    from_query,
    pins_text,
    to_query,
)
from hydra_core.errors import MaskError, UnknownNameError
from hydra_core.heads.mask import HeadMask, Plan

SHAPES = {"demo/a": (3, 4), "demo/b": (6, 6), "demo/c": (3, 4)}


def check_model(name):
    if name not in SHAPES:
        raise UnknownNameError("model", name, SHAPES)


def check_data(name):
    if name != "demo/data":
        raise UnknownNameError("data set", name, ["demo/data"])


def read(query):
    return from_query(
        query,
        default_model="demo/a",
        default_data="demo/data",
        check_model=check_model,
        check_data=check_data,
        shape_of=SHAPES.__getitem__,
    )


@pytest.fixture
def session():
    return Session("demo/a", "demo/data", Plan.full((3, 4)))


def test_the_address_round_trip_keeps_everything(session):
    session.change_mask(HeadMask.full((3, 4)).prune(0, 1).prune(1, 3))
    session.add_member()
    session.add_member(HeadMask.empty((3, 4)))
    session.choose(1)
    address = urlencode(to_query(session))  # through the text of a real address
    back, problems = read(dict(parse_qsl(address)))
    assert problems == []
    assert (back.model, back.data, back.plan, back.active) == ("demo/a", "demo/data", session.plan, 1)


def test_names_of_members_survive_when_they_are_not_the_default_letters(session):
    session.add_member()
    session.choose(0)
    session.drop_member()
    assert session.plan.names == ("B",)
    back, problems = read(to_query(session))
    assert problems == []
    assert back.plan == session.plan


def test_an_empty_address_gives_the_default():
    session, problems = read({})
    assert (session.model, session.plan, problems) == ("demo/a", Plan.full((3, 4)), [])


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"plan": "garbage"}, "1 to 8 masks"),
        ({"plan": "2x4.vw"}, "3+4"),
        ({"plan": "3+4.!!"}, "head mask"),
        ({"model": "demo/nope"}, "demo/a"),
        ({"data": "x"}, "demo/data"),
        ({"plan": Plan.full((3, 4)).text, "member": "5"}, "0 to 0"),
        ({"plan": Plan.full((3, 4)).text, "member": "-1"}, "0 to 0"),
        ({"plan": Plan.full((3, 4), 2).text, "names": "A,A"}, "all different"),
        ({"plan": Plan.full((3, 4), 9).text}, "1 to 8 masks"),
    ],
)
def test_what_cannot_be_read_is_reported_and_replaced_by_the_default(query, words):
    session, problems = read(query)
    assert len(problems) == 1
    assert words in str(problems[0])
    assert (session.model, session.data, session.active) == ("demo/a", "demo/data", 0)
    assert session.plan.masks[0] == HeadMask.full((3, 4))


def test_a_bad_part_does_not_lose_the_good_ones():
    plan = Plan.full((3, 4)).with_mask(0, HeadMask.full((3, 4)).prune(1, 2))
    session, problems = read({"data": "nope", "plan": plan.text, "member": "zero"})
    assert len(problems) == 2
    assert session.plan == plan


def test_undo_and_redo_walk_the_same_road(session):
    masks = [session.mask]
    for layer, head in [(0, 0), (1, 1), (1, 2)]:
        session.change_mask(session.mask.prune(layer, head))
        masks.append(session.mask)
    for mask in reversed(masks[:-1]):
        session.undo()
        assert session.mask == mask
    session.undo()  # nothing left: stays
    assert session.mask == masks[0]
    for mask in masks[1:]:
        session.redo()
        assert session.mask == mask
    session.undo()
    session.change_mask(session.mask.prune(0, 2))
    session.redo()  # a new change ends the old road
    assert session.mask == masks[2].prune(0, 2)


def test_undo_is_bounded_and_skips_changes_that_change_nothing(session):
    session.change(session.plan)
    assert session.undo_stack == []
    for i in range(UNDO_LIMIT + 30):
        session.change_mask(session.mask.toggle(0, i % 3))
    assert len(session.undo_stack) == UNDO_LIMIT


def test_undo_of_an_added_member_leaves_a_valid_active_one(session):
    session.add_member()
    assert session.active == 1
    session.undo()
    assert (len(session.plan), session.active) == (1, 0)


def test_members_are_limited_and_the_last_one_stays(session):
    session.drop_member()
    assert len(session.plan) == 1
    for _ in range(MAX_MEMBERS - 1):
        session.add_member()
    with pytest.raises(MaskError, match="at most 8"):
        session.add_member()
    assert len(session.plan) == MAX_MEMBERS


def test_each_model_keeps_its_plan(session):
    pruned = session.plan.with_mask(0, session.mask.prune(0, 0))
    session.change(pruned)
    session.use_model("demo/b", (6, 6))
    assert session.plan == Plan.full((6, 6))
    session.use_model("demo/a", (3, 4))
    assert session.plan == pruned
    session.use_model("demo/c", (3, 4))
    assert session.plan == pruned  # same shape: the plan comes along


def test_reset_restores_all_heads_and_can_be_undone(session):
    session.change_mask(HeadMask.empty((3, 4)))
    session.reset()
    assert session.mask.is_full
    session.undo()
    assert session.mask.kept == 0


def test_a_mask_of_another_shape_is_refused_and_nothing_is_lost(session):
    before = session.plan
    with pytest.raises(MaskError):
        session.change(Plan.full((6, 6)))
    assert session.plan == before


def test_pins_are_values_and_bounded(session):
    session.change_mask(session.mask.prune(0, 0))
    session.pin("first")
    session.reset()
    session.open(session.pins["first"])
    assert session.mask == HeadMask.full((3, 4)).prune(0, 0)
    session.undo()
    assert session.mask.is_full
    for i in range(MAX_PINS + 5):
        session.pin(f"p{i}")
    assert len(session.pins) == MAX_PINS
    assert "first" not in session.pins


def test_undo_brings_back_the_model_the_data_and_the_plan_that_opened_settings_replaced(session):
    session.change_mask(session.mask.prune(0, 0))
    mine, edits = session.settings, list(session.undo_stack)
    opened = Settings("demo/b", "demo/other", Plan.full((6, 6)))
    session.toggle_lock()
    session.open(opened)
    session.change_mask(session.mask.prune(1, 5))
    session.undo()
    assert session.settings == opened
    session.undo()
    assert (session.settings, session.undo_stack) == (mine, edits)
    session.redo()
    assert session.settings == opened
    session.use_model("demo/a", (3, 4))  # what was left stands on the shelf too
    assert session.plan == mine.plan


def test_settings_with_too_many_members_are_not_opened(session):
    before = session.settings
    with pytest.raises(MaskError, match="at most 8"):
        session.open(Settings("demo/b", "demo/other", Plan.full((6, 6), MAX_MEMBERS + 1)))
    assert session.settings == before


def test_a_locked_member_is_changed_by_nothing(session):
    session.add_member()  # B
    session.change_mask(session.mask.prune(0, 1))
    locked = session.mask
    session.toggle_lock()
    for change in (lambda: session.change_mask(HeadMask.empty((3, 4))), session.drop_member):
        with pytest.raises(MaskError, match="Member B is locked"):
            change()
    session.choose(0)
    session.change_mask(HeadMask.empty((3, 4)))
    session.reset()
    assert session.plan.masks == (HeadMask.full((3, 4)), locked)
    session.undo()
    assert session.plan.masks == (HeadMask.empty((3, 4)), locked)
    session.undo()
    session.undo()  # to before B's own change, which the lock holds: the step before that is "no B"
    assert session.plan.masks == (HeadMask.full((3, 4)),)
    assert session.locked == frozenset()


def test_undo_passes_over_steps_that_a_lock_makes_empty(session):
    session.change_mask(session.mask.prune(0, 0))
    session.add_member()
    session.choose(0)
    session.toggle_lock()
    session.choose(1)
    session.undo()
    assert len(session.plan) == 1
    session.undo()  # would restore head 0.0 of the locked member
    assert session.mask == HeadMask.full((3, 4)).prune(0, 0)
    session.toggle_lock()
    session.redo()
    assert len(session.plan) == 2


def test_locks_travel_in_the_address_and_are_lifted_by_opening_a_setting(session):
    session.add_member()
    session.toggle_lock()
    back, problems = read(to_query(session))
    assert (back.locked, problems) == ({"B"}, [])
    back, _ = read({**to_query(session), "locked": "B,Z"})
    assert back.locked == {"B"}
    session.pin("x")
    session.open(session.pins["x"])
    assert not session.locked


def test_pins_travel_in_the_address_and_one_of_them_is_the_reference(session):
    session.change_mask(session.mask.prune(1, 1))
    session.pin("odd: name; with, marks ")
    session.reset()
    session.pin("full")
    session.against = "odd name with marks"
    back, problems = read(dict(parse_qsl(urlencode(to_query(session)))))
    assert problems == []
    assert back.pins == session.pins
    assert list(back.pins) == ["odd name with marks", "full"]
    assert back.reference == session.pins["odd name with marks"].plan
    session.unpin("odd name with marks")
    assert (session.reference, session.against, list(session.pins)) == (None, "", ["full"])


def test_pins_of_another_model_stay_in_the_session_only(session):
    session.pin("a")
    session.use_model("demo/b", (6, 6))
    session.pin("b")
    assert pins_text(session) == f"b:{Plan.full((6, 6)).text}"
    session.against = "a"
    assert session.reference is None
    session.open(session.pins["a"])
    assert session.model == "demo/a"


def test_pins_that_are_too_long_for_an_address_are_left_out(session):
    session.change(Plan.full((3, 4), MAX_MEMBERS))
    for i in range(MAX_PINS):
        session.pin(f"{i} {'x' * 40}"[:40])
    text = pins_text(session)
    session.use_model("demo/b", (6, 6))
    wide = HeadMask.full((12,) * 48)
    long = Session("demo/a", "demo/data", Plan((wide,) * MAX_MEMBERS))
    for i in range(MAX_PINS):
        long.pin(f"{i}")
    assert len(text) <= MAX_PIN_TEXT
    assert pins_text(long) == ""
    assert "pins" not in to_query(long)


@pytest.mark.parametrize("text", [":2x4.vw", "a:garbage", "a", "a:2x4.vw"])
def test_pins_that_cannot_be_read_are_reported(text):
    session, problems = read({"pins": text})
    assert len(problems) == 1
    assert session.pins == {}
