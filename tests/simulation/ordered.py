"""Ordered tasks of a world: programs that do what their messages say, and what must become of these, in plain Python.

To the oracle, too, an ordered task is three tasks of the graph: one in which its messages wait, one that has its states, and
one that has the rows that it emits. The first is a `Job` if a source feeds it, and a `Part` if other tasks do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from persistent_state.edges.base import Edge
from persistent_state.edges.changes import Changes
from persistent_state.edges.closed_windows import ClosedWindows
from persistent_state.edges.emitted import Emitted
from persistent_state.edges.in_order.edge import InOrder
from persistent_state.edges.parts import parts
from persistent_state.event_time.clocks import BEGINNING, END
from persistent_state.event_time.inputs import INPUT, UNNAMED
from persistent_state.ordered import Context, InOrderTask, OrderedTask, Timer
from persistent_state.partials.waiting import passed
from persistent_state.protocol.deliver import Due
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.store import late_rows
from persistent_state.store import runs as runs_io
from persistent_state.store.entry import Entry
from persistent_state.store.late_rows import UNFIT
from persistent_state.store.state_at import seen_below
from persistent_state.task import Message, PersistentTask, name_of_messages, name_of_rows, names_of_parts
from persistent_state.windows import UntilPassed, UntilReplaced, Windowing
from tests.core import micros, us
from tests.simulation.graphs import Derived, Graphs, clock_of, columns_of, place_of
from tests.simulation.inputs import Coming
from tests.simulation.messages import FED, UNFIT_VALUE, Job, Row, Sent, input_of, number_of

MESSAGES, STATES, ROWS = "messages", "states", "rows"
"""The tasks of the graph that an ordered task is."""

STATE = pa.struct([("n", pa.int64()), ("hash", pa.int64()), ("last", pa.list_(pa.string())), ("left", pa.int64())])

GRID = 25
"""Many timers are at multiples of this, so that several messages set, or delete, the same one."""

ODD = 13
"""The number of a message that does not fit."""


class Kept(NamedTuple):
    """What is left of a key."""

    state: Mapping[str, Any] | None
    timers: frozenset[tuple[int, str]]
    newest: int


NOTHING = Kept(None, frozenset(), BEGINNING)


class Given(NamedTuple):
    """A message as an ordered task is given it: `number` says what it has the task do. A join is given the whole `row`."""

    timestamp: int
    input: str
    number: int
    row: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Ordered:
    """An ordered task. A key is forgotten after `ttl`. Its rows have a column of its own, `mark`, that may be a key.

    One that is `silent` emits no rows.
    """

    name: str
    keys: tuple[str, ...]
    ttl: int | None
    horizon: int | None = None
    silent: bool = False

    @property
    def mark(self) -> str:
        return f"mark_{self.name}"

    @property
    def parts(self) -> list[str]:
        return names_of_parts(self.name)

    def task(self) -> InOrderTask:
        return Program(self)

    def given(self, sent: Sent) -> Given:
        """The message that a record of a source is."""
        assert sent.timestamp is not None
        return Given(sent.timestamp, input_of(sent.partition), number_in({"v": sent.value}))

    def waiting(self, key: tuple[Any, ...], timestamp: int, value: Mapping[str, Any]) -> Given:
        """The message that a row is which waits in a field of its input."""
        ((input, row),) = [(name, row) for name, row in value.items() if row is not None]
        return Given(timestamp, "" if input == UNNAMED else input, number_in(row))

    def updates_of(self, sent: Sent) -> list[Sent] | None:
        """The rows that wait for a record of a source; None if it does not fit."""
        return [sent]

    def outcome(self, key: tuple[Any, ...], messages: Iterable[Given], upto: int) -> Outcome:
        """What becomes of these messages of a key, which are in order and below the clock `upto`."""
        return outcome(self, key, messages, upto)

    @property
    def back(self) -> int:
        """How long a message stays after the clock has passed it."""
        return 0


@dataclass(frozen=True)
class Part:
    """A task of the graph that an ordered task is, and that other tasks feed."""

    ordered: Ordered
    what: str
    inputs: Mapping[str, Edge]

    beside = None
    is_made_of_state = False
    is_windowed = False
    kind = "part"
    zero = None

    @property
    def name(self) -> str:
        name = self.ordered.name
        return {MESSAGES: name_of_messages(name), STATES: name, ROWS: name_of_rows(name)}[self.what]

    @property
    def source(self) -> Edge:
        return next(iter(self.inputs.values()))

    @property
    def keys(self) -> tuple[str, ...]:
        return self.ordered.keys

    @property
    def upstream(self) -> list[str]:
        return [source.task for source in self.inputs.values()]

    @property
    def is_fed_pairs(self) -> bool:
        return any(isinstance(source, Changes) for source in self.inputs.values())

    @property
    def windowing(self) -> Windowing:
        return UntilReplaced(self.ordered.ttl) if self.what == STATES else UntilPassed()

    def task(self) -> PersistentTask:
        messages, states, rows = parts(self.ordered.task())
        return {MESSAGES: messages, STATES: states, ROWS: rows}[self.what]


def parts_of(ordered: Ordered) -> list[Part]:
    """The tasks that have the states and the rows of an ordered task. Both are given one object."""
    source = InOrder(name_of_messages(ordered.name))
    return [Part(ordered, what, {"": source}) for what in (STATES, ROWS)]


def acts_of(number: int, now: int) -> list[tuple[Any, ...]]:
    """What a message of this number has the task do at a moment."""
    soon = (now // GRID + 1) * GRID
    return {
        0: [("replace", "quiet", now + 2 * GRID)],
        1: [("emit", 1)],
        2: [("emit", 1), ("emit", 2)],
        3: [("set", soon, "")],
        4: [("set", now + 300, "far")],
        5: [("emit", 1), ("set", now, "now")],
        6: [("set", soon, ""), ("emit", 3)],
        7: [("delete", soon, ""), ("emit", 1)],
        8: [("set", soon, "lost"), ("emit", 1), ("forget",)],
        9: [("set", soon, "again")],
        10: [("set", soon + GRID, "end")],
        11: [("set", now + 7, "chain")],
        12: [("set", now - 50, "past"), ("emit", 2)],
        ODD: [("emit", 1), ("set", now + 3, "odd"), ("unfit state",)],
        14: [("set", now + 3, "odd"), ("emit", 1), ("unfit row",), ("emit", 2)],
        15: [("set", soon, "gone"), ("delete", soon, "gone"), ("set", now + 60, "late")],
        16: [("delete", now // GRID * GRID + 300, "far"), ("set", now // GRID * GRID + 300, "far")],
        17: [("set", now - 50, "before"), ("delete", now - 50, "before"), ("emit", None)],
        18: [("set", now + 40, "again"), ("set", now + 40, "")],
        19: [("emit", 1), ("forget",)],
    }.get(number, [])


def acts_at(name: str, now: int, left: int) -> list[tuple[Any, ...]]:
    """What a timer of this name has the task do at its moment."""
    return {
        "again": [("set", now + 13, "once"), ("emit", 1)],
        "chain": [("set", now + 11, "chain")] if left % 4 else [],
        "end": [("emit", 4), ("forget",)],
        "far": [("delete", (now // GRID + 1) * GRID, ""), ("emit", 5)],
        "late": [("delete all", "quiet")],
    }.get(name, [("emit", 6)])


def noted(state: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The state when the task was called once more."""
    return {
        "n": state["n"] + 1,
        "hash": crc32(f"{state['hash']} {text}".encode()),
        "last": [*state["last"], text][-2:],
        "left": state["left"] + 1 if text.startswith("chain") else state["left"],
    }


