"""From rows to a task's updates: user code returns them, as values of the monoid's type, and some rows do not fit.

Before the shuffle `updates_of` does it, row by row or column by column. A task that reads its state is called after the
shuffle, by `updates_by_key`, with the messages of each key in their order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from monoids import Monoid, MonoidError
from persistent_state.batch.groups import Groups
from persistent_state.batch.part import part_of
from persistent_state.batch.plan import InputPlan, of_item
from persistent_state.batch.row_messages import row_messages, unreadable
from persistent_state.batch.rows import Mask, Place, check_bad_rows, describe, microseconds, side_table
from persistent_state.errors import InvalidInputError, TaskFailedError, at_definition, places, raised
from persistent_state.formatting import in_python, shortened
from persistent_state.partials import fold, keys
from persistent_state.partials.layout import as_numpy, one_chunk
from persistent_state.partials.so_far import SoFar
from persistent_state.state import PersistentState
from persistent_state.store.late_rows import UNFIT
from persistent_state.task import LOCAL_TIMESTAMP, Message


@dataclass(frozen=True)
class Updates:
    """The updates of some rows. `taken` has the row of each (None: one of each row, in their order).

    `values` are of the monoid's type, and null is no update. `unfit` marks the rows that hold an update that does not fit, or a
    value that the task asked for and Python does not have: they make none. `reasons` has the reason of each, or of all, and
    `misfit` what did not fit in the first of them, if it is known.
    """

    taken: NDArray[np.int64] | None
    values: pa.Array
    unfit: Mask
    reasons: str | Sequence[str] = UNFIT
    misfit: str = ""


def updates_of(plan: InputPlan, rows: pa.RecordBatch, place: Place, computed: pa.Array | None) -> Updates:
    """Return the updates that a task makes of rows; `computed` are those that Spark has computed, if it has.

    Raises:
        TaskFailedError: User code raised, or returned what are no updates.
    """
    recorder = Recorder(plan)

    def where(i: int) -> str:
        return describe(plan, rows, place, i)

    if plan.update_way == "message":
        for i, message in enumerate(_messages(plan, rows, place)):
            recorder.process(message, i, where)
        return recorder.updates(rows.num_rows)
    column = computed if computed is not None else _update_column(plan, rows, where)
    if plan.state.prepare is not None:
        recorder.prepare_all(column, where)
        return recorder.updates(rows.num_rows)
    try:
        values, unfit = plan.layout.monoid.cast(column)
    except MonoidError as error:
        made = _of_batch(plan) if plan.update_way == "batch" else f"task={plan.named}"
        raise TaskFailedError(f"{made}: {error}") from error
    if not unfit.any():
        return Updates(None, values, unfit)
    return Updates(None, values, unfit, misfit=_misfit_in(plan, column, int(unfit.argmax())))


def _misfit_in(plan: InputPlan, column: pa.Array, row: int) -> str:
    """Return in words the value of a column that does not fit; "" if the column is the library's own."""
    if part_of(plan.task) is not None:
        return ""
    value, monoid = in_python(column[row]), plan.layout.monoid
    why = _misfit(monoid, value) or f"{monoid.name}: value={shortened(repr(value))} does not fit {monoid.type}"
    return f"{_maker(plan)}: {why}"


def _misfit(monoid: Monoid[Any], value: object) -> str:
    """Return in words why a value of Python does not fit a monoid; "" if it does."""
    try:
        monoid.to_arrow([value])
    except MonoidError as error:
        return f"{str(error).rstrip('.')}{of_item(monoid)}"
    return ""


def _maker(plan: InputPlan) -> str:
    """Return in words what makes the updates of rows: a column, or a function of the user's."""
    if plan.task.value is not None:
        return f"column {plan.task.value!r}"
    return f"updated{at_definition(getattr(plan.task, f'process_{plan.update_way}'))}"


def _of_batch(plan: InputPlan) -> str:
    return f"process_batch of task={plan.named}{at_definition(plan.task.process_batch)}"


