"""The rows that a sink is given at a clock, in Arrow, under any engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.partials.keys import hash_keys, normalise, shard_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Result = TypeVar("Result")

OfPart: TypeAlias = Callable[[int, Iterator[pa.RecordBatch]], Result]
"""A function of the number of a part and of the batches of its rows."""

Reader: TypeAlias = Callable[[], Iterable[pa.RecordBatch]]
"""Returns the rows of a part. It is called again whenever they are read again."""


class Values(Protocol):
    """The rows that a sink is given at a clock.

    They are read from immutable files whenever they are asked for. So a sink may read them twice, in part, or not at all.

    Example:
        >>> values = LocalValues.of(pa.table({"shop": ["a", "b"], "value": [1, 2]}))
        >>> values.schema.names
        ['shop', 'value']
        >>> sum(batch.num_rows for batch in values.batches())
        2
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows: those of the origin that `Sink.open` was given."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all rows in this process, one part after the other.

        Returns:
            Record batches with the columns of `schema`. There may be none.

        Raises:
            StateError: The rows can't be read.
        """
        ...

    def map_parts(
        self, function: OfPart[Result], *, parts: int | None = None, by: Sequence[str] | None = None
    ) -> list[Result]:
        """Call a function for each part of the rows, where the engine reads them. Its workers call it side by side.

        A call may be repeated, and may run twice at the same time, as after the death of a worker. So two calls for a part must
        do no harm. If one fails, others may have run.

        Args:
            function: Called as function(part, batches). It and what it returns must pickle. A part without rows is left out.
            parts: The most parts; by default as many as the engine makes.
            by: Columns of a key, if rows with the same key must come to the same part. Then there are exactly `parts` parts:
                the ranges of the key's hash, which is the same in every process and version. The function is called for a part
                without rows, too.

        Returns:
            What the calls have returned, in the order of the parts.

        Raises:
            StateError: The rows can't be read, or a call has raised this error.

        Example:
            >>> values = LocalValues.of(pa.table({"shop": ["a", "b", "a"], "value": [1, 2, 3]}))
            >>> def total(part, batches):
            ...     return sum(row["value"] for batch in batches for row in batch.to_pylist())
            >>> values.map_parts(total)
            [6]
            >>> sorted(values.map_parts(total, parts=2, by=["shop"]))
            [2, 4]
        """
        ...

    def to_spark(self) -> DataFrame:
        """Return the rows as a DataFrame.

        Raises:
            InvalidInputError: They are read without Spark.
        """
        ...


@dataclass(frozen=True)
class LocalValues:
    """The `Values` that are read in this process, without Spark: those of a rewind, and of tests of sinks.

    They can be pickled if the readers can.

    Attributes:
        schema: The columns of the rows.
        readers: One for each part. Each returns batches with these columns.

    Example:
        >>> table = pa.table({"value": [1, 2]})
        >>> LocalValues(table.schema, [table.to_batches]).map_parts(lambda part, batches: next(batches)["value"].to_pylist())
        [[1, 2]]
    """

    schema: pa.Schema
    readers: Sequence[Reader]

    def __repr__(self) -> str:
        # As a DataFrame shows itself: the readers have all of the state's files in them.
        return f"{type(self).__name__}[{', '.join(f'{field.name}: {field.type}' for field in self.schema)}]"

    @staticmethod
    def of(table: pa.Table, parts: int = 1) -> LocalValues:
        """Return the rows of a table as values.

        Args:
            table: The rows.
            parts: The number of parts in which they lie.

        Example:
            >>> values = LocalValues.of(pa.table({"value": [1, 2, 3]}), parts=2)
            >>> values.map_parts(lambda part, batches: sum(batch.num_rows for batch in batches))
            [1, 2]
        """
        pieces = (table.slice(low, high - low) for low, high in _ranges(len(table), parts))
        return LocalValues(table.schema, tuple(piece.to_batches for piece in pieces))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all rows, as `Values.batches` does."""
        return _read(self.readers)

    def map_parts(
        self, function: OfPart[Result], *, parts: int | None = None, by: Sequence[str] | None = None
    ) -> list[Result]:
        """Call a function for one part after the other, as `Values.map_parts` does. With `by` all rows are held in memory.

        Args:
            function: Called as function(part, batches).
            parts: The most parts; by default one for each reader.
            by: Columns of a key, if rows with the same key must come to the same part.
        """
        if by is not None:
            rows: list[list[pa.RecordBatch]] = [[] for _ in range(count_of_parts(parts, by))]
            for batch in self.batches():
                for part, of_part in divided(batch, by, len(rows)):
                    rows[part].append(of_part)
            return [function(part, iter(batches)) for part, batches in enumerate(rows)]
        read = (with_rows(_read(readers)) for readers in in_parts(self.readers, parts))
        return [function(part, batches) for part, batches in enumerate(read) if batches is not None]

    def __call__(self) -> Iterator[pa.RecordBatch]:
        """Read all rows, as `rewind` of a sink of the former interface does. This is deprecated: use `batches`."""
        warnings.warn("values() is deprecated; read values.batches().", DeprecationWarning, stacklevel=2)
        return self.batches()

    def to_spark(self) -> DataFrame:
        """Refuse to make a DataFrame, since there is no Spark session.

        Raises:
            InvalidInputError: Always.
        """
        raise without_spark(self.schema)


