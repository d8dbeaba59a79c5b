"""Decoders of Kafka records: they make columns of many keys or values at once, and reject each bad record by itself."""

from __future__ import annotations

import io
import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from persistent_state.errors import InvalidInputError, missing_package
from persistent_state.sources.base import BadRecord
from persistent_state.sources.casts import Unfit, of_column
from persistent_state.sources.formats import JSON, bad_records, check_text, json_piece, one_batch, sift
from persistent_state.sources.schemas import arrow_schema

Values: TypeAlias = "Sequence[bytes | None]"

_NO_RECORD = "no Avro record of its schema"


@dataclass(frozen=True)
class Decoded:
    """The columns that a decoder made of records that follow each other.

    Attributes:
        rows: A row for each good record, in their order, with the decoder's schema.
        bad: The other records. Their positions count all records from 0.
        absent: By column that no record has: words on what the records have instead, which a warning shows.

    Example:
        >>> rows = pa.RecordBatch.from_pylist([{"word": "to"}, {"word": "be"}])
        >>> Decoded(rows, bad=(BadRecord(1, "not UTF-8"),)).bad[0].position
        1
    """

    rows: pa.RecordBatch
    bad: tuple[BadRecord, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)


class Decoder(Protocol):
    """A decoder makes columns of the keys or values of Kafka records.

    A decoder can be pickled, because workers run it. It makes the same columns of the same bytes each time. `Json`, `Avro` and
    `Raw` are decoders. A class of your own needs only these two members, and no base class.

    Example:
        >>> import gzip
        >>> class GzipJson(Json):
        ...     def decode(self, values):
        ...         return super().decode([None if value is None else gzip.decompress(value) for value in values])
        >>> GzipJson("shop STRING").decode([gzip.compress(b'{"shop": "north"}')]).rows.to_pylist()
        [{'shop': 'north'}]
        >>> class Number:
        ...     schema = pa.schema([("n", pa.uint8())])
        ...
        ...     def decode(self, values):
        ...         numbers = [None if value is None else value[0] for value in values if value != b""]
        ...         bad = [BadRecord(i, "empty") for i, value in enumerate(values) if value == b""]
        ...         return Decoded(pa.record_batch([pa.array(numbers, pa.uint8())], schema=self.schema), tuple(bad))
        >>> Number().decode([bytes([5]), b"", None]).rows.to_pylist()
        [{'n': 5}, {'n': None}]
    """

    @property
    def schema(self) -> pa.Schema:
        """Return the names and types of the columns.

        Raises:
            InvalidInputError: The decoder can't make such columns.
        """

    def decode(self, values: Values) -> Decoded:
        """Decode keys or values of consecutive records.

        Args:
            values: The bytes of each record; None, such as a tombstone's value, becomes a row of nulls.

        Returns:
            The rows of the good records, and the bad ones.
        """


@dataclass(frozen=True)
class Raw(Decoder):
    r"""The decoder that keeps the bytes as they are, in one column.

    Args:
        name: The column's name.
        type: The column's type: `pa.binary()`, or `pa.string()` for UTF-8. With text, bytes that are not UTF-8 are a bad row.

    Raises:
        InvalidInputError: By `schema`, if the type is another.

    Example:
        >>> Raw("word", pa.string()).decode([b"a", b"\xff", None]).rows.to_pylist()
        [{'word': 'a'}, {'word': None}]
    """

    name: str = "value"
    type: pa.DataType = field(default_factory=pa.binary)

    @property
    def schema(self) -> pa.Schema:
        if self.type not in (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()):
            raise InvalidInputError(f"column={self.name!r} can't hold raw bytes as {self.type}; say binary or string.")
        return pa.schema([(self.name, self.type)])

    def decode(self, values: Values) -> Decoded:
        column = pa.array(values, pa.large_binary())

        def read(first: int, end: int) -> pa.RecordBatch:
            try:
                return pa.record_batch([column.slice(first, end - first).cast(self.type)], self.schema)
            except pa.ArrowInvalid:
                raise Unfit(of_column(self.name, "is not UTF-8")) from None

        return _sifted(values, read, self.schema)


@dataclass(frozen=True)
class Json(Decoder):
    """The decoder of records that are JSON objects: each member of an object is a column.

    A member that is missing is null, and a member that is no column is left out. Timestamps are ISO 8601, in UTC if they have
    no zone, or int64 in microseconds.

    Args:
        columns: The schema: Arrow's, DDL text, or Spark's `StructType`.
        skip: How many bytes stand before the object: 5 if a schema registry's client wrote it.

    Raises:
        InvalidInputError: The schema can't be read.

    Example:
        >>> orders = Json("shop STRING, cents BIGINT")
        >>> orders.decode([b'{"shop": "north", "cents": 5}', None]).rows.to_pylist()
        [{'shop': 'north', 'cents': 5}, {'shop': None, 'cents': None}]
        >>> orders.decode([b'{"shop": ']).bad
        (BadRecord(position=0, reason='not a JSON object'),)
    """

    columns: pa.Schema
    skip: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", arrow_schema(self.columns))

    @property
    def schema(self) -> pa.Schema:
        check_text(JSON, self.columns)
        return self.columns

    def decode(self, values: Values) -> Decoded:
        # The decoder makes a row of nulls of an object without members.
        piece = json_piece([b"{}" if value is None else value[self.skip :] for value in values], self.columns)
        return Decoded(piece.rows, piece.bad, piece.instead)


