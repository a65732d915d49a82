"""Arrays from an .npz: images or texts `x` with labels `y`, whole or by split.

An .npz is a zip of .npy members. Each member's header is compared with the size of the member before
numpy allocates anything, and pickled (object) arrays are never opened.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from typing import BinaryIO

import numpy as np

from hydra_core.data.archives import DAMAGE, count_entries
from hydra_core.data.classfolders import Intake, count_classes
from hydra_core.data.limits import Limits, size_text
from hydra_core.data.report import IntakeReport, safe_name, unique_names
from hydra_core.data.sets import SampleSet, stratified_index
from hydra_core.data.tables import encode_labels
from hydra_core.errors import DataError, UploadError

INPUT_NAMES = frozenset({"x", "images", "image", "data", "inputs", "texts", "text"})
LABEL_NAMES = frozenset({"y", "labels", "label", "targets", "target"})
NAME_NAMES = frozenset({"class_names", "classes", "names"})
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
MAX_MEMBERS = 1_000


def read_npz(file: BinaryIO, name: str, report: IntakeReport, limits: Limits, seed: int) -> Intake:
    """Read `x` (N, H, W), (N, H, W, 1 or 3), (N, 1 or 3, H, W) or texts (N,), and `y` (N,) if it is there.

    Names may also be images/labels, and carry a split: x_train, test_images ... Floats within 0 to 1 or
    0 to 255 and 16-bit numbers become uint8. At most `limits.samples` are kept, stratified.

    Raises:
        UploadError: damaged, an object array (needs pickle), or a header that declares other sizes
            than the file has, or more than `limits.memory_bytes`.
        DataError: arrays whose shapes or values are no images, texts or labels.
    """
    arrays = _read_members(file, report, limits)
    parts = {split: _part(found, report) for split, found in _by_split(arrays, report).items()}
    if not parts:
        raise DataError(
            f"{report.source} has no images or texts",
            expected="an array x (or images, data, texts), and y (or labels)",
            got=", ".join(safe_name(key, 30) for key in list(arrays)[:8]) or "no array",
        )
    names = next((arrays[key] for key in arrays if key.lower() in NAME_NAMES), None)
    return _intake(parts, names, name, report, limits, seed)


# -- members ---------------------------------------------------------------------------------


def _read_members(file: BinaryIO, report: IntakeReport, limits: Limits) -> dict[str, np.ndarray]:
    if count_entries(file, limits) > MAX_MEMBERS:
        raise UploadError(f"{report.source} has too many arrays", expected=f"at most {MAX_MEMBERS:,}")
    arrays: dict[str, np.ndarray] = {}
    free = limits.memory_bytes
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                key = info.filename.removesuffix(".npy")
                if not info.filename.endswith(".npy") or not _is_wanted(key):
                    report.skip(info.filename, "not an array of samples")
                    continue
                free -= info.file_size
                if free < 0:
                    raise _too_much(report, limits)
                arrays[key] = _read_member(archive, info, report)
    except (*DAMAGE, NotImplementedError, RuntimeError) as error:
        raise UploadError(f"{report.source} is damaged", expected="a whole .npz", got=safe_name(error)) from None
    return arrays


def _too_much(report: IntakeReport, limits: Limits) -> UploadError:
    return UploadError(
        f"{report.source} is too large",
        expected=f"arrays of at most {size_text(limits.memory_bytes)} together",
        got="more",
        hint="Keep fewer samples, store images as uint8, or raise Limits(memory_bytes=...).",
    )


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, report: IntakeReport) -> np.ndarray:
    """One .npy member, after its header and the member's size agree to the byte."""
    shown = safe_name(info.filename, 40)
    with archive.open(info) as member:
        try:
            version = np.lib.format.read_magic(member)
            if version == (1, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(member)
            else:
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(member)
        except (zipfile.BadZipFile, zlib.error, OSError):
            raise
        except Exception as error:  # numpy parses the header as Python text: tokenizer and syntax errors come too
            raise UploadError(f"{report.source}: {shown} has a bad header", got=type(error).__name__) from None
        if dtype.hasobject:
            raise UploadError(
                f"{report.source}: {shown} holds Python objects",
                expected="an array of numbers or texts",
                hint="They would need pickle, which can run code. Save np.asarray(x, dtype='uint8') or dtype=str.",
            )
        declared = math.prod(shape) * dtype.itemsize
        if declared != info.file_size - member.tell() or any(size < 0 for size in shape):
            got = f"{declared:,} for shape {shape}"
            present = f"{info.file_size - member.tell():,} bytes"
            raise UploadError(f"{report.source}: {shown} declares a wrong size", expected=present, got=safe_name(got))
        data = member.read(declared)
    if len(data) != declared:
        raise UploadError(
            f"{report.source}: {shown} is truncated", expected=f"{declared:,} bytes", got=f"{len(data):,}"
        )
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


# -- names and values ------------------------------------------------------------------------


def _role(key: str) -> tuple[str, str] | None:
    """(split, "x" or "y") of an array's name, in any order: x, y_train, val_images ..."""
    words = key.lower().replace(".", "_").split("_")
    split = next((SPLITS[word] for word in words if word in SPLITS), "")
    rest = [word for word in words if word not in SPLITS]
    if len(rest) != 1 or len(words) > 2:
        return None
    return (split, "x") if rest[0] in INPUT_NAMES else (split, "y") if rest[0] in LABEL_NAMES else None


def _is_wanted(key: str) -> bool:
    return _role(key) is not None or key.lower() in NAME_NAMES


def _by_split(arrays: dict[str, np.ndarray], report: IntakeReport) -> dict[str, dict[str, np.ndarray]]:
    found: dict[str, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        if (role := _role(key)) is None:
            continue
        split, what = role
        if what in found.setdefault(split, {}):
            raise DataError(f"{report.source} has two arrays for {what} {split}".rstrip(), got=safe_name(key))
        found[split][what] = array
    return {split: part for split, part in found.items() if "x" in part}


def _part(found: dict[str, np.ndarray], report: IntakeReport) -> tuple[np.ndarray, np.ndarray | None]:
    """(inputs, labels as texts or None) of one split, checked."""
    x, y = found["x"], found.get("y")
    inputs = _texts(x) if x.dtype.kind == "U" else to_images(x, report)
    if y is None:
        return inputs, None
    y = y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y
    whole = y.dtype.kind == "f" and bool(np.isfinite(y).all()) and bool((y == np.rint(y)).all())
    if y.ndim != 1 or len(y) != len(x) or not (y.dtype.kind in "iubU" or whole):
        raise DataError(
            f"{report.source}: the labels do not fit",
            expected=f"{len(x):,} whole numbers or names, one a sample",
            got=f"shape {y.shape}, {y.dtype}",
        )
    return inputs, y.astype(np.int64) if whole or y.dtype.kind == "b" else y


def _texts(x: np.ndarray) -> np.ndarray:
    if x.ndim != 1:
        raise DataError("The texts do not fit", expected="shape (N,)", got=f"shape {x.shape}")
    return x.astype(object)


def to_images(x: np.ndarray, report: IntakeReport) -> np.ndarray:
    """Any usual array of images -> uint8 (N, H, W) or (N, H, W, 3).

    Raises:
        DataError: another shape, or values that are neither 0 to 1, 0 to 255 nor 16-bit.
    """
    channels = (1, 3)
    if x.ndim == 4 and x.shape[1] in channels and x.shape[3] not in channels:
        x = x.transpose(0, 2, 3, 1)  # (N, C, H, W) -> (N, H, W, C)
        report.note("Channels stood first and were moved last.")
    if x.ndim not in (3, 4) or (x.ndim == 4 and x.shape[3] not in channels) or 0 in x.shape[1:]:
        raise DataError(
            f"{report.source}: x is not a stack of images",
            expected="(N, H, W), (N, H, W, 3) or (N, 3, H, W)",
            got=f"shape {x.shape}",
        )
    if x.ndim == 4 and x.shape[3] == 1:
        x = x[..., 0]  # (N, H, W, 1) -> (N, H, W)
    return np.ascontiguousarray(_to_bytes(x, report))


def _to_bytes(x: np.ndarray, report: IntakeReport) -> np.ndarray:
    if x.dtype == np.uint8 or not x.size:
        return x.astype(np.uint8)
    low, high = (float(x.min()), float(x.max())) if x.dtype.kind in "iuf" else (-1.0, -1.0)
    if x.dtype.kind == "b" or (x.dtype.kind == "f" and 0 <= low <= high <= 1):
        scale = 255.0
    elif 0 <= low <= high <= 255 and x.dtype != np.uint16:
        scale = 1.0
    elif x.dtype.kind in "iu" and 0 <= low <= high <= 65535:
        scale = 255.0 / 65535.0
    else:  # NaN ends here too, for it compares as false
        raise DataError(
            f"{report.source}: x has values that are not an image's",
            expected="0 to 1, 0 to 255, or 0 to 65535",
            got=f"{x.dtype} from {low:.4g} to {high:.4g}",
        )
    report.note(f"Values ({x.dtype}, {low:.6g} to {high:.6g}) were brought to 0 to 255.")
    out = np.empty(x.shape, np.uint8)
    for i in range(0, len(x), 256):  # in pieces: a float64 copy of everything would cost 8 times the images
        out[i : i + 256] = np.rint(x[i : i + 256].astype(np.float64) * scale)
    return out


# -- the set ---------------------------------------------------------------------------------


def _intake(
    parts: dict[str, tuple[np.ndarray, np.ndarray | None]],
    names: np.ndarray | None,
    name: str,
    report: IntakeReport,
    limits: Limits,
    seed: int,
) -> Intake:
    inputs, labels, ids, groups = _join(parts, name, report)
    report.found = len(inputs)
    if not len(inputs):
        raise report.refuse_empty("sample", "The arrays are empty.")
    numbers, class_names = encode_labels([str(label) for label in labels], limits) if labels is not None else (None, ())
    given = _given_names(names, numbers, class_names, labels, report)
    kept = _choice(numbers, len(inputs), limits.samples, seed)
    if given:
        assert labels is not None
        numbers, class_names = labels.astype(np.int64), given
    samples = SampleSet(
        name=name,
        inputs=inputs[kept],
        labels=None if numbers is None else numbers[kept],
        ids=tuple(ids[i] for i in kept),
        class_names=class_names,
        kind="text" if inputs.dtype == object else "image",
        total=len(inputs),
        source=report.source,
    )
    report.read = len(samples)
    count_classes(samples, report)
    splits = {split: np.flatnonzero(groups[kept] == split) for split in parts if split}
    return Intake(samples, report, splits)


def _join(
    parts: dict[str, tuple[np.ndarray, np.ndarray | None]], name: str, report: IntakeReport
) -> tuple[np.ndarray, np.ndarray | None, list[str], np.ndarray]:
    """All splits under each other: inputs, labels or None, ids, the split a sample."""
    if len({(part[0].shape[1:], part[0].dtype, part[1] is None) for part in parts.values()}) > 1:
        raise DataError(
            f"{report.source}: the splits differ in shape, or some lack labels", expected="all splits alike"
        )
    ids = [f"{name}/{split}{'/' * bool(split)}{i}" for split, (x, _) in parts.items() for i in range(len(x))]
    labels = [y for _, y in parts.values() if y is not None]
    groups = np.array([split for split, (x, _) in parts.items() for _ in range(len(x))])
    inputs = np.concatenate([x for x, _ in parts.values()]) if len(parts) > 1 else next(iter(parts.values()))[0]
    return inputs, np.concatenate(labels) if labels else None, ids, groups


def _given_names(
    names: np.ndarray | None,
    numbers: np.ndarray | None,
    found: tuple[str, ...],
    labels: np.ndarray | None,
    report: IntakeReport,
) -> tuple[str, ...]:
    """The file's own class names where labels are numbers that index them; else empty."""
    if names is None or numbers is None or labels is None or labels.dtype.kind not in "iu":
        return ()
    if names.ndim != 1 or names.dtype.kind != "U" or labels.min() < 0 or labels.max() >= len(names):
        report.note("The class names in the file do not fit the labels and were left aside.")
        return ()
    return unique_names(str(name) for name in names)


def _choice(labels: np.ndarray | None, n: int, limit: int, seed: int) -> np.ndarray:
    """Which of `n` samples to keep, stratified, in source order."""
    if n <= limit:
        return np.arange(n)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(n, limit, replace=False) if labels is None else stratified_index(labels, limit, rng)
    return np.sort(chosen)
