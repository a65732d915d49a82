"""Users' own data, from upload to the figures of a page."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from app import bring, lab
from hydra_core.data.load import DATA, list_data
from hydra_core.errors import HydraError
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.models.load import list_models

MODEL = "demo/fashion-vit"


def zip_of(classes, per_class=24, seed=0):
    rng = np.random.default_rng(seed)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for c, name in enumerate(classes):
            for i in range(per_class):
                image = rng.integers(0, 60, (28, 28), dtype=np.uint8)
                image[4 * c : 4 * c + 4] += 180  # a bright band whose place is the class
                data = io.BytesIO()
                Image.fromarray(image).save(data, "PNG")
                archive.writestr(f"{name}/{i}.png", data.getvalue())
    return out.getvalue()


@pytest.fixture(scope="module")
def own():
    ood = {"noise": (zip_of(["x"], seed=3), "far"), "other": (zip_of(["y"], seed=4), "far")}
    return bring.read_data("bands", zip_of(["low", "mid", "top"]), ood)


def test_uploads_become_a_data_set_that_no_list_shows(own):
    assert own.bundle.class_names == ("low", "mid", "top")
    assert own.bundle.ood_val
    assert own.bundle.ood_test
    assert lab.data(own.name).digest == own.bundle.digest
    assert own.name in DATA
    assert own.name not in list_data()
    assert own.name.startswith("yours/")
    assert len(own.name) > 16


def test_names_cannot_be_guessed(own):
    again = bring.read_data("bands", zip_of(["low", "mid", "top"]), {})
    assert again.name != own.name


def test_a_probe_fits_the_model_to_the_classes(own):
    assert not bring.fits(MODEL, own.bundle)
    name = bring.fit_probe(MODEL, own.bundle)
    view = lab.model(name)
    assert view.class_names == ("low", "mid", "top")
    assert view.info["probe_accuracy"] > 0.9
    assert name not in list_models("demo")
    full = Plan.full(view.shape)
    report = lab.report(name, own.name, full)
    assert report.accuracy > 0.8
    pruned = lab.report(name, own.name, Plan((HeadMask.random(view.shape, 1, seed=0),)))
    assert pruned.nll != report.nll


def test_classes_that_the_model_knows_need_no_probe():
    names = lab.model(MODEL).class_names[:3]
    known = bring.read_data("known", zip_of(names), {})
    assert bring.fits(MODEL, known.bundle)
    aligned = bring.align(known, MODEL)
    assert set(aligned.bundle.val.labels) <= set(range(3))
    assert aligned.bundle.train.class_names == aligned.bundle.val.class_names, "a probe would learn wrong names"
    assert aligned.bundle.class_names == lab.model(MODEL).class_names


def test_what_is_no_data_is_refused_in_words():
    with pytest.raises(HydraError):
        bring.read_data("junk", b"\x00\x01 not a file", {})


def test_the_oldest_leave_when_room_runs_out(monkeypatch):
    first = bring.read_data("b", zip_of(["a", "b"], 6, 0), {}).name
    size = bring._order[first]
    assert size == 2 * 6 * 28 * 28
    monkeypatch.setattr(bring, "ROOM", sum(bring._order.values()) + size)
    second = bring.read_data("b", zip_of(["a", "b"], 6, 1), {}).name
    assert first in DATA
    monkeypatch.setattr(bring, "ROOM", 2 * size)
    third = bring.read_data("b", zip_of(["a", "b"], 6, 2), {}).name
    assert first not in DATA
    assert second in DATA
    assert third in DATA
    monkeypatch.setattr(bring, "ROOM", 0)
    last = bring.read_data("b", zip_of(["a", "b"], 6, 3), {}).name
    assert last in DATA, "what was just brought stays, whatever its size"
    assert third not in DATA
