"""What a newcomer sees of rows that did not count, on a terminal where nobody has set up any logging."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persistent_state import Application, Context, FileSource, InvalidInputError, Message, OrderedTask, read_state
from tests.waiting import until
from tests.words import SCHEMA, Words

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persistent_state.run.running import Running

SECOND = 1_000_000


class Mute(OrderedTask):
    """It keeps nothing, and emits nothing."""

    key, state, emits = "word", pa.int64(), pa.schema([("n", pa.int64())])

    def process(self, state: Any, message: Message, context: Context) -> Any:
        pass


class Speaking(Mute):
    """It keeps nothing, and emits rows."""

    def process(self, state: Any, message: Message, context: Context) -> Any:
        context.emit(n=1)


def ran(spark: SparkSession, folder: Path, *tasks: Words | OrderedTask, drain: bool = False) -> Running:
    app = Application(
        "words", str(folder / "store"), checkpoint_interval="10 seconds", allowed_delay="1 minute", shards=1
    )
    source = FileSource(folder / "in", timestamp="ts", schema=SCHEMA)
    for task in tasks:
        app.add(task, source)
    return app.run(spark, drain=drain)


def test_a_run_tells_of_a_task_that_made_no_update(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"ts": [1, 2], "word": ["a", "b"]}, SCHEMA), tmp_path / "in" / "0.parquet")
    with caplog.at_level(logging.INFO, "persistent_state"):
        running = ran(spark, tmp_path, Words(), Words("Silent", None), Mute(), Speaking(), drain=True)
    lines = [f"{record.levelname} {record.getMessage().partition('.')[0]}" for record in caplog.records]
    assert "INFO task=Words: 2 messages read" in lines
    assert "WARNING task=Silent: 2 messages read, and none of them made an update" in lines
    assert "WARNING task=Mute: 2 messages read, and process() has returned no state and emitted no row" in lines
    assert "INFO task=Speaking: 2 messages read" in lines
    assert not running.progress["Silent"].made_updates
    told = {
        name: (running.progress[name].processed, running.progress[name].made_updates) for name in ("Mute", "Speaking")
    }
    assert told == {"Mute": (2, False), "Speaking": (2, True)}


def test_a_run_tells_at_its_end_what_did_not_count_and_what_waits(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    rows = pa.table({"ts": [second * SECOND for second in range(6)], "word": ["a"] * 6}, SCHEMA)
    pq.write_table(rows, tmp_path / "in" / "0.parquet")

    def told(*tasks: Words, drain: bool = False) -> tuple[Running, list[str]]:
        caplog.clear()
        with caplog.at_level(logging.INFO, "persistent_state"):
            running = ran(spark, tmp_path, *tasks, drain=drain)
        return running, [
            f"{record.levelname} {record.getMessage()}"
            for record in caplog.records
            if record.name == "persistent_state"
        ]

    running, lines = told(Words(), Words("Texts", "x"))
    waits = (
        "6 messages read. The newest checkpoint is at clock=1969-12-31T23:59:00Z (-60000000): messages up to "
        "1970-01-01T00:00:05Z wait above it for newer ones; run(drain=True) checkpoints them now."
    )
    unfit = "6 of 6 rows did not count: 6 'value does not fit' (Sum holds int64)."
    first = lines.pop(0)
    assert first.startswith("WARNING task=Texts: an update does not fit, and its row does not count: updated at ")
    assert first.endswith(
        "Sum: value='x' does not fit int64, which takes integers of 64 bits, at file='0.parquet' line=1 "
        "key={'word': 'a'}."
    )
    assert lines[0] == f"WARNING task=Words: {waits}"
    assert lines[1].startswith(
        f"WARNING task=Texts: {waits} {unfit} See open_store(store).application('words').late_rows('Texts')"
    )
    assert lines[2:] == [
        "INFO The global clock waits for task=Words: the newest message of its source is of 1970-01-01T00:00:05Z."
    ]
    assert {f"INFO {told.waits_for}" for told in running.progress.values()} == {lines[2]}
    assert {name: (told.messages, told.bad) for name, told in running.progress.items()} == {
        "Words": (6, 0),
        "Texts": (6, 6),
    }
    _, lines = told(Words(), drain=True)
    assert lines == [
        "INFO task=Words: 0 messages read. The newest checkpoint is at clock=1970-01-01T00:00:10Z (10000000).",
        "INFO The global clock waits for task=Words: its clock is above all that was read of its source; only a newer "
        "message moves it.",
    ]
    assert read_state(str(tmp_path / "store"), "words", Words()).to_pylist() == [{"word": "a", "value": 6}]
    _, (line, _) = told(Words("Renamed"))
    assert line.startswith("WARNING task=Renamed: 6 messages read.")
    assert "6 of 6 rows did not count: 6 'late' (the task is new to the application and begins at its clock" in line
    assert "name='Words'" in line


def test_a_start_tells_at_once(spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.csv").write_text("1,a\n2,b\n")
    app = Application("words", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1)
    app.add(Words(), FileSource(tmp_path / "in", timestamp="ts", schema=SCHEMA))
    called: list[str] = []
    running = app.start(spark, on_progress=lambda progress: called.append(progress.task))
    told = lambda: any("no timestamp" in record.getMessage() for record in caplog.records)  # noqa: E731
    until(told, "the warning", lambda: running.is_active)
    until(lambda: called, "the progress", lambda: running.is_active)
    running.stop()
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    of_file, of_task = sorted(warnings)
    assert of_task.startswith("task=Words: 2 of 2 rows did not count")
    assert "has no column of the schema, only '1', 'a': all are null there." in of_file
    assert called == ["Words"]


def test_a_run_that_is_refused_leaves_nobody_who_listens(spark: SparkSession, tmp_path: Path) -> None:
    from persistent_state.run import reports

    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"ts": [1_767_225_600], "word": ["a"]}, SCHEMA), tmp_path / "in" / "0.parquet")
    with pytest.raises(InvalidInputError, match="timestamp_unit='s'"):
        ran(spark, tmp_path, Words())
    assert reports._runs == {}
