"""Numbers as cards print them, and the view of long work."""

import json
import math

import pytest
from streamlit.testing.v1 import AppTest

from app.widgets import change, number


@pytest.mark.parametrize(
    ("value", "style", "text"),
    [
        (0.91342, "share", "91.3 %"), (0.0123456, "plain", "0.0123"), (1_234_567, "count", "1.23 M"),
        (950, "count", "950"), (None, "plain", "–"), (math.nan, "share", "–"), (2.5e12, "count", "2.50 T"),
    ],
)  # fmt: skip
def test_numbers(value, style, text):
    assert number(value, style) == text


@pytest.mark.parametrize(
    ("now", "before", "style", "text"),
    [
        (0.92, 0.90, "share", "+2.0 pt"), (0.01, 0.02, "plain", "-0.0100"), (75, 100, "count", "-25.0 %"),
        (0.90001, 0.90, "share", ""), (1.0, 1.0, "plain", ""), (None, 1.0, "plain", ""), (1.0, math.nan, "plain", ""),
        (3, 0, "count", "+3"), (537_300, 537_100, "count", "+0.04 %"), (5, 5, "count", ""),
    ],
)  # fmt: skip
def test_changes(now, before, style, text):
    assert change(now, before, style) == text


def cards_page():
    from app.widgets import Card, metric_cards

    cards = {"acc": Card("Accuracy", "high", "share"), "ece": Card("ECE", "low"), "nll": Card("NLL", "low")}
    metric_cards(cards, {"acc": 0.9, "ece": 0.05, "nll": 1.0}, {"acc": 0.8, "ece": 0.02, "nll": 1.0})


def test_cards_say_better_or_worse_in_words_and_direction_in_signs():
    at = AppTest.from_function(cards_page).run()
    accuracy, ece, nll = at.metric
    assert (accuracy.value, accuracy.delta) == ("90.0 %", "+10.0 pt")
    assert ece.delta == "+0.0300"
    assert [m.proto.delta_description for m in at.metric] == ["better", "worse", "no change"]
    assert accuracy.proto.color != ece.proto.color  # both rise: one is good, one is not
    assert nll.delta == "0"


def interval_page():
    from app.widgets import Card, metric_cards

    cards = {"acc": Card("Accuracy", "high", "share"), "ece": Card("ECE", "low")}
    intervals = {"acc": (0.79, 0.93), "ece": (0.04, 0.06)}
    metric_cards(cards, {"acc": 0.9, "ece": 0.05}, {"acc": 0.8, "ece": 0.02}, notes={}, intervals=intervals)


def test_a_change_within_the_interval_is_neither_better_nor_worse():
    at = AppTest.from_function(interval_page).run()
    accuracy, ece = at.metric
    assert [m.proto.delta_description for m in at.metric] == ["unclear", "worse"]
    assert accuracy.delta == "+10.0 pt"
    assert accuracy.proto.color not in (ece.proto.color, ece.proto.RED, ece.proto.GREEN)
    assert [c.value for c in at.caption] == ["79.0 to 93.0", "0.0400 to 0.0600"]


def job_page():
    import time

    import streamlit as st

    from app.widgets import result_of, start

    def work(job):
        for i in range(st_steps):
            job.progress(i / st_steps, f"step {i}")
            time.sleep(0.01)
        return "ready"

    st_steps = st.session_state.get("steps", 1)
    result = result_of(start(f"work {st_steps}", work, "Counting"), patience=st.session_state.get("patience", 5.0))
    st.write(f"result: {result}")


def test_quick_work_shows_its_result_at_once():
    at = AppTest.from_function(job_page).run()
    assert at.markdown[0].value == "result: ready"


def test_long_work_shows_progress_and_can_be_cancelled_and_run_again():
    at = AppTest.from_function(job_page)
    at.session_state["steps"], at.session_state["patience"] = 500, 0.05
    at.run()
    assert at.markdown[0].value == "result: None"
    job = at.session_state["hydra/jobs"].get("work 500")
    assert job.active
    at.button(key="job/work 500/stop").click().run()
    assert job.wait(5)
    at.run()
    assert "cancelled" in at.info[0].value
    at.session_state["patience"] = 20.0
    at.button(key="job/work 500/again").click().run(timeout=30)
    assert at.markdown[0].value == "result: ready"


