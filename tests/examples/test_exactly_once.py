"""What the demo shows: its progress as a live line or few lines, and the table at the end, which finds every difference."""

from __future__ import annotations

import io
from datetime import datetime, timezone

import pyarrow as pa
import pytest

from examples import flights
from examples.exactly_once import (
    STARTS,
    TASKS,
    Compared,
    Drive,
    LiveLine,
    Verdict,
    compare,
    failures,
    from_clock,
    story,
    verdict_of,
)
from persistent_state.event_time.clocks import BEGINNING

TOTAL = flights.FLIGHTS


def day(month: int, number: int) -> int:
    return int(datetime(2013, month, number, tzinfo=timezone.utc).timestamp()) * 1_000_000


def drive(messages: int, clock: int, replayed: int = 0, number: int = 1, restarted_at: int | None = None) -> Drive:
    """A driver whose tasks have each committed one micro-batch."""
    seen = Drive(STARTS[number - 1], restarted_at, killed=number < len(STARTS))
    for task in TASKS:
        seen.add({"task": task, "messages": messages, "replayed": replayed, "clock": clock, "global_clock": clock})
    return seen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _terminal_of_80_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def test_a_line_has_the_messages_of_both_tasks_the_checkpoint_and_the_global_clock() -> None:
    seen = drive(127_800, day(5, 21))
    seen.add(
        {"task": "FlightsPerRoute", "messages": 7_100, "replayed": 0, "clock": day(5, 23), "global_clock": day(5, 22)}
    )
    assert seen.line(TOTAL) == "  127,800 of 336,776 messages (37%), checkpoint 2013-05-23, global 2013-05-22"


def test_a_line_without_clocks_says_so() -> None:
    assert Drive(STARTS[0]).line(TOTAL) == "  0 of 336,776 messages (0%), checkpoint none yet, global none yet"
    assert drive(9, BEGINNING).line(90) == "  9 of 90 messages (10%), checkpoint none yet, global none yet"


def test_a_line_says_100_percent_only_of_all_messages_and_fits_into_a_terminal() -> None:
    assert "(99%)" in drive(TOTAL - 1, day(12, 31)).line(TOTAL)
    assert "(100%)" in drive(TOTAL, day(12, 31)).line(TOTAL)
    assert len(drive(TOTAL, day(12, 31)).line(TOTAL)) < 80


def test_a_terminal_has_one_line_that_is_rewritten_and_stays_at_the_end() -> None:
    screen = Terminal()
    live = LiveLine(screen)
    live.show("  Spark starts")
    live.show("  1 of 2")
    live.show("  2 of 2", share=1)
    assert screen.getvalue() == "\r\x1b[K  Spark starts\r\x1b[K  1 of 2\r\x1b[K  2 of 2"
    live.close()
    assert screen.getvalue().endswith("  2 of 2\n")


def test_a_narrow_terminal_has_the_beginning_of_the_line_so_that_nothing_scrolls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen = Terminal()
    LiveLine(screen).show("  127,800 of 336,776 messages")
    assert screen.getvalue() == "\r\x1b[K  127,800 of 336,77"


@pytest.mark.parametrize(("screen", "term"), [(io.StringIO, "xterm"), (Terminal, "dumb")])
def test_a_pipe_has_a_line_per_quarter_of_the_messages(
    screen: type[io.StringIO], term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    out = screen()
    live = LiveLine(out)
    live.show("  Spark starts")
    for messages in range(0, 101, 5):
        live.show(f"  {messages}", messages / 100)
    live.close()
    assert out.getvalue() == "  25\n  50\n  75\n  100\n"


def test_equal_states_have_nothing_wrong() -> None:
    assert compare({"JFK": (2, 30), "LGA": (1, -4)}, {"LGA": (1, -4), "JFK": (2, 30)}) == Compared(2, 3, 3, 0, 0, 0)


def test_every_difference_from_pandas_is_counted() -> None:
    state = {"lost": (3,), "twice": (5,), "right": (1,), "invented": (2,)}
    wanted = {"lost": (4,), "twice": (2,), "right": (1,), "missing": (6,)}
    assert compare(state, wanted) == Compared(keys=5, messages=11, by_pandas=13, lost=7, twice=5, wrong_keys=4)


def test_a_key_of_which_only_the_sum_differs_is_wrong() -> None:
    assert compare({"JFK": (2, 31)}, {"JFK": (2, 30)}) == Compared(1, 2, 2, 0, 0, 1)


def test_the_verdict_counts_flights_and_the_wrong_keys_of_both_tasks() -> None:
    compared = {"FlightsPerRoute": Compared(9, 90, 91, 2, 1, 3), "DelayPerOrigin": Compared(3, 80, 80, 0, 0, 2)}
    assert verdict_of(compared) == Verdict(messages=90, lost=2, twice=1, wrong_keys=5)


def test_the_messages_from_a_clock_on_include_those_at_the_clock() -> None:
    hours = pa.array([day(1, 1), day(1, 2), day(1, 3)], pa.timestamp("us", "UTC"))
    table = pa.table({"time_hour": hours})
    assert [from_clock(table, clock) for clock in (day(1, 2), day(1, 2) + 1, None)] == [2, 1, 3]


def test_the_table_shows_what_was_killed_what_was_replayed_and_what_was_compared() -> None:
    compared = {
        "FlightsPerRoute": Compared(314, 336_776, 336_776, 0, 0, 0),
        "DelayPerOrigin": Compared(3, 327_300, 327_346, 46, 0, 1),
    }
    drives = [
        drive(149_100, day(6, 12)),
        drive(92_047, day(9, 8), 837, 2, restarted_at=day(6, 11)),
        drive(105_725, day(12, 30), 928, 3, restarted_at=day(9, 8)),
    ]
    assert "\n".join(story(drives, compared)) == TABLE.strip("\n")


def test_what_a_driver_did_not_show_is_a_sentence() -> None:
    right = Verdict(TOTAL, 0, 0, 0)
    assert list(failures([drive(9, 0), drive(9, 0, 0, 2), drive(9, 0, 1, 3, 5)], right, TOTAL)) == [
        "there was no checkpoint at which driver 2 on Spark could begin",
        "driver 2 on Spark replayed no message",
    ]
    drives = [drive(9, 0), drive(9, 0, 1, 2, 5), drive(9, 0, 1, 3, 5)]
    assert list(failures(drives, Verdict(TOTAL, 1, 1, 2), TOTAL)) == ["2 keys differ from pandas"]
    assert not list(failures(drives, right, TOTAL))


TABLE = """
                                            FlightsPerRoute  DelayPerOrigin
--------  --------------------------------  ---------------  --------------
killed    driver 1 on Local after messages          149,100         149,100
          at global clock                        2013-06-12      2013-06-12
replayed  by driver 2 on Spark from clock        2013-06-11      2013-06-11
          messages                                      837             837
killed    driver 2 on Spark after messages           92,047          92,047
          at global clock                        2013-09-08      2013-09-08
replayed  by driver 3 on Local from clock        2013-09-08      2013-09-08
          messages                                      928             928
compared  keys                                          314               3
          messages counted                          336,776         327,300
          messages by pandas                        336,776         327,346
          lost                                            0              46
          counted twice                                   0               0
          wrong keys                                      0               1
"""
