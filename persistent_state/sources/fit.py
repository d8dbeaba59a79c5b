"""Fit rows into a schema, or say which value does not fit."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.formatting import plain, shortened, to_json
from persistent_state.sources.casts import Unfit, cast, hopeless, of_column, plain_column, plain_type
from persistent_state.sources.csv_lines import with_point


def fit(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return these rows in this schema. A missing column is null.

    Raises:
        Unfit: A value does not fit.
    """
    columns = []
    for field in schema:
        place = rows.schema.get_field_index(field.name)
        try:
            column = (
                cast(with_point(rows.column(place)), field.type) if place >= 0 else pa.nulls(rows.num_rows, field.type)
            )
            # Parquet does not promise that text is UTF-8, nor JSON that a decimal has few digits. They would fail much later.
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            reason = _misfit(field, error)
            value = value_shown(rows.column(place), reason) if rows.num_rows == 1 and place >= 0 else None
            raise Unfit(reason, value) from error
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def without_hopeless(
    rows: pa.RecordBatch, schema: pa.Schema, bad: dict[int, str], values: dict[int, str | None]
) -> NDArray[np.int64]:
    """Return the numbers of the rows that may fit, and put the others into `bad` and `values`."""
    for field in schema:
        place = rows.schema.get_field_index(field.name)
        mask = hopeless(with_point(rows.column(place)), field.type) if place >= 0 else None
        if mask is not None:
            numbers = np.flatnonzero(mask.to_numpy(False))
            for number, value in zip(
                numbers.tolist(), rows.column(place).take(pa.array(numbers)).to_pylist(), strict=True
            ):
                if bad.setdefault(number, reason := of_column(field.name, f"is not {field.type}")) is reason:
                    values[number] = shortened(value)
    return np.delete(np.arange(rows.num_rows), list(bad))


def _misfit(field: pa.Field, error: Exception) -> str:
    return of_column(field.name, f"is not {'UTF-8' if 'UTF8' in str(error) else field.type}")


def value_shown(column: pa.Array[Any], reason: str) -> str | None:
    """Return the only value of a column as text; if the reason is that a text in it is not UTF-8, that text."""
    if reason.endswith("UTF-8"):
        return _no_text(column)
    with suppress(ValueError):
        value = plain(column[0])
        return shortened(value if isinstance(value, str) else to_json(value))
    return None


def _no_text(column: pa.Array[Any]) -> str | None:
    r"""Return a text in a column, at any level, that is not UTF-8, with its bytes as `\xff`; None if there is none."""
    if pa.types.is_dictionary(column.type):
        return _no_text(plain_column(column.dictionary).take(column.indices))
    if isinstance(column.type, pa.MapType):
        parts = [column.keys, column.items]
    elif pa.types.is_nested(column.type):
        parts = column.flatten() if pa.types.is_struct(column.type) else [column.flatten()]
    else:
        parts = []
    for value in column.cast(pa.large_binary()).to_pylist() if has_texts(column.type) else ():
        text = (value or b"").decode(errors="backslashreplace")
        if text.encode() != (value or b""):
            return shortened(text)
    return next((text for text in map(_no_text, parts) if text is not None), None)


def has_texts(type: pa.DataType) -> bool:
    """Return whether a column has texts or bytes of any length."""
    return plain_type(type) in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())
