"""Card fraud: rules that are a program, which sees the events of a card in the order in which they happened.

    python -m examples.fraud [--folder DIR] [--json] [--events N] [--kills N]

Three rules emit an alert:

    amount    a payment is far above the average of the payments of this card before it
    country   two payments come from different countries within twenty minutes
    limit     the limit of the card was raised, and no confirmation came within thirty minutes: a timer

No sum can find these: what counts is which event came after which. So `Fraud` is an `OrderedTask`. Its events wait until the
clock has passed them, and then it is given those of a card one after the other, however late they came. The same rules on
events in the order of their arrival would raise other alerts; the example counts them.

The alerts are a table in SQLite. Another task is fed by them, and counts them by rule; its counts and the states of the cards
are tables too. The example kills its driver with SIGKILL while the alerts come in, starts another with other shards, and looks
into SQLite after each. It exits 0 only if each alert of plain Python is there once, and no other, and if the other tables are
right as well. With --folder, fraud.db stays there.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from examples.driven import driver, folder_for, last_words, let_in, local_spark, report, write_stream
from monoids import Count
from persistent_state import (
    Application,
    Context,
    Emitted,
    FileSource,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    SqlSink,
    Timer,
    ValuesAtClock,
)
from persistent_state.formatting import read_clock, show_clock

MINUTE = 60_000_000
TIMES_AVERAGE, ENOUGH_PAYMENTS = 8, 5
SHORT_TIME, TIME_TO_CONFIRM = 20 * MINUTE, 30 * MINUTE

NOTHING_YET = {"payments": 0, "total": 0, "country": None, "paid": None, "raised": None}


class Fraud(OrderedTask):
    """Looks at one event of a card after the other, and emits an alert where a rule is broken."""

    key = "card"
    state = pa.struct(
        [
            ("payments", pa.int64()),
            ("total", pa.int64()),
            ("country", pa.string()),  # of the last payment,
            ("paid", pa.int64()),  # and its time
            ("raised", pa.int64()),  # since when a higher limit waits for its confirmation
        ]
    )
    emits = pa.schema([("rule", pa.string()), ("why", pa.string())])

    def process(self, state: Any, message: Message, context: Context) -> Any:
        state, now = state or NOTHING_YET, message.timestamp
        if message["kind"] == "limit" and state["raised"] is None:
            context.set_timer(now + TIME_TO_CONFIRM, "limit")
            return {**state, "raised": now}
        if message["kind"] == "confirmation" and state["raised"] is not None:
            context.delete_timer(state["raised"] + TIME_TO_CONFIRM, "limit")
            return {**state, "raised": None}
        if message["kind"] == "payment":
            return self.after_payment(state, message["amount"], message["country"], context)
        return state

    def after_payment(self, state: Any, amount: int, country: str, context: Context) -> Any:
        payments, total, now = state["payments"], state["total"], context.timestamp
        if payments >= ENOUGH_PAYMENTS and amount * payments > TIMES_AVERAGE * total:
            context.emit(rule="amount", why=f"{amount} after {payments} payments of {total} in all")
        if payments and state["country"] != country and now - state["paid"] < SHORT_TIME:
            context.emit(
                rule="country", why=f"{country} {(now - state['paid']) // MINUTE} minutes after {state['country']}"
            )
        return {**state, "payments": payments + 1, "total": total + amount, "country": country, "paid": now}

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        context.emit(rule="limit", why="a higher limit was not confirmed")
        return {**state, "raised": None}


class AlertsOfRule(PersistentTask):
    """How many alerts a rule has raised."""

    key = "rule"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Count())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([1] * len(batch))


def application(folder: Path, shards: int) -> Application:
    app = Application(
        "fraud",
        store=str(folder / "store"),
        checkpoint_interval="10 minutes",
        allowed_delay="1 minute",
        shards=shards,
    )
    events = FileSource(folder / "stream", timestamp="ts", schema=SCHEMA, max_files_per_batch=1)

    def table(name: str, history: bool = False) -> SqlSink:
        return SqlSink(str(folder / "fraud.db"), name, history=history)

    # A sink alone is given the emitted rows, and ValuesAtClock the states. Emitted rows are only ever added to a table.
    app.add(Fraud(), events, sink=[table("alerts", history=True), ValuesAtClock(table("cards"))])
    app.add(AlertsOfRule(), Emitted("Fraud"), sink=table("rules"))
    return app


# That was the application. What follows makes events, kills drivers, and checks.

SCHEMA = pa.schema(
    [
        ("card", pa.string()),
        ("kind", pa.string()),
        ("amount", pa.int64()),
        ("country", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
BEGIN = int(datetime(2025, 1, 1, tzinfo=timezone.utc).timestamp()) * 1_000_000
LENGTH, FILES = 6 * 60 * MINUTE, 12
CARDS, COUNTRIES = 120, ("BR", "IN", "NO", "SE", "ZA")
MOST_DELAY = 45_000_000
TABLES = ("alerts", "cards", "rules")


class Event(NamedTuple):
    """An event of a card, at a time that no other event has."""

    card: str
    kind: str
    amount: int | None
    country: str | None
    ts: int


def make_events(count: int) -> list[Event]:
    """Events in the order of their arrival, which is up to three quarters of a minute late."""
    chance, made = np.random.default_rng(7), list[Event]()
    for place in range(count):
        ts, number = BEGIN + place * LENGTH // count, int(CARDS * chance.random() ** 2)
        card = f"card {number:03d}"
        if chance.random() < 0.03:
            made.append(Event(card, "limit", None, None, ts))
            if chance.random() < 0.8:
                later = ts + int(chance.exponential(12) * MINUTE)
                made.append(Event(card, "confirmation", None, None, later))
            continue
        amount = int(chance.lognormal(8, 0.7) * (20 if chance.random() < 0.005 else 1))
        abroad = int(chance.random() < 0.01)
        made.append(Event(card, "payment", amount, COUNTRIES[(number + abroad) % len(COUNTRIES)], ts))
    # The last digits make each time one of its own.
    events = [event._replace(ts=event.ts // 1_000_000 * 1_000_000 + place) for place, event in enumerate(made)]
    arrival = [
        event.ts + int(delay) for event, delay in zip(events, chance.integers(0, MOST_DELAY, len(events)), strict=True)
    ]
    return [events[place] for place in np.argsort(arrival) if events[place].ts < BEGIN + LENGTH]


def write_events(folder: Path, events: Sequence[Event]) -> None:
    """Write a file for each half hour. `come_in` lets them come into the stream."""
    columns = [pa.array([getattr(event, field.name) for event in events]).cast(field.type) for field in SCHEMA]
    write_stream(folder / "later", pa.table(columns, schema=SCHEMA), files=FILES)
    (folder / "stream").mkdir()


def come_in(folder: Path, upto: int) -> bool:
    """Let events come into the stream until it has those before a time. Return False if there are no more of them."""
    return let_in(folder, (upto - BEGIN) * FILES // LENGTH)


class Alert(NamedTuple):
    card: str
    rule: str
    why: str
    timestamp: int


def by_card(events: Sequence[Event], clock: int) -> dict[str, list[Event]]:
    """The events before a clock of each card, in their order."""
    events_of = dict[str, list[Event]]()
    for event in events:
        if event.ts < clock:
            events_of.setdefault(event.card, []).append(event)
    return events_of


def expected(events: Sequence[Event], clock: int) -> Iterator[Alert]:
    """The alerts before a clock as plain Python finds them: it looks back, and needs no timer."""
    for card, own in by_card(events, clock).items():
        paid: list[Event] = []
        raised: int | None = None
        for event in [*own, Event(card, "the end", None, None, clock)]:
            # A confirmation at the very end of its time is too late; an alert at the clock is not yet one.
            if raised is not None and raised + TIME_TO_CONFIRM <= event.ts - (event.kind == "the end"):
                yield Alert(card, "limit", "a higher limit was not confirmed", raised + TIME_TO_CONFIRM)
                raised = None
            if event.kind == "limit" and raised is None:
                raised = event.ts
            elif event.kind == "confirmation":
                raised = None
            elif event.kind == "payment":
                total, count = sum(each.amount or 0 for each in paid), len(paid)
                if count >= ENOUGH_PAYMENTS and (event.amount or 0) * count > TIMES_AVERAGE * total:
                    why = f"{event.amount} after {count} payments of {total} in all"
                    yield Alert(card, "amount", why, event.ts)
                if paid and paid[-1].country != event.country and event.ts - paid[-1].ts < SHORT_TIME:
                    minutes = (event.ts - paid[-1].ts) // MINUTE
                    why = f"{event.country} {minutes} minutes after {paid[-1].country}"
                    yield Alert(card, "country", why, event.ts)
                paid.append(event)


def expected_cards(events: Sequence[Event], clock: int) -> dict[str, Any]:
    """How many payments each card has made before a clock, and of how much."""
    payments = {
        card: [each.amount or 0 for each in own if each.kind == "payment"]
        for card, own in by_card(events, clock).items()
    }
    return {card: {"payments": len(amounts), "total": sum(amounts)} for card, amounts in payments.items()}


@dataclass(frozen=True)
class Tables:
    """The tables as they are in SQLite."""

    path: Path

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=rw", uri=True, timeout=60)) as database:
            return database.execute(query).fetchall()

    def clocks(self) -> dict[str, int]:
        """The last clock of each table; without those that are not there yet."""
        try:
            return dict(self.ask("SELECT table_name, clock FROM persistent_state_clocks"))
        except sqlite3.OperationalError:  # the first driver has yet to make the file
            return {}

    def common(self) -> int:
        """The clock that all tables have come to, or the time of the first events."""
        clocks = self.clocks()
        return max(BEGIN, min(clocks.get(name, BEGIN) for name in TABLES))

    def alerts(self) -> list[tuple[int, Alert]]:
        """Each alert with the clock at which it came."""
        rows = self.ask("SELECT clock, card, rule, why, timestamp FROM alerts")
        return [(read_clock(clock), Alert(card, rule, why, read_clock(at))) for clock, card, rule, why, at in rows]

    def cards(self) -> dict[str, Any]:
        """The state of each card."""
        return {card: json.loads(state) for card, state in self.ask("SELECT card, value FROM cards")}

    def rules(self) -> dict[str, int]:
        """How many alerts each rule has raised."""
        return dict(self.ask("SELECT rule, value FROM rules"))


@dataclass(frozen=True)
class Look:
    """What SQLite held when a driver was gone, and how many alerts and rows of the other tables were wrong."""

    driver: str
    shards: int
    clock: int
    alerts: int
    cards: int
    wrong: int

    def __str__(self) -> str:
        return _LINE.format(self.driver, self.shards, show_clock(self.clock), self.alerts, self.cards, self.wrong)


_LINE = "{:<28}{:>7}  {:<21}{:>7}{:>7}{:>7}"


def look(tables: Tables, events: Sequence[Event], driver: str, shards: int) -> Look:
    """Compare each table at its clock with plain Python, on the events in the order of their time."""
    in_order, clocks = sorted(events, key=lambda event: event.ts), tables.clocks()
    alerts = tables.alerts()
    wrong = count_differences([alert for _, alert in alerts], expected(in_order, clocks["alerts"]))
    # Each clock has the alerts from the clock before it on.
    known = [0, *sorted({clock for clock, _ in alerts})]
    wrong += sum(not known[known.index(clock) - 1] <= alert.timestamp < clock for clock, alert in alerts)
    rules = Counter(alert.rule for alert in expected(in_order, clocks["rules"]))
    wrong += count_differences(tables.rules().items(), rules.items())
    cards, wanted = tables.cards(), expected_cards(in_order, clocks["cards"])
    actual = {card: {name: state[name] for name in ("payments", "total")} for card, state in cards.items()}
    wrong += sum(actual.get(card) != wanted.get(card) for card in {*actual, *wanted})
    seen = Look(driver, shards, tables.common(), len(alerts), len(cards), wrong)
    print(seen, flush=True)
    return seen


def count_differences(actual: Iterable[Any], wanted: Iterable[Any]) -> int:
    """How many of these are missing, and how many are too many."""
    there, expected = Counter[Any](actual), Counter[Any](wanted)
    return ((there - expected) + (expected - there)).total()


def kill(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Kill a driver that has brought all tables to a new clock, and more alerts after it; False if it ended before."""
    tables = Tables(folder / "fraud.db")
    before = tables.common()
    common, clock = before, before
    # Events come in as the tables take them: a slow driver must not be at the end before it is killed.
    while come_in(folder, tables.common() + LENGTH // 6) and (common <= before or tables.clocks()["alerts"] == clock):
        if process.poll() is not None:
            return False
        if common <= before and (common := tables.common()) > before:
            clock = tables.clocks()["alerts"]
        time.sleep(0.03)
    process.kill()
    process.wait()
    return True


def watch(folder: Path, events: Sequence[Event], kills: int) -> tuple[list[Look], list[str]]:
    """What was seen after each driver, and what was wrong, a sentence each."""
    tables, looks = Tables(folder / "fraud.db"), list[Look]()
    print(_LINE.format("driver", "shards", "clock of all tables", "alerts", "cards", "wrong"), flush=True)
    for number in range(kills + 1):
        shards, to_the_end = 1 + number % 3, ["--to-the-end"] if number == kills else []
        if to_the_end:
            come_in(folder, BEGIN + LENGTH)
        with driver("examples.fraud", folder, "--drive", str(shards), *to_the_end) as process:
            if to_the_end:
                if process.wait() != 0:
                    return looks, [f"the last driver did not come to the end, and said: {last_words(folder)}"]
                how = "came to the end"
            elif kill(process, folder):
                how = "killed as alerts came in"
            else:
                return looks, [f"the driver ended before it could be killed, and said: {last_words(folder)}"]
        looks.append(look(tables, events, how, shards))
    problems = [f"a table is not what plain Python makes of the events: {seen}" for seen in looks if seen.wrong]
    if (clocks := [seen.clock for seen in looks]) != sorted(clocks):
        problems.append("the clock went back")
    if max(event.ts for event in events) >= clocks[-1]:
        problems.append("the last clock is not above all events")
    return looks, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="keep stream, store, tables and log here (default: a temporary folder)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print what was seen as a line of JSON before the last line"
    )
    parser.add_argument("--events", type=int, default=20_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--kills", type=int, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--drive", type=int, metavar="SHARDS", help=argparse.SUPPRESS)
    parser.add_argument("--to-the-end", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        app, spark = application(arguments.folder, arguments.drive), local_spark("fraud")
        if arguments.to_the_end:
            app.run(spark, drain=True)
        else:
            app.start(spark, trigger="1 second").await_termination()
        return 0
    with folder_for("fraud", arguments.folder) as folder:
        events = make_events(arguments.events)
        print(
            f"{len(events):,} events of {CARDS} cards in {LENGTH // MINUTE // 60} hours, up to "
            f"{MOST_DELAY // 1_000_000} seconds late; {arguments.kills} kills; a driver takes seconds to start.",
            flush=True,
        )
        write_events(folder, events)
        looks, problems = watch(folder, events, arguments.kills)
        other = 0
        if not problems:
            tables = Tables(folder / "fraud.db")
            other = count_differences([alert for _, alert in tables.alerts()], expected(events, looks[-1].clock))
            rules = tables.rules()
            print(f"alerts by rule: {', '.join(f'{rule} {rules[rule]}' for rule in sorted(rules))}")
            print(f"in the order of arrival {other} alerts would be missing, wrong or too many")
            if len(rules) < 3 or not other:
                problems.append("the events broke not all rules, or came in order: nothing was shown")
    is_right = report(problems, {"drivers": [asdict(seen) for seen in looks], "other": other}, as_json=arguments.json)
    if is_right:
        print(f"all {looks[-1].alerts} alerts are there once, after {arguments.kills} kills")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
