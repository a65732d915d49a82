"""Names from outside with markup in them (HTML, Markdown, LaTeX, Plotly's templates): shown as they are, everywhere."""

import html
import json
import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from google.protobuf.message import Message

from app import bring, lab
from app.charts.attention import token_bars
from app.charts.compare import Value, spread_figure
from app.charts.distributions import confidence_histogram, ood_histogram, risk_coverage
from app.charts.reliability import reliability_figure, small_reliability
from app.charts.scatter import point_cloud, small_multiples
from app.charts.zero_shot import two_scores
from app.errors import escape
from app.gallery import hover_texts
from app.report import report_html
from app.session import Session
from hydra_core.data.sets import SampleSet
from hydra_core.errors import MaskError
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.methods.table import Comparison, RowResult
from hydra_core.metrics import reliability
from tests.app.test_pages import DATA, MODEL, settle, visit

IMAGE, LINK, HOVER = "<img src=x onerror=alert(1)>", '<a href="//evil">x</a>', "%{x} &lt;"
NAMES = (IMAGE, "**bold**", "$x^2$", "a|b", LINK, HOVER, "`code`", "[text](//evil)")


def strings(value):
    """Every text in a figure's JSON, keys aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from strings(inner)


def parts_of(figure):
    """Texts of a figure, without the parts that Plotly's template brings."""
    spec = json.loads(figure if isinstance(figure, str) else figure.to_json())
    spec.get("layout", {}).pop("template", None)
    return list(strings(spec))


def shows(figure, *names):
    """Each name is there, and reads as it is once Plotly has decoded entities; none of it is obeyed."""
    texts = parts_of(figure)
    for name in names:
        assert not [text for text in texts if name in text and name in (IMAGE, LINK, HOVER)], name
        assert any(name in html.unescape(text) for text in texts), name


def bins():
    return reliability(np.array([0.9, 0.6]), np.array([1, 0]))


def picture(dims=2):
    return SimpleNamespace(points=np.zeros((4, dims)), explained=None)