@singledispatch
def values_of(frame: object) -> Values:
    """Return the rows of a DataFrame as values. The engine that makes DataFrames registers its way.

    Raises:
        InvalidInputError: It is no DataFrame of a running engine.
    """
    raise InvalidInputError(
        f"write() of a sink was given {type(frame).__name__}, not a DataFrame that the library has made; call "
        "write_values(values, clock)."
    )


def reader_of(values: Values | Reader) -> Reader:
    """Return the reader of all rows that `rewind` of a sink was given.

    A subclass of the former interface hands a function of its own on to the `rewind` of its base, which is deprecated.
    """
    if hasattr(values, "batches"):
        return values.batches
    warnings.warn(
        "rewind() of a sink was given a function, which is deprecated; give LocalValues(values.schema, [function]).",
        DeprecationWarning,
        stacklevel=3,
    )
    return values


def without_spark(schema: pa.Schema) -> InvalidInputError:
    """Return the error of values that can't be a DataFrame."""
    return InvalidInputError(
        f"the values with columns={schema.names} are read without Spark; read batches(), or use map_parts()."
    )


def in_parts(readers: Sequence[Reader], parts: int | None) -> Iterator[Sequence[Reader]]:
    """Yield the readers of each part, of which there are at most `parts`; by default each reader is a part."""
    count = len(readers)
    return (readers[low:high] for low, high in _ranges(count, count if parts is None else min(parts, count)))


def with_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """Return the batches that have rows; None if none has."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    return None if first is None else chain([first], filled)


def divided(batch: pa.RecordBatch, by: Sequence[str], parts: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the number of each part of which the batch has rows, and these rows. The parts are ranges of the key's hash."""
    hashes = hash_keys([normalise(batch.column(name)) for name in by], batch.num_rows)
    lows = np.array([shard_range(part, parts)[0] for part in range(parts)], np.uint64)
    numbers = np.searchsorted(lows, hashes, "right") - 1
    for part in np.unique(numbers).tolist():
        yield part, batch.filter(pa.array(numbers == part))


def count_of_parts(parts: int | None, by: Sequence[str]) -> int:
    """Return the number of parts by a key.

    Raises:
        InvalidInputError: It was not given.
    """
    if parts is None:
        raise InvalidInputError(f"map_parts() by={list(by)} without a number of parts; give parts=.")
    return parts


def _ranges(count: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges [low, high) of `parts` nearly equal parts of range(count)."""
    return pairwise(part * count // parts for part in range(parts + 1 if parts else 0))


def _read(readers: Sequence[Reader]) -> Iterator[pa.RecordBatch]:
    for read in readers:
        yield from read()
