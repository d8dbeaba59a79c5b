"""Verifying a store finds every damage and names the file, and finds none where there is none."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import monoids
from persistent_state import (
    InvalidInputError,
    NonWindowState,
    PersistentTask,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
    WindowState,
)
from persistent_state.partials import keys
from persistent_state.show.text import verified as verified_lines
from persistent_state.state import KeptState
from persistent_state.store import late_rows, lists
from persistent_state.store import log as logs
from persistent_state.store import runs as runs_io
from persistent_state.store.codec import from_bytes, to_bytes
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from persistent_state.store.named_files import Cut, Run, ShardRuns
from persistent_state.store.task_state import TaskState
from persistent_state.store.verify import Verified, verified, verify
from tests import core
from tests.fixtures import write_store
from tests.refusing import RefusingFiles
from tests.two_tasks import TwoTasks

KEPT = Path(__file__).parents[1] / "fixtures" / "store-v1"
LAST = 16


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT, tmp_path / "store"))


def paths(store: Path) -> list[str]:
    return sorted(str(file.relative_to(store)) for file in store.rglob("*") if file.is_file())


def found(verified: Verified) -> dict[str, str]:
    return {problem.path: problem.what for problem in verified.problems}


def entry_path(number: int) -> str:
    return f"app/log/{number:020d}.json"


def flip(file: Path, bit: int) -> None:
    data = bytearray(file.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    file.write_bytes(data)


def test_a_sound_store_has_no_problem_and_every_file_of_it_is_read() -> None:
    read: list[str] = []
    verified = verify(str(KEPT), on_file=read.append)
    assert sorted(read) == paths(KEPT)
    assert verified == Verified(
        applications=1,
        entries=LAST,
        files=len(read) - LAST,
        bytes=sum((KEPT / path).stat().st_size for path in read),
        unreferenced=(),
        problems=(),
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_one_bit_of_any_file_is_found_and_the_file_named(store: Path, seed: int) -> None:
    for place, path in enumerate(paths(store)):
        bit = (place + 1) * seed * 7919
        flip(store / path, bit)
        assert list(found(verify(str(store)))) == [path]
        flip(store / path, bit)
    assert verify(str(store)).problems == ()


def kept(state: KeptState[Any], **more: Any) -> PersistentTask:
    """A task that keeps prices of shops in a state."""

    class Kept(PersistentTask):
        key, value = "shop", "price"

        def persistent_state(self) -> KeptState[Any]:
            return state

    task = Kept()
    for name, value in more.items():
        setattr(task, name, value)
    return task


@pytest.mark.parametrize(
    "task",
    [
        kept(WindowState(monoids.Sum(), SlidingWindow("20 microseconds", "10 microseconds"))),
        kept(WindowState(monoids.Sum(), SlidingWindow("400 microseconds", "10 microseconds"))),
        kept(WindowState(monoids.Sum(), SessionWindow("15 microseconds"))),
        kept(NonWindowState(monoids.Sum(), ttl="15 microseconds")),
        kept(NonWindowState(monoids.Sum()), message_id="item", horizon="1 hour"),
        kept(
            WindowState(monoids.Sum(), SlidingWindow("400 microseconds", "10 microseconds")),
            message_id="item",
            horizon="1 hour",
        ),
        kept(
            WindowState(monoids.Last(pa.int64()), SessionWindow("15 microseconds")), message_id="item", horizon="1 hour"
        ),
        kept(WindowState(monoids.Last(pa.int64()), TumblingWindow("20 microseconds"))),
    ],
    ids=[
        "windows",
        "wide windows",
        "sessions",
        "ttl",
        "ids",
        "ids of wide windows",
        "ids of sessions in order",
        "windows in order",
    ],
)
def test_a_sound_store_of_each_kind_of_state_has_no_problem(tmp_path: Path, task: PersistentTask) -> None:
    plan = core.plan_of(task, write_store.SCHEMA, files=open_files(str(tmp_path)), shards=2)
    log = Log(plan.files, plan.application)
    core.start(log, [plan])
    for first in range(0, 120, 30):
        rows = [
            {"ts": ts, "shop": "ab"[ts % 2], "item": ts // 2, "price": ts} for ts in range(first, first + 30) if ts % 40
        ]
        core.play(log, plan, pa.RecordBatch.from_pylist(rows, write_store.SCHEMA), channels={"": False})
    entry = core.start(log, [plan])
    assert len(entry.tasks[plan.name].stored.runs) > 0
    assert verify(str(tmp_path)).problems == ()


def test_a_file_that_is_gone_cut_or_longer_is_named(store: Path) -> None:
    for path in paths(store)[:-1]:
        data = (store / path).read_bytes()
        (store / path).unlink()
        # Without the first entry or the newest one, what is there is still a whole log.
        expected = [] if path in (entry_path(1), entry_path(LAST)) else [path]
        assert list(found(verify(str(store)))) == expected
        for other in (data[:-1], data + b" ", b""):
            (store / path).write_bytes(other)
            assert list(found(verify(str(store)))) == [path]
            (store / path).unlink()
        (store / path).write_bytes(data)


@pytest.mark.rows_in_files
def test_a_file_that_the_store_refuses_is_told_to_be_refused_and_not_to_be_damaged() -> None:
    world = TwoTasks(files=RefusingFiles("memory://" + core.new_id()))
    for second in (25, 45):
        for task in world.plans:
            world.read(task, {"x": second}, "x")
    assert isinstance(world.log.files, RefusingFiles)
    (run, *_) = core.newest(world.log).tasks["A"].stored.runs
    entry = world.log.path(world.log.numbers()[-1])
    for path in (entry, run.file.path):
        world.log.files.refused[:] = [path]
        (problem, *_) = verified(world.log.files, "app").problems
        assert problem.path == path
        assert problem.what.startswith(f"it can't be read: path={path!r} in store=")


def test_verifying_goes_on_after_a_problem(store: Path) -> None:
    damaged = paths(store)[3::9]
    for path in damaged:
        flip(store / path, 1000)
    assert sorted(found(verify(str(store)))) == damaged


def test_entries_that_were_swapped_or_replaced_are_named(store: Path) -> None:
    fifth, sixth = (store / entry_path(number) for number in (5, 6))
    was = fifth.read_bytes(), sixth.read_bytes()
    fifth.write_bytes(was[1])
    sixth.write_bytes(was[0])
    assert {entry_path(5), entry_path(6)} <= found(verify(str(store))).keys()
    fifth.write_bytes(to_bytes(replace(from_bytes(was[0], ""), writer="another")))
    sixth.write_bytes(was[1])
    assert found(verify(str(store))) == {entry_path(6): "it does not go on from entry 5 as that is now"}


def test_what_no_entry_names_is_told_and_no_problem(store: Path) -> None:
    others = [
        "app/log/.hidden",
        "app/log/readme",
        "app/runs/Notes/000002-000000009-0000-x.values.arrow",
        "app/runs/Old/x",
    ]
    for path in others:
        (store / path).parent.mkdir(exist_ok=True)
        (store / path).write_text("something")
    (store / "a file beside the applications").write_text("")
    (store / "app/runs/Notes/.tmp-of-a-writer").write_text("")
    verified = verify(str(store))
    assert verified.unreferenced == tuple(others)
    assert verified.problems == ()


def test_what_is_collected_meanwhile_is_no_problem_but_what_else_goes_is(store: Path) -> None:
    log = Log(open_files(str(store)), "app")
    still_named = {path for number in range(10, LAST + 1) for path in log.read(number).files()}
    old = {path for number in range(1, 10) for path in log.read(number).files()}
    gone = sorted(old - still_named)
    assert len(gone) > 5

    def collect(path: str) -> None:
        if "/log/" not in path:
            for gone_path in (*gone, *map(entry_path, range(1, 10))):
                (store / gone_path).unlink(missing_ok=True)

    assert verify(str(store), on_file=collect).problems == ()
    assert len(paths(store)) == len(paths(KEPT)) - len(gone) - 9
    shutil.copytree(KEPT, store, dirs_exist_ok=True)
    lost = min(old & still_named)
    gone.append(lost)
    assert list(found(verify(str(store), on_file=collect))) == [lost]


@pytest.mark.rows_in_files
def test_a_damaged_file_says_that_no_clock_needs_it(tmp_path: Path) -> None:
    app = TwoTasks(files=open_files(str(tmp_path)))
    many = [f"w{number}" for number in range(5_000)]
    for task, at in itertools.product("AB", (5, 12)):
        app.read(task, dict.fromkeys(many, at), many)
    app.read("A", {"w0": 26}, many)
    newest = core.newest(app.log)
    assert newest.clock == 10_000_000
    below, *_, above = newest.tasks["A"].stored.runs
    assert below.first < newest.clock <= above.first
    for run in (below, above):
        flip(tmp_path / run.file.path, 999)
    by_path = lines(str(tmp_path))
    assert by_path[below.file.path][1:] == ["the newest state needs it"]
    assert by_path[above.file.path][1:] == [
        "no clock needs it: it has only rows at or above clock=1970-01-01T00:00:10Z (10000000), which a start under "
        "exactly-once delivery makes again"
    ]
    # And so it is: a start cuts the one file away.
    flip(tmp_path / below.file.path, 999)
    app.start()
    app.read("A", {"w0": 26}, many)
    assert lines(str(tmp_path)).keys() == {above.file.path}
    assert lines(str(tmp_path))[above.file.path][1:] == [
        "no clock needs it: only old log entries name it, which the application deletes in their time"
    ]


def lines(store: str) -> dict[str, list[str]]:
    """By file: what is wrong with it."""
    by_path: dict[str, list[str]] = {}
    for problem in verify(store).problems:
        by_path.setdefault(problem.path, []).append(problem.what)
    return by_path


def test_entries_whose_base_is_gone_are_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs._Known, "is_far_from_base", lambda known, now, carried: False)
    app = TwoTasks(files=open_files(str(tmp_path / "other")))
    for at in (5, 15, 25):
        app.read("A", {"a": at}, ["a"])
    app.start()
    log = app.log
    first = core.newest(log).number
    (tmp_path / "other" / log.path(1)).unlink()
    result = verify(str(tmp_path / "other"))
    assert result.problems == ()
    assert {*result.unreferenced} >= {*map(log.path, range(2, first))}
    title, *others = verified_lines(result)
    assert title == f"{first - 2} log entries that nothing reads: the older entry from which others go on was deleted:"
    assert [line.strip() for line in others[: first - 2]] == [*map(log.path, range(2, first))]


def test_another_application_and_none_at_all(store: Path) -> None:
    (store / "app").rename(store / "moved")
    assert {path.split("/")[0] for path in found(verify(str(store)))} == {"app", "moved"}
    with pytest.raises(InvalidInputError, match="there is no application app"):
        verify(str(store), "app")
    assert verify(str(store / "moved")).applications == 0


Forge = Callable[[Entry, Path], Entry]


def of_part(part: str, change: Callable[[TaskState, Path], dict[str, Any]], name: str = "Totals") -> Forge:
    """The entry with other values in one part of a task's record."""

    def forge(entry: Entry, store: Path) -> Entry:
        task = entry.tasks[name]
        changed: Any = replace(getattr(task, part), **change(task, store))
        return entry.with_task(name, replace(task, **{part: changed}))

    return forge


