"""What a monoid is: an associative `plus` with a `zero`, an Arrow type, and one kernel that reduces columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property, reduce
from itertools import pairwise
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pyarrow as pa

from monoids.codec import Array, Codec, Mask, MonoidError, Rows, segments, told_by, valid
from monoids.nested import codec_of, fill

__all__ = ["Group", "Monoid", "MonoidError"]

T = TypeVar("T")


class Monoid(Codec[T], Generic[T]):
    """Values of one kind that can be put together in any grouping.

    `plus` is associative, `zero` changes nothing, and neither changes its arguments. A subclass says `zero`, `plus` and
    `type`; the rest has defaults, which it may replace by faster ones that give the same:

        class Product(Monoid[int]):
            type = pa.int64()
            zero = 1
            def plus(self, a, b):
                return a * b

    Attributes:
        name: part of the identity, so of every store that holds values. The class's name unless the class says another.
        commutative: whether plus(a, b) is plus(b, a). If not, values are only put together in their order.
        exact: whether a sum is the same in whatever way it is grouped. If not (floats), only nearly the same.
    """

    name: ClassVar[str] = "Monoid"
    commutative: bool = True
    exact: bool = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @property
    @abstractmethod
    def zero(self) -> T:
        """The value that plus leaves alone."""

    @abstractmethod
    def plus(self, a: T, b: T) -> T:
        """Both together. Takes values as `from_arrow` gives them and changes neither."""

    @property
    def parameters(self) -> dict[str, Any]:
        """What, besides the type, tells two monoids of this name apart, as JSON."""
        return {}

    @property
    def identity(self) -> dict[str, Any]:
        """Who this monoid is, as JSON: equal ones mean the same by the same values."""
        return {"name": self.name, "parameters": self.parameters, "type": str(self.type)}

    def __repr__(self) -> str:
        return f"{self.name}({self.type})"

    def reduce(self, values: Array, starts: Rows) -> Array:
        """The sum of each segment of a column, in order.

        Segment i is values[starts[i]:starts[i + 1]], the last one to the end. `values` are of `type` and not null;
        `starts` begin at 0 and increase strictly, so that no segment is empty (both may be empty).
        """
        items: list[Any] = self.from_arrow(values)
        ends = [*starts.tolist(), len(items)]
        return self.to_arrow([reduce(self.plus, items[start:end]) for start, end in pairwise(ends)])

    @property
    def missing(self) -> T:
        return self.zero

    @cached_property
    def codec(self) -> Codec[Any]:
        """How values become columns. A subclass may set another, or override to_arrow, from_arrow and cast."""
        return codec_of(self.type)

    def to_arrow(self, values: Sequence[T | None]) -> Array:
        with told_by(self.name):
            return self.codec.to_arrow(values)

    def from_arrow(self, array: Array) -> list[T | None]:
        return self.codec.from_arrow(array)

    def _cast(self, column: Array) -> tuple[Array, Mask]:
        with told_by(self.name):
            return self.codec.cast(column)


class Group(Monoid[T]):
    """A monoid with subtraction: plus(minus(a, b), b) is a."""

    @abstractmethod
    def minus(self, a: T, b: T) -> T:
        """What is left of a without b. Changes neither."""


def reduce_part(monoid: Monoid[Any], values: Array, starts: Rows) -> Array:
    """`monoid.reduce` of a part of a struct, tuple or map, where a null is the zero."""
    if not values.null_count:
        return fill(monoid, monoid.reduce(values, starts))
    rows = np.flatnonzero(valid(values))
    some, firsts = np.unique(segments(starts, len(values))[rows], return_index=True)
    sums = monoid.reduce(values.take(pa.array(rows)), firsts)
    place = np.full(len(starts), -1)
    place[some] = np.arange(len(some))
    return fill(monoid, sums.take(pa.array(place, mask=place < 0)))
