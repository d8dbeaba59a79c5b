"""Starts that give a task's values another type: it is checked before anything is written, and nothing is rewritten.

Only values that no monoid adds may get another type: the states of ordered tasks, their messages, and the rows that they emit.
Invariants:
- The identity in the log names the type of the newest start with the task. Whatever type a run was written with, its values can
  be made values of that type: a field is new in them, has a wider type, or is among the run's `dropped`.
- A field that a start drops is dropped from all runs that there are. So a value does not depend on when its run was rewritten.
- A type that does not have all values of the one before is refused. Messages are the exception, if no step reads those any
  more that a start leaves: the source delivers all others again. Then the field is new.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from persistent_state.batch.plan import Plan
from persistent_state.edges.in_order.messages import messages_in
from persistent_state.partials.evolve import EVERYTHING, Difference, Evolving, differences
from persistent_state.partials.type_names import name_of, type_named
from persistent_state.store.entry import Entry
from persistent_state.store.task_state import TaskState


def evolved(plan: Plan, task: TaskState, newest: Entry) -> TaskState:
    """Return the record of a task that has the identity of its plan from now on. Its values can have its type: see `misfit`."""
    is_same = not isinstance(plan.layout.monoid, Evolving) or _has_same_type(plan, newest)
    fields = [] if is_same else [each.path for each in _differences(plan, newest)]
    # An older version has not recorded all that the task declares.
    return replace(task, identity=plan.identity, stored=task.stored.without(fields))


def misfit(plan: Plan, newest: Entry) -> str | None:
    """Return the sentence that says why values of a task can't have the type of its plan; None if they can."""
    if _has_same_type(plan, newest) or not _is_read(plan, newest):
        return None
    waiting = messages_in(plan)
    for each in _differences(plan, newest):
        if waiting is not None and (why := waiting.other_type(each)) is not None:
            return why
        if each.path == EVERYTHING:
            return f"task={plan.named}: its values were written as {_name(plan, newest)}, which can get no other type."
        if each.after is not None:
            wait = "" if waiting is None else ", or let the code of before process the messages that wait"
            field = ".".join(filter(None, each.path))
            return (
                f"task={plan.named}: the field {field!r} was written as {name_of(each.before)}, and is "
                f"{name_of(each.after)} now, which does not have all these values; give the field another name{wait}."
            )
    return None


def dropped_from_states(before: Entry, entry: Entry) -> dict[str, list[str]]:
    """Return by ordered task the fields that its states lost at a start: `entry` is its first, after the entry `before`."""
    found = {}
    for name, task in entry.tasks.items():
        known = before.tasks.get(name)
        is_same = known is not None and (known.born, known.life) == (task.born, task.life)
        if known is None or not is_same or not task.has_states:
            continue
        types = (type_named(each.identity["monoid"]["type"]) for each in (known, task))
        if fields := [".".join(each.path[1:]) for each in differences(*types) if each.after is None]:
            found[name] = fields
    return found


def _has_same_type(plan: Plan, newest: Entry) -> bool:
    return bool(_name(plan, newest) == plan.identity["monoid"]["type"])


def _name(plan: Plan, newest: Entry) -> str:
    name: str = newest.tasks[plan.name].identity["monoid"]["type"]
    return name


def _differences(plan: Plan, newest: Entry) -> list[Difference]:
    """Return the fields that a start drops, or can't take on, of the values that the newest entry has of a task."""
    after = plan.layout.monoid.type
    try:
        before = type_named(_name(plan, newest))
    except ValueError:
        return [Difference(EVERYTHING, pa.null(), after)]
    return [*differences(before, after)]


def _is_read(plan: Plan, newest: Entry) -> bool:
    """Return whether anything reads the values again that a start leaves of a task.

    A start leaves messages below the global clock, or below the task's own if that is lower. Those of some joins stay for
    longer.
    """
    if (waiting := messages_in(plan)) is None:
        return True
    left = min(newest.clock, newest.flow_of(plan.name).progress.clock)
    steps = [flow for flow in newest.flows.values() if any(fed.task == plan.name for fed in flow.upstream.values())]
    return any(flow.visited - waiting.back < left for flow in steps)
