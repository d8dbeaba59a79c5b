"""Files are read whole, once, in one order that a journal keeps; what can't be read stands apart, at its own position."""

from __future__ import annotations

import gzip
import inspect
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.errors import InvalidInputError, StateError, StoreUnavailableError, TaskFailedError
from persistent_state.event_time.inputs import named_in
from persistent_state.inputs import Inputs, check_again
from persistent_state.redact import shown
from persistent_state.sources import folder, formats, listing, text_blocks, transforms
from persistent_state.sources.base import BadRecord, Chunk, Reach
from persistent_state.sources.files import FileSource
from tests import core
from tests.sentences import problem

UTC = timezone.utc
STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema({"ts": STAMP, "key": pa.string(), "value": pa.int64()})
FILE = 1 << 32


def table(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    stamps = pa.array([n * 1_000_000 for n in numbers], pa.int64()).cast(STAMP)
    return pa.table({"ts": stamps, "key": [f"k{n % 3}" for n in numbers], "value": list(numbers)}, schema=SCHEMA)


def encode(rows: pa.Table, name: str, row_group_size: int | None = None) -> bytes:
    """The rows as a file of this name holds them."""
    out = io.BytesIO()
    if ".csv" in name:
        pa_csv.write_csv(rows, out)
    elif "json" in name:
        out.write(b"".join(json.dumps(row, default=str).encode() + b"\n" for row in rows.to_pylist()))
    else:
        pq.write_table(rows, out, row_group_size=row_group_size)
    if name.endswith((".gz", ".bz2", ".zst")):
        kind = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}[name.rpartition(".")[2]]
        packed = pa.BufferOutputStream()
        with pa.CompressedOutputStream(packed, kind) as stream:
            stream.write(out.getvalue())
        return packed.getvalue().to_pybytes()
    return out.getvalue()


def write(folder: Path, name: str, content: pa.Table | bytes | str, modified: float | None = None) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = encode(content, name) if isinstance(content, pa.Table) else content
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    if modified is not None:
        os.utime(path, (modified, modified))


def source(folder: Path | str, **options: Any) -> FileSource:
    return FileSource(folder, **{"timestamp": "ts", "schema": SCHEMA, **options})


