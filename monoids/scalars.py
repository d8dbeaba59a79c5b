"""The codec of primitive values: numbers, Booleans, text, bytes, dates, times and datetimes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from monoids.codec import Array, Codec, DataType, Mask, MonoidError, null_where

_INT = (int, np.integer)
_FLOAT = (float, np.floating, *_INT)
_NO_NUMBER = (bool, np.timedelta64, np.longdouble)
_INT64 = (-(2**63), 2**63 - 1)
_DAY = 86_400 * 10**6
_DAYS = (date.min.toordinal() - date(1970, 1, 1).toordinal(), date.max.toordinal() - date(1970, 1, 1).toordinal())
_INSTANTS = (_DAYS[0] * _DAY, (_DAYS[1] + 1) * _DAY - 1)


class Family(NamedTuple):
    """Arrow types whose values can be meant as each other."""

    name: str
    types: str  # a pattern of their names
    kept: DataType  # the one of them that monoids keep
    classes: tuple[type, ...]  # of the values in Python
    but_not: tuple[type, ...]  # what these classes include by accident
    taken: str  # both in words
    ticks: tuple[int, int] | None = None  # of integers and times in the kept type: the first and the last


_FAMILIES = (
    Family("int", r"u?int\d+", pa.int64(), _INT, _NO_NUMBER, "integers of 64 bits", _INT64),
    Family("float", "halffloat|float|double", pa.float64(), _FLOAT, _NO_NUMBER, "floats, and integers to 2**53"),
    Family("decimal", r"decimal\d+", pa.decimal128(38), (Decimal, int), (bool,), "decimals of 38 digits"),
    Family("bool", "bool", pa.bool_(), (bool, np.bool_), (), "True and False"),
    Family("text", "(large_)?string(_view)?", pa.string(), (str,), (), "Unicode text"),
    Family("bytes", "(large_|fixed_size_)?binary(_view)?", pa.binary(), (bytes, bytearray), (), "bytes"),
    Family("date", r"date\d+", pa.date32(), (date,), (datetime,), "dates", _DAYS),
    Family("time", r"time\d+", pa.time64("us"), (time,), (), "times without a zone", (0, _DAY - 1)),
    Family("duration", "duration", pa.duration("us"), (timedelta,), (), "timedeltas", _INT64),
    Family("local", "timestamp", pa.timestamp("us"), (datetime,), (), "datetimes without a zone", _INSTANTS),
    Family("instant", "timestamp, tz", pa.timestamp("us", "UTC"), (datetime,), (), "datetimes with a zone", _INSTANTS),
)


def family(type: DataType) -> Family | None:
    """Return the family of a primitive type, None for other types."""
    word = re.split(r"\W", str(type))[0] + (", tz" if getattr(type, "tz", None) else "")
    return next((family for family in _FAMILIES if re.fullmatch(family.types, word)), None)


@cache
def exact_decimal(type: DataType) -> Callable[[Decimal], Decimal]:
    """Return a function that writes a decimal with as many digits after the point as a decimal type has.

    pyarrow must get decimals in this form only. It has a table of powers of ten. For a decimal with more digits after the point
    it reads memory behind that table: then the decimal is refused, or becomes another number, or the process dies.

    Raises:
        DecimalException: By the function, if a value has other digits after the point, or more digits than the type. NaN stays.
    """
    unit = Decimal(1).scaleb(-type.scale)
    context = Context(prec=type.precision, traps=[Inexact, InvalidOperation])
    return lambda value: value.quantize(unit, context=context)


def exact(value: Any, type: DataType) -> Any:
    """Return a value for an Arrow type, which may be nested, with its decimals as `exact_decimal` writes them.

    Raises:
        DecimalException: A decimal has other digits than the type.
        TypeError: A map has an entry without a key.
    """
    if isinstance(value, Decimal):
        return exact_decimal(type)(value) if pa.types.is_decimal(type) else value
    if isinstance(value, Mapping) and pa.types.is_struct(type):
        return {**value, **{field.name: exact(value[field.name], field.type) for field in type if field.name in value}}
    if isinstance(value, (Mapping, list, tuple)) and pa.types.is_map(type):
        pairs = [*value.items()] if isinstance(value, Mapping) else value
        if any(pair is None for pair in pairs):
            # pyarrow ends the process.
            raise TypeError(f"{value!r} is no map")
        if all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            return [(exact(key, type.key_type), exact(item, type.item_type)) for key, item in pairs]
    if isinstance(value, (list, tuple)) and hasattr(type, "value_type"):
        return [exact(item, type.value_type) for item in value]
    return value


def numbers(column: Array) -> NDArray[Any]:
    """Return a column of numbers or times as numpy, times as integers, null as 0. It copies only if there are nulls."""
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int64() if column.type.bit_width == 64 else pa.int32())
    return np.asarray(pc.fill_null(column, 0) if column.null_count else column)


class Scalar(Codec[Any]):
    """One primitive value, of the type that is kept for the family of the given type.

    That is int64 for any integers, float64 for any floats, decimal128(38, scale), string, binary, date32, microseconds for
    times, and UTC for any time zone.

    floats: "all" floats are values, or those with an "ordered" place (no NaN; -0.0 is 0.0), or the "finite" of these.
    """

    def __init__(self, type: DataType, floats: Literal["all", "ordered", "finite"] = "all") -> None:
        kind = family(type) if isinstance(type, pa.DataType) else None
        if isinstance(type, str):
            raise MonoidError(f"type={type!r} is a text. Use an Arrow type, such as pa.int64() or pa.string().")
        if kind is None:
            raise MonoidError(f"type={type} is not a primitive Arrow type. Use one such as pa.int64() or pa.string().")
        if kind.name == "decimal" and not 0 <= type.scale <= 38:
            raise MonoidError(f"type={type} has a scale out of 0 to 38. Use one such as pa.decimal128(38, 2).")
        self.family = kind
        self.type = pa.decimal128(38, type.scale) if kind.name == "decimal" else kind.kept
        self.floats = floats if kind.name == "float" else "all"

    @property
    def is_numeric(self) -> bool:
        """Return True if `numbers` takes columns of this type."""
        return self.family.name == "float" or self.family.ticks is not None

    def to_arrow(self, values: Sequence[Any]) -> Array:
        column = self._column(values)
        if column is None:
            taken = (
                self.family.taken
                + {"all": "", "ordered": ", no NaN", "finite": ", no NaN and no infinity"}[self.floats]
            )
            raise self.refused_value(next(value for value in values if self._column([value]) is None), taken)
        return column

    def from_arrow(self, array: Array) -> list[Any]:
        direct = self.family.name in ("int", "float") and not array.null_count
        values: list[Any] = array.to_numpy().tolist() if direct else array.to_pylist()
        return values

    def _column(self, values: Sequence[Any]) -> Array | None:
        """Return the column of these values, None if one of them does not fit."""
        for kind in set(map(type, values)) - {type(None)}:
            if not issubclass(kind, self.family.classes) or issubclass(kind, self.family.but_not):
                return None
            if issubclass(kind, np.integer):
                # Arrow takes those of numpy for bits of theirs.
                values = [int(value) if isinstance(value, np.integer) else value for value in values]
        try:
            if self.family.name in ("time", "local", "instant") and not all(map(self._survives, values)):
                return None
            if self.family.name == "decimal":
                values = [exact(value, self.type) for value in values]
            column = pa.array(values, self.type)
        except (pa.ArrowException, DecimalException, ValueError, TypeError, OverflowError):
            return None
        return self._canonical(column) if self._fits(column).all() else None

    def _survives(self, value: Any) -> bool:
        # Arrow takes a naive datetime for UTC, and drops the zone of a time and the nanoseconds of a pandas datetime.
        zoned = self.family.name == "instant"
        return value is None or ((value.tzinfo is not None) == zoned and not getattr(value, "nanosecond", 0))

    def _is_value(self, column: Array) -> Mask:
        """Return False for each row with a NaN or an infinity that is not a value here."""
        if self.floats == "all":
            return np.ones(len(column), bool)
        is_value: Mask = np.isfinite(numbers(column)) if self.floats == "finite" else ~np.isnan(numbers(column))
        return is_value

    def _canonical(self, column: Array) -> Array:
        # Equal values have equal columns: -0.0 + 0.0 is 0.0.
        return column if self.floats == "all" else pc.add(column, 0.0)

    def _cast(self, column: Array) -> tuple[Array, Mask]:
        if column.type == pa.float16():
            column = column.cast(pa.float32())
        bad = ~self._fits(column)
        column = null_where(column, bad)
        if self.family.name == "decimal" and pa.types.is_integer(column.type):
            # A direct cast wants room for 64 bits before the point, even where the values at hand need less.
            column = column.cast(pa.decimal256(76, self.type.scale))
        return self._canonical(column.cast(self.type)), bad

    def _fits(self, column: Array) -> Mask:
        """Return True for each row whose value is exactly one of `type`, or null."""
        theirs, ours = family(column.type), self.family
        if theirs == ours:
            if ours.ticks:
                return self._ticks_fit(column, *ours.ticks)
            if ours.name == "float":
                return self._is_value(column)
            if ours.name == "decimal" and column.type.scale <= self.type.scale:
                return self._digits_fit(column)
            if ours.name != "decimal":
                return np.ones(len(column), bool)
        elif theirs is not None and theirs.name == "int" and ours.name in ("float", "decimal"):
            limit = 2**53 if ours.name == "float" else 10 ** (38 - self.type.scale) - 1
            return _between(-limit, numbers(column), limit)
        raise self.refused_column(column)

    def _ticks_fit(self, column: Array, first: int, last: int) -> Mask:
        ticks, theirs, ours = numbers(column), _nanoseconds(column.type), _nanoseconds(self.type)
        ratio = max(theirs, ours) // min(theirs, ours)
        if theirs >= ours:
            return _between(-(-first // ratio), ticks, last // ratio)
        whole: Mask = ticks % ratio == 0
        return whole & _between(first * ratio, ticks, last * ratio)

    def _digits_fit(self, column: Array) -> Mask:
        source = column.type
        largest = (10**38 - 1) // 10 ** (self.type.scale - source.scale)
        if largest >= 10**source.precision - 1:
            return np.ones(len(column), bool)
        high, low = (pa.scalar(Decimal(f"{sign}{largest}E-{source.scale}"), source) for sign in "+-")
        return np.asarray(pc.and_(pc.less_equal(column, high), pc.greater_equal(column, low)).fill_null(True))


def _between(low: int, values: NDArray[Any], high: int) -> Mask:
    mask: Mask = (values >= low) & (values <= high)
    return mask


def _nanoseconds(type: DataType) -> int:
    """Return the nanoseconds of a tick of a type of times; 1 for integers."""
    if pa.types.is_date(type):
        return _DAY * 10**3 if pa.types.is_date32(type) else 10**6
    return {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[getattr(type, "unit", "ns")]
