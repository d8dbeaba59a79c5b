"""Sessions of a click stream in a Parquet table, each there exactly once, although the driver is killed on the way.

    python -m examples.sessions [--folder DIR] [--json] [--users N]

A session is what a user clicks with less than half an hour between one click and the next. Clicks come up to ten minutes
out of order, so a session is known when a checkpoint clock is half an hour or more above its last click. Then it is given
to the table, once: how many clicks, the first page and the last by event time, and all pages. One click in a few hundred
comes hours late, and is set aside.

The example kills its driver with SIGKILL, while some sessions are in the table and others are open, and starts another with
other shards. It exits 0 only if each session that has ended is in the table once, those that have not are in the state, all
are what plain Python makes of the clicks, and the clicks set aside are those that came late. With --folder, all stays there.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from examples.driven import (
    Key,
    differences,
    driver,
    folder_for,
    in_microseconds,
    last_words,
    local_spark,
    report,
    windows_in,
    write_stream,
)
from monoids import Count, First, Last, Set, Struct
from persistent_state import (
    Application,
    FileSource,
    Message,
    ParquetSink,
    PersistentState,
    PersistentTask,
    SessionWindow,
    WindowState,
    open_store,
    read_state,
)
from persistent_state.errors import InvalidInputError
from persistent_state.formatting import show_clock, table


class Sessions(PersistentTask):
    key = "user"

    def persistent_state(self) -> WindowState[dict[str, Any]]:
        page = pa.string()
        return WindowState(
            Struct(clicks=Count(), first=First(page), last=Last(page), pages=Set(page)), SessionWindow("30 minutes")
        )

    def process_message(self, state: PersistentState[dict[str, Any]], message: Message) -> None:
        page = message["page"]
        state.update(message.timestamp, {"clicks": 1, "first": page, "last": page, "pages": {page}})


def application(folder: Path, shards: int) -> Application:
    app = Application(
        "sessions",
        store=str(folder / "store"),
        checkpoint_interval="10 minutes",
        allowed_delay="10 minutes",
        shards=shards,
    )
    clicks = FileSource(folder / "stream", timestamp="ts", max_files_per_batch=1)
    return app.add(Sessions(), clicks, sink=ParquetSink(folder / "sessions"))


# That was the application. What follows makes clicks, kills a driver, and checks.

SECOND_US = 1_000_000
GAP_US = 1800 * SECOND_US
HOURS = 6
LATE = 0.008
"""The share of the clicks of the first half that come two hours late or later, when the clock has long passed them."""

FILES = 9
KILL_AT = 3
"""The driver is killed when the table has this number of clocks."""
PRINTED = 10

PAGES = ("home", "search", "offer", "basket", "pay", "help")
SCHEMA = pa.schema({"user": pa.string(), "page": pa.string(), "ts": pa.timestamp("us", "UTC")})


class Click(NamedTuple):
    user: str
    page: str
    ts: int
    """Microseconds UTC."""


def make_clicks(users: int) -> tuple[list[Click], list[Click]]:
    """All clicks as they come, and those of them that come too late."""
    begin, chance = 1_735_689_600 * SECOND_US, random.Random(7)
    end = begin + HOURS * 3600 * SECOND_US
    arriving, late = list[tuple[int, Click]](), list[Click]()
    for number in range(users):
        ts = begin
        while (ts := ts + seconds_to_the_next(chance) * SECOND_US) < end:
            click = Click(f"user {number:04d}", chance.choice(PAGES), ts)
            if is_late := ts < (begin + end) // 2 and chance.random() < LATE:
                late.append(click)
            held_up = chance.randint(7200, 10_800) if is_late else chance.randint(0, 600)
            arriving.append((ts + held_up * SECOND_US, click))
    return [click for _, click in sorted(arriving)], late


def seconds_to_the_next(chance: random.Random) -> int:
    """To the next click of a user: mostly minutes, now and then about as long as ends a session, or much longer."""
    return chance.randint(1200, 9000) if chance.random() < 0.15 else 1 + int(chance.expovariate(1 / 150))


def plain_sessions(clicks: Iterable[Click]) -> dict[Key, dict[str, Any]]:
    """The sessions that these clicks are."""
    sessions = dict[str, list[list[Click]]]()
    for click in sorted(clicks, key=lambda click: click.ts):
        own = sessions.setdefault(click.user, [])
        if own and click.ts - own[-1][-1].ts < GAP_US:
            own[-1].append(click)
        else:
            own.append([click])
    return {
        (user, clicks[0].ts, clicks[-1].ts + GAP_US): {
            "clicks": len(clicks),
            "first": clicks[0].page,
            "last": clicks[-1].page,
            "pages": sorted({click.page for click in clicks}),
        }
        for user, own in sessions.items()
        for clicks in own
    }


def run_twice(folder: Path) -> tuple[int, list[str]]:
    """The last clock that the first driver gave the table, and what went wrong, a sentence each."""
    with driver("examples.sessions", folder, "--drive", "2") as process:
        while len(clocks_in(folder)) < KILL_AT:
            if process.poll() is not None:
                return 0, [f"the first driver ended before it could be killed, and said: {last_words(folder)}"]
            time.sleep(0.01)
        process.kill()
        process.wait()
    killed_at = clocks_in(folder)[-1]
    print(f"Killed when the table was at {show_clock(killed_at)}; the next one starts, with 3 shards.", flush=True)
    with driver("examples.sessions", folder, "--drive", "3") as process:
        if process.wait() != 0:
            return killed_at, [f"the second driver did not come to the end, and said: {last_words(folder)}"]
    return killed_at, []


def clocks_in(folder: Path) -> list[int]:
    """The clocks that the table has been given."""
    try:
        return ParquetSink(folder / "sessions").clocks()
    except InvalidInputError:  # the first driver has yet to make it
        return []


def check(folder: Path, clicks: list[Click], late: list[Click]) -> tuple[dict[Key, Any], int, list[str]]:
    """The sessions as they must be, the table's last clock, and what is wrong with what there is, a sentence each."""
    store, last = str(folder / "store"), clocks_in(folder)[-1]
    sessions = plain_sessions(set(clicks).difference(late))
    problems = differences(
        windows_in(ParquetSink(folder / "sessions")), {key: sessions[key] for key in sessions if key[2] <= last}
    )
    rows = in_microseconds(read_state(store, "sessions", Sessions())).to_pylist()
    state = {tuple(row.values())[:3]: row["value"] for row in rows}
    if state != {key: sessions[key] for key in sessions if key[2] > last}:
        problems.append("the open sessions in the state are not those of plain Python")
    aside = [
        row for rows in open_store(store).application("sessions").late_rows("Sessions") for row in rows.to_pylist()
    ]
    if sorted(row["timestamp"] for row in aside) != sorted(click.ts for click in late):
        problems.append("what was set aside is not what came late, each click once")
    return sessions, last, problems


