"""The panels of the page "Your data": read data, change it, load weights; and what the unpruned model reaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import streamlit as st

from app import access, bring, lab, widgets, work
from app.cache import digest
from app.errors import error_box, escape
from app.session import Session
from app.widgets import Card
from hydra_core.data.limits import size_text
from hydra_core.data.sources import Upload
from hydra_core.errors import HydraError

BROUGHT, LOADED = "your_data/brought", "your_data/loaded"
DATA_KINDS = ["zip", "csv", "tsv", "jsonl", "npz"]
DATA_HELP = (
    "A zip with one folder of images a class; or a CSV, TSV or JSONL file with a text and a label column; or an npz "
    "with x and y. Folders named train, val and test are kept as such, else the set is split by a fixed seed."
)
CARDS = {
    "accuracy": Card("Accuracy", "high", "share", "Of the unpruned model, on the validation samples that pages use."),
    "chance": Card("A constant answer", "high", "share", "What always naming the most frequent class would reach."),
    "heads": Card("Heads", "high", "count", "Attention heads of all layers."),
    "parameters": Card("Parameters", "low", "count", "Of the unpruned model."),
}


def run_job(key: str, start: bool, make: Callable[[], Any]) -> Any | None:
    """A job that a button starts and that outlives reruns: its result once, then it is forgotten.

    What went wrong is shown here until the button is pressed again; the rest of the page stays.

    Args:
        key: of the session state, where the job is kept while it runs.
        start: whether the button was pressed.
        make: starts the job.
    """
    wrong = f"{key}/wrong"
    if start:
        st.session_state.pop(wrong, None)
        st.session_state[key] = make()
    job, found = st.session_state.get(key), None
    if job is not None:
        try:
            found = widgets.result_of(job, patience=3.0)
        except HydraError as error:
            st.session_state[wrong] = error
        if found is not None or wrong in st.session_state:
            del st.session_state[key]
    if wrong in st.session_state:
        error_box(st.session_state[wrong])
    return found


# -- the answer ----------------------------------------------------------------------------------


def base_card(state: Session) -> None:
    """What the unpruned model reaches, and a warning where that is no better than a constant answer."""
    problem = bring.reads(state.model, lab.data(state.data))
    if problem is not None:
        error_box(problem, warning=True)
        return
    report = widgets.result_of(work.base(state.model, state.data), patience=4.0)
    if report is None:
        return
    view, found = lab.model(state.model), lab.base(state.data, report.accuracy)
    values = {
        "accuracy": found.accuracy,
        "chance": found.chance,
        "heads": sum(view.shape),
        "parameters": view.parameters,
    }
    widgets.metric_cards(CARDS, values)
    named = f"**{escape(bring.title_of(state.model))}** on **{escape(lab.data(state.data).name)}**"
    st.markdown(
        f"{named}: {100 * found.accuracy:.1f} % of {found.samples:,} samples right "
        f"(95 % interval {100 * found.low:.1f} to {100 * found.high:.1f} %)."
    )
    probe = view.info.get("probe_accuracy")
    if isinstance(probe, float):
        st.markdown(
            f"Its classifier is a linear probe, fitted here on {view.info['probe_fitted']:,} samples; on "
            f"{view.info['probe_measured']:,} held-out ones it was right on **{probe:.1%}**."
        )
    if found.near_chance:
        st.warning(
            "**No better than a constant answer.** Usual reasons: the classes have another order or meaning, the "
            "weights belong to another model, or the images are far from what it was trained on. What pruning does to "
            "such a model says nothing.",
            icon=":material/warning:",
        )
    reading = widgets.result_of(work.reading(state.model, state.data))
    if reading is None:
        return
    memory, cut = reading
    if cut:
        st.caption(f"{cut:,} of the texts are longer than the {view.input_size[0]} tokens that the model reads; their "
                   "ends are cut off.")  # fmt: skip
    st.caption(f"Memory: {memory.now().text}. {escape(lab.sample(state.data).note)}.")


# -- data ----------------------------------------------------------------------------------------


def data_panel(state: Session) -> None:
    """Read a labelled set and OOD sources, then use them."""
    local = access.paths_allowed()
    ways = ["Upload", "From this machine or the hub"] if local else ["Upload"]
    way = st.segmented_control("Where are they?", ways, default=ways[0], required=True, key="your_data/way",
                               help="Paths are offered only where the server runs for its own machine.")  # fmt: skip
    sources = _typed() if way != "Upload" else _uploads()
    if sources is None:
        st.info("Nothing is written to disk: what is read stays in memory and belongs to this session.",
                icon=":material/upload_file:")  # fmt: skip
        return
    title, content, ood = sources
    pressed = st.button("Read it", type="primary", icon=":material/play_arrow:", key="your_data/read")
    key = digest("read", title, hash(content), tuple((n, hash(c), s) for n, (c, s) in ood.items()))
    found = run_job(
        "your_data/job",
        pressed,
        lambda: widgets.start(
            key,
            lambda job: bring.read_data(title, content, ood, progress=job.progress, cancel=job.cancel),
            "Reading your samples",
        ),
    )
    if found is not None:
        st.session_state[BROUGHT] = found


Sources = tuple[str, bring.Source, dict[str, tuple[bring.Source, str]]]


def _uploads() -> Sources | None:
    main = st.file_uploader("Your labelled samples", type=DATA_KINDS, key="your_data/id", help=DATA_HELP)
    others = st.file_uploader(
        "Samples the model should not know (optional)", type=DATA_KINDS, accept_multiple_files=True,
        key="your_data/ood",
        help="Each file is one OOD source. Of two of a kind, one serves validation and one the test; the only one of "
        "its kind serves both, half and half.",
    )  # fmt: skip
    shifts = {}
    for file in others:
        name = file.name.rsplit(".", 1)[0][:40]
        shift = st.segmented_control(f"How far is {escape(name)}?", ["near", "far"], default="far", required=True,
                                     key=f"your_data/shift/{file.file_id}",
                                     help="Near: other classes of the same kind. Far: another source.")  # fmt: skip
        shifts[name] = (file, shift)
    if main is None:
        return None
    content: dict[str, tuple[bring.Source, str]] = {
        name: (Upload(file.getvalue(), file.name), shift) for name, (file, shift) in shifts.items()
    }
    return main.name.rsplit(".", 1)[0][:60], Upload(main.getvalue(), main.name), content


def _typed() -> Sources | None:
    path = st.text_input(
        "Your labelled samples", key="your_data/path", placeholder="/home/me/photos   or   hf:OWNER/NAME",
        help="A folder of class folders, a zip, table or npz; or a data set of the hub by name, where it is reached.",
    )  # fmt: skip
    lines = st.text_area(
        "Samples the model should not know (optional)", key="your_data/paths",
        placeholder="near /home/me/other-photos\nfar /home/me/noise.zip",
        help="One OOD source a line: near or far, a space, a path or hf: name.",
    )  # fmt: skip
    if not path.strip():
        return None
    title = path.strip().rstrip("/\\").rsplit("/", 1)[-1][:60]
    ood: dict[str, tuple[bring.Source, str]] = dict(bring.parse_sources(lines))
    return title, path.strip(), ood


def what_was_read(found: bring.Brought) -> None:
    bundle = found.bundle
    sizes = {"train": bundle.train, "val": bundle.val, "test": bundle.test}
    parts = ", ".join(f"{len(part):,} {name}" for name, part in sizes.items() if part is not None)
    st.markdown(f"**{len(bundle.class_names)} classes**, {parts}.")
    for report in found.reports:
        st.markdown(f"**{escape(report.source)}**: {escape(report.summary)}")
        for note in report.notes:
            st.caption(escape(note))
        rows = report.rows()
        if rows:
            with st.expander(f"What was left out ({len(rows)} shown)", icon=":material/rule:"):
                widgets.show_table(pd.DataFrame(rows), f"left-out-{report.source}")


def use_data(state: Session, found: bring.Brought) -> None:
    """Switch the session to the data, with a model that fits its classes."""
    problem = bring.reads(state.model, found.bundle)
    if problem is not None:
        error_box(problem, warning=True)
        st.caption(f"Next: **Bring a model** above, one that reads {found.bundle.kind}s. These data wait for it.")
    elif bring.fits(state.model, found.bundle):
        if st.button("Use this data", type="primary", key="your_data/use", icon=":material/check:"):
            state.data = bring.align(found, state.model).name
            st.rerun()
    else:
        own_classes(state, state.model, found.name, found.bundle)


def own_classes(state: Session, model: str, data_name: str, bundle: Any) -> None:
    """For a model that does not name the data's classes: it has them unnamed, or gets a new classifier."""
    if not bring.can_name(model, bundle):
        probe(state, model, data_name, bundle)
        return
    st.markdown(
        f"**{escape(bring.title_of(model))}** has {len(bundle.class_names)} outputs without names, as many as there "
        "are classes here."
    )
    keep = "Its outputs are these classes, in this order"
    way = st.radio("What do its outputs mean?", [keep, "Something else: fit a new classifier"],
                   key="your_data/outputs",
                   help="Class folders are numbered by name, as torchvision's ImageFolder does.")  # fmt: skip
    if way != keep:
        probe(state, model, data_name, bundle)
        return
    names = ", ".join(bundle.class_names[:12]) + (" ..." if len(bundle.class_names) > 12 else "")
    st.caption(f"In order: {escape(names)}. The accuracy on top shows at once if the order is another.")
    if st.button("Use this model", type="primary", key="your_data/use_named", icon=":material/check:"):
        switch(state, bring.name_classes(model, bundle), data_name)


