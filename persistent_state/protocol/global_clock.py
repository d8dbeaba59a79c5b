"""Move the global clock: what an entry says of clocks when flows have moved.

The decisions, each by a function: where each flow stands, which clocks each task keeps apart, which checkpoints stay for sinks,
which clocks are kept for readers, and what may expire.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from persistent_state.event_time import clocks
from persistent_state.protocol import graph
from persistent_state.store.entry import Entry, Kept
from persistent_state.store.flow_state import FlowState
from persistent_state.store.task_state import TaskState


@dataclass(frozen=True)
class Keeping:
    """The limits of what is kept, beside the clocks that users keep by name. Lengths are microseconds.

    Attributes:
        clocks: How many of the newest checkpoints are kept.
        grace: For how long files stay that were replaced.
        retain: Pairs (every, span): of each period of `every` the last clock is kept, for `span` of event time.
    """

    clocks: int = 10
    grace: int = 600_000_000
    retain: tuple[tuple[int, int], ...] = ()


def move_clock(entry: Entry, newest: Entry, now: int, keeping: Keeping) -> Entry:
    """Return the entry after `newest` with flows that have moved: its global clock, and what follows from that."""
    clock, common = graph.clocks_after(entry, newest)
    moved = replace(entry, clock=clock, next=common)
    pinned = graph.pins(moved)
    active = {task.flow for task in entry.tasks.values() if task.active}
    flows = {id: _follow(flow, newest, moved) if id in active else flow for id, flow in entry.flows.items()}
    moved = replace(moved, flows=flows)
    has_moved = clock != newest.clock
    retained = _retained(entry, clock, keeping) if has_moved else newest.retained
    kept = kept_with(newest.kept, clock, newest.number + 1, keeping) if has_moved else newest.kept
    tasks = {}
    processed = graph.processed(moved)
    for name, task in entry.tasks.items():
        if task.active:
            stored = task.stored.with_cuts(_cuts(task, newest, moved, pinned))
            if retained:
                # Messages wait for one task alone. It never goes back below the global clock, but may have yet to come there.
                needed = min(clock, processed[name]) if name in processed else retained[0]
                stored = stored.with_floor(_floor(task, flows[task.flow], needed))
            task = replace(task, stored=stored)
        tasks[name] = task
    return newest.follower(now, clock=clock, next=common, retained=retained, kept=kept, flows=flows, tasks=tasks)


def _is_behind(flow: FlowState, newest: Entry) -> bool:
    """Return whether a flow has yet to catch up. Until then the global clock waits."""
    return flow.progress.holds and flow.progress.clock < newest.clock


def _follow(flow: FlowState, newest: Entry, moved: Entry) -> FlowState:
    """Return a flow where it stands by the global clock of the entry after `newest`.

    A flow that does not hold the clock back follows it: what comes below it from now on is late.
    """
    if flow.is_derived or _is_behind(flow, newest):
        return flow
    own = max(flow.progress.clock, moved.clock, moved.next)
    return flow if own == flow.progress.clock else flow.move_to(own)


def _cuts(task: TaskState, newest: Entry, moved: Entry, pinned: Collection[int]) -> Iterable[int]:
    """Return the clocks that a task keeps apart from the entry after `newest` on."""
    flow, cuts, clock = moved.flows[task.flow], {*task.stored.cuts}, moved.clock
    own = flow.progress.clock
    if _is_behind(flow, newest):
        return [own]
    if flow.is_derived:
        return cuts & {own, *pinned}
    if flow.upstream:
        # Its sources have visited clocks below that of its step, and at those it lacks what other tasks gave.
        since = newest.flows[task.flow].stepped
        cuts = {cut for cut in cuts if not since < cut < flow.stepped}
    # Under at-least-once delivery, a sink has values above the global clock. It is to be given what changed since.
    given = {cut for cut in task.outputs.delivered.values() if cut > clock}
    # Nothing is stored below the common clock yet, perhaps. A step will change that, and then it must be apart.
    coming = {moved.next} if flow.upstream and moved.next > clock else set()
    thin = clocks.thin_cuts(cuts, clock, own, moved.interval)
    return {*thin, *cuts & {*pinned, *given}, *coming}


def _floor(task: TaskState, flow: FlowState, needed: int) -> int:
    """Return the clock below which neither a reader, from `needed` on, nor an output needs a task's expired values."""
    return min([needed, flow.visited, *(record.changes_since for record in task.outputs.active.values())])


def _retained(entry: Entry, clock: int, keeping: Keeping) -> tuple[int, ...]:
    """Return the clocks of the checkpoints to keep when there is a new one: the newest, and those that sinks wait for.

    The last that a sink was given is kept too: it shows what has changed since.
    """
    kept = (*entry.retained, clock)
    delivered = (last for task in entry.tasks.values() if task.active for last in task.outputs.delivered.values())
    oldest = min([*kept[-keeping.clocks :], *delivered])
    return kept[bisect_left(kept, oldest) :]


def kept_with(kept: Mapping[int, Kept], clock: int, number: int, keeping: Keeping) -> dict[int, Kept]:
    """Return the clocks to keep when the entry of this number makes a clock the global one."""
    known = {**kept, clock: Kept(number)}
    stay = {*sorted(known)[-keeping.clocks :]}.union(*(clocks.last_of_periods(known, *rule) for rule in keeping.retain))
    return {clock: each for clock, each in known.items() if clock in stay or each.names}
