"""Take turns in this process: run their parts and shards, one after the other or in a pool, and commit what they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import Protocol, TypeAlias, TypeVar

from persistent_state.batch.alignment import aligned_reach
from persistent_state.batch.packets import Answers, Blob, Descriptor, Report, Step
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.batch.shard import merge_shard
from persistent_state.drive import turn
from persistent_state.drive.turn import DueStep, Part
from persistent_state.protocol import commits
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.named_files import Run
from persistent_state.store.shared_file import SharedFile

Held = dict[tuple[str, int], Mapping[str, Sequence[Run]]]
"""By flow and shard: the runs that the shard holds of each task, as it knows from its last turn."""

NewId: TypeAlias = Callable[[], str]
"""Makes names of files that nobody else has."""

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class OfShard:
    """The work of a shard in a turn: the blobs that the parts have sent to it, and by task the runs it believes to hold."""

    shard: int
    blobs: Sequence[Blob]
    held: Mapping[str, Sequence[Run]]


class Each(Protocol):
    """Calls a function for each of several items, and returns what the calls have returned, in this order: as `map` does.

    Function and items can be pickled, so the calls may be made in other processes.
    """

    def __call__(self, function: Callable[[Item], Made], items: Iterable[Item], /) -> Iterable[Made]: ...


def run(
    flow: FlowPlan,
    parts: Sequence[Part],
    source: TimeReplayableSource | None,
    held: Held,
    new_id: NewId,
    each: Each = map,
    workers: int = 1,
) -> Answers:
    """Run all parts of a turn, then all shards, and return their answers, with which the driver commits the turn.

    Args:
        flow: The plans of the flow's tasks.
        parts: The parts of the turn.
        source: The flow's source, opened; None if the turn reads no source.
        held: The runs that the shards hold. The turn adds what they hold after it.
        new_id: Makes names of files that nobody else has.
        each: Calls a function for each part, and for each worker's shards. That of a pool of threads runs them side by side.
        workers: The number of workers that share the shards. Each writes the runs of its shards into one file.

    Raises:
        StateError: A part or a shard failed.
    """
    if flow.is_in_order:
        taken = [*chain.from_iterable(each(partial(take_share, flow, new_id), _shares(parts, workers)))]
        return Answers([report for report, _ in taken], [descriptor for _, made in taken for descriptor in made])
    if len(parts) == flow.first.shards == 1:
        # One call does both, so that no blob travels.
        both = partial(_combine_and_merge, flow, source, new_id, held.get((flow.id, 0), {}))
        ((report, made, held[flow.id, 0]),) = each(both, parts)
        return Answers([report], made)
    sent = each(partial(_combine, flow, source), parts)
    return merge(flow, chain.from_iterable(sent), held, new_id, each, workers)


def _shares(items: Sequence[Item], workers: int) -> list[Sequence[Item]]:
    """Return each worker's share of the shards, in their order. No share is empty."""
    bounds = [len(items) * i // workers for i in range(workers + 1)]
    return [items[begin:end] for begin, end in pairwise(bounds) if begin < end]


def _written_together(
    flow: FlowPlan, share: Sequence[Item], make: Callable[[Item, SharedFile | None], Made]
) -> list[Made]:
    """Let one worker make what its share of the shards makes. If it has several, their runs are written together."""
    shared = SharedFile(flow.first.files) if len(share) > 1 else None
    made = [make(item, shared) for item in share]
    if shared is not None:
        shared.write()
    return made


def take_share(flow: FlowPlan, new_id: NewId, share: Sequence[Part]) -> list[tuple[Report, list[Descriptor]]]:
    """Take the step of ordered tasks in one worker's share of the shards, as `Part.take` does in each."""
    return _written_together(flow, share, lambda part, shared: part.take(flow, new_id, shared))


def _combine(flow: FlowPlan, source: TimeReplayableSource | None, part: Part) -> list[Blob | Report]:
    return [*part.combine(flow, part.chunks(flow, source))]


def _combine_and_merge(
    flow: FlowPlan, source: TimeReplayableSource | None, new_id: NewId, runs: Mapping[str, Sequence[Run]], part: Part
) -> tuple[Report, list[Descriptor], Mapping[str, Sequence[Run]]]:
    held: Held = {(flow.id, 0): runs}
    answers = merge(flow, _combine(flow, source, part), held, new_id)
    (report,) = answers.reports
    return report, [*answers.descriptors], held[flow.id, 0]


def merge_share(
    flow: FlowPlan, new_id: NewId, share: Sequence[OfShard]
) -> Sequence[tuple[list[Descriptor], Mapping[str, Sequence[Run]]]]:
    """Let one worker merge its share of the shards, one after the other, as `merge_shard` does each."""
    return _written_together(
        flow, share, lambda of, shared: merge_shard(flow, of.shard, of.blobs, of.held, new_id, shared)
    )


def flows_of(plans: Mapping[str, Plan]) -> list[FlowPlan]:
    """Return the flows of an application's tasks: the state and the rows of an ordered task are one, all others are alone."""
    groups = dict[str, tuple[Plan, ...]]()
    for plan in plans.values():
        name = plan.named if plan.is_in_order else plan.name
        groups[name] = (*groups.get(name, ()), plan)
    return [*map(FlowPlan, groups.values())]


def merge(
    flow: FlowPlan, sent: Iterable[Blob | Report], held: Held, new_id: NewId, each: Each = map, workers: int = 1
) -> Answers:
    """Let the shards of a flow merge what all parts of a turn have sent, and return the answers of all.

    This number of `workers` share the shards.

    Raises:
        StateError: A shard failed.
    """
    blobs: list[list[Blob]] = [[] for _ in range(flow.first.shards)]
    reports, made = list[Report](), list[Descriptor]()
    for message in sent:
        if isinstance(message, Report):
            reports.append(message)
        else:
            blobs[message.shard].append(message)

    work = [OfShard(shard, of_shard, held.get((flow.id, shard), {})) for shard, of_shard in enumerate(blobs)]
    answered = chain.from_iterable(each(partial(merge_share, flow, new_id), _shares(work, workers)))
    for shard, (descriptors, runs) in enumerate(answered):
        held[flow.id, shard] = runs
        made += descriptors
    return Answers(reports, made)


Executor: TypeAlias = Callable[[FlowPlan, Sequence[Part], "TimeReplayableSource | None", Held, NewId], Answers]
"""Runs a turn as `run` does. It decides where parts and shards run, and how blobs travel from one to the other."""


class LocalDriver:
    """The driver of an application whose flows take turns in this process.

    Args:
        log: The log of the application, which has been taken over.
        flows: The flows of the application, each behind those that feed it.
        sources: By flow: its source, opened.
        keeping: Which checkpoint clocks stay.
        now: Returns the wall clock in microseconds UTC.
        new_id: Makes names of files that nobody else has.
        parts: The most parts of a turn that read.
        executor: Runs the parts and shards of a turn.
    """

    def __init__(
        self,
        log: Log,
        flows: Sequence[FlowPlan],
        sources: Mapping[str, TimeReplayableSource],
        *,
        keeping: Keeping,
        now: Callable[[], int],
        new_id: NewId,
        parts: int = 1,
        executor: Executor = run,
    ) -> None:
        entry = log.newest()
        assert entry is not None, "it has been taken over"
        self.entry: Entry = entry
        self._log, self._flows, self._sources = log, flows, sources
        self.keeping, self.parts, self._now, self._new_id = keeping, parts, now, new_id
        self._executor = executor
        self._held: Held = {}

    def drain(self) -> Iterator[Answers]:
        """Read all sources to their end, then take all tasks to one clock above all messages. Yield what each turn answers.

        Raises:
            StateError: A turn failed.
        """
        yield from self._take_turns()
        self.entry = commits.close(self._log, self.entry.epoch, now=self._now(), keeping=self.keeping)
        yield from self._take_turns()

    def take_turn(self, flow: FlowPlan) -> Answers | None:
        """Commit the next micro-batch or step of a flow, and return what its parts and shards answered; None if none is due.

        Raises:
            StateError: The turn failed.
        """
        due = turn.due_steps(self.entry, [flow])
        if due and due[0].asks_nothing:
            return self._commit_unchanged(due[0].step)
        parts = self._parts_of_step(due[0]) if flow.is_derived and due else self._parts_of_batch(flow, bool(due))
        if not parts:
            return None
        answers = self._executor(flow, parts, self._sources.get(flow.id), self._held, self._new_id)
        self.entry, _ = commits.commit(
            self._log,
            self.entry.epoch,
            flow.first.settings,
            answers,
            now=self._now(),
            new_id=self._new_id,
            keeping=self.keeping,
        )
        return answers

    def _take_turns(self) -> Iterator[Answers]:
        """Let the flows take turns until there is nothing more to do."""
        while answered := [answers for flow in self._flows if (answers := self.take_turn(flow)) is not None]:
            yield from answered

    def _commit_unchanged(self, step: Step) -> Answers:
        self.entry, _ = commits.commit_unchanged(
            self._log, self.entry.epoch, [step], now=self._now(), keeping=self.keeping
        )
        return Answers([], [])

    def _parts_of_step(self, due: DueStep) -> list[Part]:
        return turn.step(self.entry, due, now=self._now(), most=self.parts)

    def _parts_of_batch(self, flow: FlowPlan, takes_step: bool) -> list[Part]:
        """Return the parts of a flow's next micro-batch; none if it has nothing to do."""
        if flow.is_derived:
            return []
        source, known, now = self._sources[flow.id], self.entry.flows[flow.id], self._now()
        start = known.source.next_positions
        reach = aligned_reach(flow.first, source, known.source, start, everything=False, is_ending=True, now=now)
        # The others wait for a source until its first micro-batch, even if that has nothing.
        if reach.ends == start and not takes_step and known.progress.batch:
            return []
        self.entry, reach = turn.begin(self._log, self.entry.epoch, flow, reach, now, self._new_id)
        return turn.micro_batch(self.entry, flow, source, start, reach, now=now, most=self.parts)