def of_tasks(name: str, **changes: Any) -> Forge:
    """The entry with other values in the record of a task."""
    return lambda entry, store: entry.with_task(name, replace(entry.tasks[name], **changes))


def of_runs(change: Callable[[tuple[Run, ...]], tuple[Run, ...]]) -> Forge:
    return of_part("stored", lambda task, store: {"shards": in_shards(task, change(task.stored.runs))})


def in_shards(task: TaskState, runs: Sequence[Run]) -> tuple[ShardRuns, ...]:
    """The runs by the shards of the task."""
    shards = range(len(task.stored.shards))
    return tuple(
        ShardRuns(tuple(run for run in runs if keys.shard_of(run.low, len(shards)) == shard)) for shard in shards
    )


def first_run(**changes: Any) -> Forge:
    return of_runs(lambda runs: (replace(runs[0], **changes), *runs[1:]))


def rewritten(change: Callable[[pa.Table], pa.Table]) -> Forge:
    """The largest run with other content, of which all that the entry says is true."""

    def forge(task: TaskState, store: Path) -> dict[str, Any]:
        runs = task.stored.runs
        place, run = max(enumerate(runs), key=lambda each: each[1].rows)
        table = change(pa.ipc.open_file((store / run.file.path).read_bytes()).read_all())
        path = run.file.path.replace(".arrow", "x.arrow")
        stored = runs_io.write_table(open_files(str(store)), path, table)
        starts = table["start"].to_pylist()
        made = replace(run, file=stored, rows=table.num_rows, first=min(starts), last=max(starts))
        return {"shards": in_shards(task, (*runs[:place], made, *runs[place + 1 :]))}

    return of_part("stored", forge)


