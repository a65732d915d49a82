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
MAX_PIN_TEXT = 1200  # characters of pins in an address; more stay in the session alone
URL_KEYS = ("model", "data", "plan", "names", "member", "locked", "pins", "against")


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
        against: the pin that changes are measured against; "" for the unpruned model.
        locked: names of the members that nothing changes until they are unlocked.
    """

    model: str
    data: str
    plan: Plan
    active: int = 0
    pins: dict[str, Settings] = field(default_factory=dict)
    against: str = ""
    locked: frozenset[str] = frozenset()
    undo_stack: list[Plan | Settings] = field(default_factory=list)  # settings where other model or data were opened
    redo_stack: list[Plan | Settings] = field(default_factory=list)
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
        _check_members(plan)
        plan = self._keep_locked(plan)
        if plan != self.plan:
            self._remember(self.plan)
            self._show(plan)

    def change_mask(self, mask: HeadMask) -> None:
        """A new mask for the active member.

        Raises:
            MaskError: the member is locked.
        """
        self._check_lock()
        self.change(self.plan.with_mask(self.active, mask))

    def undo(self) -> None:
        self._travel(self.undo_stack, self.redo_stack)

    def redo(self) -> None:
        self._travel(self.redo_stack, self.undo_stack)

    def _travel(self, back: list[Plan | Settings], forth: list[Plan | Settings]) -> None:
        """The nearest plan of `back` that differs from the present one once locked members are left alone."""
        while back:
            step = back.pop()
            if isinstance(step, Settings):
                forth.append(self.settings)
                self._become(step)
                return
            plan = self._keep_locked(step)
            if plan != self.plan:
                forth.append(self.plan)
                self._show(plan)
                return

    def _remember(self, step: Plan | Settings) -> None:
        self.undo_stack = [*self.undo_stack[-(UNDO_LIMIT - 1) :], step]
        self.redo_stack.clear()

    def _become(self, settings: Settings) -> None:
        """Other model, data and plan; locks are of the plan that is left."""
        self.shelf[self.model] = self.plan
        self.model, self.data, self.locked = settings.model, settings.data, frozenset()
        self._show(settings.plan)

    def reset(self) -> None:
        """All heads of all members back, but for locked ones."""
        self.change(Plan((HeadMask.full(self.plan.shape),) * len(self.plan), self.plan.names))

    def _show(self, plan: Plan) -> None:
        self.plan, self.active = plan, min(self.active, len(plan) - 1)
        self.locked &= frozenset(plan.names)

    # -- members -----------------------------------------------------------------------------

    def choose(self, member: int) -> None:
        """Edit another member."""
        self.active = min(max(0, member), len(self.plan) - 1)

    def add_member(self, mask: HeadMask | None = None) -> None:
        """One member more (all heads kept unless a mask is given), which becomes the active one."""
        self.change(self.plan.add(mask or HeadMask.full(self.plan.shape)))
        self.active = len(self.plan) - 1

    def drop_member(self) -> None:
        """The active member less; the last one stays.

        Raises:
            MaskError: the member is locked.
        """
        self._check_lock()
        if len(self.plan) > 1:
            self.change(self.plan.drop(self.active))

    # -- locks ---------------------------------------------------------------------------------

    @property
    def is_locked(self) -> bool:
        """Whether the active member is locked."""
        return self.plan.names[self.active] in self.locked

    def toggle_lock(self) -> None:
        """Lock the active member against every change, or unlock it."""
        self.locked ^= {self.plan.names[self.active]}

    def _check_lock(self) -> None:
        if self.is_locked:
            name = self.plan.names[self.active]
            raise MaskError(f"Member {name} is locked", hint="Unlock it to change its heads.")

    def _keep_locked(self, plan: Plan) -> Plan:
        """Locked members as they are, whatever the plan says of them."""
        held = {n: m for n, m in zip(self.plan.names, self.plan, strict=True) if n in self.locked}
        return Plan(tuple(held.get(n, m) for n, m in zip(plan.names, plan, strict=True)), plan.names)

    # -- model, data, pins -------------------------------------------------------------------

    def use_model(self, name: str, shape: Shape) -> None:
        """Another model. Its plan is the one it was left with, or the present one where that fits."""
        if name == self.model:
            return
        self.shelf[self.model] = self.plan
        plan = self.shelf.get(name, self.plan)
        if plan.shape != tuple(shape):
            plan = Plan.full(shape)
        self.model, self.locked = name, frozenset()
        self.undo_stack.clear()
        self.redo_stack.clear()
        self._show(plan)

    def pin(self, name: str) -> None:
        """Keep the present settings under a name; the oldest pin goes when there are too many."""
        name = pin_name(name) or f"Setting {len(self.pins) + 1}"
        self.pins.pop(name, None)
        self.pins[name] = self.settings
        while len(self.pins) > MAX_PINS:
            self.unpin(next(iter(self.pins)))

    def unpin(self, name: str) -> None:
        """Forget a pin."""
        self.pins.pop(name, None)
        if self.against == name:
            self.against = ""

    @property
    def reference(self) -> Plan | None:
        """The plan that changes are measured against; None for the unpruned model."""
        pin = self.pins.get(self.against)
        return pin.plan if pin is not None and (pin.model, pin.data) == (self.model, self.data) else None

    def open(self, settings: Settings) -> None:
        """Show pinned or preset settings; undo goes back to the plan before, its model and data. Locks are lifted."""
        _check_members(settings.plan)
        self.locked = frozenset()
        if (settings.model, settings.data) == (self.model, self.data):
            self.change(settings.plan)
        else:
            self._remember(self.settings)
            self._become(settings)


def _check_members(plan: Plan) -> None:
    if len(plan) > MAX_MEMBERS:
        raise MaskError("Too many members", expected=f"at most {MAX_MEMBERS}", got=len(plan))


def pin_name(text: str) -> str:
    """A name as a pin and its address can hold it."""
    return " ".join("".join(" " if char in ":;," else char for char in text).split())[:40]


# -- the link --------------------------------------------------------------------------------


def to_query(session: Session) -> dict[str, str]:
    """The part of the address that restores a session; what is at its default is left out."""
    query = {"model": session.model, "data": session.data, "plan": session.plan.text}
    if session.plan.names != Plan(session.plan.masks).names:
        query["names"] = ",".join(session.plan.names)
    if session.active:
        query["member"] = str(session.active)
    if session.locked:
        query["locked"] = ",".join(name for name in session.plan.names if name in session.locked)
    pins = pins_text(session)
    if pins:
        query["pins"] = pins
        if session.reference is not None:
            query["against"] = session.against
    return query


def pins_text(session: Session) -> str:
    """The pins of the present model and data as the address holds them: name:plan;name:plan. "" if too long."""
    here = (session.model, session.data)
    kept = [f"{name}:{pin.plan.text}" for name, pin in session.pins.items() if (pin.model, pin.data) == here]
    text = ";".join(kept)
    return text if len(text) <= MAX_PIN_TEXT else ""


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
    session.locked = frozenset(query.get("locked", "").split(",")) & frozenset(plan.names)
    try:
        session.pins = _pins(query.get("pins", ""), session)
    except HydraError as error:
        problems.append(error)
    if query.get("against", "") in session.pins:
        session.against = query.get("against", "")
    return session, problems


def _pins(text: str, session: Session) -> dict[str, Settings]:
    """Pins from an address.

    Raises:
        MaskError: one of them is not a name and a plan of this model.
    """
    found: dict[str, Settings] = {}
    for part in [p for p in text.split(";") if p][:MAX_PINS]:
        name, _, plan = part.partition(":")
        if not pin_name(name):
            raise MaskError("The link has a pin without a name", expected="name:plan", got=part[:60])
        masks = Plan.parse(plan, session.plan.shape, MAX_MEMBERS)
        found[pin_name(name)] = Settings(session.model, session.data, masks)
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip()[:24] for part in text.split(",")) if text else ()


def _member(text: str, members: int) -> int:
    if not text.isdecimal() or int(text) >= members:
        raise MaskError("The link names a member that the plan lacks", expected=f"0 to {members - 1}", got=text[:20])
    return int(text)
