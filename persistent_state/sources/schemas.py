"""Read the schemas that users give, Arrow's own, Spark's and DDL, as Arrow schemas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.formatting import shortened
from persistent_state.sources.casts import plain_schema

AnySchema: TypeAlias = "pa.Schema | str | Any"
"""A pyarrow.Schema, DDL such as "word string, ts timestamp", or a StructType of Spark."""

ONE_NAME_EACH = "give each column, and each field of a struct, a name of its own"

_TYPES = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
}


def arrow_schema(schema: AnySchema) -> pa.Schema:
    """Return the Arrow schema of a schema that a user gives, in plain types. It needs no Spark.

    Raises:
        InvalidInputError: It is not a schema, has an unknown type, or has one name for two columns.
    """
    made = _arrow_schema(schema)
    if (name := name_twice(made)) is not None:
        raise InvalidInputError(f"schema has {name!r} twice; {ONE_NAME_EACH}.")
    return plain_schema(made)


def name_twice(fields: Iterable[pa.Field]) -> str | None:
    """Return the path of a column, or of a field of a struct, that has the name of another beside it; None if none has.

    Example:
        >>> name_twice([pa.field("s", pa.struct([("x", pa.int64()), ("x", pa.string())]))])
        's.x'
    """
    names = set()
    for field in fields:
        inner = name_twice(map(field.type.field, range(field.type.num_fields)))
        if field.name in names or inner is not None:
            return field.name if field.name in names else f"{field.name}.{inner}"
        names.add(field.name)
    return None


def _arrow_schema(schema: AnySchema) -> pa.Schema:
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        try:
            return _Reader(schema).schema()
        except RecursionError:
            raise InvalidInputError(
                f"schema={shortened(schema)!r} has too many types within each other; give a pyarrow.Schema."
            ) from None
    record = schema.jsonValue() if hasattr(schema, "jsonValue") else None
    if not isinstance(record, dict) or record.get("type") != "struct":
        raise InvalidInputError(
            f"schema={schema!r} is not a schema; give a pyarrow.schema, DDL such as 'word string, ts timestamp', or a "
            "StructType of Spark."
        )
    return pa.schema(list(_of_spark(record)))


def _of_spark(record: Any) -> pa.DataType:
    """Return the Arrow type of a type in Spark's JSON."""
    if isinstance(record, str):
        return _Reader(record).only_type()
    if record["type"] == "struct":
        return pa.struct([(field["name"], _of_spark(field["type"])) for field in record["fields"]])
    if record["type"] == "array":
        return pa.list_(_of_spark(record["elementType"]))
    if record["type"] == "map":
        return pa.map_(_of_spark(record["keyType"]), _of_spark(record["valueType"]))
    raise InvalidInputError(f"schema has a column of type={record['type']!r}, which files don't hold; choose another.")


_WORDS = re.compile(r"\s*(?:`((?:[^`]|``)+)`|('(?:[^'\\]|\\.)*')|([\w.]+)|([<>(),:]))")


class _Reader:
    """Reads DDL, word by word."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = list(self._split())
        self._next = 0

    def schema(self) -> pa.Schema:
        fields = self._fields("")
        if self._next < len(self._words):
            raise self._wrong()
        return pa.schema(fields)

    def only_type(self) -> pa.DataType:
        found = self._type()
        if self._next < len(self._words):
            raise self._wrong()
        return found

    def _split(self) -> Iterator[str]:
        at = 0
        text = self._text.rstrip()
        while at < len(text):
            found = _WORDS.match(text, at)
            if found is None:
                raise self._wrong()
            quoted, comment, word, mark = found.groups()
            yield quoted.replace("``", "`") if quoted else comment or word or mark
            at = found.end()

    def _fields(self, end: str) -> list[pa.Field]:
        fields = []
        while True:
            name = self._take()
            self._skip(":")
            fields.append(pa.field(name, self._type()))
            # Whether it may be null and what it means makes no other rows.
            if self._skip("not") and not self._skip("null"):
                raise self._wrong()
            if self._skip("comment"):
                self._take()
            if not self._skip(","):
                return fields

    def _type(self) -> pa.DataType:
        name = self._take().lower()
        if name == "array":
            (of,) = self._within(1)
            return pa.list_(of)
        if name == "map":
            return pa.map_(*self._within(2))
        if name == "struct":
            self._expect("<")
            fields = self._fields(">")
            self._expect(">")
            return pa.struct(fields)
        numbers = []
        if self._skip("("):
            numbers = [self._number()]
            while self._skip(","):
                numbers.append(self._number())
            self._expect(")")
        if name in ("decimal", "dec", "numeric") and 0 < len(numbers) <= 2:
            try:
                return pa.decimal128(*numbers)
            except (ValueError, OverflowError) as error:
                raise InvalidInputError(
                    f"schema={self._text!r} has a {name} with digits that it can't have ({error}); give it 1 to 38 digits."
                ) from None
        if name in ("char", "varchar") and len(numbers) == 1:
            return pa.string()
        if name not in _TYPES or numbers:
            raise InvalidInputError(
                f"schema={self._text!r} has type={name!r}, which is not known; use one of {', '.join(_TYPES)}, array<…>, "
                "map<…> and struct<…>."
            )
        return _TYPES[name]

    def _within(self, count: int) -> list[pa.DataType]:
        self._expect("<")
        types = [self._type()]
        while len(types) < count:
            self._expect(",")
            types.append(self._type())
        self._expect(">")
        return types

    def _number(self) -> int:
        word = self._take()
        if not word.isdecimal() or len(word) > 9:
            raise self._wrong()
        return int(word)

    def _take(self) -> str:
        if self._next == len(self._words):
            raise self._wrong()
        self._next += 1
        return self._words[self._next - 1]

    def _skip(self, word: str) -> bool:
        found = self._next < len(self._words) and self._words[self._next].lower() == word
        self._next += found
        return found

    def _expect(self, word: str) -> None:
        if not self._skip(word):
            raise self._wrong()

    def _wrong(self) -> InvalidInputError:
        return InvalidInputError(
            f"schema={self._text!r} is not DDL; write columns as 'name type', such as 'word string, ts timestamp'."
        )
