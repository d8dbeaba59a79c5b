"""What a run says of its tasks on the terminal: nothing that did not count is passed over, and nothing told over and over."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monoids import Average
from persistent_state import Application, FileSource, NonWindowState, OrderedTask
from persistent_state.batch.plan import FlowPlan
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.protocol import commits
from persistent_state.protocol.global_clock import Keeping
from persistent_state.run import reports as reports_module
from persistent_state.run.reports import EVERY, Reports, TaskReport
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.late_rows import LATE, NO_TIMESTAMP, UNFIT
from persistent_state.store.log import Log
from persistent_state.task import name_of_messages, name_of_rows
from tests import core
from tests.core import combine
from tests.protocol.test_inputs import World
from tests.run.test_lines import PROGRESS
from tests.words import SCHEMA, Words

SEE = "See open_store(store).application('app').late_rows({!r})"
STOP = ", or stop at the first with on_bad_row='fail'."


@dataclass
class Run:
    """One run of a task over a folder, from start to end, without Spark. The interval of checkpoints is 10."""

    folder: Path
    task: Words
    files: Files = field(default_factory=core.memory)

    def __post_init__(self) -> None:
        self.source = FileSource(self.folder, timestamp="ts", schema=SCHEMA)
        self.plan = core.plan_of(self.task, SCHEMA, files=self.files)
        self.log = Log(self.files, self.plan.application)
        self.entry = core.start(self.log, [self.plan])
        self.source.open([], {})
        self.report = TaskReport([self.plan], self.entry, first=0)

    def read(self, now: float = 0) -> str | None:
        """Read what there is to read in one micro-batch; what is said of it."""
        known = self.entry.flow_of(self.plan.name).source.positions
        start = {partition: position.next for partition, position in known.items()}
        reach = self.source.reach(start, everything=True)
        entry = commits.wake(self.log, self.entry.epoch, self.plan.name, 0)
        flow = core.alone(self.plan)
        basis = commits.plan_batch(entry, flow, reach, 0)
        chunks = (chunk for split in self.source.splits(start, reach.ends, 1) for chunk in self.source.read(split))
        sent = combine(flow, basis, 0, 1, chunks)
        self.entry = core.commit(self.log, self.plan, core.merged(self.plan, [sent]))
        messages = sent[1].counts.get("messages", 0)
        return self.report.note(self.plan.name, messages, self.entry.late_rows_of(self.plan.name).counts(), now)

    def close(self) -> Entry:
        self.entry = commits.close(self.log, self.entry.epoch, now=0, keeping=Keeping())
        return self.entry


def write(folder: Path, name: str, *times: int | None) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"ts": times, "word": ["a"] * len(times)}, SCHEMA), folder / name)
    return folder


def test_the_end_of_a_run_says_how_many_rows_were_dropped_for_want_of_positions(tmp_path: Path) -> None:
    run = Run(write(tmp_path, "0.parquet", 1, 2, 12), Words())
    run.read()
    run.report.note_dropped("another part", 7)
    level, line = run.report.end(run.close(), is_whole=True)
    assert (level, "dropped" in line) == (logging.INFO, False)
    run.report.note_dropped(run.plan.name, 2)
    run.report.note_dropped(run.plan.name, 1)
    level, line = run.report.end(run.entry, is_whole=True)
    assert (level, "3 rows below the clock of the start were dropped" in line) == (logging.WARNING, True)


def test_a_run_that_has_all_in_a_checkpoint_has_nothing_to_warn_of(tmp_path: Path) -> None:
    run = Run(write(tmp_path, "0.parquet", 1, 2, 12), Words())
    assert run.read() is None
    assert run.report.end(run.close(), is_whole=True) == (
        logging.INFO,
        "task=Words: 3 messages read. The newest checkpoint is at clock=1970-01-01T00:00:00.000020Z (20).",
    )


def test_a_run_of_which_no_message_made_an_update_says_so(tmp_path: Path) -> None:
    def end(copies: int = 0, made: bool = False, nulls: int = 0) -> tuple[int, str]:
        run = Run(write(tmp_path / f"{copies}{made}{nulls}", "0.parquet", 1, 2, 12, *[None] * nulls), Words())
        run.read()
        run.report.note_updates("Words", 3 + nulls - copies, False)
        run.report.note_updates("Words", 0, made)
        run.report.note_updates("Words.rows", 1, True)
        level, line = run.report.end(run.close(), is_whole=True)
        return level, line.partition(" The newest")[0]

    said = "task=Words: 3 messages read, and none of them made an update."
    assert end() == (logging.WARNING, said)
    assert end(copies=2) == (logging.WARNING, said)
    assert end(nulls=1) == (logging.WARNING, said.replace("3", "4"))
    assert end(made=True) == end(copies=3) == (logging.INFO, "task=Words: 3 messages read.")


def test_the_end_of_a_run_says_how_many_copies_it_has_left_out() -> None:
    plan = core.plan_of(Words(), SCHEMA)
    log = Log(core.memory(), plan.application)
    entry = core.start(log, [plan])
    reports = Reports("run", [plan], entry, False, lambda progress: None)
    (report,) = reports._of_tasks
    lines = []
    for copies in (0, 1, 2):
        reports.hear(replace(PROGRESS, task="Words", messages=3, replayed=0, copies=copies))
        lines.append(report.end(entry, is_whole=False)[1].partition(".")[0])
    assert lines == [
        "task=Words: 3 messages read",
        "task=Words: 6 messages read; 1 copy of earlier ones left out by message_id",
        "task=Words: 9 messages read; 3 copies of earlier ones left out by message_id",
    ]


def test_a_run_hears_of_each_commit_whether_it_made_updates() -> None:
    plan = core.plan_of(Words(), SCHEMA)
    log = Log(core.memory(), plan.application)
    reports = Reports("run", [plan], core.start(log, [plan]), False, lambda progress: None)
    said = []
    for made in (False, True, False):
        reports.hear(replace(PROGRESS, task="Words", messages=5, replayed=1, copies=2, made_updates=made))
        (report,) = reports._of_tasks
        said.append(report._lacks_updates)
    assert said == [True, False, False]


def test_a_run_hears_of_each_step_of_an_ordered_task_whether_it_had_an_effect() -> None:
    class Rule(OrderedTask):
        key, state = "word", pa.int64()

        def process(self, state: Any, message: Any, context: Any) -> None:
            pass

    def lacks(*steps: tuple[int | None, bool], bad: int = 0) -> bool:
        app = Application("app", "memory://reports").add(Rule(), FileSource("in", timestamp="ts", schema=SCHEMA))
        plans = [*core.compiled(app).values()]
        log = Log(plans[0].files, plans[0].application)
        entry = core.start(log, [FlowPlan((plans[0],)), FlowPlan((plans[1], plans[2]))])
        reports = Reports("run", plans, entry, False, lambda progress: None)
        reports.hear(replace(PROGRESS, task=name_of_messages("Rule"), messages=5))
        for processed, made in steps:
            of_step = {"processed": processed, "made_updates": made, "reasons": {UNFIT: bad}}
            for part in ("Rule", name_of_rows("Rule")):
                reports.hear(replace(PROGRESS, task=part, **of_step))
        (report,) = reports._of_tasks
        return report._lacks_updates

    assert lacks((2, False), (0, False))
    # Where a step processed nothing, messages still wait, or nothing has changed.
    assert not lacks((0, False), (None, True))
    assert lacks((2, False), (None, True))
    assert not lacks((2, False), (1, True), (3, False))
    assert [lacks((2, False), bad=bad) for bad in (1, 2)] == [True, False]


def test_a_run_says_what_lies_above_its_clock_and_how_to_get_it(tmp_path: Path) -> None:
    run = Run(write(tmp_path, "0.parquet", 1, 12), Words())
    run.read()
    above = ": messages up to 1970-01-01T00:00:00.000012Z wait above it for newer ones; run(drain=True) checkpoints them now."
    assert run.report.end(run.entry, is_whole=True) == (
        logging.WARNING,
        f"task=Words: 2 messages read. The newest checkpoint is at clock=1970-01-01T00:00:00.000010Z (10){above}",
    )
    # Another task of the application holds the clock.
    level, line = run.report.end(replace(run.entry, clock=BEGINNING), is_whole=True)
    assert (level, line) == (logging.WARNING, f"task=Words: 2 messages read. There is no checkpoint yet{above}")
    # One that is stopped, or goes on for ever, has always something there.
    assert run.report.end(run.entry, is_whole=False)[0] == logging.INFO


def test_a_run_that_found_nothing_at_all_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path, Words())
    assert run.report.end(run.entry, is_whole=True) == (
        logging.WARNING,
        "task=Words: 0 messages read. There is no checkpoint yet.",
    )
    assert run.report.end(run.entry, is_whole=False)[0] == logging.INFO


@pytest.mark.parametrize("idle_after", [None, 5])
def test_a_silent_channel_that_holds_the_clock_is_named(
    idle_after: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(10, ahead=2**62, idle_after=idle_after)
    plan = core.plan_of(Words(), SCHEMA, channel="word", settings=settings)
    log = Log(plan.files, plan.application)
    reports = Reports("run", [plan], core.start(log, [plan]), True, lambda progress: None)
    rows = pa.RecordBatch.from_pylist([{"ts": 5, "word": "a"}], SCHEMA)
    core.play(log, plan, rows, channels={"a": False, "b": False, "c": True})
    entry = core.play(log, plan, rows, channels={"a": False, "b": False, "c": True}, now=9)
    with caplog.at_level(logging.INFO, "persistent_state"):
        reports.end(entry, is_whole=True)
    # No channel gets idle any more: the run is over.
    silent = "channel='b' of its source has never delivered a message."
    read = "the newest message of channel='a' of its source is of 1970-01-01T00:00:00.000005Z."
    last = caplog.records[-1]
    assert (last.levelno, last.message) == (
        (logging.WARNING, f"The global clock waits for task=Words: {silent}")
        if idle_after is None
        else (logging.INFO, f"The global clock waits for task=Words: {read}")
    )
    caplog.clear()
    # A run that is stopped has always something to wait for.
    reports.end(entry, is_whole=False)
    assert "waits for" not in caplog.text


def test_a_transaction_that_stays_open_is_named_during_a_run_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(reports_module, "time", SimpleNamespace(monotonic=lambda: now))
    plan = core.plan_of(Words(), SCHEMA)
    log = Log(plan.files, plan.application)
    run = Reports("run", [plan], core.start(log, [plan]), False, lambda progress: None)
    # Most transactions are open for a moment.
    for moment, seconds, told in ((0, 59.0, 0), (5, 60.0, 1), (64, 119.0, 1), (65, 120.0, 2), (130, 0.5, 2)):
        now = moment
        run.hear(replace(PROGRESS, task="Words", pending={f"t-{p}": seconds for p in range(5)}))
        assert len(caplog.messages) == told
    named = (
        "task=Words: messages of 't-0' for 60 s, 't-1' for 60 s, 't-2' for 60 s and 2 more are in an open transaction"
    )
    assert caplog.messages[0].startswith(named)
    run.close()


def test_values_that_do_not_fit_are_told_with_what_fits(tmp_path: Path) -> None:
    run = Run(write(tmp_path, "0.parquet", *range(60)), Words("Msg", "x"))
    said = f"60 of 60 rows did not count: 60 'value does not fit' (Sum holds int64). {SEE.format('Msg')}{STOP}"
    assert run.read() == f"task=Msg: {said}"
    level, line = run.report.end(run.close(), is_whole=True)
    assert (level, line.endswith(f"(60). {said}")) == (logging.WARNING, True)


class Delays(Words):
    """A task that gives a Summary the item itself."""

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Average())


def test_an_item_that_was_to_be_a_summary_is_told_with_what_makes_one(tmp_path: Path) -> None:
    said = Run(write(tmp_path, "0.parquet", 1, 2), Delays("Msg", 1.5)).read() or ""
    assert "2 'value does not fit' (Average holds struct<" in said
    assert "; Average(...).of(item) makes one of an item)" in said


def test_a_csv_file_without_a_header_is_told(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("1,a\n2,b\n")
    assert Run(tmp_path, Words()).read() == (
        "task=Words: 2 of 2 rows did not count: 1 'its first line names no column of the schema', 1 'no timestamp' (column "
        f"'ts' is null or missing; the first line of a CSV file must name the columns). {SEE.format('Words')}{STOP}"
    )


def test_a_time_out_of_range_is_told_as_one_and_not_as_none(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text(f"ts,word\n{2**62 + 1},a\n,b\n")
    said = Run(tmp_path, Words()).read() or ""
    assert "1 'timestamp out of range' (it is no time within 146,000 years of 1970; timestamp_unit says" in said
    assert "1 'no timestamp' (column 'ts' is null or missing)" in said


def test_times_ahead_of_the_clock_of_the_machine_come_with_the_way_back(tmp_path: Path) -> None:
    run = Run(write(tmp_path, "0.parquet", 1, 2**53), Words())
    run.plan = core.changed(run.plan, settings=Settings(interval=10, ahead=100))
    said = run.read() or ""
    assert (
        "1 of 2 rows did not count: 1 'timestamp ahead of the batch time' (max_ahead says how far is right; after a wrong "
        "clock rebuild=['Words'] of a start reads them again)."
    ) in said


def test_files_that_can_not_be_read_are_told(tmp_path: Path) -> None:
    (write(tmp_path, "0.parquet", 1) / "1.log").write_text("x")
    (tmp_path / "2.parquet").write_text("x")
    said = Run(tmp_path, Words()).read() or ""
    assert said.startswith("task=Words: 2 of 3 rows did not count: 1 'unreadable file: ")
    assert "1 'unreadable file: its ending tells no format' (give the source format=)" in said


def test_a_task_with_another_name_is_told_what_it_was_called(tmp_path: Path) -> None:
    before = Run(write(tmp_path, "0.parquet", 1, 2, 12), Words("Old"))
    before.read()
    before.close()
    run = Run(tmp_path, Words("New"), before.files)
    assert run.read() == (
        "task=New: 3 of 3 rows did not count: 3 'late' (the task is new to the application and begins at its clock, "
        "1970-01-01T00:00:00.000020Z; rebuild=['New'] of a start builds it from the beginning of its source; if it is task=Old "
        "under another name, give it name='Old'). "
        f"{SEE.format('New')}."
    )
    # Once it is there it is no more new than any other.
    run = Run(write(tmp_path, "1.parquet", 3), Words("New"), before.files)
    assert "'late' (they came after the clock had passed them" in (run.read() or "")


def test_a_task_of_another_state_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    class Texts(Words):
        key = None

    before = Run(write(tmp_path, "0.parquet", 1, 2, 12), Texts("Old"))
    before.read()
    before.close()
    said = Run(tmp_path, Words("New"), before.files).read() or ""
    assert "rebuild=['New'] of a start builds it from the beginning of its source)." in said


def test_late_rows_of_a_task_that_goes_on_are_told_as_late(tmp_path: Path) -> None:
    run = Run(write(tmp_path, "0.parquet", 1, 25), Words())
    assert run.read() is None
    write(tmp_path, "1.parquet", 3, 26)
    assert run.read() == (
        "task=Words: 1 of 4 rows did not count: 1 'late' (they came after the clock had passed them; allowed_delay waits for "
        f"longer). {SEE.format('Words')}."
    )


def test_timestamps_of_another_unit_in_a_running_application_are_told_with_what_they_may_be(tmp_path: Path) -> None:
    before = Run(write(tmp_path, "0.parquet", 1_767_225_600_000_000), Words())
    before.read()
    before.close()
    run = Run(write(tmp_path, "1.parquet", 1_767_225_601), Words(), before.files)
    run.plan = core.changed(run.plan, timestamp_unit=None)
    run.report = TaskReport([run.plan], run.entry, first=0)
    said = run.read() or ""
    assert "1 of 1 rows did not count: 1 'late' (" in said
    assert "; an int64 is microseconds, unless timestamp_unit says another unit)." in said


def test_warnings_come_when_there_is_more_to_tell_and_not_too_often(tmp_path: Path) -> None:
    run = Run(write(tmp_path, "0.parquet", 1, None), Words())
    assert "1 of 2 rows" in (run.read(now=100) or "")
    assert run.read(now=100 + 2 * EVERY) is None
    write(tmp_path, "1.parquet", None)
    assert "2 of 3 rows" in (run.read(now=100 + 2 * EVERY) or "")
    write(tmp_path, "2.parquet", None)
    assert run.read(now=100 + 2 * EVERY + 1) is None
    # What was not said yet is said at the end, and once.
    assert run.report.end(run.entry, is_whole=False)[0] == logging.WARNING
    assert run.report.end(run.entry, is_whole=False)[0] == logging.INFO
    # A run tells all at its end, whatever it said before.
    assert run.report.end(run.close(), is_whole=True)[0] == logging.WARNING


def test_rows_of_runs_before_are_not_told_again(tmp_path: Path) -> None:
    before = Run(write(tmp_path, "0.parquet", 1, None), Words())
    before.read()
    before.close()
    run = Run(write(tmp_path, "1.parquet", 12), Words(), before.files)
    assert run.read() is None
    assert run.report.end(run.close(), is_whole=True)[0] == logging.INFO


def test_rows_of_several_inputs_are_told_as_those_of_one() -> None:
    world = World()
    world.start()
    report = TaskReport([world.plans["Story"]], world.newest, first=0)
    said = report.note("Story", 9, {LATE: 1, UNFIT: 2, NO_TIMESTAMP: 3}, 0) or ""
    assert said.startswith("task=Story: 6 of 9 rows did not count: 3 'no timestamp' (column 'at' or 'ts' is null")
    assert "2 'value does not fit' (List holds list<item: string>), 1 'late' (they came after the clock" in said


def test_the_parts_of_an_ordered_task_are_told_as_the_task() -> None:
    class Steps(OrderedTask):
        key, state = "word", pa.int64()

        def process(self, state: Any, message: Any, context: Any) -> int:
            return 0

    app = Application("app", "memory://reports", checkpoint_interval="10 seconds")
    app.add(Steps(), FileSource("words/", timestamp="ts", schema=SCHEMA))
    plans = [*core.compiled(app).values()]
    flows = [FlowPlan((plans[0],)), FlowPlan((plans[1], plans[2]))]
    entry = core.start(Log(plans[0].files, "app"), flows)
    reports = Reports("run", plans, entry, False, lambda: None)
    assert len(reports._of_tasks) == 1
    reports.close()
    report = TaskReport(plans, entry, first=0)
    assert report.parts == ["Steps.messages", "Steps", "Steps.rows"]
    assert report.note("Steps.messages", 5, {LATE: 1}, 0) is not None
    # What a step makes is no message.
    assert report.note("Steps", 4, {UNFIT: 2}, 2 * EVERY) == (
        "task=Steps: 3 of 5 rows did not count: 2 'value does not fit' (a state or a row does not fit the types that the task "
        "says; on_bad_row='fail' says the first that does not), "
        "1 'late' (they came after the clock had passed them; allowed_delay waits for longer). "
        f"{SEE.format('Steps')}{STOP}"
    )
    assert report.end(entry, is_whole=False)[1].startswith("task=Steps: 5 messages read.")


def test_only_the_reasons_of_most_rows_are_named(tmp_path: Path) -> None:
    run = Run(write(tmp_path, "0.parquet", 1), Words())
    assert "7 'f', 5 'e', 4 'd', 3 'c', 2 'b', and 1 more reason." in (
        run.report.note("Words", 0, {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 7}, 0) or ""
    )


def test_rows_of_a_file_without_the_key_are_messages_that_do_not_count(tmp_path: Path) -> None:
    run = Run(write(tmp_path, "0.parquet", 1, 2), Words())
    pq.write_table(pa.table({"ts": [3], "Word": ["a"]}), tmp_path / "1.parquet")
    said = run.read()
    assert said is not None
    assert "task=Words: 1 of 3 rows did not count: 1 \"its file has no column 'word'\". See" in said


def test_rows_whose_key_does_not_fit_are_messages_that_do_not_count(tmp_path: Path) -> None:
    run = Run(write(tmp_path, "0.parquet", 1), Words())
    aside = {"key does not fit: column word": 1, "not a JSON object": 5}
    assert "6 of 8 rows did not count" in (run.report.note("Words", 3, aside, 0) or "")
