"""Draws files as the world writes them: `python -m tests.sources.world_files SEED [COUNT]` reads those of some seeds.

One seed is one folder: a schema, and files by programs, with types that drift, and with damage. What a folder's files hold is
known from the values that were drawn, by rules in plain Python; no reader is asked.
"""

from __future__ import annotations

import bz2
import csv
import faulthandler
import gzip
import io
import json
import logging
import math
import random
import re
import sys
import tarfile
import tempfile
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from persistent_state import CsvOptions, FileSource
from persistent_state.sources.base import Chunk
from persistent_state.sources.casts import leaves
from tests.fixtures import write_spark_files
from tests.fixtures.write_spark_files import VALUES
from tests.sources.truth import (
    DAY,
    FIRST,
    HUGE,
    LAST,
    NANOS,
    Bad,
    Misfit,
    Number,
    Row,
    Time,
    Value,
    is_bytes,
    is_list,
    is_text,
    kind_of,
    limits,
    missing,
    names_in,
    names_of,
    of_arrow,
    of_json,
    read_as,
    row_of,
    same,
    to_arrow,
    unit_of,
    written,
)


@dataclass(frozen=True)
class WorldFile:
    """A file as a program wrote it.

    Attributes:
        rows: What its records are read as: values by column, or `Bad`.
        damage: What happened to it; "" for nothing.
        first: The number of records from the first one on that are read as if nothing had happened. Damage may change what is
            behind them.
        last: The same for the records at the end.
        is_noticed: Whether all rows that are read are true, and if one is missing there is a bad record.
        stored: The table of a Parquet file as it was written, for other readers.
        raw: The texts of a CSV file's records, or the members of JSON objects.
        in_folders: The columns that its folders say.
        is_fit: Whether all of these are read of what the folders say. If not, its rows are bad.
    """

    name: str
    content: bytes
    rows: list[Row]
    damage: str = ""
    first: int = 0
    last: int = 0
    is_noticed: bool = False
    stored: pa.Table | None = None
    raw: list[dict[str, Value]] = field(default_factory=list)
    in_folders: tuple[str, ...] = ()
    is_fit: bool = True

    def columns(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns that are read of the file itself."""
        return pa.schema([each for each in schema if each.name not in self.in_folders])


@dataclass(frozen=True)
class World:
    """The files of one folder, and how they are read.

    Attributes:
        moved: By name of a file: the path to which it is moved when it has been read.
    """

    schema: pa.Schema
    files: list[WorldFile]
    options: dict[str, Any] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)


# Values


TEXTS = [
    "a", "b", "Oslo", "0", "-7", "1.5", "é", "e\u0301", "ß", "İ", "日本", "😀", "\u2028", "\u0085", "\u00a0", "\u200b",
    "\ufeff", '"', '""', "'", ",", ";", "\t", "|", "\\", "\\n", " ", "  ", "null", "NA", "NaN", "None", "{", "}", "[", "#",
    "=1+1", "\x00", "\x1f", "\x7f", "true", "2026-01-01", "x" * 300,
]  # fmt: skip
LINE_ENDS = ["\n", "\r", "\r\n"]
NANOS_END = 9_223_372_036 * 10**9
"""The last whole second of times in nanoseconds."""
TIMES = [
    0, -1, 1, DAY - 1, DAY, -DAY, FIRST, LAST, 951_782_400 * 10**9, -11_676_096_000 * 10**9 - 1, NANOS_END, -NANOS_END,
]  # fmt: skip

WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
STAMPS = [pa.timestamp(unit, zone) for unit in NANOS for zone in (None, "UTC", "Europe/Oslo")]
DECIMALS = [
    pa.decimal128(10, 2), pa.decimal128(38, 2), pa.decimal128(38, 38), pa.decimal128(5, 0), pa.decimal256(76, 10),
]  # fmt: skip
LEAVES = [
    *WHOLE, *STAMPS, *DECIMALS, pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.string(), pa.string(),
    pa.binary(), pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"),
]  # fmt: skip
TEXT_LEAVES = [type for type in LEAVES if not pa.types.is_binary(type)]
JSON_LEAVES = [type for type in TEXT_LEAVES if not pa.types.is_time(type) and type != pa.float16()]


NAMES = ["ts", "a", "b", "c"]
ODD_NAMES = [
    "A", "é", "e\u0301", "ß", "日本", "😀", "\u2028", "a\u0085", "\u200b", "\u00a0", "a b", " a", "a ", "a.b", "a,b", "a;b",
    "a\tb", "a|b", 'a"b', '"', "'", "\\", "a\\n", "a=b", "[0]", "{}", "$", "%41", "#", "1", "-1.5", "true", "nan", "null",
    "select", "item", "2026-01-01", "\x1f", "x" * 300,
]  # fmt: skip
NAMES_OF_OBJECTS = [*ODD_NAMES, "", "\ufeff", "a\nb", "\r", "\x00"]
"""Names that no line of a CSV file can hold, or not at its start."""
NO_HEADER = Bad(words="its first line")
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The null of a folder's name."""


def drawn_names(rng: random.Random, csv: CsvOptions | None) -> list[str]:
    """Return the columns of a schema, the timestamp first: in half of all worlds with names as nobody should choose them."""
    odd = NAMES_OF_OBJECTS if csv is None else ODD_NAMES
    count = rng.choice([2, 3, 4])
    if rng.random() < 0.5:
        return NAMES[:count]
    encoding = "utf-8" if csv is None else csv.encoding
    return rng.sample(
        [name for name in [*NAMES, *odd] if name.encode(encoding, "ignore").decode(encoding) == name], count
    )


def drawn_type(rng: random.Random, types: Sequence[pa.DataType], depth: int = 2) -> pa.DataType:
    if depth == 0 or rng.random() < 0.8:
        return rng.choice(types)
    inner = [drawn_type(rng, types, depth - 1) for _ in range(3)]
    kinds = [lambda: pa.list_(inner[0]), lambda: pa.struct(dict(zip("pqr", inner, strict=True)))]
    if types is LEAVES:
        kinds.append(lambda: pa.map_(rng.choice([pa.string(), pa.int32()]), inner[0]))
    return rng.choice(kinds)()


def drawn_text(rng: random.Random, parts: Sequence[str] = TEXTS) -> str:
    return "".join(rng.choices(parts, k=rng.choice([0, 1, 1, 1, 2, 3])))


def drawn_value(rng: random.Random, type: pa.DataType) -> Value:
    """Return a value that a file with this type may hold."""
    if rng.random() < 0.15 or pa.types.is_null(type):
        return None
    if pa.types.is_struct(type):
        return {each.name: drawn_value(rng, each.type) for each in type}
    if pa.types.is_map(type):
        keys = {drawn_value(rng, type.key_type) for _ in range(rng.randrange(4))} - {None}
        return [(key, drawn_value(rng, type.item_type)) for key in sorted(keys)]
    if is_list(type):
        count = type.list_size if pa.types.is_fixed_size_list(type) else rng.randrange(4)
        return [drawn_value(rng, type.value_type) for _ in range(count)]
    if pa.types.is_dictionary(type):
        return drawn_value(rng, type.value_type) or "a"
    if pa.types.is_boolean(type):
        return rng.random() < 0.5
    if pa.types.is_integer(type):
        least, most = limits(type)
        edges = [
            least, most, least + 1, 0, 1, 2, -1, 2049, 65505, 2**24 + 1, 2**53, 2**53 + 1, 255, 256,
            rng.getrandbits(62),
        ]  # fmt: skip
        return rng.choice([edge for edge in edges if least <= edge <= most])
    if pa.types.is_floating(type):
        edges = [
            0.0,
            -0.0,
            1.0,
            0.1,
            -2.5,
            1e300,
            5e-324,
            65504.0,
            2.0**53,
            2.0**64,
            1e23,
            math.inf,
            -math.inf,
            math.nan,
            rng.gauss(0, 9),
        ]
        with np.errstate(over="ignore"):
            return float({16: np.float16, 32: np.float32, 64: float}[type.bit_width](rng.choice(edges)))
    if pa.types.is_decimal(type):
        digits = rng.choice(["0", "1", "100", "1234", "9" * type.precision, str(rng.getrandbits(40))])[: type.precision]
        return Decimal(int(digits) * rng.choice([1, -1])).scaleb(-type.scale, HUGE)
    if pa.types.is_temporal(type):
        return drawn_time(rng, type)
    if is_bytes(type):
        return rng.choice([b"", b"\xff", b"\x00", drawn_text(rng).encode()])
    return drawn_text(rng)


def drawn_time(rng: random.Random, type: pa.DataType) -> Time:
    kind, unit = kind_of(type), unit_of(type)
    nanos = rng.choice([*TIMES, rng.randrange(FIRST, LAST), 1_767_225_600 * 10**9 + rng.randrange(10**9)])
    if kind == "time":
        nanos %= DAY
    if unit == 1:
        nanos = min(max(nanos, -NANOS_END), NANOS_END)
    return Time(kind, nanos // unit * unit)


# Parquet


def drifted(rng: random.Random, type: pa.DataType, is_column: bool = False) -> pa.DataType:
    """Return the type that a file has for a column whose schema says this type."""
    if rng.random() < 0.4:
        return type
    if is_column and rng.random() < 0.03:
        return pa.null()
    if pa.types.is_struct(type):
        fields = [pa.field(each.name, drifted(rng, each.type)) for each in type]
        fields = rng.sample(fields, rng.choice([0, *range(1, len(fields) + 1)]))
        return pa.struct([*fields, ("x", pa.string())] if rng.random() < 0.3 or not fields else fields)
    if pa.types.is_map(type):
        return pa.map_(type.key_type, drifted(rng, type.item_type))
    if is_list(type):
        inner = drifted(rng, type.value_type)
        return rng.choice([pa.list_(inner), pa.large_list(inner), pa.list_(inner, 2)])
    # pyarrow can't write all nested views.
    others = [pa.string(), pa.large_string(), pa.string_view() if is_column else pa.string()]
    if pa.types.is_integer(type):
        others = [*WHOLE * 2, pa.float16(), pa.float64(), pa.decimal128(20, 0), pa.bool_(), *others]
    elif pa.types.is_floating(type):
        others = [
            pa.float16(), pa.float32(), pa.float64(), pa.int16(), pa.int64(), pa.bool_(), pa.decimal128(10, 2), *others,
        ]  # fmt: skip
    elif pa.types.is_decimal(type):
        others = [
            *DECIMALS, pa.int32(), pa.int64(), pa.float16(), pa.float64(), pa.bool_(),
            pa.decimal128(38, type.scale % 39), *others,
        ]  # fmt: skip
    elif pa.types.is_boolean(type):
        others = [pa.int32(), pa.float16(), pa.float64(), pa.decimal128(1, 0), pa.decimal128(10, 2), *others]
    elif pa.types.is_timestamp(type):
        others = [*STAMPS, pa.date32(), pa.date64(), *others]
    elif pa.types.is_date(type):
        others = [pa.date64(), pa.timestamp("us"), pa.timestamp("ms", "UTC"), *others]
    elif pa.types.is_time(type):
        others = [pa.time32("ms"), pa.time64("us"), pa.time64("ns"), *others]
    elif is_bytes(type):
        others = [pa.large_binary(), pa.binary_view() if is_column else pa.binary(), pa.string()]
    else:
        if is_column:
            # pyarrow can't read all that it writes of nested dictionaries.
            others += [pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string())]
        others += [pa.binary(), pa.bool_(), pa.int64(), pa.uint64(), pa.date32(), pa.decimal128(10, 2)]
    return rng.choice(others)


NEVER = [
    (pa.types.is_temporal, [pa.int64(), pa.float64(), pa.bool_(), pa.list_(pa.date32())]),
    (pa.types.is_integer, [pa.date32(), pa.timestamp("ms"), pa.binary(), pa.struct([("p", pa.int64())])]),
    (pa.types.is_string, [pa.list_(pa.string())]),
    (pa.types.is_nested, [pa.int64(), pa.string(), pa.timestamp("us")]),
]
"""Types that are never read as another."""


def file_values(rng: random.Random, type: pa.DataType, count: int, wanted: pa.DataType) -> list[Value]:
    """Return values of a file's column. Texts are mostly such that the schema's type can be read of them."""
    if is_text(type) and not is_text(wanted) and not is_bytes(wanted):
        return [drawn_typed_text(rng, wanted) for _ in range(count)]
    return [drawn_value(rng, type) for _ in range(count)]


ODD = [
    "", " ", "abc", "0x1F", "1.5.", "--1", "1e999", "1e-400", "9" * 40, "2026-02-30", "2026-01-01T25:00:00Z", "12:60",
    "nil", "0", "1",
]  # fmt: skip


def drawn_typed_text(rng: random.Random, type: pa.DataType) -> str | None:
    """Return a text that a value of a type is read of, or nearly."""
    if rng.random() < 0.15:
        return rng.choice(ODD)
    value = drawn_value(rng, type)
    return None if value is None else rng.choice(["", "", "", "", " "]) + habit(rng, written(value), type)


def habit(rng: random.Random, text: str, type: pa.DataType) -> str:
    """Return a time as a program writes it: with a T, with a zone, without zeros."""
    if pa.types.is_timestamp(type) and rng.random() < 0.7:
        day, _, clock = text.partition(" ")
        return day + rng.choice("T ") + clock + rng.choice(["", "Z", "z", " UTC", "+01:00", "-0330", "+02"])
    return text


def parquet_file(rng: random.Random, name: str, schema: pa.Schema, is_mild: bool = False) -> WorldFile:
    """Return a Parquet file of a program; `is_mild` leaves out what Spark refuses: other types, and brotli."""
    count = rng.choice([0, 1, 3, 8, 20])
    fields = [
        each if is_mild else each.with_type(drifted(rng, each.type, True)) for each in schema if rng.random() < 0.93
    ]
    wrong = None
    if fields and rng.random() < 0.05 and not is_mild:
        wrong = rng.choice(fields).name
        kinds = [types for is_kind, types in NEVER if is_kind(schema.field(wrong).type)]
        type = rng.choice(kinds[-1]) if kinds else pa.map_(pa.string(), pa.string())
        fields = [each.with_type(type) if each.name == wrong else each for each in fields]
    fields.append(pa.field("unused", pa.string() if is_mild else drawn_type(rng, LEAVES)))
    rng.shuffle(fields)
    program = rng.choice([by_pyarrow, by_pyarrow, by_pyarrow, by_old_pyarrow, by_pandas, by_polars, by_duckdb])
    columns: dict[str, list[Value]] = {}
    for each in fields:
        wanted = schema.field(each.name).type if each.name in schema.names else each.type
        columns[each.name] = [whole_micros(value) for value in file_values(rng, each.type, count, wanted)]
    odd = (
        pa.types.is_null,
        pa.types.is_float16,
        pa.types.is_decimal256,
        pa.types.is_string_view,
        pa.types.is_binary_view,
    )
    if program in (by_duckdb, by_polars, by_old_pyarrow) and not {*schema.names}.issubset(NAMES):
        program = by_pandas  # Those have other names for odd ones.
    if wrong or any(is_odd(type) for type in leaves(each.type for each in fields) for is_odd in odd):
        program = by_pyarrow  # Others know no such types, or write them as others.
    stored = pa.table([to_arrow(columns[each.name], each.type) for each in fields], pa.schema(fields))
    content = (
        by_pyarrow(rng, stored, CODECS_OF_PARQUET[:-1]) if is_mild and program is by_pyarrow else program(rng, stored)
    )
    if wrong is not None:
        rows: list[Row] = [Bad((wrong,))]
    else:
        rows = [row_of({key: values[i] for key, values in columns.items()}, schema) for i in range(count)]
    try:
        came = pq.ParquetFile(io.BytesIO(content)).read([name for name in columns if name in schema.names])
        is_read = came.num_rows == count
    except (OSError, pa.ArrowInvalid):
        is_read = False
    if not is_read:
        # Not for pyarrow are DELTA_BINARY_PACKED of DuckDB, its fixed lists under a null, and lists on several pages V2.
        return WorldFile(name, content, rows, "not for pyarrow", is_noticed=True)
    return WorldFile(name, content, rows, "", len(rows), stored=stored)


def whole_micros(value: Value) -> Value:
    """Return a value without nanoseconds, which not all programs keep."""
    if isinstance(value, Time):
        return Time(value.kind, value.nanos // 1000 * 1000)
    if isinstance(value, dict):
        return {key: whole_micros(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(whole_micros, value))
    return value


CODECS_OF_PARQUET = ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]


def by_pyarrow(rng: random.Random, table: pa.Table, codecs: Sequence[str] = CODECS_OF_PARQUET) -> bytes:
    out = io.BytesIO()
    has_views = "view" in str(table.schema)  # pyarrow can't cut them.
    pq.write_table(
        table, out,
        version=rng.choice(["1.0", "2.4", "2.6"]),
        data_page_version=rng.choice(["1.0", "2.0"]),
        compression=rng.choice(codecs),
        use_dictionary=rng.random() < 0.5,
        row_group_size=100 if has_views else rng.choice([1, 5, 100]),
        data_page_size=None if has_views else rng.choice([64, None]),
        write_page_checksum=rng.random() < 0.5,
        write_page_index=rng.random() < 0.3,
        store_schema=rng.random() < 0.7,
        use_deprecated_int96_timestamps=rng.random() < 0.2,
        use_compliant_nested_type=rng.random() < 0.8,
    )  # fmt: skip
    return out.getvalue()


def by_old_pyarrow(rng: random.Random, table: pa.Table) -> bytes:
    """Write as pyarrow did for Spark before it knew the types of later versions of Parquet."""
    out = io.BytesIO()
    pq.write_table(
        table, out, version="1.0", flavor="spark", use_deprecated_int96_timestamps=True, write_statistics=False,
        store_schema=False, use_compliant_nested_type=False, compression=rng.choice(["snappy", "gzip", "none"]),
    )  # fmt: skip
    return out.getvalue()


def by_pandas(rng: random.Random, table: pa.Table) -> bytes:
    out = io.BytesIO()
    table.to_pandas(types_mapper=pd.ArrowDtype).to_parquet(out, index=rng.random() < 0.5)
    return out.getvalue()


def by_polars(rng: random.Random, table: pa.Table) -> bytes:
    out = io.BytesIO()
    pl.from_arrow(table).write_parquet(out, compression=rng.choice(["zstd", "snappy", "uncompressed"]), statistics=True)
    return out.getvalue()


def by_duckdb(rng: random.Random, table: pa.Table) -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        with duckdb.connect() as own:
            own.register("given", table)
            codec, version = rng.choice(["snappy", "zstd", "uncompressed"]), rng.choice(["V1", "V2"])
            own.sql(f"COPY given TO '{file.name}' (FORMAT parquet, CODEC {codec}, PARQUET_VERSION {version})")
        return Path(file.name).read_bytes()


# Texts


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda text: pa.compress(text, "zstd", asbytes=True),
}
WITH_CHECKSUM = (".gz", ".bz2")


def packed(rng: random.Random, content: bytes, ending: str) -> list[bytes]:
    """Return a text as a compressed file has it, in one piece or, as after appends, in several."""
    cuts = sorted(rng.randint(0, len(content)) for _ in range(rng.choice([0, 0, 1, 2])))
    return [CODECS[ending](content[i:j]) for i, j in pairwise([0, *cuts, len(content)])]


def csv_options(rng: random.Random) -> CsvOptions:
    return CsvOptions(
        delimiter=rng.choice([",", ",", ";", "\t", "|"]),
        quote=rng.choice(['"', '"', '"', "'"]),
        escape=rng.choice([None, None, "\\"]),
        encoding=rng.choice(["utf-8", "utf-8", "utf-8", "cp1252", "utf-16", "utf-8-sig", "shift_jis", "latin-1"]),
        decimal=rng.choice([".", ".", ","]),
        null=rng.choice([("",), ("",), ("", "NA"), ("\\N",), ("", "\\N")]),
        header=rng.choice(["name", "name", "position", "none"]),
    )


def csv_file(rng: random.Random, name: str, schema: pa.Schema, options: CsvOptions, is_mild: bool = False) -> WorldFile:
    """Return a CSV file of a program that quotes as these options say. Some have no header, though the options say so.

    If it `is_mild`, the header of columns that go by position has their names.
    """
    count = rng.choice([0, 1, 3, 8, 20])
    names = list(schema.names)
    is_headless = options.header == "name" and count > 0 and rng.random() < 0.2
    if options.header == "name":
        # Wider than a block of the parser, now and then.
        unused = rng.choice(["unused"] * 30 + ["u" * 1_100_000])
        names = [*rng.sample(names, rng.randint(1, len(names))), *([unused] if rng.random() < 0.9 else [])]
        rng.shuffle(names)
    types = {each: schema.field(each).type if each in schema.names else pa.string() for each in names}
    texts = {each: [csv_text(rng, type, options) for _ in range(count)] for each, type in types.items()}
    if options.header == "none" and count:
        # At the start of a file it is no text.
        texts[names[0]][0] = (texts[names[0]][0] or "").lstrip("\ufeff") or None
    if is_headless:
        for each in names:
            # What stands there is taken for names.
            text = (texts[each][0] or "").lstrip("\ufeff")
            texts[each][0] = "x" if text in ("", *schema.names) else text
    cut = None
    if count > 1 and rng.random() < 0.05 and not is_headless:
        # Each line of such a record is a record by itself, whatever that makes of it. The first line end is that of the file.
        cut = rng.randrange(1, count)
        texts[rng.choice(names)][cut] = f"a{rng.choice(LINE_ENDS)}b"
    programs: list[Callable[..., Csv]] = [by_excel]
    if cut is None and options.escape is None and options.encoding == "utf-8":
        programs.append(by_polars_csv)
        if len(names) > 1:
            programs.append(by_pandas_csv)  # It quotes the only field of a line that is a null.
        if options.quote == '"':
            programs.append(by_duckdb_csv)
        if options.quote == '"' and "" in options.null and len(names) > 1:
            programs.append(by_python_csv)
        if options.quote == '"' and options.null == ("",) and options.header != "none" and not is_headless:
            programs.append(by_pyarrow_csv)
    as_written = replace(options, header="none") if is_headless else options
    labels = (
        rng.sample([label for label in LABELS if label not in names], len(names))
        if options.header == "position" and not is_mild and rng.random() < 0.3
        else names
    )
    written_texts = dict(zip(labels, texts.values(), strict=True))
    content, is_quoted = rng.choice(programs)(rng, written_texts, as_written)

    def field_of(text: str | None, type: pa.DataType) -> Value:
        if text is None or (text in options.null and not is_quoted(text)):
            return None
        if options.decimal == "," and (pa.types.is_floating(type) or pa.types.is_decimal(type)):
            text = text.replace(".", "?").replace(",", ".")
        return read_as(text, type)

    raw = [{each: texts[each][i] for each in names} for i in range(count)]
    rows = [row_of(each, schema, field_of) for each in raw]
    header = row_of(dict(zip(names, labels, strict=True)), schema, field_of)
    if is_headless:
        rows = [NO_HEADER, *([dict.fromkeys(schema.names)] * (count - 1))]
        raw[0] = dict.fromkeys(str(texts[each][0]) for each in names)
    elif options.header == "name" and schema.names[0] not in names:
        rows.insert(0, NO_HEADER)
    elif labels != names and isinstance(header, dict) and not all(map(is_text, schema.types)):
        rows.insert(0, NO_HEADER)  # Its names are values, too.
    if options.header == "name" and not raw:
        raw = [dict.fromkeys(names)]
    if cut is not None:
        return WorldFile(name, content, rows, f"line end in {cut}", len(rows) - count + cut, count - cut - 1, raw=raw)
    return WorldFile(name, content, rows, "", len(rows), raw=raw)


LABELS = ["2024", "1", "0.5", "true", "2026-01-01", "12:00", "x"]
"""What columns are called where they go by their position."""


def csv_text(rng: random.Random, type: pa.DataType, options: CsvOptions) -> str | None:
    text = drawn_value(rng, type) if pa.types.is_string(type) else drawn_typed_text(rng, type)
    if text is None:
        return None
    if options.decimal == "," and rng.random() < 0.9 and (pa.types.is_floating(type) or pa.types.is_decimal(type)):
        text = text.replace(".", ",")
    kept: str = text.encode(options.encoding, "ignore").decode(options.encoding)
    return kept


Csv: TypeAlias = "tuple[bytes, Callable[[str], bool]]"
"""A CSV file, and whether its program quotes a text that may be a null."""


def by_excel(rng: random.Random, texts: dict[str, list[str | None]], options: CsvOptions) -> Csv:
    """Write as spreadsheets do: any encoding, line end and mark, quotes where they must be or everywhere."""
    quote, end = options.quote or '"', rng.choice(["\n", "\r\n", "\r"])
    everywhere = rng.random() < 0.3
    special = {quote, options.delimiter, options.escape or quote}

    def shown(text: str | None) -> str:
        if text is None:
            return rng.choice(options.null)
        if not everywhere and not {"\n", "\r"} & {*text} and (options.escape or not special & {*text}):
            return "".join(f"\\{each}" if each in special else each for each in text)
        if options.escape:
            return quote + text.replace("\\", "\\\\").replace(quote, "\\" + quote) + quote
        return quote + text.replace(quote, 2 * quote) + quote

    lines = [options.delimiter.join(map(shown, row)) for row in zip(*texts.values(), strict=True)]
    if options.header != "none":
        lines.insert(0, options.delimiter.join(map(shown, texts)))
    # An empty line at the end of a file is none without its end.
    must_end = (end == "\r" and lines != []) or lines[-1:] == [""] or (not lines and len(texts) > 1)
    content = end.join(lines) + end * (must_end or (lines != [] and rng.random() < 0.8))
    mark = "\ufeff" if options.encoding == "utf-8" and rng.random() < 0.3 else ""
    return (mark + content).encode(options.encoding), lambda text: everywhere or (options.escape or "\n") in text


def by_python_csv(rng: random.Random, texts: dict[str, list[str | None]], options: CsvOptions) -> Csv:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=options.delimiter, lineterminator=rng.choice(["\r\n", "\n"]))
    if options.header != "none":
        writer.writerow(texts)
    writer.writerows(zip(*texts.values(), strict=True))
    return out.getvalue().encode(), lambda text: False


