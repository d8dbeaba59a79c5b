"""The sink of one output, as every engine opens it and takes it back. The engine writes to it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pyarrow as pa

from persistent_state.batch.plan import Plan
from persistent_state.drive.output_values import local_values
from persistent_state.edges.output_rows import output_rows
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.outputs import ValuesAtClock
from persistent_state.partials.since import Since
from persistent_state.protocol.deliver import Due, Giver
from persistent_state.sinks.base import Origin, RecordingSink
from persistent_state.sinks.given_types import given_types
from persistent_state.sinks.values import LocalValues
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.state_at import StateAt, state_at


def origin(plan: Plan, output: ValuesAtClock, timeline: int = 0) -> Origin:
    """Return what a sink learns about its values when it is opened for those of a timeline.

    Raises:
        InvalidInputError: Two columns have one name, or the task's state can't give what the output asks for.
    """
    if plan.layout.window_fields and output.all:
        raise InvalidInputError(
            f"task={plan.named}: all=True asks for every key at each clock, and a window is given once, when it closes; leave "
            "it out."
        )
    if output.early and not plan.layout.kind.gives_early:
        raise InvalidInputError(
            f"task={plan.named}: early=True asks for windows that are open, and sessions are not known before they close; "
            "leave it out, or take RunningValues."
        )
    rows = output_rows(plan)
    wanted = rows.schema_at_clock(output.early)
    columns = [name.lower() for name in wanted.names]
    for name in plan.task.key_columns:
        # Catalogs of tables take names that differ only in case for one name.
        if columns.count(name.lower()) > 1:
            raise InvalidInputError(
                f"task={plan.named}: outputs have the columns {', '.join(wanted.names)}, and {name!r} is there twice but for "
                "case; rename it in the source's transform."
            )
    window = tuple(field.name for field in plan.layout.window_fields)
    schema = given_types(wanted)
    return Origin(plan.application, plan.name, rows.key, schema, window, rows.is_unique, timeline)


class OutputSink:
    """The sink of one output of a task."""

    def __init__(self, plan: Plan, output: ValuesAtClock) -> None:
        # A copy, because `open` gives the sink the origin of this output, and the user may give one sink to many starts.
        self.sink = copy.copy(output.place)
        self._plan = plan
        self._output = output

    def origin(self, timeline: int = 0) -> Origin:
        """Return what the sink learns about its values when it is opened for those of a timeline.

        Raises:
            InvalidInputError: The output can't be shown.
        """
        return origin(self._plan, self._output, timeline)

    def giver(self, log: Log, write: Callable[[Entry, Due], None], now: Callable[[], int]) -> Giver:
        """Return what gives the sink its clocks by `write`, and lets it go back.

        Args:
            log: The log of the application.
            write: Gives the sink the values that are due, read by an entry.
            now: Returns the wall clock in microseconds UTC.
        """
        plan = self._plan
        return Giver(
            log,
            plan.name,
            self._output.output_name,
            self._open,
            write,
            now,
            plan.delivery,
            self._go_back if self.sink.can_rewind(self.origin()) else None,
        )

    def state(self, entry: Entry, due: Due) -> StateAt:
        """Return the state of the task as this output is to show it, read by an entry."""
        plan, output = self._plan, self._output
        since = Since(due.since, output.all, output.early, due.recent)
        return state_at(plan.files, plan.application, entry, plan.name, plan.layout, due.clock, since)

    def write_here(self, entry: Entry, due: Due) -> None:
        """Give the sink the values at a clock, read by an entry in this process."""
        self.sink.write_values(local_values(self.state(entry, due), self._plan, self.origin().schema), due.clock)

    def _open(self, timeline: int) -> int | None:
        """Open the sink, and return the last clock that it has by its own record; None if it keeps none."""
        last = self.sink.open(self.origin(timeline))
        if isinstance(self.sink, RecordingSink):
            return BEGINNING if last is None else last
        if last is not None:
            raise InvalidInputError(
                f"open() of sink={self.sink.name!r} returned {last!r}; a sink that knows its last clock is a subclass of "
                "RecordingSink."
            )
        return None

    def _go_back(self, then: Entry | None, clock: int) -> None:
        """Take back what the sink was given above a clock, at which the state is read by the entry `then`, if there is one."""
        schema = self.origin().schema

        def read() -> Iterator[pa.RecordBatch]:
            # Only when a sink asks for them, since the state of then may be gone, and most sinks need none.
            if then is not None:
                all_keys = Due(clock, BEGINNING, BEGINNING)
                yield from local_values(self.state(then, all_keys), self._plan, schema).batches()

        self.sink.rewind(clock, LocalValues(schema, (read,)))
