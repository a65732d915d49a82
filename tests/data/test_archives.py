"""Zips and folders of class folders: what is in them, what is refused, and that one bad file loses nothing else."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hydra_core.data.archives import ZipContainer, count_entries
from hydra_core.data.limits import MIB, Limits
from hydra_core.data.sources import open_data, read_source
from hydra_core.errors import DataError, UploadError
from tests.data.make import class_files, encode, pixels, png, zipped


def reasons(report) -> dict[str, int]:
    return dict(report.counts)


def test_a_zip_of_class_folders() -> None:
    files = class_files()
    samples, report = open_data(zipped(files), name="pets")
    assert samples.inputs.shape == (12, 6, 8, 3)
    assert samples.class_names == ("cat", "dog")
    assert samples.labels is not None
    assert samples.labels.tolist() == [0] * 6 + [1] * 6
    assert samples.ids[0] == "pets/cat/0.png"
    np.testing.assert_array_equal(samples.inputs[7], pixels(101))
    assert report.summary == "12 of 12 samples in 2 classes"
    assert report.kind == "zip"


def test_a_folder_gives_the_same_as_its_zip(tmp_path: Path) -> None:
    for name, data in class_files().items():
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / name).write_bytes(data)
    folder, report = open_data(tmp_path / "pets")
    archive, _ = open_data(zipped(class_files()), name="pets")
    assert folder.digest == archive.digest
    assert folder.ids == archive.ids
    assert report.kind == "folder"


@pytest.mark.parametrize("under", ["", "data/", "a/b/c/"])
def test_wrapper_folders_are_passed_over(under: str) -> None:
    assert open_data(zipped(class_files(under=under)))[0].class_names == ("cat", "dog")


def test_one_class_alone_keeps_its_name() -> None:
    assert open_data(zipped(class_files(("cat",))))[0].class_names == ("cat",)


def test_given_splits_are_found_under_any_of_their_names() -> None:
    files = (
        class_files(under="pets/Training/")
        | class_files(under="pets/valid/", count=2)
        | class_files(under="pets/TEST/", count=3)
    )
    intake = read_source(zipped(files))
    assert {k: len(v) for k, v in intake.splits.items()} == {"train": 12, "val": 4, "test": 6}
    assert all("/TEST/" in intake.samples.ids[i] for i in intake.splits["test"])
    assert intake.samples.class_names == ("cat", "dog")


def test_images_without_folders_are_unlabelled() -> None:
    samples, report = open_data(zipped({f"{i}.png": png(i) for i in range(3)}))
    assert samples.labels is None
    assert report.read == 3


def test_mixed_case_endings_and_files_of_systems() -> None:
    files = {"cat/a.PNG": png(1), "cat/b.JpEg": encode(pixels(), "JPEG"), "dog/c.Png": png(2)}
    junk = {"__MACOSX/cat/._a.PNG": b"x", "cat/.DS_Store": b"x", "cat/Thumbs.db": b"x", "dog/._c.Png": b"x"}
    samples, report = open_data(zipped(files | junk))
    assert len(samples) == 3
    assert report.ignored == 4
    assert not report.counts


@pytest.mark.parametrize("source", ["zip", "folder"])
def test_a_bad_file_is_skipped_counted_and_listed(source: str, tmp_path: Path) -> None:
    bad = {
        "cat/text.jpg": b"no image",
        "cat/cut.png": png(5)[:60],
        "dog/empty.png": b"",
        "dog/notes.txt": b"hello",
        "stray.png": png(9),
        "dog/more.zip": zipped({"x.png": png()}),
    }
    samples, report = open_data(zipped(class_files() | bad) if source == "zip" else laid_out(tmp_path, bad))
    assert len(samples) == 12
    assert report.found == 15
    assert reasons(report) == {
        "not an image": 1,
        "truncated image": 1,
        "empty file": 1,
        "not named like an image": 1,
        "outside a class folder": 1,
        "an archive inside (not opened)": 1,
    }
    assert {item.name for item in report.skipped} == set(bad)


def laid_out(folder: Path, more: dict[str, bytes]) -> Path:
    """The class folders and further files on disk."""
    for name, data in (class_files() | more).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_images_of_every_kind_reach_a_model() -> None:
    """Whatever was brought is what each model's own preprocessing takes: grey or RGB, of its size, finite."""
    import hydra_core as hc

    rgb = Image.fromarray(pixels())
    turned = Image.Exif()
    turned[0x0112] = 6
    kinds = {
        "grey.png": encode(pixels(grey=True)),
        "16 bit.png": encode(np.array([[0, 65535]], dtype=np.uint16)),
        "palette.png": encode(rgb.convert("P")),
        "rgba.png": encode(rgb.convert("RGBA")),
        "cmyk.jpg": encode(rgb.convert("CMYK"), "JPEG"),
        "turned.jpg": encode(rgb, "JPEG", exif=turned.tobytes()),
        "moving.gif": encode(rgb, "GIF", save_all=True, append_images=[rgb.rotate(90)]),
        "moving.webp": encode(rgb, "WEBP", save_all=True, append_images=[rgb.rotate(90)]),
        "one pixel.png": encode(np.zeros((1, 1, 3), np.uint8)),
        "a line.png": encode(pixels(height=1, width=400)),
    }
    samples, report = open_data(zipped({f"odd/{name}": data for name, data in kinds.items()}))
    assert report.summary == f"{len(kinds)} of {len(kinds)} samples in 1 class"
    for name in ("demo/fashion-vit", "demo/fashion-clip"):
        view = hc.load_model(name)
        x = view.inputs(samples)
        assert x.shape == (len(kinds), *view.input_size)
        assert view(x).isfinite().all()


