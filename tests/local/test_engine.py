"""An application runs on this machine alone: exact whatever is killed, and refused in a sentence where only Spark can do it."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monoids import Sum
from persistent_state import (
    Application,
    Context,
    DataFrameSource,
    FencedError,
    FileSource,
    KafkaConnectorSource,
    Local,
    Message,
    NonWindowState,
    OrderedTask,
    ParquetSink,
    PersistentState,
    PersistentTask,
    RunningValues,
    StateError,
    TaskFailedError,
    ValuesAtClock,
    read_state,
    verify,
)
from persistent_state.engine import Progress
from persistent_state.local import pace
from persistent_state.local.pace import OPEN_SECONDS
from persistent_state.local.pool import StoppedError
from persistent_state.local.settings import Local as Settings
from persistent_state.run import garbage, supervisor
from persistent_state.run.wall_clock import now_us
from persistent_state.sinks import Sink, Values
from persistent_state.sources.base import Reach
from persistent_state.sources.files import PARTITION, ROW_BITS
from persistent_state.sources.rate import RateSource
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from persistent_state.store.named_files import written
from tests import page_code
from tests.local.test_pool import alive
from tests.sentences import problem
from tests.spark import pipeline, stream, test_joins
from tests.spark.sessions import ROOT
from tests.spark.stream import Stream
from tests.spark.test_metrics import values_at
from tests.waiting import PATIENCE, until

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
SCHEMA = pa.schema([("ts", pa.int64()), ("shop", pa.string()), ("amount", pa.int64())])


class PerShop(PersistentTask):
    key, value = "shop", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def write(folder: Path, file: int, seconds: range) -> None:
    """Write sales of these seconds, one of each, as a file."""
    folder.mkdir(exist_ok=True)
    rows = [{"ts": START + at * SECOND, "shop": "ab"[at % 2], "amount": at} for at in seconds]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder / f"_{file}")
    (folder / f"_{file}").rename(folder / f"{file:04d}.parquet")


def application(folder: Path, task: PersistentTask | None = None, sink: Any = None, **more: Any) -> Application:
    source = FileSource(folder / "in", timestamp="ts", schema=SCHEMA, max_files_per_batch=1)
    app = Application("shops", str(folder / "store"), checkpoint_interval="10 seconds", **more)
    return app.add(task or PerShop(), source, sink=sink)


def state(folder: Path) -> dict[str, int]:
    return {row["shop"]: row["value"] for row in read_state(str(folder / "store"), "shops", "PerShop").to_pylist()}


def expected(seconds: int) -> dict[str, int]:
    return {shop: sum(range(first, seconds, 2)) for first, shop in enumerate("ab")}


def without_spark(folder: Path) -> dict[str, str]:
    """The environment of processes that have neither PySpark nor Java."""
    for name in ("pyspark", "py4j"):
        (folder / "absent" / name).mkdir(parents=True, exist_ok=True)
        (folder / "absent" / name / "__init__.py").write_text(f"raise ModuleNotFoundError('No module named {name}')\n")
    env = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    return {**env, "PATH": str(folder / "absent"), "PYTHONPATH": f"{folder / 'absent'}:{ROOT}"}


def drive(folder: Path, kind: str, how: str, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from tests.local.driver import main; import sys; main(*sys.argv[1:])"]
    return subprocess.Popen([*command, kind, str(folder), how], env=without_spark(folder), cwd=folder, **options)


@pytest.mark.parametrize("kind", ["stream", "graph"])
def test_applications_are_exact_over_starts_where_there_is_no_pyspark_and_no_java(tmp_path: Path, kind: str) -> None:
    sent = Stream(tmp_path / "stream", seed=3)
    for chapter in range(2):
        sent.grow(files=3)
        for file in range(3 * chapter, 3 * chapter + 3):
            pipeline.grow(tmp_path, file, range(20 * file, 20 * file + 20))
        assert drive(tmp_path, kind, "run" if chapter == 0 else "drain").wait(PATIENCE) == 0
        if kind == "stream":
            stream.check_cut(tmp_path, sent)
            assert stream.check_clocks(tmp_path, sent)
        else:
            assert pipeline.check(tmp_path, 60 * (chapter + 1))
    if kind == "stream":
        counts = stream.check_end(tmp_path, sent)
        assert min(counts.values()) > 0
        newest = ParquetSink(tmp_path / "out" / "Newest").latest()
        assert dict(zip(*(newest[name].to_pylist() for name in ("key", "value")), strict=True)) == stream.state(
            tmp_path, stream.Newest()
        )


@pytest.mark.kills
def test_drivers_and_workers_that_are_killed_at_random_leave_an_exact_state_and_no_process(tmp_path: Path) -> None:
    sent, chance, lives = Stream(tmp_path / "stream", seed=5), random.Random(5), set[int]()
    for _ in range(4):
        sent.grow(files=4)
        driver = drive(tmp_path, "stream", "start")
        until(lambda driver=driver: len(children(driver.pid)) == 2, "the workers", driver)
        time.sleep(chance.random() * 4)
        for victim in [*children(driver.pid)][: chance.randrange(3)]:
            lives.add(victim)
            os.kill(victim, signal.SIGKILL)
        time.sleep(chance.random() * 4)
        lives |= children(driver.pid)
        driver.kill()
        driver.wait()
        stream.check_cut(tmp_path, sent)
    assert drive(tmp_path, "stream", "drain").wait(PATIENCE) == 0
    stream.check_end(tmp_path, sent)
    until(lambda: not any(map(alive, lives)), "the end of all workers")


def children(pid: int) -> set[int]:
    """The processes that a process has started and that run."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        threads = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return set()
    return {int(each) for text in (listed, *threads) for each in text.split() if alive(int(each))}


