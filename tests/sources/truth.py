"""What files hold: values in plain Python, and by which rules each is read as a type of a schema."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Value: TypeAlias = Any
"""A value as Python has it: None, bool, int, float, Decimal, str, bytes, a `Time`, a list, a dict, or pairs of a map."""

NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY = 86_400 * 10**9
FIRST, LAST = -62_135_596_800 * 10**9, 253_402_300_800 * 10**9 - 1
"""The first and the last nanosecond of the years 1 to 9999."""


@dataclass(frozen=True)
class Time:
    """A "timestamp" or a "date" since 1970 in UTC, a "time" of day, or a "duration", in nanoseconds."""

    kind: str
    nanos: int


@dataclass(frozen=True)
class Bad:
    """A row that must be a bad row, as the values of these columns do not fit, or for a reason with these words."""

    columns: tuple[str, ...] = ()
    words: str = ""


Row: TypeAlias = "dict[str, Value] | Bad"


class Misfit(Exception):
    """A value does not fit a type."""


HUGE = Context(prec=400, Emin=-99_999, Emax=99_999)


class Number(str):
    """A number of JSON, as it is written."""


# What is read


def kind_of(type: pa.DataType) -> str:
    kinds = {"timestamp": pa.types.is_timestamp, "date": pa.types.is_date, "time": pa.types.is_time}
    return next((kind for kind, is_kind in kinds.items() if is_kind(type)), "duration")


def unit_of(type: pa.DataType) -> int:
    """Return the nanoseconds of the smallest step of times of a type."""
    return DAY if pa.types.is_date(type) else NANOS[type.unit]


def limits(type: pa.DataType) -> tuple[int, int]:
    bits = type.bit_width
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if pa.types.is_signed_integer(type) else (0, 2**bits - 1)


def is_list(type: pa.DataType) -> bool:
    return isinstance(
        type, (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
    )


def is_bytes(type: pa.DataType) -> bool:
    return pa.types.is_binary(type) or pa.types.is_large_binary(type) or pa.types.is_binary_view(type)


def is_text(type: pa.DataType) -> bool:
    return pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)


def read_as(value: Value, type: pa.DataType) -> Value:
    """Return what a value is read as under a schema that says this type: the table of docs/files.md, in plain Python.

    Raises:
        Misfit: The value's row is a bad row.
    """
    if value is None:
        return None
    if pa.types.is_struct(type):
        return {each.name: read_as(value.get(each.name), each.type) for each in type}
    if pa.types.is_map(type):
        return [(read_as(key, type.key_type), read_as(item, type.item_type)) for key, item in value]
    if is_list(type):
        return [read_as(each, type.value_type) for each in value]
    if isinstance(value, bytes):
        try:
            return value if is_bytes(type) else value.decode()
        except UnicodeDecodeError:
            raise Misfit from None
    if is_bytes(type):
        return value.encode()
    if is_text(type):
        return value if isinstance(value, str) else written(value)
    if isinstance(value, str):
        return parsed(value, type)
    if isinstance(value, Time):
        if type != pa.date32():
            return checked(Time(kind_of(type), value.nanos // unit_of(type) * unit_of(type)), type)
        if value.nanos % DAY:
            raise Misfit
        return Time("date", value.nanos)
    return number(value, type)


def number(value: bool | float | Decimal, type: pa.DataType) -> Value:
    """Return the same number in another type, or the nearest float to a decimal."""
    if pa.types.is_decimal(type):
        if isinstance(value, float):
            if not math.isfinite(value):
                raise Misfit
            value = Decimal(repr(value)) if abs(value) < 2.0**53 else Decimal(int(value))
        return decimal(Decimal(value), type)
    if isinstance(value, float) and not math.isfinite(value):
        if not pa.types.is_floating(type):
            raise Misfit
        return value
    if pa.types.is_floating(type):
        made = nearest(value, type)
        if not math.isfinite(made) or (not isinstance(value, Decimal) and made != value):
            raise Misfit
        if isinstance(value, int) and abs(value) > (2**53 if type == pa.float64() else 2**24):
            raise Misfit  # Beyond these a whole number may be any of several.
        return made
    exact = Fraction(value)
    if pa.types.is_boolean(type):
        if exact not in (0, 1):
            raise Misfit
        return bool(exact)
    least, most = limits(type)
    if exact.denominator > 1 or not least <= exact <= most:
        raise Misfit
    return int(exact)


def nearest(value: float | Decimal | str, type: pa.DataType) -> float:
    if type == pa.float64():
        return float(value)
    # Rounding a double would round twice.
    of = np.float16 if type == pa.float16() else np.float32
    with np.errstate(over="ignore"):
        exact, near = Fraction(value), of(float(value))
        if not np.isfinite(near):
            return float(near)
        around = [near, np.nextafter(near, of(-np.inf)), np.nextafter(near, of(np.inf))]
    found = min((each for each in around if np.isfinite(each)), key=lambda each: abs(Fraction(float(each)) - exact))
    return float(found)


def decimal(value: Decimal, type: pa.DataType) -> Decimal:
    scaled = value.scaleb(type.scale, HUGE)
    if scaled != scaled.to_integral_value(context=HUGE) or scaled.copy_abs() >= 10**type.precision:
        raise Misfit
    return value


def checked(time: Time, type: pa.DataType) -> Time:
    """Refuse a time that its unit can't hold."""
    if not -(2**63) <= time.nanos // unit_of(type) < 2**63:
        raise Misfit
    return time


