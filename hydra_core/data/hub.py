"""A Hugging Face data set by name, streamed: only what is kept is fetched. Needs the extra `hub`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hydra_core.data.classfolders import Intake, count_classes
from hydra_core.data.images import decode_image, stack_images
from hydra_core.data.limits import Limits, size_text
from hydra_core.data.report import IntakeReport, Watch, safe_name, unique_names
from hydra_core.data.sets import SampleSet
from hydra_core.data.tables import LABEL_NAMES, TEXT_NAMES, Columns, encode_labels
from hydra_core.errors import DataError, HydraError
from hydra_core.optional import require

SPLIT_ORDER = ("test", "validation", "train")  # the first that exists is read
SHUFFLE_BUFFER = 1_000


def read_hub(
    name: str,
    set_name: str,
    report: IntakeReport,
    limits: Limits,
    seed: int,
    watch: Watch,
    columns: Columns | None = None,
) -> Intake:
    """Read one split of a data set of the hub: "OWNER/NAME", "OWNER/NAME:SPLIT" or "OWNER/NAME:CONFIG:SPLIT".

    Code that a data set may bring is never run. Images are decoded here, under the limits.

    Raises:
        DependencyError: the library `datasets` is not installed.
        DataError: the hub cannot be reached, no such data set or split, or no column that fits.
    """
    datasets = _library()
    path, config, split = _parse(name)
    split = split or _default_split(datasets, path, config)
    try:
        stream = datasets.load_dataset(path, config, split=split, streaming=True)
        stream = stream.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER)
        report.note(f"The split {safe_name(split)} was read, shuffled in a window of {SHUFFLE_BUFFER:,} samples.")
        return read_stream(stream, datasets, set_name, report, limits, watch, columns)
    except HydraError:
        raise
    except Exception as error:
        raise _unreachable(path, error) from error


def _library() -> Any:
    return require(
        "datasets",
        "Data sets of the hub need the library `datasets`",
        "Install it: pip install 'hydra-lab[hub]'. Or bring the data as a folder, zip, table or npz.",
    )


def _parse(name: str) -> tuple[str, str | None, str | None]:
    """ "OWNER/NAME:CONFIG:SPLIT" -> its parts; CONFIG and SPLIT may be left out."""
    path, *rest = name.split(":")
    if not path or len(rest) > 2 or path.startswith((".", "/", "~")) or "\\" in path:
        raise DataError(
            "This is not the name of a data set of the hub",
            expected="hf:OWNER/NAME, hf:OWNER/NAME:SPLIT or hf:OWNER/NAME:CONFIG:SPLIT",
            got=safe_name(name),
        )
    config = rest[0] if len(rest) == 2 else None
    return path, config or None, rest[-1] or None if rest else None


def _default_split(datasets: Any, path: str, config: str | None) -> str:
    try:
        names = list(datasets.get_dataset_split_names(path, config))
    except Exception as error:
        raise _unreachable(path, error) from error
    return next((split for split in SPLIT_ORDER if split in names), names[0] if names else "train")


def _unreachable(path: str, error: Exception) -> DataError:
    return DataError(
        f"The data set {safe_name(path)} could not be read from the hub",
        expected="a reachable hub and a data set of images or texts with labels",
        got=f"{type(error).__name__}: {safe_name(error, 160)}",
        hint="Without a network: fetch it elsewhere and bring it as a folder, zip, CSV, JSON lines or npz.",
    )


def read_stream(
    stream: Any,
    datasets: Any,
    set_name: str,
    report: IntakeReport,
    limits: Limits,
    watch: Watch,
    columns: Columns | None = None,
) -> Intake:
    """The first samples of a `datasets.IterableDataset`, as many as the limits allow."""
    columns = columns or Columns()
    features: Mapping[str, Any] = stream.features or {}
    image = next((key for key, kind in features.items() if isinstance(kind, datasets.Image)), None)
    what = columns.text or image or _usual(features, TEXT_NAMES)
    if what is None or what not in features:
        raise DataError(
            f"{report.source} has no column of images or texts that is known",
            expected="one of " + ", ".join(safe_name(key, 40) for key in list(features)[:12]),
            got=safe_name(what) if what else "none",
            hint="Name it: text_column=...",
        )
    mark = (columns.label or _usual(features, LABEL_NAMES)) if columns.labelled else None
    if mark is not None and mark not in features:
        raise DataError(
            f"{report.source} has no such column of labels", expected=", ".join(features), got=safe_name(mark)
        )
    if what == image:
        stream = stream.cast_column(what, datasets.Image(decode=False))  # bytes: decoding is ours
    rows = _rows(stream, what, mark, what == image, report, limits, watch)
    names = getattr(features.get(mark or ""), "names", None)
    return _intake(rows, names, what == image, set_name, report, limits, _size(stream))


def _usual(features: Iterable[str], usual: list[str]) -> str | None:
    lower = {key.lower(): key for key in features}
    return next((lower[name] for name in usual if name in lower), None)


def _size(stream: Any) -> int:
    """Samples of the split where the hub says so, else 0."""
    splits = getattr(getattr(stream, "info", None), "splits", None) or {}
    entry = splits.get(str(getattr(stream, "split", "")))
    return int(getattr(entry, "num_examples", 0) or 0)


def _rows(
    stream: Any, what: str, mark: str | None, is_image: bool, report: IntakeReport, limits: Limits, watch: Watch
) -> list[tuple[int, Any, Any]]:
    """(place, image or text, label) of the samples that can be used."""
    rows: list[tuple[int, Any, Any]] = []
    memory = 0
    for place, sample in enumerate(itertools.islice(stream, 2 * limits.samples)):
        if len(rows) == limits.samples:
            break
        watch.tick(len(rows), limits.samples)
        try:
            item = _item(sample[what], is_image, limits)
        except HydraError as error:
            report.skip(f"sample {place}", error.problem)
            continue
        label = sample[mark] if mark else None
        if mark and (label is None or label == -1):
            report.skip(f"sample {place}", "no label")
            continue
        memory += len(item) if isinstance(item, str) else item.nbytes
        if memory > limits.memory_bytes:
            report.note(f"Reading stopped: the limit on memory is {size_text(limits.memory_bytes)}.")
            break
        rows.append((place, item, label))
    return rows


def _item(value: Any, is_image: bool, limits: Limits) -> np.ndarray | str:
    if not is_image:
        if not isinstance(value, str) or not value.strip():
            raise DataError("no text")
        return value[: limits.characters]
    value = value if isinstance(value, dict) else {}
    data = value.get("bytes")
    return decode_image(_fetch(value.get("path"), limits) if data is None else data, limits)


def _fetch(path: Any, limits: Limits) -> bytes:
    """An image that lies beside the data set on the hub. Paths to anywhere else are not opened."""
    if not isinstance(path, str) or not path.rsplit("::", 1)[-1].startswith("hf://"):
        raise DataError("image outside the hub")
    import fsspec  # comes with `datasets`

    try:
        with fsspec.open(path, "rb") as file:
            data = file.read(limits.file_bytes + 1)
    except Exception:  # the network raises many kinds
        raise DataError("image that cannot be fetched") from None
    if len(data) > limits.file_bytes:
        raise DataError("file too large")
    return data


def _intake(
    rows: list[tuple[int, Any, Any]],
    names: list[str] | None,
    is_image: bool,
    set_name: str,
    report: IntakeReport,
    limits: Limits,
    size: int,
) -> Intake:
    if not rows:
        raise report.refuse_empty("sample", "Choose another split or column.")
    items = [item for _, item, _ in rows]
    inputs = stack_images(items) if is_image else np.array(items, dtype=object)
    labels, classes = _labels([label for _, _, label in rows], names, limits)
    report.found = max(size, len(rows) + report.skipped_count)
    samples = SampleSet(
        name=set_name,
        inputs=inputs,
        labels=labels,
        ids=tuple(f"{set_name}/{place}" for place, _, _ in rows),
        class_names=classes,
        kind="image" if is_image else "text",
        total=report.found,
        source=report.source,
    )
    report.read = len(samples)
    count_classes(samples, report)
    return Intake(samples, report, {})


def _labels(labels: list[Any], names: list[str] | None, limits: Limits) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """ClassLabel numbers keep their names; other labels are encoded as a table's are."""
    if labels[0] is None:
        return None, ()
    if names:
        return np.array(labels, dtype=np.int64), unique_names(names)
    return encode_labels([str(label) for label in labels], limits)
