"""Without eyes or without a mouse: every chart and image has words, and Tab and keys reach the grid of heads."""

import re

import pytest
from playwright.sync_api import expect

from app.registry import PAGES
from hydra_core.heads.mask import HeadMask, Plan

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]
FULL = HeadMask.full((8,) * 6)
PLAN = Plan((FULL.prune(5, 0), FULL.prune(4, 3)))
WAIT = 30_000
# views that show all that a page can draw
VIEWS = {
    "heads": ["head=3.3"],
    "zero_shot": ["model=demo/fashion-clip"],
    "your_data": ["bring=A+shifted+version"],
    "learn": [*(f"step={step}" for step in range(1, 11)), "part=The+paper's+figures"],
}
PICTURES = "[data-testid=stPlotlyChart], [data-testid=stGraphVizChart], [data-testid=stImage] img"
NAMES = """
nodes => nodes.map(node => {
    const name = node.getAttribute(node.tagName === 'IMG' ? 'alt' : 'aria-label') || ''
    return [node.dataset.testid || node.tagName, name.trim()]
})
"""
# pages without a picture until something is asked for
PLAIN = {"cost", "export"}


def settled(page):
    """Once nothing is computed any more."""
    expect(page.get_by_role("heading").first).to_be_visible(timeout=WAIT)
    for _ in range(3):  # one piece of work may follow another
        page.wait_for_timeout(700)
        expect(page.get_by_test_id("stProgress")).to_have_count(0, timeout=WAIT)
        expect(page.get_by_test_id("stStatusWidget")).to_have_count(0, timeout=WAIT)


@pytest.mark.parametrize(
    ("name", "view"), [(entry.name, view) for entry in PAGES for view in VIEWS.get(entry.name, [""])]
)
def test_every_chart_and_image_has_words(visit, name, view):
    page = visit(f"/{name if name != 'start' else ''}?plan={PLAN.text}&{view}")
    if name not in PLAIN:
        expect(page.locator(PICTURES).first).to_be_attached(timeout=WAIT)
    settled(page)
    found = page.locator(PICTURES).evaluate_all(NAMES)
    assert bool(found) == (name not in PLAIN)
    assert [kind for kind, words in found if len(words) < 8] == []
    assert page.errors == []


def test_the_latency_chart_has_words(visit):
    page = visit(f"/cost?plan={PLAN.text}&batch=1")
    page.get_by_role("button", name="Measure").click(timeout=WAIT)
    expect(page.locator(PICTURES).first).to_have_attribute(
        "aria-label", re.compile("^Milliseconds for each way"), timeout=WAIT
    )


def test_tab_reaches_the_grid_and_keys_toggle_its_heads(visit):
    page = visit("/what_if")
    cells = page.locator(".head-grid .table .cell")
    expect(cells).to_have_count(48, timeout=WAIT)
    settled(page)
    at = cells.and_(page.locator(":focus"))
    for _ in range(150):
        page.keyboard.press("Tab")
        if at.count():
            break
    expect(at).to_have_attribute("aria-selected", "true")
    layer, head = (int(at.get_attribute(f"data-{which}")) for which in ("layer", "head"))
    page.keyboard.press("Space")
    pruned = FULL.prune(layer, head)
    page.wait_for_function("plan => location.search.includes(`plan=${plan}`)", arg=Plan((pruned,)).text)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    both = Plan((pruned.prune(layer + 1, head),))
    page.wait_for_function("plan => location.search.includes(`plan=${plan}`)", arg=both.text)
    page.keyboard.press("Enter")
    page.wait_for_function("plan => location.search.includes(`plan=${plan}`)", arg=Plan((pruned,)).text)
    page.keyboard.press("Tab")  # one stop alone: Tab leaves the grid
    expect(cells.and_(page.locator(":focus"))).to_have_count(0)
    assert page.errors == []
