"""Which models of a registry can be used: every name is built on the meta device, without weights, and tried.

    python -m hydra_core.models.coverage --source timm --write docs/coverage-timm.md

A name counts as masked when a masked forward runs and keeps the native output's shape, as fused when two
different members run as one network. Whether the numbers are right is for tests/models/test_families.py,
which checks one small model of every attention class in float64.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hydra_core.errors import Cancelled, UnknownNameError, UnsupportedModel
from hydra_core.progress import Progress

if TYPE_CHECKING:
    import threading

    import pandas as pd

    from hydra_core.models.view import ModelView

FUSED, MASKED, REFUSED, NO_HEADS = "masked and fused", "masked only", "refused", "no heads"


@dataclass(frozen=True)
class Row:
    """What became of one name.

    Attributes:
        name, family: the registry name, and the class of the model.
        status: one of FUSED, MASKED, REFUSED, NO_HEADS.
        heads: layers x heads, as a mask's text has it ("12x6", or "2+2+4+4").
        attention: names of the attention kinds.
        cut: whether every layer can be made physically smaller; otherwise some are gated by zero columns.
        fusion: "block by block" or "whole members, REASON".
        counted: whether a module has `num_heads`, the denominator of the figures.
        reason: why it was refused, or not fused.
        run: "itself", or the name of the same structure whose forwards were run in its place.
    """

    name: str
    family: str
    status: str
    heads: str = ""
    attention: str = ""
    cut: bool = False
    fusion: str = ""
    counted: bool = False
    reason: str = ""
    run: str = "itself"


def structure(module: nn.Module) -> frozenset[tuple[str, str]]:
    """Where which classes sit, whatever the depth and widths: models that agree run the same code."""
    from hydra_core.models.attention import class_path

    return frozenset((re.sub(r"\d+", "#", path), class_path(child)) for path, child in module.named_modules())


def examine(name: str, module: nn.Module, image: torch.Tensor, known: dict[Any, Row] | None = None) -> Row:
    """Try one model.

    Args:
        module: on the meta device.
        image: a batch (2, C, H, W) on the meta device.
        known: rows by structure; a model whose structure is there is not run again.
    """
    from hydra_core.models.view import build_view

    counted = any(hasattr(child, "num_heads") for child in module.modules())
    base = {"name": name, "family": type(module).__name__, "counted": counted}
    try:
        view = build_view(name, module)
    except UnsupportedModel as error:
        reason = _refusal(module) or str(error)
        return Row(status=REFUSED if counted else NO_HEADS, reason=reason, **base)  # type: ignore[arg-type]
    base |= _facts(view)
    key = (structure(module), base["attention"], base["fusion"])
    if known is not None and key in known:
        twin = known[key]
        return Row(status=twin.status, reason=twin.reason, run=twin.name, **base)  # type: ignore[arg-type]
    row = _run(view, image, base)
    if known is not None:
        known[key] = row
    return row


def _run(view: ModelView, image: torch.Tensor, base: dict[str, Any]) -> Row:
    shape: list[int] = []
    problem = _try(lambda: shape.extend(_native_shape(view, image))) or _try(lambda: _mask_runs(view, image, shape))
    if problem:
        return Row(status=REFUSED, reason=problem, **base)  # type: ignore[arg-type]
    problem = _try(lambda: _fusion_runs(view, image, shape))
    return Row(status=MASKED if problem else FUSED, reason=problem, **base)  # type: ignore[arg-type]


def _facts(view: ModelView) -> dict[str, Any]:
    from hydra_core.heads.mask import HeadMask
    from hydra_core.models.blocks import unchained

    why = unchained(view.module)
    return {
        "heads": HeadMask.full(view.shape).text.split(".")[0],
        "attention": ", ".join(dict.fromkeys(layer.kind.name for layer in view.layers)),
        "cut": view.sliceable,
        "fusion": f"whole members: {why}" if why else "block by block",
    }


def _refusal(module: nn.Module) -> str:
    """Which blocks are refused and why, in a few words."""
    from hydra_core.models.view import IGNORED, find_heads

    _, refused = find_heads(module)
    if refused:
        return "; ".join(sorted({f"{kind}: {why}" for _, kind, why in refused}))
    pools = sorted({type(child).__name__ for child in module.modules()} & IGNORED)
    return f"heads only in {', '.join(pools)}, which reads the result out" if pools else "no attention with heads"


def _try(run: Callable[[], None]) -> str:
    """The problem in a few words, or ""."""
    try:
        run()
    except Exception as error:  # a census goes on whatever a model raises, and says what it raised
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
    return ""


def _native_shape(view: ModelView, image: torch.Tensor) -> Sequence[int]:
    with torch.inference_mode():
        return view.module(image).shape


def _mask_runs(view: ModelView, image: torch.Tensor, shape: Sequence[int]) -> None:
    from hydra_core.heads.mask import HeadMask

    _same_shape(view(image, HeadMask.full(view.shape).prune(len(view.shape) - 1, 0)), shape)


def _fusion_runs(view: ModelView, image: torch.Tensor, shape: Sequence[int]) -> None:
    from hydra_core.fusion.ensemble import fuse
    from hydra_core.heads.mask import HeadMask

    full, middle = HeadMask.full(view.shape), len(view.shape) // 2
    masks = [full.prune(middle, 0), full]
    _same_shape(fuse(view, masks)(image), (len(masks), *shape))


def _same_shape(got: torch.Tensor, want: Sequence[int]) -> None:
    if tuple(got.shape) != tuple(want):
        raise RuntimeError(f"gives {tuple(got.shape)} where {tuple(want)} is due")


# -- sources ------------------------------------------------------------------------------------


def _timm_names() -> list[str]:
    import timm

    return timm.list_models()


def _timm_model(name: str) -> tuple[nn.Module, torch.Tensor]:
    import timm

    with torch.device("meta"):
        module = timm.create_model(name)
        image = torch.empty(2, *timm.data.resolve_data_config(model=module)["input_size"])
    return module, image


def _open_clip_names() -> list[str]:
    from hydra_core.models import coverage_open_clip

    return coverage_open_clip.names()


def _open_clip_model(name: str) -> tuple[nn.Module, torch.Tensor]:
    from hydra_core.models import coverage_open_clip

    return coverage_open_clip.model(name)


SOURCES: dict[str, tuple[Callable[[], list[str]], Callable[[str], tuple[nn.Module, torch.Tensor]]]] = {
    "timm": (_timm_names, _timm_model),
    "open_clip": (_open_clip_names, _open_clip_model),
}


def census(
    source: str = "timm",
    names: Iterable[str] | None = None,
    *,
    every: bool = False,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> pd.DataFrame:
    """One row a name, with the fields of `Row`.

    Args:
        source: a key of SOURCES.
        names: only these; None: the whole registry.
        every: run every model; otherwise one of each structure (every model is built and searched for heads).

    Raises:
        UnknownNameError: no such source.
        Cancelled: `cancel` was set.
    """
    import pandas as pd

    if source not in SOURCES:
        raise UnknownNameError("source of models", source, SOURCES)
    list_names, make = SOURCES[source]
    todo = list(list_names() if names is None else names)
    rows: list[dict[str, Any]] = []
    known: dict[Any, Row] | None = None if every else {}
    for i, name in enumerate(todo):
        if cancel is not None and cancel.is_set():
            raise Cancelled("The census")
        if progress is not None:
            progress(i / len(todo), name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows.append(asdict(examine(name, *make(name), known)))
    return pd.DataFrame(rows, columns=list(Row.__dataclass_fields__))


# -- the report -----------------------------------------------------------------------------------


def totals(table: pd.DataFrame) -> dict[str, int]:
    """The figures of the report, over names with heads (`counted`)."""
    with_heads = table[table.counted]
    masked = with_heads[with_heads.status.isin([FUSED, MASKED])]
    fused = masked[masked.status == FUSED]
    return {
        "names": len(table),
        "with heads": len(with_heads),
        "masked": len(masked),
        "fused": len(fused),
        "fused block by block": int((fused.fusion == "block by block").sum()),
        "fused as whole members": int((fused.fusion != "block by block").sum()),
        "cut in every layer": int(masked.cut.sum()),
        "refused": int((with_heads.status == REFUSED).sum()),
        "run themselves": int((masked.run == "itself").sum()),
        "masked besides (no `num_heads`)": int((~table.counted & table.status.isin([FUSED, MASKED])).sum()),
    }


def markdown(table: pd.DataFrame, source: str) -> str:
    """The report as Markdown: figures, a table by attention kind, what was refused, every name."""
    parts = [f"# Coverage of {source}", _PREFACE.format(source=source), _md(["", "names"], totals(table).items())]
    used = table[table.status.isin([FUSED, MASKED])]
    kinds = [
        (kind, len(rows), int((rows.status == FUSED).sum()), int(rows.cut.sum()), min(rows.name, key=len))
        for kind, rows in sorted(used.groupby("attention"), key=lambda item: -len(item[1]))
    ]
    parts += ["## By attention", _md(["attention", "masked", "fused", "cut in every layer", "for example"], kinds)]
    refused = table[(table.status == REFUSED) | (table.status == MASKED)]
    rows = refused[["name", "status", "reason"]].itertuples(index=False)
    parts += ["## Refused, or not fused", _md(["name", "status", "reason"], rows)]
    columns = ["name", "status", "heads", "attention", "cut", "fusion"]
    parts += ["## Every name with heads", _md(columns, used[columns].itertuples(index=False))]
    return "\n\n".join(parts) + "\n"


_PREFACE = """Written by `python -m hydra_core.models.coverage --source {source} --write FILE`; do not edit.

