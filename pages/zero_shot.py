"""What do the words do to a zero-shot model? Class names and prompts, edited live."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from app import arrival, bring, cards, frame, lab, widgets
from app.cache import digest
from app.charts.reliability import describe_bins, reliability_figure
from app.charts.zero_shot import two_scores
from app.errors import error_box, escape
from app.head_grid import Stroke, head_grid, paint_mask
from app.session import Session
from hydra_core.errors import HydraError
from hydra_core.heads.mask import HeadMask
from hydra_core.metrics import METRICS

DEMO, OWN = "demo/fashion-clip", "My own"
TEXT_HEADS = "text_heads"  # in the address: the mask of the text tower
NAMES_FOR = "zero_shot/names_for"  # the data whose classes the names stand for
SHOWN = ("accuracy", "ece", "nll", "brier")
TABLE = ("accuracy", "nll", "ece", "auroc_near", "fpr95_near", "auroc_far", "fpr95_far")


# -- the words -----------------------------------------------------------------------------------


def other_model(state: Session) -> None:
    """The page needs a model whose classes are named by texts."""
    title = escape(bring.title_of(state.model))
    st.info(f"**{title}** has classes of its own: words do nothing to it.", icon=":material/info:")
    st.button("Take the demo CLIP", type="primary", icon=":material/translate:", key="zero_shot/demo",
              on_click=arrival.pick, kwargs={"model": DEMO})  # fmt: skip
    real_clip()


def default_words(state: Session) -> lab.Words:
    """The data's own class names in one sentence."""
    names = "\n".join(lab.data(state.data).class_names)
    return lab.words_of(state.data, names, next(iter(lab.prompt_lists().values())))


def typed_words(state: Session) -> lab.Words | None:
    """What stands in the boxes; None, and a box that says why, where it cannot be used."""
    known = lab.data(state.data).class_names
    if st.session_state.setdefault(NAMES_FOR, state.data) != state.data:  # other data has other classes
        st.session_state["classes"], st.session_state[NAMES_FOR] = "\n".join(known), state.data
    names = st.text_area(
        "Class names, one a line", "\n".join(known), key="classes", bind="query-params", height=250, max_chars=20_000,
        help="Line 1 stands for the first class of the data, and so on: "
        + escape(", ".join(known[:20])) + ". Further lines are classes that no sample belongs to.",
    )  # fmt: skip
    lists = lab.prompt_lists()
    chosen = st.selectbox("Prompts", [*lists, OWN], key="prompts", bind="query-params",
                          help="Each class name is put where {} stands. The text features of all sentences are "
                          "averaged. The longer lists are open_clip's own.")  # fmt: skip
    if chosen == OWN:
        text = st.text_area("My prompts, one a line", "\n".join(next(iter(lists.values()))), key="own",
                            bind="query-params", max_chars=20_000,
                            help="Each needs {} where the class name goes.")  # fmt: skip
        templates = tuple(text.splitlines())
    else:
        templates = lists[chosen]
    st.button("Back to the data's names", icon=":material/restart_alt:", key="zero_shot/reset", on_click=reset_words,
              args=(known,))  # fmt: skip
    try:
        words = lab.words_of(state.data, names, templates, text_mask(state))
    except HydraError as error:
        error_box(error)
        return None
    unknown = lab.unknown_words(state.model, words)
    if unknown:
        st.caption(f"Never read in training, so a guess from pieces: **{escape(', '.join(unknown[:12]))}**")
    return words


def reset_words(known: tuple[str, ...]) -> None:
    st.session_state["classes"] = "\n".join(known)
    st.session_state["prompts"] = next(iter(lab.prompt_lists()))
    st.query_params.pop(TEXT_HEADS, None)


# -- the text tower --------------------------------------------------------------------------------


def text_mask(state: Session) -> HeadMask | None:
    """The mask in the address; None: every head is kept, or the address cannot be read."""
    text = st.query_params.get(TEXT_HEADS)
    if not text:
        return None
    try:
        return HeadMask.parse(text, lab.text_shape(state.model))
    except HydraError as error:
        frame.report_problem(error)
        del st.query_params[TEXT_HEADS]
        return None


def text_heads(state: Session) -> None:
    """The text tower's grid: another way in which words change."""
    with st.expander("Prune heads of the text tower", icon=":material/content_cut:"):
        try:
            mask = text_mask(state) or HeadMask.full(lab.text_shape(state.model))
        except HydraError as error:
            error_box(error, warning=True)
            return

        def on_paint(strokes: list[Stroke]) -> None:
            new = paint_mask(mask, strokes)
            if new.is_full:
                st.query_params.pop(TEXT_HEADS, None)
            else:
                st.query_params[TEXT_HEADS] = new.text

        head_grid(mask, key="zero_shot/text", on_paint=on_paint, label="Heads of the text tower: press space to prune")
        st.caption(f"{mask.kept} of {mask.total} heads kept. The image tower is pruned on the page What if; "
                   "the plan made there is in force here.")  # fmt: skip


