"""The sinks of a world, which stand outside for all drivers, and what must be true of all that they are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from persistent_state.errors import FencedError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol.deliver import Due
from persistent_state.store.entry import Entry
from tests.simulation import windows
from tests.simulation.messages import Job, Sent

if TYPE_CHECKING:
    from tests.simulation.actor import Actor
    from tests.simulation.graphs import Graphs
    from tests.simulation.oracle import Judge

Values = Mapping[tuple[Any, ...], Any]
Life = tuple[int, int]
"""By what an entry tells the lives of a task apart: the clock at which it began, and the start that built it."""

HISTORY, NEWEST, PARTS, FUNCTION, AGAIN, STUBBORN = "history", "newest", "parts", "function", "again", "stubborn"
"""Kinds of sinks of applications that go back: one that has all it was given, or the newest value of each key, or writes a
clock in two parts; a function that takes back what it did, one that is given clocks again; one that can't go back."""

GO_BACK = (HISTORY, NEWEST, PARTS, FUNCTION)
RECORD = (HISTORY, NEWEST, PARTS, STUBBORN)


def _without(values: Values, keys: Iterable[tuple[Any, ...]]) -> Values:
    left_out = {*keys}
    return {key: value for key, value in values.items() if key not in left_out}


def life_in(entry: Entry, task: str) -> Life:
    """The life of a task by an entry."""
    return entry.tasks[task].born, entry.tasks[task].life


@dataclass(frozen=True)
class Given:
    """What was written to a sink at a clock, and whether it was all that there was."""

    clock: int
    is_all: bool
    values: Mapping[tuple[Any, ...], Any]
    timeline: int
    life: Life


@dataclass(frozen=True)
class Past:
    """What was true at an entry: the lives of each task up to it, in its timeline, and the floor of each sink."""

    lives: Mapping[str, frozenset[Life]]
    floors: Mapping[tuple[str, str], int]


@dataclass(eq=False)
class WorldSink:
    """A place that values at clocks are written to. One that `keeps_record` knows the last clock, and takes none again."""

    task: str
    output: str
    keeps_record: bool
    early: bool = False
    applied: int = BEGINNING
    seen: set[int] = field(default_factory=set)
    mirror: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """The newest value of each key, and of each window."""
    begun: int = BEGINNING
    """The clock below which windows may have closed before it was there."""
    floor: int = BEGINNING
    """The same, as the log said when it came."""
    owed: set[int] = field(default_factory=set)
    """The clocks that it has yet to be given, as the log says."""
    life: Life | None = None
    is_retired: bool = False
    """Whether its task was built again since: it is given nothing any more."""
    kind: str = ""
    timeline: int = 0
    given: list[Given] = field(default_factory=list)
    """What is in it, if it is of an application that goes back."""
    halves: dict[Any, dict[tuple[Any, ...], Any]] = field(default_factory=dict)
    """By what is being written in parts: what is written of it."""

    def write_half(self, timeline: int, clock: int, values: Values) -> None:
        """Write the first part of a clock, unless it is there."""
        if timeline >= self.timeline:
            self.halves.setdefault(self.half_of(timeline, clock), dict([*values.items()][::2]))

    def half_of(self, timeline: int, clock: int) -> object:
        """By what the first part of a clock is found."""
        return (timeline, clock)

    def left_out(self, timeline: int) -> set[int]:
        """The clocks that it is not given any more: a writer of an earlier timeline, that lacked them, gave it a later one."""
        before = max((given.clock for given in self.given if given.timeline < timeline), default=BEGINNING)
        return {clock for clock in self.owed if clock < before}

    def is_fenced(self, timeline: int) -> bool:
        """Whether a writer of this timeline comes too late."""
        return timeline < self.timeline

    def put(self, given: Given) -> None:
        """Have values at a clock, and say so in the record, in one step."""
        half = self.halves.pop(self.half_of(given.timeline, given.clock), {}) if self.kind == PARTS else {}
        self.given.append(replace(given, values={**given.values, **half}))
        self.timeline, self.applied = given.timeline, given.clock
        self._see()

    def go_back(self, timeline: int, clock: int, then: Values) -> None:
        """Take back what is above a clock, by the values of then, in one step with the record."""
        left = [given for given in self.given if given.clock <= clock]
        if self.kind == NEWEST and left and self.applied >= clock:
            # It has one row of each key. Of a key that has changed since, nothing older is left.
            lost = {key for given in self.given if given.clock > clock for key in given.values}
            left = [replace(given, values=_without(given.values, lost)) for given in left]
            # An earlier rewind may have deleted a key that was there at this clock.
            cells = _without(then, self.mirror.keys() - lost)
            left.append(Given(clock, False, cells, timeline, left[-1].life))
        self.given = left
        self.timeline, self.applied = timeline, min(self.applied, clock)
        # It may go back to a life of its task before the one of which it was given last.
        self.life = left[-1].life if left else None
        self._see()

    def _see(self) -> None:
        self.mirror.clear()
        for given in self.given:
            if given.is_all:
                self.mirror.clear()
            self.mirror.update(given.values)

    def last(self, actor: Actor) -> int | None:
        """The last clock that it has, if it keeps a record."""
        if not self.keeps_record:
            return None
        applied: int = actor.perform("open", f"{self.task} {self.output}", lambda: self.applied)
        return applied

    def lose_all(self) -> None:
        """The place is emptied, behind everyone's back."""
        self.applied = BEGINNING
        self.seen.clear()
        self.mirror.clear()
        self.given.clear()
        self.halves.clear()


