"""The dashboard in a real browser: the grid by hand and keys, the address, downloads, two sessions at once."""

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from hydra_core.heads.mask import HeadMask, Plan

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FULL = HeadMask.full((8,) * 6)


def open_what_if(visit, query="", **options):
    page = visit(f"/what_if{query}", **options)
    expect(page.locator(".head-grid .table .cell")).to_have_count(48, timeout=120_000)
    expect(page.locator("[data-testid=stMetric]")).to_have_count(11, timeout=120_000)
    expect(page.locator(".js-plotly-plot .bars path").first).to_be_attached(timeout=120_000)
    return page


def head(page, layer, number):
    return page.locator(f".head-grid .table .cell[data-layer='{layer}'][data-head='{number}']")


def plan_of(page):
    """The plan in the browser's address bar."""
    return Plan.parse(parse_qs(urlsplit(page.url).query)["plan"][0])


def wait_for_mask(page, mask):
    page.wait_for_function("text => location.search.includes('plan=' + text)", arg=mask.text, timeout=120_000)


def bars(page):
    """The drawn bars of the reliability diagram, as the browser has them."""
    return page.eval_on_selector_all(
        ".js-plotly-plot .bars path", "nodes => nodes.map(n => n.getAttribute('d')).join()"
    )


def metric(page, label):
    return page.locator("[data-testid=stMetric]").filter(has_text=label).locator("[data-testid=stMetricValue]")


@pytest.fixture(scope="module", autouse=True)
def warm(chromium, server):
    """The first visitor loads the model; the tests measure a warm server."""
    page = chromium.new_page()
    page.set_default_timeout(180_000)
    page.goto(server + "/what_if")
    expect(page.locator(".head-grid .bar")).to_be_visible(timeout=180_000)
    expect(page.locator("[data-testid=stMetric]")).to_have_count(11, timeout=180_000)
    page.close()


def test_a_click_on_a_head_changes_diagram_figures_and_address_and_undo_brings_them_back(visit):
    page = open_what_if(visit)
    drawn, nll = bars(page), metric(page, "NLL").inner_text()
    head(page, 5, 3).click()
    assert head(page, 5, 3).get_attribute("aria-selected") == "false"  # at once, before the server answers
    wait_for_mask(page, FULL.prune(5, 3))
    expect(metric(page, "NLL")).not_to_have_text(nll)
    page.wait_for_function(
        "old => [...document.querySelectorAll('.js-plotly-plot .bars path')]"
        ".map(n => n.getAttribute('d')).join() !== old",
        arg=drawn,
    )
    page.get_by_role("button", name="Undo").click()
    wait_for_mask(page, FULL)
    expect(metric(page, "NLL")).to_have_text(nll)
    assert head(page, 5, 3).get_attribute("aria-selected") == "true"
    assert page.errors == []


def test_the_state_survives_a_reload_and_travels_with_a_link(visit):
    page = open_what_if(visit)
    head(page, 4, 0).click()
    wait_for_mask(page, FULL.prune(4, 0))
    page.reload()
    expect(head(page, 4, 0)).to_have_attribute("aria-selected", "false", timeout=120_000)
    other = open_what_if(visit, "?" + urlsplit(page.url).query)
    assert head(other, 4, 0).get_attribute("aria-selected") == "false"
    assert plan_of(other)[0] == FULL.prune(4, 0)


def test_a_drag_paints_and_a_layers_number_takes_all_its_heads(visit):
    page = open_what_if(visit)
    head(page, 5, 1).scroll_into_view_if_needed()  # the mouse goes by the window's coordinates
    first, last = head(page, 5, 1).bounding_box(), head(page, 5, 6).bounding_box()
    page.mouse.move(first["x"] + 9, first["y"] + 9)
    page.mouse.down()
    page.mouse.move(last["x"] + 9, last["y"] + 9, steps=12)
    page.mouse.up()
    painted = FULL.with_layer(5, (True, False, False, False, False, False, False, True))
    wait_for_mask(page, painted)
    page.get_by_role("button", name="Layer 4: prune or restore all its heads").click()
    wait_for_mask(page, painted.with_layer(4, False))


