"""Running out of memory: chunks are halved, results stay the same, and what cannot fit is said before it starts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hydra_core.data.sets import SampleSet
from hydra_core.errors import BudgetError
from hydra_core.evaluation import forward_set
from hydra_core.fusion.evaluator import MaskEvaluator
from hydra_core.heads.attention_maps import head_outputs
from hydra_core.heads.mask import HeadMask
from hydra_core.heads.scores import gate_gradients, score_heads
from hydra_core.memory import Estimate, by_batches, by_chunks, estimate, is_out_of_memory
from hydra_core.models.probe import features_of

KINDS = [
    MemoryError(),
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 400 bytes."),
]


@pytest.mark.parametrize("error", KINDS, ids=lambda error: type(error).__name__)
def test_out_of_memory_is_told_from_other_errors(error):
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize("limit", [1, 2, 5, 7, 100])
def test_chunks_are_halved_until_they_fit(limit):
    tried = []

    def work(start, stop):
        tried.append(stop - start)
        if stop - start > limit:
            raise MemoryError
        return list(range(start, stop))

    smaller = []
    shares = []
    found = by_chunks(23, 8, work, on_halved=smaller.append, progress=lambda share, text: shares.append(share))
    assert [x for part in found for x in part] == list(range(23))
    assert max(len(part) for part in found) <= limit
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert len(smaller) == {1: 3, 2: 2, 5: 1, 7: 1, 100: 0}[limit], "a size that failed is not tried again"


def test_one_sample_that_does_not_fit_says_what_to_lower():
    def work(start, stop):
        raise MemoryError

    with pytest.raises(BudgetError, match="Lower the number of samples"):
        by_chunks(4, 4, work)


def test_other_errors_pass_through():
    def work(start, stop):
        raise KeyError("x")

    with pytest.raises(KeyError):
        by_chunks(4, 4, work)


@pytest.mark.parametrize("axis", [0, -2])
def test_batches_hold_texts_of_like_length_and_come_back_in_order(axis):
    texts = np.array(["a" * length for length in (3, 9, 1, 5, 7)], dtype=object)
    samples = SampleSet("texts", texts, None, tuple(map(str, range(5))), kind="text")
    seen = []

    def lengths(part):
        seen.append([len(text) for text in part.inputs])
        return np.array(seen[-1], float)[:, None]  # (n, 1)

    found = by_batches(samples, 2, lengths, axis=axis)
    assert seen == [[9, 7], [5, 3], [1]]
    assert found[:, 0].tolist() == [3, 9, 1, 5, 7]


# -- the engine, on a model that runs out of memory above a batch size --------------------------------


@pytest.fixture
def tight(demo, monkeypatch):
    """(view, samples, largest batches that ran): the demo model, whose norms fail above 5 samples."""
    view, bundle = demo
    ran = []
    native = torch.nn.functional.layer_norm

    def norm(x, *args, **kwargs):
        if len(x) > 5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        ran.append(len(x))
        return native(x, *args, **kwargs)

    samples = bundle.val.sample(17)
    plain = {
        "one": MaskEvaluator(view, view.inputs(samples)).logits(HeadMask.random(view.shape, 3, 1)),
        "many": MaskEvaluator(view, view.inputs(samples)).many(_masks(view)),
        "gradients": gate_gradients(view, samples),
        "outputs": head_outputs(view, view.inputs(samples)),
        "forward": forward_set(view, view, samples),
        "features": features_of(view, samples),
        "entropy": score_heads(view, samples, "attention_entropy").flat,
    }
    monkeypatch.setattr(torch.nn.functional, "layer_norm", norm)
    return view, samples, ran, plain


@pytest.fixture(scope="module")
def demo():
    import hydra_core as hc

    return hc.load_model("demo/fashion-vit"), hc.load_data("demo/fashion")


def _masks(view):
    return [HeadMask.random(view.shape, 5, seed) for seed in range(6)]


def test_the_evaluator_goes_on_with_smaller_chunks(tight):
    view, samples, ran, plain = tight
    evaluator = MaskEvaluator(view, view.inputs(samples))
    many = evaluator.many(_masks(view))
    np.testing.assert_allclose(many, plain["many"], atol=1e-5)
    np.testing.assert_allclose(evaluator.logits(HeadMask.random(view.shape, 3, 1)), plain["one"], atol=1e-5)
    assert evaluator.chunk <= 5
    assert max(ran) <= 5


def test_scores_outputs_and_forwards_go_on_with_smaller_chunks(tight):
    view, samples, ran, plain = tight
    np.testing.assert_allclose(gate_gradients(view, samples), plain["gradients"], atol=1e-5)
    np.testing.assert_allclose(forward_set(view, view, samples), plain["forward"], atol=1e-5)
    np.testing.assert_allclose(features_of(view, samples), plain["features"], atol=1e-5)
    for got, want in zip(head_outputs(view, view.inputs(samples)), plain["outputs"], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(score_heads(view, samples, "attention_entropy").flat, plain["entropy"], atol=1e-5)
    assert max(ran) <= 5


# -- the estimate ----------------------------------------------------------------------------------------


def test_the_estimate_counts_what_is_allocated(demo):
    view, bundle = demo
    one = view.inputs(bundle.val.sample(1))
    found = estimate(view, 1000, one=one, masks=3)
    assert found.inputs == 1000 * 28 * 28 * 4
    assert found.logits == 3 * 1000 * 8 * 4
    evaluator = MaskEvaluator(view, view.inputs(bundle.val.sample(200)))
    evaluator.many(_masks(view))
    kept = sum(spine.used for spine in evaluator._spines.values())
    assert evaluator.peak + kept <= estimate(view, 200, one=one).activations
    assert "free" in found.text


def test_what_does_not_fit_is_refused_with_what_to_lower():
    fits = Estimate(10, 20, 30, 60)
    assert fits.check() is fits
    assert Estimate(10, 20, 30, None).check().total == 60
    with pytest.raises(BudgetError, match="Lower the number of samples"):
        Estimate(10, 20, 31, 60).check()
