"""How does it look on my data? Upload a set and OOD sources; the model is fitted to your classes if need be."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from app import bring, frame, lab, widgets
from app.cache import digest
from app.session import Session

BROUGHT = "your_data/brought"
KINDS = ["zip", "csv", "tsv", "jsonl", "npz"]
HELP = (
    "A zip with one folder of images a class; or a CSV, TSV or JSONL file with a text and a label column; or an npz "
    "with x and y. Folders named train, val and test are kept as such, else the set is split by a fixed seed."
)


def upload(state: Session) -> None:
    main = st.file_uploader("Your labelled samples", type=KINDS, key="your_data/id", help=HELP)
    others = st.file_uploader(
        "Samples the model should not know (optional)", type=KINDS, accept_multiple_files=True, key="your_data/ood",
        help="Each file is one OOD source. The first of a kind serves validation or test as a whole, so bring two "
        "or more to have both.",
    )  # fmt: skip
    shifts = {}
    for file in others:
        name = file.name.rsplit(".", 1)[0][:40]
        shift = st.segmented_control(f"How far is {name}?", ["near", "far"], default="far", required=True,
                                     key=f"your_data/shift/{file.file_id}",
                                     help="Near: other classes of the same kind. Far: another source.")  # fmt: skip
        shifts[name] = (file, shift)
    if main is None:
        st.info("Upload a file to begin. It stays in this session's memory and is never written to disk.",
                icon=":material/upload_file:")  # fmt: skip
        return
    if st.button("Read it", type="primary", icon=":material/play_arrow:", key="your_data/read"):
        title, content = main.name.rsplit(".", 1)[0][:60], main.getvalue()
        ood = {name: (file.getvalue(), shift) for name, (file, shift) in shifts.items()}
        key = digest("read", title, hash(content), tuple((n, hash(c), s) for n, (c, s) in ood.items()))
        st.session_state["your_data/job"] = widgets.start(
            key,
            lambda job: bring.read_data(title, content, ood, progress=job.progress, cancel=job.cancel),
            "Reading your files",
        )
    job = st.session_state.get("your_data/job")
    if job is not None:
        found = widgets.result_of(job, patience=3.0)
        if found is not None:
            st.session_state[BROUGHT] = found
            st.session_state.pop("your_data/job")


def what_was_read(found: bring.Brought) -> None:
    bundle = found.bundle
    sizes = {"train": bundle.train, "val": bundle.val, "test": bundle.test}
    parts = ", ".join(f"{len(part):,} {name}" for name, part in sizes.items() if part is not None)
    st.markdown(f"**{len(bundle.class_names)} classes**, {parts}.")
    for report in found.reports:
        st.markdown(report.summary)
        rows = report.rows()
        if rows:
            with st.expander(f"What was left out ({len(rows)} shown)", icon=":material/rule:"):
                widgets.show_table(pd.DataFrame(rows), f"left-out-{report.source}")


def use(state: Session, found: bring.Brought) -> None:
    """Switch the session to the data, with a model that fits its classes."""
    if bring.fits(state.model, found.bundle):
        if st.button("Use this data", type="primary", key="your_data/use", icon=":material/check:"):
            state.data = bring.align(found, state.model).name
            st.toast("All pages now use your data.")
        return
    st.markdown(
        f"**{state.model}** was trained on other classes. Its weights stay as they are; a linear classifier for your "
        "classes is fitted on its features (logistic regression), and its accuracy is shown."
    )
    if st.button(
        "Fit a classifier and use this data", type="primary", key="your_data/fit", icon=":material/fitness_center:"
    ):
        model = state.model
        st.session_state["your_data/fit_job"] = widgets.start(
            digest("probe", model, found.name),
            lambda job: bring.fit_probe(model, found.bundle, progress=job.progress, cancel=job.cancel),
            "Fitting a linear classifier",
        )
    job: Any = st.session_state.get("your_data/fit_job")
    name = widgets.result_of(job, patience=3.0) if job is not None else None
    if name is not None:
        st.session_state.pop("your_data/fit_job")
        state.use_model(name, lab.shape(name))
        state.data = found.name
        st.toast("All pages now use your data and the fitted classifier.")
        st.rerun()


def page() -> None:
    state = frame.page_head("your_data")
    upload(state)
    found = st.session_state.get(BROUGHT)
    if found is None:
        return
    st.subheader("What was read", anchor=False)
    what_was_read(found)
    if state.data == found.name:
        accuracy = lab.model(state.model).info.get("probe_accuracy")
        note = f" The probe's accuracy on samples it did not see: **{accuracy:.1%}**." if accuracy is not None else ""
        st.success(f"All pages use this data with the model **{state.model}**.{note}", icon=":material/check_circle:")
    else:
        use(state, found)


page()
