"""A real server (`python -m app` from another folder) and how a headless Chromium is started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = next((p for p in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(p).exists()), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@contextmanager
def dashboard(folder: Path) -> Iterator[str]:
    """Address of a dashboard of its own on a free port; `folder` takes its log.

    Raises:
        RuntimeError: it did not start; with the end of its log.
    """
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("w") as log:
        # started elsewhere: it must not depend on the current folder
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


def _wait(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=2)
            return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the dashboard did not start:\n{log.read_text()[-2000:]}")
