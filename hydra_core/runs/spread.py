"""The forward passes of a run in shards: here, or on the machines of a Ray cluster.

A shard is small to send (names, masks, a range of rows): each worker loads model and data itself, once, and
sends logits back. Figures are made where the run was started, so they are the same in both ways.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import HydraError
from hydra_core.fusion.ensemble import HydraEnsemble, fuse
from hydra_core.models.view import ModelView
from hydra_core.optional import require
from hydra_core.progress import Progress
from hydra_core.runs.recipe import Recipe

ROWS = 1024  # samples a shard: seconds of work on a CPU, and few enough bytes of logits to send
SINGLE, HYDRA = "single", "hydra"


@dataclass(frozen=True)
class Work:
    """What is run, as every machine of the cluster can read it.

    Attributes:
        recipe: model, data, masks, fusion.
        split: "val" or "test".
        checkpoint: file with the model's weights; "" for those that belong to its name.
        data: path of class folders, a zip, a table or an npz that stands in for the recipe's data; "" for none.
        ood: (name, path, "near" or "far") of the OOD sources beside `data`.
        device: "cpu", "cuda", ...
    """

    recipe: Recipe
    split: str = "test"
    checkpoint: str = ""
    data: str = ""
    ood: tuple[tuple[str, str, str], ...] = ()
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.split not in ("val", "test"):
            raise HydraError("There is no such split to evaluate", expected="'val' or 'test'", got=repr(self.split))
        if self.ood and not self.data:
            raise HydraError("OOD sources stand beside ID data of your own", expected="--data with a path", got="none")


@dataclass(frozen=True)
class Loaded:
    """Model, ensemble and samples of a piece of work; `sets` names the ID set ""."""

    view: ModelView
    hydra: HydraEnsemble
    sets: Mapping[str, SampleSet]


@dataclass(frozen=True)
class Shard:
    """Rows start..stop of one set through the single model or the fused ensemble."""

    work: Work
    who: str
    name: str
    start: int
    stop: int


@lru_cache(maxsize=1)  # a worker serves one run at a time
def load(work: Work) -> Loaded:
    """Load what a piece of work names.

    Raises:
        HydraError: a model, data set, file or device that is not there, or masks that do not fit.
    """
    from hydra_core.models.load import load_model

    view = load_model(work.recipe.model, checkpoint=work.checkpoint or None)
    _to_device(view, work.device)
    bundle = _bundle(work, view)
    samples, ood = (bundle.test, bundle.ood_test) if work.split == "test" else (bundle.val, bundle.ood_val)
    return Loaded(view, fuse(view, work.recipe.plan, options=work.recipe.options), {"": samples, **ood})


def _to_device(view: ModelView, device: str) -> None:
    if device == "cpu":
        return
    try:
        view.module.to(device)
    except (RuntimeError, AssertionError) as error:
        raise HydraError("The model cannot be put there", expected="a device of this machine", got=device) from error


def _bundle(work: Work, view: ModelView) -> DataBundle:
    from hydra_core.data.load import load_data
    from hydra_core.data.sources import build_bundle
    from hydra_core.data.splits import align_bundle

    if not work.data:
        return load_data(work.recipe.data)
    bundle, _ = build_bundle(
        Path(work.data),
        {name: Path(path) for name, path, _ in work.ood},
        shifts={name: shift for name, _, shift in work.ood},  # type: ignore[misc]
        roles={name: work.split for name, _, _ in work.ood},  # type: ignore[misc]
    )
    return align_bundle(bundle, view.class_names)


def shards(work: Work, rows: int = ROWS) -> list[Shard]:
    """The run in pieces, both predictors over all sets."""
    sets = load(work).sets
    return [
        Shard(work, who, name, start, min(start + rows, len(part)))
        for who in (SINGLE, HYDRA)
        for name, part in sets.items()
        for start in range(0, len(part), rows)
    ]


def logits_of(shard: Shard) -> np.ndarray:
    """Logits of a shard: (n, C) of the single model, (M, n, C) of the ensemble."""
    from hydra_core.evaluation import forward_set

    found = load(shard.work)
    predictor: Callable[..., Any] = found.view if shard.who == SINGLE else found.hydra
    part = found.sets[shard.name].take(np.arange(shard.start, shard.stop))
    return forward_set(found.view, predictor, part)


Spread = Callable[[Sequence[Shard], "Progress | None"], Iterator[np.ndarray]]


def here(pieces: Sequence[Shard], progress: Progress | None = None) -> Iterator[np.ndarray]:
    """One shard after another in this process."""
    for done, piece in enumerate(pieces):
        if progress is not None:
            progress(done / len(pieces), f"{piece.who}, {piece.name or 'ID'} from sample {piece.start:,}")
        yield logits_of(piece)


@dataclass(frozen=True)
class RayCluster:
    """Shards on a Ray cluster, in the order they were given.

    Every machine needs this project installed, and files at the paths that the run names.

    Attributes:
        address: of the cluster's head ("auto": the one this machine belongs to); "" starts one on this machine.
        cpus, gpus: what one shard takes of a machine. 0 GPUs: CPUs only.
    """

    address: str = ""
    cpus: float = 1
    gpus: float = 0

    def __call__(self, pieces: Sequence[Shard], progress: Progress | None = None) -> Iterator[np.ndarray]:
        ray = require("ray", "Ray is not installed", "pip install ray, on every machine of the cluster")
        ours = not ray.is_initialized()
        if ours:
            self._connect(ray)
        try:
            task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(logits_of)
            waiting = [task.remote(piece) for piece in pieces]
            for done, (piece, one) in enumerate(zip(pieces, waiting, strict=True)):
                if progress is not None:
                    progress(done / len(pieces), f"{piece.who}, {piece.name or 'ID'} from sample {piece.start:,}")
                yield self._result(ray, one)
        finally:
            if ours:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        # workers on this machine must find the project even where it is run from its folder, not installed
        root = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        env = {} if self.address else {"runtime_env": {"env_vars": {"PYTHONPATH": paths}}, "include_dashboard": False}
        try:
            ray.init(address=self.address or "local", log_to_driver=False, **env)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise HydraError(
                "The Ray cluster does not answer",
                expected="the address of its head, such as 10.0.0.1:6379, or 'auto' on one of its machines",
                got=f"{self.address!r}: {str(error)[:200]}",
            ) from error

    @staticmethod
    def _result(ray: Any, one: Any) -> np.ndarray:
        try:
            return ray.get(one)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, HydraError) else None
            raise cause or HydraError("A shard failed on the cluster", got=str(error)[-400:]) from error
        except ray.exceptions.RayError as error:
            raise HydraError("The cluster lost a shard", got=str(error)[:400], hint="Run it again.") from error
