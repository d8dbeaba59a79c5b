"""Gather turns of a flow in memory, and append them to the log as one entry.

A turn is cheap. That its entry and its files survive a power cut is not. So turns may be gathered: each is planned from what
the one before it has made, and none is in the log, so that a crash, a newer driver or another start voids all of them. Others
may append entries meanwhile. That is why a turn is kept as its change of an entry: it is made again of the newest one.

Invariants:
- All files that an entry names survive a power cut before the entry is appended.
- The global clock moves at most once from one entry of the log to the next: a kept clock is read by the entry that has it.
- A turn folds over no clock that the entry before it keeps apart, also when that is made again. So turns are gathered only
  where no other flow moves the global clock meanwhile, and no output is given a clock above it: what others append then takes
  clocks away, and adds none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from persistent_state.batch.packets import Descriptor
from persistent_state.batch.plan import EXACTLY_ONCE, FlowPlan
from persistent_state.errors import DisagreementError, ExistsError, StoreUnavailableError
from persistent_state.protocol import next_entry
from persistent_state.protocol.next_entry import newest_own
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.named_files import Stored

Change: TypeAlias = Callable[[Entry], Entry]
"""Returns the entry that a turn makes of the newest one."""

Clocks: TypeAlias = Mapping[str, AbstractSet[int]]
"""By task: clocks."""


def may_gather(entry: Entry, flow: FlowPlan) -> bool:
    """Return whether a flow's turns can be gathered: it is the only one, no task feeds it, and delivery is exactly-once."""
    flows = {task.flow for task in entry.tasks.values() if task.active}
    return flows == {flow.id} and not flow.first.upstream and flow.first.delivery == EXACTLY_ONCE


class GatheringLog(Log):
    """The log as a flow sees it: the newest entry is that of the turns that are gathered, if there are any.

    Others see only what is in the driver's own `log`, to which the turns are appended.
    """

    def __init__(self, log: Log, epoch: int) -> None:
        super().__init__(log.files, log.application)
        self._log, self._epoch = log, epoch
        self._changes: list[tuple[Change, Clocks]] = []
        """Each turn's change of an entry, and the clocks that the turn has not folded over."""
        self._made: Entry | None = None
        """The entry that the changes have made, in the place of the newest one."""
        self._runs: set[str] = set()
        """The runs of these turns. Later turns replace most of them."""
        self._sides: set[str] = set()
        self._values: set[str] = set()

    def newest(self, within: float = 0.0) -> Entry | None:
        return self._log.newest(within) if self._made is None else self._made

    def append(self, entry: Entry) -> Entry:
        if self._changes:
            # It follows from turns that are not in the log.
            self.write()
            raise ExistsError(
                f"entry={entry.number} of {self.application} was made before the turns that it follows; again."
            )
        self._make_durable(entry)
        return self._log.append(entry)

    def gather(self, change: Change, made: Sequence[Descriptor]) -> Entry:
        """Take in what a turn changes, and the files that its shards have made; return the entry as it would be.

        Raises:
            DisagreementError: The turn does not follow from the newest entry.
            FencedError: A newer driver owns the application, if nothing was gathered before.
        """
        newest = newest_own(self, self._epoch)
        entry = change(newest)
        self._changes.append((change, _kept_apart(newest)))
        self._made = _standing_for(newest, entry)
        self._runs |= {run.file.path for each in made for run in each.runs if not run.file.inline}
        self._sides |= {side.file.path for each in made for side in (each.side, each.late) if side is not None}
        self._values |= {each.values.path for each in made if isinstance(each.values, Stored)}
        return entry

    def write(self) -> Entry:
        """Append the turns that were gathered, and return the newest entry. Runs and values that none names now are deleted.

        Raises:
            FencedError: A newer driver owns the application.
            DisagreementError: What others have appended since voids the turns.
            StateError: The store failed.
        """
        changes, self._changes, self._made = self._changes, [], None
        newest, count = partial(newest_own, self, self._epoch), 0
        if not changes:
            return newest()

        def follow(newest: Entry) -> Entry:
            """Return what the changes make of an entry, up to the one by which the global clock would move a second time."""
            nonlocal count
            entry, count = newest, 0
            for change, apart in changes:
                if not all(kept <= apart[task] for task, kept in _kept_apart(entry).items()):
                    raise DisagreementError(
                        f"turns of {self.application} have folded over a clock that others have committed since; start again."
                    )
                following = change(_standing_for(newest, entry))
                if newest.clock != entry.clock != following.clock:
                    break
                entry, count = following, count + 1
            return entry

        while changes:
            entry = next_entry.append(self, newest, follow)
            changes = changes[count:]
        self._delete_unnamed()
        return entry

    def _make_durable(self, entry: Entry) -> None:
        """Let the new files survive a power cut that the entry names, or that a list names which it has."""
        runs = self._runs & entry.files() if self._runs else set()
        self.files.sync([*sorted(runs), *sorted(self._sides)])
        self._runs -= runs
        self._sides = set()

    def _delete_unnamed(self) -> None:
        """Delete the files that no entry has ever named, so that no reader needs them. If that fails, a collection does it."""
        unnamed, self._runs, self._values = [*self._runs, *self._values], set(), set()
        with suppress(StoreUnavailableError):
            self.files.for_each(self.files.delete, unnamed)


def _kept_apart(entry: Entry) -> Clocks:
    """Return by task the clocks that are kept apart by an entry."""
    return {name: {*entry.retained, *task.stored.cuts} for name, task in entry.tasks.items() if task.active}


def _standing_for(newest: Entry, entry: Entry) -> Entry:
    """Return an entry that is not in the log in the place of the newest one, whose number it takes: others follow from it."""
    return replace(entry, number=newest.number, previous=newest.previous, checksum=newest.checksum, base=newest.base)
