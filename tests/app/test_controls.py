"""Every control of every page, found by itself: its values are drawn without an error, and a link restores them.

What a control does is tested beside its page; here none can be forgotten.
"""

import pytest
from streamlit.testing.v1.element_tree import TESTING_KEY

from app.registry import PAGES
from hydra_core.heads.mask import HeadMask, Plan
from tests.app.test_pages import settle, visit, warm  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow
FULL = HeadMask.full((8,) * 6)
PLAN = Plan((FULL.prune(5, 0), FULL.prune(4, 3)))
CLIP = "demo/fashion-clip"
# what opens the controls that a page hides at first
VIEWS = {
    "heads": [{"head": "5.0"}],
    "compare": [{}, {"source": "Measure now"}],
    "sweep": [{}, {"source": "Measure now"}],
    "what_if": [{}, {"way": "best of all layers"}],
    "learn": [{"part": part} for part in ("Tour", "The paper's figures", "Glossary")],
    "zero_shot": [{"model": CLIP}, {"model": CLIP, "prompts": "My own"}],
}
ALL = [pytest.param(e.name, query, id=f"{e.name}{i}") for e in PAGES for i, query in enumerate(VIEWS.get(e.name, [{}]))]
CHOICES = ("selectbox", "segmented_control", "select_slider", "multiselect")
KINDS = (*CHOICES, "radio", "checkbox", "slider", "toggle", "number_input", "text_input", "text_area")
# not in the address under their own names, and why
UNBOUND = {
    "hydra/pick_model", "hydra/pick_data",  # the session is: model and data
    "what_if/member", "what_if/against", "what_if/pin_name",  # the session is: member, against, pins
    "hydra/pictures",  # how this reader saves pictures
    "export/note", "export/report",  # goes into the recipe; starts work on test data
    "start/check",  # a question that is asked once
    "your_data/way", "your_data/weights", "your_data/model", "your_data/path", "your_data/paths",  # forms of uploads
    "your_data/weights_path",
}  # fmt: skip


def controls(at):
    """{key: widget} of what can be set now; buttons start work and are tested beside their pages."""
    return {w.key: w for kind in KINDS for w in getattr(at, kind) if w.key and not w.disabled}


def values(widget):
    """Values to try: the last, one in the middle and the first of a choice; both ends of a range; on and off."""
    options = list(getattr(widget, "options", []))
    if widget.type == "multiselect":
        return [options[-1:], options[:2]]
    if options:
        picked = [options[i] for i in dict.fromkeys((len(options) - 1, len(options) // 2, 0))]
        return [[one] for one in picked] if isinstance(widget.value, list) else picked
    if widget.type == "slider":
        low, high = (int(end) if end == int(end) else end for end in (widget.min, widget.max))
        return [low, high] if isinstance(widget.value, int | float) else [(low + 1, high), (low, low)]
    return {"number_input": [9, 0], "toggle": [True, False], "text_area": ["one\ntwo", "<b>\n{}"]}.get(
        widget.type, ["<b>"]
    )


def put(at, key, value):
    """Set a control as a reader does: a choice by the words on it."""
    widget = controls(at)[key]
    if options := getattr(widget, "options", None):
        words = widget.format_func
        widget.root.session_state[TESTING_KEY][widget.id] = lambda v: v if v in options else words(v)
    widget.set_value(value)
    return settle(at.run())


def shown(at, key):
    """The value of a control, a choice as the words on it."""
    widget = controls(at)[key]
    if not hasattr(type(widget), "format_func") or not widget.options:
        return widget.value
    words = widget.format_func
    return [str(words(v)) for v in widget.value] if isinstance(widget.value, list) else str(words(widget.value))


@pytest.mark.parametrize(("page", "query"), ALL)
def test_every_value_of_every_control_is_drawn_without_an_error(page, query):
    at = visit(page, plan=PLAN.text, **query)
    for key in controls(at).keys() - {"hydra/pick_model", "hydra/pick_data"}:
        if page == "zero_shot" and key in ("classes", "own"):
            continue  # not every text is a list of classes: test_zero_shot
        if key not in controls(at):  # the control before has hidden it
            at = visit(page, plan=PLAN.text, **query)
        for value in values(controls(at)[key]):
            if key not in controls(at):
                break  # the choice before has hidden it
            at = put(at, key, value)
            assert not at.exception, (key, value)
            assert not at.error, (key, value, [e.value for e in at.error])


def other(at, key):
    """(value for the address, how it will be shown) of a control that is not at it yet."""
    for value in values(controls(at)[key]):
        seen = list(map(str, value)) if isinstance(value, list) else value
        if seen != shown(at, key) and value != []:
            words = list(map(str, value)) if isinstance(value, list | tuple) else str(value)
            return words.lower() if isinstance(value, bool) else words, seen
    raise AssertionError(f"{key} has one value alone")


def warnings(at):
    """Warnings, but for those of values that others of the same link have made impossible."""
    return [box.value for box in at.warning if "could not be used" not in box.value]


@pytest.mark.parametrize(("page", "query"), ALL)
def test_a_link_restores_every_control(page, query):
    at = visit(page, plan=PLAN.text, **query)
    assert not {key for key in controls(at) if "/" in key} - UNBOUND, "bind it, or say above why not"
    moved = {key: other(at, key) for key in controls(at) if key not in UNBOUND and key not in query and key != "fit"}
    if page != "learn":  # whose part decides what else there is
        moved.pop("source", None)
    again = visit(page, plan=PLAN.text, **query, **{key: asked for key, (asked, _) in moved.items()})
    assert not again.exception
    assert not warnings(again) or "final" in moved  # test data come with a warning
    assert again.session_state["hydra/session"].plan == PLAN or page == "zero_shot"
    for key, (asked, seen) in moved.items():
        if key not in controls(again) or shown(again, key) != seen:  # one of the others hides it: alone, then
            alone = visit(page, plan=PLAN.text, **query, **{key: asked})
            assert shown(alone, key) == seen, key
            assert not alone.warning, key
