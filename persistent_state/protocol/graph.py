"""The clocks of a graph of tasks: derived flows, which other tasks feed, go from one common clock to the next.

A *step* takes a derived flow from its clock to another: it reads what changed between the two in the tasks that feed the flow,
and is committed by one entry. Invariants:

- A derived flow is at the clocks that its steps have visited, and at no other.
- At most one common clock lies above the global clock: the `next` of an entry. Each task that sources feed can be read there
  from the entry on that names it, until it is the global clock. A flow that does not hold the clock is moved there.
- A derived flow steps to a clock once every task that feeds it is there. Both clocks of a step are kept apart until it is
  committed, so the log fixes what a step reads. A flow that was left out visits each retained clock on its way, since its
  upstream tasks can be read at these.
- A task that windows, emitted rows or pairs feed has what no state has any more. It begins again only if it is named itself.
- When all derived flows have come to the next clock, it becomes the global clock. So the state of each derived task at the
  global clock is made of the states of the tasks that feed it at the same clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from persistent_state.batch.messages import Step
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.edges.base import Span, edges, read, span_of
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING, END, is_among
from persistent_state.event_time.inputs import INPUT
from persistent_state.protocol import identity, refusals
from persistent_state.sources.base import Chunk
from persistent_state.store.entry import Entry, common_clock
from persistent_state.store.flow_state import FlowState, Upstream
from persistent_state.store.task_state import TaskState


def reset_and_rebuilt(
    newest: Entry | None, wanted: Sequence[FlowPlan], reset: Collection[str], rebuild: Collection[str]
) -> tuple[set[str], set[str]]:
    """Return the tasks that a start resets, and those that it rebuilds.

    Beside those of `rebuild` it rebuilds derived tasks that are named in `reset`, or can't go on from their state: if their
    inputs, what they declare of those, or their version are others than before, or if a task that feeds them starts over, or
    did so while they were away.

    One that a source feeds, too, must be named, and so must one that can't be built from the state of the tasks that feed it:
    what it was given is gone. To name the task that feeds it is no word for that. What is built from state lacks nothing
    afterwards, but this one loses a history that nobody else has. A start that was refused can be made again. Neither is
    refused while it has nothing yet: it begins as a new task does.

    Raises:
        InvalidInputError: A task that a source feeds, or fed, can't go on and is not named, or one that would lose what it has.
    """
    to_reset, to_rebuild, known = {*reset}, {*rebuild}, newest.tasks if newest else {}
    derived = (plan for flow in wanted for plan in flow.tasks if plan.upstream)
    for plan in (plan for plan in derived if plan.name in known):
        assert newest is not None
        before = newest.flow_of(plan.name).upstream
        own = known[plan.name].identity
        is_fed_alike = before == upstream_of(plan, known) and all(
            own.get(what) == plan.identity.get(what) for what in ("inputs", "version")
        )
        # What was added by one column or key can't be taken away by another.
        is_fed_alike &= identity.declared_otherwise(plan, newest, plan.inputs_taken_back) is None
        starts_over = any(source.task in (*to_rebuild, *to_reset) for source in plan.upstream.values())
        if plan.source_inputs or not newest.flow_of(plan.name).is_derived:
            if plan.name not in (*reset, *rebuild) and (starts_over or not is_fed_alike):
                # One that was away has missed what its source gave.
                if _has_something(newest, plan.name) or not (known[plan.name].active or newest.clock == BEGINNING):
                    why = _what_is_other(plan, newest, {*to_rebuild, *to_reset})
                    raise InvalidInputError(
                        f"task={plan.named} can't go on, as {why}. {refusals.ways(plan, newest.clock)}"
                    )
                (to_reset if plan.source_inputs else to_rebuild).add(plan.name)
        elif plan.is_in_order and plan.name in reset and plan.upstream[INPUT].task in {*reset} - to_rebuild:
            # Its messages, which a source feeds, start from zero at the global clock, and so does it.
            continue
        elif plan.name in reset or starts_over or not is_fed_alike:
            # All tasks of the graph that an ordered task is are named with it.
            names = {plan.name, plan.upstream[INPUT].task} if plan.is_in_order else {plan.name}
            is_named = not names.isdisjoint((*reset, *rebuild))
            if not is_named and not refusals.is_made_of_state(plan) and _has_something(newest, plan.name):
                why = _what_is_other(plan, newest, {*to_rebuild, *to_reset})
                raise InvalidInputError(
                    f"task={plan.named} can't go on, as {why}, and what it has taken can't be given to it again. "
                    f"{refusals.ways(plan, newest.clock)}"
                )
            to_rebuild.add(plan.name)
    return to_reset - (to_rebuild - {*rebuild}), to_rebuild


def _has_something(newest: Entry, name: str) -> bool:
    """Return whether a task has taken anything that stays. Above the global clock all comes again."""
    return newest.clock > BEGINNING and newest.flow_of(name).visited > BEGINNING


def _what_is_other(plan: Plan, newest: Entry, start_over: Collection[str]) -> str:
    """Return in words why a task that others feed can't go on."""
    before, now = newest.tasks[plan.name].identity, plan.identity
    if before.get("version") != now.get("version"):
        return "the store was written with another version"
    if before.get("inputs") != now.get("inputs"):
        return identity.other_inputs(before.get("inputs"), now.get("inputs"))
    if why := identity.declared_otherwise(plan, newest, plan.inputs_taken_back):
        return why
    sources = (source.task for source in plan.upstream.values())
    if over := next((task for task in sources if task in start_over), None):
        return f"task={over}, which feeds it, starts over"
    return "a task that feeds it has started over without it"


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
            yield from read(fed, name, span)


def by_shard(spans: Sequence[tuple[str, Span]], shards: int) -> list[Given]:
    """Return the spans of each shard."""
    return [Given(tuple(each for each in spans if each[1].shard == shard)) for shard in range(shards)]


def in_parts(spans: Sequence[tuple[str, Span]], most: int) -> list[Given]:
    """Return the spans that each part reads, in at most so many parts of about as many spans."""
    parts = min(len(spans), most)
    return [Given(tuple(spans[part::parts])) for part in range(parts)]
