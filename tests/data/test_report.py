"""What users are told of a source is plain, short and complete."""

from __future__ import annotations

import threading

import pytest

from hydra_core.data.limits import Limits, size_text
from hydra_core.data.report import IntakeReport, Watch, safe_name, stable_id, unique_names
from hydra_core.errors import Cancelled, DataError


def test_safe_names_are_one_plain_line() -> None:
    assert safe_name("<img src=x onerror=alert(1)>.png") == "‹img src=x onerror=alert(1)›.png"
    assert safe_name("a\nb\tc") == "a�b�c"
    assert safe_name("good\u202egnp.exe") == "good�gnp.exe"  # a direction mark cannot turn the ending around
    assert safe_name("\ud800") == "�"
    assert safe_name("猫/été.png") == "猫/été.png"
    assert safe_name("e\u0301") == "é"
    assert safe_name("") == "(no name)"


def test_long_names_are_cut_in_the_middle() -> None:
    short = safe_name("x" * 300 + "-end.jpg")
    assert len(short) == 80
    assert short.endswith("-end.jpg")
    assert len(safe_name("x" * 10_000_000)) == 80


def test_ids_stay_unique_when_names_are_cut() -> None:
    a, b = stable_id("s", "x" * 300 + "1"), stable_id("s", "x" * 300 + "2")
    assert a != b
    assert len(a) < 200
    assert stable_id("s", "cat/1.png") == "s/cat/1.png"
    assert unique_names(["<a>", "‹a›", "b", "\x00", "\x01"]) == ("‹a›", "‹a› (2)", "b", "�", "� (2)")


def test_skipped_files_are_all_counted_but_not_all_listed() -> None:
    report = IntakeReport("<b>.zip", listed=3, found=10, read=2)
    for i in range(8):
        report.skip(f"{i}.png", "truncated image")
    assert report.source == "‹b›.zip"
    assert len(report.skipped) == 3
    assert report.skipped_count == 8
    assert report.summary == "2 of 10 samples; 8 rows skipped (8 truncated image)"
    assert report.rows()[-1]["name"] == "and 5 more"


def test_watch_reports_and_cancels() -> None:
    seen: list[float] = []
    cancel = threading.Event()
    watch = Watch("Reading", lambda share, text: seen.append(share), cancel)
    for i in range(1, 101):
        watch.tick(i, 100)
    assert seen == [0.5, 1.0]
    cancel.set()
    with pytest.raises(Cancelled):
        watch.tick(100, 100)


def test_limits_are_positive_and_sizes_are_readable() -> None:
    with pytest.raises(DataError, match="'pixels' is too low"):
        Limits(pixels=0)
    assert [size_text(n) for n in (5, 3_200_000_000, 1500)] == ["5 B", "3.2 GB", "1.5 kB"]
