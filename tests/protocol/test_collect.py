"""In a long run of small micro-batches what is stored grows, but not what each entry, each commit and the driver hold of it."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field, replace
from itertools import count

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.batch.packets import Answers, Descriptor, Report, Sender, digest_of_parts
from persistent_state.event_time import clocks
from persistent_state.protocol import commits
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.commits import shard_digests
from persistent_state.protocol.deliver import Giver
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources.base import Reach
from persistent_state.store import late_rows, lists
from persistent_state.store import runs as runs_io
from persistent_state.store.codec import to_bytes
from persistent_state.store.entry import Entry
from persistent_state.store.files import MemoryFiles
from persistent_state.store.files.base import BytesLike
from persistent_state.store.log import Log
from persistent_state.store.named_files import Run, SideFile, Stored
from tests import core

SHARDS, LEVELS, NEW_FILES = 4, 6, 10
BATCHES = 500
HALF_A_SECOND = 500_000
KEEPING = Keeping(grace=10_000_000)


class TotalOfLongRun(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class CountedFiles(MemoryFiles):
    """A store in memory that counts what is read, and the bytes that are written."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        object.__setattr__(self, "reads", [])
        object.__setattr__(self, "written", {})

    reads: list[str]
    written: dict[str, int]

    def create(self, path: str, data: BytesLike) -> None:
        super().create(path, data)
        self.written[path] = memoryview(data).nbytes

    def read(self, path: str) -> pa.Buffer:
        self.reads.append(path)
        return super().read(path)


