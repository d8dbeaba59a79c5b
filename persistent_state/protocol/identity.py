"""In words what a task is otherwise than when the store was written: the identity in the log against that of a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from persistent_state.batch.plan import Plan
from persistent_state.edges.base import in_words
from persistent_state.event_time.inputs import INPUT
from persistent_state.formatting import show_identity
from persistent_state.store.entry import Entry
from persistent_state.store.task_state import messages_processed


def declared_otherwise(plan: Plan, newest: Entry, inputs: Collection[str] | None = None) -> str | None:
    """Return in words what a task declares otherwise of its inputs, or of some of them; None if that is nothing.

    An input that is new or has left is no difference. What an older version has not recorded is none either.
    """
    known, flow = newest.tasks[plan.name].identity, newest.flow_of(plan.name)
    before, now = known.get("declared", {}), plan.identity.get("declared", {})
    were, are = {*flow.inputs, *flow.upstream}, {*plan.inputs}
    if were != are:
        before, now = _with_own_key(before, were, known), _with_own_key(now, are, plan.identity)
    for input, of_input in now.items():
        for what, value in of_input.items():
            had = before.get(input, {}).get(what, value)
            if had != value and (inputs is None or input in inputs):
                subject = "it" if input == INPUT else f"input={input!r}"
                was, now_is = _said(what, had, ("was", "had")), _said(what, value, ("is", "has"))
                return f"{subject} {was} when the store was written, and {now_is} now"
    return None


def _with_own_key(declared: Mapping[str, Any], inputs: Collection[str], identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is declared of inputs. An only input without a name has the key of the task."""
    if {*inputs} != {INPUT}:
        return {**declared}
    return {INPUT: {**declared.get(INPUT, {}), "key": [column["name"] for column in identity["key"]]}}


def _said(what: str, value: Any, verbs: tuple[str, str]) -> str:
    """Return in words what is declared of an input, with the verb for what it is, or for what it has."""
    if what == "side":
        return f"{verbs[0]} the {value} side of the join"
    if what == "key":
        columns = tuple(value) or None
        value = columns[0] if columns and len(columns) == 1 else columns
    return f"{verbs[1]} {what}={value!r}"


def other_inputs(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    """Return in words how the tasks that feed a task were others."""
    was, is_ = (messages_processed(inputs) is not None for inputs in (before, now))
    if was != is_:
        of_store, own = ("an", "none") if was else ("no", "one")
        return f"the store has {of_store} ordered task or join of this name, and it is {own} now"
    return f"it was fed by {in_words(before)} when the store was written, and is fed by {in_words(now)} now"


def other_part(plan: Plan, what: str, before: Any, now: Any) -> str:
    """Return in words how a part of a task's identity, such as its monoid, was another."""
    if what == "inputs":
        return other_inputs(before, now)
    if plan.part is not None and what == "window" and {*(before or ())} & {*(now or ())}:
        return plan.part.other_window(before, now)
    return f"the store was written with {what}={show_identity(before)}, the task has {show_identity(now)}"
