"""What `compare` returns: one table, rows x metrics, and its forms on paper."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from hydra_core.errors import HydraError
from hydra_core.markdown import escape
from hydra_core.methods.detection import ALL, FAR, NEAR
from hydra_core.metrics.registry import METRICS
from hydra_core.metrics.scores import OOD_SCORES

SHOWN = (
    "accuracy", "nll", "brier", "ece", "aece", "aurc",
    "auroc", "aupr", "fpr95", "auroc_near", "aupr_near", "fpr95_near", "auroc_far", "aupr_far", "fpr95_far",
)  # fmt: skip
COSTS = ("parameters", "parameter_ratio", "macs", "mac_ratio", "latency_ratio")
OK = "measured"
MEAN_LABELS = {ALL: "mean of all", NEAR: "mean of near", FAR: "mean of far"}


@dataclass(frozen=True)
class RowResult:
    """One row.

    Attributes:
        status: "measured", or why there are no figures.
        values: mean over repeats of each metric; `std` its standard deviation (n - 1), with two repeats or more.
        first: the values of the first repeat: what rows of one repeat, which start from the first model, compare with.
        intervals: 95 % bootstrap intervals over test samples, of the first repeat; "auroc:SET" those of one OOD set.
        repeats: how many models or draws the mean is over.
        costs: parameters, macs, their ratios to Single, latency_ratio.
        reliability: bars of the first repeat, as in `Report.to_json`.
        detection: OOD score -> OOD set (or a mean over sets, see methods.detection) -> auroc, aupr, fpr95, each a mean
            over repeats, with NAME_std where there are several.
        undefined: OOD score -> why this row has none of it.
    """

    name: str
    label: str
    status: str = OK
    members: int = 0
    repeats: int = 0
    values: Mapping[str, float | None] = field(default_factory=dict)
    std: Mapping[str, float | None] = field(default_factory=dict)
    first: Mapping[str, float | None] = field(default_factory=dict)
    intervals: Mapping[str, Any] = field(default_factory=dict)
    costs: Mapping[str, float | None] = field(default_factory=dict)
    reliability: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    detection: Mapping[str, Any] = field(default_factory=dict)
    undefined: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        return self.status == OK


@dataclass(frozen=True)
class Comparison:
    """All rows on one split.

    Attributes:
        provenance: model, data and their digests, split, setting, bootstrap, conventions.
    """

    rows: tuple[RowResult, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> RowResult:
        return next(row for row in self.rows if row.name == name)

    def __contains__(self, name: object) -> bool:
        return any(row.name == name for row in self.rows)

    def updated(self, other: Comparison, order: Sequence[str] = ()) -> Comparison:
        """This table with the rows of another in place of its own of the same name; new ones are added.

        Args:
            order: names in the order in which rows stand; those not named stand last.

        Raises:
            HydraError: the two were not measured on the same models, data, setting and in the same way.
        """
        mine, theirs = ({k: v for k, v in t.provenance.items() if k != "device"} for t in (self, other))
        if mine != theirs:
            differ = [key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
            raise HydraError(
                "The two tables do not belong together",
                expected="the same models, data, setting and scores",
                got=f"other {', '.join(sorted(differ))}",
                hint="Measure all rows anew.",
            )
        rows = {row.name: row for row in (*self.rows, *other.rows)}
        place = {name: i for i, name in enumerate(order)}
        return replace(self, rows=tuple(sorted(rows.values(), key=lambda row: place.get(row.name, len(place)))))

    def frame(self) -> pd.DataFrame:
        """One line a row: name, label, status, members, repeats, each metric with _std, _low and _high, costs."""
        lines = []
        for row in self.rows:
            line: dict[str, Any] = {k: getattr(row, k) for k in ("name", "label", "status", "members", "repeats")}
            for metric in SHOWN:
                low, high = row.intervals.get(metric) or (None, None)
                line |= {metric: row.values.get(metric), f"{metric}_std": row.std.get(metric)}
                line |= {f"{metric}_low": low, f"{metric}_high": high}
            lines.append(line | {cost: row.costs.get(cost) for cost in COSTS})
        return pd.DataFrame(lines)

    @property
    def ood_score(self) -> str:
        """The OOD score of the table's own AUROC, AUPR and FPR95."""
        return str(self.provenance.get("ood_score", "msp"))

    def detection(self) -> pd.DataFrame:
        """One line a row, OOD score and OOD set (or mean over sets), with auroc, aupr, fpr95.

        Each has its _std over repeats, where there are several.
        """
        shifts = self.provenance.get("shifts", {})
        lines = []
        for row in self.rows:
            for score, sets in row.detection.items():
                for where, figures in sets.items():
                    place = {"set": MEAN_LABELS.get(where, where), "shift": shifts.get(where, "mean")}
                    lines.append({"name": row.name, "label": row.label, "score": score} | place | dict(figures))
        return pd.DataFrame(lines)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The frame as CSV; also written to `path` where one is given."""
        return _write(self.frame().to_csv(index=False), path)

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything, reliability bars included; `from_json` reads it."""
        data = {"provenance": dict(self.provenance), "rows": [asdict(row) for row in self.rows]}
        return _write(json.dumps(data, indent=1) + "\n", path)

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        return cls(tuple(RowResult(**row) for row in data["rows"]), data["provenance"])

    def to_markdown(self, path: str | Path | None = None) -> str:
        """Tables of figures, costs, AUROC by OOD set and by OOD score; then the rows without figures, and why."""
        done = [row for row in self.rows if row.measured]
        heads = ["Row", *(METRICS[m].label for m in SHOWN), "Repeats"]
        body = [[row.label, *(_cell(row, m) for m in SHOWN), str(row.repeats)] for row in done]
        costs = [[row.label, *map(str, _costs(row))] for row in done]
        parts = [_table(heads, body), _table(["Row", "Members", "Parameters", "Multiply-adds", "Latency"], costs)]
        parts += [part for part in (self._by_set(done), self._by_score(done)) if part]
        missing = [f"- {row.label}: {escape(row.status)}" for row in self.rows if not row.measured]
        if missing:
            parts.append("Rows without figures:\n\n" + "\n".join(missing))
        return _write("\n\n".join(parts) + "\n", path)

    def _by_set(self, rows: Sequence[RowResult]) -> str:
        """AUROC of each OOD set alone, by the table's own score."""
        known = (where for row in rows for where in row.detection.get(self.ood_score, {}))
        sets = [where for where in dict.fromkeys(known) if where not in MEAN_LABELS]
        if not sets:
            return ""
        shifts = self.provenance.get("shifts", {})
        heads = ["Row", *(f"{escape(where)} ({shifts.get(where, 'other')})" for where in sets)]
        body = [[row.label, *(_area(row, self.ood_score, where) for where in sets)] for row in rows]
        return f"AUROC of each OOD set, by {OOD_SCORES[self.ood_score].label}:\n\n" + _table(heads, body)

    def _by_score(self, rows: Sequence[RowResult]) -> str:
        """AUROC of each OOD score, mean over the OOD sets."""
        scores = list(dict.fromkeys(score for row in rows for score in row.detection))
        if len(scores) < 2:
            return ""
        heads = ["Row", *(OOD_SCORES[score].label for score in scores)]
        body = [[row.label, *(_area(row, score, ALL) for score in scores)] for row in rows]
        return "AUROC by OOD score, mean over the OOD sets:\n\n" + _table(heads, body)


def _area(row: RowResult, score: str, where: str) -> str:
    """AUROC, and its spread over repeats; a dash where the row has no such score."""
    figures = row.detection.get(score, {}).get(where, {})
    text, std = METRICS["auroc"].format(figures.get("auroc")), figures.get("auroc_std")
    return text if std is None else f"{text} ± {std:.3f}"


def _cell(row: RowResult, metric: str) -> str:
    """The mean; +- std over repeats where there are some, else the bootstrap interval."""
    value, std, interval = row.values.get(metric), row.std.get(metric), row.intervals.get(metric)
    text = METRICS[metric].format(value)
    if value is None or math.isnan(value):
        return text
    if std is not None:
        return f"{text} ± {std:.3f}"
    return f"{text} [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else text


def _costs(row: RowResult) -> tuple[str, ...]:
    c = row.costs
    latency = c.get("latency_ratio")
    return (
        str(row.members),
        f"{c['parameters']:,} ({c['parameter_ratio']:.2f}x)",
        f"{c['macs'] / 1e6:.1f} M ({c['mac_ratio']:.2f}x)",  # type: ignore[operator]
        "–" if latency is None else f"{latency:.2f}x",
    )


def _table(heads: list[str], body: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _write(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text