- masked: heads can be gated one by one, exactly.
- fused: several pruned members run as one network, exactly. Block by block, members share what is equal;
  "whole members" run one after another inside the network.
- cut: pruned layers become physically smaller. Otherwise the removed heads' columns of the output projection
  are zeroed: as exact, but not faster.

Every name is built without weights and searched for heads. One of each structure (the same classes at the same
places, whatever the depth and widths) is run for its shapes, or every name with `--every`. The numbers are
checked in float64 on one small model of every attention class (tests/models/test_families.py)."""


def _md(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        cells = ["yes" if v is True else "" if v is False else str(v).replace("|", "/") for v in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="coverage", description="Try every model of a registry, without weights.")
    parser.add_argument("--source", default="timm", choices=sorted(SOURCES))
    parser.add_argument("--only", default="*", help="a pattern of names, such as 'swin*'")
    parser.add_argument("--every", action="store_true", help="run every model, not one of each structure")
    parser.add_argument("--write", type=Path, help="write the report to this Markdown file")
    parser.add_argument("--csv", type=Path, help="write the table to this CSV file")
    parser.add_argument("--rest", type=Path, help="rows of all other names, from an earlier --csv")
    options = parser.parse_args(argv)
    names = [name for name in SOURCES[options.source][0]() if fnmatch(name, options.only)]
    start = time.perf_counter()

    def show(share: float, name: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{share:4.0%} {name:<60.60}", end="", file=sys.stderr, flush=True)

    table = census(options.source, names, every=options.every, progress=show)
    if options.rest:
        table = _with_rest(table, options.rest)
    for label, count in totals(table).items():
        print(f"{label:<34} {count}")
    print(f"{'seconds':<34} {time.perf_counter() - start:.0f}")
    if options.csv:
        table.to_csv(options.csv, index=False)
    if options.write:
        options.write.write_text(markdown(table, options.source), encoding="utf-8")
    elif len(table) <= 40:
        print(table[["name", "status", "heads", "attention", "reason"]].to_string(index=False))
    return 0


def _with_rest(table: pd.DataFrame, path: Path) -> pd.DataFrame:
    import pandas as pd

    earlier = pd.read_csv(path, keep_default_na=False)
    rest = earlier[~earlier.name.isin(table.name)]
    return pd.concat([table, rest]).sort_values("name", ignore_index=True)


if __name__ == "__main__":
    sys.exit(main())
