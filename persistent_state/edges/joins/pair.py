"""The two inputs of a join: how their rows wait, and the columns of joined rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.ordered import TAKEN

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
        places: Where each column of a row that waits stands. Outside a `Pair` it has those that stand beside the struct.
    """

    input: str
    schema: pa.Schema
    key: Sequence[str]
    places: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pair:
    """The two inputs of a join, how their rows wait, and the columns of joined rows.

    A row that waits is a struct of the columns that do not stand beside it anyway. The first field says which input it is of. A
    place is the name of a field, or of a column beside the struct. Where rows leave as soon as the clock has passed them, a
    column of the left and one of the right with the same type share a place, so that rows take half the room. Where they stay,
    each has its own, so that the columns of an input may change.

    Attributes:
        left: The columns of the left input. A joined row has all of them.
        right: Those of the right one. A joined row has those that are not of its key, after those of the left.
        waiting: The type of a row that waits.
        type: The type of a joined row.
    """

    left: Columns
    right: Columns
    waiting: pa.StructType
    type: pa.StructType

    @property
    def by_input(self) -> dict[str, Columns]:
        """The columns of both inputs, by their names."""
        return {each.input: each for each in (self.left, self.right)}


def pair_of(left: Columns, right: Columns, key: Sequence[str], shares: bool = True) -> Pair:
    """Return the two inputs of a join as a pair.

    A column of a joined row whose name is taken gets the name of its input before it: of the right, one that the left has too;
    of both, one that is called as what the library adds.

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
    fields = [_renamed(each, left.input, taken - of_key) for each in left.schema]
    fields += [_renamed(right.schema.field(name), right.input, {*taken, *left.schema.names}) for name in more(right)]
    names = [each.name for each in fields]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInputError(
            f"the rows that join {left.input} and {right.input} would have two columns {twice!r}; rename one in its source's "
            "transform."
        )
    waiting = [pa.field(IS_RIGHT, pa.bool_())]
    of_left, of_right = dict(left.places), dict(right.places)
    rest = [each for each in right.schema if each.name not in of_right]
    for own in (each for each in left.schema if each.name not in of_left):
        other = next((other for other in rest if shares and other.type == own.type), None)
        # The identity in the store has these names. So columns whose places are others now make another type.
        place = of_left[own.name] = f"{left.input}.{own.name}" if other is None else f"{own.name}{SHARED}{other.name}"
        waiting.append(pa.field(place, own.type))
        if other is not None:
            of_right[other.name] = place
            rest.remove(other)
    for own in rest:
        place = of_right[own.name] = f"{right.input}.{own.name}"
        waiting.append(pa.field(place, own.type))
    return Pair(replace(left, places=of_left), replace(right, places=of_right), pa.struct(waiting), pa.struct(fields))


def more(right: Columns) -> list[str]:
    """Return the columns of the right input that a joined row has."""
    return [name for name in right.schema.names if name not in right.key]


def _renamed(field: pa.Field, input: str, taken: Collection[str]) -> pa.Field:
    # A row of the right may be missing, so that its columns have nulls.
    return pa.field(f"{input}_{field.name}" if field.name in taken else field.name, field.type)


def is_moved(pair: Pair, place: str) -> bool:
    """Return whether a place that rows had before held a column that an input has still."""
    before, _, other = place.partition(SHARED)
    held = {(pair.left.input, before), (pair.right.input, other)} if other else {tuple(place.split(".", 1))}
    places = {input: of.places for input, of in pair.by_input.items()}
    return any(len(each) == 2 and each[1] in places.get(each[0], {}) for each in held)


def waiting_rows(pair: Pair, input: str, batch: pa.RecordBatch) -> pa.StructArray:
    """Return rows of an input as they wait. Their columns may still have other types than the ones that are kept."""
    own = {place: batch.column(column) for column, place in pair.by_input[input].places.items()}
    own[IS_RIGHT] = pa.array(np.full(len(batch), input == pair.right.input))
    columns = [own.get(field.name, pa.nulls(len(batch), field.type)) for field in pair.waiting]
    return pa.StructArray.from_arrays(columns, names=pair.waiting.names)
