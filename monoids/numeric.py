"""Sums, products, counts and extremes."""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Generic, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from monoids.base import Group, Monoid, MonoidError
from monoids.codec import Array, DataType, Rows, naming, segments, sort_within
from monoids.scalars import Scalar, numbers

T = TypeVar("T")

_INT64 = pa.int64()
_ZERO: dict[str, Any] = {"int": 0, "float": 0.0, "decimal": Decimal(0)}
# Python's default context, which is also that of abs and -, rounds to 28 digits.
_EXACT = decimal.Context(prec=80)


def as_int64(number: int) -> int:
    """Return a whole number modulo 2**64, as int64 holds it."""
    return (operator.index(number) + 2**63) % 2**64 - 2**63


def number_of_64_bits(type: DataType) -> Scalar:
    """Return the codec of int64 or finite float64.

    Raises:
        MonoidError: The type is neither.
    """
    number = Scalar(type, "finite")
    if number.family.name not in ("int", "float"):
        raise MonoidError(f"type={type} is not a number of 64 bits. Use an integer or float type.")
    return number


def close(a: float, b: float) -> bool:
    """Return True if two floats are equal but for rounding: to 9 digits, or to a millionth."""
    return a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)


class Sum(Group[T]):
    """The sum of numbers: of int64 (any integer type means that), float64 (any float), or decimal128(38, scale).

    >>> Sum().sum([1, 2, 3])
    6
    >>> Sum(pa.decimal128(38, 2)).plus(Decimal("0.10"), Decimal("0.20"))
    Decimal('0.30')
    >>> Sum(pa.decimal128(5, 2)).sum([Decimal("999.99"), Decimal("999.99")])
    Decimal('1999.98')
    >>> Sum().sum([2**63 - 1, 1])
    -9223372036854775808

    Integers are added modulo 2**64, as int64 is: the one addition at a fixed width that does not depend on grouping.
    Totals that may leave int64 need `Sum(pa.decimal128(38, 0))`. A single value beyond int64 does not fit.

    Decimals are added exactly. A sum of more than 38 digits raises MonoidError. The digits that the given type has before the
    point bound nothing.

    Floats are added as IEEE says: the last digits depend on grouping, so `exact` is False, and minus is the inverse of
    plus only up to them. NaN and infinity do not fit, as one of them would be all that is left of a sum. A sum beyond
    all floats is infinite, and NaN with one of the other sign. `ExactSum` does not depend on grouping.
    """

    @overload
    def __init__(self: Sum[int]) -> None: ...
    @overload
    def __init__(self: Sum[Any], type: DataType) -> None: ...
    def __init__(self, type: DataType = _INT64) -> None:
        with naming(self.name):
            self.codec: Scalar = Scalar(type, "finite")
            self._kind = self.codec.family.name
            if self._kind not in _ZERO:
                raise MonoidError(f"type={type} is not a number. Use an integer, float or decimal type.")
        self.type = self.codec.type
        self.exact = self._kind != "float"

    @property
    def zero(self) -> T:
        zero: T = _ZERO[self._kind]
        return zero

    def plus(self, a: T, b: T) -> T:
        return self._fitted(_EXACT.add if self._kind == "decimal" else operator.add, a, b)

    def minus(self, a: T, b: T) -> T:
        return self._fitted(_EXACT.subtract if self._kind == "decimal" else operator.sub, a, b)

    def inverses(self, values: Array) -> Array:
        return pc.negate(values)

    def near(self, a: T, b: T) -> bool:
        return a == b if self.exact else close(a, b)  # type: ignore[arg-type]

    def reduce(self, values: Array, starts: Rows) -> Array:
        if self._kind == "decimal":
            return self._reduce_decimals(values, starts)
        with np.errstate(over="ignore", invalid="ignore"):
            return pa.array(np.add.reduceat(values.to_numpy(), starts))

    def _fitted(self, operation: Callable[[Any, Any], Any], a: T, b: T) -> T:
        result = operation(a, b)
        if self._kind == "int":
            result = as_int64(result)
        elif self._kind == "decimal" and result.copy_abs() >= 10 ** (38 - self.type.scale):
            raise self._too_large()
        fitted: T = result
        return fitted

    def _reduce_decimals(self, values: Array, starts: Rows) -> Array:
        # A decimal128 is four limbs of 32 bits, the lowest first, the sign in the highest. Each adds up in 64 bits.
        words = np.frombuffer(values.buffers()[1] or b"", np.uint32).reshape(-1, 4)
        limbs = words[values.offset : values.offset + len(values)].astype(np.int64)
        limbs[:, 3] = limbs[:, 3].astype(np.int32)
        sums = np.add.reduceat(limbs, starts)
        for limb in range(3):
            sums[:, limb + 1] += sums[:, limb] >> 32
        result = pa.Array.from_buffers(self.type, len(starts), [None, pa.py_buffer(sums.astype(np.uint32).tobytes())])
        try:
            result.validate(full=True)
        except pa.ArrowInvalid:
            raise self._too_large() from None
        if (sums[:, 3] != sums[:, 3].astype(np.int32)).any():
            raise self._too_large()
        return result

    def _too_large(self) -> MonoidError:
        return MonoidError(f"{self.name}: a sum has more digits than {self.type} holds. Use fewer after the point.")


