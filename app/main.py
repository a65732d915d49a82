"""The entry of the dashboard: navigation over the pages, the side bar, the guard around every page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # plain `streamlit run app/main.py` knows only the folder of this file
    sys.path.insert(0, str(ROOT))

import streamlit as st  # noqa: E402

from app import arrival, frame, lab, sidebar  # noqa: E402
from app.errors import guard  # noqa: E402
from app.registry import PAGES, PageEntry  # noqa: E402

SIDEBAR = 240  # pixels; what it does not take is the page's, which counts in a window of 900


def main() -> None:
    st.set_page_config(
        page_title="Hydra Lab", page_icon=str(ROOT / "app" / "icon.svg"), layout="wide",
        initial_sidebar_state=SIDEBAR,
    )  # fmt: skip
    lab.warm_up()
    first, *others = PAGES
    home = _page(first, url_path="home", default=True)  # it lies at "/"; its path in the address is never seen
    alias = st.Page(_nothing, title=first.title, url_path=first.name, visibility="hidden")
    current = st.navigation([home, alias, *(_page(entry, url_path=entry.name) for entry in others)])
    if current is alias:  # a link to /start
        st.switch_page(home, query_params=st.query_params.to_dict())
    frame.start_at_top(current.url_path)
    with guard():
        if not arrival.ready():
            return
        frame.show_notice()
        sidebar.draw()
        frame.show_problems()
        with guard():
            current.run()
        frame.write_address()
        if refused := arrival.refused_controls(current.url_path):
            for problem in refused:
                frame.report_problem(problem)
            st.rerun()  # the boxes stand above the page


def _page(entry: PageEntry, **options: Any) -> Any:
    return st.Page(entry.path, title=entry.title, icon=f":material/{entry.icon}:", **options)


def _nothing() -> None:
    """The page that only leads to another."""


main()
