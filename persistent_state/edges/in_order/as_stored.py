"""Values as the store would give them back, worked out value by value and fast.

A state that user code returns is handed to it again: before a step ends as it is, after that from the store. So that both are
equal, each value is made what it would be after a round trip through Arrow, and shares nothing with the one that was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any, TypeAlias

import pyarrow as pa

from monoids.nested import codec_of
from monoids.scalars import Scalar

AsStored: TypeAlias = Callable[[Any], Any]
"""Returns a value as the store would give it back. It raises a MonoidError for one that the type does not take."""


UTC = pa.lib.string_to_tzinfo("UTC")
"""The zone of the times that come from the store."""

_IN_38_DIGITS = Context(prec=38, traps=[Inexact, InvalidOperation])


class _UnsureError(Exception):
    """Only Arrow knows what becomes of a value."""


def as_stored(type: pa.DataType) -> AsStored:
    """Return a function that gives values of this type back as the store would.

    Raises:
        MonoidError: Values of the type can't be kept.
    """
    codec, copy = codec_of(type), _copying(type)

    def by_arrow(value: Any) -> Any:
        (back,) = codec.from_arrow(codec.to_arrow([value]))
        return back

    if isinstance(type, pa.StructType):
        # One call less, as there is one for each message.
        lines, known = _lines_of_struct(type)
        tried = [
            "if row is None: return None",
            "try:",
            *(f"    {line}" for line in lines),
            "except unsure: return by_arrow(row)",
        ]
        return _made("row", tried, {**known, "by_arrow": by_arrow})

    def found(value: Any) -> Any:
        try:
            return None if value is None else copy(value)
        except _UnsureError:
            return by_arrow(value)

    return found


def _copying(type: pa.DataType) -> AsStored:
    """Return a function that copies the values of which it is certain what comes back, and is unsure of all others."""
    if isinstance(type, pa.StructType):
        return _of_struct(type)
    if isinstance(type, pa.ListType):
        return _of_list(_copying(type.value_type))
    if isinstance(type, pa.MapType):
        # Not all floats are keys, and zero has one sign.
        is_float = pa.types.is_floating(type.key_type)
        return _unsure if is_float else _of_map(_copying(type.key_type), _copying(type.item_type))
    is_same, other = _of_scalar(type)
    return _made("value", [f"return value if {is_same} else other(value)"], {"other": other})


def _of_scalar(type: pa.DataType) -> tuple[str, AsStored]:
    """Return the expression that is true if a `value` comes back as it is, and what becomes of most others."""
    kind = Scalar(type).family.name
    if kind == "decimal":
        return "False", _of_decimal(type.scale)
    return _SAME[kind], _OTHER.get(kind, _unsure)


_SAME = {
    "int": f"value.__class__ is int and {-(2**63)} <= value < {2**63}",
    "float": "value.__class__ is float",
    "bool": "value.__class__ is bool",
    "text": "value.__class__ is str and value.isascii()",
    "bytes": "value.__class__ is bytes",
    "date": "value.__class__ is date",
    "time": "value.__class__ is time and value.tzinfo is None and not value.fold",
    # Within 64 bits of microseconds.
    "duration": "value.__class__ is timedelta and -106751990 < value.days < 106751990",
    "local": "value.__class__ is datetime and value.tzinfo is None and not value.fold",
    "instant": "value.__class__ is datetime and value.tzinfo is utc and not value.fold",
}


def _unsure(value: Any) -> Any:
    raise _UnsureError


def _of_text(value: Any) -> str:
    if value.__class__ is not str:
        raise _UnsureError
    try:
        # Some text can't be encoded.
        value.encode()
    except UnicodeEncodeError:
        raise _UnsureError from None
    return value


def _of_instant(value: Any) -> datetime:
    # Arrow takes whole seconds of an offset.
    if value.__class__ is not datetime or (offset := value.utcoffset()) is None or offset.microseconds:
        raise _UnsureError
    try:
        return value.astimezone(UTC).replace(fold=0)
    except OverflowError:
        raise _UnsureError from None


def _of_number(value: Any) -> float:
    if value.__class__ is not int or not -(2**53) <= value <= 2**53:
        raise _UnsureError
    return float(value)


_OTHER: dict[str, AsStored] = {"text": _of_text, "instant": _of_instant, "float": _of_number}


def _of_decimal(scale: int) -> AsStored:
    unit = Decimal(1).scaleb(-scale)

    def copy(value: Any) -> Any:
        # Arrow has one zero.
        if value.__class__ is not Decimal or not value or not value.is_finite():
            raise _UnsureError
        try:
            return value.quantize(unit, context=_IN_38_DIGITS)
        except DecimalException:
            raise _UnsureError from None

    return copy


def _of_struct(type: pa.StructType) -> AsStored:
    return _made("row", *_lines_of_struct(type))


def _lines_of_struct(type: pa.StructType) -> tuple[list[str], dict[str, Any]]:
    """Return the lines of a function that copies a `row`, and the names that they know."""
    # One function for all fields, since calls would take most of the time.
    names = [field.name for field in type]
    lines = ["if row.__class__ is not dict: raise unsure", f"if len(row) != {len(names)}: row = whole(row)"]
    known: dict[str, Any] = {"whole": _whole(names)}
    for i, field in enumerate(type):
        lines += ["try:", f"    value = row[{field.name!r}]", "except KeyError:", "    raise unsure from None"]
        if pa.types.is_nested(field.type):
            known[f"other{i}"], is_same = _copying(field.type), "value is None"
        else:
            is_same, known[f"other{i}"] = _of_scalar(field.type)
            is_same = f"value is None or {is_same}"
        lines.append(f"value{i} = value if {is_same} else other{i}(value)")
    copied = ", ".join(f"{name!r}: value{i}" for i, name in enumerate(names))
    return [*lines, f"return {{{copied}}}"], known


def _whole(names: Sequence[str]) -> AsStored:
    """Return a function that adds the fields of these names that a row lacks."""
    missing = dict.fromkeys(names)

    def whole(row: dict[str, Any]) -> dict[str, Any]:
        found = missing | row
        if len(found) != len(missing):
            raise _UnsureError
        return found

    return whole


def _made(argument: str, lines: Sequence[str], known: Mapping[str, Any]) -> AsStored:
    """Return a function of these lines, as `dataclass` makes its methods."""
    names = {
        "date": date,
        "datetime": datetime,
        "time": time,
        "timedelta": timedelta,
        "utc": UTC,
        "unsure": _UnsureError,
    }
    names |= known
    exec(f"def copy({argument}):\n" + "\n".join(f"    {line}" for line in lines), names)
    made: AsStored = names["copy"]
    return made


def _of_list(of_item: AsStored) -> AsStored:
    def copy(value: Any) -> Any:
        if value.__class__ is not list:
            raise _UnsureError
        return [None if item is None else of_item(item) for item in value]

    return copy


def _of_map(of_key: AsStored, of_item: AsStored) -> AsStored:
    def copy(value: Any) -> Any:
        if value.__class__ is not dict or None in value:
            raise _UnsureError
        found = {of_key(key): None if item is None else of_item(item) for key, item in value.items()}
        return {key: found[key] for key in sorted(found)}

    return copy