class Count(Sum[int]):
    """The number of occurrences: an update of n is n occurrences. It adds as Sum does.

    >>> Count().sum([1, 1, 1])
    3
    """

    def __init__(self) -> None:
        super().__init__()


class Product(Monoid[T]):
    """The product of int64 or float64 numbers.

    >>> Product().sum([2, 3, 7])
    42

    Integers are multiplied modulo 2**64. Floats are rounded, so `exact` is False; NaN and infinity do not fit. A product
    beyond all floats is infinite, and such a one times zero is NaN.
    """

    @overload
    def __init__(self: Product[int]) -> None: ...
    @overload
    def __init__(self: Product[Any], type: DataType) -> None: ...
    def __init__(self, type: DataType = _INT64) -> None:
        with naming(self.name):
            self.codec: Scalar = number_of_64_bits(type)
        self.type = self.codec.type
        self.exact = self.codec.family.name == "int"

    @property
    def zero(self) -> T:
        one: Any = 1 if self.exact else 1.0
        unit: T = one
        return unit

    def plus(self, a: T, b: T) -> T:
        both: Any = operator.mul(a, b)
        both = as_int64(both) if self.exact else both
        product: T = both
        return product

    def near(self, a: T, b: T) -> bool:
        return a == b if self.exact else close(a, b)  # type: ignore[arg-type]

    def reduce(self, values: Array, starts: Rows) -> Array:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return pa.array(np.multiply.reduceat(values.to_numpy(), starts))


class Extreme(Monoid[T | None], Generic[T]):
    """Min or Max."""

    zero = None
    _least: bool

    def __init__(self, type: DataType = _INT64) -> None:
        with naming(self.name):
            self.codec: Scalar = Scalar(type, "ordered")
        self.type = self.codec.type

    def plus(self, a: T | None, b: T | None) -> T | None:
        if a is None or b is None:
            return b if a is None else a
        pick: Callable[[Any, Any], Any] = min if self._least else max
        either: T = pick(a, b)
        return either

    def reduce(self, values: Array, starts: Rows) -> Array:
        if self.codec.is_numeric:
            pick = np.minimum if self._least else np.maximum
            return pa.array(pick.reduceat(numbers(values), starts)).view(self.type)
        order = sort_within(segments(starts, len(values)), values)
        ends = np.append(starts, len(values))[1:]
        return values.take(pa.array(order[starts if self._least else ends - 1]))


class Min(Extreme[T]):
    """The least of ordered values; none at all (None, null in Arrow) is the zero.

    >>> Min().sum([3, 1, 2])
    1

    Values are numbers, Booleans, text, bytes, dates, times, datetimes or timedeltas, as one type for each: int64,
    float64, decimal128(38, scale), bool, string, binary, date32, and microseconds, in UTC if with a time zone. NaN has
    no place in the order and does not fit; -0.0 is 0.0.
    """

    _least = True

    @overload
    def __init__(self: Min[int]) -> None: ...
    @overload
    def __init__(self: Min[Any], type: DataType) -> None: ...
    def __init__(self, type: DataType = _INT64) -> None:
        super().__init__(type)


class Max(Extreme[T]):
    """The greatest of ordered values; none at all (None, null in Arrow) is the zero. Values are as for Min.

    >>> Max(pa.string()).sum(["a", "b"])
    'b'
    """

    _least = False

    @overload
    def __init__(self: Max[int]) -> None: ...
    @overload
    def __init__(self: Max[Any], type: DataType) -> None: ...
    def __init__(self, type: DataType = _INT64) -> None:
        super().__init__(type)
