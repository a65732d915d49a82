"""The one entry: kinds are told by content, names are only shown, paths that do not exist are refused."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hydra_core.data.limits import Limits
from hydra_core.data.sources import Upload, build_bundle, open_data
from hydra_core.errors import Cancelled, DataError, UploadError
from tests.data.make import class_files, png, zipped

CSV = b"text,label\na,x\nb,y\n"


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.zeros((4, 5, 5), np.uint8), y=np.arange(4) % 2)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (zipped(class_files()), "zip"),
        (npz(), "npz"),
        (CSV, "table"),
        (CSV.replace(b",", b"\t"), "table"),
        (b'{"text": "a", "label": 1}\n{"text": "b", "label": 2}\n', "table"),
    ],
)
@pytest.mark.parametrize("name", ["data.bin", "data.zip", "data.csv", "data"])
def test_content_decides_not_the_name(data: bytes, kind: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    sets = [open_data(source, name="n") for source in (path, str(path), data, io.BytesIO(data))]
    assert {report.kind for _, report in sets} == {kind}
    assert len({samples.digest for samples, _ in sets}) == 1


def test_a_callers_file_stays_open_and_may_be_read_again() -> None:
    for data in (CSV, npz(), zipped(class_files())):
        file = io.BytesIO(data)
        assert open_data(file)[0].digest == open_data(file)[0].digest
        assert not file.closed


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (png(), "one image"),
        (b"\x1f\x8b\x08\x00", "a gzip file"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"Rar!\x1a\x07", "a rar archive"),
        (b"\x80\x04\x95\x00", "a pickle"),
        (b"%PDF-1.7", "a PDF"),
        (b"PAR1", "a Parquet file"),
    ],
)
def test_other_files_are_refused_by_what_they_are(data: bytes, what: str) -> None:
    with pytest.raises(UploadError, match=what):
        open_data(data)


@pytest.mark.parametrize("path", ["/no/such/place", "", "x" * 10_000, "a\0b", "<b>"])
def test_paths_to_nothing(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as error:
        open_data(path)
    assert "<b>" not in str(error.value)
    assert len(str(error.value)) < 500


def test_kinds_may_be_said() -> None:
    assert open_data(b"text\nhello, you\n", kind="tsv")[0].inputs.tolist() == ["hello, you"]
    assert open_data(CSV, kind="csv")[1].kind == "csv"
    with pytest.raises(UploadError, match=r"Expected zip\. Got table"):
        open_data(CSV, kind="zip")


def test_progress_and_cancel() -> None:
    seen: list[float] = []
    data = zipped(class_files(count=60))
    open_data(data, progress=lambda share, text: seen.append(share))
    assert seen == sorted(seen)
    assert 0 <= seen[0] <= seen[-1] <= 1
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        open_data(data, cancel=stop)


def test_real_images_make_a_bundle_byte_for_byte(tmp_path: Path) -> None:
    """The demo's own images, written as class folders by one person and brought by another."""
    from hydra_core.data.demo import load_fashion

    demo = load_fashion()
    val, far = demo.val.sample(80), demo.ood_val["digits"].sample(12)
    assert val.labels is not None
    for image, label, number in zip(val.inputs, val.labels, range(80), strict=True):
        folder = tmp_path / "id" / val.class_names[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number:03}.png")
    (tmp_path / "far").mkdir()
    for number, image in enumerate(far.inputs):
        Image.fromarray(image).save(tmp_path / "far" / f"{number}.bmp")
    bundle, reports = build_bundle(tmp_path / "id", {"digits": tmp_path / "far"}, fractions=(0.0, 0.5, 0.5))
    assert [report.summary for report in reports] == ["80 of 80 samples in 8 classes", "12 of 12 samples"]
    assert (len(bundle.val), len(bundle.test)) == (40, 40)
    assert (len(bundle.ood_val["digits"]), len(bundle.ood_test["digits"])) == (6, 6)
    assert sorted(bundle.class_names) == sorted(val.class_names)
    originals = {i.tobytes(): val.class_names[k] for i, k in zip(val.inputs, val.labels, strict=True)}
    for part in (bundle.val, bundle.test):
        assert part.labels is not None
        for image, label in zip(part.inputs, part.labels, strict=True):
            assert originals[image.tobytes()] == part.class_names[label]


def test_limits_reach_every_reader() -> None:
    for data in (CSV, npz(), zipped(class_files())):
        assert len(open_data(data, limits=Limits(samples=2))[0]) == 2


@pytest.mark.parametrize("name", ["photos.zip", "arrays.NPZ"])
@pytest.mark.parametrize("content", [b"not a zip at all", b""])
def test_a_file_that_is_no_archive_whatever_its_name_says(name: str, content: bytes) -> None:
    with pytest.raises(UploadError, match=rf"{name} is no \.\w+ file.*a zip archive"):
        open_data(Upload(content, name))
