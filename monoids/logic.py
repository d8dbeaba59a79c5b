"""Booleans and bits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from monoids.base import Monoid
from monoids.codec import Array, Rows


class Any(Monoid[bool]):
    """Whether one of them is true.

    >>> Any().sum([False, True])
    True
    """

    type = pa.bool_()
    zero = False

    def plus(self, a: bool, b: bool) -> bool:
        return a or b

    def reduce(self, values: Array, starts: Rows) -> Array:
        return pa.array(np.logical_or.reduceat(values.to_numpy(zero_copy_only=False), starts))


class All(Monoid[bool]):
    """Whether all of them are true.

    >>> All().sum([False, True])
    False
    """

    type = pa.bool_()
    zero = True

    def plus(self, a: bool, b: bool) -> bool:
        return a and b

    def reduce(self, values: Array, starts: Rows) -> Array:
        return pa.array(np.logical_and.reduceat(values.to_numpy(zero_copy_only=False), starts))


class BitOr(Monoid[int]):
    """The bits of an int64 that are set in one of them.

    >>> BitOr().sum([1, 4])
    5
    """

    type = pa.int64()
    zero = 0

    def plus(self, a: int, b: int) -> int:
        return a | b

    def reduce(self, values: Array, starts: Rows) -> Array:
        return pa.array(np.bitwise_or.reduceat(values.to_numpy(), starts))


class BitAnd(Monoid[int]):
    """The bits of an int64 that are set in all of them.

    >>> BitAnd().sum([7, 12])
    4
    """

    type = pa.int64()
    zero = -1

    def plus(self, a: int, b: int) -> int:
        return a & b

    def reduce(self, values: Array, starts: Rows) -> Array:
        return pa.array(np.bitwise_and.reduceat(values.to_numpy(), starts))
