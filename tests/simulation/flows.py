"""What must be true of the flows of a start: which tasks are fed together, and what a task that comes to others is fed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from persistent_state.batch.plan import FlowPlan
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files

if TYPE_CHECKING:
    from tests.simulation.oracle import Judge

BEFORE = "before"
"""The verdict on what a task's flow had accounted for when the task came to it."""


class Flows:
    """What the oracle knows of flows: `hear` is called with every start, once it is known what that takes back."""

    def __init__(self, judges: Mapping[str, Judge], delays: dict[str, int], files: Files, must: Any) -> None:
        self.judges = judges
        self.delays = delays
        self.files = files
        self.must = must
        self.happened: Counter[str] = Counter()

    def hear(
        self,
        before: Entry | None,
        entry: Entry,
        wanted: Sequence[FlowPlan],
        new: Collection[str],
        rebuilt: Collection[str],
    ) -> None:
        """A start says which tasks are fed together; those that are `new` start from zero, some as they are `rebuilt`."""
        for id in entry.flows:
            active = {task.active for task in entry.tasks_of(id).values()}
            self.must(len(active) == 1, "the tasks of a flow are all part of a start, or none", flow=id)
        for flow in wanted:
            if flow.is_derived:
                continue
            known = [name for name in flow.by_name if name not in new]
            self._take_journals(entry, [name for name in known if not self.judges[name].job.inputs])
            ids = dict.fromkeys(entry.tasks[name].flow for name in flow.by_name)
            for id in ids:
                of_flow = entry.tasks_of(id).keys()
                fed = [name for name in flow.by_name if name in of_flow]
                self.must(of_flow == {*fed}, "a flow feeds tasks of one source object", fed=of_flow, given=fed)
                self.must(id == fed[0], "a flow has the name of the task that was added first", flow=id, fed=fed)
                known = [name for name in fed if name not in new]
                self.happened["came together"] += len({before.tasks[name].flow for name in known if before}) > 1
                self._come_together(entry, known)
                self._come_to(known, [name for name in fed if name in new])
            self._new_are_placed(entry, [*flow.by_name], new, rebuilt)
            self._equal_are_one(entry, [id for id in ids if id not in rebuilt])
        if before is not None:
            self._stay_together(before, entry, wanted, new)

    def _take_journals(self, entry: Entry, names: Sequence[str]) -> None:
        """Of tasks that are given one source object, one takes the journal of another that begins as its own does."""
        journals = {name: self.judges[name].journal for name in names}
        for name, own in journals.items():
            found = lists.read(self.files, entry.flow_of(name).source.journal)
            longer = [each for each in journals.values() if own and len(each) > len(own) and each[: len(own)] == own]
            self.must(found == own or found in longer, "a journal grows by what another wrote", task=name, found=found)
            self.must(bool(longer) == (found != own), "a journal that begins alike is taken", task=name, found=found)
            self.judges[name].journal = found

    def _come_together(self, entry: Entry, names: Sequence[str]) -> None:
        """Tasks are fed together only if each message is accounted for in all of them, or in none."""
        if len(names) < 2:
            return
        judges, flow = [self.judges[name] for name in names], entry.flow_of(names[0])
        first, clock = judges[0], flow.progress.clock
        journal = max((judge.journal for judge in judges), key=len)
        known = {partition: end for judge in judges for partition, end in judge.known.items()}
        for judge in judges:
            differ = {p for p in judge.verdicts.keys() ^ first.verdicts.keys() if judge.sent(p).placed}
            if judge.partitions.leaves_out:
                # What Spark left out below a clock at which one began, the other may have.
                differ = {place for place in differ if not judge.is_below(place, clock)}
            facts = {"tasks": names, "differ": differ, "known": known, "journal": judge.journal}
            self.must(not differ, "tasks come together only if the same is accounted for in all", **facts)
            self.must(journal[: len(judge.journal)] == judge.journal, "a position means the same to all", **facts)
            self.must(all(judge.known.get(p, 0) == end for p, end in known.items()), "all know the same", **facts)
        newest = dict.fromkeys(channel for judge in judges for channel in judge.newest)
        # Of a channel that several know, the flow knows what the first does.
        whose = {channel: judge.reached for judge in reversed(judges) for channel in judge.newest}
        reached = {channel: tops[channel] for channel, tops in whose.items() if channel in tops}
        delivered = {place for judge in judges for place in judge.delivered}
        for judge in judges:
            judge.journal, judge.known, judge.newest, judge.reached = [*journal], {**known}, {**newest}, {**reached}
            judge.active = dict.fromkeys(newest, entry.time)
            judge.floor = {**dict.fromkeys(newest, clock), **judge.floor}
            judge.heard = {channel for each in judges for channel in each.heard}
            judge.delivered, judge.restored = {*delivered}, clock if delivered else BEGINNING

    def _come_to(self, known: Sequence[str], new: Sequence[str]) -> None:
        """What a flow had accounted for when a task came to it is never read for the task, and not late for it."""
        self.happened["came to a flow"] += bool(known and new)
        for name in new if known else ():
            judge, other = self.judges[name], self.judges[known[0]]
            judge.verdicts = dict.fromkeys((p for each in known for p in self.judges[each].verdicts), BEFORE)
            judge.read, judge.journal, judge.known = {**other.read}, [*other.journal], {**other.known}
            judge.newest, judge.reached, judge.gone = {**other.newest}, {**other.reached}, {*other.gone}
            judge.heard, judge.active, judge.floor = {*other.heard}, {**other.active}, {**other.floor}
            judge.delivered, judge.restored = {*other.delivered}, other.restored
            # The flow's clock was fixed under the delay that the flow had.
            self.delays[name] = min(self.delays[each] for each in (name, *known))

    def _new_are_placed(
        self, entry: Entry, names: Sequence[str], new: Collection[str], rebuilt: Collection[str]
    ) -> None:
        """A new task comes to the first flow that has come to the global clock; without one, and if rebuilt, it reads all."""
        at_clock = [n for n in names if n not in new and entry.flow_of(n).progress.clock == entry.clock]
        born = [name for name in names if name in new and name not in rebuilt]
        for name in born:
            fed = {*entry.tasks_of(entry.tasks[name].flow)}
            if at_clock:
                self.must(at_clock[0] in fed, "a new task comes to the first flow at the global clock", task=name)
            else:
                reads_all = not entry.flow_of(name).source.positions
                self.must(fed == {*born} and reads_all, "new tasks without a flow read all", task=name, fed=fed)
        again = {name for name in names if name in rebuilt}
        for name in again:
            fed, positions = {*entry.tasks_of(entry.tasks[name].flow)}, entry.flow_of(name).source.positions
            self.must(fed == again and not positions, "what is built again reads all", task=name, fed=fed)

    def _equal_are_one(self, entry: Entry, ids: Sequence[str]) -> None:
        """Flows of one source object differ in their clocks, in what they have read or in what positions mean."""
        known = []
        for flow in (entry.flows[id] for id in ids):
            known.append((flow.progress.clock, flow.source.positions, lists.read(self.files, flow.source.journal)))
            self.must(known[-1] not in known[:-1], "flows that have read the same are one", flows=ids, known=known)

    def _stay_together(self, before: Entry, entry: Entry, wanted: Sequence[FlowPlan], new: Collection[str]) -> None:
        """Tasks that were fed together stay so if they are given one source object, or if all of them are left out."""
        given = {name: i for i, flow in enumerate(wanted) for name in flow.by_name}
        for id in before.flows:
            fed: dict[int, set[str]] = {}
            for name, task in before.tasks_of(id).items():
                if name not in new:
                    fed.setdefault(given.get(name, -1), set()).add(entry.tasks[name].flow)
                if not task.active and name not in given:
                    same = replace(entry.tasks[name], flow=id) == task and entry.flow_of(name) == before.flows[id]
                    self.must(same, "a task that is gone stays as it was", task=name)
            self.happened["parted"] += len({flow for flows in fed.values() for flow in flows}) > 1
            self.must(all(len(ids) == 1 for ids in fed.values()), "who was fed together stays so", flow=id, fed=fed)
