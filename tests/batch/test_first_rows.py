"""Timestamps that are integers are taken for the unit that is said; without one they are microseconds, or refused at first."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monoids import Sum
from persistent_state import (
    Application,
    FileSource,
    InvalidInputError,
    KafkaConnectorSource,
    Local,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    read_state,
    run_local,
)
from persistent_state.batch.rows import microseconds
from persistent_state.engine.read import kafka_connector
from persistent_state.event_time.clocks import BEGINNING, FURTHEST, Settings
from persistent_state.protocol import commits
from persistent_state.sources import Chunk, Reach
from persistent_state.store.log import Log
from tests import core
from tests.core import combine
from tests.sentences import problem

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
BEGIN = 1_767_225_600
"""2026-01-01 in seconds."""
CALLED = {"s": "seconds", "ms": "milliseconds", "ns": "nanoseconds"}
TAKEN_FOR = {"s": "1970-01-01T00:29:27.225600Z", "ms": "1970-01-21T10:53:45.600000Z", "ns": "after the year 9999"}


class Rows(PersistentTask):
    key, value = "k", "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def stamps(unit: str, *seconds: int) -> list[int]:
    return [(BEGIN + second) * PER_SECOND[unit] for second in seconds]


def told(*timestamps: int) -> list[Message]:
    return [Message(timestamp, {"k": "a", "n": 1}) for timestamp in timestamps]


@pytest.mark.parametrize("unit", PER_SECOND)
def test_a_task_that_reads_its_state_sees_microseconds(unit: str) -> None:
    seen: list[int] = []

    class Reading(PersistentTask):
        key, reads_state = "k", True

        def persistent_state(self) -> NonWindowState[int]:
            return NonWindowState(Sum())

        def process_message(self, state: PersistentState[int], message: Message) -> None:
            seen.append(message.timestamp)
            state.update(message.timestamp, message["n"])

    assert run_local(Reading(), told(*stamps(unit, 0, 61)), timestamp_unit=unit).state == {"a": 2}
    assert seen == stamps("us", 0, 61)


@pytest.mark.parametrize("unit", PER_SECOND)
def test_a_unit_that_is_said_gives_the_clocks_and_states_of_microseconds(unit: str) -> None:
    run = run_local(Rows(), told(*stamps(unit, 0, 61, 62, 5)), batch_size=1, timestamp_unit=unit)
    assert run.states == run_local(Rows(), told(*stamps("us", 0, 61, 62, 5)), batch_size=1).states
    assert (run.clocks, run.state) == (stamps("us", 0, 60, 120), {"a": 3})
    assert [(row["reason"], row["timestamp"]) for row in run.late] == [("late", *stamps("us", 5))]


@pytest.mark.parametrize("unit", CALLED)
def test_first_timestamps_that_look_like_another_unit_are_refused_with_what_they_would_mean(unit: str) -> None:
    first = stamps(unit, 0)[0]
    assert problem(lambda: run_local(Rows(), told(*stamps(unit, 0, 1)))) == (
        f"task=Rows: the messages begin with the timestamp {first}; an int64 is microseconds, which makes that "
        f"{TAKEN_FOR[unit]}, and in {CALLED[unit]} it would be 2026-01-01T00:00:00Z. Say timestamp_unit={unit!r}, or "
        "timestamp_unit='us' if microseconds are right."
    )
    assert run_local(Rows(), told(first), timestamp_unit="us").state == {"a": 1}


@pytest.mark.parametrize("seconds", [-BEGIN, 0, 4_102_444_800 - BEGIN])
def test_microseconds_from_1970_on_are_taken_as_they_are(seconds: int) -> None:
    assert run_local(Rows(), told(*stamps("us", seconds))).state == {"a": 1}


@pytest.mark.parametrize("unit", CALLED)
def test_some_broken_timestamps_among_the_first_stop_nobody(unit: str) -> None:
    assert run_local(Rows(), told(*stamps("us", 0), *stamps(unit, 0), *stamps("us", 1))).state["a"] >= 2


def test_a_task_that_has_believed_a_timestamp_is_never_stopped() -> None:
    messages = told(*stamps("us", 0), *stamps("ms", 0, 1, 2))
    run = run_local(Rows(), messages, batch_size=1)
    assert (run.state, [row["reason"] for row in run.late]) == ({"a": 1}, ["late"] * 3)


def test_a_task_that_has_heard_a_channel_is_not_stopped_by_another_though_it_has_no_clock() -> None:
    schema = pa.schema([("ts", pa.int64()), ("k", pa.string()), ("n", pa.int64())])
    plan = core.plan_of(Rows(), schema, channel="k", settings=Settings(10, ahead=2**62), timestamp_unit=None)
    log = Log(plan.files, plan.application)
    core.start(log, [plan])

    def play(channel: str, unit: str) -> dict[Any, Any]:
        rows = pa.RecordBatch.from_pylist([{"ts": stamps(unit, 0)[0], "k": channel, "n": 1}], schema)
        # One that is listed and never delivers holds the clock.
        entry = core.play(log, plan, rows, channels={"a": False, "b": False, "silent": False})
        assert entry.clock == BEGINNING
        return core.state_at(entry, plan, None)

    with pytest.raises(InvalidInputError, match="timestamp_unit='s'"):
        play("a", "s")
    assert play("a", "us") == {("a",): 1}
    assert play("b", "s") == {("a",): 1, ("b",): 1}
    core.start(log, [plan])
    assert play("b", "s") == {("b",): 1}


def test_a_task_that_is_new_to_a_running_application_is_not_stopped() -> None:
    schema = pa.schema([("ts", pa.int64()), ("k", pa.string()), ("n", pa.int64())])

    class Other(Rows):
        pass

    plans = [core.plan_of(task, schema, files=core.memory(), timestamp_unit=None) for task in (Rows(), Other())]
    plans[1] = replace(plans[1], files=plans[0].files)
    log = Log(plans[0].files, plans[0].application)
    core.start(log, plans[:1])
    first = pa.RecordBatch.from_pylist([{"ts": stamps("us", 0)[0], "k": "a", "n": 1}], schema)
    core.play(log, plans[0], first)
    core.start(log, plans)
    entry = core.play(log, plans[1], pa.RecordBatch.from_pylist([{"ts": stamps("ms", 0)[0], "k": "a", "n": 1}], schema))
    assert entry.late_rows_of("Other").counts() == {"late": 1}


def test_what_follows_in_the_first_micro_batch_stops_nobody() -> None:
    schema = pa.schema([("ts", pa.int64()), ("k", pa.string()), ("n", pa.int64())])
    plan = core.plan_of(Rows(), schema, timestamp_unit=None)
    log = Log(plan.files, plan.application)
    basis = commits.plan_batch(core.start(log, [plan]), core.alone(plan), Reach({"": 2}), 0)
    chunks = [
        Chunk("", place, pa.RecordBatch.from_pylist([{"ts": stamps(unit, 0)[0], "k": "a", "n": 1}], schema))
        for place, unit in enumerate(("us", "ms"))
    ]
    _, report = combine(core.alone(plan), basis, 0, 1, chunks)
    assert report.counts["messages"] == 2
    with pytest.raises(InvalidInputError, match="timestamp_unit='ms'"):
        combine(core.alone(plan), basis, 0, 1, chunks[::-1])


@pytest.mark.parametrize(
    ("unit", "of", "as_read"),
    [
        ("ms", "s", "1970-01-21T10:53:45.600000Z"),
        ("ns", "s", "1970-01-01T00:00:01.767225Z"),
        ("ns", "ms", "1970-01-01T00:29:27.225600Z"),
        ("ns", "us", "1970-01-21T10:53:45.600000Z"),
    ],
)
def test_first_timestamps_that_look_like_another_unit_than_the_one_that_is_said_are_noted(
    unit: str, of: str, as_read: str
) -> None:
    noted = note_of(unit, *stamps(of, 0, 1), *stamps(unit, 0))
    assert noted.startswith(f"task=Rows: column 'ts' begins with {as_read} by timestamp_unit={unit!r}, and with ")
    assert f" timestamp_unit={of!r} it would be 2026-01-01T00:00:00Z: " in noted or (unit, of) == ("ns", "s")
    assert note_of(unit, *stamps(of, 0), *stamps(unit, 0, 1)) == ""


@pytest.mark.parametrize(
    ("unit", "timestamps"),
    [(None, [BEGIN]), ("us", [BEGIN]), ("s", [BEGIN]), ("s", [0]), ("ms", [0, 7]), ("ms", stamps("us", 0)), ("ns", [])],
)
def test_a_unit_that_may_well_be_right_is_not_noted(unit: str | None, timestamps: list[int]) -> None:
    # Times that are ahead of the clock are refused as such.
    assert note_of(unit, *timestamps) == ""


def note_of(unit: str | None, *timestamps: int) -> str:
    """What the report of a first micro-batch with these timestamps says of their unit."""
    schema = pa.schema([("ts", pa.int64()), ("k", pa.string()), ("n", pa.int64())])
    settings = Settings(10, ahead=2**62)
    plan = core.plan_of(Rows(), schema, settings=settings, timestamp_unit=unit or "us")
    log = Log(plan.files, plan.application)
    basis = commits.plan_batch(core.start(log, [plan]), core.alone(plan), Reach({"": len(timestamps)}), 0)
    rows = pa.RecordBatch.from_pylist([{"ts": at, "k": "a", "n": 1} for at in timestamps], schema)
    _, report = combine(core.alone(plan), basis, 0, 1, [Chunk("", 0, rows)])
    return " ".join(report.notes.get(("", "ts"), ()))


NOW = 10_000
"""The wall clock of a start."""


@pytest.mark.parametrize("pieces", [1, 3, 50])
@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(
    ("ahead", "rows", "has_begun", "is_refused"),
    [(90, 100, False, True), (89, 100, False, False), (99, 99, False, False), (100, 100, True, False)],
)
def test_a_first_micro_batch_of_which_nearly_all_rows_are_ahead_is_refused_however_small_its_files_are(
    ahead: int, rows: int, has_begun: bool, is_refused: bool, pieces: int, parts: int
) -> None:
    schema = pa.schema([("ts", pa.int64()), ("k", pa.string()), ("n", pa.int64())])
    plan = core.plan_of(Rows(), schema, settings=Settings(10, ahead=20))
    log = Log(plan.files, plan.application)
    entry = core.start(log, [plan])
    if has_begun:
        before = pa.RecordBatch.from_pylist([{"ts": NOW, "k": "a", "n": 1}], schema)
        entry = core.play(log, plan, before, now=NOW, channels={"": False, "silent": False})
    first = rows * has_begun
    flow = core.alone(plan)
    basis = commits.plan_batch(entry, flow, Reach({"": first + rows}), NOW)
    # The first ones are right, so that no piece but the last ones shows it.
    stamps = [NOW + (21 if number >= rows - ahead else 20) for number in range(rows)]
    chunks = [
        Chunk("", first + low, pa.RecordBatch.from_pylist([{"ts": ts, "k": "a", "n": 1} for ts in some], schema))
        for low, some in ((low, stamps[low : low + rows // pieces]) for low in range(0, rows, rows // pieces))
    ]
    sent = [combine(flow, basis.of_part(part, None), part, parts, chunks[part::parts]) for part in range(parts)]
    if not is_refused:
        entry = core.commit(log, plan, core.merged(plan, sent), now=NOW)
        assert entry.late_rows_of("Rows").counts() == {"timestamp ahead of the batch time": ahead}
        return
    assert problem(lambda: core.commit(log, plan, core.merged(plan, sent), now=NOW)) == (
        "task=Rows: of the first 100 rows 90 are ahead of this machine's clock, 1970-01-01T00:00:00.010000Z, by more than "
        "max_ahead: one is of 1970-01-01T00:00:00.010021Z. Put the machine's clock right, correct timestamp_unit, or give the "
        "application a greater max_ahead."
    )
    assert log.newest() == entry


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(
    ("with_it", "rows", "unread", "to_the_end", "has_begun", "is_refused"),
    [
        (0, 100, None, False, False, True),
        (1, 100, None, True, False, False),
        (0, 99, 0, False, False, False),
        (0, 99, None, True, False, False),
        (0, 99, 1, True, False, False),
        (0, 99, 0, True, False, True),
        (0, 1, 0, True, False, True),
        (1, 2, 0, True, False, False),
        (0, 100, 0, True, True, False),
    ],
)
@pytest.mark.parametrize("column", ["k", "n"])
def test_a_first_micro_batch_of_which_no_record_has_a_column_that_a_task_needs_is_refused(
    with_it: int,
    rows: int,
    unread: int | None,
    to_the_end: bool,
    has_begun: bool,
    is_refused: bool,
    parts: int,
    column: str,
) -> None:
    """A few rows are enough where a run to the end has read all that there is."""
    schema = pa.schema([("ts", pa.int64()), ("k", pa.string()), ("n", pa.int64())])
    plan = core.plan_of(Rows(), schema)
    log = Log(plan.files, plan.application)
    entry = core.start(log, [plan])
    if has_begun:
        before = pa.RecordBatch.from_pylist([{"ts": 1, "k": "a", "n": 1}], schema)
        entry = core.play(log, plan, before, now=NOW, channels={"": False, "silent": False})
    first, flow = rows * has_begun, core.alone(plan)
    basis = commits.plan_batch(entry, flow, Reach({"": first + rows}, unread=unread), NOW)
    chunks = []
    for low in range(0, rows, 11):
        records = [
            {"ts": 1, "k": "a", "n": 1} | ({column: None} if row >= with_it else {})
            for row in range(low, min(low + 11, rows))
        ]
        is_seen = low < with_it
        about: dict[str, Any] = (
            {} if is_seen else {"unseen": (column,), "notes": {column: f"Note of {column}, and 'K'."}}
        )
        chunks.append(Chunk("", first + low, pa.RecordBatch.from_pylist(records, schema), **about))
    sent = [combine(flow, basis.of_part(part, None), part, parts, chunks[part::parts]) for part in range(parts)]
    commit = partial(core.commit, log, plan, core.merged(plan, sent), now=NOW, to_the_end=to_the_end)
    if not is_refused:
        assert commit().number > entry.number
        return
    assert problem(commit) == (
        f"task=Rows: none of the first {rows} row{'s' * (rows > 1)} has the column {column!r}, without which they can't count. "
        f"Note of {column}, and 'K'. Correct the name, in the task or the schema; if records may be without it, let "
        "a transform fill it."
    )
    assert log.newest() == entry


UNREADABLE = "01.01.2026 10:00"
TIME = "none of the first 100 rows has a time and values that fit their columns. One is a bad row "
ADVICE = (
    "Correct the schema or the source's options. In texts a time is ISO 8601: read another one as a string, and let a "
    "transform make the time. To start without rows that can't be read, read their columns as strings, and let a transform "
    "leave the rows out."
)


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(
    ("rows", "good", "has_begun", "is_refused"),
    [(100, 0, False, True), (99, 0, False, False), (100, 1, False, False), (100, 0, True, False)],
)
@pytest.mark.parametrize(
    ("header", "line", "reason"),
    [
        ("ts,k,n", f"{UNREADABLE},a,1", f"(column ts is not timestamp[us, tz=UTC], {UNREADABLE!r}) at file='0.csv' line=2."),
        ("ts,k,n", '1970-01-01,a,"1,5"', "(column n is not int64, '1,5') at file='0.csv' line=2."),
        ("ts,k,n", ",a,1", "(no timestamp) at file='0.csv' line=2 key={'k': 'a'}."),
    ],
)  # fmt: skip
def test_a_first_micro_batch_without_a_row_that_can_be_read_is_refused(
    tmp_path: Path,
    parts: int,
    rows: int,
    good: int,
    has_begun: bool,
    is_refused: bool,
    header: str,
    line: str,
    reason: str,
) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.string()), ("n", pa.int64())])
    for number, low in enumerate(range(0, rows, 30)):
        lines = [line] * min(30, rows - low) + ["1970-01-01,a,1"] * (good if low == 0 else 0)
        (tmp_path / f"{number}.csv").write_text("\n".join([header, *lines, ""]))
    source = FileSource(tmp_path, timestamp="ts", schema=schema)
    source.open([], {})
    plan = core.plan_of(Rows(), schema)
    log, flow = Log(plan.files, plan.application), core.alone(plan)
    entry = core.start(log, [plan])
    if has_begun:
        before = pa.RecordBatch.from_pylist([{"ts": 1, "k": "a", "n": 1}], schema)
        entry = core.play(log, plan, before, now=NOW, channels={"": False, "silent": False})
    reach = source.reach({}, everything=True)
    basis = commits.plan_batch(entry, flow, replace(reach, channels=None), NOW)
    chunks = [[*source.read(split)] for split in source.splits({}, reach.ends, parts)]
    sent = [combine(flow, basis.of_part(part, None), part, len(chunks), own) for part, own in enumerate(chunks)]
    commit = partial(core.commit, log, plan, core.merged(plan, sent), now=NOW)
    if not is_refused:
        # The row of before had the place of the first record.
        assert sum(commit().late_rows_of("Rows").counts().values()) == rows - has_begun
        return
    assert problem(commit) == f"task=Rows: {TIME}{reason} {ADVICE}"
    assert log.newest() == entry


def with_times(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows whose time is ISO text."""
    rows = rows.filter(pc.match_substring(rows["ts"], "-"))
    return rows.set_column(0, "ts", rows["ts"].cast(pa.timestamp("us", "UTC")))


