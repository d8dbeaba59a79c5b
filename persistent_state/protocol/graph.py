"""The clocks of a graph of tasks: derived flows, which other tasks feed, go from one common clock to the next.

A *step* takes a derived flow from its clock to another: it reads what changed between the two in the tasks that feed the flow,
and is committed by one entry. Invariants:

- A derived flow is at the clocks that its steps have visited, and at no other.
- At most one common clock lies above the global clock: the `next` of an entry. Each task that sources feed can be read there
  from the entry on that names it, until it is the global clock. A flow that does not hold the clock is moved there.
- A derived flow steps to a clock once every task that feeds it is there. Both clocks of a step are kept apart until it is
  committed, so the log fixes what a step reads. A flow that was left out visits each retained clock on its way, since its
  upstream tasks can be read at these.
- When all derived flows have come to the next clock, it becomes the global clock. So the state of each derived task at the
  global clock is made of the states of the tasks that feed it at the same clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from persistent_state.batch.packets import Step
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.edges.base import Span, edges, read_span, span_of
from persistent_state.event_time.clocks import BEGINNING, END, is_among
from persistent_state.sources.base import Chunk
from persistent_state.store.entry import Entry, common_clock
from persistent_state.store.flow_state import FlowState, Upstream
from persistent_state.store.task_state import TaskState


def upstream_of(plan: Plan, tasks: Mapping[str, TaskState]) -> dict[str, Upstream]:
    """Return the record of the tasks that feed a derived task, of these tasks."""
    fed = ((name, source.task, tasks.get(source.task)) for name, source in plan.upstream.items())
    return {name: Upstream(task, known.born, known.life) for name, task, known in fed if known is not None}


def clocks_after(entry: Entry, before: Entry) -> tuple[int, int]:
    """Return the global clock and the next common clock of an entry after `before`, in which flows have moved."""
    derived = [flow for _, flow in _derived(entry)]
    if not derived:
        return common_clock(entry, before.clock), BEGINNING
    reached = max(before.clock, before.next)
    if any(flow.visited < reached for flow in derived):
        return before.clock, before.next
    return reached, common_clock(entry, reached)


def due(entry: Entry) -> list[Step]:
    """Return the steps that can be taken now, in any order."""
    steps, born = [], dict[str, int]()
    for task in entry.tasks.values():
        born[task.flow] = min(task.born, born.get(task.flow, END))
    for id, flow in _derived(entry):
        since = flow.stepped if flow.inputs else flow.progress.clock
        # A flow that was left out visits each retained clock. A new one begins at the global clock: `born` is just below it.
        above = bisect_right(entry.retained, max(since, born[id]))
        clock = entry.retained[above] if above < len(entry.retained) else entry.next
        is_read = not flow.inputs or clock <= flow.progress.clock
        is_fed = all(_is_there(entry, upstream.task, clock) for upstream in flow.upstream.values())
        if since < clock and is_read and is_fed:
            steps.append(Step(id, since, clock))
    return steps


def step_of(entry: Entry, flow: FlowPlan) -> Step | None:
    """Return the step that a flow can take now; None if there is none, or only sources feed the flow."""
    if not flow.first.upstream:
        return None
    return next((step for step in due(entry) if step.flow == flow.id), None)


def changed_step(entry: Entry, flow: FlowPlan) -> tuple[Step | None, list[tuple[str, Span]]]:
    """Return the step that a micro-batch of a flow takes along, and what it asks of the tasks that feed the flow.

    It is None without changes, too: such a step takes an entry alone, which may come while a micro-batch is under way.
    """
    step = step_of(entry, flow)
    given = spans(entry, flow, step) if step is not None else []
    return (step, given) if given else (None, [])


def pins(entry: Entry) -> set[int]:
    """Return the clocks at which every task must be kept until all steps to them are committed."""
    common = (entry.next,) if entry.next > entry.clock else ()
    return {entry.clock, *common, *(flow.visited for _, flow in _derived(entry))}


def processed(entry: Entry) -> dict[str, int]:
    """Return for tasks in which messages wait the clock up to which the tasks that process them in order have done so."""
    active = (task for task in entry.tasks.values() if task.active)
    return {task.processes: entry.flows[task.flow].visited for task in active if task.processes is not None}


def _derived(entry: Entry) -> Iterator[tuple[str, FlowState]]:
    """Yield the flows that other tasks feed and that are part of the newest start, with their ids."""
    active = {task.flow for task in entry.tasks.values() if task.active}
    return ((id, flow) for id, flow in entry.flows.items() if flow.upstream and id in active)


def _is_there(entry: Entry, task: str, clock: int) -> bool:
    """Return whether a task has come to a clock, and can be read there."""
    return clock <= entry.flow_of(task).visited and (is_among(entry.retained, clock) or entry.is_at(task, clock))


def spans(entry: Entry, flow: FlowPlan, step: Step) -> list[tuple[str, Span]]:
    """Return what a step asks of the tasks that feed its flow, by input: of each of their shards that may give something."""
    found = []
    for name, edge in edges(flow.first).items():
        for shard, runs in enumerate(entry.tasks[edge.task].stored.in_shards(entry.shards)):
            span = span_of(flow, name, shard, runs, step, entry)
            found += [(name, span)] if edge.may_give(flow.first.feeders[name], span) else []
    return found


@dataclass(frozen=True)
class Given:
    """The spans of other tasks' shards that one part of a micro-batch or step reads, by input."""

    spans: tuple[tuple[str, Span], ...]

    def read(self, fed: Plan) -> Iterator[Chunk]:
        """Yield what the spans have for the flow of this task."""
        for name, span in self.spans:
            yield from read_span(fed, name, span)


def by_shard(spans: Sequence[tuple[str, Span]], shards: int) -> list[Given]:
    """Return the spans of each shard."""
    return [Given(tuple(each for each in spans if each[1].shard == shard)) for shard in range(shards)]


def in_parts(spans: Sequence[tuple[str, Span]], most: int) -> list[Given]:
    """Return the spans that each part reads, in at most so many parts of about as many spans."""
    parts = min(len(spans), most)
    return [Given(tuple(spans[part::parts])) for part in range(parts)]
