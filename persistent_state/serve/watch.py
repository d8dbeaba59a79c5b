"""Look at a store for the page: the last status stays if the store does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from persistent_state.errors import NotThereError, StateError
from persistent_state.serve import recent, samples
from persistent_state.serve.recent import Point, Recent
from persistent_state.serve.samples import Sample
from persistent_state.serve.shared import Shared
from persistent_state.show.top import ApplicationStatus, StatusReader
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import Files
from persistent_state.store.log import Log


@dataclass(frozen=True)
class StoreStatus:
    """The status of a store.

    Attributes:
        applications: The status of each application; that of an earlier look if the store did not answer.
        error: Why the store did not list its applications; "" if it did.
        at: The time of that look, microseconds UTC by the wall clock; None if no look has worked.
    """

    applications: Sequence[ApplicationStatus] = ()
    error: str = ""
    at: int | None = None


@dataclass(frozen=True)
class Detail:
    """Details of an application that the page shows beside its status.

    Attributes:
        points: The points of its last entries.
        samples: By task, samples of late and bad rows.
        error: Why some of this is missing; "" if all is there.
    """

    points: Sequence[Point] = ()
    samples: Mapping[str, Sequence[Sample]] = field(default_factory=dict)
    error: str = ""


class Watch:
    """Looks at a store when it is asked. A look serves everybody who asks within a second.

    Args:
        files: The files of the store.
        seconds: A clock that does not go back.
        now_us: The wall clock, microseconds UTC.
    """

    def __init__(self, files: Files, seconds: Callable[[], float], now_us: Callable[[], int]) -> None:
        self._files, self._seconds, self._now_us = files, seconds, now_us
        self._reader, self._lock = StatusReader(files), threading.Lock()
        self._status, self._shared = StoreStatus(), Shared(self._look, seconds)
        self._details: dict[str, _Details] = {}

    @property
    def last(self) -> StoreStatus:
        """The status of the last look, without a new one."""
        return self._status

    def look(self) -> StoreStatus:
        """Return the status of now, or of a moment ago."""
        return self._shared.get()

    def _look(self) -> StoreStatus:
        self._status = self._read_status()
        return self._status

    def _read_status(self) -> StoreStatus:
        try:
            applications = self._reader.look(self._seconds())
        except NotThereError:
            # There is no application, or not any more: the store has answered.
            return StoreStatus((), "", self._now_us())
        except (StateError, OSError) as error:
            return replace(self._status, error=str(error))
        with self._lock:
            self._details = {each.name: self._details[each.name] for each in applications if each.name in self._details}
        return StoreStatus(applications, "", self._now_us())

    def detail(self, name: str) -> Detail:
        """Return the detail of an application; that of an earlier call if it can't be read now."""
        with self._lock:
            details = self._details.setdefault(name, _Details(self._files, name))
        return details.look()


class _Details:
    """The detail of one application. Only what is new is read from the store."""

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._name, self._lock = files, name, threading.Lock()
        self._log, self._recent = Log(files, name), Recent(Log(files, name))
        self._detail, self._number = Detail(), 0

    def look(self) -> Detail:
        with self._lock:
            try:
                entry = self._log.newest()
                if entry is not None and entry.number < self._number:
                    # Another application of the same name.
                    self._recent = Recent(Log(self._files, self._name))
                if entry is not None and (entry.number != self._number or self._detail.error):
                    points = self._recent.look()
                    some, error = self._samples(entry)
                    self._detail, self._number = Detail(points or [recent.point(entry)], some, error), entry.number
            except (StateError, OSError) as error:
                return replace(self._detail, error=str(error))
            return self._detail

    def _samples(self, entry: Entry) -> tuple[dict[str, Sequence[Sample]], str]:
        """Return samples of the tasks that have such rows. A file that is damaged hides nothing else."""
        by_task, error = dict[str, Sequence[Sample]](), ""
        for task in sorted(entry.tasks):
            if not entry.late_counts_of(task):
                continue
            try:
                by_task[task] = samples.samples(self._files, self._name, entry, task)
            except (StateError, OSError) as raised:
                error = str(raised)
        return by_task, error