def test_sigterm_ends_a_run_that_goes_on_and_its_workers_and_it_goes_on_from_there(tmp_path: Path) -> None:
    sent = Stream(tmp_path / "stream", seed=7)
    sent.grow()
    driver = drive(tmp_path, "stream", "start")
    until(lambda: (tmp_path / "store").exists() and len(children(driver.pid)) == 2, "the workers", driver)
    workers = children(driver.pid)
    until(lambda: has_committed(tmp_path), "a commit", driver)
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(PATIENCE) == 0
    assert not any(map(alive, workers))
    assert drive(tmp_path, "stream", "drain").wait(PATIENCE) == 0
    stream.check_end(tmp_path, sent)


def has_committed(folder: Path) -> bool:
    entry = Log(open_files(str(folder / "store")), stream.NAME).newest()
    return entry is not None and any(flow.progress.batch for flow in entry.flows.values())


class Noted(RateSource):
    """Rows at a rate. It notes in a file who is to keep open what, and for how long, and never has news."""

    def __init__(self, file: Path) -> None:
        super().__init__(10)
        self.file = file

    def stay_open(self, seconds: float) -> None:
        with self.file.open("a") as file:
            print(os.getpid(), seconds, file=file)

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        return Reach(dict(start)) if start else super().reach(start, everything)

    def await_news(self, seconds: float, stopping: threading.Event) -> None:
        with self.file.open("a") as file:
            print("waits", file=file)
        stopping.wait(3600.0)


def test_sources_stay_open_in_workers_and_in_the_driver_until_the_run_ends_and_no_wait_for_news_holds_it_up(
    tmp_path: Path,
) -> None:
    class Count(PersistentTask):
        value = "value"

        def persistent_state(self) -> NonWindowState[int]:
            return NonWindowState(Sum())

    noted = tmp_path / "noted"
    app = Application("count", str(tmp_path / "store"), checkpoint_interval="10 seconds")
    running = app.add(Count(), Noted(noted)).start(Local(2))
    until(lambda: noted.exists() and "waits" in noted.read_text(), "an idle source", lambda: running.is_active)
    running.stop()
    lines = [line.split() for line in noted.read_text().splitlines()]
    assert lines.count(["waits"]) == 1
    mine = [seconds for pid, seconds in [line for line in lines if len(line) == 2] if pid == str(os.getpid())]
    assert [*map(float, mine)] == [OPEN_SECONDS, 0]
    workers = [float(line[1]) for line in lines if len(line) == 2 and line[0] != str(os.getpid())]
    assert workers
    assert {*workers} == {OPEN_SECONDS}


