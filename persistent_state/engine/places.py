"""The sink of one output as the library opens it and takes it back. The delivery writes to it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pyarrow as pa

from persistent_state.batch.plan import Plan
from persistent_state.drive.output_values import local_values
from persistent_state.engine import frames
from persistent_state.engine.wall_clock import now_us
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.outputs import ValuesAtClock
from persistent_state.partials.since import Since
from persistent_state.protocol.deliver import Due, Giver
from persistent_state.sinks.base import Origin, RecordingSink, takes_frames
from persistent_state.sinks.values import LocalValues
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.state_at import StateAt, state_at


class Place:
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
        return frames.origin(self._plan, self._output, timeline)

    def giver(self, write: Callable[[Entry, Due], None]) -> Giver:
        """Return what gives the sink its clocks by this function, and lets it go back."""
        plan = self._plan
        return Giver(
            Log(plan.files, plan.application),
            plan.name,
            self._output.output_name,
            self._open,
            write,
            now_us,
            plan.delivery,
            self._go_back if self.sink.can_rewind(self.origin()) else None,
        )

    def state(self, entry: Entry, due: Due) -> StateAt:
        """Return the state of the task as this output is to show it, read by an entry."""
        plan, output = self._plan, self._output
        since = Since(due.since, output.all, output.early, due.recent)
        return state_at(plan.files, plan.application, entry, plan.name, plan.layout, due.clock, since)

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

        values = LocalValues(schema, (read,))
        self.sink.rewind(clock, values.batches if takes_frames(self.sink) else values)  # type: ignore[arg-type]
