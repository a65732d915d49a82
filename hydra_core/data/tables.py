"""Texts with labels from CSV, TSV or JSON lines: any delimiter, any of the usual encodings, any length.

A file is read once, line by line; a seeded reservoir keeps at most `limits.samples` rows, so a million
rows cost no more memory than the ones that are kept.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from hydra_core.data.classfolders import Intake, count_classes
from hydra_core.data.limits import MIB, Limits
from hydra_core.data.lines import detect_encoding, read_lines, sniff_delimiter
from hydra_core.data.report import IntakeReport, Watch, safe_name, unique_names
from hydra_core.data.sets import SampleSet
from hydra_core.errors import DataError

TEXT_NAMES = [
    *("text", "sentence", "review", "content", "message", "body", "document", "comment"),
    *("tweet", "question", "input", "utterance", "title", "x"),
]
LABEL_NAMES = ["label", "labels", "class", "category", "target", "sentiment", "topic", "intent", "rating", "y"]
MISSING = frozenset({"", "nan", "null"})
MAX_FIELD_LINES = 1_000


csv.field_size_limit(max(csv.field_size_limit(), MIB))  # the line limit comes first; this only lets it decide


class Row(NamedTuple):
    """One row: the line it ends on, its text, and its label (None where the table has no labels)."""

    number: int
    text: str
    label: str | None


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; None: found by the usual names."""

    text: str | None = None
    label: str | None = None
    labelled: bool = True


def read_table(
    file: BinaryIO,
    name: str,
    report: IntakeReport,
    limits: Limits,
    seed: int,
    watch: Watch,
    columns: Columns | None = None,
    form: str | None = None,
) -> Intake:
    """Read a table of texts.

    Args:
        file: seekable binary file with CSV, TSV (or another delimiter) or one JSON object a line.
        columns: which columns hold text and label; unlabelled tables are OOD sources.
        form: "csv", "tsv" or "jsonl"; None: by content.

    Raises:
        UploadError: not text, a line or the file is too long, no row could be read.
        DataError: no such column (the text lists what there is), or too many different labels.
    """
    columns = columns or Columns()
    encoding = detect_encoding(file, report)
    lines = read_lines(file, encoding, limits, report)
    head = list(itertools.islice(lines, 50))
    if not head:
        raise report.refuse_empty("row", "The file is empty.")
    if form is None:
        form = "jsonl" if "".join(head[:3]).lstrip()[:1] in ("{", "[") else "csv"
    everything = itertools.chain(head, lines)
    if form == "jsonl":
        rows = _json_rows(everything, columns, report)
    else:
        rows = _csv_rows(everything, "\t" if form == "tsv" else sniff_delimiter(head), columns, report)
    kept = _reservoir(rows, limits, seed, report, watch)
    if not kept:
        raise report.refuse_empty("row", "Bring a table with a column of texts and a column of labels.")
    return _intake(kept, name, report, limits)


# -- rows of the two forms -------------------------------------------------------------------


def _csv_rows(lines: Iterable[str], delimiter: str, columns: Columns, report: IntakeReport) -> Iterator[Row]:
    records = _csv_records(lines, delimiter, report)
    header = next((record for _, record in records), [])
    text, label = _find_columns([cell.strip() for cell in header], columns, report)
    width = max(text, label or 0) + 1
    for number, record in records:
        if len(record) < width:
            report.skip(f"line {number}", "too few columns")
        else:
            yield Row(number, record[text], None if label is None else record[label].strip())


