"""The page Your data in a real browser: an upload from file to figures, what was left out, weights that are none."""

from __future__ import annotations

import io
import pickle
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import expect

import hydra_core as hc
from hydra_core.data.sources import build_bundle

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(150)]
WAIT = 30_000  # ms for one thing to appear: the first one loads the model
EVIL = "<img src=x onerror=window.broken=1>"
BAD = {"notes.jpg": b"no image at all", f"{EVIL}.png": b"\x89PNG\r\n\x1a\n cut", "more.zip": b"PK\x05\x06" + bytes(18)}
CLASSES, PER_CLASS = ("shirt", "t-shirt", "pullover"), 60  # not in the model's order, and easily confused
SAMPLES = "Your labelled samples"


@pytest.fixture(scope="module")
def garments():
    """A zip of class folders: demo images of three classes that the demo model knows, and three files that are none."""
    samples = hc.load_data("demo/fashion").test
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in CLASSES:
            for i in np.flatnonzero(samples.labels == samples.class_names.index(name))[:PER_CLASS]:
                image = io.BytesIO()
                Image.fromarray(samples.inputs[i]).save(image, "PNG")
                archive.writestr(f"{name}/{i}.png", image.getvalue())
        for name, data in BAD.items():
            archive.writestr(f"{CLASSES[0]}/{name}", data)
    return packed.getvalue()


def accuracy_by_name(zipped):
    """(share of validation samples whose predicted name is their folder's, how many), by the model as it is."""
    view, val = hc.load_model("demo/fashion-vit"), build_bundle(zipped, {}, name="garments")[0].val
    with torch.inference_mode():
        predicted = view.module(view.inputs(val)).argmax(1)
    right = [view.class_names[p] == val.class_names[label] for p, label in zip(predicted, val.labels, strict=True)]
    return np.mean(right), len(right)


def open_page(visit, query=""):
    page = visit(f"/your_data{query}")
    page.set_default_timeout(WAIT)
    expect(page.get_by_text("samples right")).to_be_visible(timeout=2 * WAIT)
    return page


def choose_file(page, label, name, data):
    """Into the uploader of that label: they do not all appear at once, so the first one there may be another."""
    uploader = page.get_by_test_id("stFileUploader").filter(has_text=label)
    uploader.locator("input[type=file]").set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    )


def metric(page, label):
    return page.locator("[data-testid=stMetric]").filter(has_text=label).locator("[data-testid=stMetricValue]")


def unharmed(page):
    """Nothing that came with a file ran, and no page error was raised."""
    return page.evaluate("window.broken === undefined") and page.errors == []


def test_a_zip_goes_from_upload_to_base_accuracy_and_no_other_session_lists_it(visit, garments):
    page = open_page(visit)
    choose_file(page, SAMPLES, "garments.zip", garments)
    page.get_by_role("button", name="Read it").click()
    expect(page.get_by_text("3 classes", exact=True)).to_be_visible(timeout=WAIT)
    summary = f"{3 * PER_CLASS} of {3 * PER_CLASS + 2} samples in 3 classes; 3 files skipped"
    expect(page.get_by_text(summary)).to_be_visible()
    page.get_by_text("What was left out (3 shown)").click()
    expect(page.get_by_test_id("stDataFrame")).to_be_visible(timeout=WAIT)
    page.get_by_role("button", name="Use this data").click()
    expect(page.get_by_text("All pages use this data.")).to_be_visible(timeout=WAIT)

    right, count = accuracy_by_name(garments)
    assert 0.4 < right < 1, "classes numbered in another order would give about 0"
    expect(metric(page, "Accuracy")).to_have_text(f"{100 * right:.1f} %", timeout=WAIT)
    expect(page.get_by_text(f"of {count} samples right")).to_be_visible()
    assert "data=yours" in page.url
    assert unharmed(page)

    other = open_page(visit)
    other.get_by_test_id("stSidebar").get_by_role("combobox").nth(1).click()
    options = other.get_by_role("option")
    expect(options.filter(has_text="fashion").first).to_be_visible(timeout=WAIT)
    assert not any("yours" in text or "garments" in text for text in options.all_inner_texts())


def test_a_zip_that_is_none_is_told_of_and_the_page_stays(visit):
    page = open_page(visit)
    choose_file(page, SAMPLES, f"{EVIL}.zip", b"PK\x03\x04 no zip at all")
    page.get_by_role("button", name="Read it").click()
    expect(page.get_by_test_id("stAlert").filter(has_text="cannot be opened as a zip")).to_be_visible(timeout=WAIT)
    expect(page.get_by_text("samples right")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0
    assert unharmed(page)


def test_a_pickle_named_safetensors_is_refused_with_what_to_do(visit):
    page = open_page(visit, "?bring=Bring+a+model")
    page.get_by_role("textbox", name="Model").last.fill("timm/test_vit")
    page.get_by_role("textbox", name="Model").last.press("Enter")
    page.get_by_text("Upload (safetensors)").click()
    choose_file(page, "Weights", "weights.safetensors", pickle.dumps({"w": [0.0] * 8}))
    expect(page.get_by_text("names, shapes and sizes are checked")).to_be_visible(timeout=WAIT)
    page.get_by_role("button", name="Load it").click()
    said = page.get_by_test_id("stAlert").filter(has_text="This is a pickle or torch file, not safetensors")
    expect(said).to_be_visible(timeout=WAIT)
    expect(said).to_contain_text("safetensors.torch.save_file")
    expect(page.get_by_text("samples right")).to_be_visible()
    assert unharmed(page)