def switch(state: Session, model: str, data_name: str) -> None:
    """Use a model and data from now on; what was loaded on the way is done with."""
    state.use_model(model, lab.shape(model))
    state.data = data_name
    st.session_state.pop(LOADED, None)
    st.rerun()


def probe(state: Session, model: str, data_name: str, bundle: Any) -> None:
    """Offer a linear classifier for the data's classes on a frozen model, then use both."""
    title = escape(bring.title_of(model))
    if bundle.train is None or not len(bundle.train):
        st.info(
            f"**{title}** does not name the classes of **{escape(bundle.name)}**, and this data has no training part "
            "to fit a classifier on. Read labelled samples of your own under Bring data and use them, then come back.",
            icon=":material/info:",
        )
        return
    st.markdown(
        f"**{title}** does not name the classes of **{escape(bundle.name)}**. Its weights stay as they are; a linear "
        "classifier for them is fitted on its features (logistic regression), and its accuracy is shown."
    )
    pressed = st.button(
        "Fit a classifier, then use it on this data", type="primary", key="your_data/fit",
        icon=":material/fitness_center:",
    )  # fmt: skip
    name = run_job(
        "your_data/fit_job",
        pressed,
        lambda: widgets.start(
            digest("probe", model, data_name),
            lambda job: bring.fit_probe(model, bundle, progress=job.progress, cancel=job.cancel),
            "Fitting a linear classifier",
        ),
    )
    if name is not None:
        switch(state, name, data_name)


