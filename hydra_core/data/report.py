"""What happened to a source that somebody brought: what was read, what was skipped and why."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Event
from typing import NamedTuple

from hydra_core.errors import Cancelled, UploadError
from hydra_core.progress import Progress

# angle brackets turn into look-alikes: charts, tables and pages then show a name, never its markup
_BRACKETS = str.maketrans({"<": "‹", ">": "›"})


def safe_name(name: object, length: int = 80) -> str:
    """A name from outside as short plain text: one line, no control or direction characters, no markup.

    It is for showing only; never open a path made of it.

    >>> safe_name("a<b>.png")
    'a‹b›.png'
    """
    text = str(name)[: 16 * length + 64]
    text = unicodedata.normalize("NFC", text).translate(_BRACKETS)
    text = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c)[0] == "C" else c for c in text)
    text = " ".join(text.split()) or "(no name)"
    if len(text) <= length and len(str(name)) <= 16 * length + 64:
        return text
    tail = min(12, length // 3)
    return f"{text[: length - tail - 1]}…{text[-tail:]}" if len(text) > length else f"{text[:-1]}…"


def stable_id(prefix: str, name: str) -> str:
    """An id for a sample of a named source: readable, bounded, and as unique as `name` is."""
    shown = safe_name(name, 160)
    if shown == name:
        return f"{prefix}/{name}"
    return f"{prefix}/{shown}#{hashlib.blake2b(name.encode('utf-8', 'surrogatepass'), digest_size=6).hexdigest()}"


def unique_names(names: Iterable[str]) -> tuple[str, ...]:
    """Safe names, with ' (2)', ' (3)' ... where two different names would read the same."""
    seen: Counter[str] = Counter()
    out: list[str] = []
    for name in names:
        shown = candidate = safe_name(name)
        while candidate in out:
            seen[shown] += 1
            candidate = f"{shown} ({seen[shown] + 1})"
        out.append(candidate)
    return tuple(out)


class Skipped(NamedTuple):
    """One file or row that was left out; `name` is safe to show."""

    name: str
    reason: str


@dataclass
class IntakeReport:
    """What came of reading one source. Every text in it is plain and safe to show.

    Attributes:
        source: what was read, as its owner named it.
        kind: "folder", "zip", "table", "npz" or "hf".
        read: samples read.
        found: samples the source has, whether read or not.
        classes: samples read of each class.
        ignored: files that belong to operating systems (`.DS_Store`, `__MACOSX` ...).
        skipped: the first files or rows left out, with the reason; `counts` has all of them.
        counts: files or rows left out, by reason.
        notes: what else the user should know, in order.
    """

    source: str
    kind: str = ""
    read: int = 0
    found: int = 0
    classes: dict[str, int] = field(default_factory=dict)
    ignored: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    listed: int = 100

    def __post_init__(self) -> None:
        self.source = safe_name(self.source)

    def skip(self, name: object, reason: str) -> None:
        """Count one file or row that is left out, and list it while the list is short."""
        reason = safe_name(reason, 200)
        self.counts[reason] += 1
        if len(self.skipped) < self.listed:
            self.skipped.append(Skipped(safe_name(name), reason))

    def note(self, text: str) -> None:
        """Keep one sentence for the user; the same sentence is kept once."""
        if text not in self.notes and len(self.notes) < self.listed:
            self.notes.append(text)

    @property
    def skipped_count(self) -> int:
        return sum(self.counts.values())

    @property
    def summary(self) -> str:
        """One line: '120 of 500 samples in 3 classes; 2 files skipped (1 truncated, 1 empty)'."""
        text = f"{self.read:,} of {self.found:,} samples"
        if self.classes:
            text += f" in {len(self.classes):,} class{'es' * (len(self.classes) != 1)}"
        if self.counts:
            reasons = [f"{count:,} {reason}" for reason, count in self.counts.most_common(3)]
            more = len(self.counts) - len(reasons)
            unit = "file" if self.kind in ("zip", "folder") else "row"
            text += f"; {self.skipped_count:,} {unit}{'s' * (self.skipped_count != 1)} skipped"
            text += f" ({', '.join(reasons)}{f', {more} more reasons' * (more > 0)})"
        return text

    def rows(self) -> list[dict[str, str]]:
        """A table of what was skipped; its last row counts what is not listed."""
        table = [{"name": item.name, "reason": item.reason} for item in self.skipped]
        hidden = self.skipped_count - len(self.skipped)
        if hidden:
            table.append({"name": f"and {hidden:,} more", "reason": ""})
        return table

    def refuse_empty(self, what: str, hint: str) -> UploadError:
        """The error for a source of which nothing could be read; it carries this report as `report`."""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.counts.most_common(5))
        error = UploadError(f"{self.source}: no {what} could be read", got=reasons or "nothing at all", hint=hint)
        error.report = self  # type: ignore[attr-defined]
        return error


class Watch:
    """Progress and cancel of one reading, so that loops stay short."""

    def __init__(self, what: str, progress: Progress | None = None, cancel: Event | None = None) -> None:
        self.progress, self.cancel, self.what = progress, cancel, what

    def tick(self, done: int, total: int, every: int = 50) -> None:
        """Report `done` of `total`; raises Cancelled when the user stopped the work."""
        if done % every and done != total:
            return
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled(self.what)
        if self.progress is not None:
            self.progress(done / max(1, total), f"{self.what}: {done:,} of {total:,}")
