"""A file is damaged or gone: what does not need it is read all the same, and each way out that an error names works."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from persistent_state import DamagedError, InvalidInputError, open_store, read_state, verify
from persistent_state.batch.plan import AT_LEAST_ONCE
from persistent_state.protocol import branch, naming, rewind
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import codec, kept_entries
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from tests import core
from tests.protocol.test_rewind import SCHEMA, Total, World

pytestmark = pytest.mark.rows_in_files

MESSAGES = 16


def flip(files: Files, path: str) -> bytes:
    """Flip a bit of a file, and return what it was."""
    data = bytes(files.read(path))
    put(files, path, data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
    return data


def put(files: Files, path: str, data: bytes) -> None:
    files.delete(path)
    files.create(path, data)


def remove(files: Files, path: str) -> bytes:
    data = bytes(files.read(path))
    files.delete(path)
    return data


DAMAGES = (flip, remove)


def played(**options: object) -> World:
    world = World(**options)
    world.read(MESSAGES)
    return world


def needed_at(world: World, clock: int) -> set[str]:
    """The runs that a kept clock needs, by its own entry."""
    entry = kept_entries.read(world.log, world.newest.kept[clock].entry)
    return {run.file.path for run in entry.tasks["total"].stored.runs if run.first < clock}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_kept_clock_is_read_that_does_not_need_the_file(damage: Callable[[Files, str], bytes]) -> None:
    world = played()
    right = {clock: world.value(clock) for clock in world.newest.kept}
    paths = {run.file.path for run in world.newest.tasks["total"].stored.runs}
    met = {True: 0, False: 0}
    for path in paths:
        data = damage(world.files, path)
        for clock, value in right.items():
            is_needed = path in needed_at(world, clock)
            met[is_needed] += 1
            if is_needed:
                with pytest.raises(DamagedError, match=path):
                    world.value(clock)
            else:
                assert world.value(clock) == value
        put(world.files, path, data)
        assert {clock: world.value(clock) for clock in right} == right
    assert min(met.values()) > 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_above_the_global_clock_keeps_nobody_from_reading(damage: Callable[[Files, str], bytes]) -> None:
    world = World()
    slow = core.plan_of(Total("slow"), SCHEMA, files=world.files, shards=2)
    world.start(world.plan, slow)
    world.read(8)
    world.read(7, plan=slow)
    world.read(MESSAGES)
    entry = world.newest
    right = world.value()
    above = [run.file.path for run in entry.tasks["total"].stored.runs if run.first >= entry.clock]
    assert above
    damage(world.files, above[-1])
    assert world.value() == right
    # The next start cuts it away, and is as if it had not been.
    world.start(world.plan, slow)
    for plan in (slow, world.plan):
        world.read(MESSAGES, plan=plan)
    assert world.value() == sum(1 for row in world.rows(MESSAGES) if 0 < row["ts"] < world.newest.clock)


def newest_run(world: World) -> str:
    """The newest run file that the newest clock needs, and older kept clocks do not."""
    return max(needed_at(world, world.newest.clock))


def total(files: Files, application: str) -> int:
    """The newest state of an application."""
    value: int = sum(row["value"] for row in read_state(files.url, application, "total").to_pylist())
    return value


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("way", ["bring it back", "read", "go back", "branch", "reset"])
def test_each_way_out_of_a_damaged_run_works(damage: Callable[[Files, str], bytes], way: str) -> None:
    world = played()
    clock, path, whole = world.newest.clock, newest_run(world), world.value()
    older = max(clock for clock in world.newest.kept if path not in needed_at(world, clock))
    before = world.value(older)
    data = damage(world.files, path)
    with pytest.raises(
        DamagedError, match=rf"{path}.*; bring it back from a copy of the store, read or go back to a kept"
    ):
        world.value(clock)
    world.start(world.plan)
    with pytest.raises(DamagedError, match=path):
        world.read(3 * MESSAGES)
    if way == "bring it back":
        put(world.files, path, data)
        assert world.value(clock) == whole
    elif way == "read":
        assert world.value(older) == before
    elif way == "branch":
        branch.branch(world.log, Log(world.files, "green"), older, now=0, new_id=core.new_id)
        assert total(world.files, "green") == before
    else:
        if way == "go back":
            world.back(older)
            world.start(world.plan)
        else:
            world.start(world.plan, reset=["total"])
        world.read(4 * MESSAGES)
        # A task that was reset has nothing below the clock of its start.
        rows = [row for row in world.rows(4 * MESSAGES) if 0 < row["ts"] < world.newest.clock]
        begun = world.newest.tasks["total"].born if way == "reset" else 0
        assert world.value() == sum(1 for row in rows if row["ts"] >= begun)


def test_no_rewind_goes_to_a_clock_that_needs_a_missing_file() -> None:
    world, met = played(), Counter[bool]()
    paths = {run.file.path for run in world.newest.tasks["total"].stored.runs}
    for clock in world.newest.kept:
        planned = core.plan_rewind(world.log, clock)
        for path in paths | needed_at(world, clock):
            data = remove(world.files, path)
            met[path in needed_at(world, clock)] += 1
            if path in needed_at(world, clock):
                with pytest.raises(DamagedError, match=f"{path} is missing, and clock=.* needs it; .* Nothing changed"):
                    rewind.first_entry(world.log, planned)
            else:
                assert rewind.first_entry(world.log, planned).clock == clock
            put(world.files, path, data)
    assert min(met[True], met[False]) > 0


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_only_older_clocks_need_keeps_nobody_from_going_on(
    damage: Callable[[Files, str], bytes],
) -> None:
    world = played()
    (path, *_) = sorted(needed_at(world, 20) - needed_at(world, world.newest.clock))
    damage(world.files, path)
    world.start(world.plan)
    world.read(4 * MESSAGES)
    assert world.value() == sum(1 for row in world.rows(4 * MESSAGES) if 0 < row["ts"] < world.newest.clock)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_named_clock_whose_entry_is_damaged_is_released(damage: Callable[[Files, str], bytes]) -> None:
    world = World(Keeping(2))
    world.read(8)
    clock = world.newest.clock
    naming.keep(world.log, clock, "old", 0)
    world.read(MESSAGES)
    number = world.newest.kept[clock].entry
    for path in (world.log.path(number), kept_entries.path(world.log, number)):
        if path.rpartition("/")[2] in world.files.list(path.rpartition("/")[0]):
            damage(world.files, path)
    log = Log(world.files, "app")
    with pytest.raises(DamagedError):
        world.value(clock)
    naming.release(log, "old", 0)
    # It leaves with the next commit.
    world.read(MESSAGES + 2)
    assert clock not in world.newest.kept
    core.collect(world.log, world.newest.epoch, now=10**12, keeping=Keeping(2, 0))
    assert world.value() == sum(1 for row in world.rows(MESSAGES + 2) if 0 < row["ts"] < world.newest.clock)


def entries_back(world: World, count: int) -> list[str]:
    return [world.log.path(number) for number in world.log.numbers()[-count:]]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("has_started", [False, True])
def test_past_damaged_newest_entries_any_kept_clock_can_be_branched(
    damage: Callable[[Files, str], bytes], has_started: bool
) -> None:
    world = played(delivery=AT_LEAST_ONCE) if has_started else played()
    if has_started:
        # The first entries of epochs are among those that can't be read.
        for _ in range(2):
            world.start(world.plan)
    right = {clock: world.value(clock) for clock in world.newest.kept}
    epoch, paths = world.newest.epoch, entries_back(world, 3)
    flip(world.files, paths[-1])
    for path in paths[:-1]:
        damage(world.files, path)
    for act in (lambda: core.start(Log(world.files, "app"), [world.plan]), lambda: world.value()):
        world.log = Log(world.files, "app")
        with pytest.raises(DamagedError, match=r"bring back.* or branch from a kept clock; nothing was changed"):
            act()
    listed = world.files.list("app/log")
    clocks = [clock for clock in right if clock <= world.log.newest_sound()[0].clock]
    assert len(clocks) > 5
    for clock in clocks:
        entry = branch.branch(world.log, Log(world.files, f"at-{clock}"), clock, now=0, new_id=core.new_id)
        assert (entry.clock, entry.epoch > epoch) == (clock, True)
        assert total(world.files, f"at-{clock}") == right[clock]
    # People do so by a function, or by a command.
    open_store(world.files.url).application("app").branch("green", clock)
    assert total(world.files, "green") == right[clock]
    # The branch goes on, and nothing has touched the application.
    green = replace(world.plan, application="green")
    log = Log(world.files, green.application)
    core.start(log, [green])
    problems = [*map(str, verify(world.files.url).problems)]
    assert problems
    assert not any("green" in problem for problem in problems)
    assert world.files.list("app/log") == listed


def test_without_a_clock_nothing_older_is_taken_for_the_newest() -> None:
    world = played()
    (path,) = entries_back(world, 1)
    kept = [*world.newest.kept]
    data = flip(world.files, path)
    log = Log(world.files, "app")
    with pytest.raises(DamagedError, match=rf"{path} is damaged; .* Name the clock to branch from: .*\({kept[-2]}\), "):
        branch.branch(log, Log(world.files, "green"), None, now=0, new_id=core.new_id)
    with pytest.raises(InvalidInputError, match="is not kept"):
        branch.branch(log, Log(world.files, "green"), 7, now=0, new_id=core.new_id)
    assert world.files.list("green") == []
    put(world.files, path, data)
    assert branch.branch(log, Log(world.files, "green"), None, now=0, new_id=core.new_id).clock == kept[-1]


def test_an_entry_of_a_later_version_is_whole_and_nothing_goes_past_it() -> None:
    world = played()
    (path,) = entries_back(world, 1)
    data = bytes(world.files.read(path))
    record = json.loads(data.partition(b"\n")[0])
    body = codec._dumped({**record, "format": codec.FORMAT + 1}).encode() + b"\n"
    put(world.files, path, body + codec._seal(body))
    with pytest.raises(DamagedError, match="a format later than"):
        branch.branch(Log(world.files, "app"), Log(world.files, "green"), 90, now=0, new_id=core.new_id)


def test_a_log_of_which_nothing_can_be_read_is_said_to_be_one() -> None:
    world = played()
    for number in world.log.numbers():
        flip(world.files, world.log.path(number))
    with pytest.raises(DamagedError, match="no entry of the log of app can be read"):
        branch.branch(Log(world.files, "app"), Log(world.files, "green"), 90, now=0, new_id=core.new_id)
