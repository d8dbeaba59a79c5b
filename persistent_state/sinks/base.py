"""The interface of a sink, and what it is given."""

from __future__ import annotations

import os
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partialmethod
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from persistent_state.errors import FencedError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.sinks.values import Values, values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


CLOCK, VALUE = "clock", "value"
"""The columns after those of the key: the clock, a timestamp in UTC, and the value as the state presents it."""

_BATCH = "batch"


@dataclass(frozen=True)
class Origin:
    """The task whose values a sink is given, and their columns.

    Attributes:
        application: The application's name.
        task: The task's name.
        key_columns: The key columns; of windows also their start and end.
        schema: The key columns, `clock` (a timestamp in UTC) and `value`. The start and the end of a window are timestamps in
            UTC.
        window: The two columns of a window's start and end; of emitted rows the column of their moment; else none.
        is_unique: Whether a key has at most one row at a clock. The rows that an `OrderedTask` emits may be several. Their
            columns are those of the key, those of `emits`, `timestamp` and `clock`.
        timeline: The timeline of the values that will be written: it is 0 until the application is rewound, and greater after
            each rewind. A sink that keeps a record keeps the timeline with the clock.

    Example:
        >>> clock = pa.timestamp("us", "UTC")
        >>> schema = pa.schema([("shop", pa.string()), ("clock", clock), ("value", pa.int64())])
        >>> Origin("shops", "Revenue", ("shop",), schema).times
        ('clock',)
    """

    application: str
    task: str
    key_columns: tuple[str, ...]
    schema: pa.Schema
    window: tuple[str, ...] = ()
    is_unique: bool = True
    timeline: int = 0

    @property
    def times(self) -> tuple[str, ...]:
        """The columns of the library's own times: the clock, and the start and the end of a window."""
        return (CLOCK, *self.window)

    def with_whole(self, columns: Container[str]) -> Origin:
        """Return the same origin with some of its times as int64, microseconds UTC.

        A table keeps its columns, and older tables have int64.

        Args:
            columns: The names of the columns that are int64 in the table.
        """
        whole = {name for name in self.times if name in columns}
        fields = [field.with_type(pa.int64()) if field.name in whole else field for field in self.schema]
        return replace(self, schema=pa.schema(fields))


def _write_frame(sink: Any, values: Values, clock: int) -> None:
    sink.write(values.to_spark(), clock)


def _write_values_of(sink: Sink, owner: type[Sink], frame: DataFrame, clock: int) -> None:
    """Write a DataFrame as a class does that may be a base of the sink's own."""
    owner.write_values(sink, values_of(frame), clock)


def takes_frames(sink: Sink) -> bool:
    """Return whether a sink is of the former interface, and is given DataFrames."""
    written: object = type(sink).write_values
    return written is _write_frame


