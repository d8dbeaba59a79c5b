"""Plan a stream of the changes of a task's state: where it begins, how far it can go, and what each micro-batch reads.

An offset names a state: its clock, its timeline, and the life of the task. An empty one is before every clock, where there is
no key. The log of the application alone says which clocks there are. Only its newest entry is remembered, so that a reader that
was killed goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any, TypeAlias

from persistent_state.engine.data_source.named_state import NamedState
from persistent_state.engine.data_source.source_options import LATEST
from persistent_state.engine.data_source.store_rows import StorePart, parts_of_changes, parts_of_snapshot
from persistent_state.errors import NotThereError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import full_clock
from persistent_state.open_state import OpenState, OpenTask
from persistent_state.store.log import Log
from persistent_state.store.state_at import NoClockYetError, entries_of

MOST_CLOCKS = 100
"""The most clocks of a micro-batch, where Spark says at which offset it begins. Each has partitions of its own."""

Offset: TypeAlias = "dict[str, Any]"


class StoreStream:
    """The changes of a task's state from clock to clock.

    Args:
        task: The task.
        start: The clock after which a new stream begins, `LATEST`, or None for a snapshot first.
        check: Raises an InvalidInputError if a state has other types than the stream.
    """

    def __init__(self, task: OpenTask, start: int | str | None, check: Callable[[OpenState], None]) -> None:
        self._task = task
        self._start = start
        self._check = check
        self._log = Log(task.files, task.application)

    def first(self) -> Offset:
        """Return the offset at which a new stream begins.

        Raises:
            NotThereError: The clock of the start is not there.
        """
        if self._start is None:
            return {}
        return self.newest() if self._start == LATEST else _offset(self._now().at(self._start))

    def newest(self) -> Offset:
        """Return the offset of the newest clock. It is empty as long as the task has none."""
        task = self._now()
        try:
            newest = task.at()
        except NoClockYetError:
            return {}
        # A task that was reset at this clock has two states there. Named is the one of before, from which changes lead on.
        return _offset(task.at(newest.clock)) if newest.clock != BEGINNING else {}

    def within(self, start: Mapping[str, Any], end: Offset, most: int) -> Offset:
        """Return the offset at which a micro-batch of `most` clocks ends.

        Args:
            start: Where it begins.
            end: Where it ends at the latest.
            most: The most clocks of it.
        """
        if not start or not end:
            # A snapshot is of one clock.
            return end
        task = self._now()
        clocks = _clocks(task, start["clock"], end["clock"])
        for clock in clocks[most - 1 :]:
            # The task may have no state at a clock of others.
            with suppress(NotThereError):
                return _offset(task.at(clock))
        return end

    def reachable(self, start: Mapping[str, Any], end: Offset) -> Offset:
        """Return where a stream ends that was to end at a clock which may have gone since.

        Args:
            start: Where the next micro-batch begins.
            end: Where the stream was to end.

        Returns:
            `end`; if it can't be read any more, the newest clock between the two that can; and `start` if none can.
        """
        if not end:
            return end
        task = self._now()
        with suppress(NotThereError):
            # Spark writes an offset down before it is read. One that can't be read would fail the query at every start.
            NamedState(**end).open(task)
            return end
        for clock in reversed(_clocks(task, start.get("clock", BEGINNING), end["clock"] + 1)):
            with suppress(NotThereError):
                return _offset(task.at(clock))
        return {**start}

    def parts(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[StorePart]:
        """Return the partitions between two offsets: the changes from each clock to the next one that can be read.

        From an empty offset on it is a snapshot of the last clock.

        Raises:
            NotThereError: A clock is not retained any more, or its timeline has ended before it.
        """
        task = self._now()
        # In the order of their clocks: then the log is read once for all of them.
        since = _at(task, start) if start else None
        between = [] if since is None or not end else _between(task, since.clock, end["clock"])
        until = _at(task, end) if end else None
        if until is None:
            return []
        self._check(until)
        if since is None:
            return parts_of_snapshot(until.state)
        steps = pairwise([since, *between, until])
        return [part for step in steps for part in parts_of_changes(task.changes(*step).changes)]

    def _now(self) -> OpenTask:
        """Return the task as it is now, whose clocks are all of one moment."""
        return replace(self._task, entries=entries_of(self._log))


def _at(task: OpenTask, offset: Mapping[str, Any]) -> OpenState:
    named = NamedState(**offset)
    try:
        return named.open(task)
    except NotThereError as error:
        raise NotThereError(
            f"the stream of task={task.task} can't go on from or to clock={full_clock(named.clock)} of "
            f"timeline={named.timeline}: {str(error).rstrip('.')}. Start the query with a new checkpoint; it begins with a "
            "snapshot, unless startClock says otherwise."
        ) from error


def _clocks(task: OpenTask, since: int, until: int) -> list[int]:
    """Return the clocks between two that can be read, ascending."""
    assert task.entries is not None, "it is the task of one moment"
    return [clock for clock in task.entries.newest.readable if since < clock < until]


def _between(task: OpenTask, since: int, until: int) -> list[OpenState]:
    """Return the states at the clocks between two, as far as they can be read: what changed in all is the same without them."""
    found = []
    for clock in _clocks(task, since, until):
        with suppress(NotThereError):
            found.append(task.at(clock))
    return found


def _offset(state: OpenState) -> Offset:
    return {} if state.clock == BEGINNING else asdict(NamedState.of(state))
