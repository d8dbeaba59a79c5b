"""Spans of event time in a shard of a task: the runs from which a step reads what happened between two clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from persistent_state.batch.plan import Plan
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials.waiting import Waiting
from persistent_state.sources.tasks import ClosedWindows, Emitted, InOrder, TaskSource
from persistent_state.store import net_changes
from persistent_state.store.named_files import Run
from persistent_state.store.runs import Asked, read_due


@dataclass(frozen=True)
class Span:
    """The runs of one `shard` of a task, of which is asked what it gives from the clock `since` up to `clock`.

    The runs are of the start `epoch`, which says how many shards there are. `every` says which clocks between the two are
    looked at; None: none. With `takes_back` a change is a row that counted until now, and one that counts from now on. Else it
    is one row with both. `states` are the shard's runs of the ordered task that processes what it reads. The runs keep the
    clock `ended` apart, and what is of messages below it had ended by `since`.
    """

    source: TaskSource
    shard: int
    runs: tuple[Run, ...]
    since: int
    clock: int
    epoch: int
    every: int | None = None
    takes_back: bool = True
    states: tuple[Run, ...] = ()
    ended: int = BEGINNING

    @property
    def changed_runs(self) -> list[Run]:
        """The runs that may hold rows that start between the clocks."""
        return self.runs_from(self.since)

    def runs_from(self, since: int) -> list[Run]:
        """Return the runs that may hold rows that start from `since` on, below the clock."""
        return net_changes.runs_from(self.runs, since, self.clock)

    def reaches_back(self, plan: Plan) -> int:
        """Return the time of the first messages that the task in which they wait, of this plan, still has for the step."""
        back = plan.layout.kind.back if isinstance(plan.layout.kind, Waiting) else 0
        return max(BEGINNING, self.since - back)

    @property
    def timed_runs(self) -> list[Run]:
        """The runs of `states` that may hold a timer between the clocks.

        The timers of a key that were due before were called: then the key has a newer row.
        """
        return [
            run
            for run in self.states
            if run.due is not None and run.last_due is not None and run.due < self.clock and run.last_due >= self.since
        ]

    def ending_runs(self, plan: Plan) -> list[Run]:
        """Return the runs that may hold rows of windows, sessions or keys that end between the clocks, without a message."""
        return net_changes.ending_runs(self.runs, plan.layout.kind, self.since, self.clock, self.ended)

    def closed_runs(self, plan: Plan) -> list[Run]:
        """Return the runs that hold all of the windows or sessions that close between the clocks; none if none may close."""
        found = self.ending_runs(plan)
        # A session may have parts that alone would have ended before, or would end later.
        return [*self.runs] if found and plan.layout.kind.expires_by_key else found

    def may_give(self, plan: Plan) -> bool:
        """Return whether anything may have happened between the clocks to the task of this plan."""
        if isinstance(self.source, InOrder):
            return bool(self.runs_from(self.reaches_back(plan)) or self.timed_runs)
        if isinstance(self.source, ClosedWindows):
            return bool(self.ending_runs(plan))
        if isinstance(self.source, Emitted):
            return bool(self.changed_runs)
        return bool(self.changed_runs or self.ending_runs(plan))


def open_runs(plan: Plan, runs: Sequence[Run], asked: Asked = None) -> list[pa.Table]:
    """Return the rows of runs of a task. With `asked`, rows of other hashes than these may be missing."""
    return net_changes.open_runs(plan.files, plan.layout, runs, asked, anew=True)


def open_due(plan: Plan, span: Span) -> list[pa.Table]:
    """Return, for each run with timers, the hashes of the keys that have a timer between the clocks."""
    runs = span.timed_runs
    hashes = plan.files.for_each(lambda run: read_due(plan.files, run, span.since, span.clock, anew=True), runs)
    return [pa.table({"hash": of_run}) for of_run in hashes]
