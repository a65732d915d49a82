"""What one session holds: model, data, the plan and its history, pinned settings; and its link.

No Streamlit here: `app.frame` keeps one `Session` a browser session and moves it to and from the
address. A plan is a value, so undo is a list of plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hydra_core.errors import HydraError, MaskError
from hydra_core.heads.mask import HeadMask, Plan

Shape = tuple[int, ...]
MAX_MEMBERS = 8
UNDO_LIMIT = 100
MAX_PINS = 12
URL_KEYS = ("model", "data", "plan", "names", "member")


@dataclass(frozen=True)
class Settings:
    """What a link restores and a pin keeps: everything that decides a report."""

    model: str
    data: str
    plan: Plan


@dataclass
class Session:
    """The state of one browser session.

    Attributes:
        model, data: names of the registry.
        plan: the masks of the members.
        active: the member that the grid edits.
        pins: named settings to compare with, oldest first.
    """

    model: str
    data: str
    plan: Plan
    active: int = 0
    pins: dict[str, Settings] = field(default_factory=dict)
    undo_stack: list[Plan] = field(default_factory=list)
    redo_stack: list[Plan] = field(default_factory=list)
    shelf: dict[str, Plan] = field(default_factory=dict)  # plans of the models that were left

    @property
    def mask(self) -> HeadMask:
        """The mask that the grid edits."""
        return self.plan[self.active]

    @property
    def settings(self) -> Settings:
        return Settings(self.model, self.data, self.plan)

    # -- changing the plan -------------------------------------------------------------------

    def change(self, plan: Plan) -> None:
        """A new plan; the old one can be had back by `undo`."""
        if plan.shape != self.plan.shape:
            plan[0].check(self.plan.shape)
        if len(plan) > MAX_MEMBERS:
            raise MaskError("Too many members", expected=f"at most {MAX_MEMBERS}", got=len(plan))
        if plan != self.plan:
            self.undo_stack = [*self.undo_stack[-(UNDO_LIMIT - 1) :], self.plan]
            self.redo_stack.clear()
            self._show(plan)

    def change_mask(self, mask: HeadMask) -> None:
        """A new mask for the active member."""
        self.change(self.plan.with_mask(self.active, mask))

    def undo(self) -> None:
        if self.undo_stack:
            self.redo_stack.append(self.plan)
            self._show(self.undo_stack.pop())

    def redo(self) -> None:
        if self.redo_stack:
            self.undo_stack.append(self.plan)
            self._show(self.redo_stack.pop())

    def reset(self) -> None:
        """All heads of all members back."""
        self.change(Plan((HeadMask.full(self.plan.shape),) * len(self.plan), self.plan.names))

    def _show(self, plan: Plan) -> None:
        self.plan, self.active = plan, min(self.active, len(plan) - 1)

    # -- members -----------------------------------------------------------------------------

    def choose(self, member: int) -> None:
        """Edit another member."""
        self.active = min(max(0, member), len(self.plan) - 1)

    def add_member(self, mask: HeadMask | None = None) -> None:
        """One member more (all heads kept unless a mask is given), which becomes the active one."""
        self.change(self.plan.add(mask or HeadMask.full(self.plan.shape)))
        self.active = len(self.plan) - 1

    def drop_member(self) -> None:
        """The active member less; the last one stays."""
        if len(self.plan) > 1:
            self.change(self.plan.drop(self.active))

    # -- model, data, pins -------------------------------------------------------------------

    def use_model(self, name: str, shape: Shape) -> None:
        """Another model. Its plan is the one it was left with, or the present one where that fits."""
        if name == self.model:
            return
        self.shelf[self.model] = self.plan
        plan = self.shelf.get(name, self.plan)
        if plan.shape != tuple(shape):
            plan = Plan.full(shape)
        self.model = name
        self.undo_stack.clear()
        self.redo_stack.clear()
        self._show(plan)

    def pin(self, name: str) -> None:
        """Keep the present settings under a name; the oldest pin goes when there are too many."""
        name = name.strip()[:40] or f"Setting {len(self.pins) + 1}"
        self.pins.pop(name, None)
        self.pins[name] = self.settings
        while len(self.pins) > MAX_PINS:
            del self.pins[next(iter(self.pins))]

    def open(self, settings: Settings) -> None:
        """Show pinned or preset settings; undo goes back to the plan before."""
        self.use_model(settings.model, settings.plan.shape)
        self.data = settings.data
        self.change(settings.plan)


# -- the link --------------------------------------------------------------------------------


def to_query(session: Session) -> dict[str, str]:
    """The part of the address that restores a session; what is at its default is left out."""
    query = {"model": session.model, "data": session.data, "plan": session.plan.text}
    if session.plan.names != Plan(session.plan.masks).names:
        query["names"] = ",".join(session.plan.names)
    if session.active:
        query["member"] = str(session.active)
    return query


def from_query(
    query: Mapping[str, str],
    *,
    default_model: str,
    default_data: str,
    check_model: Callable[[str], object],
    check_data: Callable[[str], object],
    shape_of: Callable[[str], Shape],
) -> tuple[Session, list[HydraError]]:
    """A session from an address, and what of the address could not be used.

    Args:
        check_model, check_data: raise a HydraError for a name that does not exist.
        shape_of: heads a layer of a model.

    Returns:
        (session, problems): each part that cannot be read is replaced by its default and reported.
    """
    problems: list[HydraError] = []

    def take(key: str, default: str, check: Callable[[str], object]) -> str:
        try:
            check(query.get(key, default))
            return query.get(key, default)
        except HydraError as error:
            problems.append(error)
            return default

    model = take("model", default_model, check_model)
    data = take("data", default_data, check_data)
    shape = shape_of(model)
    plan = Plan.full(shape)
    if "plan" in query:
        try:
            plan = Plan.parse(query["plan"], shape, MAX_MEMBERS)
            plan = Plan(plan.masks, _names(query.get("names", "")))
        except HydraError as error:
            problems.append(error)
    session = Session(model, data, plan)
    if "member" in query:
        try:
            session.active = _member(query["member"], len(plan))
        except HydraError as error:
            problems.append(error)
    return session, problems


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip()[:24] for part in text.split(",")) if text else ()


def _member(text: str, members: int) -> int:
    if not text.isdecimal() or int(text) >= members:
        raise MaskError("The link names a member that the plan lacks", expected=f"0 to {members - 1}", got=text[:20])
    return int(text)