class Sink(ABC):
    """A place for the values of a task at each checkpoint clock; subclass it for a place of your own.

    `write_values` returns when the values at a clock are durable, all of them. If it raises, readers see none of them. Clocks
    come in rising order. A clock at or below the last one may come again, after a crash or from a driver that was fenced, and
    must then change nothing.

    A sink that defines `write(values, clock)` in place of `write_values` is given a DataFrame. This is deprecated.

    Example:
        >>> from persistent_state.sinks import LocalValues
        >>> class Page(Sink):
        ...     name = "pager of the night shift"
        ...
        ...     def write_values(self, values, clock):
        ...         for row in (row for batch in values.batches() for row in batch.to_pylist()):
        ...             if row["value"] > 100:
        ...                 print(f"{row['host']} at clock {clock}: {row['value']}")
        >>> Page().write_values(LocalValues.of(pa.table({"host": ["db", "web"], "value": [3, 300]})), 20)
        web at clock 20: 300
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        defined = [name for base in cls.__mro__ for name in ("write_values", "write") if name in vars(base)]
        if defined[0] == "write":
            warnings.warn(
                f"{cls.__qualname__}.write() is given a DataFrame, which is deprecated; define write_values(values, clock), "
                "which reads values.batches(), and rewind(clock, values) likewise.",
                DeprecationWarning,
                stacklevel=3,
            )
            cls.write_values = _write_frame  # type: ignore[assignment, method-assign]
        elif "write_values" in vars(cls) and isinstance(getattr_static(cls, "write", None), partialmethod | None):
            # A sink of the former interface may hand its DataFrame on to this one, most often by `super().write`.
            cls.write = partialmethod(_write_values_of, cls)  # type: ignore[attr-defined]

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the place, without secrets. The log records under it which clocks the sink has."""

    def open(self, origin: Origin) -> int | None:
        """Make ready for values. The library calls it at each start of an application, on a copy of its own.

        It is called in a thread of its own. A start waits ten seconds for all its sinks, and goes on without one that takes
        longer.

        Args:
            origin: Whose values will be written here, and their columns.

        Returns:
            None. A sink that knows its last clock is a `RecordingSink`.

        Raises:
            InvalidInputError: The place can't take these values, as a table with other columns can't. The start is refused.
            StoreUnavailableError: The place does not answer now. It is asked again later, and nothing waits for it.
        """
        return None

    def records(self, task: str) -> frozenset[Hashable]:
        """Name the records that this sink keeps of the clocks that were written for a task.

        Two outputs that share a record are refused: each would take the clocks of the other for its own and leave out rows.

        Args:
            task: The task's name.

        Returns:
            The names; none for a sink that keeps no record.
        """
        return frozenset()

    @abstractmethod
    def write_values(self, values: Values, clock: int) -> None:
        """Make the values at a clock durable.

        If it raises, the library logs a warning and calls it again with the same clock, after a second, then two, four, up to a
        minute.

        Args:
            values: One row per key, with the columns that `open` was given.
            clock: The checkpoint clock in microseconds UTC.
        """

    def can_rewind(self, origin: Origin) -> bool:
        """Return whether the sink can take back what it was given above a clock: by default, whether it defines `rewind`.

        Args:
            origin: Whose values are written here, and their columns.
        """
        return type(self).rewind is not Sink.rewind

    def rewind(self, clock: int, values: Values) -> None:
        """Take back all values above a clock. The library calls it after a rewind of the application, before the next clock.

        It is called after `open`, and may be called again after a crash. It may run in a process without Spark. A sink that
        does not define it has its application refused a rewind to a clock below its own.

        Args:
            clock: The clock in microseconds UTC. Values at it and below stay. It is -2**63, below every clock, if no value may
                stay. The sink is given everything with the next clock then.
            values: What the sink would be given at the clock if it had nothing: all keys, with their values then. A place that
                has only the newest value of a key needs it: what the key was at the clock. It also writes the keys that it
                lacks, since an earlier rewind, to a later clock, may have deleted them.
        """
        raise NotImplementedError

    def rows_above(self, clock: int, origin: Origin) -> int | None:
        """Return how many rows `rewind` would take back or change; None, by default, if the sink does not know.

        The plan of a rewind calls it, without `open`. It changes nothing.

        Args:
            clock: The clock in microseconds UTC, or -2**63, as `rewind` is given it.
            origin: Whose values are written here, and their columns.

        Raises:
            InvalidInputError: The sink can't go back to this clock, or the place can't take these values, as `open` would say.
                The rewind is refused.
        """
        return None


