"""Say in a few words what a summary has: sizes, times, and what a task reads and keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from persistent_state.event_time.durations import show_duration
from persistent_state.formatting import clock_of_rewind, full_clock, shortened, show_clock
from persistent_state.protocol.holding import NOTHING


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


LENGTHS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("µs", 1))
"""The units of a length of time, with their microseconds."""


def length(microseconds: int) -> str:
    """Return a length of time as text: about, in the two greatest units that it has."""
    for (unit, each), (smaller, part) in zip(LENGTHS, [*LENGTHS[1:], LENGTHS[-1]], strict=True):
        if microseconds >= each:
            rest = microseconds % each // part
            # Those who wait for seconds do not count their thousandths.
            return f"{microseconds // each:,} {unit}" + (f" {rest} {smaller}" if rest and each > 1_000_000 else "")
    return "0 s"


def waits_for(summary: Mapping[str, Any]) -> str:
    """Return what the global clock of an application waits for, as the end of a sentence."""
    return NOTHING if summary["waits_for"] is None else str(summary["waits_for"]["words"])


def clock_of(task: Mapping[str, Any], show: Callable[[int | None], str] = full_clock) -> str:
    """Return the clock of a task, and whether the newest start has left the task out."""
    return show(task["clock"]) if task["active"] else f"{show_clock(task['clock'])}, left out"


def owes(back_to: int | None) -> str:
    """Return in words that an output has yet to go back; "" if it has not."""
    return "" if back_to is None else f", has yet to go back to {clock_of_rewind(back_to)}"


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


def slowest(task: Mapping[str, Any]) -> str:
    """Return the slowest channel of a task, after the name of its input."""
    channel, input = task["channels"]["slowest"], task["channels"]["slowest_input"]
    if channel is None:
        return "-"
    return (f"{input}: " if input else "") + (channel or "(unnamed)")


def state(task: Mapping[str, Any]) -> str:
    """Return what a task keeps: the monoid's name and its parameters, and what bounds the state in time."""
    _, nested, inner = task["type"].partition("<")
    monoid = shortened(f"{task['monoid']}<{inner}" if nested else f"{task['monoid']}<{task['type']}>")
    return monoid + _window(task["window"])


def _window(window: Mapping[str, int] | None) -> str:
    """Return the text for what bounds a state in time: its windows or its time to live."""
    if window is None:
        return ""
    if "passed" in window:
        return ", until the clock has passed"
    if "gap" in window:
        return f", sessions by {show_duration(window['gap'])}"
    if "size" in window:
        each = f" each {show_duration(window['step'])}" if window["step"] != window["size"] else ""
        return f", windows of {show_duration(window['size'])}{each}"
    (length,) = window.values()
    return "" if length is None else f", for {show_duration(length)}"