def test_keys_alone_prune_and_restore(visit):
    page = open_what_if(visit)
    head(page, 5, 0).focus()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    wait_for_mask(page, FULL.prune(5, 0).prune(5, 1))
    page.keyboard.press("Shift+ArrowRight")  # paints along with the state of the head it leaves
    wait_for_mask(page, FULL.prune(5, 0).prune(5, 1).prune(5, 2))
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    wait_for_mask(page, FULL.prune(5, 1).prune(5, 2))
    label = head(page, 5, 1).get_attribute("aria-label")
    assert label.startswith("Layer 5, head 1: pruned · Taylor score")


def test_quick_clicks_are_all_kept(visit):
    page = open_what_if(visit)
    for number in range(8):
        head(page, 5, number).click()
    wait_for_mask(page, FULL.with_layer(5, False))
    expect(page.locator(".head-grid .table .cell.pruned")).to_have_count(8)


def test_two_sessions_do_not_touch_each_other(visit):
    one, two = open_what_if(visit), open_what_if(visit)
    head(one, 3, 3).click()
    wait_for_mask(one, FULL.prune(3, 3))
    head(two, 2, 2).click()
    wait_for_mask(two, FULL.prune(2, 2))
    assert head(two, 3, 3).get_attribute("aria-selected") == "true"
    assert head(one, 2, 2).get_attribute("aria-selected") == "true"


def test_going_to_another_page_and_back_keeps_the_plan(visit):
    page = open_what_if(visit)
    head(page, 1, 1).click()
    wait_for_mask(page, FULL.prune(1, 1))
    page.get_by_role("link", name="Start").click()
    expect(page.get_by_role("heading", name="Start")).to_be_visible()
    wait_for_mask(page, FULL.prune(1, 1))  # the address carries it there too
    page.get_by_role("navigation").get_by_role("link", name="What if").click()
    expect(head(page, 1, 1)).to_have_attribute("aria-selected", "false", timeout=120_000)
    head(page, 1, 2).click()
    wait_for_mask(page, FULL.prune(1, 1).prune(1, 2))


def test_a_garbled_link_says_so_and_shows_the_default(visit):
    page = open_what_if(visit, "?plan=garbage")
    expect(page.get_by_text("This is not a plan of masks")).to_be_visible()
    assert page.get_by_text("Traceback").count() == 0
    assert plan_of(page)[0] == FULL


def test_pictures_and_tables_can_be_saved(visit):
    page = open_what_if(visit, accept_downloads=True)
    with page.expect_download() as table:
        page.get_by_role("button", name="Bins as CSV").click()
    lines = table.value.path().read_text().splitlines()
    assert lines[0] == "from,to,samples,accuracy,confidence"
    assert sum(int(line.split(",")[2]) for line in lines[1:]) == 500
    page.get_by_role("radio", name="SVG").or_(page.get_by_role("button", name="SVG")).first.click()
    for _ in range(20):  # the old figure still answers until the page has run again
        plot = page.locator(".js-plotly-plot").last  # while a page runs again, it holds the old and the new figure
        plot.hover()
        with page.expect_download() as picture:
            plot.locator(".modebar-btn[data-title*='Download']").click()
        if picture.value.suggested_filename.endswith(".svg"):
            break
        page.wait_for_timeout(1000)
    assert picture.value.suggested_filename == "reliability.svg"
    assert "<svg" in picture.value.path().read_text()[:200]


def test_nothing_is_fetched_from_elsewhere_and_narrow_windows_do_not_overflow(visit):
    page = visit("/")
    outside = []
    page.on(
        "request",
        lambda r: None if r.url.startswith(("data:", "blob:")) or "127.0.0.1" in r.url else outside.append(r.url),
    )
    page.goto(page.url.split("?")[0] + "what_if")
    page.set_viewport_size({"width": 900, "height": 900})
    expect(page.locator("[data-testid=stMetric]")).to_have_count(11, timeout=120_000)
    expect(page.locator(".js-plotly-plot .bars path").first).to_be_attached()
    assert outside == []
    assert page.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")
    assert page.errors == []
