"""One turn of a flow, a micro-batch or a step, from its plan to the answers that are committed.

    plan ── parts: read, lift and combine ──(blobs)── shards: merge and write runs ──(answers)── commit

The plan says what each part reads. An executor decides where parts and shards run: in Spark's tasks, or in this process. A step
of ordered tasks has a part for each shard, which makes the shard's runs itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from persistent_state.batch.combine import combine
from persistent_state.batch.in_place import take_step
from persistent_state.batch.packets import Basis, Blob, Descriptor, Report, Step
from persistent_state.batch.plan import AT_MOST_ONCE, FlowPlan
from persistent_state.edges.base import Span
from persistent_state.inputs import without_journals
from persistent_state.protocol import commits, graph
from persistent_state.protocol.graph import Given
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.sources.casts import plain_rows
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.shared_file import SharedFile


@dataclass(frozen=True)
class Part:
    """A part of a turn: what it reads, and on which basis. It can be pickled, and runs anywhere.

    Attributes:
        number: The number of the part; in a step of ordered tasks, that of its shard.
        parts: How many parts the turn has; None if only Spark knows.
        basis: What the part needs of the log.
        reads: A split of the flow's source, what other tasks have given, or None if the part reads nothing.
    """

    number: int
    parts: int | None
    basis: Basis
    reads: Any = None

    def chunks(self, flow: FlowPlan, source: TimeReplayableSource | None = None) -> Iterable[Chunk]:
        """Return what the part reads, of the flow's opened source, in plain types, or of what other tasks have given."""
        if isinstance(self.reads, Given):
            return self.reads.read(flow.first)
        if source is None or self.reads is None:
            return ()
        return (replace(chunk, rows=plain_rows(chunk.rows)) for chunk in source.read(self.reads))

    def combine(self, flow: FlowPlan, chunks: Iterable[Chunk]) -> Iterator[Blob | Report]:
        """Yield the blobs of these chunks to the shards, several for a shard where they are large, and at last a report.

        Raises:
            TaskFailedError: User code raised, or a row is bad and bad rows are to fail.
        """
        return combine(flow, self.basis, self.number, self.parts, chunks)

    def take(
        self, flow: FlowPlan, new_id: Callable[[], str], shared: SharedFile | None = None
    ) -> tuple[Report, list[Descriptor]]:
        """Take the step of ordered tasks in the part's shard, and return the part's report and what the shard has made.

        With `shared` its runs stand in this file, which is to be written before the driver hears of them.

        Raises:
            DisagreementError: The log has moved on since the step was planned.
            TaskFailedError: User code raised, or a row is bad and bad rows are to fail.
        """
        return take_step(flow, self.basis, self.number, self.chunks(flow), new_id, shared)


@dataclass(frozen=True)
class DueStep:
    """A step that a flow can take now, and what it asks of the tasks that feed the flow."""

    flow: FlowPlan
    step: Step
    spans: tuple[tuple[str, Span], ...]

    @property
    def asks_nothing(self) -> bool:
        """Return whether nothing has changed in what feeds the flow. Then the step takes an entry alone, and no part runs."""
        return not self.spans


def begin(
    log: Log, epoch: int, flow: FlowPlan, reach: Reach, now: int, new_id: Callable[[], str], within: float = 0.0
) -> tuple[Entry, Reach]:
    """Write down that a flow's next micro-batch begins, where the log must say so before.

    Else it is planned by a look at the log that began less than `within` seconds ago.

    Returns:
        The newest entry, in which the flow holds the global clock. And the reach with which the micro-batch is planned, without
        what the entry has of it already.

    Raises:
        FencedError: A newer driver owns the application.
    """
    if flow.first.delivery == AT_MOST_ONCE:
        entry = commits.announce(log, epoch, flow.id, reach, now, new_id)
        return entry, without_journals(reach)
    return commits.wake(log, epoch, flow.id, now, within), reach


def micro_batch(
    entry: Entry,
    flow: FlowPlan,
    source: TimeReplayableSource,
    start: Mapping[str, int],
    reach: Reach,
    *,
    now: int,
    most: int,
    silent_for: Mapping[str, int] | None = None,
) -> list[Part]:
    """Return the parts of a flow's next micro-batch, with the step that it takes along if one is due that changes something.

    Args:
        entry: The newest entry of the log, in which the flow holds the global clock.
        flow: The plans of the flow's tasks.
        source: The flow's source, opened.
        start: By partition: where the micro-batch begins.
        reach: How far the source can be read now.
        now: The batch time, in microseconds UTC.
        most: The most parts that read the source, and that read what other tasks give.
        silent_for: By input: for how many microseconds nothing has come of it, where that makes its channels idle.
    """
    step, spans = graph.changed_step(entry, flow)
    basis = replace(commits.plan_batch(entry, flow, reach, now, step), silent_for=silent_for or {})
    # A jump is measured from the message before it, so one part must read all of a channel.
    splits = source.splits(start, reach.ends, most if flow.first.settings.jump is None else 1)
    return parts(basis, [*splits, *graph.in_parts(spans, most)], source)


def due_steps(entry: Entry, flows: Sequence[FlowPlan], busy: Collection[str] = ()) -> list[DueStep]:
    """Return the steps that these flows can take now, in any order, but those of flows that are `busy`."""
    found = []
    for step in (step for step in graph.due(entry) if step.flow not in busy):
        tasks = entry.tasks_of(step.flow)
        flow = next((flow.of(tasks) for flow in flows if tasks.keys() & flow.by_name.keys()), None)
        if flow is not None:
            found.append(DueStep(flow, step, tuple(graph.spans(entry, flow, step))))
    return found


def step(entry: Entry, due: DueStep, *, now: int, most: int) -> list[Part]:
    """Return the parts of a step that is due and reads something, of a flow that only other tasks feed.

    Args:
        entry: The newest entry of the log.
        due: The step.
        now: The batch time, in microseconds UTC.
        most: The most parts. A step of ordered tasks has one for each shard.
    """
    flow = due.flow
    basis = commits.plan_step(entry, flow, due.step, now)
    if flow.is_in_order:
        given = enumerate(graph.by_shard(due.spans, flow.first.shards))
        return [Part(shard, flow.first.shards, basis.of_shard(shard), some) for shard, some in given]
    return parts(basis, graph.in_parts(due.spans, most))


def parts(basis: Basis, reads: Sequence[Any], source: TimeReplayableSource | None = None) -> list[Part]:
    """Return parts that read these; one that reads nothing if there is nothing to read, as it may move the clock."""
    whole = reads or [None]
    return [
        Part(number, len(whole), basis.of_part(number, _partitions_in(some, source)), some)
        for number, some in enumerate(whole)
    ]


def _partitions_in(reads: Any, source: TimeReplayableSource | None) -> Collection[str] | None:
    return () if source is None or reads is None or isinstance(reads, Given) else source.partitions_in(reads)
