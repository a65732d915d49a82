"""Clean against noisy, for every corruption, severity and number of kept heads: the study of Proposition 1.

The mathematics stands in `hydra_core.heads.noise`. As a command: `python -m hydra_core noise --help`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from hydra_core.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import DataError
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.noise import NoiseGap, Side, compare_sides, measure_side, pruning_path
from hydra_core.heads.scores import score_heads
from hydra_core.methods.base import module_digest
from hydra_core.models.demo import ASSETS
from hydra_core.models.view import ModelView
from hydra_core.progress import Progress, step_of

Remember = Callable[[str, Callable[[], Side]], Side]


@dataclass(frozen=True)
class NoiseStudy:
    """Rows over corruptions, severities and masks.

    Attributes:
        provenance: model, data, their digests, the layers and the criterion of the path.
    """

    rows: tuple[NoiseGap, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def frame(self) -> pd.DataFrame:
        """One line a row; see `NoiseGap.row`."""
        return pd.DataFrame([row.row() for row in self.rows])

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything, one line a row; `from_json` reads it. Also written to `path` where one is given."""
        lines = ",\n".join(json.dumps(_short(asdict(row)), separators=(",", ":")) for row in self.rows)
        text = f'{{"provenance": {json.dumps(dict(self.provenance), indent=1)},\n"rows": [\n{lines}\n]}}\n'
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    @classmethod
    def from_json(cls, text: str) -> NoiseStudy:
        """Read what `to_json` wrote.

        Raises:
            DataError: it is no such study.
        """
        try:
            data = json.loads(text)
            return cls(tuple(map(NoiseGap.from_json, data["rows"])), data["provenance"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError("This is not a noise study", expected="what to_json wrote", got=repr(text[:60])) from error


def _short(value: Any) -> Any:
    """Floats of seven digits: files stay small, and what is read back is written the same again."""
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return float(f"{value:.7g}") if isinstance(value, float) else value


def noise_study(
    view: ModelView,
    samples: SampleSet,
    masks: Sequence[HeadMask],
    corruptions: Sequence[str],
    severities: Sequence[int] = SEVERITIES,
    *,
    keeps: Sequence[int | None] | None = None,
    seed: int = 0,
    remember: Remember | None = None,
    publish: Callable[[list[NoiseGap]], None] | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> NoiseStudy:
    """Every corruption and severity against the clean samples.

    Args:
        samples: labelled images, never test images.
        keeps: number of heads of each mask, for `NoiseGap.keep`.
        seed: of the noise.
        remember: (digest of samples and masks, compute) -> side; gives what is known, else computes and keeps it.
        publish: called with the rows of each severity as they come.

    Raises:
        DataError, MaskError, UnknownNameError: see `measure_side` and `data.corruptions.corrupt`.
        Cancelled: `cancel` was set.
    """
    weights = module_digest(view.module)
    work = [(c, s) for c in corruptions for s in severities]
    known = remember or (lambda key, compute: compute())

    def side(part: SampleSet, done: int, title: str) -> Side:
        step = step_of(progress, done, 1 + len(work), title)
        facts = [view.name, weights, part.digest, *(mask.text for mask in masks)]
        key = hashlib.blake2b(json.dumps(facts).encode(), digest_size=10).hexdigest()
        return known(key, lambda: measure_side(view, part, masks, progress=step, cancel=cancel))

    clean = side(samples, 0, "Clean")
    rows: list[NoiseGap] = []
    digests = {}
    for done, (name, severity) in enumerate(work, 1):
        noise = corrupt(samples, name, severity, seed=seed, cancel=cancel)
        noisy = side(noise, done, f"{CORRUPTIONS[name].label}, severity {severity}")
        found = compare_sides(clean, noisy, masks, corruption=name, severity=severity, keeps=keeps)
        rows += found
        digests[f"{name}-{severity}"] = noise.digest
        if publish is not None:
            publish(found)
    facts = {
        "model": {"name": view.name, "weights": weights},
        "samples": {"name": samples.name, "number": len(samples), "digest": samples.digest},
        "noise": digests,
    }
    return NoiseStudy(tuple(rows), facts)


# -- the demo ----------------------------------------------------------------------------------------

STORED = ASSETS / "noise-demo.json"
COMMAND = "python -m hydra_core noise --demo"
DEMO_SAMPLES = 200


def quarters(view: ModelView) -> tuple[int, ...]:
    """Three quarters, half and a quarter of a layer's heads; at least one."""
    most = max(view.shape)
    return tuple(dict.fromkeys(max(1, most * q // 4) for q in (3, 2, 1) if most > 1))


def path_study(
    view: ModelView,
    bundle: DataBundle,
    corruptions: Sequence[str],
    *,
    keeps: Sequence[int],
    criterion: str = "taylor",
    layers: Sequence[int] | None = None,
    samples: int = DEMO_SAMPLES,
    severities: Sequence[int] = SEVERITIES,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> NoiseStudy:
    """The study of one pruning path: heads go in the order of a criterion, scored on the clean samples of the study.

    Args:
        keeps: heads kept in each of `layers` (None: all).
        samples: validation images.

    Raises:
        DataError, MaskError, UnknownNameError, Cancelled: see `noise_study` and `heads.scores.score_heads`.
    """
    chosen = bundle.val.sample(samples)
    scores = score_heads(view, chosen, criterion, ood=bundle.ood_val, cancel=cancel)
    masks = pruning_path(scores, view.shape, keeps, layers)
    found = noise_study(view, chosen, masks, corruptions, severities, keeps=keeps, progress=progress, cancel=cancel)
    path: dict[str, Any] = {
        "criterion": criterion,
        "layers": list(range(len(view.shape)) if layers is None else layers),
    }
    return NoiseStudy(found.rows, dict(found.provenance) | path | {"data": bundle.digest})


def demo_study(progress: Progress | None = None) -> NoiseStudy:
    """The demo's study, written to assets/: every corruption, all layers, heads go by Taylor."""
    from hydra_core.data.load import load_data
    from hydra_core.models.load import load_model

    view, bundle = load_model("demo/fashion-vit"), load_data("demo/fashion")
    found = path_study(view, bundle, tuple(CORRUPTIONS), keeps=quarters(view), progress=progress)
    found = NoiseStudy(found.rows, dict(found.provenance) | {"command": COMMAND})
    found.to_json(STORED)
    return found
