"""Zero-shot models: image features once, then any class names and prompts at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from app.cache import MIB, digest
from app.lab import store
from app.lab.sources import Options, Sample, Split, data, model, sample
from app.lab.stored import stored_rows
from hydra_core.errors import DataError
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.progress import Progress

if TYPE_CHECKING:
    import torch

    from hydra_core.metrics import Report
    from hydra_core.models.view import ModelView

MOST_NAMES, MOST_TEMPLATES, MOST_TEXTS, LONGEST = 1000, 100, 20_000, 300


@dataclass(frozen=True)
class Words:
    """What the classes are called: names in the order of the data's classes (more may follow), prompts, text heads.

    Attributes:
        text_mask: heads of the text tower to keep; None: all.
    """

    names: tuple[str, ...]
    templates: tuple[str, ...]
    text_mask: HeadMask | None = None

    @cached_property
    def key(self) -> str:
        mask = "" if self.text_mask is None or self.text_mask.is_full else self.text_mask.text
        return digest(*self.names, "", *self.templates, "", mask)


@dataclass(frozen=True, eq=False)
class ZeroShotAnswer:
    """What the model says under some words.

    Attributes:
        report: all figures; its OOD score is MSP.
        mcm: the same predictions judged by MCM.
        probs: probabilities (N, C) of the ID samples.
        labels: their classes (N,).
        temperature: that the logits were divided by.
    """

    report: Report
    mcm: Report
    probs: np.ndarray
    labels: np.ndarray
    temperature: float


def is_zero_shot(model_name: str) -> bool:
    """Whether the classes of a model are named by texts."""
    from hydra_core.models.zero_shot import ZeroShot

    return isinstance(model(model_name).module, ZeroShot)


def text_shape(model_name: str) -> tuple[int, ...]:
    """Heads of each layer of the text tower.

    Raises:
        UnsupportedModel: its heads cannot be pruned.
    """
    from hydra_core.models.zero_shot import zero_shot_parts

    return zero_shot_parts(model(model_name))[1].view.shape


def prompt_lists() -> dict[str, tuple[str, ...]]:
    """open_clip's own lists of prompts by name."""
    from hydra_core.models.zero_shot import library_templates

    return library_templates()


def words_of(data_name: str, names: str, templates: Sequence[str], text_mask: HeadMask | None = None) -> Words:
    """Typed lines as words, checked.

    Args:
        names: one class a line; empty lines are left out.

    Raises:
        DataError: fewer names than the data has classes, names that repeat, too many or too long ones, a template
            without "{}".
    """
    from hydra_core.models.zero_shot import check_names, check_templates

    known = data(data_name).class_names
    lines = [line.strip() for line in names.splitlines() if line.strip()]
    if len(lines) < len(known):
        raise DataError(
            "Each class of the data needs a name",
            expected=f"{len(known)} lines or more, in the order {', '.join(known[:12])}",
            got=f"{len(lines)} lines",
            hint="Lines after these are further classes that no sample belongs to.",
        )
    found, prompts = check_names(lines), check_templates([t.strip() for t in templates if t.strip()])
    long = next((text for text in (*found, *prompts) if len(text) > LONGEST), None)
    over = len(found) > MOST_NAMES or len(prompts) > MOST_TEMPLATES or len(found) * len(prompts) > MOST_TEXTS
    if long is not None or over:
        raise DataError(
            "That is too much text",
            expected=f"at most {MOST_NAMES:,} names, {MOST_TEMPLATES} prompts, {MOST_TEXTS:,} texts in all, "
            f"{LONGEST} characters a line",
            got=f"{len(found):,} names, {len(prompts)} prompts"
            if long is None
            else f"a line of {len(long):,} characters",
        )
    return Words(tuple(found), prompts, text_mask)


def unknown_words(model_name: str, words: Words) -> list[str]:
    """Words of the class names that the model's card says it never read; none where the card does not tell."""
    from hydra_core.models.text_tower import words_of as split

    known = model(model_name).info.get("words")
    if not isinstance(known, list):
        return []
    return sorted({word for name in words.names for word in split(name)} - set(known))


