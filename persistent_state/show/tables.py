"""Make tables of what summaries have. Text, HTML and the live view show the same ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from persistent_state import formatting
from persistent_state.formatting import Row, full_clock, show_clock
from persistent_state.show import words

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A table: its heads, its rows, and the numbers of the columns that are aligned right."""

    heads: Row
    rows: Sequence[Row]
    right: Collection[int] = ()

    def lines(self) -> Iterator[str]:
        """Yield the table as lines of text."""
        return formatting.table(self.heads, self.rows, self.right)


def applications(summaries: Sequence[Summary]) -> Table:
    """Return a table that lists the applications of a store."""
    rows = [
        (
            each["application"],
            f"{len(each['tasks']):,}",
            show_clock(each["clock"]),
            f"{each['epoch']:,}",
            f"{each['entry']:,}",
            f"{sum(task['rows'] for task in each['tasks']):,}",
            words.size(each["bytes"]),
            show_clock(each["written"]),
        )
        for each in summaries
    ]
    return Table(("application", "tasks", "clock", "epoch", "entry", "rows", "size", "written"), rows, {1, 3, 4, 5, 6})


def tasks(tasks: Sequence[Summary]) -> Table:
    """Return a table of what tasks read and keep."""
    rows = [
        (
            task["task"],
            words.reads(task["inputs"]),
            ", ".join(task["key"]) or "-",
            words.state(task),
            words.clock_of(task),
            f"{task['runs']:,}",
            f"{task['rows']:,}",
            words.size(task["bytes"]),
        )
        for task in tasks
    ]
    return Table(("task", "reads", "key", "state", "clock", "runs", "rows", "size"), rows, {5, 6, 7})


def late_and_bad(tasks: Sequence[Summary]) -> Table:
    """Return a table of the rows that did not count, by reason."""
    bad = [(task["task"], why, f"{n:,}") for task in tasks for why, n in sorted(task["late_and_bad"].items())]
    return Table(("task", "late and bad", "rows"), bad or [("all", "none", "0")], {2})


def outputs(tasks: Sequence[Summary]) -> Table | None:
    """Return a table of how far each output of tasks is; None if they have no outputs."""
    rows = [
        (
            task["task"],
            each["output"],
            full_clock(each["clock"]) + words.owes(each["back_to"]),
            "-" if each["behind"] is None else f"{each['behind']:,}",
        )
        for task in tasks
        for each in task["outputs"]
    ]
    return Table(("task", "output", "delivered up to", "clocks behind"), rows, {3}) if rows else None


def channels(tasks: Sequence[Summary]) -> Table:
    """Return a table of the channels of tasks that sources feed."""
    rows = [
        (
            task["task"],
            *(f"{task['channels'][count]:,}" for count in ("count", "ended", "silent")),
            words.slowest(task),
            show_clock(task["channels"]["slowest_at"]),
            show_clock(task["channels"]["newest_at"]),
        )
        for task in tasks
        if any("channels" in each for each in task["inputs"].values())
    ]
    return Table(("task", "channels", "ended", "silent", "slowest", "is at", "newest is at"), rows, {1, 2, 3})
