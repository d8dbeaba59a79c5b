"""Values without Spark: what a sink reads of them, in one part or in many."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from persistent_state.partials.keys import hash_keys, normalise, shard_of
from persistent_state.sinks.values import LocalValues
from tests.sentences import problem

ROWS = pa.table({"key": [f"key {number % 40}" for number in range(100)], "value": list(range(100))})


def rows_of(part: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, list[int]]:
    return part, [value for batch in batches for value in batch["value"].to_pylist()]


def test_values_may_be_read_twice_in_part_or_never() -> None:
    values = LocalValues.of(ROWS, parts=3)
    assert next(values.batches()).num_rows == 33
    assert [pa.Table.from_batches(values.batches()) for _ in range(2)] == [ROWS, ROWS]
    assert values.schema == ROWS.schema


@pytest.mark.parametrize(("parts", "most"), [(5, None), (5, 2), (2, 5), (5, 1)])
def test_each_row_is_in_one_part_of_at_most_so_many(parts: int, most: int | None) -> None:
    mapped = LocalValues.of(ROWS, parts).map_parts(rows_of, parts=most)
    assert [part for part, _ in mapped] == [*range(min(parts, most or parts))]
    assert [value for _, values in mapped for value in values] == [*range(100)]


@pytest.mark.parametrize("most", [None, 1, 3])
def test_a_part_without_rows_is_left_out(most: int | None) -> None:
    assert LocalValues(ROWS.schema, ()).map_parts(rows_of, parts=most) == []
    assert LocalValues.of(ROWS.slice(0, 0), 4).map_parts(rows_of, parts=most) == []
    assert [part for part, _ in LocalValues.of(ROWS.slice(0, 1), 2).map_parts(rows_of)] == [1]


def test_by_a_key_there_are_so_many_parts_which_are_ranges_of_its_hash() -> None:
    hashes = hash_keys([normalise(ROWS["key"])], len(ROWS)).tolist()
    wanted = [(part, [i for i in range(100) if shard_of(hashes[i], 7) == part]) for part in range(7)]
    for parts in (1, 4):
        assert LocalValues.of(ROWS, parts).map_parts(rows_of, parts=7, by=["key"]) == wanted
    none = LocalValues(ROWS.schema, ())
    assert none.map_parts(rows_of, parts=3, by=["key"]) == [(0, []), (1, []), (2, [])]
    # Rows without a key have one key in common.
    assert [len(values) for _, values in LocalValues.of(ROWS).map_parts(rows_of, parts=2, by=[])] == [100, 0]
    assert "give parts=" in problem(lambda: none.map_parts(rows_of, by=["key"]))


def test_values_show_their_columns_and_not_where_they_come_from() -> None:
    assert repr(LocalValues.of(ROWS)) == "LocalValues[key: string, value: int64]"


def test_values_without_spark_make_no_data_frame() -> None:
    assert "read without Spark" in problem(LocalValues.of(ROWS).to_spark)