def zero_shot_answer(
    model_name: str,
    data_name: str,
    plan: Plan,
    words: Words,
    options: Options | None = None,
    *,
    temperature: float | None = 1.0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> ZeroShotAnswer:
    """Accuracy, calibration and OOD detection of the ensemble of a plan's members under some words.

    Args:
        temperature: what logits are divided by; None: fitted on the validation samples. MCM has its own and ignores it.

    Raises:
        DataError: a text that is too long for the model.
    """
    options = options or Options()
    chosen = sample(data_name, options)
    if temperature is None:
        temperature = fitted_temperature(model_name, data_name, plan, words, n=options.n)

    def compute() -> ZeroShotAnswer:
        from hydra_core.metrics import Predictions, evaluate_logits, mcm_score

        rows, scale = logits(model_name, chosen, plan.masks, words, progress=progress, cancel=cancel)
        parts = {name: rows[:, where] / temperature for name, where in chosen.slices.items()}
        ood = {name: part for name, part in parts.items() if name}
        judged = {name: mcm_score(part * temperature, scale) for name, part in parts.items()}
        labels = chosen.id.labels
        assert labels is not None
        common: dict[str, Any] = {"shifts": chosen.shifts, "bins": options.bins, "bins_kind": options.bins_kind}
        report = evaluate_logits(parts[""], labels, ood or None, **common)
        scores = (judged.pop(""), judged)
        mcm = evaluate_logits(parts[""], labels, ood or None, scores=scores, ood_score="mcm", **common)
        return ZeroShotAnswer(report, mcm, Predictions.of(parts[""]).probs, labels, float(temperature))

    return store.results.get(
        digest("zero-shot", model_name, chosen.key, plan.text, words.key, temperature, options), compute
    )


def fitted_temperature(model_name: str, data_name: str, plan: Plan, words: Words, *, n: int = 500) -> float:
    """The temperature with the lowest NLL on validation samples."""
    chosen = sample(data_name, Options(n=n))

    def compute() -> float:
        from hydra_core.metrics import fit_temperature

        rows, _ = logits(model_name, chosen, plan.masks, words)
        return fit_temperature(rows[:, chosen.slices[""]], chosen.id.labels).temperature

    return store.results.get(digest("zero-shot temperature", model_name, chosen.key, plan.text, words.key), compute)


def logits(
    model_name: str,
    chosen: Sample,
    masks: Sequence[HeadMask],
    words: Words,
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> tuple[np.ndarray, float]:
    """(logits (M, N, C), the model's logit scale); only image features and words not seen before are computed."""
    from hydra_core.models.zero_shot import zero_shot_parts

    module, _ = zero_shot_parts(model(model_name))
    texts = text_features(model_name, words, progress=progress, cancel=cancel)
    images = image_features(model_name, chosen, masks, progress=progress, cancel=cancel)
    return module.scale * images @ texts.T + module.bias, module.scale


def text_features(
    model_name: str, words: Words, *, progress: Progress | None = None, cancel: threading.Event | None = None
) -> np.ndarray:
    """Unit vectors of the classes, (C, D)."""
    from hydra_core.models.zero_shot import zero_shot_parts

    def compute() -> np.ndarray:
        _, tower = zero_shot_parts(model(model_name))
        found: torch.Tensor = store.infer(
            lambda: tower.features(words.names, words.templates, mask=words.text_mask, progress=progress, cancel=cancel)
        )
        return found.float().cpu().numpy()

    return store.results.get(digest("text features", model_name, words.key), compute)


def image_features(
    model_name: str,
    chosen: Sample,
    masks: Sequence[HeadMask],
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> np.ndarray:
    """Unit vectors of the samples under each mask, (M, N, D): they do not depend on the words."""
    from hydra_core.fusion.evaluator import MaskEvaluator
    from hydra_core.models.zero_shot import image_features_view

    def make() -> MaskEvaluator:
        view = model(model_name)
        inputs = view.inputs(*chosen.sets.values())
        return MaskEvaluator(image_features_view(view), inputs, budget_mb=store.EVALUATOR_BUDGET_MB)

    def run(mask: HeadMask) -> np.ndarray:
        size = (store.EVALUATOR_BUDGET_MB + 64) * MIB
        evaluator = store.evaluators.get(digest("image features", model_name, chosen.key), make, lambda _: size)
        return np.asarray(evaluator.many([mask], progress=progress, cancel=cancel)[0], np.float32)

    def of(mask: HeadMask) -> np.ndarray:
        carried = stored_rows("features", model_name, chosen, mask)
        return store.infer(lambda: run(mask)) if carried is None else carried

    key = lambda mask: digest("image features", model_name, chosen.key, mask.text)  # noqa: E731
    return np.stack([store.logits.get(key(m), lambda m=m: of(m)) for m in masks])  # type: ignore[misc]


# -- the rows of the comparison --------------------------------------------------------------


def zero_shot_row_names() -> tuple[str, ...]:
    """The rows that make sense for zero-shot models."""
    from hydra_core.methods.zero_shot_rows import ZERO_SHOT_ROWS

    return ZERO_SHOT_ROWS


def zero_shot_comparison(
    model_name: str,
    data_name: str,
    words: Words,
    *,
    split: Split = "val",
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> Any:
    """`compare` of the zero-shot rows under some words: one seed, no intervals, so that a page can wait for it."""
    from hydra_core.methods.compare import compare

    bundle = data(data_name)

    def work() -> Any:
        return compare(
            worded(model_name, words), bundle, zero_shot_row_names(), split=split, bootstrap=0, seeds=(0,),
            latency=False, progress=progress, cancel=cancel,
        )  # fmt: skip

    key = digest("zero-shot comparison", model_name, bundle.digest, words.key, split)
    return store.results.get(key, lambda: store.infer(work))


def stored_zero_shot(model_name: str, data_name: str, words: Words) -> Any | None:
    """The demo's table as it was measured for these weights, data and words; None for anything else."""
    from hydra_core.methods.table import Comparison
    from hydra_core.methods.zero_shot_rows import TABLE, made_with

    pruned = words.text_mask is not None and not words.text_mask.is_full
    if not TABLE.is_file() or pruned:
        return None

    def read() -> Any | None:
        table = Comparison.from_json(TABLE.read_text(encoding="utf-8"))
        return table if made_with(table, worded(model_name, words), data(data_name)) else None

    key = digest("stored zero-shot", model_name, data_name, words.key, TABLE.stat().st_mtime_ns)
    return store.results.get(key, read)


def worded(model_name: str, words: Words) -> ModelView:
    """The model with other class names; it shares all weights."""
    from hydra_core.models.zero_shot import with_classes

    view = with_classes(model(model_name), words.names, words.templates, text_mask=words.text_mask)
    return replace(view, name=model_name)
