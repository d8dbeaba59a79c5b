"""What must be true after every commit, worked out from the messages alone, in plain Python.

The oracle hears of every log entry at the instant it exists. It keeps one verdict per message and task: in the state, or
aside for a reason, or none yet. From these follow the state at every clock, the rows aside and the clocks.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any

from persistent_state.batch.plan import FlowPlan
from persistent_state.batch.shard import read_values
from persistent_state.event_time.channels import Channel, listed_channels
from persistent_state.event_time.clocks import BEGINNING, END, Bounds
from persistent_state.event_time.positions import replay_from
from persistent_state.partials.kinds import kind_of
from persistent_state.partials.layout import Layout, one_chunk
from persistent_state.partials.sessions import Living
from persistent_state.protocol.deliver import Due
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources.base import Reach
from persistent_state.store import blocks, late_rows, lists
from persistent_state.store import runs as runs_io
from persistent_state.store.codec import open_entry, side_from_json
from persistent_state.store.entry import Entry
from persistent_state.store.flow_state import FlowState
from persistent_state.store.late_rows import AHEAD, JUMP, LATE, NO_TIMESTAMP, OUTSIDE, REPLAYED_OR_LATE, UNFIT
from persistent_state.store.log import Log
from persistent_state.store.named_files import Run, ShardRuns, Stored
from persistent_state.store.output_state import ACTIVE, LEFT, RETIRED, OutputState
from persistent_state.store.state_at import seen_below
from persistent_state.windows import SessionWindow
from tests.core import us, whole_times
from tests.simulation import windows
from tests.simulation.files import Disk, PlainFiles
from tests.simulation.flows import BEFORE, Flows
from tests.simulation.graphs import Graphs
from tests.simulation.kept import KeptClocks
from tests.simulation.messages import MONOIDS, UNFIT_VALUE, Job, Sent, input_of, named
from tests.simulation.ordered import Orders
from tests.simulation.sinks import Sinks, Values, WorldSink
from tests.simulation.source import Partitions, Several

STATE, COPY = "state", "copy"
NOT_KEPT = "outside, not kept"
MOVES = (STATE, COPY, UNFIT)
"""What moves its channel's time."""
NOWHERE = (STATE, COPY, REPLAYED_OR_LATE, BEFORE, NOT_KEPT)
"""What is not aside."""

AHEAD_OF_GLOBAL, IN_BATCH = 8, 2
"""How many clocks stay apart between the global clock and a task's own, and within a micro-batch."""

Place = tuple[str, int]
Places = Mapping[str, Mapping[str, WorldSink]]
"""By task and output: where values go."""


class Violation(AssertionError):
    """Something that the contract promises is not so."""


def must(truth: bool, promise: str, **facts: Any) -> None:
    if not truth:
        raise Violation(f"{promise}: " + ", ".join(f"{name}={value!r}" for name, value in facts.items()))


@dataclass(frozen=True)
class Batch:
    """A micro-batch as it is planned: what its flow was before, how far the source goes, and the batch time."""

    flow: FlowState
    reach: Reach
    now: int

    @property
    def channels(self) -> dict[str, Channel]:
        found: dict[str, Channel] = {}
        for input, known in self.flow.inputs.items():
            reach = self.reach.inputs.get(input, self.reach)
            some = listed_channels(known.channels, reach.channels, reach.known, self.now)
            found |= {named(input, name): channel for name, channel in some.items()}
        return found


@dataclass(frozen=True)
class Terms:
    """What one start of the application said of event time."""

    interval: int
    delay: int
    idle_after: int | None
    ahead: int
    jump: int | None
    believe: int
    keeping: Keeping
    alignment: int | None = None
    inputs: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict, repr=False)
    """By input: its own allowed delay and its own idle time, where it has them."""

    def delay_of(self, job: Job, channel: str) -> int:
        own = self.inputs[input_of(channel)][0] if job.inputs else None
        return self.delay if own is None else own

    def idle_of(self, job: Job, channel: str) -> int | None:
        own = self.inputs[input_of(channel)][1] if job.inputs else None
        return self.idle_after if own is None else own


@dataclass
class Judge:
    """All that the oracle knows of one task, as if it were fed alone: what tasks share is worked out for each of them."""

    job: Job
    partitions: Partitions | Several
    verdicts: dict[Place, str] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    journal: list[str] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    touched: set[Any] = field(default_factory=set)
    newest: dict[str, int | None] = field(default_factory=dict)
    """By channel, the greatest timestamp that moved it since the start; None: known, nothing yet."""
    reached: dict[str, int] = field(default_factory=dict)
    """By channel, a timestamp that it had reached before the start and that is not replayed."""
    gone: set[str] = field(default_factory=set)
    """Channels that the source does not list any more."""
    heard: set[str] = field(default_factory=set)
    """Channels that a message ever came from."""
    active: dict[str, int] = field(default_factory=dict)
    floor: dict[str, int] = field(default_factory=dict)
    """By channel, the clock that it never had a say in: it was not known yet, idle, or ended."""
    jumps: Counter[str] = field(default_factory=Counter)
    holds: bool = True
    was_read: dict[int, Any] = field(default_factory=dict)
    """What the state at a clock once was."""
    rows: dict[Any, list[tuple[Place, str]]] = field(default_factory=dict)
    delivered: set[Place] = field(default_factory=set)
    """What Spark has ever delivered."""
    restored: int = BEGINNING
    """The clock below which nobody can tell whether a message without a position was there before the start."""
    counts: dict[str, int] = field(default_factory=dict)
    """What the newest micro-batch is to count."""
    inputs: tuple[str, ...] = ("",)
    """The inputs of the newest start that the task was part of."""
    journals: dict[str, list[str]] = field(default_factory=dict)
    """What each of several inputs has written."""
    left: dict[str, int] = field(default_factory=dict)
    """By partition of an input that has left: from where on it would have been read again, the start after which it had."""
    bounds: dict[str, Bounds] = field(default_factory=dict)
    """By input: its bounds in the newest start."""
    outside: set[Place] = field(default_factory=set)
    """What was ever found outside its bounds and was not kept."""
    delays: dict[str, int] = field(default_factory=dict)
    """By one of several inputs: its least allowed delay so far."""

    def copied(self) -> Judge:
        """The same, which does not change with this one."""
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        held = {name: copy(some) for name, some in held.items() if isinstance(some, (dict, set, list))}
        return replace(self, **held | {"journals": {input: [*lines] for input, lines in self.journals.items()}})

    def lists(self, input: str) -> bool:
        """Whether an input says which channels it has."""
        partitions = self.partitions.of(input)
        return partitions.lists_channels and not partitions.by_column

    @property
    def said_to_come(self) -> list[str]:
        return [named(input, name) for input in self.inputs for name in self.partitions.of(input).said_to_come]

    def sent(self, place: Place) -> Sent:
        return self.partitions.messages[place[0]][place[1]]

    def is_below(self, place: Place, clock: int) -> bool:
        timestamp = self.sent(place).timestamp
        return timestamp is not None and timestamp < clock

    def in_state(self, below: int | None) -> list[Sent]:
        found = [self.sent(place) for place, verdict in self.verdicts.items() if verdict == STATE]
        return found if below is None else [m for m in found if self.is_below(m.place, below)]

    def aside(self) -> dict[Place, str]:
        return {p: verdict for p, verdict in self.verdicts.items() if verdict not in NOWHERE}

    def is_outside(self, sent: Sent) -> bool:
        """Whether a message is none of its input."""
        bounds = self.bounds.get(input_of(sent.partition), Bounds())
        return sent.timestamp is not None and not bounds.since <= sent.timestamp < bounds.below

    def since(self, channel: str) -> int:
        """The bound below which a channel has nothing."""
        return self.bounds.get(input_of(channel), Bounds()).since

    def is_over(self, input: str) -> bool:
        """Whether an input is a finite one that is read to its end."""
        partitions = self.partitions.of(input)
        return partitions.finite and partitions.is_read(
            {p: self.read.get(named(input, p), 0) for p in partitions.messages}
        )

    def is_ended(self, channel: str) -> bool:
        if self.is_over(input_of(channel)):
            return True
        if not self.lists(input_of(channel)) or not self.partitions.of(input_of(channel)).ends:
            return False
        return self.read.get(channel, 0) == len(self.partitions.messages[channel])

    def is_live(self, channel: str, terms: Terms, now: int) -> bool:
        if self.is_ended(channel) or channel in self.gone:
            return False
        if self.partitions.of(input_of(channel)).finite:
            # There is more of it.
            return True
        idle_after = terms.idle_of(self.job, channel)
        return idle_after is None or now - self.active[channel] < idle_after

    def leave(self, positions: Mapping[str, Any], clock: int) -> None:
        """Let inputs be gone that are not among those of a start at this clock; this is what was read of all before it."""
        left = dict.fromkeys(self.left, END)
        left |= {p: replay_from(known, clock) for p, known in positions.items() if self._has_left(p)}
        self.left = left
        self.journals = {input: lines for input, lines in self.journals.items() if input in self.inputs}
        self.gone = {channel for channel in self.gone if not self._has_left(channel)}
        self.heard = {channel for channel in self.heard if not self._has_left(channel)}
        for known in (self.known, self.newest, self.reached, self.active, self.floor, self.jumps):
            for name in [name for name in known if self._has_left(name)]:
                del known[name]

    def _has_left(self, name: str) -> bool:
        return input_of(name) not in self.inputs


