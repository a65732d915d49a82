"""The landing page: what this is, what is loaded, finished scenarios, where to go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from app import arrival, bring, cards, frame, lab, travel, widgets, work
from app.cache import digest
from app.errors import error_box, escape
from app.registry import PAGES
from app.registry import page as entry_of
from app.scenarios import Scenario, scenarios
from app.session import Session
from hydra_core.errors import HydraError
from hydra_core.heads.mask import HeadMask

CARD = 316  # pixels: three beside each other on a wide screen


def in_cards(items: Sequence[Any], draw: Callable[[Any], None]) -> None:
    """Bordered cards of one width that wrap."""
    with st.container(horizontal=True, gap="small"):
        for item in items:
            with st.container(border=True, width=CARD, height="stretch"):
                draw(item)


# -- the chosen pair -----------------------------------------------------------------------------


def facts(state: Session) -> Any | None:
    """Figures of the chosen model on the chosen data; returns its report when it is there."""
    report = widgets.result_of(work.base(state.model, state.data), patience=4.0)
    if report is not None:
        values = cards.values_of(report, lab.cost(state.model, HeadMask.full(state.plan.shape)))
        widgets.metric_cards({n: c for n, c in cards.ALL.items() if n in values}, values)
        st.caption(f"{escape(bring.title_of(state.model))}, unpruned, on {escape(lab.sample(state.data).note)}.")
    return report


# -- scenarios -----------------------------------------------------------------------------------


def presets(state: Session) -> None:
    """Cards that open a finished scenario on What if."""
    st.subheader("Open a finished scenario", anchor=False)
    scores = widgets.result_of(work.score(state), patience=3.0)
    if scores is not None:
        in_cards(scenarios(state.model, state.data, scores), preset)
        st.caption("Each is a real plan. What if opens with it; Undo there brings your own plan back.")


def preset(scenario: Scenario) -> None:
    st.markdown(f":material/{scenario.icon}: **{scenario.title}**")
    st.markdown(scenario.about)
    if st.button("Open in What if", key=f"start/open/{scenario.name}", icon=":material/tune:"):
        travel.go("what_if", scenario.settings)


# -- models and data -----------------------------------------------------------------------------


def models(state: Session, report: Any | None) -> None:
    st.subheader("Models", anchor=False)
    names = list(dict.fromkeys((state.model, *lab.model_names())))
    in_cards(names, lambda name: model_card(state, name, report if name == state.model else None))
    check_model()


def model_card(state: Session, name: str, report: Any | None) -> None:
    """Layers x heads, parameters, what the unpruned model reaches, whether it can be pruned."""
    try:
        view = lab.model(name)
    except HydraError as error:
        st.markdown(f"**{escape(name)}**")
        error_box(error, warning=True)
        return
    uniform = len(set(view.shape)) == 1
    heads = (
        f"{len(view.shape)} x {view.shape[0]} heads"
        if uniform
        else f"{sum(view.shape)} heads, layer by layer {view.shape}"
    )
    st.markdown(
        f"**{escape(name)}**  \n{heads} (layers x heads)  \n{widgets.number(view.parameters, 'count')} parameters, "
        f"{view.num_classes} classes  \n{can_be_pruned(view)}"
    )
    st.markdown(base_line(view, state, report))
    use_button(name, name == state.model, "model")


def can_be_pruned(view: Any) -> str:
    """Every head of a model that loads can be masked; some layers cannot be made smaller."""
    if view.sliceable:
        return ":material/check: every head can be pruned, and cut out of the weights"
    kinds = ", ".join(sorted({layer.kind.name for layer in view.layers if layer.kind.slice is None}))
    return f":material/check: every head can be pruned; {escape(kinds)} keep their size (zeroed, not cut)"


def base_line(view: Any, state: Session, report: Any | None) -> str:
    """Base accuracy and ECE: measured just now, or as measured after training on the whole validation split."""
    known = view.info.get("val", {}) if state.data == lab.default_data() else {}
    if report is None and not {"accuracy", "ece"} <= known.keys():
        return "*Use it to measure its accuracy and ECE here.*"
    accuracy, ece = (report.accuracy, report.ece) if report is not None else (known["accuracy"], known["ece"])
    where = "above" if report is not None else "on all validation samples"
    return f"**{widgets.number(accuracy, 'share')}** accuracy, **{widgets.number(ece)}** ECE ({where})"


def use_button(name: str, used: bool, what: str) -> None:
    st.button(
        "In use" if used else "Use it",
        key=f"start/use/{what}/{name}",
        disabled=used,
        icon=":material/check:" if used else None,
        on_click=arrival.pick,
        kwargs={what: name},
    )


def check_model() -> None:
    """Whether a model of a registry can be pruned, and why not: built without weights."""
    with st.expander("Can my model be pruned?", icon=":material/help:"):
        name = st.text_input("Name in a registry", key="start/check", placeholder="timm/swin_tiny_patch4_window7_224",
                             max_chars=200, help="A name of timm or open_clip. It is built without weights and masks "
                             "are tried on it; nothing is downloaded.")  # fmt: skip
        if not name.strip():
            st.caption("Type a name; press Enter. To use a model, type its name into the side bar, or bring its "
                       "weights on Your data.")  # fmt: skip
            return
        job = widgets.start(
            digest("prunable", name),
            lambda job: lab.prunable(name, progress=job.progress, cancel=job.cancel),
            f"Building {name[:60]}",
        )
        try:
            row = widgets.result_of(job, patience=3.0)
        except HydraError as error:
            error_box(error, warning=True)
            return
        if row is not None:
            st.markdown(verdict(row))


def verdict(row: Any) -> str:
    """What a row of the coverage table says, in a sentence."""
    if row["status"] in ("refused", "no heads"):
        return f":material/block: **Cannot be pruned**: {escape(row['reason'] or 'it has no attention heads')}."
    layers = f"{row['heads'].replace('+', ' + ')} heads of {escape(row['attention'])}"
    how = "and its members fuse into one network" if row["status"] == "masked and fused" else "members run one by one"
    cut = "cut out of the weights" if row["cut"] else "zeroed; some layers keep their size"
    return f":material/check: **Can be pruned**: {layers}; heads are {cut}, {how}."


def data_sets(state: Session) -> None:
    st.subheader("Data", anchor=False)
    in_cards(list(dict.fromkeys((state.data, *lab.data_names()))), lambda name: data_card(state, name))


def data_card(state: Session, name: str) -> None:
    """Classes, sizes, OOD sets for validation and for test."""
    bundle = lab.data(name)
    classes = ", ".join(bundle.class_names[:10]) + (" ..." if len(bundle.class_names) > 10 else "")
    st.markdown(
        f"**{escape(bundle.name)}**, {len(bundle.class_names)} classes of {bundle.kind}s  \n{escape(classes)}  \n"
        f"{len(bundle.val):,} validation and {len(bundle.test):,} test samples  \n"
        f"OOD for validation: {ood_names(bundle.ood_val)}  \nOOD for test: {ood_names(bundle.ood_test)}"
    )
    if bundle.kind == "image" and bundle.val.labels is not None:
        with st.container(horizontal=True, gap="small"):
            for c, label in enumerate(bundle.class_names[:8]):
                first = (bundle.val.labels == c).argmax()
                st.image(bundle.val.inputs[first], width=44, alt=f"a sample of {label}")
    if bundle.about:
        with st.popover("Why these", icon=":material/info:"):
            st.markdown(escape(bundle.about))
    use_button(name, name == state.data, "data")


def ood_names(sets: Any) -> str:
    return ", ".join(f"{escape(name)} ({part.shift})" for name, part in sets.items()) or "none"


# -- the page ------------------------------------------------------------------------------------


def page() -> None:
    state = frame.page_head("start")
    st.markdown(
        "Hydra Lab shows what single attention heads do for a classifier's **calibration** and for its sense of what "
        "it does **not know**. Score the heads, prune some, and fuse several pruned copies into one network that acts "
        "as an ensemble at a fraction of its cost. Every figure is computed live, on real data, on this machine."
    )
    st.page_link(entry_of("learn").path, label="**New here?** Take the tour: ten steps on the demo",
                 icon=":material/school:")  # fmt: skip
    report = facts(state)
    presets(state)
    models(state, report)
    data_sets(state)
    st.subheader("Where to go", anchor=False)
    for entry in PAGES[1:]:
        name, question = st.columns([1, 3], vertical_alignment="center")  # a link's own label is cut off, a text wraps
        name.page_link(entry.path, label=f"**{entry.title}**", icon=f":material/{entry.icon}:")
        question.markdown(entry.question)


page()
