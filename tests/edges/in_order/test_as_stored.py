"""A value comes back as the store would give it back, whether Arrow is asked or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monoids import MonoidError
from monoids.nested import codec_of
from persistent_state.edges.in_order import as_stored as module
from persistent_state.edges.in_order.as_stored import as_stored

zones = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone) | st.timezones() | st.just(module.UTC)
texts = st.text(st.characters(codec="utf-8")) | st.text(st.characters())
decimals = st.decimals(allow_nan=True, allow_infinity=True) | st.decimals(-(10**35), 10**35, places=2)

SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers() | st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9).map(np.int64) | st.booleans()),
    (pa.float64(), st.floats() | st.integers() | st.integers(-(2**53) - 2, 2**53 + 2) | st.booleans()),
    (pa.bool_(), st.booleans() | st.integers(0, 1) | st.booleans().map(np.bool_)),
    (pa.string(), texts | st.binary()),
    (pa.binary(), st.binary() | st.binary().map(bytearray) | texts),
    (pa.date32(), st.dates() | st.datetimes()),
    (pa.time64("us"), st.times() | st.times(timezones=zones) | st.times().map(lambda at: at.replace(fold=1))),
    (pa.duration("us"), st.timedeltas()),
    (pa.timestamp("us"), st.datetimes() | st.datetimes(timezones=zones) | st.datetimes().map(lambda at: at.replace(fold=1))),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=zones) | st.datetimes()),
    (pa.decimal128(38, 2), decimals | st.integers() | st.just(Decimal("-0"))),
    (pa.decimal128(38, 0), decimals),
]  # fmt: skip


def typed() -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    """Types, and what gives values that are of them, or nearly."""
    return st.recursive(st.sampled_from(SCALARS), nested, max_leaves=4)


def nested(parts: Any) -> Any:
    names = st.lists(st.sampled_from(["a", "b c", "é"]), min_size=1, max_size=3, unique=True)
    return (
        parts.map(lambda part: (pa.list_(part[0]), st.lists(st.none() | part[1], max_size=3)))
        | st.tuples(st.sampled_from(SCALARS), parts).map(
            lambda both: (
                pa.map_(both[0][0], both[1][0]),
                st.dictionaries(hashable(both[0][1]), st.none() | both[1][1], max_size=3),
            )
        )
        | names.flatmap(
            lambda some: st.tuples(*[parts.map(lambda part, name=name: (name, *part)) for name in some])
        ).map(struct)
    )


def hashable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values.filter(lambda value: not isinstance(value, bytearray) and not is_signalling(value))


def is_signalling(value: Any) -> bool:
    return isinstance(value, Decimal) and value.is_snan()


def struct(parts: Any) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    fields = {name: st.none() | values for name, _, values in parts}
    # A field may be missing, and there may be one too many.
    rows = st.fixed_dictionaries(fields) | st.fixed_dictionaries({}, optional={**fields, "z": st.none()})
    return pa.struct([(name, type) for name, type, _ in parts]), rows


def told(get: Callable[[], Any]) -> str:
    """What comes back, to the last bit, or what is said of it."""
    try:
        return repr(get())
    except MonoidError as error:
        return f"refused: {error}"


@given(typed().flatmap(lambda typed: st.tuples(st.just(typed[0]), st.none() | typed[1])))
def test_a_value_is_as_after_a_round_trip_through_arrow(both: tuple[pa.DataType, Any]) -> None:
    type, value = both
    codec, copy = codec_of(type), as_stored(type)
    assert told(lambda: copy(value)) == told(lambda: codec.from_arrow(codec.to_arrow([value]))[0])


@pytest.mark.parametrize("type", [type for type, _ in SCALARS])
def test_each_scalar_is_as_after_a_round_trip_through_arrow(type: pa.DataType) -> None:
    values = dict(SCALARS)[type]

    @given(st.none() | values)
    def check(value: Any) -> None:
        codec = codec_of(type)
        assert told(lambda: as_stored(type)(value)) == told(lambda: codec.from_arrow(codec.to_arrow([value]))[0])

    check()


def plain_values() -> Iterator[tuple[pa.DataType, Any]]:
    now = datetime(2026, 11, 24, 12, tzinfo=timezone.utc)
    yield pa.string(), "Malmö"
    yield pa.timestamp("us", "UTC"), now
    yield pa.timestamp("us", "UTC"), now.astimezone(timezone(timedelta(hours=2)))
    yield pa.timestamp("us"), datetime(2026, 11, 24)
    yield pa.date32(), date(2026, 11, 24)
    yield pa.time64("us"), time(12)
    yield pa.duration("us"), timedelta(hours=1)
    yield pa.binary(), b"\x00\xff"
    yield pa.decimal128(38, 2), Decimal("1.5")
    yield pa.float64(), 1
    yield pa.bool_(), True
    yield pa.list_(pa.string()), ["Malmö", None]
    yield pa.map_(pa.string(), pa.timestamp("us", "UTC")), {"ö": now, "a": None}
    yield pa.struct([("n", pa.int64()), ("city", pa.string())]), {"city": "Malmö"}


@pytest.mark.parametrize(("type", "value"), [*plain_values()])
def test_arrow_is_not_asked_of_plain_values(type: pa.DataType, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a hundred times as long."""
    back = pa.array([value], type).to_pylist()[0]

    class Silent:
        def to_arrow(self, values: Any) -> Any:
            raise AssertionError("Arrow was asked.")

    monkeypatch.setattr(module, "codec_of", lambda type: Silent())
    found = as_stored(type)(value)
    assert found == (dict(sorted(back)) if pa.types.is_map(type) else back)
