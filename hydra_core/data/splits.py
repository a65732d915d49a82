"""Train, validation and test from one labelled set; OOD sources split by source.

Samples are divided class by class in the order of a seeded digest of their content, so a split does not
depend on the order of files, and exact copies of a sample always stay on one side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal, TypeVar

import numpy as np

from hydra_core.data.classfolders import Intake
from hydra_core.data.report import IntakeReport
from hydra_core.data.sets import DataBundle, SampleSet, Shift
from hydra_core.errors import DataError

T = TypeVar("T")
Role = Literal["val", "test"]
Fractions = tuple[float, float, float]
FRACTIONS: Fractions = (0.6, 0.2, 0.2)
PARTS = ("train", "val", "test")


def content_digests(samples: SampleSet) -> list[str]:
    """One digest a sample, of its content alone: equal for exact copies."""
    out = []
    for item in samples.inputs:
        if isinstance(item, str):
            h = hashlib.blake2b(item.encode("utf-8", "surrogatepass"), digest_size=16)
        else:
            h = hashlib.blake2b(repr(item.shape).encode() + np.ascontiguousarray(item).tobytes(), digest_size=16)
        out.append(h.hexdigest())
    return out


def split_samples(
    samples: SampleSet, fractions: Fractions = FRACTIONS, seed: int = 0, report: IntakeReport | None = None
) -> dict[str, SampleSet]:
    """A stratified split into "train", "val" and "test" ("train" is left out where its share is 0).

    Every class that has a sample for each part is in each part. A class with fewer samples gives them
    to the first parts in the order train, test, val, and the report says so.

    Raises:
        DataError: no labels, fewer than two classes with samples, fractions that do not add up to 1,
            or too few samples for a validation and a test part.
    """
    _check_fractions(fractions)
    labels = _labels_of(samples)
    digests = content_digests(samples)
    parts: dict[str, list[int]] = {part: [] for part, share in zip(PARTS, fractions, strict=True) if share}
    for number in np.unique(labels):
        members = [int(i) for i in np.flatnonzero(labels == number)]
        for part, chosen in _divide(members, digests, fractions, seed).items():
            parts[part] += chosen
    _tell_small(samples, labels, parts, report)
    out = {part: replace(samples.take(sorted(index)), total=len(index)) for part, index in parts.items()}
    for part in ("val", "test"):
        if part not in out or not len(out[part]):
            raise DataError(
                f"{samples.name} has too few samples for a {part} part",
                expected="two samples or more a class",
                got=f"{len(samples)} samples in {len(np.unique(labels))} classes",
                hint="Bring more samples.",
            )
    return out


def _check_fractions(fractions: Sequence[float]) -> None:
    good = len(fractions) == 3 and all(0 <= share <= 1 for share in fractions) and abs(sum(fractions) - 1) < 1e-6
    if not good or not fractions[1] or not fractions[2]:
        raise DataError(
            "The shares of the split are wrong",
            expected="train, val and test, none below 0, val and test above 0, 1 in all",
            got=", ".join(f"{share:g}" for share in fractions),
        )


def _labels_of(samples: SampleSet) -> np.ndarray:
    if samples.labels is None:
        raise DataError(
            f"{samples.name} has no labels, so it cannot be the in-distribution set",
            expected="class folders, or a table with a column of labels",
            hint="Unlabelled data can serve as an OOD source.",
        )
    if len(np.unique(samples.labels)) < 2:
        raise DataError(
            f"{samples.name} has samples of one class only",
            expected="two classes or more",
            got=", ".join(samples.class_names[i] for i in np.unique(samples.labels)) or "none",
            hint="Bring one folder (or label) a class.",
        )
    return samples.labels


def _divide(members: list[int], digests: list[str], fractions: Fractions, seed: int) -> dict[str, list[int]]:
    """Members of one class -> part -> members. Copies move together; no part goes without while another has two."""

    def key(i: int) -> tuple[str, str]:
        return hashlib.blake2b(f"{seed}|{digests[i]}".encode(), digest_size=8).hexdigest(), digests[i]

    groups = [list(group) for _, group in groupby(sorted(members, key=lambda i: (key(i), i)), key=key)]
    wanted = {part: share * len(members) for part, share in zip(PARTS, fractions, strict=True) if share}
    out: dict[str, list[int]] = {part: [] for part in wanted}
    order = [part for part in ("train", "test", "val") if part in wanted]
    for place, group in enumerate(groups):
        # the first groups give each part one sample, the others go where most is lacking
        part = order[place] if place < len(order) else max(order, key=lambda p: wanted[p] - len(out[p]))
        out[part] += group
    return out


def _tell_small(
    samples: SampleSet, labels: np.ndarray, parts: Mapping[str, Sequence[int]], report: IntakeReport | None
) -> None:
    """Say which classes are missing from a part because they have too few different samples."""
    if report is None:
        return
    for part, index in parts.items():
        absent = sorted(set(np.unique(labels).tolist()) - set(labels[list(index)].tolist()))
        if absent:
            names = ", ".join(samples.class_names[i] for i in absent[:5])
            more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
            report.note(f"Too few different samples for the {part} part: {names}{more}.")


# -- splits that a source brings -------------------------------------------------------------


def splits_of(intake: Intake, fractions: Fractions = FRACTIONS, seed: int = 0) -> dict[str, SampleSet]:
    """The splits that a source brings, completed; or a stratified split where it brings none.

    A missing test part is cut from the given val part, or from train; a missing val part from train,
    or from test. Copies of test samples are taken out of val and train, copies of val samples out of train.

    Raises:
        DataError: see `split_samples`.
    """
    samples, report = intake.samples, intake.report
    if not intake.splits:
        return _without_copies(split_samples(samples, fractions, seed, report), report)
    _labels_of(samples)
    given = {part: samples.take(index) for part, index in intake.splits.items() if len(index)}
    given = _completed(given, fractions, seed, report)
    return _without_copies({part: replace(s, total=len(s)) for part, s in given.items()}, report)


def _completed(
    given: dict[str, SampleSet], fractions: Fractions, seed: int, report: IntakeReport
) -> dict[str, SampleSet]:
    if set(given) == {"train"}:
        report.note("Only a train part is given, so val and test are cut from it.")
        return split_samples(given["train"], fractions, seed, report)
    donors = {"test": ("val", "train"), "val": ("train", "test")}
    for part, others in donors.items():
        if part not in given:
            donor = next(other for other in others if other in given)
            kept, cut = _halved(given[donor], donor, fractions, seed, report)
            given = {**given, donor: kept, part: cut}
            report.note(f"No {part} part is given, so {len(cut):,} samples were cut from {donor}.")
    return given


def _halved(
    samples: SampleSet, donor: str, fractions: Fractions, seed: int, report: IntakeReport
) -> tuple[SampleSet, SampleSet]:
    """(what the donor keeps, what is cut): half of val or test, the share of val of train."""
    share = fractions[1] / (fractions[0] + fractions[1]) if donor == "train" else 0.5
    halves = split_samples(samples, (0.0, 1 - share, share), seed, report)
    return halves["val"], halves["test"]


def _without_copies(parts: dict[str, SampleSet], report: IntakeReport) -> dict[str, SampleSet]:
    """Take samples that also stand in test (then val) out of the parts before."""
    seen: set[str] = set()
    out: dict[str, SampleSet] = {}
    for part in ("test", "val", "train"):
        if part in parts:
            out[part] = _drop(parts[part], seen, f"{part} samples that also stand in a later part", report)
            seen |= set(content_digests(out[part]))
    return out


def _drop(samples: SampleSet, seen: set[str], what: str, report: IntakeReport) -> SampleSet:
    keep = [i for i, digest in enumerate(content_digests(samples)) if digest not in seen]
    if len(keep) == len(samples):
        return samples
    report.note(f"{len(samples) - len(keep):,} {what} were left out.")
    return samples.take(keep)


# -- OOD sources and the bundle --------------------------------------------------------------


def assign_roles(shifts: Mapping[str, Shift], roles: Mapping[str, Role] | None = None) -> dict[str, Role]:
    """Which OOD source validates and which tests: by turns within each kind of shift, val first.

    A source has one role, for settings tuned on a source must not be judged on it. Where no source
    would be left for the test, the last one tests.
    """
    out: dict[str, Role] = dict(roles or {})
    for shift in dict.fromkeys(shifts.values()):
        for name in (n for n, s in shifts.items() if s == shift and n not in out):
            taken = [out[n] for n, s in shifts.items() if s == shift and n in out]
            out[name] = "val" if taken.count("val") <= taken.count("test") else "test"
    free = [name for name in shifts if name not in (roles or {})]
    if free and "test" not in out.values():
        out[free[-1]] = "test"
    return {name: out[name] for name in shifts}


def make_bundle(
    name: str,
    id_intake: Intake,
    ood: Mapping[str, Intake],
    *,
    shifts: Mapping[str, Shift] | None = None,
    roles: Mapping[str, Role] | None = None,
    fractions: Fractions = FRACTIONS,
    seed: int = 0,
    about: str = "",
) -> DataBundle:
    """A DataBundle of one ID source and OOD sources that are already read.

    OOD samples lose their labels; those that are copies of ID samples, or of a sample of an earlier
    OOD source, are left out (and noted), so that no sample stands on two sides. A source that is the only one of
    its kind of shift, and has no given role, serves both sides, half and half, copies together (and that is noted).

    Raises:
        DataError: see `split_samples`; an OOD source of another kind (texts and images); a role or
            shift for a source that does not exist.
    """
    shifts = {key: (shifts or {}).get(key, "far") for key in ood} | _only_known(shifts or {}, ood, "shift")
    given = _only_known(roles or {}, ood, "role")
    alone = {key for key, shift in shifts.items() if list(shifts.values()).count(shift) == 1 and key not in given}
    role = assign_roles({key: shift for key, shift in shifts.items() if key not in alone}, given)
    parts = splits_of(id_intake, fractions, seed)
    seen = set(content_digests(id_intake.samples))
    sides: dict[Role, dict[str, SampleSet]] = {"val": {}, "test": {}}
    for key, intake in ood.items():
        samples = _as_ood(key, intake, shifts[key], id_intake.samples.kind, seen)
        halves = _both_sides(samples, intake.report, seed) if key in alone else {role[key]: samples}
        for side, half in halves.items():
            sides[side][key] = half
        seen |= set(content_digests(samples))
    if ood and not sides["val"]:
        id_intake.report.note("No OOD source is left to choose settings on; bring a second one for that.")
    return DataBundle(name, parts["val"], parts["test"], parts.get("train"), sides["val"], sides["test"], about=about)


def _both_sides(samples: SampleSet, report: IntakeReport, seed: int) -> dict[Role, SampleSet]:
    """Half of a source for validation, half for the test; all for the test where copies cannot be parted."""
    halves = _divide(list(range(len(samples))), content_digests(samples), (0.0, 0.5, 0.5), seed)
    if not halves["val"]:
        return {"test": samples}
    report.note(
        f"The only {samples.shift} source: one half serves validation, the other the test, so settings are tested on "
        "the kind of samples that chose them. A second source makes the test stricter."
    )
    return {"val": samples.take(sorted(halves["val"])), "test": samples.take(sorted(halves["test"]))}


def _only_known(given: Mapping[str, T], ood: Mapping[str, Intake], what: str) -> dict[str, T]:
    unknown = sorted(set(given) - set(ood))
    if unknown:
        raise DataError(
            f"A {what} is given for an OOD source that does not exist",
            expected=", ".join(ood) or "no OOD source",
            got=", ".join(unknown),
        )
    return dict(given)


def _as_ood(key: str, intake: Intake, shift: Shift, kind: str, seen: set[str]) -> SampleSet:
    samples = intake.samples
    if samples.kind != kind:
        raise DataError(
            f"The OOD source {key} does not fit", expected=f"{kind}s, as the ID set", got=f"{samples.kind}s"
        )
    kept = _drop(samples, seen, "samples that also stand in the ID set or another source", intake.report)
    if not len(kept):
        raise DataError(f"The OOD source {key} holds nothing but samples of the ID set or of another source")
    return replace(kept, name=key, labels=None, class_names=(), shift=shift)


def align_classes(samples: SampleSet, class_names: Sequence[str]) -> SampleSet:
    """The same samples, numbered as a model numbers its classes; names are compared without case.

    Raises:
        DataError: a class with samples that the model does not have.
    """
    if samples.labels is None:
        return samples
    index = {name.casefold(): i for i, name in enumerate(class_names)}
    numbers = np.array([index.get(name.casefold(), -1) for name in samples.class_names], dtype=np.int64)
    lost = [samples.class_names[i] for i in np.unique(samples.labels) if numbers[i] < 0]
    if lost:
        raise DataError(
            f"{samples.name} has classes that the model does not know",
            expected=", ".join(list(class_names)[:8]) + (" ..." if len(class_names) > 8 else ""),
            got=", ".join(lost[:8]),
            hint="Rename the folders or labels, or fit a probe on these classes.",
        )
    return replace(samples, labels=numbers[samples.labels], class_names=tuple(class_names))


def align_bundle(bundle: DataBundle, class_names: Sequence[str]) -> DataBundle:
    """A data set whose labelled parts are numbered as a model numbers its classes.

    Raises:
        DataError: see `align_classes`.
    """
    val, test = (align_classes(part, class_names) for part in (bundle.val, bundle.test))
    train = None if bundle.train is None else align_classes(bundle.train, class_names)
    return replace(bundle, val=val, test=test, train=train)
