"""Learn: a tour for a class, the paper's figures beside our own measurements, and every word explained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import streamlit as st

from app import frame, lab, paper, tour, travel, widgets
from app.cache import digest
from app.charts.learn import fused_graph
from app.glossary import glossary
from app.jobs import Job
from app.registry import page as entry_of

T = TypeVar("T")
PARTS = ("Tour", "The paper's figures", "Glossary")


# -- where the reader is -------------------------------------------------------------------------


def place(key: str, label: str, options: Sequence[T], **look: Any) -> T:
    """A choice that is a place of its own: Back returns to the one before, and so does coming from another page.

    `page` writes it into the address. Streamlit's own binding would overwrite the address on a click, and drop what
    stands there of a control that another part hides.
    """
    kept = f"learn/{key}"
    if key not in st.session_state or frame.went_back():
        st.session_state[key] = widgets.asked_for(key, options, st.session_state.get(kept, options[0]))
    chosen = st.segmented_control(label, options, required=True, key=key, **look)
    st.session_state[kept] = chosen
    return chosen


# -- the tour ------------------------------------------------------------------------------------


def walk(by: int) -> None:
    """One step on or back."""
    st.session_state["step"] = min(max(1, st.session_state["step"] + by), len(tour.STEPS))


def show_tour() -> None:
    at = step_controls()
    frame.write_address(part=PARTS[0], step=str(at))
    step = tour.STEPS[at - 1]
    st.subheader(f"{at}. {step.title}", anchor=False)
    st.markdown(step.idea)
    scene = widgets.result_of(only_job(step), patience=4.0)
    if scene is not None:
        draw(step, scene)
    st.caption(f"The tour runs on {tour.model()} and {tour.data()}, whatever the side bar shows.")


def only_job(step: tour.Step) -> Job:
    """The job of a step; one that was left behind unfinished is stopped, so that it holds nobody up."""
    key, before = digest("tour", step.name), st.session_state.get("learn/job")
    left = frame.jobs().get(before) if before not in (None, key) else None
    if left is not None and left.active:
        frame.jobs().forget(left.key)
    st.session_state["learn/job"] = key
    return widgets.start(key, lambda job: step.make(job.progress, job.cancel), step.title)


def step_controls() -> int:
    """Steps by number, and one on or back, all in one row; returns the number of the step."""
    numbers = range(1, len(tour.STEPS) + 1)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        steps, walking = st.container(width="content"), st.container(width="content", horizontal=True)
    with steps:
        at = place("step", "Step", numbers, help="The address holds the step: send it to your class.")
    walking.button(
        "Previous", key="learn/back", on_click=walk, args=(-1,), disabled=at == 1, icon=":material/arrow_back:"
    )
    walking.button("Next", key="learn/next", on_click=walk, args=(1,), disabled=at == len(tour.STEPS),
                   icon=":material/arrow_forward:", icon_position="right")  # fmt: skip
    return at


def draw(step: tour.Step, scene: tour.Scene) -> None:
    """Picture, what to notice, what to do."""
    with st.container(horizontal=True, gap="medium"):  # side by side where there is room
        picture, words = st.container(width=580), st.container(width="stretch")
    with picture:
        widgets.show_figure(scene.figure, f"tour-{step.name}", scene.alt)
    with words:
        st.info(f"**Notice.** {scene.notice}", icon=":material/visibility:")
        st.success(f"**Do.** {step.task}", icon=":material/touch_app:")
        entry = entry_of(step.page)
        if st.button(f"Open {entry.title} with this", key="learn/do", icon=f":material/{entry.icon}:", type="primary"):
            travel.go(step.page, scene.settings, **scene.controls)


# -- the paper -----------------------------------------------------------------------------------


def show_paper() -> None:
    st.markdown(
        f"Numbers marked *paper* are those of {paper.CITE}, on its models and data. Ours are measured on a small demo: "
        "read the direction, not the size."
    )
    table = lab.stored_comparison(tour.model(), tour.data())
    if table is not None:
        st.markdown(tour.verdict(table))
    claims = paper.claims_table(table)
    numbers = {name: st.column_config.NumberColumn(format="%.2f") for name in claims if claims[name].dtype == float}
    widgets.show_table(claims, "paper-and-demo", column_config=numbers)
    st.caption("OOD detection in percent, mean over OOD sets; AUROC up and FPR95 down is better. Gained: positive is "
               "better for Hydra.")  # fmt: skip
    st.subheader("The demo's Hydra, fused", anchor=False)
    plan = tour.hydra()
    alt = (
        f"{len(plan)} members share layers 0 to {plan.shared_layers - 1} and then run apart; their answers are averaged"
    )
    st.graphviz_chart(fused_graph(plan), width="content", alt=alt)
    st.caption("Boxes are stretches of layers, names the members that run through them. Shared ones run once.")
    for number, figure in enumerate(paper.figures(), start=1):
        with st.container(border=True):
            st.markdown(f"**{number}. {figure.title}**  \n{figure.says} **{figure.ours}**")
            with st.container(horizontal=True):
                ways_to(figure)


def ways_to(figure: paper.Figure) -> None:
    """Buttons to the tour's step and to the page that shows a figure live."""
    names = [step.name for step in tour.STEPS]
    if figure.step:
        st.button(f"Step {names.index(figure.step) + 1} of the tour", key=f"learn/step/{figure.title}",
                  on_click=to_step, args=(names.index(figure.step) + 1,), icon=":material/school:")  # fmt: skip
    if travel.has_page(figure.page):
        entry = entry_of(figure.page)
        if st.button(f"See it on {entry.title}", key=f"learn/see/{figure.title}", icon=f":material/{entry.icon}:"):
            travel.go(figure.page, tour.hydra_settings())


def to_step(number: int) -> None:
    st.session_state["part"], st.session_state["step"] = PARTS[0], number


# -- the glossary --------------------------------------------------------------------------------


def show_glossary() -> None:
    word = st.text_input("Find", key="word", bind="query-params", max_chars=60, placeholder="such as ECE or trunk",
                         help="Looks in words and in their explanations.")  # fmt: skip
    needle = word.strip().casefold()
    hits = {
        topic: {w: text for w, text in words.items() if needle in w.casefold() or needle in text.casefold()}
        for topic, words in glossary().items()
    }
    if not any(hits.values()):
        st.info("No word or explanation holds that. Try a shorter piece.", icon=":material/search_off:")
    for topic, words in hits.items():
        if words:
            st.subheader(topic, anchor=False)
            st.markdown("\n".join(f"- **{w}**: {text}" for w, text in words.items()))


# -- the page ------------------------------------------------------------------------------------


def page() -> None:
    frame.page_head("learn")
    part = place("part", "Part", PARTS, label_visibility="collapsed")
    if part != PARTS[0]:
        frame.write_address(part=part)
    {PARTS[0]: show_tour, PARTS[1]: show_paper, PARTS[2]: show_glossary}[part]()


page()
