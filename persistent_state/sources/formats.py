"""Read Parquet, CSV and JSON lines files as record batches of one schema, and keep apart the records that do not fit."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from persistent_state.errors import InvalidInputError
from persistent_state.formatting import plain_values, to_json
from persistent_state.sources.base import BadRecord
from persistent_state.sources.calendars import calendars_of
from persistent_state.sources.casts import Unfit, all_types, cast, is_of_column, of_column, plain_rows, plain_type
from persistent_state.sources.csv_lines import (
    CsvOptions,
    Parser,
    check_once,
    csv_parser,
    csv_texts,
    header_names,
)
from persistent_state.sources.fit import fit, has_texts, without_hopeless
from persistent_state.sources.json_lines import in_one_line, json_parser
from persistent_state.sources.json_names import misnamed, unseen
from persistent_state.sources.names import Path, absent_columns
from persistent_state.sources.text_blocks import UNDECODABLE as UNDECODABLE
from persistent_state.sources.text_blocks import Codec as Codec
from persistent_state.sources.text_blocks import decompressed as decompressed
from persistent_state.sources.text_blocks import filled, line_blocks, parts_of

PARQUET, CSV, JSON = "parquet", "csv", "json"
FORMATS = (PARQUET, CSV, JSON)
BY_ENDING = {PARQUET: PARQUET, CSV: CSV, JSON: JSON, "jsonl": JSON, "ndjson": JSON}
CODECS: Mapping[str, Codec] = {"gz": "gzip", "gzip": "gzip", "bz2": "bz2", "zst": "zstd", "zstd": "zstd"}
"""Formats and compressions by the ending of a file."""

PLAIN_CSV = CsvOptions()
NO_COLUMN = pa.field("\0no column\0", pa.string())
"""A column of which no file has the name. It is asked for where no other one is, as a batch without columns has no rows."""

NO_FORMAT = "its ending tells no format"
NOT_READ = {
    **dict.fromkeys(("orc", "avro", "xls", "xlsx", "ods", "feather", "arrow", "xml"), "it is {}, which is not read"),
    **dict.fromkeys(("xz", "lz4", "snappy", "br", "lzo", "zip", "7z", "tar", "tgz"), "not supported: {}"),
}
"""By the ending of a file that no format or compression of this module has: why the file is not read."""

_PIECE_ROWS = 1 << 18
_PIECE_BYTES = 1 << 26
_INDEX_BYTES, _DICTIONARY_BYTES = 4, 5 << 18
"""The most bytes that a row has for its place in a dictionary of Parquet, and that a dictionary of small texts has."""


@dataclass(frozen=True)
class Original:
    """A record as it came: its bytes, unless its row has all of it, and its line in a text or row in a file, from 1 on.

    `value` is the value that does not fit its column, as JSON or as the text that it is, and may be shortened.
    """

    record: bytes | None = None
    line: int | None = None
    value: str | None = None


@dataclass(frozen=True)
class Piece:
    """`count` records that follow each other: the good ones as rows, the bad ones with their places among all.

    `original` gives the record at a place. `absent` has the paths of the columns, and of the fields of structs, that the
    records lack, each with what their file has instead. `lacks` has the columns among them. `misplaced` has the names in the
    first line of a CSV file, if columns go by position and the line has some of their names at other places.
    """

    rows: pa.RecordBatch
    count: int
    bad: tuple[BadRecord, ...] = ()
    original: Callable[[int], Original] = lambda place: Original()
    absent: tuple[tuple[Path, str], ...] = ()
    lacks: tuple[str, ...] = ()
    misplaced: tuple[str, ...] = ()

    def without(self, absent: Mapping[Path, str]) -> Piece:
        """Return the same records, which lack these columns and fields."""
        columns = tuple(name for name, *fields in absent if not fields)
        return replace(self, absent=(*absent.items(),), lacks=columns)

    @property
    def instead(self) -> dict[str, str]:
        """Return what is absent, by its name with points, each with what the file has instead."""
        # A column may be called as a field of another one is. Then it is the column.
        return {".".join(path): words for path, words in sorted(self.absent, key=lambda each: -len(each[0]))}


def read_pieces(
    file: io.IOBase,
    format: str | None,
    codec: Codec | None,
    schema: pa.Schema,
    csv: CsvOptions = PLAIN_CSV,
    fault: str = "",
    timestamp: str = "",
) -> Iterator[Piece]:
    """Yield the records of a file in pieces of bounded size, always the same pieces.

    If the rest of a file can't be read, the rest is one bad record. Errors that `file` itself raises go to the caller, but for
    those of UNDECODABLE. A `fault` makes each record a bad one. A first line of CSV that is no header is a bad record; a header
    names the column `timestamp`.
    """
    stored = pa.PythonFile(file, mode="r")
    try:
        if format == PARQUET:
            yield from _parquet_pieces(stored, schema, fault)
        elif format is None:
            raise Unfit(NO_FORMAT)
        elif format in NOT_READ:
            raise Unfit(NOT_READ[format].format(format))
        else:
            parts = decompressed(stored, codec) if codec else parts_of(stored)
            blocks = filled(line_blocks(csv_texts(csv, parts) if format == CSV else parts))
            yield from (_refused(piece, fault) for piece in _text_pieces(blocks, format, schema, csv, timestamp))
    except UNDECODABLE as error:
        why = str(error) if isinstance(error, Unfit) else f"damaged, or not {format}"
        if format == PARQUET and "crypt" in str(error):
            why = "it is encrypted"
        if codec == "zstd" and "too much memory" in str(error):
            why = "its zstd window is too large: compress it without --long"
        yield Piece(one_batch([], schema), 1, (BadRecord(0, f"unreadable file: {why}"),))


def check_text(format: str, schema: pa.Schema) -> None:
    """Refuse a schema that a text format can't hold.

    Raises:
        InvalidInputError: The schema has a column of such a type.
    """
    try:
        if format == CSV:
            fit(one_batch([], pa.schema([(name, pa.string()) for name in schema.names])), schema)
        else:
            list(_text_pieces([b"{}\n"], format, schema, PLAIN_CSV))
    except pa.ArrowNotImplementedError as error:
        if maps := [field for field in schema if format == JSON and any(map(pa.types.is_map, all_types([field.type])))]:
            raise InvalidInputError(
                f"column {maps[0].name!r} is {maps[0].type}. A map can't be read from JSON: name the members in a struct."
            ) from error
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


def sift(
    count: int,
    decode: Callable[[int, int], pa.RecordBatch],
    bad: dict[int, str],
    values: dict[int, str | None] | None = None,
) -> list[pa.RecordBatch]:
    """Decode records by ranges. If `decode` raises, try each half of the range, down to one bad record.

    The reason in `bad` is the text of the error, mostly `Unfit`, whose value is put into `values`.
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
                if values is not None and isinstance(error, Unfit):
                    values[first] = error.value
            else:
                middle = (first + end) // 2
                parts += [(middle, end), (first, middle)]
    return good


