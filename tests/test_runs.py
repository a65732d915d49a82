"""The big run: its figures, its pieces, and the same pieces through Ray's interface."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest
from PIL import Image

import hydra_core as hc
from hydra_core import cli
from hydra_core.errors import DataError, DependencyError, HydraError
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.runs.recipe import Recipe
from hydra_core.runs.run import run_recipe
from hydra_core.runs.spread import HYDRA, SINGLE, RayCluster, Shard, Work, here, load, logits_of, shards

SHAPE = (8,) * 6
PLAN = Plan(tuple(HeadMask.random(SHAPE, 4, seed=s, layers=(4, 5)) for s in range(2)))
RECIPE = Recipe("demo/fashion-vit", "demo/fashion", PLAN)


@pytest.fixture
def folders(tmp_path):
    """Class folders of demo images, 40 a class, and a folder of noise."""
    bundle = hc.load_data("demo/fashion")
    for label, name in enumerate(bundle.class_names[:2]):
        folder = tmp_path / "mine" / name.replace("/", "-")
        folder.mkdir(parents=True)
        for i in np.flatnonzero(bundle.test.labels == label)[:40]:
            Image.fromarray(np.asarray(bundle.test.inputs[i]).squeeze()).save(folder / f"{i}.png")
    (tmp_path / "static").mkdir()
    rng = np.random.default_rng(0)
    for i in range(20):
        Image.fromarray(rng.integers(0, 255, (28, 28), dtype=np.uint8)).save(tmp_path / "static" / f"{i}.png")
    return tmp_path


def own_work(folders, **more):
    return Work(RECIPE, data=str(folders / "mine"), ood=(("static", str(folders / "static"), "far"),), **more)


def test_a_run_on_own_data_reports_what_evaluate_does(folders):
    work = own_work(folders)
    found = load(work)
    assert set(found.sets) == {"", "static"}
    result = run_recipe(work, folders / "out", bootstrap=0)
    ood = {"static": found.sets["static"]}
    for who, predictor in ((SINGLE, found.view), (HYDRA, found.hydra)):
        expected = hc.evaluate(predictor, found.sets[""], ood, bootstrap=0).row(intervals=False)
        np.testing.assert_equal(result["rows"][who], expected)
    assert result["rows"][SINGLE] != result["rows"][HYDRA]
    assert json.loads((folders / "out" / "report.json").read_text())["samples"] == len(found.sets[""])
    again = hc.load_hydra(folders / "out" / "hydra.safetensors", found.view)
    assert again.plan == PLAN


def test_shards_cover_every_sample_once_and_any_size_gives_the_same_logits(folders):
    work = own_work(folders)
    sizes = {name: len(part) for name, part in load(work).sets.items()}
    pieces = shards(work, rows=7)
    for who in (SINGLE, HYDRA):
        for name, size in sizes.items():
            rows = [i for p in pieces if (p.who, p.name) == (who, name) for i in range(p.start, p.stop)]
            assert rows == list(range(size))
    small = [logits_of(p) for p in pieces if (p.who, p.name) == (HYDRA, "")]
    whole = logits_of(Shard(work, HYDRA, "", 0, sizes[""]))
    np.testing.assert_allclose(np.concatenate(small, axis=1), whole, atol=1e-5)


class FakeRay(types.ModuleType):
    """Ray's calls as the runner uses them; results are made when they are asked for."""

    def __init__(self):
        super().__init__("ray")
        self.log = []
        kinds = {"RayError": Exception}
        base = type("RayError", (Exception,), kinds)
        task = type("RayTaskError", (base,), {"cause": None})
        self.exceptions = types.SimpleNamespace(RayError=base, RayTaskError=task)

    def is_initialized(self):
        return False

    def init(self, **options):
        self.log.append(options)
        if options["address"] == "nowhere:1":
            raise ConnectionError("no head")

    def remote(self, **resources):
        self.log.append(resources)
        return lambda work: types.SimpleNamespace(remote=lambda piece: (work, piece))

    def get(self, pair):
        work, piece = pair
        try:
            return work(piece)
        except HydraError as error:
            wrapped = self.exceptions.RayTaskError("remote")
            wrapped.cause = error
            raise wrapped from None

    def shutdown(self):
        self.log.append("shutdown")


def test_ray_gives_the_logits_in_order_and_is_let_go(folders, monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    pieces = shards(own_work(folders), rows=9)
    steps = []
    got = list(RayCluster(cpus=2, gpus=0.5)(pieces, lambda share, text: steps.append(share)))
    for a, b in zip(got, here(pieces), strict=True):
        np.testing.assert_array_equal(a, b)
    assert fake.log[1] == {"num_cpus": 2, "num_gpus": 0.5}
    assert fake.log[-1] == "shutdown"
    assert steps == [i / len(pieces) for i in range(len(pieces))]


def test_a_workers_error_keeps_its_words(folders, monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    gone = Work(Recipe("demo/no-such-model", "demo/fashion", PLAN))
    with pytest.raises(HydraError, match="no-such-model"):
        list(RayCluster()([Shard(gone, SINGLE, "", 0, 4)]))
    assert fake.log[-1] == "shutdown"
    with pytest.raises(HydraError, match="does not answer"):
        list(RayCluster("nowhere:1")([]))


def test_without_ray_the_text_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DependencyError, match="pip install ray"):
        list(RayCluster()([]))


def test_real_ray_gives_the_same_logits(folders):
    pytest.importorskip("ray", reason="an extra: pip install ray")
    pieces = shards(own_work(folders), rows=16)
    for a, b in zip(RayCluster()(pieces), here(pieces), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"split": "train"}, "no such split"),
        ({"data": ""}, "beside ID data"),
        ({"device": "cuda:99"}, "cannot be put there"),
    ],
)
def test_bad_work_is_refused_in_words(folders, change, words):
    good = {"data": str(folders / "mine"), "ood": (("static", str(folders / "static"), "far"),)}
    with pytest.raises(HydraError, match=words):
        load(Work(RECIPE, **(good | change)))


def test_classes_that_the_model_does_not_have_are_named(folders):
    (folders / "mine" / "trouser").rename(folders / "mine" / "zebra")
    with pytest.raises(DataError, match="zebra"):
        load(own_work(folders))


def test_the_command_runs_own_data(folders, capsys):
    path = folders / "recipe.json"
    path.write_text(RECIPE.to_json())
    words = ["run", str(path), "--out", str(folders / "out"), "--bootstrap", "0", "--data", str(folders / "mine")]
    assert cli.main([*words, "--far", str(folders / "static")]) == 0
    assert "auroc_far" in capsys.readouterr().out
    assert cli.main(["run", str(path), "--near", str(folders / "static")]) == 1
    assert "--data" in capsys.readouterr().err
