"""Tasks of one application move at speeds of their own, and the global clock is never far behind the slowest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.event_time import clocks
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.protocol import global_clock
from persistent_state.protocol.commits import close
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.log import Log
from persistent_state.store.output_state import ACTIVE, OutputRecord, OutputState
from tests import core
from tests.local_application import LocalApplication

ROW = pa.schema([("ts", pa.int64()), ("n", pa.int64()), ("device", pa.string())])
KEEPING = Keeping(clocks=3)


class Total(PersistentTask):
    value = "n"

    def __init__(self, name: str) -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


def rows(stamps: list[int], devices: int = 1) -> pa.RecordBatch:
    """Messages of so many channels in turn."""
    count = len(stamps)
    names = [str(i % devices) for i in range(count)]
    columns = [pa.array(stamps, pa.int64()), pa.array([1] * count, pa.int64()), pa.array(names, pa.string())]
    return pa.RecordBatch.from_arrays(columns, schema=ROW)


class World(LocalApplication):
    """A few tasks, what they have read, and how coarse a grid each has ever had to keep."""

    def __init__(self, tasks: int, interval: int, delay: int) -> None:
        self.interval = self.coarsest = interval
        files, moves = core.memory(), Settings(interval, delay, ahead=2**62)
        self.names = "abc"[:tasks]
        super().__init__(
            {
                name: core.plan_of(Total(name), ROW, files=files, settings=moves, channel="device")
                for name in self.names
            },
            keeping=KEEPING,
        )
        self.entry = self.start()
        self.has_read: list[list[int]] = [[] for _ in self.plans]

    def come(self, task: int, batch: pa.RecordBatch, parts: int, channels: dict[str, bool] | None = None) -> None:
        """Let these rows come, and read them in so many parts."""
        name, self.parts = self.names[task], parts
        clock = self.newest.flow_of(name).progress.clock
        self.has_read[task] += [stamp for stamp in batch["ts"].to_pylist() if stamp >= clock]
        self.send(name, [tuple(row.values()) for row in batch.to_pylist()])
        self.source(name).channels = channels
        self.turn(name)
        self.entry = self.newest

    def read(
        self, task: int, stamps: list[int], parts: int = 1, devices: int = 1, channels: dict[str, bool] | None = None
    ) -> None:
        clock = self.entry.flow_of(self.names[task]).progress.clock
        before = self.entry.clock
        self.come(task, rows(stamps, devices), parts, channels)
        after = self.entry.flow_of(self.names[task])
        # Before there is a global clock, cuts begin where messages do, or at a task's clock that is below its messages.
        lows = [min(read) for read in self.has_read if read] + ([clock] if clock != BEGINNING else [])
        low = before if before != BEGINNING else min(lows)
        high = max([after.progress.clock, *stamps])
        if high > low:
            self.coarsest = max(self.coarsest, clocks.grid_step(low, high, self.interval))
        in_batch = [stamp for stamp in stamps if stamp >= clock]
        if in_batch:
            step = clocks.grid_step(min(in_batch), max(in_batch) + 1, self.interval, clocks.MOST_IN_BATCH)
            self.coarsest = max(self.coarsest, step)
        assert self.entry.clock >= before

    def check_all(self) -> None:
        entry = self.entry
        slowest = min(flow.progress.clock for flow in entry.flows.values())
        assert entry.clock <= slowest
        if slowest != BEGINNING:
            # Every clock up to the first message is as good as the beginning.
            behind = slowest - max(entry.clock, min(min(read, default=slowest) for read in self.has_read))
            assert behind < self.coarsest or behind == 0
        for plan, read in zip(self.plans.values(), self.has_read, strict=True):
            task = entry.tasks[plan.name]
            for cut in {*entry.retained, *task.stored.cuts} - {BEGINNING}:
                below = sum(stamp < cut for stamp in read)
                assert core.state_at(entry, plan, cut) == ({(): below} if below else {}), (
                    f"state of {plan.name} at {cut}"
                )
            assert len(task.stored.cuts) <= clocks.MOST_CUTS + 3


class TestSeveralTasks:
    @settings(max_examples=60, phases=[Phase.explicit, Phase.generate])
    @given(st.data())
    def test_the_global_clock_is_at_most_one_step_of_the_coarsest_grid_behind_the_slowest_task(
        self, data: st.DataObject
    ) -> None:
        world = World(
            data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 7, 10])), data.draw(st.integers(0, 9))
        )
        devices = data.draw(st.integers(1, 3))
        at = [data.draw(st.integers(0, 300)) for _ in world.plans]
        for _ in range(data.draw(st.integers(1, 10))):
            task = data.draw(st.integers(0, len(world.plans) - 1))
            jump = data.draw(st.sampled_from([3, 40, 500]))
            stamps = data.draw(st.lists(st.integers(at[task] - 5, at[task] + jump), min_size=1, max_size=8))
            at[task] = max(at[task], *stamps)
            world.read(task, stamps, data.draw(st.integers(1, 3)), devices)
            world.check_all()
        world.entry = close(world.log, world.entry.epoch, now=0, keeping=KEEPING)
        assert {flow.progress.clock for flow in world.entry.flows.values()} == {world.entry.clock}
        world.check_all()

    def test_a_task_that_leapt_over_a_gap_does_not_hold_the_others_until_they_are_across(self) -> None:
        world = World(2, interval=10, delay=0)
        for task in (0, 1):
            world.read(task, [5, 25])
        world.read(0, [10_000, 10_020])
        for stamp in range(100, 10_000, 900):
            world.read(1, [stamp])
            world.check_all()
        assert world.entry.clock > 8_000

    def test_a_task_whose_messages_begin_later_does_not_hold_one_that_begins_earlier(self) -> None:
        world = World(2, interval=10, delay=0)
        world.read(0, [10_000, 10_020])
        world.read(1, [0, 50])
        assert world.entry.clock == 50
        world.read(1, [100])
        assert world.entry.clock == 100
        world.check_all()

    def test_no_clock_is_where_a_channel_that_ran_ahead_was_folded_too_coarsely(self) -> None:
        world = World(1, interval=10, delay=0)
        # Each channel is a part of its own, and knows only how far it could move the clock itself.
        ahead, behind = list(range(0, 2000, 40)), list(range(0, 500, 10))
        for first in (0, 1000):
            stamps = [first + stamp for pair in zip(ahead, behind, strict=True) for stamp in pair]
            by_device = [*stamps[::2], *stamps[1::2]]
            half = len(stamps) // 2
            batch = pa.concat_batches(
                [rows(by_device[:half]), rows(by_device[half:]).set_column(2, "device", pa.array(["1"] * half))]
            )
            world.come(0, batch, parts=2)
            world.coarsest = 1000
            world.check_all()
            assert world.entry.flow_of("a").coarse

    def test_the_first_cuts_begin_where_the_messages_of_earlier_batches_do(self) -> None:
        world = World(2, interval=10, delay=0)
        # A channel that is there and has delivered nothing: no clock yet.
        world.read(0, [5], channels={"0": False, "1": False})
        world.read(0, [5000, 4000], devices=2, channels={"0": False, "1": False})
        for stamp in range(0, 3900, 100):
            world.read(1, [stamp])
            world.check_all()
        assert world.entry.clock > 3000

    def test_a_long_past_does_not_make_new_cuts_coarse(self) -> None:
        world = World(2, interval=10, delay=0)
        for task in (0, 1):
            world.read(task, [5, 100_000])
        world.read(0, [100_050])
        world.read(1, [100_020])
        assert world.entry.clock == 100_020
        world.check_all()

    def test_a_replay_of_hundreds_of_intervals_keeps_few_rows(self) -> None:
        world = World(1, interval=10, delay=0)
        world.read(0, list(range(0, 10_000, 7)))
        world.check_all()
        assert sum(run.rows for run in world.entry.tasks["a"].stored.runs) <= clocks.MOST_CUTS + 3


def test_checkpoints_stay_from_the_last_that_each_sink_was_given() -> None:
    plan = core.plan_of(Total("a"), ROW)
    entry = core.start(Log(plan.files, "app"), [plan])
    outputs = OutputState({"slow": OutputRecord(ACTIVE, 20), "fast": OutputRecord(ACTIVE, 40)})
    task = replace(entry.tasks["a"], outputs=outputs)
    entry = replace(entry, retained=(10, 20, 30, 40), tasks={"a": task})
    assert global_clock._retained(entry, 50, Keeping(clocks=2)) == (20, 30, 40, 50)
    assert global_clock._retained(entry, 50, Keeping(clocks=5)) == (10, 20, 30, 40, 50)


@pytest.mark.parametrize("ended", [True, False])
def test_a_task_without_live_channels_does_not_hold_the_clock(ended: bool) -> None:
    world = World(2, interval=10, delay=0)
    world.read(0, [5, 25])
    world.read(1, [5, 25])
    made = core.answers(world.log, world.plans["b"], rows([31]), channels={"0": ended})
    assert core.commit(world.log, world.plans["b"], made).flow_of("b").progress.holds is not ended
    world.has_read[1].append(31)
    world.read(0, [95])
    assert world.entry.clock == (90 if ended else 30)


def test_a_source_that_lists_no_channels_does_not_hold_the_clock() -> None:
    world = World(2, interval=10, delay=0)
    world.read(0, [5, 95])
    assert world.entry.clock == BEGINNING
    # Nothing came, and yet it is committed: a source without channels moves the clock by that.
    world.entry = core.play(world.log, world.plans["b"], rows([]), channels={})
    assert world.entry.clock == 90
    # Channels that have disappeared are no more than none.
    world.read(1, [95], channels={"0": False})
    world.read(0, [125])
    assert world.entry.clock == 90
    world.entry = core.play(world.log, world.plans["b"], rows([]), channels={})
    assert world.entry.clock == 120


def test_a_source_whose_channels_are_known_by_their_messages_holds_the_clock_until_the_first() -> None:
    files = core.memory()
    moves = Settings(10, idle_after=100, ahead=2**62)
    plans = [core.plan_of(Total(name), ROW, files=files, settings=moves, channel="device") for name in "ab"]
    log = Log(files, "app")
    core.start(log, plans)
    for now in (0, 10**9, 2 * 10**9):
        # However long it is silent: what it will say first may be from any time.
        assert core.play(log, plans[1], rows([]), now=now).flow_of("b").progress.holds
        assert core.play(log, plans[0], rows([95]), now=now).clock == BEGINNING
    assert core.play(log, plans[1], rows([5, 45]), now=2 * 10**9).clock == 40
    entry = core.play(log, plans[1], rows([]), now=2 * 10**9 + 100)
    assert not entry.flow_of("b").progress.holds
