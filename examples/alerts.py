"""Alerts: a function of your own is given the values at each clock, and no one hears of the same thing twice.

    python -m examples.alerts [--folder DIR] [--json]

What can happen twice. A function keeps no record of what it was given; the application does, after the function has
returned. If the driver dies between the two, or in the middle of the function, the next one gives it the same clock
again, with the same values: they are read from the checkpoint, which stays until the record is there.

How to avoid it. An id made of task, clock and key is the same each time, and the receiver of the alerts takes each id once.
Here that is an inbox in SQLite whose ids are unique; services for alerts and queues have the like, as a deduplication key.

Why values at a clock, and not running values. A running value depends on where a micro-batch happened to end, and after
a restart the values above the clock come again, from micro-batches that end elsewhere: there is nothing in it that an
id could be made of, and the number in an alert may be one that no checkpoint ever held. The value at a clock is that of
exactly the messages before it. The price is that an alert waits for the clock: the checkpoint interval and the allowed
delay.

The example lets that happen on purpose: its first driver sends itself SIGKILL as the last thing that the function does
at one clock, which for the inbox is no different from dying just after it. It exits 0 only if the alerts of that clock
were sent twice with the same ids, and the inbox has each once and just those that plain Python expects.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from examples.driven import driver, folder_for, last_words, local_spark, report, write_stream
from monoids import Count
from persistent_state import (
    Application,
    FileSource,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    ValuesAtClock,
    open_store,
)
from persistent_state.formatting import show_clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST = 5
"""This number of failed logins is too many."""


class FailedLogins(PersistentTask):
    key = "user"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Count())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        state.update(message.timestamp, 1)


class Alert(NamedTuple):
    id: str
    clock: int
    user: str
    failed: int


def alert_of(clock: int, user: str, failed: int) -> Alert:
    return Alert(f"FailedLogins/{clock}/{user}", clock, user, failed)


def send_alerts(values: DataFrame, clock: int, inbox: Inbox) -> None:
    """Send an alert for each user who failed since the clock before, and has failed too often."""
    too_often = values.where(values.value >= MOST).collect()
    inbox.receive(alert_of(clock, row.user, row.value) for row in too_often)


def application(folder: Path, send: Callable[[DataFrame, int], None]) -> Application:
    app = Application("alerts", store=str(folder / "store"), checkpoint_interval="1 minute")
    logins = FileSource(folder / "stream", timestamp="ts", max_files_per_batch=1)
    # How far the function has come is written down under this name: under another one it begins again.
    return app.add(FailedLogins(), logins, sink=ValuesAtClock(send, name="alerts"))


@dataclass(frozen=True)
class Inbox:
    """Who receives the alerts: it takes each id once. What was sent it keeps too, for this example to look at."""

    path: Path

    def receive(self, alerts: Iterable[Alert]) -> None:
        sent = list(alerts)
        with closing(sqlite3.connect(self.path)) as inbox, inbox:
            inbox.execute("CREATE TABLE IF NOT EXISTS sent (id, clock, user, failed)")
            inbox.execute("CREATE TABLE IF NOT EXISTS alerts (id PRIMARY KEY, clock, user, failed)")
            inbox.executemany("INSERT INTO sent VALUES (?, ?, ?, ?)", sent)
            inbox.executemany("INSERT OR IGNORE INTO alerts VALUES (?, ?, ?, ?)", sent)

    def all(self, table: str) -> list[Alert]:
        with closing(sqlite3.connect(self.path)) as inbox:
            return [Alert(*row) for row in inbox.execute(f"SELECT * FROM {table} ORDER BY clock, user")]


# That was the application. What follows makes messages, lets the driver die, and checks.

MINUTES = 8
DIES_AT = 3
"""The first driver dies when it has sent the alerts of this number of clocks."""


class Login(NamedTuple):
    """One that failed."""

    user: str
    ts: datetime


def drive(folder: Path, dies: bool) -> None:
    """Run to the end of the stream, or die when the function has sent the alerts of some clock."""
    inbox = Inbox(folder / "inbox.db")

    def send(values: DataFrame, clock: int) -> None:
        send_alerts(values, clock, inbox)
        if dies and len({alert.clock for alert in inbox.all("sent")}) == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    application(folder, send).run(local_spark("alerts"), drain=True)


def make_logins() -> list[Login]:
    """Some users forget their passwords more often than others."""
    begin, chance = datetime(2025, 1, 1, tzinfo=timezone.utc), random.Random(7)
    times = [begin + timedelta(seconds=second) for second in range(0, MINUTES * 60, 3)]
    return [Login(f"user {min(int(chance.expovariate(0.1)), 40):02d}", ts) for ts in times]


def expected(logins: Iterable[Login], known: Iterable[int]) -> Iterator[Alert]:
    """The alerts at these clocks, as plain Python has them."""
    failed: Counter[str] = Counter()
    for before, clock in pairwise([0, *known]):
        now = [login.user for login in logins if before <= login.ts.timestamp() * 1e6 < clock]
        failed.update(now)
        yield from (alert_of(clock, user, failed[user]) for user in sorted(set(now)) if failed[user] >= MOST)


def run_twice(folder: Path) -> tuple[int, list[str]]:
    """The clock at which the first driver died, and what went wrong, a sentence each."""
    with driver("examples.alerts", folder, "--drive", "to-death") as process:
        if process.wait() != -signal.SIGKILL:
            return 0, [f"the first driver did not die as it should, and said: {last_words(folder)}"]
    died_at = Inbox(folder / "inbox.db").all("sent")[-1].clock
    print(f"It died when it had sent the alerts of {show_clock(died_at)}; the next one starts.", flush=True)
    with driver("examples.alerts", folder, "--drive", "to-the-end") as process:
        if process.wait() != 0:
            return died_at, [f"the second driver did not come to the end, and said: {last_words(folder)}"]
    return died_at, []


def check(folder: Path, logins: list[Login], died_at: int) -> tuple[dict[str, int], list[str]]:
    """How many alerts there are, and what is wrong with them, a sentence each."""
    inbox, problems = Inbox(folder / "inbox.db"), []
    sent, kept = inbox.all("sent"), inbox.all("alerts")
    wanted = list(
        expected(logins, open_store(str(folder / "store")).application("alerts").clocks())
    )  # fewer than are retained
    twice = [alert for alert, times in Counter(sent).items() if times == 2]
    for alert in twice:
        print(f"  {alert.id}  sent: 2, in the inbox: {kept.count(alert)}")
    if not twice or twice != [alert for alert in wanted if alert.clock == died_at]:
        problems.append("the alerts of the clock at which the driver died were not sent twice, or others were")
    if kept != wanted or len(sent) != len(wanted) + len(twice):
        problems.append("the inbox is not what plain Python expects")
    return {"sent": len(sent), "twice": len(twice), "inbox": len(kept), "expected": len(wanted)}, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="keep stream, store, inbox and log here (default: a temporary folder)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as a line of JSON before the last line")
    parser.add_argument("--drive", choices=["to-death", "to-the-end"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        drive(arguments.folder, dies=arguments.drive == "to-death")
        return 0
    with folder_for("alerts", arguments.folder) as folder:
        logins = make_logins()
        print(
            f"{len(logins)} failed logins; the first driver dies when it has sent alerts {DIES_AT} times.", flush=True
        )
        write_stream(folder / "stream", pa.Table.from_pylist([login._asdict() for login in logins]), files=MINUTES)
        died_at, problems = run_twice(folder)
        figures: dict[str, int] = {}
        if not problems:
            figures, problems = check(folder, logins, died_at)
    is_right = report(problems, {**figures, "died_at": died_at}, as_json=arguments.json)
    if is_right:
        print("{sent} alerts sent, {twice} of them again, {inbox} in the inbox, {expected} expected".format(**figures))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
