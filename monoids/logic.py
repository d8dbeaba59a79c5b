"""Booleans and bits."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pyarrow as pa

from monoids.base import Monoid
from monoids.codec import Array, Rows

T = TypeVar("T")


class _Elementwise(Monoid[T]):
    """A monoid whose plus is an operation of numpy."""

    _operation: np.ufunc

    def reduce(self, values: Array, starts: Rows) -> Array:
        return pa.array(self._operation.reduceat(values.to_numpy(zero_copy_only=False), starts))


class Any(_Elementwise[bool]):
    """True if one of the values is true.

    >>> Any().sum([False, True])
    True
    """

    type = pa.bool_()
    _operation = np.logical_or
    zero = False

    def plus(self, a: bool, b: bool) -> bool:
        return a or b


class All(_Elementwise[bool]):
    """True if all of the values are true.

    >>> All().sum([False, True])
    False
    """

    type = pa.bool_()
    _operation = np.logical_and
    zero = True

    def plus(self, a: bool, b: bool) -> bool:
        return a and b


class BitOr(_Elementwise[int]):
    """The bits of an int64 that are set in one of them.

    >>> BitOr().sum([1, 4])
    5
    """

    type = pa.int64()
    _operation = np.bitwise_or
    zero = 0

    def plus(self, a: int, b: int) -> int:
        return a | b


class BitAnd(_Elementwise[int]):
    """The bits of an int64 that are set in all of them.

    >>> BitAnd().sum([7, 12])
    4
    """

    type = pa.int64()
    _operation = np.bitwise_and
    zero = -1

    def plus(self, a: int, b: int) -> int:
        return a & b