def test_a_rebuild_on_rows_that_can_no_longer_be_read_goes_on_if_a_transform_leaves_them_out(tmp_path: Path) -> None:
    store = str(tmp_path / "store")

    def total(time: str, rebuild: Sequence[str] = (), **more: Any) -> Any:
        schema = f"ts {time}, k string, n bigint"
        source = FileSource(tmp_path / "in", timestamp="ts", schema=schema, max_files_per_batch=1, **more)
        app = Application("app", store, checkpoint_interval="1 second").add(Rows(), source)
        app.run(Local(workers=1), drain=True, rebuild=rebuild)
        return read_state(store, "app", "Rows")["value"].to_pylist()

    def write_file(number: int, time: str) -> None:
        (tmp_path / "in" / f"{number}.csv").write_text("ts,k,n\n" + f"{time},a,1\n" * 100)

    (tmp_path / "in").mkdir()
    write_file(0, "2026-01-01T10:00:00Z")
    write_file(1, "2026-01-02T10:00:00Z")
    assert total("timestamp") == [200]
    write_file(0, UNREADABLE)
    assert "let a transform leave the rows out." in problem(lambda: total("timestamp", rebuild=["Rows"]))
    assert total("string", transform=with_times) == [100]


class Texts(Rows):
    value = None

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, str(message["n"]) if message["n"] else 1)