def row_of(ordered: Ordered, key: tuple[Any, ...], now: int, state: Mapping[str, Any], number: int | None) -> Any:
    """A row that the task emits."""
    told = key[0] if len(key) == 1 else key
    said = None if number is None else f"{number} {state['hash']} {told!r} {now}"
    return {"said": said, "n": state["n"], ordered.mark: state["n"] % 3}


class Program(OrderedTask):
    """The task as a user would write it. It changes the state in its place, as user code may."""

    state = STATE

    def __init__(self, ordered: Ordered) -> None:
        self.ordered, self.name, self.key = ordered, ordered.name, ordered.keys or None
        row = pa.schema([("said", pa.string()), ("n", pa.int64()), (ordered.mark, pa.int64())])
        self.emits = None if ordered.silent else row
        self.ttl = None if ordered.ttl is None else us(ordered.ttl)
        if ordered.horizon is not None:
            self.message_id, self.horizon = "id", f"{ordered.horizon} microseconds"

    def process(self, state: Any, message: Message, context: Context) -> Any:
        state = state or {"n": 0, "hash": 0, "last": [], "left": 0}
        number = number_in(message)
        self._note(state, f"{message.input} {message.timestamp} {number}")
        return self._act(state, acts_of(number, message.timestamp), context)

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        self._note(state, f"{timer.name}@{timer.timestamp}")
        return self._act(state, acts_at(timer.name, timer.timestamp, state["left"]), context)

    def _note(self, state: Any, text: str) -> None:
        last = state["last"]
        last.append(text)
        del last[:-2]
        state.update({**noted(state, text), "last": last})

    def _act(self, state: Any, acts: Sequence[tuple[Any, ...]], context: Context) -> Any:
        key = context.key if len(self.ordered.keys) != 1 else (context.key,)
        key = tuple(micros(value) if isinstance(value, datetime) else value for value in key)
        for what, *told in acts:
            if what == "emit" and self.emits is None:
                continue
            if what == "emit":
                context.emit(**row_of(self.ordered, key, context.timestamp, state, told[0]))
            elif what == "unfit row" and self.emits is not None:
                context.emit(said="", n="no number")
            elif what == "set":
                context.set_timer(*told)
            elif what == "delete":
                context.delete_timer(*told)
            elif what == "replace":
                context.replace_timer(*told)
            elif what == "delete all":
                context.delete_timer(name=told[0])
            elif what == "forget":
                return None
            else:
                return {**state, "n": "no number"}
        return state


