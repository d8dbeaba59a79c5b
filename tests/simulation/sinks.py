"""The sinks of a world, which stand outside for all drivers, and what must be true of all that they are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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

    def write(self, newest: Entry, sink: WorldSink, due: Due, floor: int, values: Values) -> None:
        """A driver, perhaps one that is fenced, writes values at a clock; what expired by `floor` may be gone."""
        clock, since = due.clock, due.since
        life, task, must = self._life_of(sink.task), newest.tasks[sink.task], self.must
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
        if clock > sink.applied:
            missed = {owed for owed in sink.owed if owed < clock} - sink.seen
            must(not missed, "clocks are delivered in their order", missed=missed, **facts)
            if since == BEGINNING or (job.windowing is not None and since < floor):
                # It is new, or comes back when what closed or expired meanwhile is gone.
                must(
                    floor <= max(sink.floor, sink.applied), "nothing expires before it was given", floor=floor, **facts
                )
                sink.mirror.clear()
                sink.begun = floor
            sink.applied = clock
            early = len(job.keys) + 2
            more = {key[:early]: (*key[early:], value) for key, value in values.items()} if sink.early else values
            if job.is_windowed:
                again = {window for window in more if sink.mirror.get(window, (False,))[0] is True}
                must(not again, "a window closes once", again=again, **facts)
            sink.mirror.update(more)
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
