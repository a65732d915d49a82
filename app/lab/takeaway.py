"""Taking a setting away: recipe, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.cache import digest
from app.lab import store
from app.lab.sources import model, shape
from app.session import Settings
from hydra_core.heads.mask import HeadMask, Plan

if TYPE_CHECKING:
    pass


def unpruned(model_name: str) -> Plan:
    """The plan of one member with all heads."""
    return Plan.full(shape(model_name))


def recipe(model_name: str, data_name: str, plan: Plan, note: str = "") -> str:
    """The recipe file of a setting."""
    from hydra_core.runs.recipe import Recipe

    return Recipe(model_name, data_name, plan, note=note).to_json()


def read_recipe(content: bytes) -> Settings:
    """Settings from an uploaded recipe; whether model and data exist and masks fit is seen when they are loaded.

    Raises:
        HydraError: not a recipe.
    """
    from hydra_core.runs.recipe import Recipe

    read = Recipe.from_json(content.decode("utf-8", errors="replace"))
    return Settings(read.model, read.data, read.plan)


def fused_file(model_name: str, plan: Plan) -> bytes:
    """The fused ensemble as a safetensors file."""
    from hydra_core.fusion.ensemble import fuse

    return _file(lambda path: fuse(model(model_name), plan).save(path))


def pruned_file(model_name: str, mask: HeadMask) -> bytes:
    """One pruned member as a safetensors file; the mask stands in its header."""

    def write(path: Any) -> None:
        from hydra_core.fusion.surgery import save_pruned

        save_pruned(model(model_name), mask, path)

    return store.results.get(digest("pruned", model_name, mask.text), lambda: _file(write))


def _file(write: Callable[[Any], object]) -> bytes:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.safetensors"
        write(path)
        return path.read_bytes()
