"""Seconds until a page shows its first picture in a real browser: in a fresh server, and again in one session.

Cold: the page is the first that a new process serves, asked as soon as it answers. Warm: the page was open before in
this session and is opened again from the menu, from a page without pictures. The picture of a page is what answers its
question: a chart, a table, the cards, the grid.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.registry import PAGES
from benchmarks.common import Row
from tests.browser.server import CHROMIUM, FLAGS, dashboard

LIMITS = {"cold": 5.0, "warm": 1.0}  # seconds
CHART, TABLE, CARDS = ".js-plotly-plot .main-svg", '[data-testid="stDataFrame"] canvas', '[data-testid="stMetric"]'
PICTURES = {
    "start": CARDS, "your_data": CARDS, "heads": CHART, "projections": CHART, "what_if": CARDS, "zero_shot": CHART,
    "compare": TABLE, "sweep": CHART, "noise": CHART, "cost": TABLE,
    "export": '[data-testid="stDownloadButton"]', "learn": CHART,
}  # fmt: skip
LINKS = {"zero_shot": "zero_shot?model=demo/fashion-clip"}  # the other demo model has no words
FROM = "export"  # the page that the menu is used on: nothing in it is anybody's picture but its own
# What an earlier run left stands greyed until it is replaced: it is no answer.
SHOWN = """([title, picture]) => {
    const main = document.querySelector('[data-testid="stMain"]');
    if (main?.querySelector('h1')?.innerText.trim() !== title) return false;
    const shown = [...main.querySelectorAll(picture)].some(e => !e.closest('[data-stale="true"]'));
    return shown && performance.now();
}"""


def run() -> Iterator[Row]:
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        sys.exit("Chromium is missing: install the package chromium.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for entry in PAGES:
            with tempfile.TemporaryDirectory() as folder, dashboard(Path(folder)) as address:
                yield _row("cold", entry.title, _opened(_window(browser), address, entry) / 1000)
        with tempfile.TemporaryDirectory() as folder, dashboard(Path(folder)) as address:
            window = _window(browser)
            for entry in PAGES:
                _opened(window, address, entry)
                window.wait_for_timeout(3_000)  # the rest of the page is worked out too
                yield _row("warm", entry.title, _again(window, entry) / 1000)
        browser.close()


def _row(kind: str, title: str, seconds: float) -> Row:
    return Row(f"{title}, {kind}: seconds to the first picture", seconds, LIMITS[kind])


def _window(browser: Any) -> Any:
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.set_default_timeout(120_000)
    return page


def _opened(window: Any, address: str, entry: Any) -> float:
    """Milliseconds from asking for the address to the picture."""
    window.goto(f"{address}/{LINKS.get(entry.name, entry.name)}", wait_until="commit")
    return _shown(window, entry)


def _again(window: Any, entry: Any) -> float:
    """Milliseconds from a click in the menu to the picture."""
    origin = next(page for page in PAGES if page.name == (FROM if entry.name != FROM else "your_data"))
    _click(window, origin)
    _shown(window, origin)
    window.wait_for_timeout(2_000)  # what the page before still draws is not this one's time
    start = window.evaluate("performance.now()")
    _click(window, entry)
    return _shown(window, entry) - start


def _click(window: Any, entry: Any) -> None:
    window.get_by_test_id("stSidebarNav").get_by_role("link", name=entry.title, exact=True).click()


def _shown(window: Any, entry: Any) -> float:
    """The browser's clock (ms since the address was asked for) when the picture is there."""
    found = window.wait_for_function(SHOWN, arg=[entry.title, PICTURES[entry.name]], polling="raf")
    return float(found.json_value())
