"""What Parquet, CSV and JSON lines files hold: record batches of one schema, each record that can't be one apart."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from numpy.typing import NDArray

from persistent_state.errors import InvalidInput
from persistent_state.sources.base import BadRecord

Transform: TypeAlias = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table"]
Codec: TypeAlias = Literal["gzip", "bz2", "zstd"]
Parser: TypeAlias = Callable[[bytes, NDArray[np.int64], NDArray[np.int64]], tuple[pa.Table, list[int]]]

PARQUET, CSV, JSON = "parquet", "csv", "json"
FORMATS = (PARQUET, CSV, JSON)
UNDECODABLE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OSError)
"""What pyarrow raises for content that is not what it should be."""

NO_FORMAT = "its ending tells no format"

_PIECE_ROWS = 1 << 18
_PIECE_BYTES = 1 << 26
_BLOCK_BYTES = 1 << 24
RECORD_LENGTH = 10_000
_ZONE = r":\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"


@dataclass(frozen=True)
class Piece:
    """`count` records that follow each other: the good ones as rows, the bad ones with their places among all."""

    rows: pa.RecordBatch
    count: int
    bad: tuple[BadRecord, ...] = ()


def read_pieces(file: io.RawIOBase, format: str | None, codec: Codec | None, schema: pa.Schema) -> Iterator[Piece]:
    """The records of a file in pieces of bounded size, always the same.

    All that can't be read any more is one bad record. What `file` itself raises goes to the caller, unless it is one of
    UNDECODABLE.
    """
    stored = pa.PythonFile(file, mode="r")
    try:
        if format == PARQUET:
            yield from _parquet_pieces(stored, schema)
        elif format is None:
            raise pa.ArrowInvalid(NO_FORMAT)
        else:
            text = pa.CompressedInputStream(stored, codec) if codec else stored
            yield from _text_pieces(_line_blocks(text), format, schema)
    except UNDECODABLE as error:
        yield Piece(one_batch([], schema), 1, (BadRecord(0, f"unreadable file: {_reason(error)}", ""),))


def check_text(format: str, schema: pa.Schema) -> None:
    """Refuse a schema that a text format can't hold.

    Raises:
        InvalidInput: it has a column of such a type.
    """
    try:
        if format == CSV:
            _fit(one_batch([], pa.schema([(name, pa.string()) for name in schema.names])), schema)
        else:
            list(_text_pieces([b"{}\n"], format, schema))
    except pa.ArrowNotImplementedError as error:
        raise InvalidInput(
            f"the schema does not fit {format} files: {error}; read another type, and transform it."
        ) from error


def one_batch(parts: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of all parts as one."""
    batches = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def transformed(transform: Transform | None, rows: pa.RecordBatch) -> pa.RecordBatch:
    """What a source's function makes of its rows, as one batch."""
    made = rows if transform is None else transform(rows)
    return one_batch(made.to_batches(), made.schema) if isinstance(made, pa.Table) else made


def _fit(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """These rows in this schema, or ArrowInvalid if one does not fit. A missing column is null."""
    columns = []
    for field in schema:
        found = rows.schema.get_field_index(field.name)
        try:
            columns.append(_cast(rows.column(found), field.type) if found >= 0 else pa.nulls(rows.num_rows, field.type))
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"column {field.name} is not {field.type}") from error
    fitted = pa.RecordBatch.from_arrays(columns, schema=schema)
    # Parquet does not promise that text is UTF-8; what is not would fail much later, in the user's code.
    fitted.validate(full=True)
    return fitted


