"""Weights from outside: every claim of a file is checked before a byte is allocated for it.

Uploads are safetensors only. Torch's own files (.pt, .pth) are pickles; they are read by path on the
user's own machine alone, with `weights_only=True`, which was bypassed twice (fixed in torch 2.6 and 2.10).
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydra_core.data.headers import MAX_BYTES, file_size, looks_like_torch, read_at, read_header, refuse
from hydra_core.data.limits import size_text
from hydra_core.data.report import IntakeReport, safe_name
from hydra_core.errors import CheckpointError

State = dict[str, torch.Tensor]
Expected = Mapping[str, tuple[Sequence[int], torch.dtype | None]]

TORCH_ENDINGS = frozenset({".pt", ".pth", ".bin", ".ckpt", ".tar"})
TORCH_WARNING = (
    "This is a torch file, which can hold code. It is read with weights_only=True; open such files only "
    "from people you trust, or ask for safetensors."
)
PREFIXES = ("module.", "model.", "_orig_mod.", "state_dict.")
NESTS = ("state_dict", "model", "model_state_dict", "module", "state_dict_ema", "model_ema")


# -- reading ---------------------------------------------------------------------------------


def read_safetensors(source: str | Path | bytes, expected: Expected | None = None, max_bytes: int = MAX_BYTES) -> State:
    """The tensors of a safetensors file, after its header passed every check.

    Args:
        source: a path on this machine, or the bytes of an upload.
        expected: names with (shape, dtype) that must be there, as `expected_of(module)` gives them;
            a float may stand for any other float. Compared before tensors are read, after shared
            prefixes ("module.", "model.") are taken off.
        max_bytes: a larger file is refused unread.

    Raises:
        CheckpointError: see `read_header`; also names, shapes or dtypes that differ from `expected`
            (the first few are listed), and more bytes than this machine has free.
    """
    infos = read_header(source, max_bytes)
    _check_memory(sum(info.end - info.start for info in infos.values()))
    names = strip_prefixes(infos, expected)
    if expected is not None:
        check_fit({names[name]: (info.shape, info.dtype) for name, info in infos.items()}, expected)
    state = _load(source)
    return {names[name]: tensor for name, tensor in state.items()}


def _load(source: str | Path | bytes) -> State:
    import safetensors.torch

    try:
        return safetensors.torch.load(source) if isinstance(source, bytes) else safetensors.torch.load_file(source)
    except Exception as error:  # the library's own errors; our checks are stricter, so this is rare
        raise CheckpointError("The weights could not be read", got=str(error)[:160]) from error


def free_memory() -> int | None:
    """Bytes that this machine can still give, or None where it does not say."""
    try:
        text = Path("/proc/meminfo").read_text()
        found = re.search(r"MemAvailable:\s+(\d+) kB", text)
        return int(found[1]) * 1024 if found else None
    except OSError:
        return None


def _check_memory(needed: int) -> None:
    free = free_memory()
    if free is not None and needed > free:
        refuse(
            "The weights do not fit into memory",
            f"at most {size_text(free)}",
            size_text(needed),
            "Close other programs, or save the weights in half precision.",
        )


def read_weights(
    path: str | Path | bytes,
    *,
    expected: Expected | None = None,
    max_bytes: int = MAX_BYTES,
    report: IntakeReport | None = None,
) -> State:
    """Weights from a path on the user's own machine: safetensors, or a torch file (.pt, .pth, .bin, .ckpt).

    The bytes of an upload are read as safetensors and nothing else. The kind is told by content, so a pickle that is
    named .safetensors is refused. For torch files `report` gets a note with `TORCH_WARNING`.

    Raises:
        CheckpointError: see `read_safetensors`.
    """
    if isinstance(path, bytes):
        return read_safetensors(path, expected, max_bytes)
    size = file_size(path)
    if not (looks_like_torch(read_at(path, 0, 8)) and Path(path).suffix.lower() in TORCH_ENDINGS):
        return read_safetensors(path, expected, max_bytes)
    if size > max_bytes:
        refuse("The file is too large", f"at most {size_text(max_bytes)}", size_text(size))
    _check_memory(size)
    if report is not None:
        report.note(TORCH_WARNING)
    state = _unnest(_torch_load(path))
    names = strip_prefixes(state, expected)
    state = {names[name]: tensor for name, tensor in state.items()}
    if expected is not None:
        check_fit({name: (tuple(t.shape), t.dtype) for name, t in state.items()}, expected)
    return state


def weight_shapes(source: str | Path | bytes) -> dict[str, tuple[int, ...]] | None:
    """Shapes by name from the checked header of a safetensors file, prefixes taken off; None for a torch file."""
    if not isinstance(source, bytes):
        file_size(source)  # says so where there is no file
        if Path(source).suffix.lower() in TORCH_ENDINGS and looks_like_torch(read_at(source, 0, 8)):
            return None
    infos = read_header(source)
    names = strip_prefixes(infos)
    return {names[name]: info.shape for name, info in infos.items()}


def _torch_load(path: str | Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        refuse(
            f"{safe_name(Path(path).name)} holds more than weights, and was not opened",
            "a state dict of tensors",
            hint="Save it again: torch.save(model.state_dict(), PATH), or use safetensors.",
        )
    except Exception as error:  # truncated zips, bad storages ...: torch raises many kinds
        raise CheckpointError(
            f"{safe_name(Path(path).name)} is damaged or not a torch file", got=type(error).__name__
        ) from error


def _unnest(loaded: Any) -> State:
    """The state dict inside what trainers save around it."""
    for _ in range(3):
        inner = [loaded[key] for key in NESTS if isinstance(loaded, dict) and isinstance(loaded.get(key), dict)]
        if not inner:
            break
        loaded = inner[0]
    if not isinstance(loaded, dict):
        refuse("The file holds no state dict", "names with tensors", type(loaded).__name__)
    state = {str(name): value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    if not state:
        refuse("The file holds no tensors", "names with tensors", f"{len(loaded)} other entries")
    return state


# -- names and fit ---------------------------------------------------------------------------


def strip_prefixes(names: Iterable[str], expected: Iterable[str] | None = None) -> dict[str, str]:
    """Old name -> name without the prefixes that all share ("module." of DataParallel, "model." of Lightning).

    A prefix that the names in `expected` have too is kept, or put back.
    """
    out = {name: name for name in names}
    wanted = set(expected) if expected is not None else set()
    for _ in range(4):
        shared = next((p for p in PREFIXES if out and all(new.startswith(p) for new in out.values())), None)
        if shared is None or any(new in wanted for new in out.values()):
            break
        out = {old: new.removeprefix(shared) for old, new in out.items()}
    for prefix in PREFIXES:
        if wanted and all(name.startswith(prefix) for name in wanted) and not wanted & set(out.values()):
            out = {old: prefix + new for old, new in out.items()}
    return out


def expected_of(module: nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype | None]]:
    """Names with (shape, dtype) of a module's state dict, as `read_safetensors` takes them."""
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in module.state_dict().items()}


