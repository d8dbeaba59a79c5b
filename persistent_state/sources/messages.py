"""The messages of a test as a source."""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from monoids.scalars import exact
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import Bounds
from persistent_state.formatting import shortened
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.task import LOCAL_TIMESTAMP, Message

_logger = logging.getLogger("persistent_state")

_NO_BOUNDS = Bounds()


def _timestamps(messages: Sequence[Message]) -> pa.Array:
    """Return the messages' timestamps as a column: integers, or times if they are datetimes.

    Raises:
        InvalidInputError: One is neither, or both kinds are mixed, or a row is not a mapping.
    """
    kinds = set()
    for i, message in enumerate(messages):
        if not isinstance(message, Message):
            raise InvalidInputError(
                f"message {i} is {message!r}, a {type(message).__name__}; give Message(timestamp, {{...}}), with the "
                "timestamp in microseconds UTC or as a datetime."
            )
        if not isinstance(row := getattr(message, "_row", {}), Mapping):
            raise InvalidInputError(
                f"message {i} has row={shortened(repr(row))}, a {type(row).__name__}; give a mapping of columns to values."
            )
        stamp: Any = message.timestamp
        if stamp is None:
            continue
        is_whole = hasattr(stamp, "__index__") and not isinstance(stamp, bool)
        # The missing time of pandas is a datetime that does not equal itself.
        if not is_whole and not (isinstance(stamp, datetime) and stamp == stamp):
            raise InvalidInputError(
                f"message {i} has timestamp={stamp!r}; give whole microseconds UTC, or a datetime, which is in UTC if it "
                "tells no zone."
            )
        if is_whole and not -(2**63) <= int(stamp) < 2**63:
            raise InvalidInputError(
                f"message {i} has timestamp={stamp!r}, beyond 64 bits; give whole microseconds UTC."
            )
        kinds.add(is_whole)
    if len(kinds) > 1:
        raise InvalidInputError(
            f"some of messages={len(messages)} have integers as timestamps and some datetimes; choose one."
        )
    stamps = [message.timestamp for message in messages]
    return pa.array(stamps, pa.timestamp("us", "UTC") if kinds == {False} else pa.int64())


def _cuts_time(value: Any, type: pa.DataType, is_inferred: bool) -> bool:
    """Return whether Arrow would make a date of a datetime in a value. Where a schema wants dates, midnight is one."""
    if pa.types.is_date(type):
        return isinstance(value, datetime) and (is_inferred or value.timetz() != time())
    if pa.types.is_struct(type) and isinstance(value, Mapping):
        return any(_cuts_time(value.get(field.name), field.type, is_inferred) for field in type)
    if pa.types.is_map(type) and isinstance(value, (Mapping, list, tuple)):
        pairs = value.items() if isinstance(value, Mapping) else value
        return any(
            _cuts_time(key, type.key_type, is_inferred) or _cuts_time(item, type.item_type, is_inferred)
            for key, item in pairs
        )
    if hasattr(type, "value_type") and isinstance(value, (list, tuple)):
        return any(_cuts_time(item, type.value_type, is_inferred) for item in value)
    return False


def _check_dates(messages: Sequence[Message], schema: pa.Schema, is_inferred: bool) -> None:
    """Refuse datetimes of which Arrow would make dates.

    Raises:
        InvalidInputError: There is one.
    """
    for field in schema:
        if "date" in str(field.type):
            for i, message in enumerate(messages):
                if _cuts_time(value := message.get(field.name), field.type, is_inferred):
                    raise InvalidInputError(
                        f"message {i} has {field.name}={shortened(repr(value))}, and the column is {field.type}: the time "
                        "would be cut; give all messages dates, or all of them datetimes."
                    )


def _misfit(messages: Sequence[Message], schema: pa.Schema | None) -> str:
    """Return in words the first message whose value does not fit its column, or those before it; "" if all fit."""
    for name in dict.fromkeys(itertools.chain(*messages)) if schema is None else schema.names:
        type = None if schema is None else schema.field(name).type
        values = [message.get(name) for message in messages]

        def is_unfit(count: int, values: list[Any] = values, type: pa.DataType | None = type) -> bool:
            try:
                pa.array(values[:count] if type is None else [exact(value, type) for value in values[:count]], type)
            except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
                return True
            return False

        if is_unfit(len(values)):
            place = bisect_left(range(len(values)), True, key=is_unfit) - 1
            return f"message {place} has {name}={shortened(repr(values[place]))}: "
    return ""


