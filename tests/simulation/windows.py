"""What windows, sessions and a time to live make of messages, in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol.deliver import Due
from persistent_state.windows import SlidingWindow, TimeToLive
from tests.simulation.messages import MONOIDS, Job, Sent, plus

Found = dict[tuple[Any, ...], Any]


def counts(job: Job, message: Sent) -> bool:
    """Whether a message is any update: in no window it is none."""
    in_time = (
        not isinstance(job.windowing, SlidingWindow) or message.timestamp % job.windowing.slide < job.windowing.size
    )
    return in_time and bool(job.updates_of(message))


def windows_of(job: Job, messages: Iterable[Sent]) -> dict[tuple[Any, ...], list[Sent]]:
    """By key, window start and window end, the messages that update it."""
    found: dict[tuple[Any, ...], list[Sent]] = defaultdict(list)
    told = [m for m in messages if job.updates_of(m)]
    if isinstance(job.windowing, SlidingWindow):
        size, step = job.windowing.size, job.windowing.slide
        for message in told:
            begin = message.timestamp - message.timestamp % step
            while message.timestamp < begin + size:
                found[(*job.key_of(message), begin, begin + size)].append(message)
                begin -= step
        return found
    gap = job.windowing.gap
    sessions: dict[tuple[Any, ...], list[list[Sent]]] = defaultdict(list)
    for message in sorted(told, key=lambda m: m.timestamp):
        of_key = sessions[job.key_of(message)]
        if of_key and message.timestamp - of_key[-1][-1].timestamp < gap:
            of_key[-1].append(message)
        else:
            of_key.append([message])
    for key, of_key in sessions.items():
        for session in of_key:
            found[(*key, session[0].timestamp, session[-1].timestamp + gap)] = session
    return found


def value_of(job: Job, messages: Iterable[Sent]) -> Any:
    (value,) = job.fold(messages).values()
    return value


def state_at(job: Job, messages: list[Sent], clock: int) -> Found:
    """What the state at a clock shows, of the messages below it."""
    if job.windowing is None:
        return job.fold(messages)
    opened = {window: some for window, some in windows_of(job, messages).items() if window[-1] > clock}
    keys = {window: window[:-2] if isinstance(job.windowing, TimeToLive) else window for window in opened}
    assert len(set(keys.values())) == len(keys)
    return {keys[window]: value_of(job, some) for window, some in opened.items()}


def read_by(job: Job, before: list[Sent], now: list[Sent], sent: Sent) -> Any:
    """What a message reads of its state, after those of earlier micro-batches and those of its own that came before it."""
    of_key = [m for m in [*before, *now] if job.key_of(m) == job.key_of(sent) and counts(job, m)]

    def value(first: int, last: int) -> Any:
        within = [[m for m in some if m in of_key and first <= m.timestamp <= last] for some in (before, now)]
        values = [value_of(job, some) for some in within if some]
        if len(values) == 2:
            return plus(job.kind, *values)
        return values[0] if values else MONOIDS[job.kind].zero

    if isinstance(job.windowing, SlidingWindow):
        size, step = job.windowing.size, job.windowing.slide
        starts = range((sent.timestamp - size) // step * step, sent.timestamp + 1, step)
        found = [start for start in starts if start <= sent.timestamp < start + size]
        return {(start, start + size): value(start, start + size - 1) for start in found}
    gap, joined = job.windowing.gap, {sent.timestamp}
    while more := {m.timestamp for m in of_key if min(joined) - gap < m.timestamp < max(joined) + gap} - joined:
        joined |= more
    found = value(min(joined), max(joined))
    return found if isinstance(job.windowing, TimeToLive) else {(min(joined), max(joined) + gap): found}


def given_at(job: Job, messages: list[Sent], due: Due, floor: int, early: bool) -> Found:
    """What an output is given at a clock that was given one before, of the messages below the clock."""
    since, clock = due.since, due.clock
    state = state_at(job, messages, clock)
    if job.windowing is None or isinstance(job.windowing, TimeToLive):
        changed = {job.key_of(m) for m in messages if m.timestamp >= since and job.updates_of(m)}
        found = {key: value for key, value in state.items() if key in changed}
        if job.windowing is not None and since != BEGINNING:
            before = state_at(job, [m for m in messages if m.timestamp < since], since)
            found.update(dict.fromkeys(before.keys() - state.keys(), job.zero))
        return found
    windows = windows_of(job, messages)
    after = max(since, floor)
    closed = {window: value_of(job, some) for window, some in windows.items() if after < window[-1] <= clock}
    if not early:
        return closed
    found = {(*window, True): value for window, value in closed.items()}
    for window, value in state.items():
        if any(m.timestamp >= due.recent for m in windows[window]):
            found[(*window, False)] = value
    return found


def running(job: Job, messages: list[Sent], touched: set[Any] | None, clock: int) -> Found:
    """The values so far of touched keys, or of all: of their windows that are open at the clock, or of their last life."""
    some = [m for m in messages if touched is None or job.key_of(m) in touched]
    if not isinstance(job.windowing, TimeToLive):
        return state_at(job, some, clock)
    last: dict[Any, tuple[Any, ...]] = {}
    windows = windows_of(job, some)
    for window in windows:
        last[window[:-2]] = max(window, last.get(window[:-2], window), key=lambda w: w[-1])
    return {key: value_of(job, windows[window]) for key, window in last.items()}
