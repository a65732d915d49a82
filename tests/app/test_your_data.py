"""The page Your data: base accuracy first; uploads, paths, corrupted versions and weights, each to its end."""

from __future__ import annotations

import io
import threading
import zipfile

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save
from streamlit.testing.v1 import AppTest

from app import bring, lab, yours
from app.registry import ROOT
from hydra_core.errors import BudgetError, DataError, HydraError
from hydra_core.heads.mask import Plan
from hydra_core.models.demo import demo_module
from hydra_core.models.view import build_view
from tests.app.test_bring import zip_of
from tests.app.test_pages import DATA, MODEL, settle, texts, visit


def state_of(at):
    return at.session_state["hydra/session"]


def test_the_base_accuracy_is_the_reports():
    at = visit("your_data")
    report = lab.report(MODEL, DATA, lab.unpruned(MODEL))
    labels = lab.sample(DATA).id.labels
    shown = {metric.label: metric.value for metric in at.metric}
    assert shown["Accuracy"] == f"{100 * report.accuracy:.1f} %"
    assert shown["A constant answer"] == f"{100 * np.bincount(labels).max() / len(labels):.1f} %"
    assert not at.warning
    assert "free" in texts(at)


def test_a_model_that_guesses_is_called_one():
    torch.manual_seed(0)
    view = lab.model(MODEL)
    name = bring._keep_view(build_view("x", demo_module(), class_names=view.class_names, prepare=view.prepare,
                                       input_size=view.input_size))  # fmt: skip
    at = visit("your_data", model=name)
    assert "No better than a constant answer" in at.warning[0].value


# -- corrupted versions ----------------------------------------------------------------------------


def test_a_corrupted_version_serves_all_pages():
    at = visit("your_data", bring="A shifted version", corruption="Gaussian noise", severity="5")
    at = settle(at.button(key="your_data/shift_to").click().run())
    assert not at.exception
    name = f"{DATA}~gaussian_noise-5"
    assert state_of(at).data == name
    noisy, clean = (lab.report(MODEL, d, Plan.full((8,) * 6)) for d in (name, DATA))
    assert noisy.accuracy < clean.accuracy
    shown = {metric.label: metric.value for metric in at.metric}
    assert shown["Accuracy"] == f"{100 * noisy.accuracy:.1f} %"
    at = settle(at.button(key="your_data/clean").click().run())
    assert state_of(at).data == DATA


def test_a_link_to_a_corrupted_version():
    at = visit("what_if", data=f"{DATA}~jpeg-1")
    assert state_of(at).data == f"{DATA}~jpeg-1"
    assert not at.exception
    at = visit("your_data", data=f"{DATA}~nothing-1")
    assert state_of(at).data == DATA
    assert at.warning


# -- data ------------------------------------------------------------------------------------------


def folder_of(tmp_path, classes):
    with zipfile.ZipFile(io.BytesIO(zip_of(classes))) as archive:
        archive.extractall(tmp_path / "pictures")  # made above
    return tmp_path / "pictures"


def test_a_folder_of_this_machine_with_a_probe(tmp_path):
    folder = folder_of(tmp_path, ["low", "mid", "top"])
    (tmp_path / "odd.zip").write_bytes(zip_of(["x"], seed=3))
    at = visit("your_data")
    at.segmented_control(key="your_data/way").set_value("From this machine or the hub").run()
    at.text_input(key="your_data/path").set_value(str(folder)).run()
    at.text_area(key="your_data/paths").set_value(f"far {tmp_path / 'odd.zip'}").run()
    at = settle(at.button(key="your_data/read").click().run())
    assert "**3 classes**" in texts(at)
    at = settle(at.button(key="your_data/fit").click().run())
    assert not at.exception
    assert state_of(at).data.startswith("yours/")
    assert lab.model(state_of(at).model).class_names == ("low", "mid", "top")
    assert "linear probe" in texts(at)
    assert at.success


def test_lines_of_ood_sources():
    assert bring.parse_sources("near /a/b/cats.zip\n\n far hf:me/dogs \nfar /a/b/") == {
        "cats": ("/a/b/cats.zip", "near"),
        "dogs": ("hf:me/dogs", "far"),
        "b": ("/a/b/", "far"),
    }
    for line in ("cats.zip", "near", "close /a"):
        with pytest.raises(DataError, match="names no OOD source"):
            bring.parse_sources(line)


