"""The sink that prints the values at a clock as a table on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persistent_state import formatting
from persistent_state.errors import InvalidInputError
from persistent_state.sinks.base import CLOCK, Origin, Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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

    def write(self, values: DataFrame, clock: int) -> None:
        origin = self._origin
        assert origin is not None, "open comes first"
        # Name columns by number, since PySpark does not find a column whose name has a dot.
        places = [str(place) for place in range(len(origin.schema))]
        keys = places[: len(origin.key_columns)]
        ordered = values.toDF(*places).orderBy(*keys) if keys else values
        first_rows = ordered.limit(self.rows).toArrow().rename_columns(origin.schema.names).cast(origin.schema)
        first_rows = first_rows.drop_columns([CLOCK])
        rows = list(zip(*first_rows.columns, strict=True))
        *lines, _, keys_at_clock = formatting.state(first_rows, rows, values.count(), clock)
        # Print all lines by one call, since several tasks print at the same time.
        print("\n".join((f"{origin.task}: {keys_at_clock}", *lines, "", "")), end="", flush=True)
