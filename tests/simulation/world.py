"""One seed is one world: messages, tasks, drivers that live and die, and a store that misbehaves, the same each time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
from greenlet import getcurrent, greenlet

from persistent_state.batch import compaction, in_place
from persistent_state.batch import shard as shards
from persistent_state.batch.alignment import aligned_reach
from persistent_state.batch.packets import Advance, Answers, Blob, Descriptor, Report
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.batch.shard import merge_shard
from persistent_state.drive import turn
from persistent_state.edges.in_order import step as in_order
from persistent_state.edges.joins.interval import Bounds
from persistent_state.errors import (
    CommitUnknownError,
    DamagedError,
    DisagreementError,
    ExistsError,
    FencedError,
    InvalidInputError,
    StoreUnavailableError,
)
from persistent_state.event_time import positions
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.event_time.positions import Position
from persistent_state.inputs import Inputs, open_source
from persistent_state.local import turns
from persistent_state.partials import few, fold, keys, panes
from persistent_state.partials.since import Since
from persistent_state.protocol import branch, collect, commits, fates, graph, naming, rewind, takeover
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.deliver import Due, Giver
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources.base import Reach
from persistent_state.store import blocks, codec, inline, kept_entries, late_rows, lists
from persistent_state.store import log as logs
from persistent_state.store import runs as runs_io
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.flow_state import FlowState
from persistent_state.store.log import MOST_KNOWN, RECENT, Log
from persistent_state.store.named_files import Run, written
from persistent_state.store.state_at import state_at
from persistent_state.task import name_of_messages
from persistent_state.windows import SessionWindow, SlidingWindow, TimeToLive, Windowing
from tests import core
from tests.core import us
from tests.simulation import engines, graphs, inputs, joined, late, ordered
from tests.simulation import sinks as places
from tests.simulation.actor import Actor, Crash, Thread
from tests.simulation.branches import Branches, FarFiles
from tests.simulation.files import Disk, PlainFiles, StagedFiles
from tests.simulation.graphs import Derived
from tests.simulation.joined import Joining
from tests.simulation.kept import names_of
from tests.simulation.messages import ORDERED, SCHEMA, UNFIT_VALUE, Job, Sent
from tests.simulation.oracle import Batch, Oracle, Terms, Violation, must
from tests.simulation.ordered import Ordered, Part
from tests.simulation.paused import Pauses, checked_looks
from tests.simulation.sinks import WorldSink
from tests.simulation.source import MOVES, NAMES, NO_LINES, Partitions, Several, Stream, WorldSource

APPLICATION = "app"
START = 1_000_000
MOST_STEPS = 20_000
LEFTOVER_AGE = 0.0005
ROUNDS, ROUND = 3, 1000
"""The rounds in which all sources go on before the global clock must have moved, and their length in event time."""

REBUILT = "rebuilt"
"""The theme of worlds in which tasks are built again from the beginning of their sources, as in no others."""

DAMAGED = "damaged"
"""The theme of worlds in which files are damaged again and again, as in no others."""

READING = "reading"
"""The theme of worlds in which every task reads its state, and partitions are far apart, as in no others."""

READING_WINDOWS = "reading-windows"
"""The theme of worlds in which every task reads a state with windows, sessions or a time to live, as in no others."""

FLOWS = "flows"
"""The theme of worlds in which tasks of one source come, go, part and come together again, more than in others."""

GRAPH = "graph"
"""The theme of worlds in which tasks feed tasks, as in no others."""

INPUTS = "inputs"
"""The theme of worlds in which tasks have several inputs, which come and go, as in no others."""

BACKFILL = "backfill"
"""The theme of worlds in which tasks have history up to a time, and another input from there on, as in no others."""

SEVERAL = (INPUTS, BACKFILL)

EVERY = "every"
"""The theme of worlds in which tasks are fed what changes between fixed times, as in no others."""

IN_ORDER = "in-order"
"""The theme of worlds in which tasks process their messages in order, as in no others."""

JOINS = "joins"
"""The theme of worlds in which tasks join two inputs, and others are fed by what they give, as in no others."""

ORDERS = (IN_ORDER, JOINS)

VERSIONS = "versions"
"""The theme of worlds in which the code of tasks that others feed changes, and one is made of two that are made of one."""

BRANCHED = "branched"
"""The theme of worlds in which applications are branched at kept clocks, as in no others."""

KEPT = "kept"
"""The theme of worlds in which old clocks are read, and kept by name, more than in others."""

PAUSED = "paused"
"""The theme of worlds in which drivers and readers are paused at any request to the log, for longer than entries stay."""

REWOUND = "rewound"
"""The theme of worlds in which applications go back to kept clocks, as in no others but those of the next one."""

GRAPHS = (GRAPH, EVERY, *ORDERS, VERSIONS)

REWOUND_OUTPUTS = "rewound-outputs"
"""The theme of worlds in which applications with sinks of all kinds go back to kept clocks."""

REWOUND_GRAPH_OUTPUTS = "rewound-graph-outputs"
"""The theme of worlds in which tasks that feed tasks go back with sinks of all kinds."""

REWOUND_LATE = "rewound-late"
"""The theme of worlds in which drivers stop just before they write to a sink, and the write lands after it has gone back."""

REWOUND_ORDER_OUTPUTS = f"rewound-{IN_ORDER}-outputs"
REWOUND_BACKFILL_OUTPUTS = f"rewound-{BACKFILL}-outputs"
"""The themes of worlds in which tasks with timers, and tasks with history, go back with sinks of all kinds."""

REWOUND_FURTHER = "rewound-further"
"""The theme of worlds in which tasks whose keys come and go, with tables of newest values, go back, and then further back."""

WITH_SINKS = {
    REWOUND_OUTPUTS: REWOUND,
    REWOUND_LATE: REWOUND,
    REWOUND_GRAPH_OUTPUTS: GRAPH,
    REWOUND_ORDER_OUTPUTS: IN_ORDER,
    REWOUND_FURTHER: REWOUND,
    REWOUND_BACKFILL_OUTPUTS: BACKFILL,
}
"""The themes of worlds in which applications go back with sinks of all kinds."""

REWOUND_GRAPHS = {f"rewound-{theme}": theme for theme in (GRAPH, EVERY, *ORDERS, INPUTS, BACKFILL, VERSIONS)}
"""The themes of worlds in which applications of such tasks go back to kept clocks."""

REWOUND_BACKFILL = f"rewound-{BACKFILL}"
"""Of these the one in which they go back to clocks at which history was being read, too."""

ENGINES = "engines"
"""The theme of worlds in which each start is made by another engine, as in no others."""

OF_ENGINES = ("", GRAPH, "timely", IN_ORDER)
"""What tasks the worlds of this theme have: world by world those of another theme."""

THEMES = ("faulty", "sleepy", "restless", "ordered", "timely")
"""What some worlds have more of: a bad store, drivers that oversleep a takeover, tasks that come and go, orders that matter,
windows and what expires."""


class World:
    """All that one seed decides, and a theme if one is given. `run` plays it to its end, with the oracle looking on."""

    def __init__(self, seed: int, theme: str | None = None) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        drawn = rng.choice(["", "", *THEMES])
        self.theme = drawn if theme is None else {**REWOUND_GRAPHS, **WITH_SINKS}.get(theme, theme)
        self.engines = engines.Engines(Random(f"engines {seed}")) if theme == ENGINES else None
        self.theme = OF_ENGINES[seed % len(OF_ENGINES)] if self.engines else self.theme
        goes_back = self.theme == REWOUND or theme in {*REWOUND_GRAPHS, *WITH_SINKS}
        self.places = Random(f"places {seed}") if theme in WITH_SINKS else None
        self.late = late.Writes(Random(f"late {seed}")) if theme == REWOUND_LATE else None
        self.pauses = Pauses(Random(f"pauses {seed}")) if theme == PAUSED else None
        self.goes_further = theme == REWOUND_FURTHER
        self.trace: list[str] = []
        self.step = 0
        self.now = START
        self.ids = 0
        self.disk = Disk()
        self.oracle = Oracle(self.disk, APPLICATION)
        self.disk.watch, self.disk.unwatch = self._made, self._gone
        self.made: dict[str, int] = {}
        self.damaged: tuple[int, str, bytes] | None = None
        self.damages: set[str] = set()
        self.delayed: list[Callable[[], Any]] = []
        self.threads: list[Thread] = []
        self.actors: list[Actor] = []
        self.hub: greenlet = getcurrent()
        self.wide = rng.choice([0, 0, 3])
        self.copied: list[Sent] = []
        """Messages that others may be copies of."""

        self.fault_rate = rng.choice([0.0, 0.0, 0.01, 0.04])
        self.faulty = self.fault_rate > 0
        self.sleep_rate = rng.choice([0.0, 0.01])
        self.nap_rate = rng.choice([0.0, 0.0, 0.15])
        self.doze_rate = 0.0
        # A grace period is to be longer than a listing may be late: here nothing is collected where listings are.
        self.lag = rng.choice([50, 300]) if rng.random() < 0.12 else 0
        self.collect_rate = 0.0 if self.lag else rng.choice([0.0, 0.3, 1.0])
        self.damage_rate = 0.7 if rng.random() < 0.25 else 0.0
        self.few_hashes = rng.random() < 0.4
        self.growth = rng.choice([2, 1])
        self.skew = rng.choice([0.0, 0.0, 0.6])
        self.base = rng.choice([-400, 0, None, None])
        self.starts = rng.choice([1, 2, 3, 4])
        self.tick = rng.choice([1, 5, 20])
        self.most_rows = rng.choice([3, 8, 20])
        self.parts = rng.randint(1, 3)
        self.interval = rng.choice([10, 20, 50])
        self.delay = rng.choice([0, 20, 100, 300, 300])
        self.idle_after = rng.choice([200, 1000]) if rng.random() < 0.2 else None
        self.jump = rng.choice([200, 500]) if rng.random() < 0.15 else None
        self.keeping = Keeping(rng.randint(1, 4), rng.choice([0, 0, 0, 50, 500]))
        # Who reads and names kept clocks, by chances of their own.
        self.people = Random(f"people {seed}")
        # Not of the same random numbers, so that worlds without alignment stay what they were.
        self.alignment = Random(seed).choice([None, None, None, 10, 100])
        if self.theme == "faulty":
            self.fault_rate, self.faulty, self.starts = 0.05, True, rng.choice([3, 4])
            self.lag, self.collect_rate = rng.choice([(0, 0.3), (50, 0.0), (300, 0.0)])
        elif self.theme == "sleepy":
            self.lag, self.collect_rate, self.nap_rate, self.doze_rate = 0, 1.0, 0.1, rng.choice([0.0, 0.05, 0.1])
            self.starts = rng.choice([3, 4])
            self.delay, self.keeping = rng.choice([0, 20]), Keeping(1, 0)
        elif self.theme == "restless":
            self.idle_after, self.tick, self.starts = rng.choice([100, 200, None]), 20, rng.choice([4, 5])
            self.keeping = Keeping(rng.choice([1, 3, 6]), 0)
        elif self.theme == "ordered":
            self.most_rows, self.delay, self.interval, self.growth = 3, 300, 50, 1
        elif self.theme == "timely":
            self.keeping, self.interval, self.delay = (
                Keeping(rng.choice([1, 2, 3]), 0),
                20,
                rng.choice([0, 20, 100]),
            )
        elif self.theme == REBUILT:
            self.lag, self.starts, self.keeping = 0, rng.choice([3, 4, 6]), Keeping(rng.choice([1, 2, 6]), 0)
        elif self.theme == REWOUND:
            self.starts, self.keeping = (
                rng.choice([2, 3, 4]),
                Keeping(rng.choice([1, 3]), rng.choice([0, 0, 50])),
            )
            self.delay = rng.choice([0, 20, 100])
        elif self.theme in (KEPT, BRANCHED):
            self.lag, self.collect_rate, self.starts = 0, 1.0, rng.choice([2, 3, 4])
            self.keeping, self.delay = Keeping(rng.choice([1, 2]), rng.choice([0, 0, 50])), rng.choice([0, 20])
        elif self.theme == PAUSED:
            self.lag, self.collect_rate, self.tick, self.starts = 0, 1.0, rng.choice([5, 20]), rng.choice([2, 3, 4])
            self.delay, self.keeping = rng.choice([0, 20]), Keeping(1, rng.choice([0, 0, 50, 200]))
        elif self.theme == DAMAGED:
            self.damage_rate, self.starts = 1.0, rng.choice([3, 4, 6])
        elif self.theme == READING:
            self.starts, self.interval, self.delay, self.tick = 5, 20, rng.choice([100, 300]), 20
        elif self.theme == READING_WINDOWS:
            self.starts, self.delay, self.tick = rng.choice([2, 4]), rng.choice([0, 100, 300]), 20
        elif self.theme == FLOWS:
            self.lag, self.starts, self.idle_after = 0, rng.choice([4, 6, 8]), None
            self.keeping, self.delay = Keeping(rng.choice([1, 6]), 0), rng.choice([0, 20, 100])
        elif self.theme in (*GRAPHS, *SEVERAL):
            self.starts, self.keeping, self.lag = rng.choice([2, 3, 4, 6]), Keeping(rng.choice([1, 2, 6]), 0), 0
            self.idle_after, self.tick, self.delay = rng.choice([100, None, None]), 20, rng.choice([0, 20, 100])
            self.interval = rng.choice([10, 20]) if self.theme in (EVERY, *ORDERS, VERSIONS) else self.interval
            self.starts = min(self.starts, 4) if self.theme in ORDERS else self.starts
            self.collect_rate = 1.0 if self.theme == JOINS else self.collect_rate
        if self.engines:
            self.starts, self.damage_rate, self.idle_after, self.interval = 5, 0.0, None, max(20, self.interval)
        rules = [(3 * self.interval, 12 * self.interval), (7, 400), (100, 100)]
        rules = self.people.sample(rules, self.people.choice([1, 2] if goes_back or self.theme == KEPT else [0, 0, 1]))
        if goes_back and self.theme == BACKFILL:
            # Clocks of history stay while the live input is read.
            rules = [(3 * self.interval, 10_000)]
        self.keeping = replace(self.keeping, retain=tuple(rules))
        if self.goes_further:
            # Calm worlds of many clocks: a key goes, comes, and goes again by two rewinds.
            self.fault_rate, self.faulty, self.nap_rate, self.damage_rate, self.lag = 0.0, False, 0.0, 0.0, 0
            self.keeping, self.interval, self.delay = Keeping(12, 0), 10, 0
            self.tick, self.most_rows, self.wide, self.idle_after = 1, 3, 0, None
        more = 4 if self.goes_further else 2 if self.places else 1 if self.theme == BACKFILL else 0
        self.rewinds = self.people.randint(1, 3) + more if goes_back else 0
        self.look_rate = self.people.choice([0.5, 1.0] if self.theme == KEPT else [0.0, 0.0, 0.3])
        self.branches = Branches(self.oracle.kept, must) if self.theme == BRANCHED else None
        counts = {FLOWS: 1, INPUTS: 3, BACKFILL: 2}
        count = counts[self.theme] if self.theme in counts else rng.choice([1, 1, 2])
        self.sources = {f"s{i}": self._partitions() for i in range(count)}
        # Worlds in which all tasks of a source are always fed together stay what they were.
        self.own = Random(f"flows {seed}")
        self.part_rate = self.own.choice([0.3, 0.6] if self.theme == FLOWS else [0.0, 0.0, 0.3])
        self.part_rate = 0.0 if self.goes_further else self.part_rate
        for partitions in self.sources.values() if self.part_rate else ():
            partitions.journal = self.own.choice([NO_LINES, NO_LINES, NAMES, MOVES])
            # Who is told that there is no more waits for nobody.
            partitions.forgets = self.own.choice([0.0, 0.1]) if self.alignment is None else 0.0
            # Who goes back needs all that was read since.
            partitions.forgets = 0.0 if goes_back else partitions.forgets
        counts = {
            "restless": [2, 3],
            REBUILT: [2, 3],
            FLOWS: [2, 3],
            INPUTS: [1, 2],
            BACKFILL: [1, 1, 2],
            IN_ORDER: [1, 2, 2],
            JOINS: [1, 1, 2],
        }
        self.jobs = [self._job(i) for i in range(rng.choice(counts.get(self.theme, [1, 1, 1, 2, 2, 3])))]
        self.inputs = inputs.Coming(self.own, self.sources)
        if self.theme == INPUTS:
            some = [self.inputs.given(job) for job in self.jobs]
            self.jobs = self.inputs.with_fed(some, self.interval, self.few_hashes)
        if self.theme == BACKFILL:
            self.inputs.draw_bound(self.interval)
            self.jobs = [self.inputs.backfilled(job) for job in self.jobs]
        self.derived = graphs.drawn(self.own, self.jobs) if self.theme == GRAPH else []
        if self.theme == EVERY or (self.theme == INPUTS and self.own.random() < 0.3):
            self.derived = graphs.drawn_every(self.own, self.jobs, self.interval)
        if self.theme == VERSIONS:
            self.derived = graphs.drawn_versions(self.own, self.jobs, self.interval)
        if self.theme == JOINS:
            self.jobs = [self._joining(job, number) for number, job in enumerate(self.jobs)]
        if self.theme == IN_ORDER:
            self.jobs = [self._in_order(job, number) for number, job in enumerate(self.jobs)]
            if self.own.random() < 0.6:
                self.jobs = ordered.with_fed(self.own, self.jobs, self.inputs, self.few_hashes)
        if self.theme in ORDERS:
            some = [job.ordered for job in self.jobs if job.ordered is not None]
            self.derived = ordered.drawn(self.own, self.jobs, some, self.interval, self.few_hashes)
            for part in self.derived:
                self.oracle.orders.expect(part.ordered) if isinstance(part, Part) else None
        for derived in self.derived:
            early = isinstance(derived.windowing, SlidingWindow) and self.own.random() < 0.4
            count = 0 if goes_back else self.own.choice([0, 1])
            has_none = isinstance(derived, Part) and (derived.what == ordered.MESSAGES or derived.ordered.silent)
            has_none = has_none and derived.what != ordered.STATES
            count = 0 if has_none else count
            sinks = [WorldSink(derived.name, f"o{i}", self.own.random() < 0.6, early) for i in range(count)]
            if self.places is not None:
                count = self.places.choice([0, 1])
                sinks = [self._place(self.places, derived, number) for number in range(0 if has_none else count)]
            self.oracle.sinks.of[derived.name] = {sink.output: sink for sink in sinks}
        for partitions in self.sources.values() if self.derived and self.own.random() < 0.5 else ():
            partitions.ends = partitions.vanishes = False
        self.oracle.graphs.derived.update((derived.name, derived) for derived in self.derived)
        for job in self.jobs:
            self.oracle.expect(job, self.inputs.of.get(job.name) or self.sources[job.source])
            sinks = [
                WorldSink(
                    job.name,
                    f"o{i}",
                    rng.random() < 0.6,
                    isinstance(job.windowing, SlidingWindow) and rng.random() < 0.4,
                )
                for i in range(0 if job.ordered or goes_back else rng.choice([0, 1, 1, 2]))
            ]
            if self.places is not None:
                count = self.places.choice([1, 1, 2])
                sinks = [self._place(self.places, job, number) for number in range(0 if job.ordered else count)]
            self.oracle.sinks.of[job.name] = {sink.output: sink for sink in sinks}

    # What there is

    def _place(self, rng: Random, job: Job | Derived | Part, number: int) -> WorldSink:
        """A sink of an application that goes back."""
        kinds = [*(2 * places.GO_BACK), *(2 * (places.AGAIN,)), places.STUBBORN]
        kind = rng.choice([places.NEWEST] if self.goes_further else kinds)
        early = isinstance(job.windowing, SlidingWindow) and rng.random() < 0.4
        return WorldSink(job.name, f"o{number}", kind in places.RECORD, early, kind=kind)

    def _partitions(self) -> Partitions:
        rng = self.rng
        by_spark = self.theme not in ("ordered", *SEVERAL, *ORDERS) and rng.random() < 0.3
        by_spark = by_spark and self.engines is None
        by_column = rng.random() < 0.3
        # What Spark plans is one partition, unless a column tells its channels apart.
        most = 2 if self.theme in (*SEVERAL, *ORDERS) else 3
        names = [""] if by_spark and not by_column else [f"p{i}" for i in range(rng.randint(1, most))]
        messages = {name: self._messages(name) for name in names}
        positions = not by_spark or rng.random() < 0.4
        if by_spark:
            unplaced = 0.0 if positions and rng.random() < 0.5 else 0.3 if positions else 1.0
            messages = {
                name: [replace(m, broken=None, placed=rng.random() >= unplaced) for m in sent]
                for name, sent in messages.items()
            }
        channels = sorted({m.channel for sent in messages.values() for m in sent})
        there = rng.choice([0, 0, 1, 2]) / 3
        return Partitions(
            messages=messages,
            visible={name: int(len(messages[name]) * there) for name in (names if rng.random() < 0.7 else names[:1])},
            share=rng.choice([1.0, 1.0, 0.7]),
            lists_channels=not by_column and (by_spark or rng.random() < 0.6),
            ends=not by_spark and rng.random() < 0.5,
            vanishes=not by_spark and rng.random() < 0.2,
            chunk_rows=rng.choice([1, 4, 100]),
            by_column=by_column,
            known=tuple(name for name in channels if by_column and rng.random() < 0.3),
            mistaken=("nobody",) if by_column and rng.random() < 0.3 else (),
            by_spark=by_spark,
            positions=positions,
            leaves_out=by_spark and rng.random() < 0.4,
            # Not in all worlds, so that most are what they were.
            transactions=Random(f"transactions {self.seed}") if self.idle_after and self.seed % 4 == 3 else None,
        )

    def _messages(self, partition: str) -> list[Sent]:
        """Mostly within the allowed delay of the newest before them in their channel, some late, some bad."""
        rng = self.rng
        pace, gaps, odd = rng.choice([5, 20, 60]), rng.random() < 0.4, rng.random() < 0.6
        tops = {
            f"{partition}c{i}": rng.choice([-400, 0, 0, 50]) if self.base is None else self.base
            for i in range(rng.choice([1, 1, 2]))
        }
        sent = []
        most = 9 if self.theme in SEVERAL else 14
        more = 8 if self.theme == "ordered" else 20 if self.goes_further else 0
        for position in range(rng.randint(3, most) + more):
            channel = rng.choice(list(tops))
            top = tops[channel] + rng.randint(0, pace)
            if gaps and rng.random() < 0.1:
                top += rng.choice([300, 2000, 9000])
            behind = rng.choice([0, 0, rng.randint(0, self.delay), self.delay])
            timestamp: int | None = top - behind
            value: int | None = rng.randint(0, 99)
            broken = None
            kind = rng.random() if odd else 1.0
            if kind < 0.12 or (self.theme == "sleepy" and kind > 0.7):
                timestamp = top - self.delay - rng.choice([1, 50, 500])
            elif kind < 0.15:
                timestamp = None
            elif kind < 0.18:
                timestamp = rng.choice([10**9, 10**15, START + self.ahead + 100])
            elif kind < 0.22:
                value = UNFIT_VALUE
            elif kind < 0.26:
                value = None
            elif kind < 0.28:
                timestamp, broken = None, "no message"
            elif kind < 0.32:
                timestamp = top + rng.choice([201, 501, 700])
            if timestamp is not None and rng.random() < 0.3:
                timestamp = timestamp // self.interval * self.interval
            if timestamp is not None and timestamp < 10**6:
                tops[channel] = max(tops[channel], timestamp)
            k0 = rng.choice([None, 0, 1, 2, 3])
            k1 = rng.choice([None, "a", "b"])
            again = [m for m in self.copied if m.timestamp is not None and m.timestamp in range(top - 300, top + 300)]
            if again and rng.random() < 0.15 and broken is None:
                # It comes again, mostly as it was.
                first = rng.choice(again)
                moved = first.timestamp + rng.choice([0, 0, 0, 1, -30, 60])
                sent.append(replace(first, partition=partition, position=position, channel=channel, timestamp=moved))
                tops[channel] = max(tops[channel], moved)
                continue
            fits = broken is None and timestamp is not None and timestamp < 10**6 and value not in (None, UNFIT_VALUE)
            self.ids += 1
            id = self.ids if rng.random() < 0.7 else None
            sent.append(Sent(partition, position, timestamp, k0, k1, channel, value, broken, id=id))
            if fits and id is not None:
                self.copied.append(sent[-1])
        return sent

    @property
    def ahead(self) -> int:
        return 100_000

    def _job(self, number: int) -> Job:
        rng = self.rng
        source = rng.choice(list(self.sources))
        placed = all(m.placed for sent in self.sources[source].messages.values() for m in sent)
        # Messages without positions have no order.
        kind = rng.choice(["sum", "count", "struct", "map", *(["list", "list", "list"] if placed else [])])
        if kind == "list" or self.theme == "ordered":
            # By the seed and not by chance, so that all else in a world is as it was.
            kind = ORDERED[(self.seed + number) % len(ORDERED)]
        ways = {
            "sum": ["value", "batch", "message", "reads"],
            **{each: ["batch", "message", "reads"] for each in ORDERED},
        }
        way = rng.choice(ways.get(kind, ["batch", "message"]))
        columns = () if self.theme == "ordered" else rng.choice([(), (), ("k0",), ("k1",), ("k0", "k1")])
        unbounded = 0.0 if self.theme == "timely" else 0.5
        windowing = None if way == "reads" or rng.random() < unbounded else self._windowing()
        # Which of two copies of one time is the first, their positions say.
        horizon = (
            rng.choice([1, 50, 10_000]) if placed and rng.random() < (0.5 if self.theme == "timely" else 0.3) else None
        )
        if self.theme == READING:
            kind, way, columns, windowing, horizon = "sum", "reads", ("k1",), None, None
        if self.theme in ORDERS:
            columns = rng.choice([(), ("k0",), ("k1",), ("k1",), ("k0", "k1")])
        if self.theme in (*SEVERAL, *ORDERS) and way == "reads":
            # It may have one input only.
            way = "message"
        if self.theme == READING_WINDOWS:
            kind = rng.choice(["sum", *(["list", "map"] if placed else [])])
            way, columns, windowing = "reads", rng.choice([(), ("k1",)]), self._windowing()
        if self.goes_further:
            way = "message" if way == "reads" else way
            columns, windowing = rng.choice([("k0",), ("k1",)]), TimeToLive(rng.choice([1, 2, 3]) * self.interval)
        if self.theme == VERSIONS:
            windowing = None
        if self.theme == GRAPH and isinstance(windowing, TimeToLive):
            # It can feed nobody.
            windowing = None
        return Job(f"t{number}", source, kind, way, columns, not self.sources[source].by_column, windowing, horizon)

    def _in_order(self, job: Job, number: int) -> Job:
        """The task as one in which the messages of an ordered task wait, or as it is."""
        rng = self.own
        if number and rng.random() < 0.6:
            return job
        ttl = rng.choice([None, None, 2 * self.interval, 3 * self.interval, 150])
        of = Ordered(f"x{number}", job.keys, ttl, job.horizon, silent=rng.random() < 0.1)
        job = replace(job, name=of.parts[0])
        if rng.random() < 0.4:
            job = self.inputs.given(job, comes=False)
        return replace(job, kind=ordered.ROWS, way="value", windowing=None, ordered=of)

    def _joining(self, job: Job, number: int) -> Job:
        """The task as one in which the rows of a join wait, or as it is."""
        rng = self.own
        if number and rng.random() < 0.4:
            return job
        job = self.inputs.paired(replace(job, name=name_of_messages(f"x{number}")), (joined.LEFT, joined.RIGHT))
        before, after = (rng.choice([0, 7, 60, 150, 400]) for _ in range(2))
        bounds = rng.choice([None, Bounds(before, after, False), Bounds(before, after, True)])
        tolerance = rng.choice([None, before]) if bounds is None else None
        of = Joining(f"x{number}", job.keys, tolerance, sources=self.inputs.of[job.name], bounds=bounds)
        return replace(job, kind=ordered.ROWS, way="value", windowing=None, horizon=None, ordered=of)

    def _windowing(self) -> Windowing:
        rng = self.rng
        length = rng.choice([7, 20, 60, 150, 400])
        if rng.random() < 0.5:
            step = rng.choice([length, length, max(1, length // 5), length // 2 + 1, length + 13])
            return SlidingWindow(us(length), us(step), gaps=True)
        return SessionWindow(us(length)) if rng.random() < 0.5 else TimeToLive(length)

    def _terms(self) -> Terms:
        rng = self.rng
        of_inputs = self.inputs.terms() if self.theme in (*SEVERAL, *ORDERS) else {}
        if self.engines:
            # `Planner` says itself how long nothing has come of an input, which the oracle does not follow.
            of_inputs = {name: (delay, None) for name, (delay, _) in of_inputs.items()}
        keeping = self.keeping
        if keeping.grace:
            # Each start may say another. Not of the same random numbers, so that worlds without a grace stay what they were.
            grace = Random(f"grace {self.seed} {len(self.actors)}").choice([0, 50, 500])
            keeping = replace(keeping, grace=grace)
        return Terms(
            interval=rng.choice([10, 15, 40, *([self.interval] * (0 if self.theme == "restless" else 2))]),
            delay=self.delay if rng.random() < 0.8 else rng.choice([0, 50, 200]),
            idle_after=self.idle_after,
            ahead=self.ahead,
            jump=self.jump,
            believe=3,
            keeping=keeping,
            alignment=self.alignment,
            inputs=of_inputs,
        )

    # What happens

    def run(self) -> None:
        """Play the world.

        Raises:
            Violation: something that the contract promises is not so.
        """
        runs_io._verified.clear()
        blocks._indexes.clear()
        honest = keys.hash_keys

        def alike(columns: Any, rows: int) -> Any:
            return honest(columns, rows) & np.uint64(0xF << 60)

        with (
            checked_looks(self),
            mock.patch.object(keys, "hash_keys", alike if self.few_hashes else honest),
            mock.patch.object(compaction, "EAGER", (self.growth, 2)),
            mock.patch.object(compaction, "LAZY", (self.growth, 3)),
            mock.patch.object(compaction, "MANY", 4),
            mock.patch.object(blocks, "BLOCK", 48 << self.seed % 4),
            mock.patch.multiple(few, EVERY=1, MOST_DISTINCT=1, ROWS_OF_A_SUM=0.25),
            mock.patch.multiple(fold, SLICE=5, SLICE_BYTES=400),
            mock.patch.object(panes, "WIDE", self.wide),
            mock.patch.object(in_order, "MESSAGES_AT_A_TIME", 2 + self.seed % 3),
            # Some steps write many runs, some also several of the same keys, and some keep all in memory.
            mock.patch.multiple(in_place, ROOM=self.seed % 3 * 400, MOST_BYTES=self.seed % 2 * 2000),
            rows_in_entries(self.seed),
            mock.patch.object(collect, "LEFTOVER_AGE", LEFTOVER_AGE),
            # Files are large at once, and leave the entry, or never.
            mock.patch.multiple(late_rows, MANY=2, LARGE=self.seed % 2 << 20),
            mock.patch.object(positions, "MOST_SPANS", 3),
            mock.patch.object(lists, "TAIL", 30),
            mock.patch.object(codec, "LARGE", self.seed % 3 * 1000),
            mock.patch.object(turn, "micro_batch", engines.noting(self.oracle, turn.micro_batch)),
            mock.patch.object(turns, "new_id", self.new_id),
        ):
            self._play()
            self._audit()

    def _play(self) -> None:
        self._launch()
        while True:
            self.step += 1
            must(self.step < MOST_STEPS, "every world comes to an end", step=self.step)
            self.now += self.rng.randint(0, self.tick)
            if self.delayed and self.rng.random() < 0.05:
                self._late_arrival()
            newest = self.actors[-1]
            if newest.over and not self._has_ended(newest) and self.rng.random() < 0.3:
                self._launch()
            self.threads = [thread for thread in self.threads if not thread.done]
            if self.late is not None:
                self.late.land(self)
            ready = [t for t in self.threads if t.wake <= self.step and all(w.done for w in t.waiting)]
            if ready:
                self._disturb()
                self._switch(self.rng.choice(ready))
            elif newest.over and not self.threads:
                if self._has_ended(newest):
                    break
            elif any(t.wake > self.step for t in self.threads):
                self._disturb()
            else:
                must(newest.over, "no driver waits for ever", threads=len(self.threads))
        while self.delayed:
            self._late_arrival()

    def _has_ended(self, newest: Actor) -> bool:
        """Whether the last driver has done its work, and none that overslept its own start has taken over from it."""
        entry = self.oracle.newest
        return newest.finished and newest.is_last and entry is not None and entry.epoch == newest.epoch

    def _switch(self, thread: Thread) -> None:
        if not thread.done:
            thread.light.switch()
        if thread.done and not thread.is_worker and not thread.actor.over:
            self._driver_thread_done(thread)

    def _driver_thread_done(self, thread: Thread) -> None:
        actor = thread.actor
        if thread.error is not None:
            self._check_error(actor, thread.error)
            self._kill(actor)
        elif thread is actor.threads[0]:
            actor.over = actor.finished = True
            self.note(f"{actor.number} finishes")

    def _check_error(self, actor: Actor, error: BaseException) -> None:
        """A driver gives up only for a reason."""
        self.note(f"{actor.number} stops: {type(error).__name__}: {error}")
        newest = self.oracle.newest
        superseded = newest is not None and newest.epoch > actor.epoch
        if isinstance(error, FencedError):
            must(superseded, "only a superseded driver is fenced", error=error)
        elif isinstance(error, DisagreementError):
            must(superseded or actor.sabotaged, "shards agree", error=error)
        elif isinstance(error, CommitUnknownError):
            # Who sleeps until the entry after its own was collected can't tell any more what became of it.
            must(self.faulty or superseded or self.oracle.has_lost_numbers, "no error without a fault", error=error)
        elif isinstance(error, StoreUnavailableError):
            must(self.faulty or superseded, "no error without a fault", error=error)
        elif isinstance(error, DamagedError) and "is gone" not in str(error):
            must(any(path in str(error) for path in self.damages), "damage is named", error=error)
            self.damaged = None
        elif isinstance(error, (DamagedError, FileNotFoundError, ExistsError)):
            # A name that its own file has taken, which has gone since, is taken by nobody knows whom.
            must(superseded, "what is needed is not collected", error=error)
        elif isinstance(error, InvalidInputError) and "has what it was before" in str(error):
            # Another driver has built the task again, since this one was told where its values go.
            known = (REBUILT, FLOWS, *GRAPHS, *SEVERAL)
            must(
                self.theme in known or self.places is not None, "only what was built again has new outputs", error=error
            )
        elif self.theme == BACKFILL and isinstance(error, InvalidInputError) and self.inputs.lacks_history(newest):
            is_told = any(
                words in str(error) for words in (f"had the input {inputs.HISTORY!r}", "was read with from_(")
            )
            must(is_told, "who leaves out what is to be read again is told", error=error)
            self.oracle.happened["history was missed"] += 1
        elif not isinstance(error, InvalidInputError) or actor is self.actors[-1]:
            raise error

    def _launch(self) -> None:
        number = len(self.actors)
        is_last = number + 1 >= self.starts
        if is_last:
            for partitions in self.sources.values():
                partitions.share = 1.0
        if number + 1 > self.starts:
            self.fault_rate, self.lag = 0.0, 0
        rng = self.rng
        stay = 0.9
        if self.theme == "restless" and number:
            # All take part at first, and one goes on without the others.
            stay = rng.choice([0.0, 0.0, 1.0])
        elif self.theme in (FLOWS, *GRAPHS, *SEVERAL):
            stay = rng.choice([0.4, 0.7, 1.0])
        jobs = [job for job in self.jobs if is_last or rng.random() < stay] or self.jobs[:1]
        # History is for those that begin with it.
        jobs = [job for job in self.jobs if job in jobs or self.theme == BACKFILL]
        # What feeds one of them is there, too.
        jobs = [job for job in jobs if not job.fed or any(inputs.is_of(job.fed.task, each) for each in jobs)]
        jobs = jobs or [job for job in self.jobs if not job.fed][:1]
        closes = is_last or rng.random() < 0.3
        shards = self.actors[-1].shards if self.actors and rng.random() < 0.4 else rng.randint(1, 3)
        if self.part_rate and self.own.random() < 0.2:
            jobs = self.own.sample(jobs, len(jobs))
        actor = Actor(number, self, self._terms(), shards, jobs, closes, is_last)
        stays = [d for d in self.derived if is_last or _comes_along(d) or self.own.random() < 0.7]
        if self.theme == VERSIONS and number:
            self._change_code()
            stays = [derived for derived in self.derived if derived.name in {each.name for each in stays}]
        actor.derived = graphs.with_upstream(stays, [job.name for job in jobs])
        fed = [job.fed for job in self.jobs if job.fed]
        fed += [source for derived in self.derived for source in derived.inputs.values()]
        if self.theme in (EVERY, *ORDERS, VERSIONS) or any(map(graphs.every_in, fed)):
            # All that tasks are fed every so often is a multiple of it.
            actor.interval = self.interval // self.own.choice([1, 1, 2])
            interval, actor.apart = graphs.every_of(actor.interval, jobs, actor.derived)
            actor.terms = replace(actor.terms, interval=interval)
        if self.engines:
            actor.engine = self.engines.draw(self.actors[-1].engine.planner if self.actors else None)
        actor.fate = rng.choice(["killed", "killed", "taken over", "taken over", "lives"])
        if self.theme == "sleepy":
            actor.fate = "taken over" if self.doze_rate or number != 1 else "lives"
        actor.fate_step = self.step + rng.choice([rng.randint(0, 80), rng.randint(40, 500)])
        self.actors.append(actor)
        is_alone = not self.delayed and all(thread.done or thread.is_worker for thread in self.threads)
        if is_alone:
            self.inputs.pass_bound(self.oracle.newest)
        actor.inputs = self.inputs.at_start(number, is_alone)
        names = [job.name for job in (*jobs, *actor.derived)]
        self.note(f"{number} starts: shards={actor.shards} {actor.terms} {names}")
        if actor.inputs:
            self.note(f"{number} has inputs {actor.inputs} {dict(actor.terms.inputs)}")
        self._damage(actor)
        self._spawn(actor, lambda: self._drive(actor), is_worker=False)

    def _change_code(self) -> None:
        """Let what some tasks make of a row be another from this start on, or what it was before."""
        for place, derived in enumerate(self.derived):
            if isinstance(derived, Derived) and self.own.random() < 0.3:
                self.derived[place] = replace(derived, version=self.own.choice([0, 1, 2]))

    def _spawn(self, actor: Actor, body: Callable[[], Any], is_worker: bool) -> Thread:
        thread = Thread(actor, body, is_worker)
        thread.light = greenlet(thread.run, parent=self.hub)
        thread.light.thread = thread
        actor.threads.append(thread)
        self.threads.append(thread)
        return thread

    def _join(self, *threads: Thread) -> None:
        me = getcurrent().thread
        me.waiting = list(threads)
        self.hub.switch()
        me.waiting = []

    def pause(self, pending: Callable[[], Any] | None) -> None:
        """Let the others go first. Who is killed meanwhile may still have sent what is pending."""
        me = getcurrent().thread
        me.pending = pending
        self.hub.switch()
        me.pending = None

    def fate(self) -> str | None:
        if self.fault_rate and self.rng.random() < self.fault_rate:
            return self.rng.choice(["fails", "answer lost", "answer lost", "asked again"])
        return None

    def as_listed(self, folder: str, names: list[str]) -> list[str]:
        """What a listing shows of what there is: not always what is new."""
        if not self.lag or self.rng.random() < 0.3:
            return names
        shown = [name for name in names if self.made[f"{folder}/{name}"] <= self.now - self.lag]
        if len(shown) < len(names):
            self.note(f"a listing of {folder} is late")
        return shown

    def as_read(self, actor: Actor, path: str, data: Any) -> Any:
        """What a driver reads of a file that may have been damaged before it started."""
        if self.damaged is not None and self.damaged[1] == path and actor.number >= self.damaged[0]:
            return pa.py_buffer(self.damaged[2])
        return data

    def _damage(self, actor: Actor) -> None:
        """Flip a bit of a file that who starts now may read; whoever stops for it has it mended."""
        newest = self.oracle.newest
        paths = sorted(newest.files()) if newest else []
        if actor.is_last:
            self.damaged = None
        elif paths and self.damaged is None and self.rng.random() < self.damage_rate:
            path = self.rng.choice(paths)
            self.damaged = actor.number, path, flipped(self.rng, bytes(self.disk.files[path]))
            self.damages.add(path)
            self.note(f"{path} is damaged")

    def _made(self, path: str) -> None:
        self.made[path] = self.now
        self.oracle.hear(path)

    def _gone(self, path: str) -> None:
        if path in self.disk.torn:
            age = (self.now - self.disk.torn[path]) / 1e6
            must(age > LEFTOVER_AGE, "what may have a writer is not deleted", path=path, age=age)
        else:
            self.oracle.gone(path)

    def _disturb(self) -> None:
        actor, rng = self.actors[-1], self.rng
        if actor.over or actor.is_last:
            return
        if self.step >= actor.fate_step and actor.fate == "killed":
            self.note(f"{actor.number} is killed")
            self._kill(actor)
        elif self.step >= actor.fate_step and actor.fate == "taken over":
            if rng.random() < (0.9 if self.theme == "sleepy" else 0.4):
                self._sleep(actor, rng.choice([50, 300, 3000]))
            self._launch()
        elif rng.random() < self.sleep_rate:
            self._sleep(actor, rng.choice([10, 100]))

    def _sleep(self, actor: Actor, steps: int) -> None:
        for thread in actor.threads:
            if not thread.done and self.rng.random() < 0.8:
                thread.wake = max(thread.wake, self.step + steps)

    def _kill(self, actor: Actor) -> None:
        """The driver dies now; its workers now, soon, or when they have done their work."""
        actor.over = True
        for thread in actor.threads:
            if thread.done or (thread.is_worker and self.rng.random() < 0.5):
                if not thread.done:
                    thread.wake = self.step + self.rng.choice([0, 30, 500])
                continue
            self._end(thread)
        if self.engines is not None and self.engines.rng.random() < 0.5:
            self.engines.happened["a power cut took files"] += self.disk.lose(actor, self.engines.rng)

    def _end(self, thread: Thread) -> None:
        """End a process, or one of its threads, unless it is done. It may still have sent what is pending."""
        if thread.done:
            return
        if thread.pending is not None and self.rng.random() < 0.5:
            self.delayed.append(thread.pending)
        if thread.light:
            thread.light.throw(Crash)
        thread.done, thread.error = True, thread.error or Crash()

    def _late_arrival(self) -> None:
        """What a killed process had sent reaches the store."""
        act = self.delayed.pop(self.rng.randrange(len(self.delayed)))
        self.note("something arrives late")
        with suppress(ExistsError, FencedError):
            act()

    def note(self, text: str) -> None:
        self.trace.append(f"{self.step} {text}")

    def new_id(self) -> str:
        self.ids += 1
        return f"{self.ids:04x}"

    # What a driver does

    def _drive(self, actor: Actor) -> None:
        terms, writer = actor.terms, f"d{actor.number}"
        # What one has verified says nothing to another.
        files = StagedFiles(f"sim://{actor.number}", disk=self.disk, stage=actor, lists_late=self.lag > 0)
        settings = Settings(
            terms.interval, terms.delay, terms.idle_after, terms.ahead, terms.jump, terms.believe, terms.alignment
        )
        plans: dict[str, Plan] = {}
        for job in actor.jobs:
            channel = None if job.by_partition else "c"
            task = job.task(self.oracle.reader(job.name, writer))
            emits = self.rng.random() < 0.4 and job.ordered is None
            of = replace(settings, every=actor.apart.get(job.name))
            if job.inputs:
                plan = inputs.plan_of(job, task, self.inputs, actor, files, of, emits)
            else:
                plan = core.plan_of(
                    task,
                    SCHEMA,
                    application=APPLICATION,
                    files=files,
                    channel=channel,
                    settings=of,
                    shards=actor.shards,
                    emits=emits,
                )
            plans[job.name] = replace(plan, outputs=self._outputs(actor, job))
        # All threads of a driver share it.
        log = Log(files, APPLICATION, lambda: self.now, MOST_KNOWN)
        rebuilt = self._rebuilt(actor)
        for name in rebuilt.keys() & plans.keys():
            plans[name] = replace(plans[name], outputs=tuple(rebuilt[name]))
        given = sorted(self._given_together(actor.jobs), key=lambda jobs: bool(jobs[0].fed))
        wanted = [FlowPlan(tuple(plans[job.name] for job in jobs)) for jobs in given]

        def outputs_of(derived: Derived | Part) -> tuple[str, ...]:
            return tuple(rebuilt[derived.name]) if derived.name in rebuilt else self._outputs(actor, derived)

        derived = graphs.plans_of(actor.derived, plans, outputs_of, actor.apart)
        wanted = graphs.in_their_order([*wanted, *graphs.flows_of(derived)])
        entry, wanted = self._start(actor, log, wanted, self._reset(actor, rebuilt), rebuilt)
        plans = {name: plan for flow in wanted for name, plan in flow.by_name.items()}
        actor.epoch = entry.epoch
        actor.workers_log = Log(files, APPLICATION)
        # Those that have to catch up first are fed on their own.
        flows = [flow.of(entry.tasks_of(id)) for id in entry.flows for flow in wanted if id in flow.by_name]
        self.note(f"{actor.number} feeds {[[*flow.by_name] for flow in flows]}")
        fed = [flow for flow in flows if not flow.is_derived]
        actor.reading |= {flow.id for flow in fed}
        driver = engines.driver_of(self, actor, log, wanted, entry)
        if driver:
            threads = [self._spawn(actor, lambda: engines.read_by_driver(self, actor, log, driver), False)]
        else:
            threads = [self._spawn(actor, lambda f=flow: self._read(actor, log, f, entry), False) for flow in fed]
        if self.pauses is not None:
            self._spawn(actor, lambda: self.pauses.follow(self, files, APPLICATION), True)
        is_fed = any(flow.first.upstream for flow in flows) and driver is None
        steppers = [self._spawn(actor, lambda: self._take_steps(actor, log, plans), False)] if is_fed else []
        sinks = [self.oracle.sinks.of[name][output] for name, plan in plans.items() for output in plan.outputs]
        deliveries = [
            self._spawn(actor, lambda s=sink: self._deliver(actor, log, plans[s.task], s), False) for sink in sinks
        ]
        self._join(*threads)
        goes_on = all(partitions.goes_on for partitions in self.sources.values())
        if (derived or self.theme in SEVERAL) and actor.is_last and goes_on and driver is None:
            self._go_on(actor, log, fed, entry)
        if actor.closes and driver:
            engines.drain(self, actor, log, driver)
        elif actor.closes:
            self.oracle.claim(commits.close(log, actor.epoch, now=self.now, keeping=terms.keeping))
        actor.has_closed = True
        self._join(*steppers)
        actor.has_read = True
        self._join(*deliveries)

    def _given_together(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """The tasks that are given one source object: all of a source, but where some are given another that is equal."""
        given: dict[tuple[str, bool], list[Job]] = {}
        for job in jobs:
            given.setdefault((job.source, self.own.random() < self.part_rate / 2), []).append(job)
        return list(given.values())

    def _reset(self, actor: Actor, rebuilt: Collection[str]) -> set[str]:
        """The tasks that a start lets begin from zero though it need not."""
        can = self.theme in (*GRAPHS, INPUTS) or (self.places is not None and self.theme != BACKFILL)
        if not can or not actor.number or self.own.random() < 0.8:
            return set()
        known = self.oracle.newest.tasks if self.oracle.newest else {}
        names = [job.name for job in (*actor.jobs, *actor.derived) if job.name in known and job.name not in rebuilt]
        return {*self.oracle.orders.whole([self.own.choice(names)])} if names else set()

    def _rebuilt(self, actor: Actor) -> dict[str, dict[str, WorldSink]]:
        """The tasks that a start builds again, and where the values of each go from then on."""
        themes = (FLOWS, GRAPH, EVERY, *SEVERAL, *ORDERS)
        rate = {REBUILT: 0.6, VERSIONS: 0.1, **dict.fromkeys(themes, 0.2)}.get(self.theme, 0.2 if self.places else None)
        names = [job.name for job in actor.jobs]
        if rate is None or not names or not actor.number or self.rng.random() >= rate:
            return {}
        whole = self.oracle.orders.whole([self.rng.choice(names)])
        self.note(f"{actor.number} builds {', '.join(whole)} again")
        return {name: self._fresh(actor, name) for name in whole}

    def _outputs(self, actor: Actor, job: Job | Derived | Part) -> tuple[str, ...]:
        """The outputs that a start gives a task. Behind nobody's back but a driver's, a sink may lose what it has."""
        outputs = []
        for sink in self.oracle.sinks.of[job.name].values():
            if sink.is_retired:
                continue
            stays = 0.5 if self.theme in ("restless", *ORDERS) or self.places else 0.8
            if actor.is_last or self.rng.random() < stays:
                outputs.append(sink.output)
            alone = all(thread.actor is actor for thread in self.threads) and not self.delayed
            if alone and sink.keeps_record and self.rng.random() < 0.1:
                self.note(f"{sink.task} {sink.output} loses all")
                sink.lose_all()
        return tuple(outputs)

    def _deliver(self, actor: Actor, log: Log, plan: Plan, sink: WorldSink) -> None:
        """Give a sink the values at each clock, until all is read and delivered."""
        timelines: list[int] = []
        if self.places is not None:
            # Some sinks are down for long.
            self._nap(self.places.choice([0, 0, 0, 300, 1000]))

        def opened(timeline: int) -> int | None:
            timelines.append(timeline)
            return sink.last(actor)

        def go_back(then: Entry | None, clock: int) -> None:
            values = {} if then is None else self._values(plan, sink, then, Due(clock, BEGINNING, BEGINNING))

            def act() -> None:
                self.oracle.go_back(sink, actor.epoch, timelines[-1], clock, then, values)

            actor.perform("write", f"{sink.task} {sink.output} back to {clock}", act)

        giver = Giver(
            log,
            sink.task,
            sink.output,
            opened,
            lambda entry, due: self._write(actor, plan, sink, entry, due),
            lambda: self.now,
            go_back=go_back if sink.kind in places.GO_BACK else None,
        )
        while True:
            # Before the entry is looked at: the last one may come in between.
            has_read = actor.has_read
            try:
                if giver.give_next(actor.epoch, 0.0 if has_read else RECENT):
                    continue
                if has_read and (actor.closes or self.rng.random() < 0.1):
                    return
                self._nap(self.rng.choice([1, 10, 40]))
            except (StoreUnavailableError, CommitUnknownError, ExistsError):
                # A sink that fails, or a record that does, is tried again, and nothing else waits for it.
                if actor.has_read and not actor.closes:
                    return
                self.pause(None)

    def _write(self, actor: Actor, plan: Plan, sink: WorldSink, entry: Entry, due: Due) -> None:
        values = self._values(plan, sink, entry, due)
        if sink.kind == places.PARTS:
            what, keyed = f"{sink.task} {sink.output} {due.clock} half", self.oracle.sinks.keyed(sink, values)
            actor.perform("write", what, lambda: sink.write_half(entry.timeline, due.clock, keyed))
            # A rewind may come before the other half.
            self._nap(Random(f"half {self.step}").choice([0, 0, 100, 500]))

        def act() -> None:
            self.oracle.write(sink, entry, due, values, actor.epoch)

        if self.late is not None and sink.kind in places.RECORD:
            self.late.hold(self, sink, entry.timeline, due.clock, act)
        actor.perform("write", f"{sink.task} {sink.output} {due.clock}", act)

    def _values(self, plan: Plan, sink: WorldSink, entry: Entry, due: Due) -> dict[Any, Any]:
        """What a sink is given of a task."""
        since = Since(due.since, early=sink.early, recent=due.recent)
        state = state_at(plan.files, APPLICATION, entry, sink.task, plan.layout, due.clock, since)
        values: dict[Any, Any] = {}
        parts = self.rng.randint(1, 3)
        for table in [state.part(number, parts).read() for number in range(parts)]:
            found = self.oracle.given(sink.task, table, plan.layout)
            is_once = len(found) == len(table) and not found.keys() & values.keys()
            must(is_once, "a key is given once", found=found, values=values)
            values.update(found)
        return values

    def _opened(
        self, actor: Actor, log: Log, flow: FlowPlan, rows: int
    ) -> tuple[WorldSource | Inputs, Partitions | Several]:
        """The source of a flow as the log says it was left, or several as one, and its partitions."""
        source, partitions = self._source(flow, rows)
        known = self._newest(actor, log).flows[flow.id]
        open_source(source, lists.read_journals(log.files, known), known.source.known_positions)
        for input, each in source.sources.items() if isinstance(source, Inputs) else [("", source)]:
            assert isinstance(each, WorldSource)
            self.oracle.opened(flow, actor.epoch, input, *each.opened)
        return source, partitions

    def _source(self, flow: FlowPlan, rows: int) -> tuple[WorldSource | Inputs, Partitions | Several]:
        """The source of a flow, not opened, or several as one, and its partitions."""
        partitions, sources = self.oracle.judges[flow.id].partitions, dict[str, WorldSource]()
        for input in flow.first.source_inputs:
            channel, tells = flow.rows(input)[0].channel, self.seed % 2 == 1
            sources[input] = WorldSource(partitions.of(input), self.rng, rows, self.skew, channel, tells=tells)
        source = Inputs(sources) if flow.first.has_names else sources[""]
        return source, partitions.some(sources) if isinstance(partitions, Several) else partitions

    def _start(
        self,
        actor: Actor,
        log: Log,
        wanted: Sequence[FlowPlan],
        reset: set[str],
        rebuilt: dict[str, dict[str, WorldSink]],
    ) -> tuple[Entry, Sequence[FlowPlan]]:
        writer, before, given = f"d{actor.number}", self.oracle.newest, wanted
        try:
            table = fates.decide(before, wanted, fates.Words(reset, rebuilt.keys()))
            if table.names(fates.REFUSED):
                # A driver looks before it has new outputs.
                raise InvalidInputError(f"The tasks {table.names(fates.REFUSED)} can't go on.")
            fresh = {name: self._fresh(actor, name) for name in table.names(fates.REBUILT) if name not in rebuilt}
            wanted = [replace(flow, tasks=tuple(self._given(plan, fresh) for plan in flow.tasks)) for flow in wanted]
            self.oracle.starting[writer] = actor.terms, wanted, reset, rebuilt, fresh
            entry = takeover.take_over(
                log,
                wanted,
                interval=actor.terms.interval,
                shards=actor.shards,
                writer=writer,
                now=self.now,
                reset=reset,
                rebuild=rebuilt.keys(),
            )
        except InvalidInputError:
            names = [plan.name for flow in wanted for plan in flow.tasks]
            named = {*reset, *rebuilt}
            lost = self.oracle.lost(names, self.oracle.newest, named)
            self.oracle.graphs.happened["would lose what it has"] += bool(lost)
            refused = (self.oracle.left_behind(names, self.oracle.newest) | lost) - named
            # Who refuses by an entry that was the newest, as far as its listing goes, may be asked again.
            if not refused and self.oracle.newest is before and not self.lag:
                raise
            return self._start(actor, log, given, reset | refused, rebuilt)
        self.oracle.claim(entry)
        for partitions in self.sources.values():
            if partitions.mistaken and self.rng.random() < 0.5:
                partitions.mistaken = ()
        return entry, wanted

    def _fresh(self, actor: Actor, name: str) -> dict[str, WorldSink]:
        """Where the values of a task go once it is built again."""
        sinks = (sink for sink in self.oracle.sinks.of[name].values() if not sink.is_retired)
        fresh = [WorldSink(name, f"{s.output}.{actor.number}", s.keeps_record, s.early, kind=s.kind) for s in sinks]
        return {sink.output: sink for sink in fresh}

    def _given(self, plan: Plan, fresh: Mapping[str, Mapping[str, WorldSink]]) -> Plan:
        """The plan of a task with its new outputs, if it has any."""
        return replace(plan, outputs=tuple(fresh[plan.name])) if plan.name in fresh else plan

    def _read(self, actor: Actor, log: Log, flow: FlowPlan, started: Entry) -> None:
        """Read a flow's source to the end of what there is, and take the steps along that change the flow."""
        self._read_on(actor, log, flow, started)
        actor.reading.discard(flow.id)

    def _read_on(self, actor: Actor, log: Log, flow: FlowPlan, started: Entry) -> None:
        if actor.engine.planner == engines.LOCAL:
            return engines.read_by_planner(self, actor, log, flow)
        rng, partitions = self.rng, self.oracle.judges[flow.id].partitions
        rows = rng.choice([2, self.most_rows])
        source: WorldSource | Stream | Inputs
        if partitions.by_spark:
            source = Stream(
                partitions, rng, rows, self.skew, flow.first.only.channel, started.flows[flow.id].progress.clock
            )
        else:
            source, partitions = self._opened(actor, log, flow, rows)
        flushed, collector = False, Collector(log)
        while True:
            if rng.random() < 0.7:
                partitions.grow(rng, self.most_rows)
            start, reach = self._reach(actor, log, flow, source, partitions)
            if reach.ends == start and rng.random() < 0.9:
                if partitions.is_complete and start == partitions.visible:
                    if flushed or rng.random() < 0.5:
                        return
                    flushed = True
                else:
                    self.now += self.tick
                    continue
            self._micro_batch(actor, log, flow, source, started.flows[flow.id], start, reach)
            if isinstance(source, Stream):
                source.start = dict(reach.ends)
            self._collect(actor, collector)
            if self.rewinds and self._can_go_back and self.people.random() < (0.9 if self.inputs.is_over else 0.3):
                self.rewinds -= 1
                self._spawn(actor, self._go_back(actor), True)
            if self.branches is not None and self.people.random() < 0.5:
                self._spawn(actor, self.people.choice([self._branch, self._branch, self._give_name])(actor), True)
            if self.people.random() < self.look_rate:
                self._spawn(actor, self.people.choice([self._look_back, self._look_back, self._give_name])(actor), True)

    def _collect(self, actor: Actor, collector: Collector) -> None:
        if self.rng.random() < self.collect_rate:
            getcurrent().thread.lists = 0
            for path in collector.collect(actor.epoch, now=self.now, keeping=actor.terms.keeping):
                self.note(f"{actor.number} collected {path}")
            getcurrent().thread.lists = 9

    @property
    def _can_go_back(self) -> bool:
        """Whether an application may go back now. One of joins has something to go back to then."""
        newest = self.oracle.newest
        most = {JOINS: 2}.get(self.theme, 3 if self.goes_further else 0)
        return not most or (newest is not None and len(newest.kept) > most)

    def _look_back(self, actor: Actor) -> Callable[[], None]:
        """What somebody does who reads all tasks at an old clock, and knows nothing of any driver."""
        files = StagedFiles(f"sim://{actor.number}", disk=self.disk, stage=actor, lists_late=self.lag > 0)

        def look() -> None:
            clock = self.people.choice([*self.oracle.kept.visited] or [0])
            entry = kept_entries.entry_at(Log(files, APPLICATION), clock)
            for name in entry.tasks if entry else ():
                self._look_at(files, entry, clock, name, lambda: None)

        return lambda: self._as_people_do(look)

    def _look_at(self, files: Files, entry: Entry, clock: int, name: str, meanwhile: Callable[[], None]) -> None:
        """Read a task at an old clock by an entry. Between finding it and reading it, something else happens."""
        if clock not in entry.readable:
            return meanwhile()
        try:
            self.oracle.kept.check(entry, files, clock, name, meanwhile)
        except (InvalidInputError, FileNotFoundError) as error:
            newest = self.oracle.newest
            assert newest is not None
            is_there = kept_entries.is_kept(newest.kept, clock, entry.number)
            must(not is_there, "a clock that is kept can be read", clock=clock, task=name, error=error)

    def _give_name(self, actor: Actor) -> Callable[[], None]:
        """What somebody does who keeps a clock by a name, or does so no longer."""
        files = StagedFiles(f"sim://{actor.number}", disk=self.disk, stage=actor, lists_late=self.lag > 0)

        def give() -> None:
            newest = self.oracle.newest
            known = names_of(newest.kept) if newest else {}
            if known and self.people.random() < 0.3:
                clock = naming.release(Log(files, APPLICATION), self.people.choice(sorted(known)), self.now)
                self.note(f"{clock} is released")
            elif newest and newest.kept:
                name, at = f"n{self.people.randint(0, 3)}", self.people.choice([*newest.kept])
                clock = naming.keep(Log(files, APPLICATION), at, name, self.now)
                self.note(f"{clock} is kept as {name}")

        return lambda: self._as_people_do(give)

    def _branch(self, actor: Actor) -> Callable[[], None]:
        """What somebody does who branches the application at a kept clock, to another store."""
        assert self.branches is not None
        branches, url, pace = self.branches, f"sim://{actor.number}", self.people.choice([0, 20, 200, 800])

        def wait() -> None:
            self._nap(pace)
            if self.people.random() < 0.05:
                self.note("a branch is broken off")
                raise Crash

        far = FarFiles(url, disk=branches.disk, stage=actor, wait=wait)
        files = StagedFiles(url, disk=self.disk, stage=actor, lists_late=self.lag > 0)

        def make() -> None:
            newest = self.oracle.newest
            if newest is None or not newest.kept:
                return
            clock, name = self.people.choice([*newest.kept]), self.people.choice(branches.names)
            try:
                entry = branches.make(Log(files, APPLICATION), far, name, newest, clock, self.now, self.new_id)
                self.note(f"{name} is a branch at {entry.clock}")
            except InvalidInputError as error:
                if "was released" in str(error):
                    branches.happened["released"] += 1
                    must(
                        clock not in self.oracle.newest.kept,
                        "only a clock that has gone is called released",
                        clock=clock,
                    )
                raise

        return lambda: self._as_people_do(make)

    def _go_back(self, actor: Actor) -> Callable[[], None]:
        """What somebody does who takes the application back to a kept clock, whoever is running it."""
        files = StagedFiles(f"sim://{actor.number}", disk=self.disk, stage=actor, lists_late=self.lag > 0)

        def go(place: int | None = None) -> None:
            kept = self._kept_below_sinks() or [0]
            if place is not None:
                # Of those below what some sink has, the newest or the oldest half.
                half = len(kept) // 2
                kept = kept[half:] if place else kept[: half + 1]
            # Where there is history, to the first clock half of the time.
            kept = kept[:1] if self.theme == BACKFILL and self.people.random() < 0.5 else kept
            to = self.people.choice(kept) + self.people.choice([0, 0, 3, -3])
            log = Log(files, APPLICATION)
            planned = rewind.plan(log, to, self._action)
            self._nap(self.people.choice([0, 0, 0, 50]))
            for i in range(2):
                entry = rewind.rewind(log, planned, writer=f"r{self.rewinds} {i}", now=self.now)
                self.oracle.claim(entry)
                self.note(f"back at {entry.clock}")
                if self.inputs.bounds:
                    self.oracle.happened[
                        "back in history" if self.inputs.is_in_history(entry) else "back behind it"
                    ] += 1
                must(
                    not i and entry.epoch == planned.epoch + 1,
                    "a rewind is made once, of what was planned",
                    plan=planned,
                )
                # Who was killed meanwhile, and does not know that it is done, does it again.
                if self.people.random() < 0.5:
                    break

        def look() -> None:
            """Open the newest clock, go back below it, and read it when the application may have come there again."""
            newest = Log(files, APPLICATION).newest()
            if newest is None or self.people.random() < 0.3:
                return go()

            def meanwhile() -> None:
                self._as_people_do(go)
                self._nap(self.people.choice([200, 1000]))

            self._look_at(files, newest, newest.clock, self.people.choice([*newest.tasks]), meanwhile)

        def go_further() -> None:
            """Go back, and when sinks may have followed, go back again."""
            for place in (1, 0):
                self._as_people_do(lambda place=place: go(place))
                self._nap(self.people.choice([50, 200, 500]))

        return go_further if self.goes_further else lambda: self._as_people_do(look)

    def _kept_below_sinks(self) -> list[int]:
        """The kept clocks; where outputs are to go back, those below what some sink has, once there are any."""
        for _ in range(20 if self.places is not None else 0):
            furthest = max(sink.applied for sinks in self.oracle.sinks.of.values() for sink in sinks.values())
            if below := [clock for clock in self._kept() if clock < furthest]:
                return below
            self._nap(20)
        return self._kept()

    def _kept(self) -> list[int]:
        return [*self.oracle.newest.kept] if self.oracle.newest else []

    def _action(self, task: str, output: str, more: str) -> rewind.Choice:
        """What an output is to do at a rewind."""
        kind = self.oracle.sinks.of[task][output].kind
        if kind in places.GO_BACK:
            return rewind.Choice(rewind.RETRACT)
        if kind == places.AGAIN:
            return rewind.Choice(rewind.AGAIN)
        raise InvalidInputError(f"task={task}: sink={output!r} {more}.")

    def _as_people_do(self, act: Callable[[], None]) -> None:
        """Do something, and give up if it does not work for a reason."""
        try:
            act()
        except (StoreUnavailableError, CommitUnknownError, FencedError, ExistsError) as error:
            must(self.faulty or not isinstance(error, StoreUnavailableError), "no error without a fault", error=error)
        except InvalidInputError as error:
            self.note(f"nobody can: {error}")
        except DamagedError as error:
            must(any(path in str(error) for path in self.damages), "damage is named", error=error)

    def _go_on(self, actor: Actor, log: Log, flows: Sequence[FlowPlan], started: Entry) -> None:
        """Let all sources go on for a few rounds: by then the global clock has moved, wherever all tasks stood."""
        before = self._newest(actor, log)
        stamps = [m.timestamp for p in self.sources.values() for sent in p.messages.values() for m in sent]
        clocks = [before.clock, *(flow.progress.clock for flow in before.flows.values())]
        newest = max([0, *(stamp for stamp in stamps if stamp is not None and stamp <= self.now + self.ahead), *clocks])
        actor.reading |= {flow.id for flow in flows}
        while actor.stepping in actor.reading:
            self._nap(5)
        for i in range(1, ROUNDS + 1):
            self.now = max(self.now, newest + i * ROUND)
            for partitions in self.sources.values():
                partitions.go_on(self.own, newest + i * ROUND, 3 if self.jump else 1)
            for several in self.inputs.of.values():
                several.look_again()
            self._join(
                *[self._spawn(actor, lambda f=flow: self._read_on(actor, log, f, started), False) for flow in flows]
            )
        actor.reading.clear()
        while graph.due(entry := self._newest(actor, log)):
            self._nap(10)
        facts = {"before": before.clock, "next": before.next}
        must(entry.clock > before.clock, "the global clock moves on while all sources go on", **facts)
        self.note(f"the clock has moved from {before.clock} to {entry.clock}")

    def _nap(self, steps: int) -> None:
        getcurrent().thread.wake = self.step + steps
        self.pause(None)

    def _take_steps(self, actor: Actor, log: Log, plans: Mapping[str, Plan]) -> None:
        """Take steps as they come due, until all is read and none is left.

        Those that change a flow whose sources are being read are left to its micro-batches.
        """
        flows = graphs.flows_of({name: plan for name, plan in plans.items() if plan.upstream})
        while True:
            # Before the entry is looked at: the last one may come in between.
            has_closed = actor.has_closed
            entry = self._newest(actor, log)
            steps = turn.due_steps(entry, flows)
            unchanged = [due.step for due in steps if due.asks_nothing]
            changed = [due for due in steps if not due.asks_nothing and due.step.flow not in actor.reading]
            if unchanged:
                beside = [step for step in unchanged if step.flow in actor.reading]
                self.oracle.happened["a step without changes beside its sources"] += bool(beside)
                keeping = actor.terms.keeping
                entry, _ = commits.commit_unchanged(log, actor.epoch, unchanged, now=self.now, keeping=keeping)
                self.oracle.claim(entry)
            elif changed:
                due = self.rng.choice(changed)
                actor.stepping = due.step.flow
                self._step(actor, log, entry, due)
                actor.stepping = None
            elif has_closed and not graph.due(entry):
                return
            else:
                self._nap(self.rng.choice([1, 10, 40]))

    def _step(self, actor: Actor, log: Log, entry: Entry, due: turn.DueStep) -> None:
        flow = due.flow
        if actor.engine.planner == engines.LOCAL:
            parts = turn.step(entry, due, now=self.now, most=actor.engine.most)
            return engines.turns_of(self, actor, log, flow, None).take(parts, due.step.clock)
        parts = turn.step(entry, due, now=self.now, most=len(due.spans))
        if flow.is_in_order:
            worker = self._spawn(actor, lambda: self._in_place(flow, parts), True)
            descriptors, reports = self._result(worker)
        else:
            descriptors, reports = self._answered(actor, flow, lambda: core.sent_by(flow, parts), None)
        entry, _ = self._commit(actor, log, flow, Answers(reports, descriptors))
        self.oracle.claim(entry)

    def _commit(
        self, actor: Actor, log: Log, flow: FlowPlan, answers: Answers, gathers: bool = False
    ) -> tuple[Entry, Advance]:
        return commits.commit(
            log,
            actor.epoch,
            flow.first.settings,
            answers,
            now=self.now,
            new_id=self.new_id,
            keeping=actor.terms.keeping,
            gathers=gathers,
        )

    def _reach(
        self,
        actor: Actor,
        log: Log,
        flow: FlowPlan,
        source: WorldSource | Stream | Inputs,
        partitions: Partitions | Several,
    ) -> tuple[dict[str, int], Reach]:
        """Where the next micro-batch starts, and how far it goes."""
        if isinstance(source, Stream):
            start = {partition: source.start.get(partition, 0) for partition in partitions.visible}
        else:
            entry = self._newest(actor, log)
            known = entry.flows[flow.id].source
            start = {partition: known.positions.get(partition, Position()).next for partition in partitions.visible}
        everything = self.rng.random() < (0.1 if any(start.values()) else 0.4)
        if isinstance(source, Stream):
            return start, Reach(source.ends(everything))
        reach = aligned_reach(
            flow.first,
            source,
            known,
            start,
            everything=everything and flow.first.settings.alignment is None,
            is_ending=partitions.is_complete,
            now=self.now,
        )
        # Who slept since its look plans by what was true then, and can't commit it.
        if self.oracle.newest is not None and self.oracle.newest.number == entry.number:
            self.oracle.aligned(flow.id, actor.terms, start, reach)
        return start, reach

    def _newest(self, actor: Actor, log: Log) -> Entry:
        entry = log.newest()
        if entry is None or entry.epoch != actor.epoch:
            raise FencedError("a newer driver owns the application.")
        return entry

    def _micro_batch(
        self,
        actor: Actor,
        log: Log,
        flow: FlowPlan,
        source: WorldSource | Stream | Inputs,
        restored: FlowState,
        start: dict[str, int],
        reach: Reach,
    ) -> None:
        sabotage = None if actor.is_last else self.rng.choice([None] * 40 + ["shards", "parts"])
        actor.sabotaged |= sabotage is not None
        now = self.now
        if isinstance(source, Stream):
            split = source.split(reach.ends, self.parts)

            def plan_and_combine() -> list[tuple[list[Blob], Report]]:
                return self._by_spark(actor, flow, source, split, restored, now)

        else:
            entry = commits.wake(log, actor.epoch, flow.id, now)
            # What another task gives comes with what there is of the sources.
            step, spans = graph.changed_step(entry, flow)
            if step is None and flow.first.upstream and self.own.random() < 0.6:
                # By other runs of the same state something might have changed.
                step = graph.step_of(entry, flow)
            basis = commits.plan_batch(entry, flow, reach, now, step)
            self.oracle.batches[flow.id, basis.epoch, basis.batch] = Batch(entry.flows[flow.id], reach, now)
            given = graph.in_parts(spans, len(spans))
            parts = turn.parts(basis, [*source.splits(start, reach.ends, self.parts), *given], source)

            def plan_and_combine() -> list[tuple[list[Blob], Report]]:
                return core.sent_by(flow, parts, source)

        descriptors, reports = self._answered(actor, flow, plan_and_combine, sabotage)
        entry, after = self._commit(actor, log, flow, Answers(reports, descriptors))
        must(sabotage is None, "a shard or a part too few or too many is refused", descriptors=descriptors)
        self.oracle.claim(entry)
        self.oracle.counted(flow, entry, after.counts)
        for name in flow.by_name:
            values = [d.values for d in descriptors if d.task == name and d.values]
            self.oracle.emitted(name, entry, after.clock, values)

    def _answered(
        self,
        actor: Actor,
        flow: FlowPlan,
        plan_and_combine: Callable[[], list[tuple[list[Blob], Report]]],
        sabotage: str | None,
    ) -> tuple[list[Descriptor], list[Report]]:
        """What parts and shards answer, in any order."""
        worker = self._spawn(actor, lambda: self._work(actor, flow, plan_and_combine, sabotage == "parts"), True)
        descriptors, reports = self._result(worker)
        self.rng.shuffle(descriptors)
        Random(self.step).shuffle(reports)
        if sabotage == "shards":
            # Or the reports of the parts, which the driver gets as well.
            answers = descriptors if self.step % 2 else reports
            answers[:] = answers[1:] if self.rng.random() < 0.5 else [*answers, self.rng.choice(answers)]
        return descriptors, reports

    def _result(self, worker: Thread) -> Any:
        self._join(worker)
        if worker.error is not None:
            raise worker.error
        return worker.result

    def _in_place(self, flow: FlowPlan, parts: Sequence[turn.Part]) -> tuple[list[Descriptor], list[Report]]:
        """What the workers do in a step of an ordered task: each shard makes its own rows, some of them twice."""
        descriptors, reports = [], []
        for part in self.rng.sample(parts, len(parts)):
            attempts = [self._attempt_in_place(flow, part) for _ in range(2 if self.rng.random() < 0.15 else 1)]
            report, made = self.rng.choice(attempts)
            descriptors += made
            reports.append(report)
        return descriptors, reports

    def _attempt_in_place(self, flow: FlowPlan, part: turn.Part) -> tuple[Report, list[Descriptor]]:
        for _ in range(3):
            try:
                return part.take(flow, self.new_id)
            except StoreUnavailableError as error:
                failed = error
        raise failed

    def _by_spark(
        self, actor: Actor, flow: FlowPlan, stream: Stream, splits: list[list[Sent]], restored: FlowState, now: int
    ) -> list[tuple[list[Blob], Report]]:
        """What each part sends. A part is planned when it is run, from the newest entry, maybe twice."""
        log = actor.workers_log if self.rng.random() < 0.5 else Log(flow.first.files, APPLICATION)
        of_parts = []
        for part, split in enumerate(splits):
            attempts = []
            for _ in range(2 if self.rng.random() < 0.2 else 1):
                entry = commits.wake(log, actor.epoch, flow.id, self.now)
                planned = commits.plan_batch if part == 0 else commits.plan_part
                basis = planned(entry, flow, stream.reach, 0)
                basis = replace(basis, restored=restored.progress.clock if restored.source.positions else BEGINNING)
                # Who has rows has the batch time from them; the driver knows it.
                told = replace(basis, now=now) if split else basis
                blobs, report = core.combine(flow, told, part, None, stream.read(split))
                attempts.append((blobs, replace(report, now=now)))
                known = Batch(entry.flows[flow.id], stream.reach, now)
                self.oracle.batches[flow.id, basis.epoch, basis.batch] = known
            every = [blobs for blobs, _ in attempts]
            chosen = [self.rng.choice(of_shard) for of_shard in zip(*every, strict=True)]
            of_parts.append((chosen, self.rng.choice(attempts)[1]))
        self.oracle.delivered[flow.id, basis.epoch, basis.batch] = [m for split in splits for m in split]
        return of_parts

    def _work(
        self,
        actor: Actor,
        flow: FlowPlan,
        plan_and_combine: Callable[[], list[tuple[list[Blob], Report]]],
        sabotage: bool,
    ) -> tuple[list[Descriptor], list[Report]]:
        """What the workers do: combine each part, merge each shard, some of them twice."""
        rng = self.rng
        sent = plan_and_combine()
        blobs = [list(of_shard) for of_shard in zip(*(blobs for blobs, _ in sent), strict=True)]
        reports = [Report.from_bytes(report.to_bytes()) for _, report in sent]
        blobs = [[Blob.from_bytes(b.to_bytes()) if rng.random() < 0.3 else b for b in parts] for parts in blobs]
        if sabotage:
            # One that misses in every shard would be missed by nobody, where only Spark knows how many there are.
            parts = rng.choice(blobs)
            if len(blobs) > 1 and len(parts) > 1 and rng.random() < 0.7:
                parts.pop(rng.randrange(len(parts)))
            else:
                parts.append(rng.choice(parts))
        descriptors = []
        for shard, parts in enumerate(blobs):
            attempts = [self._attempt(actor, flow, shard, parts) for _ in range(2 if rng.random() < 0.15 else 1)]
            descriptors += rng.choice(attempts)[0]
            if rng.random() < 0.8:
                _, actor.cache[flow.id, shard] = rng.choice(attempts)
        return descriptors, reports

    def _attempt(
        self, actor: Actor, flow: FlowPlan, shard: int, parts: list[Blob]
    ) -> tuple[list[Descriptor], dict[str, tuple[Run, ...]]]:
        for _ in range(3):
            shuffled = self.rng.sample(parts, len(parts))
            cached = actor.cache.get((flow.id, shard), {}) if self.rng.random() < 0.8 else {}
            try:
                return merge_shard(flow, shard, shuffled, cached, self.new_id)
            except StoreUnavailableError as error:
                failed = error
        raise failed

    # What is looked at when all is over

    def _audit(self) -> None:
        """At the end every message is in the state or aside, and damage is never used."""
        self.oracle.finish(self.actors[-1].jobs)
        if self.branches is not None:
            self.branches.finish()
        self._collected()
        assert self.oracle.newest is not None
        self.oracle.kept.finish(self.oracle.newest)
        path = max(path for path in self.disk.files if path.startswith(f"{APPLICATION}/log/"))
        log = Log(self.oracle.files, APPLICATION)
        whole = bytes(self.disk.files[path])
        size = self.rng.randrange(len(whole))
        for broken in (whole[:size], flipped(self.rng, whole)):
            self.disk.files[path] = broken
            try:
                log.newest()
            except DamagedError:
                self._branch_past()
                continue
            raise Violation(f"a damaged entry is never used: {path} cut at byte {size} or changed")

    def _branch_past(self) -> None:
        """Past a newest entry that is damaged, any clock that is kept can be branched, and the branch is what the clock was."""
        log, newest = Log(self.oracle.files, APPLICATION), self.oracle.newest
        assert newest is not None
        if len(log.numbers()) < 2:
            return
        try:
            sound, _ = log.newest_sound()
        except DamagedError:
            # All others may go on from it, by their base.
            return
        clocks = [clock for clock, kept in sound.kept.items() if kept_entries.is_kept(newest.kept, clock, kept.entry)]
        branches = Branches(self.oracle.kept, must)
        for number, clock in enumerate(clocks[-2:]):
            name, files = f"past{number}", PlainFiles("sim://elsewhere", disk=branches.disk)
            branches.tried[name][clock] = sound.kept[clock].entry
            entry = branch.branch(log, Log(files, name), clock, now=self.now, new_id=iter(map(str, count())).__next__)
            must(entry.epoch > newest.epoch, "no file of before is of a branch's epoch", entry=entry, newest=newest)
            branches.check(name)

    def _collected(self) -> None:
        """What no entry names any more and nobody can commit is deleted, once the last reader's time is over."""
        entry, later = self.oracle.newest, self.now + 2 * int(LEFTOVER_AGE * 1e6)
        assert entry is not None
        log, self.now = Log(self.oracle.files, APPLICATION), later + self.keeping.grace
        Collector(log).collect(entry.epoch, now=self.now, keeping=self.keeping)
        must(not self.disk.torn, "temporary files of the dead are deleted", torn=self.disk.torn)
        left = [log.read(number) for number in log.numbers()]
        kept = {each.entry for entry in left for each in entry.kept.values()}
        named = {path for entry in left for path in self.oracle.named(entry)}
        named = named.union(*(self.oracle.kept.then[number].names for number in kept))
        files = {int(name.removesuffix(".json")) for name in self.disk.list(f"{APPLICATION}/kept")}
        must(files <= kept, "the entry of a clock that is not kept is deleted", files=files, kept=kept)
        for path in self.disk.files.keys() - named:
            folder, _, _ = path.rpartition("/")
            task = folder.rpartition("/")[2]
            dead = task in entry.tasks and written(path) < (entry.epoch, entry.flow_of(task).progress.batch)
            must(not dead, "what nobody needs is deleted", path=path)
        self.oracle.finish(self.actors[-1].jobs)


@contextmanager
def rows_in_entries(seed: int) -> Iterator[None]:
    """In half of the worlds no entry has rows, in the others most have. Some write them to a file at every other entry."""
    with (
        mock.patch.multiple(shards, INLINE=300, FEW=(0, 4000, 0, 12000)[seed // 5 % 4]),
        mock.patch.object(inline, "MOST", 10_000),
        mock.patch.multiple(logs, MOST_CHANGES=seed % 5 * 4, LEAST_CHANGES=20_000),
    ):
        yield


def _comes_along(derived: Derived | Part) -> bool:
    """Whether a task is there as soon as the tasks are that feed it."""
    return isinstance(derived, Part) and derived.what != ordered.MESSAGES


def flipped(rng: Random, data: bytes) -> bytes:
    """These bytes with one bit changed."""
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def play(seed: int, theme: str | None = None) -> World:
    """Play a world; if something is broken, say which seed shows it and what happened last."""
    world = World(seed, theme)
    try:
        world.run()
    except Exception as error:
        last = "\n".join(world.trace[-30:])
        raise Violation(
            f"seed {seed}: {type(error).__name__}: {error}\n{last}\npython -m tests.simulation {seed} {theme or ''}"
        ) from error
    return world