def test_a_wrong_path_is_told_in_words(tmp_path):
    at = visit("your_data")
    at.segmented_control(key="your_data/way").set_value("From this machine or the hub").run()
    at.text_input(key="your_data/path").set_value(str(tmp_path / "nowhere")).run()
    at = settle(at.button(key="your_data/read").click().run())
    assert "There is nothing at" in at.error[0].value
    assert not at.exception


# -- weights -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own():
    return bring.read_data("bands", zip_of(["low", "mid", "top"]), {})


def test_uploaded_weights_become_a_model_that_no_list_shows(own):
    torch.manual_seed(0)
    native = timm.create_model("test_vit", num_classes=4).eval()
    name = bring.load_weights("timm/test_vit", save(native.state_dict()))
    assert name.startswith("yours/")
    view = lab.model(name)
    assert view.info["made_from"] == "timm/test_vit"
    x = torch.randn(1, 3, 160, 160)
    with torch.inference_mode():
        torch.testing.assert_close(view(x), native(x))
    assert not bring.fits(name, own.bundle)
    fitted = bring.fit_probe(name, own.bundle)
    assert lab.model(fitted).info["probe_accuracy"] > 0.5


def loaded_by_path(tmp_path, classes, brought=None):
    """The page after a checkpoint with so many classes was loaded from a file."""
    torch.manual_seed(0)
    file = tmp_path / "w.safetensors"
    file.write_bytes(save(timm.create_model("test_vit", num_classes=classes).state_dict()))
    at = visit("your_data", bring="Bring a model")
    if brought is not None:
        at.session_state[yours.BROUGHT] = brought
    at.text_input(key="your_data/model").set_value("timm/test_vit").run()
    at.segmented_control(key="your_data/weights").set_value(yours.FILE).run()
    at.text_input(key="your_data/weights_path").set_value(str(file)).run()
    return settle(at.button(key="your_data/load").click().run())


def test_weights_of_this_machine_on_the_page(tmp_path):
    at = loaded_by_path(tmp_path, classes=4)
    assert not at.exception
    assert "**timm/test\\_vit (yours)** is loaded: 6 x 2 heads" in texts(at)
    assert any("no training part" in info.value for info in at.info), "the demo data cannot fit a classifier"
    with pytest.raises(KeyError):
        at.button(key="your_data/fit")


def test_a_checkpoint_keeps_its_own_classifier_on_the_data_that_wait_for_it(tmp_path, own):
    at = loaded_by_path(tmp_path, classes=3, brought=own)
    assert "In order: low, mid, top" in texts(at)
    at = settle(at.button(key="your_data/use_named").click().run())
    state = at.session_state["hydra/session"]
    assert state.data == own.name
    assert lab.model(state.model).class_names == ("low", "mid", "top")
    assert "**timm/test\\_vit (yours)** on **bands**" in texts(at)
    assert "is loaded" not in texts(at), "what was loaded is in use, so nothing waits any more"
    native = timm.create_model("test_vit", num_classes=3).eval()
    native.load_state_dict(lab.model(state.model).module.state_dict())
    x = torch.randn(1, 3, 160, 160)
    with torch.inference_mode():
        torch.testing.assert_close(lab.model(state.model)(x), native(x))


@pytest.mark.parametrize("classes", [3, 4])
def test_a_checkpoint_can_get_a_new_classifier_for_the_data_that_wait_for_it(tmp_path, own, classes):
    at = loaded_by_path(tmp_path, classes, brought=own)
    if classes == 3:
        at = settle(at.radio(key="your_data/outputs").set_value(at.radio(key="your_data/outputs").options[1]).run())
    at = settle(at.button(key="your_data/fit").click().run())
    state = at.session_state["hydra/session"]
    assert state.data == own.name
    assert "**timm/test\\_vit, new classifier (yours)** on **bands**" in texts(at)


