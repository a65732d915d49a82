"""A zip from somebody else as a container of class folders (see folders.py).

Nothing is ever extracted to disk: members are read into memory one by one, under limits. A member
that tries something (climbs out, links, lies about its size) is skipped and listed; an archive that
is a weapon as a whole (far too many entries) is refused before its list is even built.
"""

from __future__ import annotations

import lzma
import stat
import struct
import threading
import zipfile
import zlib
from typing import BinaryIO

from hydra_core.data.folders import Entry, clean_parts, is_system_file, too_many_entries
from hydra_core.data.limits import MIB, Limits
from hydra_core.data.report import IntakeReport
from hydra_core.errors import UploadError

MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_CENTRAL = b"PK\x01\x02"
_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, struct.error)


class ZipContainer:
    """A zip as a container of files.

    Args:
        file: a seekable binary file; its name plays no part.
        source: what the user calls it, for messages.

    Raises:
        UploadError: not a zip, damaged, or too many entries (counted before the list is built).
    """

    def __init__(self, file: BinaryIO, source: str, limits: Limits) -> None:
        self.limits = limits
        count = count_entries(file, limits)
        if count > limits.entries:
            raise too_many_entries(source, limits, count)
        try:
            self._zip = zipfile.ZipFile(file)
        except (*DAMAGE, NotImplementedError) as error:
            raise UploadError(
                f"{source} cannot be opened as a zip",
                got=str(error)[:120],
                hint="Pack it again; a whole .zip is needed.",
            ) from None
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        return self._zip.namelist()

    def entries(self, report: IntakeReport) -> list[Entry]:
        found: list[Entry] = []
        taken: set[tuple[str, ...]] = set()
        for info in self._zip.infolist():
            try:
                parts = clean_parts(info.filename)
            except UploadError as error:
                report.skip(info.filename, error.problem)
                continue
            if is_system_file(parts):
                report.ignored += not info.is_dir()
            elif info.is_dir():
                found.append(Entry(parts, info, is_folder=True))
            elif reason := self._refusal(info, parts in taken):
                report.skip(info.filename, reason)
            else:
                found.append(Entry(parts, info))
                taken.add(parts)
        return found

    def _refusal(self, info: zipfile.ZipInfo, taken: bool) -> str:
        """Why a member is not read; empty if it may be."""
        mode = info.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            return "symbolic link" if stat.S_ISLNK(mode) else "not a regular file"
        if taken:
            return "duplicate name"
        if info.flag_bits & 0x1:
            return "encrypted"
        if info.file_size > self.limits.file_bytes:
            return "file too large"
        if info.file_size > MIB and info.file_size > self.limits.ratio * max(1, info.compress_size):
            return "packed too tightly (like a zip bomb)"
        return ""

    def read(self, entry: Entry) -> bytes:
        """The bytes of a member, never more than the limit whatever its header declares."""
        try:
            with self._lock, self._zip.open(entry.key) as member:  # type: ignore[arg-type]  # our own listing
                data = member.read(self.limits.file_bytes + 1)
        except (NotImplementedError, RuntimeError):
            raise UploadError("packed in a way that cannot be read") from None
        except DAMAGE:
            raise UploadError("damaged in the zip") from None
        if len(data) > self.limits.file_bytes:
            raise UploadError("file too large")
        return data


def is_zip(head: bytes) -> bool:
    """Whether a file starts as a zip does."""
    return head.startswith(MAGIC)


def count_entries(file: BinaryIO, limits: Limits) -> int:
    """How many entries a zip has at most, without building its list: the larger of what its end declares
    and what its central directory shows. 0 where there is no end record (zipfile then says so).
    """
    file.seek(0, 2)
    length = file.tell()
    start = max(0, length - 65_557)  # an end record is 22 bytes and a comment of at most 65,535
    file.seek(start)
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22:
        return 0
    declared, size = struct.unpack_from("<H", tail, at + 10)[0], struct.unpack_from("<I", tail, at + 12)[0]
    end = start + at
    if at >= 76 and tail[at - 20 : at - 16] == _LOCATOR64 and tail[at - 76 : at - 72] == _END64:
        declared, size = struct.unpack_from("<QQ", tail, at - 44)
        end -= 76
    return max(declared, _count_central(file, max(0, end - size), min(size, end), limits))


def _count_central(file: BinaryIO, start: int, size: int, limits: Limits) -> int:
    """Entries in the central directory, counted in pieces; stops once over the limit."""
    file.seek(start)
    count, carry = 0, b""
    while size > 0 and count <= limits.entries:
        piece = file.read(min(size, MIB))
        if not piece:
            break
        size -= len(piece)
        piece = carry + piece
        count += piece.count(_CENTRAL)
        carry = piece[-3:]
    return count