def test_a_run_goes_on_as_files_come_and_a_handle_drains_it(tmp_path: Path) -> None:
    write(tmp_path / "in", 0, range(30))
    given: list[tuple[int, dict[str, int]]] = []
    progress: list[Progress] = []
    caught = threading.Event()

    def take(values: Values, clock: int) -> None:
        given.append((clock, {row["shop"]: row["value"] for batch in values.batches() for row in batch.to_pylist()}))

    def hear(committed: Progress) -> None:
        progress.append(committed)
        caught.set()

    app = application(tmp_path, sink=ValuesAtClock(take, as_="arrow", all=True))
    running = app.start(Local(2), trigger="50 milliseconds", on_progress=hear, metrics=0)
    assert caught.wait(PATIENCE)
    write(tmp_path / "in", 1, range(30, 60))
    until(lambda: running.clock == START + 50 * SECOND, "the second file", lambda: running.is_active)
    until(lambda: given and given[-1][0] == START + 50 * SECOND, "its values", lambda: running.is_active)
    assert running.drain() == START + 60 * SECOND
    assert state(tmp_path) == expected(60)
    assert [clock for clock, _ in given] == sorted(clock for clock, _ in given)
    for clock, values in given:
        assert values == expected((clock - START) // SECOND)
    assert sum(each.messages for each in progress) == 60


def test_metrics_show_what_deliveries_take_but_for_those_that_fail_and_count_requests(tmp_path: Path) -> None:
    write(tmp_path / "in", 0, range(35))
    given = list[int]()
    failures = iter([True, False])

    def take(values: Values, clock: int) -> None:
        if next(failures, False):
            raise OSError("the place is down")
        given.append(clock)

    running = application(tmp_path, sink=ValuesAtClock(take, as_="arrow")).start(Local(), metrics=0)
    assert running.metrics_url is not None

    url = running.metrics_url.removesuffix("/metrics")

    def deliveries(of: str) -> float:
        return sum(value for (name, *_), value in values_at(url).items() if name == f"delivery_seconds_{of}")

    try:
        until(lambda: deliveries("count"), "a delivery", lambda: running.is_active)
        assert (deliveries("count"), deliveries("sum") > 0) == (1, True)
        requests = values_at(url)
    finally:
        running.stop()
    assert given == [START + 30 * SECOND]
    assert min(requests["store_requests_total", kind] for kind in ("PUT", "GET", "LIST")) > 0


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_replaced_files_stay_for_the_grace_that_the_application_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def oldest(grace: str) -> int:
        """Run twice, and return the oldest entry of the log that is left when a collection comes 90 seconds later."""
        (folder := tmp_path / grace).mkdir()
        write(folder / "in", 0, range(30))
        application(folder).run(Local(1))
        write(folder / "in", 1, range(30, 60))
        with monkeypatch.context() as later:
            later.setattr(garbage, "now_us", lambda: now_us() + 90 * SECOND)
            application(folder, grace=grace).run(Local(1))
        assert state(folder) == expected(50)
        return min(Log(open_files(str(folder / "store")), "shops").numbers())

    assert oldest("1 minute") > 1
    assert oldest("2 minutes") == 1


def test_running_values_come_with_each_micro_batch_as_arrow(tmp_path: Path) -> None:
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    given: list[tuple[int, dict[str, int]]] = []

    def take(values: Values, batch: int) -> None:
        assert values.schema.names == ["shop", "value"]
        given.append((batch, {row["shop"]: row["value"] for each in values.batches() for row in each.to_pylist()}))

    application(tmp_path, sink=RunningValues(take, as_="arrow")).run(Local())
    assert given == [(batch, expected(10 * batch + 10)) for batch in range(3)]


class Listening(FileSource):
    """A source that notes for how long its reader waits for news."""

    waits: ClassVar[list[float]] = []

    def await_news(self, seconds: float, stopping: threading.Event) -> None:
        self.waits.append(seconds)
        super().await_news(seconds, stopping)


def test_a_flow_that_gathers_nothing_waits_for_news_as_long_as_the_store_allows(tmp_path: Path) -> None:
    Listening.waits.clear()
    write(tmp_path / "in", 0, range(10))
    source = Listening(tmp_path / "in", timestamp="ts", schema=SCHEMA)
    app = Application("shops", str(tmp_path / "store"), checkpoint_interval="10 seconds").add(PerShop(), source)
    running = app.start(Local())
    until(lambda: running.progress, "a commit", lambda: running.is_active)
    Listening.waits.clear()
    until(lambda: len(Listening.waits) > 1, "looks", lambda: running.is_active)
    running.stop()
    assert {*Listening.waits} == {pace.LOOK_SECONDS}


def test_running_values_do_not_wait_for_a_commit_and_a_stop_commits_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "NEAR_SECONDS", 3600.0)
    log, given, progress = Log(open_files(str(tmp_path / "store")), "shops"), list[dict[str, int]](), list[Progress]()

    def take(values: Values, batch: int) -> None:
        given.append({row["shop"]: row["value"] for each in values.batches() for row in each.to_pylist()})

    app = application(tmp_path, sink=RunningValues(take, as_="arrow"))
    write(tmp_path / "in", 0, range(10))
    running = app.start(Local(), on_progress=progress.append)
    for file in range(1, 4):
        until(lambda file=file: len(given) == file, "the values")
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    until(lambda: len(given) == 4, "the values")
    assert given == [expected(10 * number + 10) for number in range(4)]
    until(lambda: len(progress) == 1, "the first commit, which is not waited for")
    newest = log.newest()
    assert newest is not None
    assert newest.flows["PerShop"].progress.batch == 1
    running.stop()
    last = log.newest()
    assert last is not None
    assert last.flows["PerShop"].progress.batch == 4
    assert sum(each.messages for each in progress) == 40
    assert progress[-1].batch == 4
    # Each of the clocks that the last three have reached has an entry of its own, and takes its turns along.
    assert last.number <= newest.number + 3
    assert app.run(Local(), drain=True)
    assert state(tmp_path) == expected(40)


