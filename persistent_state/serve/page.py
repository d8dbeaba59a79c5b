"""Write the page: what applications of a store do, why their clocks stand, and a form to look keys up. All of it is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlencode

from persistent_state.event_time.durations import show_duration
from persistent_state.formatting import full_clock, show_clock
from persistent_state.serve import charts
from persistent_state.serve.lookups import Question
from persistent_state.serve.recent import Point, pace, paces
from persistent_state.serve.style import SCRIPT, STYLE
from persistent_state.serve.watch import Detail, StoreStatus
from persistent_state.show import markup, tables, top, words
from persistent_state.show.tables import Table
from persistent_state.show.top import ApplicationStatus

MOST_CLOCKS = 100
"""The most kept clocks that a form and a table list: the newest, and those with a name."""


@dataclass(frozen=True)
class LookupResult:
    """The result of a look-up: its answer, or why there is none."""

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
    parts = [
        '<a class="skip" href="#main">Skip to the content</a>',
        f"<header><h1>Store {escape(store)}</h1>",
        '<p id="message" role="status" class="muted"></p>',
        '<p hidden><label><input type="checkbox" id="refresh" checked> Look again every 5 seconds</label></p>',
        "</header>",
        f'<nav aria-label="Applications" id="applications" data-live>{_applications_nav(store_status, chosen)}</nav>',
        '<main id="main">',
        f'<div id="overview" data-live>{"".join(_overview(store_status))}</div>',
    ]
    if chosen is not None:
        parts.append(f'<div id="application" data-live>{"".join(_application(chosen, detail, now))}</div>')
        if chosen.summary is not None:
            parts.append("".join(_forms(chosen.summary, result)))
    parts.append("</main>")
    parts.append(
        '<footer><p class="muted"><a href="metrics">Metrics</a> and <a href="health">health</a> are here for programs, and '
        "<code>lookup</code> answers with JSON. Nothing here changes the store.</p></footer>"
    )
    title = store if chosen is None else f"{chosen.name} · {store}"
    return document(title, "".join(parts))


def login(is_wrong: bool) -> str:
    """Return the page that asks for the token."""
    wrong = '<p class="error" role="alert">This is not the token; look at how the server was started.</p>'
    return document(
        "Token",
        f"""<main><h1>Token</h1>{wrong if is_wrong else ""}<form method="post" action="login">
<p class="field"><label for="token">Token of this server</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus></p>
<p><button>Go on</button></p></form></main>""",
    )


def document(title: str, body: str) -> str:
    """Return a whole document of HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head>'
        f"<body>{body}<script>{SCRIPT}</script></body></html>\n"
    )


def _applications_nav(store_status: StoreStatus, chosen: ApplicationStatus | None) -> str:
    def link(application: ApplicationStatus) -> str:
        current = ' aria-current="page"' if chosen is not None and application.name == chosen.name else ""
        href = escape("?" + urlencode({"application": application.name}))
        return f'<li><a id="to-{escape(application.name)}" href="{href}"{current}>{escape(application.name)}</a></li>'

    return f"<ul>{''.join(map(link, store_status.applications))}</ul>"


def _overview(store_status: StoreStatus) -> Iterator[str]:
    if store_status.error:
        since = "" if store_status.at is None else f" What is shown was seen at {show_clock(store_status.at)}."
        yield f'<p class="error" role="alert">The store can&#x27;t be read: {escape(store_status.error)}{since}</p>'
    if not store_status.applications:
        if not store_status.error:
            yield '<p class="says">There is nothing to show yet.</p>'
        return
    rows = [
        (
            application.name,
            "none yet" if application.summary is None else show_clock(application.summary["clock"]),
            "-" if application.summary is None else words.waits_for(application.summary),
            "-" if application.summary is None else words.size(application.summary["bytes"]),
            "can't be read" if application.error else "can be read",
        )
        for application in store_status.applications
    ]
    yield "<section><h2>Applications</h2>"
    yield _table(
        Table(("application", "clock", "waits for", "size", "log"), rows, {3}), "The applications of this store"
    )
    yield "</section>"


