"""Bugs to be planted in the core, one at a time: what a simulation is worth that does not find them."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from persistent_state import application
from persistent_state.batch import advance, alignment, combine, groups, judge, lift, messages, plan, shard, update
from persistent_state.batch import changes as fed
from persistent_state.event_time import channels, clocks, positions
from persistent_state.partials import (
    changed,
    dedup,
    few,
    fold,
    layout,
    lookup,
    panes,
    sessions,
    sliding,
    sort,
    unbounded,
)
from persistent_state.protocol import commits, deliver, flows, graph, restore, takeover
from persistent_state.protocol.collect import Collector
from persistent_state.store import (
    blocks,
    changes,
    codec,
    entry,
    flow_state,
    late_rows,
    log,
    named_files,
    runs,
    task_state,
)
from persistent_state.store.files import base


@dataclass(frozen=True)
class Bug:
    """A mistake that someone could make: pieces of a function's source, replaced. Worlds of its `theme` find it soonest."""

    name: str
    says: str
    target: Any
    changes: tuple[tuple[str, str], ...]
    theme: str | None = None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the bug while this lasts."""
        source = textwrap.dedent(inspect.getsource(self.target))
        for right, wrong in self.changes:
            assert source.count(right) == 1, (
                f"{self.name}: {right!r} stands {source.count(right)} times in {self.target}"
            )
            source = source.replace(right, wrong)
        names = vars(sys.modules[self.target.__module__])
        made: dict[str, Any] = {}
        exec(compile("from __future__ import annotations\n" + source, self.name, "exec"), names, made)
        # The function itself is changed, whoever has imported it.
        right_code = self.target.__code__
        wrong_function = made[self.target.__name__]
        self.target.__code__ = getattr(wrong_function, "fget", wrong_function).__code__
        try:
            yield
        finally:
            self.target.__code__ = right_code


def bug(name: str, says: str, target: Any, *changes: tuple[str, str], theme: str | None = None) -> Bug:
    return Bug(name, says, target, changes, theme)


BUGS = (
    # The state at a clock
    bug(
        "cut at the clock",
        "What is at the clock counts as below it.",
        layout.below,
        ("starts < clock))", "starts <= clock))"),
    ),
    bug("no limit of a run", "A run cut back at a start is read whole.", runs._rows, ("run.below)", "None)")),
    bug(
        "current of a cut run",
        "What a run calls current is believed when messages in it have been taken back.",
        runs.read_run_with_sums,
        ("if run.below is None else", "if True else"),
        theme="restless",
    ),
    bug(
        "current after a cut run",
        "What a run calls current is believed when messages in an older run have been taken back.",
        task_state._cut_at,
        ("for one in losing)", "for one in losing[-1:] if one is run)"),
        theme="reading",
    ),
    bug(
        "current no more",
        "When runs are rewritten, the oldest says what is current.",
        fold._newest,
        ("np.maximum.reduceat", "np.minimum.reduceat"),
    ),
    bug(
        "current long ago",
        "What is current is looked up in the oldest run.",
        lookup._looked_up,
        ("in reversed(levels):", "in levels:"),
    ),
    bug(
        "current of another key",
        "What is current is that of any key of the same hash.",
        lookup._looked_up,
        ("keys.equal(_keys(asked, met, layout), _keys(level, at, layout), len(met))", "np.ones(len(met), np.bool_)"),
    ),
    bug(
        "retained clocks folded over",
        "Folding keeps only the cuts apart, not the retained clocks.",
        commits._apart,
        ("{*entry.retained, *(cut", "{*(cut"),
    ),
    bug(
        "coarse intervals forgotten",
        "A batch does not say how coarse its intervals are.",
        clocks.split_intervals,
        ("fine), Coarse(low, high, step)", "fine), None"),
    ),
    bug(
        "coarse intervals ignored",
        "The clock moves into the middle of a stored interval.",
        clocks.clean_clock,
        ("segments = list(coarse)", "segments = []"),
    ),
    bug(
        "coarse intervals dropped early",
        "An interval is forgotten before the clock has passed it.",
        advance.advance,
        ("if segment.high > clock)", "if segment.low > clock)"),
    ),
    bug(
        "ordered monoid folded in a batch",
        "Updates whose order matters are folded before all have come.",
        shard._fold_fresh,
        ("apart = None if plan.layout.folds_early else BEGINNING", "apart = None"),
        theme="ordered",
    ),
    bug(
        "ordered monoid folded above the clock",
        "Rewriting runs folds updates that others may still go between.",
        shard._apart_from,
        ("return clock if is_all else BEGINNING", "return None"),
        theme="ordered",
    ),
    bug(
        "ordered monoid folded in part",
        "Only some runs are folded, though others hold what goes between.",
        shard._apart_from,
        ("return clock if is_all else BEGINNING", "return clock"),
        theme="ordered",
    ),
    bug(
        "few keys folded over intervals",
        "Rows of few keys are folded into the first of their intervals.",
        few.fold_few,
        ("groups[starts == start] += i * len(distinct)", "pass"),
    ),
    bug(
        "few keys folded over retained clocks",
        "Rows of few keys are folded as they come by a task that catches up, over clocks that are retained.",
        lift._fold_few,
        ("not lifted.keys_are_few or basis.is_behind or", "not lifted.keys_are_few or"),
        theme="rebuilt",
    ),
    bug(
        "a last message without its place",
        "What a Last was folded to stands where its first message stood, and others that came later go before it.",
        fold._heads,
        ("if not layout.places_last:", "if True:"),
        theme="ordered",
    ),
    bug(
        "a last message of a session without a place",
        "A Last in sessions is folded before all parts of the session have come.",
        layout.Layout.folds_early.fget,
        (" and not self.kind.expires_by_key", ""),
        theme="ordered",
    ),
    bug(
        "messages of one time in no order",
        "Messages of a key with equal timestamps stand as they came.",
        sort._by_place,
        ("if len(some) == 0:", "if True:"),
        theme="ordered",
    ),
    bug(
        "equal hashes taken for equal keys",
        "Keys are told apart by their hash alone.",
        sort.sort,
        ("same_key = same_hash & same_keys", "same_key = same_hash | same_keys"),
    ),
    # Clocks
    bug(
        "global clock of the fastest",
        "The global clock waits for one task, not for all.",
        entry.common_clock,
        ("if all(task.keeps_apart", "if any(task.keeps_apart"),
        theme="flows",
    ),
    bug(
        "upstream clock of the fastest channel",
        "The fastest channel moves the clock.",
        channels.upstream_min,
        ("return min(", "return max("),
    ),
    bug("no delay", "The allowed delay is ignored.", channels.upstream_min, ("c.newest - delay", "c.newest")),
    bug(
        "silent channel ignored",
        "A channel that has delivered nothing does not hold the clock.",
        channels.live_channels,
        ("if not c.ended and", "if not c.ended and c.newest is not None and"),
    ),
    bug(
        "replaying channel taken for silent",
        "A channel of which only rows come that were there before a start is idle.",
        judge.judge,
        ("sightings.replaying.update", "set().update"),
    ),
    bug(
        "channels outlive a start",
        "After a start channels are believed as far as they were before it.",
        flow_state.SourceState._channels_cut_back,
        ("channel.cut_back(clock, now)", "channel"),
    ),
    bug(
        "thinning too far",
        "Between the global clock and its own a task keeps no clocks in common with others.",
        clocks.thin_cuts,
        ("c % step == 0", "False"),
    ),
    bug(
        "cuts lost at a commit",
        "A commit forgets which clocks its runs keep apart.",
        commits._with_batch,
        ("stored.after_batch(changes, after.cuts)", "stored.after_batch(changes, ())"),
    ),
    bug(
        "first cuts forgotten",
        "Before its first clock a task keeps no clocks apart.",
        advance.advance,
        ("else _lowest(first, reports, clock)", "else clock"),
        theme="restless",
    ),
    bug(
        "known channel ignored",
        "A channel that is known to come does not hold the clock before it does.",
        channels.listed_channels,
        ("return {**{name: Channel(None, now) for name in known}, **channels}", "return dict(channels)"),
    ),
    bug(
        "mistaken channel for ever",
        "A channel that was only named holds the clock though nobody names it any more.",
        flow_state.SourceState._channels_with_messages,
        (" if channel.has_delivered", ""),
    ),
    bug(
        "channel forgotten at the beginning",
        "A channel that a start cut back to before its first message does not hold the clock until it comes again.",
        channels.Channel.cut_back,
        ("min(self.newest, clock)", "None if clock == BEGINNING else min(self.newest, clock)"),
    ),
    bug(
        "nobody waits",
        "Alignment is measured from the channel that is furthest ahead.",
        channels.held_back,
        ("slowest = min(", "slowest = max("),
    ),
    bug(
        "exhausted channel waited for",
        "At the end of a source, others wait for a channel that has no more.",
        alignment.aligned_reach,
        ("if end == start.get(name)}", "if False}"),
    ),
    # A task that does not hold the clock, or returns behind it
    bug(
        "not woken",
        "A task that does not hold the clock is moved by others while its batch is under way.",
        commits.wake,
        ("entry.flows[flow].hold()", "entry.flows[flow]"),
        theme="restless",
    ),
    bug(
        "behind folded over retained clocks",
        "An interval of a task that catches up reaches over a clock that is retained.",
        combine._partial_sums,
        ("if basis.is_behind:", "if False:"),
        theme="restless",
    ),
    bug(
        "behind taken along",
        "A task that has yet to catch up is moved to the global clock by others.",
        commits._moved_on,
        ("if flow.progress.holds and own < newest.clock:", "if False:"),
        theme="restless",
    ),
    bug(
        "behind left behind",
        "The global clock does not wait for a task that has yet to catch up.",
        entry.common_clock,
        ("if flow.progress.holds]", "if flow.progress.holds and flow.progress.clock >= above]"),
        (
            "for task in active.values()))",
            "for task in active.values() if entry.flows[task.flow].progress.clock >= above))",
        ),
        theme="restless",
    ),
    bug(
        "taken back too late",
        "A task may return though its clock was collected.",
        takeover._check_return,
        ("if not task.active and is_left_behind:", "if False:"),
        theme="restless",
    ),
    bug(
        "built again from the global clock",
        "A task that is built again begins where one begins that is new.",
        takeover._first_entry,
        ("FlowProgress(at)", "FlowProgress(clock)"),
        ("_all_born(rebuilt, newest, epoch, BEGINNING)", "_all_born(rebuilt, newest, epoch, clock)"),
        theme="rebuilt",
    ),
    bug(
        "left while it is built again",
        "A task that has yet to catch up is refused as one that was left out.",
        takeover._check_return,
        ("if not task.active and", "if"),
        theme="rebuilt",
    ),
    bug(
        "close at the newest message",
        "The closing clock is not above the newest message.",
        clocks.next_multiple,
        ("(timestamp // interval + 1)", "(timestamp // interval)"),
    ),
    # Positions and what a replay has seen
    bug(
        "position one too far",
        "A start skips a message.",
        positions.move_position,
        ("Position(end,", "Position(end + 1,"),
    ),
    bug(
        "position one too few",
        "A message is read twice.",
        positions.move_position,
        ("Position(end,", "Position(max(end - 1, 0),"),
    ),
    bug(
        "replay from the newest",
        "A start goes on where the last one stopped.",
        positions.rewind_position,
        ("first = replay_from(position, clock)", "first = position.next"),
    ),
    bug(
        "replay from too late",
        "What reached exactly the clock does not start the replay.",
        positions.replay_from,
        ("if newest >= clock", "if newest > clock"),
    ),
    bug(
        "accounted forgotten",
        "A start forgets what is in the state already.",
        positions.rewind_position,
        ("return Position(first, _needed(first, {*pairs, (position.next, clock)}))", "return Position(first)"),
    ),
    bug(
        "accounted at the clock",
        "A start takes what is at its clock for accounted.",
        positions.is_accounted,
        ("timestamps < np.minimum(below, again)", "timestamps <= np.minimum(below, again)"),
    ),
    bug(
        "accounted dropped early",
        "A start that was not read through is forgotten.",
        positions.rewind_position,
        ("{*pairs, (position.next, clock)}", "{(position.next, clock)}"),
    ),
    bug(
        "spans forgotten early",
        "What a start at the global clock must read again is forgotten when the task has passed it.",
        commits._tidied,
        ("without_old_spans(restart)", "without_old_spans(flow.progress.clock)"),
    ),
    # Sources whose positions or ends nobody knows beforehand
    bug(
        "ends go back",
        "A replay from the beginning takes back how far a partition was read.",
        advance._positions,
        ("= max(end, ends.get(partition, 0))", "= max(end, ends.get(partition, 0) if partition in planned else 0)"),
    ),
    bug(
        "ends of a source that forgets",
        "What a source says of its end takes back how far a partition was read.",
        advance._positions,
        ("= max(end, ends.get(partition, 0))", "= max(end, 0 if partition in planned else ends.get(partition, 0))"),
        theme="flows",
    ),
    bug(
        "ends of one chunk",
        "How far a part read a partition is taken from the last chunk that has a position.",
        lift._note_ends,
        ("max(position + 1, ends.get(name, 0))", "position + 1"),
    ),
    bug(
        "no position taken for one",
        "A row that has no position counts for how far its partition was read.",
        lift._note_ends,
        ("place.positions != NO_POSITION", "place.positions > -1"),
        ("max(position + 1,", "max(min(position + 1, NO_POSITION),"),
    ),
    bug(
        "replay from no position",
        "Rows without a position say where a replay starts.",
        lift._note_spans,
        ("position.next if first == NO_POSITION else max(first", "max(first"),
    ),
    bug(
        "replay of one partition from another's position",
        "Of rows of many partitions, the first position of any says where a replay of each starts.",
        lift._firsts,
        (
            "return place.partitions.least(place.positions)",
            "return [int(place.positions.max())] * len(place.partitions.names)",
        ),
    ),
    bug(
        "position of another partition",
        "Of rows of many partitions, the first partition's position says what was read before.",
        positions.is_accounted,
        ("for position in known])[of]", "for position in known])[of * 0]"),
    ),
    bug(
        "channel as far as its last row",
        "A channel has come as far as its last row, and not as its newest.",
        groups.Groups.greatest,
        ("np.maximum.at(top, self.of, values)", "top[self.of] = values"),
    ),
    bug(
        "restored clock ignored",
        "Without positions all that a replay delivers below the restored clock is late.",
        judge.judge,
        ("(stamps < basis.restored)", "(stamps < -(2**63))"),
    ),
    bug(
        "restored at the clock",
        "What is at the restored clock is taken for replayed.",
        judge.judge,
        ("(stamps < basis.restored)", "(stamps <= basis.restored)"),
    ),
    bug(
        "replayed rows not counted",
        "Rows that are replayed or late go uncounted.",
        lift._count,
        ("counts[late_rows.REPLAYED_OR_LATE] += unknown", "pass"),
    ),
    bug(
        "rows without positions stay aside",
        "A start does not take back rows that have no position.",
        late_rows._stays,
        ("(position is not None and", "(position is None or"),
    ),
    bug(
        "rows of files made one stay twice",
        "Files of rows aside that were made one stay beside it.",
        late_rows.join,
        ("if side is whole[0] or side not in whole", "if True"),
    ),
    bug(
        "rows of files made one are lost",
        "Not all of the files that are made one are read.",
        late_rows.join,
        ("for _, table in readable", "for _, table in readable[1:]"),
    ),
    bug(
        "late channel unheard",
        "A channel whose first message is late does not hold the clock.",
        judge.judge,
        ("sightings.newest.update(", "dict().update("),
    ),
    bug(
        "rows without positions settled",
        "Rows aside that have no position are taken for final.",
        late_rows.side_file,
        ("NO_POSITION if position is None", "0 if position is None"),
    ),
    # Late and bad rows
    bug(
        "all is late",
        "Every message is declared late.",
        judge.judge,
        ("place.timestamps < basis.clock", "place.timestamps < 2**63 - 1"),
    ),
    bug(
        "late at the clock",
        "What is at the clock is late.",
        judge.judge,
        ("place.timestamps < basis.clock", "place.timestamps <= basis.clock"),
    ),
    bug(
        "nothing is late",
        "No message is declared late.",
        judge.judge,
        ("place.timestamps < basis.clock", "place.timestamps < -(2**63)"),
    ),
    bug(
        "late again on replay",
        "What a replay delivers again below the clock counts as late again.",
        judge.judge,
        ("stamps, basis.again)", "stamps, basis.again) | (place.positions >= before[0].next)"),
    ),
    bug(
        "side rows kept at a start",
        "What is read again stays aside, and is set aside again.",
        restore.TaskGroup.with_rows_taken_back,
        ("late_rows.take_back(files, rows, clock, self.flow.source.next_positions)", "rows"),
    ),
    bug(
        "side rows in every shard",
        "Every shard writes the late and bad rows.",
        combine._Sums._taken,
        ("sides if shard == home else ()", "sides"),
    ),
    bug(
        "settled too early",
        "Rows aside that a start may still take back are taken for final.",
        named_files.SideFile.is_settled,
        ("return all(end <=", "return any(end <="),
        theme="sleepy",
    ),
    bug(
        "settled rows collected",
        "Late rows are deleted once they are no longer listed one by one.",
        Collector.collect,
        ("set(chain.from_iterable(self._listed.values()))", "set()"),
        theme="sleepy",
    ),
    # Flows
    bug(
        "position of another task",
        "Tasks are fed together though they have not read the same.",
        flows._common,
        ("first if is_done and beyond[0] == beyond[1] else None", "first"),
        theme="flows",
    ),
    bug(
        "read further by one",
        "Tasks are fed together though one has read further and will read that again.",
        flows._common,
        ("is_done and beyond[0] == beyond[1]", "is_done"),
        theme="flows",
    ),
    bug(
        "replay from the later position",
        "Where tasks are fed together, what only one of them needs again is not read again.",
        flows._common,
        ("return first if", "return last if"),
        theme="flows",
    ),
    bug(
        "journals that differ",
        "Flows of which a position means different records become one.",
        flows._common_journal,
        ("if long[: len(short)] == short:", "if True:"),
        theme="flows",
    ),
    bug(
        "shorter journal",
        "Where tasks are fed together, the source is given back only what one had written.",
        flows._common_journal,
        ("return long", "return short"),
        theme="flows",
    ),
    bug(
        "other clocks",
        "Flows become one though they are at different clocks.",
        flows._joined,
        ("if clock != other.flow.progress.clock:", "if False:"),
        theme="flows",
    ),
    bug(
        "rows stay aside of those who join",
        "Where a common replay begins earlier, what it delivers again stays aside.",
        flows._joined,
        ("joined.with_rows_taken_back(files, clock)", "joined"),
        theme="flows",
    ),
    bug(
        "late rows of the first",
        "Where flows become one, the late rows of one of them are those of all its tasks.",
        flows._joined,
        ("one, other = one.with_late_rows_apart(), other.with_late_rows_apart()", "pass"),
        theme="flows",
    ),
    bug(
        "late before it came",
        "What came late before a task came to its flow is late for the task.",
        flows.with_new,
        ("groups[at].with_late_rows_apart()", "groups[at]"),
        theme="flows",
    ),
    bug(
        "late rows of the first task",
        "Only the first task of a flow has its late rows.",
        entry.Entry.late_rows_of,
        (
            "self.flow_of(task).late_rows)",
            "self.flow_of(task).late_rows if self.tasks[task].flow == task else LateRows())",
        ),
    ),
    bug(
        "late rows of each task",
        "Each task of a flow writes down the flow's late rows for its own.",
        commits._with_batch,
        (
            "(descriptor.side for descriptor in answers if descriptor.side)",
            "(file for d in ordered for file in (d.late, d.side if d.task == name else None) if file)",
        ),
    ),
    bug(
        "clock of another flow",
        "What a shard starts from is told by the clock of another flow.",
        commits.shard_digests,
        ("entry.flows[task.flow]", "next(iter(entry.flows.values()))"),
    ),
    bug(
        "one task for all",
        "A commit takes in what one task of the flow has answered, and not what the others have.",
        commits._with_batch,
        ("groupby(ordered, lambda", "groupby([d for d in ordered if d.task == ordered[0].task], lambda"),
    ),
    bug(
        "settled rows of those who join",
        "A common replay delivers rows aside again that can't be taken back any more.",
        flows._can_replay,
        ("if replay == group.flow.source.next_positions:", "if True:"),
        theme="flows",
    ),
    bug(
        "new with one behind",
        "A new task comes to a flow that has yet to catch up.",
        flows.with_new,
        ("if group.flow.progress.clock >= clock)", "if True)"),
        theme="flows",
    ),
    bug(
        "coarse intervals of one task",
        "A part says how coarse the intervals are of the first task of its flow, and not of the others.",
        combine.combine_in_pieces,
        ("coarse for of_task in sums for", "coarse for of_task in sums[:1] for"),
        theme="flows",
    ),
    bug(
        "closed below the global clock",
        "A close gives a task that is built again a clock below the global one.",
        commits.close,
        ("max([newest.clock, *(flow", "max([*(flow"),
        theme="flows",
    ),
    # Commit
    bug(
        "settled rows of the newest only",
        "A driver that slept through a takeover deletes late rows that the new one has settled.",
        Collector._know,
        ("in entry.tasks.values():", "in entry.tasks.values() if entry.number == self._log.numbers()[-1] else ():"),
        ("in entry.flows.values():", "in entry.flows.values() if entry.number == self._log.numbers()[-1] else ():"),
        theme="sleepy",
    ),
    bug(
        "commit before the run is durable",
        "A run counts as written though the store did not say so.",
        blocks.write_blocks,
        ("files.ensure(path, data)", "try:\n        files.create(path, data)\n    except Exception:\n        pass"),
        theme="faulty",
    ),
    bug(
        "shard missing",
        "A commit does not need all shards.",
        commits._check_shards,
        ("answered != Counter((name, shard) for name in tasks for shard in range(newest.shards))", "False"),
    ),
    bug(
        "shard twice",
        "A shard may answer twice.",
        commits._check_shards,
        ("answered != Counter((name, shard)", "set(answered) != set((name, shard)"),
    ),
    bug(
        "parts not counted",
        "A part may miss in a shard, or come twice.",
        messages.digest_of_parts,
        ("if parts != (sorted({*parts}) if first.parts is None else [*range(first.parts)]):", "if False:"),
        ("return short_digest(parts)", 'return ""'),
    ),
    bug(
        "shards may differ",
        "A commit does not look whether its shards have heard from the same parts.",
        commits._agreed,
        ("if (other.flow, other.epoch, other.batch, other.plan, other.parts) != (*batch, parts):", "if False:"),
    ),
    bug(
        "reports not counted",
        "A commit does not look whether every part has reported.",
        commits._agreed,
        ("digest_of_parts(senders)", "first.parts"),
    ),
    bug(
        "positions of others",
        "A part is not told how far its partitions were read.",
        messages.Basis.of_part,
        ("for name in partitions if name in self.positions}", "for name in ()}"),
    ),
    bug(
        "folded above the clock",
        "A shard folds what is above the clock of the plan, as if no other clock could come between.",
        shard._fold_fresh,
        ("work.ground.clock, apart", "2**63 - 1, apart"),
    ),
    bug(
        "stale cache",
        "A shard goes on from what it remembers, whatever the log says.",
        shard._held_runs,
        ("cached is not None and digest(cached, ground.clock) == ground.runs", "cached is not None"),
    ),
    bug(
        "runs cut wrongly",
        "At a start runs are not cut at the upper bounds of shards.",
        task_state.cut_runs,
        ("high=min(high, whole.high)", "high=high"),
        ("low=max(low, whole.low)", "low=low"),
    ),
    bug(
        "no epoch in a commit",
        "A driver that was taken over goes on committing.",
        commits.own,
        ("if newest.epoch > epoch:", "if False:"),
    ),
    bug(
        "late listing believed",
        "A driver forgets what it wrote when the store does not list it.",
        log.Log.newest,
        ("number = max(listed, self._highest)", "number = listed"),
        theme="faulty",
    ),
    bug(
        "late listing taken for a takeover",
        "A worker whose listing is late takes its own driver for superseded.",
        commits.own,
        ("if newest is None or newest.epoch < epoch:", "if newest is None:"),
        ("if newest.epoch > epoch:", "if newest.epoch != epoch:"),
        theme="faulty",
    ),
    bug(
        "lost answer taken for a loss",
        "A driver whose own entry exists tries again.",
        base.Files.ensure,
        ("if self.read(path).equals(pa.py_buffer(data)):", "if False:"),
        theme="faulty",
    ),
    bug(
        "lost answer taken for a commit",
        "A driver takes any entry of its number for its own.",
        base.Files.ensure,
        ("if self.read(path).equals(pa.py_buffer(data)):", "if True:"),
    ),
    bug(
        "no look for a newer driver",
        "A driver whose number was collected believes that it committed.",
        log.Log.append,
        ("newest.epoch > entry.epoch", "False"),
        ("newest.number > entry.number and", "False and"),
        theme="sleepy",
    ),
    bug(
        "no look for a newer entry",
        "A task whose number was collected believes that it committed.",
        log.Log.append,
        ("newest.number > entry.number and", "False and"),
        theme="sleepy",
    ),
    bug(
        "damaged entry accepted",
        "Entries are not checked.",
        codec.open_entry,
        ("if not newline or seal !=", "if False and seal !="),
    ),
    bug(
        "damaged file accepted",
        "Files without blocks are not checked.",
        runs.read_bytes,
        ("if len(data) != stored.length or", "if False and len(data) != stored.length or"),
        ("hashlib.sha256(data).hexdigest() != stored.checksum", "False"),
    ),
    bug(
        "damaged block accepted",
        "The checksum of a block is not looked at.",
        blocks._check,
        ("_checksum(piece) != index.checksums[i]", "False"),
        theme="damaged",
    ),
    bug(
        "damaged index accepted",
        "The checksum of an index is not looked at.",
        blocks._index,
        ("if _checksum(tail) != stored.checksum:", "if False:"),
        theme="damaged",
    ),
    bug(
        "index of another file",
        "The blocks of a file are told by the index of another.",
        blocks.read_blocks,
        ("(files.url, stored.path, stored.checksum)", '(files.url, "", "")'),
    ),
    bug(
        "block before only",
        "A key whose hash begins a block is looked for in the block before.",
        blocks._needed,
        ("np.searchsorted(some, firsts) <", 'np.searchsorted(some, firsts, side="right") <'),
    ),
    bug(
        "block after only",
        "Rows of a hash that begins a block are not looked for in the block before.",
        blocks._needed,
        ('np.searchsorted(some, lasts, side="right")', "np.searchsorted(some, lasts)"),
    ),
    bug(
        "stale whole",
        "An entry that is whole is what the one before it was.",
        codec.to_bytes,
        ("whole = ENTRY.to_json(entry)", "whole = ENTRY.to_json(before or entry)"),
    ),
    bug(
        "base named wrongly",
        "An entry names a base that is not whole.",
        log.Log.append,
        ("else before.entry.base", "else max(1, before.entry.base - 1)"),
    ),
    bug(
        "change applied twice",
        "What is new in a list comes twice.",
        changes.Listed.changed,
        ("*self.from_json(new))", "*self.from_json(new), *self.from_json(new))"),
    ),
    bug(
        "change skipped",
        "What a change says of a shard is not looked at.",
        changes.Numbered.changed,
        ("for number, each in json.items():", "for number, each in [*json.items()][1:]:"),
    ),
    bug(
        "change not written",
        "A shard that has as many runs as before counts as unchanged.",
        changes.Numbered.change,
        ("if is_other(was, now)}", "if len(was.runs) != len(now.runs)}"),
    ),
    bug(
        "runs of an older entry",
        "A shard whose runs were rewritten keeps those that it had.",
        named_files.ShardRuns.changed,
        ("if kept == len(self.runs) and not runs", "if kept + len(runs) == len(self.runs)"),
    ),
    bug(
        "too few runs stay",
        "A commit takes the newest of the runs that a shard has kept for rewritten.",
        named_files.ShardRuns.changed,
        ("self.runs[:kept]", "self.runs[: max(0, kept - len(runs) + 1)]"),
    ),
    bug(
        "name that is gone stays",
        "What is not there any more is not said to be gone.",
        changes.Named.change,
        ("before.keys() - after.keys()", "()"),
    ),
    # Collection
    bug(
        "base collected",
        "Entries are deleted from which others follow.",
        Collector.collect,
        ("self._bases.get(number, number)", "number"),
    ),
    bug(
        "young leftovers collected",
        "A temporary file is deleted while its writer may be at work.",
        Collector.collect,
        ("if age > LEFTOVER_AGE]", "if True]"),
        theme="faulty",
    ),
    bug(
        "leftovers stay",
        "Temporary files of writers that were killed are never deleted.",
        Collector.collect,
        ("if age > LEFTOVER_AGE]", "if False]"),
        theme="faulty",
    ),
    bug(
        "runs stay",
        "What no entry names is never deleted.",
        Collector.collect,
        ("if not is_named and kept < batch", "if False and kept < batch"),
    ),
    bug(
        "named run collected",
        "Collection does not look at what entries name.",
        Collector.collect,
        ("if not is_named and kept", "if kept"),
    ),
    bug(
        "run of a batch under way collected",
        "Collection takes runs that a commit will name.",
        Collector.collect,
        (
            "< (newest.epoch, newest.flow_of(name).progress.batch)",
            "<= (newest.epoch, newest.flow_of(name).progress.batch + 1)",
        ),
    ),
    # Delivery
    bug(
        "undelivered collected",
        "A checkpoint is dropped although a sink has yet to be given it.",
        commits._retained,
        ("min([*kept[-keeping.clocks :], *delivered])", "kept[-keeping.clocks :][0]"),
    ),
    bug(
        "delivered collected",
        "The last checkpoint that a sink was given is dropped before the next one is delivered.",
        commits._retained,
        ("*delivered])", "*(min([c for c in kept if c > last], default=last) for last in delivered)])"),
    ),
    bug(
        "newest first",
        "A sink that is behind is given the newest checkpoint at once.",
        deliver.due,
        ("Due(waiting[0],", "Due(waiting[-1],"),
    ),
    bug(
        "delivered above the global clock",
        "A sink is given a task's own clock, which the others have not reached.",
        deliver._waiting,
        ("{*entry.retained, *own}", "{*entry.retained, *task.stored.cuts}"),
    ),
    bug(
        "delivered before it is there",
        "A task that has yet to catch up is taken to have what it had when it left at every clock.",
        deliver._waiting,
        ("< clock <= entry.flow_of(name).visited]", "< clock]"),
    ),
    bug(
        "changes above the last",
        "A message right at the last clock that a sink was given is no change.",
        layout.from_clock,
        (">= clock", "> clock"),
    ),
    bug(
        "changes of the shared hash",
        "A key that has the hash of one that changed is given, too.",
        unbounded.Unbounded.values,
        (
            "with_values(changed, folded(changed, levels, layout))",
            "fold.fold_keys([fold.touched(level, changed) for level in levels], layout)",
        ),
    ),
    bug(
        "changed alone",
        "A key that changed is given without what it was before.",
        unbounded.Unbounded.values,
        ("folded(changed, levels, layout)", 'changed["value"]'),
    ),
    bug(
        "record forgotten at a start",
        "A start takes what was delivered for not delivered.",
        task_state.OutputState.at_restart,
        ("self.delivered.get(output, BEGINNING)", "BEGINNING"),
    ),
    bug(
        "recorded in an older entry",
        "What was delivered is written into the entry that was read, whatever others have committed since.",
        commits.amend,
        ("changed = change(newest)", 'changed = change(vars(log).setdefault("stale", newest))'),
    ),
    # Windows, sessions, and what expires
    bug(
        "folded over panes",
        "Where runs are rewritten, panes below the clock are folded like all else.",
        fold.fold,
        ("layout.kind.begin_apart(folded, starts)", "folded"),
        theme="timely",
    ),
    bug(
        "combined over panes",
        "An interval of a micro-batch reaches over the edge of a pane.",
        combine._partial_sums,
        ("kind.begin_apart(starts, times)", "starts"),
        theme="timely",
    ),
    bug(
        "window with its end",
        "A message right at a window's end is in it.",
        panes._windows_of,
        ("_first_from(starts, begins + size,", "_first_from(starts, begins + size + 1,"),
        theme="timely",
    ),
    bug(
        "window found twice",
        "Each message of a window gives it out.",
        panes._windows_of,
        ("first[1:] = np.where(same[1:],", "first[1:] = np.where(same[1:] & False,"),
        theme="timely",
    ),
    bug(
        "window closed late",
        "A window that ends at the clock is not closed yet, and never will be.",
        panes._windows_of,
        ("(upto - size) // step", "(upto - size - 1) // step"),
        theme="timely",
    ),
    bug(
        "early as it began",
        "Of an open window only its first message says whether it has changed.",
        panes._windows_of,
        ("starts[highs - 1] >= recent", "starts[lows] >= recent"),
        theme="timely",
    ),
    bug(
        "session without its bridge",
        "A session is taken to end with the part that came last.",
        sessions.Sessions.segments,
        ("sort.running_max(lasts, first)[:-1]", "lasts[:-1]"),
        theme="timely",
    ),
    bug(
        "session one longer",
        "A message that is the gap behind still belongs to a session.",
        sessions.Sessions.segments,
        ("firsts[1:] >= ", "firsts[1:] > "),
        theme="timely",
    ),
    bug(
        "session cut short",
        "Of the parts of a session the one that ends first says when it ends.",
        sessions.Sessions.with_span,
        ("np.maximum.reduceat", "np.minimum.reduceat"),
        theme="timely",
    ),
    bug(
        "session closed late",
        "A session that ends at the clock is not closed yet, and never will be.",
        sessions.Sessions.values,
        ("(ends <= clock)", "(ends < clock)"),
        theme="timely",
    ),
    bug(
        "expired before it was given",
        "What sinks have yet to be given expires.",
        commits._moved_on,
        ("own, *outputs.delivered.values(), *outputs.voided.values()]", "own]"),
        theme="timely",
    ),
    bug(
        "expired before it was there",
        "A task that has yet to catch up loses what has not even closed at its own clock.",
        commits._moved_on,
        ("retained[0], own,", "retained[0],"),
        theme="rebuilt",
    ),
    bug(
        "expired while it is retained",
        "What has expired by the newest clock goes, though older ones can be read.",
        commits._moved_on,
        ("min([retained[0], own,", "min([retained[-1], own,"),
        theme="timely",
    ),
    bug(
        "given though it may be gone",
        "An output that is new is given windows of which parts have expired.",
        panes.Panes.values,
        ("max(since.clock, floor)", "since.clock"),
        theme="restless",
    ),
    bug(
        "life after life",
        "A key that lives again is told to have expired.",
        sessions.Living.values,
        ("was_there & ~np.isin(keys, keys[is_open])", "was_there & ~is_open"),
        theme="timely",
    ),
    bug(
        "expired unseen",
        "That a key has expired is not told.",
        sessions.Living._is_asked,
        ("(ends > since.clock) & (ends <= clock) | (lasts", "(lasts"),
        theme="timely",
    ),
    # Messages that come again
    bug(
        "copies of later messages",
        "A message is compared with those before it in time, and not with those after.",
        dedup._copies,
        ("is_copy |= (after < ends)", "is_copy |= (after < 0)"),
        theme="timely",
    ),
    bug(
        "copies at the horizon",
        "A copy right at the horizon counts.",
        dedup._copies,
        ("times <= times[before] + once.horizon", "times < times[before] + once.horizon"),
        theme="timely",
    ),
    bug(
        "updates of a message apart",
        "Of several updates of a message the first counts, and the others are its copies.",
        update.update_table,
        ("layout.once is not None and taken", "False and taken"),
        theme="timely",
    ),
    bug(
        "folded out of order",
        "Where messages with ids stay apart, the others are folded by intervals that are not theirs.",
        fold.fold,
        (
            """ids_from)
        folded = as_numpy(table, "start")""",
            "ids_from)",
        ),
        theme="timely",
    ),
    bug(
        "head of the next block",
        "A window that begins and ends in one block is put together as if it reached into the next.",
        sliding.of_edges,
        ("blocks[ends] > begins // size", "blocks[ends] >= begins // size"),
        theme="timely",
    ),
    bug(
        "sums over blocks",
        "The sums that a run holds go on from one block of time into the next.",
        sliding.with_edges,
        ("first = np.append(True, ~same[1:] | (blocks[1:] != blocks[:-1]))", "first = ~same"),
        theme="timely",
    ),
    # Tasks that feed tasks
    bug(
        "not visited taken for visited",
        "A clock between two that a derived task has visited is taken for one of its clocks.",
        task_state.TaskState.is_at,
        ("if flow.upstream:", "if False:"),
        theme="graph",
    ),
    bug(
        "no pin",
        "What derived tasks step to is thinned like any other clock.",
        graph.pins,
        ("(entry.next,) if entry.next > entry.clock else ()", "()"),
        theme="graph",
    ),
    bug(
        "dragged while it is empty",
        "A derived task that has nothing yet follows the global clock.",
        commits._moved_on,
        ("if flow.is_derived:", "if flow.is_derived and stored.runs:"),
        theme="graph",
    ),
    bug(
        "idle task not moved",
        "A task that does not hold the clock is not moved to where derived tasks step.",
        commits._moved_on,
        ("own = max(own, clock, common)", "own = max(own, clock)"),
        theme="graph",
    ),
    bug(
        "drain skips a stage",
        "A close takes derived tasks to the last clock, before what feeds them has been read.",
        commits.close,
        ("if task.active and not newest.flow_of(name).is_derived", "if task.active"),
        theme="graph",
    ),
    bug(
        "born from zero",
        "A new derived task lacks what the task that feeds it had before.",
        takeover._first_entry,
        ("at = clock if flow.is_fed_by_windows else", "at = clock if flow.is_derived else"),
        theme="graph",
    ),
    bug(
        "windows of before",
        "A new task is fed windows that closed before it began, those that are left.",
        takeover._first_entry,
        ("at = clock if flow.is_fed_by_windows else BEGINNING", "at = BEGINNING"),
        theme="graph",
    ),
    bug(
        "made of another life",
        "A task that returns goes on though what fed it has begun anew meanwhile.",
        graph.reset_and_rebuilt,
        ("before == upstream_of(plan, known) and", ""),
        theme="graph",
    ),
    bug(
        "made of a life that ends",
        "A task goes on though the start lets what feeds it begin anew.",
        graph.reset_and_rebuilt,
        ("if plan.name in reset or is_begun_anew or", "if plan.name in reset or"),
        theme="graph",
    ),
    bug(
        "windows missed",
        "A task returns though the windows that it was to be fed have closed.",
        takeover._check_return,
        ("at < oldest and (from_windows or at > BEGINNING)", "BEGINNING < at < oldest"),
        theme="graph",
    ),
    bug(
        "nothing taken back",
        "What a task made of a row stays when the row changes.",
        fed._messages,
        ("((TakenBack, before), (Chunk, after))", "((Chunk, after),)"),
        theme="graph",
    ),
    bug(
        "today's value taken back",
        "What a task would make of a row now is taken back, not what it made of the row before.",
        fed._messages,
        ("(TakenBack, before)", "(TakenBack, after)"),
        theme="graph",
    ),
    bug(
        "value of another clock taken back",
        "A row is taken back as it was long before.",
        changed._of_keys,
        ("[below(level, since) for level in levels]", "[below(level, since) for level in levels[:1]]"),
        theme="graph",
    ),
    bug(
        "absent key taken for zero",
        "A row that was not there is taken back.",
        fed._messages,
        ("there = values.is_valid()", "there = pa.array(np.ones(len(values), np.bool_))"),
        theme="graph",
    ),
    bug(
        "what is left of nothing",
        "A key of which a task took back all still feeds others.",
        fed._left,
        ("if not any(", "if True or any("),
        theme="graph",
    ),
    bug(
        "change at the clock unseen",
        "A run that begins right at the last clock is not looked at for changes.",
        fed.Span.changed_runs.fget,
        ("run.last >= self.since", "run.last > self.since"),
        theme="graph",
    ),
    bug(
        "no window without a message",
        "Nobody looks for windows that closed where no message came.",
        fed.Span.may_give,
        ("bool(self.runs) if plan.layout.kind.expires else", ""),
        theme="graph",
    ),
    bug(
        "closed again",
        "A step is fed all windows that have closed, those of the steps before too.",
        fed._read,
        ("Since(span.since)", "Since(-(2**63))"),
        theme="graph",
    ),
    bug(
        "one comes first",
        "The global clock moves when one derived task has come to the next clock.",
        graph.clocks_after,
        ("if any(flow.visited < reached", "if all(flow.visited < reached"),
        theme="graph",
    ),
    bug(
        "steps in any order",
        "A task steps to a clock before the one that feeds it is there.",
        graph.due,
        ("is_fed = all(", "is_fed = any(True or "),
        theme="graph",
    ),
    bug(
        "straight to the global clock",
        "A derived task that was away steps over clocks at which it can be read.",
        graph.due,
        (
            "next((clock for clock in entry.retained if clock > max(since, born[id])), entry.next)",
            "entry.clock if since < entry.clock else entry.next",
        ),
        theme="graph",
    ),
    # Tasks that are fed what changes between fixed times
    bug(
        "multiples skipped",
        "A task is fed what changed between the clocks of its steps, not what changed from one time to the next.",
        fed.span_of,
        ("if isinstance(source, Changes) and since >= apart_from:", "if False:"),
        theme="every",
    ),
    bug(
        "multiples of others skipped",
        "Nobody looks at the times at which a task must be known that is fed a task which is fed whatever changes.",
        fed.span_of,
        ("source.microseconds or (math.gcd(*apart) or None)", "source.microseconds"),
        theme="every",
    ),
    bug(
        "multiples of the first task",
        "Of tasks that are fed together, the first says at which times they must be known.",
        fed.span_of,
        ("for plan in flow.tasks]", "for plan in flow.tasks[:1]]"),
        theme="every",
    ),
    bug(
        "multiples before it was born",
        "A task that is built of state is fed what changed at times that are not apart any more.",
        fed.span_of,
        ("and since >= apart_from", ""),
        theme="every",
    ),
    bug(
        "ended since the step began",
        "What a window or a key with a time to live was before is what it was when the step began.",
        changed._of_windows,
        ("max(since, now - every)", "since"),
        theme="every",
    ),
    bug(
        "second change from the first value",
        "What a key was before its second change in a step is what it was before the first.",
        changed._of_keys,
        ("was, some = now.filter", "was, some = was.filter"),
        theme="every",
    ),
    bug(
        "end of a window unseen",
        "A window that ends, or a key that expires, is no change.",
        changed._of_windows,
        ("layout.kind.ends(level, since, clock)", "(np.array([], np.int64), np.array([], np.int64))"),
        theme="every",
    ),
    bug(
        "seen at its own time",
        "A message right at a time is a change at that time, and not at the next.",
        changed._seen_at,
        ("(times // every + 1) * every", "-(-times // every) * every"),
        theme="every",
    ),
    bug(
        "change at its clock",
        "A change has the time at which it was looked for, which is above the clock.",
        fed._rows,
        ("pa.array(clocks - 1)", "pa.array(clocks)"),
        theme="every",
    ),
    bug(
        "expired key taken for zero",
        "What is after a key has expired, or a window has ended, is zero.",
        fed._messages,
        (
            "(_shown(plan, _left(plan, values)) for values in (some.before, some.after))",
            "(_shown(plan, _left(plan, values)) for values in (some.before, pa.concat_arrays([some.after, "
            "plan.layout.monoid.to_arrow([plan.layout.monoid.zero])]).take(pa.array(np.where(np.asarray("
            "some.after.is_valid()), np.arange(len(some.after)), len(some.after))))))",
        ),
        theme="every",
    ),
    bug(
        "pair of equals",
        "A key that is what it was comes as a change.",
        fed._messages,
        ("differs = ~are_equal(before, after)", "differs = np.ones(len(before), np.bool_)"),
        theme="every",
    ),
    bug(
        "multiples folded over",
        "What feeds a task folds over the times at which the task looks at it.",
        messages.Ground.apart,
        ("if self.grid is None:", "if True:"),
        theme="every",
    ),
    bug(
        "multiples folded below its own clock",
        "What feeds a task folds over such times below its own clock, though the task has not come there.",
        commits.plan_batch,
        ("(entry.clock, every)", "(basis.clock, every)"),
        theme="every",
    ),
    bug(
        "multiples folded in a part",
        "Parts fold over such times, up to the next checkpoint.",
        clocks.Settings.grid.fget,
        ("self.every or self.interval", "self.interval"),
        theme="every",
    ),
    bug(
        "multiples folded in a long batch",
        "A batch that spans many intervals folds over such times.",
        clocks.split_intervals,
        ("settings.every or high <= low", "high <= low"),
        theme="every",
    ),
    bug(
        "clocks between multiples",
        "Tasks come together where some of them were not fed what has changed.",
        application.Application._settings,
        ("math.lcm(positive", "max(0, positive"),
        theme="every",
    ),
    bug(
        "drain between multiples",
        "A drain ends right above the newest message.",
        commits.close,
        ("clocks.next_multiple(read, newest.interval)", "read + 1"),
        theme="every",
    ),
    bug(
        "pairs of nothing",
        "A task on pairs that is new, or built again, is told nothing of the state that there is.",
        takeover._first_entry,
        (
            "at = clock if flow.is_fed_by_windows else BEGINNING",
            "at = clock if flow.is_fed_by_windows or (flow.is_derived and not flow.first.takes_back) else BEGINNING",
        ),
        theme="every",
    ),
    bug(
        "times missed",
        "A task on pairs returns though it has missed some.",
        takeover._check_between,
        ("stands < clock", "False"),
        theme="every",
    ),
    bug(
        "times missed before the first step",
        "A task on pairs that has taken no step yet returns though it has missed some.",
        takeover._check_between,
        ("stands < clock", "BEGINNING < own < clock"),
        theme="every",
    ),
    bug(
        "signed though it is bounded",
        "What a task with windows or a time to live made of a row is taken back, where it is long gone.",
        plan.takes_back,
        ("return is_plain and", "return"),
        theme="every",
    ),
)
