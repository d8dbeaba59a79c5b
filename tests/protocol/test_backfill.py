"""History below a bound and a live input from it on, for tasks with timers, joins and graphs: all is as of one input."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import monoids
from persistent_state import (
    Application,
    AsOfJoin,
    Changes,
    ClosedWindows,
    Emitted,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    TumblingWindow,
    WindowState,
)
from persistent_state.batch.plan import Plan
from persistent_state.drive.local import flows_of
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.ordered import Context, Timer
from persistent_state.partials.since import Since
from persistent_state.protocol import commits
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.entry import Entry
from persistent_state.store.late_rows import LATE
from persistent_state.store.state_at import seen_below
from tests import core
from tests.local_application import LocalApplication, compiled
from tests.protocol.test_bounds import Rows
from tests.soak import soak_or

KEEPING = Keeping(3, 0)
DELAY, SILENT, SLOT, END = 10, 15, 30, 400

Row = tuple[int, str, str]
"""The time, the name and the key of a row."""


class Visits(OrderedTask):
    """The names that came to a key. It emits each as it comes, and "silent" when none came for a while."""

    key = "c"
    state = pa.struct({"names": pa.list_(pa.string()), "last": pa.int64()})
    emits = pa.schema([("said", pa.string())])

    def process(self, state: Any, message: Message, context: Context) -> Any:
        context.emit(said=message["name"])
        context.set_timer(message.timestamp + SILENT)
        names = [] if state is None else state["names"]
        return {"names": [*names, message["name"]], "last": message.timestamp}

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        if timer.timestamp == state["last"] + SILENT:
            context.emit(said="silent")
        return state


class Sums(PersistentTask):
    key = "c"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Struct(total=monoids.Sum()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([batch["ts"].cast(pa.int64())], names=["total"])


class Alike(PersistentTask):
    """How many keys have the same sum."""

    key = "total"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Count())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([1] * len(batch))


class Slots(PersistentTask):
    """How much came to a key in each slot."""

    key, value = "c", "ts"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(monoids.Sum(), TumblingWindow(core.us(SLOT)))


class InTurn(PersistentTask):
    """The slots that have closed, in their order."""

    key = "c"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.List(pa.int64()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([[value] for value in batch["value"].to_pylist()], pa.list_(pa.int64()))


class World(LocalApplication):
    """An application of all of these, and of a join of other rows with what the task in order emits."""

    def __init__(self, rows: Mapping[str, Sequence[Row]], bound: int, other_bound: int, are_past: bool) -> None:
        history, live = Rows(rows["history"], finite=True).below(bound), Rows(rows["live"]).from_(bound)
        others = Rows(rows["others"], finite=are_past)
        others = others.below(other_bound) if are_past else others.from_(other_bound)
        self.bound, self.are_past = bound, are_past
        self.history, self.live, self.others = history, live, others
        self.found: dict[str, list[Any]] = {"Visits": [], "others_visits": []}
        self.given = BEGINNING
        super().__init__(*compiled(self.application(), core.memory()), KEEPING)

    def application(self) -> Application:
        app = Application(
            "app",
            "memory://none",
            checkpoint_interval=core.us(10),
            allowed_delay=core.us(DELAY),
            max_ahead="100000 days",
        )
        for task in (Visits(), Sums(), Slots()):
            app.add(task, {"history": self.history, "": self.live})
        app.add(AsOfJoin("others", "visits", key="c"), {"others": self.others, "visits": Emitted("Visits")})
        return app.add(Alike(), Changes("Sums")).add(InTurn(), ClosedWindows("Slots"))

    def begin(self, shards: int) -> None:
        self.become(self.application(), shards)
        together = ["Visits.messages", "Sums", "Slots"]
        rest = [flow for flow in flows_of(self.plans) if flow.id not in together]
        self.start(together, *rest)

    def read(self, history: int = 1000, live: int = 1000, others: int = 1000) -> None:
        """A micro-batch of each source, of at most so many rows of each."""
        self.history.most, self.live.most, self.others.most = history, live, others
        for task in ("Sums", "others_visits.messages"):
            self.turn(task)

    def is_read(self) -> bool:
        """Whether all sources have been read to their end."""
        starts = {id: self.newest.flow_of(id).source.next_positions for id in ("Sums", "others_visits.messages")}
        return all(self.sources[id].reach(start, everything=True).ends == start for id, start in starts.items())

    def step(self) -> None:
        """Take a step that is due, if there is one."""
        for due in self.due()[:1]:
            self.turn(due.flow.id)

    def own(self, clock: int) -> list[Row]:
        """The rows below a clock that are of their input, in order."""
        some = [row for row in self.history.rows if row[0] < self.bound]
        some += [row for row in self.live.rows if row[0] >= self.bound]
        return sorted((row for row in some if row[0] < clock), key=lambda row: row[0])

    def check(self) -> None:
        entry = self.newest
        assert not [name for name in entry.tasks if LATE in entry.late_counts_of(name)]
        if entry.flow_of("Sums").source.next_positions.get("history:p", 0) < len(self.history.rows):
            assert entry.clock < self.bound
        for clock in {*entry.retained} - {BEGINNING}:
            own = self.own(clock)
            sums, slots, states, _ = Counter[Any](), Counter[Any](), *visits(own, clock)
            for time, _, key in own:
                sums[key,] += time
                slots[key, time // SLOT] += time
            in_turn: dict[Any, list[int]] = defaultdict(list)
            for (key, slot), value in sorted(slots.items()):
                if (slot + 1) * SLOT <= clock:
                    in_turn[key,].append(value)
            self.check_state(clock, "Sums", {key: {"total": total} for key, total in sums.items()})
            self.check_state(clock, "Alike", Counter((total,) for total in sums.values()))
            self.check_state(clock, "InTurn", in_turn)
            self.check_state(clock, "Visits", states)
        if entry.clock > self.given:
            for name, rows in self.found.items():
                rows += self.emitted(self.plans[f"{name}.rows"], entry)
            self.given = entry.clock
            _, said = visits(self.own(END), entry.clock)
            assert sorted(self.found["Visits"], key=lambda row: row[:2]) == said
            assert sorted(self.found["others_visits"]) == self.joined_below(entry.clock)

    def check_state(self, clock: int, name: str, expected: Mapping[Any, Any]) -> None:
        entry = self.newest
        if entry.is_at(name, clock):
            found = core.state_at(entry, self.plans[name], clock)
            if name == "Visits":
                found = {
                    key: (kept["state"], {timer["timestamp"] for timer in kept["timers"]})
                    for key, kept in found.items()
                }
            assert {key: value for key, value in found.items() if value} == expected, (name, clock)

    def emitted(self, plan: Plan, entry: Entry) -> list[Any]:
        """The rows that are new at the global clock, each with its moment, its key, its name and what was said."""
        rows = seen_below(self.files, entry.tasks[plan.name].stored.runs, plan.layout, entry.clock, Since(self.given))
        told = [(row["timestamp"], row["key0"], row["value"]) for row in rows.to_pylist()]
        return [(time, key, *(value[name] for name in ("name", "said") if name in value)) for time, key, value in told]

    def joined_below(self, clock: int) -> list[Any]:
        """The rows of others that are of their input, each with what was said last of its key."""
        _, said = visits(self.own(END), clock)
        bounds, found = self.others.bounds, []
        for time, name, key in self.others.rows:
            if bounds.since <= time < min(bounds.below, clock):
                before = [what for at, of, what in said if of == key and at <= time]
                found.append((time, key, name, before[-1] if before else None))
        return sorted(found)


def visits(own: Sequence[Row], clock: int) -> tuple[dict[Any, Any], list[Any]]:
    """By key the state and the timers of `Visits` at a clock, and all that it has emitted, from rows in order."""
    states: dict[Any, Any] = {}
    said: list[Any] = []
    for key in {key for _, _, key in own}:
        names, timers, last = list[str](), set[int](), 0
        moments = [(time, name) for time, name, of in own if of == key and time < clock]
        for time, name in [*moments, (clock - 1, None)]:
            for timer in sorted(timer for timer in timers if timer <= time):
                timers.remove(timer)
                said += [(timer, key, "silent")] if timer == last + SILENT else []
            if name is not None:
                said.append((time, key, name))
                names, last = [*names, name], time
                timers.add(time + SILENT)
        if names:
            states[key,] = {"names": names, "last": last}, timers
    return states, sorted(said, key=lambda row: row[:2])


moves = st.lists(st.tuples(st.integers(0, 20), st.integers(0, DELAY), st.sampled_from("ab")), max_size=12)
acts = st.one_of(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)),
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)),
    st.sampled_from(["step", "step", "close"]),
    st.integers(1, 3),
)


@pytest.mark.soak
@settings(max_examples=soak_or(ci=10, soak=25), deadline=None)
@given(moves, moves, moves, st.lists(acts, max_size=14), st.integers(81, 120), st.integers(60, 140), st.booleans())
def test_whatever_history_and_a_live_input_feed_is_exact_at_every_clock(
    past: list[Any],
    present: list[Any],
    beside: list[Any],
    story: list[Any],
    bound: int,
    other_bound: int,
    are_past: bool,
) -> None:
    """Both have rows on both sides of the bound, each out of order by no more than the allowed delay."""
    sent: dict[str, list[Row]] = {"history": [], "live": [], "others": []}
    for name, some, now in (("history", past, 10), ("live", present, 70), ("others", beside, 40)):
        for ahead, behind, key in some:
            now += ahead
            sent[name].append((now - behind, f"{name}{len(sent[name])}", key))
    world = World(sent, bound, other_bound, are_past)
    world.begin(2)
    for act in story:
        if act == "step":
            world.step()
        elif act == "close":
            # A drain closes when all is read. What comes below that clock afterwards is late.
            world.read()
            if world.is_read():
                commits.close(world.log, world.newest.epoch, now=0, keeping=KEEPING)
        elif isinstance(act, int):
            world.begin(act)
        else:
            world.read(*act)
    world.live.rows.append((END, "end", "a"))
    if not are_past:
        world.others.rows.append((END, "end", "a"))
    # What holds the clock goes turn by turn.
    seen = -1
    while seen < world.newest.number:
        seen = world.newest.number
        world.read()
        world.steps()
    assert world.newest.clock == END - DELAY
    assert all(world.newest.is_at(name, END - DELAY) for name in world.newest.tasks)
