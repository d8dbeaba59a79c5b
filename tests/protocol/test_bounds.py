"""Inputs with bounds: each message belongs to one of them by its timestamp, and the clock passes a bound when history ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import monoids
from persistent_state import Application, InvalidInputError, NonWindowState, PersistentTask
from persistent_state.batch.alignment import aligned_reach
from persistent_state.event_time.clocks import BEGINNING, END, Bounds
from persistent_state.protocol import commits, holding
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import late_rows
from persistent_state.store.entry import Entry
from persistent_state.store.late_rows import LATE, OUTSIDE
from tests import core
from tests.local_application import LocalApplication, compiled
from tests.local_application import Rows as MemoryRows

KEEPING = Keeping(3, 0)
BOUND = 100
SCHEMA = pa.schema([("ts", pa.int64()), ("name", pa.string()), ("c", pa.string())])


class Rows(MemoryRows):
    """Rows of these columns. A finite source ends with its last row."""

    def __init__(self, rows: Sequence[tuple[Any, ...]] = (), finite: bool = False, channel: str | None = None) -> None:
        super().__init__(SCHEMA)
        self.rows, self.is_finite, self.channel = [*rows], finite, channel
        self.channels = {"p": False} if channel is None else None


class Told(PersistentTask):
    """All that came, in order."""

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.List(pa.string()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([[name] for name in batch["name"].to_pylist()], pa.list_(pa.string()))


class World(LocalApplication):
    """A task with history below the bound and a live input from it on."""

    def __init__(self, history: Rows, live: Rows, keep: bool = False, **options: Any) -> None:
        self.options = options
        self.history, self.live = history.below(BOUND, keep=keep), live.from_(BOUND, keep=keep)
        super().__init__(*compiled(self.application(), core.memory()), KEEPING)

    def application(self, inputs: Any = None) -> Application:
        app = Application(
            "app", "memory://bounds", checkpoint_interval=core.us(10), max_ahead="100000 days", **self.options
        )
        return app.add(Told(), inputs or {"history": self.history, "": self.live})

    def begin(self, inputs: Any = None, **named: Sequence[str]) -> Entry:
        """Start with these inputs, or both."""
        self.become(self.application(inputs))
        return self.start(**named)

    def read(self, history: int = 1000, live: int = 1000) -> None:
        """Read at most so many rows of each."""
        self.history.most, self.live.most = history, live
        self.turn("Told")

    def told(self, clock: int | None = None) -> list[str]:
        told: list[str] = self.state("Told", clock).get((), [])
        return told

    def counts(self) -> dict[str, int]:
        return self.newest.late_counts_of("Told")


def rows(*stamps: int) -> list[tuple[int, str, None]]:
    return [(stamp, f"{stamp}", None) for stamp in stamps]


def test_each_message_belongs_to_the_input_of_its_time() -> None:
    both = rows(5, 42, 99, 100, 117)
    world = World(Rows(both, finite=True), Rows([*both, *rows(131)]))
    world.begin()
    world.read()
    assert world.clock == 130
    assert world.told() == ["5", "42", "99", "100", "117"]
    # A second time they are not counted, and nothing else is kept of them.
    assert world.counts() == {OUTSIDE: 5}
    world.begin()
    world.read()
    assert world.counts() == {OUTSIDE: 5}
    assert not late_rows.all_of(world.files, world.newest.late_rows_of("Told"))


def test_rows_outside_are_kept_where_that_is_asked_for() -> None:
    both = rows(5, 99, 100, 117)
    world = World(Rows(both, finite=True), Rows([*both, *rows(131)]), keep=True)
    for _ in range(3):
        world.begin()
        world.read(history=3, live=3)
    world.read()
    kept = [
        row
        for side in late_rows.all_of(world.files, world.newest.late_rows_of("Told"))
        for row in late_rows.read(world.files, side).to_pylist()
    ]
    assert Counter((row["strand"], row["timestamp"]) for row in kept) == {
        ("history:p", 100): 1, ("history:p", 117): 1, ("p", 5): 1, ("p", 99): 1,
    }  # fmt: skip
    assert {row["reason"] for row in kept} == {OUTSIDE}
    assert world.counts() == {OUTSIDE: 4}


def test_the_live_input_holds_the_clock_at_its_bound_and_not_before() -> None:
    world = World(Rows(rows(5, 42, 87, 99), finite=True), Rows())
    world.begin()
    clocks = []
    for _ in range(4):
        world.read(history=1)
        clocks.append(world.clock)
    # With the last row history has ended.
    assert clocks == [0, 40, 80, 100]
    assert world.told() == ["5", "42", "87", "99"]
    world.live.rows += rows(103)
    world.read()
    assert world.clock == 100
    world.live.rows += rows(125)
    world.read()
    assert world.clock == 120


def test_the_clock_does_not_pass_the_bound_before_history_has_ended() -> None:
    # Nothing of the first rows moves a channel, and still more comes.
    world = World(Rows(rows(110, 120, 130, 96, 97, 99), finite=True), Rows(rows(105, 155)), idle_after=core.us(1))
    world.begin()
    for more in (1, 1, 1, 1, 1):
        world.read(history=more)
        assert world.clock <= 90
        world.now = 1000
        world.begin()
        world.now = 0
        world.begin()
    world.read()
    world.read()
    assert world.clock == 150
    assert world.told() == ["96", "97", "99", "105"]
    assert world.counts() == {OUTSIDE: 3}


def test_a_bound_that_is_no_clock_is_exact() -> None:
    world = World(Rows(rows(91, 97, 103), finite=True), Rows(rows(95, 103, 104, 131)))
    world.history, world.live = world.history.below(104), world.live.from_(104)
    world.begin()
    world.read(live=0)
    assert world.clock == 100
    assert world.told() == ["91", "97"]
    world.read()
    assert world.told() == ["91", "97", "103", "104"]


def test_channels_of_a_column_end_with_their_source() -> None:
    history = [(5, "5", "a"), (31, "31", "b"), (99, "99", "b"), (150, "150", "c")]
    world = World(Rows(history, finite=True, channel="c"), Rows([(140, "140", "a")], channel="c"))
    world.begin()
    world.read(history=2, live=0)
    # The channel of which all is outside does not come to be.
    world.read(history=1, live=0)
    assert {*world.newest.flow_of("Told").source.channels} == {"history:a", "history:b"}
    world.read(live=0)
    assert world.clock == BOUND
    world.read()
    assert world.clock == 140
    assert world.told() == ["5", "31", "99"]
    assert not {name: n for name, n in world.counts().items() if name != OUTSIDE}


def test_history_that_is_over_may_be_left_out() -> None:
    world = World(Rows(rows(5, 87, 99), finite=True), Rows(rows(103)))
    world.begin()
    world.read(history=2)
    with pytest.raises(InvalidInputError, match="task=Told had the input 'history', and has '' now"):
        world.begin(world.live)
    world.begin()
    world.read()
    assert world.clock == BOUND
    # Below the clock a bound decides nothing any more.
    for source in (world.live, Rows(world.live.rows)):
        world.begin(source)
        assert world.newest.tasks["Told"].ended == ("history",)
    with pytest.raises(InvalidInputError, match="is given the input 'history' again, which has ended for ever"):
        world.begin()
    world.begin(Rows([*world.live.rows, *rows(125)]))
    world.turn("Told")
    assert world.told() == ["5", "87", "99", "103"]


def test_history_of_a_task_that_runs_is_refused() -> None:
    world = World(Rows(rows(5, 99), finite=True), Rows(rows(103, 125)))
    world.begin(world.live)
    world.turn("Told")
    assert world.clock == 120
    refusal = (
        "task=Told: the input 'history' has only messages below 1970-01-01T00:00:00.000100Z (100), and the task begins at "
        "clock=1970-01-01T00:00:00.000120Z (120): all of it would be late. Name the task in rebuild=['Told'] of run or start, "
        "so that it begins before all messages, or leave the input out."
    )
    for named in ({}, {"reset": ["Told"]}):
        with pytest.raises(InvalidInputError) as refused:
            world.begin(**named)
        assert str(refused.value) == refusal
    world.begin(rebuild=["Told"])
    world.read()
    assert world.told() == ["5", "99", "103"]


def test_a_bound_of_an_input_that_has_begun_stays() -> None:
    world = World(Rows(rows(5, 87, 99), finite=True), Rows(rows(103)))
    world.begin()
    moved = {"history": world.history.below(95), "": world.live.from_(95)}
    # Nothing was read by the first bounds.
    world.begin(moved)
    world.begin()
    world.read(history=1)
    with pytest.raises(InvalidInputError) as refused:
        world.begin(moved)
    assert str(refused.value) == (
        "task=Told: the input 'history' was read with below(1970-01-01T00:00:00.000100Z (100)), and has "
        "below(1970-01-01T00:00:00.000095Z (95)) now; what was left out would be missing, or what was read be there twice. "
        f"Keep the bounds. {core.ways('Told')}"
    )
    unbound = {"history": world.history, "": Rows(world.live.rows)}
    with pytest.raises(InvalidInputError, match=r"the input '' was read with from_\(.*, and has no bounds now"):
        world.begin(unbound)
    world.begin()


def test_the_holder_of_the_clock_is_history_while_it_is_read() -> None:
    world = World(Rows(rows(5, 42, 99), finite=True), Rows(), allowed_delay=core.us(30))
    world.begin()
    world.read(history=2)
    held = holding.holder(world.newest)
    assert held is not None
    assert (held.input, held.why) == ("history", holding.BEHIND)
    world.read()
    held = holding.holder(world.newest)
    assert held is not None
    assert (held.input, held.why) == ("", holding.UNHEARD)


def test_the_live_input_waits_while_history_is_far_behind() -> None:
    world = World(Rows(rows(5, 42, 99), finite=True), Rows(rows(103)), alignment=core.us(20))
    assert aligned(world) == set()
    world.begin()
    world.read(history=1, live=0)
    assert aligned(world) == {"p"}
    world.read(history=2, live=0)
    assert aligned(world) == set()


def aligned(world: World) -> set[str]:
    entry = world.log.newest()
    if entry is None:
        return set()
    known = entry.flow_of("Told").source
    reach = aligned_reach(
        world.plans["Told"],
        world.sources["Told"],
        known,
        known.next_positions,
        everything=False,
        is_ending=False,
        now=0,
    )
    return {*reach.held}


@pytest.mark.parametrize(
    "given_time", [BOUND, "1970-01-01T00:00:00.000100", datetime(1970, 1, 1, 0, 0, 0, 100, timezone.utc)]
)
def test_a_bound_is_a_time_in_any_form(given_time: Any) -> None:
    source = Rows()
    assert source.below(given_time).bounds == Bounds(BEGINNING, BOUND)
    assert source.from_(given_time, keep=True).below(BOUND + 1).bounds == Bounds(BOUND, BOUND + 1, keep=True)
    assert source.bounds == Bounds(BEGINNING, END)


def test_bounds_between_which_there_is_no_time_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"no time is at or above 1970.*\(100\) and below 1970.*\(100\)"):
        Rows().below(BOUND).from_(BOUND)


moves = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=14)
acts = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 5), st.integers(0, 5)),
        st.tuples(st.integers(0, 5), st.integers(0, 5)),
        st.just("start"),
        st.just("close"),
    ),
    max_size=12,
)


def test_a_rewind_below_the_bound_needs_the_history_that_it_would_read_again() -> None:
    world = World(Rows(rows(5, 47, 63, 99), finite=True), Rows(rows(103, 125)))
    world.begin()
    for _ in range(5):
        world.read(history=1)
    world.begin(world.live)
    below = max(clock for clock in world.newest.kept if clock < BOUND)

    def application(inputs: Any) -> Application:
        made = Application("app", world.files.url, checkpoint_interval=core.us(10), max_ahead="100000 days")
        return made.add(Told(), inputs)

    with pytest.raises(InvalidInputError, match="history"):
        application(world.live).plan_rewind(below)
    assert application({"history": world.history, "": world.live}).plan_rewind(below).clock == below


@settings(max_examples=60, deadline=None)
@given(moves, moves, acts, st.booleans(), st.integers(81, 120))
def test_at_every_clock_the_state_is_made_of_each_message_once(
    past: list[tuple[int, int]], present: list[tuple[int, int]], story: list[Any], keep: bool, bound: int
) -> None:
    """Both sources have messages on both sides of the bound, each out of order by no more than the allowed delay."""
    sent: dict[str, list[tuple[int, str]]] = {"h": [], "l": []}
    for name, some, now in (("h", past, 0), ("l", present, 60)):
        for ahead, behind in some:
            now += ahead
            sent[name].append((now - behind, f"{name}{len(sent[name])}"))
    past_rows, live_rows = ([(*row, None) for row in sent[name]] for name in "hl")
    world = World(Rows(past_rows, finite=True), Rows(live_rows), allowed_delay=core.us(10))
    world.history, world.live = world.history.below(bound, keep=keep), world.live.from_(bound, keep=keep)
    world.begin()
    known, closed = {"history:p": 0, "p": 0}, False
    outside: set[tuple[str, int, int]] = set()

    def check() -> None:
        entry = world.newest
        positions = entry.flow_of("Told").source.positions
        ends = {name: positions[name].next if name in positions else 0 for name in known}
        known.update({name: max(known[name], ends[name]) for name in known})
        for name, sent_here in (("history:p", sent["h"]), ("p", sent["l"])):
            for position, (stamp, _) in enumerate(sent_here[: ends[name]]):
                if (stamp >= bound) == (name != "p"):
                    outside.add((name, position, stamp))
        if keep:
            # A start takes back the rows that will be read again. If they are only counted, they count once.
            outside.difference_update([row for row in outside if row[1] >= ends[row[0]] and row[2] >= entry.clock])
        counts = world.counts()
        if not closed:
            assert counts.get(OUTSIDE, 0) == len(outside)
            assert counts.keys() <= {OUTSIDE}, counts
            if known["history:p"] < len(sent["h"]):
                assert entry.clock < bound
        for clock in {*entry.retained} - {BEGINNING}:
            own = [(stamp, name) for stamp, name in [*sent["h"], *sent["l"]] if (stamp < bound) == (name[0] == "h")]
            below = sorted((stamp, name[0] == "l", int(name[1:]), name) for stamp, name in own if stamp < clock)
            if not closed:
                assert world.told(clock) == [name for *_, name in below], clock

    for act in story:
        if act == "start":
            world.begin()
        elif act == "close":
            if known["history:p"] == len(sent["h"]) and known["p"] == len(sent["l"]):
                commits.close(world.log, world.newest.epoch, now=0, keeping=KEEPING)
        else:
            world.read(*act)
        check()
    world.live.rows.append((400, "l999", None))
    sent["l"].append((400, "l999"))
    world.read()
    check()
    assert world.clock == 390
    assert LATE not in world.counts()