class Silent(FileSource):
    """A source that does not answer any more, when two files were read of it, until it may go on."""

    asked, goes_on, answered = threading.Event(), threading.Event(), threading.Event()

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        if start.get(PARTITION, 0) >> ROW_BITS == 2:
            self.asked.set()
            self.goes_on.wait(60.0)
            self.answered.set()
        return super().reach(start, everything)


def test_a_stop_waits_for_no_source_that_does_not_answer_and_commits_what_was_read_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "NEAR_SECONDS", 3600.0)
    for event in (Silent.asked, Silent.goes_on, Silent.answered):
        event.clear()
    for file in range(2):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    source = Silent(tmp_path / "in", timestamp="ts", schema=SCHEMA, max_files_per_batch=1)
    app = Application("shops", str(tmp_path / "store"), checkpoint_interval="10 seconds")
    running = app.add(PerShop(), source, RunningValues(lambda values, batch: None, as_="arrow")).start(Local())
    until(Silent.asked.is_set, "a look at the source", lambda: running.is_active)
    write(tmp_path / "in", 2, range(20, 30))
    running.stop()
    assert not Silent.answered.is_set()
    log = Log(open_files(str(tmp_path / "store")), "shops")
    before = log.newest()
    assert before is not None
    assert before.flows["PerShop"].progress.batch == 2
    Silent.goes_on.set()
    until(lambda: not [each for each in threading.enumerate() if each.name.endswith(" shops PerShop")], "its end")
    assert log.newest() == before
    application(tmp_path).run(Local(), drain=True)
    assert state(tmp_path) == expected(30)


