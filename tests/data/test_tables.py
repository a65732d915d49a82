"""Tables of texts: any delimiter and encoding, bad rows skipped and counted, memory bounded."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hydra_core.data.limits import Limits
from hydra_core.data.sources import open_data
from hydra_core.errors import DataError, UploadError

ROWS = [("good, really", "pos"), ('a "quoted" word', "neg"), ("two\nlines; and a tab\t.", "pos")]


def table(rows: list[tuple[str, ...]], delimiter: str = ",", header: tuple[str, ...] = ("text", "label")) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter).writerows([header, *rows])
    return buffer.getvalue()


def texts(samples: Any) -> list[str]:
    return samples.inputs.tolist()


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_delimiters_quotes_and_byte_order_marks(delimiter: str, encoding: str) -> None:
    samples, report = open_data(table(ROWS, delimiter).encode(encoding))
    assert texts(samples) == [text for text, _ in ROWS]
    assert samples.class_names == ("neg", "pos")
    assert samples.labels is not None
    assert samples.labels.tolist() == [1, 0, 1]
    assert samples.kind == "text"
    assert report.summary == "3 of 3 samples in 2 classes"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_of_all_systems(end: str) -> None:
    assert texts(open_data(f"text,label{end}a,x{end}{end}b,y{end}".encode())[0]) == ["a", "b"]


def test_latin_1_is_read_and_told_of() -> None:
    samples, report = open_data("text,label\ncafé,a\n".encode("latin-1") + b"\x93ok\x94,b\n")
    assert texts(samples) == ["café", "“ok”"]
    assert "not UTF-8" in report.notes[0]


def test_a_late_byte_that_is_not_utf_8_is_found() -> None:
    data = b"text,label\n" + b"some plain words,a\n" * 100_000 + b"caf\xe9,b\n"
    samples, report = open_data(data, limits=Limits(samples=10**6))
    assert samples.inputs[-1] == "café"
    assert "not UTF-8" in report.notes[0]


def test_json_lines_skip_what_is_not_an_object_with_a_text() -> None:
    good = [{"text": "a", "label": 1}, {"text": "é\n", "label": 10}, {"label": 9, "text": "c"}]
    bad = ["{", "[1]", "7", "[" * 100_000, '{"text": null, "label": 1}', '{"text": 5, "label": 1}']
    bad += ['{"text": "x"}', '{"text": "x", "label": null}', '{"text": "x", "label": [1]}']
    lines = [json.dumps(row) for row in good] + bad
    samples, report = open_data("\n".join(lines).encode())
    assert texts(samples) == ["a", "é\n", "c"]
    assert samples.class_names == ("1", "9", "10")
    assert dict(report.counts) == {
        "not a JSON object on one line": 4,
        "no text": 1,
        "the text is not a text": 1,
        "no label": 2,
        "the label is not one value": 1,
    }


def test_missing_labels_and_texts_are_skipped_and_counted() -> None:
    rows = [("a", "x"), ("b", ""), ("c", "NaN"), ("", "x"), ("  ", "y"), ("d", "y"), ("e", "none")]
    samples, report = open_data(table(rows).encode() + b"short\n")
    assert texts(samples) == ["a", "d", "e"]
    assert samples.class_names == ("none", "x", "y")  # "none" may be a topic; only "", nan and null are missing
    assert dict(report.counts) == {"no label": 2, "no text": 2, "too few columns": 1}
    assert report.skipped[0].name == "line 3"


def test_numeric_labels_are_sorted_by_value() -> None:
    samples, _ = open_data(table([("a", "10"), ("b", "9.0"), ("c", "-1"), ("d", "9")]).encode())
    assert samples.class_names == ("-1", "9", "10")
    assert samples.labels is not None
    assert samples.labels.tolist() == [2, 1, 0, 1]


def test_names_that_only_look_numeric_stay_names() -> None:
    assert open_data(table([("a", "nan-ish"), ("b", "inf"), ("c", "1")]).encode())[0].class_names == (
        "1",
        "inf",
        "nan-ish",
    )


def test_columns_are_found_or_named() -> None:
    data = table([("7", "x", "hello")], header=("id", "Sentiment", "Review")).encode()
    assert texts(open_data(data)[0]) == ["hello"]
    samples, _ = open_data(data, text_column="sentiment", label_column="id")
    assert texts(samples) == ["x"]
    assert samples.class_names == ("7",)
    with pytest.raises(
        DataError, match=r"no column for the text named 'body'.*'id', 'Sentiment', 'Review'.*text_column"
    ):
        open_data(data, text_column="body")
    with pytest.raises(DataError, match=r"no column for the text\. Expected one of the columns 'a', '‹b›'"):
        open_data(b"a,<b>\n1,2\n")


def test_unlabelled_tables() -> None:
    samples, report = open_data(b"text\nhello, world\nagain\n", kind="tsv")
    assert texts(samples) == ["hello, world", "again"]
    assert samples.labels is None
    assert "unlabelled" in report.notes[0]
    assert open_data(table(ROWS).encode(), labelled=False)[0].labels is None


def test_a_quote_that_is_never_closed_does_not_swallow_the_table() -> None:
    samples, report = open_data(b'text,label\nok,a\n"open,b\n' + b"x,y\n" * 5_000)
    assert texts(samples) == ["ok"]
    assert dict(report.counts) == {"a quote that is never closed": 1}
    samples, report = open_data(b'text,label\nok,a\n"open,b\n' + b"x,y\n" * 400_000)
    assert texts(samples) == ["ok"]
    assert "Rows after it were not read" in report.notes[0]


def test_long_texts_are_cut_and_told_of() -> None:
    samples, report = open_data(table([("x" * 300_000, "a"), ("b" * 20_000, "b")]).encode())
    assert [len(text) for text in samples.inputs] == [20_000, 20_000]
    assert report.notes[0] == "1 texts were cut to 20,000 characters."


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "The file is empty"),
        (b"text,label\n", "no row could be read"),
        (b"\x00\x01\x02\x03", "is not text"),
        (b"text,label\n" + b"a" * 2_000_000, r"line 2 is too long"),
        (b"\xff\xfe\x00\xd8\x00\xd8", "bytes that are not utf-16"),
    ],
)
def test_files_that_are_no_tables(data: bytes, text: str) -> None:
    with pytest.raises(UploadError, match=text):
        open_data(data)


def test_too_large_files_are_refused() -> None:
    with pytest.raises(UploadError, match=r"too large. Expected at most 10 B"):
        open_data(table(ROWS).encode(), limits=Limits(total_bytes=10))


def test_a_label_column_that_holds_something_else() -> None:
    rows = [(f"text {i}", f"id-{i}") for i in range(50)]
    with pytest.raises(DataError, match=r"too many different values.*50, such as 'id-0'.*label_column"):
        open_data(table(rows).encode(), limits=Limits(classes=20))


def test_labels_with_markup_are_plain() -> None:
    samples, _ = open_data(table([("<b>text</b>", "<a href=x>"), ("t", "ok")]).encode())
    assert samples.class_names == ("‹a href=x›", "ok")
    assert samples.inputs[0] == "<b>text</b>"  # the model reads what was written


@pytest.mark.slow
def test_a_million_rows_cost_no_more_than_the_rows_kept(tmp_path: Path) -> None:
    path = tmp_path / "big.csv"
    with open(path, "w") as file:
        file.write("text,label\n")
        for start in range(0, 1_000_000, 10_000):
            file.write("".join(f"row {i},{i % 4}\n" for i in range(start, start + 10_000)))
    samples, report = open_data(path, limits=Limits(samples=2_000), seed=3)
    assert report.summary == "2,000 of 1,000,000 samples in 4 classes"
    assert samples.total == 1_000_000
    numbers = np.array([int(text.split()[1]) for text in samples.inputs])
    assert (np.diff(numbers) > 0).all()  # in the order of the file
    # a uniform choice: mean of 2,000 draws from 0 ... 999,999 has a standard error of 6,455
    assert abs(numbers.mean() - 499_999.5) < 4 * 6_455
    assert samples.labels is not None
    np.testing.assert_array_equal(samples.labels, numbers % 4)


def test_reading_needs_bounded_memory() -> None:
    data = io.BytesIO(b"text,label\n" + b"some words of a text,a\n" * 50_000)
    tracemalloc.start()
    open_data(data, limits=Limits(samples=100))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000
