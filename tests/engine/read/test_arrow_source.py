"""Planning and reading of micro-batches as Spark asks for them, without Spark: when one is due, and in how many parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from monoids import Count
from persistent_state import Message, NonWindowState, PersistentState, PersistentTask
from persistent_state.batch.packets import DRIVER, Answers, Blob, Report
from persistent_state.batch.plan import Plan
from persistent_state.batch.shard import merge_shard
from persistent_state.drive.planner import HUNG
from persistent_state.engine.read import arrow_source, idle_source
from persistent_state.engine.read.arrow_source import ArrowReader
from persistent_state.engine.read.idle_source import IdleReader
from persistent_state.engine.spark import failures
from persistent_state.engine.spark.versions import ReadMaxRows
from persistent_state.errors import FencedError, StoreUnavailableError
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol.commits import close, plan_batch, wake
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.store.entry import Entry
from persistent_state.store.log import RECENT, Log
from tests import core


def answered(plan: Plan, rows: Sequence[Mapping[str, Any]]) -> Answers:
    """What the only shard makes of the rows that Spark shuffles, and the parts' reports among them; an error is raised."""
    for row in rows:
        if error := failures.error_of(row["blob"]):
            raise error
    blobs = [Blob.from_bytes(row["blob"]) for row in rows if row["label"] != DRIVER]
    reports = [Report.from_bytes(row["blob"]) for row in rows if row["label"] == DRIVER]
    return Answers(reports, merge_shard(core.alone(plan), 0, blobs, {}, core.new_id)[0])


SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.int64())])


class Counts(PersistentTask):
    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Count())

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, 1)


