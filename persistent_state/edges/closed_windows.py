"""The windows and sessions of a task that have closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from persistent_state.batch.plan import Plan
from persistent_state.edges.base import Edge, Span
from persistent_state.edges.values import chunk_of, fields_of, presented, schema_of
from persistent_state.errors import InvalidInputError
from persistent_state.partials.layout import as_numpy, one_chunk
from persistent_state.partials.since import Since
from persistent_state.sources.base import Chunk
from persistent_state.store.state_at import seen_below
from persistent_state.task import PersistentTask
from persistent_state.windows import WINDOW


@dataclass(frozen=True)
class ClosedWindows(Edge):
    """The windows and sessions of another task that have closed, as a source of a task.

    The downstream task sees each of them once: a row with the key columns, `window_start` and `window_end`, the columns of the
    presented value (one for each field of a struct, else `value`), and `timestamp`, the last microsecond of the window.

    Args:
        task: The name of the upstream task, which keeps a `WindowState`.

    Example:
        >>> ClosedWindows("PerHour")
        ClosedWindows(task='PerHour')
    """

    task: str

    kind: ClassVar[str] = "closed windows"

    def schema(self, plan: Plan, fed: PersistentTask) -> pa.Schema:
        return schema_of(plan, fields_of(plan))

    def check(self, plan: Plan, fed: Plan) -> None:
        if not plan.layout.kind.window_columns:
            raise InvalidInputError(
                f"task={fed.named} is fed by the closed windows of task={self.task}, which keeps no windows; give it "
                f"Changes({self.task!r}), or let the task keep a WindowState."
            )

    def may_give(self, plan: Plan, span: Span) -> bool:
        return bool(span.ending_runs(plan))

    def read(self, plan: Plan, fed: Plan, span: Span) -> Iterator[Chunk]:
        since = Since(span.since)
        table = seen_below(plan.files, span.closed_runs(plan), plan.layout, span.clock, since, anew=True)
        values = presented(plan, one_chunk(table["value"]))
        yield chunk_of(plan, table, values, as_numpy(table, WINDOW[1]))

    def begins_with(self, fed: Plan, clock: str) -> str:
        return f"the windows of {self.task} that close after clock={clock}"
