"""The examples come to the end that they promise, each by its command, and what is wrong does not pass their checks."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from examples import (
    alerts,
    currencies,
    fraud,
    ledger,
    pipeline,
    quotes,
    rewind,
    sessions,
    topic_to_topic,
    unique_aircraft,
    window_average,
)
from examples.broker import broker_jars
from examples.driven import differences
from tests.soak import drawn, soak_or
from tests.spark.conftest import Launch
from tests.spark.sessions import FOR_OTHERS, Jvm, patched
from tests.store.servers import needed
from tests.waiting import PATIENCE

TRANSFERS = 2_000
KILLS = soak_or(ci=0, soak=1)
"""The kills of the ledger and the pipeline. The example of fraud, which is killed in CI too, shows the same of the library."""

ORDERS, EVENTS = 6_000, 4_000
FLIGHTS, USERS = 50_000, 100
EVERY = 20
TRADES, FOREIGN_ORDERS = 5_000, 3_000


@dataclass(frozen=True)
class Shown:
    lines: Sequence[str]
    kept: Path

    @property
    def figures(self) -> dict[str, Any]:
        (line,) = (line for line in self.lines if line.startswith("{"))
        found: dict[str, Any] = json.loads(line)
        return found


def show(launch: Launch, jvm: Jvm, folder: Path, name: str, *arguments: str) -> Shown:
    """Run an example in a JVM, which ends well; a folder "KEPT" is given to it."""
    told = [str(folder / "kept") if argument == "KEPT" else argument for argument in arguments]
    env = {**patched(folder, FOR_OTHERS), **jvm.env}
    process = launch("-m", f"examples.{name}", "--json", *told, folder=folder, **env)
    try:
        status: int | str = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        status = "it did not end"
    assert status == 0, f"{status}: {(folder / 'out').read_text()} {(folder / 'log').read_text()[-4000:]}"
    return Shown((folder / "out").read_text().splitlines(), folder / "kept")


class Drawn(dict[str, Future[Shown]]):
    """The examples that this commit runs. A test of another one is skipped."""

    def __missing__(self, name: str) -> Future[Shown]:
        pytest.skip("another commit's turn; SOAK=1 runs it")


@pytest.fixture(scope="module")
def examples(
    launch: Launch, jvms: Sequence[Jvm], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Future[Shown]]:
    """Half of them, one in each JVM at a time."""
    free = Queue[Jvm]()
    for jvm in jvms:
        free.put(jvm)

    def run(name: str, *arguments: str) -> Shown:
        jvm = free.get()
        try:
            return show(launch, jvm, tmp_path_factory.mktemp(name), name, *arguments)
        finally:
            free.put(jvm)

    commands = {
        "ledger": ("--folder", "KEPT", "--transfers", str(TRANSFERS), "--kills", str(KILLS)),
        "alerts": ("--folder", "KEPT"),
        "pipeline": ("--folder", "KEPT", "--orders", str(ORDERS), "--kills", str(KILLS)),
        "rewind": ("--folder", "KEPT", "--every", str(EVERY)),
        "fraud": ("--folder", "KEPT", "--events", str(EVENTS), "--kills", "1"),
        "sessions": ("--folder", "KEPT", "--users", str(USERS)),
        "window_average": ("--folder", "KEPT", "--flights", str(FLIGHTS)),
        "unique_aircraft": ("--folder", "KEPT", "--flights", str(FLIGHTS)),
        "quotes": ("--folder", "KEPT", "--trades", str(TRADES)),
        "currencies": ("--folder", "KEPT", "--orders", str(FOREIGN_ORDERS)),
        "message_count": (),
    }
    # All come to their end before a test that has an example of its own in one of the JVMs.
    with ThreadPoolExecutor(len(jvms)) as pool:
        made = Drawn({name: pool.submit(run, name, *commands[name]) for name in drawn(commands, one_in=3)})
    return made


@pytest.mark.soak
def test_words_are_counted_at_each_clock(examples: Mapping[str, Future[Shown]]) -> None:
    shown = examples["message_count"].result()
    assert shown.figures == {"messages": 39, "words": 30, "right": True}
    assert [line for line in shown.lines if line.startswith("MessageCount: ")] == [
        f"MessageCount: {keys} keys at 2025-01-01T00:00:{second}Z ({1_735_689_600_000_000 + second * 1_000_000})"
        for keys, second in ((8, 10), (9, 20), (10, 30), (9, 40))
    ]


@pytest.mark.kafka
@pytest.mark.soak
@pytest.mark.one_in(3)
def test_words_go_from_topic_to_topic(launch: Launch, jvms: Sequence[Jvm], tmp_path: Path) -> None:
    with needed():
        broker_jars()
    figures = show(launch, jvms[0], tmp_path, "topic_to_topic", "--messages", "20000").figures
    assert figures.pop("killed_at") > 0
    # Which clocks there are depends on what a micro-batch happens to take; all words come in each.
    assert figures.pop("counts") == 40 * figures["clocks"]
    assert 3 <= figures.pop("clocks") <= 10
    assert figures == {"messages": 20_000, "right": True}


def test_wrong_counts_of_words_are_told() -> None:
    words = ["a", "b", "a", "b"]
    first, second = topic_to_topic.BEGIN * 1000 + 10_000, topic_to_topic.BEGIN * 1000 + 20_000
    right = [
        {"word": "a", "clock": first, "value": 1},
        {"word": "b", "clock": first, "value": 1},
        {"word": "a", "clock": second, "value": 2},
        {"word": "b", "clock": second, "value": 2},
    ]
    assert topic_to_topic.differences(right, words) == []
    assert "there twice" in topic_to_topic.differences([*right, right[0]], words)[0]
    assert "wrong, such as that of b" in topic_to_topic.differences([*right[:3], {**right[3], "value": 3}], words)[0]
    assert topic_to_topic.differences(right[:3], words) == ["the last counts are not those of a Counter"]


@pytest.mark.soak
def test_the_books_balance_after_each_kill(examples: Mapping[str, Future[Shown]]) -> None:
    figures = examples["ledger"].result().figures
    seen = figures["drivers"]
    assert figures["right"]
    assert [each["driver"] for each in seen] == ["killed in a transaction"] * KILLS + ["came to the end"]
    assert [(each["sum"], each["wrong"]) for each in seen] == [("0.00", 0)] * (KILLS + 1)
    assert not KILLS or seen[0]["clock"] < seen[-1]["clock"]


@pytest.mark.soak
def test_alerts_are_sent_twice_and_taken_once(examples: Mapping[str, Future[Shown]]) -> None:
    figures = examples["alerts"].result().figures
    assert figures["right"]
    assert figures["twice"] > 0
    assert figures["sent"] - figures["twice"] == figures["inbox"] == figures["expected"] > 2 * figures["twice"]


@pytest.mark.soak
def test_a_wrong_balance_is_found(examples: Mapping[str, Future[Shown]]) -> None:
    books = ledger.Books(examples["ledger"].result().kept / "ledger.db")
    transfers = ledger.make_transfers(TRANSFERS, ledger.MINUTES_PER_KILL * (KILLS + 1))
    change(books.path, "UPDATE balances SET value = value || '1' WHERE account = 'account 007'")
    seen = ledger.look(books, transfers, "", 1)
    assert (abs(float(seen.sum)), seen.wrong) == (0.001, 1)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM alerts WHERE id = (SELECT min(id) FROM alerts)", "the inbox is not what plain Python expects"),
        (
            "UPDATE sent SET id = id || '?' WHERE rowid = (SELECT max(rowid) FROM sent WHERE clock = {})",
            "not sent twice",
        ),
    ],
)
@pytest.mark.soak
def test_wrong_alerts_are_found(examples: Mapping[str, Future[Shown]], statement: str, problem: str) -> None:
    shown = examples["alerts"].result()
    inbox, died_at = shown.kept / "inbox.db", shown.figures["died_at"]
    as_it_was = inbox.read_bytes()
    change(inbox, statement.format(died_at))
    _, problems = alerts.check(shown.kept, alerts.make_logins(), died_at)
    inbox.write_bytes(as_it_was)
    assert any(problem in each for each in problems)


@pytest.mark.soak
def test_the_tables_of_a_pipeline_agree_at_every_clock(examples: Mapping[str, Future[Shown]]) -> None:
    shown = examples["pipeline"].result()
    figures = shown.figures
    seen = figures["drivers"]
    assert figures["right"]
    assert [each["driver"] for each in seen] == ["killed at a clock of regions"] * KILLS + ["came to the end"]
    assert [each["wrong"] for each in seen] == [0] * (KILLS + 1)
    assert seen[0]["clocks"] > 0
    assert not KILLS or seen[-1]["clocks"] > seen[0]["clocks"]
    assert seen[-1]["moved"] > 0
    assert figures["country"].startswith('{"revenue":')
    assert "TopTen" in (shown.kept / "pipeline.svg").read_text("utf-8")
    assert [line for line in shown.lines if line.startswith("    TopTen ")]


def test_the_drivers_of_a_pipeline_are_killed_at_each_stage() -> None:
    assert [pipeline.stage(number, 5) for number in range(5)] == [*pipeline.TABLES]
    assert [pipeline.stage(number, 3) for number in range(3)] == ["shops", "regions", "top_ten"]
    assert pipeline.stage(0, 1) == "regions"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE region_hours SET value = value + 1 WHERE rowid = 1",
        "DELETE FROM shops WHERE rowid = 1",
        """UPDATE regions SET value = '{"revenue": 1, "shops": 1}' WHERE rowid = (SELECT max(rowid) FROM regions)""",
        "DELETE FROM top_ten WHERE rowid = 1",
    ],
)
@pytest.mark.soak
def test_a_wrong_table_of_a_pipeline_is_found(
    examples: Mapping[str, Future[Shown]], tmp_path: Path, statement: str
) -> None:
    kept = examples["pipeline"].result().kept
    database = Path(shutil.copy(kept / "pipeline.db", tmp_path))
    tables, orders = pipeline.Tables(database), pipeline.make_orders(ORDERS)
    assert pipeline.look(tables, orders, "", 1).wrong == 0
    change(database, statement)
    assert pipeline.look(tables, orders, "", 1).wrong > 0


@pytest.mark.soak
def test_alerts_of_fraud_are_there_once_after_a_kill(examples: Mapping[str, Future[Shown]]) -> None:
    figures = examples["fraud"].result().figures
    seen = figures["drivers"]
    assert figures["right"]
    assert [each["driver"] for each in seen] == ["killed as alerts came in", "came to the end"]
    assert [each["wrong"] for each in seen] == [0, 0]
    assert seen[-1]["alerts"] > seen[0]["alerts"] > 0
    assert figures["other"] > 0


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM alerts WHERE rowid = 1",
        "INSERT INTO alerts SELECT * FROM alerts WHERE rowid = 1",
        "UPDATE alerts SET clock = '2025-01-02 00:00:00.000000' WHERE rowid = 1",
        "UPDATE rules SET value = value + 1 WHERE rule = 'limit'",
        """UPDATE cards SET value = '{"payments": 1, "total": 1}' WHERE card = 'card 000'""",
    ],
)
@pytest.mark.soak
def test_a_wrong_table_of_fraud_is_found(examples: Mapping[str, Future[Shown]], tmp_path: Path, statement: str) -> None:
    kept = examples["fraud"].result().kept
    database = Path(shutil.copy(kept / "fraud.db", tmp_path))
    tables, events = fraud.Tables(database), fraud.make_events(EVENTS)
    assert fraud.look(tables, events, "", 1).wrong == 0
    change(database, statement)
    assert fraud.look(tables, events, "", 1).wrong > 0


@pytest.mark.soak
def test_a_bug_of_july_is_gone_after_a_rewind(examples: Mapping[str, Future[Shown]]) -> None:
    figures = examples["rewind"].result().figures
    well, with_bug, killed, killed_again, mended = figures["seen"]
    assert figures["right"]
    assert well["wrong_routes"] == well["wrong_days"] == mended["wrong_routes"] == mended["wrong_days"] == 0
    assert with_bug["wrong_routes"] > 0 < with_bug["wrong_days"]
    # Half a transaction is never seen: a table has the bug, or nothing of July.
    for table in range(2):
        rows, more = well["routes"][table], with_bug["routes"][table]
        assert {each["routes"][table] for each in (killed, killed_again)} <= {rows, more}
    assert (mended["clock"], mended["days"]) == (with_bug["clock"], with_bug["days"])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE routes_by_clock SET value = value + 1 WHERE rowid = 1",
        "DELETE FROM routes_by_clock WHERE rowid = 1",
        "UPDATE routes SET value = value + 1 WHERE rowid = (SELECT max(rowid) FROM routes)",
    ],
)
@pytest.mark.soak
def test_a_wrong_table_of_a_rewind_is_found(
    examples: Mapping[str, Future[Shown]], tmp_path: Path, statement: str
) -> None:
    kept = Path(shutil.copytree(examples["rewind"].result().kept, tmp_path / "kept"))
    tables, (arrived, _) = rewind.Tables(kept), rewind.flights_of(tmp_path, EVERY)
    assert rewind.look(tables, arrived, "").is_right
    change(tables.database, statement)
    assert not rewind.look(tables, arrived, "").is_right


@pytest.mark.soak
def test_averages_slide_over_the_flights(examples: Mapping[str, Future[Shown]]) -> None:
    shown = examples["window_average"].result()
    assert shown.figures == {"flights": FLIGHTS, "windows": 3_324, "right": True}
    assert "2013-02-09T14:00:00Z  2013-02-09T17:00:00Z         187.3          57.7" in shown.lines


@pytest.mark.soak
def test_aircraft_are_counted_within_the_error(examples: Mapping[str, Future[Shown]]) -> None:
    shown = examples["unique_aircraft"].result()
    figures = shown.figures
    assert 0 < figures.pop("error") < figures.pop("promised") == 1.04 / math.sqrt(2**8)
    assert figures == {"flights": FLIGHTS, "windows": 4_834, "aircraft": 46_223, "right": True}
    assert "ATL  2013-02-21T00:00:00Z        44      43.4   -1.4%" in shown.lines


@pytest.mark.soak
def test_sessions_are_there_once_after_a_kill(examples: Mapping[str, Future[Shown]]) -> None:
    shown = examples["sessions"].result()
    figures = shown.figures
    assert figures.pop("open_when_killed") > 0
    assert figures.pop("killed_at") > 0
    assert figures == {"clicks": 2_588, "late": 14, "ended": 327, "open": 34, "right": True}


def test_wrong_windows_are_told() -> None:
    right, again, gone, unknown, other = (("key", hour, hour + 1) for hour in range(5))
    found = {right: [1], again: [2, 2], unknown: [4], other: [5]}
    wanted = {right: 1, again: 2, gone: 3, other: 6}
    assert differences({right: [1]}, {right: 1}) == []
    assert differences(found, wanted) == [
        "1 windows are missing",
        "1 windows are none",
        "1 windows are there more than once",
        "1 windows have another value",
    ]


@pytest.mark.parametrize("example", [window_average, unique_aircraft])
@pytest.mark.soak
def test_a_flight_that_was_not_counted_is_found(examples: Mapping[str, Future[Shown]], example: Any) -> None:
    kept = examples[example.__name__.rpartition(".")[2]].result().kept
    departures = pq.read_table(kept / "stream")
    *_, problems = example.check(kept, departures)
    assert problems == []
    *_, problems = example.check(kept, departures.slice(1))
    assert any("windows have another value" in problem or "windows are none" in problem for problem in problems)


@pytest.mark.soak
def test_wrong_sessions_are_found(examples: Mapping[str, Future[Shown]]) -> None:
    kept = examples["sessions"].result().kept
    clicks, late = sessions.make_clicks(USERS)
    markers = sorted((kept / "sessions" / "_clocks").iterdir())
    as_it_was = markers[2].read_bytes()

    def problems(files: Sequence[str], late: Sequence[sessions.Click] = late) -> str:
        markers[2].write_text(json.dumps({**json.loads(as_it_was), "files": files}))
        return "; ".join(sessions.check(kept, clicks, list(late))[-1])

    own, others = (json.loads(marker.read_bytes())["files"] for marker in markers[2:4])
    assert problems(own) == ""
    assert "windows are missing" in problems([])
    assert "windows are there more than once" in problems([*own, *others])
    assert "what was set aside is not what came late" in problems(own, late[1:])
    markers[2].write_bytes(as_it_was)


@pytest.mark.soak
def test_trades_have_the_quotes_of_their_time_after_a_kill(examples: Mapping[str, Future[Shown]]) -> None:
    figures = examples["quotes"].result().figures
    assert figures.pop("killed_at") > 0
    assert figures == {"trades": TRADES, "quotes": 3 * TRADES, "without": 711, "otherwise": 1_270, "right": True}


@pytest.mark.soak
def test_wrong_quotes_are_found(examples: Mapping[str, Future[Shown]]) -> None:
    right = quotes.wanted(*quotes.make_rows(TRADES))
    found = quotes.joined_in(examples["quotes"].result().kept)
    assert quotes.check(found, right) == []
    assert quotes.check(pd.concat([found, found[:1]]).sort_index(), right) == ["a trade is there more than once"]
    assert quotes.check(found[1:], right) == ["1 trades are missing, or none"]
    assert quotes.check(found.assign(timestamp=0), right) == ["a joined row has not the time of its trade"]
    found.loc[7, "bid"] += 1
    assert quotes.check(found, right) == ["1 trades have another quote than pandas gives them"]


@pytest.mark.soak
def test_orders_are_converted_with_the_rates_of_their_time(examples: Mapping[str, Future[Shown]]) -> None:
    figures = examples["currencies"].result().figures
    assert figures.pop("killed_at") > 0
    # Which clocks there are depends on what a micro-batch happens to take.
    assert figures.pop("clocks") >= currencies.KILL_AT
    told = {"euros": "1,004,533.45", "otherwise": "455.68"}
    assert figures == {"orders": FOREIGN_ORDERS, "rates": 1_800, **told, "right": True}


@pytest.mark.soak
def test_wrong_sums_are_found(examples: Mapping[str, Future[Shown]]) -> None:
    right = currencies.converted(*currencies.make_rows(FOREIGN_ORDERS))
    (clock, shop, value), *rest = currencies.rows_in(examples["currencies"].result().kept)
    assert currencies.check([(clock, shop, value), *rest], right)[1] == []
    assert "are not those of pandas" in currencies.check([(clock, shop, value + 1), *rest], right)[1][0]
    assert "are not those of pandas" in currencies.check(rest, right)[1][0]
    assert "not above all orders" in currencies.check([(clock, shop, value)], right)[1][-1]


def change(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        assert connection.execute(statement).rowcount == 1
