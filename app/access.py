"""Which names may be typed: paths of the server's machine are for servers that serve that machine alone.

Side bar, address, recipes and the page Your data all reach models and data through `app.lab` and `app.bring`,
which ask here before anything is opened.
"""

from __future__ import annotations

import re
from pathlib import Path

import streamlit as st

from hydra_core.errors import HydraError

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HUB_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)  # NAME or OWNER/NAME


def only_this_machine(address: object) -> bool:
    """Whether a server at this address serves its own machine alone, so that paths may be typed."""
    return str(address or "") in LOOPBACK


def paths_allowed() -> bool:
    """The same of the server that runs."""
    return only_this_machine(st.get_option("server.address"))


def check_path(path: str) -> None:
    """Whether a path of the server's machine, or a data set of the hub, may be opened.

    Raises:
        HydraError: the server is open to other machines.
    """
    if not paths_allowed():
        raise HydraError(
            "This server opens no path and no data set of the hub",
            expected="an upload",
            got=path[:80],
            hint="Upload the file on the page Your data, or start the dashboard on your own machine.",
        )


def check_model(name: str) -> None:
    """Whether a model of this name may be loaded here: always, but for names that lead to a path of the server.

    Only "hf/..." is ever taken for a path (transformers prefers a folder over the hub's name); of the other families
    nothing that looks like one gets through either.

    Raises:
        HydraError: the name is a path, and the server is open to other machines.
    """
    if paths_allowed():
        return
    family, _, rest = name.partition("/")
    if family == "hf":
        is_path = not HUB_NAME.fullmatch(rest) or ".." in rest or Path(rest).exists()
    else:
        is_path = bool(set("/\\") & set(rest)) or ".." in rest
    if is_path:
        raise HydraError(
            "This server loads no model from a path",
            expected="a name: demo/NAME, timm/NAME, open_clip/NAME or hf/OWNER/NAME",
            got=name[:80],
            hint="Upload the weights on the page Your data, or start the dashboard on your own machine.",
        )
