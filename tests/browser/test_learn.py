"""Learn in a real browser: Back, the way to the pages and what it does to the reader's own plan."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from app import lab
from hydra_core.heads.mask import HeadMask, Plan

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OWN = Plan((HeadMask.full((8,) * 6).prune(5, 1),))
WAIT = 60_000


def at_step(page, number):
    expect(page.get_by_role("heading", name=re.compile(rf"^{number}\. "))).to_be_visible(timeout=WAIT)
    page.wait_for_function("step => location.search.includes(`step=${step}`)", arg=number)


def at_part(page, name, sign):
    expect(page.get_by_text(sign).first).to_be_visible(timeout=WAIT)
    page.wait_for_function("part => new URLSearchParams(location.search).get('part') === part", arg=name)


def choose(page, name):
    """One of the buttons of a segmented control."""
    page.get_by_test_id("stButtonGroup").get_by_text(name, exact=True).click()


def scrolled(page):
    return page.get_by_test_id("stMain").evaluate("main => main.scrollTop")


def open_with_this(page):
    """Scroll to the step's button and press it."""
    button = page.locator(".st-key-learn-do button")
    expect(button).to_be_visible(timeout=WAIT)
    page.set_viewport_size({"width": 900, "height": 450})
    button.scroll_into_view_if_needed()
    assert scrolled(page) > 100
    button.click()


def test_back_and_forward_walk_through_parts_and_steps(visit, server_log):
    page = visit("/learn")
    at_step(page, 1)
    page.get_by_role("button", name="Next").click()
    at_step(page, 2)
    choose(page, "4")
    at_step(page, 4)
    choose(page, "Glossary")
    at_part(page, "Glossary", "Criteria: what makes a head matter")
    choose(page, "The paper's figures")
    at_part(page, "The paper's figures", "The demo's Hydra, fused")
    page.get_by_role("button", name="Step 8 of the tour").first.click()
    at_step(page, 8)
    page.go_back()
    at_part(page, "The paper's figures", "The demo's Hydra, fused")
    page.go_back()
    at_part(page, "Glossary", "Criteria: what makes a head matter")
    for step in (4, 2, 1):
        page.go_back()
        at_step(page, step)
    page.go_forward()
    at_step(page, 2)
    page.get_by_role("button", name="Next").click()
    at_step(page, 3)
    assert "value set via the Session State API" not in server_log.read_text()
    assert page.errors == []


def test_back_from_another_page_returns_to_the_step(visit):
    page = visit("/learn?step=4")
    at_step(page, 4)
    page.locator(".st-key-learn-do button").click()
    expect(page.get_by_role("heading", name="Heads", exact=True)).to_be_visible(timeout=WAIT)
    page.go_back()
    at_step(page, 4)
    assert page.errors == []


def test_the_head_that_is_shown_opens_with_the_same_sample_at_the_top_of_the_page(visit):
    page = visit("/learn?step=3")
    open_with_this(page)
    expect(page.get_by_role("heading", name="The room of head")).to_be_visible(timeout=WAIT)
    assert scrolled(page) == 0
    best = lab.scores("demo/fashion-vit", "demo/fashion", "loo_nll").frame().sort_values("rank").iloc[0]
    sample = lab.sample_rows("demo/fashion")[0].title
    query = {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}
    assert (query["head"], query["sample"]) == (f"{best['layer']:.0f}.{best['head']:.0f}", sample)
    expect(page.locator(".st-key-sample").get_by_role("combobox")).to_have_value(sample)
    assert page.errors == []


@pytest.mark.parametrize("step", [8, 9])
def test_a_demo_plan_says_that_it_replaced_ones_own_and_undo_brings_it_back(visit, step):
    page = visit(f"/learn?step={step}&plan={OWN.text}")
    open_with_this(page)
    said = page.get_by_test_id("stToast")
    expect(said).to_contain_text("Undo on What if brings yours back", timeout=WAIT)
    assert scrolled(page) == 0
    page.wait_for_function(
        "plan => location.search.includes(`plan=${plan}`)",
        arg=lab.stored_hydra("demo/fashion-vit", "demo/fashion").text,
    )
    page.set_viewport_size({"width": 1440, "height": 900})
    if step != 8:
        page.get_by_role("navigation").get_by_role("link", name="What if").click()
    page.get_by_role("button", name="Undo").click(timeout=WAIT)
    page.wait_for_function("plan => location.search.includes(`plan=${plan}`)", arg=OWN.text)
    assert page.errors == []
