"""What a data set is: labelled or unlabelled samples with stable ids, in named splits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from hydra_core.errors import DataError

Kind = Literal["image", "text"]
Shift = Literal["id", "near", "far", "other"]


@dataclass(frozen=True)
class SampleSet:
    """Samples of one source.

    Attributes:
        name: short name, unique inside its bundle.
        inputs: images as uint8, (N, H, W) grey or (N, H, W, 3) RGB; an object array of
            uint8 images when sizes differ; texts as an object array of str, (N,).
        labels: class index a sample, (N,) int64; None for out-of-distribution samples.
        ids: a stable name a sample, (N,); survives filtering and sampling.
        class_names: names of the classes that `labels` index.
        kind: "image" or "text".
        shift: "id", or how far an OOD source lies from it.
        total: how many samples the source had before a cap ("n of N").
        source, licence: where the samples come from.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray | None
    ids: tuple[str, ...]
    class_names: tuple[str, ...] = ()
    kind: Kind = "image"
    shift: Shift = "id"
    total: int = 0
    source: str = ""
    licence: str = ""

    def __post_init__(self) -> None:
        n = len(self.inputs)
        if len(self.ids) != n:
            raise DataError(f"{self.name}: ids and samples differ in number", expected=f"{n} ids", got=len(self.ids))
        if len(set(self.ids)) != n:
            raise DataError(f"{self.name}: sample ids repeat", expected="one id a sample")
        if self.labels is not None:
            labels = np.asarray(self.labels, dtype=np.int64)
            if labels.shape != (n,):
                raise DataError(f"{self.name}: one label a sample", expected=f"shape ({n},)", got=labels.shape)
            if n and self.class_names and (labels.min() < 0 or labels.max() >= len(self.class_names)):
                raise DataError(
                    f"{self.name}: a label lies outside the classes",
                    expected=f"0 to {len(self.class_names) - 1}",
                    got=f"{labels.min()} to {labels.max()}",
                )
            object.__setattr__(self, "labels", labels)
        if not self.total:
            object.__setattr__(self, "total", n)

    def __len__(self) -> int:
        return len(self.inputs)

    @cached_property
    def digest(self) -> str:
        """A short digest of every byte of the samples and labels: the key of caches."""
        h = hashlib.blake2b(digest_size=8)
        h.update(f"{self.name}|{self.kind}|{self.inputs.shape}|{self.class_names}".encode())
        if self.inputs.dtype == object:
            for item in self.inputs:
                h.update(item.encode() if isinstance(item, str) else np.ascontiguousarray(item).tobytes())
        else:
            h.update(np.ascontiguousarray(self.inputs).tobytes())
        if self.labels is not None:
            h.update(self.labels.tobytes())
        return h.hexdigest()

    def take(self, index: Sequence[int] | np.ndarray) -> SampleSet:
        """The samples at `index`, in that order; ids travel along."""
        index = np.asarray(index, dtype=np.int64)
        return replace(
            self,
            inputs=self.inputs[index],
            labels=None if self.labels is None else self.labels[index],
            ids=tuple(self.ids[i] for i in index),
            total=self.total,
        )

    def reading_order(self) -> np.ndarray:
        """An order for batches, (N,): texts from long to short, as batches pad to their longest; images as they are.

        Long ones come first: where memory runs out, it does so at once.
        """
        if self.kind != "text":
            return np.arange(len(self))
        return np.argsort([-len(text) for text in self.inputs], kind="stable")

    def sample(self, n: int, seed: int = 0) -> SampleSet:
        """At most `n` samples, stratified by class where there are labels, in source order."""
        if n >= len(self):
            return self
        rng = np.random.default_rng(seed)
        if self.labels is None:
            return self.take(np.sort(rng.choice(len(self), n, replace=False)))
        return self.take(np.sort(stratified_index(self.labels, n, rng)))


def labelled(samples: SampleSet) -> np.ndarray:
    """The labels of a set that must have them, (N,).

    Raises:
        DataError: no samples or no labels.
    """
    if not len(samples):
        raise DataError(f"{samples.name} is empty", expected="one sample or more")
    if samples.labels is None:
        raise DataError(f"{samples.name} has no labels", expected="a class for every sample")
    return samples.labels


def stratified_index(labels: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of `n` samples whose class shares follow `labels` (largest remainders)."""
    classes, counts = np.unique(labels, return_counts=True)
    exact = counts * n / counts.sum()
    take = np.floor(exact).astype(int)
    for i in np.argsort(-(exact - take), kind="stable")[: n - take.sum()]:
        take[i] += 1
    chosen = [rng.choice(np.flatnonzero(labels == c), k, replace=False) for c, k in zip(classes, take, strict=True)]
    return np.concatenate(chosen)


@dataclass(frozen=True)
class DataBundle:
    """One in-distribution data set with its splits, and OOD sources that are split by source.

    `ood_val` may choose settings; `ood_test` never does. `train` may be None.
    """

    name: str
    val: SampleSet
    test: SampleSet
    train: SampleSet | None = None
    ood_val: Mapping[str, SampleSet] = field(default_factory=dict)
    ood_test: Mapping[str, SampleSet] = field(default_factory=dict)
    about: str = ""

    def __post_init__(self) -> None:
        shared = set(self.val.ids) & set(self.test.ids)
        for a in self.ood_val.values():
            for b in self.ood_test.values():
                shared |= set(a.ids) & set(b.ids)
        if shared:
            raise DataError(
                f"{self.name}: {len(shared)} samples stand in a validation and in a test set",
                got=", ".join(sorted(shared)[:3]),
                hint="Settings chosen on test samples are worthless; split by source or by id.",
            )

    @property
    def kind(self) -> Kind:
        return self.val.kind

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.val.class_names

    @cached_property
    def digest(self) -> str:
        """A short digest over all splits."""
        h = hashlib.blake2b(self.name.encode(), digest_size=8)
        for s in (self.val, self.test, *self.ood_val.values(), *self.ood_test.values()):
            h.update(s.digest.encode())
        return h.hexdigest()
