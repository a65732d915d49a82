"""Something that holds files: a folder on this machine here, a zip in archives.py.

A container lists entries and reads one of them; what they mean (classes, splits) stands in classfolders.py.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hydra_core.data.limits import Limits
from hydra_core.data.report import IntakeReport
from hydra_core.errors import UploadError

SYSTEM_FILES = frozenset({".ds_store", "thumbs.db", "desktop.ini", "__macosx", ".ipynb_checkpoints", "@eadir"})
MAX_DEPTH = 32


@dataclass(frozen=True)
class Entry:
    """One file of a container.

    Attributes:
        parts: its folders and its own name, checked: no "..", nothing absolute.
        key: what the container needs to read it again; never shown, never used as a path here.
        is_folder: a folder, listed so that empty ones can be told of.
    """

    parts: tuple[str, ...]
    key: object
    is_folder: bool = False

    @property
    def name(self) -> str:
        return "/".join(self.parts)


class Container(Protocol):
    """Something that holds files."""

    def entries(self, report: IntakeReport) -> list[Entry]:
        """All files worth a look; refused ones are skipped in the report."""

    def read(self, entry: Entry) -> bytes:
        """The bytes of one file; raises UploadError with a few words as `problem`."""


def clean_parts(name: str) -> tuple[str, ...]:
    """The folders and the file name in a stored name; both kinds of slashes separate.

    Raises:
        UploadError: the name is absolute, climbs with "..", or is deeper than 32 folders.
    """
    if name.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", name):
        raise UploadError("absolute path")
    parts = tuple(part for part in re.split(r"[\\/]+", name) if part not in ("", "."))
    if ".." in parts:
        raise UploadError("path that climbs out with '..'")
    if len(parts) > MAX_DEPTH:
        raise UploadError("too many folders inside each other")
    if not parts:
        raise UploadError("no name")
    return parts


def is_system_file(parts: Sequence[str]) -> bool:
    """Whether a file only serves an operating system, such as `.DS_Store` or `__MACOSX/...`."""
    return any(part.lower() in SYSTEM_FILES or part.startswith("._") for part in parts)


class FolderContainer:
    """A folder on this machine. Links are followed only to files that lie inside it."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self.root, self.limits = root.resolve(), limits

    def entries(self, report: IntakeReport) -> list[Entry]:
        found: list[Entry] = []
        for seen, (path, is_folder) in enumerate(self._walk(self.root, report, 0), 1):
            if seen > self.limits.entries:
                raise too_many_entries(report.source, self.limits)
            parts = tuple(path.relative_to(self.root).parts)
            if is_system_file(parts):
                report.ignored += not is_folder
            elif is_folder:
                found.append(Entry(parts, path, is_folder=True))
            elif reason := self._refusal(path):
                report.skip("/".join(parts), reason)
            else:
                found.append(Entry(parts, path))
        return sorted(found, key=lambda entry: entry.parts)

    def _walk(self, folder: Path, report: IntakeReport, depth: int) -> Iterator[tuple[Path, bool]]:
        """Everything below `folder`, and whether it is a folder; linked folders are not entered: no circles."""
        if depth >= MAX_DEPTH:
            report.skip(folder.name, "too many folders inside each other")
            return
        try:
            with os.scandir(folder) as listing:
                for item in listing:
                    is_folder = item.is_dir(follow_symlinks=False)
                    yield Path(item.path), is_folder
                    if is_folder:
                        yield from self._walk(Path(item.path), report, depth + 1)
        except PermissionError:
            report.skip(folder.name, "no permission to read the folder")

    def _refusal(self, path: Path) -> str:
        """Why a file is not read; empty if it may be."""
        try:
            target = path.resolve(strict=True)
            mode = target.stat().st_mode
        except (OSError, RuntimeError):
            return "broken link or unreadable file"
        if path.is_symlink() and not target.is_relative_to(self.root):
            return "link to a place outside the folder"
        if not stat.S_ISREG(mode):
            return "linked folder" if stat.S_ISDIR(mode) else "not a regular file"
        return ""

    def read(self, entry: Entry) -> bytes:
        try:
            with open(entry.key, "rb") as file:  # type: ignore[call-overload]  # the path of our own listing
                data = file.read(self.limits.file_bytes + 1)
        except OSError:
            raise UploadError("unreadable file") from None
        if len(data) > self.limits.file_bytes:
            raise UploadError("file too large")
        return data


def too_many_entries(source: str, limits: Limits, got: int | None = None) -> UploadError:
    return UploadError(
        f"{source} holds too many files",
        expected=f"at most {limits.entries:,}",
        got=f"{got:,}" if got else "more",
        hint="Bring a sample of it, or raise Limits(entries=...) for a source you trust.",
    )
