"""Monoids made of others, and the list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from monoids.base import Monoid, MonoidError, reduce_part
from monoids.codec import Array, Rows, segments, sort_within, told_by
from monoids.nested import ListCodec, MapCodec, StructCodec, TupleCodec, codec_of, entries_of, repeats

T = TypeVar("T")
V = TypeVar("V")


def _checked(monoid: Monoid[T]) -> Monoid[T]:
    if not isinstance(monoid, Monoid):
        raise MonoidError(f"monoid={monoid!r} is not a monoid. Use an instance, such as Sum().")
    return monoid


def _or_zero(monoid: Monoid[T], value: T | None) -> T:
    return monoid.zero if value is None else value


class _Product(Monoid[T]):
    """Monoids side by side, each with a field of its own."""

    _codec: type[StructCodec] = StructCodec

    def __init__(self, monoids: dict[str, Monoid[Any]]) -> None:
        with told_by(self.name):
            self.monoids = {name: _checked(monoid) for name, monoid in monoids.items()}
            self.codec: StructCodec = self._codec(self.monoids)
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
        with told_by(self.name):
            ours, theirs = self.codec.fields(a), self.codec.fields(b)
        return self._value(
            monoid.plus(_or_zero(monoid, ours.get(name)), _or_zero(monoid, theirs.get(name)))
            for name, monoid in self.monoids.items()
        )

    def reduce(self, values: Array, starts: Rows) -> Array:
        sums = [reduce_part(monoid, values.field(name), starts) for name, monoid in self.monoids.items()]
        return pa.StructArray.from_arrays(sums, fields=list(self.type))

    def _value(self, fields: Iterable[Any]) -> T:
        value: T = self.codec.value(tuple(fields))
        return value


class Struct(_Product[dict[str, Any]]):
    """Named values side by side: `Struct(flights=Count(), last=Max(pa.date32()))`. Values are dictionaries.

    In Arrow a struct with these fields in this order. A field that is left out, None or null is its monoid's zero.
    """

    def __init__(self, /, **monoids: Monoid[Any]) -> None:
        super().__init__(monoids)


class Tuple(_Product[tuple[Any, ...]]):
    """Values side by side: `Tuple(Sum(pa.float64()), Count())`. Values are tuples.

    In Arrow a struct with the fields 0, 1, … A place that is None or null is its monoid's zero.
    """

    _codec = TupleCodec

    def __init__(self, *monoids: Monoid[Any]) -> None:
        super().__init__({str(place): monoid for place, monoid in enumerate(monoids)})


class Map(Monoid[dict[Any, V]]):
    """A value of another monoid per key: `Map(pa.string(), Sum())`. Values are dictionaries.

    Keys are primitive and widened as those of Min; None and NaN are no keys. A missing key stands for the zero; a key
    that was once there stays, even when its value comes to the zero. In Arrow a map sorted by key, a null value being
    the zero. A map column with a key twice in a row does not fit in that row.
    """

    def __init__(self, key_type: pa.DataType, monoid: Monoid[V]) -> None:
        with told_by(self.name):
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

    def reduce(self, values: Array, starts: Rows) -> Array:
        row, keys, items = self.codec.entries(values)
        segment = segments(starts, len(values))[row]
        order = sort_within(segment, keys)
        segment, keys, items = segment[order], keys.take(pa.array(order)), items.take(pa.array(order))
        firsts = np.flatnonzero(~repeats(segment, keys))
        sums = reduce_part(self.monoid, items, firsts)
        return self.codec.array(segment[firsts], keys.take(pa.array(firsts)), sums, np.ones(len(starts), bool))


class List(Monoid[list[Any]]):
    """Values one after another: `List(pa.string())`. Values are lists, which plus concatenates in the order given.

    Items are of any primitive, list, struct or map type, and may be None. In Arrow a list.
    """

    commutative = False

    def __init__(self, type: pa.DataType) -> None:
        with told_by(self.name):
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
