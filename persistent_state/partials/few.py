"""Fold the updates of few keys as they come, before anything else is done for each of them.

Each update is added to the sum of its key. Then only the keys are hashed, and nothing is sorted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from monoids import Count, Max, Min, Monoid, Struct, Sum
from persistent_state.event_time import clocks
from persistent_state.event_time.clocks import Settings
from persistent_state.partials import keys
from persistent_state.partials.layout import Layout
from persistent_state.partials.unbounded import Unbounded

LEAST = 1_000
"""The least rows that show whether keys are few."""

EVERY = 16
"""The sample is this share of the rows: one in 16, the first ones."""

MOST_DISTINCT = 0.8
"""The largest share of different keys in a sample."""

ROWS_OF_A_KEY = 6
"""The least rows that a key must have on the average, so that to fold them now pays."""

MOST_STARTS = 4
"""The most intervals whose rows are folded."""

_OPERATIONS: dict[type[Monoid[Any]], np.ufunc] = {Sum: np.add, Count: np.add, Min: np.minimum, Max: np.maximum}
"""The operations that add numbers of int64 in any order with the same result. A subclass may add otherwise."""


def can_fold(layout: Layout) -> bool:
    """Return whether `fold_few` knows how to fold rows of a layout."""
    is_plain = type(layout.kind) is Unbounded and layout.once is None and len(layout.key_types) == 1
    return is_plain and _adds_whole_numbers(layout.monoid)


def _adds_whole_numbers(monoid: Monoid[Any]) -> bool:
    if type(monoid) is Struct:
        return all(map(_adds_whole_numbers, monoid.monoids.values()))
    return type(monoid) in _OPERATIONS and monoid.type == pa.int64()


def has_nulls(values: pa.Array) -> bool:
    """Return whether some of the values, or of their fields, are null."""
    fields = values.flatten() if pa.types.is_struct(values.type) else []
    return bool(values.null_count) or any(map(has_nulls, fields))


def fold_few(
    key: pa.Array, times: NDArray[np.int64], values: pa.Array, layout: Layout, clock: int, settings: Settings
) -> pa.Table | None:
    """Return partial sums of updates, unsorted: one row for each key and checkpoint interval from the clock on.

    Args:
        key: The key of each update, normalised.
        times: The time of each update, at or above the clock.
        values: The values of the updates, of the monoid's type, without nulls.
        layout: A layout of which `can_fold` says yes.
        clock: The clock before which there are no intervals.
        settings: Those of event time, which say where intervals end.

    Returns:
        The rows; None if the keys or the intervals are many.
    """
    rows = len(key)
    sample = key.slice(0, rows // EVERY)
    if len(sample.unique()) > MOST_DISTINCT * len(sample):
        return None
    starts, _ = clocks.split_intervals(times, clock, clock, settings)
    each = starts[:1] if starts.min() == starts.max() else np.unique(starts)
    encoded = key.dictionary_encode(null_encoding="encode")
    distinct = encoded.dictionary
    if len(each) > MOST_STARTS or len(distinct) * len(each) * ROWS_OF_A_KEY > rows:
        return None
    groups = encoded.indices.to_numpy().astype(np.intp)
    for i, start in enumerate(each[1:], 1):
        groups[starts == start] += i * len(distinct)
    count = len(distinct) * len(each)
    columns = {
        "hash": np.tile(keys.hash_keys([distinct], len(distinct)), len(each)),
        layout.key_names[0]: pa.concat_arrays([distinct] * len(each)),
        "start": np.repeat(each, len(distinct)),
        "value": _sums(layout.monoid, values, groups, count),
    }
    table = pa.table(columns)
    if len(each) == 1:
        return table
    return table.take(pa.array(np.flatnonzero(np.bincount(groups, minlength=count))))


def _sums(monoid: Monoid[Any], values: pa.Array, groups: NDArray[np.intp], count: int) -> pa.Array:
    """Return the sum of each group of a column, and anything for a group without rows."""
    if type(monoid) is Struct:
        sums = [_sums(part, values.field(name), groups, count) for name, part in monoid.monoids.items()]
        return pa.StructArray.from_arrays(sums, fields=list(monoid.type))
    operation, numbers = _OPERATIONS[type(monoid)], values.to_numpy()
    totals = np.zeros(count, np.int64)
    if operation is not np.add:
        # The least and the greatest of numbers stay the same if one of the numbers comes twice.
        totals[groups] = numbers
    operation.at(totals, groups, numbers)
    return pa.array(totals)
