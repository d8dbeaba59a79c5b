"""The changes of a task's state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from persistent_state.batch.plan import Plan, takes_back
from persistent_state.batch.rows import TakenBack
from persistent_state.edges.base import Edge, Span
from persistent_state.edges.values import chunk_of, fields_of, presented, schema_of
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import Duration, positive
from persistent_state.partials.changed import Changed, are_equal
from persistent_state.sources.base import Chunk
from persistent_state.store.net_changes import changed_between
from persistent_state.task import PersistentTask

BEFORE, AFTER = "before", "after"
"""The columns of a change that is one message: structs of what outputs show of the value; null where the key is not there."""


@dataclass(frozen=True)
class Changes(Edge):
    """The changes of another task's state, as a source of a task.

    At each clock that all tasks have in common, the downstream task sees each key of the upstream task whose value changed: a
    row with the key columns, the columns of the presented value (one for each field of a struct, else `value`), and
    `timestamp`, the last microsecond before the clock. The library takes back what the task made of the row as it was before.
    So its state is always made of the values that the upstream task has now, and its monoid must be a group whose sums are
    exact: `Sum`, `Count` or `ExactSum`, or a `Struct` of these.

    With `every` the changes are those from each multiple of it to the next, whatever clocks there are. They are a function of
    the messages then. So the downstream task may keep any state, and the upstream task may keep windows or a time to live. A
    task whose monoid is no such group, or that has windows, a ttl or a `message_id`, sees one row for each change. It has the
    key columns, the structs `before` and `after` in place of the value's columns, and `timestamp`. A struct is null where the
    key was not there, or is not there any more.

    Args:
        task: The name of the upstream task. Without `every` it keeps its state without windows and without a time to live.
        every: A text such as "1 minute", or a `timedelta`: a multiple of the application's checkpoint interval. All checkpoints
            of the application are at multiples of it.

    Example:
        >>> Changes("PerShop", every="1 minute")
        Changes(task='PerShop', every='1 minute')
    """

    task: str
    every: Duration | None = None

    kind: ClassVar[str] = "changes"
    is_of_state: ClassVar[bool] = True

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, **({} if self.every is None else {"every": self.every_us})}

    @property
    def every_us(self) -> int | None:
        return None if self.every is None else positive("every", self.every)

    def schema(self, plan: Plan, fed: PersistentTask) -> pa.Schema:
        values = fields_of(plan)
        return schema_of(
            plan, values if takes_back(fed) else [pa.field(name, pa.struct(values)) for name in (BEFORE, AFTER)]
        )

    def check(self, plan: Plan, fed: Plan) -> None:
        if self.every is None:
            _check_taken_back(fed, plan)

    def may_give(self, plan: Plan, span: Span) -> bool:
        return bool(span.changed_runs or span.ending_runs(plan))

    def read(self, plan: Plan, fed: Plan, span: Span) -> Iterator[Chunk]:
        for some in changed_between(
            plan.files, plan.layout, span.runs, span.since, span.clock, every=span.every, ended=span.ended, anew=True
        ):
            yield from _messages(plan, span, some)

    def begins_with(self, fed: Plan, clock: str) -> str:
        return f"the state of {self.task}" if fed.takes_back else f"a row for each key of {self.task}"


def _check_taken_back(plan: Plan, other: Plan) -> None:
    """Refuse a task that can't be made of the changes of another between any two clocks."""
    way = f'or look at fixed times: Changes({other.name!r}, every="1 minute")'
    if other.layout.kind.expires:
        raise InvalidInputError(
            f"task={plan.named} is fed by the changes of task={other.name}, whose state is bounded in time; feed it by the "
            f"windows that have closed, ClosedWindows({other.name!r}), keep that state without a bound, {way}."
        )
    if plan.takes_back:
        return
    if plan.part is not None:
        raise InvalidInputError(
            f"task={plan.named} is fed by the changes of task={other.name}, and an ordered task can't take "
            f'back what it made of a row; look at fixed times: Changes({other.name!r}, every="1 minute").'
        )
    monoid = plan.state.monoid
    fed = f"task={plan.named} is fed by the changes of task={other.name}"
    beginning = f"{fed}: what it made of a row is taken back when the row"
    if monoid.is_group and monoid.exact:
        raise InvalidInputError(
            f"{beginning} changes. So it can't have windows, a ttl, a message_id or reads_state; leave these out, {way}."
        )
    lack = "rounds" if monoid.is_group else "is no group"
    raise InvalidInputError(
        f"{beginning} changes, and {monoid!r} {lack}; use Sum, Count, ExactSum, or a Struct of these, {way}."
    )


def _messages(plan: Plan, span: Span, some: Changed) -> Iterator[Chunk]:
    """Yield the messages that changes are. Where nothing differs there is none, though messages may have come."""
    before, after = (presented(plan, _left(plan, values)) for values in (some.before, some.after))
    # What was added is taken away again as user code made it, which can tell the two zeros apart.
    differs = ~are_equal(before, after, signed_zeros=span.takes_back)
    if not differs.any():
        return
    picked, mask = some.take(differs), pa.array(differs)
    before, after = before.filter(mask), after.filter(mask)
    if not span.takes_back:
        both = pa.StructArray.from_arrays([before, after], names=[BEFORE, AFTER])
        yield chunk_of(plan, picked.rows, both, picked.clocks)
        return
    for kind, values in ((TakenBack, before), (Chunk, after)):
        there = values.is_valid()
        rows, at = picked.rows.filter(there), picked.clocks[np.asarray(there)]
        yield chunk_of(plan, rows, values.filter(there), at, kind)


def _left(plan: Plan, values: pa.Array) -> pa.Array:
    """Return a task's values; null where nothing is left of all that the task was fed.

    The task keeps such a key with the zero. Which of these keys it has depends on the clocks that it has visited, and what it
    feeds must not depend on them.
    """
    if not plan.inputs_taken_back:
        return values
    monoid, rows = plan.layout.monoid, np.arange(len(values))
    zeros = monoid.to_arrow([monoid.zero]).take(pa.array(np.zeros_like(rows)))
    return values.take(pa.array(rows, mask=are_equal(values, zeros)))
