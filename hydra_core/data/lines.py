"""Text of unknown encoding and layout, line by line in bounded memory."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import itertools
from collections.abc import Iterator
from typing import BinaryIO

from hydra_core.data.limits import MIB, Limits, size_text
from hydra_core.data.report import IntakeReport
from hydra_core.errors import UploadError

DELIMITERS = (",", "\t", ";", "|")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def detect_encoding(file: BinaryIO, report: IntakeReport) -> str:
    """The encoding by its byte order mark, else UTF-8 if every byte agrees, else Latin-1 with a note.

    Reads the whole file once, in pieces. Latin-1 is read as Windows-1252 where bytes 0x80 to 0x9F
    stand for its quotes and dashes; it never fails, so a wrong guess shows as odd letters.

    Raises:
        UploadError: the file is binary.
    """
    file.seek(0)
    head = file.read(MIB)
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding
    if b"\0" in head:
        raise UploadError(f"{report.source} is not text", expected="CSV, TSV or JSON lines", got="binary bytes")
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while head:
            decoder.decode(head)
            head = file.read(MIB)
        decoder.decode(b"", final=True)
        return "utf-8"
    except UnicodeDecodeError:
        report.note("The text is not UTF-8; it was read as Latin-1 (Windows-1252). Odd letters mean another encoding.")
        return "latin-1"


def read_lines(file: BinaryIO, encoding: str, limits: Limits, report: IntakeReport) -> Iterator[str]:
    """Lines with their ends, none longer than `limits.line` characters.

    Raises:
        UploadError: a line is longer, the file is larger than `limits.total_bytes`, or a byte does
            not fit the encoding that its mark promised.
    """
    if (size := file.seek(0, 2)) > limits.total_bytes:
        limit = size_text(limits.total_bytes)
        raise UploadError(f"{report.source} is too large", expected=f"at most {limit}", got=size_text(size))
    file.seek(0)
    reader = io.TextIOWrapper(file, encoding=encoding, newline="")  # type: ignore[type-var]  # any binary file will do
    try:
        for number in itertools.count(1):
            line = reader.readline(limits.line + 1)
            if not line:
                return
            if len(line) > limits.line:
                raise _too_long(report.source, number, limits)
            yield _windows(line) if encoding == "latin-1" else line
    except UnicodeDecodeError:
        raise UploadError(f"{report.source} has bytes that are not {encoding}, as its first bytes promise") from None
    finally:
        reader.detach()  # the file is the caller's; without this it would be closed here


def _too_long(source: str, number: int, limits: Limits) -> UploadError:
    return UploadError(
        f"{source}, line {number} is too long",
        expected=f"at most {limits.line:,} characters",
        hint="Put one sample on a line.",
    )


def _windows(line: str) -> str:
    """Latin-1's control range as Windows-1252 has it; its five free bytes stay."""
    if line.isascii():
        return line
    return line.encode("latin-1").decode("cp1252", errors="replace")


def sniff_delimiter(lines: list[str]) -> str:
    """The delimiter that cuts the first lines into the same number of columns most often, and most columns.

    Raises nothing: one column only gives a comma.
    """

    def score(delimiter: str) -> tuple[float, int]:
        widths = [len(row) for row in _parse(lines, delimiter) if row]
        if not widths or widths[0] < 2:
            return (0.0, 0)
        return (sum(w == widths[0] for w in widths) / len(widths), widths[0])

    best = max(DELIMITERS, key=score)
    return best if score(best)[1] else ","


def _parse(lines: list[str], delimiter: str) -> list[list[str]]:
    rows: list[list[str]] = []
    with contextlib.suppress(csv.Error):  # the rows before the trouble are enough to judge by
        rows.extend(csv.reader(lines, delimiter=delimiter))
    return rows