def _application(application: ApplicationStatus, detail: Detail, now: int) -> Iterator[str]:
    yield f"<section><h2>Application {escape(application.name)}</h2>"
    for error in dict.fromkeys((application.error, detail.error)):
        if error:
            yield f'<p class="error">{escape(error)}</p>'
    summary = application.summary
    if summary is None:
        yield "</section>"
        return
    yield f'<p class="says">The global clock waits for {escape(words.waits_for(summary))}.</p>'
    yield markup.facts(_application_facts(application, detail, now), "How far it is")
    yield "<h3>Tasks, and what feeds them</h3>"
    yield _wide("The graph of the tasks", markup.graph_image(summary, "; the tables below tell the same"))
    yield _table(top.tasks(summary["tasks"]), "How far each task is")
    yield _table(tables.tasks(summary["tasks"]), "What each task reads and keeps, and its size")
    if (outputs := top.outputs(summary["tasks"])) is not None:
        yield _table(outputs, "How far each output is")
    if (channels := tables.channels(summary["tasks"])).rows:
        yield _table(channels, "The channels of each task that a source feeds")
    yield "<h3>Clocks on one axis</h3>"
    yield from _clocks(summary, detail.points)
    yield "<h3>Throughput and lag</h3>"
    yield from _recent(detail.points)
    yield "<h3>Late and bad rows</h3>"
    yield from _late_and_bad(summary, detail)
    yield "<h3>Kept clocks</h3>"
    yield _kept(summary)
    yield "<h3>Timelines</h3>"
    yield from _timelines(summary, detail.points)
    yield "</section>"


def _application_facts(application: ApplicationStatus, detail: Detail, now: int) -> dict[str, str]:
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


def _clocks(summary: Mapping[str, Any], points: Sequence[Point]) -> Iterator[str]:
    if chart := charts.axis(summary):
        yield (
            '<p class="muted">A full dot is the clock of a task, an empty one its newest message. The dashed line is the '
            "global clock. A dot after an arrow is how far an output is, and a small one is a kept clock.</p>"
        )
        yield _wide("Clocks on one axis", chart)
    else:
        yield "<p>There is no clock yet.</p>"
    if chart := charts.clocks(points):
        yield '<h4>Over the last entries</h4><ul class="key">'
        for kind, name in charts.key(points):
            line = f'<svg viewBox="0 0 34 10" aria-hidden="true"><path class="line {kind}" d="M0 5H34"/></svg>'
            yield f"<li>{line}{escape(name)}</li>"
        yield "</ul>" + _wide("Clocks over the last entries", chart)
        if len({point.timeline for point in points}) > 1:
            yield '<p class="muted">A dotted line from top to bottom is where the application was taken back.</p>'


def _recent(points: Sequence[Point]) -> Iterator[str]:
    steps = paces(points) if any(point.read for point in points) else []
    chart = charts.over_time(
        "Positions read a second", "positions", [(each.written, each.positions) for each in steps], charts.a_second
    )
    if chart:
        yield f"<h4>Positions read a second</h4>{_wide('Positions read a second', chart)}"
    chart = charts.over_time("Lag", "lag", [(point.written, point.lag) for point in points], charts.seconds)
    if chart:
        yield f"<h4>Lag: the global clock behind the newest message, in event time</h4>{_wide('Lag', chart)}"
    if points and not any(point.read for point in points):
        yield "<p>The sources do not tell how much was read: positions of files, for one, leave numbers out.</p>"
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
    if not rows:
        yield "<p>Nothing is known of the last entries.</p>"
        return
    table = Table(("entry", "written", "global clock", "lag", "positions a second"), rows, {0, 3, 4})
    inner = _table(table, "The last entries, the newest first")
    yield f'<details id="entries"><summary>The last entries as a table</summary>{inner}</details>'


def _late_and_bad(summary: Mapping[str, Any], detail: Detail) -> Iterator[str]:
    if not any(task["late_and_bad"] for task in summary["tasks"]):
        yield "<p>There are none.</p>"
        return
    yield _table(tables.late_and_bad(summary["tasks"]), "Rows that did not count, by reason")
    for number, (task, samples) in enumerate(detail.samples.items()):
        if samples:
            rows = [(each.reason, each.time, each.place, each.row) for each in samples]
            table = _table(
                Table(("reason", "timestamp", "where", "row"), rows), f"Samples of {task}", classes={3: "sample"}
            )
            yield f'<details id="samples-{number}"><summary>Samples of {escape(task)}</summary>{table}</details>'


def _kept(summary: Mapping[str, Any]) -> str:
    readable = _readable(summary)
    if not readable:
        return "<p>No clock is kept yet.</p>"
    rows = [
        (show_clock(clock), str(clock), ", ".join(names) or "-", "yes" if clock in summary["retained"] else "no")
        for clock, names in readable
    ]
    caption = "The clocks at which the state can be read" + (
        f": {len(rows)} of {len({*summary['retained']} | {each['clock'] for each in summary['kept']}):,}"
        if len(rows) == MOST_CLOCKS
        else ""
    )
    return _table(Table(("clock", "microseconds", "names", "among the newest"), rows, {1}), caption)