def _update_column(plan: InputPlan, rows: pa.RecordBatch, where: Callable[[int], str]) -> pa.Array:
    """Return a column with the update of each row: one that the source has, or what `process_batch` returns."""
    if plan.task.value is not None:
        return rows.column(plan.task.value)
    try:
        column = plan.task.process_batch(rows)
    except Exception as error:
        span = f"{where(0)} to {where(rows.num_rows - 1)}"
        raise TaskFailedError(f"process_batch of task={plan.named} raised {raised(error)}, at {span}.") from error
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if not isinstance(column, pa.Array):
        raise TaskFailedError(f"{_of_batch(plan)} gave a {type(column).__name__}, not an Arrow array; make it one.")
    if len(column) != rows.num_rows:
        raise TaskFailedError(
            f"{_of_batch(plan)} gave {len(column)} updates for {rows.num_rows} rows; give one for each, null for none."
        )
    return column


def update_table(plan: InputPlan, columns: Mapping[str, pa.Array], updates: Updates) -> pa.Table:
    """Return updates with the key and the order of the rows that they were taken from; several of one row are numbered.

    Where messages count once, those of one row are put together: what has come before then leaves as a whole.
    """
    layout, taken, values = plan.layout, updates.taken, updates.values
    columns = {
        name: c for name, c in columns.items() if layout.is_ordered or name not in ("channel", "position", "strand")
    }
    if layout.once is not None and taken is not None and len(taken):
        known = values.is_valid().to_numpy(zero_copy_only=False)
        taken, values = taken[known], values.drop_null()
        begins = np.flatnonzero(np.append(True, taken[1:] != taken[:-1])[: len(taken)])
        if len(begins) < len(taken):
            summed, keyed = values, pa.table({name: columns[name] for name in layout.key_names})

            def sums(first: int, end: int) -> pa.Array:
                some = begins[(begins >= first) & (begins < end)]
                return fold.sums(summed.slice(first, end - first), some - first, layout)

            values = fold.of_keys(sums, begins, len(taken), keyed, taken, layout)
        taken = taken[begins]
    if taken is not None:
        columns = {name: column.take(pa.array(taken)) for name, column in columns.items()}
    if layout.is_ordered:
        number = 0 if taken is None else np.arange(len(taken)) - np.searchsorted(taken, taken)
        columns["number"] = pa.array(np.broadcast_to(number, len(values)).astype(np.int32))
    columns.update(dict.fromkeys(layout.kind.columns, columns["time"]))
    table = pa.table({**columns, "value": values})
    return table.filter(values.is_valid()) if values.null_count else table


def updates_by_key(
    plan: InputPlan, tables: Sequence[pa.Table], older: Sequence[pa.Table]
) -> tuple[pa.Table, list[pa.Table]]:
    """Let a task that reads its state process its messages, key by key and in their order.

    Args:
        plan: The plan of the rows.
        tables: The messages of some keys, with their rows.
        older: The levels that hold the state of these keys before.

    Returns:
        The updates as a table of the layout, and tables of the rows that do not fit.

    Raises:
        TaskFailedError: User code raised, or a row does not fit and bad rows are to fail.
    """
    table = pa.concat_tables(tables).combine_chunks()
    by = ["hash", *plan.layout.key_names, "time", "channel", "position", "strand"]
    table = table.sort_by([(name, "ascending") for name in by])
    first = ~keys.same_as_previous([one_chunk(table[name]) for name in ("hash", *plan.layout.key_names)])
    struct = one_chunk(table["row"])
    rows = pa.RecordBatch.from_arrays(struct.flatten(), schema=plan.schema)
    # Not those of the table: what is taken in late has the clock's.
    times, valid = microseconds(rows.column(plan.timestamp), plan.timestamp_unit)
    partitions, channels = (Groups.of_column(one_chunk(table[name])) for name in ("strand", "channel"))
    place = Place(partitions, channels, as_numpy(table, "position"), times, valid)
    asked = table.select(["hash", *plan.layout.key_names]).filter(pa.array(first))
    lowest = int(as_numpy(table, "time").min())
    recorder = ReadingRecorder(plan, plan.layout.kind.so_far(asked, older, plan.layout, lowest))
    key = -1
    for i, (message, begins) in enumerate(zip(_messages(plan, rows, place), first.tolist(), strict=True)):
        key += begins
        recorder.turn_to(key, message.timestamp)
        recorder.process(message, i, lambda i: describe(plan, rows, place, i))
    updates = recorder.updates(len(times))
    sides = []
    if updates.unfit.any():
        sides.append(side_table(plan, rows, updates.unfit, updates.reasons, place))
        check_bad_rows(plan, sides[-1], updates.misfit)
    columns = {name: one_chunk(table[name]) for name in table.column_names if name != "row"}
    return update_table(plan, columns, updates).select(plan.layout.schema.names), sides


