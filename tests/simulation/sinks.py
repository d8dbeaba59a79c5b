"""The sinks of a world, which stand outside for all drivers, and what must be true of all that they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

HISTORY, NEWEST, PARTS, FUNCTION, AGAIN, STUBBORN = "history", "newest", "parts", "function", "again", "stubborn"
"""Kinds of sinks of applications that go back: one that has all it was given, or the newest value of each key, or writes a
clock in two parts; a function that takes back what it did, one that is given clocks again; one that can't go back."""

GO_BACK = (HISTORY, NEWEST, PARTS, FUNCTION)
RECORD = (HISTORY, NEWEST, PARTS, STUBBORN)


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
    life: object = None
    is_retired: bool = False
    """Whether its task was built again since: it is given nothing any more."""
    kind: str = ""
    timeline: int = 0
    given: list[tuple[int, bool, dict[tuple[Any, ...], Any]]] = field(default_factory=list)
    """What was written to it: the clock, whether it was all that there was, and the values."""
    halves: dict[Any, dict[tuple[Any, ...], Any]] = field(default_factory=dict)
    """By what is being written in parts: what is written of it."""

    def write_half(self, timeline: int, clock: int, values: Values) -> None:
        """Write the first part of a clock, unless it is there."""
        if timeline >= self.timeline:
            self.halves.setdefault(self.half_of(timeline, clock), dict([*values.items()][::2]))

    def half_of(self, timeline: int, clock: int) -> object:
        """By what the first part of a clock is found."""
        return (timeline, clock)

    def is_fenced(self, timeline: int) -> bool:
        """Whether a writer of this timeline comes too late."""
        return timeline < self.timeline

    def put(self, timeline: int, clock: int, is_all: bool, values: Values) -> None:
        """Have values at a clock, and say so in the record, in one step."""
        half = self.halves.pop(self.half_of(timeline, clock), {}) if self.kind == PARTS else {}
        self.given.append((clock, is_all, {**values, **half}))
        self.timeline, self.applied = timeline, clock
        self._see()

    def go_back(self, timeline: int, clock: int, then: Values) -> None:
        """Take back what is above a clock, by the values of then, in one step with the record."""
        if self.kind in RECORD and self.timeline >= timeline:
            return
        left = [(at, is_all, values) for at, is_all, values in self.given if at <= clock]
        if self.kind == NEWEST:
            lost = {key for at, _, values in self.given if at > clock for key in values}
            cells = {key: value for key, value in self.mirror.items() if key not in lost}
            left = [(clock, True, cells | {key: value for key, value in then.items() if key in lost})]
        self.given = left
        self.timeline, self.applied = timeline, min(self.applied, clock)
        self._see()

    def _see(self) -> None:
        self.mirror.clear()
        for _, is_all, values in self.given:
            if is_all:
                self.mirror.clear()
            self.mirror.update(values)

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

    def hear(self, before: Entry | None, entry: Entry) -> None:
        if before is not None and entry.timeline != before.timeline:
            self._rewind(before, entry)
            return
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

    def _rewind(self, before: Entry, entry: Entry) -> None:
        """What was above a clock has never been, but for what sinks have, which they owe."""
        clock = entry.clock
        for name, sinks in self.of.items():
            task = entry.tasks.get(name)
            for output, sink in sinks.items():
                owed, was = entry.owed(name, output), before.owed(name, output)
                facts = {"task": name, "output": output, "kind": sink.kind, "applied": sink.applied, "clock": clock}
                if task is not None and sink.life is self.lives.get(name):
                    sink.life = self._life_of(name)
                if sink.kind == AGAIN:
                    sink.applied = min(sink.applied, clock)
                elif sink.kind:
                    must_go = sink.applied > clock or was is not None
                    self.must(not must_go or owed is not None, "what a sink has above the clock is owed", **facts)
                if owed is not None:
                    self.must(sink.kind != STUBBORN, "a sink that can't go back is refused", **facts)
                    lowest = min(clock, was.clock) if was is not None else clock
                    self.must((owed.timeline, owed.clock) == (entry.timeline, lowest), "what is owed adds up", **facts)
                sink.seen = {each for each in sink.seen if each <= clock}
                last = task.outputs.delivered.get(output, BEGINNING) if task else BEGINNING
                sink.owed = {each for each in entry.retained if task and max(last, task.born) < each <= clock}
            self.lives.pop(name, None)
            if task is not None:
                self.lives[name] = self._life_of(name)

    def write_late(self, newest: Entry, sink: WorldSink, timeline: int, due: Due, floor: int, values: Values) -> None:
        """A driver of a timeline that has ended writes values. A sink with a record may have gone back before or after that."""
        if sink.kind not in RECORD or due.clock <= sink.applied:
            return
        if sink.is_fenced(timeline):
            raise FencedError("the sink is in a later timeline.")
        if due.since == BEGINNING and sink.task in newest.tasks and due.clock > newest.tasks[sink.task].born:
            sink.life, sink.begun = self._life_of(sink.task), floor
        sink.seen.add(due.clock)
        sink.put(timeline, due.clock, due.since == BEGINNING, self.keyed(sink, values))

    def keyed(self, sink: WorldSink, values: Values) -> dict[Any, Any]:
        """Values by key, or by key and window."""
        early = len(self.graphs.job(sink.task).keys) + 2
        return {key[:early]: (*key[early:], value) for key, value in values.items()} if sink.early else dict(values)

    def go_back(self, newest: Entry, sink: WorldSink, epoch: int, timeline: int, clock: int, then: Values) -> None:
        """A driver, perhaps one that is fenced, lets a sink go back to a clock, with the values of then."""
        if sink.kind not in RECORD and epoch != newest.epoch:
            # Nobody can tell a function that.
            return
        if sink.kind in RECORD and all(at > clock for at, _, _ in sink.given):
            # It has begun above the clock, and says now that it has come to it.
            sink.seen.add(clock)
        sink.go_back(timeline, clock, self.keyed(sink, then))
        sink.seen = {each for each in sink.seen if each <= clock}

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
        done = {clock for clock in sink.owed if clock <= last}
        must(done <= sink.seen, "only what was delivered is recorded", missing=done - sink.seen, **facts)
        sink.owed -= done
        must(sink.owed <= retained, "a checkpoint stays until it is delivered", missing=sink.owed - retained, **facts)

    def write(
        self, newest: Entry, sink: WorldSink, due: Due, floor: int, values: Values, timeline: int, epoch: int
    ) -> None:
        """A driver, perhaps one that is fenced, writes values at a clock; what expired by `floor` may be gone."""
        clock, since = due.clock, due.since
        if sink.kind and timeline < newest.timeline:
            self.write_late(newest, sink, timeline, due, floor, values)
            return
        life, task, must = self._life_of(sink.task), newest.tasks[sink.task], self.must
        if sink.kind and epoch == newest.epoch:
            is_paid = newest.owed(sink.task, sink.output) is None
            must(is_paid, "a sink goes back before it is given a clock", task=sink.task, clock=clock)
        if sink.is_retired or not self.graphs.goes_on(sink.task):
            return
        if sink.life is not life:
            sink.life = life
            sink.mirror.clear()
        if clock <= task.born:
            # Of a life before this one.
            sink.applied = max(sink.applied, clock)
            return
        if clock <= sink.applied and sink.keeps_record:
            return
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
            missed = {owed for owed in sink.owed if owed < clock} - sink.seen
            must(not missed, "clocks are delivered in their order", missed=missed, **facts)
            if since == BEGINNING or (job.windowing is not None and since < floor):
                # It is new, or comes back when what closed or expired meanwhile is gone.
                must(
                    floor <= max(sink.floor, sink.applied), "nothing expires before it was given", floor=floor, **facts
                )
                sink.mirror.clear()
                sink.begun = floor
            more = self.keyed(sink, values)
            if job.is_windowed and sink.kind != AGAIN:
                again = {
                    window
                    for window in more
                    if window in sink.mirror and not (sink.early and not sink.mirror[window][0])
                }
                must(not again, "a window closes once", again=again, **facts)
            if sink.kind:
                sink.put(timeline, clock, not sink.mirror, more)
            else:
                sink.mirror.update(more)
            sink.applied = clock
            if sink.kind == AGAIN:
                # What only an earlier timeline changed stays.
                return
            full = self._full(sink, job, below, clock)
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

    def finish(self, name: str) -> None:
        """All of a task's outputs have been delivered."""
        for sink in self.of.get(name, {}).values():
            self.must(not sink.owed, "in the end all is delivered", task=name, output=sink.output, owed=sink.owed)
            has_more = bool(sink.kind) and sink.kind != AGAIN and [at for at, _, _ in sink.given if at > sink.applied]
            self.must(not has_more, "in the end a sink has nothing of another timeline", task=name, more=has_more)

    def is_owing(self, newest: Entry) -> bool:
        """Whether a sink has yet to go back."""
        return any(newest.owed(name, output) for name, sinks in self.of.items() for output in sinks)
