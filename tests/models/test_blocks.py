"""Rules for blocks: which module counts as one, and which arguments follow the members."""

from __future__ import annotations

import torch
from torch import nn

from hydra_core.fusion.ensemble import Branch, select_groups
from hydra_core.fusion.grouped import MemberLoop
from hydra_core.models.view import outermost
from tests.models.family_cases import build


def test_outermost_block_wins() -> None:
    """LeViT has attention between its stages' blocks: then the stage is the block."""
    paths = ["stages.0.blocks.0", "stages.1", "stages.1.blocks.0", "stages.10", "stages.0.blocks.0"]
    assert outermost(paths) == ["stages.0.blocks.0", "stages.1", "stages.10"]


def test_blocks_do_not_nest() -> None:
    from hydra_core.models.view import build_view

    for case in ("levit", "mobilevit", "crossvit", "efficientformer v2"):
        blocks = build_view(case, build(case)[0]).blocks
        assert not any(a != b and a.startswith(f"{b}.") for a in blocks for b in blocks), blocks


class AddPositions(nn.Module):
    """x + positions, times a weight."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return (x + positions.sum()) * self.weight


def test_positions_with_as_many_rows_as_the_batch_are_not_split() -> None:
    """Two members x two samples = 4 rows, and 4 positions: only the stream is divided among members."""
    x, positions = torch.ones(4, 3), torch.arange(8.0).reshape(4, 2)
    got = MemberLoop([AddPositions(1.0), AddPositions(2.0)])(x, positions)
    assert torch.equal(got, torch.tensor([29.0, 29.0, 58.0, 58.0])[:, None].expand(4, 3))


def test_attention_masks_follow_their_samples() -> None:
    """A (B, 1, T, T) mask repeats for every group; a (1, 1, T, T) one stays."""
    seen = []

    class Look(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            seen.append(mask)
            return x

    branch = Branch(Look(), parents=(0, 0, 0), before=1)
    mask = torch.arange(2.0)[:, None, None, None].expand(2, 1, 4, 4)
    assert branch(torch.zeros(2, 4, 8), mask).shape == (6, 4, 8)
    branch(torch.zeros(2, 4, 8), mask[:1])
    assert seen[0][:, 0, 0, 0].tolist() == [0, 1, 0, 1, 0, 1]
    assert seen[1].shape == (1, 1, 4, 4)


def test_select_groups_of_several_scales() -> None:
    """Every tensor of a list follows its group, whatever its width."""
    streams = [torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])]  # 2 groups x 1 sample
    first, second = select_groups(streams, parents=(1, 0, 1), before=2)
    assert first[:, 0].tolist() == second[:, 1].tolist() == [1, 0, 1]
