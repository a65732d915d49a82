"""Sweep and Noise in a real browser: the pictures come, a click on a point chooses it, a setting reaches What if."""

from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from app import lab
from hydra_core.heads.mask import HeadMask, Plan

pytestmark = [pytest.mark.browser, pytest.mark.slow]
PLOT = ".js-plotly-plot .main-svg"


def address(page):
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


def test_a_click_on_a_point_chooses_it_and_its_setting_opens_in_what_if(visit):
    page = visit("/sweep?within=0-5&metric=accuracy&line=taylor&kept=4")
    heads = page.locator(".js-plotly-plot").first
    expect(heads.locator(".scatterlayer .points path").first).to_be_attached(timeout=120_000)
    page.wait_for_timeout(1500)  # the figure settles into its column
    # the last marker of Taylor's line: 6 heads pruned, 2 kept; no other lies over it
    marker = heads.locator(".scatterlayer .trace:has(.points path)").first.locator(".points path").last
    box = marker.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function("() => location.search.includes('kept=2')", timeout=60_000)
    assert address(page)["line"] == "taylor"
    page.get_by_role("button", name="Open this setting in What if").click()
    expect(page.get_by_role("heading", name="What if")).to_be_visible(timeout=120_000)
    page.wait_for_function(
        "() => !location.search.includes('plan=6x8.________&') && location.search.includes('plan=6x8')"
    )
    want = ("taylor", 2, tuple(range(6)), "demo/fashion-vit")
    points = lab.stored_sweep("demo/fashion-vit", "demo/fashion").points
    own = next(p for p in points if (p.method, p.keep, p.layers, p.model) == want)
    assert Plan.parse(address(page)["plan"]).masks == (HeadMask.parse(own.masks[0]),)
    assert page.errors == []


def test_a_link_restores_the_sweeps_controls_and_narrow_windows_do_not_overflow(visit):
    page = visit("/sweep?within=3-5&metric=ece&line=hydra_random&kept=2&members=5")
    page.set_viewport_size({"width": 900, "height": 900})
    expect(page.locator(PLOT).first).to_be_visible(timeout=120_000)
    expect(page.get_by_text("The best ECE is")).to_be_visible()
    query = address(page)
    assert (query["line"], query["kept"], query["members"], query["metric"]) == ("hydra_random", "2", "5", "ece")
    assert page.evaluate("document.scrollingElement.scrollWidth <= window.innerWidth")
    assert page.errors == []


def test_noise_answers_at_once_and_another_severity_changes_the_answer(visit):
    page = visit("/noise?corruption=contrast&severity=5")
    expect(page.locator(PLOT).first).to_be_visible(timeout=120_000)
    expect(page.get_by_text("contrast of severity 5 costs")).to_be_visible()
    rows = lab.stored_noise("demo/fashion-vit", "demo/fashion").rows
    row = next(r for r in rows if (r.corruption, r.severity, r.keep) == ("contrast", 5, 4))
    expect(page.get_by_text(f"{row.gap_pruned:.3f} nats over clean images")).to_be_visible()
    page.get_by_role("slider", name="Severity").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("contrast of severity 4 costs")).to_be_visible(timeout=60_000)
    page.wait_for_function("() => location.search.includes('severity=4')")
    assert page.errors == []
