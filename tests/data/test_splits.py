"""Splits: stratified, seeded, without copies on two sides; OOD sources keep to one side."""

from __future__ import annotations

import numpy as np
import pytest

from hydra_core.data.classfolders import Intake
from hydra_core.data.report import IntakeReport
from hydra_core.data.sets import SampleSet
from hydra_core.data.sources import build_bundle
from hydra_core.data.splits import align_classes, assign_roles, content_digests, make_bundle, split_samples, splits_of
from hydra_core.errors import DataError
from tests.data.make import class_files, pixels, zipped


def some(counts: tuple[int, ...] = (50, 20, 10), name: str = "s", start: int = 0) -> SampleSet:
    labels = np.repeat(np.arange(len(counts)), counts)
    images = np.stack([pixels(start + i, 4, 4) for i in range(len(labels))])
    names = tuple("abcdefgh"[: len(counts)])
    return SampleSet(name, images, labels, tuple(f"{name}/{i}" for i in range(len(labels))), names)


def intake(samples: SampleSet, **splits: np.ndarray) -> Intake:
    return Intake(samples, IntakeReport(samples.name), splits)


def counts(samples: SampleSet) -> list[int]:
    assert samples.labels is not None
    return np.bincount(samples.labels, minlength=len(samples.class_names)).tolist()


def test_every_class_is_split_in_proportion_and_nothing_is_lost() -> None:
    whole = some()
    parts = split_samples(whole, (0.6, 0.2, 0.2), seed=5)
    assert {part: counts(s) for part, s in parts.items()} == {
        "train": [30, 12, 6],
        "val": [10, 4, 2],
        "test": [10, 4, 2],
    }
    assert sorted(i for s in parts.values() for i in s.ids) == sorted(whole.ids)
    for s in parts.values():
        assert [whole.ids.index(i) for i in s.ids] == sorted(whole.ids.index(i) for i in s.ids)


def test_a_split_depends_on_seed_and_content_not_on_order() -> None:
    whole = some()
    shuffled = whole.take(np.random.default_rng(1).permutation(len(whole)))
    first = split_samples(whole, seed=1)
    assert set(first["test"].ids) == set(split_samples(shuffled, seed=1)["test"].ids)
    assert set(first["test"].ids) != set(split_samples(whole, seed=2)["test"].ids)


def test_copies_stay_on_one_side() -> None:
    base = some((20, 20))
    twice = SampleSet(
        "t", np.concatenate([base.inputs] * 3), np.tile(base.labels, 3), tuple(map(str, range(120))), ("a", "b")
    )
    parts = split_samples(twice, (0.4, 0.3, 0.3))
    digests = {part: set(content_digests(s)) for part, s in parts.items()}
    assert not digests["train"] & digests["val"]
    assert not digests["train"] & digests["test"]
    assert not digests["val"] & digests["test"]
    assert sum(map(len, parts.values())) == 120


def test_copies_under_two_labels_are_left_out_of_the_earlier_part() -> None:
    images = np.concatenate([some((30,)).inputs, some((30,)).inputs])
    mixed = SampleSet("m", images, np.repeat([0, 1], 30), tuple(map(str, range(60))), ("a", "b"))
    source = intake(mixed)
    parts = splits_of(source, seed=3)
    assert not set(content_digests(parts["val"])) & set(content_digests(parts["test"]))


def test_classes_with_one_or_no_sample() -> None:
    source = intake(some((10, 1, 0, 2)))
    parts = splits_of(source)
    assert {part: counts(s) for part, s in parts.items()} == {
        "train": [6, 1, 0, 1],
        "val": [2, 0, 0, 0],
        "test": [2, 0, 0, 1],
    }
    assert source.report.notes == [
        "Too few different samples for the val part: b, d.",
        "Too few different samples for the test part: b.",
    ]


def test_no_train_part() -> None:
    parts = split_samples(some(), (0.0, 0.5, 0.5))
    assert set(parts) == {"val", "test"}
    assert counts(parts["val"]) == [25, 10, 5]


