"""What a task reads of its windows and sessions is what plain Python makes of the messages before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from monoids import Sum
from persistent_state.partials.so_far import OfLives, OfSessions, OfWindows, Rows, SoFar

KEYS = 2
TIMES = st.lists(st.integers(0, 30), max_size=8).map(sorted)
STORED = st.lists(TIMES, min_size=KEYS, max_size=KEYS)
"""By key: the times of messages that runs hold."""
NEW = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=8).map(sorted), min_size=KEYS, max_size=KEYS
)
"""By key: the times of a micro-batch's messages, and whether the update of each is good."""
Known = Sequence[tuple[int, int]]
"""The times and values of messages. Each value is a power of two of its own."""


def numbered(times: Sequence[Sequence[int]]) -> list[list[tuple[int, int]]]:
    numbers = iter(range(KEYS * 8))
    return [[(time, 1 << next(numbers)) for time in of_key] for of_key in times]


def rows_of(some: Sequence[Sequence[object]]) -> Rows:
    ends = [sum(map(len, some[: key + 1])) for key in range(KEYS)]
    return [(end - len(of_key), end) for end, of_key in zip(ends, some, strict=True)]


def check(
    so_far: SoFar,
    stored: Sequence[Known],
    new: Sequence[Sequence[tuple[int, bool]]],
    expected: Callable[[Known, int], object],
) -> None:
    """Let a task read its state at each message of a micro-batch, and update it twice. A bad message's updates are undone."""
    value = 1 << KEYS * 8
    for key, messages in enumerate(new):
        known = [*stored[key]]
        for time, is_good in messages:
            so_far.turn_to(key, time)
            assert so_far.get() == expected(known, time)
            before, known = known, [*known, (time, value), (time, 2 * value)]
            for each in (value, 2 * value):
                so_far.add(each)
            assert so_far.get() == expected(known, time)
            if not is_good:
                so_far.undo()
                known = before
            value *= 4


@given(STORED, NEW, st.integers(1, 8), st.integers(1, 8))
def test_windows_hold_the_messages_from_their_start_up_to_their_end(
    times: list[list[int]], new: list[list[tuple[int, bool]]], size: int, slide: int
) -> None:
    slide, stored = min(slide, size), numbered(times)

    def windows(known: Known, time: int) -> dict[tuple[int, int], int]:
        starts = [start for start in range(-slide * size, time + 1, slide) if start <= time < start + size]
        return {(s, s + size): sum(value for at, value in known if s <= at < s + size) for s in starts}

    starts, values = [t for of_key in stored for t, _ in of_key], [v for of_key in stored for _, v in of_key]
    check(OfWindows(rows_of(stored), starts, values, Sum(), size, slide), stored, new, windows)


def sessions(known: Known, gap: int) -> list[list[tuple[int, int]]]:
    """The messages of each session: none is the gap or more behind the one before."""
    found: list[list[tuple[int, int]]] = []
    for time, value in sorted(known):
        if found and time - found[-1][-1][0] < gap:
            found[-1].append((time, value))
        else:
            found.append([(time, value)])
    return found


@given(STORED, NEW, st.integers(1, 8))
def test_a_session_is_read_with_the_message_that_joins_it(
    times: list[list[int]], new: list[list[tuple[int, bool]]], gap: int
) -> None:
    stored = numbered(times)
    held = [sessions(of_key, gap) for of_key in stored]
    every = [session for of_key in held for session in of_key]
    columns = (
        [session[0][0] for session in every],
        [session[-1][0] for session in every],
        [sum(value for _, value in session) for session in every],
    )

    def joined(known: Known, time: int) -> dict[tuple[int, int], int]:
        (session,) = (some for some in sessions([*known, (time, 0)], gap) if (time, 0) in some)
        return {(session[0][0], session[-1][0] + gap): sum(value for _, value in session)}

    check(OfSessions(rows_of(held), *columns, Sum(), gap), stored, new, joined)
    check(OfLives(rows_of(held), *columns, Sum(), gap), stored, new, lambda *at: next(iter(joined(*at).values())))
