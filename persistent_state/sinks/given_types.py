"""The Arrow types in which sinks are given values. They are the same under every engine."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as kind


def given_types(schema: pa.Schema) -> pa.Schema:
    """Return columns with the types in which a sink is given their values: those that Spark has, in the one form it gives.

    A type that Spark lacks stays as it is.

    Args:
        schema: The columns in any Arrow types.

    Example:
        >>> given_types(pa.schema([("at", pa.timestamp("s", "UTC")), ("name", pa.large_string())])).types
        [TimestampType(timestamp[us, tz=UTC]), DataType(string)]
    """
    return pa.schema(map(_given_field, schema))


def _given_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _given(field.type), field.nullable)


def _given(type: pa.DataType) -> pa.DataType:
    if kind.is_dictionary(type):
        return _given(type.value_type)
    if kind.is_large_string(type):
        return pa.string()
    if kind.is_large_binary(type) or kind.is_fixed_size_binary(type):
        return pa.binary()
    if kind.is_decimal(type) and type.precision <= _DIGITS:
        return pa.decimal128(type.precision, type.scale)
    if kind.is_timestamp(type):
        return pa.timestamp("us", type.tz and "UTC")
    if kind.is_duration(type):
        return pa.duration("us")
    if kind.is_time64(type):
        return pa.time64("ns")
    if kind.is_list(type) or kind.is_large_list(type) or kind.is_fixed_size_list(type):
        return pa.list_(pa.field("element", _given(type.value_type), type.value_field.nullable))
    if kind.is_map(type):
        keys = pa.field("key", _given(type.key_type), nullable=False)
        return pa.map_(keys, pa.field("value", _given(type.item_type), type.item_field.nullable))
    if kind.is_struct(type):
        return pa.struct(map(_given_field, type))
    return type


_DIGITS = 38
"""The most digits of Spark's decimals."""