def by_pandas_csv(rng: random.Random, texts: dict[str, list[str | None]], options: CsvOptions) -> Csv:
    frame = pd.DataFrame(texts, dtype=object)
    content = frame.to_csv(
        index=False, sep=options.delimiter, quotechar=options.quote, header=options.header != "none",
        lineterminator=rng.choice(["\n", "\r\n"]), na_rep=rng.choice(options.null),
    )  # fmt: skip
    return content.encode(), lambda text: False


def by_polars_csv(rng: random.Random, texts: dict[str, list[str | None]], options: CsvOptions) -> Csv:
    frame = pl.DataFrame(texts, schema=dict.fromkeys(texts, pl.String))
    written = frame.write_csv(
        separator=options.delimiter,
        quote_char=options.quote or '"',
        include_header=options.header != "none",
        null_value=rng.choice(options.null),
    )
    return written.encode(), lambda text: text == ""


def by_pyarrow_csv(rng: random.Random, texts: dict[str, list[str | None]], options: CsvOptions) -> Csv:
    out = io.BytesIO()
    pa_csv.write_csv(as_table(texts), out, pa_csv.WriteOptions(delimiter=options.delimiter))
    return out.getvalue(), lambda text: True


def by_duckdb_csv(rng: random.Random, texts: dict[str, list[str | None]], options: CsvOptions) -> Csv:
    null = rng.choice(options.null)
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        with duckdb.connect() as own:
            own.register("given", as_table(texts))
            rules = f"HEADER {options.header != 'none'}, DELIMITER '{options.delimiter}', NULLSTR '{null}'"
            own.sql(f"COPY given TO '{file.name}' (FORMAT csv, {rules})")
        return Path(file.name).read_bytes(), lambda text: text == null


