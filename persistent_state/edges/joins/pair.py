"""The two inputs of a join: how their rows wait."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import Duration, duration
from persistent_state.ordered import InOrderTask
from persistent_state.windows import LONGEST

T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    """The two inputs of a join, how their rows wait, and the columns of joined rows.

    A row that waits is a struct of the columns that do not stand beside it anyway. The first field says which input it is of. A
    place is the name of a field, or of a column beside the struct. Where rows leave as soon as the clock has passed them, a
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
"""The field of a waiting row that says whether it is of the right input."""

SHARED = "|"
"""It stands between the two columns that share a place."""


class Join(InOrderTask):
    """The base of joins. It has the types of its state and its rows once the columns of both inputs are known."""

    pair: Pair

    def __init__(self, left: str, right: str, key: str | Sequence[str] | None, name: str | None) -> None:
        for side, input in (("left", left), ("right", right)):
            if not isinstance(input, str) or not re.fullmatch(r"\w+", input):
                raise InvalidInputError(f"{side}={input!r} can't be the name of an input; use letters, digits and '_'.")
        if left == right:
            raise InvalidInputError(f"left={left!r} and right={right!r} are one name; give each input its own.")
        self.left, self.right, self.key = left, right, key
        self.name = f"{left}_{right}" if name is None else name


def length_of(name: str, given: Duration) -> int:
    """Return the microseconds of a duration that bounds a join; it may be 0.

    Raises:
        InvalidInputError: It is not a duration, or far too long.
    """
    found = duration(name, given)
    # The greatest is added to the same again, and to timestamps, within 64 bits.
    if found > LONGEST // 2:
        raise InvalidInputError(f"{name}={given!r}; it must be at most {LONGEST // 2} microseconds.")
    return found


def by_side(join: InOrderTask, inputs: Mapping[str, T]) -> Mapping[str, T]:
    """Return what is given by the names of a join's inputs, the left one first; for other tasks as it is given.

    Raises:
        InvalidInputError: The inputs are others than the join has.
    """
    if not isinstance(join, Join):
        return inputs
    if {*inputs} != {join.left, join.right}:
        given = ", ".join(map(repr, inputs))
        raise InvalidInputError(
            f"task={join.task_name} joins the inputs {join.left!r} and {join.right!r}, and its inputs are {given}; give both: "
            f"{{{join.left!r}: ..., {join.right!r}: ...}}."
        )
    return {join.left: inputs[join.left], join.right: inputs[join.right]}


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
