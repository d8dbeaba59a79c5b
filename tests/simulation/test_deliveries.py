"""What each delivery promises, in worlds of drivers that are killed: against a fold of the messages, key by key.

`python -m tests.simulation.test_deliveries DELIVERY SEED` plays one world.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

from persistent_state.batch import judge, lift
from persistent_state.batch.plan import AT_LEAST_ONCE, AT_MOST_ONCE, DELIVERIES, EXACTLY_ONCE
from persistent_state.event_time import positions
from persistent_state.protocol import commits, restore, takeover
from persistent_state.protocol import deliver as deliveries
from persistent_state.store import flow_state
from persistent_state.store.late_rows import LATE
from tests.simulation.deliveries import MIXED, DeliveryWorld, is_below
from tests.simulation.oracle import Violation, must
from tests.simulation.planted import Bug
from tests.soak import soak_or

pytestmark = pytest.mark.worlds

WORLDS, STRIDE = soak_or(ci=20, soak=1000), 20


def check(world: DeliveryWorld) -> Counter[str]:
    """Play a world to its end; whether something counted more or less than once.

    Raises:
        Violation: a promise is broken.
    """
    world.run()
    found: Counter[str] = Counter(world.happened)
    for job in world.jobs:
        aside, total = world.aside(job), world.total(job)
        late = {place for place in aside if place[0] == LATE}
        # What may be there, and what must be.
        most, least = world.fold(job, world.good(job)), world.fold(job, world.good(job, on_time_only=True))
        facts = {"task": job, "total": total, "most": most, "least": least, "aside": aside}
        bad = {m.place for sent in world.partitions.messages.values() for m in sent if m.timestamp is None}
        bad_aside = [place[1:] for place in aside.elements() if place[0] != LATE]
        if world.delivery != AT_MOST_ONCE:
            must(is_below(least, most), "what is on time is not late", **facts)
        if world.delivery == MIXED:
            on_time = [m for m in world.good(job, on_time_only=True) if m.place not in world.given_up[job.name]]
            if AT_MOST_ONCE not in world.deliveries or not job.is_windowed:
                must(is_below(world.fold(job, on_time), total), "what is on time is there", on_time=on_time, **facts)
            if AT_LEAST_ONCE not in world.deliveries:
                must(is_below(total, most), "nothing counts twice", **facts)
        elif world.delivery == EXACTLY_ONCE:
            must(total == most, "exactly once is the fold of what was not late", **facts)
            must(sorted(bad_aside) == sorted(bad), "every bad row is aside, once", bad=bad, **facts)
        elif world.delivery == AT_LEAST_ONCE:
            if job.windowing is None and job.horizon is None:
                must(not late, "nothing is late", **facts)
                least = most
            must(is_below(least, total), "at least once is never below the fold", **facts)
            must(sorted(bad_aside) == sorted(bad), "every bad row is aside, once", bad=bad, **facts)
        else:
            must(is_below(total, most), "at most once is never above the fold", **facts)
            must(max(aside.values(), default=1) == 1, "a row is aside at most once", **facts)
        found["more"] += not is_below(total, most)
        found["less"] += not is_below(least, total)
    return found


def play(delivery: str, seed: int, goes_back: bool = False) -> Counter[str]:
    try:
        return check(DeliveryWorld(seed, delivery, goes_back))
    except Exception as error:
        again = f"python -m tests.simulation.test_deliveries {delivery} {seed}{' back' if goes_back else ''}"
        raise Violation(f"{type(error).__name__}: {error}\n{again}") from error


@pytest.mark.soak
@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", range(0, WORLDS, STRIDE))
@pytest.mark.parametrize("delivery", [*DELIVERIES, MIXED])
def test_every_world_keeps_what_its_delivery_promises(delivery: str, first: int) -> None:
    found = sum((play(delivery, seed) for seed in range(first, first + STRIDE)), Counter[str]())
    assert found["killed"] > 0
    if delivery == EXACTLY_ONCE:
        assert (found["more"], found["less"]) == (0, 0)
    if delivery == AT_LEAST_ONCE:
        assert found["more"] > 0, "some messages count twice"
        assert found["given above the global clock"] > 0
    if delivery == AT_MOST_ONCE:
        assert found["less"] > 0, "some messages are lost"
        assert found["given again"] == 0


@pytest.mark.soak
@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", range(0, WORLDS, STRIDE))
@pytest.mark.parametrize("delivery", [*DELIVERIES, MIXED])
def test_every_world_that_goes_back_keeps_what_its_delivery_promises(delivery: str, first: int) -> None:
    found = sum((play(delivery, seed, goes_back=True) for seed in range(first, first + STRIDE)), Counter[str]())
    assert all(found[what] > 0 for what in ("killed", "rewound", "branched"))


def bug(delivery: str, name: str, target: Any, *changes: tuple[str, str], at: int = 0) -> tuple[str, int, Bug]:
    """A bug that worlds of a delivery find; `at` is one that does, or where to begin."""
    return delivery, at, Bug(name, name, target, changes)


BUGS = (
    bug(
        EXACTLY_ONCE,
        "a replay begins where the chunk did",
        lift.lift_chunk,
        ("_note_spans(before, chunk.replay,", "_note_spans(before, chunk.first,"),
    ),
    bug(AT_LEAST_ONCE, "late all the same", judge.judge, ("& (not takes_late)", "")),
    bug(
        AT_LEAST_ONCE,
        "windows hold for late what they have",
        restore._counts_again_from,
        ("if not plan.takes_late:", "if False:"),
        at=3,
    ),
    bug(
        AT_LEAST_ONCE,
        "bad rows again",
        restore.restored,
        ("kept.with_rows_taken_back(files, source.again)", "kept"),
        at=1,
    ),
    bug(
        AT_LEAST_ONCE,
        "cut back",
        restore.restored,
        ("task.stored.keep_all(shards)", "task.stored.cut_back(min(clock, group.flow.progress.clock), shards)"),
        at=2,
    ),
    bug(
        AT_LEAST_ONCE,
        "other intervals over kept ones",
        flow_state.FlowState.coarse_on,
        ("if before == interval:", "if True:"),
        at=41,
    ),
    bug(
        AT_LEAST_ONCE,
        "one of two grids",
        flow_state.FlowState.coarse_on,
        ("math.lcm(segment.step, interval)", "segment.step"),
        at=23,
    ),
    bug(
        AT_LEAST_ONCE,
        "nothing has changed",
        deliveries.due,
        (
            "recent = last if record.is_right and is_apart else BEGINNING",
            "recent = last",
        ),
        at=9,
    ),
    bug(
        AT_MOST_ONCE,
        "read again",
        flow_state.SourceState.skip_planned,
        ("max(known.taken, self.planned.get(partition, 0))", "known.next"),
    ),
    bug(AT_MOST_ONCE, "replayed", restore.restored_source, ("if plan.delivery == AT_MOST_ONCE:", "if False:")),
    bug(
        AT_MOST_ONCE,
        "given before it is recorded",
        deliveries.Giver.give_next,
        ("if self.delivery == AT_MOST_ONCE:", "if False:"),
        at=50,
    ),
    bug(
        AT_MOST_ONCE,
        "other intervals over kept ones",
        flow_state.FlowState.coarse_on,
        ("if before == interval:", "if True:"),
        at=1,
    ),
    bug(
        AT_MOST_ONCE,
        "files not remembered",
        commits.announce,
        ("journals_of(reach, known.inputs), path", "{}, path"),
    ),
    bug(
        MIXED,
        "accounted above the cut",
        positions.rewind_position,
        ("(before, min(below, clock))", "(before, below)"),
        at=8,
    ),
    bug(
        MIXED,
        "cut back is given up",
        flow_state.SourceState.skip_planned,
        ("max(known.taken,", "max(known.known,"),
        at=20,
    ),
    bug(
        MIXED,
        "not taken by position",
        positions.reread_position,
        ("(position.next, END)", "(position.next, clock)"),
        at=1,
    ),
    bug(
        MIXED,
        "again for ever",
        restore.restored_source,
        ("(replay, now), again=END)", "(replay, now), again=source.again)"),
        at=24,
    ),
    bug(
        MIXED,
        "given what is void",
        deliveries.due,
        ("record.changes_since", "record.delivered"),
        ("record.is_right and", ""),
        at=244,
    ),
)


OF_WORLDS_THAT_GO_BACK = (
    bug(
        AT_LEAST_ONCE,
        "a cut is believed that took late messages away",
        flow_state.SourceState.cut_back,
        ("END if self.again == END else BEGINNING", "END"),
        at=218,
    ),
    bug(
        AT_LEAST_ONCE,
        "a first start takes nothing in late",
        takeover._fed,
        ("plan.first.delivery == AT_LEAST_ONCE and", "False and"),
        at=218,
    ),
    bug(
        AT_LEAST_ONCE,
        "what is read again stays aside",
        restore.restored,
        ("kept.with_rows_taken_back(files, source.again)", "kept"),
        at=23,
    ),
    bug(
        EXACTLY_ONCE,
        "nothing is accounted for",
        positions.rewind_position,
        ("{*pairs, (position.next, clock)}", "pairs"),
        at=22,
    ),
    bug(
        AT_MOST_ONCE,
        "what is above the clock stays",
        restore.cut_back,
        ("task.stored.cut_back(clock, shards)", "task.stored.keep_all(shards)"),
    ),
    bug(
        MIXED,
        "a start exactly once counts again what a cut doubts",
        restore.restored_source,
        ("replace(source.cut_back(replay, now), again=END)", "source.cut_back(replay, now)"),
        at=6,
    ),
)


@pytest.mark.soak
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("delivery", "at", "bug"), BUGS, ids=lambda given: getattr(given, "name", given))
def test_a_planted_bug_is_found(delivery: str, at: int, bug: Bug) -> None:
    with bug.planted():
        assert any(is_broken(DeliveryWorld(seed, delivery)) for seed in seeds_from(at))


@pytest.mark.soak
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("delivery", "at", "bug"), OF_WORLDS_THAT_GO_BACK, ids=lambda given: getattr(given, "name", given)
)
def test_a_bug_of_going_back_is_found(delivery: str, at: int, bug: Bug) -> None:
    with bug.planted():
        assert any(is_broken(DeliveryWorld(seed, delivery, goes_back=True)) for seed in seeds_from(at))


def seeds_from(at: int) -> tuple[int, ...]:
    """Return the worlds in which to look for a bug: the one that is known to show it, as long as worlds are what they were."""
    return *soak_or(ci=(at,), soak=()), *range(1000)


def is_broken(world: DeliveryWorld) -> bool:
    try:
        check(world)
    except Violation:
        return True
    return False


if __name__ == "__main__":
    print(play(sys.argv[1], int(sys.argv[2]), goes_back="back" in sys.argv))