def test_a_start_goes_on_at_once_while_a_folder_has_more_files_than_a_micro_batch_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "NEAR_SECONDS", 3600.0)
    for file in range(5):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    progress = list[Progress]()
    running = application(tmp_path).start(Local(), on_progress=progress.append)
    until(lambda: sum(each.messages for each in progress) == 50, "all files", lambda: running.is_active)
    running.stop()
    assert [each.messages for each in progress] == [10] * 5


def test_a_failure_starts_the_run_again_from_the_global_clock(tmp_path: Path) -> None:
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    failures = iter([True, False, True])

    def fails(values: Values, batch: int) -> None:
        if next(failures, False):
            raise OSError("the place is down")

    running = application(tmp_path, sink=RunningValues(fails, as_="arrow")).run(Local(), drain=True)
    assert running.restarts == 2
    assert state(tmp_path) == expected(30)


@pytest.mark.soak
@pytest.mark.one_in(2)
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_what_is_no_exception_ends_no_run_well(tmp_path: Path, error: BaseException) -> None:
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))

    def hear(progress: Any) -> None:
        raise error

    said = problem(lambda: application(tmp_path, max_restarts=0).run(Local(), drain=True, on_progress=hear), StateError)
    assert type(error).__name__ in said
    application(tmp_path).run(Local(), drain=True)
    assert state(tmp_path) == expected(30), "no message was passed over"


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_joins_are_those_of_a_loop_over_all_rows(tmp_path: Path) -> None:
    test_joins.check_joins(Local(2), tmp_path)


@pytest.mark.soak
@pytest.mark.one_in(2)
@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
def test_an_application_counts_all_under_another_delivery_where_nothing_fails(tmp_path: Path, delivery: str) -> None:
    sink = ParquetSink(tmp_path / "out")
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
        application(tmp_path, sink=sink, delivery=delivery).run(Local(), drain=True)
        assert state(tmp_path) == expected(10 * file + 10)


def test_a_sink_that_goes_on_after_the_end_starts_no_worker(tmp_path: Path) -> None:
    write(tmp_path / "in", 0, range(30))
    has_begun, goes_on, failed = threading.Event(), threading.Event(), list[str]()

    def hangs(values: Values, clock: int) -> None:
        has_begun.set()
        goes_on.wait(PATIENCE)
        failed.append(problem(lambda: [*values.batches()], StoppedError))

    running = application(tmp_path, sink=ValuesAtClock(hangs, as_="arrow")).start(Local())
    until(has_begun.is_set, "the sink", lambda: running.is_active)
    with mock.patch.object(supervisor, "STOP_SECONDS", 1.0):
        running.stop()
    assert not children(os.getpid())
    goes_on.set()
    until(lambda: failed, "the end of the sink")
    assert not children(os.getpid())


def test_a_driver_that_was_fenced_ends_and_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "in", 0, range(10))
    first = application(tmp_path).start(Local())
    until(lambda: bool(first.progress), "a commit", lambda: first.is_active)
    write(tmp_path / "in", 1, range(10, 20))
    application(tmp_path).run(Local(), drain=True)
    with pytest.raises(FencedError):
        first.await_termination(PATIENCE)
    assert state(tmp_path) == expected(20)


