"""An application that is played in this process, without Spark, by the driver of `run_local`.

A test gives it tasks and messages, lets flows take turns, and starts it again: a start is a new driver, as after a kill. A
history that looks at each entry is a class of its own with another `check`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from persistent_state import Application
from persistent_state.batch.packets import Answers
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.drive import turn
from persistent_state.drive.local import Executor, LocalDriver, flows_of, run
from persistent_state.drive.turn import DueStep
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.inputs import INPUT
from persistent_state.inputs import Inputs, open_source
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from tests import core


class Rows(TimeReplayableSource):
    """Rows in memory, in one partition. More may come, unless it is finite. A micro-batch reads at most `most` of them.

    `channels` are those that are known, each with whether it has ended; None if only messages name them. `opened` has the lines
    that each start has given back. Of a partition without a name it knows no channel, and wants no lines remembered.
    """

    timestamp_unit = "us"
    most, is_finite = 2**62, False

    def __init__(self, schema: pa.Schema, partition: str = "p") -> None:
        self.timestamp, self._schema, self.partition = schema.names[0], schema, partition
        self.channels: Mapping[str, bool] | None = {partition: False} if partition else None
        self.rows: list[tuple[Any, ...]] = []
        self.opened: list[list[str]] = []

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        self.opened.append([*journal])

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        begin = start.get(self.partition, 0)
        end = min(len(self.rows), begin + self.most)
        is_last = end >= len(self.rows) if self.is_finite else None
        if end <= begin:
            return Reach(start, self.channels, is_last=is_last)
        lines = (f"up to: {end}",) if self.partition else ()
        return Reach({**start, self.partition: end}, self.channels, lines, is_last=is_last)

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        first, last = start.get(self.partition, 0), end.get(self.partition, 0)
        bounds = [first + (last - first) * part // parts for part in range(parts + 1)]
        return [range(low, high) for low, high in itertools.pairwise(bounds) if low < high]

    def read(self, split: range) -> Iterator[Chunk]:
        yield Chunk(self.partition, split.start, batch_of(self.rows[split.start : split.stop], self.schema))


def batch_of(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as a batch of these columns."""
    columns = [*zip(*rows, strict=True)] if rows else [()] * len(schema)
    arrays = [pa.array(column, type) for column, type in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def compiled(
    app: Application, files: Files, shards: int = 2
) -> tuple[dict[str, Plan], dict[str, TimeReplayableSource]]:
    """The plans of an application's tasks, and the sources of those that have some."""
    plans = core.compiled(app, files, shards)
    sources = dict[str, TimeReplayableSource]()
    for added in app.added:
        own = {name: each for name, each in added.sources.items() if isinstance(each, TimeReplayableSource)}
        if own:
            sources[added.name] = Inputs(own)
    return plans, sources


class LocalApplication:
    """An application and its driver. `start` it first.

    Args:
        plans: By task: its plan.
        sources: By task: its source. A task that no other feeds, and that has none here, has `Rows`.
        keeping: Which checkpoint clocks stay.
        parts: How many parts read a source at a time.
        executor: Runs the parts and shards of a turn.
    """

    def __init__(
        self,
        plans: Mapping[str, Plan],
        sources: Mapping[str, TimeReplayableSource] | None = None,
        keeping: Keeping | None = None,
        parts: int = 1,
        executor: Executor = run,
    ) -> None:
        self.plans, self.keeping, self.parts, self.now = dict(plans), keeping or Keeping(), parts, 0
        self.executor = executor
        first = next(iter(self.plans.values()))
        self.files, self.log = first.files, Log(first.files, first.application)
        self.collector = Collector(self.log)
        self.sources = dict(sources or {})

    def become(self, app: Application, shards: int | None = None) -> None:
        """Have the tasks of this application from the next start on, in so many shards, or as many as now."""
        self.plans, self.sources = compiled(app, self.files, shards or next(iter(self.plans.values())).shards)

    @property
    def newest(self) -> Entry:
        """The newest entry of the log."""
        return core.newest(self.log)

    @property
    def clock(self) -> int:
        """The global clock."""
        return self.newest.clock

    def start(
        self,
        *wanted: str | Plan | FlowPlan | Collection[str],
        reset: Collection[str] = (),
        rebuild: Collection[str] = (),
    ) -> Entry:
        """Start with these tasks, or with all of them. Those of one collection are fed together.

        A plan is another one for its task, from this start on.
        """
        planned = [self._flow(each) for each in wanted] or flows_of(self.plans)
        entry = core.start(self.log, planned, now=self.now, reset=[*reset], rebuild=[*rebuild])
        # What is not to be fed together yet, the log has as several flows.
        flows = [
            flow.of(entry.tasks_of(id))
            for flow in planned
            for id in entry.flows
            if {*entry.tasks_of(id)} & {*flow.by_name}
        ]
        self.flows = flows
        self.plans |= {name: plan for flow in planned for name, plan in flow.by_name.items()}
        self.read_from = dict[str, TimeReplayableSource]()
        for flow in flows:
            if not flow.is_derived and not {*flow.by_name} & {*self.sources}:
                self.sources[flow.id] = Rows(flow.first.only.schema, "")
            for source in [self.sources[name] for name in flow.by_name if name in self.sources][:1]:
                known = entry.flows[flow.id]
                open_source(source, lists.read_journals(self.files, known), known.source.known_positions)
                self.read_from[flow.id] = source
        self.driver = LocalDriver(
            self.log,
            flows,
            self.read_from,
            keeping=self.keeping,
            now=lambda: self.now,
            new_id=core.new_id,
            parts=self.parts,
            executor=self.executor,
        )
        self.check()
        return entry

    def flow(self, *tasks: str) -> FlowPlan:
        """The flow of these tasks."""
        return FlowPlan(tuple(self.plans[name] for name in tasks))

    def _flow(self, wanted: str | Plan | FlowPlan | Collection[str]) -> FlowPlan:
        if isinstance(wanted, FlowPlan | Plan):
            return core.alone(wanted)
        return self.flow(*([wanted] if isinstance(wanted, str) else wanted))

    def source(self, task: str, input: str = INPUT) -> Rows:
        """The rows that feed a task, by one of its inputs."""
        source = self.sources[task]
        found = source.sources[input] if isinstance(source, Inputs) else source
        assert isinstance(found, Rows), found
        return found

    def send(self, task: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Let these rows come in the source of a task."""
        self.source(task).rows += rows

    def lose(self) -> None:
        """Let the sources have lost what the newest start would read again."""
        for name, source in self.sources.items():
            if isinstance(source, Rows):
                del source.rows[self.newest.flow_of(name).source.next_positions.get(source.partition, 0) :]

    def turn(self, task: str) -> Answers | None:
        """Take the next turn of the flow of a task, and return what its parts and shards answered.

        None if none is due, or the task is not part of this start.
        """
        # Others write to the log, too: who rewinds, keeps a clock, or delivers.
        if (newest := self.newest).epoch == self.driver.entry.epoch:
            self.driver.entry, self.driver.keeping, self.driver.parts = newest, self.keeping, self.parts
        for flow in self.flows:
            if task in flow.by_name and (answers := self.driver.take_turn(flow)) is not None:
                self.check()
                return answers
        return None

    def play(self, task: str, rows: Sequence[tuple[Any, ...]] = ()) -> Entry:
        """Let these rows come, and read on by a micro-batch. Steps that change nothing come before it.

        If nothing has come, the micro-batch is without messages: Spark has some when the channels of a source have changed.
        """
        if rows:
            self.send(task, rows)
        while (answers := self.turn(task)) is not None and not answers.reports:
            pass
        return self.newest if answers else self._without_messages(task)

    def _without_messages(self, task: str) -> Entry:
        for flow in self.flows:
            if task in flow.by_name and (source := self.read_from.get(flow.id)):
                start = self.newest.flows[flow.id].source.next_positions
                reach = replace(source.reach(start, everything=False), ends=start, journal=())
                core.play_reach(self.log, flow, source, start, reach, now=self.now, keeping=self.keeping)
                self.check()
        return self.newest

    def due(self) -> list[DueStep]:
        """The steps that can be taken beside no micro-batch."""
        return [due for due in turn.due_steps(self.newest, self.flows) if due.flow.is_derived or due.asks_nothing]

    def steps(self) -> None:
        """Take all steps that are due."""
        while due := self.due():
            self.turn(due[0].flow.id)

    def drain(self) -> None:
        """Read all sources to their end, and take all tasks to one clock above all messages."""
        for _ in self.driver.drain():
            self.check()

    def collect(self, after: int = 0) -> list[str]:
        """Delete what no entry needs any more, so much later, and return what was deleted."""
        return self.collector.collect(self.newest.epoch, now=self.now + after, keeping=self.keeping)

    def state(self, task: str, clock: int | None = None) -> dict[Any, Any]:
        """The state of a task at a clock; at the global clock, if none is given."""
        newest = self.newest
        return core.state_at(newest, self.plans[task], newest.clock if clock is None else clock)

    def clocks_of(self, task: str) -> list[int]:
        """The clocks at which a task can be read now."""
        entry = self.newest
        clocks = {*entry.retained, *entry.tasks[task].stored.cuts} - {BEGINNING}
        return sorted(clock for clock in clocks if entry.is_at(task, clock))

    def check(self) -> None:
        """Look at the newest entry, after each start and turn."""
