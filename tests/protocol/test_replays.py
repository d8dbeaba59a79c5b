"""A chain of short runs, as a scheduler makes it: each reads again what its clock needs, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

import monoids
from persistent_state import InvalidInputError, NonWindowState, PersistentTask
from persistent_state.batch.plan import DELIVERIES, EXACTLY_ONCE
from persistent_state.sources import Chunk, Reach, TimeReplayableSource
from persistent_state.store.log import Log
from tests import core

SCHEMA = pa.schema([("ts", pa.int64()), ("n", pa.int64())])
RUNS, EACH, DELAY = 6, 100, 20
"""How many runs there are, how many messages of each partition come before each, and how far messages are out of order."""


class Count(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


class Topic(TimeReplayableSource):
    """Partitions whose messages are at most `DELAY` out of order, and each partition is a chunk, as in a short topic."""

    timestamp, timestamp_unit = "ts", "us"

    def __init__(self, partitions: int, cut: bool) -> None:
        self.names = [f"p{i}" for i in range(partitions)]
        self.cut = cut
        self.end, self.deleted, self.read_in_run = 0, 0, 0

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        self.read_in_run = 0

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        if any(start.get(name, 0) < self.deleted for name in self.names):
            raise InvalidInputError("lost what is yet to be read")
        return Reach(dict.fromkeys(self.names, self.end), dict.fromkeys(self.names, False))

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        pieces = [(name, start.get(name, 0), end[name]) for name in self.names if start.get(name, 0) < end[name]]
        if not self.cut:
            return pieces
        middles = [(name, low, (low + high) // 2, high) for name, low, high in pieces]
        return [
            piece
            for name, low, middle, high in middles
            for piece in ((name, low, middle), (name, middle, high))
            if piece[1] < piece[2]
        ]

    def read(self, split: tuple[str, int, int]) -> Iterator[Chunk]:
        name, low, high = split
        self.read_in_run += high - low
        # Every third message is behind the two before it.
        rows = [{"ts": 10 * i - (DELAY if i % 3 == 2 else 0), "n": 1} for i in range(low, high)]
        yield Chunk(name, low, pa.RecordBatch.from_pylist(rows, SCHEMA))


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("partitions", [1, 3, 8])
def test_a_chain_of_short_runs_reads_each_message_a_few_times(partitions: int, cut: bool, delivery: str) -> None:
    source = Topic(partitions, cut)
    settings = core.Settings(interval=10, delay=DELAY, ahead=2**62)
    plan = core.plan_of(Count(), SCHEMA, settings=settings, delivery=delivery)
    log, began, total = Log(plan.files, "app"), [], 0
    for run in range(RUNS):
        source.end += EACH
        entry = core.start(log, [plan])
        flow = entry.flow_of(plan.name)
        source.open([], flow.source.known_positions)
        began.append(min((flow.source.next_positions.get(name, 0) for name in source.names), default=0))
        # What lies before the messages of two runs ago is done with, and may be deleted.
        assert began[-1] >= EACH * (run - 1) - DELAY
        source.deleted = max(0, EACH * (run - 2))
        while (played := core.play_source(log, plan, source, parts=2 * partitions)) is not None:
            entry = played
        assert source.read_in_run <= partitions * (2 * EACH + DELAY)
        (total,) = core.state_at(entry, plan, None).values()
    assert began == sorted(began)
    if delivery == EXACTLY_ONCE:
        assert total == partitions * RUNS * EACH
