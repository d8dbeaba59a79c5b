"""Partitions that are far ahead wait for the slowest, and everything is read all the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.batch.advance import advance
from persistent_state.batch.alignment import aligned_reach
from persistent_state.batch.packets import Report, Sender
from persistent_state.batch.plan import Plan
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, END, Settings
from persistent_state.sources import Chunk, Reach, TimeReplayableSource
from persistent_state.store.flow_state import INPUT, FlowProgress, FlowState, SourceState
from persistent_state.store.log import Log
from tests import core

SCHEMA = pa.schema([("ts", pa.int64()), ("n", pa.int64())])
ROWS = 6
"""Of each partition: one row every hundred microseconds."""


class Shelved(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


@dataclass
class Shelves(TimeReplayableSource):
    """Partitions that begin at different times; a micro-batch has one row of each that does not wait."""

    begins: Mapping[str, int]
    timestamp: str = "ts"
    held: frozenset[str] = frozenset()
    asked: list[bool] = field(default_factory=list)

    schema = SCHEMA

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        pass

    def hold(self, partitions: Collection[str]) -> None:
        self.held = frozenset(partitions)

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        self.asked.append(everything)
        moves = {name: 0 if name in self.held else ROWS if everything else 1 for name in self.begins}
        ends = {name: min(ROWS, start.get(name, 0) + move) for name, move in moves.items()}
        return Reach(ends, dict.fromkeys(self.begins, False))

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        return [(name, start.get(name, 0), end[name]) for name in self.begins if start.get(name, 0) < end[name]]

    def read(self, split: Any) -> Any:
        name, low, high = split
        stamps = [self.begins[name] + 100 * i for i in range(low, high)]
        yield Chunk(name, low, pa.record_batch([pa.array(stamps), pa.array([1] * len(stamps))], SCHEMA))


def plan_of(alignment: int | None, **settings: Any) -> Plan:
    return core.plan_of(Shelved(), SCHEMA, settings=Settings(10, ahead=2**62, alignment=alignment, **settings))


def reads(plan: Plan, source: Shelves, is_ending: bool) -> list[dict[str, int]]:
    """How far each partition is read after each micro-batch, until nothing is read any more."""
    log = Log(plan.files, plan.application)
    core.start(log, [plan])
    found: list[dict[str, int]] = []
    while True:
        newest = log.newest()
        assert newest is not None
        known = newest.flow_of(plan.name).source
        start = known.next_positions
        reach = aligned_reach(plan, source, known, start, everything=False, is_ending=is_ending, now=0)
        if found and dict(reach.ends) == start:
            return found
        core.play_reach(log, plan, source, start, reach)
        found.append(dict(reach.ends))


def test_nobody_waits_without_alignment_and_the_source_is_asked_once() -> None:
    source = Shelves({"slow": 0, "fast": 10_000})
    assert len(reads(plan_of(None), source, is_ending=True)) == ROWS
    assert len(source.asked) == ROWS + 1


def test_a_partition_that_is_ahead_waits_until_the_slowest_is_near_or_has_no_more() -> None:
    # The one ahead begins where the other is after three more rows, and may be two rows ahead.
    found = reads(plan_of(200), Shelves({"slow": 0, "fast": 400}), is_ending=True)
    assert [(ends["slow"], ends["fast"]) for ends in found] == [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 2),
        (5, 3),
        (6, 4),
        (6, 5),
        (6, 6),
    ]


def test_what_may_still_grow_is_waited_for() -> None:
    found = reads(plan_of(200), Shelves({"slow": 0, "fast": 10_000}), is_ending=False)
    assert found[-1] == {"slow": ROWS, "fast": 1}


@pytest.mark.parametrize("more", [(), ("slow",)])
def test_a_partition_behind_an_open_transaction_is_waited_for_though_it_would_be_idle(more: Collection[str]) -> None:
    plan = plan_of(200, idle_after=50)
    known = SourceState({"slow": Channel(10, active=0), "fast": Channel(500, active=80)})
    source = Shelves({"slow": 0, "fast": 0})
    reach = aligned_reach(plan, source, known, {}, everything=False, is_ending=False, now=100, more=more)
    assert reach.held == source.held == ({"fast"} if more else set())


@pytest.mark.parametrize("held", [frozenset(), frozenset({"fast"})])
def test_who_waits_is_not_silent(held: frozenset[str]) -> None:
    plan = plan_of(200, idle_after=50)
    channels = {"slow": Channel(10, active=0), "fast": Channel(500, active=0)}
    flow = FlowState(FlowProgress(BEGINNING, batch=1), {INPUT: SourceState(channels)})
    reach = Reach({}, dict.fromkeys(channels, False), held=held)
    after = advance(
        flow, None, [Report(Sender(plan.name, 1, 2, "", 0, 1), 100, silent_for={"": END}, reach=reach)], plan.settings
    )
    assert after.slowest == ("fast" if held else None)
    assert after.holds is bool(held)
