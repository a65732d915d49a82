"""Models, data sets and the samples that reports use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from app import access
from app.cache import digest
from app.lab import store

if TYPE_CHECKING:
    from hydra_core.data.sets import DataBundle, SampleSet
    from hydra_core.models.view import ModelView

Split = Literal["val", "test"]


def model_names() -> tuple[str, ...]:
    """Names for the picker: the models that work at once. Others can be typed."""
    from hydra_core.models.load import list_models

    return tuple(list_models("demo"))


def data_names() -> tuple[str, ...]:
    """Names of the data sets at hand."""
    from hydra_core.data.load import list_data

    return tuple(list_data())


def default_model() -> str:
    return model_names()[0]


def default_data() -> str:
    return data_names()[0]


def model(name: str) -> ModelView:
    """A model as a read-only view, shared by all sessions.

    Raises:
        HydraError: it does not exist, cannot be loaded or pruned, or is a path that this server does not open.
    """
    from hydra_core.models.load import load_model

    access.check_model(name)
    return store.models.get(name, lambda: load_model(name), lambda view: 4 * view.parameters)


def shape(name: str) -> tuple[int, ...]:
    """Heads of each layer of a model."""
    return model(name).shape


def data(name: str) -> DataBundle:
    """A data set with its validation, test and OOD parts, shared by all sessions."""
    from hydra_core.data.load import load_data

    return store.data.get(name, lambda: load_data(name), bundle_bytes)


def bundle_bytes(bundle: DataBundle) -> int:
    """What a data set takes in memory, without its train part."""
    sets = (bundle.val, bundle.test, *bundle.ood_val.values(), *bundle.ood_test.values())
    return sum(int(s.inputs.nbytes) for s in sets)


@dataclass(frozen=True)
class Options:
    """How a report is made; part of every key.

    Attributes:
        split: "val" may choose settings; "test" is for a last look and must choose nothing.
        n: ID samples, and OOD samples over all sets together (stratified, fixed seed).
        bins, bins_kind: of the reliability diagram; "width" or "count".
        ood_score: name of the OOD score.
        bootstrap: resamples for intervals; 0 for none.
    """

    split: Split = "val"
    n: int = 500
    bins: int = 15
    bins_kind: Literal["width", "count"] = "width"
    ood_score: str = "msp"
    bootstrap: int = 0


@dataclass(frozen=True)
class Sample:
    """The samples behind a report: ID first, then the OOD sets, as rows of one array."""

    id: SampleSet
    ood: Mapping[str, SampleSet]
    split: Split
    key: str = field(default="")
    available: Mapping[str, int] = field(default_factory=dict)  # samples that each set at hand has

    @property
    def sets(self) -> dict[str, SampleSet]:
        return {"": self.id, **self.ood}

    @property
    def slices(self) -> dict[str, slice]:
        """Rows of each set; the ID set is named ""."""
        out, start = {}, 0
        for name, part in self.sets.items():
            out[name] = slice(start, start + len(part))
            start += len(part)
        return out

    @property
    def shifts(self) -> dict[str, str]:
        return {name: part.shift for name, part in self.ood.items()}

    @property
    def note(self) -> str:
        """'500 of 2,000 validation samples; OOD: 250 of 500 coat (near), ...'"""
        kind = "validation" if self.split == "val" else "test"
        n_of = {name: f"{len(part):,} of {self.available.get(name, len(part)):,}" for name, part in self.sets.items()}
        parts = [f"{n_of[name]} {name} ({part.shift})" for name, part in self.ood.items()]
        text = f"{n_of['']} {kind} samples"
        return f"{text}; OOD: {', '.join(parts)}" if parts else f"{text}; no OOD set"


def sample(data_name: str, options: Options | None = None) -> Sample:
    """The stratified sample that reports use; the same for all sessions and pages."""
    options = options or Options()
    return store.data.get(digest("sample", data_name, options.split, options.n), lambda: _sample(data_name, options))


def _sample(data_name: str, options: Options) -> Sample:
    bundle = data(data_name)
    base = bundle.val if options.split == "val" else bundle.test
    sources = bundle.ood_val if options.split == "val" else bundle.ood_test
    ood = {name: part.sample(n) for (name, part), n in zip(sources.items(), _shares(sources, options.n), strict=True)}
    chosen = Sample(base.sample(options.n), ood, options.split)
    key = digest(options.split, chosen.id.digest, *(part.digest for part in ood.values()))
    have = {"": len(base), **{name: len(part) for name, part in sources.items()}}
    return Sample(chosen.id, ood, options.split, key, have)


def _shares(sources: Mapping[str, SampleSet], n: int) -> list[int]:
    """Samples of each OOD set: near, far and other OOD weigh alike, and so do the sets of one kind."""
    kinds = [part.shift for part in sources.values()]
    return [max(1, round(n / len(set(kinds)) / kinds.count(kind))) for kind in kinds]
