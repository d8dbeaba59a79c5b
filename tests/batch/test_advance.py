"""The positions and the clock of a flow after a micro-batch, as the parts' reports tell them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.batch.advance import advance
from persistent_state.batch.packets import Report, Sender
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, Bounds, Settings
from persistent_state.event_time.positions import Position
from persistent_state.sources.base import Reach
from persistent_state.store.flow_state import INPUT, FlowProgress, FlowState, SourceState

SETTINGS = Settings(10)
PARTITIONS = st.sampled_from("pqr")
ENDS = st.dictionaries(PARTITIONS, st.integers(0, 9))


def positions(known: dict[str, Position], planned: dict[str, int], *told: dict[str, int]) -> dict[str, Position]:
    """The positions after parts have told of these ends, where the planner knew some beforehand."""
    flow = FlowState(FlowProgress(0), {INPUT: SourceState(positions=known)})
    reports = [
        Report(Sender("t", 1, 1, "", part, len(told)), ends=tuple(ends.items()), reach=None if part else Reach(planned))
        for part, ends in enumerate(told)
    ]
    return dict(advance(flow, None, reports, SETTINGS).positions)


@given(ENDS, ENDS, st.lists(ENDS, min_size=1, max_size=3))
def test_the_next_position_is_the_greatest_that_is_known_planned_or_told(
    known: dict[str, int], planned: dict[str, int], told: list[dict[str, int]]
) -> None:
    found = positions({name: Position(next) for name, next in known.items()}, planned, *told)
    wanted = {
        name: max(some[name] for some in (known, planned, *told) if name in some)
        for name in {*known, *planned, *(name for ends in told for name in ends)}
    }
    assert {name: position.next for name, position in found.items()} == wanted


@pytest.mark.parametrize(("planned", "told"), [({"p": 3}, {}), ({}, {"p": 3}), ({"p": 3}, {"p": 4}), ({}, {})])
def test_the_next_position_never_falls_and_loses_no_account(planned: dict[str, int], told: dict[str, int]) -> None:
    known = {"p": Position(5, ((9, 40),), ((4, 50),))}
    assert positions(known, planned, told) == known


OF_INPUTS = {"a": Settings(10, delay=20), "b": Settings(10, idle_after=50)}


@pytest.mark.parametrize(
    ("newest", "now", "bound", "clock"),
    [
        ({"a": 100, "b": 200}, 0, BEGINNING, 80),
        ({"a": 300, "b": 105}, 0, BEGINNING, 100),
        ({"a": 300, "b": 105}, 60, BEGINNING, 280),
        ({"a": 300}, 0, BEGINNING, BEGINNING),
        ({"a": 300}, 0, 50, 50),
    ],
    ids=["its delay", "the slowest", "idle", "unknown", "its bound"],
)
def test_the_clock_is_that_of_the_slowest_input_by_the_settings_of_each(
    newest: dict[str, int], now: int, bound: int, clock: int
) -> None:
    settings = Settings(10, delay=5, inputs={**OF_INPUTS, "b": replace(OF_INPUTS["b"], bounds=Bounds(since=bound))})
    sources = {
        name: SourceState(channels={"c": Channel(newest[name], active=0)} if name in newest else {})
        for name in OF_INPUTS
    }
    flow = FlowState(FlowProgress(BEGINNING, batch=1), sources)
    report = Report(Sender("t", 1, 2, "", 0, 1), now, reach=Reach({}))
    assert advance(flow, None, [report], settings).clock == clock


@pytest.mark.parametrize("is_last", [False, True])
def test_a_finite_input_ends_with_its_last_micro_batch_and_is_not_idle_before(is_last: bool) -> None:
    flow = FlowState(FlowProgress(0, batch=1), {INPUT: SourceState(channels={"c": Channel(25, active=0)})})
    report = Report(Sender("t", 1, 2, "", 0, 1), now=100, reach=Reach({}, is_last=is_last))
    after = advance(flow, None, [report], Settings(10, idle_after=50))
    assert (after.holds, after.channels["c"].ended) == (not is_last, is_last)
