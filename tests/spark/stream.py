"""A stream of small files that grows, two or three tasks that keep it, and what plain Python makes of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from monoids import List, Max, Sum
from persistent_state import (
    Application,
    FileSource,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    open_store,
    read_state,
)
from persistent_state.store.files import open_files
from persistent_state.store.log import Log

NAME = "ledger"
SECOND = 1_000_000
DELAY = 30 * SECOND
CHAPTER = 120 * SECOND
"""A multiple of every checkpoint interval in use: what follows a `close` starts at or above its clock."""
START = 1_700_000_040 * SECOND
YEAR_9999 = 253_402_300_799_999_999
AHEAD, NO_TIMESTAMP, UNFIT, LATE = "timestamp ahead of the batch time", "no timestamp", "value does not fit", "late"

SCHEMA = pa.schema(
    [("id", pa.int64()), ("key", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("amount", pa.decimal128(20))]
)


class Balance(PersistentTask):
    """The sum of each key's amounts, said message by message. One beyond int64 does not fit; null is no update."""

    key = "key"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        amount = message["amount"]
        state.update(message.timestamp, None if amount is None else int(amount))


class Journal(PersistentTask):
    """Each key's messages in their order, said batch by batch: the order makes it not commute."""

    key = "key"

    def persistent_state(self) -> NonWindowState[list[int]]:
        return NonWindowState(List(pa.int64()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(range(batch.num_rows + 1), pa.int32()), batch["id"])


class Newest(PersistentTask):
    """Each key's newest message, by its number: the update is a column."""

    key = "key"
    value = "id"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Max())


TASKS: Sequence[PersistentTask] = (Balance(), Journal())
THREE: Sequence[PersistentTask] = (*TASKS, Newest())


def application(
    folder: Path,
    *,
    shards: int,
    interval: str,
    tasks: Sequence[PersistentTask] = TASKS,
    store: str | None = None,
    one_source: bool = False,
    **more: Any,
) -> Application:
    """The tasks over the stream in a folder, each with a source or all with one. The store is there too, if none is given."""
    app = Application(
        NAME,
        store=store or str(folder / "store"),
        checkpoint_interval=interval,
        allowed_delay="30 seconds",
        retained_checkpoints=3,
        shards=shards,
        **more,
    )
    sources = [
        FileSource(str(folder / "stream"), timestamp="ts", schema=SCHEMA, max_files_per_batch=2)
        for _ in tasks[: 1 if one_source else None]
    ]
    for task, source in zip(tasks, cycle(sources)):
        app.add(task, source)
    return app


@dataclass(frozen=True)
class Sent:
    """A message as it was written. `is_on_time` says that it is at most the allowed delay behind the newest before it."""

    id: int
    key: str
    ts: int | None
    amount: int | None
    is_on_time: bool

    def problem(self, task: PersistentTask) -> str | None:
        """Why it is a bad row to this task, unless it is late."""
        if self.ts is None:
            return NO_TIMESTAMP
        if self.ts == YEAR_9999:
            return AHEAD
        return UNFIT if isinstance(task, Balance) and self.amount is not None and self.amount >= 2**63 else None


@dataclass
class Stream:
    """Files that are delivered in the order of their names, and every message in them.

    Messages come out of order within the allowed delay; a few are further behind than that, some of them far, and some are bad.
    """

    folder: Path
    seed: int
    sent: list[Sent] = field(default_factory=list)
    files: int = 0
    _newest: int = START - DELAY

    def grow(self, files: int = 2, rows: int = 40) -> None:
        """Write the next chapter: a minute of messages, all but the late ones above any clock that could be closed so far."""
        chance = random.Random(f"{self.seed} {self.files}")
        begin = START + self.files // 2 * CHAPTER
        # Each is held up for at most the delay, so what comes before it is newer by at most that.
        held_up = sorted((ts + chance.randrange(DELAY), ts) for ts in self._times(chance, begin, files * rows))
        # Each file has a row without a timestamp: files of bad rows that a start takes back.
        rows_of_all = [self._send(chance, ts, i % rows == 5) for i, (_, ts) in enumerate(held_up)]
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in range(files):
            part = rows_of_all[file * rows : (file + 1) * rows]
            columns = zip(
                *((m.id, m.key, m.ts, None if m.amount is None else Decimal(m.amount)) for m in part), strict=True
            )
            arrays = [pa.array(column, f.type) for column, f in zip(columns, SCHEMA, strict=True)]
            unfinished = self.folder / "_unfinished"
            pq.write_table(pa.table(arrays, schema=SCHEMA), unfinished)
            unfinished.rename(self.folder / f"{self.files:04d}.parquet")
            self.files += 1

    @staticmethod
    def _times(chance: random.Random, begin: int, count: int) -> Iterable[int]:
        # Whole seconds, so that many are equal and many stand just on a clock.
        return (begin + chance.randrange(60) * SECOND for _ in range(count))

    def _send(self, chance: random.Random, time: int, without_time: bool) -> Sent:
        lot = 2 if without_time else chance.randrange(40)
        ts: int | None = time
        amount: int | None = chance.randrange(-1000, 1000)
        if lot == 0:
            ts = time - 2 * CHAPTER  # far behind
        elif lot == 1:
            ts = time - chance.randrange(2 * DELAY) // SECOND * SECOND  # late or not: the batches decide
        elif lot == 2:
            ts = None if without_time else YEAR_9999
        elif lot == 3:
            amount = 2**63 + chance.randrange(10)
        elif lot == 4:
            amount = None
        is_known = ts is not None and ts != YEAR_9999
        on_time = not is_known or (ts or 0) >= self._newest - DELAY
        if is_known:
            self._newest = max(self._newest, ts or 0)
        if not on_time:
            amount = chance.randrange(-1000, 1000)  # a late message has no second fault
        message = Sent(len(self.sent), chance.choice("abcdefgh"), ts, amount, on_time)
        self.sent.append(message)
        return message


