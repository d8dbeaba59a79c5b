"""What the command line prints for people, as lines of text."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from persistent_state.durations import show_duration
from persistent_state.plain import full_clock, plain, show_clock, to_json
from persistent_state.verify import Verified

WIDEST = 60
"""How wide a column of a table of states may be."""

MOST = 10
"""How many items of a list are shown."""

Row = Sequence[str]


def applications(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
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
        for each in found
    ]
    return table(heads, rows, right={1, 3, 4, 5, 6})


def application(found: Mapping[str, Any]) -> Iterator[str]:
    clocks = [f"{show_clock(clock)}  {clock}" for clock in found["retained"]]
    if len(clocks) > MOST:
        clocks = [*clocks[:2], f"... {len(clocks) - 4:,} more ...", *clocks[-2:]]
    yield from _pairs(
        {
            "application": found["application"],
            "clock": full_clock(found["clock"]),
            "retained": clocks or ["none yet"],
            "interval": show_duration(found["interval"]),
            "shards": f"{found['shards']:,}",
            "epoch": f"{found['epoch']:,}",
            "entry": f"{found['entry']:,}, written {show_clock(found['written'])}",
            "size": size(found["bytes"]),
        }
    )
    tasks = found["tasks"]
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


def state(found: pa.Table, rows: Sequence[Sequence[pa.Scalar]], keys: int, clock: int) -> Iterator[str]:
    """The rows of a state, of which there are `keys`, and what they are."""
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    right = {i for i, field in enumerate(found.schema) if any(is_one(field.type) for is_one in numbers)}
    shown = [[_cut(_printable(cell(value))) if value.is_valid else "null" for value in row] for row in rows]
    yield from table(found.column_names, shown, right)
    yield ""
    count = f"{keys:,} {'key' if keys == 1 else 'keys'}"
    yield f"{count if len(shown) == keys else f'{len(shown):,} of {count}'} at {full_clock(clock)}"


def verified(found: Verified) -> Iterator[str]:
    for path in sorted({problem.path for problem in found.problems}):
        yield path
        yield from (f"  {problem.what}" for problem in found.problems if problem.path == path)
    if found.problems:
        yield ""
    if found.unreferenced:
        yield f"{_count(len(found.unreferenced), 'file')} that no log entry names, as left by what was never committed:"
        yield from (f"  {path}" for path in found.unreferenced[:MOST])
        if len(found.unreferenced) > MOST:
            yield f"  ... and {len(found.unreferenced) - MOST:,} more; --json has all"
        yield ""
    what = ", ".join(
        (
            _count(found.applications, "application"),
            _count(found.entries, "log entry", "log entries"),
            _count(found.files, "file"),
            size(found.bytes),
        )
    )
    yield f"{what}: {_count(len(found.problems), 'problem') if found.problems else 'all is as it was written'}"


def table(heads: Row, rows: Sequence[Row], right: Collection[int] = ()) -> Iterator[str]:
    """Rows below their heads; columns are as wide as what is in them, and those in `right` end at one place."""
    # Names of channels and tasks are data, too.
    rows = [[_printable(text) for text in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, ["-" * width for width in widths], *rows):
        cells = []
        for place, (text, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - _width(text))
            cells.append(space + text if place in right else text + space)
        yield "  ".join(cells).rstrip()


def cell(value: pa.Scalar) -> str:
    """A value as text; nothing for null."""
    shown = plain(value)
    return "" if shown is None else shown if isinstance(shown, str) else to_json(shown)


def size(count: int) -> str:
    """Bytes as people say them."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        amount /= 1000
        if amount < 999.95 or unit == "PB":
            break
    return f"{amount:,.1f} {unit}"


def width() -> int:
    """How many letters a line of the terminal has."""
    return shutil.get_terminal_size().columns - 1


def _window(window: Mapping[str, int] | None) -> str:
    """What bounds a state in time."""
    if window is None:
        return ""
    said = {name: show_duration(length) for name, length in window.items()}
    if "size" not in said:
        return f", sessions by {said['gap']}" if "gap" in said else f", for {said['ttl']}"
    return f", windows of {said['size']}" + (f" each {said['step']}" if said["step"] != said["size"] else "")


def _monoid(task: Mapping[str, Any]) -> str:
    """The monoid's name and what is in it."""
    _, nested, inner = task["type"].partition("<")
    return _cut(f"{task['monoid']}<{inner}" if nested else f"{task['monoid']}<{task['type']}>")


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _pairs(pairs: Mapping[str, str | Sequence[str]]) -> Iterator[str]:
    wide = max(map(len, pairs))
    for name, values in pairs.items():
        for place, value in enumerate([values] if isinstance(values, str) else values):
            yield f"{'' if place else name:<{wide}}  {value}"


def _printable(text: str) -> str:
    """The text, or if letters of it would disturb a terminal, its JSON."""
    return text if text.isprintable() else json.dumps(text)


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."


def _width(text: str) -> int:
    """How many places of a terminal the text takes."""
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text
    )
