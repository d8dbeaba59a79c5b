"""Read Parquet, CSV and JSON lines files as record batches of one schema, and keep apart the records that do not fit."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal, DecimalException
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
from numpy.typing import NDArray

from monoids.scalars import exact_decimal
from persistent_state.errors import InvalidInputError
from persistent_state.formatting import plain, to_json
from persistent_state.sources.base import BadRecord
from persistent_state.sources.names import absent_columns, names_alike, other_name, struct_paths

Transform: TypeAlias = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table"]
Codec: TypeAlias = Literal["gzip", "bz2", "zstd"]
Parser: TypeAlias = Callable[[bytes, NDArray[np.int64], NDArray[np.int64]], tuple[pa.Table, list[int]]]

PARQUET, CSV, JSON = "parquet", "csv", "json"
FORMATS = (PARQUET, CSV, JSON)
UNDECODABLE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OSError)
"""The errors that pyarrow raises for damaged content."""

NO_FORMAT = "its ending tells no format"

_PIECE_ROWS = 1 << 18
_PIECE_BYTES = 1 << 26
_BLOCK_BYTES = 1 << 24
_DIGITS = {32: 9, 64: 18, 128: 38, 256: 76}
"""The most digits of decimals, by the bits of their type. To such differences of digits after the point pyarrow's tables go."""

_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_ZONE = r":\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"


class Unfit(pa.ArrowInvalid):  # type: ignore[misc]
    """A record can't be decoded. Equal reasons have equal words, because they are counted."""


@dataclass(frozen=True)
class Original:
    """A record as it came: its bytes, unless its row has all of it, and its line in a text or row in a file, from 1 on."""

    record: bytes | None = None
    line: int | None = None


@dataclass(frozen=True)
class Piece:
    """`count` records that follow each other: the good ones as rows, the bad ones with their places among all.

    `original` gives the record at a place. `absent` has the columns that the records lack, each with what their file has
    instead. Those of `lacks` no record of the file can have.
    """

    rows: pa.RecordBatch
    count: int
    bad: tuple[BadRecord, ...] = ()
    original: Callable[[int], Original] = lambda place: Original()
    absent: tuple[tuple[str, str], ...] = ()
    lacks: tuple[str, ...] = ()


def read_pieces(
    file: io.RawIOBase, format: str | None, codec: Codec | None, schema: pa.Schema, fault: str = ""
) -> Iterator[Piece]:
    """Yield the records of a file in pieces of bounded size, always the same pieces.

    If the rest of a file can't be read, the rest is one bad record. Errors that `file` itself raises go to the caller, but for
    those of UNDECODABLE. A `fault` makes each record a bad one.
    """
    stored = pa.PythonFile(file, mode="r")
    try:
        if format == PARQUET:
            yield from _parquet_pieces(stored, schema, fault)
        elif format is None:
            raise Unfit(NO_FORMAT)
        else:
            text = pa.CompressedInputStream(stored, codec) if codec else stored
            yield from (_refused(piece, fault) for piece in _text_pieces(_line_blocks(text), format, schema))
    except UNDECODABLE as error:
        why = str(error) if isinstance(error, Unfit) else f"damaged, or not {format}"
        yield Piece(one_batch([], schema), 1, (BadRecord(0, f"unreadable file: {why}"),))


def check_text(format: str, schema: pa.Schema) -> None:
    """Refuse a schema that a text format can't hold.

    Raises:
        InvalidInputError: The schema has a column of such a type.
    """
    try:
        if format == CSV:
            _fit(one_batch([], pa.schema([(name, pa.string()) for name in schema.names])), schema)
        else:
            list(_text_pieces([b"{}\n"], format, schema))
    except pa.ArrowNotImplementedError as error:
        raise InvalidInputError(
            f"the schema does not fit {format} files: {error}; read another type, and transform it."
        ) from error


