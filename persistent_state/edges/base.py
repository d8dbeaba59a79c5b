"""The interface of an edge: what one task of an application gives another between two clocks.

Both clocks are kept apart in the runs of the task that gives, and so is each multiple of `every` between them. So equal clocks
give equal rows, whenever and wherever they are read.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import pyarrow as pa

from persistent_state.batch.packets import Step
from persistent_state.batch.part import part_of
from persistent_state.batch.plan import EXACTLY_ONCE, FlowPlan, Plan
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.durations import show_duration
from persistent_state.event_time.inputs import INPUT, named_in
from persistent_state.sources.base import Chunk
from persistent_state.sources.tasks import TaskSource
from persistent_state.store import net_changes
from persistent_state.store import runs as runs_io
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log, fenced
from persistent_state.store.named_files import Run, ShardRuns
from persistent_state.store.runs import Asked
from persistent_state.task import PersistentTask

KINDS: dict[str, str] = {}
"""The kinds of edges: by the name that the log has for one, the name of its class, as users write it."""


class Edge(TaskSource):
    """Another task of the application as a source of a task: what it gives from one clock to the next.

    A subclass is a frozen dataclass with the field `task`. It has a `kind`, `schema`, `read` and `begins_with`.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "kind" in vars(cls):
            KINDS[cls.kind] = cls.__name__

    @abstractmethod
    def schema(self, plan: Plan, fed: PersistentTask) -> pa.Schema:
        """Return the columns of the rows that a task gives.

        Args:
            plan: The plan of the task that gives.
            fed: The task that is fed.

        Raises:
            InvalidInputError: Two columns have one name.
        """

    @abstractmethod
    def read(self, plan: Plan, fed: Plan, span: Span) -> Iterator[Chunk]:
        """Yield what a shard of a task gives between two clocks.

        Runs may be rewritten and deleted meanwhile. So open all of them before the first chunk is given, as `open_runs` and
        `seen_below` do. If one is gone, all is read again from the newest runs.

        Args:
            plan: The plan of the task that gives.
            fed: The plan of the task that is fed.
            span: The runs of the shard, and the clocks.

        Raises:
            FileNotFoundError: A run is gone.
        """

    @abstractmethod
    def begins_with(self, fed: Plan, clock: str) -> str:
        """Return in words what a task that is fed begins with.

        Args:
            fed: The plan of the task that is fed.
            clock: The clock at which it begins, in words.
        """

    def may_give(self, plan: Plan, span: Span) -> bool:
        """Return whether anything may come of a shard between two clocks.

        Args:
            plan: The plan of the task that gives.
            span: The runs of the shard, and the clocks.
        """
        return bool(span.changed_runs)

    def misfit(self, tasks: Mapping[str, PersistentTask]) -> str | None:
        """Return the end of the sentence that says why the other task can't give this; None if it can.

        Args:
            tasks: The tasks of the application, by name.
        """
        if (part := part_of(tasks.get(self.task))) is None:
            return None
        return f"an ordered task feeds others by the rows that it emits; give it Emitted({part.whole!r})"

    def check(self, plan: Plan, fed: Plan) -> None:
        """Refuse a task that can't be fed this.

        Args:
            plan: The plan of the task that gives.
            fed: The plan of the task that is fed.

        Raises:
            InvalidInputError: It can't.
        """


def times_apart(edge: Edge, fed: str, interval: int, after: set[int]) -> set[int]:
    """Return the times, in microseconds, whose multiples a task keeps apart for one that it feeds.

    Raises:
        InvalidInputError: One is no multiple of the checkpoint interval.
    """
    if (every := edge.every_us) is None:
        # What is made of the state at these times is asked for the state, too.
        return after if edge.is_of_state else set()
    if every % interval:
        raise InvalidInputError(
            f"task={fed} is fed by {edge!r}, and checkpoint_interval={show_duration(interval)}; make `every` a multiple of it."
        )
    return {every}


def span_of(flow: FlowPlan, input: str, shard: int, runs: ShardRuns, step: Step, entry: Entry) -> Span:
    """Return what a step asks of a shard of a task that feeds its flow."""
    edge, since, every = edges(flow.first)[input], step.since, None
    if since == BEGINNING and not (edge.is_of_state or edge.is_in_order):
        # Of what was given before the task began, some may be gone.
        since = entry.clock
    # Below the global clock the multiples of `every` are not apart any more.
    if edge.is_of_state and since >= entry.clock:
        # Others may be fed by any of these tasks, every so often: what it is at each of these times is asked of it, too.
        others = [each.settings.every or 0 for each in flow.tasks]
        every = edge.every_us or (math.gcd(*others) or None)
    states = entry.tasks[flow.id].stored.in_shards(entry.shards)[shard].runs if edge.is_in_order else ()
    ended = _ended(flow.first.feeders[input], entry, since)
    return Span(edge, shard, runs.runs, since, step.clock, entry.epoch, every, flow.first.takes_back, states, ended)


def _ended(plan: Plan, entry: Entry, since: int) -> int:
    """Return a clock that the runs of a task keep apart, and below which all had ended by another clock."""
    task, most = entry.tasks[plan.name], plan.layout.kind.all_ended(since)
    last = bisect_right(entry.retained, most)
    clocks = (*entry.retained[max(0, last - 1) : last], *task.stored.cuts)
    return max((c for c in clocks if task.born <= c <= most), default=BEGINNING)


