"""A driver's part after its start: plan micro-batches, commit them, give a final clock.

Invariants:
- Within a timeline, an entry's global clock is at or above that of the entry before it. Every active flow's clock is at or
  above the global clock. Only one whose tasks were away or are rebuilt may be below: it holds the global clock until it has
  caught up.
- No stored interval straddles a cut that the newest entry names for a task, or a retained clock.
- A kept clock names the entry in which it became the global clock. That entry has all that a reader at the clock, or a start
  that goes back to it, will ever need. So no later entry, and no later run, has to remember anything for a kept clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from persistent_state.batch.advance import advance
from persistent_state.batch.first_rows import check_columns, check_readable, check_wall_clock
from persistent_state.batch.packets import (
    Advance,
    Answers,
    Basis,
    Clocks,
    Descriptor,
    Ground,
    Report,
    Step,
    check_plan,
    digest_at,
    digest_of_parts,
    short_digest,
)
from persistent_state.batch.plan import FlowPlan
from persistent_state.errors import DisagreementError
from persistent_state.event_time import clocks
from persistent_state.event_time.clocks import END, Settings
from persistent_state.event_time.positions import newest_read
from persistent_state.inputs import journals_of
from persistent_state.protocol import graph
from persistent_state.protocol.gathered import GatheringLog
from persistent_state.protocol.global_clock import Keeping, move_clock
from persistent_state.protocol.next_entry import amend, append, newest_own
from persistent_state.protocol.tidy import tidy_flow, without_old_spans
from persistent_state.sources.base import Reach
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.flow_state import FlowState
from persistent_state.store.log import Log
from persistent_state.store.named_files import path_of
from persistent_state.store.task_state import TaskState


def wake(log: Log, epoch: int, flow: str, now: int, within: float = 0.0) -> Entry:
    """Return the newest entry, in which the flow holds the global clock. Until it commits, nobody else can move its clock.

    A look that began less than `within` seconds ago may show that the flow holds it already.

    Raises:
        FencedError: a newer driver owns the application.
    """
    return amend(log, epoch, lambda entry: _with_changed(entry, flow, entry.flows[flow].hold()), now, within)


def announce(log: Log, epoch: int, flow: str, reach: Reach, now: int, new_id: Callable[[], str]) -> Entry:
    """Do as `wake` does, and write down how far the next micro-batch reads.

    A start under at-most-once delivery goes on behind that. The lines that the source wants remembered are written down too, so
    that the micro-batch's commit need not do so again.

    Raises:
        FencedError: a newer driver owns the application.
    """

    def plan(entry: Entry) -> Entry:
        known = entry.flows[flow]
        path = partial(path_of, log.application, flow, epoch, known.progress.batch + 1, "pages", new_id)
        announced = known.with_source(known.source.announce(reach.ends))
        return _with_changed(
            entry, flow, _with_lines(log.files, announced, journals_of(reach, known.inputs), path).hold()
        )

    return amend(log, epoch, plan, now)


def _with_lines(
    files: Files, flow: FlowState, lines: Mapping[str, Sequence[str]], path: Callable[[], str]
) -> FlowState:
    """Return a flow whose inputs have these lines in their journals, too."""
    return flow.with_journals(
        {name: lists.append(files, flow.inputs[name].journal, some, path) for name, some in lines.items() if some}
    )


def _with_changed(entry: Entry, id: str, flow: FlowState) -> Entry:
    """Return the entry with this record of a flow; itself if nothing changes."""
    known = entry.flows[id]
    return entry if flow is known or flow == known else entry.with_flow(id, flow)


def plan_batch(entry: Entry, flow: FlowPlan, reach: Reach | None, now: int, step: Step | None = None) -> Basis:
    """Return the basis of a flow's next micro-batch by the newest entry, as the first part is told it.

    `reach` is None if no source is asked. `now` is the batch time; 0 if the planner does not know it. With `step` it takes what
    other tasks give, too.
    """
    basis, grounds, visited = plan_part(entry, flow, reach, now), {}, flow_by(entry, flow).visited
    # Tasks of one flow mostly keep the same clocks apart. One object of them is sent once.
    apart: dict[tuple[int, ...], Clocks] = {}
    for plan in flow.tasks:
        every = plan.settings.every
        grid = None if every is None else (entry.clock, every)
        task = entry.tasks[plan.name]
        if task.stored.cuts not in apart:
            apart[task.stored.cuts] = _apart(entry, [task])
        cuts = apart[task.stored.cuts]
        digests = shard_digests(entry, task)
        grounds[plan.name] = tuple(Ground(visited, cuts, task.stored.floor, runs, grid) for runs in digests)
    if step is not None:
        basis = replace(basis, plan=short_digest((basis.plan, step)), step=step)
    return replace(basis, grounds=grounds, visited=visited, reach=reach)


def plan_step(entry: Entry, flow: FlowPlan, step: Step, now: int) -> Basis:
    """Return the basis of a step that no micro-batch takes along.

    The shards of a flow know from its last micro-batch which runs they hold. Those of a step know nothing, so the first part
    takes that along, too, to each shard its own: else each of them would read the log. No source is asked.
    """
    basis = plan_batch(entry, flow, None, now, step)
    grounds = {
        name: tuple(
            replace(ground, held=shard.runs)
            for ground, shard in zip(of_shards, entry.tasks[name].stored.in_shards(entry.shards), strict=True)
        )
        for name, of_shards in basis.grounds.items()
    }
    return replace(basis, grounds=grounds)


def plan_part(entry: Entry, flow: FlowPlan, reach: Reach | None, now: int) -> Basis:
    """Return what `plan_batch` does for a part that is not the first."""
    known, tasks = flow_by(entry, flow), entry.tasks_of(flow.id)
    progress, source = known.progress, known.source
    batch, is_behind = progress.batch + 1, progress.clock < entry.clock
    return Basis(
        flow=flow.id,
        epoch=entry.epoch,
        batch=batch,
        plan=short_digest((flow.id, entry.epoch, batch, now, progress.clock, source.again, reach)),
        now=now,
        clock=progress.clock,
        begun=tuple(name for name, each in known.inputs.items() if each.has_begun),
        is_behind=is_behind,
        positions=source.positions,
        ends={} if reach is None else reach.ends,
        channels=source.channels if flow.first.settings.jump is not None else {},
        apart=_apart(entry, tasks.values()) if is_behind else (),
        again=source.again,
    )


def flow_by(entry: Entry, flow: FlowPlan) -> FlowState:
    """Return what an entry says of a flow.

    Raises:
        DisagreementError: By the entry, these tasks are no flow: another driver has started since.
    """
    if entry.tasks_of(flow.id).keys() != flow.by_name.keys():
        raise DisagreementError(f"{flow.title} are one flow no more; another driver has started, so stop this one.")
    return entry.flows[flow.id]


def _apart(entry: Entry, tasks: Iterable[TaskState]) -> Clocks:
    """Return the clocks that folding must keep apart for tasks."""
    return Clocks(clocks.with_more(entry.retained, (cut for task in tasks for cut in task.stored.cuts)))


def shard_digests(entry: Entry, task: TaskState, visited: int = END) -> tuple[str, ...]:
    """Return the digest of the runs of each shard and of the clock by which it folds: the flow's, or `visited` if less."""
    clock = min(visited, entry.flows[task.flow].visited)
    return tuple(digest_at(clock, runs) for runs in task.stored.in_shards(entry.shards))


