"""The census, reduced: the smallest name of every attention kind, and what must be refused."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from hydra_core.cli import main
from hydra_core.errors import UnknownNameError, UnsupportedModel
from hydra_core.models import coverage
from hydra_core.models.coverage import FUSED, NO_HEADS, REFUSED, census
from hydra_core.models.view import build_view

# one quick name a family, and the kind and first layers its view must have
NAMES = {
    "test_vit": ("timm Attention", "6x2"),
    "eva02_tiny_patch14_224": ("EVA", "12x3"),
    "eva02_base_patch16_clip_224": ("EVA with scale_norm", "12x12"),
    "vit_small_patch16_rope_mixed_224": ("timm AttentionRope, mixed", "12x6"),
    "beit_base_patch16_224": ("BEiT", "12x12"),
    "test_vit_relpos": ("ViT relative position", "9x3"),
    "cait_xxs24_224": ("talking heads, class attention", "26x4"),
    "xcit_nano_12_p16_224": ("cross-covariance, class attention", "14x4"),
    "swin_tiny_patch4_window7_224": ("Swin", "3+3+6+6+12+12+12+12+12+12+24+24"),
    "levit_128s": ("LeViT", "4+4+8+6+6+6+16+8+8+8+8"),
    "pvt_v2_b0": ("PVT v2", "1+1+2+2+5+5+8+8"),
    "test_coatnet": ("CoAtNet", "2+3+3"),
    "test_maxvit": ("MaxViT", "1+1+2+2+3+3+4+4"),
    "mobilevit_xxs": ("timm Attention", "9x4"),
    "botnet26t_256": ("bottleneck attention", "3x4"),
    "efficientvit_m0": ("EfficientViT cascade", "6x4"),
}


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return census("timm", [*NAMES, "resnet18", "resnet50_clip"]).set_index("name")


@pytest.mark.parametrize("name", NAMES)
def test_name_is_masked_and_fused(table: pd.DataFrame, name: str) -> None:
    row = table.loc[name]
    assert (row.status, row.attention, row.heads) == (FUSED, *NAMES[name]), row.reason


def test_without_heads(table: pd.DataFrame) -> None:
    assert table.loc["resnet18"].status == NO_HEADS
    assert table.loc["resnet50_clip"].status == REFUSED
    assert "AttentionPool2d" in table.loc["resnet50_clip"].reason


def test_totals_add_up(table: pd.DataFrame) -> None:
    totals = coverage.totals(table.reset_index())
    assert totals["names"] == len(NAMES) + 2
    assert totals["with heads"] == totals["masked"] + totals["refused"] == len(NAMES) + 1
    assert totals["fused"] == totals["fused block by block"] + totals["fused as whole members"]
    assert totals["fused as whole members"] == 1, "cait"


def test_report_lists_every_name(table: pd.DataFrame) -> None:
    text = coverage.markdown(table.reset_index(), "timm")
    assert all(f"| {name} |" in text for name in NAMES)
    assert "| resnet50_clip | refused |" in text


def test_image_towers_of_open_clip_are_tried_alike() -> None:
    rows = census("open_clip", ["ViT-S-32", "PE-Core-T-16-384", "RN50"]).set_index("name")
    tried = [(row.status, row.attention, row.heads) for row in rows.itertuples()]
    assert tried[0] == (FUSED, "torch multi-head attention", "12x6"), "open_clip's own tower"
    assert tried[1] == (FUSED, "timm AttentionRope", "12x3"), "a tower of timm's"
    assert tried[2][0] == REFUSED
    assert "AttentionPool2d" in rows.loc["RN50"].reason


@pytest.mark.parametrize(("source", "masked", "fused"), [("timm", 600, 400), ("open-clip", 100, 100)])
def test_the_written_report_is_of_the_whole_registry_and_reaches_the_aims(source: str, masked: int, fused: int) -> None:
    text = (Path(__file__).parents[2] / "docs" / f"coverage-{source}.md").read_text(encoding="utf-8")
    counts = {name: int(n) for name, n in re.findall(r"^\| ([^|]+) \| (\d+) \|$", text, flags=re.MULTILINE)}
    assert counts["names"] == len(coverage.SOURCES[source.replace("-", "_")][0]()), "write the report again"
    assert counts["masked"] >= masked
    assert counts["fused"] >= fused
    assert counts["masked"] + counts["refused"] == counts["with heads"]
    refused = re.findall(r"^\| (\S+) \| refused \| (.+) \|$", text, flags=re.MULTILINE)
    assert len(refused) == counts["refused"]
    assert all("Pool" in reason or "attention" in reason for _, reason in refused), "each by the name of its block"


def test_unknown_source() -> None:
    with pytest.raises(UnknownNameError, match="source"):
        census("nowhere")


class Strange(nn.Module):
    """Attention of a structure nobody registered."""

    num_heads = 4

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_unknown_structure_is_refused_by_name() -> None:
    """One unknown layer refuses the whole model: a mask that skips layers would be wrong without a word."""
    model = nn.Sequential(Strange(), nn.Linear(8, 2))
    with pytest.raises(UnsupportedModel, match="Strange"):
        build_view("odd", model)
    row = coverage.examine("odd", model, torch.empty(2, 8, device="meta"))
    assert (row.status, row.reason) == (REFUSED, "Strange: not a known attention structure")


def test_wrong_shape_is_not_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that runs but gives another shape does not count."""
    import timm

    from hydra_core.models.view import ModelView

    with torch.device("meta"):
        model, image = timm.create_model("test_vit"), torch.empty(2, 3, 160, 160)
    monkeypatch.setattr(ModelView, "__call__", lambda view, x, mask=None: x)
    row = coverage.examine("test_vit", model, image)
    assert row.status == REFUSED
    assert "(2, 3, 160, 160)" in row.reason


def test_command(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    out = tmp_path / "table.csv"
    assert main(["coverage", "--source", "timm", "--only", "test_vit", "--csv", str(out)]) == 0
    assert "masked                             1" in capsys.readouterr().out
    assert pd.read_csv(out).status.tolist() == [FUSED]
    assert coverage.main(["--only", "test_vit2", "--rest", str(out), "--write", str(tmp_path / "t.md")]) == 0
    text = (tmp_path / "t.md").read_text()
    assert "| test_vit |" in text
    assert "| test_vit2 |" in text
