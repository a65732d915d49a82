"""What a sweep returns: one point a (method, heads kept, members, layers, repeat), and its forms on paper."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd

from hydra_core.errors import DataError
from hydra_core.metrics.registry import METRICS

SINGLE = "single"
GROUP = ("method", "layers", "keep", "members")  # what repeats have in common


@dataclass(frozen=True)
class Point:
    """One ensemble that was measured.

    Attributes:
        method: a name in `sweep.METHODS`, or "single": the unpruned model.
        layers: the pruned layers; () for "single".
        keep: heads kept in each of them (a layer with fewer keeps all of its own).
        members: M.
        model, seed: of the repeat.
        values: metric -> value, None where it is not defined.
        parameters, macs: of the fused ensemble, for one sample.
        parameter_ratio, mac_ratio: over those of the unpruned model.
        masks: text of each member's mask.
    """

    method: str
    layers: tuple[int, ...]
    keep: int
    members: int
    model: str
    seed: int
    values: Mapping[str, float | None]
    parameters: int
    macs: int
    parameter_ratio: float
    mac_ratio: float
    masks: tuple[str, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Point:
        """A point by the names of its fields, as JSON holds it."""
        return cls(**dict(data) | {"layers": tuple(data["layers"]), "masks": tuple(data["masks"])})


FACTS = tuple(item.name for item in fields(Point) if item.name != "values")  # of a point's row in JSON


@dataclass(frozen=True)
class Sweep:
    """All points of a sweep.

    Attributes:
        points: in the order in which they were measured.
        provenance: models and data with their digests, samples, conventions.
    """

    points: tuple[Point, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def frame(self) -> pd.DataFrame:
        """One row a point: method, layers ("4 5"), keep, members, model, seed, every metric, costs, masks."""
        rows = []
        for point in self.points:
            facts = {k: v for k, v in vars(point).items() if k not in ("layers", "values", "masks")}
            metrics = {name: point.values.get(name) for name in METRICS}
            rows.append(
                {"method": point.method, "layers": " ".join(map(str, point.layers))} | facts | metrics
                | {"masks": " ".join(point.masks)}
            )  # fmt: skip
        return pd.DataFrame(rows)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The frame as CSV; also written to `path` where one is given."""
        return _write(self.frame().to_csv(index=False), path)

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything, one short line a point (names stand in the head, once); `from_json` reads it."""
        metrics = list(dict.fromkeys(name for point in self.points for name in point.values))
        rows = [[*(getattr(p, name) for name in FACTS), [p.values.get(name) for name in metrics]] for p in self.points]
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        head = json.dumps({"provenance": dict(self.provenance), "facts": FACTS, "metrics": metrics}, indent=1)
        return _write(f'{head[:-2]},\n"points": [\n{lines}\n]}}\n', path)

    @classmethod
    def from_json(cls, text: str) -> Sweep:
        """Read what `to_json` wrote.

        Raises:
            DataError: it is no sweep.
        """
        try:
            data = json.loads(text)
            named = (dict(zip((*data["facts"], "values"), row, strict=True)) for row in data["points"])
            rows = (row | {"values": dict(zip(data["metrics"], row["values"], strict=True))} for row in named)
            return cls(tuple(map(Point.from_json, rows)), data["provenance"])
        except (ValueError, TypeError, KeyError) as error:
            raise DataError("This is not a sweep", expected="what Sweep.to_json wrote", got=repr(text[:60])) from error

    def defined(self, metrics: Iterable[str]) -> list[str]:
        """Those of the metrics that are defined for some pruned point."""
        return [m for m in metrics if any(p.values.get(m) is not None for p in self.points if p.method != SINGLE)]

    def summary(self, metric: str) -> pd.DataFrame:
        """Mean and spread of one metric over repeats.

        Returns:
            One row a (method, layers, keep, members): mean, std (n - 1; NaN for one repeat), repeats, mac_ratio (mean).
            `layers` is a tuple. Points where the metric is not defined are left out.
        """
        rows = [
            {"method": p.method, "layers": p.layers, "keep": p.keep, "members": p.members, "mac_ratio": p.mac_ratio,
             "value": p.values[metric]}
            for p in self.points if p.values.get(metric) is not None
        ]  # fmt: skip
        if not rows:
            return pd.DataFrame(columns=[*GROUP, "mean", "std", "repeats", "mac_ratio"])
        groups = pd.DataFrame(rows).groupby(list(GROUP), sort=False)
        return groups.agg(
            mean=("value", "mean"), std=("value", "std"), repeats=("value", "size"), mac_ratio=("mac_ratio", "mean")
        ).reset_index()


def plain(values: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics for JSON: six digits, and None where a figure is not defined."""
    return {name: None if math.isnan(value) else round(float(value), 6) for name, value in values.items()}


def _write(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
