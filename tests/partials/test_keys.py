"""Keys have one stored form and one hash, whatever Arrow type, slice or chunk they came in."""

from __future__ import annotations

import json
import math
import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.errors import InvalidInputError
from persistent_state.partials.keys import (
    hash_keys,
    normal_type,
    normalise,
    same_as_previous,
    shard_bounds,
    shard_range,
)

GOLDEN = json.loads((Path(__file__).parent / "golden_hashes.json").read_text(encoding="utf-8"))

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    **{
        type: st.integers(0, 2**type.bit_width - 1)
        if pa.types.is_unsigned_integer(type)
        else st.integers(-(2 ** (type.bit_width - 1)), 2 ** (type.bit_width - 1) - 1)
        for type in INTEGERS
    },
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=30),
    pa.large_string(): st.text(),
    pa.string_view(): st.text(),
    pa.binary(): st.binary(max_size=40),
    pa.large_binary(): st.binary(),
    pa.binary_view(): st.binary(),
    pa.binary(11): st.binary(min_size=11, max_size=11),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "Europe/Paris"): st.datetimes(timezones=st.just(timezone.utc)),
    pa.timestamp("ns"): st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)),
    pa.decimal128(20, 3): st.decimals(-(10**17) + 1, 10**17 - 1, places=3),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    pa.dictionary(pa.int8(), pa.string()): st.text(max_size=3),
    pa.dictionary(pa.int16(), pa.int32()): st.integers(-(2**31), 2**31 - 1),
}


def stored_bytes(value: Any, type: Any) -> bytes | None:
    """The stored form of a key's value, by the definition in `keys`, in plain Python."""
    if value is None:
        return None
    if isinstance(value, float):
        return struct.pack("<Q", 0x7FF8 << 48) if math.isnan(value) else struct.pack("<d", value or 0.0)
    if isinstance(value, Decimal):
        return int(value.scaleb(type.scale, Context(38))).to_bytes(16, "little", signed=True)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, datetime):
        value = (value - datetime(1970, 1, 1, tzinfo=value.tzinfo and timezone.utc)) // timedelta(microseconds=1)
    elif isinstance(value, date):
        value = (value - date(1970, 1, 1)).days
    return (int(value) % 2**64).to_bytes(8, "little")


def plain_hash(key: list[bytes | None]) -> int:
    """The hash of a key, by the definition in `keys`, in plain Python."""

    def mix(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    h = 0
    for value in key:
        if value is None:
            h = mix(h ^ 0x5851F42D4C957F2D)
        else:
            h ^= (len(value) + 1) * 0x9E3779B97F4A7C15 % 2**64
            for start in range(0, len(value) or 1, 8):
                h = mix(h ^ int.from_bytes(value[start : start + 8], "little"))
    return h


@st.composite
def keys(draw: st.DrawFn, repeats: bool = False) -> tuple[list[list[bytes | None]], list[pa.Array[Any]], int]:
    """Rows of stored bytes, and the same as columns: a slice of something longer, or in chunks."""
    rows = draw(st.integers(0, 12))
    plain, columns = [], []
    for type in draw(st.lists(st.sampled_from(list(VALUES)), max_size=3)):
        some = st.none() | VALUES[type]
        if repeats:
            some = st.sampled_from(draw(st.lists(some, min_size=1, max_size=2)))
        values = draw(st.lists(some, min_size=rows, max_size=rows))
        before, after = draw(st.lists(some, max_size=9)), draw(st.lists(some, max_size=2))
        column: Any = pa.array(before + values + after, type)[len(before) : len(before) + rows]
        if draw(st.booleans()):
            cut = draw(st.integers(0, rows))
            column = pa.chunked_array([column[:cut], column[cut:]])
        plain.append([stored_bytes(value, type) for value in values])
        columns.append(normalise(column))
    return [list(row) for row in zip(*plain, strict=True)] if plain else [[]] * rows, columns, rows


def value_of(text: Any, type: Any) -> Any:
    """A value as the golden table writes it."""
    if text is None:
        return None
    if pa.types.is_floating(type):
        return float(text)
    if pa.types.is_binary(type):
        return bytes.fromhex(text)
    if pa.types.is_date(type):
        return date.fromisoformat(text)
    if pa.types.is_timestamp(type):
        return datetime.fromisoformat(text)
    return Decimal(text) if pa.types.is_decimal(type) else text


GOLDEN_TYPES = {
    str(type): type
    for type in [*VALUES, pa.timestamp("us", "UTC"), pa.timestamp("s", "America/New_York"), pa.decimal128(5, 2)]
}


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: json.dumps(row["key"]))
def test_a_published_hash_never_changes(row: dict[str, Any]) -> None:
    types = [GOLDEN_TYPES[name] for name in row["types"]]
    values = [value_of(text, type) for text, type in zip(row["key"], types, strict=True)]
    columns = [normalise(pa.array([value], type)) for value, type in zip(values, types, strict=True)]
    assert f"{hash_keys(columns, 1)[0]:016x}" == row["hash"]
    assert f"{plain_hash([stored_bytes(*pair) for pair in zip(values, types, strict=True)]):016x}" == row["hash"]


