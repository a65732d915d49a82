"""A real server and a real headless Chromium for every test."""

from __future__ import annotations

import pytest

from tests.browser.server import CHROMIUM, FLAGS, dashboard


def pytest_collection_modifyitems(items):
    """A test on a busy machine may lose a race that a reader would not notice: it is tried up to three times.

    A defect fails every time; the summary counts what was tried again.
    """
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory):
    """The folder in which the server is started."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="session")
def server(elsewhere):
    """Address of a dashboard of its own on a free port."""
    with dashboard(elsewhere) as address:
        yield address


@pytest.fixture
def server_log(server, elsewhere):
    """File with all that the server has said."""
    return elsewhere / "log"


@pytest.fixture(scope="session")
def chromium():
    if CHROMIUM is None:
        pytest.fail("Chromium is missing: .ci/run installs it (package chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, server):
    """`visit(path, **context options)` opens a page in a browser context of its own."""
    contexts = []

    def open_page(path="/", **options):
        context = chromium.new_context(viewport={"width": 1440, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(server + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
