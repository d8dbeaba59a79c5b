"""The fate of each task at a start, decided once and with its reason.

The checks of a start, the takeover, refusals, rewinds and the log lines of a start go by this table. The first rule that fits a
task decides:

1. A task that is named in `rebuild` is rebuilt.
2. A task that the log does not have is new, or reset if it is named in `reset`.
3. A task that is named in `reset` is reset. But a derived task is rebuilt from what feeds it, and only an ordered task whose
   messages are reset starts from zero at the global clock, as they do.
4. A task goes on if its code and what feeds it are as they were, and no task that feeds it starts over.
5. A task that can't go on is refused if it would lose what nothing gives to it again: messages of sources, closed windows,
   emitted rows and pairs. To name a task that feeds it is not enough, as a start that was refused can be made again.
6. Any other task that can't go on starts over. It lacks nothing afterwards: it is made of state, or has taken nothing yet.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.inputs import INPUT
from persistent_state.protocol import flows, identity
from persistent_state.protocol.graph import upstream_of
from persistent_state.protocol.restore import TaskGroup
from persistent_state.store.entry import Entry

CONTINUES, NEW, RESET, REBUILT, LEFT_OUT, REFUSED = "continues", "new", "reset", "rebuilt", "left out", "refused"
"""The kinds of fates. A task that is reset starts from zero at the global clock, and one that is rebuilt before every
message. One that is left out is in the log, and not part of the start."""


@dataclass(frozen=True)
class Fate:
    """The fate of a task, and the reason for it."""

    kind: str
    """One of `CONTINUES`, `NEW`, `RESET`, `REBUILT`, `LEFT_OUT` and `REFUSED`."""

    why: str = ""
    """The reason, as words that can follow "as". It is empty where a task goes on, is new or is left out."""

    @property
    def starts_over(self) -> bool:
        """Return whether the task begins again, so that what it feeds was made of another life of it."""
        return self.kind in (RESET, REBUILT)


@dataclass(frozen=True)
class Words:
    """The names of tasks that a user gives to a start."""

    reset: Collection[str] = ()
    rebuild: Collection[str] = ()


@dataclass(frozen=True)
class Fates:
    """The fates of the tasks of a start and of the log, and the words that they were decided by."""

    words: Words

    of: Mapping[str, Fate]
    """The fate of each task: first of those of the start, in their order, then of those that it leaves out."""

    def names(self, kind: str) -> list[str]:
        """Return the tasks of this fate."""
        return [name for name, fate in self.of.items() if fate.kind == kind]

    def plans(self, flow: FlowPlan, *kinds: str) -> list[Plan]:
        """Return the plans of a flow whose tasks have one of these fates."""
        return [plan for plan in flow.tasks if self.of[plan.name].kind in kinds]


def decide(newest: Entry | None, wanted: Sequence[FlowPlan], words: Words) -> Fates:
    """Return the fates of all tasks at a start after the newest entry. Each flow comes after those that feed it."""
    of: dict[str, Fate] = {}
    for plan in (plan for flow in wanted for plan in flow.tasks):
        of[plan.name] = _fate(plan, newest, words, of)
    for name in newest.tasks if newest else ():
        of.setdefault(name, Fate(LEFT_OUT))
    return Fates(words, of)


def groups_that_continue(table: Fates, newest: Entry, flow: FlowPlan) -> list[TaskGroup]:
    """Return the tasks of a flow that go on, in the groups in which the log has them."""
    return flows.divided(newest, [plan.name for plan in table.plans(flow, CONTINUES)])


def is_made_of_state(plan: Plan) -> bool:
    """Return whether a task is made of the state of the tasks that feed it, so that it can be built again from that."""
    is_fed_changes = all(source.is_of_state for source in plan.upstream.values())
    return is_fed_changes and plan.takes_back and not plan.source_inputs


def _fate(plan: Plan, newest: Entry | None, words: Words, of: Mapping[str, Fate]) -> Fate:
    """Return the fate of a task, given the fates of the tasks before it."""
    is_reset = plan.name in words.reset
    if plan.name in words.rebuild:
        return Fate(REBUILT, "it is named in rebuild")
    if newest is None or plan.name not in newest.tasks:
        return Fate(RESET, "it is named in reset") if is_reset else Fate(NEW)
    # One to which a source is added, or that had one, can't be made of state alone.
    is_derived = not plan.source_inputs and newest.flow_of(plan.name).is_derived
    if is_reset:
        is_built_again = is_derived and not (plan.is_in_order and of[plan.upstream[INPUT].task].kind == RESET)
        return Fate(REBUILT if is_built_again else RESET, "it is named in reset")
    why = _obstacle(plan, newest, of)
    if why is None:
        return Fate(CONTINUES)
    has_something = _has_something(newest, plan.name)
    if not is_derived:
        if has_something or _was_away(newest, plan.name):
            return Fate(REFUSED, why)
        return Fate(RESET if plan.source_inputs else REBUILT, why)
    if has_something and not is_made_of_state(plan):
        return Fate(REFUSED, f"{why}, and what it has taken can't be given to it again")
    return Fate(REBUILT, why)


def _obstacle(plan: Plan, newest: Entry, of: Mapping[str, Fate]) -> str | None:
    """Return in words why a task that others feed can't go on from its state; None if it can, or if only sources feed it."""
    if not plan.upstream:
        return None
    before, now = newest.tasks[plan.name].identity, plan.identity
    if before.get("version") != now.get("version"):
        return "the store was written with another version"
    if before.get("inputs") != now.get("inputs"):
        return identity.other_inputs(before.get("inputs"), now.get("inputs"))
    # What was added by one column or key can't be taken away by another.
    if why := identity.declared_otherwise(plan, newest, plan.inputs_taken_back):
        return why
    for feeder in (source.task for source in plan.upstream.values()):
        if of[feeder].starts_over:
            return f"task={feeder}, which feeds it, starts over"
    if newest.flow_of(plan.name).upstream != upstream_of(plan, newest.tasks):
        return "a task that feeds it has started over without it"
    return None


def _has_something(newest: Entry, name: str) -> bool:
    """Return whether a task has taken anything that stays. Above the global clock all comes again."""
    return newest.clock > BEGINNING and newest.flow_of(name).visited > BEGINNING


def _was_away(newest: Entry, name: str) -> bool:
    """Return whether a task was left out of the newest start, so that it has missed what its source gave."""
    return newest.clock > BEGINNING and not newest.tasks[name].active
