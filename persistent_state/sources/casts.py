"""Casts of columns: one table says which type is read as which, at all levels, and no value changes without a word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal, DecimalException
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from monoids.scalars import exact_decimal


class Unfit(pa.ArrowInvalid):  # type: ignore[misc]
    """A record can't be decoded. Equal reasons have equal words, because they are counted.

    `value` is a text of the value that does not fit, where one is known.
    """

    def __init__(self, reason: str, value: str | None = None) -> None:
        super().__init__(reason)
        self.value = value


_COLUMN = "column "


def of_column(name: str, fault: str) -> str:
    """Return the reason of a bad record in which a column is at fault."""
    return f"{_COLUMN}{name} {fault}"


def is_of_column(reason: str) -> bool:
    """Return whether a record is bad because a column in it is at fault, by its reason."""
    return reason.startswith(_COLUMN)


_KINDS = {
    "boolean": pa.types.is_boolean,
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "text": lambda type: pa.types.is_string(type) or pa.types.is_large_string(type),
    "binary": lambda type: pa.types.is_binary(type) or pa.types.is_large_binary(type),
    "fixed binary": pa.types.is_fixed_size_binary,
    "date": pa.types.is_date,
    "time": pa.types.is_time,
    "timestamp": pa.types.is_timestamp,
    "duration": pa.types.is_duration,
}

_ALLOWED = {
    "boolean": {"boolean", "integer", "float", "decimal", "text"},
    "integer": {"boolean", "integer", "float", "decimal", "text"},
    "float": {"boolean", "integer", "float", "decimal", "text"},
    "decimal": {"boolean", "integer", "float", "decimal", "text"},
    "text": {*_KINDS} - {"duration"},
    "binary": {"binary", "fixed binary", "text"},
    "fixed binary": {"binary", "fixed binary"},
    "date": {"date", "timestamp", "text"},
    "time": {"time", "text"},
    "timestamp": {"timestamp", "date", "text"},
    "duration": {"duration"},
}
"""By the kind of type that a file has: the kinds that its values are read as, where a value stays what it is.

A number is no time, nor a time a number, since neither says the unit. Bytes of a fixed number are no text.
"""

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType, pa.MapType)

_DIGITS = {32: 9, 64: 18, 128: 38, 256: 76}
"""The most digits of decimals, by the bits of their type. To such differences of digits after the point pyarrow's tables go."""

_YEARS = (-719_162, 2_932_897)
"""The days since 1970 of the first day of the year 1, and of the first one of the year 10000."""

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_ZONE = r":\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
_HABITS = (
    # JavaScript's and PostgreSQL's words for UTC, and the comma that ISO 8601 prefers.
    (r"(:\d\d(?:[.,]\d+)?)(?: ?UTC|z)$", r"\1Z"),
    (r"(:\d\d),(\d)", r"\1.\2"),
)
_DAY = (
    r"^[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|[12][0-9]))"
)
_LOOKS = {
    "boolean": r"(?i)^(?:true|false|0|1)$",
    "integer": r"^-?[0-9]+$",
    "float": r"(?i)^(?:[-+.0-9e]+|[-+]?(?:inf|nan).*)$",
    "decimal": r"^[-+.0-9eE]+$",
    "date": rf"{_DAY}$",
    "timestamp": rf"{_DAY}(?:[ T](?:[01][0-9]|2[0-3])[-+:.,0-9]* ?(?:UTC|[Zz])?)?$",
}
"""By the kind of a type: how each of its texts looks, and others may."""


