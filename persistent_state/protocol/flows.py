"""Flows at a start: which tasks go on together, which come to them, and which read their source on their own for now.

Tasks that are given one source object, one delivery and one way of reading are wanted in one flow. Those that the log has in
one flow stay together. Groups of different flows become one only where each message is accounted for in both, or in none:

- their clocks are equal, and a position means the same record to both: one's journal is the beginning of the other's, or the
  source makes one journal of the two;
- what they have read, and up to which clock it is accounted for, is the same;
- where the common replay begins before that of one of them, it reads none of that one's settled late and bad rows again.

Any other group reads on its own, and is looked at again at the next start. Before it starts them, the engine lets
groups meet that need only read on for that. A task that is new starts from zero, at the positions of the first group that has
come to the global clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from persistent_state.batch.plan import FlowPlan
from persistent_state.errors import DamagedError
from persistent_state.event_time.positions import Position
from persistent_state.protocol.restore import TaskGroup, keeps_all
from persistent_state.store import late_rows, lists
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.flow_state import FlowProgress, FlowState
from persistent_state.store.named_files import Pages
from persistent_state.store.task_state import TaskState


def divided(entry: Entry, names: Iterable[str]) -> list[TaskGroup]:
    """Return the groups of these tasks by the log, in the order of the names: tasks of one flow stay together."""
    groups: dict[str, dict[str, TaskState]] = {}
    for name in names:
        groups.setdefault(entry.tasks[name].flow, {})[name] = entry.tasks[name]
    return [TaskGroup(entry.flows[id], tasks) for id, tasks in groups.items()]


def together(files: Files, wanted: FlowPlan, groups: Sequence[TaskGroup]) -> list[TaskGroup]:
    """Return restored groups of one flow that is wanted, of which those are one that can be."""
    if keeps_all(wanted.first):
        return [*groups]
    journals = _common_journals(files, wanted, groups)
    left: list[TaskGroup] = []
    for group in groups:
        source = group.flow.source
        source = replace(source, journal=journals.get(source.journal, source.journal))
        group = replace(group, flow=group.flow.with_source(source))
        for i, other in enumerate(left):
            if (joined := _joined(files, other, group)) is not None:
                left[i] = joined
                break
        else:
            left.append(group)
    return left


def _common_journals(files: Files, wanted: FlowPlan, groups: Sequence[TaskGroup]) -> dict[Pages, Pages]:
    """Return, by the journals of the groups, the journal that all have from now on by which a position means the same record.

    The one that has read less would else find the same files in another order, and never be where the other is. A group
    without a journal has yet to find its order.
    """
    starts: dict[Pages, list[Mapping[str, int]]] = {}
    for source in (group.flow.source for group in groups if group.flow.source.journal != Pages()):
        starts.setdefault(source.journal, []).append(source.next_positions)
    if len(starts) < 2:
        return {}
    lines = {journal: lists.read(files, journal) for journal in starts}
    sets: list[tuple[list[str], list[Pages]]] = []
    for journal in starts:
        for i, (known, alike) in enumerate(sets):
            replay = _least([start for each in (*alike, journal) for start in starts[each]])
            if (common := _common_journal(wanted, known, lines[journal], replay)) is not None:
                sets[i] = common, [*alike, journal]
                break
        else:
            sets.append((lines[journal], [journal]))
    return {
        journal: next((each for each in alike if lines[each] == common), Pages((), tuple(common)))
        for common, alike in sets
        for journal in alike
    }


def _least(positions: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the least position of each partition. One that is not named is 0."""
    return {partition: min(each.get(partition, 0) for each in positions) for each in positions for partition in each}


def _common_journal(wanted: FlowPlan, one: list[str], other: list[str], replay: Mapping[str, int]) -> list[str] | None:
    """Return the journal of two flows, None if a position may not mean the same record to both.

    It is the longer one if that begins with the other. Which of any others is the longer one, only the source knows. Neither
    flow reads again what is before `replay`.
    """
    short, long = sorted((one, other), key=len)
    if long[: len(short)] == short:
        return long
    merged = wanted.merge_journals and wanted.merge_journals(one, other, replay)
    return None if merged is None else [*merged]


