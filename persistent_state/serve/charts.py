"""Draw clocks, lags and paces as SVG, in the colours of the page's style. Tables beside them tell the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from persistent_state.formatting import shortened, show_clock
from persistent_state.serve.recent import Point
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


def axis(summary: Mapping[str, Any]) -> str:
    """Return every clock of an application on one axis of event time, with the global one as a line through all rows."""
    rows = [*_rows(summary)]
    places = [at for _, marks in rows for _, at in marks]
    if summary["clock"] is None and not places:
        return ""
    places += [] if summary["clock"] is None else [summary["clock"]]
    first, last = min(places), max(places)
    high = TOP + ROW * len(rows) + LOW
    across = _scale(first, last, *RAIL)
    parts = []
    if summary["clock"] is not None:
        x = across(summary["clock"])
        parts.append(f'<line class="global" x1="{x:.2f}%" x2="{x:.2f}%" y1="4" y2="{high - LOW + 4}"/>')
    for place, (name, marks) in enumerate(rows):
        y = TOP + ROW * (place + 1) - 10
        parts.append(
            f'<text class="name" x="0" y="{y - 13}"><title>{escape(name)}</title>{escape(shortened(name))}</text>'
        )
        parts.append(f'<line class="rail" x1="{RAIL[0]}%" x2="{RAIL[1]}%" y1="{y}" y2="{y}"/>')
        spots = [(kind, across(at)) for kind, at in marks]
        if len(spots) > 1 and spots[0][0] != "kept":
            parts.append(f'<line class="span" x1="{spots[0][1]:.2f}%" x2="{spots[-1][1]:.2f}%" y1="{y}" y2="{y}"/>')
        parts += [f'<circle class="{kind}" cx="{x:.2f}%" cy="{y}" r="5"/>' for kind, x in spots]
    parts += _ends(first, last, high - 12, show_clock, right="100%")
    label = f"Clocks on one axis of event time, from {show_clock(first)} to {show_clock(last)}"
    return f'<svg class="chart" height="{high}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


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


def clocks(points: Sequence[Point]) -> str:
    """Return how the clocks have moved over the last entries: a line for each task, and the global clock."""
    names = sorted({name for point in points for name in point.tasks})
    lines = [(name, [(point.written, point.tasks.get(name)) for point in points]) for name in names]
    lines.append(("global clock", [(point.written, point.clock) for point in points]))
    marks = [after.written for before, after in pairwise(points) if after.timeline != before.timeline]
    return _over_time("Clocks over the last entries", lines, _clock, marks=marks, from_zero=False)


def over_time(title: str, name: str, values: Sequence[tuple[int, float | None]], show: Callable[[float], str]) -> str:
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
) -> str:
    times = [time for _, values in lines for time, value in values if value is not None]
    heights = [value for _, values in lines for _, value in values if value is not None]
    if len(set(times)) < 2:
        return ""
    low, top = 0 if from_zero else min(heights), max(heights)
    across, up = _scale(min(times), max(times), 0, WIDE), _scale(low, top, HIGH - LOW, TOP)
    parts = [f'<line class="rail" x1="0" x2="{WIDE}" y1="{y}" y2="{y}"/>' for y in (TOP, HIGH - LOW)]
    parts += [
        f'<line class="back" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HIGH - LOW}"/>' for x in map(across, marks)
    ]
    for place, (name, values) in enumerate(lines):
        is_last = place == len(lines) - 1
        steps, y_before = list[str](), None
        for time, value in values:
            if value is None:
                y_before = None
                continue
            x, y = across(time), up(value)
            # A clock stays until the next entry moves it.
            steps.append(f"M{x:.1f} {y:.1f}" if y_before is None else f"L{x:.1f} {y_before:.1f}L{x:.1f} {y:.1f}")
            y_before = y
        kind = "line total" if is_last else f"line colour{place % COLOURS}"
        parts.append(f'<path class="{kind}" d="{"".join(steps)}"><title>{escape(name)}</title></path>')
    parts.append(f'<text x="0" y="{TOP - 3}" class="small">{escape(show(top))}</text>')
    parts.append(f'<text x="0" y="{HIGH - LOW + 13}" class="small">{escape(show(low))}</text>')
    parts += _ends(min(times), max(times), HIGH - 4, show_clock, right=str(WIDE))
    return _svg(f"{title}, written from {show_clock(min(times))} to {show_clock(max(times))}", HIGH, parts)


def _ends(first: int, last: int, y: float, show: Callable[[int], str], right: str) -> list[str]:
    ends = [f'<text class="small" x="0" y="{y}">{escape(show(first))}</text>']
    if first == last:
        return ends
    return [*ends, f'<text class="small" text-anchor="end" x="{right}" y="{y}">{escape(show(last))}</text>']


def _scale(first: float, last: float, left: float, right: float) -> Callable[[float], float]:
    span = (last - first) or 1
    return lambda at: left + (at - first) / span * (right - left)


def _svg(label: str, high: float, parts: Sequence[str]) -> str:
    head = f'<svg class="chart scaled" viewBox="0 0 {WIDE} {high:.0f}" role="img" aria-label="{escape(label)}">'
    return f"{head}{''.join(parts)}</svg>"


def key(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Return the classes and the names of the lines of `clocks`."""
    names = sorted({name for point in points for name in point.tasks})
    return [*((f"colour{place % COLOURS}", name) for place, name in enumerate(names)), ("total", "global clock")]


def seconds(microseconds: float) -> str:
    """Return a length of time as text."""
    return words.length(round(microseconds))


LEAST = 0.01
"""The least pace that is told as a number."""


def a_second(positions: float) -> str:
    """Return a pace as text."""
    if 0 < positions < LEAST:
        return f"less than {LEAST} a second"
    return f"{positions:,.0f} a second" if positions >= 10 or not positions else f"{positions:.2g} a second"
