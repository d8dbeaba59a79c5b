"""Take over an application: the first entry of a new epoch, which fences every driver before it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from persistent_state.batch.plan import Plan
from persistent_state.errors import ExistsError, FencedError, InvalidInputError, StoreUnavailableError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import full_clock
from persistent_state.protocol import refusals, restore
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from persistent_state.store.task_state import OutputState, StoredState, TaskProgress, TaskState


def take_over(
    log: Log,
    plans: Sequence[Plan],
    *,
    interval: int,
    shards: int,
    writer: str,
    now: int,
    reset: Collection[str] = (),
    rebuild: Collection[str] = (),
    after: int | None = None,
) -> Entry:
    """Take the application over: a new epoch in which every task stands at the global clock and nothing is above it.

    Under another delivery than exactly-once, a task stands where `restore.restored` says instead.

    Tasks named in `reset` start from zero at that clock, whatever the store holds of them, and those named in `rebuild` at the
    clock before every message: they read their sources from the beginning, and the global clock waits until they have caught
    up. A driver that starts again says by `after` of which epoch it was.

    Raises:
        InvalidInputError: the store was written by another monoid or key, or a task returns after its clock was left behind, or
            `reset` or `rebuild` names none of these tasks, or a task is built again and keeps an output.
        DamagedError: the newest entry is damaged.
        FencedError: a driver newer than `after` owns the application.
        StoreUnavailableError: the driver starts again, and its log is gone.
    """
    while True:
        newest = log.newest()
        if newest is None and after is not None:
            raise StoreUnavailableError(f"the log of application={log.application} is gone; bring the store back.")
        # A start whose answer was lost is its own, too.
        if newest is not None and after is not None and newest.epoch != after and newest.writer != writer:
            raise FencedError(f"a newer driver owns {log.application}; this one (epoch {after}) has stopped.")
        refusals.check(newest, plans, reset, rebuild)
        entry = _first_entry(log.files, newest, plans, interval, shards, writer, now, reset, rebuild)
        try:
            log.append(entry)
        except ExistsError:
            # Someone committed since we looked; what we would cut back is not the newest any more.
            continue
        return entry


def _first_entry(
    files: Files,
    newest: Entry | None,
    plans: Sequence[Plan],
    interval: int,
    shards: int,
    writer: str,
    now: int,
    reset: Collection[str],
    rebuild: Collection[str],
) -> Entry:
    clock = newest.clock if newest else BEGINNING
    epoch = newest.epoch + 1 if newest else 1
    retained = newest.retained if newest else ()
    tasks: dict[str, TaskState] = {}
    kept = {plan.name for plan in plans if restore.keeps_all(plan)}
    for name, task in (newest.tasks if newest else {}).items():
        # What is to be reset is not looked at: it may be damaged.
        if task.active and name not in (*reset, *rebuild) and name not in kept:
            task = replace(restore.cut_back(files, task, clock, shards, now), active=False)
        tasks[name] = task
    for plan in plans:
        known = tasks.get(plan.name)
        if known is None or plan.name in (*reset, *rebuild):
            tasks[plan.name] = _born(plan, known, epoch, BEGINNING if plan.name in rebuild else clock)
            continue
        # The source delivers again what the task missed. But what the task once read is not remembered for ever.
        is_back = not (newest and newest.tasks[plan.name].active)
        if is_back and BEGINNING < known.progress.clock < min(retained, default=known.progress.clock):
            raise InvalidInputError(
                f"task={plan.name} left at clock={full_clock(known.progress.clock)}, and the oldest that is retained is "
                f"{full_clock(retained[0])}. {refusals.WAYS.format(plan.name)}"
            )
        intervals = (newest.interval if newest else interval, interval)
        back = restore.restored(files, known, plan, clock, intervals, shards, now)
        tasks[plan.name] = replace(back, active=True, outputs=back.outputs.at_restart(plan.outputs))
    return Entry(
        number=newest.number + 1 if newest else 1,
        epoch=epoch,
        writer=writer,
        time=now,
        previous=newest.checksum if newest else "",
        interval=interval,
        shards=shards,
        clock=clock,
        retained=retained,
        tasks=tasks,
    )


def _born(plan: Plan, known: TaskState | None, epoch: int, clock: int) -> TaskState:
    """Return a task that starts from zero at a clock; `known` is what it was before."""
    life, outputs = 0, OutputState(dict.fromkeys(plan.outputs, BEGINNING))
    if known is not None and clock != BEGINNING:
        life, outputs = known.life, known.outputs.at_reset(plan.outputs, clock, known.progress.clock)
    elif known is not None:
        life, outputs = epoch, known.outputs.at_rebuild(plan.outputs, known.progress.clock)
    return TaskState(plan.identity, clock, TaskProgress(clock), StoredState((clock,)), outputs=outputs, life=life)
