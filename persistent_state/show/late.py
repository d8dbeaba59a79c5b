"""Write the late and bad rows of a task as a table, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from persistent_state.formatting import cell, counted, printable, shortened, show_clock, table

Row = Mapping[str, pa.Scalar]


def rows_of(tables: Sequence[pa.Table]) -> Iterator[Row]:
    """Yield the rows of tables, which may have different columns."""
    for each in tables:
        for values in zip(*each.columns, strict=True):
            yield dict(zip(each.column_names, values, strict=True))


def lines(rows: Sequence[Row], count: int) -> Iterator[str]:
    """Yield a table of these rows, and a line with the number of all."""
    yield from table(["reason", "timestamp", "origin", "row"], [[*map(shortened, _cells(row))] for row in rows])
    yield ""
    of_all = counted(count, "row")
    yield of_all if len(rows) == count else f"{len(rows):,} of {of_all}"


def _cells(row: Row) -> Iterator[str]:
    """Yield the reason of a row, its time, where it stood, and what it holds: its columns if it was read, else its record."""
    yield cell(row["reason"])
    yield show_clock(row["timestamp"].as_py()) if row["timestamp"].is_valid else "-"
    yield printable(_origin(row))
    record = row.get("record")
    if row["row"].is_valid or record is None or not record.is_valid:
        yield printable(cell(row["row"]))
    else:
        yield printable(record.as_py().decode(errors="replace"))


def _origin(row: Row) -> str:
    """Return where a row stood: what its source says of it, else its partition and position."""
    if (origin := row.get("origin")) is not None and origin.is_valid:
        places = dict(zip((field.name for field in origin.type), origin.values(), strict=True))
    else:
        places = {name: row[name] for name in ("partition", "position")}
    return ", ".join(f"{name} {text}" for name, place in places.items() if (text := cell(place))) or "-"
