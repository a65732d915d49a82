"""The training loop: it learns, repeats by seed, resumes exactly, stops when told; augmentation and outliers."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from hydra_core.errors import Cancelled, CheckpointError, DataError, ModelError
from hydra_core.training import Recipe, augment, fit
from hydra_core.training.loop import batches
from hydra_core.training.outliers import outliers
from hydra_core.training.recipe import decay_groups, learning_rate

RECIPE = Recipe(epochs=4, batch=32, lr=0.02, ema=0.9, weight_decay=0.01, seed=3)


def problem(n: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rings: no linear model separates them."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (n,), generator=g)
    angle = 2 * math.pi * torch.rand(n, generator=g)
    x = torch.stack([angle.cos(), angle.sin()], 1) * (1 + y)[:, None]
    return x + 0.05 * torch.randn(n, 2, generator=g), y


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))


def images(n: int = 6) -> torch.Tensor:
    return torch.rand(n, 1, 12, 12, generator=torch.Generator().manual_seed(1))


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_learns_what_a_linear_model_cannot() -> None:
    x, y = problem()
    module = network()
    done = fit(module, x, y, replace(RECIPE, epochs=12))
    assert not module.training
    assert (module(x).argmax(1) == y).float().mean() > 0.97
    assert done.history[-1]["loss"] < 0.5 * done.history[0]["loss"]
    assert len(done.history) == 12
    assert done.seconds > 0


def test_same_seed_same_weights_other_seed_other_weights() -> None:
    x, y = problem()
    a, b, c = network(), network(), network()
    fit(a, x, y, RECIPE)
    torch.manual_seed(999)  # the state of the global generator must not matter
    fit(b, x, y, RECIPE)
    fit(c, x, y, replace(RECIPE, seed=4))
    assert same(a, b)
    assert not same(a, c)


def test_leaves_the_global_generator_alone() -> None:
    x, y = problem(64)
    torch.manual_seed(5)
    expected = torch.rand(3)
    module = network()
    torch.manual_seed(5)
    fit(module, x, y, replace(RECIPE, epochs=1))
    assert torch.equal(torch.rand(3), expected)


def test_resumed_run_gives_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    x, y = problem()
    whole, broken = network(), network()
    expected = fit(whole, x, y, RECIPE)
    stop, file = threading.Event(), tmp_path / "run.pt"

    def halfway(share: float, _: str) -> None:
        if share > 0.6:
            stop.set()

    with pytest.raises(Cancelled):
        fit(broken, x, y, RECIPE, checkpoint=file, progress=halfway, cancel=stop)
    fresh = network(seed=8)  # every weight must come from the checkpoint
    resumed = fit(fresh, x, y, RECIPE, checkpoint=file)
    assert same(whole, fresh)
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in expected.history]


def test_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    x, y = problem(64)
    first, second = network(), network(seed=1)
    fit(first, x, y, RECIPE, checkpoint=tmp_path / "run.pt")
    fit(second, x, y, RECIPE, checkpoint=tmp_path / "run.pt")
    assert same(first, second)


def test_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    x, y = problem(64)
    fit(network(), x, y, RECIPE, checkpoint=tmp_path / "run.pt")
    with pytest.raises(CheckpointError, match="another recipe"):
        fit(network(), x, y, replace(RECIPE, lr=0.5), checkpoint=tmp_path / "run.pt")


def test_cancel_before_the_first_step_changes_nothing() -> None:
    x, y = problem(64)
    stop = threading.Event()
    stop.set()
    module, untouched = network(), network()
    with pytest.raises(Cancelled):
        fit(module, x, y, RECIPE, cancel=stop)
    assert same(module, untouched)


def test_progress_rises_to_one() -> None:
    x, y = problem(64)
    seen: list[float] = []
    fit(network(), x, y, replace(RECIPE, batch=2), progress=lambda share, _: seen.append(share))
    assert seen == sorted(seen)
    assert 0 < seen[0] < seen[-1] <= 1


def test_last_batch_of_one_joins_the_one_before() -> None:
    assert [len(part) for part in batches(torch.arange(65), 32)] == [32, 33]
    assert [len(part) for part in batches(torch.arange(66), 32)] == [32, 32, 2]
    assert [len(part) for part in batches(torch.arange(2), 1)] == [1, 1]
    x, y = problem(65)
    fit(network(), x, y, replace(RECIPE, epochs=1))


@pytest.mark.parametrize(("x", "y"), [(torch.zeros(0, 2), torch.zeros(0)), (torch.zeros(3, 2), torch.zeros(2))])
def test_bad_samples_are_refused(x: torch.Tensor, y: torch.Tensor) -> None:
    with pytest.raises(DataError, match="Nothing to train on"):
        fit(network(), x, y.long(), RECIPE)


def test_frozen_module_is_refused() -> None:
    x, y = problem(64)
    with pytest.raises(ModelError, match="nothing to train"):
        fit(network().requires_grad_(False), x, y, RECIPE)


def test_divergence_is_told() -> None:
    x, y = problem(64)
    with pytest.raises(ModelError, match="diverged"):
        fit(network(), x * float("inf"), y, RECIPE)


def test_frozen_parameters_stay() -> None:
    x, y = problem(64)
    module = network()
    module[0].requires_grad_(False)
    before = module[0].weight.clone(), module[4].weight.clone()
    fit(module, x, y, RECIPE)
    assert torch.equal(module[0].weight, before[0])
    assert not torch.equal(module[4].weight, before[1])


def test_own_loss_takes_member_logits() -> None:
    """An ensemble's (M, B, C) logits train with a loss of their own."""
    x, y = problem()

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.members = nn.ModuleList([network(0), network(1)])

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return torch.stack([member(batch) for member in self.members])

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)))

    module = Two()
    fit(module, x, y, replace(RECIPE, epochs=20), loss=loss)
    assert ((module(x).argmax(-1) == y).float().mean(1) > 0.95).all()


