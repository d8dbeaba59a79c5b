"""A task that is rebuilt from the beginning of its source, while the others keep their clock."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import InvalidInputError, NonWindowState, NotThereError, PersistentTask, open_store, read_state
from persistent_state.batch.plan import Plan
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol import commits, refusals
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.output_state import LEFT, RETIRED
from persistent_state.store.state_at import find_state
from tests import core

ROW = pa.schema([("ts", pa.int64()), ("n", pa.int64())])
SENT = [(5, 1), (12, 2), (24, 4), (38, 8), (41, 16)]


class Total(PersistentTask):
    value = "n"

    def __init__(self, name: str, type: pa.DataType | None = None) -> None:
        self.name = name
        self.type = type or pa.int64()

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum(self.type))


def rows(sent: list[tuple[int, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"ts": ts, "n": n} for ts, n in sent], ROW)


class Ran:
    """Two tasks that have read all; then one of them is another, and is to be rebuilt."""

    def __init__(self, keeping: Keeping | None = None) -> None:
        files = core.memory()
        self.old, self.other = (core.plan_of(Total(name), ROW, files=files) for name in ("sum", "other"))
        self.log = Log(files, "app")
        core.start(self.log, [self.old, self.other])
        for plan in (self.old, self.other):
            for each in SENT:
                core.play(self.log, plan, rows([each]), keeping=keeping)
        self.new = core.changed(self.old, task=Total("sum", pa.float64()))

    @property
    def newest(self) -> Entry:
        return core.newest(self.log)


def states(entry: Entry, plan: Plan) -> dict[int, Any]:
    return {clock: core.state_at(entry, plan, clock).get((), 0) for clock in entry.retained}


def test_a_task_that_is_built_again_has_the_whole_history_at_every_retained_clock() -> None:
    ran = Ran()
    before = states(ran.newest, ran.old)
    entry = core.start(ran.log, [ran.new, ran.other], rebuild=["sum"])
    assert (entry.clock, entry.flow_of("sum").progress.clock, entry.flow_of("sum").source.positions) == (
        40,
        BEGINNING,
        {},
    )
    core.play(ran.log, ran.new, rows(SENT[:2]))
    entry = core.play(ran.log, ran.other, rows([(67, 32)]))
    assert (entry.clock, entry.flow_of("sum").progress.clock, entry.flow_of("other").progress.clock) == (40, 10, 60)
    entry = core.play(ran.log, ran.new, rows([*SENT[2:], (55, 64), (71, 1)]))
    assert entry.clock == 60
    assert states(entry, ran.new) == {**before, 60: 1 + 2 + 4 + 8 + 16 + 64}
    assert entry.late_rows_of("sum").counts() == {}
    # What it had above the clock at the start is not read again here.
    assert states(entry, ran.other) == {**before, 60: 1 + 2 + 4 + 8}


def test_a_start_while_it_catches_up_goes_on_where_it_stands() -> None:
    keeping = Keeping(clocks=1)
    ran = Ran(keeping)
    assert ran.newest.retained == (40,)
    core.start(ran.log, [ran.new, ran.other], rebuild=["sum"])
    for each in SENT[:2]:
        core.play(ran.log, ran.new, rows([each]), keeping=keeping)
    entry = core.start(ran.log, [ran.new, ran.other])
    assert (entry.flow_of("sum").progress.clock, entry.flow_of("sum").source.positions[""].next) == (10, 1)
    entry = core.play(ran.log, ran.new, rows([*SENT[1:], (52, 0)]), keeping=keeping)
    assert (entry.clock, core.state_at(entry, ran.new, 40)) == (40, {(): 15.0})
    # Left out while it catches up it has no clock any more to come back to.
    core.start(ran.log, [ran.new, ran.other], rebuild=["sum"])
    core.play(ran.log, ran.new, rows(SENT[:2]))
    core.start(ran.log, [ran.other])
    with pytest.raises(InvalidInputError, match="task=sum left at clock="):
        core.start(ran.log, [ran.new, ran.other])


def test_a_new_task_may_begin_at_the_beginning_of_its_source() -> None:
    ran = Ran()
    late = core.plan_of(Total("late"), ROW, files=ran.old.files)
    core.start(ran.log, [ran.old, ran.other, late], rebuild=["late"])
    entry = core.play(ran.log, late, rows([*SENT, (50, 0)]))
    assert (entry.clock, core.state_at(entry, late, 40)) == (40, {(): 15})


def test_a_close_takes_a_task_that_is_built_again_to_the_global_clock() -> None:
    ran = Ran()
    assert commits.close(ran.log, 1, now=0, keeping=Keeping()).clock == 50
    alone = core.changed(ran.new, settings=replace(ran.new.settings, interval=7))
    entry = core.start(ran.log, [alone], rebuild=["sum"])
    core.play(ran.log, alone, rows(SENT))
    # The first multiple of 7 above the newest message is 42.
    entry = commits.close(ran.log, entry.epoch, now=0, keeping=Keeping())
    assert (entry.clock, entry.flow_of("sum").progress.clock) == (50, 50)


def test_a_task_is_not_built_again_for_a_sink_that_has_what_it_was() -> None:
    ran = Ran()
    core.start(ran.log, [replace(ran.old, outputs=("out",)), ran.other])
    before = ran.newest.number
    with pytest.raises(InvalidInputError, match="task=sum is rebuilt, and sink='out' has what it was before; give it"):
        core.start(ran.log, [replace(ran.new, outputs=("out",)), ran.other], rebuild=["sum"])
    assert ran.newest.number == before
    core.start(ran.log, [ran.new, ran.other], rebuild=["sum"])
    with pytest.raises(InvalidInputError, match="sink='out' has what it was before"):
        core.start(ran.log, [replace(ran.new, outputs=("out",)), ran.other])
    entry = core.start(ran.log, [replace(ran.new, outputs=("again",)), ran.other])
    assert entry.tasks["sum"].outputs.delivered == {"again": BEGINNING}


def test_a_task_that_is_reset_before_the_first_clock_keeps_its_sink() -> None:
    files = core.memory()
    plan, log = replace(core.plan_of(Total("sum"), ROW, files=files), outputs=("out",)), Log(files, "app")
    for reset in ((), ("sum",), ()):
        task = core.start(log, [plan], reset=reset).tasks["sum"]
        assert task.outputs.delivered == {"out": BEGINNING}
        assert task.outputs.with_status(RETIRED) == {}
    # To those that it feeds it is another task now.
    assert task.life == 2


def test_a_task_is_not_built_again_for_a_sink_that_an_earlier_start_left_out() -> None:
    ran = Ran()

    def start(plan: Plan, *outputs: str, reset: Sequence[str] = (), rebuild: Sequence[str] = ()) -> tuple[str, ...]:
        plan = replace(plan, outputs=outputs)
        entry = core.start(ran.log, [plan, ran.other], reset=reset, rebuild=rebuild)
        return tuple(entry.tasks["sum"].outputs.with_status(LEFT))

    assert [start(ran.old, "a", "b"), start(ran.old, "a"), start(ran.old, "b"), start(ran.old, "a")] == [
        (), ("b",), ("a",), ("b",)
    ]  # fmt: skip
    # What it was given stays there when the task starts again.
    assert start(ran.old, "d", reset=["sum"]) == ("a", "b")
    with pytest.raises(InvalidInputError, match="task=sum is rebuilt, and sink='b' has what it was before; give it"):
        start(ran.new, "b", rebuild=["sum"])
    assert start(ran.new, "c", rebuild=["sum"]) == ()
    assert sorted(ran.newest.tasks["sum"].outputs.with_status(RETIRED)) == ["a", "b", "d"]
    with pytest.raises(InvalidInputError, match="sink='b' has what it was before"):
        start(ran.new, "c", "b")


def test_only_tasks_that_are_added_are_built_again_and_none_is_both() -> None:
    ran = Ran()
    with pytest.raises(
        InvalidInputError, match=r"rebuild names task=summe, which is not added; the tasks are sum, other."
    ):
        core.start(ran.log, [ran.new, ran.other], rebuild=["summe"])
    with pytest.raises(InvalidInputError, match=r"task=sum is named in reset and in rebuild; name it in one of them."):
        core.start(ran.log, [ran.new, ran.other], rebuild=["sum"], reset=["sum"])


@pytest.mark.rows_in_files
def test_a_reader_learns_that_a_task_is_built_again() -> None:
    ran = Ran()
    held = find_state(ran.old.files, "app", Total("sum"), 40)
    core.start(ran.log, [ran.new, ran.other], rebuild=["sum"])
    words = (
        r"^task=sum is being built and has reached no clock yet; read it once it has caught up with clock=.*\(40\)\.$"
    )
    for read in (
        lambda: read_state(ran.old.files.url, "app", Total("sum", pa.float64())),
        lambda: open_store(ran.old.files.url).application("app").task("sum").at(),
        lambda: open_store(ran.old.files.url).application("app").task("sum").changes(30),
    ):
        with pytest.raises(NotThereError, match=words):
            read()
    core.play(ran.log, ran.new, rows(SENT[:2]))
    with pytest.raises(InvalidInputError, match=r"task=sum is rebuilt and has reached clock=.* once it has caught up"):
        read_state(ran.old.files.url, "app", Total("sum", pa.float64()), 40)
    core.play(ran.log, ran.new, rows([*SENT[2:], (52, 0)]))
    core.collect(ran.log, ran.newest.epoch, now=10**12, keeping=Keeping(clocks=10, grace=0))
    # The clock is kept, and what the task was then can be read by who has found it before.
    assert held.read().to_pylist() == [{"value": 15}]
    assert read_state(ran.old.files.url, "app", Total("sum", pa.float64()), 40).to_pylist() == [{"value": 15.0}]
    for _ in range(2):
        core.start(ran.log, [ran.new, ran.other])
        core.play(ran.log, ran.new, rows([(1000, 0)]), keeping=Keeping(1))
        core.play(ran.log, ran.other, rows([(1000, 0)]), keeping=Keeping(1))
    core.collect(ran.log, ran.newest.epoch, now=10**12, keeping=Keeping(clocks=10, grace=0))
    # What it was is gone, and is never mixed with what it is.
    with pytest.raises(InvalidInputError, match="no longer retained"):
        held.read()


@pytest.mark.parametrize("name", ["SUM", "Sum", unicodedata.normalize("NFD", "sum")[:2] + "M"])
def test_names_that_a_file_system_may_take_for_one_are_refused(name: str) -> None:
    ran = Ran()
    refused = f"task={name} and task=sum differ in no more than case or accents' spelling"
    other = core.plan_of(Total(name), ROW, files=ran.old.files)
    with pytest.raises(InvalidInputError, match=refused):
        core.start(ran.log, [other])
    with pytest.raises(InvalidInputError, match=refused):
        core.start(Log(ran.old.files, "new"), [ran.old, other])


def test_names_that_a_store_has_told_apart_so_far_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Ran()
    plans = [ran.old, core.plan_of(Total("SUM"), ROW, files=ran.old.files)]
    with monkeypatch.context() as patch:
        # As when the log was begun by a version that did not look.
        patch.setattr(refusals, "without_case", str)
        core.start(ran.log, plans)
    assert core.start(ran.log, plans).tasks.keys() >= {"sum", "SUM"}
