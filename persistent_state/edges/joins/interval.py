"""Join each row with all rows of another input that are near in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.batch.plan import Plan
from persistent_state.batch.rows import StepChunk
from persistent_state.edges.base import Span
from persistent_state.edges.joins import sides as sides_of
from persistent_state.edges.joins.join import Join, JoinMessages, clocks_between, joined_chunk, length_of
from persistent_state.edges.joins.pair import Pair
from persistent_state.edges.joins.sides import NONE, Joined, Numbers, Sides
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import Duration
from persistent_state.partials.layout import Layout, Levels
from persistent_state.partials.waiting import rows_passed

INNER, LEFT = HOW = ("inner", "left")


@dataclass(frozen=True)
class Bounds:
    """Bounds of how far apart in event time the rows of a pair may be, in microseconds.

    Attributes:
        before: The time by which the right row may be older than the left one.
        after: The time by which it may be newer.
        has_all: Whether a left row without any right one is joined with nulls, at the last moment at which one could be.
    """

    before: int
    after: int
    has_all: bool

    @property
    def back(self) -> int:
        """The time for which a row is still needed after the clock has passed it."""
        # A left row is found to have no right one when the last could be there; the first was long before.
        return self.before + self.after if self.has_all else max(self.before, self.after)


class IntervalMessages(JoinMessages):
    """The task in which the rows of both inputs of an `IntervalJoin` wait."""

    ordered: IntervalJoin
    shares = False

    @property
    def back(self) -> int:
        return self.ordered.bounds.back

    def join(self, plan: Plan, fed: Plan, span: Span, came: Levels) -> Iterator[StepChunk]:
        pair, bounds = self.ordered.pair, self.ordered.bounds
        for first, last in pairwise(clocks_between(came, span)):
            messages = rows_passed(came, plan.layout, max(self.reaches_back(span), first - bounds.back), last)
            for some in interval(messages, plan.layout, pair, bounds, first, last):
                yield joined_chunk(plan, fed, messages, some)


class IntervalJoin(Join):
    """A task that joins each row of its left input with all rows of its right input, of the same key, that are near in time.

    A left row with timestamp t is joined with the right rows from t - `before` to t + `after`, both included. Each pair gives
    one joined row, which is final. Its moment is the timestamp of the later of both, and it is emitted once the clock has
    passed this moment. So rows of both inputs may come out of order. With `how="left"` a left row without any right row is
    joined with nulls; its moment is t + `after`.

    The columns of a joined row are those that `AsOfJoin` has. The state of a key is nothing. Rows wait for as long as they
    may still be joined, and leave then.

    Args:
        left: The name of the left input.
        right: The name of the right input.
        before: How much older than the left row a right row may be: a text such as "5 seconds", or a `timedelta`.
        after: How much newer it may be.
        key: The key column, several columns, or None for one global key. If it is called otherwise in one of the inputs, say
            so by `Input(source, key=...)`.
        how: "inner" gives pairs, "left" also left rows without any right row.
        name: The task's name in the store, by default the names of the inputs with "_" between.

    Raises:
        InvalidInputError: An argument is wrong.

    Example:
        >>> orders, payments = (FileSource(f"{name}/", timestamp="ts") for name in ("orders", "payments"))
        >>> app = Application("shop", "memory://docs", checkpoint_interval="1 minute")
        >>> join = IntervalJoin("orders", "payments", "0 seconds", "10 seconds", key="order", how="left", name="Paid")
        >>> app = app.add(join, {"orders": orders, "payments": payments})
        >>> ran = run_local(app, {
        ...     "Paid": {
        ...         "orders": [Message(0, {"order": 1}), Message(1_000_000, {"order": 2})],
        ...         "payments": [Message(2_000_000, {"order": 1, "cents": 70}), Message(3_000_000, {"order": 1, "cents": 30})],
        ...     }
        ... })
        >>> for row in ran["Paid"].emitted:
        ...     print(row)
        {'order': 1, 'cents': 70, 'timestamp': 2000000}
        {'order': 1, 'cents': 30, 'timestamp': 3000000}
        {'order': 2, 'cents': None, 'timestamp': 11000000}
    """

    waits_in = IntervalMessages
    keeps_states = False

    def __init__(
        self,
        left: str,
        right: str,
        before: Duration,
        after: Duration,
        *,
        key: str | Sequence[str] | None,
        how: str = INNER,
        name: str | None = None,
    ) -> None:
        super().__init__(left, right, key, name)
        if how not in HOW:
            raise InvalidInputError(
                f"how={how!r} is no way to join here; say 'inner' or 'left'. For the rows of the right without any, swap the "
                "inputs and their bounds."
            )
        self.how = how
        self.bounds = Bounds(length_of("before", before), length_of("after", after), how == LEFT)


def interval(
    messages: pa.Table, layout: Layout, pair: Pair, bounds: Bounds, since: int, clock: int
) -> Iterator[Joined]:
    """Join each left row with each right row of its key that is within reach, at the moment of the later of both.

    Args:
        messages: All rows below the clock that are no older than `since` by more than the reach goes back.
        layout: The layout, as far as it concerns keys.
        pair: The inputs.
        bounds: How far apart the rows of a pair may be.
        since: The clock at or above which the moments are.
        clock: The clock below which they are.
    """
    sides = Sides(messages, layout, pair)
    times, key = sides.times, np.cumsum(sides.first) - 1
    rows, rights = np.flatnonzero(~sides.is_right), np.flatnonzero(sides.is_right)
    if len(rows) == 0:
        return
    of, low, high = times[rows], times[rows] - bounds.before, times[rows] + bounds.after + 1
    first = np.where(of < since, np.maximum(low, since), low)
    begins, ends, all_begin = _below(key[rights], times[rights], key[rows], [first, high, low])
    counts = np.maximum(ends - begins, 0)
    for some, left, right in _pairs(counts, begins):
        moments = np.maximum(of[left], times[rights[right]])
        yield from sides.joined(rows[left], rights[right], moments, some)
    if bounds.has_all:
        moments = of + bounds.after
        left = np.flatnonzero((all_begin == ends) & (moments >= since) & (moments < clock))
        yield from sides.joined(rows[left], np.full(len(left), NONE), moments[left], left)


def _pairs(counts: Numbers, begins: Numbers) -> Iterator[tuple[Numbers, NDArray[np.intp], Numbers]]:
    """Yield the numbers of pairs, a few at a time, and which left and which right rows they are of.

    A left row has as many right ones as `counts` says, which stand together from its `begins` on.
    """
    ends = np.cumsum(counts)
    total = int(ends[-1])
    for low in range(0, total, sides_of.MOST_ROWS):
        some = np.arange(low, min(total, low + sides_of.MOST_ROWS))
        one, last = np.searchsorted(ends, some[[0, -1]], side="right")
        upto = np.minimum(ends[one : last + 1], some[-1] + 1)
        of = np.repeat(np.arange(one, last + 1), upto - np.append(low, upto[:-1]))
        yield some, of, begins[of] + some - (ends[of] - counts[of])


def _below(key: Numbers, times: Numbers, asked: Numbers, bounds: Sequence[Numbers]) -> list[Numbers]:
    """Return how many rows are of a lesser key, or of the same and below a bound, for each of the keys that are asked for.

    Rows are in order of (key, time). There is an answer for each of several bounds.
    """
    if len(times) == 0:
        return [np.zeros(len(asked), np.int64) for _ in bounds]
    low, high = int(times.min()), int(times.max()) + 1
    bits = (high - low).bit_length()
    if int(max(key[-1], asked.max())).bit_length() + bits < 64:
        # One number of 64 bits has both: searches in it are several times faster than to rank the times.
        rows = key << bits | times - low
        return [np.searchsorted(rows, asked << bits | np.clip(bound, low, high) - low) for bound in bounds]
    ranks = np.sort(times)
    width = len(ranks) + 1
    rows = key * width + np.searchsorted(ranks, times)
    return [np.searchsorted(rows, asked * width + np.searchsorted(ranks, bound)) for bound in bounds]
