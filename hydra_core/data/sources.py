"""One entry for data that users bring: a folder, a zip, a table, an npz, or a name of the hub."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from hydra_core.data.archives import ZipContainer, is_zip
from hydra_core.data.classfolders import Intake, read_class_folders
from hydra_core.data.folders import FolderContainer
from hydra_core.data.limits import Limits
from hydra_core.data.npz import read_npz
from hydra_core.data.report import IntakeReport, Watch, safe_name
from hydra_core.data.sets import DataBundle, SampleSet, Shift
from hydra_core.data.splits import FRACTIONS, Fractions, Role, make_bundle
from hydra_core.data.tables import Columns, read_table
from hydra_core.errors import DataError, UploadError
from hydra_core.progress import Progress

Source = str | Path | bytes | BinaryIO
SourceKind = Literal["folder", "zip", "csv", "tsv", "jsonl", "npz", "hf"]

HUB = "hf:"


class Upload(bytes):
    """The bytes of an upload, with the name its owner gave it (only for showing)."""

    name: str

    def __new__(cls, content: bytes, name: str) -> Upload:
        made = super().__new__(cls, content)
        made.name = name
        return made


_FOREIGN = {
    b"\x1f\x8b": "a gzip file",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!": "a rar archive",
    b"\x89PNG": "one image",
    b"\xff\xd8\xff": "one image",
    b"GIF8": "one image",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"%PDF": "a PDF",
    b"PAR1": "a Parquet file",
    b"\x93NUMPY": "one .npy array",
}
WANTED = "a folder, a .zip of class folders, a .csv, .tsv, .jsonl or .npz file, or hf:OWNER/NAME"


def open_data(source: Source, *, name: str | None = None, **options: Any) -> tuple[SampleSet, IntakeReport]:
    """Read one source; options as for `read_source`, which also gives the splits that it brings.

    Returns:
        (samples, report): at most `limits.samples` samples, and what was read, skipped and why.

    Raises:
        UploadError, DataError: the source as a whole cannot be used; one bad file never raises.
        DependencyError: a data set of the hub without the extra `hub`.
    """
    intake = read_source(source, name=name, **options)
    return intake.samples, intake.report


def read_source(
    source: Source,
    *,
    kind: SourceKind | None = None,
    name: str | None = None,
    limits: Limits | None = None,
    seed: int = 0,
    text_column: str | None = None,
    label_column: str | None = None,
    labelled: bool = True,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Intake:
    """Read one source of images or texts.

    Args:
        source: a path on this machine, "hf:NAME", the bytes of an upload, or an open binary file (its
            name is shown, and never used as a path).
        kind: what it is; None: told by content.
        name: of the sample set; None: from the source.
        limits: bounds; None: the defaults of `Limits`.
        seed: of the choice of samples above `limits.samples`.
        text_column, label_column: of tables; None: by the usual names.
        labelled: False reads an OOD source, whose labels do not matter.

    Raises:
        UploadError, DataError, DependencyError, Cancelled.
    """
    if kind is not None and kind not in get_args(SourceKind):
        raise DataError(
            "There is no such kind of source", expected=", ".join(get_args(SourceKind)), got=safe_name(kind)
        )
    limits = limits or Limits()
    shown = _shown(source)
    report = IntakeReport(shown, listed=limits.listed)
    name = safe_name(name or Path(shown).stem or shown, 40)
    watch = Watch(f"Reading {report.source}", progress, cancel)
    columns = Columns(text_column, label_column, labelled)
    if isinstance(source, str) and source.startswith(HUB):
        from hydra_core.data.hub import read_hub

        report.kind = "hf"
        return read_hub(source.removeprefix(HUB), name, report, limits, seed, watch, columns)
    if isinstance(source, (str, Path)) and _exists(source).is_dir():
        _refuse_other(kind, "folder", report)
        report.kind = "folder"
        return read_class_folders(FolderContainer(Path(source), limits), name, report, limits, seed, watch)
    file = _opened(source)
    try:
        return _read_file(file, kind, name, report, limits, seed, watch, columns)
    finally:
        if isinstance(source, (str, Path)):
            file.close()


def _read_file(
    file: BinaryIO,
    kind: SourceKind | None,
    name: str,
    report: IntakeReport,
    limits: Limits,
    seed: int,
    watch: Watch,
    columns: Columns,
) -> Intake:
    found = _kind_of(file, report, limits)
    if found in ("zip", "npz") or kind in ("zip", "npz", "folder", "hf"):
        _refuse_other(kind, found, report)
    report.kind = kind or found
    if found == "npz":
        return read_npz(file, name, report, limits, seed)
    if found == "zip":
        container = ZipContainer(file, report.source, limits)
        return read_class_folders(container, name, report, limits, seed, watch)
    form = kind if kind in ("csv", "tsv", "jsonl") else None
    try:
        return read_table(file, name, report, limits, seed, watch, columns, form)
    except DataError as error:
        suffix = Path(report.source).suffix.lower()
        if suffix not in (".zip", ".npz"):
            raise
        raise UploadError(
            f"{report.source} is no {suffix} file, whatever its name says, and no table either",
            expected="a zip archive, which begins with the letters PK",
            hint="It may be cut off or renamed: make it anew.",
        ) from error


def _kind_of(file: BinaryIO, report: IntakeReport, limits: Limits) -> str:
    """ "zip", "npz" or "table", by content."""
    file.seek(0)
    head = file.read(8)
    if is_zip(head):
        names = ZipContainer(file, report.source, limits).names
        arrays = sum(name.endswith(".npy") for name in names)
        return "npz" if arrays and arrays * 2 >= len(names) else "zip"
    for magic, what in _FOREIGN.items():
        if head.startswith(magic):
            raise UploadError(f"{report.source} cannot be read as data", expected=WANTED, got=what)
    return "table"


def _refuse_other(wanted: str | None, found: str, report: IntakeReport) -> None:
    if wanted is not None and wanted != found:
        raise UploadError(f"{report.source} is not what was said", expected=wanted, got=found)


def _shown(source: Source) -> str:
    """What the user calls a source. Only for showing."""
    if isinstance(source, bytes):
        return source.name if isinstance(source, Upload) else "upload"
    if isinstance(source, (str, Path)):
        text = str(source)
        return text if text.startswith(HUB) else Path(text).name or text
    return str(getattr(source, "name", "") or "upload").replace("\\", "/").rsplit("/", 1)[-1]


def _exists(path: str | Path) -> Path:
    try:
        if Path(path).exists():
            return Path(path)
    except (OSError, ValueError):  # a name too long for the system, or with a zero byte
        pass
    raise DataError(f"There is nothing at {safe_name(path)}", expected=WANTED, hint="Check the path.")


def _opened(source: Source) -> BinaryIO:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    if isinstance(source, (str, Path)):
        path = _exists(source)
        if not path.is_file():
            raise DataError(f"{safe_name(path.name)} is not a file", expected=WANTED)
        try:
            return open(path, "rb")
        except OSError:
            raise DataError(f"{safe_name(path.name)} cannot be opened", expected="a readable file") from None
    return source


def build_bundle(
    id_source: Source,
    ood_sources: Mapping[str, Source] | None = None,
    *,
    name: str | None = None,
    shifts: Mapping[str, Shift] | None = None,
    roles: Mapping[str, Role] | None = None,
    fractions: Fractions = FRACTIONS,
    limits: Limits | None = None,
    seed: int = 0,
    text_column: str | None = None,
    label_column: str | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> tuple[DataBundle, list[IntakeReport]]:
    """A data set from a labelled source and any number of OOD sources.

    Args:
        id_source: class folders, a table with labels, an npz ... (see `read_source`). Its own splits
            (folders named train, val, test; arrays named x_train ...) are kept, else it is split.
        ood_sources: name -> source; a whole source serves validation or test, the only one of its kind half of each.
        shifts: name -> "near" or "far" ("far" where not said).
        roles: name -> "val" or "test"; by turns where not said (see `assign_roles`).
        fractions: shares of train, val and test.

    Returns:
        (bundle, reports): one report a source, ID first.

    Raises:
        DataError and its kin; see `read_source` and `make_bundle`.
    """
    common: dict[str, Any] = {"limits": limits, "seed": seed, "text_column": text_column}
    common |= {"progress": progress, "cancel": cancel}
    id_intake = read_source(id_source, name=name, label_column=label_column, **common)
    ood = {
        safe_name(key, 40): read_source(source, name=key, labelled=False, **common)
        for key, source in (ood_sources or {}).items()
    }
    reports = [id_intake.report, *(intake.report for intake in ood.values())]
    about = "\n".join(f"{report.source}: {report.summary}" for report in reports)
    bundle = make_bundle(
        safe_name(name or id_intake.samples.name),
        id_intake,
        ood,
        shifts={safe_name(key, 40): shift for key, shift in (shifts or {}).items()},
        roles={safe_name(key, 40): role for key, role in (roles or {}).items()},
        fractions=fractions,
        seed=seed,
        about=about,
    )
    return bundle, reports
