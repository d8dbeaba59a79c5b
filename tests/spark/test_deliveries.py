"""Values at clocks under kills: drivers killed between every two steps of a delivery, over four tasks and ten exact outputs.

In the end each (clock, key) is in the Parquet table, in SQLite and in PostgreSQL once, with the checkpoint's own value, and so
is each window, with what plain Python makes of its messages, at the first clock at or above its end.
"""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from persistent_state import ParquetSink, open_store, read_state
from persistent_state.formatting import read_clock
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests.core import whole_times
from tests.soak import drawn, soak_or
from tests.spark.conftest import Launch
from tests.spark.sessions import Jvm
from tests.spark.teller import (
    KINDS,
    KINDS_OF_WINDOWS,
    NAME,
    SECOND,
    SPAN,
    START,
    WINDOWED,
    id_of,
    rows_of,
    sink_of,
    tasks_of,
    write,
)
from tests.store.servers import Servers
from tests.waiting import PATIENCE

pytestmark = pytest.mark.kills

OF_DATABASES = [
    f"{step} {kind}" for kind in ("sqlite", "postgresql") for step in ("open", "write", "insert", "commit", "written")
] + ["written newest"]
OF_FILES = ["open parquet", "write parquet", "file", "filed", "mark", "marked", "written parquet"]
OF_LOG = ["record", "recorded", "close"]
CHANGING = ["file", "mark", "marked", "commit sqlite", "commit postgresql", "written postgresql"]
CHANGING += ["written newest", "recorded", "close"]
"""The steps between which what a sink or the log holds has changed: a kill at any other step leaves what one of these does.

Of the sink of two databases each is killed at some.
"""

STEPS = soak_or(ci=drawn(CHANGING, one_in=4), soak=[*OF_FILES, *OF_DATABASES, *OF_LOG] * 2)

UNREAD = 4
"""Files that a driver finds: its slowest task makes some micro-batches of them."""

Found = dict[int, dict[int, Any]]


