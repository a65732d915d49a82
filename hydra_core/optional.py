"""Libraries that only some users need."""

from __future__ import annotations

import importlib
from types import ModuleType

from hydra_core.errors import DependencyError


def require(name: str, problem: str, hint: str) -> ModuleType:
    """Import a library, or say in words what needs it.

    Raises:
        DependencyError: it is not installed; the text is `problem` and `hint`.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DependencyError(problem, hint=hint) from error
