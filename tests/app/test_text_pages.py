"""Texts on every page that images have: a local encoder by its folder, a table as data, a probe between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from app import bring, lab
from app.registry import PAGES
from tests.app.test_pages import settle, texts, visit

hf = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "boat", "the", "sea", "a", "very"]


def folder(where: Path) -> Path:
    """A tiny encoder as transformers saves it."""
    (where / "vocab.txt").write_text("\n".join(WORDS))
    hf.BertTokenizer(str(where / "vocab.txt"), model_max_length=24).save_pretrained(where)
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}
    config = hf.BertConfig(vocab_size=len(WORDS), max_position_embeddings=24, **sizes)
    hf.BertModel(config).save_pretrained(where)
    return where


def table(kind: str, n: int = 60) -> bytes:
    """Texts of unequal length; the label follows from one word."""
    rng = np.random.default_rng(len(kind))
    rows = []
    for i in range(n):
        filler = " ".join(rng.choice(["the", "a", "very", "film"], rng.integers(1, 14)))
        word = {"id": ("good", "bad")[i % 2], "near": "boat", "far": "sea"}[kind]
        rows.append(f"{filler} {word} {i},{'yes' if word == 'good' else 'no'}")
    return ("text,label\n" + "\n".join(rows)).encode()


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """(model, data) by name: the encoder with a probe, and the table with two OOD tables for each use."""
    path = folder(tmp_path_factory.mktemp("encoder"))
    model = bring.load_weights(f"hf/{path}", None)
    ood = {f"{kind}{i}": (table(kind, 40 + i), kind) for kind in ("near", "far") for i in (1, 2)}
    found = bring.read_data("words", table("id"), ood)
    assert not bring.fits(model, found.bundle)
    return bring.fit_probe(model, found.bundle), found.name


def test_the_probe_reads_the_texts(used):
    model, data = used
    assert lab.model(model).info["probe_accuracy"] > 0.9
    report = lab.report(model, data, lab.unpruned(model))
    assert report.accuracy > 0.8


@pytest.mark.parametrize("entry", PAGES, ids=lambda entry: entry.name)
def test_every_page_opens_on_texts(used, entry):
    at = visit(entry.name, model=used[0], data=used[1])
    assert not at.exception
    assert not any("broke" in error.value for error in at.error), [e.value for e in at.error]
    assert at.session_state["hydra/session"].model == used[0]


def test_texts_that_are_cut_are_counted(used):
    model, data = used
    prepare = lab.model(model).prepare
    sets = lab.sample(data).sets.values()
    tokens = [len(prepare.tokenizer(text)["input_ids"]) for part in sets for text in part.inputs]
    assert lab.cut_texts(model, data) == sum(n > 24 for n in tokens)
    assert lab.cut_texts("demo/fashion-vit", "demo/fashion") == 0


def test_pruning_a_head_changes_the_figures(used):
    model, data = used
    full = lab.unpruned(model)
    pruned = full.with_mask(0, full[0].prune(1, 0))
    assert lab.report(model, data, pruned).nll != lab.report(model, data, full).nll


def test_padding_is_no_token_of_a_heads_output(used):
    from hydra_core.heads.attention_maps import head_outputs

    view = lab.model(used[0])
    samples = lab.data(used[1]).val.take(range(6))
    together = head_outputs(view, view.inputs(samples))
    for i in range(6):
        alone = head_outputs(view, view.inputs(samples.take([i])))
        for layer, one in zip(together, alone, strict=True):
            torch.testing.assert_close(layer[i], one[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("criterion", ["attention_entropy", "attention_distance"])
def test_padding_does_not_look(used, criterion):
    from hydra_core.heads.scores import score_heads

    view, samples = lab.model(used[0]), lab.data(used[1]).val.take(range(6))
    alone = [score_heads(view, samples.take([i]), criterion).flat for i in range(6)]
    np.testing.assert_allclose(score_heads(view, samples, criterion).flat, np.mean(alone, 0), atol=1e-5)


def test_the_example_input_is_one_long_text(used):
    from hydra_core.cost import example_input

    ids = example_input(lab.model(used[0]))
    assert ids.shape == (1, 24)
    assert (ids != lab.model(used[0]).pad_id).all()


def test_the_data_panel_takes_a_table_to_all_pages(tmp_path):
    path = folder(tmp_path)
    (tmp_path / "mail.csv").write_bytes(table("id"))
    at = visit("your_data", model=f"hf/{path}")
    assert "cannot read this data" in at.warning[0].value
    at.segmented_control(key="your_data/way").set_value("From this machine or the hub").run()
    at.text_input(key="your_data/path").set_value(str(tmp_path / "mail.csv")).run()
    at = settle(at.button(key="your_data/read").click().run())
    at = settle(at.button(key="your_data/fit").click().run())
    assert not at.exception
    assert "linear probe" in texts(at)
