"""The lines of text that the command line prints for people."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from persistent_state.event_time.durations import show_duration
from persistent_state.formatting import full_clock, shortened, show_clock, table
from persistent_state.store.verify import Verified

MOST = 10
"""The most items of a list that are shown."""


def applications(summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines that list the applications of a store."""
    heads = ("application", "tasks", "clock", "epoch", "entry", "rows", "size", "written")
    rows = [
        (
            each["application"],
            f"{len(each['tasks']):,}",
            show_clock(each["clock"]),
            f"{each['epoch']:,}",
            f"{each['entry']:,}",
            f"{sum(task['rows'] for task in each['tasks']):,}",
            size(each["bytes"]),
            show_clock(each["written"]),
        )
        for each in summaries
    ]
    return table(heads, rows, right={1, 3, 4, 5, 6})


def application(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that describe one application and its tasks."""
    clocks = [f"{show_clock(clock)}  {clock}" for clock in summary["retained"]]
    if len(clocks) > MOST:
        clocks = [*clocks[:2], f"... {len(clocks) - 4:,} more ...", *clocks[-2:]]
    yield from _pairs(
        {
            "application": summary["application"],
            "clock": full_clock(summary["clock"]),
            "retained": clocks or ["none yet"],
            "interval": show_duration(summary["interval"]),
            "shards": f"{summary['shards']:,}",
            "epoch": f"{summary['epoch']:,}",
            "entry": f"{summary['entry']:,}, written {show_clock(summary['written'])}",
            "size": size(summary["bytes"]),
        }
    )
    tasks = summary["tasks"]
    yield ""
    yield from table(
        ("task", "key", "state", "clock", "runs", "rows", "size"),
        [
            (
                task["task"],
                ", ".join(task["key"]) or "-",
                _monoid(task) + _window(task["window"]),
                full_clock(task["clock"]) if task["active"] else f"{show_clock(task['clock'])}, left out",
                f"{task['runs']:,}",
                f"{task['rows']:,}",
                size(task["bytes"]),
            )
            for task in tasks
        ],
        right={4, 5, 6},
    )
    bad = [(task["task"], why, f"{n:,}") for task in tasks for why, n in sorted(task["late_and_bad"].items())]
    yield ""
    yield from table(("task", "late and bad", "rows"), bad or [("all", "none", "0")], right={2})
    outputs = [(task["task"], each) for task in tasks for each in task["outputs"]]
    if outputs:
        yield ""
        yield from table(
            ("task", "output", "delivered up to", "clocks behind"),
            [
                (
                    task,
                    each["output"],
                    full_clock(each["clock"]),
                    "-" if each["behind"] is None else f"{each['behind']:,}",
                )
                for task, each in outputs
            ],
            right={3},
        )
    yield ""
    yield from table(
        ("task", "channels", "ended", "silent", "slowest", "is at", "newest is at"),
        [
            (
                task["task"],
                *(f"{task['channels'][count]:,}" for count in ("count", "ended", "silent")),
                "-" if task["channels"]["slowest"] is None else task["channels"]["slowest"] or "(unnamed)",
                show_clock(task["channels"]["slowest_at"]),
                show_clock(task["channels"]["newest_at"]),
            )
            for task in tasks
        ],
        right={1, 2, 3},
    )


def verified(result: Verified) -> Iterator[str]:
    """Yield the lines that report what `verify` found."""
    for path in sorted({problem.path for problem in result.problems}):
        yield path
        yield from (f"  {problem.what}" for problem in result.problems if problem.path == path)
    if result.problems:
        yield ""
    if result.unreferenced:
        files = _count(len(result.unreferenced), "file")
        yield f"{files} that no log entry names, left from micro-batches that were never committed:"
        yield from (f"  {path}" for path in result.unreferenced[:MOST])
        if len(result.unreferenced) > MOST:
            yield f"  ... and {len(result.unreferenced) - MOST:,} more; --json has all"
        yield ""
    what = ", ".join(
        (
            _count(result.applications, "application"),
            _count(result.entries, "log entry", "log entries"),
            _count(result.files, "file"),
            size(result.bytes),
        )
    )
    yield f"{what}: {_count(len(result.problems), 'problem') if result.problems else 'all is as it was written'}"


def size(count: int) -> str:
    """Return a number of bytes as text, in the unit that suits it."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        amount /= 1000
        if amount < 999.95 or unit == "PB":
            break
    return f"{amount:,.1f} {unit}"


def width() -> int:
    """Return how many characters a line of the terminal has."""
    return shutil.get_terminal_size().columns - 1


def _window(window: Mapping[str, int] | None) -> str:
    """Return the text for what bounds a state in time: its windows or its time to live."""
    if window is None:
        return ""
    lengths = {name: show_duration(length) for name, length in window.items()}
    if "size" not in lengths:
        return f", sessions by {lengths['gap']}" if "gap" in lengths else f", for {lengths['ttl']}"
    return f", windows of {lengths['size']}" + (
        f" each {lengths['step']}" if lengths["step"] != lengths["size"] else ""
    )


def _monoid(task: Mapping[str, Any]) -> str:
    """Return the monoid's name and its parameters."""
    _, nested, inner = task["type"].partition("<")
    return shortened(f"{task['monoid']}<{inner}" if nested else f"{task['monoid']}<{task['type']}>")


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _pairs(pairs: Mapping[str, str | Sequence[str]]) -> Iterator[str]:
    wide = max(map(len, pairs))
    for name, values in pairs.items():
        for place, value in enumerate([values] if isinstance(values, str) else values):
            yield f"{'' if place else name:<{wide}}  {value}"
