"""What a sink is to be given next, as the newest log entry has it."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from persistent_state.errors import FencedError, InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol.deliver import Due, Giver, behind, due
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.flow_state import FlowProgress, FlowState
from persistent_state.store.log import Log
from persistent_state.store.output_state import ACTIVE, OutputRecord, OutputState
from persistent_state.store.task_state import StoredState, TaskState
from tests import core


def entry_of(
    retained: tuple[int, ...],
    delivered: int,
    *,
    clock: int | None = None,
    born: int = BEGINNING,
    window: dict[str, int] | None = None,
) -> Entry:
    own = retained[-1] if clock is None else clock
    identity = {} if window is None else {"window": window}
    outputs = OutputState({"out": OutputRecord(ACTIVE, delivered)})
    task = TaskState(identity, born, "t", StoredState((own,)), outputs=outputs)
    flow = FlowState(FlowProgress(own))
    return Entry(1, 1, "w", 0, "", 10, 1, retained[-1], retained, {"t": flow}, {"t": task})


@pytest.mark.parametrize(
    ("entry", "expected", "count"),
    [
        (entry_of((10, 20, 30), 10), Due(20, since=10, recent=10), 2),
        (entry_of((10, 20, 30), 30), None, 0),
        # New, or under another name: every key at the oldest, then what changes.
        (entry_of((10, 20, 30), BEGINNING), Due(10, since=BEGINNING, recent=BEGINNING), 3),
        # Nobody can tell any more what changed since 15: it is not kept apart.
        (entry_of((20, 30), 15), Due(20, since=BEGINNING, recent=BEGINNING), 2),
        # But which windows have closed since 15 can be told: none comes again after its task was away.
        (entry_of((20, 30), 15, window={"size": 10, "step": 5}), Due(20, since=15, recent=BEGINNING), 2),
        # Nor has a state been replaced since 15, for all that anybody knows.
        (entry_of((20, 30), 15, window={"replaced": 60}), Due(20, since=BEGINNING, recent=BEGINNING), 2),
        (entry_of((20, 30), 20, window={"replaced": 60}), Due(30, since=20, recent=20), 1),
        # But rows that a task emitted have times of their own.
        (entry_of((20, 30), 15, window={"passed": 1}), Due(20, since=15, recent=BEGINNING), 2),
        # What the task was before it began is nothing, and it has yet to come to where the others are.
        (entry_of((10, 20, 30, 40), BEGINNING, born=20), Due(30, since=BEGINNING, recent=BEGINNING), 2),
        (entry_of((10, 20, 30, 40), 10, clock=20), Due(20, since=10, recent=10), 1),
        (entry_of((10, 20, 30, 40), 20, clock=20), None, 0),
    ],
)
def test_the_oldest_clock_that_a_sink_lacks_is_next_with_what_changed_since_the_last(
    entry: Entry, expected: Due | None, count: int
) -> None:
    assert due(entry, "t", "out") == expected
    assert behind(entry, "t") == {"out": count}


def log_with(entry: Entry) -> Log:
    log = Log(open_files(f"memory://delivery-{uuid.uuid4().hex}"), "app")
    log.append(entry)
    return log


def test_what_is_given_is_not_given_again_when_only_its_record_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    log, given = log_with(entry_of((10, 20), BEGINNING)), []
    giver = Giver(log, "t", "out", lambda _: None, lambda entry, due: given.append(due.clock), lambda: 0)
    append, fails = Log.append, iter([True, False])

    def fail_once(log: Log, entry: Entry) -> None:
        if next(fails, False):
            raise InvalidInputError("not now")
        append(log, entry)

    monkeypatch.setattr(Log, "append", fail_once)
    with pytest.raises(InvalidInputError):
        giver.give_next(1)
    assert [giver.give_next(1) for _ in range(3)] == [True, True, False]
    assert given == [10, 20]


def test_a_sink_is_given_nothing_by_an_old_look_though_an_old_look_is_enough_to_wait() -> None:
    log, given = log_with(entry_of((10, 20), BEGINNING)), list[int]()
    mine = Log(log.files, "app", lambda: 0.0)
    giver = Giver(mine, "t", "out", lambda _: None, lambda entry, due: given.append(due.clock), lambda: 0)
    assert giver.give_next(1, 10)
    newest = core.newest(log)
    log.append(newest.follower(0, epoch=2))
    with pytest.raises(FencedError):
        giver.give_next(1, 10)
    assert given == [10]


def test_a_sink_with_a_record_of_its_own_is_believed() -> None:
    entry = entry_of((10, 20, 30), 30)
    log, given = log_with(entry), []
    giver = Giver(log, "t", "out", lambda _: 10, lambda entry, due: given.append(due), lambda: 0)
    while giver.give_next(1):
        pass
    assert given == [Due(20, since=10, recent=10), Due(30, since=20, recent=20)]
    newest = log.newest()
    assert newest is not None
    assert newest.tasks == {"t": replace(entry.tasks["t"], outputs=OutputState({"out": OutputRecord(ACTIVE, 30)}))}
    with pytest.raises(InvalidInputError, match=r"holds clock=.*Z \(40\), to which application=app has never come"):
        Giver(log, "t", "out", lambda _: 40, lambda entry, due: None, lambda: 0).open()


def test_a_kill_before_the_record_after_a_restart_in_the_process_voids_nothing() -> None:
    log, given, holds = log_with(entry_of((10, 20), 10)), list[Due](), [10]

    def change(clock: int, epoch: int, *, starts: bool) -> None:
        entry = log.newest()
        assert entry is not None
        task, flow = entry.tasks["t"], entry.flow_of("t")
        if starts:
            task = replace(task, outputs=task.outputs.cut_back(clock, flow.progress.clock))
        retained = entry.retained if starts else (*entry.retained, clock)
        changes = {"number": entry.number + 1, "epoch": epoch, "clock": clock, "retained": retained}
        log.append(replace(entry, **changes, flows={"t": flow.move_to(clock)}, tasks={"t": task}))

    def write(entry: Entry, due: Due) -> None:
        given.append(due)
        holds[0] = due.clock
        if due.clock == 30:
            raise InvalidInputError("killed")

    giver = Giver(log, "t", "out", lambda _: holds[0], write, lambda: 0)
    assert giver.give_next(1)
    change(20, 2, starts=True)
    change(30, 2, starts=False)
    change(40, 2, starts=False)
    with pytest.raises(InvalidInputError, match="killed"):
        giver.give_next(2)
    change(40, 3, starts=True)
    assert Giver(log, "t", "out", lambda _: holds[0], write, lambda: 0).give_next(3)
    assert given == [Due(20, since=10, recent=10), Due(30, since=20, recent=20), Due(40, since=30, recent=30)]