# -- a shifted version -----------------------------------------------------------------------------


def shift_panel(state: Session) -> None:
    """Corrupt the known images of the session's data; the unknown ones stay."""
    at = lab.shift_of(state.data)
    clean = at[0] if at else state.data
    if lab.data(clean).kind != "image":
        st.info("Corruptions are for images; this data are texts.", icon=":material/info:")
        return
    names = lab.corruptions()
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox("Corruption", list(names), list(names).index(at[1]) if at else 0,
                            format_func=names.__getitem__, key="corruption", bind="query-params", width=240,
                            help="Hendrycks and Dietterich (ICLR 2019), with their strengths.")  # fmt: skip
        severity = st.slider("Severity", 1, 5, at[2] if at else 3, key="severity", bind="query-params", width=240,
                             help="1 is mild, 5 is strong.")  # fmt: skip
    example(clean, name, severity)
    target = lab.shifted_name(clean, name, severity)
    with st.container(horizontal=True):
        pressed = st.button("Use this version", type="primary", key="your_data/shift_to", icon=":material/blur_on:",
                            disabled=target == state.data)  # fmt: skip
        if at and st.button("Back to the clean images", key="your_data/clean", icon=":material/undo:"):
            state.data = clean
            st.rerun()
    found = run_job(
        "your_data/shift_job",
        pressed,
        lambda: widgets.start(
            digest("shift", target),
            lambda job: lab.shifted(target, progress=job.progress, cancel=job.cancel),
            f"{names[name]}, severity {severity}",
        ),
    )
    if found is not None:
        state.data = target
        st.rerun()


