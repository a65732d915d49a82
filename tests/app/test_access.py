"""Paths of the server's machine: for a server that serves that machine alone, whoever asks and wherever."""

from __future__ import annotations

import json

import pytest
import streamlit as st

from app import access, bring, lab
from app.registry import ROOT
from hydra_core.errors import HydraError
from hydra_core.heads.mask import HeadMask, Plan
from tests.app.test_bring import zip_of
from tests.app.test_pages import DATA, MODEL, SHAPE, settle, visit
from tests.app.test_text_pages import folder

PATHS = ["hf//etc", "hf/../x", "hf/~/models", "hf/./tests", "hf/tests", "hf/tests/app", "hf/a/b/c", "hf/C:\\models",
         "hf/", "timm//etc/passwd", "timm/../w.pth", "open_clip/local-dir:/x", "open_clip/a:/b"]  # fmt: skip
HUB = ["hf/bert-base-uncased", "hf/sentence-transformers/all-MiniLM-L6-v2", "timm/vit_tiny_patch16_224.augreg_in21k",
       "open_clip/ViT-B-32:laion2b_s34b_b79k", "demo/fashion-vit", "yours/abc-_9"]  # fmt: skip


@pytest.fixture
def open_server():
    """The server listens on an address that other machines reach."""
    address = st.get_option("server.address")
    st.config.set_option("server.address", "0.0.0.0")
    yield
    st.config.set_option("server.address", address)


@pytest.fixture
def encoder(tmp_path):
    """A folder of this machine that holds a text encoder, as a name of the dashboard."""
    return f"hf/{folder(tmp_path)}"


def said(at):
    return "\n".join(box.value for box in [*at.warning, *at.error]).replace("\\", "")


def test_which_servers_serve_their_own_machine_alone():
    assert access.only_this_machine("127.0.0.1")
    assert access.only_this_machine("localhost")
    assert not access.only_this_machine("0.0.0.0")
    assert not access.only_this_machine(None)
    assert not access.only_this_machine("")


@pytest.mark.parametrize("name", PATHS)
def test_names_that_lead_to_paths(name, open_server):
    with pytest.raises(HydraError, match="loads no model from a path"):
        access.check_model(name)


@pytest.mark.parametrize("name", HUB)
def test_names_of_registries_and_of_the_hub_are_free(name, open_server):
    access.check_model(name)


@pytest.mark.parametrize("name", PATHS + HUB)
def test_at_home_every_name_may_be_tried(name):
    access.check_model(name)


def test_an_address_with_a_path_is_refused_by_an_open_server(open_server, encoder):
    at = visit("cost", model=encoder, data=DATA)
    assert "loads no model from a path" in said(at)
    assert at.session_state["hydra/session"].model == MODEL
    assert not at.exception


def test_an_address_with_a_path_opens_at_home(encoder):
    at = visit("your_data", model=encoder, data=DATA)
    assert at.session_state["hydra/session"].model == encoder
    assert not at.exception


def typed(name):
    at = visit("your_data")
    picker = at.selectbox(key="hydra/pick_model")
    picker.options.append(name)  # typed by hand
    return settle(picker.set_value(name).run())


def test_a_path_typed_into_the_side_bar_is_refused_by_an_open_server(open_server, encoder):
    at = typed(encoder)
    assert "loads no model from a path" in said(at)
    assert at.session_state["hydra/session"].model == MODEL


def test_a_path_typed_into_the_side_bar_opens_at_home(encoder):
    assert typed(encoder).session_state["hydra/session"].model == encoder


def test_demo_names_are_free_on_an_open_server(open_server):
    at = visit("cost", model="demo/fashion-vit-s1", data=f"{DATA}~jpeg-1")
    assert at.session_state["hydra/session"].model == "demo/fashion-vit-s1"
    assert not at.warning
    assert typed("demo/fashion-vit-s2").session_state["hydra/session"].model == "demo/fashion-vit-s2"


def test_data_names_lead_to_no_path(open_server):
    for name in ("/etc", "hf:me/cats", str(ROOT), "yours/../x"):
        at = visit("your_data", data=name)
        assert "There is no data set named" in said(at)
        assert at.session_state["hydra/session"].data == DATA


def test_a_recipe_with_a_path_is_refused_by_an_open_server(open_server, encoder):
    text = lab.recipe(MODEL, DATA, Plan((HeadMask.full(SHAPE),)))
    parts = json.loads(text) | {"model": encoder}
    with pytest.raises(HydraError, match="loads no model from a path"):
        lab.model(lab.read_recipe(json.dumps(parts).encode()).model)


def test_your_data_takes_uploads_alone_on_an_open_server(open_server, tmp_path, encoder):
    at = visit("your_data")
    assert at.segmented_control(key="your_data/way").options == ["Upload"]
    own = zip_of(["a", "b"], 6)
    (tmp_path / "x.zip").write_bytes(own)
    with pytest.raises(HydraError, match="opens no path"):
        bring.read_data("x", str(tmp_path / "x.zip"), {})
    with pytest.raises(HydraError, match="opens no path"):
        bring.read_data("x", own, {"ood": (str(tmp_path / "x.zip"), "far")})
    with pytest.raises(HydraError, match="opens no path"):
        bring.load_weights("timm/test_vit", str(tmp_path / "x.zip"))
    for source in (None, b"an upload"):
        with pytest.raises(HydraError, match="loads no model from a path"):
            bring.load_weights(encoder, source)