@given(keys())
def test_the_hash_is_its_definition(drawn: tuple[list[list[bytes | None]], list[pa.Array[Any]], int]) -> None:
    plain, columns, rows = drawn
    assert hash_keys(columns, rows).tolist() == [plain_hash(key) for key in plain]


def test_strings_of_every_length_are_hashed_whole() -> None:
    values = ["".join(chr(33 + i) for i in range(length)) for length in range(60)]
    for order in (values, values[::-1]):
        hashes = hash_keys([pa.array(["before", *order])[1:]], 60)
        assert hashes.tolist() == [plain_hash([value.encode()]) for value in order]


@given(keys(repeats=True))
def test_same_as_previous_compares_stored_values(
    drawn: tuple[list[list[bytes | None]], list[pa.Array[Any]], int],
) -> None:
    plain, columns, rows = drawn
    same = same_as_previous(columns, rows)
    assert same.tolist() == [i > 0 and plain[i] == plain[i - 1] for i in range(rows)]


@given(keys(), st.integers(0, 12))
def test_rows_are_hashed_by_themselves(
    drawn: tuple[list[list[bytes | None]], list[pa.Array[Any]], int], cut: int
) -> None:
    _, columns, rows = drawn
    cut = min(cut, rows)
    parts = [hash_keys([c[:cut] for c in columns], cut), hash_keys([c[cut:] for c in columns], rows - cut)]
    assert np.concatenate(parts).tolist() == hash_keys(columns, rows).tolist()


@given(st.integers(-(2**63), 2**64 - 1))
def test_an_integer_hashes_the_same_in_every_type_that_holds_it(value: int) -> None:
    types = [type for type in INTEGERS if fits(value, type)]
    assert len({int(hash_keys([normalise(pa.array([value], type))], 1)[0]) for type in types}) == 1


def fits(value: int, type: pa.DataType) -> bool:
    bits = type.bit_width
    return bool(0 <= value < 2**bits if pa.types.is_unsigned_integer(type) else -(2**bits) <= 2 * value < 2**bits)


@pytest.mark.parametrize("type", VALUES, ids=str)
def test_the_stored_form_is_its_own_stored_form(type: Any) -> None:
    column = normalise(pa.nulls(3, type))
    assert column.type == normal_type(type) == normal_type(column.type)
    assert normalise(column).equals(column)
    assert column.null_count == 3
    assert same_as_previous([column]).tolist() == [False, True, True]
    assert hash_keys([column], 3).tolist() == [plain_hash([None])] * 3


@pytest.mark.parametrize(
    ("type", "stored"),
    [
        (pa.int8(), pa.int64()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.uint64()),
        (pa.float32(), pa.float64()),
        (pa.string_view(), pa.string()),
        (pa.binary(3), pa.binary()),
        (pa.dictionary(pa.int32(), pa.int16()), pa.int64()),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.timestamp("ns", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
        (pa.date64(), pa.date32()),
        (pa.decimal128(5, 2), pa.decimal128(38, 2)),
    ],
    ids=str,
)
def test_the_stored_type_of_a_key(type: Any, stored: pa.DataType) -> None:
    assert normal_type(type) == stored


def test_floats_are_stored_with_one_zero_and_one_nan() -> None:
    bits = [0x8000000000000000, 0xFFF8000000000001, 0x7FF0000000000001, 0x7FF8000000000000]
    column = normalise(pa.array(bits, pa.uint64()).view(pa.float64()))
    assert column.view(pa.uint64()).to_pylist() == [0] + [0x7FF8000000000000] * 3
    assert same_as_previous([column]).tolist() == [False, False, True, True]


@pytest.mark.parametrize("type", [type for type in VALUES if type not in (pa.string_view(), pa.binary_view())], ids=str)
@given(data=st.data())
def test_what_lies_under_a_null_is_not_read(type: Any, data: st.DataObject) -> None:
    values = data.draw(st.lists(VALUES[type], min_size=2, max_size=2))
    whole = pa.array(values, type.value_type if pa.types.is_dictionary(type) else type)
    column = pa.Array.from_buffers(whole.type, 2, [pa.py_buffer(b"\x00"), *whole.buffers()[1:]])
    assert hash_keys([normalise(column)], 2).tolist() == [plain_hash([None])] * 2
    assert same_as_previous([normalise(column)]).tolist() == [False, True]


def test_a_null_in_a_dictionary_is_null() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 1]), pa.array(["a", None]))
    assert normalise(column).to_pylist() == ["a", None, None, None]
    assert same_as_previous([normalise(column)]).tolist() == [False, False, True, True]