@dataclass(frozen=True)
class Past:
    """All that the oracle knew when a clock was the newest: of tasks their least allowed delays, lives and code, by name."""

    judges: Mapping[str, Judge]
    delays: Mapping[str, int]
    made: Mapping[str, Any]
    lives: Mapping[str, Any]
    derived: Mapping[str, Any]
    retired: frozenset[tuple[str, str]]
    """The sinks of lives before."""


@dataclass
class Stage:
    """A turn that was gathered with others: what it makes of the entry before it, and what else is to be judged of it then."""

    entry: Entry
    judge: Callable[[Entry], None] = lambda entry: None


def anywhere(entry: Entry) -> Entry:
    """The entry, whether its runs are in it or in files."""

    def moved(run: Run) -> Run:
        return replace(run, file=replace(run.file, path="", start=0, inline=b"")) if run.file.is_part else run

    return replace(
        entry,
        tasks={
            name: replace(
                task,
                stored=replace(
                    task.stored, shards=tuple(ShardRuns(tuple(map(moved, shard.runs))) for shard in task.stored.shards)
                ),
            )
            for name, task in entry.tasks.items()
        },
    )


class Oracle:
    """The judge of a world: `hear` is called with every new entry, `claim` with what a driver was told it committed."""

    def __init__(self, disk: Disk, application: str) -> None:
        self.disk = disk
        self.files = PlainFiles("sim://", disk=disk)
        self.application = application
        self.judges: dict[str, Judge] = {}
        self.newest: Entry | None = None
        self.writer = ""
        self.seals: dict[int, str] = {}
        self.entries: dict[int, Entry] = {}
        self.times: dict[int, int] = {}
        self.intervals: set[int] = set()
        self.terms: Terms | None = None
        self.delays: dict[str, int] = {}
        self.starting: dict[str, tuple[Terms, Sequence[FlowPlan], set[str], Places, Places]] = {}
        """By writer, what a driver that is starting says."""
        self.batches: dict[tuple[str, int, int], Batch] = {}
        self.gathered: dict[int, list[Sequence[Stage]]] = defaultdict(list)
        """By the number of an entry: the turns that it would commit if it were of this or that thread."""
        self.delivered: dict[tuple[str, int, int], list[Sent]] = {}
        """What Spark delivered in a micro-batch that it has planned."""
        self.readings: dict[tuple[str, str], dict[Place, Any]] = {}
        self.layouts: dict[str, Layout] = {}
        self.coarsest = 0
        self.past: dict[int, Past] = {}
        """By the entry of a kept clock: what was known then."""
        self.has_lost_numbers = False
        self.happened: Counter[str] = Counter()
        self.graphs = Graphs(self.judges, self.files, must)
        self.orders = self.graphs.orders = Orders(self.graphs)
        self.sinks = Sinks(self.judges, self.graphs, must)
        self.flows = Flows(self.judges, self.delays, self.files, must)
        self.kept = KeptClocks(Log(self.files, application), self.layouts, self._values, self.named, must)

    def expect(self, job: Job, partitions: Partitions | Several) -> None:
        self.judges[job.name] = Judge(job, partitions)
        if job.fed:
            self.graphs.mixed[job.name] = job

    def reader(self, name: str, writer: str) -> Callable[[str, int, Any], None]:
        """Where a driver's task tells what it read of its state."""
        seen = self.readings.setdefault((name, writer), {})

        def note(partition: str, position: int, value: Any) -> None:
            seen[partition, position] = value

        return note

    def left_behind(self, names: Iterable[str], newest: Entry | None) -> set[str]:
        """The tasks that can't go on, since their clock is not retained any more."""
        if newest is None or not newest.retained:
            return set()
        flows = {name: newest.flow_of(name) for name, task in newest.tasks.items() if not task.active}
        behind, oldest = set[str](), newest.retained[0]
        for name in (name for name in names if name in flows):
            clocks = flows[name].progress.clock, flows[name].visited
            stands = self.graphs.stands(name, newest) if name in self.graphs.mixed else flows[name].visited
            is_gone = self.graphs.is_fed_by_windows(name) and stands < oldest
            behind |= {name} if is_gone or any(BEGINNING < clock < oldest for clock in clocks) else set()
        return {*self.orders.whole(behind | self.graphs.missed(names, newest))}

    def lost(self, names: Iterable[str], newest: Entry | None, named: Collection[str]) -> set[str]:
        """The tasks that a start must name, as they would lose what they have: with all that are parts of an ordered task."""
        return {*self.orders.whole(self.graphs.lost([*names], newest, named))}

    # What happens

    def hear(self, path: str) -> None:
        """A file was made."""
        if path.startswith(f"{self.application}/kept/"):
            self.kept.made(path, bytes(self.disk.read(path)))
        if not path.startswith(f"{self.application}/log/"):
            return
        data = bytes(self.disk.read(path))
        written, before = open_entry(data, path), self.newest
        if before is not None and written.number <= before.number:
            # Someone slept so long that its number was collected. The number says nothing any more.
            return
        entry = written.entry(before)
        if written.whole is not None:
            must(written.entry(None) == entry, "what changed makes the whole that an entry is", number=entry.number)
        found = Log(self.files, self.application).newest()
        must(found == entry, "whoever reads the log anew finds the newest entry", found=found, entry=entry)
        must(entry.number == (before.number + 1 if before else 1), "entries follow each other", number=entry.number)
        must(entry.previous == (self.seals[before.number] if before else ""), "an entry names the one before")
        self.seals[entry.number] = hashlib.sha256(data).hexdigest()
        self.entries[entry.number] = entry
        self.times[entry.number] = entry.time
        self._files_exist(entry)
        made = (stages for stages in self.gathered.pop(entry.number, ()) if stages[-1].entry == entry)
        stages = next(made, [Stage(entry)])
        self.happened["turns were committed together"] += len(stages) > 1
        was = before
        for stage in stages:
            is_now = entry if stage is stages[-1] else stage.entry
            self._hear(was, is_now)
            stage.judge(is_now)
            was = is_now
        self._keep(before, entry)

    def _hear(self, before: Entry | None, entry: Entry) -> None:
        """An entry was made, or what a turn would have made if it had an entry of its own."""
        self.newest = entry
        if before is not None and entry.timeline != before.timeline:
            self._rewind(before, entry)
        elif before is None or entry.epoch != before.epoch:
            self._start(before, entry)
        else:
            must(entry.flows.keys() == before.flows.keys(), "only a start changes which flows there are")
            flows = [id for id, flow in entry.flows.items() if flow.progress.batch != before.flows[id].progress.batch]
            steps = [id for id in flows if entry.flows[id].is_derived]
            must(len(flows) <= 1 or flows == steps, "one entry is one micro-batch, or steps", moved=flows)
            moved = [name for id in flows for name in self.graphs.fed_by_sources(entry.tasks_of(id))]
            for name in moved:
                flow = entry.flow_of(name)
                is_read = (entry.tasks[name].flow, entry.epoch, flow.progress.batch) in self.batches
                (self._commit if is_read else self._step_alone)(name, before, entry)
            steps = [id for id, flow in entry.flows.items() if flow.stepped != before.flows[id].stepped]
            is_other = self._wakes(before, entry) or self._records(before, entry) or self._names(before, entry)
            if not is_other:
                self._clocks(before, entry, moved, is_close=not flows and not steps)
        if before is not None and entry.timeline == before.timeline:
            self._passed(before, entry)
        self._aside(before, entry)
        self._states(before, entry)
        self.sinks.hear(before, entry)
        self.graphs.hear(before, entry)

    def _keep(self, before: Entry | None, entry: Entry) -> None:
        """Know what is kept from an entry on."""
        assert self.terms is not None
        self.kept.hear(before, entry, self.terms.keeping)
        if entry.number in self.kept.then:
            self.past[entry.number] = Past(
                {name: judge.copied() for name, judge in self.judges.items()},
                {**self.delays},
                {**self.graphs.made},
                {**self.graphs.lives},
                {**self.graphs.derived},
                frozenset(
                    (name, sink.output) for name, of in self.sinks.of.items() for sink in of.values() if sink.is_retired
                ),
            )

    def write(self, sink: WorldSink, by: Entry, due: Due, values: Values, epoch: int) -> None:
        """Values at a clock, read by an entry, are written to a sink by a driver of this epoch."""
        assert self.newest is not None
        self.sinks.write(self.newest, sink, by, due, values, epoch)

    def go_back(
        self, sink: WorldSink, epoch: int, timeline: int, clock: int, entry: Entry | None, then: Values
    ) -> None:
        """A sink is to go back to a clock, at which these were the values by an entry, if there is one."""
        assert self.newest is not None
        self.happened["a sink went back"] += sink.applied > clock
        self.happened[f"{sink.kind} went back"] += sink.applied > clock
        self.happened["a key came back"] += sink.applied >= clock and bool(then.keys() - sink.mirror.keys())
        self.sinks.go_back(self.newest, sink, epoch, timeline, clock, entry, then)

    def given(self, name: str, table: Any, layout: Layout) -> dict[tuple[Any, ...], Any]:
        """What an output of a task is given: by key, or by row."""
        return self.orders.given(name, table) if self.orders.is_part(name) else as_dict(table, layout)

    def _values(self, name: str, table: Any) -> Any:
        """The state of a task, from what the library reads."""
        if self.orders.is_part(name) or name not in self.judges or self.judges[name].job.ordered is not None:
            return sorted(map(repr, table.to_pylist()))
        return as_dict(table, self.layouts[name])

    def _names(self, before: Entry, entry: Entry) -> bool:
        """Whether the entry does nothing but give or take the name of a kept clock."""
        told = replace(before, number=entry.number, previous=entry.previous, time=entry.time, kept=entry.kept)
        return anywhere(entry) == anywhere(told) and entry.kept != before.kept

    def _records(self, before: Entry, entry: Entry) -> bool:
        """Whether the entry does nothing but write down that something was delivered."""
        told = replace(before, number=entry.number, previous=entry.previous, time=entry.time, owes=entry.owes)
        is_paid = entry.owes != before.owes
        for name, task in entry.tasks.items():
            known = told.tasks[name]
            records = {output: each for output, each in task.outputs.records.items() if each.status is not RETIRED}
            outputs = OutputState({**records, **known.outputs.with_status(RETIRED)}, known.outputs.furthest)
            told = told.with_task(name, replace(known, outputs=outputs))
        return anywhere(entry) == anywhere(told) and (
            is_paid or any(task.outputs != before.tasks[name].outputs for name, task in entry.tasks.items())
        )

    def _wakes(self, before: Entry, entry: Entry) -> bool:
        """Whether the entry does nothing but let a flow hold the clock again, before it plans a micro-batch."""
        for id, flow in before.flows.items():
            told = replace(before, number=entry.number, previous=entry.previous, time=entry.time)
            woken = replace(flow, progress=replace(flow.progress, holds=True))
            if not flow.progress.holds and anywhere(entry) == anywhere(told.with_flow(id, woken)):
                for name in entry.tasks_of(id):
                    self.judges[name].holds = True
                return True
        return False

    def gone(self, path: str) -> None:
        """A file is about to be deleted."""
        assert self.newest is not None
        self.kept.gone(path, self.newest)
        folder = f"{self.application}/log/"
        if not path.startswith(folder):
            must(path not in self.named(self.newest), "no file is deleted that the newest entry names", path=path)
            return
        self.has_lost_numbers = True
        number = int(path.removeprefix(folder).removesuffix(".json"))
        must(number < self.newest.number, "the newest entry is never deleted", path=path)
        # What a driver that slept wrote where another entry was collected is no part of the log.
        for name in self.disk.list(folder[:-1]):
            older = int(name.removesuffix(".json"))
            is_part = older < number and hashlib.sha256(self.disk.read(folder + name)).hexdigest() == self.seals[older]
            must(not is_part, "entries are collected from the oldest up", number=number, older=older)

    def named(self, entry: Entry) -> set[str]:
        """All that can be reached from an entry."""
        settled = [
            side_from_json(line).file.path
            for one in (*entry.flows.values(), *entry.tasks.values())
            for line in lists.read(self.files, one.late_rows.settled)
        ]
        return {*entry.files(), *settled}

    def claim(self, entry: Entry) -> None:
        """A driver was told that this entry is of the log."""
        must(
            self.entries.get(entry.number) == entry,
            "what a driver was told it committed is in the log",
            number=entry.number,
        )

    def opened(self, flow: FlowPlan, epoch: int, input: str, journal: list[str], known: Mapping[str, int]) -> None:
        """A source was opened with this, maybe one of several."""
        if self.newest is None or self.newest.epoch != epoch:
            return
        for name in flow.by_name:
            judge = self.judges[name]
            wrote = judge.journals.get(input, []) if judge.job.inputs else judge.journal
            expected = {p: n for p, n in judge.known.items() if input_of(p) == input}
            known = {named(input, partition): end for partition, end in known.items()}
            must(journal == wrote, "a source is given back what it wrote", task=name, journal=journal, wrote=wrote)
            must(known == expected, "a source is told what is known", task=name, known=known, expected=expected)

    def counted(self, flow: FlowPlan, entry: Entry, counts: Mapping[str, int]) -> None:
        """A micro-batch said that it met so many messages."""
        if self.newest is None or entry.number != self.newest.number:
            return
        for name in flow.by_name:
            expected = self.judges[name].counts
            found = {reason: counts.get(reason, 0) for reason in expected}
            must(found == expected, "a micro-batch counts what it met", task=name, found=found, expected=expected)

    def emitted(self, name: str, entry: Entry, clock: int, values: Sequence[Stored | bytes]) -> None:
        """A micro-batch gave these running values of the keys that it touched."""
        if self.newest is None or entry.number != self.newest.number or not values:
            return
        judge, layout = self.judges[name], self.layouts[name]
        found: dict[Any, Any] = {}
        for stored in values:
            found.update(as_dict(read_values(self.files, stored, layout, clock), layout))
        touched = windows.running(judge.job, judge.in_state(None), judge.touched, clock)
        # A key that has the hash of a touched one may be given too.
        current = windows.running(judge.job, judge.in_state(None), None, clock)
        facts = {"task": name, "found": found, "expected": touched}
        must(found == {key: current.get(key) for key in found}, "running values are the folds so far", **facts)
        must(touched.keys() <= found.keys(), "running values are of all touched keys", **facts)

    def aligned(self, name: str, terms: Terms, start: Mapping[str, int], reach: Reach) -> None:
        """A source is about to be read so far: not where a channel is too far ahead of one that has more to read."""
        judge = self.judges[name]
        idle = {terms.idle_of(judge.job, channel) for channel in judge.newest}
        if terms.alignment is None or not judge.job.by_partition or idle - {None}:
            return
        # One that had gone, and comes again after a start, is not known before it does.
        known = {channel: top for channel, top in judge.newest.items() if channel not in judge.gone}
        came = {channel: judge.reached.get(channel) if top is None else top for channel, top in known.items()}
        for channel, at in came.items():
            if (since := judge.since(channel)) != BEGINNING:
                came[channel] = since if at is None else max(at, since)
        left = [
            BEGINNING if came[p] is None else came[p]
            for p, n in judge.partitions.visible.items()
            if p in came and p in start and start[p] < n
        ]
        for partition in (p for p, end in reach.ends.items() if end > start[p] and came.get(p) is not None):
            limit = min(left) + terms.alignment
            must(came[partition] <= limit, "who is too far ahead waits", task=name, channel=partition, came=came)

    def finish(self, jobs: Sequence[Job]) -> None:
        """All is over: every message is in the state or aside, once, below one clock."""
        entry = self.newest
        assert entry is not None
        for job in jobs:
            judge, clock = self.judges[job.name], entry.flow_of(job.name).progress.clock
            messages = judge.partitions.messages
            sent = {m.place for name, some in messages.items() if input_of(name) in judge.inputs for m in some}
            if judge.partitions.leaves_out:
                # What this start was not given, and none before had to keep.
                sent -= {p for p in sent - judge.verdicts.keys() if judge.is_below(p, entry.clock)}
            judged = {place for place in judge.verdicts if input_of(place[0]) in judge.inputs}
            must(judged == sent, "no message is lost", task=job.name, lost=sent - judged)
            must(clock == entry.clock, "a close gives every task one clock", task=job.name, clock=clock)
            below, every = judge.in_state(entry.clock), judge.in_state(None)
            must(len(below) == len(every), "at a close all is below the clock", task=job.name, clock=entry.clock)
            must(entry.flow_of(job.name).visited == clock, "all that another task gives is taken", task=job.name)
            self.sinks.finish(entry, job.name)
        for name in self.graphs.finish(entry):
            self.sinks.finish(entry, name)
        for name in self.graphs.fed_by_sources(entry.tasks):
            for at in {entry.clock, entry.flow_of(name).progress.clock, *entry.retained, None}:
                self.check_state(name, entry, at)

    def _now(self, name: str, entry: Entry) -> int:
        """The batch time of a task's last micro-batch; long ago if there was none since the start."""
        id = entry.tasks[name].flow
        numbers = range(entry.flows[id].progress.batch, 0, -1)
        # Others were steps, which ask no source.
        batches = (self.batches.get((id, entry.epoch, number)) for number in numbers)
        return next((batch.now for batch in batches if batch is not None), 0)

    def _step_alone(self, name: str, before: Entry, entry: Entry) -> None:
        """A step of a task that sources feed, too, asks no source, and so says nothing of one."""
        self.happened["a step beside no source"] += 1
        was, flow = before.flow_of(name), entry.flow_of(name)
        known = [({n: (s.channels, s.next_positions) for n, s in f.inputs.items()}, f.coarse) for f in (was, flow)]
        must(known[0] == known[1], "a step leaves sources as they are", task=name, known=known)
        must(flow.progress.holds == was.progress.holds, "a step lets nobody go", task=name, holds=flow.progress.holds)
        must(flow.stepped > was.stepped, "a step takes what tasks give", task=name, stepped=flow.stepped)

    # What must be true

    def _files_exist(self, entry: Entry) -> None:
        for holder in (*entry.flows.values(), *entry.tasks.values()):
            for stored in holder.files():
                must(stored.path in self.disk.files, "every file that an entry names exists", path=stored.path)
                data = self.disk.files[stored.path]
                if stored.start:
                    self.happened["a run is a range of a file"] += 1
                    data = data[stored.start : stored.start + stored.length]
                right = (
                    len(data) == stored.length and hashlib.sha256(data[-stored.index :]).hexdigest() == stored.checksum
                )
                right = right and not (stored.index and [*blocks.problems(data, stored)])
                must(right, "every file that an entry names is what was written", path=stored.path)

    def _passed(self, before: Entry, entry: Entry) -> None:
        """Check that no start reads again what sources may have been told to be passed."""
        for id, flow in entry.flows.items():
            old = before.flows.get(id)
            if old is None or entry.tasks_of(id).keys() != before.tasks_of(id).keys():
                continue
            then, now = min(before.clock, old.progress.clock), min(entry.clock, flow.progress.clock)
            if then == BEGINNING or now < then:
                # Nothing was told yet, or the flow begins anew.
                continue
            for input, source in flow.inputs.items():
                passed = old.inputs[input].replays_from(then) if input in old.inputs else {}
                for partition, position in source.replays_from(now).items():
                    must(
                        position >= passed.get(partition, 0),
                        "what the global clock has passed stays passed",
                        flow=id,
                        partition=partition,
                        position=position,
                        passed=passed,
                    )

    def _start(self, before: Entry | None, entry: Entry) -> None:
        terms, wanted, reset, rebuilt, fresh = self.starting[entry.writer]
        plans = {name: plan for flow in wanted for name, plan in flow.by_name.items()}
        self.writer = entry.writer
        self.terms = terms
        self.layouts.update((name, plan.layout) for name, plan in plans.items())
        self.graphs.layouts.update(self.layouts)
        self.intervals.add(terms.interval)
        self.coarsest = terms.interval
        must(entry.epoch == (before.epoch + 1 if before else 1), "a start begins a new epoch", epoch=entry.epoch)
        must(
            entry.clock == (before.clock if before else BEGINNING), "a start keeps the global clock", clock=entry.clock
        )
        must(entry.retained == (before.retained if before else ()), "a start keeps the retained clocks")
        must({n for n, t in entry.tasks.items() if t.active} == set(plans), "a start has the tasks it was given")
        lost = self.lost(plans, before, {*reset, *rebuilt})
        must(not lost, "what nobody can give again is not lost unasked", lost=lost)
        new = {name for name in plans if before is None or name not in before.tasks or name in reset or name in rebuilt}
        new |= self.graphs.unasked([*plans], before, {*reset, *rebuilt})
        anew = self.graphs.begun_anew(before, entry, plans, new, rebuilt)
        must(
            not self.left_behind(plans, before) - reset - rebuilt.keys() - anew,
            "a task whose clock was collected is refused",
        )
        for name in self.graphs.fed_by_sources(plans):
            clock, judge = clock_of(entry, name), self.judges[name]
            restored = entry.clock if before is None or name in new else min(entry.clock, clock_of(before, name))
            restored = BEGINNING if name in rebuilt else restored
            must(
                clock == restored,
                "a start cuts every task back to the global clock, or to its own if that is behind",
                task=name,
                clock=clock,
            )
            if name in new:
                judge = self.judges[name] = Judge(judge.job, judge.partitions)
                self.delays[name] = terms.delay
            known, judge.inputs = judge.inputs if name not in new else (), plans[name].source_inputs
            self.happened["an input came"] += bool(known) and not {*judge.inputs} <= {*known}
            self.happened["an input left"] += not {*known} <= {*judge.inputs}
            judge.bounds = {input: plans[name].settings.of(input).bounds for input in judge.inputs}
            for input in judge.inputs if judge.job.inputs else ():
                delay = terms.delay_of(judge.job, named(input, ""))
                judge.delays[input] = min(judge.delays.get(input, delay), delay)
            self.delays[name] = min(self.delays[name], terms.delay)
        for name in {*rebuilt, *anew} - self.orders.are_reset(anew, reset):
            outputs = before.tasks[name].outputs if before and name in before.tasks else OutputState()
            for output in outputs.with_status(ACTIVE, LEFT):
                self.sinks.of[name][output].is_retired = True
        # Another start may have come between, and have built the task already: then these are just new.
        for name, places in {**rebuilt, **fresh}.items():
            self.sinks.of[name].update(places)
        for name in self.graphs.fed_by_sources(entry.tasks):
            task = entry.tasks[name]
            was_active = before is not None and name in before.tasks and before.tasks[name].active
            if (task.active or was_active) and name not in new:
                assert before is not None
                self.judges[name].leave(before.flow_of(name).source.positions, clock_of(entry, name))
                self._cut_back(self.judges[name], entry, entry.time)
        self.flows.hear(before, entry, wanted, new | anew, rebuilt)
        self.graphs.hear_start(before, entry, anew)

    def _rewind(self, before: Entry, entry: Entry) -> None:
        """What was above a kept clock has never been, but for what the source had given by then."""
        clock = entry.clock
        must(
            entry.epoch == entry.timeline == before.epoch + 1,
            "a rewind begins an epoch and a timeline",
            epoch=entry.epoch,
        )
        must(clock in before.kept, "a rewind goes to a kept clock", clock=clock, kept=before.kept)
        then = self.kept.then[before.kept[clock].entry].entry
        must(entry.retained == then.retained, "a rewind has the clocks of then", retained=entry.retained)
        must(entry.tasks.keys() == then.tasks.keys(), "a rewind has the tasks of then", tasks=[*entry.tasks])
        past = self.past[then.number]
        self.delays.update(past.delays)
        for now, some in ((self.graphs.made, past.made), (self.graphs.lives, past.lives)):
            now.clear()
            now.update(some)
        self.graphs.derived.update(past.derived)
        for name, places in self.sinks.of.items():
            for sink in places.values():
                sink.is_retired = (name, sink.output) in past.retired
        self.graphs.values.clear()
        for name, judge in self.judges.items():
            was = name in then.tasks
            self.judges[name] = past.judges[name].copied() if was else Judge(judge.job, judge.partitions)
            if was and then.tasks[name].active:
                own = min(clock, clock_of(then, name))
                must(
                    clock_of(entry, name) == own,
                    "a rewind cuts every task back",
                    task=name,
                    clock=clock_of(entry, name),
                )
                self._cut_back(self.judges[name], entry, entry.time)
        self.happened["rewind"] += 1
        self._change_source()

    def _change_source(self) -> None:
        """Let the source deliver other values, and keys, of messages that no task has taken: somebody has mended them."""
        if any(isinstance(judge.partitions, Several) for judge in self.judges.values()):
            # A task of several inputs shares some of them with others.
            return
        has_kinds = any(sink.kind for of in self.sinks.of.values() for sink in of.values())
        for partitions in {id(judge.partitions): judge.partitions for judge in self.judges.values()}.values():
            taken = {p for judge in self.judges.values() if judge.partitions is partitions for p in judge.verdicts}
            for name, sent in partitions.messages.items():
                new = []
                for m, other in zip(sent, [*sent[1:], *sent[:1]], strict=True):
                    if m.value not in (None, UNFIT_VALUE) and m.place not in taken:
                        m = replace(m, value=(7 * m.value + 3) % 100)
                        if has_kinds and not m.broken and not other.broken and m.position % 2:
                            # So that only what is void has changed some key.
                            m = replace(m, k0=other.k0, k1=other.k1)
                    new.append(m)
                partitions.messages[name][:] = new

    def _cut_back(self, judge: Judge, entry: Entry, now: int) -> None:
        """Of what is to be read again, forget all but what the clock or the rows aside hold."""
        name = judge.job.name
        known, flow = max([0, *judge.read.values()]), entry.flow_of(name)
        clock, positions = flow.progress.clock, flow.source.positions
        judge.restored = clock if judge.delivered else BEGINNING
        must(all(p.next <= known for p in positions.values()), "nothing is skipped at a start", task=name)
        aside = dict(self._rows_aside(judge, entry))

        def next_of(partition: str) -> int:
            # Nothing is read again of an input that has left.
            return positions[partition].next if partition in positions else judge.left[partition]

        for place, verdict in list(judge.verdicts.items()):
            sent, done = judge.sent(place), judge.is_below(place, clock)
            if not sent.placed:
                # It comes again, for all that anybody knows.
                if not done:
                    del judge.verdicts[place]
            elif place[1] >= next_of(place[0]) and not done and (verdict in (STATE, BEFORE) or place not in aside):
                del judge.verdicts[place]
            else:
                lost = verdict == STATE and not done
                must(not lost, "all at or above the clock is replayed", task=name, place=place, clock=clock)
        judge.read = flow.source.next_positions
        for channel, newest in judge.newest.items():
            if newest is not None and clock != BEGINNING:
                judge.reached[channel] = min(newest, clock)
            elif newest is not None:
                judge.reached.pop(channel, None)
        for channel in judge.newest.keys() - judge.heard:
            # It was only named, and is forgotten unless it is named again.
            del judge.newest[channel], judge.floor[channel]
        judge.newest = dict.fromkeys(judge.newest)
        judge.active = dict.fromkeys(judge.newest, now)
        judge.jumps.clear()
        judge.holds = True

    def _commit(self, name: str, before: Entry, entry: Entry) -> None:
        """Judge what a micro-batch read."""
        assert self.terms is not None
        judge, id, old, new = self.judges[name], entry.tasks[name].flow, before.flow_of(name), entry.flow_of(name)
        must(
            new.progress.batch == old.progress.batch + 1,
            "micro-batches follow each other",
            task=name,
            batch=new.progress.batch,
        )
        batch = self.batches[id, entry.epoch, new.progress.batch]
        now, channels = batch.now, batch.channels
        judge.journal += batch.reach.journal
        for input in judge.inputs:
            judge.journals.setdefault(input, []).extend(batch.reach.inputs.get(input, batch.reach).journal)
        limit = now + self.terms.ahead
        if new.progress.batch == 1:
            judge.active = dict.fromkeys(judge.active, now)
        jumped = {place for place, reason in self._rows_aside(judge, entry) if reason == JUMP}
        high = dict(judge.newest)
        for channel in (*(c for c in channels if judge.lists(input_of(c))), *judge.said_to_come):
            self._learn(judge, channel, old.progress.clock, now)
        judge.gone = {c for c in judge.newest if judge.lists(input_of(c)) and c not in channels}
        more = {partition for partition, left in batch.reach.lag.items() if left}
        judge.active.update(dict.fromkeys((batch.reach.held | more) & channels.keys(), now))
        read: list[Sent] = []
        unknown = 0
        for sent in self._delivered(judge, new, (id, entry.epoch, new.progress.batch)):
            is_unknown = not sent.placed and sent.timestamp is not None and sent.timestamp < judge.restored
            again = is_unknown or sent.place in judge.verdicts
            is_ours = sent.broken is not None or not judge.is_outside(sent)
            if (again or not is_ours) and sent.broken is None and judge.job.channel_of(sent) in channels:
                # A channel that comes back to where it was is not silent, nor one that has come to nothing of ours.
                judge.active[judge.job.channel_of(sent)] = now
            if is_unknown:
                judge.verdicts.setdefault(sent.place, REPLAYED_OR_LATE)
                unknown += 1
            elif sent.place not in judge.verdicts:
                read.append(sent)
                self._judge(judge, sent, old.progress.clock, limit, jumped, high, now)
            else:
                must(sent.placed, "a start delivers each message once", message=sent)
        self._find_copies(judge, read)
        judge.counts = {REPLAYED_OR_LATE: unknown, "messages": sum(m.broken is None for m in read)}
        if judge.job.fed:
            # It has met rows of another task, too.
            judge.counts = {}
        self._protected(judge, read, limit)
        self._read_right(judge, read)
        judge.touched = {
            judge.job.key_of(m) for m in read if judge.verdicts[m.place] == STATE and windows.counts(judge.job, m)
        }
        for sent in read:
            if judge.verdicts[sent.place] in MOVES:
                channel = judge.job.channel_of(sent)
                judge.active[channel] = now
                newest = judge.newest[channel]
                judge.newest[channel] = sent.timestamp if newest is None else max(newest, sent.timestamp or 0)
        self._flow_clock(judge, old, new, now, read)

    def _delivered(self, judge: Judge, new: FlowState, batch: tuple[str, int, int]) -> list[Sent]:
        """The messages that a micro-batch had, by what it says of positions or, where only Spark knows, by what Spark gave."""
        found: list[Sent] = []
        before = dict(judge.read)
        for partition, position in sorted(new.source.positions.items()):
            judge.read[partition] = position.next
            judge.known[partition] = max(judge.known.get(partition, 0), position.next)
            if not judge.partitions.by_spark:
                begin = before.get(partition, 0)
                must(
                    begin <= position.next <= judge.partitions.visible[partition],
                    "what was read is there",
                    partition=partition,
                )
                found += judge.partitions.messages[partition][begin : position.next]
        if judge.partitions.by_spark:
            found = sorted(self.delivered[batch], key=lambda m: m.place)
            judge.delivered |= {m.place for m in found}
            for m in found:
                partition = m.partition if judge.partitions.positions else ""
                before[partition] = max(before.get(partition, 0), m.position + 1 if m.placed else 0)
            must(judge.read == before, "positions are those of what was delivered", read=judge.read, expected=before)
        return found

    def _learn(self, judge: Judge, channel: str, clock: int, now: int) -> None:
        if channel not in judge.newest:
            judge.newest[channel] = None
            judge.active[channel] = now
        judge.floor.setdefault(channel, clock)

    def _judge(
        self,
        judge: Judge,
        sent: Sent,
        clock: int,
        limit: int,
        jumped: set[Place],
        high: dict[str, int | None],
        now: int,
    ) -> None:
        assert self.terms is not None
        channel, timestamp, jump = judge.job.channel_of(sent), sent.timestamp, self.terms.jump
        if sent.broken is not None:
            judge.verdicts[sent.place] = sent.broken
        elif timestamp is None:
            judge.verdicts[sent.place] = NO_TIMESTAMP
        elif judge.is_outside(sent):
            is_kept = judge.bounds[input_of(sent.partition)].keep
            judge.verdicts[sent.place] = OUTSIDE if is_kept else NOT_KEPT
            judge.outside |= set() if is_kept else {sent.place}
            self.happened["a message outside its bounds"] += 1
        elif timestamp < clock:
            self._learn(judge, channel, clock, now)
            judge.heard.add(channel)
            judge.verdicts[sent.place] = LATE
        elif timestamp > limit:
            judge.verdicts[sent.place] = AHEAD
        else:
            self._learn(judge, channel, clock, now)
            judge.heard.add(channel)
            newest = judge.newest[channel]
            newest = judge.reached.get(channel) if newest is None else newest
            if sent.place in jumped:
                # What its part of the batch had seen of the channel is at least what was seen before the batch.
                far = jump is not None and (newest is None or timestamp > newest + jump)
                must(far, "only what jumps is called a jump", message=sent, newest=newest, jump=jump)
                judge.verdicts[sent.place] = JUMP
                judge.jumps[channel] += 1
                return
            top = high.get(channel)
            believed = judge.jumps[channel] >= self.terms.believe - 1
            # A part of the first batch that begins in the middle of a partition has nothing to measure from.
            near = jump is None or newest is None or top is None or timestamp <= max(top, newest) + jump or believed
            must(near, "what jumps steps aside", message=sent, newest=top, jump=jump)
            high[channel] = timestamp if top is None else max(top, timestamp)
            judge.verdicts[sent.place] = UNFIT if judge.job.updates_of(sent) is None else STATE

    def _find_copies(self, judge: Judge, read: Sequence[Sent]) -> None:
        """Of the messages that a micro-batch read, those whose id had come before, or comes before them in time."""
        horizon = judge.job.horizon
        if horizon is None:
            return
        fresh = {m.place for m in read}
        accepted: dict[Any, list[int]] = defaultdict(list)
        for m in judge.in_state(None):
            if m.place not in fresh and windows.counts(judge.job, m):
                accepted[judge.job.key_of(m), m.id].append(m.timestamp)
        taken = [m for m in read if judge.verdicts[m.place] == STATE]
        for m in sorted(taken, key=lambda m: (*judge.job.order_of(m), m.partition)):
            times = accepted[judge.job.key_of(m), m.id]
            if m.id is None or not windows.counts(judge.job, m):
                continue
            if any(abs(m.timestamp - time) <= horizon for time in times):
                judge.verdicts[m.place] = COPY
            else:
                times.append(m.timestamp)

    def _protected(self, judge: Judge, read: Sequence[Sent], limit: int) -> None:
        """No message within the allowed delay of the newest before it in its channel is late.

        Unless it is below a clock that its channel had no say in. Of changing delays the least counts: a clock fixed under it
        stays. The messages before it are those that could have moved the clock.
        """
        name = judge.job.name
        late = {sent.partition for sent in read if judge.verdicts[sent.place] == LATE}
        for partition in late:
            newest: dict[str, int] = {}
            of_now = {sent.place for sent in read if sent.partition == partition and judge.verdicts[sent.place] == LATE}
            for sent in judge.partitions.messages[partition][: judge.partitions.visible[partition]]:
                channel, timestamp = judge.job.channel_of(sent), sent.timestamp
                if timestamp is None or sent.broken is not None or timestamp > limit or judge.is_outside(sent):
                    continue
                if sent.place in of_now and channel in judge.floor and timestamp >= judge.floor[channel]:
                    delay = judge.delays.get(input_of(channel), self.delays[name])
                    near = channel not in newest or timestamp >= newest[channel] - delay
                    must(not near, "within the allowed delay nothing is late", task=name, message=sent, newest=newest)
                newest[channel] = max(newest.get(channel, timestamp), timestamp)

    def _read_right(self, judge: Judge, read: Sequence[Sent]) -> None:
        """A task that reads its state saw all of its key processed so far that goes together with the message."""
        if judge.job.way != "reads":
            return
        seen = self.readings[judge.job.name, self.writer]
        fresh = {sent.place for sent in read}
        before, now = [m for m in judge.in_state(None) if m.place not in fresh], list[Sent]()
        current = judge.job.fold(before)
        taken = [m for m in read if judge.verdicts[m.place] in (STATE, UNFIT)]
        places = Counter((judge.job.key_of(m), m.timestamp, judge.job.channel_of(m)) for m in taken if not m.placed)
        for sent in sorted(taken, key=lambda m: (m.timestamp, judge.job.channel_of(m), not m.placed, m.position)):
            key, zero = judge.job.key_of(sent), MONOIDS[judge.job.kind].zero
            # Messages of one time without positions have no order.
            tied = not sent.placed and places[key, sent.timestamp, judge.job.channel_of(sent)] > 1
            is_plain = judge.job.windowing is None
            expected = current.get(key, zero) if is_plain else windows.read_by(judge.job, before, now, sent)
            must(
                tied or seen.get(sent.place) == expected,
                "get() is the fold of all of its key so far",
                message=sent, read=seen.get(sent.place), expected=expected,
            )  # fmt: skip
            now += [sent] if judge.verdicts[sent.place] == STATE else []
            for key, value in judge.job.fold([sent]).items():
                current[key] = MONOIDS[judge.job.kind].plus(current[key], value) if key in current else value

    def _flow_clock(self, judge: Judge, old: FlowState, new: FlowState, now: int, read: Sequence[Sent]) -> None:
        """A flow's clock is where its live channels let it be, but for the steps of a batch that spans very much."""
        assert self.terms is not None
        assert self.newest is not None
        interval, terms = self.terms.interval, self.terms
        live = [c for c in judge.newest if judge.is_live(c, terms, now)]
        listed = judge.newest.keys() - judge.gone
        # Nobody knows yet what comes of these.
        unknown = {input for input in judge.inputs if not judge.lists(input) and not judge.is_over(input)} - {
            *map(input_of, listed)
        }
        judge.holds = bool(live) or bool(unknown)
        self.happened["an input held the clock"] += bool(live and unknown)
        reached = {c: t - terms.delay_of(judge.job, c) for c, t in judge.newest.items() if t is not None}
        times = [m.timestamp for m in read if judge.verdicts[m.place] in MOVES and m.timestamp is not None]
        top = max([BEGINNING, *reached.values()])
        start = max(old.progress.clock, min(times, default=top) // interval * interval)
        needed = handful(start, top, interval, IN_BATCH)
        for segment in new.coarse:
            if segment not in old.coarse:
                joined = [old_one for old_one in old.coarse if old_one.step == segment.step]
                low, high = min([start, *(s.low for s in joined)]), max([top, *(s.high for s in joined)])
                fits = segment.step < segment.high - segment.low and low <= segment.low and segment.high <= high
                must(fits and segment.step <= needed, "intervals are no coarser than needed", coarse=segment, top=top)
        step = max([interval, *(segment.step for segment in new.coarse)])
        self.coarsest = max(self.coarsest, step, needed)
        follows = self.graphs.common(self.newest) if not judge.holds else BEGINNING
        holds = [max(reached.get(c, BEGINNING), judge.since(c)) for c in live]
        holds += [judge.since(named(input, "")) for input in unknown]
        for input in {*judge.inputs} - {*map(input_of, live)} - unknown:
            # It has yet to come to its bound, idle or not.
            since, own = judge.since(named(input, "")), [c for c in listed if input_of(c) == input]
            has_ended = judge.is_over(input) or (own and all(map(judge.is_ended, own)))
            holds += [since] if since > old.progress.clock and not has_ended else []
        if holds:
            bound = min(holds)
            self.happened["history held the clock"] += (
                BEGINNING < bound < max(judge.since(named(input, "")) for input in judge.inputs)
            )
            highest = bound // interval * interval
            lowest = bound // step * step
        else:
            tops = [t for t in judge.newest.values() if t is not None]
            ended = bool(tops) and all(judge.is_ended(c) for c in listed)
            highest = lowest = (max(tops) // interval + 1) * interval if ended else BEGINNING
            if ended and max(tops) < old.progress.clock:
                # It is above all of it already, on the grid of another interval perhaps.
                lowest = BEGINNING
        facts = {
            "task": judge.job.name,
            "clock": new.progress.clock,
            "before": old.progress.clock,
            "coarse": new.coarse,
            "newest": judge.newest,
        }
        must(
            new.progress.clock <= max(old.progress.clock, highest, follows),
            "no clock beyond what live channels let it",
            **facts,
        )
        must(
            new.progress.clock >= max(old.progress.clock, lowest, follows),
            "a clock moves when all live channels have delivered",
            **facts,
        )

    def _clocks(self, before: Entry, entry: Entry, moved: Sequence[str], is_close: bool) -> None:
        assert self.terms is not None
        must(entry.clock >= before.clock, "the global clock never goes back", clock=entry.clock, before=before.clock)
        holding, common = [], self.graphs.common(entry)
        for name in self.graphs.fed_by_sources(entry.tasks):
            task = entry.tasks[name]
            old, judge, flow = before.flow_of(name), self.judges[name], entry.flow_of(name)
            own, was = flow.progress.clock, old.progress.clock
            if not task.active:
                must((task, flow) == (before.tasks[name], old), "a task that is gone stays as it was", task=name)
                continue
            is_behind = judge.holds and was < before.clock
            must(own >= (was if is_behind else max(was, entry.clock)), "no clock goes back", task=name, clock=own)
            for clock in (own, *task.stored.cuts):
                fine = clock == BEGINNING or any(clock % interval == 0 for interval in self.intervals)
                must(fine, "clocks are multiples of the interval", task=name, clock=clock)
            now = self._now(name, entry)
            for channel in judge.newest:
                if not judge.is_live(channel, self.terms, now) or is_close:
                    judge.floor[channel] = max(judge.floor[channel], own)
            if not is_close and name not in moved and own != was:
                must(not judge.holds, "no task is moved by another while it holds the clock", task=name)
            if judge.holds:
                holding.append(own)
        waits = common == self.graphs.common(before) or common <= min(holding, default=common)
        must(waits, "the global clock waits for every task", clock=entry.clock, common=common)
        self._global_clock(before, entry, holding)
        if entry.clock != before.clock:
            clocks = (*before.retained, entry.clock)
            oldest = clocks[-self.terms.keeping.clocks :][0]
            waits = [last for task in entry.tasks.values() if task.active for last in task.outputs.delivered.values()]
            kept = tuple(clock for clock in clocks if clock >= min([oldest, *waits]))
            must(entry.retained == kept, "clocks are retained", retained=entry.retained, expected=kept)
        if is_close:
            fed = self.graphs.fed_by_sources(entry.tasks)
            actives = {clock_of(entry, name) for name in fed if entry.tasks[name].active}
            closed = {max(actives)} if self.graphs.is_waiting(entry) else {common}
            must(actives == closed, "a close gives every task one clock", clocks=actives)

    def _global_clock(self, before: Entry, entry: Entry, holding: Sequence[int]) -> None:
        """The global clock is at most one step of the coarsest grid behind the slowest task that holds it.

        The grid is that of a handful of clocks between the global clock and the fastest task, or of a batch that had to be
        coarser. For a task that stood behind the global clock the handful counts from where it stood, and before there is a
        global clock from its first message or its first clock, which the allowed delay may set below that.

        Before the first message of its own, a task that another feeds, too, keeps nothing apart but the clocks of its steps. A
        task that had no clock yet when there was a global one, as after a rewind, names no clock below its first message.
        Others, which are idle and coarse, then go on with it when it names one at which they can be read.
        """
        fed, common = self.graphs.fed_by_sources(entry.tasks), self.graphs.common(entry)
        active = [clock_of(entry, name) for name in fed if entry.tasks[name].active]
        # While derived tasks step to the common clock, the tasks that sources feed go on.
        is_chosen = not self.graphs.is_waiting(entry) or common != self.graphs.common(before)
        if len(active) == 1 and is_chosen:
            only = max(before.clock, active[0])
            must(common == only, "the clock of the only task is the global one", clock=common, task=active)
        for name in fed:
            task, clock = entry.tasks[name], clock_of(entry, name)
            if task.active and clock != BEGINNING:
                lows = [low for low in (before.clock, clock_of(before, name)) if low != BEGINNING]
                if len(lows) < 2:
                    times = [m.timestamp for m in self.judges[name].in_state(clock) if m.timestamp is not None]
                    own = [cut for cut in before.tasks[name].stored.cuts if cut != BEGINNING]
                    lows.append(min([*times, *own], default=clock))
                self.coarsest = max(self.coarsest, handful(min(lows), clock, entry.interval, AHEAD_OF_GLOBAL))
        if before.clock != BEGINNING and holding and is_chosen:
            least = min(holding) - self.coarsest
            facts = {"clock": common, "tasks": active, "step": self.coarsest, "before": before.clock}
            begins = {name for name in fed if entry.tasks[name].active and clock_of(before, name) == BEGINNING}
            names_none = {*self.graphs.mixed, *begins} & entry.tasks.keys()
            taken = [self.judges[name].in_state(None) for name in names_none]
            if any(not some or min(m.timestamp for m in some) > least for some in taken):
                return
            must(common >= least, "the global clock is at most a step behind the slowest task", **facts)

    def _rows_aside(self, judge: Judge, entry: Entry) -> list[tuple[Place, str]]:
        found = []
        for side in late_rows.all_of(self.files, entry.late_rows_of(judge.job.name)):
            key = side.file.path, repr(side.cuts)
            if key not in judge.rows:
                judge.rows[key] = [
                    (self._place_of(judge, row), row["reason"]) for row in late_rows.read(self.files, side).to_pylist()
                ]
            found += judge.rows[key]
        return found

    def _place_of(self, judge: Judge, aside: Mapping[str, Any]) -> Place:
        """Of which message this row aside is made."""
        said, row, input = (aside["strand"], aside["position"]), aside["row"], ""
        if row is not None and "strand" not in row:
            # Of several inputs, each has a field of its own.
            (row, input), *more = [
                *((of, "" if n == "input" else n) for n, of in row.items() if of is not None),
                (None, ""),
            ]
            must(len(more) < 2, "a row aside is of one input", row=aside)
        if row is None:
            return said
        sent = judge.sent((named(input, row["strand"]), row["position"]))
        told = sent.partition if judge.partitions.positions else "", sent.position if sent.placed else None
        must(said == told, "a row aside says where it stood", row=aside)
        return sent.place

    def _aside(self, before: Entry | None, entry: Entry) -> None:
        """Rows aside are those that should be, each once, for the right reason."""
        for name in self.graphs.fed_by_sources(entry.tasks):
            judge = self.judges[name]
            rows = self._rows_aside(judge, entry)
            facts = {"task": name, "differ": set(rows) ^ set(judge.aside().items())}
            must(dict(rows) == judge.aside(), "aside is what should be", **facts)
            must(len(rows) == len(judge.aside()), "aside is each row once", task=name, rows=rows)
            counts = entry.late_rows_of(name).counts()
            expected = Counter(judge.aside().values()) + Counter({OUTSIDE: len(judge.outside)})
            must(counts == expected, "rows aside are counted", task=name, counts=counts, expected=expected)
            of_flow = entry.flow_of(name).late_rows.counts()
            must(
                UNFIT not in of_flow, "a row that does not fit a task is aside for that task", task=name, counts=of_flow
            )

    def _states(self, before: Entry | None, entry: Entry) -> None:
        for name in self.graphs.fed_by_sources(entry.tasks):
            task = entry.tasks[name]
            known = (before.tasks[name], before.flow_of(name)) if before and name in before.tasks else None
            if known != (task, entry.flow_of(name)):
                for clock in {entry.clock, clock_of(entry, name), *entry.retained, None}:
                    self.check_state(name, entry, clock)

    def check_state(self, name: str, entry: Entry, clock: int | None) -> None:
        """The state of a task at a clock (None: all of it) is the fold of the messages below that were not set aside."""
        judge, task = self.judges[name], entry.tasks[name]
        job, layout, at = judge.job, self.layouts[name], clock
        if not self.graphs.goes_on(name):
            # What feeds it has begun anew since it left.
            return
        if job.ordered is not None:
            # In it there is nothing at a clock, and what waits is looked at once.
            if clock is None:
                self.orders.check_waiting(job.ordered, entry)
            return
        if clock is None:
            at = END
            if job.windowing is not None:
                # All that may not be gone yet.
                levels, at = [runs_io.read_run(self.files, run) for run in task.stored.runs], task.stored.floor
                if isinstance(layout.kind, Living):
                    windowing = SessionWindow(us(layout.kind.gap))
                    job, layout = replace(job, windowing=windowing), replace(layout, kind=kind_of(windowing))
                table = layout.kind.state([layout.schema.empty_table(), *levels], layout, at)
        if clock is not None or job.windowing is None:
            table = seen_below(self.files, task.stored.runs, layout, at)
        found = as_dict(table, layout)
        messages: list[Any] = judge.in_state(clock)
        if job.fed:
            stepped = entry.flow_of(name).stepped
            messages += self.graphs.rows_for(judge.job, stepped if clock is None else min(clock, stepped))
            self.happened["another task fed"] += stepped != BEGINNING
        expected = windows.state_at(job, messages, at)
        must(len(found) == table.num_rows, "a key has one row", task=name, clock=clock, found=found)
        if job.is_made_of_state:
            found, expected = ({key: value for key, value in some.items() if value} for some in (found, expected))
        differ = {k: (found.get(k), expected.get(k)) for k in {*found, *expected} if found.get(k) != expected.get(k)}
        facts = {"task": name, "clock": clock, "differ (found, expected)": differ}
        must(found == expected, "the state at a clock is the fold of the messages below it", **facts)
        if clock is not None and clock <= min(entry.clock, entry.flow_of(name).visited):
            was = judge.was_read.setdefault(clock, found)
            must(found == was, "a state once readable never changes", **facts)


def clock_of(entry: Entry, name: str) -> int:
    """The clock of a task's flow."""
    return entry.flow_of(name).progress.clock


def handful(low: int, high: int, interval: int, most: int) -> int:
    """The least doubling of the interval of which at most so many multiples lie between."""
    step = interval
    while sum(1 for k in range(low // step + 1, low // step + most + 2) if k * step < high) > most:
        step *= 2
    return step


def as_dict(table: Any, layout: Layout) -> dict[tuple[Any, ...], Any]:
    table = whole_times(table)
    keys = [table[name].to_pylist() for name in table.column_names if name not in ("hash", "value")]
    values = layout.monoid.from_arrow(one_chunk(table["value"]))
    return dict(zip(zip(*keys, strict=True) if keys else [()] * len(values), values, strict=True))