@dataclass(frozen=True)
class Aside:
    """The rows that a task's store keeps aside: their ids by reason."""

    ids: Mapping[str, Sequence[int]]

    @property
    def late(self) -> set[int]:
        return set(self.ids.get(LATE, ()))


def aside(folder: Path, task: PersistentTask) -> Aside:
    ids: dict[str, list[int]] = {}
    for table in open_store(str(folder / "store")).application(NAME).late_rows(task.task_name):
        for row in table.to_pylist():
            ids.setdefault(row["reason"], []).append(row["row"]["id"])
    return Aside(ids)


def state(folder: Path, task: PersistentTask, clock: int | None = None) -> dict[str, Any]:
    return {row["key"]: row["value"] for row in read_state(str(folder / "store"), NAME, task, clock).to_pylist()}


def progress(folder: Path) -> list[dict[str, Any]]:
    """What the drivers in a folder told so far, commit by commit."""
    file = folder / "progress"
    # A killed driver leaves no more than the beginning of a line behind.
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


def journal_of(messages: Iterable[Sent]) -> dict[str, list[int]]:
    """What `Journal` holds of messages: their ids by key, in order of time and position."""
    found: dict[str, list[int]] = {}
    for message in sorted(messages, key=lambda m: (m.ts or 0, m.id)):
        found.setdefault(message.key, []).append(message.id)
    return found


def balance_of(messages: Iterable[Sent]) -> dict[str, int]:
    """What `Balance` holds of messages."""
    found: Counter[str] = Counter()
    for message in messages:
        if message.amount is not None:
            found[message.key] += message.amount
    return dict(found)


def newest_of(messages: Iterable[Sent]) -> dict[str, int]:
    """What `Newest` holds of messages."""
    return {message.key: message.id for message in sorted(messages, key=lambda m: m.id)}


def check_cut(folder: Path, stream: Stream) -> None:
    """Whatever was killed when: at the global clock the journal holds what it must, in order, and nothing twice.

    What it must hold is every message on time below the clock; what it may hold besides are others that were not late.
    """
    entry = Log(open_files(str(folder / "store")), NAME).newest()
    if entry is None:
        return
    ids = {message.id for message in _in_journal(folder, stream, entry.clock)}
    assert not ids & aside(folder, Journal()).late


def check_clocks(folder: Path, stream: Stream) -> int:
    """Whatever was killed when: at each retained clock all three tasks hold the same messages. How many clocks there were."""
    entry = Log(open_files(str(folder / "store")), NAME).newest()
    assert entry is not None
    assert {name: entry.tasks[name].flow for name in entry.tasks} == {task.task_name: "Balance" for task in THREE}
    for clock in entry.retained:
        held = _in_journal(folder, stream, clock)
        assert state(folder, Balance(), clock) == balance_of(m for m in held if m.problem(Balance()) is None)
        assert state(folder, Newest(), clock) == newest_of(held)
    assert aside(folder, Newest()) == aside(folder, Journal())
    return len(entry.retained)


def _in_journal(folder: Path, stream: Stream, clock: int) -> list[Sent]:
    """The messages that the journal holds at a clock: in order, nothing twice, and every one that is on time."""
    held = state(folder, Journal(), clock)
    ids = {id for journal in held.values() for id in journal}
    below = [m for m in stream.sent if m.problem(Journal()) is None and m.ts is not None and m.ts < clock]
    assert held == journal_of(m for m in below if m.id in ids)
    assert [m for m in below if m.is_on_time and m.id not in ids] == []
    return [m for m in below if m.id in ids]


def check_end(folder: Path, stream: Stream) -> dict[str, int]:
    """After a close, every message is in the state, or late, or bad, once: how many of each there are, all tasks together."""
    entry = Log(open_files(str(folder / "store")), NAME).newest()
    assert entry is not None
    total: Counter[str] = Counter()
    third = [(Newest(), newest_of)] if "Newest" in entry.tasks else []
    for task, fold in ((Balance(), balance_of), (Journal(), journal_of), *third):
        found = aside(folder, task)
        late = found.late
        bad = {m.id: reason for m in stream.sent if (reason := m.problem(task)) is not None}
        assert {reason: sorted(ids) for reason, ids in found.ids.items() if reason != LATE} == _by_reason(bad)
        assert len(found.ids.get(LATE, ())) == len(late), "a late row is kept once"
        assert [m for m in stream.sent if m.id in late and (m.is_on_time or m.id in bad)] == []
        assert entry.late_rows_of(task.task_name).counts() == {reason: len(ids) for reason, ids in found.ids.items()}
        kept = [m for m in stream.sent if m.id not in late and m.id not in bad]
        assert state(folder, task) == fold(kept)
        total += Counter(kept=len(kept), late=len(late), bad=len(bad))
    return dict(total)


def _by_reason(bad: Mapping[int, str]) -> dict[str, list[int]]:
    reasons: AbstractSet[str] = set(bad.values())
    return {reason: sorted(id for id, why in bad.items() if why == reason) for reason in reasons}