def _piece(
    raw: pa.RecordBatch,
    schema: pa.Schema,
    bad: dict[int, str],
    values: dict[int, str | None],
    count: int,
    original: Callable[[int], Original],
) -> Piece:
    """Return the records that were read as `raw`, without the `bad` ones, in this schema. `values` are of the bad ones."""
    unfit: dict[int, str] = {}
    misfits: dict[int, str | None] = {}
    try:
        good = [fit(raw, schema)]
    except pa.ArrowInvalid:
        raw = plain_rows(raw)
        left = without_hopeless(raw, schema, unfit, misfits)
        found: dict[int, str] = {}
        shown: dict[int, str | None] = {}
        rows = raw.take(pa.array(left)) if unfit else raw
        good = sift(len(left), lambda first, end: fit(rows.slice(first, end - first), schema), found, shown)
        unfit.update((int(left[row]), reason) for row, reason in found.items())
        misfits.update((int(left[row]), value) for row, value in shown.items())
        places = np.delete(np.arange(count), list(bad)).tolist()
        bad = {**bad, **{places[row]: reason for row, reason in unfit.items()}}
        values = {**values, **{places[row]: value for row, value in misfits.items()}}
    return Piece(
        one_batch(good, schema),
        count,
        bad_records(bad),
        lambda place: replace(original(place), value=values.get(place)),
    )


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
        return fit(rows, pa.schema([field])).column(0)[0]
    except UnicodeEncodeError:
        raise Unfit(of_column(field.name, "is not UTF-8")) from None
    except pa.ArrowNotImplementedError as error:
        raise Unfit(of_column(field.name, f"is not {field.type}")) from error