def as_table(texts: dict[str, list[str | None]]) -> pa.Table:
    return pa.table({name: pa.array(column, pa.string()) for name, column in texts.items()})


def json_file(rng: random.Random, name: str, schema: pa.Schema, is_mild: bool = False) -> WorldFile:
    """Return a file of JSON objects, as Python, JavaScript or others write them; `is_mild` leaves out what Spark reads not."""
    count = rng.choice([0, 1, 3, 8, 20])
    lines, rows, raw = [], [], []
    ascii, space = rng.random() < 0.5, rng.choice(["", " "])
    has_columns = [each for each in schema if rng.random() < 0.93]
    has_fields = rng.random() < 0.9
    has_decimals = any(map(pa.types.is_decimal, leaves(schema.types)))
    for _ in range(count):
        values = {each.name: json_value(rng, each.type, has_fields) for each in has_columns if rng.random() < 0.93}
        values = {key: value for key, value in values.items() if value is not None or rng.random() < 0.7}
        if not is_mild and rng.random() < 0.1:
            values = {key: with_other_name(rng, value) for key, value in values.items()}
        row = row_of(values, schema, of_json)
        by_python_too = is_mild or has_decimals or isinstance(row, Bad)
        unused = rng.choices(UNUSED if by_python_too else [*UNUSED, *UNUSED_BY_PYTHON], k=rng.randrange(2))
        raw.append(values | dict.fromkeys(["unused"][: len(unused)]))
        members = [(key, json_text(value, ascii, space)) for key, value in values.items()]
        members += [("unused", text) for text in unused]
        if not is_mild and rng.random() < 0.05 and (other := other_name(rng, schema, values)):
            members.append((other, rng.choice(["null", "1", '"a"'])))
            row = Bad(words="column " if isinstance(row, Bad) else " is not in it, but ")
        rows.append(row)
        rng.shuffle(members)
        line = (
            "{"
            + f",{space}".join(f"{json.dumps(key, ensure_ascii=ascii)}:{space}{text}" for key, text in members)
            + "}"
        )
        lines.append(rng.choice(["", "", "", " ", "\t"]) + line + rng.choice(["", "", "", " "]))
    end = rng.choice(["\n", "\n", "\r\n"])
    return WorldFile(name, (end.join(lines) + end * (rng.random() < 0.8)).encode(), rows, "", count, raw=raw)