def number_in(row: Mapping[str, Any]) -> int:
    """The number of a message."""
    if "v" in row:
        value = row["v"]
        return 0 if value is None else ODD if value == UNFIT_VALUE else int(value) % 20
    return number_of(row) % 20


def drawn(
    rng: Random, jobs: Sequence[Job], ordered: Sequence[Ordered], unit: int, few_hashes: bool
) -> list[Derived | Part]:
    """The parts of these ordered tasks, and tasks that they or the jobs feed, each after those that feed it."""
    found: list[Derived | Part] = [part for each in ordered for part in parts_of(each)]
    plain = [job for job in jobs if job.kind != ROWS]
    some = [each for each in ordered if not each.silent]
    for number in range(rng.choice([0, 0, 1, 1, 2])):
        sources: list[tuple[Edge, tuple[str, ...], tuple[str, ...]]] = []
        for upstream in rng.sample(some, min(2, len(some))):
            sources.append((Emitted(upstream.name), upstream.keys, (*upstream.keys, upstream.mark)))
        for job in rng.sample(plain, min(1, len(plain))):
            if job.windowing is None or not job.is_windowed or rng.random() < 0.5:
                every = us(unit * rng.choice([1, 1, 2, 3]))
                columns = tuple(columns_of(job, False))
                sources.append((Changes(job.name, every=every), columns, columns))
            else:
                sources.append((ClosedWindows(job.name), tuple(columns_of(job, False)), tuple(columns_of(job, True))))
        rng.shuffle(sources)
        if sources and rng.random() < 0.5 and isinstance(sources[0][0], Emitted):
            source, _, columns = sources[0]
            keys_ = tuple(rng.sample(columns, rng.randint(0, len(columns))))
            kind, way = rng.choice(["rows", "total", "both", "most", "told"]), rng.choice(["batch", "message"])
            found.append(Derived(f"d{number}", source, kind, way, keys_))
            continue
        if not sources:
            break
        chosen = sources if len(sources) > 1 and rng.random() < 0.3 else [rng.choice(sources)]
        chosen = chosen[:2]
        columns = tuple(c for c in chosen[0][2] if all(c in others for _, _, others in chosen))
        least = {name for _, needed, _ in chosen for name in needed}
        # Whose order is that of hashes is of no use where these are few.
        is_fine = few_hashes or any(isinstance(source, Changes) for source, _, _ in chosen)
        if is_fine and not least <= {*columns}:
            continue
        keys_ = (
            tuple(c for c in columns if c in least or rng.random() < 0.3)
            if is_fine
            else tuple(rng.sample(columns, rng.randint(0, len(columns))))
        )
        each = Ordered(f"y{number}", keys_, rng.choice([None, None, 60, 200]), silent=rng.random() < 0.2)
        names = ["" if len(chosen) == 1 else name for name in ("one", "other")]
        inputs = {name: source for name, (source, _, _) in zip(names, chosen, strict=False)}
        found += [Part(each, MESSAGES, inputs), *parts_of(each)]
        some += [] if each.silent else [each]
    return found


