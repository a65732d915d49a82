"""Class folders: which folder says the split and which the class, and a stratified choice of the images."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from hydra_core.data.folders import Container, Entry
from hydra_core.data.images import ENDINGS, decode_image, stack_images
from hydra_core.data.limits import Limits, size_text
from hydra_core.data.report import IntakeReport, Watch, safe_name, stable_id, unique_names
from hydra_core.data.sets import SampleSet
from hydra_core.errors import HydraError, UploadError

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
ARCHIVES = frozenset([".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar", ".zst"])


@dataclass(frozen=True)
class Intake:
    """One source as read: its samples, what happened, and the splits it came with.

    Attributes:
        splits: rows of `samples` that the source itself calls "train", "val" or "test"; empty
            where it does not say.
    """

    samples: SampleSet
    report: IntakeReport
    splits: dict[str, np.ndarray]


@dataclass(frozen=True)
class _Item:
    entry: Entry
    split: str  # "" where the source names no splits
    label: str  # "" for a flat source without classes


def read_class_folders(
    container: Container, name: str, report: IntakeReport, limits: Limits, seed: int, watch: Watch
) -> Intake:
    """Images of class folders: CLASS/image, SPLIT/CLASS/image, or images alone (then unlabelled).

    Classes are numbered in the order of their sorted names, as torchvision's ImageFolder does. At
    most `limits.samples` images are read: a stratified, seeded choice.

    Raises:
        UploadError: nothing could be read, or a limit refused the whole source.
    """
    items, classes = _layout(_images_only(container.entries(report), report), report)
    if len(classes) > limits.classes:
        raise UploadError(
            f"{report.source} has too many classes", expected=f"at most {limits.classes:,}", got=f"{len(classes):,}"
        )
    report.found = len(items)
    images, kept = _read_images(container, _in_turn(items, seed), report, limits, watch)
    if not kept:
        raise report.refuse_empty("image", "Bring a folder or zip with one folder a class: CLASS/image.png.")
    order = sorted(range(len(kept)), key=lambda i: kept[i].entry.parts)
    kept = [kept[i] for i in order]
    return _intake([images[i] for i in order], kept, classes, name, report)


def _images_only(entries: list[Entry], report: IntakeReport) -> list[Entry]:
    """Entries whose name ends like an image's, in any case; what is inside is checked later."""
    kept = []
    for entry in entries:
        ending = PurePosixPath(entry.parts[-1]).suffix.lower()
        if entry.is_folder:
            continue
        if ending in ENDINGS:
            kept.append(entry)
        elif ending in ARCHIVES:
            report.skip(entry.name, "an archive inside (not opened)")
        else:
            report.skip(entry.name, "not named like an image")
    _tell_empty_folders(entries, kept, report)
    return kept


def _tell_empty_folders(entries: list[Entry], images: list[Entry], report: IntakeReport) -> None:
    filled = {entry.parts[:depth] for entry in images for depth in range(len(entry.parts))}
    for entry in entries:
        if entry.is_folder and entry.parts not in filled:
            report.note(f"Folder {safe_name(entry.name)} holds no image, so it is not a class.")


def _layout(entries: list[Entry], report: IntakeReport) -> tuple[list[_Item], list[str]]:
    """Which folder says the split and which the class; a wrapper folder around everything is passed over."""
    start = 0
    while entries and _wrapper(entries, start):
        start += 1
    folders = [entry.parts[start:-1] for entry in entries]
    given = bool(folders) and all(len(f) >= 2 and f[0].lower() in SPLITS for f in folders)
    depth = 1 if given else 0
    if all(len(f) <= depth for f in folders):
        return [_Item(entry, "", "") for entry in entries], []
    items = []
    for entry, folder in zip(entries, folders, strict=True):
        if len(folder) <= depth:
            report.skip(entry.name, "outside a class folder")
        else:
            items.append(_Item(entry, SPLITS[folder[0].lower()] if given else "", folder[depth]))
    return items, sorted({item.label for item in items})


