"""Nobody sees a traceback: what users can mend is explained, what is ours gets an id."""

import logging

from streamlit.testing.v1 import AppTest

from app.errors import escape


def user_error():
    from app.errors import guard
    from hydra_core.errors import MaskError

    with guard():
        raise MaskError("The mask does not fit", expected="6x8", got="2x4 <b>*x*</b>", hint="Start anew.")


def our_error():
    import streamlit as st

    from app.errors import guard

    st.session_state.setdefault("control", 3)
    st.session_state.setdefault("hydra/plan", "kept")
    with guard():
        st.write("before")
        if st.session_state.get("control") == 3:
            raise ZeroDivisionError("secret detail")
        st.write("fine")


def flow():
    import streamlit as st

    from app.errors import guard

    with guard():
        st.session_state["runs"] = st.session_state.get("runs", 0) + 1
        if st.session_state["runs"] == 1:
            st.rerun()
        st.write("second run")
        st.stop()


def test_an_error_of_the_user_says_expected_got_and_what_to_do():
    at = AppTest.from_function(user_error).run()
    assert not at.exception
    text = at.error[0].value
    for part in ("The mask does not fit.", "Expected: 6x8", "Got: 2x4", "Start anew."):
        assert part in text
    assert "<b>" not in text.replace("\\<b\\>", "")  # from outside: never as markup


def test_an_error_of_ours_shows_an_id_and_the_log_has_the_rest(caplog):
    with caplog.at_level(logging.ERROR, "hydra_lab"):
        at = AppTest.from_function(our_error).run()
    assert not at.exception
    text = at.error[0].value
    assert "secret" not in text
    assert "Traceback" not in text
    incident = text.split("`")[1]
    assert incident in caplog.text
    assert "secret detail" in caplog.text


def test_reset_this_page_forgets_controls_and_keeps_the_session():
    at = AppTest.from_function(our_error).run()
    at.session_state["control"] = 3
    at.button(key="errors/reset").click().run()
    assert at.session_state["hydra/plan"] == "kept"


def test_start_over_forgets_everything():
    at = AppTest.from_function(our_error)
    at.query_params["plan"] = "x"
    at.run()
    at.session_state["hydra/extra"] = 1
    at.button(key="errors/over").click().run()
    assert "hydra/extra" not in at.session_state
    assert "plan" not in at.query_params


def test_reruns_and_stops_pass_through_the_guard():
    at = AppTest.from_function(flow).run()
    assert not at.exception
    assert not at.error
    assert at.markdown[0].value == "second run"


def test_text_from_outside_loses_its_markup():
    assert escape("a*b_[x](y) :red[z] $m$") == r"a\*b\_\[x\](y) \:red\[z\] \$m\$"
