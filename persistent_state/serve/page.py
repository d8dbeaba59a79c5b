"""Write the page: what applications of a store do, why their clocks stand, and a form to look keys up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from persistent_state.event_time.durations import show_duration
from persistent_state.formatting import full_clock, show_clock
from persistent_state.serve import charts
from persistent_state.serve.lookups import Question
from persistent_state.serve.recent import Pace, Point, pace, paces
from persistent_state.serve.rendering import render
from persistent_state.serve.samples import Sample
from persistent_state.serve.watch import Detail, StoreStatus
from persistent_state.show import markup, tables, top, words
from persistent_state.show.tables import Table
from persistent_state.show.top import ApplicationStatus

MOST_CLOCKS = 100
"""The most kept clocks that a form and a table list: the newest, and those with a name."""


@dataclass(frozen=True)
class LookupResult:
    """The result of a look-up: its answer, or why it has no answer."""

    question: Question
    answer: Mapping[str, Any] | None = None
    error: str = ""


def page(
    store: str,
    store_status: StoreStatus,
    chosen: ApplicationStatus | None,
    detail: Detail,
    result: LookupResult | None,
    now: int,
) -> str:
    """Return the page.

    Args:
        store: The store, as people are shown it.
        store_status: The status of its applications.
        chosen: The application that is shown in full.
        detail: What else is shown of it.
        result: The result of a look-up; None if the page has none.
        now: The present time, microseconds UTC.
    """
    return render(
        "page.html",
        store=store,
        status=store_status,
        applications=_applications(store_status.applications),
        chosen=chosen,
        summary=None if chosen is None else chosen.summary,
        **({} if chosen is None else _application(chosen, detail, now)),
        **({} if chosen is None or chosen.summary is None else _lookup(chosen.summary, result)),
    )


def login(is_wrong: bool) -> str:
    """Return the page that asks for the token."""
    return render("login.html", is_wrong=is_wrong)


def _applications(applications: Sequence[ApplicationStatus]) -> Table:
    rows = [
        (
            application.name,
            "none yet" if application.summary is None else show_clock(application.summary["clock"]),
            "-" if application.summary is None else words.waits_for(application.summary),
            "-" if application.summary is None else words.size(application.summary["bytes"]),
            "can't be read" if application.error else "can be read",
        )
        for application in applications
    ]
    return Table(("application", "clock", "waits for", "size", "log"), rows, {3})


def _application(application: ApplicationStatus, detail: Detail, now: int) -> dict[str, Any]:
    """Return the values of the template of an application."""
    errors = [error for error in dict.fromkeys((application.error, detail.error)) if error]
    summary, points = application.summary, detail.points
    if summary is None:
        return {"errors": errors}
    every, kept = summary["tasks"], _kept(summary)
    tells_positions = any(point.read for point in points)
    steps = paces(points) if tells_positions else []
    return {
        "errors": errors,
        "waits_for": words.waits_for(summary),
        "facts": _facts(application, detail, now),
        "graph": markup.graph_data(summary),
        "progress": top.tasks(every),
        "tasks": tables.tasks(every),
        "outputs": top.outputs(every),
        "channels": tables.channels(every),
        "axis": charts.axis(summary),
        "clocks": charts.clocks(points),
        "key": charts.key(points),
        "tells_positions": tells_positions,
        "paces": charts.over_time(
            "Positions read a second", "positions", [(each.written, each.positions) for each in steps], charts.a_second
        ),
        "lags": charts.over_time("Lag", "lag", [(point.written, point.lag) for point in points], charts.seconds),
        "entries": _entries(points, steps),
        "late_and_bad": tables.late_and_bad(every) if any(task["late_and_bad"] for task in every) else None,
        "samples": [
            (number, task, _samples(samples))
            for number, (task, samples) in enumerate(detail.samples.items())
            if samples
        ],
        "kept": kept,
        "kept_caption": _kept_caption(summary, len(kept.rows)),
        "timelines": _timelines(points),
    }


def _facts(application: ApplicationStatus, detail: Detail, now: int) -> dict[str, str]:
    """Return the facts of an application, by name."""
    summary = application.summary
    assert summary is not None
    facts = top.facts(application, now)
    own = {name: fact for name, fact in facts.items() if name not in ("application", "waits for", "error")}
    read = pace(detail.points)
    return {
        **own,
        **({} if summary["next"] is None else {"next clock": full_clock(summary["next"])}),
        **(
            {}
            if read is None or not any(point.read for point in detail.points)
            else {"throughput": f"{charts.a_second(read)}, by positions of the sources"}
        ),
        "interval": show_duration(summary["interval"]),
        "shards": f"{summary['shards']:,}",
    }


def _entries(points: Sequence[Point], steps: Sequence[Pace]) -> Table:
    by_time = {each.written: each for each in steps}
    rows = [
        (
            f"{point.entry:,}",
            show_clock(point.written),
            show_clock(point.clock),
            "-" if point.lag is None else words.length(point.lag),
            "-" if (pace_then := by_time.get(point.written)) is None else f"{pace_then.positions:,.0f}",
        )
        for point in reversed(points[-20:])
    ]
    return Table(("entry", "written", "global clock", "lag", "positions a second"), rows, {0, 3, 4})


def _samples(samples: Sequence[Sample]) -> Table:
    return Table(
        ("reason", "timestamp", "where", "row"), [(each.reason, each.time, each.place, each.row) for each in samples]
    )


def _kept(summary: Mapping[str, Any]) -> Table:
    rows = [
        (show_clock(clock), str(clock), ", ".join(names) or "-", "yes" if clock in summary["retained"] else "no")
        for clock, names in _readable(summary)
    ]
    return Table(("clock", "microseconds", "names", "among the newest"), rows, {1})


def _kept_caption(summary: Mapping[str, Any], shown: int) -> str:
    clocks = {*summary["retained"], *(each["clock"] for each in summary["kept"])}
    caption = "The clocks at which the state can be read"
    return f"{caption}: {shown} of {len(clocks):,}" if shown == MOST_CLOCKS else caption


def _readable(summary: Mapping[str, Any]) -> list[tuple[int, Sequence[str]]]:
    """Return the clocks at which the state can be read with their names: the newest first, of many not all."""
    names: dict[int, Sequence[str]] = dict.fromkeys(summary["retained"], ())
    names |= {each["clock"]: each["names"] for each in summary["kept"]}
    order = sorted(names, key=lambda clock: (bool(names[clock]), clock), reverse=True)[:MOST_CLOCKS]
    return [(clock, names[clock]) for clock in sorted(order, reverse=True)]


def _timelines(points: Sequence[Point]) -> Table:
    by_timeline: dict[int, list[Point]] = {}
    for point in points:
        by_timeline.setdefault(point.timeline, []).append(point)
    rows = [
        (
            f"{timeline:,}",
            f"{some[0].entry:,} to {some[-1].entry:,}",
            show_clock(some[0].written),
            show_clock(some[-1].clock),
        )
        for timeline, some in by_timeline.items()
    ]
    return Table(("timeline", "entries", "from", "last clock"), rows)


def _lookup(summary: Mapping[str, Any], result: LookupResult | None) -> dict[str, Any]:
    """Return the values of the template of the look-up."""
    values = {"result": result, "readable": _readable(summary)}
    if result is None or result.answer is None:
        return values
    answer = result.answer
    key = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in answer["key"].items())
    value = answer["windows"] if "windows" in answer else answer["value"]
    return {
        **values,
        "asked_at": f"{answer['task']} at {full_clock(answer['clock'])}" + (f": {key}" if key else ""),
        "value": "" if value in (None, []) else json.dumps(value, ensure_ascii=False, indent=2),
    }
