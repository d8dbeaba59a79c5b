"""The lines of text that the command line prints for people."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from persistent_state.event_time.durations import show_duration
from persistent_state.formatting import clock_of_rewind, full_clock, pairs, shortened, show_clock, table
from persistent_state.protocol.holding import NOTHING
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
    names = {each["clock"]: each["names"] for each in summary["kept"]}
    # Of the newest clocks it goes without saying that they are kept.
    kept = [clock for clock in names if names[clock] or clock not in summary["retained"]]
    yield from pairs(
        {
            **heads(summary),
            "retained": _clocks({clock: [] for clock in summary["retained"]}) or ["none yet"],
            **({"kept": _clocks({clock: names[clock] for clock in kept})} if kept else {}),
            "interval": show_duration(summary["interval"]),
            "shards": f"{summary['shards']:,}",
            **({"timeline": f"{summary['timeline']:,}"} if summary["timeline"] else {}),
            "epoch": f"{summary['epoch']:,}",
            "entry": f"{summary['entry']:,}, written {show_clock(summary['written'])}",
            "size": size(summary["bytes"]),
        }
    )
    tasks = summary["tasks"]
    yield ""
    yield from table(
        ("task", "reads", "key", "state", "clock", "runs", "rows", "size"),
        [
            (
                task["task"],
                reads(task["inputs"]),
                ", ".join(task["key"]) or "-",
                _monoid(task) + _window(task["window"]),
                clock_of(task),
                f"{task['runs']:,}",
                f"{task['rows']:,}",
                size(task["bytes"]),
            )
            for task in tasks
        ],
        right={5, 6, 7},
    )
    bad = [(task["task"], why, f"{n:,}") for task in tasks for why, n in sorted(task["late_and_bad"].items())]
    yield ""
    yield from table(("task", "late and bad", "rows"), bad or [("all", "none", "0")], right={2})
    yield from outputs(tasks)
    yield ""
    yield from table(
        ("task", "channels", "ended", "silent", "slowest", "is at", "newest is at"),
        [
            (
                task["task"],
                *(f"{task['channels'][count]:,}" for count in ("count", "ended", "silent")),
                _slowest(task),
                show_clock(task["channels"]["slowest_at"]),
                show_clock(task["channels"]["newest_at"]),
            )
            for task in tasks
            if any("channels" in each for each in task["inputs"].values())
        ],
        right={1, 2, 3},
    )


def _clocks(names: Mapping[int, Sequence[str]]) -> list[str]:
    """Return lines of clocks with their names. Of many without a name only some are shown."""
    lines = [
        "  ".join([show_clock(clock), str(clock), *([", ".join(some)] if some else [])])
        for clock, some in names.items()
    ]
    if len(lines) <= MOST:
        return lines
    shown = [place for place, some in enumerate(names.values()) if some or place < 2 or place >= len(lines) - 2]
    short: list[str] = []
    for before, place in pairwise([-1, *shown]):
        short += [f"... {place - before - 1:,} more ..."] if place - before > 1 else []
        short.append(lines[place])
    return short


def heads(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return what is told of an application before its tasks: its clocks, and what the global clock waits for."""
    return {
        "application": summary["application"],
        "clock": full_clock(summary["clock"]),
        **({} if summary["next"] is None else {"next clock": full_clock(summary["next"])}),
        "waits for": NOTHING if summary["waits_for"] is None else summary["waits_for"]["words"],
    }


def outputs(tasks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield an empty line and a table of how far each output of tasks is, if they have outputs."""
    every = [(task["task"], each) for task in tasks for each in task["outputs"]]
    if every:
        yield ""
        yield from table(
            ("task", "output", "delivered up to", "clocks behind"),
            [
                (
                    task,
                    each["output"],
                    full_clock(each["clock"]) + _owes(each["back_to"]),
                    "-" if each["behind"] is None else f"{each['behind']:,}",
                )
                for task, each in every
            ],
            right={3},
        )


def _owes(back_to: int | None) -> str:
    """Return in words that an output has yet to go back; "" if it has not."""
    return "" if back_to is None else f", has yet to go back to {clock_of_rewind(back_to)}"


def clock_of(task: Mapping[str, Any], show: Callable[[int | None], str] = full_clock) -> str:
    """Return the clock of a task, and whether the newest start has left the task out."""
    return show(task["clock"]) if task["active"] else f"{show_clock(task['clock'])}, left out"


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


def reads(inputs: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what feeds a task: its inputs, with their names if there are several."""
    return ", ".join(f"{name}: {_input(each)}" if name else _input(each) for name, each in inputs.items())


def feeder(fed: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return the kind of an input, the task that feeds it, and how often; None if it is a source."""
    (kind, task), *_ = fed.items()
    if kind == "channels":
        return None
    return kind, task, f" every {show_duration(fed['every'])}" if "every" in fed else ""


def _input(fed: Mapping[str, Any]) -> str:
    found = feeder(fed)
    return "a source" if found is None else "{} of {}{}".format(*found)


def _slowest(task: Mapping[str, Any]) -> str:
    channel, input = task["channels"]["slowest"], task["channels"]["slowest_input"]
    if channel is None:
        return "-"
    return (f"{input}: " if input else "") + (channel or "(unnamed)")


def _window(window: Mapping[str, int] | None) -> str:
    """Return the text for what bounds a state in time: its windows or its time to live."""
    if window is None:
        return ""
    if "passed" in window:
        return ", until the clock has passed"
    if "replaced" in window:
        return f", for {show_duration(window['replaced'])}" if window["replaced"] is not None else ""
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