def _with_times(
    rows: pa.Table, messages: Sequence[Message], stamps: pa.Array[Any], column: str | None, unit: str | None
) -> pa.Table:
    """Return rows with the timestamps of their messages in this column, if it is one, where a message does not have it."""
    place = rows.schema.get_field_index(column or "")
    absent = [column not in message for message in messages]
    if place < 0 or not any(absent):
        return rows
    type = rows.schema.field(place).type
    times = stamps.cast(pa.int64()).cast(pa.timestamp("us"))
    if pa.types.is_int64(type):
        times = times.cast(pa.timestamp(unit or "us"), safe=False).cast(type)
    elif pa.types.is_timestamp(type) or pa.types.is_date(type):
        times = times.cast(type, safe=False)
    else:
        return rows
    return rows.set_column(place, rows.schema.field(place), pc.if_else(pa.array(absent), times, rows.column(place)))


class MessageSource(TimeReplayableSource):
    """A source of messages in memory, as one partition."""

    timestamp = LOCAL_TIMESTAMP

    def __init__(
        self,
        messages: Sequence[Message],
        schema: pa.Schema | None,
        batch_size: int,
        timestamp_unit: str | None = None,
        bounds: Bounds = _NO_BOUNDS,
        is_finite: bool = False,
        time: tuple[str | None, str | None] = (None, None),
    ) -> None:
        if batch_size < 1:
            raise InvalidInputError(f"batch_size={batch_size}; a micro-batch holds at least one message.")
        stamps = _timestamps(messages)
        try:
            records = [dict(message) for message in messages]
            if schema is not None:
                records = [exact(record, pa.struct(list(schema))) for record in records]
            # Arrow alone takes the columns of the first one.
            names = dict.fromkeys(itertools.chain(*records)) if schema is None else schema.names
            rows = pa.Table.from_pylist([{name: record.get(name) for name in names} for record in records], schema)
        except UnicodeEncodeError as error:
            raise InvalidInputError(
                f"messages={len(messages)} have {shortened(repr(error.object))}, which is not Unicode text; correct it, or "
                "leave it out."
            ) from None
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
            columns = "" if schema is None else f" ({', '.join(f'{column.name}: {column.type}' for column in schema)})"
            raise InvalidInputError(
                f"messages={len(messages)} are no rows of the same columns{columns}: {_misfit(messages, schema)}{error}; "
                "correct values or schema."
            ) from error
        _check_dates(messages, rows.schema, schema is None)
        if LOCAL_TIMESTAMP in rows.column_names:
            raise InvalidInputError(
                f"the name of column {LOCAL_TIMESTAMP!r} of the messages is this package's own; rename it."
            )
        rows = _with_times(rows, messages, stamps, *time)
        self._table = rows.add_column(0, LOCAL_TIMESTAMP, stamps).combine_chunks()
        self._messages, self._batch_size = messages, batch_size
        self.timestamp_unit = timestamp_unit
        self.bounds = bounds
        self._is_finite = is_finite

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def warn_of_absent(self, use: str, column: str, effect: tuple[str, str], place: str) -> None:
        """Warn of messages that lack a column of a task, if there are any.

        Args:
            use: "key" or "value".
            column: The column.
            effect: The effect, of one message and of several.
            place: The task's input.
        """
        absent = [number for number, message in enumerate(self._messages) if column not in message]
        if absent:
            is_many = len(absent) > 1
            _logger.warning(
                "%s: %s of %s messages %s no %s column %r and %s: message %d has %s. Give each message the column, if only "
                "with None.",
                place, f"{len(absent):,}", f"{len(self._messages):,}", "have" if is_many else "has", use, column,
                effect[is_many], absent[0], ", ".join(self._messages[absent[0]]) or "no column",
            )  # fmt: skip

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        pass

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        begin = start.get("", 0)
        end = self._table.num_rows if everything else min(begin + self._batch_size, self._table.num_rows)
        # The clock does not wait for an empty list.
        ends = {"": end} if end > begin else dict(start)
        is_last = end == self._table.num_rows if self._is_finite else None
        return Reach(ends, None if self._table.num_rows else {}, is_last=is_last)

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        return [(start.get("", 0), end.get("", 0))]

    def read(self, split: Any) -> Iterator[Chunk]:
        begin, end = split
        for batch in self._table.slice(begin, end - begin).combine_chunks().to_batches():
            yield Chunk("", begin, batch)
