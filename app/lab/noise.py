"""Noisy images beside clean ones: the loss gap of Proposition 1, and reports on corrupted samples."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.cache import digest
from app.lab import store
from app.lab.results import logits
from app.lab.sources import Options, Sample, data, model, sample
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.progress import Progress

if TYPE_CHECKING:
    from hydra_core.heads.noise import NoiseGap
    from hydra_core.methods.noise_study import NoiseStudy
    from hydra_core.metrics import Report


def corruptions() -> dict[str, str]:
    """Corruptions by name -> label."""
    from hydra_core.data.corruptions import CORRUPTIONS

    return {name: corruption.label for name, corruption in CORRUPTIONS.items()}


def stored_noise(model_name: str, data_name: str) -> NoiseStudy | None:
    """The demo's study as it was measured for these very weights and data; None for anything else."""
    from hydra_core.methods.base import module_digest
    from hydra_core.methods.noise_study import STORED, NoiseStudy

    if not STORED.is_file() or not model_name.startswith("demo/"):
        return None

    def read() -> NoiseStudy | None:
        found = NoiseStudy.from_json(STORED.read_text(encoding="utf-8"))
        own = {"name": model_name, "weights": module_digest(model(model_name).module)}
        return (
            found if found.provenance["model"] == own and found.provenance["data"] == data(data_name).digest else None
        )

    return store.results.get(digest("stored noise", model_name, data_name, STORED.stat().st_mtime_ns), read)


def noise_study(
    model_name: str,
    data_name: str,
    masks: Sequence[HeadMask],
    corruption: str,
    severities: Sequence[int],
    *,
    n: int,
    keeps: Sequence[int | None] | None = None,
    publish: Callable[[list[NoiseGap]], None] | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> NoiseStudy:
    """`hydra_core.methods.noise_study.noise_study` on `n` validation images; what was measured once is kept."""
    from hydra_core.methods import noise_study as engine

    def remember(key: str, compute: Callable[[], Any]) -> Any:
        size = lambda side: side.losses.nbytes + side.slopes.nbytes + side.curves.nbytes  # noqa: E731
        return store.results.get(digest("noise side", key), lambda: store.infer(compute), size)

    return engine.noise_study(
        model(model_name), sample(data_name, Options(n=n)).id, masks, [corruption], severities, keeps=keeps,
        remember=remember, publish=publish, progress=progress, cancel=cancel,
    )  # fmt: skip


def noisy_sample(data_name: str, corruption: str, severity: int, options: Options | None = None) -> Sample:
    """The ID samples of a report, corrupted; without OOD sets."""
    from hydra_core.data.corruptions import corrupt

    options = options or Options()

    def make() -> Sample:
        noisy = corrupt(sample(data_name, options).id, corruption, severity)
        return Sample(noisy, {}, options.split, digest("noisy", options.split, noisy.digest))

    key = digest("noisy sample", data_name, options.split, options.n, corruption, severity)
    return store.data.get(key, make, lambda made: int(made.id.inputs.nbytes))


def noisy_report(
    model_name: str,
    data_name: str,
    plan: Plan,
    corruption: str,
    severity: int,
    options: Options | None = None,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Report:
    """Accuracy and calibration of a plan on corrupted validation images; `report` is the same on clean ones."""
    options = options or Options()
    chosen = noisy_sample(data_name, corruption, severity, replace(options, bootstrap=0))

    def compute() -> Report:
        from hydra_core.metrics import evaluate_logits

        rows = logits(model_name, chosen, plan.masks, progress=progress, cancel=cancel)  # (M, N, C)
        return evaluate_logits(rows, chosen.id.labels, bins=options.bins, bins_kind=options.bins_kind)

    key = digest("noisy report", model_name, chosen.key, plan.text, options.bins, options.bins_kind)
    return store.results.get(key, compute)
