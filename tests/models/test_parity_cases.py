"""Every attention class that the census counts as masked has a small model whose numbers are checked in float64.

The checks themselves (all kept == native, masked == cut, fused == mean, each mask bites) run over the same cases in
test_families.py, test_open_clip.py and test_text.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask
from hydra_core.models.attention import class_path, kinds
from hydra_core.models.text_models import text_view
from hydra_core.models.view import ModelView, build_view
from tests.models import family_cases, test_open_clip, test_text
from tests.models.test_families import last_head_of_each

DOCS = Path(__file__).parents[2] / "docs"


def classes_of(view: ModelView) -> set[tuple[str, str]]:
    """(kind, class) of each attention module."""
    return {(layer.kind.name, class_path(view.module.get_submodule(layer.path))) for layer in view.layers}


def with_cut(view: ModelView) -> set[tuple[str, str]]:
    """The same, and those that a cut leaves behind, which `test_what_was_cut_is_cut_again` checks."""
    cut = build_view("cut", prune_model(view, last_head_of_each(HeadMask.full(view.shape), view), gate=True))
    return classes_of(view) | classes_of(cut)


@pytest.fixture(scope="module")
def checked() -> set[tuple[str, str]]:
    """(kind, class) of every attention module in any parity case."""
    families = (build_view(case, family_cases.build(case)[0]) for case in family_cases.CASES)
    towers = (test_open_clip.view_of(case)[0] for case in test_open_clip.CASES)
    texts = (text_view(case, test_text.native(case), None) for case in test_text.CASES)
    return set().union(*map(with_cut, (*families, *towers, *texts)))


def test_every_class_that_a_kind_is_registered_for_has_a_case(checked: set[tuple[str, str]]) -> None:
    registered = {(kind.name, path) for kind in kinds() for path in kind.classes}
    assert not registered - checked


def test_every_kind_has_a_case(checked: set[tuple[str, str]]) -> None:
    """Those too that are told by structure."""
    assert not {kind.name for kind in kinds()} - {name for name, _ in checked}


@pytest.mark.parametrize("report", ["coverage-timm.md", "coverage-open-clip.md"])
def test_every_attention_that_the_census_counts_has_a_case(report: str, checked: set[tuple[str, str]]) -> None:
    names = {name for name, _ in checked}
    rows = re.findall(r"^\| ([^|]+) \| \d+ \| \d+ \| \d+ \| \S+ \|$", (DOCS / report).read_text(), flags=re.MULTILINE)
    assert len(rows) >= 8
    for row in rows:  # "timm AttentionRope, timm AttentionRope, grouped queries": names may hold commas themselves
        rest = row
        for name in sorted(names, key=len, reverse=True):
            rest = rest.replace(name, "")
        assert not rest.strip(", "), row