def commit(
    log: Log,
    epoch: int,
    settings: Settings,
    answers: Answers,
    *,
    now: int,
    new_id: Callable[[], str],
    keeping: Keeping,
    to_the_end: bool = False,
    gathers: bool = False,
) -> tuple[Entry, Advance]:
    """Make a micro-batch, or a step of a flow that other tasks feed, part of the state: one new entry, or nothing.

    `to_the_end` is True if the run ends at the present end of the sources. With `gathers` the log, a `GatheringLog`, has the
    entry in memory.

    Returns:
        The entry, and where the micro-batch has moved its flow.

    Raises:
        DisagreementError: the parts and the shards did not each answer once and by one plan, or not from what the log says.
        FencedError: a newer driver owns the application.
        InvalidInputError: nearly all rows of an input that begins are ahead of the wall clock, or all lack a column, or none of
            them can be read or makes an update that fits.
        CommitUnknownError: the store did not answer.
    """
    first = _agreed(answers)
    check_wall_clock(answers.reports)
    check_readable(answers.reports)
    check_columns(answers.reports, to_the_end)
    planned = next((report.step for report in answers.reports if report.step is not None), None)
    asks_sources = any(report.reach is not None for report in answers.reports)
    visited = max(report.visited for report in answers.reports)

    after: Advance

    def change(newest: Entry) -> Entry:
        nonlocal after
        if first.epoch != epoch:
            raise DisagreementError(
                f"flow={first.flow} batch={first.batch} is of epoch {first.epoch}, not {epoch}; start again."
            )
        flow, step = newest.flows[first.flow], planned
        _check_shards(newest, answers.descriptors, visited)
        if step is not None and asks_sources and step.clock <= flow.stepped:
            # It was committed meanwhile as one without changes: by other runs of the same state there are none.
            step = None
        if step is not None:
            _check_due(newest, [step])
        if step is not None and not asks_sources:
            after = _stepped(flow, step, answers.reports)
        else:
            tasks = newest.tasks_of(first.flow)
            begun = min((task.stored.first for task in tasks.values() if task.stored.first is not None), default=None)
            # Before the batch adds to them: another flow may have moved the global clock since this one's last commit.
            after = advance(without_old_spans(newest, flow), begun, answers.reports, settings)
            if step is not None:
                after = replace(after, stepped=step.clock, cuts=(*after.cuts, step.clock))
        return _with_batch(log, newest, answers.descriptors, after, now, new_id, keeping)

    if gathers:
        assert isinstance(log, GatheringLog), log
        return log.gather(change, answers.descriptors), after
    return append(log, partial(newest_own, log, epoch), change), after