def test_a_store_goes_on_after_a_rewind(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    application(tmp_path, sink=sink).run(Local(2), drain=True)
    before = state(tmp_path)
    planned = application(tmp_path, sink=sink).rewind(START // SECOND * SECOND + 10 * SECOND)
    assert planned.is_made
    assert state(tmp_path) == expected(10)
    application(tmp_path, sink=sink).run(Local(2), drain=True)
    assert state(tmp_path) == before == expected(30)
    latest = ParquetSink(tmp_path / "out").latest()
    assert dict(zip(latest["shop"].to_pylist(), latest["value"].to_pylist(), strict=True)) == before


class PerAmount(PerShop):
    key = "amount"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_share_the_shards_and_each_writes_one_file_in_a_micro_batch(tmp_path: Path, workers: int) -> None:
    # Too many for a run in an entry.
    rows = 40_000
    for file in range(3):
        write(tmp_path / "in", file, range(rows * file, rows * file + rows))
    application(tmp_path, PerAmount(), shards=7).run(Local(workers), drain=True)
    folder = "shops/runs/PerAmount"
    made = Counter(written(path)[1] for path in open_files(str(tmp_path / "store")).list(folder))
    assert {*made.values()} == {workers}
    sums = read_state(str(tmp_path / "store"), "shops", "PerAmount").to_pylist()
    assert {row["amount"]: row["value"] for row in sums} == {at: at for at in range(3 * rows)}
    assert verify(str(tmp_path / "store")).problems == ()


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_start_keeps_the_number_of_shards_that_the_store_has(tmp_path: Path) -> None:
    for file, (workers, shards, wanted) in enumerate([(2, None, 2), (1, None, 2), (3, 5, 5), (1, None, 5)]):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
        application(tmp_path, shards=shards).run(Local(workers), drain=True)
        newest = Log(open_files(str(tmp_path / "store")), "shops").newest()
        assert newest is not None
        assert newest.shards == wanted
    assert state(tmp_path) == expected(40)


class Dies(PersistentTask):
    """Its code ends the process at one message, until it has done so `times` times."""

    key = "shop"

    def __init__(self, place: Path, at: int, times: int) -> None:
        self.name = "PerShop"
        self.place, self.at, self.times = str(place), at, times

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        deaths = Path(self.place)
        if message["amount"] == self.at and (count := len(deaths.read_text())) < self.times:
            deaths.write_text("x" * (count + 1))
            os.kill(os.getpid(), signal.SIGKILL)
        state.update(message.timestamp, message["amount"])


def test_workers_that_die_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "deaths").touch()
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    task = Dies(tmp_path / "deaths", at=15, times=2)
    running = application(tmp_path, task).run(Local(2), drain=True)
    assert running.restarts == 0
    assert (tmp_path / "deaths").read_text() == "xx"
    assert state(tmp_path) == expected(30)


def test_a_row_of_which_each_worker_dies_ends_the_run_with_its_partition_and_positions(tmp_path: Path) -> None:
    (tmp_path / "deaths").touch()
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    task = Dies(tmp_path / "deaths", at=15, times=10**6)
    said = problem(lambda: application(tmp_path, task).run(Local(2), drain=True), TaskFailedError)
    assert said.startswith("task=PerShop: 3 workers in a row died of partition='' from position ")
    assert "(0001.parquet), the last one by signal 9, as when memory is short. Give the machine more memory" in said
    assert (tmp_path / "deaths").read_text() == "xxx"


class DiesInMerge(PersistentTask):
    """Its code runs where shards are merged, and ends the process at one message."""

    name, key, reads_state = "PerShop", "shop", True

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        ends_at_15(message)
        state.update(message.timestamp, (state.get() or 0) * 0 + message["amount"])


class DiesInStep(OrderedTask):
    """Its code ends the process at one message, in a step."""

    name, key, state = "PerShop", "shop", pa.int64()

    def process(self, state: Any, message: Message, context: Context) -> int:
        ends_at_15(message)
        return (state or 0) + int(message["amount"])


def ends_at_15(message: Message) -> None:
    """End the process at one message, as a library does that calls `exit`. Note that it was called."""
    if message["amount"] == 15:
        with Path(os.environ["DEATHS"]).open("a") as deaths:
            deaths.write("x")
        os._exit(7)


@pytest.mark.soak
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("task", "shards", "where"),
    # One call reads the only part and merges the only shard, and is named by what it reads.
    [
        (DiesInMerge(), 2, "shard=[01], while they merged it"),
        (DiesInMerge(), 4, r"shards=\[(0, 1|2, 3)\], while they merged them"),
        (DiesInStep(), 1, "part=0 of a step"),
        (DiesInStep(), 4, r"parts=\[(0, 1|2, 3)\] of a step"),
    ],
    ids=["merge", "merge of several shards", "step", "step of several shards"],
)
def test_workers_that_die_of_a_merge_or_a_step_end_the_run_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Any, shards: int, where: str
) -> None:
    monkeypatch.setenv("DEATHS", str(tmp_path / "deaths"))
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    said = problem(lambda: application(tmp_path, task, shards=shards).run(Local(2), drain=True), TaskFailedError)
    assert re.match(
        f"task={task.name}: 3 workers in a row died of {where}, the last one with exit status 7. Give", said
    )
    assert (tmp_path / "deaths").read_text() == "xxx"


