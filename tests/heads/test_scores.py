"""Taylor: against finite differences, a closed form, and one backward a sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hydra_core.data.sets import SampleSet
from hydra_core.errors import Cancelled, DataError, UnknownNameError
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.scores import HeadScores, gate_gradients, score_heads
from hydra_core.models.view import ModelView
from tests.fusion.conftest import variant


@pytest.fixture
def case() -> tuple[ModelView, SampleSet]:
    from dataclasses import replace

    view, _ = variant("plain")
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (7, 16, 16), dtype=np.uint8)
    prepare = lambda s: torch.as_tensor(s.inputs[:, None] / 255.0)  # noqa: E731
    ids = tuple(f"s{i}" for i in range(7))
    return replace(view, prepare=prepare), SampleSet("noise", images, rng.integers(0, 5, 7), ids, tuple("abcde"))


def loss_under(view: ModelView, samples: SampleSet, layer: int, head: int, value: float) -> np.ndarray:
    gates = [torch.ones(h, dtype=torch.float64) for h in view.shape]
    gates[layer][head] = value
    with torch.no_grad():
        logits = view.stages().forward_gated(view.prepare(samples), gates)
    return F.cross_entropy(logits, torch.as_tensor(samples.labels), reduction="none").numpy()


def test_gate_gradients_match_finite_differences(case):
    view, samples = case
    table = gate_gradients(view, samples, chunk=3)
    for flat, (layer, head) in enumerate((l, h) for l, n in enumerate(view.shape) for h in range(n)):
        up, down = (loss_under(view, samples, layer, head, 1 + step) for step in (1e-5, -1e-5))
        np.testing.assert_allclose(table[:, flat], (up - down) / 2e-5, atol=1e-7)


def test_taylor_is_the_mean_of_absolute_gradients(case):
    view, samples = case
    scores = score_heads(view, samples, "taylor")
    np.testing.assert_allclose(scores.flat, np.abs(gate_gradients(view, samples)).mean(0), rtol=1e-12)
    assert scores.shape == view.shape
    assert all(l <= s <= h for a, b, c in zip(scores.low, scores.values, scores.high) for l, s, h in zip(a, b, c))


def test_taylor_leaves_the_model_without_gradients(case):
    view, samples = case
    score_heads(view, samples, "taylor")
    assert not any(p.requires_grad or p.grad is not None for p in view.module.parameters())


def test_taylor_works_inside_inference_mode(case):
    view, samples = case
    with torch.inference_mode():
        inside = score_heads(view, samples)
    np.testing.assert_allclose(inside.flat, score_heads(view, samples).flat, rtol=1e-12)


def test_frame_has_one_row_a_head_and_ranks_them():
    frame = HeadScores("x", ((1.0, 3.0), (2.0, 0.0, 5.0))).frame()
    assert frame["layer"].tolist() == [0, 0, 1, 1, 1]
    assert frame["rank"].tolist() == [4, 2, 3, 5, 1]


def test_top_heads_follow_the_scores():
    scores = HeadScores("x", ((1.0, 3.0), (2.0, 5.0)))
    assert HeadMask.top(scores, 1).to_json() == [[0, 1], [0, 1]]


def test_bad_input_is_named(case):
    view, samples = case
    with pytest.raises(UnknownNameError, match="Did you mean taylor"):
        score_heads(view, samples, "tailor")
    from dataclasses import replace

    with pytest.raises(DataError, match="no labels"):
        score_heads(view, replace(samples, labels=None))
    with pytest.raises(DataError, match="empty"):
        score_heads(view, samples.take([]))


def test_cancel_stops_it(case):
    import threading

    view, samples = case
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        score_heads(view, samples, cancel=cancel)