def cast(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    """Return a column as another type.

    Times that are finer than the type are cut. A number that is a text, or a decimal for a float, becomes the nearest float.
    Every other value stays what it is.

    Raises:
        ArrowInvalid: A value does not fit.
        ArrowNotImplementedError: The types never fit.
    """
    given = column.type
    if given.equals(type):
        return column
    if isinstance(given, pa.BaseExtensionType):
        return cast(column.storage, type)
    if isinstance(type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type, cast(column, type.storage_type))
    if pa.types.is_dictionary(type):
        return cast(column, type.value_type).cast(type)
    if pa.types.is_dictionary(given):
        # pyarrow can't take out of a dictionary of views.
        return cast(plain_column(column.dictionary).take(column.indices), type)
    if isinstance(given, pa.RunEndEncodedType):
        return cast(pc.run_end_decode(column), type)
    if pa.types.is_null(given):
        return pa.nulls(len(column), type)
    if pa.types.is_string_view(given) or pa.types.is_binary_view(given):
        return cast(column.cast(plain_type(given)), type)
    if pa.types.is_struct(given) and pa.types.is_struct(type):
        return _struct(column, type)
    if is_list(given) and is_list(type):
        return _list(column, type)
    if _kind(type) not in _ALLOWED.get(_kind(given), ()):
        raise pa.ArrowNotImplementedError(f"{given} is not read as {type}")
    return _value(column, type)


def hopeless(column: pa.Array[Any], type: pa.DataType) -> pa.BooleanArray | None:
    """Return which texts of a column can't be of this type by their look; None if that is not known.

    It is quick where many values do not fit, and `cast` would have to be asked for each.
    """
    look = _LOOKS.get(_kind(type))
    if look is None or _kind(column.type) != "text":
        return None
    return pc.invert(pc.match_substring_regex(pc.utf8_trim_whitespace(column.cast(pa.string())), look)).fill_null(False)


def plain_type(type: pa.DataType) -> pa.DataType:
    """Return a type without views, run ends, dictionaries and required fields, at all levels.

    pyarrow can't pick values out of views and run ends, nor write two dictionaries of a column into one file. The numbers of a
    dictionary may be too few for that of another file. A field that one file requires may be null in another.
    """
    if pa.types.is_string_view(type):
        return pa.string()
    if pa.types.is_binary_view(type):
        return pa.binary()
    if isinstance(type, pa.RunEndEncodedType):
        return plain_type(type.value_type)
    if pa.types.is_dictionary(type):
        return plain_type(type.value_type)
    if pa.types.is_struct(type):
        return pa.struct([_plain_field(field) for field in type])
    if pa.types.is_map(type):
        key = type.key_field.with_type(plain_type(type.key_type))
        return pa.map_(key, _plain_field(type.item_field), type.keys_sorted)
    if pa.types.is_fixed_size_list(type):
        return pa.list_(_plain_field(type.value_field), type.list_size)
    if pa.types.is_large_list(type) or pa.types.is_large_list_view(type):
        return pa.large_list(_plain_field(type.value_field))
    return pa.list_(_plain_field(type.value_field)) if is_list(type) else type


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema of plain types, of which any column may be null: see `plain_type`."""
    return pa.schema([_plain_field(field) for field in schema], schema.metadata)


def plain_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of plain types: see `plain_type`."""
    schema = plain_schema(rows.schema)
    if schema.equals(rows.schema):
        return rows
    return pa.RecordBatch.from_arrays([plain_column(column) for column in rows.columns], schema=schema)


def plain_column(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return a column of a plain type: see `plain_type`."""
    return cast(column, plain_type(column.type))


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type)).with_nullable(True)


def leaves(types: Iterable[pa.DataType]) -> Iterator[pa.DataType]:
    """Yield the types that are not nested, of types and within them."""
    return (type for type in all_types(types) if not pa.types.is_nested(type))


def all_types(types: Iterable[pa.DataType]) -> Iterator[pa.DataType]:
    """Yield types, and those within them."""
    for type in types:
        yield type
        if pa.types.is_dictionary(type):
            yield from all_types([type.value_type])
        elif pa.types.is_nested(type):
            yield from all_types(type.field(i).type for i in range(type.num_fields))


def is_list(type: pa.DataType) -> bool:
    """Return whether a type is a list of any kind, or a map."""
    return isinstance(type, _LISTS)


def _kind(type: pa.DataType) -> str:
    return next((kind for kind, is_kind in _KINDS.items() if is_kind(type)), "")


def _struct(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    """Return structs with these fields. A field that is missing is null."""
    is_null = column.is_null() if column.null_count else None
    # What lies under a null is nothing that anybody wrote.
    children = column.flatten()
    fields = []
    for field in type:
        places = column.type.get_all_field_indices(field.name)
        if len(places) > 1:
            raise pa.ArrowNotImplementedError(f"{field.name} stands twice in {column.type}")
        fields.append(cast(children[places[0]], field.type) if places else pa.nulls(len(column), field.type))
    if not fields:
        return pa.array([{}] * len(column), type, mask=None if is_null is None else is_null.to_numpy(False))
    return pa.StructArray.from_arrays(fields, fields=list(type), mask=is_null)


def _list(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    """Return lists or maps of any kind as lists or maps of another kind."""
    is_null = column.is_null() if column.null_count else None
    if pa.types.is_map(column.type):
        key, item = column.type.key_type, column.type.item_type
        column = column.cast(pa.list_(pa.struct([pa.field("key", key, False), pa.field("value", item)])))
    lengths = pc.list_value_length(column).fill_null(0)
    ends = np.concatenate([[0], np.cumsum(lengths.to_numpy(False))])
    if pa.types.is_map(type):
        entry = pa.struct([pa.field("key", type.key_type, False), pa.field("value", type.item_type)])
        entries = cast(column.flatten(), entry)
        offsets = pa.array(ends, pa.int32())
        return pa.MapArray.from_arrays(offsets, *entries.flatten(), type=type, mask=is_null)
    values = cast(column.flatten(), type.value_type)
    if pa.types.is_large_list(type):
        return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values, type=type, mask=is_null)
    lists = pa.list_(type.value_field)
    made = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=lists, mask=is_null)
    return made if type.equals(lists) else made.cast(type)


def _value(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    given, kind = _kind(column.type), _kind(type)
    if pa.types.is_float16(column.type):
        # pyarrow can't compute with such. Each of them is a double, too.
        return _value(column.cast(pa.float64()), type)
    if given == "text":
        return _of_text(column.cast(pa.string()), type)
    if pa.types.is_float16(type) and given != "decimal":
        numbers = cast(column, pa.float64())
        made = numbers.cast(type)
        # pyarrow rounds, and makes 65504 of what is larger.
        _check_same(made.cast(pa.float64()), numbers)
        return made
    if {given, kind} == {"boolean", "decimal"}:
        return cast(cast(column, pa.int64()), type)
    if given == "float" and kind == "decimal":
        return _of_text(_float_texts(column), type)
    if given == "decimal" and kind == "float":
        # What pyarrow makes of the decimal itself need not be the nearest float.
        return _of_text(column.cast(pa.string()), type)
    if kind == "text" and given in ("date", "time", "timestamp"):
        _check_years(column)
    if kind == given == "timestamp" or kind == given == "time":
        return _cut(column, type)
    if given == "timestamp" and kind == "date":
        column = column.cast(pa.timestamp(column.type.unit))
    if given == "integer" and kind == "decimal":
        # pyarrow goes by the digits that the type may have, and refuses numbers that fit.
        given, column = kind, column.cast(pa.decimal128(20, 0))
    if given == kind == "decimal":
        if abs(column.type.scale - type.scale) > _DIGITS[max(column.type.bit_width, type.bit_width)]:
            raise pa.ArrowNotImplementedError(f"decimals of {type} are not read of {column.type}")
        if column.type.bit_width < 256:
            # With more digits after the point a decimal may need more bits, and pyarrow does not notice.
            column = column.cast(pa.decimal256(76, column.type.scale))
    made = column.cast(type)
    if kind == "boolean" or (given, kind) in (("timestamp", "date"), ("float", "float")):
        # What pyarrow takes for safe here may be another value.
        _check_same(made.cast(column.type), column)
    return made


def _float_texts(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return floats as the decimals that they stand for: the shortest ones, as pyarrow would round to another decimal."""
    texts = column.cast(pa.string())
    is_whole = pc.and_(
        pc.is_finite(column), pc.greater_equal(pc.abs(column), 2.0 ** (24 if column.type.bit_width == 32 else 53))
    )
    if not pc.any(is_whole).as_py():
        return texts
    # Of these the shortest text is another whole number.
    whole = [None if value is None else str(int(value)) for value in pc.if_else(is_whole, column, None).to_pylist()]
    return pc.coalesce(pa.array(whole, pa.string()), texts)


def _check_same(made: pa.Array[Any], given: pa.Array[Any]) -> None:
    same = pc.equal(made, given)
    if pa.types.is_floating(given.type):
        same = pc.or_(same, pc.and_(pc.is_nan(made), pc.is_nan(given)))
    if not pc.all(same, min_count=0).as_py():
        raise Unfit("a value would change")


def _check_years(column: pa.Array[Any]) -> None:
    """Refuse times that have no text: those outside the years 1 to 9999, and of more than a day.

    pyarrow makes words of them, or another time.
    """
    type = column.type
    ticks = pc.min_max(column.cast(pa.int32() if type.bit_width == 32 else pa.int64()))
    if ticks["min"].is_valid:
        per_day = 1 if type == pa.date32() else 86_400 * _PER_SECOND["ms" if pa.types.is_date(type) else type.unit]
        first, end = (0, 1) if pa.types.is_time(type) else _YEARS
        if ticks["min"].as_py() < first * per_day or ticks["max"].as_py() >= end * per_day:
            raise Unfit("a time that has no text")


def _cut(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    """Return times in another unit. Those that are finer are cut, so that each is at or before what it was."""
    factor = _PER_SECOND[column.type.unit] // _PER_SECOND[type.unit]
    if factor <= 1:
        return column.cast(type)
    ticks = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64()).cast(pa.int64())
    values: NDArray[np.int64] = ticks.fill_null(0).to_numpy() // factor
    mask = column.is_null().to_numpy(False) if column.null_count else None
    return pa.array(values, mask=mask).cast(pa.int32() if type.bit_width == 32 else pa.int64()).cast(type)


def _of_text(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_string(type):
        return column
    try:
        return _parsed(column, type)
    except pa.ArrowInvalid:
        trimmed = pc.utf8_trim_whitespace(column)
        if trimmed.equals(column):
            raise
        return _parsed(trimmed, type)


def _parsed(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_decimal(type):
        return _decimals(column, type)
    if pa.types.is_timestamp(type):
        return _timestamps(column, type)
    if pa.types.is_time(type):
        if pc.any(pc.match_substring_regex(column, "[^0-9:.,]")).as_py():
            raise Unfit("not a time of day")
        return _timestamps(pc.binary_join_element_wise("1970-01-01T", column, ""), pa.timestamp(type.unit)).cast(type)
    made = column.cast(type)
    if pa.types.is_integer(type) and _has_x(column):
        raise Unfit("a hexadecimal number")
    if pa.types.is_floating(type):
        huge = pc.is_inf(made)
        if (
            pc.any(huge).as_py()
            and not pc.all(pc.match_substring(column.filter(huge), "inf", ignore_case=True)).as_py()
        ):
            raise Unfit("a number that is too large")
    return made


def _has_x(column: pa.Array[Any]) -> bool:
    """Return whether a text has an x, as hexadecimal numbers do."""
    offsets, data = column.buffers()[1:]
    if not data or not len(column):
        return False
    first, end = np.frombuffer(offsets, np.int32)[[column.offset, column.offset + len(column)]]
    text = data.slice(int(first), int(end - first)).to_pybytes()
    # What lies under a null is in it, too.
    return (b"x" in text or b"X" in text) and bool(pc.any(pc.match_substring(column, "x", ignore_case=True)).as_py())


def _timestamps(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    try:
        return _iso(column, type)
    except pa.ArrowInvalid:
        for pattern, instead in _HABITS:
            column = pc.replace_substring_regex(column, pattern, instead)
        digits = len(str(_PER_SECOND[type.unit])) - 1
        kept = rf"(:\d\d\.\d{{{digits}}})" if digits else r"(:\d\d)\."
        finer = rf"{kept}\d{{1,{9 - digits}}}(\D|$)" if digits < 9 else None
        return _iso(pc.replace_substring_regex(column, finer, r"\1\2") if finer else column, type)


def _iso(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    local, utc = pa.timestamp(type.unit), pa.timestamp(type.unit, "UTC")
    try:
        return column.cast(utc).cast(type)
    except pa.ArrowInvalid:
        has_zone = pc.match_substring_regex(column, _ZONE)
        naive, zoned = pc.if_else(has_zone, None, column), pc.if_else(has_zone, column, None)
        return pc.coalesce(zoned.cast(utc), naive.cast(local).cast(utc)).cast(type)


def _decimals(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    """Return texts as decimals. Python reads those whose digits after the point pyarrow might not know: see `exact_decimal`."""
    is_odd = pc.or_(pc.match_substring_regex(column, "[eE]"), pc.greater(pc.binary_length(column), most_digits(type)))
    if not pc.any(is_odd).as_py():
        return column.cast(type)
    odd = [None if text is None else _decimal(text, type) for text in pc.if_else(is_odd, column, None).to_pylist()]
    return pc.coalesce(pc.if_else(is_odd, None, column).cast(type), pa.array(odd, type))


def most_digits(type: pa.DataType) -> int:
    """Return the most characters of a text without an exponent that pyarrow reads right as a decimal of this type.

    The text's number times a power of ten stays within the bits of the type: pyarrow does not notice if it does not.
    """
    return max(0, _DIGITS[int(type.bit_width)] - abs(int(type.scale)))


def _decimal(text: str, type: pa.DataType) -> Decimal:
    if not _DECIMAL.fullmatch(text):
        raise Unfit(f"not {type}")
    try:
        return exact_decimal(type)(Decimal(text))
    except DecimalException:
        raise Unfit(f"not {type}") from None


def is_known(text: str, type: pa.DataType) -> bool:
    """Return whether pyarrow knows a text as a decimal of this type. A text that is no decimal is refused by pyarrow."""
    if not _DECIMAL.fullmatch(text):
        return True
    try:
        _decimal(text, type)
    except Unfit:
        return False
    _, digits, exponent = Decimal(text).as_tuple()
    most = _DIGITS[int(type.bit_width)]
    return len(digits) <= most and int(exponent) >= -most