VALUES = np.array([0.1, 0.9])
GROUPS = [(name, "far", slice(i, i + 1)) for i, name in enumerate(NAMES[:4])]
FIGURES = {
    "confidence": lambda: confidence_histogram(VALUES, np.array([True, False]), dict.fromkeys(NAMES, VALUES),
                                               before=(IMAGE, VALUES)),
    "ood": lambda: ood_histogram(dict.fromkeys(NAMES, VALUES), {}),
    "risk": lambda: risk_coverage(dict.fromkeys(NAMES, (VALUES, VALUES))),
    "two scores": lambda: two_scores(NAMES, [0.5] * len(NAMES), [0.5] * len(NAMES)),
    "spread": lambda: spread_figure(
        [SimpleNamespace(name="single", label="Single")], {name: [Value(0.5)] for name in NAMES}, better="high"
    ),
    "members": lambda: small_reliability([(name, bins()) for name in NAMES]),
    "tokens": lambda: token_bars(NAMES, {"head": np.zeros(len(NAMES))}, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_shows_names_as_they_are(name):
    shows(FIGURES[name](), *NAMES)


def test_a_figure_of_two_plans_shows_their_names_as_they_are():
    for one, two in pairwise(NAMES):
        shows(reliability_figure(bins(), bins(), now_name=one, before_name=two), one, two)


@pytest.mark.parametrize("dims", [2, 3])
def test_points_show_names_as_they_are(dims):
    ids = tuple(f"{name}/{i}" for i, name in enumerate(NAMES[:4]))
    inside = SampleSet("x", np.array(NAMES[4:], dtype=object), np.arange(4), ids, NAMES[:4], kind="text")
    hover = hover_texts(lab.Sample(inside, {}, "val"))
    shows(point_cloud(picture(dims), GROUPS, hover), *NAMES)
    shows(small_multiples([("head", picture().points)], GROUPS, hover), *NAMES)
    shows(small_multiples([("head", picture().points)], GROUPS), *NAMES[:4])


def test_the_report_shows_names_as_they_are():
    state = Session(IMAGE, LINK, Plan.full((2, 2)))
    pictures = [(IMAGE, ood_histogram(dict.fromkeys([*NAMES, "</script>"], VALUES), {}), LINK)]
    page = report_html(state, {}, {}, pictures, {"measured on": ", ".join(NAMES)}, IMAGE)
    written = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)  # Plotly's own code, and the figures' JSON
    assert not any(name in page for name in (IMAGE, LINK))
    assert "<img" not in written
    assert "<a " not in written
    assert all(name in html.unescape(written) for name in NAMES)
    assert page.count("<script") == page.count("</script>")


def test_the_markdown_table_shows_names_as_they_are():
    sets = {name: {"auroc": 0.5} for name in NAMES}
    costs = {"parameters": 1, "parameter_ratio": 1.0, "macs": 1, "mac_ratio": 1.0}
    row = RowResult("single", "Single", values={"accuracy": 0.5}, detection={"msp": sets}, costs=costs)
    missing = RowResult("vilu", "ViLU", status=IMAGE)
    text = Comparison((row, missing), {"ood_score": "msp"}).to_markdown()
    table = next(part for part in text.split("\n\n") if "a\\|b" in part).splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1, "a name made a column of its own"
    assert not bare(text)


def bare(text):
    """The name of which something in this Markdown would be obeyed, or None."""
    signs = {IMAGE: r"(?<!\\)<img", LINK: r"(?<!\\)<a ", "**bold**": r"(?<!\\)\*bold", "$x^2$": r"(?<!\\)\$x",
             "a|b": r"a\|b", "`code`": r"(?<!\\)`code", "[text](//evil)": r"(?<!\\)\[text"}  # fmt: skip
    return next((name for name, sign in signs.items() if re.search(sign, text)), None)


def test_what_is_bare_is_found():
    assert [bare(name) for name in NAMES] == [None if name == HOVER else name for name in NAMES]
    assert bare(" ".join(map(escape, NAMES))) is None


# -- pages ---------------------------------------------------------------------------------------

OBEYED = ("body", "label", "help", "caption", "text")  # fields that Streamlit draws as Markdown


def markdown_of(message):
    """Texts of an element that Streamlit draws as Markdown."""
    for field, value in message.ListFields():
        if isinstance(value, Message):
            yield from markdown_of(value)
        elif isinstance(value, str):
            if field.name in OBEYED:
                yield value
        elif field.type == field.TYPE_MESSAGE:
            for inner in value:
                if isinstance(inner, Message):
                    yield from markdown_of(inner)


def obeyed(at):
    """What of the names a page would obey: (type of the element, text)."""
    found = []
    for node in at._tree:
        proto = getattr(node, "proto", None)
        if not isinstance(proto, Message):
            continue
        if node.type == "plotly_chart":
            found += [(node.type, text) for text in parts_of(proto.spec) if IMAGE in text or LINK in text]
        else:
            found += [(node.type, text) for text in markdown_of(proto) if bare(text)]
    return found


@pytest.fixture(scope="module")
def hostile():
    """(model, data): the demo's, with names that hold markup."""
    bundle = lab.data(DATA)

    def renamed(part):
        return replace(part, class_names=NAMES, ids=tuple(f"{IMAGE}/{one}" for one in part.ids))

    def sets(parts):
        return {name: replace(part, name=name) for name, part in zip(NAMES, parts.values(), strict=False)}

    own = replace(bundle, name=IMAGE, val=renamed(bundle.val), test=renamed(bundle.test), train=None,
                  ood_val=sets(bundle.ood_val), ood_test=sets(bundle.ood_test), about=" ".join(NAMES))  # fmt: skip
    view = replace(lab.model(MODEL), class_names=NAMES, name=IMAGE)
    return bring._keep_view(view), bring._register(own)


@pytest.mark.parametrize(
    ("page", "query"),
    [
        ("start", {}),
        ("your_data", {}),
        ("heads", {"head": "5.1"}),
        ("projections", {}),
        *(("what_if", {"picture": name}) for name in ("Members", "Confidence", "Risk and coverage", "OOD scores")),
        ("compare", {}),
        ("noise", {}),
        ("cost", {}),
        ("export", {}),
    ],
)
def test_a_page_shows_names_as_they_are(page, query, hostile):
    model, data = hostile
    plan = Plan((HeadMask.full((8,) * 6).prune(5, 1),))
    at = visit(page, model=model, data=data, plan=plan.text, pins=f"{IMAGE}:{plan.text}", against=IMAGE, **query)
    assert not at.exception
    assert at.session_state["hydra/session"].data == data, "the page must have seen the names"
    assert obeyed(at) == []


def test_words_of_a_zero_shot_page_are_shown_as_they_are(hostile):
    at = visit("zero_shot", model="demo/fashion-clip", data=hostile[1])
    assert not at.exception
    assert at.metric
    assert obeyed(at) == []


def test_the_report_of_a_page_shows_names_as_they_are(hostile, monkeypatch):
    made = []
    monkeypatch.setattr("app.report.report_html", lambda *parts: made.append(report_html(*parts)) or made[-1])
    at = visit("export", model=hostile[0], data=hostile[1])
    settle(at.toggle(key="export/report").set_value(True).run())
    assert IMAGE in html.unescape(made[-1])
    assert IMAGE not in made[-1]


@pytest.mark.parametrize("name", [IMAGE, "a,b", "a|b", "*a*", "x" * 41, ""])
def test_members_have_plain_names(name):
    with pytest.raises(MaskError, match="this name"):
        Plan((HeadMask.full((2,)), HeadMask.full((2,))), ("A", name))
