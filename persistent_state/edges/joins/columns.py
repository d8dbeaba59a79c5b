"""Join the rows of two inputs by Arrow, each row once, when the clock has passed all that it may be joined with.

A table of messages has the rows of both inputs as `Pair` has them wait. They stand by key, those of a key in the order of event
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.joins import IS_RIGHT, Bounds, Pair
from persistent_state.partials import fold, keys, lookup, sizes, sort
from persistent_state.partials.layout import Layout, as_numpy, one_chunk

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

NONE = -1
"""In place of a row's number: there is no such row."""

MOST_ROWS = 1 << 18
"""The most rows that are joined at a time."""


@dataclass(frozen=True)
class Joined:
    """Joined rows. They are in the order of the left rows, those of a left row in the order of the right ones.

    Attributes:
        rows: The numbers of the left rows among the messages. A joined row has their key.
        moments: The moments of the joined rows, in microseconds UTC.
        numbers: What puts those of one key and moment in order.
        values: The joined rows.
    """

    rows: NDArray[np.intp]
    moments: Numbers
    numbers: Numbers
    values: pa.StructArray


def as_of(
    messages: pa.Table, kept: pa.Table, layout: Layout, pair: Pair, tolerance: int | None = None
) -> Iterator[Joined]:
    """Join each left row with the newest right row of its key that is not after it; without one, with nulls.

    A right row of the same moment counts, whatever the order of the inputs. Of several of one moment the last counts.

    Args:
        messages: All rows from one clock up to another.
        kept: Of each key that has one, the newest right row before the first clock, in the field `state` of its value, with its
            timestamp in the field `newest`. A table that is sorted by hash and key.
        layout: The layout of both, as far as it concerns keys.
        pair: The inputs.
        tolerance: How old the right row may be, in microseconds. None: of any age.
    """
    sides = _Sides(messages, layout, pair)
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


def column_of(messages: pa.Table, pair: Pair, input: str, name: str) -> pa.Array:
    """Return a column of an input. In rows of the other input it has any values.

    Args:
        messages: Rows of both.
        pair: The inputs.
        input: The name of one.
        name: The name of the column.
    """
    place = pair.places[input][name]
    if place == "start":
        return one_chunk(messages[place]).cast(pair.schemas[input].field(name).type)
    return one_chunk(messages[place]) if place in messages.column_names else one_chunk(messages["value"]).field(place)


def newest_rights(messages: pa.Table, layout: Layout, pair: Pair) -> NDArray[np.intp]:
    """Return the numbers of the messages that are the newest right row of their key.

    Args:
        messages: All rows from one clock up to another.
        layout: The layout, as far as it concerns keys.
        pair: The inputs.
    """
    sides = _Sides(messages, layout, pair)
    rights = np.flatnonzero(sides.is_right)
    key = np.cumsum(sides.first)[rights]
    found: NDArray[np.intp] = rights[np.append(key[1:] != key[:-1], True)[: len(rights)]]
    return found


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
    sides = _Sides(messages, layout, pair)
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
    for low in range(0, total, MOST_ROWS):
        some = np.arange(low, min(total, low + MOST_ROWS))
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


class _Sides:
    """The messages of a join by input: their times, which are of the right input, and which begin another key."""

    def __init__(self, messages: pa.Table, layout: Layout, pair: Pair) -> None:
        values = one_chunk(messages["value"])
        self.times: Numbers = as_numpy(messages, "start")
        self.is_right: Mask = values.field(IS_RIGHT).to_numpy(zero_copy_only=False)
        self.first: Mask = ~sort.same_keys(messages, layout)
        self._messages, self._pair = messages, pair

    def joined(
        self,
        rows: NDArray[np.intp],
        found: Numbers,
        moments: Numbers,
        numbers: Numbers,
        kept: pa.StructArray | None = None,
    ) -> Iterator[Joined]:
        """Yield joined rows, few enough at a time for Arrow.

        Args:
            rows: The numbers of their left rows.
            found: The numbers of their right rows. Those of `kept` come after those of the messages.
            moments: Their moments.
            numbers: What puts them in order.
            kept: Right rows beside those of the messages.
        """
        pair = self._pair
        lefts = [column_of(self._messages, pair, pair.left, name) for name in pair.columns]
        rights = [column_of(self._messages, pair, pair.right, name) for name in pair.more]
        if kept is not None and len(kept):
            with sizes.within_arrow():
                more = [kept.field(name) for name in pair.more]
                rights = [pa.concat_arrays(both) for both in zip(rights, more, strict=True)]
        is_there = found != NONE
        for low, high in pairwise(_bounds(lefts, rights, rows, found)):
            left = pa.array(rows[low:high])
            right = pa.array(found[low:high], mask=~is_there[low:high])
            columns = [column.take(left) for column in lefts] + [column.take(right) for column in rights]
            values = (
                pa.StructArray.from_arrays(columns, fields=list(pair.type))
                if columns
                else pa.array([{}] * len(left), pair.type)
            )
            yield Joined(rows[low:high], moments[low:high], numbers[low:high], values)


def _bounds(lefts: Sequence[pa.Array], rights: Sequence[pa.Array], rows: Numbers, found: Numbers) -> list[int]:
    """Return numbers of joined rows between which there are few, and few bytes."""
    of_left, of_right = _bytes(lefts), np.append(_bytes(rights), 0)
    bounds = {*range(0, len(rows), MOST_ROWS), len(rows)}
    most = max(of_left.max(initial=0) + of_right.max(initial=0), 1)
    if most * MOST_ROWS > fold.SLICE_BYTES:
        held = of_left[rows] + of_right[found]
        # A row of more than that stands alone.
        slices = np.cumsum(held) // fold.SLICE_BYTES
        bounds |= set((np.flatnonzero(slices[1:] != slices[:-1]) + 1).tolist())
    return sorted(bounds)


def _bytes(columns: Sequence[pa.Array]) -> Numbers:
    """Return how many bytes the values of each row take; nothing where there are no columns."""
    batch = pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])
    ends = np.arange(1, (len(columns[0]) if columns else 0) + 1)
    return sizes.of_ranges(batch, ends - 1, ends)