def example(data_name: str, name: str, severity: int) -> None:
    """One image in all severities, the chosen one marked."""
    pictures = lab.severities(data_name, name)
    captions = ["clean", *(f"{s}, chosen" if s == severity else str(s) for s in range(1, len(pictures)))]
    with st.container(horizontal=True, gap="small"):
        for picture, caption in zip(pictures, captions, strict=True):
            st.image(picture, caption=caption, width=112, alt=f"the same image, {name}: {caption}")


# -- weights -----------------------------------------------------------------------------------------

HUB, FILE, UPLOAD = "Pretrained, from the hub", "A file on this machine", "Upload (safetensors)"


def model_panel(state: Session) -> None:
    """A model by name with weights from the hub, a file or an upload."""
    local = access.paths_allowed()
    name = st.text_input(
        "Model", key="your_data/model", placeholder="timm/vit_tiny_patch16_224",
        help="timm/NAME for image classifiers and backbones, open_clip/CONFIG for zero-shot models, hf/OWNER/NAME "
        "(or hf/FOLDER) for text encoders. The Start page says of any name whether it can be pruned.",
    ).strip()  # fmt: skip
    ways = [HUB, FILE, UPLOAD] if local else [HUB, UPLOAD]
    way = st.segmented_control("Weights", ways, default=HUB, required=True, key="your_data/weights",
                               help="Torch files (.pt, .pth, .bin) are read from your own machine only, without "
                               "running code in them; uploads are safetensors.")  # fmt: skip
    source: bring.Source | None = None
    if way == FILE:
        source = st.text_input("Path of the file", key="your_data/weights_path", placeholder="/home/me/w.safetensors")
        if beware := lab.weights_warning(source):
            st.warning(beware, icon=":material/shield:")
    elif way == UPLOAD:
        file = st.file_uploader("Weights", type=["safetensors"], key="your_data/weights_file")
        source = None if file is None else file.getvalue()
        if file is not None:
            st.caption(f"{size_text(len(source or b''))}; names, shapes and sizes are checked before it is read.")
    ready = bool(name) and (way == HUB or bool(source))
    pressed = st.button("Load it", type="primary", key="your_data/load", icon=":material/download:", disabled=not ready)
    found = run_job(
        "your_data/load_job",
        pressed,
        lambda: widgets.start(
            digest("weights", name, way, hash(source)),
            lambda job: bring.load_weights(name, source, progress=job.progress, cancel=job.cancel),
            f"Loading {name}",
        ),
    )
    if found is not None:
        st.session_state[LOADED] = found
    loaded = st.session_state.get(LOADED)
    if loaded is not None:
        use_model(state, loaded)


def use_model(state: Session, name: str) -> None:
    """What was loaded, and a way to use it: on the data that were read and wait for a model, else on the session's."""
    waiting = st.session_state.get(BROUGHT)
    if waiting is not None and (waiting.is_used(state.data) or bring.reads(name, waiting.bundle) is not None):
        waiting = None
    view, bundle = lab.model(name), lab.data(state.data) if waiting is None else waiting.bundle
    heads = f"{len(view.shape)} x {view.shape[0]}" if len(set(view.shape)) == 1 else f"{sum(view.shape)} in all"
    classes = f"{view.num_classes:,} classes" if view.num_classes else "no classes yet"
    size = view.input_size
    inputs = f"up to {size[0]:,} tokens" if len(size) == 1 else f"{' x '.join(map(str, size))} pixels"
    st.markdown(
        f"**{escape(bring.title_of(name))}** is loaded: {heads} heads, {view.parameters / 1e6:.1f} M "
        f"parameters, {classes}, reads {inputs}."
    )
    if name == state.model:
        return
    problem = bring.reads(name, bundle)
    if problem is not None:
        error_box(problem, warning=True)
        if st.button("Use it all the same", key="your_data/use_model_only", help="Then bring data that it can read."):
            state.use_model(name, view.shape)
            st.rerun()
    elif bring.fits(name, bundle):
        if st.button("Use this model", type="primary", key="your_data/use_model", icon=":material/check:"):
            switch(state, name, state.data if waiting is None else bring.align(waiting, name).name)
    else:
        own_classes(state, name, state.data if waiting is None else waiting.name, bundle)
