"""Write what a store holds as lines of text, for people."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from persistent_state.event_time.durations import show_duration
from persistent_state.formatting import counted, full_clock, pairs, show_clock
from persistent_state.show import tables, words
from persistent_state.show.words import size
from persistent_state.store.verify import Verified

MOST_ITEMS = 10
"""The most items of a list that are shown."""

UNTIL = "until all outputs have them; only a kept clock can be gone back to"
"""The words below clocks that are retained and not kept."""


def applications(summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines that list the applications of a store."""
    return tables.applications(summaries).lines()


def application(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that describe one application and its tasks."""
    yield from pairs(facts(summary))
    tasks = summary["tasks"]
    yield ""
    yield from tables.tasks(tasks).lines()
    yield ""
    yield from tables.late_and_bad(tasks).lines()
    yield from outputs(tasks)
    yield ""
    yield from tables.channels(tasks).lines()


def facts(summary: Mapping[str, Any]) -> dict[str, str | Sequence[str]]:
    """Return the facts of an application that stand before its tasks, by name."""
    names = {each["clock"]: each["names"] for each in summary["kept"]}
    others = [clock for clock in summary["retained"] if clock not in names]
    return {
        **heads(summary),
        "kept": _clocks(names) or ["none yet"],
        **({"retained": [*_clocks(dict.fromkeys(others, ())), UNTIL]} if others else {}),
        "interval": show_duration(summary["interval"]),
        "shards": f"{summary['shards']:,}",
        **(
            {"timeline": f"{summary['timeline']:,}, which began with a rewind or as a branch"}
            if summary["timeline"]
            else {}
        ),
        "epoch": f"{summary['epoch']:,}",
        "entry": f"{summary['entry']:,}, written {show_clock(summary['written'])}",
        "size": size(summary["bytes"]),
    }


def _clocks(names: Mapping[int, Sequence[str]]) -> list[str]:
    """Return lines of clocks with their names. If many have no name, only a few of those are shown."""
    lines = [
        "  ".join([show_clock(clock), str(clock), *([", ".join(some)] if some else [])])
        for clock, some in names.items()
    ]
    if len(lines) <= MOST_ITEMS:
        return lines
    shown = [place for place, some in enumerate(names.values()) if some or place < 2 or place >= len(lines) - 2]
    short: list[str] = []
    for before, place in pairwise([-1, *shown]):
        short += [f"... {place - before - 1:,} more ..."] if place - before > 1 else []
        short.append(lines[place])
    return short


def heads(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the first facts of an application: its name, its clocks, and what the global clock waits for."""
    return {
        "application": summary["application"],
        "clock": full_clock(summary["clock"]),
        **({} if summary["next"] is None else {"next clock": full_clock(summary["next"])}),
        "waits for": words.waits_for(summary),
    }


def outputs(tasks: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield an empty line and a table of how far each output of tasks is, if they have outputs."""
    if (every := tables.outputs(tasks)) is not None:
        yield ""
        yield from every.lines()


def verified(result: Verified) -> Iterator[str]:
    """Yield the lines that report what `verify` found."""
    for path in sorted({problem.path for problem in result.problems}):
        yield path
        yield from (f"  {problem.what}" for problem in result.problems if problem.path == path)
    if result.problems:
        yield ""
    entries = [path for path in result.unreferenced if re.search(r"/log/\d+\.json$", path)]
    many = counted(len(entries), "log entry", "log entries")
    yield from _listed(entries, f"{many} that nothing reads: the older entry from which others go on was deleted:")
    files = sorted({*result.unreferenced} - {*entries})
    many = counted(len(files), "file")
    yield from _listed(files, f"{many} that no log entry names, left from micro-batches that were never committed:")
    what = ", ".join(
        (
            counted(result.applications, "application"),
            counted(result.entries, "log entry", "log entries"),
            counted(result.files, "file"),
            size(result.bytes),
        )
    )
    yield f"{what}: {counted(len(result.problems), 'problem') if result.problems else 'all is as it was written'}"


def _listed(paths: Sequence[str], title: str) -> Iterator[str]:
    """Yield the lines of a list of paths; no line if it is empty."""
    if paths:
        yield title
        yield from (f"  {path}" for path in paths[:MOST_ITEMS])
        if len(paths) > MOST_ITEMS:
            yield f"  ... and {len(paths) - MOST_ITEMS:,} more; --json has all"
        yield ""


def width() -> int:
    """Return how many characters a line of the terminal has."""
    return shutil.get_terminal_size().columns - 1