def check_fit(got: Expected, expected: Expected, shown: int = 5) -> None:
    """Compare names, shapes and kinds of numbers; a float fits any float.

    Raises:
        CheckpointError: they differ; the first `shown` names of each kind are listed.
    """
    missing = [name for name in expected if name not in got]
    surplus = [name for name in got if name not in expected]
    differ = [
        f"{safe_name(name)} expected {_spec(expected[name])}, got {_spec(got[name])}"
        for name in expected
        if name in got and not _fits(got[name], expected[name])
    ]
    parts = [
        f"{len(found)} {what} ({'; '.join(safe_name(n, 160) for n in found[:shown])}{' ...' * (len(found) > shown)})"
        for what, found in (("differ", differ), ("missing", missing), ("not in the model", surplus))
        if found
    ]
    if parts:
        raise CheckpointError(
            "The weights do not fit the model",
            expected=f"{len(expected)} tensors named and shaped as the model's",
            got=", ".join(parts),
            hint="Choose the model that they were trained with, or its number of classes.",
        )


def _spec(spec: tuple[Sequence[int], torch.dtype | None]) -> str:
    dtype = "" if spec[1] is None else f" {str(spec[1]).removeprefix('torch.')}"
    return f"{tuple(spec[0])}{dtype}"


def _fits(got: tuple[Sequence[int], torch.dtype | None], wanted: tuple[Sequence[int], torch.dtype | None]) -> bool:
    if tuple(got[0]) != tuple(wanted[0]):
        return False
    a, b = got[1], wanted[1]
    return a is None or b is None or a == b or (a.is_floating_point and b.is_floating_point)


def load_into(module: nn.Module, state: Mapping[str, torch.Tensor]) -> nn.Module:
    """Load weights into a module that must fit them exactly; dtypes become the module's.

    Raises:
        CheckpointError: names, shapes or dtypes differ, or a weight is not finite.
    """
    expected = expected_of(module)
    names = strip_prefixes(state, expected)
    renamed = {names[name]: tensor for name, tensor in state.items()}
    check_fit({name: (tuple(t.shape), t.dtype) for name, t in renamed.items()}, expected)
    broken = [n for n, t in renamed.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
    if broken:
        got = ", ".join(safe_name(name) for name in broken[:5])
        refuse("Weights are not finite", "numbers", f"NaN or infinity in {len(broken)} tensors ({got})")
    module.load_state_dict(renamed)
    return module
