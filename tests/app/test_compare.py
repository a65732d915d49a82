"""The Compare page: measured on request, best marked in each figure's own direction."""

import ast
import types

import pandas as pd

from app import lab
from app.charts.compare import Value, front_of
from app.registry import page
from hydra_core.methods.table import Comparison, RowResult
from tests.app.test_pages import settle, visit


def test_it_measures_when_asked_and_answers(monkeypatch):
    monkeypatch.setattr(lab, "stored_comparison", lambda model, data: None)
    at = visit("compare")
    at.multiselect(key="rows").set_value(["single", "hydra_random"]).run()
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


def functions():
    """The page's functions without the call that draws."""
    tree = ast.parse(page("compare").path.read_text(encoding="utf-8"))
    tree.body = tree.body[:-1]
    module = types.ModuleType("compare_page")
    exec(compile(tree, "compare", "exec"), module.__dict__)
    return module


def test_best_and_second_are_marked():
    plain = pd.DataFrame({"Row": ["a", "b", "c"], "ECE": [0.1, 0.3, 0.2], "Accuracy": [0.7, 0.9, 0.8]})
    styler = functions().marked(plain, {"ECE": "low", "Accuracy": "high"})
    shown = styler._compute()._translate(sparse_index=False, sparse_cols=False)["body"]
    cells = [[cell["display_value"] for cell in line if cell["type"] == "td"] for line in shown]
    plainly = [[text.replace("\u0332", "") for text in line] for line in cells]
    assert plainly == [["a", "0.100", "0.700"], ["b", "0.300", "0.900"], ["c", "0.200", "0.800"]]
    underlined = {(i, j) for i, line in enumerate(cells) for j, text in enumerate(line) if "\u0332" in text}
    assert underlined == {(2, 1), (2, 2)}
    assert styler.ctx[(0, 1)] == styler.ctx[(1, 2)] == [("font-weight", "bold")]


def test_columns_of_each_view_come_from_the_asked_score_and_set():
    figures = {"*": {"auroc": 0.7, "fpr95": 0.4}, "sandal": {"auroc": 0.6, "fpr95": 0.5}}
    row = RowResult("single", "Single", values={"auroc": 0.9, "accuracy": 0.8, "disagreement": None},
                    costs={"mac_ratio": 1.0}, detection={"msp": figures, "energy": figures})  # fmt: skip
    table = Comparison((row,), {"ood_score": "msp", "shifts": {"sandal": "near"}})
    columns = functions().columns
    assert columns(table, "key", "msp")[0]["AUROC"].tolist() == [0.9]
    assert columns(table, "key", "energy")[0]["AUROC"].tolist() == [0.7]
    plain, better, helps = columns(table, "sets", "energy")
    assert plain["AUROC sandal"].tolist() == [0.6]
    assert (better["AUROC sandal"], better["FPR95 sandal"], better["Multiply-adds"]) == ("high", "low", "low")
    assert "near OOD" in helps["AUROC sandal"]
    assert "Disagreement" not in columns(table, "diversity", "msp")[0]  # nothing to show in it


def test_the_stored_table_answers_and_its_score_can_be_picked():
    at = visit("compare")
    assert not at.exception
    assert not at.error
    assert "Hydra (Circ)" in at.markdown[1].value or any("Hydra (Circ)" in m.value for m in at.markdown)
    before = at.dataframe[0].value
    at = at.selectbox(key="score").select("energy").run()
    after = at.dataframe[0].value
    assert not at.exception
    assert after["Accuracy"].tolist() == before["Accuracy"].tolist()
    assert after["AUROC"].tolist() != before["AUROC"].tolist()
    at = at.segmented_control(key="view").set_value("sets").run()
    assert {"AUROC sandal", "AUROC mnist", "AUROC photos"} <= set(at.dataframe[0].value.columns)
    at = at.selectbox(key="score").select("mutual_information").run()
    assert any("measures how members differ" in c.value for c in at.caption)


def test_a_link_restores_score_columns_and_figure():
    at = visit("compare", score="k-nearest neighbours", view="Calibration", quality="ECE")
    assert not at.exception
    assert at.selectbox(key="score").value == "knn"
    assert "Brier" in at.dataframe[0].value.columns
    assert at.segmented_control(key="quality").value == "ece"


def test_the_answer_owns_up_to_differences_smaller_than_seeds():
    verdict = functions()._verdict
    assert verdict("auroc", Value(0.91, 0.02), Value(0.90, 0.01)) == "better, by less than seeds differ"
    assert verdict("auroc", Value(0.95, 0.02), Value(0.90, 0.01)) == "better"
    assert verdict("ece", Value(0.03), Value(0.02)) == "not better"
    assert verdict("auroc", Value(None), Value(0.9)) == "not measured"


def test_single_repeats_are_told_what_to_be_compared_with():
    single = RowResult("single", "Single", repeats=3, first={"auroc": 0.916})
    assert "AUROC 0.916" in functions().once([single], "auroc")
    assert functions().once([RowResult("single", "Single", repeats=1, first={"auroc": 0.9})], "auroc") == ""
    assert functions().once([], "auroc") == ""