@dataclass
class Stream:
    """Micro-batches of a task, of so many new files and of a late row in each shard; what its workers do is made up."""

    files: CountedFiles = field(default_factory=lambda: CountedFiles(core.memory().url))
    ids: count[int] = field(default_factory=count)
    batches: int = 0

    def __post_init__(self) -> None:
        settings = clocks.Settings(interval=10_000_000, ahead=2**62)
        schema = pa.schema([("ts", pa.int64()), ("n", pa.int64())])
        plan = core.plan_of(TotalOfLongRun(), schema, files=self.files, settings=settings, shards=SHARDS)
        self.plan = replace(plan, outputs=("sink",))
        self.log = Log(self.files, "app")
        self.entry = core.start(self.log, [self.plan])
        self.runs = tuple(self.run(shard, level, "0" * 16) for shard in range(SHARDS) for level in range(LEVELS))

    def new_id(self) -> str:
        return f"{next(self.ids):016x}"

    def run(self, shard: int, level: int, name: str) -> Run:
        low, high = (2**64 * i // SHARDS for i in (shard, shard + 1))
        path = f"app/runs/TotalOfLongRun/{1:06d}-{self.batches:09d}-{shard:04d}-{level}{name}.arrow"
        return Run(Stored(path, 12345, f"{level:064x}"), 1000, low, high, 10**15, 10**15 + 10**9)

    def side(self, shard: int) -> SideFile:
        row = {"reason": "late", "timestamp": 5, "strand": "", "position": NEW_FILES * self.batches + shard}
        path = f"app/runs/TotalOfLongRun/{1:06d}-{self.batches + 1:09d}-{shard:04d}-{self.new_id()}.side.arrow"
        table = pa.Table.from_pylist([{**row, "channel": "", "record": None, "row": {"ts": 5, "n": 1}}])
        return late_rows.side_file(runs_io.write_table(self.files, path, table), table)

    def lines(self, batch: int) -> tuple[str, ...]:
        return tuple(
            f'{{"ordinal":{NEW_FILES * batch + i},"path":"2026/11/22/{batch:032x}.json","size":1}}'
            for i in range(NEW_FILES)
        )

    def micro_batch(self) -> Entry:
        newest = self.log.newest()
        assert newest is not None
        flow = newest.flow_of("TotalOfLongRun")
        end = NEW_FILES * (self.batches + 1)
        now = 10**15 + HALF_A_SECOND * self.batches
        batch = flow.progress.batch + 1
        report = Report(
            Sender("TotalOfLongRun", 1, batch, "plan", 0, 1),
            now,
            seen=(("", now, 0),),
            spans=(("", end - NEW_FILES, now),),
            reach=Reach({"": end}, {"": False}, self.lines(self.batches)),
        )
        runs = [*self.runs]
        for shard in range(SHARDS):
            runs[shard * LEVELS + LEVELS - 1] = self.run(shard, LEVELS - 1, self.new_id())
        self.runs = tuple(runs)
        # All levels are there after the first micro-batch.
        kept = LEVELS - 1 if self.batches else 0
        made = [
            Descriptor(
                "TotalOfLongRun", "TotalOfLongRun", 1, batch, "plan", digest_of_parts([report.sender]), shard, base, 0, kept,
                self.runs[shard * LEVELS + kept : (shard + 1) * LEVELS], self.side(shard),
            )
            for shard, base in enumerate(shard_digests(newest, newest.tasks["TotalOfLongRun"]))
        ]  # fmt: skip
        answers = Answers([report], made)
        self.entry, _ = commits.commit(
            self.log, 1, self.plan.settings, answers, now=now, new_id=self.new_id, keeping=KEEPING
        )
        self.batches += 1
        return self.entry


@pytest.fixture(scope="module")
def streams() -> tuple[Stream, list[int], Collector, Giver]:
    """A stream after many micro-batches, the bytes of its entries, and who else of the driver looked at each."""
    stream, sizes = Stream(), []
    collector = Collector(Log(stream.files, "app"))
    giver = Giver(
        Log(stream.files, "app"), "TotalOfLongRun", "sink", lambda _: None, lambda entry, due: None, lambda: 0
    )
    for batch in range(BATCHES):
        sizes.append(len(to_bytes(stream.micro_batch())))
        giver.give_next(1)
        if batch % 20 == 19:
            collector.collect(1, now=10**15 + HALF_A_SECOND * batch, keeping=KEEPING)
    return stream, sizes, collector, giver


Streams = tuple[Stream, list[int], Collector, Giver]


def test_an_entry_stays_small(streams: Streams) -> None:
    _, sizes, *_ = streams
    assert max(sizes) < 50_000 / 3
    assert max(sizes[BATCHES // 2 :]) < 1.2 * max(sizes[: BATCHES // 2])


def test_nothing_of_a_list_is_lost_or_written_again_often(streams: Streams) -> None:
    stream, *_ = streams
    journal = stream.entry.flow_of("TotalOfLongRun").source.journal
    lines = [line for batch in range(BATCHES) for line in stream.lines(batch)]
    assert lists.read(stream.files, journal) == lines
    written = sum(size for path, size in stream.files.written.items() if "-pages-" in path)
    assert written < 8 * sum(map(len, lines))
    assert len(journal.files) < 10


def test_files_of_late_rows_are_few_and_hold_each_row_once(streams: Streams) -> None:
    stream, *_ = streams
    known = stream.entry.late_rows_of("TotalOfLongRun")
    sides = late_rows.all_of(stream.files, known)
    rows = [position for side in sides for position in late_rows.read(stream.files, side)["position"].to_pylist()]
    assert sorted(rows) == [NEW_FILES * batch + shard for batch in range(BATCHES) for shard in range(SHARDS)]
    assert known.counts() == {"late": len(rows)}
    assert len(late_rows.all_of(stream.files, known)) <= late_rows.MANY
    first, joined = (
        sum(size for path, size in stream.files.written.items() if word in path) for word in (".side.", "-sides-")
    )
    assert joined < 2 * first


def test_the_driver_keeps_few_entries_and_reads_each_once_to_collect(streams: Streams) -> None:
    stream, _, collector, _ = streams
    gc.collect()
    # Other tests have entries of their own in this process, but none of a task of this name.
    assert sum(isinstance(each, Entry) and "TotalOfLongRun" in each.tasks for each in gc.get_objects()) < 10
    now = 10**15 + HALF_A_SECOND * BATCHES
    collector.collect(1, now=now, keeping=KEEPING)
    first = len(stream.files.reads)
    collector.collect(1, now=now, keeping=KEEPING)
    assert stream.files.reads[first:] == []
    # Of the last ten seconds and what has come since the collection before.
    assert len(stream.log.numbers()) < 100
    assert len(stream.files.list("app/runs/TotalOfLongRun")) < 100 * SHARDS