def failing_page():
    from app.errors import guard
    from app.widgets import result_of, start
    from hydra_core.errors import DataError

    def work(job):
        raise DataError("One class only", hint="Add another.")

    with guard():
        result_of(start("bad", work, "Working"))


def test_a_polls_own_container_lies_in_one_of_the_page():
    """Streamlit drops a fragment's unsent messages, its container's too, when the fragment runs again."""
    at = AppTest.from_function(job_page)
    at.session_state["steps"], at.session_state["patience"] = 500, 0.05
    at.run()
    at.session_state["hydra/jobs"].close()
    of_the_page = at.main.children[0]
    of_the_poll = of_the_page.children[0]
    assert [child.type for child in of_the_poll.children.values()] == ["progress", "button"]


def test_failed_work_becomes_a_box():
    at = AppTest.from_function(failing_page).run()
    assert not at.exception
    assert "Add another." in at.error[0].value


def parts_page():
    import time

    import streamlit as st

    from app.widgets import parts_of, start

    def work(job):
        for i in range(3):
            job.publish(i)
            while not (st_gates["open"] > i or job.cancel.is_set()):
                time.sleep(0.01)
            job.progress(i / 3, "working")
        return "ready"

    st_gates = st.session_state["gates"]
    job = start("parts", work, "Counting")
    st.write(f"parts: {parts_of(job, patience=0.3)}, {job.state}")


def test_parts_are_drawn_as_they_come_and_stay_when_work_is_cancelled():
    at = AppTest.from_function(parts_page)
    at.session_state["gates"] = gates = {"open": 0}
    at.run()
    assert at.markdown[0].value == "parts: [0], running"
    assert [button.label for button in at.button] == ["Cancel"]
    gates["open"] = 2
    job = at.session_state["hydra/jobs"].get("parts")
    while len(job.partial) < 3:
        job.wait(0.01)
    assert at.run().markdown[0].value == "parts: [0, 1, 2], running"
    at.button(key="job/parts/stop").click().run()
    assert job.wait(5)
    at.run()
    assert at.markdown[0].value == "parts: [0, 1, 2], cancelled"
    gates["open"] = 3
    at.button(key="job/parts/again").click().run()
    at.session_state["hydra/jobs"].get("parts").wait(5)
    assert at.run().markdown[0].value == "parts: [0, 1, 2], done"
    assert not at.button


def pick_page():
    import streamlit as st

    from app.widgets import pick

    options = st.session_state.get("options", ["one", "two", "three"])
    st.write(f"chosen: {pick('Number', options, 'number', options[-1], format_func=str.upper)}")


@pytest.mark.parametrize(("asked", "chosen"), [("two", "two"), ("TWO", "two"), ("four", "three"), (None, "three")])
def test_a_pick_comes_from_the_address_by_name_or_label_and_stands_in_it(asked, chosen):
    at = AppTest.from_function(pick_page)
    if asked:
        at.query_params["number"] = asked
    at.run()
    assert at.markdown[0].value == f"chosen: {chosen}"
    assert at.query_params["number"] in (chosen, [chosen])
    at.selectbox(key="number").set_value("one").run()
    assert at.query_params["number"] in ("one", ["one"])
    at.session_state["options"] = ["two", "three"]
    assert at.run().markdown[0].value == "chosen: three"
    at.session_state["options"] = ["three", "four"]
    assert at.run().markdown[0].value == "chosen: three"  # still there: it stays


def tables_page():
    import pandas as pd

    from app.widgets import show_table

    show_table(pd.DataFrame({c: [1.0] for c in "abcdefgh"}), "wide", pinned=2)
    show_table(pd.DataFrame({c: [1.0] for c in "abc"}), "narrow")


def test_a_wide_table_says_that_it_scrolls_and_keeps_its_first_columns():
    at = AppTest.from_function(tables_page).run()
    wide, narrow = (json.loads(table.proto.columns) for table in at.dataframe)
    assert {name for name, config in wide.items() if config.get("pinned")} == {"a", "b"}
    assert not any(config.get("pinned") for config in narrow.values())
    assert [c.value for c in at.caption] == ["Scroll the table sideways for columns that do not fit."]
