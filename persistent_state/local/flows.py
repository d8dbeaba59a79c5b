"""The flows of a start on this machine: each reads its source in a thread, one micro-batch after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from persistent_state.batch.plan import FlowPlan
from persistent_state.drive.planner import Planner
from persistent_state.errors import StateError
from persistent_state.local.pace import OPEN_SECONDS, Pace
from persistent_state.local.pool import Calls
from persistent_state.local.turns import Turns
from persistent_state.protocol.gathered import may_gather
from persistent_state.run.commit import GatheringCommitter, committing
from persistent_state.run.failures import as_exception
from persistent_state.run.feeds import Feed, flows_of, meetings
from persistent_state.run.reports import Listener
from persistent_state.run.setup import Setup
from persistent_state.run.start_checks import copied
from persistent_state.run.wall_clock import new_id, now_us
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.store.entry import Entry

ASK_SECONDS = 1.0
"""The time that a stop gives sources to say what there is to read: one whose server does not answer may take a minute."""

JOIN_SECONDS = 0.05
"""Time between two looks at whether a thread asks its source, which a stop need not wait for."""


class _Loop:
    """The thread of one flow. `error` is what ended it, if it failed."""

    def __init__(self, setup: Setup, calls: Calls, most: int, feed: Feed, entry: Entry, flow: FlowPlan) -> None:
        assert isinstance(feed.source, TimeReplayableSource), feed.source
        self.error: Exception | None = None
        self.has_committed = self.is_idle = False
        self.begun: float | None = None
        self._setup, self._most, self._entry, self._flow, self._source = setup, most, entry, flow, feed.source
        self._calls, self._listener = calls, Listener(setup.writer, setup.on_progress)
        self._stopping = threading.Event()
        self._thread = threading.Thread()
        self._is_asking = False
        self._writing = threading.Lock()
        self._write_last: Callable[[], None] = lambda: None

    def start(self, until: Mapping[str, int] | None) -> None:
        """Read from where the entry of the start says; with `until` up to these positions."""
        name = f"persistent-state {self._setup.application} {self._flow.id}"
        self._thread = threading.Thread(target=self._run, args=(until,), name=name, daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def ask_to_stop(self) -> None:
        """Begin no other micro-batch."""
        self._stopping.set()

    def end(self, until: float) -> None:
        """Wait until the thread has ended, but after this time not for a source that is being asked what there is.

        Then the thread has only to end, which it does when the source has answered. What was gathered is committed before.
        """
        self._thread.join(max(0.0, until - time.monotonic()))
        while self.is_active and not self._is_asking:
            self._thread.join(JOIN_SECONDS)
        if self.is_active:
            with suppress(StateError):
                self._write_last()

    def _run(self, until: Mapping[str, int] | None) -> None:
        try:
            source = copied(self._source)
            try:
                source.stay_open(OPEN_SECONDS)
                self._read(source, until)
            finally:
                source.stay_open(0)
        except BaseException as error:
            # What fails because the flow is being stopped is no failure.
            if not self._stopping.is_set():
                self.error = as_exception(error)
        finally:
            self.begun = None

    def _read(self, source: TimeReplayableSource, until: Mapping[str, int] | None) -> None:
        to_the_end = self._setup.to_the_end or until is not None
        flow, gathered = self._flow, None if to_the_end else self._gathering()
        committer = gathered or self._setup.committer(flow, self._entry.epoch, self._listener)
        log, commit = (self._setup.log, committer.commit) if gathered is None else (gathered.log, gathered.gather)
        if gathered is not None:
            flow = replace(flow, tasks=tuple(self._setup.unsynced[plan.name] for plan in flow.tasks))
        turns = Turns(self._calls, flow, commit, self._source, self._setup.running_of(flow))
        pace = Pace(self._setup.files, self._setup.trigger, self._stopping, gathers=gathered is not None)
        planner = Planner(self._flow, source, self._entry.epoch, self._most, until, to_the_end, log)
        self._write_last = partial(self._write, gathered, pace, is_last=True)
        try:
            self._take_turns(planner, turns, pace, gathered)
        except BaseException:
            # What was gathered before is as good as if it had been committed then.
            with suppress(StateError):
                self._write_last()
            raise
        self._write_last()

    def _take_turns(self, planner: Planner, turns: Turns, pace: Pace, gathered: GatheringCommitter | None) -> None:
        """Take turns until the flow is to end, or the source is read to its end."""
        offset, number = planner.first(), 0
        while not self._stopping.is_set():
            self._write(gathered, pace)
            asked = time.monotonic()
            self._is_asking = True
            newest = planner.latest(offset, now_us)
            self._is_asking = False
            if newest == offset:
                self.is_idle = True
                if planner.to_the_end:
                    return
                pace.await_look(planner.source)
                continue
            if self._stopping.is_set():
                return
            self.is_idle, self.begun = False, asked
            turns.take(planner.parts(offset, now_us, new_id), number, planner.source.places)
            offset, number = newest, number + 1
            if gathered is not None:
                pace.has_gathered()
            self._write(gathered, pace)
            self.has_committed, self.begun = self.has_committed or gathered is None, None
            if not planner.to_the_end:
                self.is_idle = True
                pace.await_next(asked, planner.is_behind)

    def _gathering(self) -> GatheringCommitter | None:
        """Return what gathers the flow's micro-batches, where a function gets the values of each, which need no commit."""
        is_wanted = any(self._setup.running_of(self._flow).values()) and self._setup.trigger is None
        if not is_wanted or not self._setup.unsynced or not may_gather(self._entry, self._flow):
            return None
        return self._setup.gathering_committer(self._flow, self._entry.epoch, self._listener)

    def _write(self, gathered: GatheringCommitter | None, pace: Pace, is_last: bool = False) -> None:
        """Commit what was gathered, if that is due, or if it `is_last`."""
        if gathered is not None and (is_last or pace.is_commit_due):
            self.begun = self.begun or time.monotonic()
            with self._writing, committing():
                gathered.write()
            pace.has_committed()
            self.has_committed, self.begun = True, None


