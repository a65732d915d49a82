"""How does it look on my data? Bring data or weights, or corrupt the data; the unpruned model's figures are on top."""

from __future__ import annotations

import streamlit as st

from app import frame, yours

DATA = "Bring data"
PANELS = {DATA: yours.data_panel, "A shifted version": yours.shift_panel, "Bring a model": yours.model_panel}


def page() -> None:
    state = frame.page_head("your_data")
    yours.base_card(state)
    name = st.segmented_control("What would you like to change?", list(PANELS), default=DATA, required=True,
                                key="bring", bind="query-params")  # fmt: skip
    with st.container(border=True):
        PANELS[name](state)
    found = st.session_state.get(yours.BROUGHT)
    if name != DATA or found is None:
        return
    st.subheader("What was read", anchor=False)
    yours.what_was_read(found)
    if found.is_used(state.data):
        st.success("All pages use this data.", icon=":material/check_circle:")
    else:
        yours.use_data(state, found)


page()
