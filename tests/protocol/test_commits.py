"""A commit adds what a micro-batch has read, and moves its flow."""

from __future__ import annotations

import pyarrow as pa
import pytest

from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import commits
from persistent_state.store import lists
from persistent_state.store.flow_state import FlowProgress, FlowState, SourceState
from persistent_state.store.log import Log
from tests import core
from tests.protocol.test_global_clock import ROW, Total


def test_each_input_has_a_journal_of_its_own() -> None:
    files, flow = core.memory(), FlowState(FlowProgress(0), {"a": SourceState(), "b": SourceState()})
    for lines in ({"a": ["1"], "b": ["2"]}, {"b": ["3"]}):
        flow = commits._with_lines(files, flow, lines, core.new_id)
    assert {name: lists.read(files, source.journal) for name, source in flow.inputs.items()} == {
        "a": ["1"],
        "b": ["2", "3"],
    }


@pytest.mark.parametrize("pause", [100, 15_000])
def test_idle_time_counts_from_the_first_batch_of_a_start(pause: int) -> None:
    def said(*messages: tuple[int, str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"ts": stamp, "n": 1, "device": name} for stamp, name in messages], ROW)

    moves = Settings(10, idle_after=10_000, ahead=2**62)
    plan = core.plan_of(Total("a"), ROW, settings=moves, channel="device")
    log = Log(plan.files, "app")
    core.start(log, [plan])
    assert core.play(log, plan, said((15, "x"), (45, "x"), (15, "y")), now=1000).clock == 10
    assert core.start(log, [plan], now=3000).flow_of("a").source.positions[""].next == 0
    # Spark may need longer for its first micro-batch than a channel may be silent. It replays not as far as "y" spoke.
    now = 3000 + pause
    assert core.play(log, plan, said((15, "x"), (45, "x")), now=now).clock == 10
    assert core.play(log, plan, said((15, "y")), now=now + 9_999).clock == 10
    assert core.play(log, plan, said((46, "x")), now=now + 9_999 + 9_999).clock == 10
    entry = core.play(log, plan, said((47, "x")), now=now + 9_999 + 10_000)
    assert entry.clock == 40
    assert entry.late_rows_of("a").counts() == {}
    assert core.state_at(entry, plan, None) == {(): 5}
