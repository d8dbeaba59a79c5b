"""Write Arrow values and clocks as JSON, as text and in tables; read clocks that users give."""

from __future__ import annotations

import base64
import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING

_LACKING = (OverflowError, ValueError, KeyError)
"""Errors of a value for which Python has no object. A machine may lack its time zone."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


_encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def to_json(value: Any) -> str:
    """Return a value as one line of JSON."""
    return _encoded(value)


def plain(value: pa.Scalar) -> Any:
    """Return an Arrow value as JSON knows values.

    Times are ISO text; bytes are base64, decimals, UUIDs, NaN and infinities text, and maps objects whose keys are text.
    """
    kind = pa.types
    if not value.is_valid:
        return None
    if isinstance(value, pa.ExtensionScalar) and kind.is_nested(value.type.storage_type):
        return plain(value.value)
    if kind.is_struct(value.type):
        return {name: plain(value[place]) for place, name in enumerate(field.name for field in value.type)}
    if kind.is_map(value.type):
        return {_key(entry[0]): plain(entry[1]) for entry in value.values}
    if kind.is_nested(value.type):
        return [plain(item) for item in value.values]
    if kind.is_dictionary(value.type):
        return plain(value.dictionary[value.index.as_py()])
    if kind.is_timestamp(value.type) or kind.is_time(value.type) or kind.is_date(value.type):
        return _time(value)
    if kind.is_duration(value.type):
        return value.cast(pa.int64()).as_py()
    found = value.as_py()
    if isinstance(found, bytes):
        return base64.b64encode(found).decode()
    if isinstance(found, (Decimal, UUID)) or (isinstance(found, float) and not math.isfinite(found)):
        return str(found)
    return found


def plain_values(column: pa.Array) -> list[Any]:
    """Return the values of a column, each as `plain` does."""
    kind = column.type
    is_plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind)
    values: list[Any] = column.to_pylist() if is_plain else [plain(value) for value in column]
    return values


def in_python(value: pa.Scalar) -> Any:
    """Return an Arrow value as Python's, or as JSON knows it where Python has none, as of a time beyond the year 9999."""
    try:
        return value.as_py()
    except _LACKING:
        return plain(value)