def _wrapper(entries: list[Entry], start: int) -> bool:
    """Whether all entries share a folder at `start` that holds further folders for each of them."""
    first = entries[0].parts[start]
    if not all(len(e.parts) >= start + 3 and e.parts[start] == first for e in entries):
        return False
    return first.lower() not in SPLITS or all(e.parts[start + 1].lower() in SPLITS for e in entries)


def _in_turn(items: list[_Item], seed: int) -> list[_Item]:
    """The items in a seeded order whose every beginning is stratified by class and split.

    So a reading may stop anywhere: the first of each class lead, then all in proportion.
    """
    rng = np.random.default_rng(seed)
    groups: dict[tuple[str, str], list[_Item]] = defaultdict(list)
    for item in items:
        groups[item.split, item.label].append(item)
    ranked: list[tuple[float, _Item]] = []
    for group in groups.values():
        shuffled = rng.permutation(len(group))
        # the share of its group that stands before an item
        ranked += [(place / len(group), group[i]) for place, i in enumerate(shuffled)]
    return [item for _, item in sorted(ranked, key=lambda pair: (pair[0], pair[1].entry.parts))]


def _read_images(
    container: Container, items: list[_Item], report: IntakeReport, limits: Limits, watch: Watch
) -> tuple[list[np.ndarray], list[_Item]]:
    """Decode one by one until a limit is reached; a bad file is skipped and counted."""
    images: list[np.ndarray] = []
    kept: list[_Item] = []
    unpacked = memory = 0
    wanted = min(len(items), limits.samples)
    for item in items:
        if len(kept) == wanted:
            break
        watch.tick(len(kept), wanted)
        try:
            data = container.read(item.entry)
            unpacked += len(data)
            image = decode_image(data, limits)
        except HydraError as error:
            report.skip(item.entry.name, error.problem)
            continue
        memory += image.nbytes
        if memory > limits.memory_bytes or unpacked > limits.total_bytes:
            report.note(f"Reading stopped after {len(kept):,} images: {_which(memory, limits)}.")
            break
        images.append(image)
        kept.append(item)
    return images, kept


def _which(memory: int, limits: Limits) -> str:
    if memory > limits.memory_bytes:
        return f"the limit on memory is {size_text(limits.memory_bytes)}"
    return f"the limit on unpacked bytes is {size_text(limits.total_bytes)}"


def _intake(images: list[np.ndarray], kept: list[_Item], classes: list[str], name: str, report: IntakeReport) -> Intake:
    number = {label: i for i, label in enumerate(classes)}
    labels = np.array([number[item.label] for item in kept], dtype=np.int64) if classes else None
    samples = SampleSet(
        name=name,
        inputs=stack_images(images),
        labels=labels,
        ids=tuple(stable_id(name, item.entry.name) for item in kept),
        class_names=unique_names(classes),
        total=report.found,
        source=report.source,
    )
    report.read = len(samples)
    count_classes(samples, report)
    named = sorted({item.split for item in kept} - {""})
    splits = {s: np.flatnonzero([item.split == s for item in kept]) for s in named}
    return Intake(samples, report, splits)


def count_classes(samples: SampleSet, report: IntakeReport) -> None:
    """Fill in how many samples each class has, and say which have none or one."""
    if samples.labels is None:
        return
    counts = np.bincount(samples.labels, minlength=len(samples.class_names))
    report.classes = {n: int(c) for n, c in zip(samples.class_names, counts, strict=True)}
    for wanted, text in ((0, "no sample that could be read; its number stays"), (1, "one sample only")):
        names = [n for n, c in report.classes.items() if c == wanted]
        if names:
            more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
            report.note(f"{'Class' if len(names) == 1 else 'Classes'} {', '.join(names[:5])}{more}: {text}.")