def across(sessions: Mapping[Key, Any], clock: int) -> list[Key]:
    """The sessions that began before a clock and ended after it."""
    return sorted(key for key in sessions if key[1] < clock < key[2])


def show(sessions: Mapping[Key, Any], shown: Iterable[Key]) -> None:
    cells = []
    for user, start, end in shown:
        session = sessions[user, start, end]
        pages = " ".join(session["pages"])
        row = (
            user,
            show_clock(start),
            show_clock(end),
            f"{session['clicks']}",
            session["first"],
            session["last"],
            pages,
        )
        cells.append(row)
    print(*table(("user", "from", "to", "clicks", "first", "last", "pages"), cells, right={3}), sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="keep stream, store, table and log here (default: a temporary folder)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as a line of JSON before the last line")
    parser.add_argument("--users", type=int, default=500, metavar="N", help="default: %(default)s")
    parser.add_argument("--drive", type=int, metavar="SHARDS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        application(arguments.folder, arguments.drive).run(local_spark("sessions"), drain=True)
        return 0
    figures: dict[str, int] = {}
    with folder_for("sessions", arguments.folder) as folder:
        clicks, late = make_clicks(arguments.users)
        print(f"{len(clicks):,} clicks of {arguments.users:,} users; a driver takes seconds to start.", flush=True)
        messages = pa.Table.from_pylist([click._asdict() for click in clicks], SCHEMA)
        write_stream(folder / "stream", messages, files=FILES)
        killed_at, problems = run_twice(folder)
        if not problems:
            sessions, last, problems = check(folder, clicks, late)
            open_then = across(sessions, killed_at)
            figures = {
                "clicks": len(clicks),
                "late": len(late),
                "ended": sum(end <= last for _, _, end in sessions),
                "open": sum(end > last for _, _, end in sessions),
                "open_when_killed": len(open_then),
            }
            if not open_then:
                problems.append("no session was open when the driver was killed")
            show(sessions, open_then[:PRINTED])
    is_right = report(problems, {**figures, "killed_at": killed_at}, as_json=arguments.json)
    if is_right:
        print(
            "{ended:,} sessions in the table, each once, {open_when_killed:,} of them open when the driver was killed; "
            "{open:,} still open; {late:,} late clicks set aside".format(**figures)
        )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