def with_new(
    groups: Sequence[TaskGroup], clock: int, born_at: Callable[[int], Mapping[str, TaskState]]
) -> list[TaskGroup]:
    """Return the groups with new tasks, which `born_at` makes for the clock of the flow that they come to.

    It is the flow of the first group that has come to the global clock, or one that begins there.
    """
    at = next((i for i, group in enumerate(groups) if group.flow.progress.clock >= clock), None)
    if at is None:
        return [*groups, TaskGroup(FlowState(FlowProgress(clock)), born_at(clock))]
    known = groups[at].with_late_rows_apart()
    joined = TaskGroup(known.flow, {**known.tasks, **born_at(known.flow.progress.clock)})
    return [*groups[:at], joined, *groups[at + 1 :]]


def meeting_positions(entry: Entry, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return where flows of one source can meet: by the id of a flow that need only read on, the positions to come to.

    The entry is that of a start, which cut the flows back. Those at one clock whose positions mean the same meet where the one
    that has read furthest is, in each partition. A flow that is there already is not named.
    """
    meeting: dict[str, dict[str, int]] = {}
    sets: list[list[str]] = []
    for id in ids:
        alike = next((alike for alike in sets if _are_alike(entry.flows[alike[0]], entry.flows[id])), None)
        sets.append([id]) if alike is None else alike.append(id)
    for alike in sets:
        known = {id: entry.flows[id].source.known_positions for id in alike}
        ends: dict[str, int] = {}
        for positions in known.values():
            for partition, end in positions.items():
                ends[partition] = max(end, ends.get(partition, 0))
        meeting |= {id: ends for id in alike if any(known[id].get(name, 0) < end for name, end in ends.items())}
    return meeting


def _are_alike(one: FlowState, other: FlowState) -> bool:
    return one.progress.clock == other.progress.clock and one.source.journal == other.source.journal


def _joined(files: Files, one: TaskGroup, other: TaskGroup) -> TaskGroup | None:
    """Return two groups that were cut back to one clock as one group; None if they have read different messages."""
    clock = one.flow.progress.clock
    if clock != other.flow.progress.clock:
        return None
    mine, others = one.flow.source, other.flow.source
    positions: dict[str, Position] = {}
    for partition in {**mine.positions, **others.positions}:
        known = mine.positions.get(partition, Position()), others.positions.get(partition, Position())
        position = _common(*known, clock)
        if position is None:
            return None
        positions[partition] = position
    journals = {mine.journal, others.journal} - {Pages()}
    if len(journals) > 1:
        return None
    replay = {partition: position.next for partition, position in positions.items()}
    if not all(_can_replay(files, group, clock, replay) for group in (one, other)):
        return None
    source = replace(
        mine, channels={**others.channels, **mine.channels}, positions=positions, journal=next(iter(journals), Pages())
    )
    one, other = one.with_late_rows_apart(), other.with_late_rows_apart()
    joined = TaskGroup(one.flow.with_source(source), {**one.tasks, **other.tasks})
    # The common replay may begin before that of one of them.
    return joined.with_rows_taken_back(files, clock)


def _common(one: Position, other: Position, clock: int) -> Position | None:
    """Return the position of a partition from which both replay; None if a message is accounted for in one of them only.

    All messages before `next` are, and of those before a pair's position all below the pair's clock. Two flows that were cut
    back to `clock` may differ in where the replay begins: before the later one, both are done with what is below the clock.
    """
    first, last = sorted((one, other), key=lambda position: position.next)
    is_done = first.next == last.next or any(end >= last.next and below >= clock for end, below in first.accounted)
    beyond = [{pair for pair in position.accounted if pair[0] > last.next} for position in (first, last)]
    return first if is_done and beyond[0] == beyond[1] else None


def _can_replay(files: Files, group: TaskGroup, clock: int, replay: Mapping[str, int]) -> bool:
    """Return whether a replay from these positions delivers no settled late or bad row again, which would be there twice."""
    if replay == group.flow.source.next_positions:
        return True
    try:
        settled = [side for rows in group.late_rows for side in late_rows.settled(files, rows)]
    except (DamagedError, FileNotFoundError):
        # The damage is named when the rows are read, and does not keep an application from starting.
        return False
    return all(side.is_settled(clock, replay) for side in settled)