@pytest.mark.parametrize(
    ("samples", "fractions", "text"),
    [
        (some((10,)), (0.6, 0.2, 0.2), "one class only"),
        (some((10, 0)), (0.6, 0.2, 0.2), "one class only"),
        (some((1, 1)), (0.6, 0.2, 0.2), "too few samples for a val part"),
        (some(), (0.6, 0.2, 0.3), "shares of the split"),
        (some(), (1.0, 0.0, 0.0), "shares of the split"),
        (some(), (-0.2, 0.6, 0.6), "shares of the split"),
    ],
)
def test_what_cannot_be_split(samples: SampleSet, fractions: tuple[float, float, float], text: str) -> None:
    with pytest.raises(DataError, match=text):
        split_samples(samples, fractions)


def test_given_splits_are_kept() -> None:
    whole = some((30, 30))
    rows = np.arange(60)
    given = {"train": rows[rows % 3 == 0], "val": rows[rows % 3 == 1], "test": rows[rows % 3 == 2]}
    parts = splits_of(intake(whole, **given))
    for part, index in given.items():
        assert parts[part].ids == whole.take(index).ids


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (("train",), {"train": 36, "val": 12, "test": 12}),
        (("train", "test"), {"train": 23, "val": 7, "test": 30}),
        (("train", "val"), {"train": 30, "val": 15, "test": 15}),
        (("test",), {"val": 30, "test": 30}),
    ],
)
def test_missing_parts_are_cut_from_a_given_one_and_told_of(given: tuple[str, ...], sizes: dict[str, int]) -> None:
    whole = some((30, 30))
    rows = np.arange(60)
    source = intake(whole, **{part: rows[rows % len(given) == i] for i, part in enumerate(given)})
    parts = splits_of(source)
    assert {part: len(s) for part, s in parts.items()} == pytest.approx(sizes, abs=1)
    assert sum(len(s) for s in parts.values()) == 60
    assert "given" in source.report.notes[0]


def test_copies_of_test_samples_leave_given_train_and_val() -> None:
    base = some((10, 10))
    images = np.concatenate([base.inputs, base.inputs[:4], base.inputs[10:12]])
    labels = np.concatenate([base.labels, base.labels[:4], base.labels[10:12]])
    whole = SampleSet("w", images, labels, tuple(map(str, range(26))), ("a", "b"))
    rows = np.arange(26)
    source = intake(whole, train=rows[:14], val=rows[14:20], test=rows[20:])
    parts = splits_of(source)
    assert {part: len(s) for part, s in parts.items()} == {"train": 8, "val": 6, "test": 6}
    assert source.report.notes == ["6 train samples that also stand in a later part were left out."]


@pytest.mark.parametrize(
    ("shifts", "roles", "want"),
    [
        ({"a": "far"}, {}, {"a": "test"}),
        ({"a": "near", "b": "far"}, {}, {"a": "val", "b": "test"}),
        ({"a": "far", "b": "far", "c": "far"}, {}, {"a": "val", "b": "test", "c": "val"}),
        ({"a": "near", "b": "far", "c": "near", "d": "far"}, {}, {"a": "val", "b": "val", "c": "test", "d": "test"}),
        ({"a": "far", "b": "far"}, {"b": "val"}, {"a": "test", "b": "val"}),
        ({"a": "far"}, {"a": "val"}, {"a": "val"}),
        ({}, {}, {}),
    ],
)
def test_roles_of_ood_sources(shifts: dict, roles: dict, want: dict) -> None:
    assert assign_roles(shifts, roles) == want


def test_a_bundle_of_read_sources() -> None:
    ood = {"x": intake(some((5, 5), "x", 1000)), "y": intake(some((6, 6), "y", 2000))}
    bundle = make_bundle("mine", intake(some()), ood, shifts={"x": "near"}, roles={"x": "val", "y": "test"})
    assert (len(bundle.val), len(bundle.test), len(bundle.train or ())) == (16, 16, 48)
    assert list(bundle.ood_val) == ["x"]
    assert list(bundle.ood_test) == ["y"]
    assert (bundle.ood_val["x"].shift, bundle.ood_test["y"].shift) == ("near", "far")
    assert bundle.ood_val["x"].labels is None
    assert bundle.ood_val["x"].name == "x"


