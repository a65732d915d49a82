"""Changes of the session from callbacks."""

from __future__ import annotations

from app import frame
from hydra_core.errors import HydraError


def act(change: str, *args: object) -> None:
    """Call a method of the session; what goes wrong is shown above the page."""
    try:
        getattr(frame.session(), change)(*args)
    except HydraError as error:
        frame.report_problem(error)