def other_name(rng: random.Random, schema: pa.Schema, values: dict[str, Value]) -> str | None:
    """Return another name of a column that a JSON record does not have; None if it has all."""
    absent = [name for name in schema.names if name not in values]
    others = [
        other
        for name in absent
        for other in (name.upper(), f" {name}", f"{name}\u200b", f"\ufeff{name} ", f"{name}\x85")
    ]
    others += [unicodedata.normalize(form, name) for name in absent for form in ("NFC", "NFD")]
    others = [other for other in others if other not in schema.names]
    return rng.choice(others) if others else None


def with_other_name(rng: random.Random, value: Value) -> Value:
    """Return a value with another name of a field in one of its objects, if it has any."""
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        return [with_other_name(rng, each) if i == place else each for i, each in enumerate(value)]
    if isinstance(value, dict) and value:
        name = rng.choice([*value])
        if isinstance(value[name], (dict, list)) and rng.random() < 0.5:
            return {**value, name: with_other_name(rng, value[name])}
        other = rng.choice([name.upper(), f" {name}", f"{name}\u200b", f"{name}x"])
        return {other if each == name else each: inner for each, inner in value.items()}
    return value


UNUSED_BY_PYTHON = ["Inf", "-Inf", "-NaN", "[[Inf], {}]", "[" * 2_000 + "]" * 2_000]
"""Values that pyarrow reads and Python does not. What is bad in such a line, or an odd decimal, is not named."""
UNUSED = ["1e999", '"\\ud83d"', "null", "[1, {}]", '{"a": [null]}', "-0", '"\\u0000"', "1" * 50]


