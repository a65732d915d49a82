"""Which heads are kept: an immutable boolean table, layers x heads (ragged allowed)."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from hydra_core.errors import MaskError

Shape = tuple[int, ...]  # heads a layer
NAME = re.compile(r"[\w .+-]{1,40}")  # of a member: it stands in addresses, in file names and between words of pages


def shape_text(shape: Sequence[int]) -> str:
    """'6x8' for six layers of eight heads, '3+6+12' for ragged ones."""
    if len(set(shape)) == 1:
        return f"{len(shape)}x{shape[0]}"
    return "+".join(map(str, shape))


def _parse_shape(text: str) -> Shape:
    if "x" in text:
        layers, heads = text.split("x")
        shape: Shape = (int(heads),) * int(layers)
    else:
        shape = tuple(int(part) for part in text.split("+"))
    if not shape or min(shape) < 1 or len(shape) > 1000 or max(shape) > 1000:
        raise ValueError(text)
    return shape


@dataclass(frozen=True)
class HeadMask:
    """Kept heads of a model: `rows[layer][head]` is True where the head is kept.

    A mask is a value: every method returns a new one. Equal masks hash alike, so a mask
    is a cache key; `text` is its short, URL-safe name.

    Examples:
        >>> mask = HeadMask.full((4, 4)).prune(0, 1)
        >>> mask.text
        '2x4.vw'
        >>> HeadMask.parse('2x4.vw') == mask
        True
        >>> mask.kept, mask.total, mask.first_pruned_layer
        (7, 8, 0)
    """

    rows: tuple[tuple[bool, ...], ...]

    def __post_init__(self) -> None:
        rows = tuple(tuple(bool(v) for v in row) for row in self.rows)
        if not rows or any(not row for row in rows):
            raise MaskError(
                "A mask needs at least one layer and one head a layer", got=f"shape {tuple(map(len, rows))}"
            )
        object.__setattr__(self, "rows", rows)

    # -- making ----------------------------------------------------------------------------

    @classmethod
    def full(cls, shape: Sequence[int]) -> HeadMask:
        """All heads kept; `shape` is the number of heads of each layer."""
        return cls(tuple((True,) * h for h in shape))

    @classmethod
    def empty(cls, shape: Sequence[int]) -> HeadMask:
        """No head kept."""
        return cls(tuple((False,) * h for h in shape))

    @classmethod
    def of(cls, rows: Iterable[Iterable[Any]] | np.ndarray) -> HeadMask:
        """From any nested booleans or zeros and ones."""
        return cls(tuple(tuple(bool(v) for v in row) for row in rows))

    @classmethod
    def top(
        cls, scores: Any, keep: int | Sequence[int], layers: Iterable[int] | None = None, *, lowest: bool = False
    ) -> HeadMask:
        """Keep the `keep` heads with the highest score in each layer.

        Args:
            scores: one row of scores a layer, or anything with a `.matrix` of that form.
            keep: heads kept a layer: one number, or one a layer.
            layers: prune only these layers; the others stay full. None: all layers.
            lowest: keep the lowest scores instead.

        Raises:
            MaskError: `keep` is negative or larger than the heads there are.
        """
        rows = [np.asarray(row, dtype=np.float64) for row in getattr(scores, "matrix", scores)]
        keeps = [keep] * len(rows) if isinstance(keep, int | np.integer) else list(keep)
        chosen = set(range(len(rows)) if layers is None else layers)
        _check_layers(chosen, len(rows))
        if len(keeps) != len(rows):
            raise MaskError("One number of heads a layer", expected=len(rows), got=len(keeps))
        out = []
        for layer, (row, k) in enumerate(zip(rows, keeps, strict=True)):
            if layer not in chosen:
                out.append((True,) * len(row))
                continue
            if not 0 <= k <= len(row):
                raise MaskError(f"Layer {layer} cannot keep {k} heads", expected=f"0 to {len(row)}", got=k)
            # stable sort: ties keep the lower head index
            order = np.argsort(row if lowest else -row, kind="stable")[:k]
            out.append(tuple(h in set(order.tolist()) for h in range(len(row))))
        return cls(tuple(out))

    @classmethod
    def top_ratio(cls, scores: Any, ratio: float, layers: Iterable[int] | None = None) -> HeadMask:
        """Keep the best `ratio` of the heads over all (chosen) layers together, not layer by layer."""
        rows = [np.asarray(row, dtype=np.float64) for row in getattr(scores, "matrix", scores)]
        if not 0 <= ratio <= 1:
            raise MaskError("The share of kept heads is out of range", expected="0 to 1", got=ratio)
        chosen = set(range(len(rows)) if layers is None else layers)
        _check_layers(chosen, len(rows))
        ranked = sorted(
            ((l, h) for l in chosen for h in range(len(rows[l]))), key=lambda p: (-rows[p[0]][p[1]], p[0], p[1])
        )
        kept = set(ranked[: round(ratio * len(ranked))])
        return cls(
            tuple(tuple(l not in chosen or (l, h) in kept for h in range(len(row))) for l, row in enumerate(rows))
        )

    @classmethod
    def random(cls, shape: Sequence[int], keep: int, seed: int, layers: Iterable[int] | None = None) -> HeadMask:
        """Keep `keep` heads of each (chosen) layer, drawn uniformly with this seed."""
        rng = np.random.default_rng(seed)
        return cls.top([rng.random(h) for h in shape], keep, layers)

    # -- reading ---------------------------------------------------------------------------

    @property
    def shape(self) -> Shape:
        """Heads of each layer, whether kept or not."""
        return tuple(len(row) for row in self.rows)

    @property
    def counts(self) -> tuple[int, ...]:
        """Kept heads of each layer."""
        return tuple(sum(row) for row in self.rows)

    @property
    def kept(self) -> int:
        """Kept heads of all layers."""
        return sum(self.counts)

    @property
    def total(self) -> int:
        """Heads of all layers."""
        return sum(self.shape)

    @property
    def is_full(self) -> bool:
        """Whether no head is pruned."""
        return all(all(row) for row in self.rows)

    @property
    def first_pruned_layer(self) -> int:
        """The first layer that prunes a head; the number of layers when none does."""
        return next((l for l, row in enumerate(self.rows) if not all(row)), len(self.rows))

    def keep_index(self, layer: int) -> tuple[int, ...]:
        """Indices of the kept heads of a layer."""
        return tuple(h for h, kept in enumerate(self.rows[layer]) if kept)

    def pruned(self) -> Iterator[tuple[int, int]]:
        """The pruned heads as (layer, head)."""
        return ((l, h) for l, row in enumerate(self.rows) for h, kept in enumerate(row) if not kept)

    def __getitem__(self, at: tuple[int, int]) -> bool:
        return self.rows[at[0]][at[1]]

    def check(self, shape: Sequence[int]) -> HeadMask:
        """This mask, if it fits a model with `shape` heads a layer.

        Raises:
            MaskError: it does not; the text names both shapes.
        """
        if self.shape != tuple(shape):
            raise MaskError(
                "The mask does not fit the model",
                expected=f"{shape_text(shape)} (layers x heads)",
                got=shape_text(self.shape),
                hint="Choose the model the mask was made for, or start from a full mask.",
            )
        return self

    # -- changing --------------------------------------------------------------------------

    def with_head(self, layer: int, head: int, kept: bool) -> HeadMask:
        """One head set."""
        self._check_head(layer, head)
        return self._map(lambda l, h, v: kept if (l, h) == (layer, head) else v)

    def prune(self, layer: int, head: int) -> HeadMask:
        """One head removed."""
        return self.with_head(layer, head, False)

    def restore(self, layer: int, head: int) -> HeadMask:
        """One head put back."""
        return self.with_head(layer, head, True)

    def toggle(self, layer: int, head: int) -> HeadMask:
        """One head flipped."""
        self._check_head(layer, head)
        return self.with_head(layer, head, not self[layer, head])

    def with_layer(self, layer: int, kept: bool | Sequence[bool]) -> HeadMask:
        """A whole layer kept, pruned, or set to the given row."""
        _check_layers({layer}, len(self.rows))
        row = (kept,) * self.shape[layer] if isinstance(kept, bool) else tuple(kept)
        if len(row) != self.shape[layer]:
            raise MaskError(f"Layer {layer} has another number of heads", expected=self.shape[layer], got=len(row))
        return HeadMask((*self.rows[:layer], row, *self.rows[layer + 1 :]))

    def __and__(self, other: HeadMask) -> HeadMask:
        return self._with(other, lambda a, b: a and b)

    def __or__(self, other: HeadMask) -> HeadMask:
        return self._with(other, lambda a, b: a or b)

    def __xor__(self, other: HeadMask) -> HeadMask:
        return self._with(other, lambda a, b: a != b)

    def __sub__(self, other: HeadMask) -> HeadMask:
        return self._with(other, lambda a, b: a and not b)

    def __invert__(self) -> HeadMask:
        return self._map(lambda l, h, v: not v)

    # -- text ------------------------------------------------------------------------------

    @cached_property
    def text(self) -> str:
        """Short, URL-safe: shape, a dot, the bits in base64url. `HeadMask.parse` reads it."""
        bits = np.packbits(np.array([v for row in self.rows for v in row], dtype=bool))
        return f"{shape_text(self.shape)}.{base64.urlsafe_b64encode(bits.tobytes()).decode().rstrip('=')}"

    @classmethod
    def parse(cls, text: str, shape: Sequence[int] | None = None) -> HeadMask:
        """Read what `text` wrote.

        Args:
            shape: the model's heads a layer; when given, the mask must fit.

        Raises:
            MaskError: the text is not a mask, or does not fit.
        """
        try:
            head, body = text.strip().split(".")
            own = _parse_shape(head)
            total = sum(own)
            raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            bits = np.unpackbits(np.frombuffer(raw, dtype=np.uint8))
            if len(raw) != (total + 7) // 8 or bits[total:].any():
                raise ValueError(f"{len(raw)} bytes for {total} heads")
        except (ValueError, AttributeError, TypeError) as error:
            raise MaskError(
                "This is not a head mask",
                expected="text like '6x8.____AAAA' (layers x heads, a dot, the bits)",
                got=repr(str(text)[:80]),
                hint="Copy the whole link or recipe again.",
            ) from error
        starts = np.cumsum((0, *own))
        mask = cls(tuple(tuple(bool(b) for b in bits[a:b_]) for a, b_ in pairwise(starts)))
        return mask if shape is None else mask.check(shape)

    @property
    def digest(self) -> str:
        """A short digest, the same in every process."""
        return hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest()

    def to_json(self) -> list[list[int]]:
        """Zeros and ones, one list a layer."""
        return [[int(v) for v in row] for row in self.rows]

    @classmethod
    def from_json(cls, data: Any, shape: Sequence[int] | None = None) -> HeadMask:
        """Read what `to_json` wrote: nested zeros and ones (a string or the parsed list)."""
        try:
            rows = json.loads(data) if isinstance(data, str) else data
            if not all(v in (0, 1, True, False) for row in rows for v in row):
                raise ValueError("values other than 0 and 1")
            mask = cls.of(rows)
        except (ValueError, TypeError) as error:
            raise MaskError(
                "This is not a head mask", expected="a list of layers, each a list of 0 and 1", got=repr(data)[:80]
            ) from error
        return mask if shape is None else mask.check(shape)

    def __str__(self) -> str:
        return self.text

    # -- inside ----------------------------------------------------------------------------

    def _check_head(self, layer: int, head: int) -> None:
        _check_layers({layer}, len(self.rows))
        if not 0 <= head < self.shape[layer]:
            raise MaskError(f"Layer {layer} has no head {head}", expected=f"0 to {self.shape[layer] - 1}", got=head)

    def _map(self, f: Callable[[int, int, bool], bool]) -> HeadMask:
        return HeadMask(tuple(tuple(f(l, h, v) for h, v in enumerate(row)) for l, row in enumerate(self.rows)))

    def _with(self, other: HeadMask, f: Callable[[bool, bool], bool]) -> HeadMask:
        other.check(self.shape)
        return self._map(lambda l, h, v: f(v, other.rows[l][h]))


def _check_layers(layers: Iterable[int], total: int) -> None:
    bad = sorted(l for l in layers if not 0 <= l < total)
    if bad:
        raise MaskError("There is no such layer", expected=f"0 to {total - 1}", got=", ".join(map(str, bad)))


@dataclass(frozen=True)
class Plan:
    """The masks of an ensemble's members, each with a name.

    Examples:
        >>> plan = Plan.full((4, 4), members=2)
        >>> plan.names, len(plan)
        (('A', 'B'), 2)
        >>> Plan.parse(plan.text) == plan
        True
    """

    masks: tuple[HeadMask, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.masks:
            raise MaskError("A plan needs at least one member", expected="1 mask or more", got="none")
        for mask in self.masks[1:]:
            mask.check(self.masks[0].shape)
        names = self.names or tuple(member_name(m) for m in range(len(self.masks)))
        if len(names) != len(self.masks) or len(set(names)) != len(names):
            raise MaskError("One name a member, all different", expected=f"{len(self.masks)} names", got=list(names))
        odd = next((name for name in map(str, names) if not NAME.fullmatch(name)), None)
        if odd is not None:
            raise MaskError("A member cannot have this name", expected="letters, digits, spaces, . _ + -", got=odd[:40])
        object.__setattr__(self, "names", tuple(map(str, names)))
        object.__setattr__(self, "masks", tuple(self.masks))

    @classmethod
    def full(cls, shape: Sequence[int], members: int = 1) -> Plan:
        """All heads kept in every member."""
        return cls((HeadMask.full(shape),) * members)

    @property
    def shape(self) -> Shape:
        return self.masks[0].shape

    def __len__(self) -> int:
        return len(self.masks)

    def __iter__(self) -> Iterator[HeadMask]:
        return iter(self.masks)

    def __getitem__(self, m: int) -> HeadMask:
        return self.masks[m]

    def with_mask(self, m: int, mask: HeadMask) -> Plan:
        """One member's mask replaced."""
        mask.check(self.shape)
        return Plan((*self.masks[:m], mask, *self.masks[m + 1 :]), self.names)

    def add(self, mask: HeadMask, name: str | None = None) -> Plan:
        """One member more; the first free letter names it unless a name is given."""
        free = (member_name(i) for i in range(len(self) + 1) if member_name(i) not in self.names)
        return Plan((*self.masks, mask), (*self.names, name or next(free)))

    def drop(self, m: int) -> Plan:
        """One member less."""
        keep = [i for i in range(len(self)) if i != m]
        return Plan(tuple(self.masks[i] for i in keep), tuple(self.names[i] for i in keep))

    @property
    def shared_layers(self) -> int:
        """Leading layers in which all members keep the same heads: the shared trunk."""
        rows = zip(*(mask.rows for mask in self.masks), strict=True)
        return next((l for l, row in enumerate(rows) if len(set(row)) > 1), len(self.shape))

    @cached_property
    def text(self) -> str:
        """Short, URL-safe: the shape, then one mask body a member."""
        head = self.masks[0].text.split(".")[0]
        return ".".join([head, *(mask.text.split(".")[1] for mask in self.masks)])

    @classmethod
    def parse(cls, text: str, shape: Sequence[int] | None = None, max_members: int = 32) -> Plan:
        """Read what `text` wrote (names are the default letters)."""
        parts = str(text).strip().split(".")
        if not 2 <= len(parts) <= max_members + 1:
            raise MaskError(
                "This is not a plan of masks",
                expected=f"a shape and 1 to {max_members} masks, separated by dots",
                got=repr(str(text)[:80]),
                hint="Copy the whole link or recipe again.",
            )
        return cls(tuple(HeadMask.parse(f"{parts[0]}.{body}", shape) for body in parts[1:]))

    @property
    def digest(self) -> str:
        """A short digest of masks and names, the same in every process."""
        return hashlib.blake2b("|".join([self.text, *self.names]).encode(), digest_size=8).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {
            "members": [{"name": n, "keep": mask.to_json()} for n, mask in zip(self.names, self.masks, strict=True)]
        }

    @classmethod
    def from_json(cls, data: Any, shape: Sequence[int] | None = None) -> Plan:
        """Read what `to_json` wrote."""
        try:
            members = (json.loads(data) if isinstance(data, str) else data)["members"]
            pairs = [(str(m["name"]), m["keep"]) for m in members]
        except (ValueError, TypeError, KeyError) as error:
            raise MaskError(
                "This is not a plan of masks",
                expected='{"members": [{"name": ..., "keep": [[0, 1, ...], ...]}]}',
                got=repr(data)[:80],
            ) from error
        return cls(tuple(HeadMask.from_json(k, shape) for _, k in pairs), tuple(n for n, _ in pairs))


def member_name(m: int) -> str:
    """A, B, ... Z, A1, B1, ..."""
    return chr(ord("A") + m % 26) + (str(m // 26) if m >= 26 else "")