# -- settings --------------------------------------------------------------------------------------


def settings() -> tuple[lab.Options, float | None]:
    """(how to measure, temperature or None where it is fitted)."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        fit = st.toggle("Fit the temperature", key="fit", bind="query-params",
                        help="The temperature with the lowest NLL on validation samples.")  # fmt: skip
        temperature = st.slider("Temperature", 0.25, 4.0, 1.0, 0.05, key="temperature", bind="query-params", width=220,
                                disabled=fit, help="Logits are divided by it: above 1 less sure, below 1 surer. 1 is "
                                "the model's own. It does not move MCM.")  # fmt: skip
        final = st.toggle("Final check on test data", key="final", bind="query-params",
                          help="Choose words on validation data. Look at test data last.")  # fmt: skip
    if final:
        st.warning("**Test data: look, do not choose.** Words picked because they do well here are no longer tested "
                   "by it.", icon=":material/lock:")  # fmt: skip
    return lab.Options(split="test" if final else "val"), None if fit else float(temperature)


# -- the answer ------------------------------------------------------------------------------------


def show_answer(now: lab.ZeroShotAnswer, before: lab.ZeroShotAnswer, same: bool, note: str) -> None:
    """One sentence, and the cards against the data's own names in one sentence."""
    msp, mcm = now.report.auroc, now.mcm.auroc
    text = f"**{100 * now.report.accuracy:.1f} %** right, calibration error **{now.report.ece:.3f}**"
    if not same:
        text += f" (with the data's own names: {100 * before.report.accuracy:.1f} %, {before.report.ece:.3f})"
    if msp == msp:  # there is an OOD set
        best = "MCM" if mcm > msp else "MSP"
        text += f". **{best}** tells unknown samples better: mean AUROC {msp:.3f} with MSP, {mcm:.3f} with MCM"
    st.markdown(text + ".")
    shown = {name: cards.CALIBRATION[name] for name in SHOWN}
    figures, base = cards.values_of(now.report), cards.values_of(before.report)
    widgets.metric_cards(shown, figures, base)
    st.caption(f"Changes are against the data's own names in “a photo of a …”, all text heads, temperature 1. {note}.")


def class_table(now: lab.ZeroShotAnswer, known: tuple[str, ...], names: tuple[str, ...]) -> pd.DataFrame:
    """One line a class of the data: its name now, how many are right, and what it is mistaken for."""
    guess = now.probs.argmax(-1)
    rows = []
    for c, name in enumerate(known):
        mine = now.labels == c
        counts = np.bincount(guess[mine], minlength=len(names))
        counts[c], right = 0, int(counts[c])
        other = int(counts.argmax())
        rows.append({
            "class": name, "called": names[c], "samples": int(mine.sum()),
            "right": right / max(1, int(mine.sum())), "mean confidence": float(now.probs[mine].max(-1).mean()),
            "most often taken for": names[other] if counts[other] else "–", "times": int(counts[other]),
        })  # fmt: skip
    return pd.DataFrame(rows)


def pictures(now: lab.ZeroShotAnswer, before: lab.ZeroShotAnswer) -> None:
    bins = now.report.reliability
    figure = reliability_figure(bins, before.report.reliability, now_name="these words", before_name="the data's names")
    widgets.show_figure(figure, "zero-shot-reliability", describe_bins(bins))
    if now.report.sets:
        names = [f"{s.name} ({s.shift})" for s in now.report.sets]
        first, second = ([s.auroc for s in report.sets] for report in (now.report, now.mcm))
        figure = two_scores(names, first, second)
        widgets.show_figure(figure, "msp-mcm", "AUROC of MSP and MCM on each OOD set: " + ", ".join(
            f"{n} {a:.2f} and {b:.2f}" for n, a, b in zip(names, first, second, strict=True)))  # fmt: skip
        st.caption(
            "MSP: 1 - the top probability. MCM (maximum concept matching): the same on the plain cosines, without the "
            "model's logit scale, so it keeps how well the best class fits. OOD is positive."
        )


# -- rows ------------------------------------------------------------------------------------------