class Recorder(PersistentState[Any]):
    """The state that `process_message` is handed before the shuffle. It records updates, each as one of the current row."""

    # So no user code gives it another attribute, which would have no effect.
    __slots__ = ("_bad", "_plan", "_prepare", "_process_message", "_row", "_rows", "_timestamp", "_values")

    def __init__(self, plan: InputPlan) -> None:
        self._plan = plan
        self._process_message: Callable[[Any, Message], object] = plan.task.process_message
        self._prepare = plan.state.prepare
        self._rows: list[int] = []
        self._values: list[Any] = []
        # The reason of each bad row, and what did not fit, if that is known. None of the updates that it makes counts.
        self._bad: dict[int, tuple[str, str]] = {}
        self._row = 0
        self._timestamp = 0

    @property
    def monoid(self) -> Any:
        return self._plan.layout.monoid

    def update(self, timestamp: int, value: Any) -> None:
        if timestamp != self._timestamp:
            raise InvalidInputError(
                f"update(timestamp={timestamp}) is not the message's {self._timestamp}; pass message.timestamp."
            )
        if self._prepare is not None and value is not None:
            # Prepared first: user code may catch what `prepare` raises, and then there is no update.
            try:
                value = self._prepare(value)
            except MonoidError as error:
                self._put_aside(UNFIT, str(error).rstrip("."))
                return
        if isinstance(value, _CONTAINERS):
            value = _copied(value)
        self._rows.append(self._row)
        self._values.append(value)

    def get(self) -> Any:
        raise InvalidInputError(
            f"task={self._plan.named} calls get(); set reads_state = True to read the state, and never compute an update "
            "of it: take a monoid or an OrderedTask for that."
        )

    def process(self, message: Message, row: int, where: Callable[[int], str]) -> None:
        """Let the task process a message; `where` describes a row for people.

        Raises:
            TaskFailedError: The task returned a value, or raised, though not at a value that Python does not have.
        """
        self._row, self._timestamp = row, message.timestamp
        try:
            returned = self._process_message(self, message)
        except Exception as error:
            if (cause := unreadable(error)) is None:
                raise self._failed(error, where(row)) from error
            self._put_aside(str(cause))
            return
        if returned is not None:
            of = f"{self._plan.named}{at_definition(self._process_message)}"
            raise TaskFailedError(
                f"process_message of task={of} returned {_short(returned)}, which has no effect, at {where(row)}; call "
                "state.update(message.timestamp, value), and return nothing."
            )

    def _put_aside(self, reason: str, misfit: str = "") -> None:
        """Make the current row a bad one, with the updates that it makes."""
        self._bad[self._row] = reason, misfit

    def _failed(self, error: Exception, where: str) -> TaskFailedError:
        """Return the error that says what the task raised, and where."""
        if isinstance(error, InvalidInputError):
            return TaskFailedError(f"process_message of task={self._plan.name}{places(error)}, at {where}: {error}")
        of = f"process_message of task={self._plan.named}"
        if isinstance(error, AttributeError) and f"'{type(self).__name__}' object" in str(error):
            return TaskFailedError(f"{of}{places(error)}, at {where}: {_NO_ATTRIBUTE.format(_named_in(error))}")
        if isinstance(error, TypeError) and f"'{type(self).__name__}'" in str(error):
            return TaskFailedError(f"{of}{places(error)}, at {where}: the state is not a value; {_WAYS}")
        return TaskFailedError(f"{of} raised {raised(error)}, at {where}.")

    def prepare_all(self, column: pa.Array, where: Callable[[int], str]) -> None:
        """Record each item of a column as the update of its row.

        Raises:
            TaskFailedError: The aggregator's `prepare` raised.
        """
        for i, item in enumerate(column):
            self._row = i
            try:
                value = item.as_py()
            except (OverflowError, ValueError, KeyError):
                # A time beyond those of Python, for one, or a time zone that this machine lacks.
                self._put_aside(UNFIT)
                continue
            try:
                self.update(self._timestamp, value)
            except Exception as error:
                found = raised(error)
                raise TaskFailedError(f"prepare of task={self._plan.named} raised {found}, at {where(i)}.") from error

    def updates(self, rows: int) -> Updates:
        """Return what was recorded of `rows` rows."""
        taken = np.array(self._rows, dtype=np.int64)
        unfit = np.zeros(rows, dtype=np.bool_)
        try:
            values = self.monoid.to_arrow(self._values)
        except MonoidError:
            misfits = zip(self._rows, (_misfit(self.monoid, value) for value in self._values), strict=True)
            self._bad = {row: (UNFIT, misfit) for row, misfit in misfits if misfit} | self._bad
        else:
            if not self._bad:
                return Updates(taken, values, unfit)
        unfit[[*self._bad]] = True
        keep = ~unfit[taken]
        kept = [value for value, is_kept in zip(self._values, keep, strict=True) if is_kept]
        bad = [self._bad[row] for row in sorted(self._bad)]
        misfit = f"{_maker(self._plan)}: {bad[0][1]}" if bad[0][1] else ""
        return Updates(taken[keep], self.monoid.to_arrow(kept), unfit, [reason for reason, _ in bad], misfit)


