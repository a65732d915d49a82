"""Links in a real browser: /start, and one whose data have to be made first."""

import re

import pytest
from playwright.sync_api import expect

from hydra_core.heads.mask import HeadMask, Plan

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]
PLAN = Plan((HeadMask.full((8,) * 6).prune(5, 1),)).text
WAIT = 60_000


def test_a_link_to_start_opens_the_first_page_with_its_plan(visit):
    page = visit(f"/start?model=demo/fashion-vit&plan={PLAN}")
    expect(page.get_by_role("heading", name="Start", exact=True)).to_be_visible(timeout=WAIT)
    expect(page).to_have_url(re.compile(rf"/\?.*plan={re.escape(PLAN)}"))
    expect(page.get_by_text("Page not found")).to_have_count(0)
    expect(page.locator("[data-testid=stSidebarNavLink]").filter(has_text="Start")).to_have_count(1)
    assert page.errors == []


def test_a_link_to_data_that_have_to_be_made_keeps_its_controls(visit):
    page = visit(f"/heads?data=demo/fashion~fog-5&criterion_left=Magnitude&plan={PLAN}")
    expect(page.get_by_text(re.compile("^Loading .*fog-5"))).to_be_visible(timeout=WAIT)
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    expect(page.get_by_role("heading", name="Heads", exact=True)).to_be_visible(timeout=WAIT)
    both = page.get_by_text("Rank correlation (Spearman) of the two: +1.00")  # it too has Magnitude
    expect(both).to_be_visible(timeout=WAIT)
    expect(page).to_have_url(re.compile("criterion_left=Magnitude"))
    expect(page).to_have_url(re.compile(f"plan={re.escape(PLAN)}"))
    assert page.errors == []
