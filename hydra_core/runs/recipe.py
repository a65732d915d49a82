"""A recipe: what a chosen setting is, in a file that a person can read and a command can run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hydra_core.errors import DataError
from hydra_core.fusion.ensemble import FusionOptions
from hydra_core.heads.mask import Plan

FORMAT = "hydra-recipe-1"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Recipe:
    """Model, data, masks and fusion: everything `python -m hydra_core run` needs.

    Attributes:
        model, data: names as `load_model` and `load_data` take them.
        plan: the members' masks.
        options: how members are fused.
        note: free text of the user's.
    """

    model: str
    data: str
    plan: Plan
    options: FusionOptions = field(default_factory=FusionOptions)
    note: str = ""

    def to_json(self) -> str:
        """Readable JSON with the versions it was made with."""
        body = {
            "format": FORMAT,
            "model": self.model,
            "data": self.data,
            "plan": self.plan.to_json(),
            "fusion": asdict(self.options),
            "note": self.note,
            "versions": versions(),
        }
        return json.dumps(body, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Read what `to_json` wrote.

        Raises:
            DataError: not a recipe; the text says what was expected.
            MaskError: its masks cannot be read.
        """
        if len(text) > MAX_BYTES:
            raise DataError(
                "The recipe is too large", expected=f"at most {MAX_BYTES:,} characters", got=f"{len(text):,}"
            )
        try:
            body = json.loads(text)
            found = body.get("format")
        except (ValueError, AttributeError) as error:
            raise DataError("This is not a recipe", expected="a JSON object", got=repr(text[:60])) from error
        if found != FORMAT:
            raise DataError("This is not a recipe of this version", expected=FORMAT, got=repr(found)[:80])
        try:
            options = FusionOptions(**body.get("fusion", {}))
            model, data, plan = str(body["model"]), str(body["data"]), body["plan"]
        except (KeyError, TypeError) as error:
            raise DataError("The recipe lacks a part", expected="model, data, plan, fusion", got=str(error)) from error
        return cls(model, data, Plan.from_json(plan), options, str(body.get("note", "")))

    @classmethod
    def read(cls, path: str | Path) -> Recipe:
        """Read a recipe file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError("The recipe cannot be read", expected="a text file", got=f"{path}: {error}") from error


def versions() -> dict[str, str]:
    """Versions that decide a result."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("torch", "timm", "numpy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
