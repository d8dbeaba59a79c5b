"""What is put aside keeps the record as it came, and tells where it stood, whoever reads it."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from monoids import Sum
from persistent_state import FileSource, Message, NonWindowState, PersistentState, PersistentTask, TaskFailedError
from persistent_state.batch.packets import Basis, Blob, Report
from persistent_state.batch.plan import FAIL, KEEP, Plan
from persistent_state.drive.turn import Part
from persistent_state.engine.read.column_source import RowReader, _replaced
from persistent_state.formatting import shortened
from persistent_state.protocol import commits
from persistent_state.sources import text_blocks
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.sources.formats import one_batch
from persistent_state.store import late_rows
from persistent_state.store.log import Log
from persistent_state.store.runs import write_table
from tests.core import alone, changed, combine, memory, plan_of, start

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
CLOCK = 1_700_000_000_000_000
EARLY, ON_TIME = "2001-01-01T00:00:00Z", "2024-01-01T00:00:00Z"

JSON_LINES = {
    json.dumps({"ts": ON_TIME, "n": 1}): None,
    json.dumps({"ts": EARLY, "n": 1, "é": "more"}, ensure_ascii=False): "late",
    json.dumps({"time": ON_TIME, "amount": "x" * 20_000}): "no timestamp",
    json.dumps({"ts": ON_TIME, "n": "1"}): "column n is not int64",
    json.dumps({"ts": "soon"}): "column ts is not timestamp[us, tz=UTC]",
    '{"n": 1, "n": 1}': "column n stands twice in it",
    "{]}": "not a JSON object",
}
CSV_LINES = {
    f"{ON_TIME},1": None,
    f"{EARLY},2": "late",
    ",3": "no timestamp",
    f"{ON_TIME},x": "column n is not int64",
    f"{ON_TIME},4,5": "not as many fields as in the header",
}


class Total(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Said(PersistentTask):
    """Its updates are computed by Spark, here by the test."""

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_column(self, rows: Any) -> Any:
        raise AssertionError("nobody asks Spark here")


def first_blobs(
    source: TimeReplayableSource, task: PersistentTask, parts: int = 1, on_bad_row: str = KEEP, **basis: int
) -> list[tuple[Blob, Report]]:
    """What the parts of a first micro-batch of all there is send to the only shard, and their reports."""
    plan = changed(plan_of(task, source.schema), on_bad_row=on_bad_row)
    entry = start(Log(plan.files, plan.application), [plan])
    source.open([], {})
    reach = source.reach({}, everything=True)
    planned = replace(commits.plan_batch(entry, alone(plan), reach, 0), now=2 * CLOCK, **basis)
    sent = []
    for split in source.splits({}, reach.ends, parts):
        chunks = source.read(split) if isinstance(task, Total) else through_spark(plan, source, planned, split)
        (blob,), report = combine(alone(plan), planned, 0, 1, chunks)
        sent.append((blob, report))
    return sent


def aside(source: TimeReplayableSource, task: PersistentTask) -> pa.Table:
    """What a first micro-batch of all there is puts aside, with the clock at `CLOCK`."""
    blobs = first_blobs(source, task, parts=2, clock=CLOCK)
    return late_rows.joined([table for blob, _ in blobs for table in blob.late])


def through_spark(plan: Plan, source: TimeReplayableSource, basis: Basis, split: Any) -> Iterator[Chunk]:
    """The chunks of a split after Spark was handed their rows, has joined them, and has cut them up elsewhere."""
    header, *batches = RowReader(alone(plan), source, 1, 1, {}, 1).read(InputPartition(Part(0, 1, basis, split)))
    whole = one_batch(batches, header.schema)
    cut = [whole.slice(first, 7) for first in range(0, whole.num_rows, 7)]
    return _replaced((batch.append_column(plan.only.column, batch.column("n")) for batch in cut), alone(plan))


class Several(TimeReplayableSource):
    """A source of chunks, each of one row."""

    timestamp, schema = "ts", SCHEMA

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        pass

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        return Reach({"p": 9})

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        return []

    def read(self, split: Any) -> Iterator[Chunk]:
        for i, (lacks, unseen) in enumerate(split):
            rows = pa.RecordBatch.from_pylist([{"ts": datetime(2024, 1, 1, tzinfo=timezone.utc), "n": i}], SCHEMA)
            yield Chunk("p", i, rows, lacks=lacks, unseen=unseen)


def test_what_rows_lack_and_what_is_unseen_beside_them_comes_through_spark() -> None:
    absent = [((), ()), (("ts",), ()), (("ts",), ("n", "ts")), ((), ("n", "ts")), ((), ("n",)), ((), ("n",)), ((), ())]
    plan = plan_of(Said(), SCHEMA)
    basis = commits.plan_batch(start(Log(plan.files, plan.application), [plan]), alone(plan), Reach({"p": 9}), 0)
    chunks = [*through_spark(plan, Several(), basis, absent)]
    found = {n: (chunk.lacks, chunk.unseen) for chunk in chunks for n in chunk.rows["n"].to_pylist()}
    assert found == dict(enumerate(absent))


@settings(max_examples=40)
@given(st.data(), st.sampled_from(["a.json", "a.csv", "a.json.gz"]), st.sampled_from([b"\n", b"\r\n"]))
def test_a_line_that_is_put_aside_is_kept_as_it_came_with_its_number(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str, end: bytes
) -> None:
    folder, known = tmp_path_factory.mktemp("lines"), CSV_LINES if ".csv" in name else JSON_LINES
    lines = ["ts,n"] * (".csv" in name) + data.draw(st.lists(st.sampled_from([*known, ""]), max_size=12))
    content = data.draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + end.join(line.encode() for line in lines)
    (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    wanted = [(i, line, known[line]) for i, line in enumerate(lines, 1) if known.get(line)]
    task = data.draw(st.sampled_from([Total(), Said()]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "BLOCK_BYTES", data.draw(st.sampled_from([10, 100, 10_000])))
        found = aside(FileSource(folder, timestamp="ts", schema=SCHEMA), task).to_pylist() if wanted else []
    assert sorted((row["origin"]["line"], row["record"].decode(), row["reason"]) for row in found) == wanted
    assert {row["origin"]["file"] for row in found} <= {name}


@pytest.mark.parametrize("task", [Total(), Said()])
def test_what_a_file_lacks_is_noted_however_its_rows_come(tmp_path: Path, task: PersistentTask) -> None:
    (tmp_path / "a.csv").write_text(f"ts,N\n{ON_TIME},1\nsoon,2\n")
    ((blob, report),) = first_blobs(FileSource(tmp_path, timestamp="ts", schema=SCHEMA), task)
    ((about, (note,)),) = report.notes.items()
    assert (about, "has no column 'n', but 'N'" in note) == (("", "n"), True)
    assert [table["reason"].to_pylist() for table in blob.late] == [["column ts is not timestamp[us, tz=UTC]"]]
    assert report.counts["messages"] == 1


def test_three_files_that_lack_a_column_are_named_and_a_broken_one_is_beside_them(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("\0\1broken\n")
    for name in "abcd":
        (tmp_path / f"{name}.csv").write_text(f"ts,{name}\n{ON_TIME},1\n")
    ((_, report),) = first_blobs(FileSource(tmp_path, timestamp="ts", schema=SCHEMA), Total())
    files = {column: [note[: note.index(" of ")] for note in notes] for (_, column), notes in report.notes.items()}
    assert files == {"": ["file='0.csv'"], "n": [f"file='{name}.csv'" for name in "abc"]}
    (note,) = report.notes["", ""]
    assert "has no column of the schema, only '\\x00\\x01broken': all are null there." in note


@pytest.mark.parametrize("task", [Total(), Said()])
def test_what_a_file_without_rows_lacks_bears_on_no_other(tmp_path: Path, task: PersistentTask) -> None:
    (tmp_path / "a.csv").write_text("ts,n\n")
    (tmp_path / "b.csv").write_text(f"ts,n,k\n{ON_TIME},1,x\n")
    schema, task.key = SCHEMA.append(pa.field("k", pa.string())), "k"
    ((blob, _),) = first_blobs(FileSource(tmp_path, timestamp="ts", schema=schema), task)
    of_task = blob.of(task.task_name)
    assert (blob.late, of_task.sides) == ((), ())
    assert sum(table.num_rows for table in of_task.tables) == 1


@pytest.mark.parametrize("task", [Total(), Said()])
def test_a_row_of_parquet_keeps_its_columns_and_a_damaged_file_its_name(tmp_path: Path, task: PersistentTask) -> None:
    rows = pa.table({"ts": [EARLY, ON_TIME, "soon", None], "n": [1, 2, 3, 4]})
    pq.write_table(rows, tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"?")
    found = aside(FileSource(tmp_path, timestamp="ts", schema=SCHEMA), task).to_pylist()
    told = [(row["reason"], row["origin"], row["record"], row["row"] and row["row"]["n"]) for row in found]
    assert sorted(told, key=str) == [
        (
            "column ts is not timestamp[us, tz=UTC]",
            {"file": "a.parquet", "line": 3, "value": "soon"},
            b'{"ts":"soon","n":3}',
            None,
        ),
        ("late", {"file": "a.parquet", "line": 1, "value": None}, None, 1),
        ("no timestamp", {"file": "a.parquet", "line": 4, "value": None}, None, 4),
        ("unreadable file: damaged, or not parquet", {"file": "b.parquet", "line": None, "value": None}, None, None),
    ]


@pytest.mark.parametrize("task", [Total(), Said()])
def test_what_is_aside_says_the_value_that_does_not_fit_and_reasons_are_few(
    tmp_path: Path, task: PersistentTask
) -> None:
    (tmp_path / "a.csv").write_text(
        "".join(f"{line}\n" for line in ["ts,n", "soon,1", f"{ON_TIME},1.5", f'{ON_TIME},"1,000"', "x,y,z"])
    )
    lines: list[dict[str, Any]] = [{"ts": ON_TIME, "n": 2**63}, {"ts": 5}, {"n": {"a": "é"}}, {"n": "9" * 999}]
    (tmp_path / "b.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    pq.write_table(pa.table({"ts": [ON_TIME, ON_TIME], "n": [0.5, 1e300]}), tmp_path / "c.parquet")
    found = aside(FileSource(tmp_path, timestamp="ts", schema=SCHEMA), task).to_pylist()
    told = [(row["origin"]["file"], row["origin"]["line"], row["reason"], row["origin"]["value"]) for row in found]
    ts, n = "column ts is not timestamp[us, tz=UTC]", "column n is not int64"
    assert sorted(told) == [
        ("a.csv", 2, ts, "soon"),
        ("a.csv", 3, n, "1.5"),
        ("a.csv", 4, n, "1,000"),
        ("a.csv", 5, "not as many fields as in the header", None),
        ("b.json", 1, n, "9223372036854775808"),
        ("b.json", 2, ts, "5"),
        ("b.json", 3, n, '{"a":"é"}'),
        ("b.json", 4, n, shortened(f'"{"9" * 999}"')),
        ("c.parquet", 1, n, "0.5"),
        ("c.parquet", 2, n, "1e+300"),
    ]


@pytest.mark.parametrize("has_schema", [True, False])
@pytest.mark.parametrize("task", [Total(), Said()])
def test_a_late_row_of_a_file_with_views_is_put_aside(tmp_path: Path, task: PersistentTask, has_schema: bool) -> None:
    times = pa.array([EARLY, ON_TIME, None]).cast(SCHEMA.field("ts").type)
    views = {
        "k": pa.array(["a", None, "c"], pa.string_view()),
        "l": pa.array([[b"a"], None, []], pa.list_(pa.binary_view())),
    }
    rows = pa.table({"ts": times, "n": [1, 2, 3], **views})
    pq.write_table(rows, tmp_path / "a.parquet")
    found = aside(FileSource(tmp_path, timestamp="ts", schema=rows.schema if has_schema else None), task).to_pylist()
    assert sorted((row["reason"], row["row"]["k"], row["row"]["l"]) for row in found) == [
        ("late", "a", [b"a"]),
        ("no timestamp", "c", []),
    ]


@pytest.mark.parametrize("hands_on", [True, False])
def test_what_a_transform_has_made_has_its_record_only_if_a_column_is_handed_on(tmp_path: Path, hands_on: bool) -> None:
    record = json.dumps({"ts": EARLY, "n": 1})
    (tmp_path / "a.json").write_text("\n".join(["{", record, "}"]))
    copied = lambda rows: rows.take(pa.array(range(rows.num_rows), pa.int64()))  # noqa: E731
    transform = (lambda rows: rows) if hands_on else copied
    source = FileSource(tmp_path, timestamp="ts", schema=SCHEMA, transform=transform)
    kept = aside(source, Total()).sort_by("reason").select(["record", "origin"]).to_pylist()
    assert kept == [
        {
            "record": record.encode() if hands_on else None,
            "origin": {"file": "a.json", "line": 2 if hands_on else None, "value": None},
        },
        {"record": b"{", "origin": {"file": "a.json", "line": 1, "value": None}},
        {"record": b"}", "origin": {"file": "a.json", "line": 3, "value": None}},
    ]


def test_files_of_older_versions_whose_records_are_text_are_read_beside_new_ones_and_joined_with_them() -> None:
    files = memory()
    chance = random.Random(1)
    row = pa.array([{"n": 1}])
    listed = []
    for n in range(40):
        columns: dict[str, Any] = {
            "reason": ["late"],
            "timestamp": [n],
            "strand": [""],
            "channel": [""],
            "position": [n],
        }
        text = chance.choice(["é", None])
        if n % 3 == 0:
            columns |= {"record": pa.array([text])}
        else:
            columns |= {"record": pa.array([text and text.encode()], pa.large_binary())}
        if n % 3 == 2:
            columns |= {"origin": pa.array([{"file": "a", "line": n}])}
        table = pa.table({**columns, "row": row})
        listed.append(late_rows.side_file(write_table(files, f"app/runs/T/{n}", table), table))
    before = [each for side in listed for each in late_rows.read(files, side).to_pylist()]
    assert {type(each["record"]) for each in before} == {bytes, type(None)}
    ids = map(str, count())
    fewer = late_rows.fewer(files, listed, listed, lambda: f"app/runs/T/joined-{next(ids)}")
    assert len(fewer) < len(listed)
    after = [each for side in fewer for each in late_rows.read(files, side).to_pylist()]
    assert sorted(str({"origin": None, **each}) for each in before) == sorted(
        str({"origin": None, **each}) for each in after
    )


@pytest.mark.parametrize("task", [Total(), Said()])
@pytest.mark.parametrize(
    ("header", "line", "said"),
    [
        ("ts,n", "01.01.2026 10:00,1", "(column ts is not timestamp[us, tz=UTC], '01.01.2026 10:00') at file='a.csv' line=3;"),
        ("ts,n", "x,y,z", "(not as many fields as in the header, 'x,y,z') at file='a.csv' line=3;"),
        ("ts,n", ",3", "(no timestamp) at file='a.csv' line=3 key={};"),
        ("ts;n", "", "(its first line names no column of the schema, 'ts;n') at file='a.csv' line=1;"),
    ],
)  # fmt: skip
def test_a_bad_row_that_ends_the_run_is_named_as_it_would_be_kept(
    tmp_path: Path, task: PersistentTask, header: str, line: str, said: str
) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n{ON_TIME},1\n{line}\n")
    with pytest.raises(TaskFailedError) as caught:
        first_blobs(FileSource(tmp_path, timestamp="ts", schema=SCHEMA), task, on_bad_row=FAIL)
    assert f"met a bad row {said} correct it" in str(caught.value)


class Dividing(Total):
    key, value = "n", None

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, 1 // (message["n"] - 2))


@pytest.mark.parametrize("ending", ["csv", "json", "parquet"])
def test_an_error_of_a_task_names_the_file_and_the_line(tmp_path: Path, ending: str) -> None:
    rows = [{"ts": datetime.fromisoformat(ON_TIME.replace("Z", "+00:00")), "n": n} for n in (1, 2)]
    for name in ("a", "b"):
        file, lines = tmp_path / f"{name}.{ending}", rows[: 1 + (name == "b")]
        if ending == "parquet":
            pq.write_table(pa.Table.from_pylist(lines, SCHEMA), file)
        elif ending == "csv":
            file.write_text("ts,n\n" + "".join(f"{row['ts'].isoformat()},{row['n']}\n" for row in lines))
        else:
            file.write_text("".join(json.dumps({**row, "ts": row["ts"].isoformat()}) + "\n" for row in lines))
    with pytest.raises(TaskFailedError) as caught:
        first_blobs(FileSource(tmp_path, timestamp="ts", schema=SCHEMA), Dividing())
    assert str(caught.value).endswith(f", at file='b.{ending}' line={2 + (ending == 'csv')} key={{'n': 2}}.")