def test_names_that_climb_or_are_absolute_are_refused() -> None:
    hostile = [
        "../x.png",
        "cat/../../x.png",
        "/etc/x.png",
        "\\x.png",
        "C:\\x.png",
        "..\\..\\x.png",
        "a/" * 40 + "x.png",
    ]
    samples, report = open_data(zipped(class_files() | {name: png() for name in hostile}))
    assert len(samples) == 12
    assert reasons(report) == {
        "path that climbs out with '..'": 3,
        "absolute path": 3,
        "too many folders inside each other": 1,
    }


def test_nothing_is_written_or_read_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(png(77))
    inside = tmp_path / "in"
    inside.mkdir()
    monkeypatch.chdir(inside)
    link = zipfile.ZipInfo("cat/link.png")
    link.external_attr = 0o120777 << 16
    buffer = io.BytesIO(zipped(class_files()))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr(link, "../secret.png")
        archive.writestr("../out.png", png())
    samples, report = open_data(buffer)
    assert len(samples) == 12
    assert reasons(report) == {"symbolic link": 1, "path that climbs out with '..'": 1}
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in", "secret.png"]


def test_the_first_of_two_files_of_one_name_counts() -> None:
    buffer = io.BytesIO(zipped(class_files()))
    with zipfile.ZipFile(buffer, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("cat/0.png", png(999))
        archive.writestr("cat\\1.png", png(999))  # the same place, spelt with the other slash
    samples, report = open_data(buffer)
    assert reasons(report) == {"duplicate name": 2}
    np.testing.assert_array_equal(samples.inputs[0], pixels(0))


def test_a_zip_bomb_is_not_unpacked() -> None:
    files = class_files() | {"cat/bomb.png": b"\0" * (8 * MIB), "dog/big.bmp": os.urandom(3 * MIB)}
    data = zipped(files, compression=zipfile.ZIP_DEFLATED)
    samples, report = open_data(data, limits=Limits(file_bytes=2 * MIB))
    assert len(samples) == 12
    assert reasons(report) == {"file too large": 2}
    _, report = open_data(data)
    assert reasons(report) == {"packed too tightly (like a zip bomb)": 1, "not an image": 1}


def test_a_size_that_lies_unpacks_no_more_than_the_limit() -> None:
    data = bytearray(zipped({"cat/bomb.png": b"\0" * (8 * MIB), **class_files()}, compression=zipfile.ZIP_DEFLATED))
    at = data.rfind(b"PK\x01\x02", 0, data.rfind(b"cat/bomb.png"))
    struct.pack_into("<I", data, at + 24, 1000)  # the declared unpacked size
    samples, report = open_data(bytes(data))
    assert len(samples) == 12
    assert reasons(report) == {"damaged in the zip": 1}


def test_the_sum_of_all_files_is_bounded() -> None:
    files = {f"{c}/{i}.bmp": encode(pixels(i, 60, 60), "BMP") for c in ("a", "b", "c") for i in range(10)}
    samples, report = open_data(zipped(files), limits=Limits(total_bytes=100_000))
    assert len(samples) == 9
    assert samples.labels is not None
    assert np.bincount(samples.labels).tolist() == [3, 3, 3]  # no class pays for the others
    assert "unpacked bytes" in report.notes[0]
    samples, report = open_data(zipped(files), limits=Limits(memory_bytes=5 * 10_800))
    assert len(samples) == 5
    assert "memory" in report.notes[0]


def test_a_hundred_thousand_entries_are_refused_before_they_are_listed() -> None:
    entry = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0) + b"a.png"
    central = entry * 100_000
    for declared in (0xFFFF, 3):  # honest as far as the field goes, and a lie
        end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, declared, declared, len(central), 0, 0)
        data = central + end
        assert count_entries(io.BytesIO(data), Limits()) > 80_000
        with pytest.raises(UploadError, match="too many files"):
            ZipContainer(io.BytesIO(data), "x.zip", Limits())