class Sinks:
    """What the oracle knows of the sinks: `hear` is called with every entry, `write` with all that is written to one."""

    def __init__(self, judges: Mapping[str, Judge], graphs: Graphs, must: Any) -> None:
        self.judges = judges
        self.graphs = graphs
        self.must = must
        self.of: dict[str, dict[str, WorldSink]] = {}
        self.lives: dict[str, object] = {}
        """By task, its life when the last entry was heard."""
        self.past: dict[int, Past] = {}
        """By entry: what was true then."""
        self.rewinds: list[tuple[int, Mapping[str, int]]] = []
        """Timelines, and where each task stands when it begins."""

    def hear(self, before: Entry | None, entry: Entry) -> None:
        number = None if before is None else before.number
        if before is not None and entry.timeline != before.timeline:
            number = before.kept[entry.clock].entry
            stood = {name: min(entry.clock, entry.flow_of(name).visited) for name in entry.tasks}
            self.rewinds.append((entry.timeline, stood))
        known = {} if number is None else self.past[number].lives
        lives = {name: known.get(name, frozenset()) | {life_in(entry, name)} for name in entry.tasks}
        if before is not None and number is not None and entry.timeline != before.timeline:
            self._rewind(before, entry, self.past[number])
        else:
            self._hear(before, entry)
        outputs = ((name, output) for name, task in entry.tasks.items() for output in task.outputs.delivered)
        floors = {(name, output): self.of[name][output].floor for name, output in outputs}
        self.past[entry.number] = Past({**known, **lives}, floors)

    def _hear(self, before: Entry | None, entry: Entry) -> None:
        for name, task in entry.tasks.items():
            was = before.tasks[name] if before is not None and name in before.tasks else None
            for output, sink in self.of.get(name, {}).items():
                if not task.active or output not in task.outputs.delivered:
                    sink.owed.clear()
                    continue
                known = was is not None and was.active and output in was.outputs.delivered
                is_same = self.lives.get(name) is self._life_of(name)
                self._hear_output(sink, before if known and is_same else None, entry)
            self.lives[name] = self._life_of(name)

    def _rewind(self, before: Entry, entry: Entry, past: Past) -> None:
        """What was above a clock has never been, but for what sinks have, which they owe."""
        clock = entry.clock
        for name, sinks in self.of.items():
            task, stood = entry.tasks.get(name), self.rewinds[-1][1].get(name, BEGINNING)
            for output, sink in sinks.items():
                owed, was = entry.owed(name, output), before.owed(name, output)
                facts = {"task": name, "output": output, "kind": sink.kind, "applied": sink.applied, "clock": clock}
                if sink.kind and sink.kind != AGAIN:
                    must_go = sink.applied > stood or was is not None
                    self.must(not must_go or owed is not None, "what a sink has above the clock is owed", **facts)
                if owed is not None:
                    self.must(sink.kind != STUBBORN, "a sink that can't go back is refused", **facts)
                    lowest = min(clock, was.clock) if was is not None else clock
                    is_low = owed.timeline == entry.timeline and owed.clock <= lowest
                    self.must(is_low, "what is owed adds up", owed=owed, lowest=lowest, **facts)
                if task is not None:
                    sink.floor = past.floors.get((name, output), task.stored.floor)
                sink.seen = {each for each in sink.seen if each <= clock}
                last = task.outputs.delivered.get(output, BEGINNING) if task else BEGINNING
                if sink.kind == AGAIN:
                    sink.applied = min(sink.applied, last)
                sink.owed = {each for each in entry.retained if task and max(last, task.born) < each <= clock}
            self.lives.pop(name, None)
            if task is not None:
                self.lives[name] = self._life_of(name)

    def write_late(self, sink: WorldSink, by: Entry, due: Due, values: Values) -> None:
        """A driver of a timeline that has ended writes values. A sink with a record may have gone back before or after that."""
        if sink.kind not in RECORD or due.clock <= sink.applied:
            return
        if sink.is_fenced(by.timeline):
            raise FencedError("the sink is in a later timeline.")
        life = life_in(by, sink.task)
        if due.since == BEGINNING:
            sink.life, sink.begun = life, by.tasks[sink.task].stored.floor
        sink.seen.add(due.clock)
        sink.put(Given(due.clock, due.since == BEGINNING, self.keyed(sink, values), by.timeline, life))

    def keyed(self, sink: WorldSink, values: Values) -> dict[Any, Any]:
        """Values by key, or by key and window."""
        early = len(self.graphs.job(sink.task).keys) + 2
        return {key[:early]: (*key[early:], value) for key, value in values.items()} if sink.early else dict(values)

    def go_back(
        self, newest: Entry, sink: WorldSink, epoch: int, timeline: int, clock: int, entry: Entry | None, then: Values
    ) -> None:
        """A driver, perhaps one that is fenced, lets a sink go back to a clock, with the values of then by an entry."""
        if sink.kind not in RECORD and epoch != newest.epoch:
            # Nobody can tell a function that.
            return
        if sink.kind in RECORD and sink.timeline >= timeline:
            return
        # One that was new above the clock has nothing then.
        had_it = sink.applied >= clock and any(given.clock <= clock for given in sink.given)
        there = self.keyed(sink, then)
        sink.go_back(timeline, clock, there)
        if sink.kind == NEWEST and had_it and entry is not None:
            # It is given windows that had closed before it was new, if that entry still has them.
            sink.begun = min(sink.begun, entry.tasks[sink.task].stored.floor)
        has = {key: sink.mirror.get(key) for key in there}
        facts = {"task": sink.task, "output": sink.output, "kind": sink.kind, "clock": clock}
        self.must(
            not had_it or has == there, "a sink that went back has what its state has", has=has, there=there, **facts
        )
        sink.seen = {each for each in sink.seen if each <= clock}
        if timeline == newest.timeline:
            self._check_void(newest, sink)

    def _check_void(self, newest: Entry, sink: WorldSink) -> None:
        """Nothing that a sink has is of what has never been, once it has gone back."""
        lives = self.past[newest.number].lives.get(sink.task, frozenset())
        facts = {"task": sink.task, "output": sink.output, "kind": sink.kind}
        for given in sink.given if sink.kind != AGAIN else ():
            at = {"clock": given.clock, "timeline": given.timeline, "life": given.life}
            self.must(given.life in lives, "a sink has nothing of a life that is void", lives=lives, **at, **facts)
            is_void = any(
                given.timeline < timeline and given.clock > stood.get(sink.task, BEGINNING)
                for timeline, stood in self.rewinds
            )
            self.must(not is_void, "a sink has nothing of another timeline", **at, **facts)

    def _life_of(self, name: str) -> object:
        """What a task is until it begins anew."""
        return self.judges[name] if name in self.judges else self.graphs.made[name].life

    def _hear_output(self, sink: WorldSink, before: Entry | None, entry: Entry) -> None:
        must, task = self.must, entry.tasks[sink.task]
        last, retained = task.outputs.delivered[sink.output], set(entry.retained)
        facts = {"task": sink.task, "output": sink.output, "delivered": last, "retained": entry.retained}
        old = before.tasks[sink.task].outputs.delivered[sink.output] if before is not None else None
        must(old is None or last >= old or entry.epoch == before.epoch, "a start keeps how far was delivered", **facts)
        if before is None or old is None or last < old:
            # It is new, or has lost what it had: what is still there is given to it.
            had = sink.applied if sink.keeps_record else BEGINNING
            sink.floor = task.stored.floor
            sink.owed = {clock for clock in retained if clock > max(last, task.born, had)}
        else:
            must(old not in before.retained or last > old or old in retained, "the last given stays retained", **facts)
            if entry.clock > before.clock:
                sink.owed.add(entry.clock)
        sink.owed -= sink.left_out(entry.timeline)
        done = {clock for clock in sink.owed if clock <= last}
        must(done <= sink.seen, "only what was delivered is recorded", missing=done - sink.seen, **facts)
        sink.owed -= done
        must(sink.owed <= retained, "a checkpoint stays until it is delivered", missing=sink.owed - retained, **facts)

    def write(self, newest: Entry, sink: WorldSink, by: Entry, due: Due, values: Values, epoch: int) -> None:
        """A driver, perhaps one that is fenced, writes values at a clock `by` an entry."""
        clock, since, floor = due.clock, due.since, by.tasks[sink.task].stored.floor
        if sink.kind and by.timeline < newest.timeline:
            self.write_late(sink, by, due, values)
            return
        life, must = life_in(by, sink.task), self.must
        if sink.kind and epoch == newest.epoch:
            is_paid = newest.owed(sink.task, sink.output) is None
            must(is_paid, "a sink goes back before it is given a clock", task=sink.task, clock=clock)
        if clock <= sink.applied and sink.keeps_record:
            return
        if life != life_in(newest, sink.task) or not self.graphs.goes_on(sink.task):
            # Of a life before this one.
            if sink.kind:
                sink.put(Given(clock, since == BEGINNING, self.keyed(sink, values), by.timeline, life))
            sink.applied = max(sink.applied, clock)
            return
        had = (
            {key: value for given in sink.given for key, value in given.values.items()}
            if sink.kind
            else {**sink.mirror}
        )
        if sink.life != life:
            sink.life = life
            sink.mirror.clear()
        job = self.graphs.job(sink.task)
        below = [] if self.graphs.orders.is_part(sink.task) else self.graphs.fed(sink.task, clock)
        if self.graphs.orders.is_part(sink.task):
            given = self.graphs.orders.given_at(job, due, floor)
        elif self.graphs.is_made_of_state(sink.task):
            # Which keys have changed on the way to the clock is by chance.
            given = self.graphs.with_zeros(sink.task, clock, values)
        else:
            given = windows.given_at(job, below, due, floor, sink.early)
        facts = {"task": sink.task, "output": sink.output, "clock": clock, "since": since, "values": values}
        must(clock <= newest.clock, "nothing above the global clock is given out", **facts)
        must(values == given, "values are the checkpoint's own, of what changed", expected=given, **facts)
        sink.seen.add(clock)
        # What went back below all that it was given has nothing of the clock to which it went.
        if clock > sink.applied or (clock == sink.applied and since == BEGINNING):
            missed = {owed for owed in sink.owed if owed < clock} - sink.seen - sink.left_out(by.timeline)
            must(not missed, "clocks are delivered in their order", missed=missed, **facts)
            if since == BEGINNING or (job.windowing is not None and since < floor):
                # It is new, or comes back when what closed or expired meanwhile is gone.
                must(
                    floor <= max(sink.floor, sink.applied), "nothing expires before it was given", floor=floor, **facts
                )
                sink.mirror.clear()
                sink.begun = floor
            more = self.keyed(sink, values)
            if job.is_windowed and sink.keeps_record:
                again = {window for window in more if window in had and not (sink.early and not had[window][0])}
                must(not again, "a window closes once", again=again, **facts)
            if sink.kind:
                sink.put(Given(clock, not sink.mirror, more, by.timeline, life))
                self._check_void(newest, sink)
            else:
                sink.mirror.update(more)
            sink.applied = clock
            full = self._full(sink, job, below, clock)
            if sink.kind == AGAIN:
                # What there is only in an earlier timeline stays.
                there = {key: value for key, value in full.items() if value != job.zero}
                has = {key: sink.mirror.get(key) for key in there}
                must(has == there, "a sink that is given clocks again has it all", has=has, full=there, **facts)
                return
            if self.graphs.is_made_of_state(sink.task):
                full = self.graphs.with_zeros(sink.task, clock, {*sink.mirror, *full})
            must(
                sink.mirror == full,
                "a sink that was given all changes has it all",
                mirror=sink.mirror,
                full=full,
                **facts,
            )

    def _full(self, sink: WorldSink, job: Job, below: list[Sent], clock: int) -> Values:
        """What a sink has that was given all at this clock."""
        if self.graphs.orders.is_part(sink.task):
            return self.graphs.orders.full(self.graphs.orders.part(sink.task), sink.mirror, sink.begun, clock)
        if job.is_windowed:
            all_ = windows.given_at(job, below, Due(clock, BEGINNING, BEGINNING), sink.begun, sink.early)
            keys = len(job.keys) + 2
            return {key[:keys]: (*key[keys:], value) for key, value in all_.items()} if sink.early else all_
        # What a key was that has expired is zero.
        zeros = dict.fromkeys(sink.mirror, job.zero) if job.windowing else {}
        return {**zeros, **windows.state_at(job, below, clock)}

    def finish(self, newest: Entry, name: str) -> None:
        """All of a task's outputs have been delivered."""
        for sink in self.of.get(name, {}).values():
            self.must(not sink.owed, "in the end all is delivered", task=name, output=sink.output, owed=sink.owed)
            if name in newest.tasks and newest.owed(name, sink.output) is None:
                self._check_void(newest, sink)

    def is_owing(self, newest: Entry) -> bool:
        """Whether a sink has yet to go back."""
        return any(newest.owed(name, output) for name, sinks in self.of.items() for output in sinks)
