"""Fold the updates of few keys as they come, before anything else is done for each of them.

Each update is added to the sum of its key and interval. Then only the keys are hashed, and only the sums are sorted.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from monoids import Count, Max, Min, Monoid, Struct, Sum
from persistent_state.partials import keys
from persistent_state.partials.layout import Layout, one_chunk

EVERY = 16
"""The sample of a column is this share of the rows: one in 16, the first ones."""

MOST_DISTINCT = 0.8
"""The largest share of different values in a sample."""

ROWS_OF_A_RUN = 16
"""The least rows in a row that must have the same value on the average, so that to number the runs is faster."""

ROWS_OF_A_SUM = 2
"""The least rows that a sum must have on the average, so that to fold them now pays."""

_OPERATIONS: dict[type[Monoid[Any]], np.ufunc] = {Sum: np.add, Count: np.add, Min: np.minimum, Max: np.maximum}
"""The operations that add numbers of int64 in any order with the same result. A subclass may add otherwise."""


def may_fold(updates: pa.Table, layout: Layout) -> bool:
    """Return whether `fold_few` may fold these updates: their layout is one that it knows, and their keys may be few."""
    is_plain = not layout.kind.columns and layout.once is None and _adds_whole_numbers(layout.monoid)
    return is_plain and all(_may_be_few(one_chunk(updates[name])) for name in layout.key_names)


def _adds_whole_numbers(monoid: Monoid[Any]) -> bool:
    if type(monoid) is Struct:
        return all(map(_adds_whole_numbers, monoid.monoids.values()))
    return type(monoid) in _OPERATIONS and monoid.type == pa.int64()


def fold_few(updates: pa.Table, layout: Layout) -> pa.Table | None:
    """Return partial sums of updates, unsorted: one row for each key and interval that has updates.

    Args:
        updates: The key of each update, the `start` of its interval, and its value. `may_fold` says yes to them.
        layout: The layout of the sums.

    Returns:
        The rows; None if there are many, or values without one.
    """
    values = one_chunk(updates["value"])
    if not len(updates) or _has_nulls(values):
        return None
    names, groups, distinct = [*layout.key_names, "start"], np.zeros(1, np.intp), list[pa.Array]()
    for name in names:
        numbers, choices = _numbered(one_chunk(updates[name]))
        distinct.append(choices)
        if prod(map(len, distinct)) * ROWS_OF_A_SUM > len(updates):
            return None
        if len(choices) > 1:
            groups = groups * len(choices) + numbers
    groups, count = np.broadcast_to(groups, len(updates)), prod(map(len, distinct))
    filled = np.flatnonzero(np.bincount(groups, minlength=count))
    places = np.unravel_index(filled, [*map(len, distinct)])
    columns = [choices.take(pa.array(place)) for choices, place in zip(distinct, places, strict=True)]
    hashes = keys.hash_keys(columns[:-1], len(filled))
    sums = _sums(layout.monoid, values, groups, count).take(pa.array(filled))
    return pa.table([hashes, *columns, sums], names=["hash", *names, "value"])


def _may_be_few(column: pa.Array) -> bool:
    """Return whether the values of a column may be few, as a sample has it."""
    sample = column.slice(0, len(column) // EVERY)
    return len(sample.unique()) <= MOST_DISTINCT * len(sample)


def _numbered(column: pa.Array) -> tuple[NDArray[Any], pa.Array]:
    """Return the number of each row's value among the values of a column, and these; others may be among them."""
    if pa.types.is_int64(column.type) and not column.null_count and len(column):
        numbers = column.to_numpy()
        low, high = int(numbers.min()), int(numbers.max())
        if (high - low) * ROWS_OF_A_SUM < len(numbers):
            return numbers - low, pa.array(low + np.arange(high - low + 1))
        begins = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
        if len(begins) * ROWS_OF_A_RUN < len(numbers):
            of_runs, choices = _numbered(column.take(pa.array(begins)))
            return np.repeat(of_runs, np.diff(begins, append=len(numbers))), choices
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(), encoded.dictionary


def _has_nulls(values: pa.Array) -> bool:
    """Return whether some of the values, or of their fields, are null."""
    fields = values.flatten() if pa.types.is_struct(values.type) else []
    return bool(values.null_count) or any(map(_has_nulls, fields))


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
