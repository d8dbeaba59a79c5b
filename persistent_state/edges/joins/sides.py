"""Rows of two inputs, and the columns of those that are joined.

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

from persistent_state.edges.joins.pair import IS_RIGHT, Columns, Pair, more
from persistent_state.partials import fold, sizes, sort
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


def column_of(messages: pa.Table, of: Columns, name: str) -> pa.Array:
    """Return a column of an input. In rows of the other input it has any values.

    Args:
        messages: Rows of both.
        of: The columns of the input.
        name: The name of the column.
    """
    place = of.places[name]
    if place == "start":
        return one_chunk(messages[place]).cast(of.schema.field(name).type)
    return one_chunk(messages[place]) if place in messages.column_names else one_chunk(messages["value"]).field(place)


class Sides:
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
        lefts = [column_of(self._messages, pair.left, name) for name in pair.left.schema.names]
        rights = [column_of(self._messages, pair.right, name) for name in more(pair.right)]
        if kept is not None and len(kept):
            with sizes.within_arrow():
                older = [kept.field(name) for name in more(pair.right)]
                rights = [pa.concat_arrays(both) for both in zip(rights, older, strict=True)]
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