def test_only_a_model_without_names_takes_those_of_the_data(own):
    with pytest.raises(HydraError, match="cannot take these names"):
        bring.name_classes(MODEL, own.bundle)


@pytest.mark.parametrize(("name", "content"), [("timm/test_vit", b"junk"), ("timm/no_such_model", b"x"), ("odd", b"x")])
def test_weights_that_cannot_be_used_are_told_in_words(name, content):
    with pytest.raises(HydraError):
        bring.load_weights(name, content)


def test_torch_files_come_with_a_warning():
    at = visit("your_data", bring="Bring a model")
    at.segmented_control(key="your_data/weights").set_value(yours.FILE).run()
    at.text_input(key="your_data/weights_path").set_value("/somewhere/w.PTH").run()
    assert any("can hold code" in warning.value for warning in at.warning)
    at.text_input(key="your_data/weights_path").set_value("/somewhere/w.safetensors").run()
    assert not at.warning


def test_offline_weights_say_what_to_download(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    at = visit("your_data", bring="Bring a model")
    at.text_input(key="your_data/model").set_value("timm/vit_tiny_patch16_224").run()
    at = settle(at.button(key="your_data/load").click().run())
    assert "Download the weights elsewhere" in at.error[0].value


# -- names and memory --------------------------------------------------------------------------------


def test_data_numbered_for_two_models_are_two_data_sets():
    names = lab.model(MODEL).class_names
    brought = bring.read_data("known", zip_of([names[2], names[0]]), {})
    first = bring.align(brought, MODEL)
    assert first.name != brought.name
    assert brought.is_used(first.name)
    assert brought.is_used(f"{first.name}~fog-2")
    assert not brought.is_used("demo/fashion")
    assert lab.data(brought.name).val.labels.max() == 1, "the data as they were read are still there"
    assert set(lab.data(first.name).val.labels) == {0, 2}
    assert bring.align(brought, MODEL).name == first.name


def test_texts_and_images_do_not_mix():
    table = "text,label\n" + "\n".join(f"word {i},{'ab'[i % 2]}" for i in range(40))
    found = bring.read_data("t", table.encode(), {})
    problem = bring.reads(MODEL, found.bundle)
    assert problem is not None
    assert "cannot read" in str(problem)
    assert bring.reads(MODEL, lab.data(DATA)) is None


def test_what_does_not_fit_into_memory_is_refused_before_it_starts(monkeypatch):
    from hydra_core import memory

    assert lab.memory(MODEL, DATA).total > 0
    monkeypatch.setattr(memory, "free_memory", lambda: 1000)
    options = lab.Options(n=123)  # a sample that no other test has measured
    with pytest.raises(BudgetError, match="Lower the number of samples"):
        lab.report(MODEL, DATA, lab.unpruned(MODEL), options)


def test_the_pictures_of_severities_are_one_image():
    pictures = lab.severities(DATA, "contrast")
    assert [p.shape for p in pictures] == [(28, 28)] * 6
    spread = [p.astype(float).std() for p in pictures]
    assert spread == sorted(spread, reverse=True)


def test_a_slow_memory_estimate_is_progress_that_can_be_cancelled(monkeypatch):
    """The first pass of a large model takes seconds, and more behind other sessions' work."""
    go, real = threading.Event(), lab.memory
    monkeypatch.setattr(lab, "memory", lambda *args: (go.wait(60), real(*args))[1])
    try:
        at = AppTest.from_file(str(ROOT / "app" / "main.py"), default_timeout=60)
        at.switch_page("../pages/your_data.py").run()
        lab.report(MODEL, DATA, lab.unpruned(MODEL))
        at.run()
        (job,) = at.session_state["hydra/jobs"].active()
        assert job.title == "Estimating memory"
        assert not any("Memory" in caption.value for caption in at.caption)
        assert {metric.label for metric in at.metric} >= {"Accuracy"}, "the answer does not wait for it"
        assert at.title
        at.button(key=f"job/{job.key}/stop").click().run()
        assert job.wait(10)
        assert job.state == "cancelled"
    finally:
        go.set()
    at = settle(at.run())
    at = settle(at.button(key=f"job/{job.key}/again").click().run())
    assert any("Memory" in caption.value for caption in at.caption)