@dataclass(frozen=True)
class Avro(Decoder):
    """The decoder of Avro records: each field of the record is a column.

    The decoder asks no schema registry, and passes over the number that stands before a record. Records that were written by
    another schema are bad rows, or are misread: two fields of one type may have changed places. The decoder needs the package
    fastavro, which the extra `kafka` installs.

    Args:
        written: The schema by which the records were written: JSON text, or the same as Python objects.
        skip: How many bytes stand before the record: 5 if a schema registry's client wrote it.

    Raises:
        InvalidInputError: By `schema` and `decode`, if the schema is wrong, or fastavro is missing.

    Example:
        >>> order = {"type": "record", "name": "Order", "fields": [{"name": "cents", "type": "long"}]}
        >>> Avro(order).schema.names
        ['cents']
        >>> Avro(order).decode([bytes([10])]).rows.to_pylist()
        [{'cents': 5}]
    """

    written: str | Mapping[str, Any]
    skip: int = 0

    @property
    def schema(self) -> pa.Schema:
        type = _arrow_type(self._parsed(), {})
        if not pa.types.is_struct(type):
            raise InvalidInputError(f"the Avro schema is {type}, and columns are fields of a record; wrap it in one.")
        return pa.schema(list(type))

    def decode(self, values: Values) -> Decoded:
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
            # fastavro raises errors of many classes for bytes that are not a record of the schema.
            except Exception:
                bad[i] = _unread(value[self.skip :], parsed)
                continue
            if data.tell() != len(value):
                bad[i] = f"{_NO_RECORD}: bytes follow its last column"
            else:
                rows.append(row)

        def read(first: int, end: int) -> pa.RecordBatch:
            try:
                return pa.RecordBatch.from_pylist(rows[first:end], schema)
            except (OverflowError, ValueError):
                raise Unfit(_misfit(rows[first], schema)) from None

        good = [value for i, value in enumerate(values) if i not in bad]
        decoded = _sifted(good, read, schema)
        if not bad:
            return decoded
        places = [i for i in range(len(values)) if i not in bad]
        unfit = {places[record.position]: record.reason for record in decoded.bad}
        return Decoded(decoded.rows, bad_records({**bad, **unfit}))

    def _parsed(self) -> Any:
        try:
            from fastavro import parse_schema
        except ImportError as error:
            raise missing_package("fastavro", "Avro", "kafka") from error
        try:
            return parse_schema(json.loads(self.written) if isinstance(self.written, str) else dict(self.written))
        # fastavro raises errors of many classes for what is not a schema.
        except Exception as error:
            raise InvalidInputError(f"the Avro schema can't be read: {error}; correct it.") from error


def _unread(value: bytes, parsed: Any) -> str:
    """Return why bytes can't be read as a record, with the first field that can't."""
    from fastavro import schemaless_reader

    if not isinstance(parsed, Mapping):
        # A union of which a record is the only type.
        return _NO_RECORD
    fields = parsed["fields"]

    def fails(count: int) -> bool:
        try:
            schemaless_reader(io.BytesIO(value), {**parsed, "fields": fields[:count]}, None)
        except Exception:
            return True
        return False

    column = fields[bisect_left(range(len(fields)), True, key=fails) - 1]["name"]
    return f"{_NO_RECORD}: column {column} can't be read"


def _misfit(row: Mapping[str, Any], schema: pa.Schema) -> str:
    """Return why a record is bad that has a value which does not fit its column."""
    for column in schema:
        try:
            pa.array([row.get(column.name)], column.type)
        except (OverflowError, ValueError):
            return of_column(column.name, f"is not {column.type}")
    return _NO_RECORD


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


def _arrow_type(avro: Any, defined: dict[str, pa.DataType]) -> pa.DataType:
    """Return the Arrow type of a parsed Avro schema. `defined` holds the types that were defined before, by name."""
    if isinstance(avro, str):
        if avro in _AVRO or avro in defined:
            return _AVRO.get(avro) or defined[avro]
    elif isinstance(avro, list):
        options = [option for option in avro if option != "null"]
        if len(options) == 1:
            return _arrow_type(options[0], defined)
    elif (logical := avro.get("logicalType")) in _LOGICAL:
        return _LOGICAL[logical]
    elif logical == "decimal":
        with suppress(ValueError, TypeError, OverflowError):
            return pa.decimal128(avro["precision"], avro.get("scale", 0))
    elif logical is None:
        kind = avro["type"]
        if kind == "array":
            return pa.list_(_arrow_type(avro["items"], defined))
        if kind in ("record", "enum", "fixed"):
            if kind == "record":
                type = pa.struct([(one["name"], _arrow_type(one["type"], defined)) for one in avro["fields"]])
            else:
                type = pa.string() if kind == "enum" else pa.binary(avro["size"])
            defined[avro["name"]] = type
            return type
        if kind != "map":
            return _arrow_type(kind, defined)
    raise InvalidInputError(f"the Avro type {str(avro)[:100]!r} has no column of its own; read such values raw.")


def _sifted(values: Values, read: Callable[[int, int], pa.RecordBatch], schema: pa.Schema) -> Decoded:
    bad: dict[int, str] = {}
    good = sift(len(values), read, bad)
    return Decoded(one_batch(good, schema), bad_records(bad))


def side_by_side(every: Sequence[Decoded]) -> Decoded:
    """Join the columns that several decoders made of the same records. A record that any of them rejects is bad."""
    bad = {record.position: record.reason for one in reversed(every) for record in one.bad}
    columns: dict[str, pa.Array] = {}
    for one in every:
        rows = one.rows
        if len(bad) > len(one.bad):
            own = {record.position for record in one.bad}
            places = (i for i in range(rows.num_rows + len(own)) if i not in own)
            rows = rows.take(pa.array([row for row, place in enumerate(places) if place not in bad], pa.int64()))
        columns.update(zip(rows.schema.names, rows.columns, strict=True))
    return Decoded(pa.record_batch(columns), bad_records(bad))
