"""States that are replaced, not added to: the newest row of a key counts, until one says that the key is forgotten.

A row of the key is what it was at a clock. `newest` is the time of the key's newest message, and `due` that of its first timer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from monoids import Summary
from monoids.nested import codec_of
from persistent_state.event_time.clocks import END
from persistent_state.partials import fold, sort
from persistent_state.partials.evolve import Evolving
from persistent_state.partials.layout import (
    DUE,
    Kind,
    Layout,
    Levels,
    RowOrder,
    as_numpy,
    one_chunk,
    those_within,
    with_values,
)
from persistent_state.partials.since import Since

TIMER = pa.struct([("timestamp", pa.int64()), ("name", pa.string())])
"""A timer. Those of a key are in their order."""


class Newest(Evolving, Summary[Any, Any, Any]):
    """The values that are kept of a key: its state, its timers, and the time of its newest message. The last one counts.

    A null `state` says that the key is forgotten. The rows of a key differ in their intervals, so that they need no order
    beside these. Outputs show the state.
    """

    zero = None

    def __init__(self, state: pa.DataType) -> None:
        self.state = state
        self.type = pa.struct([("state", state), ("timers", pa.list_(TIMER)), ("newest", pa.int64())])
        self.items = codec_of(self.type)

    def plus(self, a: Any, b: Any) -> Any:
        return b

    def _lift(self, items: pa.Array) -> pa.Array:
        return items

    def present(self, value: Any) -> Any:
        return value["state"]

    @property
    def presented(self) -> pa.DataType:
        return self.state

    def present_column(self, column: pa.Array) -> pa.Array:
        return pc.struct_field(column, "state")

    def reduce(self, values: pa.Array, starts: NDArray[np.intp]) -> pa.Array:
        lasts = np.append(starts[1:], len(values)) - 1
        return values.take(pa.array(lasts[: len(starts)]))


@dataclass(frozen=True)
class Versions(Kind):
    """A state that is replaced at clocks, and forgotten `ttl` microseconds after its newest message (None: never)."""

    ttl: int | None

    columns: ClassVar[tuple[str, ...]] = ("newest", DUE)
    expires: ClassVar[bool] = True
    expires_by_key: ClassVar[bool] = True

    def in_state(self, updates: pa.Table) -> pa.Table:
        """Return the updates with the times that stand in their values."""
        values = one_chunk(updates["value"])
        newest, due = values.field("newest"), first_due(values.field("timers"))
        for name, column in (("newest", newest), (DUE, due)):
            updates = updates.set_column(updates.schema.get_field_index(name), name, column)
        return updates

    def with_span(self, heads: pa.Table, table: pa.Table, order: RowOrder, begins: NDArray[np.intp]) -> pa.Table:
        """Return the first rows of the segments with the times of the last."""
        lasts = np.append(begins[1:], table.num_rows) - 1
        rows = pa.array(lasts if order is None else order[lasts])
        for name in self.columns:
            heads = heads.set_column(heads.schema.get_field_index(name), name, table[name].take(rows))
        return heads

    def expiry(self, table: pa.Table, layout: Layout) -> NDArray[np.int64]:
        forgotten = np.where(_is_null(table), as_numpy(table, "start") + 1, END)
        return np.minimum(forgotten, self._ends(table))

    def ends(self, table: pa.Table, after: int, upto: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        return those_within(self._ends(table), after, upto)

    def may_end(self, first: int, last: int, after: int, upto: int) -> bool:
        return self.ttl is not None

    def state(self, levels: Levels, layout: Layout, clock: int) -> pa.Table:
        rows = fold.fold_keys(levels, layout)
        return _shown(rows.filter(pa.array(self._is_there(rows, clock))), layout)

    def values(self, levels: Levels, layout: Layout, since: Since, clock: int, floor: int) -> pa.Table:
        """Return the keys that changed since; a key that was there and is not any more has a null state."""
        # A key has one row of before, one of since, or both.
        rows = fold.fold(levels, layout, (since.clock,), clock)
        is_first = ~sort.same_keys(rows, layout)
        is_last = np.append(is_first[1:], True)[: len(rows)]
        is_old = as_numpy(rows, "start") < since.clock
        was_there = is_old & self._is_there(rows, since.clock)
        # For the last row of each key: whether the key was there before it, if it has two.
        was_there[1:] |= was_there[:-1] & ~is_first[1:]
        is_there = self._is_there(rows, clock)
        changed = is_there & (~is_old | since.all)
        found = rows.filter(pa.array(is_last & (changed | was_there & ~is_there)))
        gone = pa.array(~self._is_there(found, clock))
        kept = one_chunk(found["value"])
        fields = [pc.if_else(gone, pa.scalar(None, field.type), kept.field(field.name)) for field in layout.monoid.type]
        values = pa.StructArray.from_arrays(fields, fields=list(layout.monoid.type))
        return _shown(with_values(found, values), layout)

    def _ends(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the clock by which each row's key has been silent for too long."""
        if self.ttl is None:
            return np.full(len(table), END)
        ends: NDArray[np.int64] = as_numpy(table, "newest") + (self.ttl + 1)
        return ends

    def _is_there(self, table: pa.Table, clock: int) -> NDArray[np.bool_]:
        return ~_is_null(table) & (self._ends(table) > clock)


def first_due(timers: pa.ListArray) -> pa.Array:
    """Return the time of the first timer of each list; the end of time for an empty list."""
    offsets = timers.offsets.to_numpy()
    has_one = np.diff(offsets) > 0
    times = timers.values.field("timestamp").to_numpy(zero_copy_only=False)
    found = np.full(len(timers), END)
    found[has_one] = times[offsets[:-1][has_one]]
    return pa.array(found)


def _is_null(table: pa.Table) -> NDArray[np.bool_]:
    return np.asarray(one_chunk(table["value"]).field("state").is_null())


def _shown(rows: pa.Table, layout: Layout) -> pa.Table:
    return rows.select(["hash", *layout.key_names, "value"])