@pytest.mark.parametrize(("rows", "good", "is_refused"), [(100, 0, True), (99, 0, False), (100, 1, False)])
def test_a_first_micro_batch_of_which_no_update_fits_is_refused(rows: int, good: int, is_refused: bool) -> None:
    messages = [Message(number, {"k": "a", "n": int(number >= good)}) for number in range(rows + good)]
    run = partial(run_local, Texts(), messages, batch_size=200)
    if not is_refused:
        assert len(run().late) == rows
        return
    place = f"{__file__}:{Texts.process_message.__code__.co_firstlineno} in process_message"
    assert problem(run) == (
        f"task=Texts: of the first 100 rows each makes an update that does not fit: updated at {place}: Sum: value='1' "
        "does not fit int64, which takes integers of 64 bits, at channel='' partition='' position=0 key={'k': 'a'}. Correct "
        "the update, or give the task another state."
    )


def test_a_file_without_the_timestamp_is_named_with_the_column_that_it_has(tmp_path: Path) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.string()), ("n", pa.int64())])
    pq.write_table(pa.table({"TS": ["x"] * 100, "k": ["a"] * 100, "n": [1] * 100}), tmp_path / "0.parquet")
    source = FileSource(tmp_path, timestamp="ts", schema=schema)
    source.open([], {})
    plan = core.plan_of(Rows(), schema)
    log, reach = Log(plan.files, plan.application), source.reach({}, everything=True)
    basis = commits.plan_batch(core.start(log, [plan]), core.alone(plan), reach, NOW)
    (split,) = source.splits({}, reach.ends, 1)
    sent = [combine(core.alone(plan), basis, 0, 1, source.read(split))]
    assert problem(lambda: core.commit(log, plan, core.merged(plan, sent), now=NOW)) == (
        f"task=Rows: {TIME}(no timestamp) at file='0.parquet' line=1 key={{'k': 'a'}}. file='0.parquet' of {source!r} has no "
        f"column 'ts', but 'TS': it is null there. {ADVICE}"
    )


