"""Go back to a kept clock: one entry, with which a new timeline begins.

A rewind is a start that was made right after the entry of the kept clock, and cuts every task back to the clock, whatever its
delivery. What was above the clock is void: no later entry says anything of it. Invariants:

- The entry goes on from the newest one by its number, its epoch and its `previous`. All else is what the entry of the kept
  clock said, but for what sinks have: that is a fact which no rewind changes.
- It is written only if the newest epoch is that of the plan. Otherwise another start, or another rewind, came between.
- Its epoch fences each driver that runs. A start goes on from the newest entry, so a restart does not go back again.
- A clock of the old timeline above the kept clock is never taken for one of the new timeline.
- The entry says what each output owes whose sink may have more than what is right: values above the kept clock, or values of a
  life of the task that is void. It goes back to the kept clock, or further, to the last clock that the log of then says it had.
  A sink may have more than the log knows, as where the store was brought back from an older copy: so the sinks are asked.
  Until the log says that the output owes nothing, its sink is given no clock. Several rewinds that a sink has not followed are
  one to the lowest of their clocks, in the newest timeline: below that clock all these timelines are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from persistent_state.errors import DamagedError, FencedError, InvalidInputError
from persistent_state.event_time.clocks import BEGINNING, or_none
from persistent_state.formatting import full_clock
from persistent_state.protocol import restore
from persistent_state.protocol.naming import none_kept
from persistent_state.protocol.next_entry import append
from persistent_state.protocol.rewind_plan import AGAIN, NONE, RETRACT, OutputPlan, RewindPlan, refusals
from persistent_state.store import kept_entries
from persistent_state.store.entry import Entry, Owed
from persistent_state.store.log import Log
from persistent_state.store.output_state import LEFT, RETIRED, OutputState
from persistent_state.store.state_at import no_application
from persistent_state.store.task_state import TaskState


@dataclass(frozen=True)
class Choice:
    """The action of an output that has something above the clock, with its reason, as an `OutputPlan` has them."""

    action: str
    why: str = ""
    again_by: str = ""


Choose: TypeAlias = Callable[[str, str, str], Choice]
"""Returns what an output does by its task, its name and what its sink may have that is to go, in words.

