"""Join each row with the newest row of another input, at its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.batch.plan import Plan
from persistent_state.batch.rows import StepChunk
from persistent_state.edges.base import Span, open_runs
from persistent_state.edges.in_order.states import STATE
from persistent_state.edges.in_order.step import step_chunk
from persistent_state.edges.joins.join import Join, JoinMessages, clocks_between, joined_chunk, length_of
from persistent_state.edges.joins.pair import Pair
from persistent_state.edges.joins.sides import NONE, Joined, Numbers, Sides, column_of
from persistent_state.event_time.clocks import END
from persistent_state.event_time.durations import Duration
from persistent_state.partials import fold, keys, lookup, sort
from persistent_state.partials.layout import Layout, Levels, as_numpy, below, one_chunk
from persistent_state.partials.waiting import rows_passed


class AsOfMessages(JoinMessages):
    """The task in which the rows of both inputs of an `AsOfJoin` wait."""

    shares = True

    def join(self, plan: Plan, fed: Plan, span: Span, came: Levels) -> Iterator[StepChunk]:
        join = self.ordered
        # Those of each table are in order, so that a stable sort has little to do.
        hashes = np.sort(np.concatenate([as_numpy(table, "hash") for table in came]), kind="stable")
        stored = [below(level, span.clock) for level in open_runs(fed, span.states, [hashes])]
        stored = [fold.touched(level, pa.table({"hash": hashes})) for level in stored]
        new: list[pa.Table] = []
        for first, last in pairwise(clocks_between(came, span)):
            messages = rows_passed(came, plan.layout, first, last)
            kept = fold.fold_keys([*stored, *new], fed.layout)
            for some in as_of(messages, kept, plan.layout, join.pair, join.tolerance):
                yield joined_chunk(plan, fed, messages, some)
            newest = newest_rights(messages, plan.layout, join.pair)
            new.append(_right_rows(messages.take(pa.array(newest)), fed, join.pair))
        changed = fold.fold_keys(new, fed.layout)
        if count := len(changed):
            keys = [one_chunk(changed[key]) for key in plan.layout.key_names]
            values = {STATE: one_chunk(changed["value"])}
            yield step_chunk(plan, fed, keys, values, np.full(count, span.clock - 1), np.zeros(count, np.int64))


class AsOfJoin(Join):
    """A task that joins each row of its left input with the newest row of its right input, of the same key, at its time.

    That is the right row with the greatest timestamp that is not above the left row's own. One of the same moment counts,
    whatever comes first. If several have the same moment, the last one in the order of channels and positions counts. A left
    row without any such right row is joined with nulls.

    Each left row gives one joined row, which is final: it is emitted once the clock has passed it, and its moment is the left
    row's timestamp. So right rows may come later, and out of order. The state of a key is its newest right row.

    A joined row has the columns of the left row, and those of the right row without its key. A column of the right that the
    left has too gets the name of the right input before it: `quotes_price`. So does a column of the left or the right, with
    its own input's name, that is called `timestamp` or `clock`, as outputs have these.

    Args:
        left: The name of the left input.
        right: The name of the right input.
        key: The key column, several columns, or None for one global key. If it is called otherwise in one of the inputs, say
            so by `Input(source, key=...)`.
        tolerance: How much older than the left row the right row may be: a text such as "5 seconds", or a `timedelta`. Right
            rows are forgotten after that. By default it may be of any age, and the newest of each key is kept for ever.
        name: The task's name in the store, by default the names of the inputs with "_" between.

    Raises:
        InvalidInputError: An argument is wrong.

    Example:
        >>> trades, quotes = (FileSource(f"{name}/", timestamp="ts") for name in ("trades", "quotes"))
        >>> join = AsOfJoin("trades", "quotes", key="symbol", tolerance="5 seconds")
        >>> app = Application("market", "memory://docs", checkpoint_interval="10 seconds", allowed_delay="2 seconds")
        >>> app = app.add(join, {"trades": trades, "quotes": quotes})

        The quotes come out of order here, and the second trade finds none that is young enough:

        >>> ran = run_local(app, {
        ...     "trades_quotes": {
        ...         "trades": [Message(2_000_000, {"symbol": "A", "size": 5}), Message(9_000_000, {"symbol": "A", "size": 7})],
        ...         "quotes": [Message(3_000_000, {"symbol": "A", "bid": 11}), Message(1_000_000, {"symbol": "A", "bid": 10})],
        ...     }
        ... })
        >>> for row in ran["trades_quotes"].emitted:
        ...     print(row)
        {'symbol': 'A', 'size': 5, 'bid': 10, 'timestamp': 2000000}
        {'symbol': 'A', 'size': 7, 'bid': None, 'timestamp': 9000000}
    """

    waits_in = AsOfMessages

    def __init__(
        self,
        left: str,
        right: str,
        *,
        key: str | Sequence[str] | None,
        tolerance: Duration | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(left, right, key, name)
        self.tolerance = None if tolerance is None else length_of("tolerance", tolerance)


def _right_rows(rows: pa.Table, fed: Plan, pair: Pair) -> pa.Table:
    """Return right rows as the state has them."""
    type, count = fed.layout.monoid.type, len(rows)
    times, timers = one_chunk(rows["start"]), type.field("timers").type
    no_timers = pa.ListArray.from_arrays(np.zeros(count + 1, np.int32), pa.array([], timers.value_type))
    fields = list(pair.right.schema)
    right = [column_of(rows, pair.right, field.name) for field in fields]
    columns = [pa.StructArray.from_arrays(right, fields=fields), no_timers, times]
    made = {
        "start": times,
        "newest": times,
        "due": pa.array(np.full(count, END)),
        "value": pa.StructArray.from_arrays(columns, fields=list(type)),
    }
    return pa.table(
        [made[name] if name in made else rows[name] for name in fed.layout.schema.names], schema=fed.layout.schema
    )


def as_of(
    messages: pa.Table, kept: pa.Table, layout: Layout, pair: Pair, tolerance: int | None = None
) -> Iterator[Joined]:
    """Join each left row with the newest right row of its key that is not after it; without one, with nulls.

    A right row of the same moment counts, whatever the order of the inputs. If several have the same moment, the last one
    counts.

    Args:
        messages: All rows from one clock up to another.
        kept: The newest right row before the first clock of each key that has one, in the field `state` of its value, with its
            timestamp in the field `newest`. A table that is sorted by hash and key.
        layout: The layout of both, as far as it concerns keys.
        pair: The inputs.
        tolerance: How old the right row may be, in microseconds. None: of any age.
    """
    sides = Sides(messages, layout, pair)
    times, rights, first = sides.times, sides.is_right, sides.first
    rows = np.flatnonzero(~rights)
    if len(rows) == 0:
        return
    key = np.cumsum(first)[rows] - 1
    begins = np.flatnonzero(first)
    begins_moment = first.copy()
    begins_moment[1:] |= times[1:] != times[:-1]
    lasts = np.append(np.flatnonzero(begins_moment)[1:], len(times)) - 1
    newest = np.maximum.accumulate(np.where(rights, np.arange(len(times)), NONE))
    moment = np.cumsum(begins_moment)[rows] - 1
    found = newest[lasts[moment]]
    found[found < begins[key]] = NONE
    of = times[found]
    older = _rows_of(messages.take(pa.array(begins)), kept, layout)[key]
    values = one_chunk(kept["value"])
    is_older = (found == NONE) & (older != NONE)
    # Rows that were kept have the numbers after those of the messages.
    found[is_older] = len(times) + older[is_older]
    of[is_older] = values.field("newest").to_numpy(zero_copy_only=False)[older[is_older]]
    if tolerance is not None:
        found[(found != NONE) & (of < times[rows] - tolerance)] = NONE
    numbers = np.arange(len(rows))
    yield from sides.joined(rows, found, times[rows], numbers, values.field("state"))


def newest_rights(messages: pa.Table, layout: Layout, pair: Pair) -> NDArray[np.intp]:
    """Return the numbers of the messages that are the newest right row of their key.

    Args:
        messages: All rows from one clock up to another.
        layout: The layout, as far as it concerns keys.
        pair: The inputs.
    """
    sides = Sides(messages, layout, pair)
    rights = np.flatnonzero(sides.is_right)
    key = np.cumsum(sides.first)[rights]
    found: NDArray[np.intp] = rights[np.append(key[1:] != key[:-1], True)[: len(rights)]]
    return found


def _rows_of(asked: pa.Table, kept: pa.Table, layout: Layout) -> Numbers:
    """Return the number of the row that each key of a sorted table has in another such table, which has one for each key."""
    hashes, stored = as_numpy(asked, "hash"), as_numpy(kept, "hash")
    found = np.full(len(hashes), NONE)
    if len(stored) == 0:
        return found
    if _are_distinct(hashes) and _are_distinct(stored):
        at = np.minimum(np.searchsorted(stored, hashes), len(stored) - 1)
        met = np.flatnonzero(stored[at] == hashes)
        met = met[keys.equal(_keys(asked, met, layout), _keys(kept, at[met], layout), len(met))]
        found[met] = at[met]
        return found
    for number, (low, high) in enumerate(lookup.rows_of(asked, kept, layout)):
        if low < high:
            found[number] = low
    return found


def _keys(table: pa.Table, rows: NDArray[np.intp], layout: Layout) -> list[pa.Array]:
    return [sort.taken(one_chunk(table[name]), rows) for name in layout.key_names]


def _are_distinct(hashes: NDArray[np.uint64]) -> bool:
    return bool(np.all(hashes[1:] != hashes[:-1]))
