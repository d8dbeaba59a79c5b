"""Plan the micro-batches of a flow that reads a source, one after the other, from the newest log entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from persistent_state.batch.alignment import aligned_reach
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive import turn
from persistent_state.drive.turn import Part
from persistent_state.errors import StateError
from persistent_state.event_time.inputs import by_input, together
from persistent_state.inputs import open_source, reach_of
from persistent_state.protocol import commits, graph
from persistent_state.protocol.next_entry import newest_own
from persistent_state.sources.base import Reach, TimeReplayableSource
from persistent_state.sources.checked import opened_again
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.flow_state import FlowState
from persistent_state.store.log import RECENT, Log

HUNG = 60.0
"""Seconds after which people hear of a transaction that stays open, also where nothing else arrives."""

SOON = 1.0
"""Seconds: how old a look at the log may be while a flow has nothing to read that tasks feed, maybe in another process."""

Offset: TypeAlias = "dict[str, Any]"
"""The place of a flow between two micro-batches: by partition the `ends`, and a `tick` that moves where they do not."""


class Planner:
    """A planner of a flow's micro-batches for the driver of an epoch. A micro-batch has at most `most` parts.

    It goes up to the positions `until`, if they are given. With `to_the_end` it goes up to the end that the source has when it
    is first asked, and once it is there nothing is new any more. It can plan by another `log`. It can be pickled before its
    first call.
    """

    def __init__(
        self,
        flow: FlowPlan,
        source: TimeReplayableSource,
        epoch: int,
        most: int,
        until: Mapping[str, int] | None = None,
        to_the_end: bool = False,
        log: Log | None = None,
    ) -> None:
        self.flow, self.source, self.to_the_end = flow, source, to_the_end
        self._epoch, self._most, self._until = epoch, most, until
        self._log = log or Log(flow.first.files, flow.first.application)
        self._reach = Reach({})
        self._listed: dict[str, bool] = {}
        self._ended: set[str] = set()
        self._moved: dict[str, int] = {}
        self._moving: set[str] = set()
        self._idle_for: dict[str, int] = {}
        self._hung: set[str] = set()
        self._opened = False
        self._is_quiet = False
        """True if nothing was new when `latest` was last called."""
        self._has_asked = False
        """True if that call has asked the store, and `parts` was not called since."""

    def first(self) -> Offset:
        """Return the offset at which the flow stands by the newest entry.

        Raises:
            FencedError: A newer driver owns the application.
        """
        return {"ends": self._known().source.next_positions, "tick": 0}

    def latest(self, before: Offset, now: Callable[[], int], everything: bool = False) -> Offset:
        """Return the offset up to which the next micro-batch can go. If it is `before`, none is due.

        Args:
            before: The offset up to which micro-batches were planned.
            now: Returns the wall clock in microseconds UTC.
            everything: As `reach` of a source takes it.

        Raises:
            FencedError: A newer driver owns the application.
            StateError: The source or the store does not answer.
        """
        self._open()
        if self._until is not None:
            self.source.stay_within(self._until)
        # A killed client of Spark Connect stops none of its queries. Without this look at the epoch, one that has nothing to
        # read would ask its source for ever after a newer driver has started. An entry of others can let something be new only
        # where their tasks feed this flow.
        within = (SOON if self.flow.first.upstream else RECENT) if self._is_quiet else 0.0
        entry = newest_own(self._log, self._epoch, within)
        self._has_asked = not self._is_quiet
        self._reach = aligned_reach(
            self.flow.first,
            self.source,
            commits.flow_by(entry, self.flow).source,
            before["ends"],
            everything=everything,
            is_ending=self.to_the_end,
            now=now(),
            more={name for name, left in self._reach.lag.items() if left},
        )
        step, _ = graph.changed_step(entry, self.flow)
        ends = self._ends(before["ends"])
        tick = self._has_news(before["ends"], now(), has_moved=ends != before["ends"]) or step is not None
        newest = {"ends": ends, "tick": before["tick"] + tick}
        self._is_quiet = newest == before
        return newest

    def parts(self, start: Offset, now: Callable[[], int], new_id: Callable[[], str]) -> Sequence[Part]:
        """Return the parts of the micro-batch from an offset up to the one that `latest` has returned.

        Args:
            start: The offset up to which micro-batches were planned before.
            now: Returns the wall clock in microseconds UTC.
            new_id: Makes names of files that no other file has.

        Raises:
            FencedError: A newer driver owns the application.
        """
        # What others write while a micro-batch is planned, they may as well write while it runs.
        within = RECENT if self._has_asked else 0.0
        self._is_quiet = self._has_asked = False
        entry, self._reach = turn.begin(self._log, self._epoch, self.flow, self._reach, now(), new_id, within)
        planned = now()
        # A channel can become idle only after its source was first asked for rows.
        self._moved |= dict.fromkeys(self._moving, planned)
        return turn.micro_batch(
            entry,
            self.flow,
            self.source,
            start["ends"],
            self._reach,
            now=planned,
            most=self._most,
            silent_for=self._idle_for,
        )

    @property
    def is_behind(self) -> bool:
        """Return whether the source says that it has more than the micro-batch that was planned last."""
        return bool(self._reach.unread) or self._reach.has_more

    def is_fenced(self) -> bool:
        """Return whether a newer driver owns the application, as far as the store answers."""
        with suppress(StateError):
            newest = self._log.newest()
            is_fenced = newest is not None and newest.epoch > self._epoch
            # The next call of `latest` is to raise that.
            self._is_quiet = self._is_quiet and not is_fenced
            return is_fenced
        return False

    def _ends(self, start: Mapping[str, int]) -> dict[str, int]:
        """Return how far the next micro-batch reads. A listing that is late may know less than was read before."""
        return {name: max(end, start.get(name, end)) for name, end in self._reach.ends.items()}

    def _known(self) -> FlowState:
        entry: Entry = newest_own(self._log, self._epoch)
        return commits.flow_by(entry, self.flow)

    def _open(self) -> None:
        if not self._opened:
            flow = self._known()
            known = flow.source
            with opened_again():
                open_source(self.source, lists.read_journals(self._log.files, flow), known.known_positions)
            self._listed = dict.fromkeys(known.channels, False)
            if self.to_the_end:
                self.source.freeze()
            self._opened = True

    def _has_news(self, start: Mapping[str, int], now: int, has_moved: bool) -> bool:
        """Return whether a micro-batch is due although nothing arrived.

        The channels changed, those of an input became idle, or people are to hear of a transaction that stays open.
        """
        reached = {name: reach_of(self._reach, name) for name in self.flow.first.source_inputs}
        settings = self.flow.first.settings
        lists = {name: reach.channels for name, reach in reached.items() if reach.channels is not None}
        listed = together(lists) if lists else self._listed
        ended = {name for name, reach in reached.items() if reach.is_last}
        changed = listed != self._listed or ended != self._ended
        self._listed, self._ended = listed, ended
        starts, was_idle, self._moving = by_input(start, reached), {*self._idle_for}, set()
        for name, reach in reached.items():
            idle_after = settings.of(name).idle_after
            if changed or dict(reach.ends) != starts[name] or name not in self._moved:
                self._moving.add(name)
                self._moved[name] = now
                self._idle_for.pop(name, None)
            elif reach.is_last is None and idle_after is not None and idle_after <= now - self._moved[name]:
                self._idle_for[name] = idle_after
        pending, was_hung = self._reach.pending.items(), self._hung
        self._hung = {name for name, seconds in pending if self.to_the_end or seconds >= HUNG}
        return not has_moved and (changed or bool({*self._idle_for} - was_idle) or bool(self._hung - was_hung))
