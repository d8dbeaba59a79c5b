"""The values that a sink is given on this machine: workers read their parts, and call functions for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from persistent_state.batch.packets import to_ipc
from persistent_state.errors import StateError, TaskFailedError
from persistent_state.local.pool import Calls, DeathsError
from persistent_state.run.failures import naming
from persistent_state.run.start_checks import check_pickles
from persistent_state.sinks.values import (
    LocalValues,
    OfPart,
    Reader,
    Result,
    count_of_parts,
    divided,
    in_parts,
    with_rows,
    without_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Item = TypeVar("Item")
Made = TypeVar("Made")

Work: TypeAlias = tuple[int, Sequence[Reader]]
"""The number of a part, and what reads its rows."""

FUNCTION = "its function of map_parts()"
"""The function of a sink, as messages name it behind the sink."""


@dataclass(frozen=True)
class WorkerValues:
    """The `Values` whose parts workers read.

    Attributes:
        schema: The columns of the rows.
        readers: One for each part. They can be pickled.
        calls: Calls in the workers.
        most: The most of these calls that wait for a worker at a time.
    """

    schema: pa.Schema
    readers: Sequence[Reader]
    calls: Calls
    most: int

    __repr__ = LocalValues.__repr__

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all rows, as `Values.batches` does. A worker reads each part."""
        for reader in self.readers:
            (data,) = self._each(partial(_read, self.schema), [reader], lambda _: "reading its values")
            yield from _opened(data)

    def map_parts(
        self, function: OfPart[Result], *, parts: int | None = None, by: Sequence[str] | None = None
    ) -> list[Result]:
        """Let workers call a function for each part, as `Values.map_parts` says. With `by` this process holds all rows."""
        check_pickles(FUNCTION, function)
        if by is None:
            work: list[Work] = [*enumerate(in_parts(self.readers, parts))]
        else:
            rows: list[list[Reader]] = [[] for _ in range(count_of_parts(parts, by))]
            divide = partial(_divide, self.schema, by, len(rows))
            for sent in self._each(divide, self.readers, lambda _: "reading its values"):
                for part, data in sent:
                    rows[part].append(partial(_opened, data))
            work = [*enumerate(rows)]
        call = partial(_call, function, by is not None)
        return [*chain.from_iterable(self._each(call, work, lambda each: f"{FUNCTION} for part={each[0]}"))]

    def to_spark(self) -> DataFrame:
        """Refuse to make a DataFrame, as `LocalValues.to_spark` does."""
        raise without_spark(self.schema)

    def _each(
        self, function: Callable[[Item], Made], items: Sequence[Item], named: Callable[[Item], str]
    ) -> list[Made]:
        made: list[Made] = []
        try:
            # Micro-batches need the same workers, and are not to wait for all parts of an output.
            for low in range(0, len(items), self.most):
                made += self.calls.each(function, items[low : low + self.most])
        except DeathsError as error:
            item: Item = error.item  # type: ignore[assignment]
            raise TaskFailedError(error.sentence(named(item), "Give the machine more memory")) from None
        return made


def _read(schema: pa.Schema, reader: Reader) -> bytes:
    # Batches that are slices of a table would each be pickled with all of its rows.
    return to_ipc(pa.Table.from_batches(reader(), schema))


def _opened(data: bytes) -> Iterator[pa.RecordBatch]:
    return iter(pa.ipc.open_stream(data))


def _divide(schema: pa.Schema, by: Sequence[str], parts: int, reader: Reader) -> list[tuple[int, bytes]]:
    """Return the number of each part of which a reader has rows, with these rows."""
    rows: dict[int, list[pa.RecordBatch]] = {}
    for batch in reader():
        for part, of_part in divided(batch, by, parts):
            rows.setdefault(part, []).append(of_part)
    return [(part, to_ipc(pa.Table.from_batches(batches, schema))) for part, batches in rows.items()]


def _call(function: OfPart[Result], keeps_empty: bool, work: Work) -> list[Result]:
    """Return what a function returns for a part; nothing for a part without rows, unless those are kept."""
    part, readers = work
    rows = with_rows(chain.from_iterable(read() for read in readers))
    if rows is None and not keeps_empty:
        return []
    with naming(FUNCTION, StateError):
        return [function(part, iter(()) if rows is None else rows)]
