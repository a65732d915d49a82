"""Rows of zero-shot models: MCM and ViLU beside the rows that prune, on a small random CLIP; ViLU against torch."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional as F

from hydra_core.cost import count_parameters
from hydra_core.data.sets import DataBundle, SampleSet
from hydra_core.errors import Cancelled, DataError, ModelError
from hydra_core.evaluation import forward_set
from hydra_core.methods.compare import compare
from hydra_core.methods.hydra_rows import Setting
from hydra_core.methods.registry import DEFAULT_ROWS, Context
from hydra_core.methods.vilu import FOLDS, CrossFitted, ViLU, fit_vilu, folds, weighted_loss
from hydra_core.methods.zero_shot_rows import ZERO_SHOT_ROWS, mcm, vilu
from hydra_core.models.view import ModelView
from hydra_core.models.zero_shot import image_features_view, zero_shot_parts
from tests.methods.conftest import tiny

pytest.importorskip("open_clip")
NAMES = ("cat", "dog", "old boat")
GENERATOR = torch.Generator().manual_seed


def photos(name: str, n: int, seed: int, shift: Any = "id") -> SampleSet:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(n) % 3 if shift == "id" else None
    return SampleSet(name, pixels, labels, tuple(f"{name}/{i}" for i in range(n)),
                     NAMES if shift == "id" else (), shift=shift)  # fmt: skip


@cache
def data() -> DataBundle:
    return DataBundle(
        "photos", val=photos("val", 48, 1), test=photos("test", 30, 2),
        ood_val={"v": photos("v", 24, 3, "near")}, ood_test={"t": photos("t", 24, 4, "far")},
    )  # fmt: skip


@cache
def clip() -> ModelView:
    from hydra_core.models.open_clip_models import open_clip_view
    from tests.models.test_open_clip import native, tokenize

    return open_clip_view("clip", native("clip").float(), tokenize, NAMES)


def context(seed: int = 0) -> Context:
    return Context(clip(), data(), Setting.half(clip()), seed)


# -- the rows --------------------------------------------------------------------------------


def test_every_row_is_measured_on_a_zero_shot_model() -> None:
    table = compare(clip(), data(), ZERO_SHOT_ROWS, bootstrap=0, seeds=(0,), latency=False)
    assert [row.status for row in table.rows] == ["measured"] * len(ZERO_SHOT_ROWS)
    single, judged = table["single"], table["mcm"]
    same = ("accuracy", "nll", "ece", "brier")
    assert [judged.values[m] for m in same] == [single.values[m] for m in same]
    assert [table["vilu"].values[m] for m in same] == [single.values[m] for m in same]
    assert table["hydra_circ"].members == 3


def test_the_rows_figures_are_scikit_learns() -> None:
    table = compare(clip(), data(), ["single", "mcm"], bootstrap=0, latency=False)
    _, scale = zero_shot_parts(clip())[0], float(clip().info["logit_scale"])  # type: ignore[arg-type]
    logits = {name: forward_set(clip(), clip(), part).astype(np.float64) for name, part in
              (("id", data().test), ("ood", data().ood_test["t"]))}  # fmt: skip
    for row, factor in (("single", 1.0), ("mcm", scale)):
        doubt = {k: 1 - torch.from_numpy(v / factor).softmax(-1).amax(-1).numpy() for k, v in logits.items()}
        truth = np.repeat([0, 1], [30, 24])
        want = roc_auc_score(truth, np.concatenate([doubt["id"], doubt["ood"]]))
        assert table[row].values["auroc"] == pytest.approx(want, abs=1e-9)


def test_rows_of_zero_shot_models_say_so_elsewhere_and_are_not_in_the_default_table() -> None:
    assert not {"mcm", "vilu"} & set(DEFAULT_ROWS)
    with pytest.raises(ModelError, match="not a zero-shot model"):
        mcm(tiny())
    from tests.methods.conftest import bundle

    table = compare(tiny(), bundle(), ["mcm", "vilu"], bootstrap=0, latency=False)
    assert all("not a zero-shot model" in row.status for row in table.rows)


def test_vilu_costs_the_model_and_its_heads() -> None:
    row = vilu(context())
    base = mcm(clip()).cost()
    d, c, h = 24, 3, 64
    head = 3 * d * d + 3 * d * h + h + h + 1
    assert row.cost().parameters == base.parameters + FOLDS * head
    assert row.cost().macs == base.macs + FOLDS * (2 * c * d * d + d * d + 3 * c * d + 3 * d * h + h)
    assert count_parameters(ViLU(torch.randn(c, d))) == head


def test_vilu_is_the_same_for_the_same_seed_and_can_be_cancelled() -> None:
    samples = data().test
    logits = np.zeros((1, len(samples), 3), np.float32)
    first, again, other = (vilu(context(seed)).doubt(samples, logits) for seed in (0, 0, 1))
    assert first is not None
    assert again is not None
    assert other is not None
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    import threading

    stop = threading.Event()
    stop.set()
    cancelled = Context(clip(), data(), Setting.half(clip()), cancel=stop)
    with pytest.raises(Cancelled):
        vilu(cancelled)


def test_validation_samples_are_judged_by_the_head_that_never_saw_them() -> None:
    features = image_features_view(clip())
    images = torch.from_numpy(forward_set(features, features, data().val))
    texts = zero_shot_parts(clip())[0].text_features
    fitted = CrossFitted.fit(data().val.ids, images, torch.from_numpy(data().val.labels), texts)  # type: ignore[arg-type]
    got = fitted.doubt(data().val.ids, images)
    with torch.no_grad():
        each = torch.stack([head(images).sigmoid() for head in fitted.heads], 1).numpy()
    fold = folds(data().val.labels, 0)  # type: ignore[arg-type]
    np.testing.assert_allclose(got, each[np.arange(48), fold], rtol=1e-6)
    np.testing.assert_allclose(fitted.doubt(["new"] * 48, images), each.mean(1), rtol=1e-6)
    keep = torch.from_numpy(fold != 0)
    alone = fit_vilu(images[keep], torch.from_numpy(data().val.labels)[keep], texts)  # type: ignore[arg-type]
    with torch.no_grad():
        np.testing.assert_array_equal(alone(images).numpy(), fitted.heads[0](images).numpy())


# -- the network -----------------------------------------------------------------------------


def unit(n: int, d: int = 16, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(n, d, generator=GENERATOR(seed), dtype=torch.float64), dim=-1)


def test_the_conditioned_text_is_torchs_attention() -> None:
    model, images = ViLU(unit(5, seed=1)).double(), unit(7)
    q, k, v = model.query(images), model.key(model.texts), model.value(model.texts)
    want = F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]
    torch.testing.assert_close(model.conditioned(images), want, rtol=1e-12, atol=1e-12)
    native = torch.nn.MultiheadAttention(16, 1, bias=False, batch_first=True).double()
    with torch.no_grad():
        native.in_proj_weight.copy_(torch.cat([model.query.weight, model.key.weight, model.value.weight]))
        native.out_proj.weight.copy_(torch.eye(16))
        whole, _ = native(images[None], model.texts[None], model.texts[None])  # type: ignore[index]
    torch.testing.assert_close(model.conditioned(images), whole[0], rtol=1e-10, atol=1e-10)


def test_the_order_of_classes_changes_nothing() -> None:
    texts = unit(5, seed=1)
    model = ViLU(texts).double()
    turned = ViLU(texts).double()
    turned.load_state_dict(model.state_dict())
    turned.texts = texts.flip(0)
    torch.testing.assert_close(turned(unit(9)), model(unit(9)), rtol=1e-10, atol=1e-10)


def test_the_loss_by_hand() -> None:
    logits, wrong = torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1.0, 0.0, 1.0])
    s = 1 / (1 + np.exp(-logits.numpy()))
    want = -(3 * math.log(s[0]) + math.log(1 - s[1]) + 3 * math.log(s[2])) / 3
    assert float(weighted_loss(logits, wrong, 3.0)) == pytest.approx(want, rel=1e-6)


def test_it_finds_a_rule_of_the_errors_and_nothing_where_there_is_none() -> None:
    texts, images = unit(4, seed=1).float(), unit(1600, seed=2).float()
    predicted = (images @ texts.T).argmax(-1)
    rule = images[:, 0] + images[:, 1] > 0.1  # errors lie in a half-space
    chance = torch.rand(1600, generator=GENERATOR(3)) < 0.4
    for wrong, low, high in ((rule, 0.97, 1.0), (chance, 0.4, 0.6)):
        labels = torch.where(wrong, (predicted + 1) % 4, predicted)
        model = fit_vilu(images[:1000], labels[:1000], texts)
        with torch.no_grad():
            auroc = roc_auc_score(wrong[1000:], model(images[1000:]))
        assert low <= auroc <= high


def test_it_needs_right_and_wrong_predictions() -> None:
    texts, images = unit(3, seed=1).float(), unit(20).float()
    predicted = (images @ texts.T).argmax(-1)
    for labels in (predicted, (predicted + 1) % 3):
        with pytest.raises(DataError, match="right and wrong"):
            fit_vilu(images, labels, texts)


def test_folds_are_even_in_each_class() -> None:
    labels = np.repeat([0, 1, 2], [10, 11, 3])
    fold = folds(labels, 0)
    for label in range(3):
        count = np.bincount(fold[labels == label], minlength=FOLDS)
        assert np.ptp(count) <= 1
    np.testing.assert_array_equal(fold, folds(labels, 0))
    assert not np.array_equal(fold, folds(labels, 1))