def test_real_zips_are_counted_exactly() -> None:
    files = {f"{i}.txt": b"" for i in range(70_000)}  # more than 65,535, so a zip64 end record
    assert count_entries(io.BytesIO(zipped(files)), Limits()) == 70_000
    assert count_entries(io.BytesIO(zipped(class_files())), Limits()) == 12
    assert count_entries(io.BytesIO(b"PK\x03\x04"), Limits()) == 0


@pytest.mark.parametrize("cut", [30, 200, -1, -30])
def test_truncated_zips_are_refused_with_a_clear_text(cut: int) -> None:
    with pytest.raises(UploadError, match="cannot be opened as a zip"):
        open_data(zipped(class_files())[:cut])


def test_a_damaged_member_loses_only_itself() -> None:
    data = bytearray(zipped(class_files()))
    at = data.find(b"IDAT") + 8
    data[at : at + 8] = bytes(8)
    samples, report = open_data(bytes(data))
    assert len(samples) == 11
    assert reasons(report) == {"damaged in the zip": 1}


def test_encrypted_members_are_skipped() -> None:
    data = bytearray(zipped(class_files()))
    at = data.rfind(b"PK\x01\x02")
    data[at + 8] |= 1
    _, report = open_data(bytes(data))
    assert reasons(report) == {"encrypted": 1}


def test_names_of_any_kind() -> None:
    names = ["猫/été.png", "猫/" + "x" * 240 + ".png", "<script>/a.png", "<script>/<b>.png", "‹script›/a.png"]
    samples, report = open_data(zipped({name: png(i) for i, name in enumerate(names)}))
    assert len(samples) == 5
    assert sorted(samples.class_names) == ["‹script›", "‹script› (2)", "猫"]
    assert not any("<" in text for text in (*samples.ids, *samples.class_names, report.summary))
    assert max(map(len, samples.ids)) < 220


def test_an_upload_name_is_only_shown() -> None:
    class Upload(io.BytesIO):
        name = "../../etc/<b>passwd.zip"

    samples, report = open_data(Upload(zipped(class_files())))
    assert report.source == "‹b›passwd.zip"
    assert samples.name == "‹b›passwd"