def other_task(task: TaskState, store: Path) -> dict[str, Any]:
    """A run of another task under this one's name, with its own checksum."""
    run = task.stored.runs[-1]
    notes = Log(open_files(str(store)), "app").read(LAST).tasks["Notes"].stored.runs[-1]
    path = run.file.path.replace(".arrow", "x.arrow")
    shutil.copy(store / notes.file.path, store / path)
    return {"shards": in_shards(task, (*task.stored.runs[:-1], replace(run, file=replace(notes.file, path=path))))}


def of_flow(part: str, **changes: Any) -> Forge:
    """The entry with other values in one part of a flow's record."""

    def forge(entry: Entry, store: Path) -> Entry:
        flow = entry.flow_of("Totals")
        changed: Any = replace(getattr(flow, part), **changes)
        return entry.with_flow("Totals", replace(flow, **{part: changed}))

    return forge


def side(**changes: Any) -> Forge:
    def forge(entry: Entry, store: Path) -> Entry:
        first, *others = entry.flow_of("Totals").late_rows.sides
        return of_flow("late_rows", sides=(replace(first, **changes), *others))(entry, store)

    return forge


def taken_back(entry: Entry, store: Path) -> Entry:
    """The entry in which a start has taken back all rows of a file."""
    ends = entry.flow_of("Totals").late_rows.sides[0].ends
    return side(cuts=(Cut(-(2**62), dict.fromkeys(ends, 0)),))(entry, store)


