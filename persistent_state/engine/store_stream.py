"""Plan a stream of the changes of a task's state: where it begins, how far it can go, and what each micro-batch reads.

An offset names a state: its clock, its timeline, and the life of the task. An empty one is before every clock, where there is
no key. The log of the application alone says which clocks there are: nothing is remembered here, so that a reader that was
killed goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import pairwise
from typing import Any, TypeAlias

from persistent_state.engine.named_state import NamedState
from persistent_state.engine.source_options import LATEST
from persistent_state.engine.store_rows import Part, parts_of_changes, parts_of_snapshot
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import full_clock
from persistent_state.open_state import OpenApplication, OpenState, OpenTask

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

    def first(self) -> Offset:
        """Return the offset at which a new stream begins.

        Raises:
            InvalidInputError: The clock of the start is not there.
        """
        if self._start is None:
            return {}
        return self.newest() if self._start == LATEST else _offset(self._task.at(self._start))

    def newest(self) -> Offset:
        """Return the offset of the newest clock."""
        newest = self._task.at()
        # A task that was reset at this clock has two states there. Named is the one of before, from which changes lead on.
        return _offset(self._task.at(newest.clock)) if newest.clock != BEGINNING else {}

    def parts(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Part]:
        """Return the partitions between two offsets: the changes from each clock to the next one that can be read.

        From an empty offset on it is a snapshot of the last clock.

        Raises:
            InvalidInputError: A clock is not retained any more, or its timeline has ended before it.
        """
        since = self._at(start) if start else None
        until = self._at(end) if end else None
        if until is None:
            return []
        self._check(until)
        if since is None:
            return parts_of_snapshot(until.state)
        steps = pairwise([since, *self._between(since, until), until])
        return [part for step in steps for part in parts_of_changes(self._task.changes(*step).changes)]

    def _at(self, offset: Mapping[str, Any]) -> OpenState:
        named = NamedState(**offset)
        try:
            return named.open(self._task)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"the stream of task={self._task.task} can't go on from or to clock={full_clock(named.clock)} of "
                f"timeline={named.timeline}: {str(error).rstrip('.')}. Start the query with a new checkpoint; it begins with a "
                "snapshot, unless startClock says otherwise."
            ) from error

    def _between(self, since: OpenState, until: OpenState) -> list[OpenState]:
        """Return the states at the clocks between, as far as they can be read: what changed in all is the same without them."""
        found = []
        for clock in OpenApplication(self._task.files, self._task.application).clocks():
            if since.clock < clock < until.clock:
                with suppress(InvalidInputError):
                    found.append(self._task.at(clock))
        return found


def _offset(state: OpenState) -> Offset:
    return {} if state.clock == BEGINNING else asdict(NamedState.of(state))
