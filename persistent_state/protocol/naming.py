"""Keep clocks by name: an entry of the newest epoch that changes nothing but names, written beside a driver that may run.

A clock has a name only while it is kept, so naming adds no clock. One name stands for one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from persistent_state.errors import FencedError, InvalidInputError, NotThereError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import Clock, full_clock, read_clock
from persistent_state.protocol.next_entry import amend
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.state_at import nearest_clocks, no_application


def keep(log: Log, clock: int | None, name: str, now: int) -> int:
    """Keep a clock by a name, by default the global clock, and return it.

    Raises:
        InvalidInputError: There is no such application, the clock is not kept, or the name is not a name, is read as a time, or
            is that of another clock.
    """
    if not name.strip() or not name.isprintable():
        raise InvalidInputError(f"name={name!r} is not a name; give it some letters.")
    if (time := _time_of(name)) is not None:
        raise InvalidInputError(
            f"name={name!r} is read as the time {full_clock(time)}; take a name that is not a time."
        )

    def named(entry: Entry) -> Entry:
        at = entry.clock if clock is None else clock
        _check_kept(log.application, entry, at)
        known = kept_clock(entry, name)
        if known not in (None, at):
            raise InvalidInputError(
                f"name={name!r} keeps clock={full_clock(known)} already; take another name, or release that clock first."
            )
        return entry if known == at else _with_names(entry, at, {*entry.kept[at].names, name})

    entry = _amended(log, named, now)
    found = kept_clock(entry, name)
    assert found is not None
    return found


def release(log: Log, name: str, now: int) -> int:
    """Keep a clock no longer by this name, and return the clock. It goes when nothing else keeps it.

    Raises:
        InvalidInputError: There is no such application or name.
    """
    found: list[int] = []

    def unnamed(entry: Entry) -> Entry:
        clock = kept_clock(entry, name)
        if clock is None and found:
            # An entry of ours whose answer was lost, or another driver's that did the same.
            return entry
        if clock is None:
            raise InvalidInputError(
                f"name={name!r} is the name of no kept clock of {log.application}; {listed_names(entry)}."
            )
        found.append(clock)
        return _with_names(entry, clock, {*entry.kept[clock].names} - {name})

    _amended(log, unnamed, now)
    return found[-1]


def none_kept(application: str, entry: Entry) -> InvalidInputError:
    """Return the error for an application that keeps no clock."""
    if entry.clock == BEGINNING:
        return InvalidInputError(f"{application} keeps no clock yet; let it run until it has its first checkpoint.")
    # An older version wrote it.
    return InvalidInputError(f"{application} keeps no clock yet; start it once, and it keeps its newest.")


def clock_named(log: Log, given: Clock) -> int:
    """Return a clock as `read_clock` reads it, or the clock that is kept by a name. A time is never a name.

    Raises:
        NotThereError: It is a text that is neither, such as a name that was released, or there is no such application.
        InvalidInputError: `read_clock` refuses it.
    """
    if not isinstance(given, str):
        return read_clock(given)
    if (time := _time_of(given)) is not None:
        return time
    newest = log.newest()
    if newest is None:
        raise no_application(log.files, log.application)
    clock = kept_clock(newest, given)
    if clock is not None:
        return clock
    raise NotThereError(
        f"clock={given!r} is not a time, and keeps no clock of {log.application}; give microseconds since 1970, ISO text "
        f"such as 2013-01-31T12:00:00Z, or the name of a kept clock; {listed_names(newest)}."
    )


def _time_of(text: str) -> int | None:
    """Return the clock that a text says as a time; None if it says none."""
    try:
        return read_clock(text)
    except InvalidInputError:
        return None


def listed_names(entry: Entry) -> str:
    """Return what a message says of the names of all kept clocks."""
    names = sorted(each for kept in entry.kept.values() for each in kept.names)
    return f"there are {', '.join(names)}" if names else "no clock has a name"


def _amended(log: Log, change: Callable[[Entry], Entry], now: int) -> Entry:
    """Return the entry in which this is changed. A driver that starts meanwhile is no reason to stop: look again."""
    while True:
        newest = log.newest()
        if newest is None:
            raise no_application(log.files, log.application)
        try:
            return amend(log, newest.epoch, change, now)
        except FencedError:
            continue


def kept_clock(entry: Entry, name: str) -> int | None:
    """Return the clock that a name keeps; None if it keeps none."""
    return next((clock for clock, kept in entry.kept.items() if name in kept.names), None)


def _with_names(entry: Entry, clock: int, names: Iterable[str]) -> Entry:
    """Return the entry with these names of a kept clock."""
    named = replace(entry.kept[clock], names=tuple(sorted(names)))
    return replace(entry, kept={**entry.kept, clock: named})


def _check_kept(application: str, entry: Entry, clock: int) -> None:
    """Refuse a clock that can't be kept by name.

    Raises:
        InvalidInputError: It is not kept.
    """
    if clock in entry.kept:
        return
    if not entry.kept:
        raise none_kept(application, entry)
    raise InvalidInputError(
        f"clock={full_clock(clock)} is not kept, so it can't be given a name; name {nearest_clocks(entry.kept, clock)}."
    )
