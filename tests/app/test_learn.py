"""Learn: every step draws, says measured figures, and opens its page as it should; each word is explained once."""

import re

import numpy as np
import plotly.graph_objects as go
import pytest

from app import lab, paper, tour, travel
from app.charts.learn import cost_bars, fused_graph, keep_curves, member_figure
from app.glossary import WORDS, glossary, help_of
from app.registry import PAGES
from app.session import Settings
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.metrics import METRICS
from tests.app.test_pages import DATA, FULL, MODEL, SHAPE, settle, texts, visit

STEPS = {step.name: step for step in tour.STEPS}


@pytest.fixture(scope="module")
def scene():
    """Scenes by step, each made once."""
    made = {}
    return lambda name: made.setdefault(name, STEPS[name].make(None, None))


# -- the steps -----------------------------------------------------------------------------------


def test_there_are_ten_steps_on_pages_that_exist():
    assert len(tour.STEPS) == len(STEPS) == 10
    assert {step.page for step in tour.STEPS} <= {entry.name for entry in PAGES}


@pytest.mark.parametrize("name", STEPS)
def test_every_step_has_a_picture_words_for_it_and_a_setting_that_opens(scene, name):
    made = scene(name)
    assert isinstance(made.figure, go.Figure)
    assert len(made.figure.data) > 0
    assert made.alt
    assert re.search(r"\d", made.notice)
    assert "nan" not in made.notice.lower()
    made.settings.plan[0].check(lab.shape(made.settings.model))


def test_the_first_steps_say_the_reports_figures(scene):
    report = lab.report(MODEL, DATA, Plan.full(SHAPE))
    assert f"**{report.accuracy:.1%}**" in scene("sure").notice
    assert f"**{report.ece:.3f}**" in scene("sure").notice
    bins = report.reliability
    gap = float(np.nansum((bins.confidence - bins.accuracy) * bins.count) / bins.count.sum())
    assert (gap > 0) == ("more confident than right" in scene("sure").notice)
    assert f"**{report.auroc_near:.3f}**" in scene("unknown").notice
    assert f"**{report.fpr95_near:.0%}**" in scene("unknown").notice


def test_the_step_on_attention_says_what_the_map_holds(scene):
    best = lab.scores(MODEL, DATA, "loo_nll").frame().sort_values("rank").iloc[0]
    look = lab.attention(MODEL, DATA, lab.sample_rows(DATA)[0].id, int(best["layer"]))
    assert f"**{look.maps[int(best['head']), 0, 1:].max():.0%}**" in scene("look").notice
    head = f"{best['layer']:.0f}.{best['head']:.0f}"
    assert scene("look").controls == {"head": head, "sample": lab.sample_rows(DATA)[0].title}


def test_the_steps_on_scores_agree_with_scipys_rank_correlation(scene):
    from scipy.stats import spearmanr

    taylor, exact = (lab.scores(MODEL, DATA, name).flat for name in ("taylor", "loo_nll"))
    assert f"**{spearmanr(taylor, exact).statistic:+.2f}**" in scene("trust").notice
    assert f"**{int((exact < 0).sum())} of 48**" in scene("trust").notice
    assert f"{taylor.max() / taylor.min():.1f} times" in scene("matter").notice


def test_the_step_on_pruning_shows_the_reports_of_its_plans(scene):
    lines = {
        trace.name: dict(zip(trace.x.tolist(), trace.y.tolist(), strict=True)) for trace in scene("prune").figure.data
    }
    scores = lab.scores(MODEL, DATA)
    for keep in (8, 4):
        report = lab.report(MODEL, DATA, Plan((HeadMask.top(scores, keep),)))
        assert lines["accuracy"][keep] == report.accuracy
        assert lines["ECE"][keep] == report.ece
    assert scene("prune").settings.plan[0].counts == (1,) * 6


def test_the_steps_on_members_and_cost_are_those_of_the_stored_hydra(scene):
    plan = lab.stored_hydra(MODEL, DATA)
    assert scene("differ").settings.plan == scene("fuse").settings.plan == plan
    costs = lab.costs(MODEL, plan)
    assert f"**{costs[lab.HYDRA_TRUNK].mac_ratio:.2f}** times" in scene("fuse").notice
    counts = scene("differ").figure.data[0].z
    assert counts.tolist() == np.sum([mask.to_json() for mask in plan], axis=0).tolist()
    assert f"**{int((counts == len(plan)).sum())} of 48**" in scene("differ").notice


def test_the_last_step_and_the_verdict_read_the_comparison(scene):
    table = lab.stored_comparison(MODEL, DATA)
    circ, single = table["hydra_circ"].values, table["single"].values
    assert f"AUROC {circ['auroc']:.3f} against {single['auroc']:.3f}" in scene("result").notice
    better = circ["ece"] < single["ece"]
    said = re.search(rf"ECE {circ['ece']:.3f} against {single['ece']:.3f} \((\w+)", tour.verdict(table)).group(1)
    assert said == ("better" if better else "worse")
    tuned = next((row for row in table.rows if row.name == "hydra_circ_tuned" and row.measured), None)
    assert (tuned is None) == ("fine-tuned" not in tour.verdict(table))


