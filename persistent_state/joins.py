"""Joins of two inputs by event time: each row is joined once, when the clock has passed all that it may be joined with."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from monoids import MonoidError
from monoids.nested import kept_type
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import Duration, duration
from persistent_state.ordered import TAKEN, InOrderTask
from persistent_state.windows import LONGEST

INNER, LEFT = HOW = ("inner", "left")

J = TypeVar("J", bound="Join")
T = TypeVar("T")


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


class AsOfJoin(Join):
    """A task that joins each row of its left input with the newest row of its right input, of the same key, at its time.

    That is the right row with the greatest timestamp that is not above the left row's own. One of the same moment counts,
    whatever comes first. Of several of one moment the last in the order of channels and positions counts. A left row without
    any such right row is joined with nulls.

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
        self.tolerance = None if tolerance is None else _length("tolerance", tolerance)


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
        self.bounds = Bounds(_length("before", before), _length("after", after), how == LEFT)


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


def _length(name: str, given: Duration) -> int:
    """Return the microseconds of a duration that bounds a join; it may be 0.

    Raises:
        InvalidInputError: It is not a duration, or far too long.
    """
    found = duration(name, given)
    # The greatest is added to the same again, and to timestamps, within 64 bits.
    if found > LONGEST // 2:
        raise InvalidInputError(f"{name}={given!r}; it must be at most {LONGEST // 2} microseconds.")
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


def _renamed(field: pa.Field, input: str, taken: Collection[str]) -> pa.Field:
    # A row of the right may be missing, so that its columns have nulls.
    return pa.field(f"{input}_{field.name}" if field.name in taken else field.name, field.type)
