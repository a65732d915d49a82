"""The Zero-shot page in a real browser: words typed, figures follow, the link brings them back, text heads go."""

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow]
OTHER = ("tee", "pants", "sweater", "gown", "blouse", "running shoe", "handbag", "boot")


def metric(page, label):
    return page.locator("[data-testid=stMetric]").filter(has_text=label).locator("[data-testid=stMetricValue]")


def open_page(visit, query="", **options):
    page = visit(f"/zero_shot?model=demo/fashion-clip{query}", **options)
    expect(page.locator("[data-testid=stMetric]")).to_have_count(4, timeout=180_000)
    expect(page.locator(".js-plotly-plot .bars path").first).to_be_attached(timeout=180_000)
    return page


def test_words_typed_change_figures_and_address_and_the_link_brings_them_back(visit):
    page = open_page(visit)
    nll = metric(page, "NLL").inner_text()
    box = page.get_by_role("textbox", name="Class names, one a line")
    box.fill("\n".join(OTHER))
    box.press("Control+Enter")
    expect(metric(page, "NLL")).not_to_have_text(nll, timeout=120_000)
    page.wait_for_function("() => location.search.includes('running')", timeout=60_000)
    assert parse_qs(urlsplit(page.url).query)["classes"][0].split("\n") == list(OTHER)
    other = open_page(visit, "&" + urlsplit(page.url).query.replace("model=demo%2Ffashion-clip&", ""))
    expect(metric(other, "NLL")).to_have_text(metric(page, "NLL").inner_text(), timeout=120_000)
    expect(other.get_by_role("textbox", name="Class names, one a line")).to_have_value("\n".join(OTHER))
    assert page.errors == []


def test_a_head_of_the_text_tower_goes_with_a_click(visit):
    page = open_page(visit)
    nll = metric(page, "NLL").inner_text()
    page.get_by_text("Prune heads of the text tower").click()
    cells = page.locator(".head-grid .table .cell")
    expect(cells).to_have_count(12, timeout=60_000)
    cells.nth(8).click()
    page.wait_for_function("() => location.search.includes('text_heads=')", timeout=120_000)
    expect(metric(page, "NLL")).not_to_have_text(nll, timeout=120_000)


def test_markup_in_a_name_stays_text_and_narrow_windows_do_not_overflow(visit):
    page = open_page(visit)
    page.set_viewport_size({"width": 900, "height": 900})
    box = page.get_by_role("textbox", name="Class names, one a line")
    box.fill("\n".join([*OTHER, "<img src=x onerror=window.broken=1>"]))
    box.press("Control+Enter")
    page.wait_for_function("() => location.search.includes('onerror')", timeout=120_000)
    expect(metric(page, "Accuracy")).to_be_visible(timeout=120_000)
    assert page.evaluate("window.broken === undefined")
    assert page.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")
    assert page.errors == []
