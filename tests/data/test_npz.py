"""Arrays from outside: shapes and values are checked, headers are not believed."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
import pytest

from hydra_core.data.limits import Limits
from hydra_core.data.sources import open_data, read_source
from hydra_core.errors import DataError, UploadError
from tests.data.make import zipped

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (12, 5, 7, 3), dtype=np.uint8)
LABELS = np.arange(12) % 3


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    raw = header.encode().ljust(64)
    return b"\x93NUMPY" + bytes([version, 0]) + len(raw).to_bytes(2 * version, "little") + raw + data


def test_images_and_labels() -> None:
    samples, report = open_data(npz(x=IMAGES, y=LABELS), name="a")
    np.testing.assert_array_equal(samples.inputs, IMAGES)
    np.testing.assert_array_equal(samples.labels, LABELS)
    assert samples.class_names == ("0", "1", "2")
    assert samples.ids[3] == "a/3"
    assert report.kind == "npz"


@pytest.mark.parametrize(
    "given",
    [
        IMAGES.transpose(0, 3, 1, 2),
        IMAGES / 255,
        (IMAGES / 255).astype(np.float32),
        IMAGES.astype(np.float64),
        IMAGES.astype(np.int64),
        IMAGES.astype(np.uint16) * 257,
        np.asfortranarray(IMAGES),
        IMAGES.astype(">i4"),
    ],
)
def test_all_usual_layouts_give_the_same_bytes(given: np.ndarray) -> None:
    samples, _ = open_data(npz(images=given, labels=LABELS.reshape(-1, 1).astype(np.float32)))
    np.testing.assert_array_equal(samples.inputs, IMAGES)
    np.testing.assert_array_equal(samples.labels, LABELS)


def test_grey_and_boolean_images() -> None:
    grey = IMAGES[..., :1]
    np.testing.assert_array_equal(open_data(npz(x=grey))[0].inputs, grey[..., 0])
    np.testing.assert_array_equal(open_data(npz(x=grey[..., 0] > 99))[0].inputs, (grey[..., 0] > 99) * 255)


def test_texts_and_named_labels() -> None:
    samples, _ = open_data(npz(texts=np.array(["b", "a"]), labels=np.array(["<y>", "x"])))
    assert samples.kind == "text"
    assert samples.inputs.tolist() == ["b", "a"]
    assert samples.class_names == ("‹y›", "x")


def test_given_splits_and_class_names() -> None:
    data = npz(train_images=IMAGES, train_labels=LABELS, x_test=IMAGES[:4], y_test=LABELS[:4], class_names=list("abcd"))
    intake = read_source(data)
    assert {k: len(v) for k, v in intake.splits.items()} == {"train": 12, "test": 4}
    assert intake.samples.class_names == ("a", "b", "c", "d")
    np.testing.assert_array_equal(intake.samples.labels, np.concatenate([LABELS, LABELS[:4]]))


def test_class_names_that_do_not_fit_are_left_aside() -> None:
    samples, report = open_data(npz(x=IMAGES, y=LABELS, classes=np.array(["a", "b"])))
    assert samples.class_names == ("0", "1", "2")
    assert "left aside" in report.notes[0]


def test_the_choice_is_stratified() -> None:
    samples, report = open_data(npz(x=IMAGES, y=LABELS), limits=Limits(samples=6))
    assert samples.labels is not None
    assert np.bincount(samples.labels).tolist() == [2, 2, 2]
    assert report.summary == "6 of 12 samples in 3 classes"


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"x": np.zeros((4, 5))}, "not a stack of images"),
        ({"x": np.zeros((4, 5, 5, 2))}, "not a stack of images"),
        ({"x": np.zeros((4, 0, 5, 3))}, "not a stack of images"),
        ({"x": np.full((2, 4, 4), np.nan)}, "values that are not an image"),
        ({"x": np.full((2, 4, 4), -0.5)}, "values that are not an image"),
        ({"x": np.full((2, 4, 4), np.inf)}, "values that are not an image"),
        ({"x": np.zeros((2, 4, 4), complex)}, "values that are not an image"),
        ({"x": IMAGES, "y": LABELS[:5]}, "labels do not fit"),
        ({"x": IMAGES, "y": LABELS + 0.5}, "labels do not fit"),
        ({"x": IMAGES, "y": np.zeros((12, 3))}, "labels do not fit"),
        ({"x": IMAGES, "images": IMAGES}, "two arrays for x"),
        ({"x_train": IMAGES, "x_test": IMAGES[:, :4]}, "splits differ"),
        ({"weights": IMAGES}, "no images or texts"),
    ],
)
def test_arrays_that_do_not_fit(arrays: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(DataError, match=text):
        open_data(npz(**arrays))


def test_object_arrays_are_never_unpickled() -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("unpickled",)

    with pytest.raises(UploadError, match=r"holds Python objects.*pickle"):
        open_data(npz(x=np.array([Trap()], dtype=object)))


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000, 1000000), }", "declares a wrong size"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2, 2), }", "declares a wrong size"),
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -8), }", "declares a wrong size"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "Python objects"),
        ("{'descr': '|u1', 'shape': (8,), }", "bad header"),
        ("__import__('os').abort()", "bad header"),
        ("{'descr': " + "(" * 200 + ", 'fortran_order': False, 'shape': (8,), }", "bad header"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_headers_that_lie(header: str, text: str, version: int) -> None:
    data = npy(header, b"\0" * (8 if "-8" in header else 12), version)
    with pytest.raises(UploadError, match=text):
        open_data(zipped({"x.npy": data}))


def test_unpacked_arrays_are_bounded_before_they_are_read() -> None:
    bomb = npz(x=np.zeros((2000, 100, 100), np.uint8))
    assert len(bomb) < 100_000
    with pytest.raises(UploadError, match="too large"):
        open_data(bomb, limits=Limits(memory_bytes=10_000_000))


def test_damaged_files_and_strange_members() -> None:
    data = npz(x=IMAGES, y=LABELS)
    with pytest.raises(UploadError):
        open_data(data[: len(data) // 2])
    broken = bytearray(data)
    broken[120:200] = bytes(80)
    with pytest.raises(UploadError, match="damaged"):
        open_data(bytes(broken))
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("../../evil.txt", "x")
        archive.writestr("notes.npy", npy("{}"))
    samples, report = open_data(buffer)
    assert len(samples) == 12
    assert dict(report.counts) == {"not an array of samples": 2}


def test_empty_arrays_are_refused() -> None:
    with pytest.raises(UploadError, match="arrays are empty"):
        open_data(npz(x=IMAGES[:0]))