def test_the_only_source_of_a_kind_serves_both_sides_half_and_half() -> None:
    x, y, z = (intake(some((6, 5), name, seed)) for name, seed in (("x", 1000), ("y", 2000), ("z", 3000)))
    bundle = make_bundle("mine", intake(some()), {"x": x, "y": y, "z": z}, shifts={"x": "near"})
    assert (list(bundle.ood_val), list(bundle.ood_test)) == (["x", "y"], ["x", "z"])
    val, test = bundle.ood_val["x"], bundle.ood_test["x"]
    assert abs(len(val) - len(test)) <= 1
    assert sorted(val.ids + test.ids) == sorted(x.samples.ids)
    assert not set(content_digests(val)) & set(content_digests(test))
    assert (val.shift, test.shift) == ("near", "near")
    assert "The only near source" in x.report.notes[0]
    assert not y.report.notes
    again = make_bundle("mine", intake(some()), {"x": x, "y": y, "z": z}, shifts={"x": "near"})
    assert again.ood_val["x"].ids == val.ids


def test_one_sample_cannot_serve_both_sides() -> None:
    bundle = make_bundle("mine", intake(some()), {"x": intake(some((1,), "x", 1000))})
    assert (list(bundle.ood_val), list(bundle.ood_test)) == ([], ["x"])


def test_copies_of_id_samples_are_no_ood_samples() -> None:
    whole = some((10, 10))
    mixed = SampleSet("x", np.concatenate([whole.inputs[:3], some((4,), start=500).inputs]), None, tuple("abcdefg"))
    copy = SampleSet("y", np.concatenate([mixed.inputs[3:], pixels(9999, 4, 4)[None]]), None, tuple("hijkl"))
    x, y = intake(mixed), intake(copy)
    bundle = make_bundle("b", intake(whole), {"x": x, "y": y})
    assert bundle.ood_val["x"].ids == tuple("defg")
    assert bundle.ood_test["y"].ids == ("l",)
    assert "3 samples that also stand in the ID set" in x.report.notes[0]
    with pytest.raises(DataError, match="holds nothing but samples of the ID set"):
        make_bundle("b", intake(whole), {"x": intake(whole)})


def test_bundles_that_do_not_fit_together() -> None:
    texts = SampleSet("t", np.array(["a", "b"], dtype=object), None, ("1", "2"), kind="text")
    with pytest.raises(DataError, match=r"Expected images, as the ID set\. Got texts"):
        make_bundle("b", intake(some()), {"t": intake(texts)})
    with pytest.raises(DataError, match="does not exist"):
        make_bundle("b", intake(some()), {}, roles={"nope": "val"})
    with pytest.raises(DataError, match="no labels"):
        make_bundle("b", intake(texts), {})


def test_a_bundle_straight_from_uploads() -> None:
    far = zipped({f"{i}.png": data for i, data in enumerate(class_files(("z",), 4, "n/").values())})
    with pytest.raises(DataError, match="holds nothing but"):  # "z" repeats the first class, image by image
        build_bundle(zipped(class_files(count=10)), {"<far>": far})
    files = {f"{i}.png": v for i, v in enumerate(class_files(("p", "q", "r"), 4).values()) if i >= 8}
    far = zipped(files)
    bundle, reports = build_bundle(zipped(class_files(count=10)), {"<far>": far}, name="pets", shifts={"<far>": "near"})
    assert (bundle.name, bundle.kind, bundle.class_names) == ("pets", "image", ("cat", "dog"))
    assert list(bundle.ood_val) == list(bundle.ood_test) == ["‹far›"]
    assert bundle.ood_test["‹far›"].shift == "near"
    assert [report.read for report in reports] == [20, 4]
    assert "20 of 20 samples in 2 classes" in bundle.about
    assert any("The only near source" in note for note in reports[1].notes)


def test_classes_are_aligned_with_a_model_by_name() -> None:
    aligned = align_classes(some((2, 1, 1)), ["C", "x", "a", "b"])
    assert aligned.labels is not None
    assert aligned.labels.tolist() == [2, 2, 3, 0]
    assert aligned.class_names == ("C", "x", "a", "b")
    with pytest.raises(DataError, match="classes that the model does not know"):
        align_classes(some((2, 1, 1)), ["a", "b"])