def values_in_python(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column, each as `in_python` does."""
    try:
        return list(column.to_pylist())
    except _LACKING:
        return [in_python(value) for value in column]


def readable(column: pa.Array) -> pa.Array:
    """Return a column whose values Python has.

    Where Python lacks one, the values are text: times as ISO text, and lists and maps as JSON. Of a struct only the fields are
    that have such a value. A column has one type: with the one value all others become text.
    """
    if not re.search("date|time|duration", str(column.type)):
        return column
    with suppress(*_LACKING):
        column.to_pylist()
        return column
    if pa.types.is_struct(column.type):
        fields = [readable(field) for field in column.flatten()]
        return pa.StructArray.from_arrays(fields, names=column.type.names, mask=column.is_null())
    return pa.array([_text(value) if value.is_valid else None for value in column], pa.string())


def _text(value: pa.Scalar) -> str:
    if pa.types.is_duration(value.type) and not np.isnat(made := np.timedelta64(value.value, value.type.unit)):
        return str(made)
    if pa.types.is_timestamp(value.type) or pa.types.is_date(value.type):
        return _as_text(_beyond(value))
    return _as_text(plain(value))


def _beyond(value: pa.Scalar) -> str | int:
    """Return a date or timestamp as ISO text of any year, in UTC; the least number of 64 bits, which is no time, as itself."""
    # Python's own classes end before the year 1 and after 9999.
    made = np.datetime64(value.value, _unit(value.type))
    if np.isnat(made):
        return int(value.value)
    # NumPy writes three digits of a year before the year 0.
    text = re.sub("^-(?=[0-9]{3}-)", "-0", str(made))
    return f"{text}Z" if getattr(value.type, "tz", None) else text


def _unit(type: pa.DataType) -> Any:
    return {"date32[day]": "D", "date64[ms]": "ms"}.get(str(type)) or type.unit


_OF_ANY_YEAR = re.compile(r"-?[0-9]+-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}(?::[0-9]{2}){0,2}(?:\.[0-9]+)?)?")


def beyond_python(text: str, type: pa.DataType) -> pa.Scalar:
    """Return the date or timestamp of an ISO text that `in_python` writes, as Python lacks its year.

    Raises:
        ValueError: It is not one of this type, or Python has it.
    """
    local = text.removesuffix("Z") if getattr(type, "tz", None) else text
    if _OF_ANY_YEAR.fullmatch(local):
        ticks = pa.scalar(np.datetime64(local, _unit(type)).astype(np.int64).item())
        value = (ticks.cast(pa.int32()) if pa.types.is_date32(type) else ticks).cast(type)
        shown = in_python(value)
        # NumPy begins again behind its last year.
        if isinstance(shown, str) and shown.startswith(local.replace(" ", "T")):
            return value
    raise ValueError(f"{text!r} is not {type}, or Python has it")


def _key(value: pa.Scalar) -> str:
    return _as_text(plain(value))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)


def _time(value: pa.Scalar) -> Any:
    try:
        found = value.as_py()
    except _LACKING:
        return value.value if pa.types.is_time(value.type) else _beyond(value)
    # pandas has nanoseconds, where it is there.
    return _zulu(found.isoformat())


def _zulu(iso: str) -> str:
    return iso.removesuffix("+00:00") + "Z" if iso.endswith("+00:00") else iso


def show_clock(clock: int | None) -> str:
    """Return a clock (microseconds UTC) as ISO text, or as the number itself beyond the years 1 to 9999."""
    if clock is None or clock == BEGINNING:
        return "none yet"
    try:
        return _zulu((_EPOCH + timedelta(microseconds=clock)).isoformat())
    except OverflowError:
        return str(clock)


def full_clock(clock: int | None) -> str:
    """Return a clock as ISO text and as microseconds. `read_clock` takes both."""
    return show_clock(clock) if clock is None or clock == BEGINNING else f"{show_clock(clock)} ({clock})"


def clock_of_rewind(clock: int) -> str:
    """Return the clock to which a sink goes back, as `full_clock` does; the clock before every message is the beginning."""
    return "the beginning" if clock == BEGINNING else full_clock(clock)


_NAMES_OF_LENGTHS = {"step": "slide", "replaced": "ttl"}
"""Names by which people know what an identity has under others."""


def show_identity(value: Any) -> str:
    """Return a part of a task's identity as people write it: `Sum(double)`, `word: string`."""
    if isinstance(value, list):
        return ", ".join(f"{column['name']}: {column['type']}" for column in value) or "none"
    if not isinstance(value, dict):
        return "none" if value is None else str(value)
    if "passed" in value:
        return f"rows that stay for {value.get('back', 0)} microseconds after the clock has passed them"
    if "parameters" not in value:
        # What bounds a state in time, in microseconds.
        lengths = {name: "none" if length is None else f"{length} microseconds" for name, length in value.items()}
        return ", ".join(f"{_NAMES_OF_LENGTHS.get(name, name)}={length}" for name, length in lengths.items())
    parts = [f"{name}={show_identity(part)}" for name, part in value["parameters"].items()]
    # The parts of a composed monoid say its type.
    is_composed = any(isinstance(part, dict) for part in value["parameters"].values())
    return f"{value['name']}({', '.join([*parts, *([] if is_composed else [value['type']])])})"


Clock: TypeAlias = "int | str | datetime"
"""A point in event time: microseconds UTC, ISO text (UTC unless it says a zone), or a `datetime` with a zone."""


COARSER_UNITS = {"milliseconds": 1_000, "seconds": 1_000_000}
"""Units in which people give what must be microseconds: how many microseconds each has."""

_ISO = re.compile(
    r"([0-9]{4})(-?)([0-9]{2})\2([0-9]{2})"
    r"(?:[T ]([0-9]{2})(?:(:?)([0-9]{2})(?:\6([0-9]{2})(?:[.,]([0-9]+))?)?)?(?:(Z)|([-+])([0-9]{2}):?([0-9]{2})?)?)?",
    re.IGNORECASE,
)


def iso_time(text: str) -> datetime:
    """Return the time of an ISO text: a date, or a date and a time of the day with or without a zone.

    Each Python takes the same texts here. `datetime.fromisoformat` of Python 3.10 takes fewer than that of later versions.

    Raises:
        ValueError: It is not a time.
    """
    found = _ISO.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time in ISO text")
    year, _, month, day, hour, _, minute, second, part, utc, sign, hours, minutes = found.groups()
    zone = timezone.utc if utc else None
    if sign:
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
        zone = timezone(-offset if sign == "-" else offset)
    # Digits beyond microseconds are left out.
    microsecond = int((part or "0")[:6].ljust(6, "0"))
    return datetime(
        int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), microsecond, zone
    )


