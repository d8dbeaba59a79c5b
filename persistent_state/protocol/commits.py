"""A driver's part after its start: plan micro-batches, commit them, give a final clock.

Invariants:
- An entry's global clock is at or above that of the entry before it, and every active task's clock is at or above it, but
  for one that was away or is built again: it holds the global clock until it has caught up.
- No stored interval straddles a cut that the newest entry names for a task, or a retained clock.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from persistent_state.batch.messages import Basis, Descriptor, digest, runs_by_shard
from persistent_state.errors import DisagreementError, ExistsError, FencedError, StoreUnavailableError
from persistent_state.event_time import channels, clocks
from persistent_state.event_time.positions import forget_spans, newest_read, replay_from
from persistent_state.sources.base import Reach
from persistent_state.store import late_rows, lists
from persistent_state.store.codec import side_to_json
from persistent_state.store.entry import Entry, SideFile, TaskState, global_clock
from persistent_state.store.files import Files
from persistent_state.store.log import Log


@dataclass(frozen=True)
class Keeping:
    """The limits of what is kept: the newest `clocks` checkpoints, and for `grace` microseconds files that were replaced."""

    clocks: int = 10
    grace: int = 600_000_000


def wake(log: Log, epoch: int, name: str, now: int) -> Entry:
    """Return the newest entry, in which the task holds the global clock: until it commits, only it can move its clock.

    Raises:
        FencedError: a newer driver owns the application.
    """
    return amend(log, epoch, name, lambda task: replace(task, holds=True), now)


def announce(log: Log, epoch: int, name: str, reach: Reach, now: int, new_id: Callable[[], str]) -> Entry:
    """Like `wake`, and the entry says how far the next micro-batch reads: a start at most once goes on behind it.

    What the source wants remembered with that is written down too, and not to be committed again.

    Raises:
        FencedError: a newer driver owns the application.
    """

    def plan(task: TaskState) -> TaskState:
        read = {partition: position.next for partition, position in task.positions.items()}
        ahead = {partition: end for partition, end in reach.ends.items() if end > read.get(partition, 0)}
        path = partial(_path, log, name, epoch, task.batch + 1, "pages", new_id)
        journal = lists.append(log.files, task.journal, reach.journal, path)
        return replace(task, holds=True, planned=ahead, journal=journal)

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


def plan_batch(entry: Entry, name: str, reach: Reach, now: int) -> Basis:
    """Return the basis of a task's next micro-batch, by the newest entry; `now` is its batch time."""
    task = entry.tasks[name]
    return Basis(
        task=name,
        epoch=entry.epoch,
        batch=task.batch + 1,
        now=now,
        clock=task.clock,
        low=min((run.first for run in task.runs), default=None),
        coarse=task.coarse,
        channels=channels.listed_channels(task.channels, reach.channels, reach.known, now),
        is_listed=reach.channels is not None,
        is_behind=task.clock < entry.clock,
        positions=task.positions,
        ends=reach.ends,
        journal=reach.journal,
        digests=shard_digests(entry, task),
        apart=(*entry.retained, *task.cuts),
        floor=task.floor,
        again=task.again,
        unread=reach.unread,
    )


def shard_digests(entry: Entry, task: TaskState) -> tuple[str, ...]:
    """Return the digest of the runs of each shard."""
    return tuple(digest(runs, task.clock) for runs in runs_by_shard(task.runs, entry.shards))


def commit(
    log: Log,
    epoch: int,
    descriptors: Sequence[Descriptor],
    *,
    now: int,
    new_id: Callable[[], str],
    keeping: Keeping,
) -> Entry:
    """Make a micro-batch part of the state: one new entry, or nothing.

    Raises:
        DisagreementError: the shards did not each answer once and alike, or not from what the log says.
        FencedError: a newer driver owns the application.
        CommitUnknownError: the store did not answer.
    """
    first = _agreed(descriptors)
    while True:
        newest = own(log, epoch)
        if first.epoch != epoch:
            raise DisagreementError(
                f"task={first.task} batch={first.batch} is of epoch {first.epoch}, not {epoch}; start again."
            )
        entry = _with_batch(log, newest, descriptors, now, new_id, keeping)
        try:
            log.append(entry)
        except ExistsError:
            # Another task of this application, or a newer driver, was first: look again.
            continue
        return entry


def _agreed(descriptors: Sequence[Descriptor]) -> Descriptor:
    """Return the first descriptor, if all say the same of the micro-batch."""
    if not descriptors:
        raise DisagreementError("no shard answered; nothing was committed, start again.")
    first = descriptors[0]
    for other in descriptors:
        if (other.task, other.epoch, other.batch, other.advance, other.journal) != (
            first.task, first.epoch, first.batch, first.advance, first.journal,
        ):  # fmt: skip
            raise DisagreementError(
                f"task={first.task} batch={first.batch}: shards {first.shard} and {other.shard} differ; start again."
            )
    return first