def test_overlap_counts_only_layers_in_which_members_differ():
    a, b = FULL.prune(5, 0).prune(5, 1), FULL.prune(5, 1).prune(5, 2)
    assert tour.overlap(Plan((a, b))) == pytest.approx(5 / 7)
    with_early = Plan((a.prune(0, 3), b.prune(0, 3)))
    assert tour.overlap(with_early) == pytest.approx(5 / 7)


def test_without_the_stored_hydra_there_are_still_members(monkeypatch):
    monkeypatch.setattr(tour.lab, "stored_hydra", lambda model, data: None)
    plan = tour.hydra()
    assert [mask.counts for mask in plan] == [(8, 8, 8, 4, 4, 4)] * 3
    assert len(set(plan.masks)) == 3


# -- pictures ------------------------------------------------------------------------------------


def test_the_graph_runs_shared_layers_once_and_every_member_to_the_mean():
    a, b = FULL.prune(4, 0), FULL.prune(4, 1)
    dot = fused_graph(Plan((a, b, a.prune(5, 2))))
    assert dot.count("layers 0 to 3") == 1
    assert "A, B, C" in dot  # the trunk
    assert "A, C" in dot  # then those two part from B, and later from each other
    assert dot.count("-> mean;") == 3
    assert dot.count("{") == dot.count("}")


def test_equal_members_share_every_layer():
    dot = fused_graph(Plan((FULL, FULL)))
    assert dot.count("heads kept") == 1
    assert dot.count("-> mean;") == 2


def test_members_of_ragged_models_are_drawn():
    plan = Plan((HeadMask.full((2, 3)).prune(1, 2), HeadMask.full((2, 3))))
    cells = member_figure(plan).data[0]
    np.testing.assert_array_equal(cells.z, [[2, 2, np.nan], [2, 2, 1]])
    assert cells.text[1][2] == "B"


def test_curves_run_from_all_heads_to_few_and_bars_show_their_ratio():
    figure = keep_curves((8, 1, 4), {"x": [0.9, 0.5, 0.7]})
    assert figure.data[0].x.tolist() == [1, 4, 8]
    assert figure.data[0].y.tolist() == [0.5, 0.7, 0.9]
    bars = cost_bars({"one": (1.0, 1.0), "deep ensemble": (3.0, 3.0)})
    assert bars.data[1].text == ("1.00", "3.00")
    assert list(bars.data[1].x) == ["one", "deep<br>ensemble"]


# -- the paper -----------------------------------------------------------------------------------


def test_our_line_beside_the_papers_is_the_comparisons():
    table = lab.stored_comparison(MODEL, DATA)
    shown = paper.claims_table(table).set_index("Data")
    ours = shown.loc["Demo (measured here)"]
    circ, deep = table["hydra_circ"].values, table["deep_ensemble"].values
    assert ours["Hydra AUROC"] == 100 * circ["auroc"]
    assert ours["FPR95 gained"] == pytest.approx(100 * (deep["fpr95"] - circ["fpr95"]))
    assert all("(paper)" in name for name in shown.index.drop("Demo (measured here)"))
    assert len(paper.claims_table(None)) == len(paper.CLAIMS)


def test_the_eight_figures_lead_to_steps_that_exist_and_say_what_was_measured():
    figures = paper.figures()
    assert len(figures) == 8
    assert {figure.step for figure in figures} <= {*STEPS, ""}
    order = np.argsort(-lab.scores(MODEL, DATA).flat, kind="stable")
    most = lab.scores(MODEL, DATA, "separability").flat[order[:6]].mean()
    assert f"{most:.2f} in the six most important" in figures[3].ours


def test_what_is_said_of_sweep_and_noise_is_what_the_stored_studies_hold():
    sweep, noise = lab.stored_sweep(MODEL, DATA), lab.stored_noise(MODEL, DATA)
    longest = max((point.layers for point in sweep.points), key=len)
    circ = [p.values["auroc"] for p in sweep.points if (p.method, p.layers, p.keep) == ("circ_avg", longest, 4)]
    assert f"AUROC {np.mean(circ):.3f} by CircAvg" in paper.sweep_sentence(sweep)
    wider = sum(row.change.low > 0 for row in noise.rows)
    assert f"clearly widens in {wider}," in paper.noise_sentence(noise)
    assert not re.search(r"\d", paper.sweep_sentence(None) + paper.noise_sentence(None))


# -- words ---------------------------------------------------------------------------------------


