"""`python -m app`: start the dashboard on 127.0.0.1:8501, from any folder."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m app", description="Start the Hydra Lab dashboard.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8501, help="port to listen on (default: 8501)")
    options = parser.parse_args(argv)

    os.chdir(ROOT)  # .streamlit/config.toml is read from the working folder
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from streamlit.web import cli

    from app import lab

    print("Hydra Lab: loading the engine ...", flush=True)
    lab.load_engine()
    lab.warm_up()  # the demo is on its way while the server starts and the reader opens the page
    sys.argv = [
        "streamlit", "run", str(ROOT / "app" / "main.py"),
        f"--server.address={options.host}", f"--server.port={options.port}", f"--browser.serverAddress={options.host}",
    ]  # fmt: skip
    cli.main()


if __name__ == "__main__":
    main()