def counted(function: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    """The function, which adds its name to the calls each time."""

    def count(*arguments: Any, **options: Any) -> Any:
        calls.append(function.__name__)
        return function(*arguments, **options)

    return count


class Driver:
    """What the engine does with a source, with what it would keep in the log."""

    def __init__(
        self, make: Callable[[], FileSource], journal: Sequence[str] = (), start: int = 0, known: int = 0
    ) -> None:
        self.source = make()
        self.worker = pickle.dumps(self.source)
        self.journal = list(journal)
        self.position = {"": start} if start else {}
        self.source.open(self.journal, {"": known or start})

    def next(self, parts: int = 2, everything: bool = False) -> list[Chunk]:
        """The chunks of one micro-batch, each part read by a copy of its own."""
        reach: Reach = self.source.reach(self.position, everything)
        splits = self.source.splits(self.position, reach.ends, parts)
        assert len(splits) <= parts
        self.position = dict(reach.ends)
        self.journal += reach.journal
        return [
            chunk for split in splits for chunk in pickle.loads(self.worker).read(pickle.loads(pickle.dumps(split)))
        ]

    def batches(self) -> Iterator[list[Chunk]]:
        while True:
            before = self.position
            chunks = self.next()
            if self.position == before:
                return
            yield chunks

    def rest(self) -> list[Chunk]:
        return [chunk for batch in self.batches() for chunk in batch]


def values(chunks: Sequence[Chunk], column: str = "value") -> list[Any]:
    return [value for chunk in chunks for value in chunk.rows.column(column).to_pylist()]


def at(chunks: Sequence[Chunk]) -> list[int]:
    return [position for chunk in chunks for position in chunk.positions.tolist()]


def bad(chunks: Sequence[Chunk]) -> list[tuple[int, str, str | None]]:
    """Place, reason and text of each bad record; the name of its file where it has no text."""
    found = []
    for chunk in chunks:
        assert chunk.originals is not None
        came = chunk.originals(np.array([record.position for record in chunk.bad], np.int64)).to_pylist()
        for record, original in zip(chunk.bad, came, strict=True):
            text = original["record"]
            shown = original["origin"]["file"] if text is None else text.decode(errors="backslashreplace")
            found.append((record.position, record.reason, shown))
    return found


def read_all(folder: Path | str, **options: Any) -> list[Chunk]:
    return Driver(lambda: source(folder, **options)).rest()


class TestFormats:
    @pytest.mark.parametrize(
        "ending", ["parquet", "csv", "csv.gz", "csv.zst", "json", "jsonl", "ndjson", "json.bz2", "jsonl.gz", "CSV"]
    )
    def test_every_format_gives_the_rows_with_their_positions(self, tmp_path: Path, ending: str) -> None:
        name = f"a.{ending}"
        (tmp_path / name).write_bytes(encode(table(0, 10), name.lower()))
        (tmp_path / f"b.{ending}").write_bytes(encode(table(10, 5), name.lower()))
        chunks = read_all(tmp_path)
        assert pa.Table.from_batches([c.rows for c in chunks]) == table(0, 15).combine_chunks()
        assert at(chunks) == [*range(10), *range(FILE, FILE + 5)]
        assert not bad(chunks)

    @pytest.mark.soak
    @pytest.mark.one_in(2)
    def test_a_header_may_be_longer_than_a_block(self, tmp_path: Path) -> None:
        names = [f"{i}-{'x' * 100}" for i in range(20_000)]
        write(tmp_path, "a.csv", f"value,ts,{','.join(names)}\n1,{',' * len(names)}\n")
        chunks = read_all(tmp_path)
        assert (values(chunks), bad(chunks)) == ([1], [])

    def test_a_given_format_needs_no_ending(self, tmp_path: Path) -> None:
        write(tmp_path, "part-0", encode(table(0, 3), ".csv"))
        assert values(read_all(tmp_path, format="csv")) == [0, 1, 2]

    def test_a_file_whose_ending_tells_no_format_is_one_bad_record(self, tmp_path: Path) -> None:
        write(tmp_path, "a.txt", "hello\n")
        write(tmp_path, "b.csv", table(0, 2))
        chunks = read_all(tmp_path)
        assert values(chunks) == [0, 1]
        assert bad(chunks) == [(0, "unreadable file: its ending tells no format", "a.txt")]

    @pytest.mark.parametrize(
        ("name", "options", "why"),
        [
            ("a.json.xz", {}, "not supported: xz"),
            ("a.json.xz", {"format": "json"}, "not supported: xz"),
            ("a.csv.lz4", {"format": "csv"}, "not supported: lz4"),
            ("a.zip", {}, "not supported: zip"),
            ("a.orc", {}, "it is orc, which is not read"),
            ("a.AVRO", {}, "it is avro, which is not read"),
            ("sales.xlsx", {}, "it is xlsx, which is not read"),
            ("a.dat", {}, "its ending tells no format"),
        ],
    )
    def test_a_file_that_is_never_read_says_what_it_is(
        self, tmp_path: Path, name: str, options: dict[str, Any], why: str
    ) -> None:
        write(tmp_path, name, b"x")
        driver = Driver(lambda: source(tmp_path, **options))
        assert bad(driver.rest()) == [(0, f"unreadable file: {why}", name)]
        Driver(lambda: source(tmp_path, **options), driver.journal, start=FILE)

    @pytest.mark.parametrize("name", ["sales.br", "old.tar", "a.csv.gzip", "b.csv.zstd"])
    def test_with_a_format_an_ending_is_part_of_a_name_and_compression_has_long_endings(
        self, tmp_path: Path, name: str
    ) -> None:
        kind = {"gzip": "a.csv.gz", "zstd": "a.csv.zst"}.get(name.rpartition(".")[2], "a.csv")
        write(tmp_path, name, encode(table(0, 3), kind))
        assert values(read_all(tmp_path, format="csv")) == [0, 1, 2]

    @pytest.mark.parametrize("has_schema", [True, False])
    def test_int96_and_views_of_a_first_file_give_plain_microseconds(self, tmp_path: Path, has_schema: bool) -> None:
        far = pa.array([datetime(9999, 12, 31)], pa.timestamp("us"))
        nested = pa.array([[{"x": "a"}]], pa.list_(pa.struct({"x": pa.string_view()})))
        out = io.BytesIO()
        rows = pa.table({"ts": far, "key": pa.array(["a"], pa.string_view()), "value": nested})
        pq.write_table(rows, out, use_deprecated_int96_timestamps=True)
        write(tmp_path, "a.parquet", out.getvalue())
        plain = pa.schema(
            {"ts": pa.timestamp("us"), "key": pa.string(), "value": pa.list_(pa.struct({"x": pa.string()}))}
        )
        asked = pa.schema({"ts": STAMP, "key": pa.string_view(), "value": nested.type})
        (chunk,) = read_all(tmp_path, schema=asked if has_schema else None)
        assert chunk.rows.schema.equals(plain.set(0, pa.field("ts", STAMP)) if has_schema else plain)
        assert chunk.rows.column("ts").cast(pa.int64())[0].as_py() == 253_402_214_400_000_000
        assert chunk.rows.take(pa.array([0])).to_pylist() == chunk.rows.to_pylist()

    @pytest.mark.parametrize("type", [pa.string_view(), pa.list_(pa.binary_view())])
    def test_a_transform_may_make_views(self, tmp_path: Path, type: pa.DataType) -> None:
        write(tmp_path, "a.parquet", table(0, 3))
        value = "a" if pa.types.is_string_view(type) else [b"a"]
        made = source(tmp_path, transform=lambda rows: rows.append_column("w", pa.array([value] * len(rows), type)))
        made.open([], {})
        (chunk,) = made.read(made.splits({}, made.reach({}, True).ends, 1)[0])
        assert chunk.rows.schema == made.schema
        assert chunk.rows.take(pa.array([1])).column("w").to_pylist() == [value]

    def test_an_error_of_a_reader_names_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: Any) -> Any:
            raise UnicodeDecodeError("utf-8", b"x", 0, 1, "broken")

        write(tmp_path, "a.parquet", table(0, 3))
        monkeypatch.setattr(formats, "_row_groups", broken)
        with pytest.raises(
            TaskFailedError, match=r"^file='a.parquet' of FileSource\(.*\) can't be read: UnicodeDecodeError"
        ):
            read_all(tmp_path)

    def test_the_schema_is_that_of_the_first_parquet_file_unless_given(self, tmp_path: Path) -> None:
        write(tmp_path, "a.csv", "ts\n")
        write(tmp_path, "b.parquet", table(0, 3))
        write(tmp_path, "c.parquet", table(0, 3).drop(["key"]))
        assert source(tmp_path, schema=None).schema == SCHEMA
        assert source(tmp_path, schema=SCHEMA.remove(0)).schema == SCHEMA.remove(0)

    def test_a_source_that_knows_its_schema_keeps_it_when_all_files_that_were_read_are_gone(
        self, tmp_path: Path
    ) -> None:
        write(tmp_path, "a.parquet", table(0, 1))
        made = source(tmp_path, schema=None)
        assert made.schema == SCHEMA
        before = Driver(lambda: made)
        before.next()
        (tmp_path / "a.parquet").unlink()
        made.go_on_from(before.journal)
        assert made.schema == SCHEMA

    @pytest.mark.parametrize("left", [("a.parquet", "b.parquet"), ("a.parquet",), ()])
    def test_all_starts_have_the_schema_of_the_first_one_whatever_file_came_first_or_is_gone(
        self, tmp_path: Path, left: Sequence[str]
    ) -> None:
        write(tmp_path, "b.parquet", table(0, 1))
        made = source(tmp_path, schema=None)
        # A start asks for the schema before it lists the files.
        assert made.schema == SCHEMA
        write(tmp_path, "a.parquet", table(1, 1).drop(["key"]))
        before = Driver(lambda: made)
        before.next()
        assert [json.loads(line)["path"] for line in before.journal] == ["a.parquet", "b.parquet"]
        for name in {"a.parquet", "b.parquet"}.difference(left):
            (tmp_path / name).unlink()
        asked, opened = source(tmp_path, schema=None), source(tmp_path, schema=None)
        asked.go_on_from(before.journal)
        opened.open(before.journal, {"": 2 * FILE})
        assert asked.schema == opened.schema == pickle.loads(pickle.dumps(asked)).schema == SCHEMA

    def test_a_journal_of_an_older_version_has_no_schema_and_gives_that_of_its_first_file(self, tmp_path: Path) -> None:
        write(tmp_path, "b.parquet", table(0, 1))
        before = Driver(lambda: source(tmp_path, schema=None))
        before.next()
        (line,) = map(json.loads, before.journal)
        del line["schema"]
        write(tmp_path, "a.parquet", table(1, 1).drop(["key"]))
        again = source(tmp_path, schema=None)
        again.go_on_from([json.dumps(line)])
        assert again.schema == SCHEMA
        given = Driver(lambda: source(tmp_path), [json.dumps(line)], start=FILE)
        given.next()
        assert "schema" not in given.journal[1]

    def test_the_schema_stays_that_of_the_first_file_that_was_read(self, tmp_path: Path) -> None:
        write(tmp_path, "b.parquet", table(0, 1))
        before = Driver(lambda: source(tmp_path, schema=None))
        assert values(before.next()) == [0]
        write(tmp_path, "a.parquet", table(1, 1).drop(["key"]))
        again = source(tmp_path, schema=None)
        again.open(before.journal, {"": FILE})
        assert again.schema == SCHEMA
        # Also if it is asked for the schema before.
        asked = source(tmp_path, schema=None)
        assert asked.schema == SCHEMA.remove(1)
        asked.go_on_from(before.journal)
        assert asked.schema == pickle.loads(pickle.dumps(asked)).schema == SCHEMA
        given = source(tmp_path, schema=SCHEMA.remove(0))
        given.go_on_from(before.journal)
        assert given.schema == SCHEMA.remove(0)

    @pytest.mark.parametrize("content", [b"", b"junk", b"PAR1" * 3])
    def test_a_file_that_can_not_be_read_gives_no_schema_to_the_others(self, tmp_path: Path, content: bytes) -> None:
        write(tmp_path, "a.parquet", content)
        write(tmp_path, "b.parquet", table(0, 1))
        before = Driver(lambda: source(tmp_path, schema=None))
        chunks = before.rest()
        assert (values(chunks), [reason for _, reason, _ in bad(chunks)]) == (
            [0],
            ["unreadable file: damaged, or not parquet"],
        )
        again = source(tmp_path, schema=None)
        again.open(before.journal, {"": 2 * FILE})
        assert again.schema == SCHEMA

    def test_columns_of_nulls_in_the_file_of_the_schema_are_named_once(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        rows = table(0, 1).drop(["key"]).append_column("key", pa.nulls(1)).append_column("l", pa.array([[None]]))
        write(tmp_path, "a.parquet", rows)
        write(tmp_path, "b.parquet", table(1, 1))
        made = source(tmp_path, schema=None)
        # As a start asks before all else.
        assert made.schema.field("key").type == pa.null()
        chunks = Driver(lambda: made).rest()
        assert [reason for _, reason, _ in bad(chunks)] == ["unreadable file: column key is string, not null"]
        (message,) = [record.getMessage() for record in caplog.records]
        assert "is that of file='a.parquet', whose columns 'key', 'l' hold only nulls, so" in message
        assert message.endswith("give schema=.")
        read_all(tmp_path)
        assert len(caplog.records) == 1

    def test_extreme_values_survive_every_format(self, tmp_path: Path) -> None:
        schema = pa.schema(
            {
                "ts": STAMP,
                "local": pa.timestamp("us"),
                "day": pa.date32(),
                "big": pa.int64(),
                "huge": pa.uint64(),
                "money": pa.decimal128(38, 9),
                "real": pa.float64(),
                "yes": pa.bool_(),
                "text": pa.string(),
            }
        )
        rows = [
            {
                "ts": datetime(1, 1, 1, tzinfo=UTC),
                "local": datetime(9999, 12, 31, 23, 59, 59, 999999),
                "day": date(1, 1, 1),
                "big": -(2**63),
                "huge": 2**64 - 1,
                "money": Decimal("12345678901234567890123456789.123456789"),
                "real": 5e-324,
                "yes": False,
                "text": 'quoted "é", NA, null, \\ and\ttab',
            },
            {
                "ts": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
                "local": datetime(1, 1, 1),
                "day": date(9999, 12, 31),
                "big": 2**63 - 1,
                "huge": 0,
                "money": Decimal("-0.000000001"),
                "real": -1.7976931348623157e308,
                "yes": True,
                "text": "",
            },
            dict.fromkeys(schema.names),
        ]
        expected = pa.Table.from_pylist(rows, schema)
        for name in ("a.parquet", "b.csv", "c.json"):
            write(tmp_path, name, expected)
        chunks = read_all(tmp_path, schema=schema)
        assert [chunk.rows.to_pylist() for chunk in chunks] == [expected.to_pylist()] * 3
        assert not bad(chunks)

    def test_nested_types_in_parquet_and_json(self, tmp_path: Path) -> None:
        schema = pa.schema(
            {"ts": STAMP, "s": pa.struct({"x": pa.int64(), "l": pa.list_(pa.list_(pa.decimal128(5, 2)))})}
        )
        some = {"x": 2**63 - 1, "l": [[Decimal("1.25"), None], [], None]}
        expected = pa.Table.from_pylist([{"s": some}, {"s": {"x": None, "l": None}}, {"s": None}], schema)
        write(tmp_path, "a.parquet", expected)
        write(tmp_path, "b.json", expected)
        assert [c.rows.to_pylist() for c in read_all(tmp_path, schema=schema)] == [expected.to_pylist()] * 2

    @pytest.mark.parametrize("name", ["a.csv", "a.json"])
    @pytest.mark.parametrize("type", [STAMP, pa.timestamp("us"), pa.timestamp("us", "Europe/Paris")])
    def test_timestamps_in_text_are_iso_8601_and_utc_without_a_zone(
        self, tmp_path: Path, name: str, type: pa.DataType
    ) -> None:
        texts = [
            "2013-01-01T05:00:00+02:00",
            "2013-01-01 03:00:00",
            "2013-01-01T03:00:00.000Z",
            "2013-01-01T03:00",
            "2013-01-01",
        ]
        lines = ["ts", *texts] if name == "a.csv" else [json.dumps({"ts": text}) for text in texts]
        write(tmp_path, name, "\n".join(lines) + "\n")
        (chunk,) = read_all(tmp_path, schema=pa.schema({"ts": type}))
        three = 1_357_009_200_000_000
        assert chunk.rows.column("ts").cast(pa.int64()).to_pylist() == [three] * 4 + [three - 3 * 3_600_000_000]
        assert not chunk.bad

    def test_windows_line_ends_byte_order_marks_blank_lines_and_spaces_are_no_records(self, tmp_path: Path) -> None:
        write(tmp_path, "a.csv", b"\xef\xbb\xbf\r\nvalue,key,ts\r\n1,NA,\r\n\r\n 2 ,,\r\n")
        write(tmp_path, "b.json", b'\xef\xbb\xbf{"value": 3}\r\n\r\n\n{"value": 4}')
        chunks = read_all(tmp_path)
        assert values(chunks) == [1, 2, 3, 4]
        assert values(chunks, "key") == ["NA", None, None, None]
        assert at(chunks) == [0, 1, FILE, FILE + 1]
        assert not bad(chunks)

    @pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.json"])
    def test_a_missing_column_is_null_and_a_strange_one_is_left_out(self, tmp_path: Path, name: str) -> None:
        write(tmp_path, name, table(0, 2).drop(["key"]).append_column("more", [["x", "y"]]))
        (chunk,) = read_all(tmp_path)
        assert chunk.rows.schema == SCHEMA
        assert values([chunk], "key") == [None, None]
        assert values([chunk]) == [0, 1]

    def test_parquet_columns_are_cast_without_loss_or_their_rows_are_bad(self, tmp_path: Path) -> None:
        rows = table(0, 4).set_column(2, "value", pa.array([1.0, 2.5, None, 4.0]))
        write(tmp_path, "a.parquet", rows)
        chunks = read_all(tmp_path)
        assert values(chunks) == [1, None, 4]
        assert at(chunks) == [0, 2, 3]
        ((position, reason, record),) = bad(chunks)
        assert (position, reason) == (1, "column value is not int64")
        assert "2.5" in record

    def test_a_parquet_column_that_can_never_be_cast_makes_the_file_one_bad_record(self, tmp_path: Path) -> None:
        write(tmp_path, "a.parquet", table(0, 4).set_column(2, "value", pa.array([{"x": 1}] * 4)))
        write(tmp_path, "b.parquet", table(0, 1))
        chunks = read_all(tmp_path)
        assert (values(chunks), at(chunks)) == ([0], [FILE])
        ((position, reason, record),) = bad(chunks)
        assert (position, record) == (0, "a.parquet")
        assert "struct" in reason

    def test_text_that_is_not_utf_8_is_a_bad_record(self, tmp_path: Path) -> None:
        raw = pa.array([b"\xff\xff", b"ok"], pa.binary())
        broken = pa.StringArray.from_buffers(2, *raw.buffers()[1:])
        write(tmp_path, "a.parquet", pa.table({"key": broken, "value": [1, 2]}))
        write(tmp_path, "b.csv", b"key,value,ts\n\xff\xff,1,\nok,2,\n\xff\n")
        write(tmp_path, "c.json", b'{"key": "\xff\xff", "value": 1}\n{"key": "ok", "value": 2}\n')
        chunks = read_all(tmp_path)
        assert values(chunks) == [2, 2, 2]
        assert [position for position, _, _ in bad(chunks)] == [0, FILE, FILE + 2, 2 * FILE]

    def test_pieces_are_bounded_and_positions_go_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(formats, "_PIECE_ROWS", 7)
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 100)
        for name in ("a.parquet", "b.csv", "c.json.gz"):
            write(tmp_path, name, table(0, 50))
        chunks = read_all(tmp_path)
        assert len(chunks) > 24
        assert values(chunks) == [*range(50)] * 3
        assert at(chunks) == [file * FILE + row for file in range(3) for row in range(50)]


