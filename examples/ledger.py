"""A ledger: the balances of accounts in a SQLite table, whose books balance whenever one looks, through kills too.

    python -m examples.ledger [--folder DIR] [--json] [--transfers N] [--kills N]

Each transfer takes from one account what it gives another, so all balances together are 0 at every clock. SqlSink
changes the table from clock to clock, in transactions that record the clock too: a driver that dies in the middle of
one leaves the table as it was, and the next driver goes on there.

The example kills its driver with SIGKILL, starts another with other shards, and looks into SQLite after each: that the
clock never went back, that the books balance, and that each balance is, to the cent, what plain Python makes of the
transfers before that clock. It exits 0 only if that is so, each time and in the end. With --folder, ledger.db stays
there.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from examples.driven import driver, folder_for, last_words, local_spark, report, write_stream
from monoids import Sum
from persistent_state import Application, FileSource, NonWindowState, PersistentTask, SqlSink
from persistent_state.formatting import read_clock, show_clock


class Balance(PersistentTask):
    """What came into an account, less what went out of it."""

    key, value = "account", "amount"

    def persistent_state(self) -> NonWindowState[Decimal]:
        return NonWindowState(Sum(pa.decimal128(38, 2)))


def postings(transfers: pa.RecordBatch) -> pa.RecordBatch:
    """Two for each transfer, both of its time: what the payer gives and what the payee gets."""
    amount, ts = transfers["amount"], transfers["ts"]
    return pa.RecordBatch.from_pydict(
        {
            "account": pa.concat_arrays([transfers["payer"], transfers["payee"]]),
            "amount": pa.concat_arrays([pc.negate(amount), amount]),
            "ts": pa.concat_arrays([ts, ts]),
        }
    )


def application(folder: Path, shards: int) -> Application:
    app = Application(
        "ledger",
        store=str(folder / "store"),
        checkpoint_interval="1 minute",
        allowed_delay="30 seconds",
        shards=shards,
    )
    transfers = FileSource(folder / "stream", timestamp="ts", transform=postings, max_files_per_batch=1)
    return app.add(Balance(), transfers, sink=SqlSink(str(folder / "ledger.db"), "balances"))


# That was the application. What follows makes transfers, kills drivers, and checks.

ACCOUNTS = 200
MINUTES_PER_KILL = 4
SCHEMA = pa.schema(
    {"payer": pa.string(), "payee": pa.string(), "amount": pa.decimal128(12, 2), "ts": pa.timestamp("us", "UTC")}
)


class Transfer(NamedTuple):
    payer: str
    payee: str
    amount: Decimal
    ts: datetime


def make_transfers(count: int, minutes: int) -> list[Transfer]:
    """As they come, which is up to half a minute late."""
    begin, chance = datetime(2025, 1, 1, tzinfo=timezone.utc), random.Random(7)
    transfers = []
    for number in range(count):
        payer, payee = chance.sample(range(ACCOUNTS), 2)
        amount = Decimal(chance.randint(1, 1_000_000)).scaleb(-2)
        ts = begin + timedelta(minutes=minutes * number / count, seconds=-chance.uniform(0, 29))
        transfers.append(Transfer(f"account {payer:03d}", f"account {payee:03d}", amount, ts))
    return transfers


def time_of(clock: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=clock)


def plain_balances(transfers: Iterable[Transfer], clock: int) -> dict[str, Decimal]:
    """What the transfers before a clock make of each account."""
    before, balances = time_of(clock), defaultdict[str, Decimal](Decimal)
    for payer, payee, amount, ts in transfers:
        if ts < before:
            balances[payer] -= amount
            balances[payee] += amount
    return balances


@dataclass(frozen=True)
class Books:
    """The ledger as it is in SQLite."""

    path: Path

    @property
    def in_transaction(self) -> bool:
        """Whether one is under way, or was when its driver died: SQLite keeps a journal of what was before."""
        return self.path.with_name(f"{self.path.name}-journal").exists()

    def ask(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=rw", uri=True, timeout=60)) as ledger:
            return ledger.execute(query).fetchall()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Be in the middle of reading. SQLite lets no transaction commit meanwhile."""
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as ledger:
            ledger.execute("BEGIN")
            ledger.execute("SELECT count(*) FROM balances").fetchone()
            yield

    def clock(self) -> int | None:
        """The newest clock of all balances, None before the first."""
        try:
            ((clock,),) = self.ask("SELECT max(clock) FROM balances")
        except sqlite3.OperationalError:  # the first driver has yet to make file and table
            return None
        return None if clock is None else read_clock(clock)

    def balances(self) -> dict[str, Decimal]:
        return {account: Decimal(value) for account, value in self.ask("SELECT account, value FROM balances")}


