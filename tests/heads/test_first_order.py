"""The first-order term against a numerical derivative of the ensemble's own loss."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hydra_core.data.sets import SampleSet
from hydra_core.errors import MaskError
from hydra_core.heads.first_order import loss_changes, predicted_change
from hydra_core.heads.mask import HeadMask
from tests.fusion.conftest import variant


@pytest.fixture(scope="module")
def case():
    plain, x = variant("plain")
    view = replace(plain, prepare=lambda part: x[[int(i) for i in part.ids]])
    blank = np.zeros((4, 16, 16), np.uint8)
    samples = SampleSet("toy", blank, np.array([0, 1, 2, 3]), tuple("0123"), tuple("abcde"))
    return view, samples, loss_changes(view, samples)


def nll(view, samples, gates_of_members):
    """NLL of the mean probability of members under any gates."""
    x, y = view.inputs(samples), torch.as_tensor(samples.labels)
    with torch.no_grad():
        probs = torch.stack([view.stages().forward_gated(x, gates).softmax(-1) for gates in gates_of_members]).mean(0)
    return float(F.nll_loss(probs.log(), y))


def gates(view, mask, step):
    """All heads at 1, the mask's removed ones at 1 - step."""
    return [1 - step * (1 - torch.tensor(row, dtype=torch.float64)) for row in mask.rows]


def test_the_term_is_the_derivative_of_the_ensembles_loss_along_the_removal(case):
    view, samples, changes = case
    full = HeadMask.full(view.shape)
    masks = [full.prune(0, 1).prune(2, 3), full.prune(1, 0), full]
    step = 1e-5
    up = nll(view, samples, [gates(view, m, step) for m in masks])
    down = nll(view, samples, [gates(view, m, -step) for m in masks])
    assert predicted_change(changes, masks) == pytest.approx((up - down) / (2 * step), rel=1e-5)


def test_a_full_plan_changes_nothing_and_shapes_are_checked(case):
    view, _, changes = case
    assert predicted_change(changes, [HeadMask.full(view.shape)]) == 0
    with pytest.raises(MaskError):
        predicted_change(changes, [HeadMask.full((2, 2))])
