"""What the bytes of a record hold: columns, decoded many at once, and each record that can't be decoded apart."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.sources.formats import JSON, Piece, Unfit, bad_records, check_text, json_piece, one_batch, sift
from persistent_state.sources.schemas import arrow_schema

Values: TypeAlias = "Sequence[bytes | None]"


class Decoder(Protocol):
    """Makes columns of keys or values: picklable, and the same of the same bytes."""

    @property
    def schema(self) -> pa.Schema:
        """The columns.

        Raises:
            InvalidInputError: there can be no such columns.
        """

    def decode(self, values: Values) -> Piece:
        """The columns of the records that could be decoded, in their order; the positions of the bad ones count from 0.

        One that is null, such as a tombstone, is a row of nulls.
        """


@dataclass(frozen=True)
class Raw:
    """The bytes as they are, in one column: binary, or a string of UTF-8."""

    name: str = "value"
    type: pa.DataType = field(default_factory=pa.binary)

    @property
    def schema(self) -> pa.Schema:
        if self.type not in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()):
            raise InvalidInputError(f"column={self.name!r} can't hold raw bytes as {self.type}; say binary or string.")
        return pa.schema([(self.name, self.type)])

    def decode(self, values: Values) -> Piece:
        column = pa.array(values, pa.large_binary())

        def read(first: int, end: int) -> pa.RecordBatch:
            try:
                return pa.record_batch([column.slice(first, end - first).cast(self.type)], self.schema)
            except pa.ArrowInvalid:
                raise Unfit("not UTF-8") from None

        return _sifted(values, read, self.schema)


@dataclass(frozen=True)
class Json:
    """One JSON object, whose members are the columns of a schema, which is said as Arrow's, DDL or Spark's.

    What it lacks is null, what else it has is left out.

    Timestamps are ISO 8601, in UTC if they tell no zone, or int64 in microseconds. `skip` bytes stand before it: 5 where a
    schema registry's clients wrote it.
    """

    columns: pa.Schema
    skip: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", arrow_schema(self.columns))

    @property
    def schema(self) -> pa.Schema:
        check_text(JSON, self.columns)
        return self.columns

    def decode(self, values: Values) -> Piece:
        # An object without members is a row of nulls.
        return json_piece([b"{}" if value is None else value[self.skip :] for value in values], self.columns)


@dataclass(frozen=True)
class Avro:
    """One Avro record of the schema `written` (JSON, or the same as Python objects), whose fields are the columns.

    `skip` bytes stand before it: 5 where a schema registry's clients wrote it. Such a registry is not asked: records of
    another schema than `written` are bad, or misread. It takes fastavro, as does the extra kafka.
    """

    written: str | Mapping[str, Any]
    skip: int = 0

    @property
    def schema(self) -> pa.Schema:
        type = _arrow_type(self._parsed(), {})
        if not pa.types.is_struct(type):
            raise InvalidInputError(f"the Avro schema is {type}, and columns are fields of a record; wrap it in one.")
        return pa.schema(list(type))

    def decode(self, values: Values) -> Piece:
        from fastavro import schemaless_reader

        parsed, schema = self._parsed(), self.schema
        bad: dict[int, str] = {}
        rows: list[Any] = []
        for i, value in enumerate(values):
            if value is None:
                rows.append({})
                continue
            data = io.BytesIO(value)
            data.seek(self.skip)
            try:
                row = schemaless_reader(data, parsed, None)
                if data.tell() != len(value):
                    raise ValueError("longer than its schema says")
                rows.append(row)
            # Of bytes that are none of its records fastavro raises whatever it comes upon.
            except Exception:
                bad[i] = "no Avro record of its schema"

        def read(first: int, end: int) -> pa.RecordBatch:
            try:
                return pa.RecordBatch.from_pylist(rows[first:end], schema)
            except (OverflowError, ValueError):
                raise Unfit("a field does not fit its column") from None

        good = [value for i, value in enumerate(values) if i not in bad]
        found = _sifted(good, read, schema)
        if not bad:
            return found
        places = [i for i in range(len(values)) if i not in bad]
        unfit = {places[record.position]: record.reason for record in found.bad}
        return Piece(found.rows, len(values), bad_records({**bad, **unfit}))

    def _parsed(self) -> Any:
        try:
            from fastavro import parse_schema
            from fastavro.schema import SchemaParseException, UnknownType
        except ImportError as error:
            raise InvalidInputError(
                "package='fastavro' is missing for Avro; pip install 'persistent-state[kafka]'."
            ) from error
        try:
            return parse_schema(json.loads(self.written) if isinstance(self.written, str) else dict(self.written))
        except (SchemaParseException, UnknownType, ValueError) as error:
            raise InvalidInputError(f"the Avro schema can't be read: {error}; mend it.") from error


_AVRO = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def _arrow_type(avro: Any, named: dict[str, pa.DataType]) -> pa.DataType:
    """The Arrow type of a parsed Avro schema; `named` are those met before."""
    if isinstance(avro, str):
        if avro in _AVRO or avro in named:
            return _AVRO.get(avro) or named[avro]
    elif isinstance(avro, list):
        options = [option for option in avro if option != "null"]
        if len(options) == 1:
            return _arrow_type(options[0], named)
    elif (logical := avro.get("logicalType")) in _LOGICAL:
        return _LOGICAL[logical]
    elif logical == "decimal":
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    elif logical is None:
        kind = avro["type"]
        if kind == "array":
            return pa.list_(_arrow_type(avro["items"], named))
        if kind in ("record", "enum", "fixed"):
            if kind == "record":
                found = pa.struct([(one["name"], _arrow_type(one["type"], named)) for one in avro["fields"]])
            else:
                found = pa.string() if kind == "enum" else pa.binary(avro["size"])
            named[avro["name"]] = found
            return found
        if kind != "map":
            return _arrow_type(kind, named)
    raise InvalidInputError(f"the Avro type {str(avro)[:100]!r} has no column of its own; read such values raw.")


def _sifted(values: Values, read: Callable[[int, int], pa.RecordBatch], schema: pa.Schema) -> Piece:
    bad: dict[int, str] = {}
    good = sift(len(values), read, bad)
    return Piece(good[0] if len(good) == 1 else one_batch(good, schema), len(values), bad_records(bad))


def side_by_side(pieces: Iterable[Piece]) -> Piece:
    """The columns that several decoders made of the same records; one that any of them could not decode is bad."""
    pieces = list(pieces)
    bad = {record.position: record.reason for piece in reversed(pieces) for record in piece.bad}
    columns: dict[str, pa.Array] = {}
    for piece in pieces:
        rows = piece.rows
        if len(bad) > len(piece.bad):
            own = {record.position for record in piece.bad}
            places = (i for i in range(piece.count) if i not in own)
            rows = rows.take(pa.array([row for row, place in enumerate(places) if place not in bad], pa.int64()))
        columns.update(zip(rows.schema.names, rows.columns, strict=True))
    return Piece(pa.record_batch(columns), pieces[0].count, bad_records(bad))
