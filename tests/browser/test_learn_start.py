"""Start, Learn and a head's room in a real browser: one click to a scenario, links to a step and to a head."""

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from app import lab
from hydra_core.heads.mask import HeadMask, Plan

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FULL = HeadMask.full((8,) * 6)
LONG = 180_000


def query_of(page):
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


def wait_for_page(page, name, plan):
    page.wait_for_function(
        "([name, plan]) => location.pathname.endsWith(name) && location.search.includes('plan=' + plan)",
        arg=[name, plan.text],
        timeout=LONG,
    )


def test_a_scenario_lands_on_what_if_with_its_plan_and_undo_goes_back(visit):
    page = visit("/")
    card = page.get_by_text("Hydra (Circ), chosen on validation")
    expect(card).to_be_visible(timeout=LONG)
    button = page.locator(".st-key-start-open-hydra button")
    button.click()
    hydra = lab.stored_hydra("demo/fashion-vit", "demo/fashion")
    wait_for_page(page, "/what_if", hydra)
    expect(page.locator("[data-testid=stMetric]")).to_have_count(11, timeout=LONG)
    page.get_by_role("button", name="Undo").click()
    wait_for_page(page, "/what_if", Plan((FULL,)))
    assert page.errors == []


def test_a_link_to_a_step_opens_it_and_its_button_opens_the_page_in_that_state(visit):
    page = visit("/learn?step=4")
    expect(page.get_by_role("heading", name="4. Which heads matter?")).to_be_visible(timeout=LONG)
    expect(page.get_by_text("Notice.")).to_be_visible(timeout=LONG)
    page.get_by_role("button", name="Next").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="5. Does the estimate hold?")).to_be_visible(timeout=LONG)
    page.wait_for_function("location.search.includes('step=5')")
    page.get_by_role("button", name="Open Heads with this").click()
    expect(page.get_by_text("Leave-one-out NLL").first).to_be_visible(timeout=LONG)
    assert query_of(page)["criterion_right"] == "Leave-one-out NLL"
    assert page.errors == []


def test_a_click_in_the_grid_opens_the_heads_room_and_the_choice_goes_along(visit):
    page = visit("/heads")
    cell = page.locator(".head-grid .table .cell[data-layer='5'][data-head='3']")
    expect(cell).to_be_visible(timeout=LONG)
    cell.click()
    expect(page.get_by_role("heading", name="The room of head 5.3")).to_be_visible(timeout=LONG)
    expect(page.get_by_text("It looks most at")).to_be_visible(timeout=LONG)
    assert query_of(page)["head"] == "5.3"
    page.get_by_role("button", name="Prune them in member A, open What if").click()
    wait_for_page(page, "/what_if", Plan((FULL.prune(5, 3),)))
    assert page.errors == []


def test_a_link_to_a_head_opens_its_room(visit):
    page = visit("/heads?head=3.7")
    expect(page.get_by_role("heading", name="The room of head 3.7")).to_be_visible(timeout=LONG)
    expect(page.get_by_text("Samples that it moves most")).to_be_visible(timeout=LONG)
    assert page.errors == []