def commit_unchanged(
    log: Log, epoch: int, steps: Sequence[Step], *, now: int, keeping: Keeping
) -> tuple[Entry, list[tuple[Step, Advance]]]:
    """Commit steps between whose clocks nothing changed in the tasks that feed them: one new entry for all of them.

    A flow that sources feed, too, may have a micro-batch under way, which knows nothing of its step. If that micro-batch has
    taken the step along, the step is left out.

    Returns:
        The entry, and each step that was not left out with where it has moved its flow.

    Raises:
        FencedError: a newer driver owns the application.
    """
    stepped: list[tuple[Step, Advance]]

    def change(newest: Entry) -> Entry:
        nonlocal stepped
        flows, tasks = {**newest.flows}, {**newest.tasks}
        taken = {step for step in steps if newest.flows[step.flow].inputs} - {*graph.due(newest)}
        left = [step for step in steps if step not in taken]
        _check_due(newest, left)
        stepped = [(step, _stepped(newest.flows[step.flow], step, ())) for step in left]
        if not left:
            return newest
        moved = {step.flow: step.clock for step in left}
        for step in left:
            flow = newest.flows[step.flow]
            if flow.is_derived:
                flows[step.flow] = replace(flow, progress=flow.progress.after_batch(step.clock, holds=True))
            else:
                flows[step.flow] = replace(flow, stepped=step.clock)
        for name, task in newest.tasks.items():
            if task.flow in moved:
                tasks[name] = replace(task, stored=task.stored.close(moved[task.flow]))
        return move_clock(replace(newest, flows=flows, tasks=tasks), newest, now, keeping)

    return append(log, partial(newest_own, log, epoch), change), stepped


def _check_due(newest: Entry, steps: Sequence[Step]) -> None:
    """Refuse steps that their flows can't take.

    Raises:
        DisagreementError: A flow is not where its step begins, or the tasks that feed it are not where it ends.
    """
    for step in {*steps} - {*graph.due(newest)}:
        raise DisagreementError(f"flow={step.flow} can't go to clock={step.clock} now; start again.")


def _stepped(flow: FlowState, step: Step, reports: Sequence[Report]) -> Advance:
    """Return where a flow stands after a step that no micro-batch took along.

    That no source was asked says nothing of a source: none becomes idle by it, or holds the clock again.
    """
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    return Advance(
        clock=step.clock if flow.is_derived else flow.progress.clock,
        cuts=(step.clock,),
        coarse=flow.coarse,
        channels=flow.source.channels,
        positions=flow.source.positions,
        holds=flow.is_derived or flow.progress.holds,
        upstream_min=None,
        counts=dict(counts),
        stepped=None if flow.is_derived else step.clock,
    )


def _agreed(answers: Answers) -> Descriptor:
    """Return the first descriptor, if all parts and shards speak of one plan, and every shard has heard from each part.

    Raises:
        DisagreementError: They do not, or nobody answered.
    """
    if not answers.descriptors or not answers.reports:
        raise DisagreementError("no shard or no part answered; nothing was committed, start again.")
    first, senders = answers.descriptors[0], [report.sender for report in answers.reports]
    check_plan(senders)
    sender, parts = senders[0], digest_of_parts(senders)
    batch = sender.flow, sender.epoch, sender.batch, sender.plan
    for other in answers.descriptors:
        if (other.flow, other.epoch, other.batch, other.plan, other.parts) != (*batch, parts):
            raise DisagreementError(
                f"task={other.task} batch={first.batch}: shard {other.shard} has another plan than the parts, or has "
                "heard from others than the driver; start again."
            )
    return first


