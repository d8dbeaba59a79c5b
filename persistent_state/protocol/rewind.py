"""Go back to a kept clock: one entry, with which a new timeline begins.

A rewind is a start that was made right after the entry of the kept clock, and cuts every task back to the clock, whatever its
delivery. What was above the clock is void: no later entry says anything of it. Invariants:

- The entry goes on from the newest one by its number, its epoch and its `previous`. All else is what the entry of the kept
  clock said, but for what sinks have: that is a fact which no rewind changes.
- It is written only if the newest epoch is that of the plan. Otherwise another start, or another rewind, came between.
- Its epoch fences each driver that runs. A start goes on from the newest entry, so a restart does not go back again.
- A clock of the old timeline above the kept clock is never taken for one of the new timeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from persistent_state.errors import ExistsError, FencedError, InvalidInputError
from persistent_state.formatting import full_clock
from persistent_state.protocol import restore
from persistent_state.store import kept_entries
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.state_at import no_application
from persistent_state.store.task_state import OutputState


@dataclass(frozen=True)
class RewindPlan:
    """A rewind that can be made: to which kept clock, and the epoch that it depends on."""

    clock: int
    epoch: int


def plan(log: Log, to: int) -> RewindPlan:
    """Return the rewind to the newest kept clock at or below a time.

    Raises:
        InvalidInputError: There is no such application, no such clock, or an output has values above the clock.
        DamagedError: The entry of the clock is not what was written.
    """
    newest = _newest(log)
    found = RewindPlan(_kept_at(newest, to), newest.epoch)
    _before(log, newest, found.clock)
    return found


def rewind(log: Log, planned: RewindPlan, *, writer: str, now: int) -> Entry:
    """Go back as planned, and return the entry with which the new timeline begins.

    Raises:
        FencedError: The application was started, or taken back, since the plan was made. Nothing changed.
        InvalidInputError: The clock is kept no more, or an output has values above it by now. Nothing changed.
        DamagedError: The entry of the clock is not what was written. Nothing changed.
        CommitUnknownError: The store did not answer. Plan again, and look at the timeline.
    """
    while True:
        newest = _newest(log)
        if newest.epoch == planned.epoch + 1 and newest.writer == writer:
            # Of an earlier try, whose answer was lost.
            return newest
        if newest.epoch != planned.epoch:
            raise FencedError(
                f"application {log.application} was started or taken back since the plan was made; plan again. Nothing changed."
            )
        before = _before(log, newest, planned.clock)
        entry = _first_entry(log, newest, before, writer, now)
        try:
            log.append(entry)
        except ExistsError:
            # Someone committed since we looked. That is void now, too.
            continue
        return entry


def _newest(log: Log) -> Entry:
    newest = log.newest()
    if newest is None:
        raise no_application(log.files, log.application)
    return newest


def _kept_at(newest: Entry, to: int) -> int:
    """Return the newest kept clock at or below a time.

    Raises:
        InvalidInputError: There is none.
    """
    clock = max((clock for clock in newest.kept if clock <= to), default=None)
    if clock is None:
        oldest = next(iter(newest.kept), None)
        since = "no clock is kept yet" if oldest is None else f"the oldest kept one is clock={full_clock(oldest)}"
        raise InvalidInputError(f"no clock at or below clock={full_clock(to)} is kept; {since}.")
    return clock


def _before(log: Log, newest: Entry, clock: int) -> Entry:
    """Return the entry of a kept clock, if a rewind to the clock can be made.

    Raises:
        InvalidInputError: The clock is not kept, or an output has values above it.
        DamagedError: The entry is not what was written, or is missing.
    """
    if clock not in newest.kept:
        raise InvalidInputError(f"clock={full_clock(clock)} is kept no more; plan again.")
    for task, output, furthest in _furthest(newest):
        if furthest > clock:
            raise InvalidInputError(
                f"task={task}: sink={output!r} may have values at clock={full_clock(furthest)}, which is above "
                f"clock={full_clock(clock)}, and can't be taken back yet; go back to a later clock."
            )
    number = newest.kept[clock].entry
    try:
        return kept_entries.read(log, number)
    except FileNotFoundError:
        raise kept_entries.missing(log, clock, number) from None


def _furthest(newest: Entry) -> Iterator[tuple[str, str, int]]:
    """Yield each output, with its task, and a bound of the clocks that its sink may have.

    A sink may have been given one clock more than the log says, as that is written down afterwards.
    """
    for name, task in newest.tasks.items():
        visited, outputs = newest.flow_of(name).visited, task.outputs
        for output, last in outputs.delivered.items():
            given = (clock for clock in newest.retained if max(last, task.born) < clock <= visited)
            yield name, output, next(given, last)
        for output in (*outputs.left, *outputs.retired):
            yield name, output, max(visited, outputs.furthest)


def _first_entry(log: Log, newest: Entry, before: Entry, writer: str, now: int) -> Entry:
    back = restore.all_cut_back(log.files, before, now)
    return replace(
        back,
        number=newest.number + 1,
        epoch=newest.epoch + 1,
        writer=writer,
        time=now,
        previous=newest.checksum,
        kept={clock: kept for clock, kept in newest.kept.items() if clock <= before.clock},
        timeline=newest.epoch + 1,
        tasks={name: replace(task, outputs=_outputs(name, newest, before)) for name, task in back.tasks.items()},
        checksum="",
        base=0,
    )


def _outputs(name: str, newest: Entry, before: Entry) -> OutputState:
    """Return what the sinks of a task have, when the task goes back to a clock."""
    if name not in newest.tasks:
        return before.tasks[name].outputs
    return newest.tasks[name].outputs.cut_back(before.clock, newest.flow_of(name).progress.clock)