class LocalFlows:
    """The `RunningFlows` of this machine. Their parts and shards run by `calls`, at most `most` parts at the same time."""

    def __init__(self, setup: Setup, calls: Calls, most: int) -> None:
        self._setup, self._calls, self._most = setup, calls, most
        self._loops: dict[str, _Loop] = {}

    def start(self, entry: Entry) -> None:
        """Start a thread for each flow that reads a source."""
        for feed in self._setup.feeds:
            for id in flows_of(feed, entry) if not feed.plan.is_derived else ():
                self._start(feed, entry, id)

    def start_to_meet(self, entry: Entry) -> bool:
        """Let each flow that need only read on to be where another of its source is read up to there, and end there."""
        for feed, id, ends in meetings(self._setup.feeds, entry):
            self._start(feed, entry, id, ends)
        return bool(self._loops)

    def start_more(self) -> None:
        """Do nothing: all flows start at once."""

    def start_again(self, flow: str) -> float | None:
        """Return None: no machine is too slow for a thread."""
        return None

    @property
    def active_flows(self) -> set[str]:
        """The flows that have neither come to their end nor been stopped."""
        return {flow for flow, loop in self._loops.items() if loop.is_active}

    @property
    def are_waited_for(self) -> bool:
        """Return whether a flow has neither ended nor committed a micro-batch."""
        return any(loop.is_active and not loop.has_committed for loop in self._loops.values())

    @property
    def under_way(self) -> Mapping[str, float]:
        """By flow: since when its micro-batch is under way, if one is."""
        since = {flow: loop.begun for flow, loop in self._loops.items()}
        return {flow: begun for flow, begun in since.items() if begun is not None}

    @property
    def idle(self) -> Mapping[str, bool]:
        """By flow: whether it waits for messages, or for its trigger."""
        return {flow: loop.is_idle for flow, loop in self._loops.items()}

    @property
    def unheard(self) -> list[str]:
        """The flows that have neither committed since the start nor found that there is nothing to read."""
        return [flow for flow, loop in self._loops.items() if not loop.has_committed and not loop.is_idle]

    @property
    def failed_commit(self) -> tuple[str, Exception] | None:
        """Return None: a flow whose commit fails has ended with that error."""
        return None

    @property
    def failed_flow(self) -> tuple[str, Exception] | None:
        """A flow that ended with an error, and the error; None if there is no such flow."""
        for flow, loop in self._loops.items():
            if (error := loop.error) is not None:
                return flow, error
        return None

    @property
    def is_one_stopped(self) -> bool:
        """Return False: nothing but this run can stop a thread."""
        return False

    def has_committed(self, flow: str) -> bool:
        """Return whether a micro-batch of the flow was committed and handed to its outputs since this start."""
        return flow in self._loops and self._loops[flow].has_committed

    def stop(self) -> None:
        """Cancel what workers do for the flows, and wait until their threads have ended. A commit is completed.

        A source that does not answer is not waited for.
        """
        loops, self._loops = [*self._loops.values()], {}
        for loop in loops:
            loop.ask_to_stop()
        self._calls.cancel()
        until = time.monotonic() + ASK_SECONDS
        for loop in loops:
            loop.end(until)

    def _start(self, feed: Feed, entry: Entry, id: str, until: Mapping[str, int] | None = None) -> None:
        flow = feed.plan.of(entry.tasks_of(id))
        loop = self._loops[id] = _Loop(self._setup, self._calls, self._most, feed, entry, flow)
        loop.start(until)
