"""Values of every monoid of this package, as hypothesis strategies.

Needs hypothesis, which the extra `laws` brings.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from monoids import chosen, containers, exact, functions, hashed, logic, numeric, sketches, statistics
from monoids.base import MonoidError, Semigroup, Summary
from monoids.scalars import family

try:
    from hypothesis import strategies as st
except ImportError:
    raise ImportError("package='hypothesis' is missing; pip install 'persistent-state[laws]'.") from None

Values = st.SearchStrategy[Any]

INT64 = st.integers(-9, 9) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1])
FEW_FLOATS = st.floats(-1e6, 1e6)
"""Floats whose sums are near each other whatever their order: see `Semigroup.near`."""

_DAYS = st.dates() | st.sampled_from([date.min, date.max])
_MICROSECONDS = st.timedeltas(timedelta(microseconds=-(2**63)), timedelta(microseconds=2**63 - 1))


def items(type: pa.DataType) -> Values:
    """Ordered values of a primitive, list, struct or map type, in the forms that monoids keep."""
    if isinstance(type, pa.ListType):
        return st.lists(st.none() | items(type.value_type), max_size=3)
    if isinstance(type, pa.StructType):
        return st.fixed_dictionaries({field.name: st.none() | items(field.type) for field in type})
    if isinstance(type, pa.MapType):
        return st.dictionaries(items(type.key_type), st.none() | items(type.item_type), max_size=3)
    kind = family(type)
    if kind is None:
        raise MonoidError(f"type={type} is not one that monoids keep. Give a strategy for its values.")
    if kind.name == "decimal":
        return st.integers(1 - 10**38, 10**38 - 1).map(lambda digits: Decimal(digits).scaleb(-type.scale, _WIDE))
    return _ITEMS[kind.name]


_ITEMS: dict[str, Values] = {
    "int": INT64,
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "text": st.sampled_from(["", "a", "b"]) | st.text(max_size=5),
    "bytes": st.binary(max_size=5),
    "date": _DAYS,
    "time": st.times() | st.just(time.max),
    "duration": _MICROSECONDS,
    "local": st.datetimes() | st.sampled_from([datetime.min, datetime.max]),
    "instant": st.datetimes(timezones=st.just(timezone.utc)),
}


def values(monoid: Semigroup[Any]) -> Values:
    """Values of a monoid of this package, as `from_arrow` gives them, the zero among them; never None.

    Raises:
        MonoidError: it is another's, or within another's.
    """
    for kind, made in _VALUES:
        if isinstance(monoid, kind):
            strategy: Values = made(monoid)
            return strategy
    raise MonoidError(f"{monoid!r} is not a monoid of this package. Give a strategy for its values.")


def _sums(monoid: Any) -> Values:
    kind = family(monoid.type)
    assert kind is not None
    if kind.name == "decimal":
        return st.integers(-(10**35), 10**35).map(lambda digits: Decimal(digits).scaleb(-monoid.type.scale, _WIDE))
    return FEW_FLOATS if kind.name == "float" else INT64


def _parts(monoid: Any) -> dict[str, Values]:
    return {
        name: values(part) | st.none() if part.zero is None else values(part) for name, part in monoid.monoids.items()
    }


def items_of(monoid: Summary[Any, Any, Any]) -> Values:
    """Items that a monoid of this package summarises."""
    if isinstance(monoid, chosen.TopK):
        return _top(monoid)
    if isinstance(monoid, statistics.Covariance):
        return st.tuples(FEW_FLOATS, FEW_FLOATS)
    if isinstance(monoid, statistics.DecayedValue):
        return st.tuples(_TIMES, FEW_FLOATS)
    return FEW_FLOATS if pa.types.is_floating(monoid.items.type) else items(monoid.items.type)


def _summaries(monoid: Summary[Any, Any, Any]) -> Values:
    """Summaries of a few items."""
    return st.lists(items_of(monoid), max_size=4).map(lambda drawn: monoid.sum(map(monoid.of, drawn)))


def _sketches(monoid: Any) -> Values:
    """Sketches of few and of many items."""
    many = st.tuples(st.integers(0, 3), st.sampled_from([40, 300])).map(lambda drawn: _many(monoid, *drawn))
    return _summaries(monoid) | many


def _many(monoid: Any, first: int, count: int) -> Any:
    numbers = np.arange(first * 100, first * 100 + count)
    is_short = getattr(monoid.items.type, "bit_width", 64) == 32 if monoid.items.is_numeric else False
    column = pa.array(numbers, pa.int32() if is_short else pa.int64()).cast(monoid.items.type)
    summaries, _ = monoid.cast(column)
    (value,) = monoid.from_arrow(monoid.reduce(summaries, np.zeros(1, np.int64)))
    return value


def _ends(monoid: Any) -> Values:
    return st.tuples(items(monoid.items.type), items(monoid.items.type)).map(lambda ends: chosen.Ends(*sorted(ends)))


def _by(monoid: Any) -> Values:
    return st.builds(chosen.By, items(monoid.by.type), items(monoid.value.type))


def _top(monoid: Any) -> Values:
    if isinstance(monoid.items.type, pa.StructType):
        return st.builds(chosen.By, *(items(field.type) for field in monoid.items.type))
    return items(monoid.items.type)


def _tops(monoid: Any) -> Values:
    return st.lists(_top(monoid), max_size=5).map(lambda drawn: monoid.plus(drawn, []))


_WIDE = Context(prec=80)
_TIMES = st.integers(-(2**50), 2**50)

_VALUES: tuple[tuple[type, Callable[[Any], Values]], ...] = (
    (numeric.Sum, _sums),
    (numeric.Product, lambda monoid: INT64 if monoid.exact else st.floats(-10, 10)),
    (numeric.Extreme, lambda monoid: items(monoid.type)),
    (exact.ExactSum, lambda monoid: st.floats(allow_nan=False, allow_infinity=False).map(Fraction)),
    (logic.Any, lambda monoid: st.booleans()),
    (logic.All, lambda monoid: st.booleans()),
    (logic.BitAnd, lambda monoid: INT64),
    (logic.BitOr, lambda monoid: INT64),
    (chosen.First, lambda monoid: items(monoid.type)),
    (chosen.Last, lambda monoid: items(monoid.type)),
    (chosen.MinBy, _by),
    (chosen.MaxBy, _by),
    (chosen.TopK, _tops),
    (chosen.Interval, _ends),
    (statistics.Average, lambda monoid: st.builds(statistics.Averaged, st.integers(0, 9), _sums(monoid.items))),
    (statistics.Moments, _summaries),
    (statistics.Covariance, _summaries),
    (statistics.DecayedValue, lambda monoid: st.builds(statistics.Decayed, _TIMES, FEW_FLOATS) | st.just(monoid.zero)),
    (statistics.Histogram, lambda monoid: st.lists(INT64, min_size=len(monoid.zero), max_size=len(monoid.zero))),
    (functions.Affine, lambda monoid: st.builds(functions.Line, *[INT64 if monoid.exact else st.floats(-3, 3)] * 2)),
    (containers.List, lambda monoid: items(monoid.type)),
    (containers.Set, lambda monoid: st.frozensets(items(monoid.items.type), max_size=3)),
    (containers.Optional, lambda monoid: values(monoid.semigroup)),
    (containers.Map, lambda monoid: st.dictionaries(items(monoid.type.key_type), values(monoid.monoid), max_size=3)),
    (containers.Struct, lambda monoid: st.fixed_dictionaries(_parts(monoid))),
    (containers.Tuple, lambda monoid: st.tuples(*_parts(monoid).values())),
    (sketches.Sketch, _sketches),
    (hashed.CountMin, _sketches),
    (hashed.BloomFilter, _sketches),
    (hashed.MinHash, _sketches),
)
