"""What the library asks of an object store, by kind of request: exact numbers, so that none grows unseen.

`docs/stores.md` has the table. A store in memory counts, and `tests/store/test_conformance.py` shows that it counts as S3 does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.drive import local
from persistent_state.drive.planner import Planner
from persistent_state.event_time.clocks import Settings
from persistent_state.local.pace import FAR_SECONDS
from persistent_state.open_state import OpenApplication
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.deliver import Giver
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.next_entry import newest_own
from persistent_state.run import deliveries, garbage, supervisor
from persistent_state.run.commit import Committer
from persistent_state.run.wall_clock import now_us
from persistent_state.store import blocks
from persistent_state.store import log as logs
from persistent_state.store import runs as runs_io
from persistent_state.store.files import cache
from persistent_state.store.log import MOST_KNOWN, RECENT, Log
from tests import core
from tests.local_application import Rows
from tests.store.counted import KINDS, CountedFiles

SECOND = 1_000_000
INTERVAL = 10 * SECOND
SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])
KEYS = 200


class TotalsOfRequests(PersistentTask):
    key = "k"
    value = "n"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of what is read are in a folder of this test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def nothing(run: Run) -> None: ...


class Deaf:
    """A listener of commits that does nothing."""

    def __call__(self, progress: object) -> None: ...

    def measure(self, work: object) -> None: ...


class Run:
    """The parts of a run that ask the store, by one log: a planner, a committer, a delivery, a look, a collector."""

    def __init__(self, shards: int, workers: int) -> None:
        self.workers, self.keys = workers, KEYS
        # The committer asks the machine for the time.
        self.files, self.now = CountedFiles(core.memory().url), now_us() // INTERVAL * INTERVAL
        settings = Settings(INTERVAL, ahead=2**62)
        plan = core.plan_of(
            TotalsOfRequests(), SCHEMA, files=self.files, shards=shards, settings=settings, outputs=("sink",)
        )
        self.flow, self.source, self.keeping = core.alone(plan), Rows(SCHEMA), Keeping(clocks=2)
        self.log = self.new_log()
        self.epoch = core.start(self.log, [self.flow], now=self.now).epoch
        self.planner = self.new_planner()
        self.committer = Committer(self.flow, self.epoch, self.keeping, {plan.name: settings}, Deaf(), self.log)
        self.giver = self.new_giver()
        self.collector = Collector(self.log)
        self.held: local.Held = {}
        self.offset: dict[str, Any] = self.planner.first()
        for _ in range(3):
            self.batch()
            self.deliver()
        self.collector.collect(self.epoch, now=self.now, keeping=self.keeping)

    def new_log(self) -> Log:
        return Log(self.files, "app", lambda: self.now / SECOND, MOST_KNOWN)

    def new_planner(self) -> Planner:
        return Planner(self.flow, self.source, self.epoch, 1, log=self.log)

    def new_giver(self) -> Giver:
        return Giver(self.log, self.flow.id, "sink", lambda _: None, lambda *_: None, lambda: self.now)

    def batch(self, seconds: int = 10) -> None:
        """A micro-batch of all keys, `seconds` of event time after the one before."""
        self.now += seconds * SECOND
        self.source.rows += [(self.now, key, 1) for key in range(self.keys)]
        newest = self.planner.latest(self.offset, lambda: self.now)
        parts = self.planner.parts(self.offset, lambda: self.now, core.new_id)
        self.committer.commit(local.run(self.flow, parts, self.source, self.held, core.new_id, map, self.workers))
        self.offset = newest

    def deliver(self) -> None:
        while self.giver.give_next(self.epoch, RECENT):
            pass

    def collect(self) -> None:
        self.collector.collect(self.epoch, now=self.now, keeping=self.keeping)

    def open(self) -> None:
        """Do what a start asks for before its first micro-batch."""
        Log(self.files, "app").newest()
        self.log = self.new_log()
        self.log.newest()
        self.epoch = core.start(self.log, [self.flow], now=self.now).epoch
        self.planner = self.new_planner()
        self.planner.latest(self.planner.first(), lambda: self.now)
        self.new_giver().open()

    def idle(self) -> None:
        """Do what a run asks for in a minute in which nothing comes, by the clocks of its threads."""
        for tenth in range(600):
            if tenth % (10 * FAR_SECONDS) == 0:
                self.planner.latest(self.offset, lambda: self.now)
            if tenth % (10 * deliveries.POLL_SECONDS) == 0:
                self.deliver()
            if tenth % (10 * supervisor.LOOK_SECONDS) == 0:
                newest_own(self.log, self.epoch, RECENT)
            if tenth % (10 * garbage.EVERY_SECONDS) == 0:
                self.collect()
            self.now += SECOND // 10

    def look_up(self, key: int) -> None:
        """Open the newest clock in a process that has read nothing, and read a key."""
        forget_files()
        state = OpenApplication(self.files, "app").task(TotalsOfRequests()).at()
        assert state.get(key) is not None

    def counts(self, do: Callable[[], object]) -> dict[str, int]:
        """Return how many requests of each kind this makes."""
        before = Counter(self.files.requests)
        do()
        return self.files.since(before)


def forget_files() -> None:
    """Let this process know of no file that it has read or made."""
    runs_io._verified.clear()
    blocks._indexes.clear()
    cache._verified.clear()
    shutil.rmtree(f"{tempfile.gettempdir()}/persistent-state-{os.getuid()}", ignore_errors=True)


def many(run: Run) -> None:
    """The next micro-batches have too many rows for an entry."""
    run.keys = 100 * KEYS


def in_a_whole_entry(run: Run) -> None:
    """A micro-batch whose entry is whole, as of one in a minute."""
    with mock.patch.object(logs, "MOST_AGE", 0):
        run.batch(1)


def batch_then_nothing(run: Run) -> None:
    """A minute later everything that was replaced before may go."""
    for _ in range(5):
        run.batch(1)
    run.now += 1000 * SECOND
    in_a_whole_entry(run)
    in_a_whole_entry(run)


WORK: dict[str, tuple[int, Callable[[Run], object], Callable[[Run], object]]] = {
    "a micro-batch, 1 shard": (1, many, lambda run: run.batch(1)),
    "a micro-batch, 2 shards": (2, many, lambda run: run.batch(1)),
    "a micro-batch, 16 shards": (16, many, lambda run: run.batch(1)),
    "a micro-batch, 16 shards on 2 workers": (16, many, lambda run: run.batch(1)),
    "a small micro-batch, 1 shard": (1, nothing, lambda run: run.batch(1)),
    "a small micro-batch, 16 shards": (16, nothing, lambda run: run.batch(1)),
    "a small micro-batch, 16 shards on 2 workers": (16, nothing, lambda run: run.batch(1)),
    "a small micro-batch that writes a whole entry, 16 shards": (16, nothing, in_a_whole_entry),
    "a small micro-batch that moves the clock, 2 shards": (2, nothing, lambda run: run.batch()),
    "a delivery that finds nothing": (2, lambda run: run.batch(1), lambda run: run.deliver()),
    "a clock that an output is given": (2, lambda run: run.batch(), lambda run: run.deliver()),
    "an idle hour": (2, nothing, lambda run: [run.idle() for _ in range(60)]),
    "a collection of nothing": (2, nothing, lambda run: run.collect()),
    "a collection": (2, batch_then_nothing, lambda run: run.collect()),
    "a start": (2, nothing, lambda run: run.open()),
    "a look-up": (2, nothing, lambda run: run.look_up(7)),
}
"""By the words of `docs/stores.md`: the shards, what comes before, and what is counted."""

WORKERS = {"a micro-batch, 16 shards on 2 workers": 2, "a small micro-batch, 16 shards on 2 workers": 2}
"""The workers, where there is not one for each shard."""

EXPECTED = {
    "a micro-batch, 1 shard": {"PUT": 2, "GET": 6},
    "a micro-batch, 2 shards": {"PUT": 3, "GET": 6},
    "a micro-batch, 16 shards": {"PUT": 2, "GET": 6},
    "a micro-batch, 16 shards on 2 workers": {"PUT": 2, "GET": 6},
    "a small micro-batch, 1 shard": {"PUT": 1, "GET": 6},
    "a small micro-batch, 16 shards": {"PUT": 1, "GET": 6},
    "a small micro-batch, 16 shards on 2 workers": {"PUT": 1, "GET": 6},
    "a small micro-batch that writes a whole entry, 16 shards": {"PUT": 2, "GET": 6},
    "a small micro-batch that moves the clock, 2 shards": {"PUT": 1, "GET": 6},
    "a delivery that finds nothing": {},
    "a clock that an output is given": {"PUT": 1, "GET": 6},
    "an idle hour": {"GET": 717, "LIST": 33},
    "a collection of nothing": {},
    "a collection": {"PUT": 1, "GET": 1, "LIST": 4, "DELETE": 12},
    "a start": {"PUT": 2, "GET": 28, "LIST": 2},
    "a look-up": {"GET": 8, "LIST": 1},
}


@pytest.mark.parametrize("work", WORK)
def test_requests_are_as_few_as_they_were(work: str) -> None:
    shards, before, counted = WORK[work]
    run = Run(shards, WORKERS.get(work, shards))
    before(run)
    assert run.counts(lambda: counted(run)) == EXPECTED[work]


PRICES = {"PUT": 0.005, "LIST": 0.005, "GET": 0.0004, "HEAD": 0.0004, "DELETE": 0.0}
"""USD for 1,000 requests to S3 Standard in us-east-1, as Amazon listed them in November 2026."""

MONTH = 30 * 24 * 3600
"""Seconds."""


def price(requests: Mapping[str, float]) -> float:
    """Return what these requests cost, in USD."""
    return sum(count * PRICES[kind] / 1000 for kind, count in requests.items())


def of_month(shards: int, seconds: float) -> float:
    """Return what a month costs: a micro-batch each `seconds`, an output given a clock each 10 s, a collection each minute."""
    batches = MONTH / seconds * price(EXPECTED[f"a micro-batch, {shards} shard{'s' * (shards > 1)}"])
    clocks = MONTH / 10 * price(EXPECTED["a clock that an output is given"])
    # What a run asks for when nothing comes, it asks for beside the micro-batches, too.
    return (
        batches + clocks + MONTH / 3600 * price(EXPECTED["an idle hour"]) + MONTH / 60 * price(EXPECTED["a collection"])
    )


def page() -> list[str]:
    """Return the lines of the tables in `docs/stores.md`."""
    lines = [f"| work | {' | '.join(KINDS)} | USD for a million |", f"| --- {'| ---: ' * (len(KINDS) + 1)}|"]
    for work, requests in EXPECTED.items():
        counts = " | ".join(str(requests.get(kind, 0)) for kind in KINDS)
        lines.append(f"| {work} | {counts} | {1e6 * price(requests):,.2f} |")
    idle = MONTH / 3600 * price(EXPECTED["an idle hour"])
    lines += ["| a month of | USD |", "| --- | ---: |", f"| nothing but an idle run | {idle:,.2f} |"]
    for shards in (2, 16):
        for seconds, pace in ((1, "each second"), (10, "each ten seconds")):
            lines.append(f"| a micro-batch {pace}, {shards} shards | {of_month(shards, seconds):,.2f} |")
    return lines


def test_the_page_has_these_numbers() -> None:
    text = (Path(__file__).parents[1] / "docs" / "stores.md").read_text("utf-8")
    missing = [line for line in page() if line not in text]
    assert not missing, "\n".join(["Put these lines into docs/stores.md:", *page()])
