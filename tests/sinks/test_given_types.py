"""Sinks are given values in the types in which Spark gives them, whatever runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from persistent_state.engine.spark.versions import arrow_types, spark_types
from persistent_state.sinks.given_types import given_types

FLAT = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32(), pa.null()),
    *(pa.decimal128(38, 4), pa.decimal256(38, 4), pa.decimal128(5, -2)),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(5)),
    *(pa.time64("us"), pa.time64("ns"), pa.duration("s"), pa.duration("ns")),
    *(pa.timestamp(unit, zone) for unit in ("s", "us", "ns") for zone in (None, "UTC", "America/New_York")),
    pa.dictionary(pa.int8(), pa.large_string()),
]
LACKING = [pa.uint64(), pa.float16(), pa.date64(), pa.time32("s"), pa.decimal256(50, 4), pa.string_view()]


def nested(type: pa.DataType) -> Iterator[pa.DataType]:
    may_lack = pa.field("x", type, nullable=pa.types.is_null(type))
    yield from (pa.list_(type), pa.list_(may_lack), pa.large_list(type), pa.list_(type, 3))
    yield from (pa.map_(pa.string(), type), pa.map_(pa.large_string(), may_lack), pa.struct([("a", type), may_lack]))
    yield pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.list_(type)))]))


@pytest.mark.parametrize("type", FLAT, ids=str)
def test_types_that_spark_has_are_given_as_spark_gives_them(type: pa.DataType) -> None:
    for each in (type, *nested(type)):
        for field in (pa.field("value", each), pa.field("value", each, nullable=pa.types.is_null(each))):
            schema = pa.schema([field, ("a", pa.int64())])
            by_spark = arrow_types(spark_types(schema))
            assert given_types(schema).equals(by_spark, check_metadata=True)


@pytest.mark.parametrize("type", LACKING, ids=str)
def test_types_that_spark_lacks_stay(type: pa.DataType) -> None:
    schema = pa.schema([("value", type)])
    assert given_types(schema) == schema
    with pytest.raises(Exception, match=r"(?i)unsupported|precision"):
        arrow_types(spark_types(schema))