class TakesAll(PersistentTask):
    """Its code needs more memory at one message than its process may have."""

    name, key = "PerShop", "shop"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        if message["amount"] == 15:
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
            self.kept = bytearray(1 << 31)
        state.update(message.timestamp, message["amount"])


def test_a_task_that_needs_more_memory_than_there_is_ends_the_run_with_its_line_and_row(tmp_path: Path) -> None:
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    said = problem(lambda: application(tmp_path, TakesAll()).run(Local(2), drain=True), TaskFailedError)
    assert said.startswith("process_message of task=PerShop raised MemoryError() at ")
    assert "in process_message, at file='0001.parquet' line=6 key={'shop': 'b'}" in said


def test_code_of_tasks_never_runs_in_the_driver(tmp_path: Path) -> None:
    driver = os.getpid()

    class Apart(PersistentTask):
        name, key = "PerShop", "shop"

        def persistent_state(self) -> NonWindowState[int]:
            return NonWindowState(Sum())

        def process_message(self, state: PersistentState[int], message: Message) -> None:
            assert os.getpid() != driver
            state.update(message.timestamp, message["amount"])

    write(tmp_path / "in", 0, range(10))
    application(tmp_path, Apart()).run(Local(), drain=True)
    assert state(tmp_path) == expected(10)


class ByColumn(PersistentTask):
    name, key = "PerShop", "shop"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_column(self, rows: Any) -> Any:
        raise AssertionError


with pytest.warns(DeprecationWarning, match="is given a DataFrame, which is deprecated"):

    class Former(Sink):
        name = "former"

        def write(self, values: Any, clock: int) -> None: ...


def refused(folder: Path, **how: Any) -> str:
    (folder / "in").mkdir(exist_ok=True)
    said = problem(lambda: application(folder, **how).run(Local()))
    assert not (folder / "store").exists(), "nothing was changed"
    return said


def test_what_only_spark_can_do_is_refused_in_a_sentence_and_changes_nothing(tmp_path: Path) -> None:
    def takes(values: Any, number: int) -> None: ...

    said = refused(tmp_path, sink=takes)
    assert said.startswith("task=PerShop: sink=<function ")
    assert said.endswith(
        "is a function of a DataFrame, which only Spark has; let it take Arrow, and say so: "
        "ValuesAtClock(function, as_='arrow')."
    )
    assert refused(tmp_path, sink=RunningValues(takes)).endswith("say so: RunningValues(function, as_='arrow').")
    assert "sink='former' defines write(), which needs a DataFrame of Spark" in refused(tmp_path, sink=Former())
    said = refused(tmp_path, task=ByColumn())
    assert "has a process_column, which only Spark computes; give it a process_batch" in said
    frame: Any = object()
    connector = KafkaConnectorSource("topic", "localhost:1", lambda rows: rows)
    for source in (connector, DataFrameSource(lambda spark, clock: frame, "ts")):
        app = Application("shops", str(tmp_path / "store")).add(PerShop(), source)
        why = problem(lambda app=app: app.run(Local()))
        assert "which only Spark can do; give it a FileSource, a KafkaSource" in why
    memory = Application("shops", "memory://local").add(
        PerShop(), FileSource(tmp_path / "in", timestamp="ts", schema=SCHEMA, format="parquet")
    )
    assert problem(lambda: memory.run(Local())).startswith("store=memory:// can't be reached by workers")
    assert not (tmp_path / "store").exists()


def test_a_task_that_can_not_be_sent_to_workers_is_refused(tmp_path: Path) -> None:
    class Locked(PerShop):
        name = "PerShop"

        def __init__(self) -> None:
            self.lock = threading.Lock()

    assert "task=PerShop can't be sent to workers for its attribute 'lock'" in refused(tmp_path, task=Locked())


