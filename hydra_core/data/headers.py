"""The header of a safetensors file, checked before a byte is allocated for what it claims."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from hydra_core.data.limits import GIB, MIB, size_text
from hydra_core.data.report import safe_name
from hydra_core.errors import CheckpointError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
MAX_HEADER = 16 * MIB
MAX_TENSORS = 100_000
MAX_BYTES = 8 * GIB


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of one tensor; `start` and `end` are bytes after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(source: str | Path | bytes, max_bytes: int = MAX_BYTES) -> dict[str, TensorInfo]:
    """The checked header of a safetensors file: names, dtypes and shapes. No tensor is read.

    Raises:
        CheckpointError: not safetensors (a pickle in disguise, say), truncated, too large, or a header
            that is too long, no JSON, or whose offsets overlap, leave gaps or lie outside the file.
    """
    if isinstance(source, bytes):
        size, start = len(source), source[:8]
    else:
        size, start = file_size(source), read_at(source, 0, 8)
    if size > max_bytes:
        refuse("The file is too large", f"at most {size_text(max_bytes)}", size_text(size))
    length = _header_length(start, size)
    raw = source[8 : 8 + length] if isinstance(source, bytes) else read_at(source, 8, length)
    infos = {name: _tensor_info(name, entry) for name, entry in _header_json(raw).items() if name != "__metadata__"}
    _check_layout(infos, size - 8 - length)
    return infos


def refuse(problem: str, expected: object = None, got: object = None, hint: str = "") -> NoReturn:
    raise CheckpointError(problem, expected=expected, got=got, hint=hint)


def file_size(path: str | Path) -> int:
    try:
        if not Path(path).is_file():
            refuse(f"There is no file {safe_name(path)}", "the path of a weights file")
        return os.path.getsize(path)
    except (OSError, ValueError) as error:
        refuse(f"{safe_name(path)} cannot be read", "a readable file", type(error).__name__)


def read_at(path: str | Path, offset: int, count: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(count)
    except OSError as error:
        refuse(f"{safe_name(path)} cannot be read", "a readable file", type(error).__name__)


def _header_length(start: bytes, size: int) -> int:
    """The length that the first 8 bytes declare, checked against the file and the limit."""
    if looks_like_torch(start):
        refuse(
            "This is a pickle or torch file, not safetensors",
            "a .safetensors file",
            hint="Save it again: safetensors.torch.save_file(model.state_dict(), 'weights.safetensors').",
        )
    if size < 10:
        refuse("The file is too short for safetensors", "10 bytes or more", f"{size} bytes")
    length = int.from_bytes(start, "little")
    if length > min(MAX_HEADER, size - 8):
        what = f"{length:,} bytes in a file of {size:,}"
        refuse("The header does not fit: truncated, or not safetensors", f"at most {size_text(MAX_HEADER)}", what)
    return length


def looks_like_torch(start: bytes) -> bool:
    """Whether a file's first 8 bytes are those of a pickle (protocol 2 to 5) or of the zip that torch.save writes.

    A header of 640 bytes starts like a pickle too (80 02), but then zeros follow, which no pickle has there.
    """
    pickled = start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    return start[:4] in (b"PK\x03\x04", b"PK\x05\x06") or (pickled and any(start[3:8]))


def _header_json(raw: bytes) -> dict[str, Any]:
    """The header as a dict; a name that stands twice is refused."""
    if raw[:1] != b"{":
        refuse("The header is not safetensors'", "a JSON object")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            refuse("A name stands twice in the header", "each name once")
        return out

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        refuse("The header is not JSON: truncated, or not safetensors", "a JSON object")
    if len(header) > MAX_TENSORS:
        refuse("The file has too many tensors", f"at most {MAX_TENSORS:,}", f"{len(header):,}")
    return header


def _tensor_info(name: str, entry: Any) -> TensorInfo:
    shown = safe_name(name)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        refuse(f"{shown}: the header entry is malformed", "dtype, shape and data_offsets")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
        refuse(f"{shown}: unknown dtype", ", ".join(DTYPES), safe_name(entry["dtype"]))
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not _counts(shape) or len(shape) > 16:
        refuse(f"{shown}: not a shape", "up to 16 sizes, 0 or more", safe_name(shape))
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        refuse(f"{shown}: not a byte range", "[start, end]", safe_name(offsets))
    dtype = DTYPES[entry["dtype"]]
    needed = math.prod(shape) * dtype.itemsize
    if needed != offsets[1] - offsets[0]:
        got = f"{offsets[1] - offsets[0]:,} bytes for shape {safe_name(shape)} {entry['dtype']}"
        refuse(f"{shown}: size and shape disagree", f"{safe_name(f'{needed:,}')} bytes", got)
    return TensorInfo(dtype, tuple(shape), *offsets)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def _check_layout(infos: Mapping[str, TensorInfo], data: int) -> None:
    """Byte ranges must follow each other without overlap or gap and end with the file."""
    end = 0
    for name, info in sorted(infos.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != end:
            what = "overlap" if info.start < end else "leave a gap"
            refuse(f"{safe_name(name)}: byte ranges {what}", f"a start at {end:,}", f"{info.start:,}")
        end = info.end
    if end != data:
        problem = "The file is truncated" if end > data else "The file has bytes that no tensor owns"
        refuse(problem, f"{end:,} bytes of tensors", f"{data:,}")