def _with_batch(
    log: Log,
    newest: Entry,
    descriptors: Sequence[Descriptor],
    now: int,
    new_id: Callable[[], str],
    keeping: Keeping,
) -> Entry:
    first = descriptors[0]
    task = newest.tasks[first.task]
    answered = sorted(descriptor.shard for descriptor in descriptors)
    if answered != list(range(newest.shards)):
        raise DisagreementError(
            f"task={first.task} batch={first.batch}: shards {answered} of {newest.shards} answered; start again."
        )
    if first.batch != task.batch + 1:
        raise DisagreementError(f"task={first.task}: batch {first.batch} follows {task.batch}; start again.")
    ordered = sorted(descriptors, key=lambda d: d.shard)
    for descriptor, base in zip(ordered, shard_digests(newest, task), strict=True):
        if descriptor.base != base:
            raise DisagreementError(
                f"task={first.task} batch={first.batch}: shard {descriptor.shard} started from other runs than the log's; "
                "start again."
            )
    after = first.advance
    page = partial(_path, log, first.task, newest.epoch, first.batch, "pages", new_id)
    moved = replace(
        task,
        clock=after.clock,
        cuts=(*task.cuts, *after.cuts),
        coarse=after.coarse,
        runs=tuple(run for descriptor in ordered for run in descriptor.runs),
        channels=after.channels,
        positions=after.positions,
        journal=lists.append(log.files, task.journal, first.journal, page),
        sides=(*task.sides, *(d.side for d in ordered if d.side)),
        batch=first.batch,
        holds=after.holds,
        planned={},
    )
    entry = _moved_on(newest.with_task(first.task, moved), newest, now, keeping)
    moved = entry.tasks[first.task]
    restart = min(entry.clock, moved.clock)
    # What a start may have to read again must never grow, as it would where spans on both sides of its clock are joined.
    positions = {partition: forget_spans(p, restart) for partition, p in moved.positions.items()}
    joined = partial(_path, log, first.task, newest.epoch, first.batch, "sides", new_id)
    moved = replace(moved, positions=positions)
    return entry.with_task(first.task, _with_few_sides(log.files, moved, entry.epoch, restart, page, joined))


def _moved_on(entry: Entry, newest: Entry, now: int, keeping: Keeping) -> Entry:
    """Return the entry after `newest` with tasks that have moved: its global clock, and what follows from that."""
    clock = global_clock(entry.tasks, newest.clock)
    tasks = {}
    for name, task in entry.tasks.items():
        if task.active and task.holds and task.clock < newest.clock:
            # It has yet to catch up, and until then the global clock waits.
            task = replace(task, cuts=(task.clock,))
        elif task.active:
            # A task that does not hold the clock back follows it: what comes below it from now on is late.
            own = max(task.clock, clock)
            cuts = {*clocks.thin_cuts(task.cuts, clock, own, entry.interval)}
            # At least once a sink has values above the global clock: what changed since is to be told.
            cuts.update(c for c in task.cuts if c > clock and c in task.delivered.values())
            task = replace(task, clock=own, cuts=tuple(sorted(cuts)))
        tasks[name] = task
    retained = newest.retained if clock == newest.clock else _retained(entry, clock, keeping)
    for name, task in tasks.items():
        if task.active and retained:
            floor = min([retained[0], task.clock, *task.delivered.values(), *task.voided.values()])
            tasks[name] = replace(task, floor=max(task.floor, floor))
    return newest.follower(now, clock=clock, retained=retained, tasks=tasks)


def _retained(entry: Entry, clock: int, keeping: Keeping) -> tuple[int, ...]:
    """Return the clocks of the checkpoints to keep when there is a new one: the newest, and those that sinks wait for.

    The last that a sink was given is kept too: it tells what has changed since.
    """
    kept = (*entry.retained, clock)
    delivered = (last for task in entry.tasks.values() if task.active for last in task.delivered.values())
    oldest = min([*kept[-keeping.clocks :], *delivered])
    return tuple(clock for clock in kept if clock >= oldest)


def _with_few_sides(
    files: Files, task: TaskState, epoch: int, clock: int, page: Callable[[], str], path: Callable[[], str]
) -> TaskState:
    """Return the task with few files of late and bad rows in its entry, if they were many.

    Those of this epoch become fewer. An older one, or a large one, leaves the entry once nothing can take back any of it.
    """
    if len(task.sides) <= late_rows.MANY:
        return task
    replays = {partition: replay_from(position, clock) for partition, position in task.positions.items()}

    def epoch_of(side: SideFile) -> int:
        return written(side.file.path)[0]

    settled = tuple(
        side
        for side in task.sides
        if (epoch_of(side) < epoch or side.file.length >= late_rows.LARGE) and side.is_settled(clock, replays)
    )
    counts = Counter(task.settled_counts)
    for side in settled:
        counts.update(side.reasons)
    left = tuple(side for side in task.sides if side not in settled)
    for _, alike in groupby([side for side in settled if side.file.length < late_rows.LARGE], epoch_of):
        settled = late_rows.join(files, settled, list(alike), path)
    # Those of one epoch have the same columns.
    left = late_rows.fewer(files, left, [side for side in left if epoch_of(side) == epoch], path)
    return replace(
        task,
        sides=left,
        settled=lists.append(files, task.settled, [side_to_json(side) for side in settled], page),
        settled_counts=dict(counts),
    )


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
        read = newest_read(position for task in active for position in task.positions.values())
        clock = max([task.clock for task in active], default=newest.clock)
        if read is not None:
            clock = max(clock, clocks.next_multiple(read, newest.interval))
        if all(task.clock == clock == newest.clock for task in active):
            return newest
        tasks = {
            name: replace(task, clock=clock, cuts=(*task.cuts, clock), coarse=()) if task.active else task
            for name, task in newest.tasks.items()
        }
        entry = _moved_on(replace(newest, tasks=tasks), newest, now, keeping)
        try:
            log.append(entry)
        except ExistsError:
            continue
        return entry
