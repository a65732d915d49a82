"""The hub: a clear text without the library or the network, and the library's own streams where it is installed."""

from __future__ import annotations

import importlib
import io
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hydra_core.data import hub
from hydra_core.data.limits import Limits
from hydra_core.data.report import IntakeReport, Watch
from hydra_core.data.sources import open_data
from hydra_core.data.tables import Columns
from hydra_core.errors import DataError, DependencyError
from tests.data.make import pixels, png


class Image:
    """Stands for `datasets.Image`."""

    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


class ClassLabel:
    def __init__(self, names: list[str]) -> None:
        self.names = names


class Stream:
    """What this project uses of `datasets.IterableDataset`; images come decoded unless that was cast away."""

    def __init__(self, rows: list[dict[str, Any]], features: dict[str, Any]) -> None:
        self.rows, self.features, self.split = rows, dict(features), "test"
        self.info = types.SimpleNamespace(splits={"test": types.SimpleNamespace(num_examples=len(rows))})

    def shuffle(self, seed: int, buffer_size: int) -> Stream:
        order = np.random.default_rng(seed).permutation(len(self.rows))
        return Stream([self.rows[i] for i in order], self.features)

    def cast_column(self, name: str, kind: Any) -> Stream:
        return Stream(self.rows, {**self.features, name: kind})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        assert not any(isinstance(kind, Image) and kind.decode for kind in self.features.values())
        return iter(self.rows)


def library(stream: Stream | Exception, seen: list[Any] | None = None) -> types.SimpleNamespace:
    def load_dataset(path: str, config: str | None, *, split: str, streaming: bool) -> Stream:
        if seen is not None:
            seen.append((path, config, split, streaming))
        if isinstance(stream, Exception):
            raise stream
        return stream

    def get_dataset_split_names(path: str, config: str | None) -> list[str]:
        if isinstance(stream, Exception):
            raise stream
        return ["train", "validation"]

    return types.SimpleNamespace(
        Image=Image, ClassLabel=ClassLabel, load_dataset=load_dataset, get_dataset_split_names=get_dataset_split_names
    )


def image_rows(count: int = 8) -> list[dict[str, Any]]:
    return [{"img": {"bytes": png(i), "path": None}, "label": i % 2} for i in range(count)]


FEATURES = {"img": Image(), "label": ClassLabel(["<cat>", "dog"])}


def test_images_are_decoded_here_and_bad_ones_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = image_rows()
    rows[3]["img"] = {"bytes": b"junk", "path": None}
    rows[4]["label"] = -1
    rows[5]["img"] = {"bytes": None, "path": "/etc/passwd"}
    seen: list[Any] = []
    monkeypatch.setattr(hub, "_library", lambda: library(Stream(rows, FEATURES), seen))
    samples, report = open_data("hf:owner/pets", seed=1)
    assert seen == [("owner/pets", None, "validation", True)]
    assert samples.class_names == ("‹cat›", "dog")
    assert report.summary.startswith("5 of 8 samples in 2 classes; 3 rows skipped")
    assert set(report.counts) == {"not an image", "no label", "image outside the hub"}
    assert report.kind == "hf"
    assert samples.total == 8
    by_content = {image.tobytes(): label for image, label in zip(samples.inputs, samples.labels, strict=True)}
    assert all(by_content[pixels(i).tobytes()] == i % 2 for i in (0, 1, 2, 6, 7))


def test_no_more_than_wanted_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_library", lambda: library(Stream(image_rows(50), FEATURES)))
    samples, _ = open_data("hf:owner/pets:config:test", limits=Limits(samples=5))
    assert (len(samples), samples.total) == (5, 50)


def test_texts_with_plain_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"Review": "good", "label": "b"}, {"Review": " ", "label": "a"}, {"Review": "bad", "label": "a"}]
    stream = Stream(rows, {"Review": "string", "label": "string"})
    monkeypatch.setattr(hub, "_library", lambda: library(stream))
    samples, report = open_data("hf:owner/reviews")
    assert samples.kind == "text"
    assert set(samples.inputs) == {"good", "bad"}
    assert dict(report.counts) == {"no text": 1}
    assert open_data("hf:owner/reviews", labelled=False)[0].labels is None
    with pytest.raises(DataError, match=r"one of Review, label. Got nope"):
        open_data("hf:owner/reviews", text_column="nope")


def test_files_beside_the_data_set_are_fetched_from_the_hub_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setattr(fsspec, "open", lambda path, mode: io.BytesIO(png(3)))
    np.testing.assert_array_equal(hub._item({"path": "hf://x/a.png", "bytes": None}, True, Limits()), pixels(3))
    np.testing.assert_array_equal(hub._item({"path": "zip://a.png::hf://x.zip"}, True, Limits()), pixels(3))
    for path in ("/etc/passwd", "file:///x", "http://10.0.0.1/x.png", "zip://hf://::file:///x", None):
        with pytest.raises(DataError, match="image outside the hub"):
            hub._item({"path": path, "bytes": None}, True, Limits())
    with pytest.raises(DataError, match="file too large"):
        hub._item({"path": "hf://x/a.png"}, True, Limits(file_bytes=10))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DependencyError, match=r"pip install 'hydra-lab\[hub\]'"):
        open_data("hf:owner/pets")


def test_without_a_network_the_way_around_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_library", lambda: library(ConnectionError("no route to <host>")))
    for name in ("hf:owner/pets", "hf:owner/pets:test"):
        with pytest.raises(DataError, match=r"could not be read from the hub.*‹host›.*bring it as a folder"):
            open_data(name)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "~/x", "a:b:c:d", "a\\b"])
def test_names_that_are_no_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_library", lambda: library(Stream([], {})))
    with pytest.raises(DataError, match="not the name of a data set"):
        open_data(f"hf:{name}")


def test_streams_of_the_real_library() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})
    rows = {"image": [{"bytes": data, "path": None} for data in (png(0), b"junk", png(2))], "label": [0, 1, 1]}
    stream = datasets.Dataset.from_dict(rows, features=features).to_iterable_dataset()
    report = IntakeReport("x")
    samples = hub.read_stream(stream, datasets, "x", report, Limits(), Watch("Reading"), Columns()).samples
    np.testing.assert_array_equal(samples.inputs, [pixels(0), pixels(2)])
    assert samples.class_names == ("a", "b")
    assert dict(report.counts) == {"not an image": 1}