It may raise an InvalidInputError if the output can't go back.
"""


LastClocks: TypeAlias = Mapping[tuple[str, str], int | None]
"""By task and output: the last clock that a sink says it has; None if it does not say, and can go back."""


def plan(log: Log, to: int, choose: Choose, last: LastClocks | None = None) -> RewindPlan:
    """Return the rewind to the newest kept clock at or below a time.

    Args:
        log: The log of the application.
        to: The time.
        choose: Says what each output does.
        last: What the sinks say they have. They may have more than the log knows.

    Raises:
        InvalidInputError: There is no such application, no such clock, or `choose` says so of an output.
        DamagedError: The entry of the clock is not what was written.
    """
    newest = _newest(log)
    clock = _kept_at(log.application, newest, to)
    before = _before(log, newest, clock)
    return RewindPlan(
        log.application,
        clock,
        newest.epoch,
        newest.epoch + 1,
        tuple(before.tasks),
        tuple(name for name in newest.tasks if name not in before.tasks),
        tuple(_outputs_of(newest, before, choose, last or {})),
        earlier_lives=tuple(
            name
            for name, was in before.tasks.items()
            if name in newest.tasks and not _is_same_life(newest.tasks[name], was)
        ),
        names_gone={name: at for at, kept in newest.kept.items() if at > clock for name in kept.names},
        newest=newest.clock,
        asked=to,
        named={**before.part_of, **newest.part_of},
    )


def rewind(log: Log, planned: RewindPlan, *, writer: str, now: int) -> Entry:
    """Go back as planned, and return the entry with which the new timeline begins.

    Raises:
        FencedError: The application was started, or taken back, since the plan was made. Nothing changed.
        InvalidInputError: The plan has an output that can't go back, the clock is kept no more, or an output has values above
            it by now. Nothing changed.
        DamagedError: The entry of the clock is not what was written. Nothing changed.
        CommitUnknownError: The store did not answer. Plan again, and look at the timeline.
    """
    if refused := refusals(planned):
        raise InvalidInputError(" ".join(refused))

    def change(newest: Entry) -> Entry:
        if newest.epoch == planned.epoch + 1 and newest.writer.removeprefix(newest.mark) == writer:
            # The entry of an earlier try, whose answer was lost.
            return newest
        if newest.epoch != planned.epoch:
            raise FencedError(
                f"application {log.application} was started or taken back since the plan was made; plan again. Nothing changed."
            )
        return _first_entry(log, newest, planned, writer, now)

    # What a driver commits meanwhile is void, too.
    return append(log, partial(_newest, log), change)


def first_entry(log: Log, planned: RewindPlan) -> Entry:
    """Return the entry with which the new timeline would begin if the rewind were made now.

    Raises:
        InvalidInputError: The clock is kept no more, or an output has values above it by now.
        DamagedError: The entry of the clock is not what was written, or a file that the clock needs is missing.
    """
    entry = _first_entry(log, _newest(log), planned, "", 0)
    _check_files(log, entry)
    return entry


def _check_files(log: Log, entry: Entry) -> None:
    """Refuse a clock that needs a missing file: from there no start could go on, and sound clocks above it would be void.

    Raises:
        InvalidInputError: The clock is kept no more.
        DamagedError: A file is missing.
    """
    named = entry.files()
    folders = {path.rpartition("/")[0] for path in named}
    there = {f"{folder}/{name}" for folder in folders for name in log.files.list(folder)}
    for path in sorted(named - there):
        try:
            # A listing may be late.
            log.files.read_ranges(path, [(0, 1)])
        except FileNotFoundError:
            if entry.clock not in _newest(log).kept:
                raise _gone(entry.clock) from None
            raise DamagedError(
                f"{path} is missing, and clock={full_clock(entry.clock)} needs it; bring it back from a copy of the store, or "
                "go back to another kept clock. Nothing changed."
            ) from None


def _as_planned(planned: RewindPlan) -> Choose:
    """Return what a plan says of each output that has something above its clock.

    An output that had nothing there when the plan was made is refused.
    """
    actions = {(each.task, each.output): each.action for each in planned.outputs}

    def choose(task: str, output: str, more: str) -> Choice:
        action = actions.get((task, output), NONE)
        if action == NONE:
            raise InvalidInputError(
                f"task={task}: sink={output!r} {more}, and had none when the rewind was planned; plan again. Nothing changed."
            )
        return Choice(action)

    return choose


def _newest(log: Log) -> Entry:
    newest = log.newest()
    if newest is None:
        raise no_application(log.files, log.application)
    return newest


def _kept_at(application: str, newest: Entry, to: int) -> int:
    """Return the newest kept clock at or below a time.

    Raises:
        InvalidInputError: No clock is kept at or below the time.
    """
    if not newest.kept:
        raise none_kept(application, newest)
    clock = max((clock for clock in newest.kept if clock <= to), default=None)
    if clock is None:
        oldest = full_clock(next(iter(newest.kept)))
        raise InvalidInputError(
            f"no clock at or below clock={full_clock(to)} is kept; the oldest kept one is clock={oldest}."
        )
    return clock


def _before(log: Log, newest: Entry, clock: int) -> Entry:
    """Return the entry of a kept clock.

    Raises:
        InvalidInputError: The clock is not kept.
        DamagedError: The entry is not what was written, or is missing.
    """
    if clock not in newest.kept:
        raise _gone(clock)
    number = newest.kept[clock].entry
    try:
        return kept_entries.read(log, number)
    except FileNotFoundError:
        # The clock may have gone since the newest entry was read, and its entry with it.
        if not kept_entries.is_kept(_newest(log).kept, clock, number):
            raise _gone(clock) from None
        raise kept_entries.missing(log, clock, number) from None


def _gone(clock: int) -> InvalidInputError:
    return InvalidInputError(f"clock={full_clock(clock)} is kept no more; plan again. Nothing changed.")


def _last_clocks(planned: RewindPlan) -> LastClocks:
    """Return what the sinks said when a plan was made, of those that have something above its clock."""
    return {(each.task, each.output): each.furthest for each in planned.outputs if each.action != NONE}


def _outputs_of(newest: Entry, before: Entry, choose: Choose, last: LastClocks) -> Iterator[OutputPlan]:
    """Yield what each output does at a rewind to the clock of an earlier entry, given what the sinks say they have.

    Raises:
        InvalidInputError: One can't go back.
    """
    for task, output, furthest in _may_have(newest, before, last):
        owed, clock = newest.owed(task, output), _right_up_to(newest, before, task, output)
        if owed is not None:
            # A sink that has yet to follow an earlier rewind follows both at once.
            clock = min(clock, owed.clock)
            more = "has values that it owes to take back since an earlier rewind"
        elif furthest <= clock:
            more = f"may have values above clock={full_clock(clock)}, which it does not say"
        elif clock == before.clock:
            more = f"may have values at clock={full_clock(furthest)}, which is above the clock to go back to"
        elif clock > BEGINNING:
            more = f"may have values at clock={full_clock(furthest)}, and none above clock={full_clock(clock)} holds any more"
        else:
            more = f"may have values at clock={full_clock(furthest)}, and none holds any more"
        # What does not say how far it is may have more than the log knows.
        is_ahead = furthest > clock or last.get((task, output), BEGINNING) is None
        choice = choose(task, output, more) if is_ahead or owed is not None else Choice(NONE)
        if choice.action == AGAIN and task in newest.tasks:
            # It may have been behind.
            clock = min(clock, newest.tasks[task].outputs.delivered.get(output, clock))
        is_known = furthest > clock or choice.action == NONE
        has = furthest if furthest > BEGINNING and owed is None and is_known else None
        yield OutputPlan(task, output, choice.action, has, or_none(clock), why=choice.why, again_by=choice.again_by)


def _right_up_to(newest: Entry, before: Entry, task: str, output: str) -> int:
    """Return the clock up to which what a sink has is right after a rewind to the clock of an earlier entry."""
    if task not in before.tasks:
        return BEGINNING
    now, was = newest.tasks[task], before.tasks[task]
    return now.outputs[output].right_at(_stood(before, task), was.outputs[output], _is_same_life(now, was))


def _stood(before: Entry, task: str) -> int:
    """Return the clock at which a task stands after a rewind: below the kept clock if it was left out, or idle, then."""
    return min(before.clock, before.flow_of(task).visited)


def _may_have(newest: Entry, before: Entry, last: LastClocks) -> Iterator[tuple[str, str, int]]:
    """Yield each output, with its task, and a bound of the clocks that its sink may have by the log and by what it says.

    A sink of which the log knows nothing says that it has some if the store is older than the output.
    """
    unknown = {name: clock for name, clock in last.items() if clock not in (None, BEGINNING)}
    for task, output, furthest in _furthest(newest, before):
        clock = unknown.pop((task, output), None)
        yield task, output, furthest if clock is None else max(furthest, clock)
    for (task, output), clock in unknown.items():
        assert clock is not None
        yield task, output, clock


def _furthest(newest: Entry, before: Entry) -> Iterator[tuple[str, str, int]]:
    """Yield each output that the log knows, with its task, and a bound of the clocks that its sink may have."""
    owing = {(name, output) for name, of_task in newest.owes.items() for output in of_task}
    for name, task in newest.tasks.items():
        outputs, was = task.outputs, before.tasks[name].outputs if name in before.tasks else OutputState()
        for output, last in outputs.delivered.items():
            owing.discard((name, output))
            # After a start, until the sink answers, it may have all that the task had before.
            yield name, output, max(_given(newest, name, last), outputs.may_have(output))
        for output, record in sorted(outputs.with_status(LEFT, RETIRED).items()):
            # Those that the task had already left to a life before are what they were then.
            if was[output].status is not RETIRED:
                owing.discard((name, output))
                is_cut = record.cut_at is not None
                had = outputs.may_have(output) if is_cut else max(newest.flow_of(name).visited, outputs.furthest)
                yield name, output, had
    for name, output in sorted(owing):
        yield name, output, newest.tasks[name].outputs.may_have(output) if name in newest.tasks else BEGINNING


def _given(newest: Entry, name: str, last: int) -> int:
    """Return the last clock that a sink may have been given: one more than the log says, as that is written down afterwards."""
    visited, task = newest.flow_of(name).visited, newest.tasks[name]
    # A clock at which the task was still empty may have come between after a sink was given a later one.
    empty = visited - 1 if task.stored.first is None else task.stored.first
    clocks = [clock for clock in sorted({*newest.retained, *task.stored.cuts}) if clock <= visited]
    return max(next((clock for clock in clocks if max(last, low) < clock), last) for low in (task.born, empty))


def _first_entry(log: Log, newest: Entry, planned: RewindPlan, writer: str, now: int) -> Entry:
    before = _before(log, newest, planned.clock)
    try:
        back = restore.all_cut_back(log.files, before, now)
    except DamagedError:
        # The clock may have gone since the newest entry was read, and its files with it.
        if before.clock in _newest(log).kept:
            raise
        raise _gone(before.clock) from None
    entry = replace(
        back,
        number=newest.number + 1,
        epoch=newest.epoch + 1,
        # A rewind runs on no engine. The next start is to know on which the application ran before.
        writer=f"{newest.mark}{writer}",
        time=now,
        previous=newest.checksum,
        kept={clock: kept for clock, kept in newest.kept.items() if clock <= before.clock},
        timeline=newest.epoch + 1,
        owes={},
        checksum="",
        base=0,
    )
    # A driver that runs may have given a sink more since the plan was made.
    last = _last_clocks(planned)
    outputs = [*_outputs_of(newest, before, _as_planned(planned), last)]
    for each in outputs:
        if each.action == RETRACT:
            clock = BEGINNING if each.clock is None else each.clock
            entry = entry.with_owed(each.task, each.output, Owed(entry.timeline, clock))
    actions, had = defaultdict[str, dict[str, str]](dict), defaultdict[str, dict[str, int]](dict)
    for each in outputs:
        actions[each.task][each.output] = each.action
    for name, output, furthest in _may_have(newest, before, last):
        if actions[name].get(output, NONE) != NONE:
            had[name][output] = furthest
    for name, task in back.tasks.items():
        was, again = before.tasks[name], [output for output, action in actions[name].items() if action == AGAIN]
        is_same_life = _is_same_life(newest.tasks[name], was)
        state = newest.tasks[name].outputs.rewind(was.outputs, _stood(before, name), is_same_life, again, had[name])
        entry = entry.with_task(name, replace(task, outputs=state))
    return entry


def _is_same_life(task: TaskState, was: TaskState) -> bool:
    """Return whether a task has not begun from zero since it was this."""
    return (task.born, task.life) == (was.born, was.life)