def open_parquet(file: pa.NativeFile, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Open a Parquet file. In nanoseconds, INT96 would wrap around outside of the years 1677 to 2262.

    Args:
        file: The file.
        dictionaries: The columns of texts that are read as dictionaries.

    Raises:
        Unfit: The name of a column is not UTF-8, so that pyarrow can choose no columns; or pyarrow has no type for a column, be
            it one that is not asked for.
    """
    try:
        return pq.ParquetFile(
            file,
            read_dictionary=[*dictionaries],
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=True,
        )
    except UnicodeDecodeError:
        raise Unfit("the name of a column in it is not UTF-8") from None
    except pa.ArrowNotImplementedError as error:
        raise Unfit(f"it has a type that pyarrow does not read: {error}") from error


def _parquet_pieces(file: pa.NativeFile, schema: pa.Schema, fault: str) -> Iterator[Piece]:
    parquet = open_parquet(file)
    fields = [field for field in parquet.schema_arrow if field.name in schema.names]
    names = [field.name for field in fields]
    check_once(names)
    for field in fields:
        try:
            cast(pa.nulls(0, field.type), schema.field(field.name).type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            # The file is at fault, not each of its rows.
            raise Unfit(f"column {field.name} is {field.type}, not {schema.field(field.name).type}") from error
    absent = absent_columns({field.name: field.type for field in parquet.schema_arrow}, schema)
    calendars = calendars_of(parquet)
    first = 1
    for batch in _batches(file, parquet, fields):
        batch, old = calendars.rebased(batch)
        raw = batch.take(pa.array(np.delete(np.arange(batch.num_rows), [*old]))) if old else batch
        reasons, values = {row: str(why) for row, why in old.items()}, {row: why.value for row, why in old.items()}
        piece = _refused(_piece(raw, schema, reasons, values, batch.num_rows, lambda place: Original()), fault)
        records = cache(partial(_records, batch, [record.position for record in piece.bad]))
        original = partial(_parquet_original, records, first, piece.original)
        yield replace(piece, original=original).without(absent)
        first += batch.num_rows
    if first - 1 != parquet.metadata.num_rows:
        # pyarrow passes over rows of lists on some pages, and raises nothing.
        raise Unfit("not as many rows are in it as it says")


def _batches(file: pa.NativeFile, parquet: pq.ParquetFile, fields: Sequence[pa.Field]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file, with these columns, in batches of bounded size."""
    texts = {field.name: plain_type(field.type) for field in fields if has_texts(field.type)}
    types = {name: texts[name] for name in _repeated(parquet.metadata, texts)}
    if types:
        parquet = open_parquet(file, [*types])
    for groups, rows in _row_groups(parquet.metadata):
        batches = parquet.iter_batches(rows, groups, [field.name for field in fields])
        yield from _joined(chain.from_iterable(_cut(batch, types) for batch in batches), rows) if types else batches


def _repeated(file: pq.FileMetaData, names: Container[str]) -> list[str]:
    """Return the columns of texts that may be much larger than they are stored: a dictionary has once what many rows have.

    A column with texts of its own beside the dictionary is left out, as it would take long to find these in one.
    """
    found: dict[str, None] = {}
    for group in map(file.row_group, range(file.num_row_groups)):
        if group.num_rows * group.total_byte_size <= _PIECE_BYTES:
            continue
        for chunk in map(group.column, range(group.num_columns)):
            if chunk.path_in_schema in names and any("DICTIONARY" in encoding for encoding in chunk.encodings):
                begin, size = chunk.dictionary_page_offset, chunk.total_compressed_size
                stored = size if begin is None else chunk.data_page_offset - begin
                # Beside its dictionary a column has a place in it for each row. Writers begin no dictionary of more than a MiB.
                least = chunk.total_uncompressed_size - _INDEX_BYTES * chunk.num_values
                if least <= _DICTIONARY_BYTES or 2 * stored >= size:
                    found[chunk.path_in_schema] = None
    return [*found]


def _joined(parts: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most this many rows and a piece's bytes. Small ones are joined, as those of small row groups."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for part in parts:
        if held and (size + part.nbytes > _PIECE_BYTES or count + part.num_rows > rows):
            yield one_batch(held, part.schema)
            held, count, size = [], 0, 0
        held.append(part)
        count, size = count + part.num_rows, size + part.nbytes
    if held:
        yield one_batch(held, held[0].schema)


def _cut(batch: pa.RecordBatch, types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts of bounded size. Columns that are dictionaries here become texts of these types."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for name in types:
        column = batch.column(name)
        sizes += pc.binary_length(column.dictionary).take(column.indices).fill_null(0).to_numpy(False)
    part = np.cumsum(sizes) // _PIECE_BYTES
    begins = [0, *(np.flatnonzero(part[1:] != part[:-1]) + 1).tolist()]
    for first, end in pairwise([*begins, batch.num_rows]):
        rows = batch.slice(first, end - first)
        columns = zip(rows.schema.names, rows.columns, strict=True)
        yield pa.record_batch(
            {name: cast(column, types[name]) if name in types else column for name, column in columns}
        )


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


def _records(batch: pa.RecordBatch, places: Sequence[int]) -> dict[int, bytes]:
    """Return the rows at these places as JSON. A row with a text that is not UTF-8 can't be shown, and is left out."""
    rows = plain_rows(batch).take(pa.array(places, pa.int64()))
    try:
        columns = [plain_values(column) for column in rows.columns]
    except ValueError:
        middle = len(places) // 2
        return _records(batch, places[:middle]) | _records(batch, places[middle:]) if middle else {}
    # A file may have none of the columns, but it has rows.
    records = (
        {name: column[i] for name, column in zip(rows.schema.names, columns, strict=True)} for i in range(len(places))
    )
    return {place: to_json(record).encode() for place, record in zip(places, records, strict=True)}


def _parquet_original(
    records: Callable[[], Mapping[int, bytes]], first: int, known: Callable[[int], Original], place: int
) -> Original:
    """Return where a row of a Parquet file stood and, if it is a bad record, its columns as JSON."""
    return replace(known(place), record=records().get(place), line=first + place)


def _text_pieces(
    blocks: Iterable[bytes], format: str, schema: pa.Schema, csv: CsvOptions, timestamp: str = ""
) -> Iterator[Piece]:
    names: Sequence[str] = ()
    parse: Parser | None = None
    if format == JSON:
        parse = json_parser(schema)
    elif csv.header == "none":
        names, parse = csv_parser(csv, b"", schema)
    absent: dict[Path, str] = {}
    misplaced: tuple[str, ...] = ()
    line = 1
    for block in blocks:
        end = line + block.count(b"\n")
        if format == JSON and codecs.BOM_UTF8 in block:
            # Files that were joined have a mark where each of them began.
            block = (b"\n" + block).replace(b"\n%b{" % codecs.BOM_UTF8, b"\n{")[1:]
        if parse is None:
            header, _, block = block.lstrip(b"\r\n").partition(b"\n")
            if header:
                names, parse = csv_parser(csv, header, schema)
                absent = absent_columns({name: pa.string() for name in names}, schema)
                misplaced = _misplaced(header, schema.names, csv)
                if why := _no_header(header, names, schema, csv, parse, timestamp):
                    yield _bad_line(header.rstrip(b"\r"), end - block.count(b"\n") - 1, why, schema)
        if parse is not None:
            piece = _text_piece(block, end - block.count(b"\n"), format, schema, parse, has_empty=len(names) == 1)
            yield piece if format == JSON else replace(piece, misplaced=misplaced).without(absent)
        line = end


def _misplaced(header: bytes, columns: list[str], csv: CsvOptions) -> tuple[str, ...]:
    """Return the names in a first line that is passed over, if it has some of the columns at other places; else none."""
    with suppress(Unfit):
        names = header_names(csv, header) if csv.header == "position" else []
        if any(name in columns and columns[i : i + 1] != [name] for i, name in enumerate(names)):
            return tuple(names)
    return ()


def _bad_line(text: bytes, line: int, why: str, schema: pa.Schema) -> Piece:
    original = Original(text, line)
    return Piece(one_batch([], schema), 1, (BadRecord(0, why),), lambda place: original)


def _no_header(
    first: bytes, names: Sequence[str], schema: pa.Schema, csv: CsvOptions, parse: Parser, timestamp: str
) -> str:
    """Return why the first line of a CSV file is no header; "" if it may be one. Equal reasons have equal words."""
    if NO_COLUMN in schema:
        return ""  # All columns are in the names of its folders.
    if csv.header == "position":
        with suppress(Unfit):
            if header_names(csv, first) == schema.names:
                return ""  # A name may be a number, too.
        piece = _text_piece(first + b"\n", 1, CSV, schema, parse)
        if piece.bad:
            # A name does not fit its column, and has a field of its own.
            return "" if is_of_column(piece.bad[0].reason) else f"its first line: {piece.bad[0].reason}"
        has_value = any(not piece.rows.column(field.name).null_count and not _is_text(field) for field in schema)
        return "its first line is a record, which header='position' passes over" if has_value else ""
    others = [name for name in names if name and name not in schema.names and not _is_quoted(name, first, csv.quote)]
    if any([name] != name.splitlines() for name in others):
        return "its first line goes on behind a line end that is not read as one"
    if {*schema.names}.isdisjoint(names):
        return "its first line names no column of the schema"
    if timestamp in schema.names and timestamp not in names:
        return f"its first line does not name the timestamp {timestamp!r}"
    return ""


def _is_quoted(name: str, header: bytes, quote: str | None) -> bool:
    return quote is not None and f"{quote}{name.replace(quote, 2 * quote)}{quote}".encode() in header


def _is_text(field: pa.Field) -> bool:
    """Return whether any text is a value of a column."""
    with suppress(Unfit):
        return bool(of_text("any text", field).is_valid)
    return False


def _text_piece(
    block: bytes, line: int, format: str, schema: pa.Schema, parse: Parser, has_empty: bool = False
) -> Piece:
    """Return the records of whole lines; the first is the line `line` of its file. Empty lines are some if it `has_empty`."""
    codes = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(codes == ord("\n")) + 1
    starts = np.concatenate([[0], ends])[:-1]
    # In a CSV file of one column an empty line is an empty field. Others are no records.
    lengths = ends - starts - (codes[np.maximum(ends - 2, starts)] == ord("\r"))
    records = np.flatnonzero(lengths > (0 if has_empty else 1))
    places = starts[records], ends[records], line + records
    return _parsed_piece(block, *places, schema, parse, format == JSON)


def json_piece(values: Sequence[bytes], schema: pa.Schema) -> Piece:
    """Return the records of JSON objects, one in each of these values."""
    lines = b"\n".join(values) + b"\n"
    if codecs.BOM_UTF8 in lines:
        values = [value.removeprefix(codecs.BOM_UTF8) for value in values]
        lines = b"\n".join(values) + b"\n"
    if lines.count(b"\n") > len(values) or lines.startswith(b"{") + lines.count(b"\n{") < len(values):
        values = [in_one_line(value) for value in values]
        lines = b"\n".join(values) + b"\n"
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) + 1)
    starts = np.concatenate([[0], ends])[:-1]
    return _parsed_piece(lines, starts, ends, np.arange(len(values)), schema, json_parser(schema), True)


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
    values: dict[int, str | None] = {}

    def decode(first: int, end: int) -> pa.RecordBatch:
        offset = starts[first]
        text = block[offset : ends[end - 1]]
        table, odd = parse(text, starts[first:end] - offset, ends[first:end] - offset)
        # No CSV line makes two rows, and no JSON line less than one. So as many rows as lines is one row from each line.
        if len(table) + len(odd) != end - first:
            raise Unfit("not one record in one line")
        bad.update({first + i: str(why) for i, why in odd.items()})
        values.update({first + i: why.value for i, why in odd.items() if isinstance(why, Unfit)})
        rows = one_batch(table.to_batches(), table.schema)
        if not is_json:
            return rows
        numbers = np.delete(np.arange(end - first), list(odd))
        if others := misnamed(rows, text, starts[first:end] - offset, numbers):
            bad.update({first + int(numbers[row]): reason for row, reason in others.items()})
            rows = rows.take(pa.array(np.delete(np.arange(rows.num_rows), [*others])))
        return rows

    def original(i: int) -> Original:
        return Original(block[starts[i] : ends[i]].rstrip(b"\r\n"), int(lines[i]))

    good = sift(len(starts), decode, bad, values)
    raw = one_batch(good, good[0].schema if good else schema)
    piece = _piece(raw, schema, bad, values, len(starts), original)
    if not is_json:
        return piece
    places = np.delete(np.arange(piece.count), [record.position for record in piece.bad])
    return piece.without(unseen(piece.rows, block, starts, places))
