"""The algebra: an associative `plus`, perhaps a `zero` and a `minus`, an Arrow type, and one kernel that reduces columns."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import islice, pairwise
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pyarrow as pa

from monoids.codec import Array, Codec, DataType, Mask, MonoidError, Rows, naming, segments, valid
from monoids.nested import codec_of, fill
from monoids.scalars import exact

__all__ = ["Aggregator", "Group", "Monoid", "MonoidError", "Semigroup", "Summary", "from_pair"]

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

_AT_A_TIME = 10_000


class _NoType:
    """The type of a semigroup that does not say one. To ask for it is an error in a sentence."""

    def __get__(self, instance: object, owner: type[Semigroup[Any]]) -> Any:
        if instance is None:
            return self
        raise MonoidError(f"{owner.name} has no type. Give it the Arrow type of its values, such as type = pa.int64().")


class Semigroup(Codec[T], Generic[T]):
    """Values of one kind that can be put together in any grouping.

    `plus` is associative and does not change its arguments. A subclass says `plus` and `type`; the rest has defaults, which
    it may replace by faster ones that give the same.

    Attributes:
        name: part of the identity, so of every store that holds values. The class's name unless the class says another.
        commutative: whether plus(a, b) is plus(b, a). If not, values are only put together in their order.
        exact: whether a sum is the same in whatever way it is grouped. If not (floats), only nearly the same.
    """

    name: ClassVar[str] = "Semigroup"
    type: DataType = _NoType()
    commutative: bool = True
    exact: bool = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__
        if callable(vars(cls).get("type")):
            raise MonoidError(f"{cls.name}.type is a function; call it, as in type = pa.int64().")

    @abstractmethod
    def plus(self, a: T, b: T) -> T:
        """Both together. Takes values as `from_arrow` gives them and changes neither."""

    def near(self, a: T, b: T) -> bool:
        """Return True if two values are equal, but for what grouping may change where sums are not exact."""
        return a == b

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters in which, besides the type, two monoids of this name may differ, as JSON."""
        return {}

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of this monoid, as JSON: monoids with equal identities add equal values equally."""
        return {"name": self.name, "parameters": self.parameters, "type": str(self.type)}

    def __repr__(self) -> str:
        return f"{self.name}({self.type})"

    def reduce(self, values: Array, starts: Rows) -> Array:
        """Return the sum of each segment of a column, in order.

        Segment i is values[starts[i]:starts[i + 1]], the last one to the end. `values` are of `type` and not null;
        `starts` begin at 0 and increase strictly, so that no segment is empty (both may be empty).
        """
        items: list[Any] = self.from_arrow(values)
        ends = [*starts.tolist(), len(items)]
        return self.to_arrow([reduce(self.plus, items[start:end]) for start, end in pairwise(ends)])

    @cached_property
    def codec(self) -> Codec[Any]:
        """The codec that makes columns of values. A subclass may set another, or override to_arrow, from_arrow and cast."""
        return codec_of(self.type)

    def to_arrow(self, values: Sequence[T | None]) -> Array:
        with naming(self.name):
            return self.codec.to_arrow(values)

    def from_arrow(self, array: Array) -> list[T | None]:
        return self.codec.from_arrow(array)

    def _cast(self, column: Array) -> tuple[Array, Mask]:
        with naming(self.name):
            return self.codec.cast(column)


class Monoid(Semigroup[T]):
    """A semigroup with a `zero`, which changes nothing.

    class Xor(Monoid[int]):
        type = pa.int64()
        zero = 0

        def plus(self, a, b):
            return a ^ b
    """

    @property
    @abstractmethod
    def zero(self) -> T:
        """The value that plus leaves alone."""

    def sum(self, values: Iterable[T]) -> T:
        """All together, in their order; the zero of none.

        Raises:
            MonoidError: one is no value of this monoid.
        """
        total, rest = self.zero, iter(values)
        while batch := list(islice(rest, _AT_A_TIME)):
            checked: list[Any] = self.from_arrow(self.to_arrow(batch))
            total = reduce(self.plus, (value for value in checked if value is not None), total)
        return total

    @property
    def missing(self) -> T:
        return self.zero

    @property
    def is_group(self) -> bool:
        """Return whether every value has an inverse: then `inverses` gives it."""
        return False

    def inverses(self, values: Array) -> Array:
        """Return the inverse of each value of a column: added to the value it gives the zero. Null stays null.

        Raises:
            MonoidError: The values have no inverses.
        """
        raise MonoidError(f"{self!r} is no group: what was added can't be taken back. Use a group, such as Sum.")


class Group(Monoid[T]):
    """A monoid with subtraction: plus(minus(a, b), b) is a."""

    @property
    def is_group(self) -> bool:
        return True

    @abstractmethod
    def minus(self, a: T, b: T) -> T:
        """Return what is left of a without b. It changes neither."""

    def inverses(self, values: Array) -> Array:
        items = self.from_arrow(values)
        return self.to_arrow([None if item is None else self.minus(self.zero, item) for item in items])


@dataclass(frozen=True)
class Aggregator(Generic[A, B, C]):
    """A way from many items to one answer: it prepares each item, adds by a monoid, and presents the sum.

    >>> from monoids import Max
    >>> longest = Aggregator(len, Max(), lambda length: length or 0)
    >>> longest(["a", "word", "or"])
    4

    Attributes:
        type: the Arrow type of what `present` gives, if it is known.
    """

    prepare: Callable[[A], B]
    monoid: Monoid[B]
    present: Callable[[B], C]
    type: DataType | None = None

    def __call__(self, items: Iterable[A]) -> C:
        return self.present(self.monoid.sum(map(self.prepare, items)))

    def present_column(self, column: Array) -> Array:
        """Present each sum of a column, as a column of `type`; null of null.

        Raises:
            MonoidError: The type is not known, or `present` gives something else.
        """
        own = self.monoid
        if isinstance(own, Summary) and (self.present, self.type) == (own.present, own.presented):
            return own.present_column(column)
        if self.type is None:
            raise MonoidError(f"Aggregator of {own!r}: type=None. Give the Arrow type of what present gives as type=.")
        return _presented(own, self.present, self.type, column)


class Summary(Monoid[T], Generic[T, A, C]):
    """A monoid of summaries of items: `of` makes one of an item, `present` is what a summary says.

    A column of items is taken for one of their summaries.

    Attributes:
        items: how items become columns, and which are refused.
    """

    items: Codec[Any]

    def of(self, item: A) -> T:
        """Return the summary of one item.

        Raises:
            MonoidError: This monoid does not take the item.
        """
        (value,) = self.from_arrow(self._lift(self.column_of(item)))
        summary: T = value  # type: ignore[assignment]
        return summary

    def column_of(self, item: A) -> Array:
        """Return a column of one item.

        Raises:
            MonoidError: This monoid does not take the item.
        """
        with naming(self.name):
            if item is None:
                raise MonoidError("value=None is no item. Leave it out.")
            return self.items.to_arrow([item])

    def present(self, value: T) -> C:
        """Return what outputs show of a summary: the value itself, unless a subclass overrides this."""
        said: Any = value
        return said  # type: ignore[no-any-return]

    @property
    def presented(self) -> DataType | None:
        """The Arrow type of what `present` gives. A subclass that overrides that says this too: None, it is not known."""
        return self.type if self._presents_itself else None

    def present_column(self, column: Array) -> Array:
        """Present each summary of a column, as a column of `presented`; null of null.

        Raises:
            MonoidError: The type is not known, or `present` gives something else.
        """
        if self._presents_itself:
            return column
        if self.presented is None:
            raise MonoidError(f"{self.name}: presented=None. Set it to the Arrow type of what present gives.")
        return _presented(self, self.present, self.presented, column)

    @property
    def aggregator(self) -> Aggregator[A, T, C]:
        """The way from items to what their summary presents."""
        return Aggregator(self.of, self, self.present, self.presented)

    @property
    def _presents_itself(self) -> bool:
        return type(self).present is Summary.present

    @abstractmethod
    def _lift(self, items: Array) -> Array:
        """Return the summaries of a column of items, some of them null."""

    def _cast(self, column: Array) -> tuple[Array, Mask]:
        if not self.items.accepts(column.type):
            return super()._cast(column)
        with naming(self.name):
            items, bad = self.items.cast(column)
        return self._lift(items), bad


def from_pair(
    name: str, type: Any, zero: T, plus: Callable[[T, T], T], *, commutative: bool = True, exact: bool = True
) -> Monoid[T]:
    """Make a monoid of a zero and a plus. `name` is its identity, which every store with its values records.

    >>> longest = from_pair("Longest", pa.string(), "", lambda a, b: max(a, b, key=lambda word: (len(word), word)))
    >>> longest.sum(["a", "word", "or"])
    'word'
    """
    return _Pair(name, type, zero, plus, commutative, exact)


class _Pair(Monoid[T]):
    zero: Any = None
    plus: Any = None

    def __init__(
        self, name: str, type: Any, zero: T, plus: Callable[[T, T], T], commutative: bool, exact: bool
    ) -> None:
        vars(self).update(name=name, type=type, zero=zero, plus=plus, commutative=commutative, exact=exact)


def _presented(monoid: Monoid[B], present: Callable[[B], C], type: DataType, column: Array) -> Array:
    said = [None if value is None else present(value) for value in monoid.from_arrow(column)]
    try:
        return pa.array([exact(value, type) for value in said], type)
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
        raise MonoidError(f"{monoid.name}: present gives what is no {type}: {error}. Give its Arrow type.") from error


def reduce_part(monoid: Monoid[Any], values: Array, starts: Rows) -> Array:
    """`monoid.reduce` of a part of a struct, tuple or map, where a null is the zero."""
    if not values.null_count:
        return fill(monoid, monoid.reduce(values, starts))
    rows = np.flatnonzero(valid(values))
    filled, firsts = np.unique(segments(starts, len(values))[rows], return_index=True)
    sums = monoid.reduce(values.take(pa.array(rows)), firsts)
    place = np.full(len(starts), -1)
    place[filled] = np.arange(len(filled))
    return fill(monoid, sums.take(pa.array(place, mask=place < 0)))


def within(name: str, parameter: str, value: int, low: int, high: int) -> int:
    """Return a parameter of the monoid `name` if it is from `low` to `high`, or raise MonoidError."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if not low <= number <= high:
        raise MonoidError(f"{name}: {parameter}={value} is out of {low} to {high}. Use a whole number between.")
    return number
