"""The two inputs of a join: how their rows wait, and the columns of joined rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.ordered import TAKEN


@dataclass(frozen=True)
class Pair:
    """The two inputs of a join, how their rows wait, and the columns of joined rows.

    A row that waits is a struct of the columns that do not stand beside it anyway. The first field tells which input it is of.
    A place is the name of a field, or of a column beside the struct. Where rows leave as soon as the clock has passed them, a
    column of the left and one of the right with the same type share a place, so that rows take half the room. Where they stay,
    each has its own, so that the columns of an input may change.

    Attributes:
        left: The name of the left input.
        right: The name of the right input.
        waiting: The type of a row that waits.
        schemas: By input: its columns, of the types that are kept.
        places: By input and column: where the column stands.
        columns: The columns of the left that a joined row has, in the order of their fields in `type`.
        more: Those of the right, which come after them.
        type: The type of a joined row.
    """

    left: str
    right: str
    waiting: pa.StructType
    schemas: Mapping[str, pa.Schema]
    places: Mapping[str, Mapping[str, str]]
    columns: tuple[str, ...]
    more: tuple[str, ...]
    type: pa.StructType


IS_RIGHT = "is right"
"""The field of a waiting row that tells whether it is of the right input."""

SHARED = "|"
"""It stands between the two columns that share a place."""


@dataclass(frozen=True)
class Columns:
    """The columns of an input of a join.

    Attributes:
        input: The name of the input.
        schema: Its columns, of the types that are kept.
        key: Its key columns.
        beside: The places of the columns that stand beside a row that waits.
    """

    input: str
    schema: pa.Schema
    key: Sequence[str]
    beside: Mapping[str, str] = field(default_factory=dict)


def pair_of(left: Columns, right: Columns, key: Sequence[str], shares: bool = True) -> Pair:
    """Return what the rows of a join are made of.

    A joined row has all columns of the left, and those of the right without its key. A column whose name is taken gets the
    name of its input before it: of the right, one that the left has too; of both, one that is called as what the library adds.

    Args:
        left: The columns of the left input.
        right: Those of the right one.
        key: The key columns of the task, which outputs show.
        shares: Whether two columns of one type share a place.

    Raises:
        InvalidInputError: Two columns have one name all the same.
    """
    of_key = {column for column, own in zip(key, left.key, strict=True) if column == own}
    taken = {*TAKEN, *key}
    more = [field for field in right.schema if field.name not in right.key]
    fields = [_renamed(field, left.input, taken - of_key) for field in left.schema]
    fields += [_renamed(field, right.input, {*taken, *left.schema.names}) for field in more]
    names = [field.name for field in fields]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInputError(
            f"the rows that join {left.input} and {right.input} would have two columns {twice!r}; rename one in its source's "
            "transform."
        )
    waiting, places = _waiting(left, right, shares)
    return Pair(
        left.input,
        right.input,
        waiting,
        {each.input: each.schema for each in (left, right)},
        places,
        tuple(left.schema.names),
        tuple(field.name for field in more),
        pa.struct(fields),
    )


def _waiting(left: Columns, right: Columns, shares: bool) -> tuple[pa.StructType, dict[str, dict[str, str]]]:
    """Return the type of a row that waits, and the places of the columns of the inputs."""
    of_left, of_right = dict(left.beside), dict(right.beside)
    rest = [each for each in right.schema if each.name not in of_right]
    fields = [pa.field(IS_RIGHT, pa.bool_())]
    for own in (each for each in left.schema if each.name not in of_left):
        other = next((other for other in rest if shares and other.type == own.type), None)
        # The identity in the store has these names. So columns whose places are others now make another type.
        place = f"{left.input}.{own.name}" if other is None else f"{own.name}{SHARED}{other.name}"
        of_left[own.name] = place
        fields.append(pa.field(place, own.type))
        if other is not None:
            of_right[other.name] = place
            rest.remove(other)
    for own in rest:
        of_right[own.name] = f"{right.input}.{own.name}"
        fields.append(pa.field(of_right[own.name], own.type))
    return pa.struct(fields), {left.input: of_left, right.input: of_right}


def _renamed(field: pa.Field, input: str, taken: Collection[str]) -> pa.Field:
    # A row of the right may be missing, so that its columns have nulls.
    return pa.field(f"{input}_{field.name}" if field.name in taken else field.name, field.type)


def is_moved(pair: Pair, place: str) -> bool:
    """Return whether a place that rows had before held a column that an input has still."""
    before, _, more = place.partition(SHARED)
    held = {(pair.left, before), (pair.right, more)} if more else {tuple(place.split(".", 1))}
    return any(len(each) == 2 and each[1] in pair.places.get(each[0], {}) for each in held)


def waiting_rows(pair: Pair, input: str, batch: pa.RecordBatch) -> pa.StructArray:
    """Return rows of an input as they wait. Their columns may still have other types than the ones that are kept."""
    own = {place: batch.column(column) for column, place in pair.places[input].items()}
    own[IS_RIGHT] = pa.array(np.full(len(batch), input == pair.right))
    columns = [own.get(field.name, pa.nulls(len(batch), field.type)) for field in pair.waiting]
    return pa.StructArray.from_arrays(columns, names=pair.waiting.names)
