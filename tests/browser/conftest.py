"""A real server (`python -m app` from another folder) and a real headless Chromium."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next((p for p in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(p).exists()), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


def pytest_collection_modifyitems(items):
    """A test on a busy machine may lose a race that a reader would not notice: it is tried up to three times.

    A defect fails every time; the summary counts what was tried again.
    """
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(pytest.mark.flaky(reruns=2))


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Address of a dashboard of its own on a free port."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    folder = tmp_path_factory.mktemp("elsewhere")  # the start must not depend on the current folder
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "--port", str(port)], cwd=folder, env=env, stdout=log, stderr=log
        )
        try:
            _wait(f"http://127.0.0.1:{port}/_stcore/health", process, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # inference under way
                process.kill()


def _wait(url, process, log, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=2)
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the dashboard did not start:\n{log.read_text()[-2000:]}")


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