# Python names them in its errors, as when an argument is missing.
Recorder.update.__qualname__ = "state.update"


class ReadingRecorder(Recorder):
    """The state that `process_message` is handed after the shuffle. It records updates, and reads what they come to."""

    __slots__ = ("_is_fit", "_so_far")

    def __init__(self, plan: InputPlan, so_far: SoFar) -> None:
        super().__init__(plan)
        self._so_far = so_far
        self._is_fit = True

    def turn_to(self, key: int, timestamp: int) -> None:
        """Make the next message one of this key, at this time."""
        self._so_far.turn_to(key, timestamp)
        self._is_fit = True

    def update(self, timestamp: int, value: object) -> None:
        super().update(timestamp, value)
        if not self._is_fit:
            return
        try:
            (known,) = self.monoid.from_arrow(self.monoid.to_arrow(self._values[-1:]))
        except MonoidError:
            self._put_aside(UNFIT, _misfit(self.monoid, self._values[-1]))
            return
        if known is not None:
            with _naming_ways_out():
                self._so_far.add(known)

    def _put_aside(self, reason: str, misfit: str = "") -> None:
        """Make the current row a bad one: what its message has updated so far, and what it may update still, does not count."""
        super()._put_aside(reason, misfit)
        self._is_fit = False
        self._so_far.undo()

    def get(self) -> object:
        with _naming_ways_out():
            return self._so_far.get()


ReadingRecorder.update.__qualname__ = "state.update"


_CONTAINERS = (list, dict, set, tuple, bytearray)
"""The classes of values that user code may change after an update, or that may hold such values."""


def _copied(value: Any) -> Any:
    """Return a value that stays as it is, whatever user code does with this one."""
    if isinstance(value, list):
        return [_copied(item) if isinstance(item, _CONTAINERS) else item for item in value]
    if isinstance(value, dict):
        return {key: _copied(item) if isinstance(item, _CONTAINERS) else item for key, item in value.items()}
    if isinstance(value, tuple):
        items = [_copied(item) if isinstance(item, _CONTAINERS) else item for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value.copy() if isinstance(value, (set, bytearray)) else value


_WAYS = "call state.update(message.timestamp, value) to add a value, or state.get() to read the sum."
_NO_ATTRIBUTE = f"attribute={{!r}} of the state can't be read or set; {_WAYS}"


def _named_in(error: AttributeError) -> str:
    """Return the name of the attribute that an error is about."""
    # Python 3.11 and before name it in the text alone if it was to be set.
    return error.name or next(name for name in re.findall(r"'(\w+)'", str(error)) if not name.endswith("Recorder"))


def _short(value: object) -> str:
    return repr(value) if isinstance(value, (bool, int, float)) else f"a {type(value).__name__}"


@contextmanager
def _naming_ways_out() -> Iterator[None]:
    try:
        yield
    except MonoidError as error:
        raise InvalidInputError(f"{str(error).rstrip('.')}. {fold.TOO_LARGE}") from error


def _messages(plan: InputPlan, rows: pa.RecordBatch, place: Place) -> Iterator[Message]:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns.pop(LOCAL_TIMESTAMP, None)
    return row_messages(columns, place.timestamps.tolist(), plan.input)