def _readable(summary: Mapping[str, Any]) -> list[tuple[int, Sequence[str]]]:
    """Return the clocks at which the state can be read with their names: the newest first, of many not all."""
    names: dict[int, Sequence[str]] = dict.fromkeys(summary["retained"], ())
    names |= {each["clock"]: each["names"] for each in summary["kept"]}
    order = sorted(names, key=lambda clock: (bool(names[clock]), clock), reverse=True)[:MOST_CLOCKS]
    return [(clock, names[clock]) for clock in sorted(order, reverse=True)]


def _timelines(summary: Mapping[str, Any], points: Sequence[Point]) -> Iterator[str]:
    now = summary["timeline"]
    if now:
        yield f"<p>The present timeline began with start {now:,}: the application was taken back, or is a branch.</p>"
    else:
        yield "<p>The application was never taken back.</p>"
    by_timeline: dict[int, list[Point]] = {}
    for point in points:
        by_timeline.setdefault(point.timeline, []).append(point)
    if len(by_timeline) < 2:
        return
    rows = [
        (
            f"{timeline:,}",
            f"{some[0].entry:,} to {some[-1].entry:,}",
            show_clock(some[0].written),
            show_clock(some[-1].clock),
        )
        for timeline, some in by_timeline.items()
    ]
    yield _table(Table(("timeline", "entries", "from", "last clock"), rows), "Timelines among the last entries")


def _forms(summary: Mapping[str, Any], result: LookupResult | None) -> Iterator[str]:
    yield '<section id="lookup"><h2>Look a key up</h2>'
    if result is not None:
        yield _answer(result)
    for number, task in enumerate(summary["tasks"]):
        is_asked = result is not None and result.question.task == task["task"]
        yield _form(summary, task, number, result.question if result is not None and is_asked else None)
    yield "</section>"


def _answer(result: LookupResult) -> str:
    if result.answer is None:
        return f'<p class="error" role="alert">{escape(result.error)}</p>'
    answer = result.answer
    key = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in answer["key"].items())
    value = answer["windows"] if "windows" in answer else answer["value"]
    none = "The key is not there, or has no value." if value in (None, []) else ""
    content = none or f"<pre>{escape(json.dumps(value, ensure_ascii=False, indent=2))}</pre>"
    where = f"{answer['task']} at {full_clock(answer['clock'])}" + (f": {key}" if key else "")
    return f'<div role="status"><h3>{escape(where)}</h3>{content}</div>'


def _form(summary: Mapping[str, Any], task: Mapping[str, Any], number: int, question: Question | None) -> str:
    fields = []
    for place, column in enumerate(task["key"]):
        id = f"key-{number}-{place}"
        value = escape("" if question is None else question.columns.get(column, ""))
        is_null = " checked" if question is not None and column in question.nulls else ""
        fields.append(
            f'<p class="field"><label for="{id}">{escape(column)}</label>'
            f'<input id="{id}" name="key.{escape(column)}" value="{value}" autocomplete="off" autocapitalize="off" '
            f'spellcheck="false"><label for="{id}-null"><input type="checkbox" id="{id}-null" name="null" '
            f'value="{escape(column)}"{is_null}> {escape(column)} is null</label></p>'
        )
    options = ['<option value="">the newest</option>']
    chosen = "" if question is None else question.clock
    for clock, names in _readable(summary):
        is_chosen = " selected" if chosen in (str(clock), *names) else ""
        named = f" {', '.join(names)}" if names else ""
        options.append(f'<option value="{clock}"{is_chosen}>{escape(show_clock(clock) + named)}</option>')
    return (
        f'<details id="form-{number}"{" open" if question is not None or len(summary["tasks"]) == 1 else ""}>'
        f"<summary>{escape(task['task'])}</summary>"
        '<form method="get" action="./#lookup">'
        f'<input type="hidden" name="application" value="{escape(summary["application"])}">'
        f'<input type="hidden" name="task" value="{escape(task["task"])}">'
        f'{"".join(fields)}<p class="field"><label for="clock-{number}">clock</label>'
        f'<select id="clock-{number}" name="clock">{"".join(options)}</select></p>'
        f"<p><button>Look up in {escape(task['task'])}</button></p></form></details>"
    )


def _table(table: Table, caption: str, classes: Mapping[int, str] | None = None) -> str:
    """Return a table with its caption. The first column names the rows."""
    return _wide(caption, markup.table(table, caption, classes))


def _wide(name: str, inner: str) -> str:
    """Return what may be wider than a phone, to be scrolled by keyboard too."""
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escape(name)}">{inner}</div>'