@dataclass(frozen=True)
class Span:
    """A question to one shard of a task: what does it give from the clock `since` (included) up to `clock` (excluded)?

    Attributes:
        edge: What is given.
        shard: The number of the shard.
        runs: The runs of the shard.
        since: The first clock.
        clock: The last one.
        epoch: The start that the runs are of, which says how many shards there are.
        every: The microseconds between the clocks that are looked at between the two; None: none are.
        takes_back: Whether a change is a row that counted until now, and one that counts from now on. Else it is one row with
            both.
        states: The shard's runs of the ordered task that processes what is given.
        ended: A clock that the runs keep apart. What is of messages below it had ended by `since`.
    """

    edge: Edge
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

    def ending_runs(self, plan: Plan) -> list[Run]:
        """Return the runs that may hold rows of windows, sessions or keys that end between the clocks, without a message."""
        return net_changes.ending_runs(self.runs, plan.layout.kind, self.since, self.clock, self.ended)

    def closed_runs(self, plan: Plan) -> list[Run]:
        """Return the runs that hold all of the windows or sessions that close between the clocks; none if none may close."""
        found = self.ending_runs(plan)
        # A session may have parts that alone would have ended before, or would end later.
        return [*self.runs] if found and plan.layout.kind.expires_by_key else found


def open_runs(plan: Plan, runs: Sequence[Run], asked: Asked = None) -> list[pa.Table]:
    """Return the rows of runs of a task. With `asked`, rows of other hashes than these may be missing."""
    return net_changes.open_runs(plan.files, plan.layout, runs, asked, anew=True)


def edges(plan: Plan) -> Mapping[str, Edge]:
    """Return what feeds a task by the names of its inputs, but its sources."""
    return cast(Mapping[str, Edge], plan.upstream)


def check(plan: Plan) -> None:
    """Refuse a task that can't be fed by the tasks that are to feed it.

    Raises:
        InvalidInputError: The task can't be made of what it is fed, or one of the tasks can't give that.
    """
    for name, edge in edges(plan).items():
        _check_connected(plan, plan.feeders[name])
        edge.check(plan.feeders[name], plan)


def _check_connected(plan: Plan, other: Plan) -> None:
    for each in (plan, other):
        if each.delivery != EXACTLY_ONCE:
            raise InvalidInputError(
                f"task={plan.named} is fed by task={other.name}, and delivery={each.delivery!r} is said for task={each.named}; "
                "tasks that are connected are exactly-once: leave it out."
            )
    if plan.update_way == "column":
        raise InvalidInputError(
            f"task={plan.named} says its update in process_column, and is fed by task={other.name}; say it in process_batch."
        )


def read_span(fed: Plan, input: str, span: Span) -> Iterator[Chunk]:
    """Yield what a shard of a task gives between two clocks to another.

    Args:
        fed: The plan of the task that is fed.
        input: The name of its input.
        span: The runs of the shard, and the clocks.

    Raises:
        DamagedError: A file is not what was written, or is gone.
        FencedError: A file is gone, and a newer driver owns the application.
    """
    plan = fed.feeders[input]
    as_read = partial(replace, partition=named_in(input, plan.name), input=input)
    given = False
    try:
        # States of an ordered task are opened slice by slice, and nothing rewrites them but the step itself.
        for chunk in span.edge.read(plan, fed, span):
            given = True
            yield as_read(chunk)
    except FileNotFoundError:
        if given:
            # What was given would be given again.
            raise
        # The runs were rewritten, and collected. The clocks are kept apart in the new ones, so these give the same.
        with runs_io.named_by_newest():
            yield from map(as_read, span.edge.read(plan, fed, _with_newest_runs(fed, plan, span)))


def _with_newest_runs(fed: Plan, plan: Plan, span: Span) -> Span:
    """Return the same span of the runs that the newest entry names."""
    entry = Log(plan.files, plan.application).newest()
    if entry is None or entry.epoch != span.epoch:
        raise fenced(plan.application, span.epoch)

    def runs_of(task: Plan) -> tuple[Run, ...]:
        return entry.tasks[task.name].stored.in_shards(entry.shards)[span.shard].runs

    # What was kept apart when the step was planned may be folded in these.
    return replace(span, runs=runs_of(plan), states=runs_of(fed) if span.states else (), ended=BEGINNING)


def in_words(inputs: Mapping[str, Any] | None) -> str:
    """Return the tasks that feed a task as users write them, by its identity in the log."""
    words = [("" if input == INPUT else f"{input}=") + _edge_in_words(of) for input, of in (inputs or {}).items()]
    return " and ".join(words) or "no other task"


def _edge_in_words(identity: Mapping[str, Any]) -> str:
    kind, task = next(part for part in identity.items() if part[0] != "every")
    if kind not in KINDS:
        # Code that has another kind of edge wrote it.
        return f"the {kind} of {task}"
    every = f', every="{show_duration(identity["every"])}"' if "every" in identity else ""
    return f'{KINDS[kind]}("{task}"{every})'