class Stamps(TimeReplayableSource):
    """One partition and channel of timestamps, of which `there` can be read."""

    timestamp = "ts"

    def __init__(self, stamps: Sequence[int], there: int) -> None:
        self.stamps = stamps
        self.there = there

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        pass

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        return Reach({"": self.there}, {"": False})

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        low, length = start.get("", 0), end[""] - start.get("", 0)
        bounds = [low + length * part // parts for part in range(parts + 1)]
        return [split for split in pairwise(bounds) if split[0] < split[1]]

    def read(self, split: Any) -> Iterator[Chunk]:
        stamps = pa.array(self.stamps[slice(*split)], pa.int64())
        yield Chunk("", split[0], pa.RecordBatch.from_arrays([stamps], schema=SCHEMA))


class Query:
    """What Spark does with a reader: ask how far it goes, and play the micro-batch if that is further than before."""

    def __init__(
        self, source: TimeReplayableSource, settings: Settings, parts: int = 1, *, to_the_end: bool = False
    ) -> None:
        self.now = SECOND
        self.to_the_end = to_the_end
        self.plan = core.plan_of(Counts(), source.schema, settings=settings, timestamp=source.timestamp)
        self.log = Log(self.plan.files, "app")
        self.source, self.most = source, parts
        self.start()

    def start(self) -> None:
        entry = core.start(self.log, [self.plan], now=self.now)
        flow = core.alone(self.plan)
        self.reader = ArrowReader(flow, self.source, entry.epoch, self.most, (0,), 1, to_the_end=self.to_the_end)
        self.reader._planner._log._seconds = lambda: self.now / SECOND
        self.offset = self.initial()

    def initial(self) -> dict[str, Any]:
        return self.reader.initialOffset()

    def latest(self) -> dict[str, Any]:
        return self.reader.latestOffset(self.offset, ReadMaxRows(1))

    def poll(self, *, planning: int = 0) -> Entry | None:
        """The entry of a micro-batch, the planning of which takes so long; None if none is due."""
        with mock.patch.object(arrow_source, "now_us", side_effect=lambda: self.now):
            new = self.latest()
            if new == self.offset:
                return None
            self.now += planning
            self.parts = self.reader.partitions(self.offset, new)
            rows = [rows for part in self.parts for rows in self.reader.read(part)]
        self.offset = new
        made = answered(self.plan, [row for batch in rows for row in batch.to_pylist()])
        return core.commit(self.log, self.plan, made, now=self.now)


@pytest.mark.parametrize("planning", [0, 1_500_000, 30 * SECOND])
def test_a_silent_channel_is_declared_idle_once_however_long_planning_took(planning: int) -> None:
    query = Query(Stamps([5, 15, 25], there=3), Settings(10, idle_after=10 * SECOND, ahead=2**62))
    entry = query.poll(planning=planning)
    assert entry is not None
    assert entry.flow_of("Counts").progress.holds
    silent_since, declared = query.now, []
    for _ in range(300):
        query.now += SECOND // 5
        if entry := query.poll(planning=SECOND // 10):
            declared.append((query.now - silent_since, entry.flow_of("Counts").progress.holds))
    # One micro-batch without rows, not before it is time, nor much later.
    assert [holds for _, holds in declared] == [False]
    assert 10 * SECOND <= declared[0][0] <= 11 * SECOND


def test_a_channel_that_speaks_again_is_idle_again_later() -> None:
    source = Stamps([5, 15, 25, 35], there=3)
    query = Query(source, Settings(10, idle_after=10 * SECOND, ahead=2**62))
    assert query.poll(planning=SECOND)
    for there in (3, 4):
        if there > source.there:
            source.there = there
            entry = query.poll(planning=2 * SECOND)
            assert entry is not None
            assert entry.flow_of("Counts").progress.holds
        assert query.poll() is None
        query.now += 9 * SECOND
        assert query.poll() is None
        query.now += SECOND
        entry = query.poll()
        assert entry is not None
        assert not entry.flow_of("Counts").progress.holds


@pytest.mark.parametrize(("jump", "parts"), [(None, 4), (100, 1)])
def test_a_batch_is_read_in_one_part_where_jumps_are_measured(jump: int | None, parts: int) -> None:
    stamps = list(range(0, 4000, 10))
    query = Query(Stamps(stamps, there=len(stamps)), Settings(10, ahead=2**62, jump=jump), parts=4)
    entry = query.poll()
    assert entry is not None
    assert len(query.parts) == parts
    # Each is close to the message before it: none is a jump.
    assert entry.late_rows_of("Counts").counts() == {}
    assert core.state_at(entry, query.plan, None) == {(): len(stamps)}


class Bounded(Stamps):
    """Two timestamps a micro-batch."""

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        return Reach({"": min(self.there, start.get("", 0) + 2)}, {"": False})


class OldQuery(Query):
    """What Spark before 4.2 does: it says nothing of where a micro-batch starts, and asks late where the stream does."""

    def initial(self) -> dict[str, Any]:
        return {}

    def latest(self) -> dict[str, Any]:
        new = self.reader.latestOffset()
        self.offset = self.offset or self.reader.initialOffset()
        return new


@pytest.mark.parametrize("kind", [Query, OldQuery])
def test_a_stream_is_read_to_its_end_in_bounded_batches_on_every_version_of_spark(kind: type[Query]) -> None:
    source = Bounded([5, 15, 25, 35, 45, 55, 65], there=5)
    query = kind(source, Settings(10, ahead=2**62), to_the_end=True)
    counts = [core.state_at(entry, query.plan, None) for entry in iter(query.poll, None)]
    assert counts == [{(): 2}, {(): 4}, {(): 5}]
    # A query that has found nothing to read is being stopped, and begins no other micro-batch.
    source.there = 7
    assert query.poll() is None
    query.start()
    counts = [core.state_at(entry, query.plan, None) for entry in iter(query.poll, None)]
    assert counts[-1] == {(): 7}


@pytest.mark.parametrize("kind", [Query, OldQuery])
@pytest.mark.parametrize("to_the_end", [False, True])
def test_a_quiet_query_that_a_newer_driver_has_fenced_ends_with_that_error(kind: type[Query], to_the_end: bool) -> None:
    query = kind(Stamps([5, 15], there=2), Settings(10, ahead=2**62), to_the_end=to_the_end)
    assert query.poll()
    assert query.poll() is None
    core.start(query.log, [query.plan], now=query.now)
    query.now += int(RECENT) * SECOND
    with pytest.raises(FencedError, match="a newer driver owns app; this one \\(epoch 1\\) has stopped"):
        query.poll()


def test_a_query_that_has_nothing_to_read_looks_at_the_log_now_and_then() -> None:
    source = Stamps([5, 15, 25], there=2)
    query = Query(source, Settings(10, ahead=2**62))
    assert query.poll()
    with mock.patch.object(Log, "_newest_by_name", autospec=True, side_effect=Log._newest_by_name) as looks:
        for _ in range(10):
            assert query.poll() is None
            query.now += int(RECENT) * SECOND // 5
        assert looks.call_count == 2
        # What arrives is read at once, by the newest entry.
        source.there = 3
        assert query.poll() is not None


def test_a_query_at_its_end_does_not_fail_for_a_store_that_does_not_answer() -> None:
    query = Query(Stamps([5, 15], there=2), Settings(10, ahead=2**62), to_the_end=True)
    assert query.poll()
    assert query.poll() is None
    with mock.patch.object(Log, "newest", side_effect=StoreUnavailableError("the store is down.")):
        assert query.poll() is None


def test_a_query_that_begins_after_it_was_fenced_ends_with_that_error() -> None:
    query = Query(Stamps([5, 15], there=2), Settings(10, ahead=2**62))
    fenced = query.reader
    query.start()
    assert fenced.latestOffset(fenced.initialOffset()) == {"ends": {}, "tick": 1}
    (part,) = fenced.partitions({"ends": {}, "tick": 0}, {"ends": {}, "tick": 1})
    assert isinstance(part.value, FencedError)


def test_a_start_after_a_failure_fences_no_query_of_its_own() -> None:
    query = Query(Stamps([5, 15, 25], there=2), Settings(10, ahead=2**62))
    assert query.poll()
    query.start()
    query.source.there = 3
    entry = query.poll()
    assert entry is not None
    assert (entry.epoch, core.state_at(entry, query.plan, None)) == (2, {(): 3})


def test_a_batch_without_rows_has_one_part() -> None:
    source = Stamps([5], there=0)
    query = Query(source, Settings(10, ahead=2**62), parts=4)
    # A channel is there that was not: due, although nothing arrived.
    assert query.poll()
    assert len(query.parts) == 1


def test_a_channel_that_is_silent_from_a_start_on_is_idle_once_it_has_been_for_so_long() -> None:
    source = Stamps([5, 15, 25], there=3)
    query = Query(source, Settings(10, idle_after=10 * SECOND, ahead=2**62))
    assert query.poll()
    # Nothing is above the clock, so nothing comes again.
    close(query.log, 1, now=query.now, keeping=Keeping())
    query.start()
    for wait in (0, 9 * SECOND):
        query.now += wait
        assert query.poll() is None
    query.now += 2 * SECOND
    entry = query.poll()
    assert entry is not None
    assert not entry.flow_of("Counts").progress.holds


class Silent:
    """What Spark does with the source that stands beside a stream."""

    def __init__(self, channels: dict[str, bool] | None) -> None:
        self.now = SECOND
        self.plan = core.plan_of(Counts(), SCHEMA, settings=Settings(10, idle_after=10 * SECOND, ahead=2**62))
        self.log = Log(self.plan.files, "app")
        self.reach = Reach({}, channels)
        self.start()

    def start(self) -> None:
        entry = core.start(self.log, [self.plan], now=self.now)
        flow = core.alone(self.plan)
        self.reader = IdleReader(flow, entry.epoch, lambda entry, _: plan_batch(entry, flow, self.reach, 0), (0,))
        self.offset = self.reader.initialOffset()

    def poll(self) -> Entry | None:
        """The entry of the micro-batch that is due; None if none is."""
        with mock.patch.object(idle_source, "now_us", side_effect=lambda: self.now):
            new = self.reader.latestOffset(self.offset, ReadMaxRows(1))
            if new == self.offset:
                return None
            (part,) = self.reader.partitions(self.offset, new)
            rows = [row for batch in self.reader.read(part) for row in batch.to_pylist()]
        self.offset = new
        made = answered(self.plan, rows)
        reports = [replace(report, now=self.now // 1000 * 1000) for report in made.reports]
        return core.commit(self.log, self.plan, replace(made, reports=reports), now=self.now)

    def wait(self, seconds: float) -> list[bool]:
        """Whether the task holds the global clock after each micro-batch of so many seconds."""
        entries = []
        for _ in range(round(seconds * 5)):
            self.now += SECOND // 5
            entries.append(self.poll())
        return [entry.flow_of("Counts").progress.holds for entry in entries if entry is not None]

    def deliver(self) -> None:
        core.play(self.log, self.plan, pa.record_batch({"ts": [25]}), now=self.now, channels=self.reach.channels)


@pytest.mark.parametrize("channels", [None, {"": False}])
@pytest.mark.parametrize("delivers", [False, True])
def test_a_stream_that_spark_reads_lets_the_clock_go_once_it_is_silent(
    channels: dict[str, bool] | None, delivers: bool
) -> None:
    query = Silent(channels)
    for _ in range(1 + delivers):
        if delivers:
            query.deliver()
        assert query.wait(9.8) == []
        assert query.wait(30) == [False]
        # Whoever wakes it needlessly holds it for a while.
        wake(query.log, 1, "Counts", query.now)
        assert query.wait(6) == [False]
    query.deliver()
    assert query.wait(9.8) == []
    query.now += 100 * SECOND
    query.start()
    assert query.wait(9.8) == []
    assert query.wait(30) == [False]


def test_a_silent_stream_that_a_newer_driver_has_fenced_ends_with_that_error() -> None:
    query = Silent({"": False})
    query.deliver()
    assert query.wait(30) == [False]
    core.start(query.log, [query.plan], now=query.now)
    with pytest.raises(FencedError, match="a newer driver owns app"):
        query.wait(30)


class Transacted(TimeReplayableSource):
    """Partitions of timestamps, of which `there` can be read. What is behind that is in an open transaction for `seconds`."""

    timestamp = "ts"
    schema = SCHEMA

    def __init__(self, **stamps: list[int]) -> None:
        self.stamps = stamps
        self.there = {name: len(some) for name, some in stamps.items()}
        self.aborted: set[int] = set()
        self.seconds = 0.0

    def write(self, name: str, *stamps: int, is_open: bool = False) -> None:
        self.stamps[name] += stamps
        self.there[name] += 0 if is_open else len(stamps)

    def end(self, name: str, *, commits: bool) -> None:
        if not commits:
            self.aborted |= {*self.stamps[name][self.there[name] :]}
        self.there[name] = len(self.stamps[name])

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        pass

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        lag = {name: len(some) - self.there[name] for name, some in self.stamps.items()}
        pending = {name: self.seconds for name, more in lag.items() if more}
        return Reach(dict(self.there), dict.fromkeys(lag, False), unread=sum(lag.values()), lag=lag, pending=pending)

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        return [(name, start.get(name, 0), last) for name, last in end.items() if last > start.get(name, 0)]

    def read(self, split: Any) -> Iterator[Chunk]:
        name, first, last = split
        if stamps := [stamp for stamp in self.stamps[name][first:last] if stamp not in self.aborted]:
            yield Chunk(name, first, pa.RecordBatch.from_arrays([pa.array(stamps, pa.int64())], schema=SCHEMA))


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_that_is_open_for_longer_than_idle_after_holds_the_clock_until_it_ends(commits: bool) -> None:
    source = Transacted(a=[100], b=[100])
    query = Query(source, Settings(10, idle_after=10 * SECOND, ahead=2**62))

    def polled() -> Entry:
        entry = query.poll()
        assert entry is not None
        return entry

    polled()
    source.write("b", 110, 120, 130, is_open=True)
    for stamp in range(200, 1_000, 100):
        query.now += 5 * SECOND
        source.write("a", stamp)
        assert polled().flow_of("Counts").progress.clock == 100
    # Nothing comes at all for longer than that.
    query.now += 20 * SECOND
    progress = polled().flow_of("Counts").progress
    assert (progress.clock, progress.holds) == (100, True)
    source.end("b", commits=commits)
    entry = polled()
    assert entry.late_rows_of("Counts").counts() == {}
    assert core.state_at(entry, query.plan, None) == {(): 13 if commits else 10}
    query.now += 20 * SECOND
    assert not polled().flow_of("Counts").progress.holds


def test_people_hear_of_a_transaction_that_stays_open_though_nothing_else_comes() -> None:
    source = Transacted(a=[100], b=[100])
    query = Query(source, Settings(10, ahead=2**62))
    assert query.poll()
    source.write("b", 110, is_open=True)
    assert query.poll() is None
    source.seconds = HUNG
    assert query.poll(), "a micro-batch without rows, of which there is a progress"
    assert query.poll() is None
    source.end("b", commits=True)
    assert query.poll()
    # A run to the end says so at once, as it ends.
    source.write("b", 120, is_open=True)
    source.seconds = 0.0
    query.to_the_end = True
    query.start()
    assert query.poll()
    assert query.poll() is None
