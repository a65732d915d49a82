"""One head alone: what it looks at, the samples that it moves, its standing by every criterion."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from app.cache import digest
from app.lab import store
from app.lab.results import criteria, logits, scores, scores_at_hand
from app.lab.sources import Sample, data, model, sample
from app.lab.spaces import head_outputs
from hydra_core.errors import Cancelled, DataError, HydraError
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.progress import Progress, step_of

if TYPE_CHECKING:
    import pandas as pd

    from hydra_core.data.sets import SampleSet
    from hydra_core.models.view import ModelView

Head = tuple[int, int]
By = Literal["effect", "norm"]


def without(model_name: str, head: Head) -> Plan:
    """One member that lacks this head alone.

    Raises:
        MaskError: no such head.
    """
    return Plan((HeadMask.full(model(model_name).shape).prune(*head),))


# -- what it looks at ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Look:
    """How the tokens of one sample attend in one layer.

    Attributes:
        maps: (H, T, T) weights of each head; row = the token that looks, column = what it looks at; rows sum to 1.
        rollout: (T, T) attention rolled out over all layers of the unpruned model (Abnar and Zuidema, 2020).
        tokens: (T,) a name a token.
        lead: tokens before the first patch or word that have no place (the class token first).
        grid: rows and columns of patches; None for texts.
        picture: the image as the model sees it, (H, W) or (H, W, 3) uint8; None for texts.
    """

    maps: np.ndarray
    rollout: np.ndarray
    tokens: tuple[str, ...]
    lead: int
    grid: tuple[int, int] | None
    picture: np.ndarray | None


def attention(model_name: str, data_name: str, sample_id: str, layer: int) -> Look:
    """Attention of one layer over one of the samples that pages use.

    Raises:
        DataError: no such sample. MaskError: no such layer.
        UnsupportedModel: the layer's attention is not one softmax over all tokens.
    """
    chosen = sample(data_name)
    one = find_sample(chosen, sample_id)

    def compute() -> Look:
        from hydra_core.heads.attention_maps import attention_maps, rollout, token_places

        view = model(model_name)
        x = view.inputs(one)
        maps, rolled = attention_maps(view, x, layer)[0], rollout(view, x)[0]
        if one.kind == "text":
            return Look(maps.numpy(), rolled.numpy(), _words(view, one), 0, None, None)
        lead, places = token_places(view, "image", maps.shape[-1])
        rows, columns = (int(n) + 1 for n in places.max(0).values)
        return Look(maps.numpy(), rolled.numpy(), _patches(view, lead, places), lead, (rows, columns), as_seen(x[0]))

    key = digest("attention", model_name, chosen.key, sample_id, layer)
    size = lambda look: look.maps.nbytes + look.rollout.nbytes  # noqa: E731
    return store.results.get(key, lambda: store.infer(compute), size)


def find_sample(chosen: Sample, sample_id: str) -> SampleSet:
    """The one sample of this id, as a set of one.

    Raises:
        DataError: there is none.
    """
    for part in chosen.sets.values():
        if sample_id in part.ids:
            return part.take([part.ids.index(sample_id)])
    raise DataError("There is no such sample", expected="the id of a sample on this page", got=sample_id[:60])


def as_seen(x: Any) -> np.ndarray:
    """A prepared image (C, H, W), stretched from its darkest to its brightest value: (H, W) or (H, W, 3) uint8."""
    low, high = x.min(), x.max()
    grey = ((x - low) / (high - low).clamp_min(1e-12) * 255).round().byte().cpu().numpy()
    return grey[0] if len(grey) == 1 else np.moveaxis(grey[:3], 0, -1)


def _patches(view: ModelView, lead: int, places: Any) -> tuple[str, ...]:
    from hydra_core.heads.attention_maps import has_class_token

    first = "class token" if has_class_token(view.module) else "extra token 0"
    leading = [first, *(f"extra token {i}" for i in range(1, lead))][:lead]
    return (*leading, *(f"patch, row {r}, column {c}" for r, c in places.tolist()))


def _words(view: ModelView, one: SampleSet) -> tuple[str, ...]:
    """The tokens of a text, numbered, since words repeat."""
    prepare: Any = view.prepare
    return tuple(f"{i} {token}" for i, token in enumerate(prepare.tokens(str(one.inputs[0]))))


# -- the samples that it moves -------------------------------------------------------------------


@dataclass(frozen=True)
class SampleRow:
    """A sample of the pages: its id, its set ("" for ID), and its class ("" for OOD)."""

    id: str
    set: str
    label: str

    @property
    def kind(self) -> str:
        """What it is, in words."""
        return self.label if not self.set else f"{self.set}, OOD"

    @property
    def title(self) -> str:
        """Its name among all samples, also in the address."""
        return f"{self.kind}, {self.id}"


def sample_rows(data_name: str) -> list[SampleRow]:
    """Every sample that reports use, row by row."""
    out = []
    for name, part in sample(data_name).sets.items():
        for i, sample_id in enumerate(part.ids):
            label = "" if part.labels is None or not part.class_names else part.class_names[part.labels[i]]
            out.append(SampleRow(sample_id, name, label))
    return out


@dataclass(frozen=True)
class Moved(SampleRow):
    """One sample with and without a head.

    Attributes:
        effect: KL(prediction with the head || prediction without it), in nats; 0 when the head changes nothing.
        norm: L2 norm of what the head hands to the output projection (class token, else mean over tokens).
        before, after: (predicted class, its probability) with all heads, and without this one.
    """

    effect: float
    norm: float
    before: tuple[str, float]
    after: tuple[str, float]


def top_samples(model_name: str, data_name: str, head: Head, *, by: By = "effect", count: int = 8) -> list[Moved]:
    """The samples, ID and OOD, that a head moves most, or on which it speaks loudest.

    Both measures are exact, on the validation samples that reports use: `effect` compares two forward passes,
    `norm` reads the head's output in the unpruned model.
    """
    from hydra_core.metrics import Predictions

    chosen = sample(data_name)
    full = HeadMask.full(model(model_name).shape)
    log_p, log_q = Predictions.of(logits(model_name, chosen, [full, full.prune(*head)])).log_probs  # each (N, C)
    with_it, without_it = np.exp(log_p), np.exp(log_q)
    effect = (with_it * (log_p - log_q)).sum(-1)  # (N,)
    norm = head_outputs(model_name, chosen)[head[0]][:, head[1]].double().norm(dim=-1).numpy()  # (N,)
    order = np.argsort(-(effect if by == "effect" else norm), kind="stable")[:count]
    names = model(model_name).class_names or data(data_name).class_names
    rows = sample_rows(data_name)
    return [
        Moved(
            **vars(rows[i]),
            effect=float(effect[i]),
            norm=float(norm[i]),
            before=_best(with_it[i], names),
            after=_best(without_it[i], names),
        )
        for i in order
    ]


def _best(p: np.ndarray, names: Sequence[str]) -> tuple[str, float]:
    c = int(p.argmax())
    return (names[c] if c < len(names) else f"class {c}"), float(p[c])


# -- its standing --------------------------------------------------------------------------------


def standing(model_name: str, data_name: str, head: Head) -> pd.DataFrame:
    """The head by every criterion that has been scored: label, score, low, high, rank, of (how many heads)."""
    import pandas as pd

    layer, number = head
    lines = []
    for name, found in scores_at_hand(model_name, data_name).items():
        table = found.frame().set_index(["layer", "head"])
        row = table.loc[(layer, number)]
        lines.append({"Criterion": criteria()[name].label, "Score": row["score"], "Low": row["low"],
                      "High": row["high"], "Rank": int(row["rank"]), "Of": len(table)})  # fmt: skip
    return pd.DataFrame(lines)


def missing_criteria(model_name: str, data_name: str) -> list[str]:
    """Criteria that could be scored on this model and data, and have not been yet."""
    known = scores_at_hand(model_name, data_name)
    shifts = {part.shift for part in data(data_name).ood_val.values()}
    return [name for name, c in criteria().items() if name not in known and _possible(name, c.needs_ood, shifts)]


def _possible(name: str, needs_ood: bool, shifts: Collection[str]) -> bool:
    for shift in ("near", "far"):
        if name.endswith(f"_{shift}"):
            return shift in shifts
    return bool(shifts) or not needs_ood


def score_missing(
    model_name: str, data_name: str, *, progress: Progress | None = None, cancel: threading.Event | None = None
) -> list[str]:
    """Score by all criteria that are missing; returns what could not be scored, and why, a line each."""
    names, refused = missing_criteria(model_name, data_name), []
    for done, name in enumerate(names):
        try:
            scores(model_name, data_name, name, progress=step_of(progress, done, len(names)), cancel=cancel)
        except Cancelled:
            raise
        except HydraError as error:  # such as attention maps of windowed models: the others still work
            refused.append(f"{criteria()[name].label}: {error.problem}")
    return refused
