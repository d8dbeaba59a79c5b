"""The columns of joined rows, and those in which the rows of both inputs wait."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from monoids import MonoidError
from monoids.nested import kept_type
from persistent_state.edges.joins.as_of import AsOfJoin
from persistent_state.edges.joins.pair import IS_RIGHT, SHARED, Join, Pair
from persistent_state.errors import InvalidInputError
from persistent_state.ordered import TAKEN

J = TypeVar("J", bound=Join)


def kept_columns(join: Join, input: str, columns: pa.Schema) -> pa.Schema:
    """Return the columns of an input with the types in which joined rows have their values.

    Raises:
        InvalidInputError: Values of a type can't be kept.
    """
    kept = []
    for field in columns:
        try:
            kept.append(pa.field(field.name, kept_type(field.type)))
        except MonoidError:
            raise InvalidInputError(
                f"task={join.task_name}: column {field.name!r} of input={input!r} is {field.type}, which can't be kept; cast "
                "it, or leave it out, in the source's transform."
            ) from None
    return pa.schema(kept)


def on_inputs(
    join: J,
    columns: Mapping[str, pa.Schema],
    keys: Mapping[str, Sequence[str]],
    beside: Mapping[str, Mapping[str, str]],
) -> J:
    """Return the join with the types of its state and its rows.

    Args:
        join: The join.
        columns: By input: its columns, of the types that are kept.
        keys: By input: its key columns.
        beside: By input: the places of the columns that stand beside a row that waits.

    Raises:
        InvalidInputError: Two columns of a joined row would have one name.
    """
    left, right = columns[join.left], columns[join.right]
    found = copy.copy(join)
    own_keys, shares = (join.key_columns, keys[join.left], keys[join.right]), isinstance(join, AsOfJoin)
    found.pair = pair_of(join.left, join.right, left, right, *own_keys, beside, shares)
    found.emits = pa.schema(list(found.pair.type))
    # An interval join has no state, and no row of this type.
    found.state = pa.struct(list(right)) if isinstance(join, AsOfJoin) else pa.bool_()
    return found


def pair_of(
    left: str,
    right: str,
    of_left: pa.Schema,
    of_right: pa.Schema,
    key: Sequence[str],
    left_key: Sequence[str],
    right_key: Sequence[str],
    beside: Mapping[str, Mapping[str, str]] | None = None,
    shares: bool = True,
) -> Pair:
    """Return what the rows of a join are made of.

    A joined row has all columns of the left, and those of the right without its key. A column whose name is taken gets the
    name of its input before it: of the right, one that the left has too; of both, one that is called as what the library adds.

    Args:
        left: The name of the left input.
        right: The name of the right input.
        of_left: The columns of the left.
        of_right: The columns of the right.
        key: The key columns of the task, which outputs show.
        left_key: What they are called in the left.
        right_key: What they are called in the right.
        beside: By input: the places of the columns that stand beside a row that waits.
        shares: Whether two columns of one type share a place.

    Raises:
        InvalidInputError: Two columns have one name all the same.
    """
    of_key = {column for column, own in zip(key, left_key, strict=True) if column == own}
    taken = {*TAKEN, *key}
    more = [field for field in of_right if field.name not in right_key]
    fields = [_renamed(field, left, taken - of_key) for field in of_left]
    fields += [_renamed(field, right, {*taken, *of_left.names}) for field in more]
    names = [field.name for field in fields]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInputError(
            f"the rows that join {left} and {right} would have two columns {twice!r}; rename one in its source's transform."
        )
    waiting, places = _waiting((left, right), (of_left, of_right), beside or {}, shares)
    columns = tuple(of_left.names), tuple(field.name for field in more)
    return Pair(left, right, waiting, {left: of_left, right: of_right}, places, *columns, pa.struct(fields))


def _waiting(
    inputs: tuple[str, str],
    schemas: tuple[pa.Schema, pa.Schema],
    beside: Mapping[str, Mapping[str, str]],
    shares: bool,
) -> tuple[pa.StructType, dict[str, dict[str, str]]]:
    """Return the type of a row that waits, and the places of the columns of the inputs."""
    places = {input: dict(beside.get(input, {})) for input in inputs}
    (left, right), (of_left, of_right) = inputs, schemas
    rest = [field for field in of_right if field.name not in places[right]]
    fields = [pa.field(IS_RIGHT, pa.bool_())]
    for field in (field for field in of_left if field.name not in places[left]):
        other = next((other for other in rest if shares and other.type == field.type), None)
        # The identity in the store has these names. So columns whose places are others now make another type.
        place = f"{left}.{field.name}" if other is None else f"{field.name}{SHARED}{other.name}"
        places[left][field.name] = place
        fields.append(pa.field(place, field.type))
        if other is not None:
            places[right][other.name] = place
            rest.remove(other)
    for field in rest:
        places[right][field.name] = f"{right}.{field.name}"
        fields.append(pa.field(f"{right}.{field.name}", field.type))
    return pa.struct(fields), places


def _renamed(field: pa.Field, input: str, taken: Collection[str]) -> pa.Field:
    # A row of the right may be missing, so that its columns have nulls.
    return pa.field(f"{input}_{field.name}" if field.name in taken else field.name, field.type)