def test_words_of_figures_and_criteria_are_the_engines_own():
    words = glossary()
    assert words["Figures"]["ECE"] == METRICS["ece"].help
    assert {c.about for c in lab.criteria().values()} == set(words["Criteria: what makes a head matter"].values())
    assert words["Words"]["head"] == help_of("head")
    everything = [w.casefold() for topic in words.values() for w in topic]
    assert len(everything) == len(set(everything)), "a word is explained once"
    assert all(text.endswith(".") for text in WORDS.values())


# -- the page ------------------------------------------------------------------------------------


def test_the_tour_starts_with_the_first_step_and_walks_on_and_back():
    at = visit("learn")
    assert at.subheader[0].value == f"1. {tour.STEPS[0].title}"
    assert at.button(key="learn/back").disabled
    assert any("Notice." in box.value for box in at.info)
    at = settle(at.button(key="learn/next").click().run())
    assert at.subheader[0].value == f"2. {tour.STEPS[1].title}"
    at = settle(at.button(key="learn/back").click().run())
    assert at.subheader[0].value == f"1. {tour.STEPS[0].title}"


def test_a_step_left_behind_stops_working():
    at = visit("learn", step="7")
    jobs = at.session_state["hydra/jobs"]
    held = jobs.run("slow", lambda job: job.cancel.wait(30))
    at.session_state["learn/job"] = "slow"
    at.button(key="learn/next").click().run()
    assert held.cancel.is_set()
    assert jobs.get("slow") is None


@pytest.mark.parametrize(("asked", "shown"), [("10", 10), ("0", 1), ("eleven", 1)])
def test_the_address_holds_the_step(asked, shown):
    at = visit("learn", step=asked)
    assert not at.error
    assert at.subheader[0].value == f"{shown}. {tour.STEPS[shown - 1].title}"
    assert at.button(key="learn/next").disabled == (shown == 10)


@pytest.mark.parametrize(
    ("number", "title", "plan"), [(8, "What if", "hydra"), (9, "Cost", "hydra"), (4, "Heads", "full")]
)
def test_a_step_opens_its_page_with_its_setting(number, title, plan):
    at = visit("learn", step=str(number), plan=Plan((FULL.prune(0, 0),)).text)
    at.button(key="learn/do").click().run()
    assert at.title[0].value == title
    want = lab.stored_hydra(MODEL, DATA) if plan == "hydra" else Plan.full(SHAPE)
    state = at.session_state["hydra/session"]
    assert state.plan == want
    assert state.undo_stack == [Plan((FULL.prune(0, 0),))]


def test_a_demo_plan_says_that_it_replaced_another_and_undo_brings_model_data_and_plan_back():
    own = Plan((HeadMask.full(SHAPE).prune(2, 2),))
    at = visit("learn", step="8", model="demo/fashion-vit-s2", data="demo/fashion~fog-1", plan=own.text)
    at.button(key="learn/do").click().run()
    assert at.title[0].value == "What if"
    assert [toast.value for toast in at.toast] == [travel.REPLACED]
    state = at.session_state["hydra/session"]
    assert state.plan == lab.stored_hydra(MODEL, DATA)
    at.switch_page("../pages/what_if.py").run()
    at.button(key="what_if/undo").click().run()
    assert state.settings == Settings("demo/fashion-vit-s2", "demo/fashion~fog-1", own)
    at.button(key="what_if/redo").click().run()
    assert state.settings == Settings(MODEL, DATA, lab.stored_hydra(MODEL, DATA))


def test_a_page_that_changes_nothing_of_the_plan_says_nothing_of_it():
    at = visit("learn", step="4")
    at.button(key="learn/do").click().run()
    assert not at.toast
    assert at.session_state["hydra/session"].undo_stack == []


def test_going_away_and_coming_back_keeps_part_and_step():
    at = settle(visit("learn", step="3").button(key="learn/next").click().run())
    at.switch_page("../pages/export.py").run()
    at = settle(at.switch_page("../pages/learn.py").run())
    assert at.subheader[0].value == f"4. {tour.STEPS[3].title}"


def test_the_papers_part_shows_the_table_and_leads_back_into_the_tour():
    at = visit("learn", part="The paper's figures")
    assert not at.error
    assert "Demo (measured here)" in at.dataframe[0].value["Data"].tolist()
    at = settle(at.button(key="learn/step/Overlap of the kept heads").click().run())
    assert at.subheader[0].value == f"8. {STEPS['differ'].title}"


def test_the_glossary_finds_words_and_says_when_there_are_none():
    at = visit("learn", part="Glossary")
    assert METRICS["ece"].help in texts(at)
    at.text_input(key="word").set_value("trunk").run()
    assert "shared trunk" in texts(at)
    assert METRICS["brier"].help not in texts(at)
    at.text_input(key="word").set_value("zzz").run()
    assert any("No word" in box.value for box in at.info)