def json_value(rng: random.Random, type: pa.DataType, has_fields: bool = True) -> Value:
    """Return a value of JSON; the objects within it have other fields than those of the type if not `has_fields`."""
    if rng.random() < 0.15:
        return None
    if rng.random() < 0.02:
        return rng.choice([Number("1"), "a", True, [], {}])
    if pa.types.is_struct(type):
        if not has_fields:
            return {"x": Number("1")}
        return {each.name: json_value(rng, each.type) for each in type if rng.random() < 0.9}
    if is_list(type):
        return [json_value(rng, type.value_type, has_fields) for _ in range(rng.randrange(4))]
    if pa.types.is_string(type):
        return drawn_text(rng, [*TEXTS, *LINE_ENDS])
    if pa.types.is_temporal(type):
        return drawn_typed_text(rng, type) or "x"
    value = drawn_value(rng, rng.choice([type, type, pa.int64(), pa.float64()]))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e20 and rng.random() < 0.5:
        return Number(int(value))  # as JavaScript does
    text = Number(written(value))
    return str(text) if pa.types.is_decimal(type) and rng.random() < 0.3 else text


def json_text(value: Value, ascii: bool, space: str) -> str:
    if isinstance(value, Number):
        return value
    if isinstance(value, dict):
        return "{" + ",".join(f'"{key}":{space}{json_text(each, ascii, space)}' for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + f",{space}".join(json_text(each, ascii, space) for each in value) + "]"
    return json.dumps(value, ensure_ascii=ascii)


# Damage


def damaged(rng: random.Random, file: WorldFile, ending: str, parts: Sequence[bytes]) -> WorldFile:
    """Return a file after an accident. `parts` are its compressed parts."""
    if file.stored is not None and len(file.stored) and rng.random() < 0.5:
        return with_flipped_page(rng, file)
    content, count = file.content, len(file.rows)
    kind = rng.choice(["cut", "flip", "zeros", "behind", *(["mark"] if len(parts) > 1 else [])])
    ends = [*accumulate(map(len, parts))]
    # What each compressed part begins with is known by its first bytes.
    at = rng.choice(ends[:-1]) + rng.randrange(3) if kind == "mark" else rng.randrange(len(content))
    if kind == "cut" and at in ends:
        at += 1  # A file that ends with one of its parts looks whole.
    if kind == "cut":
        broken = content[:at]
    elif kind in ("flip", "mark"):
        broken = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    elif kind == "zeros":
        broken = content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :]
    else:
        broken = content + rng.choice([bytes(20), b"garbage", b"\xff\xfe\n"])
    made = replace(file, content=broken, damage=f"{kind} at {at}", first=0)
    if file.stored is not None:
        return replace(made, is_noticed=kind in ("cut", "behind"))
    if ending:
        is_checked = ending in WITH_CHECKSUM and not (ending == ".gz" and looks_cut(broken))
        return replace(made, is_noticed=kind in ("cut", "behind", "mark") or is_checked)
    # One line is one record behind the header. The line that is hit, and the next one, may be anything.
    headers = content.count(b"\n") + (not content.endswith(b"\n")) - count
    before = content[: len(content) if kind == "behind" else at].count(b"\n") - headers
    if kind != "behind" and b"\n" not in content[:at]:
        return made  # The first line may be the header of all others.
    after = content[at + 64 :].count(b"\n") + (not content.endswith(b"\n")) - 2 if kind in ("flip", "zeros") else 0
    if before < 0:
        return made
    return replace(made, first=min(before, count), last=max(0, min(after, count - before)))


