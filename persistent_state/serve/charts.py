"""Draw clocks, lags and paces as SVG, in the colours of the page's style. Tables beside them say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from persistent_state.formatting import shortened, show_clock
from persistent_state.serve.recent import Point
from persistent_state.serve.rendering import render
from persistent_state.show import words

WIDE, ROW = 720, 38
"""Pixels: of a drawing over time, and of a row of the axis: the name, and the rail below it."""

RAIL = (2.0, 98.0)
"""The ends of the rails of the axis, in hundredths of its width: it fits any screen, and letters keep their size."""

HIGH, LOW, TOP = 190, 34, 14
"""Pixels of a chart over time: its height, and what is left below and above it."""

COLOURS = 6
"""The number of colours of lines; the style of the page has them."""

Marks = Sequence[tuple[str, int]]
"""Marks of a row: their kind, and where they are."""


def axis(summary: Mapping[str, Any]) -> Markup:
    """Return every clock of an application on one axis of event time, with the global one as a line through all rows."""
    rows = [*_rows(summary)]
    places = [at for _, marks in rows for _, at in marks]
    clock = summary["clock"]
    if clock is None and not places:
        return Markup()
    places += [] if clock is None else [clock]
    first, last = min(places), max(places)
    high = TOP + ROW * len(rows) + LOW
    scale = _scale(first, last, *RAIL)

    def across(at: int) -> str:
        return f"{scale(at):.2f}%"

    def row(place: int, name: str, marks: Marks) -> dict[str, Any]:
        spots = [(kind, across(at)) for kind, at in marks]
        has_span = len(spots) > 1 and spots[0][0] != "kept"
        return {
            "name": name,
            "shown": shortened(name),
            "y": TOP + ROW * place - 10,
            "spots": spots,
            "span": (spots[0][1], spots[-1][1]) if has_span else None,
        }

    drawn = render(
        "axis.svg",
        label=f"Clocks on one axis of event time, from {show_clock(first)} to {show_clock(last)}",
        high=high,
        low=high - LOW + 4,
        rail=RAIL,
        clock=None if clock is None else across(clock),
        rows=[row(place, name, marks) for place, (name, marks) in enumerate(rows, 1)],
        first=show_clock(first),
        last=show_clock(last),
    )
    return Markup(drawn)


def _rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, Marks]]:
    clock = summary["clock"]
    yield "global clock", [] if clock is None else [("clock", clock)]
    for task in summary["tasks"]:
        newest = task["channels"]["newest_at"]
        marks = [] if task["clock"] is None else [("clock", task["clock"])]
        yield task["task"], [*marks, *([] if newest is None else [("newest", newest)])]
        for each in task["outputs"]:
            yield f"→ {each['output']}", [] if each["clock"] is None else [("output", each["clock"])]
    if kept := {*summary["retained"], *(each["clock"] for each in summary["kept"])}:
        yield "kept clocks", [("kept", clock) for clock in sorted(kept)]


def clocks(points: Sequence[Point]) -> Markup:
    """Return how the clocks have moved over the last entries: a line for each task, and the global clock."""
    names = sorted({name for point in points for name in point.tasks})
    lines = [(name, [(point.written, point.tasks.get(name)) for point in points]) for name in names]
    lines.append(("global clock", [(point.written, point.clock) for point in points]))
    marks = [after.written for before, after in pairwise(points) if after.timeline != before.timeline]
    return _over_time("Clocks over the last entries", lines, _clock, marks=marks, from_zero=False)


def over_time(
    title: str, name: str, values: Sequence[tuple[int, float | None]], show: Callable[[float], str]
) -> Markup:
    """Return how a number has changed over time, as a line above zero."""
    return _over_time(title, [(name, values)], show)


def _clock(at: float) -> str:
    return show_clock(round(at))


def _over_time(
    title: str,
    lines: Sequence[tuple[str, Sequence[tuple[int, float | None]]]],
    show: Callable[[float], str],
    marks: Sequence[int] = (),
    from_zero: bool = True,
) -> Markup:
    times = [time for _, values in lines for time, value in values if value is not None]
    heights = [value for _, values in lines for _, value in values if value is not None]
    if len(set(times)) < 2:
        return Markup()
    least, greatest = 0 if from_zero else min(heights), max(heights)
    low, first, last = HIGH - LOW, min(times), max(times)
    across, up = _scale(first, last, 0, WIDE), _scale(least, greatest, low, TOP)

    def path(values: Sequence[tuple[int, float | None]]) -> str:
        steps, y_before = list[str](), None
        for time, value in values:
            if value is None:
                y_before = None
                continue
            x, y = across(time), up(value)
            # A clock stays until the next entry moves it.
            steps.append(f"M{x:.1f} {y:.1f}" if y_before is None else f"L{x:.1f} {y_before:.1f}L{x:.1f} {y:.1f}")
            y_before = y
        return "".join(steps)

    drawn = render(
        "over_time.svg",
        label=f"{title}, written from {show_clock(first)} to {show_clock(last)}",
        wide=WIDE,
        high=HIGH,
        top=TOP,
        low=low,
        marks=[f"{across(at):.1f}" for at in marks],
        lines=[(kind, name, path(values)) for kind, (name, values) in zip(_kinds(len(lines)), lines, strict=True)],
        greatest=show(greatest),
        least=show(least),
        first=show_clock(first),
        last=show_clock(last),
    )
    return Markup(drawn)


def _kinds(lines: int) -> list[str]:
    """Return the class of each line. The last line is that of all."""
    return [*(f"colour{place % COLOURS}" for place in range(lines - 1)), "total"]


def _scale(first: float, last: float, left: float, right: float) -> Callable[[float], float]:
    span = (last - first) or 1
    return lambda at: left + (at - first) / span * (right - left)


def key(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Return the classes and the names of the lines of `clocks`."""
    names = [*sorted({name for point in points for name in point.tasks}), "global clock"]
    return [*zip(_kinds(len(names)), names, strict=True)]


def seconds(microseconds: float) -> str:
    """Return a length of time as text."""
    return words.length(round(microseconds))


LEAST = 0.01
"""The least pace that is shown as a number."""


def a_second(positions: float) -> str:
    """Return a pace as text."""
    if 0 < positions < LEAST:
        return f"less than {LEAST} a second"
    return f"{positions:,.0f} a second" if positions >= 10 or not positions else f"{positions:.2g} a second"