COLUMNS = pa.schema([("ts", pa.int64()), ("k", pa.string())])


def write(folder: Path, format: str, rows: Sequence[Mapping[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    if format == "parquet":
        pq.write_table(pa.Table.from_pylist(list(rows), COLUMNS), folder / "0.parquet")
    elif format == "json":
        (folder / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with (folder / "0.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS.names)
            writer.writeheader()
            writer.writerows(rows)


class Count(PersistentTask):
    key = "k"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.repeat(pa.scalar(1), batch.num_rows)


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_a_folder_of_any_format_has_a_unit(tmp_path: Path, format: str) -> None:
    write(tmp_path / "in", format, [{"ts": ts, "k": "a"} for ts in (*stamps("ms", 0, 61), 2**60)])

    def played(unit: str | None) -> dict[Any, Any]:
        source = FileSource(tmp_path / "in", timestamp="ts", schema=COLUMNS, timestamp_unit=unit)
        plan = core.plan_of(Count(), source.schema, timestamp_unit=source.timestamp_unit)
        log = Log(plan.files, plan.application)
        core.start(log, [plan])
        source.open([], {})
        (split,) = source.splits({}, source.reach({}, everything=True).ends, 1)
        (chunk,) = source.read(split)
        entry = core.play(log, plan, chunk.rows)
        # What can't be told in microseconds is out of range; nothing wraps.
        assert entry.late_rows_of(plan.name).counts() == {"timestamp out of range": 1}
        return core.state_at(entry, plan, stamps("us", 61)[0] // 10 * 10)

    assert played("ms") == {("a",): 1}
    with pytest.raises(InvalidInputError, match="in milliseconds it would be 2026-01-01T00:00:00Z"):
        played(None)


def test_topics_that_spark_reads_keep_the_unit() -> None:
    source = KafkaConnectorSource("t", "localhost:1", lambda records: records, timestamp="at", timestamp_unit="ms")
    assert kafka_connector.frame_for_columns(source).timestamp_unit == source.timestamp_unit == "ms"


def test_a_unit_that_is_none_and_one_of_a_column_that_has_its_own_are_refused() -> None:
    plan = core.plan_of(Rows(), pa.schema([("ts", pa.int64()), ("k", pa.string()), ("n", pa.int64())]))
    assert problem(lambda: run_local(Rows(), told(1), timestamp_unit="m")) == (
        "task=Rows: timestamp_unit='m'; say one of 's', 'ms', 'us', 'ns'."
    )
    timed = plan.only.schema.set(0, pa.field("ts", pa.timestamp("ms")))
    text = problem(partial(core.check, core.changed(plan, schema=timed, timestamp_unit="s")))
    assert re.search(r"timestamp_unit='s' is for integers, and the timestamp column 'ts' is timestamp\[ms\]", text)


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=5), st.sampled_from([*PER_SECOND, None]))
def test_integers_of_a_unit_become_microseconds_or_no_timestamp(values: list[int | None], unit: str | None) -> None:
    found, valid = microseconds(pa.array(values, pa.int64()), unit)
    exact = [None if value is None else value * 1_000_000 // PER_SECOND[unit or "us"] for value in values]
    known = [us if us is not None and abs(us) <= FURTHEST else None for us in exact]
    assert [us if ok else None for us, ok in zip(found.tolist(), valid.tolist(), strict=True)] == known
    assert found.dtype == np.int64