def with_fed(rng: Random, jobs: Sequence[Job], coming: Coming, few_hashes: bool) -> list[Job]:
    """The jobs, of which the last feeds the first, which is of an ordered task, if it can."""
    first, last = jobs[0], jobs[-1]
    if first is last or first.ordered is None or not (last.ordered or last.is_windowed):
        return [*jobs]
    if last.ordered:
        last = replace(last, ordered=replace(last.ordered, silent=False))
    source: Edge = Emitted(last.ordered.name) if last.ordered else ClosedWindows(last.name)
    keys = last.keys if few_hashes else tuple(rng.sample(last.keys, rng.randint(0, len(last.keys))))
    of = replace(first.ordered, keys=keys, horizon=None)
    fed = replace(coming.with_source(first), keys=keys, horizon=None, ordered=of, fed=source)
    return [fed, *jobs[1:-1], last]


# The part of the oracle


@dataclass
class Outcome:
    """What becomes of the messages of a key, below a clock.

    Its rows have their moments, and the inputs of the messages that caused them; None: a timer did, or one of before.
    """

    kept: Kept = NOTHING
    rows: list[tuple[int, str | None, Mapping[str, Any]]] = field(default_factory=list)
    bad: list[Given] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)


def outcome(ordered: Ordered, key: tuple[Any, ...], messages: Iterable[Given], upto: int) -> Outcome:
    """What becomes of these messages of a key, which are in order and below the clock `upto`."""
    found, ttl = Outcome(), ordered.ttl
    state: dict[str, Any] | None = None
    timers: set[tuple[int, str]] = set()
    newest, input = BEGINNING, None

    def act(acts: Sequence[tuple[Any, ...]], now: int) -> None:
        nonlocal state, timers
        for what, *told in acts:
            assert state is not None
            if what == "emit" and ordered.silent:
                continue
            if what == "emit":
                found.rows.append((now, input, row_of(ordered, key, now, state, told[0])))
            elif what == "set":
                timers.add((max(told[0], now), told[1]))
            elif what == "delete":
                timers.discard((max(told[0], now), told[1]))
            elif what in ("replace", "delete all"):
                timers = {at for at in timers if at[1] != told[0]}
                timers |= {(max(time, now), told[0]) for time in told[1:]}
            elif what == "forget":
                found.calls["forgotten"] += 1
                state, timers = None, set()

    def call_timers(last: int) -> None:
        nonlocal state
        while due := sorted(at for at in timers if at[0] <= last and (ttl is None or at[0] <= newest + ttl)):
            (now, name), *_ = due
            timers.remove(due[0])
            assert state is not None
            state = noted(state, f"{name}@{now}")
            found.calls[f"timer {name}"] += 1
            act(acts_at(name, now, state["left"]), now)

    for message in messages:
        now, input = message.timestamp, None
        call_timers(now)
        input = message.input
        acts = acts_of(message.number, now)
        if any(what.startswith("unfit") for what, *_ in acts):
            found.bad.append(message)
        else:
            if state is not None and ttl is not None and now > newest + ttl:
                found.calls["expired"] += 1
                state, timers = None, set()
            state = noted(
                state or {"n": 0, "hash": 0, "last": [], "left": 0}, f"{message.input} {now} {message.number}"
            )
            newest = now
            act(acts, now)
        call_timers(now)
    input = None
    call_timers(upto - 1)
    found.kept = Kept(state, frozenset(timers), newest)
    return found