def test_averaged_weights_match_the_sum_written_out() -> None:
    """Two steps without decay, clip or dropout: mean = d2 (d1 w0 + (1 - d1) w1) + (1 - d2) w2."""
    x, y = problem(64)
    plain, averaged = nn.Linear(2, 2), nn.Linear(2, 2)
    averaged.load_state_dict(plain.state_dict())
    recipe = Recipe(epochs=2, batch=64, lr=0.1, clip=1e9, weight_decay=0.0, seed=1)
    weights = [plain.weight.detach().clone()]
    fit(plain, x, y, recipe, evaluate=lambda m: weights.append(m.weight.detach().clone()) or {})
    fit(averaged, x, y, replace(recipe, ema=0.15))
    d1, d2 = min(0.15, 1 / 10), min(0.15, 2 / 11)
    w0, w1, w2 = weights
    expected = d2 * (d1 * w0 + (1 - d1) * w1) + (1 - d2) * w2
    torch.testing.assert_close(averaged.weight.detach(), expected)


def test_outliers_are_answered_with_uniform_predictions() -> None:
    x, y = problem()
    far = torch.randn(200, 2, generator=torch.Generator().manual_seed(2)) * 0.1  # the empty middle of the rings
    plain, exposed = network(), network()
    recipe = replace(RECIPE, epochs=60)
    fit(plain, x, y, recipe)
    fit(exposed, x, y, replace(recipe, outlier_weight=0.3, outlier_share=0.25), outliers=far)
    top = [m(far).softmax(-1).max(-1).values.mean().item() for m in (plain, exposed)]
    assert top[1] < top[0] - 0.1
    assert (exposed(x).argmax(1) == y).float().mean() > 0.95


def test_mixup_still_learns() -> None:
    x, y = problem(64)
    done = fit(network(), x, y, replace(RECIPE, mixup=0.4))
    assert all(math.isfinite(row["loss"]) for row in done.history)
    assert done.history[-1]["loss"] < done.history[0]["loss"]


def test_learning_rate_rises_and_falls() -> None:
    recipe = Recipe(lr=2.0, warmup=0.1)
    rates = [learning_rate(recipe, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(2.0 * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * 45 / 90))))
    assert rates[-1] < 0.03
    assert np.all(np.diff(rates[:10]) > 0)
    assert np.all(np.diff(rates[10:]) < 0)


def test_only_matrices_decay() -> None:
    module = network()
    held, free = decay_groups(module, 0.05)
    assert {id(p) for p in held["params"]} == {id(module[0].weight), id(module[4].weight)}
    assert (held["weight_decay"], free["weight_decay"]) == (0.05, 0.0)
    assert len(held["params"]) + len(free["params"]) == len(list(module.parameters()))


def test_shift_moves_by_whole_pixels() -> None:
    x = images(64)
    moved = augment.shift(x, 2, torch.Generator().manual_seed(0))
    padded = nn.functional.pad(x, (2, 2, 2, 2), mode="replicate")
    crops = torch.stack([padded[:, :, i : i + 12, j : j + 12] for i in range(5) for j in range(5)])
    hits = (crops == moved).flatten(2).all(-1)  # (25 moves, 64 images)
    assert hits.any(0).all()
    assert hits.any(1).sum() > 15  # most moves occur


def test_flip_mirrors_some() -> None:
    x = images(64)
    out = augment.flip(x, torch.Generator().manual_seed(0))
    kept, mirrored = (out == x).flatten(1).all(1), (out == x.flip(-1)).flatten(1).all(1)
    assert torch.all(kept ^ mirrored)
    assert 16 < mirrored.sum() < 48


def test_erase_sets_one_rectangle_to_the_mean() -> None:
    x = images(64)
    out = augment.erase(x, 1.0, torch.Generator().manual_seed(0))
    changed = out != x
    assert changed.flatten(1).any(1).all()
    for image, before, where in zip(out, x, changed, strict=True):
        rows, columns = where[0].any(1), where[0].any(0)
        assert where[0].sum() == rows.sum() * columns.sum()  # a full rectangle
        torch.testing.assert_close(image[where], before.mean().expand(int(where.sum())))
    assert torch.equal(augment.erase(x, 0.0, torch.Generator().manual_seed(0)), x)


def test_mixup_blends_with_its_permutation() -> None:
    x = images(16)
    out, order, weight = augment.mixup(x, 0.4, torch.Generator().manual_seed(0))
    torch.testing.assert_close(out, weight * x + (1 - weight) * x[order])
    assert 0 <= weight <= 1
    again = augment.mixup(x, 0.4, torch.Generator().manual_seed(0))
    assert torch.equal(out, again[0])


def test_drawn_outliers_repeat_by_seed_and_are_images() -> None:
    a, b, c = outliers(80, seed=1), outliers(80, seed=1), outliers(80, seed=2)
    assert a.shape == (80, 28, 28)
    assert a.dtype == np.uint8
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert len({image.tobytes() for image in a}) == 80