def one_batch(parts: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of all parts as one batch: a single part as it is."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    batches = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


def transformed(transform: Transform | None, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Apply a source's `transform` to rows, and return the result as one batch."""
    made = rows if transform is None else transform(rows)
    return one_batch(made.to_batches(), made.schema) if isinstance(made, pa.Table) else made


def _fit(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return these rows in this schema. A missing column is null.

    Raises:
        Unfit: A value does not fit.
    """
    columns = []
    for field in schema:
        place = rows.schema.get_field_index(field.name)
        try:
            columns.append(_cast(rows.column(place), field.type) if place >= 0 else pa.nulls(rows.num_rows, field.type))
        except pa.ArrowInvalid as error:
            raise Unfit(f"column {field.name} is not {field.type}") from error
        try:
            # Parquet does not promise that text is UTF-8. Other bytes would fail much later, in the user's code.
            columns[-1].validate(full=True)
        except pa.ArrowInvalid as error:
            raise Unfit(f"column {field.name} is not UTF-8") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    """Return a column as another type, without loss."""
    if column.type.equals(type):
        return column
    if pa.types.is_dictionary(column.type):
        return _cast(column.cast(column.type.value_type), type)
    if _is_text(column.type) and not pa.types.is_string(column.type):
        return _cast(column.cast(pa.string()), type)
    if not pa.types.is_string(column.type):
        if _has_unsafe_decimals(column.type, type):
            raise pa.ArrowInvalid(f"decimals of {type} are not read of {column.type}")
        if pa.types.is_decimal(column.type) and pa.types.is_decimal(type) and column.type.bit_width < 256:
            # With more digits after the point a decimal may need more bits, and pyarrow does not notice.
            column = column.cast(pa.decimal256(76, column.type.scale))
        return column.cast(type)
    try:
        return _parse(column, type)
    except pa.ArrowInvalid:
        return _parse(pc.utf8_trim_whitespace(column), type)


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _has_unsafe_decimals(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a cast reads decimals that pyarrow might not know: see `exact_decimal`."""
    if pa.types.is_nested(given) and pa.types.is_nested(wanted):
        pairs = [(given.field(i), wanted.field(i)) for i in range(min(given.num_fields, wanted.num_fields))]
        if pa.types.is_struct(given) and pa.types.is_struct(wanted):
            pairs = [(given.field(each.name), each) for each in wanted if given.get_field_index(each.name) >= 0]
        return any(_has_unsafe_decimals(before.type, after.type) for before, after in pairs)
    if pa.types.is_dictionary(given):
        return _has_unsafe_decimals(given.value_type, wanted)
    if not pa.types.is_decimal(wanted):
        return False
    if pa.types.is_decimal(given):
        return bool(abs(given.scale - wanted.scale) > _DIGITS[max(given.bit_width, wanted.bit_width)])
    return _is_text(given)


def _parse(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_decimal(type):
        return _decimals(column, type)
    if not pa.types.is_timestamp(type):
        return column.cast(type)
    local, utc = pa.timestamp(type.unit), pa.timestamp(type.unit, "UTC")
    try:
        return column.cast(utc).cast(type)
    except pa.ArrowInvalid:
        has_zone = pc.match_substring_regex(column, _ZONE)
        naive, zoned = pc.if_else(has_zone, None, column), pc.if_else(has_zone, column, None)
        return pc.coalesce(zoned.cast(utc), naive.cast(local).cast(utc)).cast(type)


def _decimals(column: pa.Array[Any], type: pa.DataType) -> pa.Array[Any]:
    """Return texts as decimals. Python reads those whose digits after the point pyarrow might not know: see `exact_decimal`."""
    is_odd = pc.or_(pc.match_substring_regex(column, "[eE]"), pc.greater(pc.binary_length(column), _most_digits(type)))
    if not pc.any(is_odd).as_py():
        return column.cast(type)
    odd = [None if text is None else _decimal(text, type) for text in pc.if_else(is_odd, column, None).to_pylist()]
    return pc.coalesce(pc.if_else(is_odd, None, column).cast(type), pa.array(odd, type))


def _most_digits(type: pa.DataType) -> int:
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


def sift(count: int, decode: Callable[[int, int], pa.RecordBatch], bad: dict[int, str]) -> list[pa.RecordBatch]:
    """Decode records by ranges. If `decode` raises, try each half of the range, down to one bad record.

    The reason in `bad` is the text of the error, mostly `Unfit`.
    """
    good = []
    parts = [(0, count)] if count else []
    while parts:
        first, end = parts.pop()
        try:
            good.append(decode(first, end))
        except pa.ArrowInvalid as error:
            if end - first == 1:
                bad[first] = str(error)
            else:
                middle = (first + end) // 2
                parts += [(middle, end), (first, middle)]
    return good


def _piece(
    raw: pa.RecordBatch, schema: pa.Schema, bad: dict[int, str], count: int, original: Callable[[int], Original]
) -> Piece:
    """Return the records that were read as `raw`, without the `bad` ones, in this schema."""
    unfit: dict[int, str] = {}
    good = sift(raw.num_rows, lambda first, end: _fit(raw.slice(first, end - first), schema), unfit)
    if unfit:
        places = np.delete(np.arange(count), list(bad)).tolist()
        bad = {**bad, **{places[row]: reason for row, reason in unfit.items()}}
    rows = one_batch(good, schema)
    return Piece(rows, count, bad_records(bad), original)


def bad_records(bad: Mapping[int, str]) -> tuple[BadRecord, ...]:
    """Return the bad records of a mapping from place to reason."""
    return tuple(BadRecord(i, bad[i]) for i in sorted(bad))


def _refused(piece: Piece, fault: str) -> Piece:
    """Return a piece without good records if there is a fault."""
    if not fault:
        return piece
    bad = {**dict.fromkeys(range(piece.count), fault), **{record.position: record.reason for record in piece.bad}}
    return replace(piece, rows=piece.rows.slice(0, 0), bad=bad_records(bad))


def of_text(text: str | None, field: pa.Field) -> pa.Scalar:
    """Return a text as a value of a column.

    Raises:
        Unfit: It is none.
    """
    try:
        rows = pa.record_batch({field.name: pa.array([text], pa.string())})
        return _fit(rows, pa.schema([field])).column(0)[0]
    except UnicodeEncodeError:
        raise Unfit(f"column {field.name} is not UTF-8") from None
    except pa.ArrowNotImplementedError as error:
        raise Unfit(f"column {field.name} is not {field.type}") from error


def _check_once(names: list[str]) -> None:
    if len(set(names)) < len(names):
        raise Unfit("a column stands twice in it")


def _parquet_pieces(file: pa.NativeFile, schema: pa.Schema, fault: str) -> Iterator[Piece]:
    parquet = pq.ParquetFile(file)
    fields = [field for field in parquet.schema_arrow if field.name in schema.names]
    names = [field.name for field in fields]
    _check_once(names)
    for field in fields:
        try:
            _cast(pa.nulls(0, field.type), schema.field(field.name).type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            # The file is at fault, not each of its rows.
            raise Unfit(f"column {field.name} is {field.type}, not {schema.field(field.name).type}") from error
    absent = absent_columns({field.name: field.type for field in parquet.schema_arrow}, schema)
    first = 1
    for groups, rows in _row_groups(parquet.metadata):
        for batch in parquet.iter_batches(rows, groups, names):
            piece = _refused(_piece(batch, schema, {}, batch.num_rows, lambda place: Original()), fault)
            bad = {record.position for record in piece.bad}
            original = partial(_parquet_original, batch, bad, first)
            yield replace(piece, original=original, absent=(*absent.items(),), lacks=(*absent,))
            first += batch.num_rows


def _row_groups(file: pq.FileMetaData) -> Iterator[tuple[list[int], int]]:
    """Yield row groups that are read at once, and how many of their rows a piece has.

    pyarrow holds all that it reads at once. So what is read at once has a piece's bytes, or is one row group that has more.
    """
    groups: list[int] = []
    size = rows = 0
    for i in range(file.num_row_groups):
        group = file.row_group(i)
        if groups and size + group.total_byte_size > _PIECE_BYTES:
            yield groups, _rows_of_piece(rows, size)
            groups, size, rows = [], 0, 0
        groups.append(i)
        size += group.total_byte_size
        rows += group.num_rows
    if groups:
        yield groups, _rows_of_piece(rows, size)


def _rows_of_piece(rows: int, size: int) -> int:
    return max(1, min(_PIECE_ROWS, _PIECE_BYTES * rows // max(1, size)))


def _parquet_original(batch: pa.RecordBatch, bad: Container[int], first: int, place: int) -> Original:
    """Return where a row of a Parquet file stood and, if it is a bad record, its columns as JSON."""
    record = None
    if place in bad:
        # Text that is not UTF-8 can't be shown.
        with suppress(ValueError):
            record = to_json(plain(batch.slice(place, 1).to_struct_array()[0])).encode()
    return Original(record, first + place)


def _line_blocks(file: pa.NativeFile) -> Iterator[bytes]:
    """Yield a text in blocks of whole lines, each with its line end."""
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
    absent: dict[str, str] = {}
    line = 1
    for block in blocks:
        end = line + block.count(b"\n")
        if parse is None:
            header, _, block = block.lstrip(b"\r\n").partition(b"\n")
            if header:
                names, parse = _csv_parser(header, schema)
                absent = absent_columns({name: pa.string() for name in names}, schema)
        if parse is not None:
            piece = _text_piece(block, end - block.count(b"\n"), format, schema, parse)
            if format == JSON:
                yield replace(piece, absent=_unseen(block, piece.rows))
            else:
                yield replace(piece, absent=(*absent.items(),), lacks=(*absent,))
        line = end


def _unseen(block: bytes, rows: pa.RecordBatch) -> tuple[tuple[str, str], ...]:
    """Return the columns that no record of a block of JSON has. Each record has members of its own, so a later one may."""
    nulls = [name for name in rows.schema.names if rows.num_rows == rows.column(name).null_count > 0]
    written = {name: [json.dumps(name, ensure_ascii=is_ascii).encode() for is_ascii in (True, False)] for name in nulls}
    return tuple(
        (name, f" in any of {rows.num_rows:,} records")
        for name in nulls
        if not any(map(block.__contains__, written[name]))
    )


def _text_piece(block: bytes, line: int, format: str, schema: pa.Schema, parse: Parser) -> Piece:
    """Return the records of whole lines; the first is the line `line` of its file."""
    codes = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(codes == ord("\n")) + 1
    starts = np.concatenate([[0], ends])[:-1]
    # Empty lines are no records.
    lengths = ends - starts - (codes[np.maximum(ends - 2, starts)] == ord("\r"))
    records = np.flatnonzero(lengths > 1)
    places = starts[records], ends[records], line + records
    return _parsed_piece(block, *places, schema, parse, format == JSON)


def json_piece(values: Sequence[bytes], schema: pa.Schema) -> Piece:
    """Return the records of JSON objects, one in each of these values."""
    lines = b"\n".join(values) + b"\n"
    if codecs.BOM_UTF8 in lines:
        values = [value.removeprefix(codecs.BOM_UTF8) for value in values]
        lines = b"\n".join(values) + b"\n"
    if lines.count(b"\n") > len(values) or lines.startswith(b"{") + lines.count(b"\n{") < len(values):
        # A line end in an object is white space, because a JSON text can't contain one.
        values = [value.replace(b"\n", b" ").strip() for value in values]
        lines = b"\n".join(values) + b"\n"
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) + 1)
    starts = np.concatenate([[0], ends])[:-1]
    return _parsed_piece(lines, starts, ends, np.arange(len(values)), schema, _json_parser(schema), True)


def _parsed_piece(
    block: bytes,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    lines: NDArray[np.int64],
    schema: pa.Schema,
    parse: Parser,
    is_json: bool,
) -> Piece:
    """Return the records of lines that begin and end at these places and have these numbers."""
    bad: dict[int, str] = {}

    def decode(first: int, end: int) -> pa.RecordBatch:
        offset = starts[first]
        text = block[offset : ends[end - 1]]
        try:
            text.decode()
        except UnicodeDecodeError:
            raise Unfit("not UTF-8") from None
        table, odd = parse(text, starts[first:end] - offset, ends[first:end] - offset)
        # No CSV line makes two rows, and no JSON line less than one. So as many rows as lines is one row from each line.
        if len(table) + len(odd) != end - first:
            raise Unfit("not one record in one line")
        bad.update({first + i: "not as many fields as in the header" for i in odd})
        if is_json and (misnamed := _misnamed(table, text, starts[first:end] - offset, schema)):
            bad.update({first + i: reason for i, reason in misnamed.items()})
            table = table.take(np.delete(np.arange(len(table)), [*misnamed]))
        return one_batch(table.to_batches(), table.schema)

    def original(i: int) -> Original:
        return Original(block[starts[i] : ends[i]].rstrip(b"\r\n"), int(lines[i]))

    good = sift(len(starts), decode, bad)
    raw = one_batch(good, good[0].schema if good else schema)
    return _piece(raw, schema, bad, len(starts), original)


def _misnamed(table: pa.Table, text: bytes, starts: NDArray[np.int64], schema: pa.Schema) -> dict[int, str]:
    """Return the lines of JSON that have a column, or a field of a struct, under another name only, with the reason."""
    found: dict[int, str] = {}
    offsets = pa.py_buffer(np.append(starts, len(text)).astype(np.int64))
    # As text, since the pattern knows letters beyond ASCII.
    lines = pa.Array.from_buffers(pa.large_string(), len(starts), [None, offsets, pa.py_buffer(text)])
    for path, names in struct_paths(schema):
        column = table[path[0]] if len(path) == 1 else pc.struct_field(table[path[0]], path[1:])
        if not column.null_count:
            continue
        rows = pc.indices_nonzero(column.is_null())
        alike, own = (pc.count_substring_regex(lines.take(rows), each) for each in names_alike(path[-1]))
        for row in rows.filter(pc.greater(alike, own)).to_pylist():
            with suppress(ValueError, RecursionError):
                members = json.loads(lines[row].as_py())
                for name in path[:-1]:
                    members = members.get(name) or {}
                if path[-1] not in members and (other := other_name(path[-1], members, names)):
                    found[row] = f"column {'.'.join(path)} is not in it, but {other}"
    return found


def _csv_parser(header: bytes, schema: pa.Schema) -> tuple[list[str], Parser]:
    """Return the names of this header, and a parser of the lines below it."""
    names = pa_csv.read_csv(io.BytesIO(header + b"\n")).column_names
    wanted = [name for name in names if name in schema.names]
    _check_once(wanted)
    # Read all columns as text. Parsing them later is as fast, and finds bad values instead of bad lines.
    convert = pa_csv.ConvertOptions(
        column_types={name: pa.string() for name in wanted},
        include_columns=wanted or names[:1],
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    # A line with one field too many. The parser reports it, unless a quote before it is not closed.
    sentinel = b"," * len(names) + b"\n"

    def parse(text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[pa.Table, list[int]]:
        # To the parser a carriage return within a line ends a line, so one line might make two rows.
        if b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
            raise Unfit("a carriage return within a line")
        odd: list[int] = []

        def skip(row: pa_csv.InvalidRow) -> Literal["skip"]:
            odd.append((row.number or 0) - 1)
            return "skip"

        text += sentinel
        source: Any = pa.BufferReader(text)
        read = pa_csv.ReadOptions(column_names=names, block_size=len(text), use_threads=False)
        rules = pa_csv.ParseOptions(invalid_row_handler=skip)
        try:
            table = pa_csv.read_csv(source, read_options=read, parse_options=rules, convert_options=convert)
        except pa.ArrowInvalid as error:
            raise Unfit("not a CSV record") from error
        if not odd:
            raise Unfit("a quote is not closed")
        return table, odd[:-1]

    return names, parse


def _json_parser(schema: pa.Schema) -> Parser:
    """Return a parser of lines that hold one JSON object each."""
    # The parser would take dates for numbers. Timestamps are text here, and parsed later, to find bad values instead of lines.
    is_text = [pa.types.is_date(field.type) or pa.types.is_timestamp(field.type) for field in schema]
    fields = [field.with_type(pa.string()) if text else field for field, text in zip(schema, is_text, strict=True)]
    rules = pa_json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
    odd = _odd_decimals(schema)

    def parse(text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[pa.Table, list[int]]:
        codes = np.frombuffer(text, np.uint8)
        last = codes[ends - 2]
        last = np.where(last == ord("\r"), codes[np.maximum(ends - 3, 0)], last)
        # pyarrow takes objects wherever their lines end, and crashes on a null. But a line end between "}" and "{" can
        # only be one between two objects, so that no object lies in two lines and each line makes a row or more.
        if (codes[starts] != ord("{")).any() or (last != ord("}")).any():
            raise Unfit("not a JSON object")
        if odd:
            offsets = pa.py_buffer(np.append(starts, ends[-1]).astype(np.int64))
            rows = pa.Array.from_buffers(pa.large_binary(), len(starts), [None, offsets, pa.py_buffer(text)])
            for line in rows.filter(pc.match_substring_regex(rows, odd)).to_pylist():
                _check_decimals(line, schema)
        source: Any = pa.BufferReader(text)
        read = pa_json.ReadOptions(block_size=len(text), use_threads=False)
        try:
            return pa_json.read_json(source, read_options=read, parse_options=rules), []
        except pa.ArrowInvalid as error:
            raise Unfit(_unfit_json(text, fields, schema) if len(starts) == 1 else "") from error

    return parse


def _odd_decimals(schema: pa.Schema) -> str:
    """Return a pattern of all lines of JSON with decimals that pyarrow might not know; "" if the schema has no decimals."""
    most = [_most_digits(type) for type in _leaves(schema.types) if pa.types.is_decimal(type)]
    # A number with an exponent, or with many digits. Any of that may be escaped.
    return (
        rf"[^0-9A-Za-z.][0-9.]+[eE][-+]?[0-9]|[0-9.]{{{min(most) + 1}}}|\\u00([46]5|2[bBdDeE]|3[0-9])" if most else ""
    )


def _leaves(types: Iterable[pa.DataType]) -> Iterator[pa.DataType]:
    """Yield the types that are not nested, of types and within them."""
    for type in types:
        if pa.types.is_nested(type):
            yield from _leaves(type.field(i).type for i in range(type.num_fields))
        else:
            yield type


def _check_decimals(line: bytes, schema: pa.Schema) -> None:
    """Refuse a line of JSON with a decimal that pyarrow might not know: see `exact_decimal`.

    Raises:
        Unfit: The line has one, or is not JSON.
    """
    try:
        # Members that stand twice are all looked at. Numbers are as they were written.
        record = json.loads(line, object_pairs_hook=_Members, parse_float=str, parse_int=str, strict=False)
    except (ValueError, RecursionError):
        raise Unfit("not a JSON object") from None
    for field in schema:
        for name, value in record:
            if name == field.name and not _are_known(value, field.type):
                raise Unfit(f"column {name} is not {field.type}")


class _Members(list[tuple[str, Any]]):
    """The members of a JSON object, in their order."""


def _are_known(value: Any, type: pa.DataType) -> bool:
    """Return whether the decimals of a JSON value are decimals that pyarrow knows."""
    if isinstance(value, _Members):
        fields = {field.name: field.type for field in type} if pa.types.is_struct(type) else {}
        return all(_are_known(each, fields[name]) for name, each in value if name in fields)
    if isinstance(value, list):
        return not isinstance(type, pa.ListType) or all(_are_known(each, type.value_type) for each in value)
    # What is not a decimal is refused by pyarrow.
    if not (isinstance(value, str) and pa.types.is_decimal(type) and _DECIMAL.fullmatch(value)):
        return True
    try:
        _decimal(value, type)
    except Unfit:
        return False
    _, digits, exponent = Decimal(value).as_tuple()
    most = _DIGITS[int(type.bit_width)]
    return len(digits) <= most and int(exponent) >= -most


def _unfit_json(text: bytes, fields: Iterable[pa.Field], schema: pa.Schema) -> str:
    """Return why a line does not have these fields, in words that do not depend on pyarrow's."""
    is_twice = False

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal is_twice
        is_twice = is_twice or len(dict(pairs)) < len(pairs)
        return dict(pairs)

    try:
        record = json.loads(text, object_pairs_hook=members)
    except (ValueError, RecursionError):
        return "not a JSON object"
    if is_twice:
        return "a member stands twice"
    for field in fields:
        try:
            pa.array([record.get(field.name)], field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            return f"column {field.name} is not {schema.field(field.name).type}"
    return "not a record of the schema"
