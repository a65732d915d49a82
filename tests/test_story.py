"""The README's example, run as it stands, and the command line on its recipe."""

import json
import re
from pathlib import Path

import pytest

import hydra_core as hc
from hydra_core.cli import main
from hydra_core.errors import DataError, UnknownNameError
from hydra_core.runs.recipe import Recipe

ROOT = Path(__file__).parent.parent


def test_the_readme_example_runs(tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"## From Python\n\n((?:    .*\n)+)", text).group(1)
    code = "\n".join(line[4:] for line in block.splitlines())
    code = (
        code.replace("data.val", "data.val.sample(96)")
        .replace("data.ood_val", "few")
        .replace("sample(96), few", "sample(96), few")
    )
    monkeypatch.chdir(tmp_path)
    data = hc.load_data("demo/fashion")
    names = {"few": {name: part.sample(24) for name, part in data.ood_val.items()}}
    exec(code, names)
    assert names["report"].accuracy > 0.7
    assert names["report"].interval("accuracy")[0] < names["report"].accuracy
    assert names["again"].plan == names["hydra"].plan
    (tmp_path / "plain").touch()
    modes = {(tmp_path / name).stat().st_mode for name in ("plain", "hydra.safetensors")}
    assert len(modes) == 1, "a checkpoint has the permissions of any file of this user"
    assert repr(names["model"]) == "<ModelView demo/fashion-vit: 6 x 8 heads, 8 classes, 537,104 parameters>"


def test_names_all_resolve():
    for name in hc.__all__:
        assert getattr(hc, name) is not None
        assert name in dir(hc)


def test_a_recipe_runs_from_the_command_line(tmp_path, capsys):
    shape = (8,) * 6
    plan = hc.Plan((hc.HeadMask.full(shape).prune(5, 0), hc.HeadMask.full(shape).prune(5, 1)))
    path = tmp_path / "recipe.json"
    path.write_text(Recipe("demo/fashion-vit", "demo/fashion", plan, note="n").to_json(), encoding="utf-8")
    assert Recipe.read(path) == Recipe("demo/fashion-vit", "demo/fashion", plan, note="n")
    assert main(["run", str(path), "--out", str(tmp_path / "out"), "--bootstrap", "0", "--split", "val"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["rows"]["single"]["accuracy"] > 0.85
    assert 1 < report["cost"]["macs"] / report["cost"]["single_macs"] < 2
    assert (tmp_path / "out" / "hydra.safetensors").is_file()
    assert "single" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "other"}', '{"format": "hydra-recipe-1"}', "x" * 2_000_000]
)
def test_what_is_no_recipe_is_refused(text):
    with pytest.raises(DataError):
        Recipe.from_json(text)


def test_errors_of_the_command_line_are_one_line(tmp_path, capsys):
    assert main(["run", str(tmp_path / "none.json")]) == 1
    assert main(["score", "demo/fashion-vitt"]) == 1
    assert main(["models", "--source", "tim"]) == 1
    text = capsys.readouterr().err
    assert "Did you mean" in text
    assert "Traceback" not in text


def test_unknown_names_say_what_is_near():
    with pytest.raises(UnknownNameError, match="demo/fashion-vit"):
        hc.load_model("demo/fashion-wit")
    with pytest.raises(UnknownNameError, match="vit_tiny"):
        hc.load_model("timm/vit_tinny_patch16_224")
    with pytest.raises(UnknownNameError, match="demo/fashion"):
        hc.load_data("demo/fashon")


@pytest.mark.parametrize("report", ["coverage-timm", "coverage-open-clip"])
def test_the_coverage_in_the_readme_is_that_of_the_written_report(report):
    readme, written = ((ROOT / path).read_text(encoding="utf-8") for path in ("README.md", f"docs/{report}.md"))
    counts = dict(re.findall(r"^\| ([a-z ]+) \| (\d+) \|$", written, flags=re.MULTILINE))
    row = next(line for line in readme.splitlines() if line.startswith("|") and f"(docs/{report}.md)" in line)
    told = [cell.strip().replace(",", "") for cell in row.strip("|").split("|")[1:]]
    kinds = ("names", "with heads", "masked", "fused", "fused block by block", "cut in every layer", "refused")
    assert told == [counts[kind] for kind in kinds]