@dataclass(frozen=True)
class Look:
    """What SQLite held when a driver was gone; `wrong` counts the accounts that are not as plain Python has them."""

    driver: str
    shards: int
    clock: int
    accounts: int
    sum: str
    wrong: int

    def __str__(self) -> str:
        return _LINE.format(self.driver, self.shards, show_clock(self.clock), self.accounts, self.sum, self.wrong)


_LINE = "{:<28}{:>7}  {:<21}{:>9}{:>6}{:>7}"

MOMENTS = ((1, True), (2, False), (0, True), (3, True))
"""When to kill: after how many new clocks in SQLite, and whether then in the next transaction."""


def kill(process: subprocess.Popen[bytes], books: Books, clocks: int, in_transaction: bool) -> bool:
    """Kill a driver at its moment; False if it ended before."""
    clock, seen = books.clock(), 0
    while seen < clocks:
        if process.poll() is not None:
            return False
        if (now := books.clock()) != clock:
            clock, seen = now, seen + 1
        time.sleep(0.01)
    # The next transaction waits for us, however seldom we look.
    with books.reading() if in_transaction else nullcontext():
        while in_transaction and not books.in_transaction:
            if process.poll() is not None:
                return False
            time.sleep(0.01)
        process.kill()
        process.wait()
    return True


def look(books: Books, transfers: Iterable[Transfer], driver: str, shards: int) -> Look:
    clock = books.clock()
    assert clock is not None, "a driver is killed after the first clock"
    actual, wanted = books.balances(), plain_balances(transfers, clock)
    wrong = sum(actual.get(account) != wanted.get(account) for account in actual.keys() | wanted.keys())
    seen = Look(driver, shards, clock, len(actual), str(sum(actual.values())), wrong)
    print(seen, flush=True)
    return seen


def watch(folder: Path, transfers: list[Transfer], kills: int) -> tuple[list[Look], list[str]]:
    """What was seen after each driver, and what was wrong, a sentence each."""
    books, looks = Books(folder / "ledger.db"), list[Look]()
    print(_LINE.format("driver", "shards", "clock in SQLite", "accounts", "sum", "wrong"), flush=True)
    for number in range(kills + 1):
        shards = 1 + number % 4
        with driver("examples.ledger", folder, "--drive", str(shards)) as process:
            if number == kills:
                if process.wait() != 0:
                    return looks, [f"the last driver did not come to the end, and said: {last_words(folder)}"]
                how = "came to the end"
            elif kill(process, books, *MOMENTS[number % len(MOMENTS)]):
                how = f"killed {'in' if books.in_transaction else 'outside'} a transaction"
            else:
                return looks, [f"the driver ended before it could be killed, and said: {last_words(folder)}"]
        looks.append(look(books, transfers, how, shards))
    problems = [f"the books do not balance: {seen}" for seen in looks if Decimal(seen.sum) != 0 or seen.wrong]
    if (clocks := [seen.clock for seen in looks]) != sorted(clocks):
        problems.append("the clock went back")
    if any(transfer.ts >= time_of(clocks[-1]) for transfer in transfers):
        problems.append("the last clock is not above all transfers")
    return looks, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="keep stream, store, ledger and log here (default: a temporary folder)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print what was seen as a line of JSON before the last line"
    )
    parser.add_argument("--transfers", type=int, default=20_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--kills", type=int, default=4, metavar="N", help="default: %(default)s")
    parser.add_argument("--drive", type=int, metavar="SHARDS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        application(arguments.folder, arguments.drive).run(local_spark("ledger"), drain=True)
        return 0
    count, kills = arguments.transfers, arguments.kills
    with folder_for("ledger", arguments.folder) as folder:
        print(
            f"{count:,} transfers between {ACCOUNTS} accounts, {kills} kills; a driver takes seconds to start.",
            flush=True,
        )
        minutes = MINUTES_PER_KILL * (kills + 1)
        transfers = make_transfers(count, minutes)
        messages = pa.Table.from_pylist([transfer._asdict() for transfer in transfers], SCHEMA)
        write_stream(folder / "stream", messages, files=minutes)
        looks, problems = watch(folder, transfers, kills)
    is_right = report(problems, {"drivers": [asdict(look) for look in looks]}, as_json=arguments.json)
    if is_right:
        print(f"the books balance to the cent, after {kills} kills")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