def looks_cut(content: bytes) -> bool:
    """Return whether a damaged gzip file looks as if it ended too early. Its checksum, which would be wrong, is not reached."""
    while content:
        stream = zlib.decompressobj(31)
        try:
            stream.decompress(content)
        except zlib.error:
            return False
        if not stream.eof:
            return True
        content = stream.unused_data
    return False


def with_flipped_page(rng: random.Random, file: WorldFile) -> WorldFile:
    """Return a Parquet file whose pages have checksums, and a flipped bit in one of them."""
    out = io.BytesIO()
    pq.write_table(
        file.stored, out, write_page_checksum=True, compression=rng.choice(CODECS_OF_PARQUET),
        use_dictionary=rng.random() < 0.5, data_page_version=rng.choice(["1.0", "2.0"]),
        row_group_size=100 if "view" in str(file.stored.schema) else 7,
    )  # fmt: skip
    content = bytearray(out.getvalue())
    parquet = pq.read_metadata(out)
    chunk = parquet.row_group(rng.randrange(parquet.num_row_groups)).column(rng.randrange(parquet.num_columns))
    # The last byte of a column is within a page, and not within a header, which has no checksum.
    end = (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
    content[end - 1] ^= 1 << rng.randrange(8)
    return replace(file, content=bytes(content), damage=f"flip in {chunk.path_in_schema}", first=0, is_noticed=True)


# Reading


class Found(list["dict[str, Value] | str"]):
    """The records that a `FileSource` reads of a file, in their order: rows or the reasons of bad ones.

    `notes` has the columns of its notes, and `lacks` those that its chunks lack. `unshown` has the reasons of bad records that
    name a column whose value no `origin` has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.notes: set[str] = set()
        self.lacks: set[str] = set()
        self.unshown: set[str] = set()


def read(world: World, folder: Path) -> dict[str, Found]:
    """Return what a `FileSource` reads of each file."""
    for each in world.files:
        (folder / each.name).parent.mkdir(parents=True, exist_ok=True)
        (folder / each.name).write_bytes(each.content)
    source = FileSource(folder, timestamp=world.schema.names[0], schema=world.schema, **world.options)
    source.open([], {})
    reach = source.reach({}, True)
    names = sorted(each.name for each in world.files)
    found: dict[str, dict[int, Any]] = {name: {} for name in names}
    made = {name: Found() for name in names}
    for split in source.splits({}, reach.ends, 1):
        for chunk in source.read(split):
            of_file = made[names[chunk.first >> 32]]
            of_file.notes.update(chunk.notes)
            of_file.lacks.update(chunk.lacks)
            of_file.unshown.update(unshown(chunk))
            columns = [of_arrow(column) for column in chunk.rows.columns]
            assert chunk.rows.schema.equals(world.schema)
            records = [dict(zip(world.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
            for place, record in [
                *zip(chunk.positions.tolist(), records, strict=True),
                *((b.position, b.reason) for b in chunk.bad),
            ]:
                assert place % 2**32 not in found[names[place >> 32]], "two records at one place"
                found[names[place >> 32]][place % 2**32] = record
    for name, path in world.moved.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).rename(folder / path)
    again = source.reach(reach.ends, True)
    late = {path for split in source.splits(reach.ends, again.ends, 1) for _, path, *_ in split}
    # What its folders called wrongly, and what has nothing in it, is read under another name.
    known = {world.moved.get(each.name) for each in world.files if each.content and each.is_fit}
    assert known.isdisjoint(late), f"{late} were read before"
    for records in found.values():
        assert sorted(records) == list(range(len(records))), "a place without a record"
    for name, records in found.items():
        made[name].extend(records[place] for place in sorted(records))
    return made


def unshown(chunk: Chunk) -> Iterator[str]:
    """Yield the reasons that name a column, of bad records of a chunk whose value of the column is not shown."""
    assert chunk.originals is not None
    came = chunk.originals(np.array([record.position for record in chunk.bad], np.int64))
    for record, origin in zip(chunk.bad, came["origin"].to_pylist(), strict=True):
        is_named = re.match("column (?!.*( is not in it, but |, in its folder's name$))", record.reason, re.DOTALL)
        if is_named and origin["value"] is None:
            yield record.reason


def misses(file: WorldFile, schema: pa.Schema, found: Found) -> Iterator[str]:
    """Yield in words where a file's notes do not name just the columns, and the fields of structs, that it does not have."""
    if file.damage or not file.is_fit or not found or any(map(is_unreadable, found)):
        return
    if file.stored is not None:
        there = names_in(file.stored.schema)
    elif ".csv" in file.name:
        # Those of the header, or of the line that is taken for one, which may be a record beside them.
        there = {name: {} for name in file.raw[0]} if file.raw else {}
    else:
        there = names_of([raw for raw, record in zip(file.raw, found, strict=True) if not isinstance(record, str)])
    schema = file.columns(schema)
    right = missing(there, names_in(schema)) if there else set()
    columns = right.intersection(schema.names)
    for what, names, wanted in (("notes", found.notes, right), ("lacks", found.lacks, columns)):
        # A file without any of several columns has one note of all.
        is_of_all = what == "notes" and names == {""} and columns == {*schema.names} and len(columns) > 1
        if names != wanted and not is_of_all:
            yield f"its {what} are of {names}, not of {wanted}"


def differences(file: WorldFile, found: list[dict[str, Value] | str]) -> Iterator[str]:
    """Yield in words where what was read of a file is not what is in it."""
    if file.is_noticed:
        is_whole = len(found) == len(file.rows) and not (found and is_unreadable(found[-1]))
        if not is_whole and not (found and is_unreadable(found[-1])):
            yield f"{len(found)} records of {len(file.rows)}, and no bad one for the others: {found[-1:]}"
        found = found if is_whole else found[:-1]
        if len(found) > len(file.rows):
            yield f"{len(found)} records, not {len(file.rows)}"
        pairs = [*zip(file.rows, found, strict=False)]
    else:
        if not file.damage and len(found) != len(file.rows):
            yield f"{len(found)} records, not {len(file.rows)}: {found[:3]}"
        pairs = [*zip(file.rows[: file.first], found, strict=False)]
        if len(pairs) < file.first:
            yield f"{len(found)} records, not {file.first}"
        if file.last:
            pairs += zip(file.rows[-file.last :], found[-file.last :], strict=False)
    for place, (right, came) in enumerate(pairs):
        if isinstance(right, Bad):
            if not isinstance(came, str):
                yield f"record {place} must be bad for {right.columns}: {came}"
            elif right.words not in came or not (
                right.words or any(f"column {column}" in came for column in right.columns)
            ):
                yield f"record {place} is bad for {came!r}, not for {right.columns}"
        elif isinstance(came, str) or not same(right, came):
            yield f"record {place} is {came}, not {right}"


@cache
def base() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def other_readers(content: bytes, stored: pa.Table) -> Iterator[str]:
    """Yield where pyarrow and DuckDB read other values of a Parquet file than were written."""
    parquet = pq.ParquetFile(io.BytesIO(content), coerce_int96_timestamp_unit="us")
    tables = {"pyarrow": parquet.read(stored.column_names)}
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        Path(file.name).write_bytes(content)
        tables["DuckDB"] = base().sql(f"FROM read_parquet('{file.name}')").to_arrow_table()
    for reader, table in tables.items():
        for each in stored.schema:
            if reader == "DuckDB" and each.name not in {*NAMES}.intersection(table.column_names):
                continue  # It has other names for odd ones.
            # Such decimals are floats to DuckDB, such dates are timestamps in Parquet, and a column of nulls has any type.
            kinds = [*leaves([each.type])]
            if pa.date64() in kinds or pa.null() in kinds or (reader == "DuckDB" and DECIMALS[-1] in kinds):
                continue
            written, came = ([*map(of_arrow, given[each.name].chunks)] for given in (stored, table))
            if not same([*chain(*written)], [*chain(*came)]):
                yield f"{reader} reads column {each.name} {each.type} as {came}, not {written}"


def is_unreadable(record: dict[str, Value] | str) -> bool:
    return isinstance(record, str) and record.startswith("unreadable file")


SPARK_LEAVES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.string(),
    pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.decimal128(10, 2), pa.decimal128(38, 2),
    pa.decimal128(38, 38),
]  # fmt: skip