class TestBadRecords:
    @pytest.mark.parametrize("name", [b"a\xff.csv", b"\xe9\n.json", b"\xed\xa0\x80.parquet"])
    def test_the_name_of_a_file_need_not_be_text(self, tmp_path: Path, name: bytes) -> None:
        path = os.path.join(os.fsencode(tmp_path), name)
        good = table(0, 1)
        content = {"csv": b"ts,key,value\n,a,0\nnot a time,a,1\n", "json": b'{"value": 0}\n{"value": "x"}\n'}
        with open(path, "wb") as file:
            file.write(content.get(name.decode("latin-1").rpartition(".")[2]) or encode(good, "a.parquet"))
        chunks = read_all(tmp_path)
        assert values(chunks) == [0]
        originals = chunks[0].originals
        assert originals is not None
        shown = name.decode(errors="surrogateescape").encode(errors="backslashreplace").decode()
        # Late rows and bad ones name the file.
        for position in at(chunks) + [position for position, _, _ in bad(chunks)]:
            assert originals(np.array([position], np.int64)).to_pylist()[0]["origin"]["file"] == shown

    def test_a_bad_csv_line_stands_alone(self, tmp_path: Path) -> None:
        lines = [
            "ts,key,value",
            "2013-01-01T00:00:00Z,a,0",
            "2013-01-01T00:00:00Z,a",
            "not a time,a,2",
            "2013-01-01T00:00:00Z,a,3",
            "2013-01-01T00:00:00Z,a,9223372036854775808",
            "2013-01-01T00:00:00Z,a,5,more",
            '2013-01-01T00:00:00Z,"a,6',
            "2013-01-01T00:00:00Z,a,7",
            '2013-01-01T00:00:00Z,a,"8',
        ]
        write(tmp_path, "a.csv", "\n".join(lines))
        chunks = read_all(tmp_path)
        assert values(chunks) == at(chunks) == [0, 3, 7]
        assert bad(chunks) == [
            (1, "not as many fields as in the header", lines[2]),
            (2, "column ts is not timestamp[us, tz=UTC]", lines[3]),
            (4, "column value is not int64", lines[5]),
            (5, "not as many fields as in the header", lines[6]),
            (6, "not one record in one line", lines[7]),
            (8, "a quote is not closed", lines[9]),
        ]

    def test_a_bad_json_line_stands_alone(self, tmp_path: Path) -> None:
        lines = [
            '{"value": 0}',
            '{"value": 1, "ts": "soon"}',
            '{"value": "2"}',
            '{"value": 3}',
            '{"value": 4, "value": 4}',
            '{"value": 5}{"value": 5}',
            '{"value":',
            '7, "key": {}}',
            "null",
            "[9]",
            '  {"value": 10}',
            '{"value": 11, "ts": null, "strange": [{}]} ',
            "junk",
            "{}",
        ]
        write(tmp_path, "a.json", "\n".join(lines))
        chunks = read_all(tmp_path)
        assert values(chunks) == [0, 3, 10, 11, None]
        assert at(chunks) == [0, 3, 10, 11, 13]
        assert [(position, record) for position, _, record in bad(chunks)] == [
            (i, lines[i].rstrip("\n")) for i in (1, 2, 4, 5, 6, 7, 8, 9, 12)
        ]
        assert bad(chunks)[0][1] == "column ts is not timestamp[us, tz=UTC]"

    @pytest.mark.parametrize(
        "lines",
        [
            ['1,"a', 'b"', "2,c"],  # A quoted line end.
            ["1,a\r2,b", '3,"c', 'd"', "4,e"],  # As many rows as lines, but not one each.
            ["1,a,", "2,b"],
            [",,", "1,b"],
            ['1,"a"" ', "2,b"],
            ["1,a", '2,"b'],
        ],
    )
    def test_a_csv_record_is_one_line_whatever_stands_around_it(self, tmp_path: Path, lines: list[str]) -> None:
        self._compare_with_each_line_alone(tmp_path, "a.csv", "value,key\n", lines)

    @pytest.mark.parametrize(
        "lines",
        [
            ['{"value": 1}{"value":', "2}"],
            ['{"value": 1}{"value": 2}', '{"key": {}', "}"],  # As many rows as lines, but not one each.
            ['{"key": "', '"}'],
            ['{"value": 1}', "", '{"value": 2},'],
        ],
    )
    def test_a_json_record_is_one_line_whatever_stands_around_it(self, tmp_path: Path, lines: list[str]) -> None:
        self._compare_with_each_line_alone(tmp_path, "a.json", "", lines)

    @settings(max_examples=60)
    @given(st.data())
    def test_mangled_lines_are_judged_as_if_each_stood_alone(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        name = data.draw(st.sampled_from(["a.csv", "a.json"]))
        good = ["12,ab", '-3,"a, ""b"""', ",", '7,""']
        if name == "a.json":
            good = ['{"value": 12, "key": "ab"}', '{"key": null, "more": [1, {"x": "}"}]}', "{}"]
        snippets = st.sampled_from(['"', ",", "{", "}", "\r", "null", "[", "x", " ", "1", "\\", ":", "é"])
        lines = data.draw(st.lists(st.sampled_from(good), min_size=1, max_size=12))
        for _ in range(data.draw(st.integers(0, 5))):
            i = data.draw(st.integers(0, len(lines) - 1))
            at, gone = data.draw(st.integers(0, len(lines[i]))), data.draw(st.integers(0, 3))
            lines[i] = lines[i][:at] + data.draw(snippets) + lines[i][at + gone :]
        header = "value,key\n" if name == "a.csv" else ""
        self._compare_with_each_line_alone(tmp_path_factory.mktemp("lines"), name, header, lines)

    def _compare_with_each_line_alone(self, folder: Path, name: str, header: str, lines: list[str]) -> None:
        write(folder / "together", name, header + "\n".join(lines) + "\n")
        expected, expected_bad = [], []
        for i, line in enumerate(line for line in lines if line not in ("", "\r")):
            write(folder / "alone", name, header + line + "\n")
            chunks = read_all(folder / "alone", schema=SCHEMA.remove(0))
            expected += [(i, row) for chunk in chunks for row in chunk.rows.to_pylist()]
            expected_bad += [(i, record) for _, _, record in bad(chunks)]
        chunks = read_all(folder / "together", schema=SCHEMA.remove(0))
        rows = [row for chunk in chunks for row in chunk.rows.to_pylist()]
        assert list(zip(at(chunks), rows, strict=True)) == expected
        assert [(position, record) for position, _, record in bad(chunks)] == expected_bad

    def test_many_bad_values_do_not_take_long_to_find(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = []
        parse = pa_csv.read_csv
        monkeypatch.setattr(pa_csv, "read_csv", lambda *args, **kwargs: calls.append(1) or parse(*args, **kwargs))
        lines = ["value,key", *(f"{i if i % 3 else 'x'},a{',b' * (i % 5 == 0)}" for i in range(3000))]
        write(tmp_path, "a.csv", "\n".join(lines))
        chunks = read_all(tmp_path, schema=SCHEMA.remove(0))
        assert at(chunks) == values(chunks) == [i for i in range(3000) if i % 3 and i % 5]
        assert len(bad(chunks)) == 3000 - len(at(chunks))
        assert len(calls) <= 4  # The check of the schema, the header, and all lines at once.

    @pytest.mark.parametrize("texts", [pa.string(), pa.large_string(), pa.string_view()])
    def test_many_texts_that_are_no_times_do_not_take_long_to_find(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: pa.DataType
    ) -> None:
        fits: list[int] = []
        fit = formats.fit
        monkeypatch.setattr(formats, "fit", lambda rows, schema: fits.append(1) or fit(rows, schema))
        times = [["soon", "01.02.2026 10:00", "2026-01-01T00:00:00z", None][i % 4] for i in range(4000)]
        write(tmp_path, "a.parquet", pa.table({"ts": pa.array(times, texts), "value": range(4000)}))
        write(tmp_path, "b.json", "\n".join(json.dumps({"ts": time, "value": i}) for i, time in enumerate(times)))
        chunks = read_all(tmp_path)
        good = [i for i in range(4000) if i % 4 > 1]
        assert values(chunks) == good * 2
        assert at(chunks) == [*good, *(FILE + i for i in good)]
        assert len(bad(chunks)) == 4000
        assert len(fits) <= 6  # The check of the schema, and each file at once with and without them.

    def test_reasons_do_not_hold_values_since_they_are_counted(self, tmp_path: Path) -> None:
        write(tmp_path, "a.csv", "\n".join(["ts,value", *(f"x{i},y{i}" for i in range(50))]))
        write(tmp_path, "b.json", "\n".join(f'{{"value": {2**63 + i}}}' for i in range(50)))
        assert len({reason for _, reason, _ in bad(read_all(tmp_path))}) == 2

    @pytest.mark.parametrize("content", [b"", b"PAR1 junk", encode(table(0, 9), ".parquet")[:-9]])
    def test_a_parquet_file_that_can_not_be_opened_is_one_bad_record(self, tmp_path: Path, content: bytes) -> None:
        write(tmp_path, "a.parquet", content)
        write(tmp_path, "b.parquet", table(0, 2))
        chunks = read_all(tmp_path)
        assert at(chunks) == [FILE, FILE + 1]
        ((position, reason, record),) = bad(chunks)
        assert (position, record) == (0, "a.parquet")
        assert reason.startswith("unreadable file: ")

    def test_what_comes_before_the_damage_in_a_file_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(formats, "_PIECE_ROWS", 100)
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 1000)
        noise = np.random.default_rng(0).integers(0, 2**62, 4000)
        rows = pa.table({"value": noise})
        data = bytearray(encode(rows, ".parquet", row_group_size=500))
        column = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(4).column(0)
        data[column.dictionary_page_offset : column.dictionary_page_offset + 100] = bytes(100)
        write(tmp_path, "a.parquet", bytes(data))
        packed = gzip.compress(encode(rows, ".csv"))
        write(tmp_path, "b.csv.gz", packed[: len(packed) // 2])
        chunks = read_all(tmp_path, schema=SCHEMA.remove(0))
        for ordinal, name in enumerate(["a.parquet", "b.csv.gz"]):
            of_file = [chunk for chunk in chunks if chunk.first >> 32 == ordinal]
            count = len(values(of_file))
            assert 1000 < count < 3000
            assert values(of_file) == noise[:count].tolist()
            assert at(of_file) == [ordinal * FILE + row for row in range(count)]
            ((position, _, record),) = bad(of_file)
            assert (position, record) == (ordinal * FILE + count, name)

    def test_no_piece_of_a_parquet_file_has_many_great_rows_and_no_more_is_read_at_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(formats, "_PIECE_BYTES", most := 100_000)
        read: list[list[int]] = []
        batches = pq.ParquetFile.iter_batches

        def noted(self: Any, rows: int, groups: list[int], names: list[str]) -> Any:
            read.append(groups)
            return batches(self, rows, groups, names)

        monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
        # Four thousand small rows in eight row groups, and great ones in groups of their own: two of twice a piece, ten small.
        out, number = io.BytesIO(), 0
        noise = np.random.default_rng(0)
        with pq.ParquetWriter(out, pa.schema([("value", pa.int64()), ("key", pa.string())])) as writer:
            for count, size in [(500, 10)] * 8 + [(20, 10_000)] * 2 + [(1, 10_000)] * 10:
                keys = [noise.bytes(size // 2).hex() for _ in range(count)]
                writer.write_table(pa.table({"value": range(number, number + count), "key": keys}))
                number += count
        write(tmp_path, "a.parquet", out.getvalue())
        chunks = read_all(tmp_path)
        assert values(chunks) == at(chunks) == list(range(number))
        assert max(chunk.rows.nbytes for chunk in chunks) < 1.5 * most
        assert len(chunks) < 15
        assert [group for groups in read for group in groups] == list(range(20))
        assert [groups for groups in read if set(groups) & {8, 9}] == [[8], [9]], "greater than a piece, so read alone"

    def test_a_column_that_stands_twice_makes_the_file_one_bad_record(self, tmp_path: Path) -> None:
        write(tmp_path, "a.csv", "value,value,key,key\n1,2,a,b\n")
        assert len(bad(read_all(tmp_path))) == 1

    @pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.json.gz"])
    def test_a_store_that_fails_is_no_bad_record(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        folder = f"failing:///{name}-events"
        fsspec.filesystem("failing").pipe_file(f"{folder}/{name}", encode(table(0, 1000), name))
        assert len(values(read_all(folder))) == 1000
        driver = Driver(lambda: source(folder))
        monkeypatch.setattr(Failing, "reads_left", 0)
        with pytest.raises(StoreUnavailableError, match="no route to host"):
            driver.next()


class OwnFileSystem(MemoryFileSystem):
    """A memory file system with files of its own."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.protocol, cls.store, cls.pseudo_dirs = (cls.__name__.lower(),), {}, [""]
        fsspec.register_implementation(cls.protocol[0], cls, clobber=True)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix(f"{cls.protocol[0]}://").strip("/")


class Failing(OwnFileSystem):
    """Reads fail when there are none left."""

    reads_left = 1000

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super().open(path, mode, **options)
        if mode != "rb":
            return file
        content = io.BytesIO(file.read())
        file.seek(0)

        class File(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                if Failing.reads_left <= 0:
                    raise OSError("no route to host")
                return super().read(size)

        return File(content.getvalue())


class TestOrder:
    def test_files_of_one_listing_are_taken_by_name_or_by_time_and_name(self, tmp_path: Path) -> None:
        for i, (name, modified) in enumerate([("b", 30.0), ("sub/a", 10.0), ("a", 20.0), ("c", 10.0)]):
            write(tmp_path, f"{name}.parquet", table(i, 1), modified)
        assert values(read_all(tmp_path)) == [2, 0, 3, 1]
        assert values(read_all(tmp_path, order_by="modified")) == [3, 1, 2, 0]

    def test_ignored_names_are_not_taken(self, tmp_path: Path) -> None:
        for name in ("_a.csv", ".b.csv", "_log/c.csv", ".d/e.csv", "tmp/f.csv", "g.csv.tmp", "h/_i.csv"):
            write(tmp_path, name, table(0, 1))
        write(tmp_path, "tmp-but-not-quite/day=_1.csv", table(7, 1))
        assert values(read_all(tmp_path)) == [7]

    def test_a_batch_is_bounded_by_files_and_by_bytes_and_takes_at_least_one_file(self, tmp_path: Path) -> None:
        for i, size in enumerate([100, 100, 900, 100, 100, 100]):
            write(tmp_path, f"{i}.json", json.dumps({"value": i}).ljust(size - 1) + "\n")

        def batches(**options: Any) -> list[int]:
            sizes = []
            driver = Driver(lambda: source(tmp_path, **options))
            for batch in driver.batches():
                assert len(bad(batch)) + len(values(batch)) > 0
                sizes.append(len({chunk.first >> 32 for chunk in batch}))
            return sizes

        assert batches() == [6]
        assert batches(max_files_per_batch=4) == [4, 2]
        assert batches(bytes_per_batch=200) == [2, 1, 2, 1]
        assert batches(bytes_per_batch=250) == [2, 1, 2, 1]
        assert batches(bytes_per_batch=1) == [1] * 6
        assert batches(bytes_per_batch=200, max_files_per_batch=1) == [1] * 6
        driver = Driver(lambda: source(tmp_path, max_files_per_batch=1))
        driver.next(everything=True)
        assert driver.position == {"": 6 * FILE}

    def test_a_folder_of_this_machine_is_listed_as_fsspec_lists_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a.csv", "b/c.csv", "b/d/e f.csv", os.fsdecode(b"\xff.csv"), ".h/i.csv", "b/_j.csv", "k.csv.tmp"):
            write(tmp_path / "in", name, table(0, 1), 5.5)
        write(tmp_path, "outside/z.csv", table(0, 2))
        (tmp_path / "in/empty").mkdir()
        (tmp_path / "in/link.csv").symlink_to(tmp_path / "outside/z.csv")
        ours = Driver(lambda: source(tmp_path / "in"))
        monkeypatch.setattr(folder, "LocalFileSystem", MemoryFileSystem)
        theirs = Driver(lambda: source(tmp_path / "in"))
        assert ours.source.reach({}, True) == theirs.source.reach({}, True)
        assert len(ours.source.reach({}, True).journal) == 5

    def test_a_listing_asks_for_no_file_that_is_known(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for i in range(3):
            write(tmp_path, f"day/{i}.csv", table(i, 1))
        driver = Driver(lambda: source(tmp_path))
        assert values(driver.next()) == [0, 1, 2]
        write(tmp_path, "day/new.csv", table(3, 1))
        asked: list[str] = []
        file_of = listing.local_file
        monkeypatch.setattr(listing, "local_file", lambda path, place: asked.append(path) or file_of(path, place))
        assert values(driver.next()) == [3]
        assert asked == ["day/new.csv"]

    def test_a_file_or_folder_that_goes_while_it_is_listed_is_left_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a.csv", "b.csv", "day/c.csv"):
            write(tmp_path, name, table(0, 1))
        file_of = listing.local_file

        def goes(path: str, place: str) -> Any:
            if path == "b.csv":
                (tmp_path / "b.csv").unlink()
                shutil.rmtree(tmp_path / "day")
            return file_of(path, place)

        monkeypatch.setattr(listing, "local_file", goes)
        assert len(values(read_all(tmp_path))) == 1

    def test_a_file_that_appears_late_with_an_old_name_and_time_is_read(self, tmp_path: Path) -> None:
        for order_by in ("name", "modified"):
            folder = tmp_path / order_by
            write(folder, "m.csv", table(0, 1), 1e9)
            driver = Driver(lambda folder=folder, order_by=order_by: source(folder, order_by=order_by))
            assert values(driver.next()) == [0]
            assert driver.next() == []
            write(folder, "a.csv", table(1, 1), 1.0)
            assert values(driver.next()) == [1]
            assert driver.position == {"": 2 * FILE}

    def test_a_source_that_is_to_stay_within_a_position_lists_and_reads_no_more_files(self, tmp_path: Path) -> None:
        for name in ("a.parquet", "b.parquet"):
            write(tmp_path, name, table(0, 2))
        opened = source(tmp_path)
        opened.open([], {})
        write(tmp_path, "c.parquet", table(0, 2))
        opened.stay_within({"": 1 << 32})
        reach = opened.reach({}, everything=True)
        assert (reach.ends, len(reach.journal)) == ({"": 1 << 32}, 1)
        assert opened.reach(reach.ends, everything=False).ends == reach.ends
        beyond = {"": 2 << 32}
        assert opened.reach(beyond, everything=True).ends == beyond

    def test_nothing_that_appears_after_a_freeze_is_taken(self, tmp_path: Path) -> None:
        write(tmp_path, "a.csv", table(0, 1))
        driver = Driver(lambda: source(tmp_path, max_files_per_batch=1))
        write(tmp_path, "b.csv", table(1, 1))
        driver.source.freeze()
        write(tmp_path, "c.csv", table(2, 1))
        assert values(driver.rest()) == [0, 1]
        assert driver.next(everything=True) == []

    def test_an_empty_folder_holds_still_and_empty_files_pass(self, tmp_path: Path) -> None:
        driver = Driver(lambda: source(tmp_path))
        assert driver.source.reach({}, False) == Reach({}, {"": False}, ())
        assert driver.next() == []
        for name, content in [
            ("a.csv", ""),
            ("b.csv", "ts,key,value\n"),
            ("c.json", "\n\n"),
            ("d.csv.gz", gzip.compress(b"")),
        ]:
            write(tmp_path, name, content)
        write(tmp_path, "e.parquet", table(0, 0))
        assert driver.next() == []
        assert driver.position == {"": 5 * FILE}
        assert len(driver.journal) == 5

    def test_a_channel_column_tells_its_channels_only_by_messages(self, tmp_path: Path) -> None:
        driver = Driver(lambda: source(tmp_path, channel="key"))
        assert driver.source.reach({}, False).channels is None

    def test_splits_are_contiguous_and_about_equal(self, tmp_path: Path) -> None:
        for i in range(20):
            write(tmp_path, f"{i:02}.csv", "value\n" + "1\n" * 50_000)
        driver = Driver(lambda: source(tmp_path))
        end = driver.source.reach({}, False).ends
        splits = driver.source.splits({}, end, 4)
        assert [ordinal for split in splits for ordinal, *_ in split] == [*range(20)]
        assert [len(split) for split in splits] == [5] * 4
        assert len(driver.source.splits({}, end, 100)) == 20
        assert driver.source.splits(end, end, 4) == []
        for i in range(20):
            write(tmp_path, f"x{i:02}.csv", "")
        assert len(driver.source.splits(end, driver.source.reach(end, False).ends, 3)) == 3


def half(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.slice(0, rows.num_rows // 2)


class TestReplay:
    def test_a_restart_takes_no_file_of_the_journal_for_new(self, tmp_path: Path) -> None:
        for i in range(3):
            write(tmp_path, f"m{i}.csv", table(i, 1))
        before = Driver(lambda: source(tmp_path))
        assert values(before.rest()) == [0, 1, 2]
        after = Driver(lambda: source(tmp_path), before.journal, 3 * FILE)
        assert after.next() == []
        write(tmp_path, "a.csv", table(9, 1), 1.0)
        assert values(after.next()) == [9]
        assert at(Driver(lambda: source(tmp_path), after.journal, 3 * FILE, 4 * FILE).next()) == [3 * FILE]

    def test_a_replay_reads_the_journal_in_its_order_before_anything_new(self, tmp_path: Path) -> None:
        driver = Driver(lambda: source(tmp_path))
        for name, value in [("c", 0), ("a", 1), ("b", 2)]:
            write(tmp_path, f"{name}.csv", table(value, 1))
            assert values(driver.next()) == [value]
        write(tmp_path, "0.csv", table(3, 1))
        again = Driver(lambda: source(tmp_path, max_files_per_batch=2), driver.journal, 1 * FILE + 5, 3 * FILE)
        batches = [values(batch) for batch in again.batches()]
        assert batches == [[1, 2], [3]]
        assert [json.loads(line)["path"] for line in again.journal] == ["c.csv", "a.csv", "b.csv", "0.csv"]

    def test_every_chunk_is_replayed_from_the_start_of_its_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Positions within a file move with the transform, which may change between two starts.
        monkeypatch.setattr(formats, "_PIECE_ROWS", 10)
        write(tmp_path, "a.parquet", table(0, 50))
        write(tmp_path, "b.parquet", table(50, 50))
        chunks = read_all(tmp_path, transform=half)
        assert {(chunk.first >> 32) * FILE for chunk in chunks} == {chunk.replay for chunk in chunks} == {0, FILE}

    def test_a_replay_lists_the_folder_once_and_asks_for_no_file_by_itself(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for i in range(6):
            fsspec.filesystem("memory").pipe_file(f"/replayed/{i}.csv", encode(table(i, 1), ".csv"))
        before = Driver(lambda: source("memory://replayed"))
        before.next()
        calls: list[str] = []
        for name in ("find", "info"):
            monkeypatch.setattr(MemoryFileSystem, name, counted(getattr(MemoryFileSystem, name), calls))
        made = lambda: source("memory://replayed", max_files_per_batch=1)  # noqa: E731
        after = Driver(made, before.journal, FILE, 6 * FILE)
        ends = {"": FILE}
        for i in range(5):
            ends = after.source.reach(ends, False).ends
            assert ends == {"": (i + 2) * FILE}
        # The first asks whether the folder is there.
        assert calls == ["info", "find"]

    def test_a_replay_of_a_folder_of_this_machine_lists_it_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for i in range(6):
            write(tmp_path, f"{i}.csv", table(i, 1))
        before = Driver(lambda: source(tmp_path))
        before.next()
        calls: list[str] = []
        monkeypatch.setattr(os, "scandir", counted(os.scandir, calls))
        after = Driver(lambda: source(tmp_path, max_files_per_batch=1), before.journal, FILE, 6 * FILE)
        assert [values(after.next()) for _ in range(5)] == [[1], [2], [3], [4], [5]]
        assert calls == ["scandir"]

    def test_a_replayed_file_that_is_gone_or_changed_is_named(self, tmp_path: Path) -> None:
        for i in range(3):
            write(tmp_path, f"{i}.csv", table(i, 1))
        before = Driver(lambda: source(tmp_path))
        before.next()
        (tmp_path / "0.csv").unlink()
        assert Driver(lambda: source(tmp_path), before.journal, FILE, 3 * FILE).next() != []
        with pytest.raises(InvalidInputError, match=r"file='0.csv' of FileSource\(.*\) is gone; bring it back"):
            Driver(lambda: source(tmp_path), before.journal, 0, 3 * FILE).source.reach({}, False)
        (tmp_path / "2.csv").write_bytes(b"\n" + (tmp_path / "2.csv").read_bytes())
        with pytest.raises(
            InvalidInputError, match=r"file='2.csv' of FileSource\(.*\) had \d+ bytes and has \d+; bring back"
        ):
            Driver(lambda: source(tmp_path), before.journal, FILE, 3 * FILE).source.reach({"": FILE}, False)

    @pytest.mark.parametrize("url", [False, True])
    def test_a_rewind_asks_for_the_files_that_a_start_would_not_miss(self, tmp_path: Path, url: bool) -> None:
        folder = f"file://{tmp_path}" if url else tmp_path
        for i in range(3):
            write(tmp_path, f"{i}.csv", table(i, 1))
        before = Driver(lambda: source(folder))
        before.next()
        then = [*before.journal]
        for i in range(3, 8):
            write(tmp_path, f"{i}.csv", table(i, 1))
        before.next()

        def ask() -> None:
            source(folder).check_again({"": 2 * FILE}, then, before.journal)

        ask()
        for i in (0, 1):
            (tmp_path / f"{i}.csv").unlink()
        ask()
        for i in (3, 4, 5, 6):
            (tmp_path / f"{i}.csv").unlink()
        with pytest.raises(
            InvalidInputError,
            match=r"^4 of the 6 files of FileSource\(.*\) that are to be read again are gone: "
            r"'3.csv', '4.csv', '5.csv' and 1 more\. Bring back what they were, put files without rows in "
            r"their place, or go back to a later clock\.$",
        ):
            ask()
        source(folder).check_again({"": 8 * FILE}, before.journal, before.journal)
        for i in (2, 3, 4, 5, 6):
            write(tmp_path, f"{i}.csv", table(i, 100))
        with pytest.raises(InvalidInputError, match=r"1 of the 6 files .* have another size than they had: '2.csv'"):
            ask()

    def test_a_rewind_takes_no_file_for_gone_where_a_store_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        system = fsspec.filesystem("memory")
        for i in range(2):
            system.pipe_file(f"/unsure/{i}.csv", encode(table(i, 1), ".csv"))
        driver = Driver(lambda: source("memory://unsure"))
        driver.next()
        system.rm("/unsure/0.csv")
        info = MemoryFileSystem.info

        def fails(system: MemoryFileSystem, path: str, **options: Any) -> Any:
            if path.endswith("0.csv"):
                raise OSError("no route to host")
            return info(system, path, **options)

        monkeypatch.setattr(MemoryFileSystem, "info", fails)
        with pytest.raises(
            StoreUnavailableError, match=r"^'0.csv' of FileSource\('memory://unsure'\): .*no route to host"
        ):
            source("memory://unsure").check_again({}, driver.journal, driver.journal)

    def test_a_rewind_names_what_a_file_that_is_gone_may_be_called_now(self, tmp_path: Path) -> None:
        for i in range(4):
            write(tmp_path, f"{i}.csv", table(i, 1))
        driver = Driver(lambda: source(tmp_path))
        driver.next()
        write(tmp_path, "other.csv", table(9, 50))
        for name, new in (("0.csv", "renamed.csv"), ("1.csv", "sub/1.csv")):
            (tmp_path / new).parent.mkdir(exist_ok=True)
            (tmp_path / name).rename(tmp_path / new)
        (tmp_path / "2.csv").unlink()
        with pytest.raises(
            InvalidInputError,
            match=r"^3 of the 4 files .* are gone: '0.csv' \(perhaps 'renamed.csv' now\), "
            r"'1.csv' \(perhaps 'sub/1.csv' now\), '2.csv'\. Bring back",
        ):
            source(tmp_path).check_again({}, driver.journal, driver.journal)

    def test_a_rewind_asks_each_input_for_its_own_files(self, tmp_path: Path) -> None:
        journals: dict[str, list[str]] = {}
        for name in ("", "old"):
            write(tmp_path / f"files {name}", "0.csv", table(0, 1))
            write(tmp_path / f"files {name}", "1.csv", table(1, 1))
            driver = Driver(lambda name=name: source(tmp_path / f"files {name}"))
            driver.next()
            journals[name] = driver.journal
        then = {name: lines[:1] for name, lines in journals.items()}
        inputs = Inputs({name: source(tmp_path / f"files {name}") for name in journals})
        positions = {"": FILE, named_in("old", ""): FILE}
        check_again(inputs, positions, then, journals)
        inputs.open_each(journals, dict.fromkeys(positions, 2 * FILE))
        assert inputs.places(positions) == {"": "1.csv", named_in("old", ""): "1.csv"}
        assert inputs.places({"": 0, named_in("old", ""): 2 * FILE}) == {
            "": "0.csv", named_in("old", ""): "behind the last file",
        }  # fmt: skip
        for name in ("old", ""):
            (tmp_path / f"files {name}" / "1.csv").unlink()
            with pytest.raises(
                InvalidInputError, match=rf"1 of the 1 files of FileSource\('.*files {name}'\) .* '1.csv'"
            ):
                check_again(inputs, positions, then, journals)
            write(tmp_path / f"files {name}", "1.csv", table(1, 1))

    def test_a_rewind_asks_for_no_file_that_a_finite_source_does_not_have(self, tmp_path: Path) -> None:
        write(tmp_path, "0.csv", table(0, 1))
        then = Driver(lambda: source(tmp_path, finite=True))
        then.next()
        write(tmp_path, "1.csv", table(1, 1))
        # As of a task that was rebuilt since.
        rebuilt = Driver(lambda: source(tmp_path, finite=True))
        rebuilt.next()
        (tmp_path / "1.csv").unlink()
        source(tmp_path, finite=True).check_again({}, then.journal, rebuilt.journal)
        with pytest.raises(InvalidInputError, match=r"1 of the 2 files .* are gone: '1.csv'"):
            source(tmp_path, finite=True).check_again({}, rebuilt.journal, rebuilt.journal)

    def test_a_new_file_that_changes_or_goes_after_its_listing_lets_the_next_start_list_again(
        self, tmp_path: Path
    ) -> None:
        write(tmp_path, "a.csv", table(0, 1))
        opened = source(tmp_path)
        opened.open([], {})
        (split,) = opened.splits({}, opened.reach({}, False).ends, 1)
        with (tmp_path / "a.csv").open("a") as file:
            file.write("half a li")
        again = "when the folder was listed. None of its rows counts yet: the next start lists the folder again"
        with pytest.raises(StoreUnavailableError, match=rf"file='a.csv' .* has \d+ bytes, and had \d+ {again}"):
            list(source(tmp_path).read(split))
        (tmp_path / "a.csv").rename(tmp_path / "b.csv")
        with pytest.raises(StoreUnavailableError, match=f"is gone, and was there {again}"):
            list(source(tmp_path).read(split))
        write(tmp_path, "b.csv", table(7, 1))
        assert values(Driver(lambda: source(tmp_path)).next()) == [7]

    def test_a_file_of_the_log_that_changes_or_goes_after_it_was_planned_is_final(self, tmp_path: Path) -> None:
        write(tmp_path, "a.csv", table(0, 1))
        before = Driver(lambda: source(tmp_path))
        before.next()
        opened = source(tmp_path)
        opened.open(before.journal, {"": FILE})
        (split,) = opened.splits({}, opened.reach({}, False).ends, 1)
        with (tmp_path / "a.csv").open("a") as file:
            file.write("half a li")
        with pytest.raises(InvalidInputError, match=r"file='a.csv' .* A file must be whole when it appears"):
            list(source(tmp_path).read(split))
        (tmp_path / "a.csv").unlink()
        with pytest.raises(InvalidInputError, match="is gone; bring it back"):
            list(source(tmp_path).read(split))

    def test_a_file_whose_folder_has_become_a_file_is_gone(self, tmp_path: Path) -> None:
        write(tmp_path, "day/a.csv", table(0, 1))
        before = Driver(lambda: source(tmp_path))
        before.next()
        opened = source(tmp_path)
        opened.open(before.journal, {"": FILE})
        (split,) = opened.splits({}, opened.reach({}, False).ends, 1)
        shutil.rmtree(tmp_path / "day")
        (tmp_path / "day").touch()
        with pytest.raises(InvalidInputError, match=r"file='day/a.csv' .* is gone; bring it back"):
            list(source(tmp_path).read(split))
        with pytest.raises(InvalidInputError, match=r"file='day/a.csv' .* is gone; bring it back"):
            Driver(lambda: source(tmp_path), before.journal, 0, FILE).source.reach({}, False)

    @pytest.mark.parametrize("is_gone", [True, False])
    def test_a_new_file_that_changes_or_goes_before_its_schema_is_read_is_listed_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool
    ) -> None:
        write(tmp_path, "a.parquet", table(0, 1))
        listed = folder.Folder.listing

        def changes(of: folder.Folder) -> listing.Listing:
            files = listed(of)
            (tmp_path / "a.parquet").unlink()
            if not is_gone:
                write(tmp_path, "a.parquet", table(0, 1000))
            return files

        monkeypatch.setattr(folder.Folder, "listing", changes)
        with pytest.raises(StoreUnavailableError, match=r"file='a.parquet' .* when the folder was listed\. None of"):
            _ = FileSource(tmp_path, timestamp="ts").schema

    def test_a_folder_that_goes_while_it_is_listed_is_unavailable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def gone(*args: Any, **options: Any) -> Any:
            raise FileNotFoundError("listed")

        fsspec.filesystem("memory").pipe_file("/goes/a.csv", encode(table(0, 1), ".csv"))
        monkeypatch.setattr(MemoryFileSystem, "find", gone)
        with pytest.raises(StoreUnavailableError, match=r"^FileSource\('memory://goes'\): .*listed. Put it right"):
            source("memory://goes").open([], {})

    def test_the_journal_keeps_any_name(self, tmp_path: Path) -> None:
        names = ["a b.csv", "ü/é.csv", 'quo"te.csv', "new\nline.csv", os.fsdecode(b"\xff.csv"), "x" * 200 + ".csv"]
        for name in names:
            write(tmp_path, name, table(0, 1))
        before = Driver(lambda: source(tmp_path))
        before.next()
        assert all("\n" not in line and line.isascii() for line in before.journal)
        assert {json.loads(line)["path"] for line in before.journal} == set(names)
        assert set(json.loads(before.journal[0])) == {"file", "path", "size", "modified"}
        after = Driver(lambda: source(tmp_path), before.journal, 0, len(names) * FILE)
        assert len(values(after.next())) == len(names)
        assert after.next() == []
        assert after.journal == before.journal

    def test_an_uncommitted_reach_is_planned_again_from_the_journal(self, tmp_path: Path) -> None:
        write(tmp_path, "b.csv", table(0, 1))
        crashed = Driver(lambda: source(tmp_path))
        crashed.next()
        write(tmp_path, "a.csv", table(1, 1))
        assert values(Driver(lambda: source(tmp_path)).next()) == [1, 0]


def explode(rows: pa.RecordBatch) -> pa.Table:
    """Each row as often as its value modulo 4, so also not at all."""
    times = np.asarray(rows.column("value").fill_null(0)) % 4
    return pa.Table.from_batches([rows.take(pa.array(np.repeat(np.arange(rows.num_rows), times)))])


def explode_two(rows: pa.RecordBatch) -> pa.Table:
    return explode(rows).select(["ts", "value"])


class TestTransform:
    def test_a_transform_selects_filters_and_explodes(self, tmp_path: Path) -> None:
        write(tmp_path, "a.parquet", table(0, 6))
        write(tmp_path, "b.csv", table(6, 2))
        chunks = read_all(tmp_path, transform=explode_two)
        assert values(chunks) == [1, 2, 2, 3, 3, 3, 5, 6, 6, 7, 7, 7]
        assert at(chunks) == [*range(7), *range(FILE, FILE + 5)]
        assert chunks[0].rows.schema.names == ["ts", "value"]

    def test_bad_records_stand_behind_the_rows_that_a_transform_made(self, tmp_path: Path) -> None:
        write(tmp_path, "a.csv", "value\n1\nx\n3\ny\n")
        chunks = read_all(tmp_path, transform=explode)
        assert values(chunks) == [1, 3, 3, 3]
        assert at(chunks) == [0, 1, 2, 3]
        assert [(position, record) for position, _, record in bad(chunks)] == [(4, "x"), (5, "y")]

    @pytest.mark.parametrize(
        ("transform", "places"),
        [
            (lambda rows: rows.append_column("one", rows["value"]), [1, 3]),
            (lambda rows: rows.set_column(2, "value", pc.multiply(rows["value"], 2)), [1, 3]),
            (lambda rows: pa.table({"ts": rows["ts"], "value": pc.negate(rows["value"])}), [1, 3]),
            # One of two records is left out, and the other makes two rows.
            (lambda rows: rows.take(pa.array([0, 0][: rows.num_rows], pa.int64())), [None, None]),
            (lambda rows: rows.take(pa.array(range(rows.num_rows), pa.int64())), [None, None]),
            (lambda rows: rows.append_column("one", rows["value"]).slice(1), [None]),
        ],
        ids=["another column", "another value", "a table", "other rows", "a copy", "fewer rows"],
    )
    def test_rows_have_their_record_if_a_transform_hands_a_column_on(
        self, transform: Any, places: list[int | None]
    ) -> None:
        rows = table(0, 2).to_batches()[0]
        bad = tuple(BadRecord(place, "bad") for place in (0, 2))
        piece = formats.Piece(rows, 4, bad, lambda place: formats.Original(b"record", place))
        schema = transforms.transformed(transform, rows.slice(0, 0)).schema
        made = transforms.transformed_piece(piece, transform, schema, "a.csv", "a source")
        assert [made.original(place).line for place in range(made.count)] == [*places, 0, 2]

    def test_the_schema_is_that_after_the_transform(self, tmp_path: Path) -> None:
        def add(rows: pa.RecordBatch) -> pa.RecordBatch:
            return rows.append_column("twice", pc.multiply(rows.column("value"), 2))

        assert source(tmp_path, transform=add).schema == SCHEMA.append(pa.field("twice", pa.int64()))

    def test_a_transform_that_raises_or_varies_is_named(self, tmp_path: Path) -> None:
        write(tmp_path, "a.parquet", table(0, 2))

        def fail(rows: pa.RecordBatch) -> pa.RecordBatch:
            raise KeyError("oops")

        def fail_on_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
            return fail(rows) if rows.num_rows else rows

        def vary(rows: pa.RecordBatch) -> pa.RecordBatch:
            return rows.select(["ts"]) if rows.num_rows else rows

        with pytest.raises(
            InvalidInputError, match=r"transform of .* raised KeyError\('oops'\) at .*, for a batch without rows"
        ):
            _ = source(tmp_path, transform=fail).schema
        for transform, sentence in [
            (fail_on_rows, r"raised KeyError\('oops'\) at .*, for rows of file='a.parquet'"),
            (vary, "alike"),
        ]:
            made = source(tmp_path, transform=transform)
            made.open([], {})
            (split,) = made.splits({}, made.reach({}, False).ends, 1)
            with pytest.raises(TaskFailedError, match=sentence):
                list(made.read(split))


CELL = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.just("junk"))


class TestPositions:
    @settings(max_examples=40)
    @given(
        files=st.lists(
            st.tuples(st.sampled_from(["parquet", "csv", "json", "csv.gz"]), st.lists(CELL, max_size=30)), max_size=6
        ),
        piece=st.integers(1, 40),
        data=st.data(),
    )
    def test_any_splits_of_any_batches_give_every_record_once_at_its_own_position(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        files: list[tuple[str, list[Any]]],
        piece: int,
        data: st.DataObject,
    ) -> None:
        folder = tmp_path_factory.mktemp("files")
        expected: list[tuple[int, Any]] = []
        for i, (ending, cells) in enumerate(files):
            if ending == "parquet":
                cells = [2**53 if cell == "junk" else cell for cell in cells]
            write(folder, f"{i}.{ending}", self._content(ending, cells))
            expected += [(i * FILE + row, "bad" if cell == "junk" else cell) for row, cell in enumerate(cells)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(formats, "_PIECE_ROWS", piece)
            patch.setattr(text_blocks, "BLOCK_BYTES", piece * 8)
            bounds = {
                "max_files_per_batch": data.draw(st.integers(1, 4)),
                "bytes_per_batch": data.draw(st.integers(1, 3000)),
            }
            driver = Driver(lambda: source(folder, **bounds))
            chunks: list[Chunk] = []
            while len(driver.journal) < len(files):
                chunks += driver.next(parts=data.draw(st.integers(1, 4)))
            replayed = Driver(lambda: source(folder), driver.journal, 0, len(files) * FILE).next(parts=3)
            start = data.draw(st.integers(0, len(files)))
            some = Driver(lambda: source(folder), driver.journal, start * FILE, len(files) * FILE).next(parts=2)
        found = list(zip(at(chunks), values(chunks), strict=True)) + [
            (position, "bad") for position, _, _ in bad(chunks)
        ]
        assert sorted(found, key=lambda pair: pair[0]) == expected
        assert at(chunks) == sorted(at(chunks))
        assert replayed == chunks
        assert some == [chunk for chunk in chunks if chunk.first >= start * FILE]

    @settings(max_examples=25)
    @given(cells=st.lists(st.lists(CELL, max_size=30), max_size=4), piece=st.integers(1, 40))
    def test_positions_never_overlap_under_a_transform(
        self, tmp_path_factory: pytest.TempPathFactory, cells: list[list[Any]], piece: int
    ) -> None:
        folder = tmp_path_factory.mktemp("files")
        for i, of_file in enumerate(cells):
            write(folder, f"{i}.csv", self._content("csv", of_file))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_blocks, "BLOCK_BYTES", piece * 8)
            chunks = read_all(folder, transform=explode)
            again = read_all(folder, transform=explode, max_files_per_batch=1)
        assert chunks == again
        assert values(chunks) == [c for of_file in cells for c in of_file if isinstance(c, int) for _ in range(c % 4)]
        every = sorted(at(chunks) + [position for position, _, _ in bad(chunks)])
        assert len(set(every)) == len(every)
        assert [position for i in range(len(cells)) for position in every if position >> 32 == i] == every
        assert len(bad(chunks)) == sum(cell == "junk" for of_file in cells for cell in of_file)

    def _content(self, ending: str, cells: Sequence[Any]) -> bytes:
        if ending == "parquet":
            return encode(pa.table({"value": pa.array(cells, pa.int64())}), ".parquet", row_group_size=7)
        if ending == "json":
            return "".join(f"{json.dumps({'value': cell})}\n" for cell in cells).encode()
        text = "".join(f"{'' if cell is None else cell},x,\n" for cell in cells).encode()
        text = b"value,key,ts\n" + text
        return gzip.compress(text) if ending == "csv.gz" else text


class Counts(PersistentTask):
    key = "key"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class TestSetUp:
    def test_a_copy_for_a_worker_is_small_and_open_is_its_own(self, tmp_path: Path) -> None:
        for i in range(300):
            write(tmp_path, f"{i}.csv", "value\n1\n")
        opened = source(tmp_path)
        fresh = len(pickle.dumps(opened))
        opened.open([], {})
        opened.reach({}, True)
        assert len(pickle.dumps(opened)) <= fresh + 1000
        first, second = pickle.loads(pickle.dumps(opened)), pickle.loads(pickle.dumps(opened))
        first.open([], {})
        second.open([], {})
        assert first.reach({}, True) == second.reach({}, True) == opened.reach({}, True)

    @pytest.mark.parametrize("name", [*inspect.signature(FileSource).parameters])
    @pytest.mark.parametrize(
        "value", [None, 0, -1.5, True, b"ts", "", "\0", ["ts"], {"ts": 1}, object(), pa.scalar("ts")],
        ids=lambda value: type(value).__name__,
    )  # fmt: skip
    def test_an_argument_of_any_type_is_taken_or_refused_in_a_sentence(
        self, tmp_path: Path, name: str, value: Any
    ) -> None:
        write(tmp_path, "a.csv", table(0, 1))
        given = {"path": tmp_path, "timestamp": "ts", "schema": SCHEMA, name: value}
        with suppress(StateError):
            made = FileSource(**given)
            made.open([], {})
            plan = core.plan_of(Counts(), made.schema, timestamp=made.timestamp, channel=made.channel)
            core.check(core.changed(plan, timestamp_unit=made.timestamp_unit))
            made.reach({}, True)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("path", b"."),
            ("timestamp", ["ts"]),
            ("channel", 1),
            ("finite", "no"),
            ("storage_options", [("key", "S3CRET")]),
        ],
    )
    def test_an_argument_of_another_type_is_refused(self, tmp_path: Path, name: str, value: Any) -> None:
        said = problem(lambda: source(**{"folder": tmp_path, "folder" if name == "path" else name: value}))
        assert said.startswith(f"{name} of a FileSource is of type {type(value).__name__}; give ")

    def test_an_empty_path_is_not_the_current_folder(self) -> None:
        assert problem(lambda: source("")) == (
            "path='' of a FileSource names no folder; give one, such as '.' for the current one."
        )

    def test_secrets_are_in_no_text(self) -> None:
        made = source("failing://user:hunter2@host/x", storage_options={"secret": "hunter2"})
        assert "hunter2" not in repr(made) + str(made)
        with pytest.raises(InvalidInputError) as caught:
            made.open([], {})
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize(
        ("path", "text"),
        [
            ("s3://user:pa@ss/w@rd@host/x", "s3://host/x"),
            ("https://host/x?sig=hunter2#y", "https://host/x"),
            ("s3://bucket/day@2020/x", "s3://bucket/day@2020/x"),
            ("/data/what?/x", "/data/what?/x"),
        ],
    )
    def test_a_path_is_shown_without_what_may_be_secret(self, path: str, text: str) -> None:
        assert shown(path) == text

    def test_what_a_client_says_is_shown_without_its_options(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*arguments: Any, **options: Any) -> None:
            raise OSError("no entry for hunter2, see https://host/x?sig=abcdef")

        monkeypatch.setattr(MemoryFileSystem, "info", refuse)
        with pytest.raises(StoreUnavailableError) as caught:
            source("memory://told", storage_options={"secret": "hunter2"}).open([], {})
        assert "no entry for ***, see https://host/x?***. Put it right" in str(caught.value)
        assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)

    def test_the_mark_of_an_empty_folder_is_no_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fsspec.filesystem("memory").pipe_file("/marked/a.parquet", encode(table(0, 3), ".parquet"))
        find = MemoryFileSystem.find

        def marked(*arguments: Any, **options: Any) -> dict[str, Any]:
            marks = {f"/marked/{name}": {"size": 0, "type": "file"} for name in ("", "sub/", "a//")}
            return {**find(*arguments, **options), **marks}

        monkeypatch.setattr(MemoryFileSystem, "find", marked)
        assert values(Driver(lambda: source("memory://marked")).next()) == [0, 1, 2]

    def test_an_fsspec_url_is_read_with_its_options(self) -> None:
        fsspec.filesystem("memory").pipe_file("/events/sub/a.parquet", encode(table(0, 3), ".parquet"))
        made = lambda: source("memory://events", schema=None, order_by="modified", storage_options={"skip": 1})  # noqa: E731
        assert values(Driver(made).next()) == [0, 1, 2]

    def test_a_relative_path_is_that_of_the_driver(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path, "events/a.csv", table(0, 1))
        monkeypatch.chdir(tmp_path)
        driver = Driver(lambda: source("events"))
        monkeypatch.chdir("/")
        assert values(driver.next()) == [0]

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"format": "xml"}, r"format='xml'; say 'parquet', 'csv' or 'json'"),
            ({"order_by": "size"}, r"order_by='size'; say 'name' or 'modified'"),
            ({"max_files_per_batch": 0}, r"max_files_per_batch=0, .*; give at least 1"),
            ({"bytes_per_batch": 0}, r"bytes_per_batch=0; give at least 1"),
        ],
    )
    def test_a_wrong_argument_is_refused(self, tmp_path: Path, options: Mapping[str, Any], sentence: str) -> None:
        with pytest.raises(InvalidInputError, match=sentence):
            source(tmp_path, **options)

    def test_a_missing_folder_is_refused(self, tmp_path: Path) -> None:
        write(tmp_path, "a.csv", table(0, 1))
        for place in (tmp_path / "nope", f"file://{tmp_path}/nope", tmp_path / "a.csv/nope"):
            with pytest.raises(InvalidInputError, match="is not a folder; create it, or correct the path"):
                source(place).open([], {})

    def test_a_folder_that_goes_is_refused_whatever_was_read_of_it(self, tmp_path: Path) -> None:
        write(tmp_path / "events", "a.csv", table(0, 1))
        driver = Driver(lambda: source(tmp_path / "events"))
        assert values(driver.next()) == [0]
        shutil.rmtree(tmp_path / "events")
        for look in (driver.next, lambda: source(tmp_path / "events").open(driver.journal, driver.position)):
            with pytest.raises(InvalidInputError, match="is not a folder; create it, or correct the path"):
                look()

    def test_an_empty_folder_of_this_machine_is_no_reason_to_warn(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert read_all(tmp_path) == []
        assert caplog.text == ""

    def test_no_schema_without_a_parquet_file_is_refused(self, tmp_path: Path) -> None:
        write(tmp_path, "a.csv", table(0, 1))
        with pytest.raises(InvalidInputError, match="has no Parquet file to take the schema from; give it schema="):
            _ = source(tmp_path, schema=None).schema
        write(tmp_path, "b.parquet", b"junk" * 9)
        with pytest.raises(InvalidInputError, match=r"file='b.parquet' .* has no schema: .*[^.]; give schema="):
            _ = source(tmp_path, schema=None).schema

    @pytest.mark.parametrize(
        ("name", "type"),
        [("a.csv", pa.list_(pa.int64())), ("a.json", pa.map_(pa.string(), pa.int64())), ("a.csv", pa.duration("s"))],
    )
    def test_a_type_that_a_text_can_not_hold_is_refused(self, tmp_path: Path, name: str, type: pa.DataType) -> None:
        write(tmp_path, name, "{}\n")
        with pytest.raises(
            InvalidInputError,
            match=r"the schema does not fit csv files: .*; read another type|column 'odd' is map<.* A map can't be",
        ):
            source(tmp_path, schema=SCHEMA.append(pa.field("odd", type))).open([], {})

    @pytest.mark.parametrize(
        "line", ["", "[]", "{}", '{"file": 1, "path": "a", "size": 1, "modified": 1}', '{"file": 0}']
    )
    def test_the_journal_of_another_source_is_refused(self, tmp_path: Path, line: str) -> None:
        with pytest.raises(InvalidInputError, match="line 0 of the journal was not written by a FileSource"):
            source(tmp_path).open([line], {"": FILE})

    def test_a_journal_that_is_shorter_than_what_was_read_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInputError, match="its journal has only 0 files"):
            source(tmp_path).open([], {"": FILE})

    def test_ordering_by_time_needs_a_file_system_that_tells_it(self) -> None:
        fsspec.filesystem("timeless").pipe_file("/timeless/a.csv", b"value\n")
        with pytest.raises(InvalidInputError, match="gives no modification times; order by name"):
            source("timeless:///timeless", order_by="modified").open([], {})


class Timeless(OwnFileSystem):
    def find(self, path: str, **options: Any) -> Any:
        return {name: {**info, "created": None} for name, info in super().find(path, **options).items()}


class Remembering(OwnFileSystem):
    """Listings are remembered, as those of object stores are."""

    listings: dict[str, Any] = {}  # noqa: RUF012

    def find(self, path: str, **options: Any) -> Any:
        return self.listings.setdefault(path, super().find(path, **options))

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listings.clear()


def test_listings_bypass_the_caches_of_the_file_system() -> None:
    system = fsspec.filesystem("remembering")
    system.pipe_file("remembering:///events/a.csv", encode(table(0, 1), ".csv"))
    driver = Driver(lambda: source("remembering:///events"))
    assert values(driver.next()) == [0]
    system.pipe_file("remembering:///events/b.csv", encode(table(1, 1), ".csv"))
    assert values(driver.next()) == [1]


def test_modification_times_are_microseconds_utc(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", table(0, 1), 1_356_998_400.25)
    driver = Driver(lambda: source(tmp_path))
    driver.next()
    expected = (datetime(2013, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert json.loads(driver.journal[0])["modified"] == expected + 250_000


@pytest.mark.parametrize("finite", [False, True])
def test_a_source_says_whether_there_are_more_files_than_a_micro_batch_reads(tmp_path: Path, finite: bool) -> None:
    for name in ("a.parquet", "b.parquet", "c.parquet"):
        write(tmp_path, name, table(0, 3))
    opened = Driver(partial(source, tmp_path, finite=finite, max_files_per_batch=2)).source
    assert [opened.reach({"": n * FILE}, everything=False).has_more for n in range(4)] == [True, False, False, False]
    assert not opened.reach({}, everything=True).has_more


def test_a_finite_source_has_the_files_of_its_first_start_and_ends_with_the_last(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet", "c.parquet"):
        write(tmp_path, name, table(0, 3))
    made = partial(source, tmp_path, finite=True, max_files_per_batch=2)
    driver = Driver(made)
    assert driver.source.reach({}, everything=False).is_last is False
    assert driver.source.reach({}, everything=True).is_last is True
    driver.next()
    # All files stand in the journal with the first micro-batch, so that no later start takes another one.
    write(tmp_path, "d.parquet", table(0, 3))
    assert len(driver.journal) == 4
    again = Driver(made, driver.journal, start=driver.position[""])
    for each in (driver, again):
        reach = each.source.reach(each.position, everything=True)
        assert (reach.ends, reach.is_last, reach.journal) == ({"": 3 * FILE}, True, ())
        assert len([*each.next()]) == 1
        assert each.source.reach(each.position, everything=True).ends == {"": 3 * FILE}


def test_a_finite_source_that_was_not_yet_read_looks_again_at_a_start(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", table(0, 3))
    made = partial(source, tmp_path, finite=True)
    first = Driver(made)
    assert first.source.reach({}, everything=True).ends == {"": FILE}
    write(tmp_path, "b.parquet", table(0, 3))
    # Within a start nothing is looked for.
    assert first.source.reach({}, everything=True).ends == {"": FILE}
    assert Driver(made).source.reach({}, everything=True).ends == {"": 2 * FILE}


def test_a_source_that_becomes_finite_or_is_so_no_longer_goes_on_from_its_journal(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", table(0, 3))
    driver = Driver(partial(source, tmp_path))
    driver.next()
    write(tmp_path, "b.parquet", table(0, 3))
    finite = Driver(partial(source, tmp_path, finite=True), driver.journal, start=FILE)
    finite.next()
    assert finite.position == {"": 2 * FILE}
    write(tmp_path, "c.parquet", table(0, 3))
    grows = Driver(partial(source, tmp_path), finite.journal, start=2 * FILE)
    grows.next()
    assert grows.position == {"": 3 * FILE}
    files_of = [json.loads(line)["path"] for line in grows.journal if "path" in line]
    assert files_of == ["a.parquet", "b.parquet", "c.parquet"]


def test_a_finite_source_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInputError, match="is finite and has no file, so that it would end before it begins; put"
    ):
        Driver(partial(source, tmp_path, finite=True))