def test_a_source_that_can_not_be_sent_to_workers_is_refused(tmp_path: Path) -> None:
    source = FileSource(tmp_path / "in", timestamp="ts", schema=SCHEMA, transform=partial(locked, threading.Lock()))
    app = Application("shops", str(tmp_path / "store")).add(PerShop(), source)
    write(tmp_path / "in", 0, range(10))
    assert "can't be sent to workers" in problem(lambda: app.run(Local()))
    assert not (tmp_path / "store").exists(), "nothing was changed"


def locked(lock: Any, rows: Any) -> Any:
    with lock:
        return rows


def test_a_sink_that_is_given_arrow_need_not_say_so_and_other_words_are_refused() -> None:
    sink = ParquetSink("out")
    assert "leave it out, a Sink is given Arrow" in problem(lambda: ValuesAtClock(sink, as_="arrow"))
    assert problem(lambda: RunningValues(print, as_="pandas")) == "as_='pandas'; say 'dataframe' or 'arrow'."
    assert problem(lambda: Settings(0)) == "workers=0; there must be at least one."
    wrong: Any = 1.5
    assert "workers=1.5 is not a whole number" in problem(lambda: Local(wrong))


def test_an_error_of_a_task_ends_the_run_and_names_its_line(tmp_path: Path) -> None:
    class Wrong(PersistentTask):
        name, key = "PerShop", "shop"

        def persistent_state(self) -> NonWindowState[int]:
            return NonWindowState(Sum())

        def process_message(self, state: PersistentState[int], message: Message) -> None:
            raise KeyError("no such shop")

    write(tmp_path / "in", 0, range(10))
    with pytest.raises(TaskFailedError, match=r"KeyError\('no such shop'\) at .*test_engine.py:\d+ in process_message"):
        application(tmp_path, Wrong()).run(Local())


def test_values_that_a_function_prints_are_shown_by_their_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "in", 0, range(10))
    outputs = [ValuesAtClock(print, as_="arrow"), RunningValues(print, as_="arrow")]
    application(tmp_path, sink=outputs).run(Local(), drain=True)
    printed = {line.partition("[")[2].rpartition("]")[0] for line in capsys.readouterr().out.splitlines()}
    assert printed == {"shop: string, clock: timestamp[us, tz=UTC], value: int64", "shop: string, value: int64"}


def test_what_a_start_warns_of_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "in", 0, range(10))
    application(tmp_path).run(Local(), drain=True)
    write(tmp_path / "in", 0, range(20))
    write(tmp_path / "in", 1, range(10, 20))
    caplog.clear()
    application(tmp_path).run(Local(), drain=True)
    warnings = [record.getMessage() for record in caplog.records if "'0000.parquet'" in record.getMessage()]
    assert len(warnings) == 1
    assert "since it was listed" in warnings[0]


def test_a_function_of_progress_may_stop_the_run(tmp_path: Path) -> None:
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    handles: list[Any] = []
    ready = threading.Event()

    def stop(progress: Progress) -> None:
        ready.wait(PATIENCE)
        handles[0].stop()

    handles.append(application(tmp_path).start(Local(), on_progress=stop))
    ready.set()
    assert handles[0].await_termination(PATIENCE)
    application(tmp_path).run(Local(), drain=True)
    assert state(tmp_path) == expected(30)


def test_the_code_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "in", 0, range(30))
    app = application(tmp_path)
    source = FileSource(tmp_path / "in", timestamp="ts", schema=SCHEMA)
    totals = type("Totals", (PerShop,), {})
    page = {"app": app, "Local": Local, "ValuesAtClock": ValuesAtClock, "Totals": totals, "source": source}
    page_code.run(page_code.text_of("docs/local.md"), page)
    assert state(tmp_path) == expected(30)
    # A task that is new begins at the clock.
    write(tmp_path / "in", 1, range(30, 60))
    app.run(Local(), drain=True)
    assert capsys.readouterr().out.splitlines()[-2:] == ["a 660", "b 675"]