class Orders:
    """What the oracle knows of ordered tasks."""

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self.of: dict[str, Ordered] = {}
        """By the name of each task of the graph that is a part of one: the ordered task."""
        self.happened: Counter[str] = Counter()

    def expect(self, ordered: Ordered) -> None:
        self.of.update(dict.fromkeys(ordered.parts, ordered))

    def whole(self, names: Iterable[str]) -> list[str]:
        """These tasks, with all that are parts of the same ordered tasks."""
        found = [part for name in names for part in (self.of[name].parts if name in self.of else [name])]
        return [*dict.fromkeys(found)]

    def is_part(self, name: str) -> bool:
        """Whether a task that others feed is a part of an ordered one."""
        return name in self.of and name in self.graphs.derived

    def part(self, name: str) -> Part:
        found: Any = self.graphs.derived[name]
        assert isinstance(found, Part)
        return found

    def first_of(self, name: str, clock: int, rebuilt: Collection[str]) -> int:
        """From which moment on messages are for a task that begins anew at a start at this clock."""
        if not self.is_part(name) or self.part(name).what == MESSAGES:
            return clock
        waiting = name_of_messages(self.of[name].name)
        sees_all = waiting in rebuilt if waiting in self.graphs.judges else self.part(waiting).is_fed_pairs
        return BEGINNING if sees_all else clock

    def are_reset(self, names: Iterable[str], reset: Collection[str]) -> set[str]:
        """Those of these tasks that start from zero with their messages, and keep their outputs."""
        some = [name for name in names if self.is_part(name) and self.part(name).what != MESSAGES]
        return {name for name in some if name in reset and name_of_messages(self.of[name].name) in reset}

    # What becomes of messages

    def messages(self, ordered: Ordered, clock: int, upto: int = END) -> dict[tuple[Any, ...], list[Given]]:
        """By key, the messages below a clock, in their order; those that tasks give below the clock `upto`, too."""
        name, first = name_of_messages(ordered.name), self.graphs.made[ordered.name].first
        found: list[tuple[Any, tuple[Any, ...], Given]] = []
        if name in self.graphs.judges:
            judge = self.graphs.judges[name]
            for sent in judge.in_state(clock):
                found.append((judge.job.order_of(sent), judge.job.key_of(sent), ordered.given(sent)))
        for place, input, source in self._tasks_that_feed(name):
            fed: Any = self.graphs.derived.get(name) or self.graphs.judges[name].job
            for number, row in enumerate(self.graphs.fed_by(fed, source, min(clock, upto))):
                if row.timestamp >= min(clock, upto):
                    continue
                order = row.timestamp, place, row.place, number
                found.append((order, key_of(ordered, row), Given(row.timestamp, input, number_in(row.columns))))
        by_key: dict[tuple[Any, ...], list[Given]] = {}
        for _, key, message in sorted(found, key=lambda each: each[0]):
            if message.timestamp >= first:
                by_key.setdefault(key, []).append(message)
        return by_key

    def _inputs(self, name: str) -> list[str]:
        """The inputs of a task in which messages wait, in their order."""
        if name in self.graphs.derived:
            return [*self.part(name).inputs]
        job = self.graphs.judges[name].job
        return [*(job.inputs or [INPUT]), *([FED] if job.fed else [])]

    def _tasks_that_feed(self, name: str) -> list[tuple[int, str, Edge]]:
        """The inputs of a task in which messages wait that are other tasks, each with its place among all inputs."""
        if name in self.graphs.derived:
            return [(place, *each) for place, each in enumerate(self.part(name).inputs.items())]
        job = self.graphs.judges[name].job
        return [] if job.fed is None else [(len(job.inputs), FED, job.fed)]

    def outcomes(self, ordered: Ordered, clock: int) -> dict[tuple[Any, ...], Outcome]:
        """By key, what becomes of its messages below a clock."""
        values = self.graphs.values
        if ("outcomes", ordered.name, clock) not in values:
            some = self.messages(ordered, clock)
            found = {key: ordered.outcome(key, messages, clock) for key, messages in some.items()}
            values["outcomes", ordered.name, clock] = found
        result: dict[tuple[Any, ...], Outcome] = values["outcomes", ordered.name, clock]
        return result

    def rows(self, ordered: Ordered, low: int, high: int) -> list[Row]:
        """The rows of a span of time that a task emits, those of a key in their order."""
        found, inputs = [], self._inputs(name_of_messages(ordered.name))
        for key, of_key in self.outcomes(ordered, high).items():
            for moment, input, columns in of_key.rows:
                if low <= moment < high:
                    place = -1 if input is None else inputs.index(input), place_of(key)
                    found.append(Row(moment, {**dict(zip(ordered.keys, key, strict=True)), **columns}, place))
        return found

    def states(self, ordered: Ordered, clock: int) -> dict[tuple[Any, ...], Kept]:
        """What is left of each key that is there at a clock."""
        found = {key: of_key.kept for key, of_key in self.outcomes(ordered, clock).items()}
        return {key: kept for key, kept in found.items() if is_there(ordered, kept, clock)}

    # What sinks are given

    def given_at(self, part: Part, due: Due, floor: int) -> dict[tuple[Any, ...], Any]:
        """What an output is given at a clock that was given one before."""
        ordered, clock, since = part.ordered, due.clock, due.since
        if part.what == ROWS:
            return numbered((key_of(ordered, row), row) for row in self.rows(ordered, max(since, floor), clock))
        now = self.states(ordered, clock)
        if since == BEGINNING:
            return {key: kept.state for key, kept in now.items()}
        before, was = self.outcomes(ordered, since), self.states(ordered, since)
        found: dict[tuple[Any, ...], Any] = {
            key: kept.state for key, kept in now.items() if key not in before or before[key].kept != kept
        }
        return found | dict.fromkeys(was.keys() - now.keys())

    def given(self, name: str, table: pa.Table) -> dict[tuple[Any, ...], Any]:
        """What an output of a part is given, in a table of it."""
        part = self.part(name)
        keys_ = keys_in(table, part.keys)
        if part.what == STATES:
            found = {key: value["state"] for key, value in zip(keys_, table["value"].to_pylist(), strict=True)}
            self.graphs.must(len(found) == len(table), "a key is given once", task=name, given=keys_)
            return found
        return numbered(rows_in(table, TIMESTAMP, part.ordered, part.keys))

    def full(self, part: Part, mirror: Iterable[tuple[Any, ...]], begun: int, clock: int) -> dict[tuple[Any, ...], Any]:
        """What a sink has that was given all at this clock."""
        every = self.given_at(part, Due(clock, BEGINNING, BEGINNING), begun)
        return every if part.what == ROWS else {**dict.fromkeys(mirror), **every}

    # What must be true

    def check(self, name: str, entry: Entry) -> None:
        """At each clock that it can be read at, a part is what the messages make of it."""
        part = self.part(name)
        if part.what == STATES:
            self._check_states(part, entry)
        elif part.what == ROWS:
            self._check_rows(part, entry)
        else:
            self.check_waiting(part.ordered, entry)

    def _check_states(self, part: Part, entry: Entry) -> None:
        ordered, graphs, own = part.ordered, self.graphs, clock_of(entry, part.name)
        runs, layout = entry.tasks[part.name].stored.runs, graphs.layouts[part.name]
        for clock in graphs.readable(part.name, entry):
            if (part.name, clock, runs) not in graphs.found:
                table = seen_below(graphs.files, runs, layout, clock)
                found = dict(
                    zip(keys_in(table, layout.key_names), map(kept_in, table["value"].to_pylist()), strict=True)
                )
                graphs.must(len(found) == table.num_rows, "a key has one row", task=part.name, clock=clock)
                graphs.found[part.name, clock, runs] = found
            found, expected = graphs.found[part.name, clock, runs], self.states(ordered, clock)
            differ = {
                k: (found.get(k), expected.get(k)) for k in {*found, *expected} if found.get(k) != expected.get(k)
            }
            facts = {"task": part.name, "clock": clock, "global": entry.clock, "differ (found, expected)": differ}
            graphs.must(not differ, "a state is what the messages below the clock make of it, in order", **facts)
        outcomes = self.outcomes(ordered, own)
        bad = [(key, message) for key, of_key in outcomes.items() for message in of_key.bad]
        aside = [
            aside
            for side in late_rows.all_of(graphs.files, entry.late_rows_of(part.name))
            for aside in late_rows.read(graphs.files, side).to_pylist()
        ]
        is_named = self._is_named(ordered)
        found_aside = [(row["reason"], *self._given_in(part, row["timestamp"], row["row"], is_named)) for row in aside]
        wanted = [(UNFIT, *message) for _, message in bad]
        facts = {"task": part.name, "clock": own, "found": sorted(found_aside), "expected": sorted(wanted)}
        graphs.must(sorted(found_aside) == sorted(wanted), "bad messages are aside once", **facts)
        counts = entry.late_counts_of(part.name)
        graphs.must(counts == ({UNFIT: len(bad)} if bad else {}), "bad messages are counted", counts=counts, **facts)
        for of_key in outcomes.values():
            self.happened.update(of_key.calls.keys())
            self.happened["bad"] += bool(of_key.bad)

    def _check_rows(self, part: Part, entry: Entry) -> None:
        ordered, graphs, own = part.ordered, self.graphs, clock_of(entry, part.name)
        task, layout = entry.tasks[part.name], graphs.layouts[part.name]
        graphs.must(not entry.late_counts_of(part.name), "bad messages are aside for the states", task=part.name)
        low = max(task.stored.floor, graphs.made[part.name].first)
        levels = [layout.schema.empty_table(), *(runs_io.read_run(graphs.files, run) for run in task.stored.runs)]
        found = numbered(rows_in(passed(levels, layout, low, END), "start", ordered, layout.key_names))
        expected = numbered((key_of(ordered, row), row) for row in self.rows(ordered, low, own))
        differ = {k: (found.get(k), expected.get(k)) for k in {*found, *expected} if found.get(k) != expected.get(k)}
        facts = {"task": part.name, "clock": own, "differ (found, expected)": differ}
        graphs.must(not differ, "the rows are those that the messages below the clock have it emit, each once", **facts)

    def check_waiting(self, ordered: Ordered, entry: Entry) -> None:
        """All that a task has not processed yet waits."""
        graphs, name = self.graphs, name_of_messages(ordered.name)
        if ordered.name not in entry.tasks or not graphs.goes_on(ordered.name):
            return
        task, layout = entry.tasks[name], graphs.layouts[name]
        own = max(BEGINNING, clock_of(entry, ordered.name) - ordered.back)
        low, high = max(own, graphs.made[ordered.name].first), END
        upto = max(low, entry.flow_of(name).visited)
        if name in graphs.derived:
            high = upto
        levels = [layout.schema.empty_table(), *(runs_io.read_run(graphs.files, run) for run in task.stored.runs)]
        table = passed(levels, layout, low, END)
        found: dict[tuple[Any, ...], list[Given]] = {}
        places = keys_in(table, layout.key_names), table["start"].to_pylist()
        rows = zip(*places, table["value"].to_pylist(), strict=True)
        for key, time, value in rows:
            found.setdefault(key, []).append(ordered.waiting(key, time, value))
        some = {
            key: [m for m in of_key if m.timestamp >= low] for key, of_key in self.messages(ordered, high, upto).items()
        }
        expected = {key: of_key for key, of_key in some.items() if of_key}
        differ = {k: (found.get(k), expected.get(k)) for k in {*found, *expected} if found.get(k) != expected.get(k)}
        facts = {"task": name, "processed": low, "differ (found, expected)": differ}
        graphs.must(not differ, "messages wait until they are processed", **facts)

    def _is_named(self, ordered: Ordered) -> bool:
        """Whether messages stand in a field of their input."""
        name = name_of_messages(ordered.name)
        if name in self.graphs.judges:
            job = self.graphs.judges[name].job
            return bool(job.fed) or [*job.inputs] not in ([], [INPUT])
        return [*self.part(name).inputs] != [INPUT]

    def _given_in(self, part: Part, timestamp: int, value: Mapping[str, Any], is_named: bool) -> Given:
        """The message that a row aside is."""
        return part.ordered.waiting((), timestamp, value) if is_named else Given(timestamp, INPUT, number_in(value))


