"""A column that files do not hold under its name comes from the names of folders, or is missed aloud."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from persistent_state import CsvOptions
from persistent_state.kafka.decoders import Json
from persistent_state.sources import json_names
from persistent_state.sources.base import Chunk
from persistent_state.sources.formats import NO_COLUMN, json_piece
from persistent_state.sources.names import absent_columns
from tests.sources.test_files import FILE, SCHEMA, at, bad, read_all, table, values, write
from tests.sources.world_files import CODECS


def notes(chunks: list[Chunk]) -> dict[str, str]:
    return {column: note for chunk in chunks for column, note in chunk.notes.items()}


def as_it_is(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows


def filled(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.set_column(1, "key", pa.array(["z"] * rows.num_rows, pa.string()))


def renamed(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.rename_columns(["at", "shop", "cents"])


def computed(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.append_column("shop", pc.utf8_upper(rows.column("key")))


def taken_out(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.append_column("shop", pc.struct_field(rows.column("place"), "shop"))


class TestFolders:
    @pytest.mark.parametrize("name", ["a.csv", "a.json", "a.parquet"])
    def test_columns_are_read_from_the_names_of_folders_and_typed_by_the_schema(
        self, tmp_path: Path, name: str
    ) -> None:
        for folder in ("key=Oslo/day=2026-01-02", "key=Troms%C3%B8 %3D/day=__HIVE_DEFAULT_PARTITION__"):
            write(tmp_path, f"{folder}/{name}", table(0, 2).drop(["key"]))
        chunks = read_all(tmp_path, schema=SCHEMA.append(pa.field("day", pa.date32())))
        rows = [row for chunk in chunks for row in chunk.rows.to_pylist()]
        assert [(row["key"], row["day"] and str(row["day"]), row["value"]) for row in rows] == [
            ("Oslo", "2026-01-02", 0), ("Oslo", "2026-01-02", 1), ("Tromsø =", None, 0), ("Tromsø =", None, 1),
        ]  # fmt: skip
        assert not bad(chunks)
        assert not notes(chunks)

    def test_a_folder_with_another_name_of_a_column_is_named(self, tmp_path: Path) -> None:
        write(tmp_path, "Key=Oslo/a.csv", table(0, 1).drop(["key"]))
        (note,) = notes(read_all(tmp_path)).values()
        assert "has no column 'key', only 'ts', 'value', and its folder has 'Key': it is null there." in note

    def test_a_folder_wins_over_a_column_of_its_files_as_on_spark(self, tmp_path: Path) -> None:
        for name in ("a.csv", "b.json", "c.parquet"):
            write(tmp_path, f"key=Oslo/other=1/{name}", table(0, 1))
        assert values(read_all(tmp_path), "key") == ["Oslo"] * 3

    def test_without_a_schema_they_are_text_beside_the_columns_of_the_first_parquet_file(self, tmp_path: Path) -> None:
        write(tmp_path, "value=7/n=1/a.parquet", table(0, 2))
        chunks = read_all(tmp_path, schema=None)
        assert chunks[0].rows.schema == SCHEMA.append(pa.field("n", pa.string()))
        assert (values(chunks), values(chunks, "n")) == ([7, 7], ["1", "1"])

    @pytest.mark.parametrize("name", ["a.csv", "a.json", "a.parquet"])
    def test_a_folder_that_does_not_fit_makes_each_row_bad_in_its_place(self, tmp_path: Path, name: str) -> None:
        write(tmp_path, f"value=some/{name}", table(0, 3))
        write(tmp_path, f"value=some%FF/{name}", table(0, 1))
        chunks = read_all(tmp_path)
        assert values(chunks) == []
        assert [(place, reason) for place, reason, _ in bad(chunks)] == [
            (0, "column value is not UTF-8, in its folder's name"),
            *((FILE + i, "column value is not int64, in its folder's name") for i in range(3)),
        ]
        assert ["k0" in (text or "") for _, _, text in bad(chunks)] == [True, True, False, False]

    def test_a_file_without_any_column_of_the_schema_has_bad_rows_if_its_folder_does_not_fit(
        self, tmp_path: Path
    ) -> None:
        write(tmp_path, "value=some/a.parquet", pa.table({"other": [1, 2]}))
        assert [(place, record) for place, _, record in bad(read_all(tmp_path))] == [(0, "{}"), (1, "{}")]

    @pytest.mark.parametrize("name", ["a.csv", "a.json", "a.parquet"])
    def test_all_columns_may_be_of_folders(self, tmp_path: Path, name: str) -> None:
        write(tmp_path, f"ts=2026-01-01/key=a/{name}", table(0, 3))
        chunks = read_all(tmp_path, schema=SCHEMA.remove(2))
        assert values(chunks, "key") == ["a"] * 3
        assert (bad(chunks), notes(chunks), [chunk.lacks for chunk in chunks]) == ([], {}, [()])

    def test_no_member_of_json_is_taken_for_a_column_where_folders_have_all(self, tmp_path: Path) -> None:
        lines = [
            '{"": 1}',
            '{" ": "x"}',
            '{"\\u200b": []}',
            '{"": {}, "x": Inf}',
            "{}",
            '{"key": 1}',
            '{"KEY": 1}',
            "[]",
        ]
        write(tmp_path, "ts=2026-01-01/key=a/a.json", "\n".join(lines))
        chunks = read_all(tmp_path, schema=SCHEMA.remove(2))
        assert values(chunks, "key") == ["a"] * 7
        assert ([(place, why) for place, why, _ in bad(chunks)], notes(chunks)) == ([(7, "not a JSON object")], {})

    @pytest.mark.parametrize("header", ["name", "position", "none"])
    @pytest.mark.parametrize("text", ["x\n1\n2\n", '"",x\n0,1\n1,2\n', '""\n0\nb\n'])
    def test_a_csv_file_needs_no_column_where_its_folders_have_all(
        self, tmp_path: Path, header: str, text: str
    ) -> None:
        write(tmp_path, "ts=2026-01-01/key=a/a.csv", text)
        chunks = read_all(tmp_path, schema=SCHEMA.remove(2), csv=CsvOptions(header=header))
        if "," in text and header != "name":
            assert {reason for _, reason, _ in bad(chunks)} == {"not as many fields as columns in the schema"}
        else:
            assert values(chunks, "key") == ["a"] * (3 if header == "none" else 2)
            assert bad(chunks) == []
        assert notes(chunks) == {}


class TestAbsent:
    @pytest.mark.parametrize(
        ("header", "instead"),
        [
            ("K", ", but 'K'"),
            (" k ", ", but ' k '"),
            ("k\u00a0", r", but 'k\xa0'"),
            ("k\u200b", r", but 'k\u200b'"),
            ("key", ", only 'ts', 'key', 'v'"),
            ("größe", ", only 'ts', 'größe', 'v'"),
            ("\u03ba", ", only 'ts', '\u03ba', 'v' (in ASCII: '\\u03ba')"),
            ("\u043a", ", only 'ts', '\u043a', 'v' (in ASCII: '\\u043a')"),
        ],
    )
    @pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
    def test_a_column_under_another_name_is_missed_and_the_note_says_what_is_there(
        self, tmp_path: Path, header: str, instead: str, name: str
    ) -> None:
        rows = table(0, 2).rename_columns(["ts", header, "v"])
        write(tmp_path, name, rows)
        chunks = read_all(tmp_path, schema="ts timestamp, k string, v long")
        assert values(chunks, "k") == [None, None]
        assert [chunk.lacks for chunk in chunks] == [("k",)]
        assert notes(chunks) == {
            "k": f"file={name!r} of FileSource({str(tmp_path)!r}) has no column 'k'{instead}: it is null there."
        }

    @pytest.mark.parametrize("name", ["a.json", "a.parquet"])
    @pytest.mark.parametrize("lacking", [["s.a"], ["a"], ["s.a", "a"], []])
    def test_a_column_may_be_called_as_a_field_of_another_one_is(
        self, tmp_path: Path, name: str, lacking: list[str]
    ) -> None:
        fields = {field: pa.array([1]) for field in ("a", "b") if field not in lacking}
        inner = pa.StructArray.from_arrays([*fields.values()], [*fields])
        rows = table(0, 1).append_column("s.a", pa.array(["x"])).append_column("s", inner)
        write(tmp_path, name, rows.drop(["s.a"] if "s.a" in lacking else []))
        schema = SCHEMA.append(pa.field("s.a", pa.string()))
        schema = schema.append(pa.field("s", pa.struct({"a": pa.int64(), "b": pa.int64()})))
        (chunk,) = read_all(tmp_path, schema=schema)
        assert chunk.lacks == (("s.a",) if "s.a" in lacking else ())
        assert [*chunk.notes] == (["s.a"] if lacking else [])
        if lacking == ["s.a", "a"]:
            # Of the two it is the column that is named.
            assert "'key'" in chunk.notes["s.a"]

    def test_a_composed_name_is_not_the_decomposed_one(self) -> None:
        composed, decomposed = (unicodedata.normalize(form, "größe") for form in ("NFC", "NFD"))
        field = pa.field(composed, pa.string())
        assert absent_columns({decomposed: pa.string()}, [field]) == {(composed,): r", but 'gro\u0308\xdfe'"}
        assert absent_columns({composed: pa.string()}, [field]) == {}

    def test_a_struct_without_its_fields_is_absent_and_one_that_lacks_some_says_which(self) -> None:
        wanted = pa.schema(
            {"s": pa.struct({"a": pa.int8(), "b": pa.int8()}), "l": pa.list_(pa.struct({"x": pa.int8()}))}
        )
        both = {"s": pa.struct({"x": pa.int8(), "y": pa.int8()}), "l": pa.list_(pa.struct({"x": pa.int8()}))}
        assert absent_columns(both, wanted) == {("s",): ", but one with the fields 'x', 'y'"}
        some = {"s": pa.struct({"A": pa.int8(), "b": pa.int8()}), "l": pa.list_(pa.struct({"y": pa.int8()}))}
        assert absent_columns(some, wanted) == {("s", "a"): ", but 'A'", ("l",): ", but one with the fields 'y'"}

    def test_a_header_of_many_names_is_cut_in_the_note(self) -> None:
        many = {f"c{i}": pa.string() for i in range(1000)}
        assert absent_columns(many, [pa.field("k", pa.string())])[("k",)].endswith("'c7' and 992 more")

    def test_a_json_record_with_another_name_of_a_column_is_bad_by_itself(self, tmp_path: Path) -> None:
        lines = [
            '{"key": "a", "value": 1}',
            '{"Key": "b", "value": 2}',
            '{"value": 3}',
            '{" key\\u200b": "c", "value": 4}',
            '{"key\u200b": "c", "value": 5}',
            '{"value": 6, "more": {"KEY": 1}}',
            '{"key": null, "KEY": "d", "value": 7}',
            '{"value": 8, "text": "\\"KEY\\": 1"}',
        ]
        write(tmp_path, "a.json", "\n".join(lines))
        chunks = read_all(tmp_path)
        assert [(place, reason) for place, reason, _ in bad(chunks)] == [
            (1, "column key is not in it, but 'Key'"),
            (3, r"column key is not in it, but ' key\u200b'"),
            (4, r"column key is not in it, but 'key\u200b'"),
        ]
        assert values(chunks) == [1, 3, 6, 7, 8]
        assert at(chunks) == [0, 2, 5, 6, 7]

    @pytest.mark.parametrize("space", ["\x85", "\u2003", "\u3000"])
    def test_white_space_of_any_kind_makes_another_name(self, tmp_path: Path, space: str) -> None:
        write(tmp_path, "a.json", '{"key": "a", "value": 1}\n' + f'{{"key{space}": "b", "value": 2}}\n')
        assert [place for place, _, _ in bad(read_all(tmp_path))] == [1]

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ('{"Key": "b", "value": 1, "x": "key", "more": {"key": 2}}', "column key is not in it, but 'Key'"),
            ('{"Key"\t :"b", "text": "\\\\"}', "column key is not in it, but 'Key'"),
            ('{"text": "\\"Key\\": \\\\"}', None),
            ('{"s": {"A": 1}, "a": 2, "key": "b"}', "column s.a is not in it, but 'A'"),
            ('{"s": {"a": null, "A": 1}, "key": "b"}', None),
            ('{"s": {"b": {"C": 1}, "C": 1}, "key": "b"}', "column s.b.c is not in it, but 'C'"),
            ('{"s": {"b": null}, "key": "b", "C": 1}', None),
            ('{"s": null, "key": "b", "A": 1}', None),
            ('{"KEY": 1e999, "a": [[', "not a JSON object"),
            ('{"Key": "b\tc"}', "column key is not in it, but 'Key'"),
            ('{"Key": "b", "x": "\udcff"}', "column key is not in it, but 'Key'"),
            ('{"Key": "b", "x": %s}' % ("1" * 5000), "column key is not in it, but 'Key'"),
            ('{"key": "b", "l": [null, {"d": 1}, {"D": 2}]}', "column l.d is not in it, but 'D'"),
            ('{"key": "b", "l": [{"d": 1}, {"d": null}, {}, null]}', None),
        ],
    )
    def test_another_name_is_found_beside_the_same_one_at_another_level(
        self, tmp_path: Path, line: str, reason: str | None
    ) -> None:
        inner = pa.struct({"a": pa.int64(), "b": pa.struct({"c": pa.int64()})})
        content = f'{{"key": "a"}}\n{line}\n{{"key": "c"}}\n'.encode(errors="surrogateescape")
        (tmp_path / "a.json").write_bytes(content)
        items = pa.list_(pa.struct({"d": pa.int64()}))
        chunks = read_all(tmp_path, schema=SCHEMA.append(pa.field("s", inner)).append(pa.field("l", items)))
        assert [(place, why) for place, why, _ in bad(chunks)] == ([] if reason is None else [(1, reason)])

    @pytest.mark.parametrize(
        ("name", "other"),
        [
            ("größe", "GRÖSSE"),
            ("größe", "gro\u0308ße"),
            ("a b", "A b "),
            ("a.b", "A.B"),
            ("İx", "İX"),
            ("(?i)x", "(?I)x"),
            ("strasse", "straße"),
            ("STRASSE", "straẞe"),
            ("file", "ﬁle"),
            ("\u03b1\u03b9", "\u1fb3"),
            ("a\u0323\u0301", "a\u0301\u0323"),
            ("\u8c48", "\uf900"),
            ("e\u0301\xe9", "\xe9e\u0301"),
            ('a"x', 'A"x'),
            ('"x"', '"X"'),
            ("a:x", "A:x"),
            ("a\\x", "A\\x"),
            (":", " : "),
        ],
    )
    @pytest.mark.parametrize("is_ascii", [False, True])
    def test_a_column_of_any_letters_is_found_under_another_name(
        self, tmp_path: Path, name: str, other: str, is_ascii: bool
    ) -> None:
        records = [{name: 1}, {other: 1}, {other.replace("x", "y"): 1}, {other: 1, "deeper": {name: 1}}]
        write(tmp_path, "a.json", "\n".join(json.dumps(each, ensure_ascii=is_ascii) for each in records))
        chunks = read_all(tmp_path, schema=pa.schema({"ts": SCHEMA.field("ts").type, name: pa.int64()}))
        assert values(chunks, name) == ([1, None] if "x" in other else [1])

    def test_a_name_that_is_a_column_itself_stands_for_no_other(self, tmp_path: Path) -> None:
        write(tmp_path, "a.json", '{"Key": "b"}\n{"key": "a"}\n')
        chunks = read_all(tmp_path, schema=SCHEMA.append(pa.field("Key", pa.string())))
        assert (values(chunks, "key"), bad(chunks)) == ([None, "a"], [])

    def test_a_column_that_no_json_record_has_is_missed_as_in_other_formats(self, tmp_path: Path) -> None:
        write(tmp_path, "a.json", '{"key": null}\n{"key": null, "values": 1}\n')
        (chunk,) = read_all(tmp_path)
        assert chunk.lacks == ("ts", "value") == (*chunk.notes,)
        assert (
            "has no column 'value' in any of 2 good records, the first of which have 'key', 'values': it is null there"
            in chunk.notes["value"]
        )

    def test_a_file_of_nothing_but_a_header_is_asked_for_its_columns_too(self, tmp_path: Path) -> None:
        write(tmp_path, "a.csv", "ts,Key,value\n")
        for transform in (None, as_it_is):
            chunks = read_all(tmp_path, transform=transform)
            assert ([chunk.rows.num_rows for chunk in chunks], bad(chunks), [*notes(chunks)]) == ([0], [], ["key"])

    @pytest.mark.parametrize("header", ["name", "position"])
    def test_files_of_one_line_without_a_header_are_bad_rows(self, tmp_path: Path, header: str) -> None:
        for i in range(5):
            write(tmp_path, f"{i}.csv", f"2026-01-01,a,{i}\n")
        for transform in (None, as_it_is):
            chunks = read_all(tmp_path, csv=CsvOptions(header=header), transform=transform)
            assert [(place, text) for place, _, text in bad(chunks)] == [
                (i * FILE, f"2026-01-01,a,{i}") for i in range(5)
            ]
            assert values(chunks) == []

    def test_a_timestamp_of_a_folder_or_of_a_transform_need_not_be_in_a_header(self, tmp_path: Path) -> None:
        write(tmp_path / "folder", "ts=2026-01-01/a.csv", "key,value\na,1\n")
        write(tmp_path / "transform", "a.csv", "key,value\na,1\n")
        assert not bad(read_all(tmp_path / "folder"))
        assert not bad(read_all(tmp_path / "transform", transform=as_it_is))

    @pytest.mark.parametrize(
        "record",
        [
            '{"user": {"id": "a"}}',
            '{"kind": "id"}',
            '{"list": ["id"], "other": {"id": null}}',
            '{"text": "\\"id\\": 1"}',
            '{"\\u0069\\u0064s": 1}',
        ],
    )
    def test_a_name_elsewhere_in_a_json_record_is_no_member_of_it(self, tmp_path: Path, record: str) -> None:
        schema = pa.schema({"id": pa.string(), "user": pa.struct({"id": pa.string()})})
        write(tmp_path, "a.json", f"{record}\n" * 3 + '{"user": {"id": "b"}}\nnothing "id":\n')
        (chunk,) = read_all(tmp_path, schema=schema, timestamp="id")
        assert (chunk.lacks, chunk.rows.num_rows) == (("id",), 4)

    @pytest.mark.parametrize("name", ['"id"', '"\\u0069d"', '"i\\u0064" '])
    def test_a_member_that_is_null_is_there_also_if_its_name_is_escaped(self, tmp_path: Path, name: str) -> None:
        write(tmp_path, "a.json", f'{{"x": 1}}\n{{{name}: null}}\n{{"x": 1}}\n')
        (chunk,) = read_all(tmp_path, schema="id string, x bigint", timestamp="id")
        assert (chunk.lacks, chunk.notes) == ((), {})

    @pytest.mark.parametrize(
        ("value", "instead"),
        [
            ('{"s": {"x": 1, "y": 2}}', {"s": ", but one with the fields 'x', 'y'"}),
            ('{"s": {"a": 1}}', {"s.b": " in any of 3 good records, the first of which have 'a'"}),
            ('{"s": {"a": 1, "b": null}}', {}),
            ('{"s": {}}', {}),
            ('{"s": null}', {}),
            ('{"s": [1, 2]}', None),
            ('{"l": [null, {"x": 1}, {}]}', {"l": ", but one with the fields 'x'"}),
            ('{"l": [[]], "s": {"c": {"x": 1}, "a": 1, "b": 1}}', None),
        ],
    )
    def test_a_struct_of_json_that_has_none_of_its_fields_is_missed(
        self, tmp_path: Path, value: str, instead: dict[str, str] | None
    ) -> None:
        schema = "ts timestamp, s struct<a: bigint, b: bigint>, l array<struct<c: bigint>>"
        lines = f"{value}\n" * 3
        write(tmp_path, "a.json", lines)
        (chunk,) = read_all(tmp_path, schema=schema)
        if instead is None:
            assert (chunk.rows.num_rows, len(chunk.bad)) == (0, 3)
            return
        others = {"ts", "s", "l"} - {value[2]}
        assert {*chunk.notes} - others == {*instead}
        assert {*chunk.lacks} - others == {column for column in instead if "." not in column}
        for column, words in instead.items():
            assert f"has no column {column!r}{words}: it is null there" in chunk.notes[column]

    @pytest.mark.parametrize(
        "outer",
        [
            pa.list_, pa.large_list, lambda type: pa.list_(type, 1), pa.list_view, lambda type: pa.map_(pa.string(), type),
            lambda type: pa.large_list(pa.map_(pa.int8(), pa.list_(type))),
        ],
    )  # fmt: skip
    def test_a_struct_in_a_list_of_any_kind_or_a_map_is_looked_into(self, outer: Any) -> None:
        has, wants = (outer(pa.struct({name: pa.int8()})) for name in ("X", "x"))
        (words,) = absent_columns({"m": has}, [pa.field("m", wants)]).values()
        assert words == ", but one with the fields 'X'"
        assert absent_columns({"m": wants}, [pa.field("m", wants)]) == {}

    @pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.json"])
    def test_a_transform_may_fill_what_is_absent_and_what_it_passes_on_is_missed(
        self, tmp_path: Path, name: str
    ) -> None:
        write(tmp_path, name, table(0, 2).drop(["key"]))
        (chunk,) = read_all(tmp_path, transform=as_it_is)
        assert (chunk.lacks, [*chunk.notes]) == (("key",), ["key"])
        (chunk,) = read_all(tmp_path, transform=filled)
        assert (chunk.lacks, [*chunk.notes]) == ((), ["key"])

    @pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.json"])
    def test_what_a_transform_makes_of_an_absent_column_is_missed_under_its_new_name(
        self, tmp_path: Path, name: str
    ) -> None:
        write(tmp_path / "lacking", name, table(0, 2).drop(["key"]))
        write(tmp_path / "whole", name, table(0, 2))
        for transform, lacks in ((renamed, ("shop",)), (computed, ("key", "shop"))):
            (chunk,) = read_all(tmp_path / "lacking", transform=transform)
            assert (chunk.lacks, [*chunk.notes]) == (lacks, ["key"])
            assert chunk.unseen == (lacks if name == "a.json" else ())
            (chunk,) = read_all(tmp_path / "whole", transform=transform)
            assert (chunk.lacks, chunk.notes) == ((), {})

    @pytest.mark.parametrize("name", ["a.parquet", "a.json"])
    def test_what_a_transform_takes_out_of_a_struct_that_lacks_it_is_missed(self, tmp_path: Path, name: str) -> None:
        schema = SCHEMA.append(pa.field("place", pa.struct({"shop": pa.string(), "town": pa.string()})))

        for field, lacks in (("town", ("shop",)), ("shop", ())):
            places = pa.array([{field: "x"}] * 2)
            write(tmp_path / field, name, table(0, 2).append_column("place", places))
            (chunk,) = read_all(tmp_path / field, schema=schema, transform=taken_out)
            assert chunk.lacks == lacks

    @pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".zst"])
    @pytest.mark.parametrize("size", [10, 1 << 24, 3 << 23])
    def test_a_last_line_without_its_end_is_judged_with_those_before_it(
        self, tmp_path: Path, ending: str, size: int
    ) -> None:
        line = '{"key": "a", "ts": "2026-01-01", "value": 1, "text": "%s"}\n'
        content = CODECS[ending]((line % "b" * 2 + line % ("b" * size) + '{"value": 2}').encode())
        (tmp_path / f"a.json{ending}").write_bytes(content)
        chunks = read_all(tmp_path)
        assert (sum(chunk.rows.num_rows for chunk in chunks), bad(chunks)) == (4, [])
        assert {chunk.lacks for chunk in chunks} == {()}

    def test_what_no_record_of_a_kafka_chunk_has_is_named_and_its_rows_count_as_before(self) -> None:
        decoder = Json("id string, n bigint")
        assert decoder.decode([b'{"n": 1, "user": {"id": "a"}}', None]).absent == {
            "id": " in any of 2 good records, the first of which have 'n', 'user'"
        }
        assert decoder.decode([None, b"{}"]).absent == {}


@pytest.mark.parametrize(
    ("header", "is_warned"),
    [
        ("ts,value,key", True), ("ts,x,key", True), ("value,key,ts", True), ("key,key,value", True), ("ts,key,value", False),
        ("Time,Key,Value", False), ('"ts","key","amount"', False), ("a,b,c", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("transform", [None, as_it_is])
def test_a_header_that_is_passed_over_and_names_columns_at_other_places_is_named_once(
    tmp_path: Path, header: str, is_warned: bool, transform: Any
) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n2026-01-01,a,1\n2026-01-01,b,2\n")
    chunks = read_all(tmp_path, csv=CsvOptions(header="position"), transform=transform)
    assert (values(chunks, "key"), values(chunks), bad(chunks)) == (["a", "b"], [1, 2], [])
    listed = ", ".join(map(repr, header.split(",")))
    assert [note.partition(" has a ")[2] for chunk in chunks for note in chunk.notes.values()] == is_warned * [
        f"first line that names {listed}, and header='position' reads its columns as 'ts', 'key', 'value': leave header out to "
        "read them by their names."
    ]
    # By their names nothing is at a wrong place.
    assert "leave header out" not in str(notes(read_all(tmp_path, csv=CsvOptions())))


def test_a_header_may_name_what_stands_in_for_a_column_where_folders_have_all(tmp_path: Path) -> None:
    (folder := tmp_path / "ts=2026-01-01" / "key=a" / "value=1").mkdir(parents=True)
    (folder / "a.csv").write_text(f"x,{NO_COLUMN.name}\n1,2\n")
    (chunk,) = read_all(tmp_path, csv=CsvOptions(header="position"))
    assert ([why for _, why, _ in bad([chunk])], chunk.notes) == (["not as many fields as columns in the schema"], {})


def test_columns_of_folders_have_no_place_in_a_header_that_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "key=a").mkdir()
    for header, is_warned in (("ts,value", False), ("value,ts", True)):
        (tmp_path / "key=a" / "a.csv").write_text(f"{header}\n2026-01-01,1\n")
        (chunk,) = read_all(tmp_path, csv=CsvOptions(header="position"))
        assert ["reads its columns as 'ts', 'value':" in note for note in chunk.notes.values()] == is_warned * [True]


@pytest.mark.parametrize("others", [["c7"], ["c7", "C8"], ["c7", "x", "more"]])
def test_lines_are_looked_at_for_those_columns_alone_of_which_they_have_another_name(
    monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    # 1,000 columns took a look at all lines each, of which records of few members have none.
    looks: list[list[bytes]] = []

    def counted(lines: pa.Array, written: Any) -> pa.BooleanArray:
        looks.append([*written])
        return have_any(lines, looks[-1])

    have_any = json_names._have_any
    monkeypatch.setattr(json_names, "_have_any", counted)
    schema = pa.schema({f"c{i}": pa.int64() for i in range(1000)})
    values = [json.dumps({other: 1, "more": {"c9x": 1}}).encode() for other in others for _ in range(200)]
    piece = json_piece(values, schema)
    assert looks == ([[b"C8"]] if "C8" in others else [])
    assert [record.reason for record in piece.bad] == ["column c8 is not in it, but 'C8'"] * 200 * ("C8" in others)
    assert len(piece.lacks) == 999


def test_many_names_that_are_alike_take_no_look_at_all_lines_each(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def counted(lines: pa.Array, pattern: bytes) -> pa.BooleanArray:
        searched.append(len(lines))
        return match_substring(lines, pattern)

    match_substring = pc.match_substring
    monkeypatch.setattr(json_names.pc, "match_substring", counted)
    names = [f"k{chr(0x200B) * (i % 40)}{chr(0x200C) * (i // 40)}e" for i in range(1, 800)]
    piece = json_piece(
        [json.dumps({name: 1}, ensure_ascii=False).encode() for name in names], pa.schema({"ke": pa.int8()})
    )
    assert len(piece.bad) == len(names)
    assert sum(searched) < 100 * len(names)