def _cast(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    """As another type, without loss."""
    if column.type.equals(type):
        return column
    if not pa.types.is_string(column.type):
        return column.cast(type)
    try:
        return _parse(column, type)
    except pa.ArrowInvalid:
        return _parse(pc.utf8_trim_whitespace(column), type)


def _parse(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    if not pa.types.is_timestamp(type):
        return column.cast(type)
    local, utc = pa.timestamp(type.unit), pa.timestamp(type.unit, "UTC")
    try:
        return column.cast(utc).cast(type)
    except pa.ArrowInvalid:
        has_zone = pc.match_substring_regex(column, _ZONE)
        naive, zoned = pc.if_else(has_zone, None, column), pc.if_else(has_zone, column, None)
        return pc.coalesce(zoned.cast(utc), naive.cast(local).cast(utc)).cast(type)


def sift(count: int, decode: Callable[[int, int], pa.RecordBatch], bad: dict[int, str]) -> list[pa.RecordBatch]:
    """What `decode` makes of records, from place to place. Where it can't, halves are tried, down to one bad record."""
    good = []
    parts = [(0, count)] if count else []
    while parts:
        first, end = parts.pop()
        try:
            good.append(decode(first, end))
        except pa.ArrowInvalid as error:
            if end - first == 1:
                bad[first] = _reason(error)
            else:
                middle = (first + end) // 2
                parts += [(middle, end), (first, middle)]
    return good


def _piece(
    raw: pa.RecordBatch, schema: pa.Schema, bad: dict[int, str], count: int, record: Callable[[int], str]
) -> Piece:
    """Records that were read as `raw`, but for some `bad` ones, in this schema."""
    unfit: dict[int, str] = {}
    good = sift(raw.num_rows, lambda first, end: _fit(raw.slice(first, end - first), schema), unfit)
    if unfit:
        places = np.delete(np.arange(count), list(bad)).tolist()
        bad = {**bad, **{places[row]: reason for row, reason in unfit.items()}}
    records = (BadRecord(i, bad[i], record(i)[:RECORD_LENGTH]) for i in sorted(bad))
    return Piece(good[0] if len(good) == 1 else one_batch(good, schema), count, tuple(records))


def _reason(error: Exception) -> str:
    """What is wrong, without the value: reasons are counted."""
    text = re.split(r": invalid value|, couldn't parse", str(error))[0]
    return re.sub(r"'[^']*'|Row #\d+: | in row \d+", "", text)[:200]


def _check_once(names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise pa.ArrowInvalid("a column stands twice in it")


def _parquet_pieces(file: pa.NativeFile, schema: pa.Schema) -> Iterator[Piece]:
    parquet = pq.ParquetFile(file)
    fields = [field for field in parquet.schema_arrow if field.name in schema.names]
    names = [field.name for field in fields]
    _check_once(names)
    # A type that can never be cast is the fault of the file, not of each of its rows.
    _fit(one_batch([], pa.schema(fields)), schema)
    meta = parquet.metadata
    total_bytes = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
    piece_rows = max(1, min(_PIECE_ROWS, _PIECE_BYTES * meta.num_rows // max(1, total_bytes)))
    for batch in parquet.iter_batches(piece_rows, columns=names):
        yield _piece(batch, schema, {}, batch.num_rows, partial(_parquet_record, batch))


def _parquet_record(batch: pa.RecordBatch, i: int) -> str:
    try:
        return str(batch.slice(i, 1).to_pylist()[0])
    except (ValueError, OverflowError):
        return ""  # Text that is not UTF-8, a time that Python can't tell.


def _line_blocks(file: pa.NativeFile) -> Iterator[bytes]:
    """A text in blocks of whole lines, each with its end."""
    rest, mark = b"", codecs.BOM_UTF8
    while data := file.read(_BLOCK_BYTES):
        data, mark = data.removeprefix(mark), b""
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = b""
        rest += data[end:]
    if rest:
        yield rest + b"\n"


def _text_pieces(blocks: Iterable[bytes], format: str, schema: pa.Schema) -> Iterator[Piece]:
    parse = _json_parser(schema) if format == JSON else None
    for block in blocks:
        if parse is None:
            header, _, block = block.lstrip(b"\r\n").partition(b"\n")
            if not header:
                continue
            parse = _csv_parser(header, schema)
        yield _text_piece(block, schema, parse)


def _text_piece(block: bytes, schema: pa.Schema, parse: Parser) -> Piece:
    codes = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(codes == ord("\n")) + 1
    starts = np.concatenate([[0], ends])[:-1]
    # Empty lines are no records.
    lengths = ends - starts - (codes[np.maximum(ends - 2, starts)] == ord("\r"))
    return _parsed_piece(block, starts[lengths > 1], ends[lengths > 1], schema, parse)


def json_piece(values: Sequence[bytes], schema: pa.Schema) -> Piece:
    """The records of JSON objects, one in each of these values."""
    lines = b"\n".join(values) + b"\n"
    if lines.count(b"\n") > len(values) or lines.startswith(b"{") + lines.count(b"\n{") < len(values):
        # Between the parts of an object a line end is a space, and within a text there can't be one.
        values = [value.replace(b"\n", b" ").strip() for value in values]
        lines = b"\n".join(values) + b"\n"
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) + 1)
    return _parsed_piece(lines, np.concatenate([[0], ends])[:-1], ends, schema, _json_parser(schema))


def _parsed_piece(
    block: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], schema: pa.Schema, parse: Parser
) -> Piece:
    """The records of lines that begin and end at these places."""
    bad: dict[int, str] = {}

    def decode(first: int, end: int) -> pa.RecordBatch:
        offset = starts[first]
        text = block[offset : ends[end - 1]]
        try:
            text.decode()
        except UnicodeDecodeError:
            raise pa.ArrowInvalid("not UTF-8") from None
        table, odd = parse(text, starts[first:end] - offset, ends[first:end] - offset)
        # As many as there are lines is one of each: no CSV line makes two rows, no JSON line less than one.
        if len(table) + len(odd) != end - first:
            raise pa.ArrowInvalid("not one record in one line")
        bad.update({first + i: "not as many fields as in the header" for i in odd})
        return one_batch(table.to_batches(), table.schema)

    def record(i: int) -> str:
        return block[starts[i] : ends[i]].decode(errors="backslashreplace").rstrip("\r\n")

    good = sift(len(starts), decode, bad)
    raw = one_batch(good, good[0].schema if good else schema)
    return _piece(raw, schema, bad, len(starts), record)


def _csv_parser(header: bytes, schema: pa.Schema) -> Parser:
    """How to parse the lines under a header."""
    names = pa_csv.read_csv(io.BytesIO(header + b"\n")).column_names
    wanted = [name for name in names if name in schema.names]
    _check_once(wanted)
    # All as text: it is parsed later, as fast, and by values instead of lines where some are bad.
    convert = pa_csv.ConvertOptions(
        column_types={name: pa.string() for name in wanted},
        include_columns=wanted or names[:1],
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    # With one field too many it is met as a line of its own, unless a quote before it was not closed.
    sentinel = b"," * len(names) + b"\n"

    def parse(text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[pa.Table, list[int]]:
        # Elsewhere a carriage return ends a line too, so that one line might make two rows.
        if b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
            raise pa.ArrowInvalid("a carriage return within a line")
        odd: list[int] = []

        def skip(row: pa_csv.InvalidRow) -> Literal["skip"]:
            odd.append((row.number or 0) - 1)
            return "skip"

        text += sentinel
        source: Any = pa.BufferReader(text)
        read = pa_csv.ReadOptions(column_names=names, block_size=len(text), use_threads=False)
        rules = pa_csv.ParseOptions(invalid_row_handler=skip)
        table = pa_csv.read_csv(source, read_options=read, parse_options=rules, convert_options=convert)
        if not odd:
            raise pa.ArrowInvalid("a quote is not closed")
        return table, odd[:-1]

    return parse


def _json_parser(schema: pa.Schema) -> Parser:
    """How to parse lines of one object each."""
    # Dates would be numbers; timestamps as text are parsed by values instead of lines where some are bad.
    is_text = [pa.types.is_date(field.type) or pa.types.is_timestamp(field.type) for field in schema]
    fields = [field.with_type(pa.string()) if text else field for field, text in zip(schema, is_text, strict=True)]
    rules = pa_json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")

    def parse(text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[pa.Table, list[int]]:
        codes = np.frombuffer(text, np.uint8)
        last = codes[ends - 2]
        last = np.where(last == ord("\r"), codes[np.maximum(ends - 3, 0)], last)
        # pyarrow takes objects wherever their lines end, and crashes on a null. But a line end between "}" and "{" can
        # only be one between two objects, so that no object lies in two lines and each line makes a row or more.
        if (codes[starts] != ord("{")).any() or (last != ord("}")).any():
            raise pa.ArrowInvalid("not a JSON object")
        source: Any = pa.BufferReader(text)
        read = pa_json.ReadOptions(block_size=len(text), use_threads=False)
        return pa_json.read_json(source, read_options=read, parse_options=rules), []

    return parse
