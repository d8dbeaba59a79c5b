"""Write what a store holds as HTML, for notebooks: self-contained, escaped, and in the colours of whatever page it is in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from persistent_state.redact import shown
from persistent_state.show import markup, summary, tables, text, words
from persistent_state.show.tables import Table
from persistent_state.show.top import StatusReader
from persistent_state.store.files.base import Files

STYLE = (
    ".persistent-state table{border-collapse:collapse;margin:.6em 0;font-variant-numeric:tabular-nums}"
    ".persistent-state th,.persistent-state td{padding:.2em .8em .2em 0;text-align:left;vertical-align:top;"
    "color:inherit;background:none}"
    ".persistent-state thead th{border-bottom:1px solid rgba(128,128,128,.6)}"
    ".persistent-state .right{text-align:right;white-space:nowrap}"
    ".persistent-state .facts th{font-weight:normal;opacity:.75}"
    ".persistent-state img{max-width:100%}"
)
"""The colours are those of the page, so that it suits dark and light ones."""


def store(files: Files) -> str:
    """Return the applications of a store as HTML. One that can't be read has a sentence in its place.

    Raises:
        StateError: There is no application, or the store does not answer.
    """
    applications = StatusReader(files).look()
    summaries = [each.summary for each in applications if each.summary is not None]
    errors = [each.error for each in applications if each.error]
    parts = [markup.table(tables.applications(summaries))] if summaries else []
    return _block(f"Store {shown(files.url)}", [*parts, *map(_sentence, errors)])


def application(files: Files, name: str) -> str:
    """Return an application and its graph as HTML.

    Raises:
        StateError: There is no such application, it is damaged, or the store does not answer.
    """
    described = summary.summary(files, name)
    facts = {name: fact for name, fact in text.facts(described).items() if name != "application"}
    return _block(
        f"Application {name}",
        [markup.facts(facts), f"<p>{markup.graph_image(described)}</p>", *_tables(described["tasks"])],
    )


def task(files: Files, application: str, name: str) -> str:
    """Return a task of an application as HTML.

    Raises:
        StateError: There is no such application, it is damaged, or the store does not answer.
    """
    described = summary.summary(files, application)
    found = next((each for each in described["tasks"] if each["task"] == name), None)
    if found is None:
        known = ", ".join(each["task"] for each in described["tasks"])
        return sentence(f"application {application} has no task {name}; it has {known}.")
    facts = {
        "reads": words.reads(found["inputs"]),
        "key": ", ".join(found["key"]) or "-",
        "state": words.state(found),
        "clock": words.clock_of(found),
        "size": f"{words.size(found['bytes'])} in {found['files']:,} files",
    }
    return _block(f"Task {name} of application {application}", [markup.facts(facts), *_tables([found])[1:]])


def rows(title: str, facts: Mapping[str, str]) -> str:
    """Return as HTML which rows of a store these are. None of them is read."""
    return _block(title, [markup.facts(facts)])


def definition(title: str, facts: Mapping[str, str], tasks: Table) -> str:
    """Return as HTML how an application is defined."""
    return _block(title, [markup.facts(facts), markup.table(tasks)])


def sentence(said: str) -> str:
    """Return as HTML why there is nothing to show."""
    return _block("", [_sentence(said)])


def _tables(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tables of tasks."""
    every = [tables.tasks(tasks), tables.outputs(tasks), tables.late_and_bad(tasks), tables.channels(tasks)]
    return [markup.table(each) for each in every if each is not None and each.rows]


def _block(title: str, parts: Iterable[str]) -> str:
    head = f"<p><strong>{escape(title)}</strong></p>" if title else ""
    return f'<div class="persistent-state"><style>{STYLE}</style>{head}{"".join(parts)}</div>'


def _sentence(said: str) -> str:
    return f"<p>{escape(said)}</p>"