class RecordingSink(Sink):
    """A sink that writes the clock together with the values, in one step, and so knows which clocks it has.

    At each start the library asks the sink for its last clock, and never gives it a clock that it has. So each clock counts
    exactly once.

    A sink that defines `rewind` keeps the timeline with the clock, and compares first the timeline, then the clock:

    - `rewind` does nothing if the record has the timeline of the origin. Otherwise it takes back what is above the clock, and
      records the timeline of the origin with the clock, or with its own last clock if that is lower, all in one step.
    - `write_values` raises `FencedError` if the timeline of the record is greater than that of the origin: its writer is a
      driver that was fenced by a rewind. So such a writer changes nothing, whenever it comes.

    Example:
        >>> class Dictionary(RecordingSink):
        ...     name = "a dictionary"
        ...
        ...     def __init__(self):
        ...         self.rows_by_clock = {}
        ...
        ...     def open(self, origin):
        ...         return max(self.rows_by_clock, default=None)
        ...
        ...     def write_values(self, values, clock):
        ...         rows = [row for batch in values.batches() for row in batch.to_pylist()]
        ...         self.rows_by_clock.setdefault(clock, rows)
        >>> Dictionary().name
        'a dictionary'
    """

    @abstractmethod
    def open(self, origin: Origin) -> int | None:
        """Make ready for values, and return the last clock that was written here.

        The library calls it as it calls `Sink.open`.

        Args:
            origin: Whose values will be written here, and their columns.

        Returns:
            The clock in microseconds UTC, or None if no clock was written yet.

        Raises:
            InvalidInputError: The place can't take these values. The start is refused.
            StoreUnavailableError: The place does not answer now. It is asked again later.
        """

    def last_clock(self, origin: Origin) -> int | None:
        """Return the last clock that was written here; None, by default, if the sink does not say.

        The plan of a rewind calls it, without `open`. It changes nothing. A store that was brought back from an older copy does
        not know how far its sinks are. A sink that does not say goes back with each rewind.

        Args:
            origin: Whose values are written here, and their columns.

        Returns:
            The clock in microseconds UTC; -2**63 if no clock was written yet.

        Raises:
            FencedError: The sink has recorded a later timeline than that of the origin.
        """
        return None

    def records(self, task: str) -> frozenset[Hashable]:
        """Name the records that this sink keeps: by default one, its `name`, so that two sinks of one name are refused.

        Args:
            task: The task's name.

        Returns:
            The names, as `Sink.records` has them.
        """
        return frozenset([self.name])


class OfTimeline(Protocol):
    """A writer of one timeline, or the origin of what it writes."""

    @property
    def application(self) -> str: ...

    @property
    def timeline(self) -> int: ...


def check_timeline(name: str, recorded: int, origin: OfTimeline) -> None:
    """Refuse to write values of a timeline that a rewind has ended.

    Raises:
        FencedError: The sink of this name has recorded a later timeline.
    """
    if recorded > origin.timeline:
        raise FencedError(
            f"{name} has values of timeline={recorded}, and this writer is of timeline={origin.timeline}, which has ended: "
            f"application={origin.application} was rewound. Stop it, and start it again."
        )


def known_clock(clock: int) -> int | None:
    """Return a clock that a sink has recorded; None for the clock before every message, which stands for none."""
    return None if clock == BEGINNING else clock


def folder_record(url: str, options: Mapping[str, Any]) -> Hashable:
    """Name the record of a table that is a folder, the same however its url is written."""
    path = url.removeprefix("file://")
    place = re.sub("^s3a:", "s3:", path) if "://" in path else os.path.realpath(path)
    # Options may name another server, which has another bucket of this name.
    return ("folder", place.rstrip("/"), repr(sorted(options.items())))


def arrow_batches(values: DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a DataFrame, one of its partitions after the other, for functions that write from the driver.

    Nothing goes through pandas or Spark's rows: nulls stay nulls, and times are UTC.

    Args:
        values: The DataFrame that a function of (values, clock) is given.

    Returns:
        Record batches with the DataFrame's columns.

    Example:
        >>> values = spark.sql("SELECT 'db' AS host, 3 AS value")
        >>> [batch.to_pylist() for batch in arrow_batches(values)]
        [[{'host': 'db', 'value': 3}]]
    """

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if any(map(pa.types.is_nested, batch.schema.types)):
                # Spark 4.0 leaves out the offsets of lists where a batch has none, and some that take Arrow read them anyway.
                batch = batch.take(pa.array(range(batch.num_rows), pa.int64()))
            buffer = pa.BufferOutputStream()
            with pa.ipc.new_stream(buffer, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.record_batch([pa.array([buffer.getvalue().to_pybytes()])], [_BATCH])

    # Name columns by number, since Spark takes a dot in a column's name for access to a field.
    unnamed = values.toDF(*map(str, range(len(values.columns))))
    for row in unnamed.mapInArrow(pack, f"{_BATCH} binary").toLocalIterator(prefetchPartitions=True):
        for batch in pa.ipc.open_stream(row[_BATCH]):
            yield batch.rename_columns(values.columns)