def rows(state: Session, words: lab.Words) -> None:
    """The methods beside each other under these words."""
    st.subheader("Methods, none of them trained on the classes", anchor=False)
    st.caption("Taylor prunes without fine-tuning here: the paper warns against just that in zero-shot. Circ needs no "
               "training. ViLU guesses from the features whether the prediction is wrong; it learned from other "
               "validation samples than those it judges. Temperature is fitted on validation data.")  # fmt: skip
    table = lab.stored_zero_shot(state.model, state.data, words)
    if table is not None:
        st.markdown("Measured with the demo, on **test data**, once:")
    else:
        table = measured_rows(state, words)
    if table is None:
        return
    lines = [{"Method": row.label, **{METRICS[m].label: row.values.get(m) for m in TABLE},
              "Multiply-adds": row.costs.get("mac_ratio")} for row in table.rows if row.measured]  # fmt: skip
    shown = pd.DataFrame(lines).dropna(axis=1, how="all")
    numbers = {name: st.column_config.NumberColumn(format="%.3f") for name in shown.columns if name != "Method"}
    names = {"Method": st.column_config.TextColumn(pinned=True, width=190)}
    widgets.show_table(shown, "zero-shot-rows", column_config=names | numbers)
    for row in table.rows:
        if not row.measured:
            st.caption(f"{row.label}: {escape(row.status)}")


def measured_rows(state: Session, words: lab.Words) -> Any | None:
    """The rows on validation data, when asked for."""
    key = digest("zero-shot rows", state.model, state.data, words.key)
    if st.button("Measure them on validation data", icon=":material/play_arrow:", key="zero_shot/go"):
        st.session_state["zero_shot/asked"] = key
    if st.session_state.get("zero_shot/asked") != key:
        st.info("This takes a minute or more; it can be cancelled.", icon=":material/info:")
        return None
    job = widgets.start(
        key,
        lambda job: lab.zero_shot_comparison(state.model, state.data, words, progress=job.progress, cancel=job.cancel),
        "Comparing",
    )
    return widgets.result_of(job)


def real_clip() -> None:
    with st.expander("With a real CLIP", icon=":material/cloud_download:"):
        st.markdown(
            "The demo CLIP is small, trained by this project on eight kinds of garments: it shows the method and knows "
            "nothing else. A real one is used the same way. Type its name into the **Model** box, such as "
            "`open_clip/ViT-B-32:laion2b_s34b_b79k`; where the model hub is reached, its weights are fetched. "
            "Without a network, fetch them on another machine and copy the hub's cache folder "
            "(`~/.cache/huggingface/hub`) to this one, or load a file from Python: "
            "`load_model('open_clip/ViT-B-32', checkpoint='FILE.safetensors')`. Bring images of your own on the page "
            "Your data."
        )


# -- the page --------------------------------------------------------------------------------------


def page() -> None:
    state = frame.page_head("zero_shot")
    if not lab.is_zero_shot(state.model):
        other_model(state)
        return
    if lab.data(state.data).kind != "image":
        st.info("This model reads images. Choose image data in the side bar.", icon=":material/info:")
        return
    if state.model == DEMO:
        st.caption("A demo CLIP, trained here on eight garments and drawn captions: it knows nothing else.")
    answer = st.container()
    with st.container(horizontal=True, gap="medium"):  # side by side where there is room, else one above the other
        left, right = st.container(width=380), st.container(width="stretch")
    with left:
        words = typed_words(state)
        text_heads(state)
        options, temperature = settings()
    if words is None:
        return
    plain = default_words(state)
    job = widgets.start(
        digest("zero-shot page", state.model, state.data, state.plan.text, words.key, options, temperature),
        lambda job: both(state, plain, words, options, temperature, job),
        "Reading the words",
    )
    with answer:
        try:
            found = widgets.result_of(job, patience=4.0)
        except HydraError as error:  # a text that is too long: the boxes stay
            error_box(error)
            return
    if found is None:
        return
    now, before = found
    chosen = lab.sample(state.data, options)
    with answer:
        same = words == plain and now.temperature == 1
        show_answer(now, before, same, escape(chosen.note))
        if temperature is None:
            st.caption(f"Fitted temperature: {now.temperature:.3f}")
    with right:
        pictures(now, before)
    st.subheader("Class by class", anchor=False)
    known = lab.data(state.data).class_names
    shares = {name: st.column_config.NumberColumn(format="percent") for name in ("right", "mean confidence")}
    widgets.show_table(class_table(now, known, words.names), "zero-shot-classes", column_config=shares)
    rows(state, words)
    real_clip()


def both(
    state: Session, plain: lab.Words, words: lab.Words, options: lab.Options, temperature: float | None, job: Any
) -> tuple[lab.ZeroShotAnswer, lab.ZeroShotAnswer]:
    """(the answer under the typed words, the one under the data's own names)."""
    run = {"progress": job.progress, "cancel": job.cancel}
    before = lab.zero_shot_answer(state.model, state.data, state.plan, plain, options, **run)
    return lab.zero_shot_answer(
        state.model, state.data, state.plan, words, options, temperature=temperature, **run
    ), before


page()