@dataclass
class Chain:
    """Drivers one after the other over one store and one growing stream, each killed at a step."""

    folder: Path
    postgresql: str
    launch: Launch
    jvm: Jvm
    checkpoints: int
    inexact: str
    links: int = 0
    files: int = 0
    window_values: int = 0

    def drive(self, *arguments: str) -> int:
        """Start the next driver, with other code, shards and interval than the one before; its exit code."""
        while self.files < UNREAD * (self.links + 1):
            write(self.folder, self.files)
            self.files += 1
        told = ["--shards", str(self.links % 3 + 1), "--interval", ("10 seconds", "20 seconds")[self.links // 2 % 2]]
        told += [
            "--checkpoints",
            str(self.checkpoints),
            "--inexact",
            self.inexact,
            *(["--other-code"] if self.links % 2 else []),
        ]
        self.links += 1
        arguments = ("-m", "tests.spark.teller", str(self.folder), "--postgresql", self.postgresql, *told, *arguments)
        return self.launch(*arguments, folder=self.folder, **self.jvm.env).wait(PATIENCE)

    def kill(self, step: str, nth: int) -> None:
        more = ["--drain"] if step == "close" else []
        code = self.drive("--die", step, "--nth", str(nth), *more)
        assert code == -signal.SIGKILL, f"{step}: {self.log()}"
        self.check_clocks()

    def log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]

    def check_clocks(self) -> None:
        """What is delivered so far are the first clocks that there were, without a gap, and what is not is still there."""
        known = self.clocks()
        for task in tasks_of(self.inexact):
            for kind in KINDS:
                found = sorted(self.delivered(kind, task.task_name))
                every = [c for c in range(START + SPAN, (known or [START])[-1] + 1, SPAN) if c in known or c in found]
                assert found == every[: len(found)], (task.task_name, kind)
                assert set(every[len(found) :]) <= set(known), (task.task_name, kind)
        self.check_newest()
        self.check_windows(known)

    def check_windows(self, known: Sequence[int]) -> int:
        """Each window that closed is given once, or is yet to be given; how many were."""
        count = 0
        clocks = sorted({*known, *self.delivered("sqlite", "Totals")})
        for task in WINDOWED:
            closed = {w: (next((c for c in clocks if c >= w[2]), None), v) for w, v in self.windows(task).items()}
            for kind in KINDS_OF_WINDOWS:
                given = self.given(kind, task.task_name)
                assert len({row[:3] for row in given}) == len(given), f"{task.task_name}: a window is given twice"
                last = max((row[3] for row in given), default=0)
                assert {row[:3]: row[3:] for row in given} == {
                    window: (clock, value) for window, (clock, value) in closed.items() if clock and clock <= last
                }
                count += len(given)
        return count

    def windows(self, task: Any) -> dict[tuple[int, int, int], int]:
        """By key, start and end, the sum of each window."""
        found: Counter[tuple[int, int, int]] = Counter()
        seen: dict[tuple[int, int], int] = {}
        sessions: dict[int, list[int]] = {}
        for key, ts, amount, *_ in sorted(
            (row for file in range(self.files) for row in rows_of(file)), key=itemgetter(1)
        ):
            if task.task_name == "Sliding":
                if ts - seen.get((key, id_of(ts)), -START) <= 5 * SECOND:
                    continue
                seen[key, id_of(ts)] = ts
                for back in range(3):
                    begin = (ts // (5 * SECOND) - back) * 5 * SECOND
                    found[key, begin, begin + 15 * SECOND] += amount
            else:
                begin, last, total = sessions.get(key, [ts, ts, 0])
                if ts - last >= 6 * SECOND:
                    found[key, begin, last + 6 * SECOND] = total
                    begin, total = ts, 0
                sessions[key] = [begin, ts, total + amount]
        found.update({(key, begin, last + 6 * SECOND): total for key, (begin, last, total) in sessions.items()})
        return found

    def given(self, kind: str, task: str) -> list[tuple[int, int, int, int, int]]:
        """(key, window start, window end, clock, value) of all that a sink holds of windows."""
        names = ("key", "window_start", "window_end", "clock", "value")
        if kind == "parquet":
            if not (self.folder / "tables" / task / "_table.json").exists():
                return []
            rows = whole_times(sink_of(kind, self.folder, self.postgresql, task).dataset().to_table()).to_pylist()
            return [tuple(row[name] for name in names) for row in rows]
        import psycopg

        with psycopg.connect(self.postgresql.replace("+psycopg", "")) as connection:
            exists = connection.execute("SELECT to_regclass(%s)", [task.lower()]).fetchall()[0][0]
            rows = connection.execute(f"SELECT {', '.join(names)} FROM {task.lower()}").fetchall() if exists else []
            return [(key, *(read_clock(str(time)) for time in times), value) for key, *times, value in rows]

    def check_newest(self) -> None:
        """The table of the newest values is the state at the clock that it says."""
        with sqlite3.connect(self.folder / "out.db") as database:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'newest'").fetchall():
                return
            query = "SELECT clock FROM persistent_state_clocks WHERE table_name = 'newest'"
            ((clock,),) = database.execute(query).fetchall()
            values = dict(database.execute("SELECT key, value FROM newest").fetchall())
        assert values == self.totals(clock)

    def totals(self, clock: int) -> dict[int, int]:
        found: Counter[int] = Counter()
        for file in range(self.files):
            for key, ts, amount, _, _ in rows_of(file):
                found[key] += amount if ts < clock else 0
        return {key: total for key, total in found.items() if total}

    def check_end(self) -> int:
        """Everything is delivered, once; how many values that are."""
        known, count = self.clocks(), 0
        messages = [row for file in range(self.files) for row in rows_of(file)]
        assert all(row[1] < known[-1] for row in messages)
        self.check_newest()
        for task in WINDOWED:
            last = max(self.delivered("sqlite", "Totals"))
            due = sum(window[2] <= last for window in self.windows(task))
            assert {len(self.given(kind, task.task_name)) for kind in KINDS_OF_WINDOWS} == {due}
        self.window_values = self.check_windows(known)
        for task in tasks_of(self.inexact):
            # Where checkpoints are collected, what one sink has says which there were.
            there = known if self.checkpoints > 2 else sorted(self.delivered("sqlite", task.task_name))
            assert there[-1] == known[-1]
            for before, clock in zip([0, *there], there, strict=False):
                changed = {row[0] for row in messages if before <= row[1] < clock}
                own = self.state(task, clock) if clock in known else self.plain(task, clock)
                near = 1e-9 if clock in known else 0.01
                wanted = {key: own[key] for key in changed}
                count += len(wanted)
                for kind in KINDS:
                    found = self.delivered(kind, task.task_name)
                    assert sorted(found) == there, (task.task_name, kind)
                    exact = wanted if task.task_name == "Totals" else pytest.approx(wanted, rel=near)
                    assert found[clock] == exact, (task.task_name, kind, clock)
        return count

    def plain(self, task: Any, clock: int) -> dict[int, Any]:
        """What plain Python makes of the messages below a clock."""
        if task.task_name == "Totals":
            return self.totals(clock)
        of: dict[int, list[Any]] = defaultdict(list)
        for file in range(self.files):
            for key, ts, _, share, user in rows_of(file):
                if ts < clock:
                    of[key].append(share if task.task_name == "Shares" else user)
        mean = task.task_name == "Shares"
        return {key: sum(some) / len(some) if mean else len(set(some)) for key, some in of.items()}

    def clocks(self) -> list[int]:
        """The clocks that anything is below."""
        store = str(self.folder / "store")
        return (
            [c for c in open_store(store).application(NAME).clocks() if c > START]
            if Log(open_files(store), NAME).newest()
            else []
        )

    def state(self, task: Any, clock: int) -> dict[int, Any]:
        table = read_state(str(self.folder / "store"), NAME, task, clock)
        shown = task.persistent_state().present(table["value"].combine_chunks())
        return dict(zip(table["key"].to_pylist(), shown.to_pylist(), strict=True))

    def delivered(self, kind: str, task: str) -> Found:
        """By clock, what a sink holds: each key once."""
        if kind == "parquet":
            table: ParquetSink = sink_of(kind, self.folder, self.postgresql, task)
            if not (self.folder / "tables" / task / "_table.json").exists():
                return {}
            return by_clock(
                (r["key"], r["clock"], r["value"]) for r in whole_times(table.dataset().to_table()).to_pylist()
            )
        query = f"SELECT key, clock, value FROM {task.lower()}"
        if kind == "sqlite":
            with sqlite3.connect(self.folder / "out.db") as database:
                exists = database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [task.lower()]).fetchall()
                return by_clock(database.execute(query).fetchall() if exists else [])
        import psycopg

        with psycopg.connect(self.postgresql.replace("+psycopg", "")) as connection:
            exists = connection.execute("SELECT to_regclass(%s)", [task.lower()]).fetchall()[0][0]
            return by_clock(connection.execute(query).fetchall() if exists else [])


def by_clock(rows: Iterable[tuple[int, Any, Any]]) -> Found:
    found: Found = defaultdict(dict)
    for key, time, value in rows:
        clock = time if isinstance(time, int) else read_clock(str(time))
        assert key not in found[clock], f"key={key} is given twice at clock={clock}"
        found[clock][key] = value
    return dict(found)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_each_value_at_each_clock_is_delivered_once_whatever_step_its_driver_is_killed_at(
    launch: Launch,
    jvms: Sequence[Jvm],
    servers: Servers,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    server = servers["postgresql"]
    chains = []
    for number, jvm in enumerate(jvms):
        server.make(f"told{number}")
        url, _ = server.address(f"told{number}", server.ports)
        (tmp_path / str(number)).mkdir()
        # One keeps all checkpoints, so that each value can be compared with its own; the other as few as it may.
        chains.append(Chain(tmp_path / str(number), url, launch, jvm, (10_000, 2)[number], ("Shares", "Users")[number]))
    failed = threading.Event()

    def run(chain: Chain, steps: Sequence[tuple[str, int]]) -> int:
        try:
            for step, nth in steps:
                assert not failed.is_set(), "the other chain failed"
                chain.kill(step, nth)
            assert chain.drive("--drain") == 0, chain.log()
            return chain.check_end()
        except BaseException:
            failed.set()
            raise

    plans: list[list[tuple[str, int]]] = [[] for _ in chains]
    for number, step in enumerate(STEPS):
        # A sink is opened once by a driver; the others come at each clock.
        nth = 1 if step.startswith("open") or step == "close" else 2
        plans[number % len(chains)].append((step, nth))
    with ThreadPoolExecutor(len(chains)) as pool:
        counts = list(pool.map(run, chains, plans))
    told = f"{len(STEPS)} drivers killed while they delivered, {sum(counts)} values in each of {', '.join(KINDS)}"
    told += f", {sum(chain.window_values for chain in chains) // 2} windows in Parquet and PostgreSQL"
    record_property("told", told)