def test_null_is_not_zero_nor_empty() -> None:
    empty: list[pa.Array[Any]] = [
        pa.array([0]),
        pa.array([0.0]),
        pa.array([False]),
        pa.array([""]),
        pa.array([b"\0" * 8]),
    ]
    hashes = [int(hash_keys([normalise(column)], 1)[0]) for column in empty]
    assert plain_hash([None]) not in hashes
    assert 0 not in hashes


def test_without_key_columns_there_is_one_key() -> None:
    assert hash_keys([], 3).tolist() == [0, 0, 0]
    assert same_as_previous([], 3).tolist() == [False, True, True]


@pytest.mark.parametrize(
    "type",
    [
        pa.null(),
        pa.float16(),
        pa.time64("us"),
        pa.duration("us"),
        pa.decimal256(50, 2),
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.dictionary(pa.int8(), pa.duration("s")),
    ],
    ids=str,
)
def test_a_type_that_cannot_be_a_key_is_refused_by_name(type: Any) -> None:
    named = type.value_type if pa.types.is_dictionary(type) else type
    with pytest.raises(InvalidInputError) as refused:
        normalise(pa.nulls(1, type))
    assert str(refused.value).startswith(f"key type={named} cannot be a key")


@pytest.mark.parametrize(
    ("value", "type"),
    [(1_001, pa.timestamp("ns")), (2**62, pa.timestamp("s", "UTC")), (86_400_001, pa.date64())],
    ids=str,
)
def test_a_value_that_the_stored_form_cannot_hold_is_refused(value: int, type: Any) -> None:
    with pytest.raises(InvalidInputError, match="a key does not fit type="):
        normalise(pa.array([value]).view(type))


@given(st.integers(1, 300))
def test_shard_ranges_partition_the_hashes(shards: int) -> None:
    ranges = [shard_range(shard, shards) for shard in range(shards)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 2**64
    assert all(high == low for (_, high), (low, _) in pairwise(ranges))
    sizes = [high - low for low, high in ranges]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 40), st.lists(st.integers(0, 2**64 - 1), max_size=40), st.data())
def test_shard_bounds_cut_at_the_ranges(shards: int, hashes: list[int], data: st.DataObject) -> None:
    edges = [edge for shard in range(shards) for low, high in [shard_range(shard, shards)] for edge in (low, high - 1)]
    hashes = sorted(hashes + data.draw(st.lists(st.sampled_from(edges), max_size=10)))
    bounds = shard_bounds(np.array(hashes, np.uint64), shards).tolist()
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(hashes), shards + 1)
    for shard in range(shards):
        low, high = shard_range(shard, shards)
        for hash in hashes[bounds[shard] : bounds[shard + 1]]:
            assert low <= hash < high
            assert hash * shards >> 64 == shard


@pytest.mark.parametrize(
    "column",
    [
        pa.array(range(50_000)),
        pa.array(range(0, 50_000 << 20, 1 << 20)),
        pa.array([float(i) for i in range(50_000)]),
        pa.array([str(i) for i in range(50_000)]),
        pa.array([f"device-{i:08}" for i in range(50_000)]),
        pa.array(range(50_000)).cast(pa.decimal128(38, 0)),
    ],
    ids=["integers", "multiples", "floats", "digits", "names", "decimals"],
)
@pytest.mark.parametrize("columns", [1, 2])
def test_regular_keys_spread_evenly_over_shards(column: pa.Array[Any], columns: int) -> None:
    hashes = np.sort(hash_keys([pa.array([7] * len(column)), normalise(column)][-columns:], len(column)))
    assert np.all(hashes[1:] != hashes[:-1])
    for shards in (2, 3, 8, 16, 64):
        rows = np.diff(shard_bounds(hashes, shards))
        assert abs(rows / (len(column) / shards) - 1).max() < 0.25


def test_each_bit_of_a_key_changes_half_the_bits_of_its_hash() -> None:
    keys = np.random.default_rng(1).integers(-(2**63), 2**63, 2_000)
    hashes = hash_keys([pa.array(keys)], len(keys))
    for bit in range(64):
        changed = hashes ^ hash_keys([pa.array(keys ^ np.int64(-(2**63) if bit == 63 else 1 << bit))], len(keys))
        flips = [np.mean(changed >> np.uint64(i) & np.uint64(1)) for i in range(64)]
        assert min(flips) > 0.4
        assert max(flips) < 0.6
