"""The rows that an ordered task emits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.batch.plan import Plan
from persistent_state.edges.base import Edge, Span, open_runs
from persistent_state.edges.in_order.messages import messages_part
from persistent_state.edges.in_order.rows import NUMBERS, EmittedRows, emitted_schema, emitted_table
from persistent_state.edges.values import places
from persistent_state.event_time.inputs import INPUT
from persistent_state.partials import fold
from persistent_state.partials.layout import Layout, as_numpy, between
from persistent_state.partials.sort import same_keys
from persistent_state.partials.waiting import passed
from persistent_state.sources.base import Chunk
from persistent_state.task import PersistentTask, name_of_rows

NUMBER_BITS = 24
"""The bits of a row's number among those that a key emitted at a moment. Above them stands the key's hash, and above that the
rank of the row."""


@dataclass(frozen=True)
class Emitted(Edge):
    """The rows that an `OrderedTask` emits, as a source of a task.

    The downstream task sees each of them once: a row with the key columns of the ordered task, the columns of its `emits`, and
    `timestamp`, the moment of the row.

    Args:
        by: The name of the ordered task.

    Example:
        >>> Emitted("Fraud")
        Emitted(by='Fraud')
    """

    by: str

    kind: ClassVar[str] = "emitted rows"

    @property
    def task(self) -> str:
        """The task of the graph in which these rows are."""
        return name_of_rows(self.by)

    @property
    def named(self) -> str:
        return self.by

    def misfit(self, tasks: Mapping[str, PersistentTask]) -> str | None:
        if self.by not in tasks:
            return None
        way = f"give it an OrderedTask, or Changes({self.by!r})"
        if isinstance(rows := tasks.get(self.task), EmittedRows):
            if rows.has_rows:
                return None
            way = "name their columns in its emits"
        return f"task={self.by} emits no rows; {way}"

    def schema(self, plan: Plan, fed: PersistentTask) -> pa.Schema:
        return emitted_schema(plan)

    def read(self, plan: Plan, fed: Plan, span: Span) -> Iterator[Chunk]:
        layout, levels = plan.layout, open_runs(plan, span.changed_runs)
        # The first rank is that of timers. Each input has one.
        ranks = 1 + len(messages_part(plan.feeders[INPUT]).rows)
        for low, high in fold.slices(levels):
            table = passed([between(level, low, high) for level in levels], layout, span.since, span.clock)
            if len(table) == 0:
                continue
            (rows,) = emitted_table(plan, table.select([*layout.key_names, "start", "value"])).to_batches()
            yield Chunk(plan.name, 0, rows, at=_places(table, layout, ranks))

    def begins_with(self, fed: Plan, clock: str) -> str:
        return f"the rows that {self.by} emits after clock={clock}"


def _places(table: pa.Table, layout: Layout, ranks: int) -> NDArray[np.int64]:
    """Return what puts emitted rows of one moment in order.

    They come by rank, of which there are so many, then by the hash of the key, and those of a key as it emitted them.
    """
    starts, numbers = as_numpy(table, "start"), np.arange(len(table))
    begins = ~same_keys(table, layout)
    begins[1:] |= starts[1:] != starts[:-1]
    numbers -= np.maximum.accumulate(np.where(begins, numbers, 0))
    bits = (ranks - 1).bit_length()
    found: NDArray[np.int64] = as_numpy(table, "position") >> NUMBERS << (63 - bits)
    found |= places(table) >> (NUMBER_BITS + bits) << NUMBER_BITS | numbers
    return found