def _check_shards(newest: Entry, descriptors: Sequence[Descriptor], visited: int) -> None:
    """Refuse a micro-batch that does not follow the newest entry. Its shards fold by the clock `visited`.

    A step without changes may have taken a flow that sources feed beyond that clock. It has changed no run.

    Raises:
        DisagreementError: A shard of a task is missing or answered twice, or one started from other runs than the entry's.
    """
    first = descriptors[0]
    flow, tasks = newest.flows[first.flow], newest.tasks_of(first.flow)
    answered = Counter((descriptor.task, descriptor.shard) for descriptor in descriptors)
    if answered != Counter((name, shard) for name in tasks for shard in range(newest.shards)):
        raise DisagreementError(
            f"flow={first.flow} batch={first.batch}: of tasks={sorted(tasks)} with {newest.shards} shards each, "
            f"{sorted(answered.elements())} answered; start again."
        )
    if first.batch != flow.progress.batch + 1:
        raise DisagreementError(f"flow={first.flow}: batch {first.batch} follows {flow.progress.batch}; start again.")
    clock = visited if flow.upstream and flow.inputs else END
    bases = {name: shard_digests(newest, task, clock) for name, task in tasks.items()}
    for descriptor in descriptors:
        if descriptor.base != bases[descriptor.task][descriptor.shard]:
            raise DisagreementError(
                f"task={descriptor.task} batch={first.batch}: shard {descriptor.shard} started from other runs than the log's; "
                "start again."
            )


def _with_batch(
    log: Log,
    newest: Entry,
    descriptors: Sequence[Descriptor],
    after: Advance,
    now: int,
    new_id: Callable[[], str],
    keeping: Keeping,
) -> Entry:
    id, batch = descriptors[0].flow, descriptors[0].batch
    page = partial(path_of, log.application, id, newest.epoch, batch, "pages", new_id)
    ordered = sorted(descriptors, key=lambda d: (d.task, d.shard))
    known = newest.flows[id]
    read = known.with_source(known.source.after_batch(after.channels, after.positions))
    flow = replace(
        _with_lines(log.files, read, after.journals, page),
        progress=known.progress.after_batch(after.clock, after.holds),
        late_rows=known.late_rows.after_batch(
            (descriptor.late for descriptor in ordered if descriptor.late), after.counts.get("outside", 0)
        ),
        coarse=after.coarse,
        stepped=known.stepped if after.stepped is None else after.stepped,
    )
    tasks = {**newest.tasks}
    for name, some in groupby(ordered, lambda d: d.task):
        task, answers = tasks[name], list(some)
        changes = [((descriptor.gone, descriptor.kept), descriptor.runs) for descriptor in answers]
        tasks[name] = replace(
            task,
            late_rows=task.late_rows.after_batch(descriptor.side for descriptor in answers if descriptor.side),
            stored=task.stored.after_batch(changes, after.cuts),
        )
    entry = move_clock(replace(newest.with_flow(id, flow), tasks=tasks), newest, now, keeping)
    return tidy_flow(log, entry, id, new_id)


def close(log: Log, epoch: int, *, now: int, keeping: Keeping) -> Entry:
    """Give every flow one clock, the first multiple of the interval above the newest message: everything is checkpointed.

    What arrives below that clock afterwards is late. Call it when the sources have been read to their end.

    Raises:
        FencedError: a newer driver owns the application.
    """

    def change(newest: Entry) -> Entry:
        tasks = {
            name: task for name, task in newest.tasks.items() if task.active and not newest.flow_of(name).is_derived
        }
        active = {task.flow: newest.flows[task.flow] for task in tasks.values()}
        # From the positions, since a channel that has disappeared is not known any more.
        read = newest_read(position for flow in active.values() for position in flow.source.positions.values())
        clock = max([newest.clock, *(flow.progress.clock for flow in active.values())])
        if read is not None:
            clock = max(clock, clocks.next_multiple(read, newest.interval))
        if all(flow.progress.clock == clock <= max(newest.clock, newest.next) for flow in active.values()):
            return newest
        flows = {id: replace(flow.move_to(clock), coarse=()) for id, flow in active.items()}
        tasks = {name: replace(task, stored=task.stored.close(clock)) for name, task in tasks.items()}
        closed = replace(newest, flows={**newest.flows, **flows}, tasks={**newest.tasks, **tasks})
        return move_clock(closed, newest, now, keeping)

    return append(log, partial(newest_own, log, epoch), change)
