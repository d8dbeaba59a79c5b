"""Look at the applications of a store again and again, as operators do: at clocks, at what they wait for, and at what lags."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from persistent_state.errors import NotThereError, StateError
from persistent_state.formatting import pairs, show_clock
from persistent_state.show import summary, words
from persistent_state.show.tables import Table
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import Files
from persistent_state.store.flow_state import OUTSIDE
from persistent_state.store.late_rows import LATE
from persistent_state.store.log import Log
from persistent_state.store.state_at import find_applications, no_application

SPAN = 60.0
"""The seconds over which the movement of a global clock is measured."""

SHORTEST = 1.0
"""The least seconds over which it is measured."""


@dataclass(frozen=True)
class ApplicationStatus:
    """The status of an application.

    Attributes:
        name: The application's name.
        summary: Its summary, or that of an earlier look if this one failed; None if none has worked yet.
        error: Why the look failed; "" if it did not.
        moved: By how much the global clock has moved and in how many seconds; None if that is not known.
    """

    name: str
    summary: Mapping[str, Any] | None
    error: str = ""
    moved: tuple[int, float] | None = None


@dataclass
class _ApplicationReader:
    """The reader of one application: its last status, and earlier clocks with the seconds at which they were read."""

    log: Log
    entry: Entry | None = None
    summary: Mapping[str, Any] | None = None
    clocks: deque[tuple[float, int]] = field(default_factory=deque)

    def look(self, now: float) -> ApplicationStatus:
        """Look at the newest entry. Lists of files are read only if it is another one."""
        try:
            entry = self.log.newest()
            if entry is None:
                raise no_application(self.log.files, self.log.application)
            if self.summary is None or entry is not self.entry:
                self.summary, self.entry = summary.of_log(self.log), entry
        except NotThereError:
            raise
        except (StateError, OSError) as error:
            return ApplicationStatus(self.log.application, self.summary, str(error))
        return ApplicationStatus(self.log.application, self.summary, moved=self._moved(now))

    def _moved(self, now: float) -> tuple[int, float] | None:
        clock = None if self.summary is None else self.summary["clock"]
        if clock is None:
            return None
        if self.clocks and clock < self.clocks[-1][1]:
            # The application was taken back.
            self.clocks.clear()
        self.clocks.append((now, clock))
        while len(self.clocks) > 2 and self.clocks[1][0] <= now - SPAN:
            self.clocks.popleft()
        if self.clocks[0][0] < now - 2 * SPAN:
            # There was no look for long.
            self.clocks.popleft()
        since, before = self.clocks[0]
        return (clock - before, now - since) if now - since >= SHORTEST else None


class StatusReader:
    """Looks at the applications of a store, or at one of them. It reads the store, and nothing else."""

    def __init__(self, files: Files, application: str | None = None) -> None:
        self._files, self._application = files, application
        self._readers: dict[str, _ApplicationReader] = {}

    def look(self, now: float = 0.0) -> list[ApplicationStatus]:
        """Return what is there now. An application that can't be read does not hide the others.

        Args:
            now: Seconds of any clock that does not go back, the same one at every look.

        Raises:
            NotThereError: There is no application, or none of this name.
            StoreRefusedError: The store refuses to list its applications.
            StoreUnavailableError: The store does not list its applications.
        """
        names = find_applications(self._files) if self._application is None else [self._application]
        if not names:
            raise NotThereError(f"there is no application in store={self._files.url}; look at its address.")
        self._readers = {name: self._readers.get(name) or _ApplicationReader(Log(self._files, name)) for name in names}
        found, gone = list[ApplicationStatus](), list[NotThereError]()
        for each in self._readers.values():
            try:
                found.append(each.look(now))
            except NotThereError as error:
                # The application was deleted since the store listed it.
                gone.append(error)
        if not found:
            raise gone[0]
        return found


def facts(status: ApplicationStatus, now: int | None = None) -> dict[str, str]:
    """Return the facts of an application, by name.

    Args:
        status: The status of the application.
        now: The present time, microseconds UTC, to say how long ago the newest entry was written. By default that is not said.
    """
    by_name: dict[str, str] = {"application": status.name}
    if status.summary is not None:
        summary = status.summary
        moved = "" if status.moved is None else ", moved by {} in the last {:.0f} s".format(*_moved(status.moved))
        age = "" if now is None else f", {words.length(max(0, now - summary['written']))} ago"
        by_name |= {
            "clock": show_clock(summary["clock"]) + moved,
            "waits for": words.waits_for(summary),
            "written": f"{show_clock(summary['written'])}{age}, entry {summary['entry']:,} of start {summary['epoch']:,}",
            "size": words.size(summary["bytes"]),
        }
    return by_name | ({"error": status.error} if status.error else {})


def _moved(moved: tuple[int, float]) -> tuple[str, float]:
    by, seconds = moved
    return words.length(by), seconds


def tasks(tasks: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of how far tasks are."""
    rows = []
    for task in tasks:
        aside, newest = task["late_and_bad"], task["channels"]["newest_at"]
        late = aside.get(LATE, 0)
        is_behind = task["clock"] is not None and newest is not None
        rows.append(
            (
                task["task"],
                words.clock_of(task, show_clock),
                "-" if newest is None else show_clock(newest),
                words.length(max(0, newest - task["clock"])) if is_behind else "-",
                f"{late:,}",
                f"{sum(aside.values()) - late - aside.get(OUTSIDE, 0):,}",
                words.size(task["bytes"]),
            )
        )
    return Table(("task", "clock", "newest message", "behind", "late", "bad", "size"), rows, {3, 4, 5, 6})


def outputs(tasks: Sequence[Mapping[str, Any]]) -> Table | None:
    """Return a table of how far the outputs of tasks lag; None if they have no outputs."""
    rows = [
        (
            task["task"],
            each["output"],
            show_clock(each["clock"]) + words.owes(each["back_to"]),
            "-" if each["lag"] is None else words.length(each["lag"]),
            "-" if each["behind"] is None else f"{each['behind']:,}",
        )
        for task in tasks
        for each in task["outputs"]
    ]
    return Table(("task", "output", "delivered up to", "lag", "clocks behind"), rows, {3, 4}) if rows else None


def status_tables(status: ApplicationStatus) -> list[Table]:
    """Return the tables of an application."""
    if status.summary is None:
        return []
    every = [tasks(status.summary["tasks"]), outputs(status.summary["tasks"])]
    return [table for table in every if table is not None]


def lines(statuses: Sequence[ApplicationStatus]) -> Iterator[str]:
    """Yield applications as lines of text."""
    for place, each in enumerate(statuses):
        if place:
            yield from ("", "")
        yield from pairs(facts(each))
        for table in status_tables(each):
            yield ""
            yield from table.lines()


def as_json(status: ApplicationStatus) -> dict[str, Any]:
    """Return an application as JSON knows it: as `show` has it, and with an error if it can't be read."""
    return {"application": status.name, **(status.summary or {}), **({"error": status.error} if status.error else {})}