def _csv_records(lines: Iterable[str], delimiter: str, report: IntakeReport) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row that is not blank. A quote that is never closed is told of, not swallowed."""
    reader = csv.reader(lines, delimiter=delimiter)
    before = 0
    try:
        for record in reader:
            spanned, before = reader.line_num - before, reader.line_num
            if spanned > MAX_FIELD_LINES:
                report.skip(f"lines {before - spanned + 1} to {before}", "a quote that is never closed")
            elif any(cell.strip() for cell in record):
                yield before, record
    except csv.Error as error:
        report.skip(f"line {before + 1}", "a quote that is never closed, or a field that is too long")
        report.note(f"Reading stopped at line {before + 1} ({safe_name(error)}). Rows after it were not read.")


def _json_records(lines: Iterable[str], report: IntakeReport) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            report.skip(f"line {number}", "not a JSON object on one line")
            continue
        if isinstance(record, dict):
            yield number, record
        else:
            report.skip(f"line {number}", "not a JSON object on one line")


def _json_rows(lines: Iterable[str], columns: Columns, report: IntakeReport) -> Iterator[Row]:
    records = _json_records(lines, report)
    first = next(records, None)
    if first is None:
        return
    names = list(first[1])
    text_at, label_at = _find_columns(names, columns, report)
    for number, record in itertools.chain([first], records):
        text = record.get(names[text_at])
        label = None if label_at is None else record.get(names[label_at], "")
        if text is not None and not isinstance(text, str):
            report.skip(f"line {number}", "the text is not a text")
        elif isinstance(label, (dict, list)):
            report.skip(f"line {number}", "the label is not one value")
        else:
            yield Row(number, text or "", None if label_at is None else _label_text(label))


def _label_text(label: Any) -> str:
    """A JSON value as a label: null is missing, true reads "true"."""
    if label is None:
        return ""
    return str(label).lower() if isinstance(label, bool) else str(label).strip()


def _find_columns(header: list[str], columns: Columns, report: IntakeReport) -> tuple[int, int | None]:
    """Positions of the text and the label column (None: unlabelled)."""
    text = _find(header, columns.text, TEXT_NAMES, "text")
    if not columns.labelled:
        return text, None
    if columns.label is None and not any(h.lower() in LABEL_NAMES for h in header):
        report.note("No column of labels was found, so the samples are unlabelled.")
        return text, None
    return text, _find(header, columns.label, LABEL_NAMES, "label")


def _find(header: list[str], wanted: str | None, usual: list[str], what: str) -> int:
    lower = [name.lower() for name in header]
    for candidate in [wanted] if wanted is not None else usual:
        for names in (header, lower):
            if candidate in names or candidate.lower() in names:
                return names.index(candidate if candidate in names else candidate.lower())
    shown = ", ".join(repr(safe_name(name, 40)) for name in header[:12]) or "none"
    raise DataError(
        f"There is no column for the {what}" + (f" named {safe_name(wanted, 40)!r}" if wanted else ""),
        expected=f"one of the columns {shown}{' ...' * (len(header) > 12)}",
        hint=f'The first line must hold the names; call the column "{what}" (or, from Python, {what}_column=...).',
    )


# -- choice and labels -----------------------------------------------------------------------


def _reservoir(rows: Iterable[Row], limits: Limits, seed: int, report: IntakeReport, watch: Watch) -> list[Row]:
    """A uniform, seeded choice of usable rows in one pass (Vitter's algorithm R), in the order of the file."""
    draw = random.Random(seed)
    kept: list[Row] = []
    for row in rows:
        if reason := _unusable(row):
            report.skip(f"line {row.number}", reason)
            continue
        count = report.found = report.found + 1
        if not count % 10_000:
            watch.tick(count, count + 1, every=10_000)
        place = len(kept) if len(kept) < limits.samples else draw.randrange(count)
        if place < limits.samples:
            short = row._replace(text=row.text[: limits.characters + 1])  # one more tells that it was cut
            kept[place : place + 1] = [short]
    return sorted(kept)


def _unusable(row: Row) -> str:
    if not row.text.strip():
        return "no text"
    return "no label" if row.label is not None and row.label.lower() in MISSING else ""


def _intake(kept: list[Row], name: str, report: IntakeReport, limits: Limits) -> Intake:
    inputs = np.empty(len(kept), dtype=object)
    inputs[:] = [row.text[: limits.characters] for row in kept]
    if cut := sum(len(row.text) > limits.characters for row in kept):
        report.note(f"{cut:,} texts were cut to {limits.characters:,} characters.")
    labels, classes = encode_labels([row.label for row in kept if row.label is not None], limits)
    samples = SampleSet(
        name=name,
        inputs=inputs,
        labels=labels,
        ids=tuple(f"{name}/line {row.number}" for row in kept),
        class_names=classes,
        kind="text",
        total=report.found,
        source=report.source,
    )
    report.read = len(samples)
    count_classes(samples, report)
    return Intake(samples, report, {})


def encode_labels(labels: list[str], limits: Limits) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Label texts -> (class numbers (N,) int64 or None for no labels, safe class names).

    Names are sorted; numbers by their value, so that 10 follows 9. "1.0" and "1" are one class.

    Raises:
        DataError: more different labels than `limits.classes`.
    """
    if not labels:
        return None, ()
    numbers = [_number(label) for label in labels]
    if all(number is not None for number in numbers):
        labels = [str(int(n)) if float(n).is_integer() else str(n) for n in numbers if n is not None]
        names = sorted(set(labels), key=float)
    else:
        names = sorted(set(labels))
    if len(names) > limits.classes:
        raise DataError(
            "The label column has too many different values",
            expected=f"at most {limits.classes:,} classes",
            got=f"{len(names):,}, such as {', '.join(repr(safe_name(name, 30)) for name in names[:3])}",
            hint="Choose another column: label_column=...",
        )
    index = {label: i for i, label in enumerate(names)}
    return np.array([index[label] for label in labels], dtype=np.int64), unique_names(names)


def _number(label: str) -> float | None:
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
