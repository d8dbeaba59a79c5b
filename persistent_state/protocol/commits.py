"""A driver's part after its start: plan micro-batches, commit them, give a final clock.

Invariants:
- An entry's global clock is at or above that of the entry before it, and every active task's clock is at or above the global
  clock. Only a task that was away or is built again may be below: it holds the global clock until it has caught up.
- No stored interval straddles a cut that the newest entry names for a task, or a retained clock.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from persistent_state.batch.advance import advance
from persistent_state.batch.messages import (
    Advance,
    Answers,
    Basis,
    Descriptor,
    Ground,
    check_plan,
    digest_at,
    digest_of_parts,
    short_digest,
)
from persistent_state.batch.plan import Plan
from persistent_state.errors import DisagreementError, ExistsError, FencedError, StoreUnavailableError
from persistent_state.event_time import clocks
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.positions import newest_read
from persistent_state.sources.base import Reach
from persistent_state.store import late_rows, lists
from persistent_state.store.codec import side_to_json
from persistent_state.store.entry import Entry, global_clock
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from persistent_state.store.named_files import SideFile
from persistent_state.store.task_state import LateRows, SourceState, TaskState


@dataclass(frozen=True)
class Keeping:
    """The limits of what is kept: the newest `clocks` checkpoints, and for `grace` microseconds files that were replaced."""

    clocks: int = 10
    grace: int = 600_000_000


def wake(log: Log, epoch: int, name: str, now: int) -> Entry:
    """Return the newest entry, in which the task holds the global clock. Until it commits, nobody else can move its clock.

    Raises:
        FencedError: a newer driver owns the application.
    """
    return amend(log, epoch, name, lambda task: replace(task, progress=task.progress.hold()), now)


def announce(log: Log, epoch: int, name: str, reach: Reach, now: int, new_id: Callable[[], str]) -> Entry:
    """Do as `wake` does, and write down how far the next micro-batch reads.

    A start under at-most-once delivery goes on behind that. The lines that the source wants remembered are written down too, so
    that the micro-batch's commit need not do so again.

    Raises:
        FencedError: a newer driver owns the application.
    """

    def plan(task: TaskState) -> TaskState:
        path = partial(_path, log, name, epoch, task.progress.batch + 1, "pages", new_id)
        journal = lists.append(log.files, task.source.journal, reach.journal, path)
        return replace(task, progress=task.progress.hold(), source=task.source.announce(reach.ends, journal))

    return amend(log, epoch, name, plan, now)


def written(path: str) -> tuple[int, int]:
    """Return the epoch and the micro-batch in which a file of `runs` was written; (-1, -1) if its name is not one of ours."""
    name = re.match(r"(\d+)-(\d+)-", path.rpartition("/")[2])
    return (int(name[1]), int(name[2])) if name else (-1, -1)


def _path(log: Log, task: str, epoch: int, batch: int, what: str, new_id: Callable[[], str]) -> str:
    """Return a name for a file of a task that nobody else has."""
    return f"{log.application}/runs/{task}/{epoch:06d}-{batch:09d}-{what}-{new_id()}"


def amend(log: Log, epoch: int, name: str, change: Callable[[TaskState], TaskState], now: int) -> Entry:
    """Change something of a task that no micro-batch changes, and return the entry that says so.

    Raises:
        FencedError: a newer driver owns the application.
    """
    while True:
        newest = own(log, epoch)
        task = change(newest.tasks[name])
        if task == newest.tasks[name]:
            return newest
        entry = newest.follower(now, tasks={**newest.tasks, name: task})
        try:
            log.append(entry)
        except ExistsError:
            continue
        return entry


def own(log: Log, epoch: int) -> Entry:
    """Return the newest entry, if the application is still this driver's.

    Raises:
        FencedError: A newer driver owns the application.
        StoreUnavailableError: The store does not list this driver's own entries yet.
    """
    newest = log.newest()
    if newest is None or newest.epoch < epoch:
        raise StoreUnavailableError(
            f"the store does not list what epoch {epoch} of {log.application} wrote yet; try again."
        )
    if newest.epoch > epoch:
        raise FencedError(f"a newer driver owns {log.application}; this one (epoch {epoch}) has stopped.")
    return newest


def plan_batch(entry: Entry, plan: Plan, reach: Reach, now: int) -> Basis:
    """Return the basis of a task's next micro-batch by the newest entry, as the first part is told it.

    `now` is the batch time; 0 if the planner does not know it.
    """
    task = entry.tasks[plan.name]
    basis, cuts = plan_part(entry, plan, reach, now), _apart(entry, task)
    grounds = [Ground(basis.clock, cuts, task.stored.floor, runs) for runs in shard_digests(entry, task)]
    return replace(basis, grounds=tuple(grounds), reach=reach)


def plan_part(entry: Entry, plan: Plan, reach: Reach, now: int) -> Basis:
    """Return what `plan_batch` does for a part that is not the first."""
    task = entry.tasks[plan.name]
    batch, is_behind = task.progress.batch + 1, task.progress.clock < entry.clock
    return Basis(
        task=plan.name,
        epoch=entry.epoch,
        batch=batch,
        plan=short_digest((plan.name, entry.epoch, batch, now, task.progress.clock, task.source.again, reach)),
        now=now,
        clock=task.progress.clock,
        has_begun=any((channel.newest, channel.before) != (None, None) for channel in task.source.channels.values()),
        is_behind=is_behind,
        positions=task.source.positions,
        ends=reach.ends,
        channels=task.source.channels if plan.settings.jump is not None else {},
        apart=_apart(entry, task) if is_behind else (),
        again=task.source.again,
    )


def _apart(entry: Entry, task: TaskState) -> tuple[int, ...]:
    """Return the clocks that folding must keep apart."""
    return tuple(sorted({*entry.retained, *task.stored.cuts}))


def shard_digests(entry: Entry, task: TaskState) -> tuple[str, ...]:
    """Return the digest of the runs of each shard."""
    return tuple(digest_at(task.progress.clock, runs) for runs in task.stored.in_shards(entry.shards))


def commit(
    log: Log,
    epoch: int,
    settings: Settings,
    answers: Answers,
    *,
    now: int,
    new_id: Callable[[], str],
    keeping: Keeping,
) -> tuple[Entry, Advance]:
    """Make a micro-batch part of the state: one new entry, or nothing.

    Returns:
        The entry, and where the micro-batch has moved its task.

    Raises:
        DisagreementError: the parts and the shards did not each answer once and by one plan, or not from what the log says.
        FencedError: a newer driver owns the application.
        CommitUnknownError: the store did not answer.
    """
    first = _agreed(answers)
    while True:
        newest = own(log, epoch)
        if first.epoch != epoch:
            raise DisagreementError(
                f"task={first.task} batch={first.batch} is of epoch {first.epoch}, not {epoch}; start again."
            )
        _check_shards(newest, answers.descriptors)
        after = advance(newest.tasks[first.task], answers.reports, settings)
        entry = _with_batch(log, newest, answers.descriptors, after, now, new_id, keeping)
        try:
            log.append(entry)
        except ExistsError:
            # Another task of this application, or a newer driver, was first: look again.
            continue
        return entry, after


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
    batch = sender.task, sender.epoch, sender.batch, sender.plan
    for other in answers.descriptors:
        if (other.task, other.epoch, other.batch, other.plan, other.parts) != (*batch, parts):
            raise DisagreementError(
                f"task={first.task} batch={first.batch}: shard {other.shard} has another plan than the parts, or has "
                "heard from others than the driver; start again."
            )
    return first


def _check_shards(newest: Entry, descriptors: Sequence[Descriptor]) -> None:
    """Refuse a micro-batch that does not follow the newest entry.

    Raises:
        DisagreementError: A shard is missing or answered twice, or one started from other runs than the entry's.
    """
    first = descriptors[0]
    task = newest.tasks[first.task]
    answered = sorted(descriptor.shard for descriptor in descriptors)
    if answered != list(range(newest.shards)):
        raise DisagreementError(
            f"task={first.task} batch={first.batch}: shards {answered} of {newest.shards} answered; start again."
        )
    if first.batch != task.progress.batch + 1:
        raise DisagreementError(f"task={first.task}: batch {first.batch} follows {task.progress.batch}; start again.")
    bases = shard_digests(newest, task)
    for descriptor in descriptors:
        if descriptor.base != bases[descriptor.shard]:
            raise DisagreementError(
                f"task={first.task} batch={first.batch}: shard {descriptor.shard} started from other runs than the log's; "
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
    first = descriptors[0]
    task = newest.tasks[first.task]
    ordered = sorted(descriptors, key=lambda d: d.shard)
    page = partial(_path, log, first.task, newest.epoch, first.batch, "pages", new_id)
    journal = lists.append(log.files, task.source.journal, after.journal, page)
    changes = [(descriptor.kept, descriptor.runs) for descriptor in ordered]
    moved = replace(
        task,
        progress=task.progress.after_batch(after.clock, after.holds),
        source=task.source.after_batch(after.channels, after.positions, journal),
        late_rows=task.late_rows.after_batch(descriptor.side for descriptor in ordered if descriptor.side),
        stored=task.stored.after_batch(changes, after.cuts, after.coarse),
    )
    entry = _moved_on(newest.with_task(first.task, moved), newest, now, keeping)
    moved = entry.tasks[first.task]
    restart = min(entry.clock, moved.progress.clock)
    # What a start may have to read again must never grow, as it would where spans on both sides of its clock are joined.
    source = moved.source.without_old_spans(restart)
    joined = partial(_path, log, first.task, newest.epoch, first.batch, "sides", new_id)
    rows = _with_few_sides(log.files, moved.late_rows, source, entry.epoch, restart, page, joined)
    return entry.with_task(first.task, replace(moved, source=source, late_rows=rows))


def _moved_on(entry: Entry, newest: Entry, now: int, keeping: Keeping) -> Entry:
    """Return the entry after `newest` with tasks that have moved: its global clock, and what follows from that."""
    clock = global_clock(entry.tasks, newest.clock)
    tasks = {}
    for name, task in entry.tasks.items():
        own, stored, outputs = task.progress.clock, task.stored, task.outputs
        if task.active and task.progress.holds and own < newest.clock:
            # It has yet to catch up, and until then the global clock waits.
            task = replace(task, stored=stored.with_cuts([own]))
        elif task.active:
            # A task that does not hold the clock back follows it: what comes below it from now on is late.
            own = max(own, clock)
            cuts = {*clocks.thin_cuts(stored.cuts, clock, own, entry.interval)}
            # Under at-least-once delivery, a sink has values above the global clock. It is to be told what changed since.
            cuts.update(c for c in stored.cuts if c > clock and c in outputs.delivered.values())
            task = replace(task, progress=task.progress.move_to(own), stored=stored.with_cuts(cuts))
        tasks[name] = task
    retained = newest.retained if clock == newest.clock else _retained(entry, clock, keeping)
    for name, task in tasks.items():
        if task.active and retained:
            outputs = task.outputs
            floor = min([retained[0], task.progress.clock, *outputs.delivered.values(), *outputs.voided.values()])
            tasks[name] = replace(task, stored=task.stored.with_floor(floor))
    return newest.follower(now, clock=clock, retained=retained, tasks=tasks)


def _retained(entry: Entry, clock: int, keeping: Keeping) -> tuple[int, ...]:
    """Return the clocks of the checkpoints to keep when there is a new one: the newest, and those that sinks wait for.

    The last that a sink was given is kept too: it tells what has changed since.
    """
    kept = (*entry.retained, clock)
    delivered = (last for task in entry.tasks.values() if task.active for last in task.outputs.delivered.values())
    oldest = min([*kept[-keeping.clocks :], *delivered])
    return tuple(clock for clock in kept if clock >= oldest)


def _with_few_sides(
    files: Files,
    rows: LateRows,
    source: SourceState,
    epoch: int,
    clock: int,
    page: Callable[[], str],
    path: Callable[[], str],
) -> LateRows:
    """Return late and bad rows with few files in the entry, if they were many.

    Files of this epoch become fewer. An older file, or a large one, leaves the entry once nothing can take back any of it: no
    start goes back below the clock.
    """
    if len(rows.sides) <= late_rows.MANY:
        return rows
    replays = source.replays_from(clock)

    def epoch_of(side: SideFile) -> int:
        return written(side.file.path)[0]

    settled = tuple(
        side
        for side in rows.sides
        if (epoch_of(side) < epoch or side.file.length >= late_rows.LARGE) and side.is_settled(clock, replays)
    )
    counts = Counter(rows.settled_counts)
    for side in settled:
        counts.update(side.reasons)
    left = tuple(side for side in rows.sides if side not in settled)
    for _, alike in groupby([side for side in settled if side.file.length < late_rows.LARGE], epoch_of):
        settled = late_rows.join(files, settled, list(alike), path)
    # Those of one epoch have the same columns.
    left = late_rows.fewer(files, left, [side for side in left if epoch_of(side) == epoch], path)
    listed = lists.append(files, rows.settled, [side_to_json(side) for side in settled], page)
    return LateRows(left, listed, dict(counts))


def close(log: Log, epoch: int, *, now: int, keeping: Keeping) -> Entry:
    """Give every task one clock, the first multiple of the interval above the newest message: everything is checkpointed.

    What arrives below that clock afterwards is late. Call it when the sources have been read to their end.

    Raises:
        FencedError: a newer driver owns the application.
    """
    while True:
        newest = own(log, epoch)
        active = [task for task in newest.tasks.values() if task.active]
        # From the positions, since a channel that has disappeared is not known any more.
        read = newest_read(position for task in active for position in task.source.positions.values())
        clock = max([task.progress.clock for task in active], default=newest.clock)
        if read is not None:
            clock = max(clock, clocks.next_multiple(read, newest.interval))
        if all(task.progress.clock == clock == newest.clock for task in active):
            return newest
        tasks = {name: _closed(task, clock) if task.active else task for name, task in newest.tasks.items()}
        entry = _moved_on(replace(newest, tasks=tasks), newest, now, keeping)
        try:
            log.append(entry)
        except ExistsError:
            continue
        return entry


def _closed(task: TaskState, clock: int) -> TaskState:
    """Return a task that is given its last clock."""
    return replace(task, progress=task.progress.move_to(clock), stored=task.stored.close(clock))