WHOLE_TEXT = re.compile(r"-?[0-9]+")
NUMBER_TEXT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
STAMP_TEXT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)?(Z|z| UTC|[+-]\d\d(?::?\d\d)?)?)?",
    re.ASCII,
)
TIME_TEXT = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?", re.ASCII)


def parsed(text: str, type: pa.DataType) -> Value:
    """Return what a text is read as where the schema says another type than text."""
    text = text.strip()
    if pa.types.is_boolean(type):
        if text.lower() not in ("true", "false", "0", "1"):
            raise Misfit
        return text.lower() in ("true", "1")
    if pa.types.is_integer(type):
        if not WHOLE_TEXT.fullmatch(text):
            raise Misfit
        return number(int(text), type)
    if pa.types.is_floating(type):
        if text.lower().lstrip("+-") in ("inf", "infinity", "nan"):
            return float(text)
        if not NUMBER_TEXT.fullmatch(text) or not math.isfinite(made := nearest(text, type)):
            raise Misfit
        return made
    if pa.types.is_decimal(type):
        if not NUMBER_TEXT.fullmatch(text):
            raise Misfit
        return decimal(Decimal(text), type)
    return checked(parsed_time(text, type), type)


def parsed_time(text: str, type: pa.DataType) -> Time:
    unit = unit_of(type)
    if pa.types.is_time(type):
        if not (found := TIME_TEXT.fullmatch(text)):
            raise Misfit
        hour, minute, second = (int(each or 0) for each in found.groups()[:3])
        if hour > 23 or minute > 59 or second > 59:
            raise Misfit
        nanos = (hour * 3600 + minute * 60 + second) * 10**9 + int((found[4] or "").ljust(9, "0"))
        return Time("time", nanos // unit * unit)
    found = STAMP_TEXT.fullmatch(text)
    if not found or (pa.types.is_date(type) and found[4]):
        raise Misfit
    try:
        whole = datetime(*(int(each or 0) for each in found.groups()[:6]))  # type: ignore[arg-type]
    except ValueError:
        raise Misfit from None
    seconds = (whole - datetime(1970, 1, 1)) // timedelta(seconds=1)
    zone = found[8] or "Z"
    if zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        if int(digits[:2]) > 23 or int(digits[2:]) > 59:
            raise Misfit
        seconds -= int(zone[0] + "1") * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
    nanos = seconds * 10**9 + int((found[7] or "").ljust(9, "0"))
    return Time(kind_of(type), nanos // unit * unit)


def written(value: Value) -> str:
    """Return a value as a text of a file."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, Time):
        return f"{value:f}" if isinstance(value, Decimal) else repr(value) if isinstance(value, float) else str(value)
    days, rest = divmod(value.nanos, DAY)
    seconds, part = divmod(rest, 10**9)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + (
        f".{part:09}".rstrip("0") if part else ""
    )
    if value.kind == "time":
        return clock
    day = (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    return day if value.kind == "date" else f"{day} {clock}"


def row_of(
    values: Mapping[str, Value], schema: pa.Schema, read: Callable[[Value, pa.DataType], Value] = read_as
) -> Row:
    """Return what a record is read as under a schema."""
    made, misfits = {}, []
    for each in schema:
        try:
            made[each.name] = read(values.get(each.name), each.type)
        except Misfit:
            misfits.append(each.name)
    return Bad(tuple(misfits)) if misfits else made


def of_json(value: Value, type: pa.DataType) -> Value:
    """Return what a value of JSON is read as: texts, numbers, booleans, objects and arrays are never each other."""
    if value is None:
        return None
    if pa.types.is_struct(type):
        if not isinstance(value, dict) or has_other_name(value, type):
            raise Misfit
        return {each.name: of_json(value.get(each.name), each.type) for each in type}
    if is_list(type):
        if not isinstance(value, list):
            raise Misfit
        return [of_json(each, type.value_type) for each in value]
    if pa.types.is_boolean(type):
        if not isinstance(value, bool):
            raise Misfit
        return value
    is_number = isinstance(value, Number)
    if not isinstance(value, str) or (is_number and (is_text(type) or pa.types.is_temporal(type))):
        raise Misfit
    if not is_number and (pa.types.is_integer(type) or pa.types.is_floating(type)):
        raise Misfit
    return read_as(str(value), type)


def has_other_name(value: Mapping[str, Value], fields: pa.DataType) -> bool:
    """Return whether an object has a field under another name only, by its case or by what can't be seen."""
    names = [each.name for each in fields]
    others = {seen(name) for name in value if name not in names}
    return any(name not in value and seen(name) in others for name in names)


def seen(name: str) -> str:
    shown = unicodedata.normalize("NFC", "".join(each for each in name if unicodedata.category(each) != "Cf"))
    return unicodedata.normalize("NFC", shown.casefold()).strip()


# Names


Names: TypeAlias = "dict[str, Names]"
"""Names, each with those within it, also within lists."""


def names_in(types: pa.DataType | pa.Schema) -> Names:
    """Return the names of a schema, or of the fields of a type."""
    if isinstance(types, pa.Schema) or pa.types.is_struct(types):
        return {each.name: names_in(each.type) for each in types}
    if pa.types.is_map(types):
        return {"key": names_in(types.key_type), "value": names_in(types.item_type)}
    return names_in(types.value_type) if is_list(types) else {}


def names_of(value: Value) -> Names:
    """Return the names of the members of a JSON value."""
    if isinstance(value, dict):
        return {name: names_of(each) for name, each in value.items()}
    found: Names = {}
    for each in value if isinstance(value, list) else ():
        merge(found, names_of(each))
    return found


def merge(found: Names, others: Names) -> None:
    for name, within in others.items():
        merge(found.setdefault(name, {}), within)


def missing(there: Names, wanted: Names, path: str = "") -> set[str]:
    """Return the paths of names that are not there; of a struct none of whose fields is there, its own."""
    found = set()
    for name, within in wanted.items():
        if name not in there:
            found.add(path + name)
        elif within and there[name]:
            lost = missing(there[name], within, f"{path}{name}.")
            found |= {path + name} if lost.issuperset(f"{path}{name}.{each}" for each in within) else lost
    return found


# Arrow


def to_arrow(values: Sequence[Value], type: pa.DataType) -> pa.Array:
    return pa.array([raw(value, type) for value in values], type)


def raw(value: Value, type: pa.DataType) -> Any:
    if pa.types.is_dictionary(type):
        return raw(value, type.value_type)
    if isinstance(value, Time):
        return value.nanos // (10**6 if type == pa.date64() else unit_of(type))
    if value is None or not pa.types.is_nested(type):
        return value
    if pa.types.is_struct(type):
        return {each.name: raw(value[each.name], each.type) for each in type}
    if pa.types.is_map(type):
        return [(raw(key, type.key_type), raw(item, type.item_type)) for key, item in value]
    return [raw(each, type.value_type) for each in value]


def of_arrow(column: pa.Array) -> list[Value]:
    """Return the values of an Arrow column. Python's own times would lack years and nanoseconds."""
    type = column.type
    if pa.types.is_dictionary(type):
        return of_arrow(column.dictionary_decode())
    is_valid = column.is_valid().to_pylist()
    if pa.types.is_struct(type):
        parts = [of_arrow(child) for child in column.flatten()]
        names = [each.name for each in type]
        return [dict(zip(names, row, strict=True)) if ok else None for ok, *row in zip(is_valid, *parts, strict=True)]
    if pa.types.is_map(type):
        offsets = column.offsets.to_pylist()
        keys, items = of_arrow(column.keys), of_arrow(column.items)
        return [
            list(zip(keys[i:j], items[i:j], strict=True)) if ok else None
            for ok, i, j in zip(is_valid, offsets[:-1], offsets[1:], strict=True)
        ]
    if is_list(type):
        return [of_arrow(part.values) if part.is_valid else None for part in column]
    if pa.types.is_temporal(type):
        ticks = column.cast(pa.int32() if type.bit_width == 32 else pa.int64()).to_pylist()
        unit = 10**6 if type == pa.date64() else unit_of(type)
        return [None if tick is None else Time(kind_of(type), tick * unit) for tick in ticks]
    return column.to_pylist()


def same(one: Value, other: Value) -> bool:
    """Return whether two values are the same: nan is itself, and neither 0 is -0 nor 1 True."""
    return shape(one) == shape(other)


def shape(value: Value) -> Any:
    if isinstance(value, float):
        return "float", repr(value)
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [shape(each) for each in value]
    return (type(value).__name__, value) if isinstance(value, (bool, int)) else value
