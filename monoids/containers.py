"""Monoids made of others, and the list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from monoids.base import Monoid, MonoidError, Semigroup, Summary, reduce_part
from monoids.codec import Array, Codec, Mask, Rows, naming, null_where, segments, sort_within, valid
from monoids.nested import (
    ListCodec,
    MapCodec,
    StructCodec,
    TupleCodec,
    codec_of,
    entries_of,
    is_there,
    nulls,
    offsets_of,
    repeats,
    with_null_entries,
)
from monoids.scalars import Scalar

T = TypeVar("T")
V = TypeVar("V")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")


def _checked(monoid: Monoid[T]) -> Monoid[T]:
    if not isinstance(monoid, Monoid):
        raise MonoidError(f"monoid={monoid!r} is not a monoid. Use an instance, such as Sum().")
    return monoid


def _or_zero(monoid: Monoid[T], value: T | None) -> T:
    return monoid.zero if value is None else value


class Fields(Monoid[T]):
    """Monoids side by side, each with a field of its own: what Struct, Tuple and records are."""

    def __init__(
        self, monoids: Mapping[str, Monoid[Any]], codec: Callable[[dict[str, Monoid[Any]]], StructCodec] = StructCodec
    ) -> None:
        with naming(self.name):
            self.monoids = {name: _checked(monoid) for name, monoid in monoids.items()}
            self.codec: StructCodec = codec(self.monoids)
        self.type = self.codec.type
        self.commutative = all(monoid.commutative for monoid in monoids.values())
        self.exact = all(monoid.exact for monoid in monoids.values())

    @property
    def parameters(self) -> dict[str, Any]:
        return {name: monoid.identity for name, monoid in self.monoids.items()}

    @property
    def zero(self) -> T:
        return self._value(monoid.zero for monoid in self.monoids.values())

    def plus(self, a: T, b: T) -> T:
        with naming(self.name):
            ours, theirs = self.codec.fields(a), self.codec.fields(b)
        return self._value(
            monoid.plus(_or_zero(monoid, ours.get(name)), _or_zero(monoid, theirs.get(name)))
            for name, monoid in self.monoids.items()
        )

    def near(self, a: T, b: T) -> bool:
        ours, theirs = self.codec.fields(a), self.codec.fields(b)
        return all(
            monoid.near(_or_zero(monoid, ours.get(name)), _or_zero(monoid, theirs.get(name)))
            for name, monoid in self.monoids.items()
        )

    def reduce(self, values: Array, starts: Rows) -> Array:
        sums = [reduce_part(monoid, values.field(name), starts) for name, monoid in self.monoids.items()]
        return pa.StructArray.from_arrays(sums, fields=list(self.type))

    @property
    def is_group(self) -> bool:
        return all(monoid.is_group for monoid in self.monoids.values())

    def inverses(self, values: Array) -> Array:
        parts = [monoid.inverses(values.field(name)) for name, monoid in self.monoids.items()]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(self.type), mask=mask)

    def _value(self, fields: Iterable[Any]) -> T:
        value: T = self.codec.value(tuple(fields))
        return value


class Struct(Fields[dict[str, Any]]):
    """Named values side by side. Values are dictionaries.

    >>> Struct(flights=Count(), last=Max()).sum([{"flights": 1, "last": 7}, {"flights": 1}])
    {'flights': 2, 'last': 7}

    In Arrow a struct with these fields in this order. A field that is left out, None or null is its monoid's zero.
    """

    def __init__(self, /, **monoids: Monoid[Any]) -> None:
        super().__init__(monoids)


class Tuple(Fields[T]):
    """Values side by side. Values are tuples.

    >>> Tuple(Sum(pa.float64()), Count()).sum([(0.5, 1), (1.5, 1)])
    (2.0, 2)

    In Arrow a struct with the fields 0, 1, … A place that is None or null is its monoid's zero.
    """

    @overload
    def __init__(self: Tuple[tuple[A]], a: Monoid[A], /) -> None: ...
    @overload
    def __init__(self: Tuple[tuple[A, B]], a: Monoid[A], b: Monoid[B], /) -> None: ...
    @overload
    def __init__(self: Tuple[tuple[A, B, C]], a: Monoid[A], b: Monoid[B], c: Monoid[C], /) -> None: ...
    @overload
    def __init__(self: Tuple[tuple[A, B, C, D]], a: Monoid[A], b: Monoid[B], c: Monoid[C], d: Monoid[D], /) -> None: ...
    @overload
    def __init__(self: Tuple[tuple[Any, ...]], *monoids: Monoid[Any]) -> None: ...
    def __init__(self, *monoids: Monoid[Any]) -> None:
        super().__init__({str(place): monoid for place, monoid in enumerate(monoids)}, TupleCodec)


class Map(Monoid[dict[Any, V]]):
    """A value of another monoid per key. Values are dictionaries.

    >>> Map(pa.string(), Sum()).sum([{"a": 1}, {"a": 2, "b": 3}])
    {'a': 3, 'b': 3}

    Keys are primitive and widened as those of Min; None and NaN are no keys. A missing key stands for the zero; a key
    that was once there stays, even when its value comes to the zero. In Arrow a map sorted by key, a null value being
    the zero. A map column with a key twice in a row does not fit in that row.
    """

    def __init__(self, key_type: pa.DataType, monoid: Monoid[V]) -> None:
        with naming(self.name):
            self.monoid = _checked(monoid)
            self.codec: MapCodec = MapCodec(key_type, monoid)
        self.type = self.codec.type
        self.commutative = monoid.commutative
        self.exact = monoid.exact

    @property
    def parameters(self) -> dict[str, Any]:
        return {"key": str(self.codec.key.type), "value": self.monoid.identity}

    @property
    def zero(self) -> dict[Any, V]:
        return {}

    def plus(self, a: dict[Any, V], b: dict[Any, V]) -> dict[Any, V]:
        both = {key: _or_zero(self.monoid, value) for key, value in a.items()}
        for key, value in b.items():
            value = _or_zero(self.monoid, value)
            both[key] = self.monoid.plus(both[key], value) if key in both else value
        return both

    def near(self, a: dict[Any, V], b: dict[Any, V]) -> bool:
        pairs = ((_or_zero(self.monoid, a[key]), _or_zero(self.monoid, b[key])) for key in a.keys() & b.keys())
        return a.keys() == b.keys() and all(self.monoid.near(*pair) for pair in pairs)

    def reduce(self, values: Array, starts: Rows) -> Array:
        row, keys, items = self.codec.entries(values)
        segment = segments(starts, len(values))[row]
        order = sort_within(segment, keys)
        segment, keys, items = segment[order], keys.take(pa.array(order)), items.take(pa.array(order))
        firsts = np.flatnonzero(~repeats(segment, keys))
        sums = reduce_part(self.monoid, items, firsts)
        return self.codec.array(segment[firsts], keys.take(pa.array(firsts)), sums, np.ones(len(starts), bool))


class List(Monoid[list[Any]]):
    """Values one after another. Values are lists, which plus concatenates in the order given.

    >>> List(pa.string()).sum([["a"], ["b", "a"]])
    ['a', 'b', 'a']

    Items are of any primitive, list, struct or map type, and may be None. In Arrow a list.
    """

    commutative = False

    def __init__(self, type: pa.DataType) -> None:
        with naming(self.name):
            self.codec: ListCodec = ListCodec(codec_of(type))
        self.type = self.codec.type

    @property
    def zero(self) -> list[Any]:
        return []

    def plus(self, a: list[Any], b: list[Any]) -> list[Any]:
        return [*a, *b]

    def reduce(self, values: Array, starts: Rows) -> Array:
        offsets, stretch = entries_of(values)
        ends = pa.array(np.append(offsets[starts], offsets[-1]), pa.int32())
        return pa.ListArray.from_arrays(ends, values.values[stretch])


class SetCodec(Codec[frozenset[Any]]):
    """Sets of ordered primitive values, as sorted lists without repeats."""

    def __init__(self, item: Scalar) -> None:
        self.item = item
        self.type = pa.list_(item.type)

    def to_arrow(self, values: Sequence[frozenset[Any] | None]) -> Array:
        for value in values:
            if value is not None and (not isinstance(value, (set, frozenset)) or None in value):
                raise self.refused_value(value, "sets without None")
        with naming("item"):
            items = self.item.to_arrow([item for value in values for item in value or ()])
        row = np.repeat(np.arange(len(values)), [len(value or ()) for value in values])
        return self.distinct(row, items, is_there(values))

    def from_arrow(self, array: Array) -> list[frozenset[Any] | None]:
        lists = ListCodec(self.item).from_arrow(array)
        return [None if items is None else frozenset(items) for items in lists]

    def distinct(self, row: Rows, items: Array, present: Mask) -> Array:
        """Return the column of the sets of these items, each of which belongs to the row in `row`."""
        order = sort_within(row, items)
        row, items = row[order], items.take(pa.array(order))
        once = np.flatnonzero(~repeats(row, items))
        offsets = offsets_of(np.bincount(row[once], minlength=len(present)))
        return pa.ListArray.from_arrays(offsets, items.take(pa.array(once)), mask=nulls(present))

    def _cast(self, column: Array) -> tuple[Array, Mask]:
        lists, bad = ListCodec(self.item).cast(column)
        offsets, stretch = entries_of(lists)
        row, items = np.repeat(np.arange(len(lists)), np.diff(offsets)), lists.values[stretch]
        holes = with_null_entries(lists)
        return null_where(self.distinct(row, items, valid(lists)), holes), bad | holes


class Set(Summary[frozenset[Any], Any, int]):
    """The distinct values. Values are frozensets; what it presents is how many.

    >>> sorted(Set(pa.string()).sum([frozenset("ab"), frozenset("b")]))
    ['a', 'b']

    Items are as those of Min. In Arrow a sorted list, which grows with what is distinct: HyperLogLog does not. A column of
    items, or of lists of items, is taken.
    """

    zero: frozenset[Any] = frozenset()
    presented = pa.int64()

    def __init__(self, type: pa.DataType) -> None:
        with naming(self.name):
            self.items: Scalar = Scalar(type, "ordered")
            self.codec: SetCodec = SetCodec(self.items)
        self.type = self.codec.type

    def plus(self, a: frozenset[Any], b: frozenset[Any]) -> frozenset[Any]:
        return a | b

    def present(self, value: frozenset[Any]) -> int:
        return len(value)

    def present_column(self, column: Array) -> Array:
        return pc.list_value_length(column).cast(self.presented)

    def reduce(self, values: Array, starts: Rows) -> Array:
        offsets, stretch = entries_of(values)
        row = np.repeat(segments(starts, len(values)), np.diff(offsets))
        return self.codec.distinct(row, values.values[stretch], np.ones(len(starts), bool))

    def _lift(self, items: Array) -> Array:
        return singletons(items)


class Optional(Monoid[T | None], Generic[T]):
    """A semigroup with None for a zero: what is not there at all differs from the other's own zero.

    >>> Optional(Sum()).sum([]) is None
    True

    In Arrow of the other's type, None is null.
    """

    zero = None

    def __init__(self, semigroup: Semigroup[T]) -> None:
        if not isinstance(semigroup, Semigroup):
            raise MonoidError(f"Optional: semigroup={semigroup!r} is no semigroup. Use an instance, such as Sum().")
        self.semigroup = semigroup
        self.type = semigroup.type
        self.commutative, self.exact = semigroup.commutative, semigroup.exact

    @property
    def codec(self) -> Codec[Any]:
        return self.semigroup

    @property
    def parameters(self) -> dict[str, Any]:
        return {"of": self.semigroup.identity}

    def plus(self, a: T | None, b: T | None) -> T | None:
        if a is None or b is None:
            return b if a is None else a
        return self.semigroup.plus(a, b)

    def near(self, a: T | None, b: T | None) -> bool:
        return a is b if a is None or b is None else self.semigroup.near(a, b)

    def reduce(self, values: Array, starts: Rows) -> Array:
        return self.semigroup.reduce(values, starts)


def singletons(items: Array) -> Array:
    """Return a column of lists of one item each, null where the item is null."""
    present = valid(items)
    lists = pa.ListArray.from_arrays(offsets_of(present.astype(np.int64)), items.drop_null())
    return null_where(lists, ~present)