def spark_world(rng: random.Random, format: str) -> World:
    """Return a folder that Spark can read at once: whole files, of types that Spark has."""
    schema = pa.schema(
        {name: drawn_type(rng, SPARK_LEAVES, 0 if format == "csv" else 2) for name in ("ts", "a", "b", "c")}
    )
    if format == "parquet":
        files = [parquet_file(rng, f"{i}.parquet", schema, True) for i in range(6)]
        return World(schema, [file for file in files if not file.damage])
    csv = replace(
        csv_options(rng), header="position", escape=None, quote='"', decimal=".", encoding="utf-8", null=("",)
    )
    if csv.delimiter == "\t":
        csv = replace(csv, delimiter=";")  # Spark leaves lines of nothing but white space out.
    endings = [rng.choice([*CODECS][:3]) for _ in range(6)]
    names = [f"{i}.{format}{ending}" for i, ending in enumerate(endings)]
    files = [
        csv_file(rng, name, schema, csv, True) if format == "csv" else json_file(rng, name, schema, True)
        for name in names
    ]
    files = [replace(file, content=CODECS[ending](file.content)) for file, ending in zip(files, endings, strict=True)]
    return World(schema, [file for file in files if not file.damage], {"csv": csv} if format == "csv" else {})


def drawn_world(rng: random.Random) -> World:
    """Return a folder of one format. One file in four has met with an accident. Spark has written one folder in ten."""
    if rng.random() < 0.1:
        return world_of_spark(rng)
    format = rng.choice(["parquet", "csv", "json"])
    types = {"parquet": LEAVES, "csv": TEXT_LEAVES, "json": JSON_LEAVES}[format]
    csv = csv_options(rng)
    names = drawn_names(rng, csv if format == "csv" else None)
    schema = pa.schema({name: drawn_type(rng, types, 0 if format == "csv" else 2) for name in names})
    flat = [each.name for each in schema if 0 < len(each.name) < 50 and not pa.types.is_nested(each.type)]
    flat = [name for name in flat if name != names[0] and schema.field(name).type != pa.binary()]
    by = rng.sample(flat, min(rng.choice([0, 0, 1, 2]), len(flat)))
    files = []
    for i in range(3):
        ending = "" if format == "parquet" else rng.choice([*CODECS])
        name = f"{i}.{format}{ending}"
        own = pa.schema([each for each in schema if each.name not in by])
        if format == "csv":
            file = csv_file(rng, name, own, csv)
        else:
            file = (parquet_file if format == "parquet" else json_file)(rng, name, own)
        is_plain = format != "csv" or (csv.encoding == "utf-8" and b"\n" in file.content and csv.header == "name")
        is_hit = rng.random() < 0.25 and is_plain and file.content and not file.damage
        parts = packed(rng, file.content, ending) if ending else [file.content]
        file = replace(file, content=b"".join(parts))
        if is_hit:
            file = damaged(rng, file, ending, parts)
        files.append(in_folders(rng, file, [schema.field(name) for name in by]))
    moved = {
        file.name: rng.choice([f"archive/{file.name}", f"x=1/{file.name}", f"archive/{Path(file.name).name}"])
        for file in files
        if rng.random() < 0.3
    }
    return World(schema, files, {"csv": csv} if format == "csv" else {}, moved)


