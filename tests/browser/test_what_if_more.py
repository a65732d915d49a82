"""What-if's locks, pins and proof, and the lasso of Projections, in a real browser."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from hydra_core.heads.mask import Plan
from tests.browser.test_dashboard import FULL, head, metric, open_what_if, wait_for_mask, warm  # noqa: F401

pytestmark = [pytest.mark.browser, pytest.mark.slow]
LONG = 120_000


def query(page):
    return {key: value[0] for key, value in parse_qs(urlsplit(page.url).query).items()}


def press(target):
    """Click when there is one: while a page runs again it holds the old and the new element."""
    expect(target).to_have_count(1, timeout=LONG)
    target.click()


def test_a_locked_member_cannot_be_painted(visit):
    page = open_what_if(visit)
    press(page.locator(".st-key-what_if-lock button:visible"))
    expect(page.locator(".head-grid.disabled")).to_be_visible(timeout=LONG)
    page.wait_for_function("() => location.search.includes('locked=A')", timeout=LONG)
    head(page, 5, 3).click()
    assert head(page, 5, 3).get_attribute("aria-selected") == "true"
    page.reload()
    expect(page.locator(".head-grid.disabled")).to_be_visible(timeout=LONG)
    press(page.locator(".st-key-what_if-lock button:visible"))
    expect(page.locator(".head-grid.disabled")).to_have_count(0, timeout=LONG)
    head(page, 5, 3).click()
    wait_for_mask(page, FULL.prune(5, 3))


def test_a_pin_is_opened_again_and_travels_with_the_link(visit):
    page = open_what_if(visit)
    head(page, 5, 3).click()
    wait_for_mask(page, FULL.prune(5, 3))
    press(page.get_by_text("Pinned settings (0)"))
    page.get_by_label("Name", exact=True).fill("without 5.3")
    press(page.get_by_role("button", name="Pin this setting"))
    expect(page.get_by_text("Pinned settings (1)")).to_be_visible(timeout=LONG)
    page.wait_for_function("() => location.search.includes('pins=')", timeout=LONG)
    press(page.locator(".st-key-what_if-reset button:visible"))
    wait_for_mask(page, FULL)
    assert query(page)["pins"] == f"without 5.3:{Plan((FULL.prune(5, 3),)).text}"
    other = open_what_if(visit, "?" + urlsplit(page.url).query)
    press(other.get_by_role("button", name="without 5.3"))
    wait_for_mask(other, FULL.prune(5, 3))
    assert other.errors == []


def test_the_proof_shows_numbers(visit):
    page = open_what_if(visit, "?plan=" + Plan((FULL.prune(5, 3), FULL.prune(2, 1))).text)
    press(page.get_by_role("button", name="Prove it"))
    badge = page.get_by_role("button", name="Exact")
    expect(badge).to_be_visible(timeout=LONG)
    said = re.search(r"Exact(: no difference| to \d(e-\d+))", badge.inner_text())
    assert said, badge.inner_text()
    assert float(f"1{said[2] or 'e-99'}") <= 1e-10
    press(badge)
    expect(page.get_by_text("fused network against the mean of its members")).to_be_visible()
    expect(page.get_by_text("what member B's mask changes")).to_be_visible()


def test_intervals_follow_the_figures(visit):
    page = open_what_if(visit)
    expect(page.locator("[data-testid=stCaptionContainer]").filter(has_text=" to ").first).to_be_visible(timeout=LONG)
    assert metric(page, "NLL").inner_text() != "–"


def test_a_box_in_the_large_picture_shows_the_samples(visit):
    page = visit("/projections?n=100")
    large = page.locator(".st-key-figure-head-0-0, [class*='st-key-figure-head']").first
    expect(large.locator(".js-plotly-plot .gl-canvas").first).to_be_attached(timeout=LONG)
    large.scroll_into_view_if_needed()
    plot = large.locator(".js-plotly-plot")
    plot.hover()
    plot.locator(".modebar-btn[data-title='Box Select']").click()
    area = plot.locator(".nsewdrag").first.bounding_box()
    page.mouse.move(area["x"] + 5, area["y"] + 5)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] - 5, area["y"] + area["height"] - 5, steps=8)
    page.mouse.up()
    chosen = page.get_by_text("samples chosen")
    expect(chosen).to_be_visible(timeout=LONG)
    assert int(chosen.inner_text().split()[0]) > 150
    expect(page.locator("[data-testid=stImage] img").first).to_be_visible()
    assert page.errors == []
