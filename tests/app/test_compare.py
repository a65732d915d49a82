"""The Compare page: measured on request, best marked in each figure's own direction."""

import ast
import types

import pandas as pd

from app import lab
from app.charts.compare import front_of
from app.registry import page
from tests.app.test_pages import settle, visit


def test_it_measures_when_asked_and_answers(monkeypatch):
    monkeypatch.setattr(lab, "stored_comparison", lambda model, data: None)
    at = visit("compare")
    at.multiselect(key="compare/rows").set_value(["single", "hydra_random"]).run()
    at = settle(at.button(key="compare/go").click().run())
    assert not at.exception
    assert not at.error
    shown = at.dataframe[0].value
    assert shown["Row"].tolist() == ["Single", "Hydra (random heads)"]
    assert shown["Multiply-adds"].iloc[0] == 1
    assert shown["Multiply-adds"].iloc[1] > 1
    assert shown["Accuracy"].between(0.5, 1).all()


def test_the_front_keeps_what_nothing_beats():
    points = [(1.0, 0.8), (1.2, 0.7), (1.5, 0.9), (3.0, 0.95), (2.0, None)]
    assert front_of(points, "high") == [(1.0, 0.8), (1.5, 0.9), (3.0, 0.95)]
    assert front_of(points, "low") == [(1.0, 0.8), (1.2, 0.7)]


def test_best_and_second_are_marked():
    tree = ast.parse(page("compare").path.read_text(encoding="utf-8"))
    tree.body = tree.body[:-1]  # the functions without the call that draws
    module = types.ModuleType("compare_page")
    exec(compile(tree, "compare", "exec"), module.__dict__)
    plain = pd.DataFrame({"Row": ["a", "b", "c"], "ECE": [0.1, 0.3, 0.2], "Accuracy": [0.7, 0.9, 0.8]})
    styler = module.marked(plain, {"ECE": "low", "Accuracy": "high"})
    styles = styler._compute().ctx
    assert styles[(0, 1)] == [("font-weight", "bold")]
    assert styles[(1, 2)] == [("font-weight", "bold")]
    assert styles[(2, 1)] == [("text-decoration", "underline")]
