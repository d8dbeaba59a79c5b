"""Columns of a SQL database: which hold values of an Arrow type as they are, and how rows are found by them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.formatting import plain, values_in_python
from persistent_state.sinks.base import CLOCK, Origin

if TYPE_CHECKING:
    from sqlalchemy import Column, ColumnClause, ColumnElement
    from sqlalchemy.engine.interfaces import ReflectedColumn
    from sqlalchemy.types import TypeEngine

    Rows = list[dict[str, Any]]


_OF_ANY_YEAR = ("postgresql", "sqlite")
"""The databases that read dates and times of other years than 1 to 9999 in text, and refuse those that they lack."""


def whole_numbers(columns: Iterable[ReflectedColumn]) -> set[str]:
    """Return the columns of a table that hold whole numbers."""
    return {column["name"] for column in columns if kind_of(column["type"])[0] is int}


def most_characters(columns: Iterable[ReflectedColumn], dialect: str) -> dict[str, int]:
    """Return how many characters the columns of text take, where there is a limit. SQLite heeds none."""
    lengths = {
        column["name"]: getattr(column["type"], "length", None)
        for column in columns
        if kind_of(column["type"])[0] is str
    }
    return {name: most for name, most in lengths.items() if most and dialect != "sqlite"}


def numbered_column(columns: Iterable[ReflectedColumn], dialect: str) -> str:
    """Return the column in which SQLite puts the number of the row for null; "" if no column is like that."""
    keys = [column for column in columns if column.get("primary_key")] if dialect == "sqlite" else []
    return keys[0]["name"] if len(keys) == 1 and kind_of(keys[0]["type"])[0] is int else ""


def columns_of(schema: pa.Schema, dialect: str) -> dict[str, ColumnClause[Any]]:
    """Return the columns of rows as `python_values` gives them, by name."""
    from sqlalchemy import column

    return {item.name: column(item.name, type_of_values(item.type, dialect)) for item in schema}


def conditions(
    columns: Mapping[str, ColumnClause[Any]], keys: Sequence[str], nulls: Sequence[bool]
) -> list[ColumnElement[bool]]:
    """Return the conditions for the row of a key, of which these columns are null."""
    from sqlalchemy import bindparam

    return [
        columns[key].is_(None) if null else columns[key] == bindparam(key)
        for key, null in zip(keys, nulls, strict=True)
    ]


def rows_by_nulls(keys: Sequence[str], rows: Rows) -> dict[tuple[bool, ...], Rows]:
    """Return rows by which of their keys are null.

    `=` never finds null, and few databases use an index for an expression that finds null and values.
    """
    alike: dict[tuple[bool, ...], Rows] = defaultdict(list)
    for row in rows:
        alike[tuple(row[key] is None for key in keys)].append(row)
    return alike


def columns_for(origin: Origin, dialect: str) -> list[Column[Any]]:
    """Return the columns of a table for the values of a task.

    Raises:
        InvalidInputError: SQL has no exact type for a column, or a database can't find rows for sure by the type of a key.
    """
    from sqlalchemy import Column

    columns: list[Column[Any]] = []
    for item in origin.schema:
        if (sql_type := sql_type_of(item.type, dialect)) is None:
            raise InvalidInputError(
                f"column={item.name!r} is {item.type}, which SQL has no type for; present it as another."
            )
        if item.name in origin.key_columns and (pa.types.is_floating(item.type) or pa.types.is_nested(item.type)):
            raise InvalidInputError(
                f"key={item.name!r} is {item.type}, by which databases don't find a row for sure; use text, a whole number,"
                " a decimal or a time."
            )
        columns.append(Column(item.name, sql_type, nullable=item.name != CLOCK))
    return columns


def sql_type_of(kind: pa.DataType, dialect: str) -> TypeEngine[Any] | None:
    """Return the SQL type that holds an Arrow type exactly, or None."""
    import sqlalchemy as sql

    is_ = pa.types
    if is_.is_boolean(kind):
        return sql.Boolean()
    if is_.is_integer(kind) and kind != pa.uint64():
        return sql.BigInteger()
    if is_.is_floating(kind):
        return sql.Double()
    if is_text(kind):
        return sql.Text()
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return sql.LargeBinary()
    if is_.is_date(kind):
        return sql.Date()
    if is_.is_timestamp(kind):
        return sql.DateTime(timezone=kind.tz is not None and dialect != "sqlite")
    if is_.is_decimal(kind):
        return sql.Text() if dialect == "sqlite" else sql.Numeric(kind.precision, kind.scale)
    if is_.is_nested(kind):
        return sql.JSON(none_as_null=True)
    return None


def type_of_values(kind: pa.DataType, dialect: str) -> TypeEngine[Any] | None:
    """Return the SQL type of the values that `python_values` gives of an Arrow type."""
    from sqlalchemy import Text

    return Text() if dialect == "sqlite" and _is_time(kind) else sql_type_of(kind, dialect)


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def kind_of(sql_type: TypeEngine[Any]) -> tuple[type | None, bool]:
    """Return what is equal for two SQL types that hold the same values."""
    try:
        return sql_type.python_type, getattr(sql_type, "timezone", False)
    except NotImplementedError:
        return None, False


def silent_change(there: TypeEngine[Any], kind: pa.DataType, dialect: str) -> str:
    """Return how a column would change values of an Arrow type in silence; "" if it holds them as they are."""
    import sqlalchemy as sql

    if dialect == "sqlite":
        # It takes each value as it is, whatever length or digits the type names.
        return ""
    if is_text(kind) and (isinstance(there, sql.CHAR) or not isinstance(there, (sql.VARCHAR, sql.TEXT))):
        return "pads, cuts or refuses texts"
    if (
        isinstance(there, sql.Numeric)
        and there.precision is not None
        and (there.scale or 0) < getattr(kind, "scale", 0)
    ):
        return "rounds"
    if pa.types.is_floating(kind) and kind.bit_width > 32 and isinstance(there, sql.REAL):
        return "rounds"
    if pa.types.is_timestamp(kind) and getattr(there, "precision", None) in range(6):
        return "rounds to less than a microsecond"
    return ""


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def python_values(column: pa.Array, dialect: str, of_any_year: bool = False) -> list[Any]:
    """Return the values of an Arrow column as a SQL column takes them: dates and times of SQLite are text.

    Args:
        column: The column.
        dialect: The database.
        of_any_year: Whether a date or time that Python lacks is text, if the database reads it.

    Raises:
        ValueError: A date or time is not in the years 1 to 9999, and so Python lacks it.
        OverflowError: The same.
    """
    kind = column.type
    if pa.types.is_nested(kind):
        return [plain(value) for value in column]
    if pa.types.is_timestamp(kind):
        # Microseconds have not all times of milliseconds.
        unit = "us" if kind.unit == "ns" else kind.unit
        column = column.cast(pa.timestamp(unit, kind.tz and "UTC"))
        if dialect == "sqlite":
            column = column.cast(pa.timestamp(unit))
    values: list[Any] = values_in_python(column) if of_any_year and dialect in _OF_ANY_YEAR else column.to_pylist()
    if pa.types.is_decimal(kind) and dialect == "sqlite":
        return [None if value is None else f"{value:f}" for value in values]
    if _is_time(kind):
        as_taken = _in_sqlite if dialect == "sqlite" else _with_era
        return [None if value is None else as_taken(value) for value in values]
    return values


def _in_sqlite(time: Any) -> str:
    """Return a date or time as SQLAlchemy writes it for SQLite; one that Python lacks is ISO text already."""
    return time.isoformat(" ", "microseconds") if isinstance(time, datetime) else str(time).replace("T", " ")


def _with_era(time: Any) -> Any:
    """Return a date or time whose text, if it is one, has an era where ISO has a year before 1: 0 is 1 BC."""
    year = re.match("-?[0-9]+", time) if isinstance(time, str) else None
    return f"{1 - int(year[0]):04}{time[year.end() :]} BC" if year and int(year[0]) < 1 else time
