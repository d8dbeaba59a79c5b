"""Put the keys that are asked for into the form in which a state is looked up, also those that JSON or a text names."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, DecimalException
from typing import Any

import pyarrow as pa

from monoids.scalars import exact
from persistent_state.errors import InvalidInputError
from persistent_state.formatting import beyond_python, in_python, shortened, values_in_python
from persistent_state.partials.keys import normalise
from persistent_state.partials.lookup import each_once
from persistent_state.store.state_at import StateAt


def asked_keys(state: StateAt, keys: Sequence[Any]) -> tuple[pa.Table, list[int]]:
    """Return keys as `StateAt.of_keys` takes them, each once, and the row of each that was given.

    Args:
        state: The state that is asked.
        keys: Values of the key column; of several columns tuples in their order, or mappings by their names.

    Raises:
        InvalidInputError: A key is not of the types of the key columns.
    """
    rows = [_parts_of(state, key) for key in keys]
    columns = [key_column(state, place, [row[place] for row in rows]) for place in range(len(state.key_columns))]
    return each_once(columns, len(rows))


def key_column(state: StateAt, place: int, given: Sequence[Any]) -> pa.Array:
    """Return values of a key column in their stored form.

    Raises:
        InvalidInputError: A value is not of the type of the column.
    """
    name, type = state.key_columns[place], state.layout.key_types[place]
    try:
        given = [exact(value, type) for value in given]
        column = pa.array([_in_arrow(value, type) for value in given], type)
    except (OverflowError, DecimalException):
        raise _misfit(state, f"a value of column {name!r} is beyond {type}") from None
    except (pa.ArrowException, ValueError, TypeError):
        wrong = next(value for value in given if not _is_of(type, value))
        raise _misfit(state, f"{shortened(repr(wrong))} of column {name!r} is not {type}") from None
    # Arrow would cut a fraction, or a time of the day, off.
    for value, kept in zip(given, values_in_python(column), strict=True):
        if value is not None and value != kept and value == value:
            raise _misfit(state, f"{value!r} of column {name!r} is not {type}")
    return normalise(column)


def _is_of(type: pa.DataType, value: Any) -> bool:
    try:
        pa.array([_in_arrow(exact(value, type), type)], type)
    except (pa.ArrowException, ValueError, TypeError):
        return False
    return True


def _in_arrow(value: Any, type: pa.DataType) -> Any:
    """Return a value as Arrow takes it. A text may be a date or time that Python lacks."""
    return beyond_python(value, type) if isinstance(value, str) and _is_time(type) else value


def _is_time(type: pa.DataType) -> bool:
    return bool(pa.types.is_date(type) or pa.types.is_timestamp(type))


def key_value(task: str, name: str, given: Any, type: pa.DataType) -> Any:
    """Return a value of a key column that was given as JSON, or as text, as Python has it.

    A time without a zone is UTC, if the column's times have a zone.

    Raises:
        InvalidInputError: It is not of the column's type.
    """
    if given is None:
        return None
    try:
        return _of_text(given, type) if isinstance(given, str) else _of_json(given, type)
    except (pa.ArrowException, ValueError, TypeError, DecimalException, OverflowError):
        raise InvalidInputError(
            f"{given!r} of column {name!r} of task={task} is not {type}; write a value of that type: a time as "
            "2026-11-20T14:00:00Z, bytes as base64."
        ) from None


def _of_json(given: Any, type: pa.DataType) -> Any:
    kind = pa.types
    if kind.is_boolean(type) != isinstance(given, bool) or isinstance(given, (list, dict)):
        raise ValueError
    if isinstance(given, int) and kind.is_decimal(type):
        return exact(Decimal(given), type)
    if not (kind.is_integer(type) or kind.is_floating(type) or kind.is_boolean(type)):
        raise ValueError
    return given


def _of_text(given: str, type: pa.DataType) -> Any:
    kind = pa.types
    if kind.is_string(type) or kind.is_large_string(type):
        return given
    if kind.is_binary(type) or kind.is_large_binary(type) or kind.is_fixed_size_binary(type):
        return base64.b64decode(given, validate=True)
    text = given.strip()
    is_number = kind.is_integer(type) or kind.is_floating(type) or kind.is_decimal(type)
    if is_number and ("_" in text or not text.isascii()):
        # Python would read these, too.
        raise ValueError
    if kind.is_decimal(type):
        return exact(Decimal(text), type)
    if kind.is_integer(type):
        return int(text)
    if kind.is_floating(type):
        return float(text)
    scalar = pa.scalar(text)
    if not _is_time(type):
        # Arrow reads "true" and "false".
        return scalar.cast(type).as_py()
    # What has no zone is taken as UTC.
    for unzoned in [type, *([pa.timestamp(type.unit)] if kind.is_timestamp(type) else [])]:
        with suppress(pa.ArrowInvalid):
            return in_python(scalar.cast(unzoned).cast(type))
    return in_python(beyond_python(text, type))


def _parts_of(state: StateAt, key: Any) -> tuple[Any, ...]:
    """Return the values of the key columns."""
    names = state.key_columns
    if isinstance(key, Mapping):
        if key.keys() == {*names}:
            return tuple(key[name] for name in names)
    elif len(names) == 1:
        return (key,)
    elif isinstance(key, tuple) and len(key) == len(names):
        return key
    raise _misfit(state, f"{key!r} has other columns")


def _misfit(state: StateAt, what: str) -> InvalidInputError:
    pairs = zip(state.key_columns, state.layout.key_types, strict=True)
    known = ", ".join(f"{name} ({type})" for name, type in pairs)
    form = {0: "leave the key out", 1: f"give a value of {known}"}
    way = form.get(len(state.key_columns), f"give a tuple of {known}")
    return InvalidInputError(f"key of task={state.task}: {what}; {way}.")
