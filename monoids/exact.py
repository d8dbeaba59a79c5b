"""The sum of floats that does not depend on their order."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pyarrow as pa

from monoids.base import Group, Summary
from monoids.codec import Array, Rows
from monoids.packed import Packed
from monoids.scalars import Scalar

_EXPONENT_BYTES = 2
_MOST_BITS = 5_000
"""No sum of floats comes near 2 to the power of this."""


def _pack(numerator: int, exponent: int) -> bytes:
    """Pack numerator * 2**exponent: two bytes of the exponent, then the odd numerator, both signed and big-endian."""
    if numerator == 0:
        return b""
    zeros = (numerator & -numerator).bit_length() - 1
    numerator >>= zeros
    length = (numerator.bit_length() + 8) // 8
    return (exponent + zeros).to_bytes(_EXPONENT_BYTES, "big", signed=True) + numerator.to_bytes(
        length, "big", signed=True
    )


def _unpack(data: bytes) -> tuple[int, int]:
    exponent = int.from_bytes(data[:_EXPONENT_BYTES], "big", signed=True)
    return int.from_bytes(data[_EXPONENT_BYTES:], "big", signed=True), exponent


def _read(data: bytes) -> Fraction:
    numerator, exponent = _unpack(data)
    return Fraction(numerator) * Fraction(2) ** exponent


def _write(value: Fraction) -> bytes:
    return _pack(value.numerator, 1 - value.denominator.bit_length())


def _is_dyadic(value: object) -> bool:
    return (
        isinstance(value, Fraction)
        and value.denominator & (value.denominator - 1) == 0
        and max(value.denominator, abs(value.numerator)).bit_length() < _MOST_BITS
    )


def _is_written(data: bytes) -> bool:
    numerator, exponent = _unpack(data)
    return abs(exponent) < _MOST_BITS and len(data) * 8 < _MOST_BITS and _pack(numerator, exponent) == data


class ExactSum(Group[Fraction], Summary[Fraction, float, float]):
    """The sum of floats without any rounding, the same whatever the order; what it presents is the float next to it.

    >>> ExactSum().aggregator([1e100, 1.0, -1e100])
    1.0

    Values are fractions over a power of two. In Arrow, binary: some 10 bytes, and 270 at the most where magnitudes differ as
    much as floats can. Sums are a loop in Python, of half a million values a second and more. NaN and infinity do not fit.
    """

    type = pa.binary()
    presented = pa.float64()
    items = Scalar(pa.float64(), "finite")
    zero = Fraction(0)
    codec = Packed("fractions over powers of two", _is_dyadic, _write, _read, _is_written)

    def plus(self, a: Fraction, b: Fraction) -> Fraction:
        return a + b

    def minus(self, a: Fraction, b: Fraction) -> Fraction:
        return a - b

    def present(self, value: Fraction) -> float:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf

    def reduce(self, values: Array, starts: Rows) -> Array:
        parts = [_unpack(data) for data in values.to_pylist()]
        least = min((exponent for _, exponent in parts), default=0)
        numbers = [numerator << exponent - least for numerator, exponent in parts]
        ends = [*starts.tolist(), len(numbers)]
        return pa.array([_pack(sum(numbers[start:end]), least) for start, end in pairwise(ends)], self.type)

    def _lift(self, items: Array) -> Array:
        return self.to_arrow([None if item is None else Fraction(item) for item in items.to_pylist()])
