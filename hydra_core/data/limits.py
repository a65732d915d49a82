"""How much is read from a source that somebody brings. Every reader takes these limits."""

from __future__ import annotations

from dataclasses import dataclass

from hydra_core.errors import DataError

MIB = 1024**2
GIB = 1024**3


@dataclass(frozen=True)
class Limits:
    """Bounds on what a source may cost; raise one for a source you trust: `Limits(samples=50_000)`.

    Attributes:
        samples: samples kept; the others are counted ("n of N"), and the choice is stratified and seeded.
        entries: files of a zip or folder; above it the source is refused before anything is read.
        file_bytes: one file inside a zip or folder, unpacked.
        total_bytes: all files together, unpacked; and the size of one table.
        ratio: unpacked over packed size of a zip's file of more than 1 MiB.
        pixels: width times height of an image, checked before it is decoded.
        side: an image whose shorter side is longer is shrunk to it (in proportion), well above most
            models' input.
        memory_bytes: decoded samples in memory; reading stops there, classes served in turn.
        line: characters of one line, and so of one field, of a table.
        characters: of one text; longer ones are cut.
        classes: different labels; more means that the label column holds something else.
        listed: skipped files that a report names one by one; the others are counted.
    """

    samples: int = 10_000
    entries: int = 80_000
    file_bytes: int = 64 * MIB
    total_bytes: int = 4 * GIB
    ratio: int = 200
    pixels: int = 50_000_000
    side: int = 640
    memory_bytes: int = 1 * GIB
    line: int = 1 * MIB
    characters: int = 20_000
    classes: int = 2_000
    listed: int = 100

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise DataError(f"The limit {name!r} is too low", expected="1 or more", got=value)


def size_text(count: float) -> str:
    """Bytes as people read them: '3.2 GB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