def own_side(**changes: Any) -> Forge:
    """The entry in which a file of late rows of the flow is the task's own."""

    def forge(entry: Entry, store: Path) -> Entry:
        first = entry.flow_of("Totals").late_rows.sides[0]
        moved = of_flow("late_rows", sides=())(entry, store)
        return of_part("late_rows", lambda task, store: {"sides": (replace(first, **changes),)})(moved, store)

    return forge


@pytest.mark.parametrize(
    ("forge", "what"),
    [
        (lambda entry, store: replace(entry, clock=0), "its clock=0 is below clock="),
        (lambda entry, store: replace(entry, epoch=1), "its epoch=1 is below epoch=2"),
        (lambda entry, store: replace(entry, retained=(200, 160, 220)), "do not ascend"),
        (lambda entry, store: replace(entry, retained=(160, 200)), "do not ascend to clock=220"),
        (lambda entry, store: replace(entry, number=17), "it says that it is entry 17"),
        (lambda entry, store: replace(entry, shards=2), "has runs in 3 shards, not in 2"),
        (
            of_flow("progress", clock=100),
            "its task Totals is gone, or has a clock below clock=220",
        ),
        (
            of_part("stored", lambda task, store: {"shards": task.stored.shards[::-1]}),
            "from 0 to .*, which is not in shard 2",
        ),
        (of_tasks("Totals", flow="Others"), "its task Totals has flow=Others, which is not there"),
        (of_tasks("Totals", flow="Notes"), "its flow Totals has no task of that name, but tasks=\\[\\]"),
        (of_tasks("Totals", flow="Notes"), "its task Totals has flow=Notes, and flow=Totals in the entry before it"),
        (
            of_tasks("Totals", flow="Notes", active=False),
            "its flow Notes has tasks=.* of which some are part of the newest",
        ),
        (of_runs(lambda runs: (runs[0], *runs)), "has rows of .* twice"),
        (
            of_part("late_rows", lambda task, store: {"settled_counts": {"late": 3}}),
            "task Totals: settled_counts={'late': 3}",
        ),
        (of_flow("late_rows", settled_counts={"late": 3}), "flow Totals: settled_counts={'late': 3}"),
        (lambda entry, store: entry.with_task("Totals", entry.tasks["Notes"]), "which is not its own"),
        (first_run(rows=99), "rows, not 99"),
        (first_run(first=-5), "not from -5 to"),
        (first_run(last=10**9), "not from .* to 1000000000"),
        (
            of_part("stored", other_task),
            "its columns are .* not hash uint64, key0 string, key1 int64, start int64, value struct",
        ),
        (rewritten(lambda table: table.take(list(range(table.num_rows))[::-1])), "it is not sorted by hash"),
        (
            rewritten(lambda table: table.set_column(2, "key1", pa.array([77] * table.num_rows))),
            "not those of its",
        ),
        (
            rewritten(lambda table: table.drop_columns("start").append_column("start", table["start"])),
            "its columns are",
        ),
        (
            rewritten(
                lambda table: table.set_column(4, table.schema.field(4), pa.nulls(table.num_rows, table[4].type))
            ),
            "it has nulls",
        ),
        (
            rewritten(lambda table: table.append_column("current", table["value"])),
            "at a row that is not the last of its key",
        ),
        (
            of_runs(lambda runs: (*runs[:-1], replace(runs[-1], high=runs[-1].low + 1))),
            "it has hashes that are not from",
        ),
        (taken_back, "it holds {}, not {"),
        (side(reasons={"late": 7}), "it holds .* not {'late': 7}"),
        (own_side(reasons={"late": 7}), "it holds .* not {'late': 7}"),
    ],
)
def test_what_a_newest_entry_says_is_held_against_what_is_there(store: Path, forge: Forge, what: str) -> None:
    newest = store / entry_path(LAST)
    entry = from_bytes(newest.read_bytes(), "")
    newest.write_bytes(to_bytes(forge(entry, store)))
    problems = verify(str(store)).problems
    assert len(problems) >= 1
    with pytest.raises(AssertionError, match=what):
        raise AssertionError([problem.what for problem in problems])


def test_files_that_stand_in_lists_are_verified_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_rows, "MANY", 0)
    monkeypatch.setattr(lists, "TAIL", 0)
    entry = write_store.write(tmp_path)
    rows = entry.late_rows_of("Notes")
    (listed, *_) = late_rows.settled(open_files(str(tmp_path)), rows)
    assert verify(str(tmp_path)).problems == ()
    for path in (rows.settled.files[0].path, listed.file.path):
        assert path not in {side.file.path for side in rows.sides}
        flip(tmp_path / path, 333)
        assert list(found(verify(str(tmp_path)))) == [path]
        flip(tmp_path / path, 333)
        data = (tmp_path / path).read_bytes()
        (tmp_path / path).unlink()
        assert list(found(verify(str(tmp_path)))) == [path]
        (tmp_path / path).write_bytes(data)