def test_empty_class_folders_and_single_images_are_told_of(tmp_path: Path) -> None:
    for name, data in (class_files() | {"owl/1.png": png(3)}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "eel").mkdir()
    samples, report = open_data(tmp_path)
    assert samples.class_names == ("cat", "dog", "owl")
    assert report.notes == ["Folder eel holds no image, so it is not a class.", "Class owl: one sample only."]


def test_a_class_whose_files_are_all_bad_keeps_its_number() -> None:
    samples, report = open_data(zipped(class_files(("ant", "dog")) | {"cat/1.png": b"bad"}))
    assert samples.class_names == ("ant", "cat", "dog")
    assert report.classes == {"ant": 6, "cat": 0, "dog": 6}
    assert any("Class cat: no sample" in note for note in report.notes)


@pytest.mark.parametrize("files", [{}, {"notes.txt": b"x"}, {"cat/1.png": b"bad", "dog/2.png": b"bad"}])
def test_a_source_without_any_image_is_refused(files: dict[str, bytes]) -> None:
    with pytest.raises(UploadError, match="no image could be read") as error:
        open_data(zipped(files))
    assert error.value.report.read == 0  # type: ignore[attr-defined]


def test_links_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(png(7))
    root = tmp_path / "data"
    for name, data in class_files(count=2).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "cat/out.png").symlink_to(tmp_path / "secret.png")
    (root / "cat/in.png").symlink_to(root / "dog/0.png")
    (root / "cat/gone.png").symlink_to(root / "nothing")
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "dog/pipe.png")
    samples, report = open_data(root)
    assert len(samples) == 5
    assert reasons(report) == {
        "link to a place outside the folder": 1,
        "broken link or unreadable file": 1,
        "linked folder": 1,
        "not a regular file": 1,
    }


def test_folders_with_too_many_files_are_refused(tmp_path: Path) -> None:
    for i in range(6):
        (tmp_path / f"{i}.png").write_bytes(b"")
    with pytest.raises(UploadError, match=r"too many files. Expected at most 5"):
        open_data(tmp_path, limits=Limits(entries=5))


def test_the_choice_is_stratified_seeded_and_makes_up_for_bad_files() -> None:
    files = class_files(("a",), 30) | class_files(("b",), 10) | class_files(("c",), 1) | {"a/bad.png": b"x"}
    data = zipped(files)
    first, report = open_data(data, limits=Limits(samples=20), seed=1)
    assert report.summary.startswith("20 of 42 samples in 3 classes")
    assert first.total == 42
    assert first.labels is not None
    counts = np.bincount(first.labels)
    assert counts[2] == 1
    assert abs(counts[0] - 15) <= 1
    assert open_data(data, limits=Limits(samples=20), seed=1)[0].ids == first.ids
    assert open_data(data, limits=Limits(samples=20), seed=2)[0].ids != first.ids


def test_ragged_images_stay_as_they_are() -> None:
    files = class_files() | {"cat/wide.png": encode(pixels(1, 5, 20)), "dog/grey.png": encode(pixels(1, grey=True))}
    samples, _ = open_data(zipped(files))
    assert samples.inputs.dtype == object
    assert {image.shape for image in samples.inputs} == {(6, 8, 3), (5, 20, 3), (6, 8)}


def test_too_many_classes_are_refused() -> None:
    with pytest.raises(UploadError, match="too many classes"):
        open_data(zipped({f"{i}/a.png": b"" for i in range(6)}), limits=Limits(classes=5))


def test_what_is_said_must_be_what_comes() -> None:
    with pytest.raises(UploadError, match=r"Expected npz\. Got zip"):
        open_data(zipped(class_files()), kind="npz")
    with pytest.raises(DataError, match="no such kind"):
        open_data(b"", kind="rar")
