"""How do I take this setting away? Recipe, checkpoints, the command for the big run."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import arrival, bring, cards, frame, lab, widgets, work
from app.cache import digest
from app.charts.distributions import ood_histogram, risk_coverage
from app.charts.reliability import describe_bins, reliability_figure
from app.errors import escape
from app.lab import live
from app.report import Picture, report_html
from app.session import Session
from hydra_core.errors import HydraError
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.metrics import OOD_SCORES
from hydra_core.metrics import risk_coverage as risk_coverage_of

RUN = "python -m hydra_core run recipe.json --out runs/hydra"
MORE = f"""# your own weights and samples: folders of images by class, a zip, a table of texts, an npz
{RUN} --checkpoint weights.safetensors --data my/images --near my/similar --far my/other
# a GPU of this machine
{RUN} --device cuda
# all cores of this machine, or a cluster (pip install ray); with GPUs: --device cuda --ray-gpus 1
{RUN} --ray
{RUN} --ray 10.0.0.1:6379"""


def recipe_part(state: Session) -> None:
    st.subheader("The recipe", anchor=False)
    note = st.text_input("A note for your later self", key="export/note", max_chars=200)
    text = lab.recipe(state.model, state.data, state.plan, note)
    with st.container(horizontal=True):
        st.download_button("Recipe", text, "recipe.json", "application/json", icon=":material/download:",
                           key="export/recipe", on_click="ignore")  # fmt: skip
    st.markdown("The big run, on any machine with this project installed: all test samples, intervals, a checkpoint.")
    st.code(RUN, language="bash")
    with st.expander("On your own data, a GPU, or a Ray cluster", icon=":material/lan:"):
        st.code(MORE, language="bash")
        st.caption("The same report, figure for figure: only the forward passes run elsewhere. Every machine of the "
                   "cluster needs this project, and your files at the same path.")  # fmt: skip
    with st.expander("Look into the recipe", icon=":material/data_object:"):
        st.code(text, language="json")


def open_part() -> None:
    st.subheader("Open a recipe", anchor=False)
    file = st.file_uploader("A recipe file", type=["json"], key="export/open", help="It replaces model, data and plan.")
    if file is not None:
        st.button("Open it", key="export/open_it", icon=":material/folder_open:", on_click=open_recipe, args=(file,))


def open_recipe(file: Any) -> None:
    """Its model and data are loaded first where they have to be."""
    done = "The recipe is open. Undo on What if goes back to the plan before."
    try:
        arrival.open_settings(lab.read_recipe(file.getvalue()), done)
    except HydraError as error:
        frame.report_problem(error)


def checkpoint_part(state: Session) -> None:
    st.subheader("Checkpoints", anchor=False)
    st.caption(
        "safetensors, with the plan in the header. In Python, `hydra_core.load_hydra(FILE, model)` opens the fused one."
    )
    with st.container(horizontal=True):
        job = widgets.start(
            digest("fused", state.model, state.plan.text), lambda job: lab.fused_file(state.model, state.plan), "Fusing"
        )
        content = widgets.result_of(job, patience=3.0)
        if content is not None:
            st.download_button(f"Fused ensemble ({len(content) / 2**20:.1f} MiB)", content, "hydra.safetensors",
                               icon=":material/download:", key="export/fused", on_click="ignore")  # fmt: skip
        name = state.plan.names[state.active]
        pruned = lab.pruned_file(state.model, state.mask)
        st.download_button(f"Member {name} alone ({len(pruned) / 2**20:.1f} MiB)", pruned, f"member-{name}.safetensors",
                           icon=":material/download:", key="export/pruned", on_click="ignore")  # fmt: skip


def report_part(state: Session) -> None:
    st.subheader("The report", anchor=False)
    st.caption("One self-contained HTML file: settings, figures, pictures, the recipe. Test data, measured once.")
    options = lab.Options(split="test", n=10_000)
    if not st.toggle("Measure on the whole test split", key="export/report", help="Look at test data last."):
        return
    both = widgets.result_of(work.evaluate(state, options, "Measuring on the test split"), patience=3.0)
    if both is None:
        return
    model, data, plan = state.model, state.data, state.plan
    job = widgets.start(
        digest("report pictures", model, data, plan.text, options),
        lambda job: report_pictures(model, data, plan, options, both),
        "Drawing the report",
    )
    pictures = widgets.result_of(job, patience=3.0)
    if pictures is None:
        return
    now = cards.values_of(both[0], lab.cost(model, plan))
    before = cards.values_of(both[1], lab.cost(model, HeadMask.full(plan.shape)))
    facts = {
        "measured on": lab.sample(data, options).note,
        "bins": f"{options.bins} of equal {options.bins_kind}, on the top probability",
        "OOD score": f"{OOD_SCORES[options.ood_score].label}; OOD is the positive class",
    }
    html = report_html(state, now, before, pictures, facts, lab.recipe(model, data, plan, ""))
    st.download_button("Report", html, "hydra-report.html", "text/html", icon=":material/download:",
                       key="export/html", on_click="ignore")  # fmt: skip


def report_pictures(model: str, data: str, plan: Plan, options: lab.Options, both: tuple[Any, Any]) -> list[Picture]:
    """(title, figure, words) of calibration, selective risk and OOD scores."""
    now, before = both
    curves, areas = {}, []
    for name, of in (("this plan", plan), ("unpruned", lab.unpruned(model))):
        chosen, probs = lab.probabilities(model, data, of, options)
        curve = risk_coverage_of(probs[""].max(-1), probs[""].argmax(-1) == chosen.id.labels)
        curves[name] = curve.coverage, curve.risk
        areas.append(f"{curve.aurc:.4f} ({name})")
    found = [
        ("Reliability", reliability_figure(now.reliability, before.reliability), describe_bins(now.reliability)),
        ("Risk and coverage", risk_coverage(curves), f"Error rate over the share answered; area: {', '.join(areas)}."),
    ]
    if now.sets:
        chosen, scores = live.ood_scores(model, data, plan, options)
        named = {name or chosen.id.name: values for name, values in scores.items()}
        shifts = {name or chosen.id.name: part.shift if name else "id" for name, part in chosen.sets.items()}
        words = "; ".join(f"{one.name}: AUROC {one.auroc:.3f}" for one in now.sets)
        title = OOD_SCORES[options.ood_score].label
        found.append(("OOD scores", ood_histogram(named, shifts, title=title), words))
    return found


def page() -> None:
    state = frame.page_head("export")
    pruned = sum(mask.total - mask.kept for mask in state.plan)
    if not pruned:
        st.info("Nothing is pruned yet: choose heads on **What if** or **Heads** first, or export the plain model.",
                icon=":material/info:")  # fmt: skip
    st.markdown(
        f"**{escape(bring.title_of(state.model))}** on **{escape(bring.data_title(state.data))}**, "
        f"{len(state.plan)} member{'s' if len(state.plan) > 1 else ''}, "
        f"{pruned} heads pruned in all."
    )
    recipe_part(state)
    checkpoint_part(state)
    report_part(state)
    open_part()


page()