def is_there(ordered: Ordered, kept: Kept, clock: int) -> bool:
    return kept.state is not None and (ordered.ttl is None or kept.newest + ordered.ttl >= clock)


def key_of(ordered: Ordered, row: Row) -> tuple[Any, ...]:
    return tuple(row.columns[name] for name in ordered.keys)


def numbered(rows: Iterable[tuple[tuple[Any, ...], Row]]) -> dict[tuple[Any, ...], Any]:
    """Rows by key, moment and their number among those of the moment."""
    found, counts = dict[tuple[Any, ...], Any](), Counter[Any]()
    for key, row in rows:
        place = *key, row.timestamp
        found[(*place, counts[place])] = {**row.columns}
        counts[place] += 1
    return found


def rows_in(
    table: pa.Table, time: str, ordered: Ordered, names: Sequence[str]
) -> Iterable[tuple[tuple[Any, ...], Row]]:
    """The emitted rows of a table, with their keys, which have these names there."""
    moments = table[time].cast(pa.int64()).to_pylist()
    for key, moment, row in zip(keys_in(table, names), moments, table["value"].to_pylist(), strict=True):
        yield key, Row(moment, {**dict(zip(ordered.keys, key, strict=True)), **row})


def keys_in(table: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    columns = [plain(table[name]) for name in names]
    return list(zip(*columns, strict=True)) if columns else [()] * len(table)


def plain(column: pa.ChunkedArray) -> list[Any]:
    """The values of a key column; times as microseconds."""
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


def kept_in(value: Mapping[str, Any]) -> Kept:
    return Kept(value["state"], frozenset((t["timestamp"], t["name"]) for t in value["timers"]), value["newest"])
