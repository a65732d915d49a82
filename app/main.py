"""The entry of the dashboard: navigation over the pages, the side bar, the guard around every page."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # plain `streamlit run app/main.py` knows only the folder of this file
    sys.path.insert(0, str(ROOT))

import streamlit as st  # noqa: E402

from app import frame, lab  # noqa: E402
from app.errors import guard  # noqa: E402
from app.registry import PAGES  # noqa: E402


def main() -> None:
    st.set_page_config(page_title="Hydra Lab", page_icon=str(ROOT / "app" / "icon.svg"), layout="wide")
    lab.warm_up()
    pages = [
        st.Page(entry.path, title=entry.title, icon=f":material/{entry.icon}:", url_path=entry.name, default=not i)
        for i, entry in enumerate(PAGES)
    ]
    current = st.navigation(pages)
    with guard():
        frame.session()
        frame.sidebar()
        frame.show_problems()
        with guard():
            current.run()
        frame.write_address()


main()
