"""The sink that prints the values at a clock as a table on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from persistent_state import formatting
from persistent_state.errors import InvalidInputError
from persistent_state.sinks.base import CLOCK, Origin, Sink
from persistent_state.sinks.values import Values


class ConsoleSink(Sink):
    """A sink that prints the values at each clock: how many keys there are, and the first rows in the order of the key.

    It is for trying things out. After a crash a clock may be printed again.

    Args:
        rows: The most rows to print.

    Raises:
        InvalidInputError: `rows` is negative.

    Example:
        >>> ConsoleSink(rows=5)
        ConsoleSink(5)
    """

    def __init__(self, rows: int = 20) -> None:
        if rows < 0:
            raise InvalidInputError(f"{rows=} of a ConsoleSink; give at least 0.")
        self.rows = rows
        self._origin: Origin | None = None

    def __repr__(self) -> str:
        return f"ConsoleSink({self.rows})"

    @property
    def name(self) -> str:
        return "console"

    def open(self, origin: Origin) -> None:
        self._origin = origin

    def write_values(self, values: Values, clock: int) -> None:
        origin = self._origin
        assert origin is not None, "open comes first"
        keys, most = origin.key_columns, self.rows

        def first_of_part(part: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, pa.Table]:
            count, first = 0, origin.schema.empty_table()
            for batch in batches:
                count += batch.num_rows
                first = _first(pa.concat_tables([first, pa.Table.from_batches([batch])]), keys, most)
            return count, first

        parts = values.map_parts(first_of_part)
        tables = [origin.schema.empty_table(), *(first for _, first in parts)]
        first_rows = _first(pa.concat_tables(tables), keys, most).drop_columns([CLOCK])
        rows = list(zip(*first_rows.columns, strict=True))
        count = sum(count for count, _ in parts)
        *lines, _, keys_at_clock = formatting.state(first_rows, rows, count, clock)
        # Print all lines by one call, since several tasks print at the same time.
        print("\n".join((f"{origin.task}: {keys_at_clock}", *lines, "", "")), end="", flush=True)


def _first(rows: pa.Table, keys: Sequence[str], most: int) -> pa.Table:
    """Return the first rows in the order of the key: null, then values, then NaN."""
    if keys:
        columns = [column for name in keys for column in (rows[name].is_valid(), rows[name])]
        names = [str(place) for place in range(len(columns))]
        order = pc.sort_indices(pa.table(columns, names), [(name, "ascending") for name in names])
        rows = rows.take(order[:most])
    return rows.slice(0, most).combine_chunks()