def read_clock(given: Clock) -> int:
    """Return the microseconds UTC of a clock.

    Raises:
        InvalidInputError: It is not a clock, or a `datetime` without a zone.
    """
    if isinstance(given, datetime):
        if given.tzinfo is None:
            raise InvalidInputError(f"clock={given!r} has no time zone; give it one, such as timezone.utc.")
        return (given - _EPOCH) // timedelta(microseconds=1)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    text = str(given)
    try:
        if re.fullmatch(r"\s*[-+]?\d+\s*", text):
            return int(text)
        found = iso_time(text)
    except ValueError as error:
        raise InvalidInputError(
            f"clock={shortened(repr(text))} is not a time; give microseconds since 1970, or ISO text such as "
            "2013-01-31T12:00:00Z."
        ) from error
    zoned = found if found.tzinfo else found.replace(tzinfo=timezone.utc)
    return (zoned - _EPOCH) // timedelta(microseconds=1)


WIDEST = 60
"""The most characters of a column in a table of states."""

Row = Sequence[str]


OPEN_WINDOW = "open window"


def state(
    found: pa.Table, rows: Sequence[Sequence[pa.Scalar]], keys: int, clock: int, of: str = "key"
) -> Iterator[str]:
    """Yield a table of these rows of a state, and a line with the number of all `keys` and the clock.

    `of` says what a row stands for: a "key", an "open window" of one, or a "row" that waits or was emitted.
    """
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    right = {i for i, field in enumerate(found.schema) if any(is_one(field.type) for is_one in numbers)}
    shown = [[shortened(printable(cell(value))) if value.is_valid else "null" for value in row] for row in rows]
    yield from table(found.column_names, shown, right)
    yield ""
    count = counted(keys, of)
    closed = "; closed ones were given out" if of == OPEN_WINDOW else ""
    yield f"{count if len(shown) == keys else f'{len(shown):,} of {count}'} at {full_clock(clock)}{closed}"


def table(heads: Row, rows: Sequence[Row], right: Collection[int] = ()) -> Iterator[str]:
    """Yield a table: heads, a rule, rows. A column is as wide as its widest cell; those in `right` are aligned right."""
    # Names of channels and tasks are data, too.
    rows = [[printable(text) for text in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, ["-" * width for width in widths], *rows):
        cells = []
        for place, (text, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - _width(text))
            cells.append(space + text if place in right else text + space)
        yield "  ".join(cells).rstrip()


def cell(value: pa.Scalar) -> str:
    """Return a value as text; the empty text for null."""
    shown = plain(value)
    return "" if shown is None else shown if isinstance(shown, str) else to_json(shown)


def printable(text: str) -> str:
    """Return the text, or its JSON if it has characters that would disturb a terminal."""
    return text if text.isprintable() else json.dumps(text)


def pairs(told: Mapping[str, str | Sequence[str]]) -> Iterator[str]:
    """Yield lines of names and values; a value of several lines has its name at the first."""
    wide = max(map(len, told))
    for name, values in told.items():
        for place, value in enumerate([values] if isinstance(values, str) else values):
            yield f"{'' if place else name:<{wide}}  {value}"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number and what it counts, by the word for one; `many` is the other word, if that is not `one` and an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def shortened(text: str) -> str:
    """Return the text, cut to `WIDEST` characters."""
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


def cut(text: str, places: int) -> str:
    """Return the beginning of a text that takes at most `places` places of a terminal."""
    while text and _width(text) > places:
        text = text[: places - _width(text)]
    return text


def _width(text: str) -> int:
    """Return how many places of a terminal the text takes."""
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text
    )
