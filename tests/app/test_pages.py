"""Every page on the demo: it opens, answers, and its controls do what they say."""

import json
from html import unescape

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app import lab
from app.registry import PAGES, ROOT
from hydra_core.heads.mask import HeadMask, Plan

MODEL, DATA = "demo/fashion-vit", "demo/fashion"
SHAPE = (8,) * 6
FULL = HeadMask.full(SHAPE)


def visit(page, **query):
    at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=120)
    for key, value in query.items():
        at.query_params[key] = value
    if page != PAGES[0].name:  # the first one lies at "/"
        at.switch_page(f"../pages/{page}.py")
    return settle(at.run())


def settle(at):
    """Run again while work is under way (a busy machine outlasts the page's patience)."""
    for _ in range(20):
        jobs = at.session_state["hydra/jobs"] if "hydra/jobs" in at.session_state else None  # noqa: SIM401  (no .get here)
        active = jobs.active() if jobs else []
        if not active:
            return at.run()
        for job in active:
            job.wait(60)
        at.run()
    return at


@pytest.fixture(scope="module", autouse=True)
def warm():
    lab.report(MODEL, DATA, Plan.full(SHAPE))
    lab.scores(MODEL, DATA)


def texts(at):
    return "\n".join(item.value for item in [*at.markdown, *at.caption])


@pytest.mark.parametrize("entry", PAGES, ids=lambda entry: entry.name)
def test_every_page_opens_with_its_question_and_no_error(entry):
    at = visit(entry.name)
    assert not at.exception
    assert not at.error
    assert at.title[0].value == entry.title
    assert entry.question in texts(at)


@pytest.mark.parametrize("entry", PAGES, ids=lambda entry: entry.name)
def test_every_page_survives_a_link_that_cannot_be_read(entry):
    at = visit(entry.name, plan="nonsense", model="demo/no-such", data="none")
    assert not at.exception
    assert len(at.warning) >= 3


def test_heads_names_the_best_head_and_carries_the_choice():
    at = visit("heads")
    best = lab.scores(MODEL, DATA).frame().sort_values("rank").iloc[0]
    assert f"**{best['layer']:.0f}.{best['head']:.0f}, " in texts(at)
    at.button(key="heads/carry").click().run()
    assert at.session_state["hydra/session"].mask == HeadMask.top(lab.scores(MODEL, DATA), 4)


def test_heads_compares_two_criteria():
    at = visit("heads")
    settle(at.selectbox(key="criterion_right").set_value("taylor").run())
    assert not at.error
    assert "Rank correlation (Spearman) of the two: **+1.00**" in texts(at)


def test_projections_say_how_well_heads_separate():
    at = visit("projections")
    heads = [(0, 0), (5, 7)]
    _, pictures = lab.projections(MODEL, DATA, heads)
    assert [p.head for p in pictures] == heads
    assert all(0.4 < p.auroc <= 1 for p in pictures)
    assert "A linear probe tells ID from OOD" in texts(at)


def test_axes_stay_when_heads_are_pruned():
    _, (plain,) = lab.projections(MODEL, DATA, [(5, 3)])
    _, (moved,) = lab.projections(MODEL, DATA, [(5, 3)], FULL.prune(0, 1).prune(2, 2))
    assert np.array_equal(plain.explained, moved.explained)
    assert not np.allclose(plain.points, moved.points)


def test_cost_ratios_are_those_of_the_engine():
    plan = Plan((FULL.prune(5, 0), FULL.prune(5, 1), FULL.prune(5, 2)))
    at = visit("cost", plan=plan.text)
    costs = lab.costs(MODEL, plan)
    assert costs[lab.DEEP].mac_ratio == 3
    assert 1 < costs[lab.HYDRA_TRUNK].mac_ratio < costs[lab.HYDRA].mac_ratio < 3
    assert f"({costs[lab.HYDRA_TRUNK].mac_ratio:.2f} x single)" in texts(at)


def test_latency_is_measured_when_asked_for():
    at = visit("cost")
    assert any("when you ask" in info.value for info in at.info)
    at = settle(at.button(key="cost/go").click().run())
    table = at.dataframe[1].value
    assert (table["median"] > 0).all()
    assert set(table["batch"]) == {1, 32}


def test_export_gives_a_recipe_that_comes_back():
    plan = Plan((FULL.prune(1, 1), FULL))
    at = visit("export", plan=plan.text)
    assert not at.error
    text = lab.recipe(MODEL, DATA, plan, "for later")
    assert json.loads(text)["note"] == "for later"
    assert lab.read_recipe(text.encode()).plan == plan


def test_the_report_is_one_file_with_settings_figures_pictures_and_recipe(monkeypatch):
    from app.report import report_html

    plan = Plan((FULL.prune(1, 1), FULL))
    made = []
    monkeypatch.setattr("app.report.report_html", lambda *parts: made.append(report_html(*parts)) or made[-1])
    at = visit("export", plan=plan.text, data=DATA)
    at = settle(at.toggle(key="export/report").set_value(True).run())
    assert not at.exception
    assert not at.error
    html = made[-1]
    options = lab.Options(split="test", n=10_000)
    report = lab.report(MODEL, DATA, plan, options)
    assert f"<td>{100 * report.accuracy:.1f} %</td>" in html
    assert "47 of 48 heads kept; in each layer 8, 7, 8, 8, 8, 8" in html
    assert all(f"{one.name}: AUROC {one.auroc:.3f}" in html for one in report.sets)
    assert html.count("Plotly.newPlot(") == 3 + html.split("</script>")[0].count("Plotly.newPlot(")
    assert 'src="http' not in html
    assert "link rel" not in html.split("<script")[0]
    recipe = unescape(html.split("<pre>")[1].split("</pre>")[0])
    assert lab.read_recipe(recipe.encode()).plan == plan


def test_names_in_a_report_are_shown_and_not_obeyed():
    from app.report import report_html
    from app.session import Session

    html = report_html(Session("<script>m", "<b>d", Plan.full(SHAPE)), {}, {}, [], {"bins": "<i>"}, "<u>")
    assert not any(tag in html for tag in ("<script>", "<b>", "<i>", "<u>"))
    assert "&lt;script&gt;m" in html