@cache
def files_of_spark() -> dict[str, bytes]:
    """Return the files that `tests/fixtures/write_spark_files.py` wrote by Spark, by their paths."""
    with tarfile.open(Path(write_spark_files.__file__).with_name("spark-files.tar.xz")) as archive:
        return {str(Path(member.name)): archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def world_of_spark(rng: random.Random) -> World:
    """Return a folder that Spark wrote: some of its columns, of Parquet also as other types."""
    kind = rng.choice(sorted({path.split("/")[0] for path in files_of_spark()}))
    format, by = kind.removeprefix("folders-"), ("k", "day") if kind.startswith("folders-") else ()
    stored = write_spark_files.tables()[format]
    stored = stored.select(["ts", "n", *by]) if by else stored
    columns = [each for each in stored.schema if each.name == "ts" or rng.random() < 0.7]
    is_drifting = kind == "parquet"
    schema = pa.schema([each.with_type(as_other(rng, each.type)) if is_drifting else each for each in columns])
    files = []
    for path, content in files_of_spark().items():
        if not path.startswith(f"{kind}/"):
            continue
        records = [dict(zip(VALUES, row, strict=True)) for row in zip(*VALUES.values(), strict=True)]
        if by:
            # Spark writes an empty text as it writes null.
            records = [{**row, "k": None if row["k"] in ("", NO_VALUE) else row["k"]} for row in records]
            records = [row for row in records if unquote(path).startswith(f"{kind}/{folders(row, by)}/")]
        rows = [row_of(row, schema) for row in records]
        if "all-quoted" in path:
            # So are nulls then, and look as empty texts do.
            rows = [
                row_of({key: "" if value is None else value for key, value in row.items()}, schema) for row in records
            ]
        raw = [{key: value for key, value in row.items() if key in stored.column_names} for row in records]
        if format == "json" and "with-nulls" not in path:
            raw = [{key: value for key, value in row.items() if value is not None} for row in raw]
        file = WorldFile(path.removeprefix(f"{kind}/"), content, rows, "", len(rows), raw=raw, in_folders=by)
        file = replace(file, stored=stored) if is_drifting else file
        ending = file.name.rpartition(".")[2]
        files.append(
            damaged(rng, file, f".{ending}" * (f".{ending}" in CODECS), [content]) if rng.random() < 0.1 else file
        )
    return World(schema, files, {"csv": CsvOptions(escape="\\")} if format == "csv" else {})


def folders(row: dict[str, Value], by: Sequence[str]) -> str:
    return "/".join(f"{name}={NO_VALUE if row[name] is None else written(row[name])}" for name in by)


def as_other(rng: random.Random, type: pa.DataType) -> pa.DataType:
    """Return a type that values of another one may be read as."""
    if pa.types.is_integer(type) or pa.types.is_boolean(type):
        return rng.choice([type, pa.int64(), pa.float64(), pa.decimal128(20, 0), pa.string()])
    if pa.types.is_timestamp(type):
        return rng.choice([type, *STAMPS, pa.date32()])
    if pa.types.is_date(type):
        return rng.choice([type, pa.date64(), pa.timestamp("ms"), pa.string()])
    return rng.choice([type, pa.large_string()] if pa.types.is_string(type) else [type])


def in_folders(rng: random.Random, file: WorldFile, columns: Sequence[pa.Field]) -> WorldFile:
    """Return a file in folders that hold these columns, as Hive and Spark name them."""
    path, values, is_fit = "", {}, True
    for column in columns:
        text = drawn_text(rng) if pa.types.is_string(column.type) else drawn_typed_text(rng, column.type)
        text = None if text is None else text[:20]
        # Spark leaves letters beyond ASCII as they are, others encode them.
        kept = rng.choice(["", " ,;é日😀", "+()"])
        value = NO_VALUE if text is None else quote(text, safe=kept)
        path += f"{quote(column.name, safe=kept)}={value}/"
        try:
            values[column.name] = None if text is None else read_as(text, column.type)
        except Misfit:
            is_fit = False
    bad = Bad(words=", in its folder's name")
    rows = [row if isinstance(row, Bad) else {**row, **values} if is_fit else bad for row in file.rows]
    names = tuple(column.name for column in columns)
    return replace(file, name=path + file.name, rows=rows, in_folders=names, is_fit=is_fit)


def main(seed: int, count: int) -> None:
    """Read the worlds of these seeds, and say what came out wrong."""
    logging.getLogger("persistent_state").setLevel(logging.ERROR)
    failed = 0
    for each in range(seed, seed + count):
        world = drawn_world(random.Random(each))
        print(f"seed {each}", flush=True)
        for text in failures(world):
            failed += 1
            print(f"  {text}\n    of {world.schema.to_string()} by {world.options}", flush=True)
    sys.exit(f"{failed} differences" if failed else 0)


def failures(world: World) -> Iterator[str]:
    """Yield in words what is wrong with what is read of a world."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = read(world, Path(folder))
        except Exception as error:
            yield f"{[(each.name, each.damage) for each in world.files]}: {error!r}"
            return
    for file in world.files:
        if file.stored is not None and not file.damage:
            read_here = [name for name in file.stored.column_names if name in world.schema.names]
            yield from other_readers(file.content, file.stored.select(read_here))
        unshown = (f"no value is shown of: {reason}" for reason in found[file.name].unshown)
        for text in chain(differences(file, found[file.name]), misses(file, world.schema, found[file.name]), unshown):
            types = "" if file.stored is None else f"; it has {file.stored.schema.to_string()}"
            yield f"{file.name}, {file.damage or 'whole'}: {text}{types}"


if __name__ == "__main__":
    faulthandler.enable()
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
