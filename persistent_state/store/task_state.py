"""The record of one task in an entry, in parts: what a micro-batch, a start and a sink make of each part stands with the part.

What a task shares with others of its flow is in `flow_state`. A micro-batch changes a part by `after_batch`. A start changes
it by `cut_back`, which takes back what is at or above a clock, or by a method that keeps everything: `protocol/restore.py`
chooses, by the delivery. In the bytes of an entry the fields of all parts stand side by side.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

from persistent_state.event_time import clocks
from persistent_state.event_time.clocks import BEGINNING, END
from persistent_state.partials import keys
from persistent_state.partials.evolve import Path, less
from persistent_state.store.flow_state import FlowState, LateRows
from persistent_state.store.named_files import Run, ShardRuns, Stored


@dataclass(frozen=True)
class StoredState:
    """The record of what is stored of a task's state, and of the clocks at which it can be read."""

    cuts: tuple[int, ...]
    """The clocks that the runs keep apart, ascending: the state can be read at each."""

    shards: tuple[ShardRuns, ...] = ()
    """The state: partial sums in run files, by shard; empty as long as nothing was ever stored."""

    floor: int = BEGINNING
    """The clock by which expired values may be gone from the runs: no output needs them any more."""

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """All runs, in the order of the shards."""
        return tuple(chain.from_iterable(shard.runs for shard in self.shards))

    @cached_property
    def first(self) -> int | None:
        """The least start of an interval in the runs, in microseconds UTC; None without runs."""
        return min((shard.first for shard in self.shards if shard.first is not None), default=None)

    def in_shards(self, shards: int) -> tuple[ShardRuns, ...]:
        """Return the runs of each of so many shards."""
        return self.shards or (ShardRuns(),) * shards

    def after_batch(self, changes: Sequence[tuple[tuple[int, int], Sequence[Run]]], cuts: Iterable[int]) -> StoredState:
        """Return the record after a micro-batch that changed the shards, whose runs keep these clocks apart too.

        A change says from which to which of a shard's oldest runs stay, and which new ones come after them.
        """
        before = self.in_shards(len(changes))
        shards = tuple(shard.changed(*change) for shard, change in zip(before, changes, strict=True))
        return replace(self, shards=shards, cuts=(*self.cuts, *cuts))

    def with_cuts(self, cuts: Iterable[int]) -> StoredState:
        """Return the record with these clocks kept apart from now on, and no others."""
        return replace(self, cuts=tuple(sorted(cuts)))

    def with_floor(self, floor: int) -> StoredState:
        """Return the record when what has expired by this clock may go. A floor never falls."""
        return replace(self, floor=max(self.floor, floor))

    def close(self, clock: int) -> StoredState:
        """Return the record of a task that is given its last clock, which is above all that is stored."""
        return replace(self, cuts=(*self.cuts, clock))

    def without(self, fields: Sequence[Path]) -> StoredState:
        """Return the record when these fields of all values are dropped."""
        if not fields:
            return self
        shards = (
            ShardRuns(tuple(replace(run, dropped=less(run.dropped, fields)) for run in shard.runs))
            for shard in self.shards
        )
        return replace(self, shards=tuple(shards))

    def cut_back(self, clock: int, shards: int) -> StoredState:
        """Return the record for a start that takes back what is at or above the clock, with the runs of so many shards."""
        return replace(self, cuts=(clock,), shards=cut_runs(self.runs, clock, shards))

    def keep_all(self, shards: int) -> StoredState:
        """Return the record for a start that takes nothing back, with the runs of so many shards."""
        return replace(self, shards=cut_runs(self.runs, END, shards))


@dataclass(frozen=True)
class OutputState:
    """The record of what each output's sink has, and of what starts have made void of it."""

    delivered: Mapping[str, int] = field(default_factory=dict)
    """By output: the last clock that its sink is known to have; `BEGINNING` if it has none."""

    voided: Mapping[str, int] = field(default_factory=dict)
    """By output whose sink was given clocks that a start has cut away since: the clock up to which its values are right."""

    furthest: int = BEGINNING
    """A bound of what sinks were given: none was given a clock above both the task's own and this one, but those in `had`."""

    cut_at: Mapping[str, int] = field(default_factory=dict)
    """By output: the lowest clock to which starts have cut the task back since its sink last answered.

    What the sink has above that clock may be void. A sink that keeps no record answers when it is given all that it may have.
    Of an output that left it is the task's clock then, if that is lower.
    """

    left: tuple[str, ...] = ()
    """The outputs that the task has had since it was built, and that the newest start with the task does not have."""

    retired: tuple[str, ...] = ()
    """The outputs that the task had before it was rebuilt: their names stay taken."""

    begun: Mapping[str, int] = field(default_factory=dict)
    """By output whose sink was given everything at a clock above the first one: that clock, or a later one.

    Below that clock the sink lacks clocks. Older versions say the global clock of the start in which the output came.
    """

    left_at: Mapping[str, int] = field(default_factory=dict)
    """By output that left, or whose task began from zero: the clock up to which its sink was known to be right then.

    It stands until the sink answers, or is given something.
    """

    lacks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By output: between which clocks its sink may lack what earlier entries say that it has.

    Its place was emptied, or it went back further than to the clock of a rewind.
    """

    had: Mapping[str, int] = field(default_factory=dict)
    """By output whose sink may have clocks above that of a rewind: the highest clock that it may have.

    It is forgotten when the sink has taken these clocks back, or has been given as many again.
    """

    def record_given(self, output: str, clock: int) -> OutputState:
        """Return the record when the output's sink was given every checkpoint up to this clock.

        It has none above, unless starts have cut the task back.
        """
        has_all = clock >= self.bound(output)
        return replace(
            self,
            delivered={**self.delivered, output: clock},
            voided=_without(self.voided, output),
            cut_at=_without(self.cut_at, output) if has_all else self.cut_at,
            left_at=_without(self.left_at, output),
            had=_without(self.had, output) if has_all else self.had,
        )

    def bound(self, output: str) -> int:
        """Return a bound of what the output's sink may have above the clocks that it is known to have; `BEGINNING` if none."""
        had = self.had.get(output, BEGINNING)
        return max(self.furthest, self.cut_at[output], had) if output in self.cut_at else had

    def void(self, output: str) -> OutputState:
        """Return the record when the output's sink lacks values of its clock, and is given everything with the next one."""
        if output not in self.delivered:
            return self
        right = min(self.voided.get(output, END), self.delivered[output])
        return replace(self, voided={**self.voided, output: right})

    def believe_sink(self, output: str, clock: int, own: int, retained: Sequence[int]) -> OutputState:
        """Return the record by the sink's own: it has come to this clock. `own` is the task's clock."""
        voided, lacks = dict(self.voided), dict(self.lacks)
        known = max(self.delivered[output], self.left_at.get(output, BEGINNING))
        # A start of an older version did not say where it cut the task back.
        cut = self.cut_at.get(output, own)
        if clock > cut:
            # A driver gave the sink that clock before a start cut the task back, and died before the log said so.
            voided.setdefault(output, min(self.delivered[output], cut))
        elif clock > self.delivered[output]:
            # The driver that gave it that died before the log said so. What it lacked was part of that.
            voided.pop(output, None)
        # With which clock a sink begins that never had one was said at the start.
        begun = _begun(self.begun, {output: clock}, retained) if max(clock, known) > BEGINNING else {**self.begun}
        if clock < known and not clocks.is_among(retained, clock):
            lacks[output] = (min(clock, lacks.get(output, (END, END))[0]), begun.get(output, END))
        delivered = {**self.delivered, output: clock}
        return replace(
            self,
            delivered=delivered,
            voided=voided,
            cut_at=_without(self.cut_at, output),
            left_at=_without(self.left_at, output),
            begun=begun,
            lacks=lacks,
            had=_without(self.had, output),
        )

    def go_back(self, output: str) -> OutputState:
        """Return the record when the output's sink has gone back as it owed."""
        return replace(self, had=_without(self.had, output))

    def cut_back(self, clock: int, own: int) -> OutputState:
        """Return the record when a start takes the task back from its own clock to this one."""
        beyond = (output for output, last in self.delivered.items() if last > clock)
        furthest = max(self.furthest, own) if own > clock else self.furthest
        # A sink may have been given more than the log says. The first of several cuts is the lowest.
        cut = dict.fromkeys((*self.delivered, *self.left) if furthest > clock else (), clock)
        return replace(
            self,
            voided={**dict.fromkeys(beyond, clock), **self.voided},
            furthest=furthest,
            cut_at={**cut, **self.cut_at},
        )

    def right_up_to(self, before: OutputState, output: str, clock: int, is_same_life: bool) -> int:
        """Return the clock up to which what the sink has is right when the task goes back to a kept clock.

        `before` is the record when that clock was the newest, and `is_same_life` tells whether the task has not begun from zero
        since. `BEGINNING` means that nothing is right.
        """
        # An output that was retired by then belongs to an earlier life, and has been given nothing since.
        if output in before.retired or self._goes_on(before, output, clock, is_same_life):
            return clock
        return self._was_right(before, output, clock)

    def _was_right(self, before: OutputState, output: str, clock: int) -> int:
        """Return what `right_up_to` says of an output that does not go on from what its sink has at the clock.

        `before` says what the sink had. The clocks above that are still retained there, and the sink is given them again.
        """
        last = max(before.delivered.get(output, BEGINNING), before.left_at.get(output, BEGINNING))
        low, high = self.lacks.get(output, (END, END))
        return min(clock, last, before.voided.get(output, END), low if clock < high else END)

    def rewind(
        self, before: OutputState, clock: int, is_same_life: bool, again: Collection[str], had: Mapping[str, int]
    ) -> OutputState:
        """Return the record when the task goes back to a kept clock, and its outputs with it.

        `before` and `is_same_life` are those of `right_up_to`. Outputs that are given clocks `again` keep what they have. Those
        of which nothing is right, and that there were not then, are forgotten: they are new when they come again. `had` is the
        highest clock of each sink that may have more than is right.
        """
        known = {*before.delivered, *before.left, *self.delivered, *self.left, *self.retired} - {*before.retired}
        goes_on = {output for output in known if self._goes_on(before, output, clock, is_same_life)}
        right = {
            output: clock if output in goes_on else self._was_right(before, output, clock) for output in sorted(known)
        }
        stays = {*before.delivered, *before.left, *again}
        right = {output: last for output, last in right.items() if last > BEGINNING or output in stays}
        delivered = {**before.delivered, **{output: self.delivered[output] for output in goes_on}}
        delivered = {output: min(last, right[output]) for output, last in delivered.items() if output in right}
        begun = {output: (self if output in goes_on else before).begun.get(output) for output in right}
        back = OutputState(
            delivered=delivered,
            furthest=clock,
            cut_at=right,
            left=tuple(sorted(right.keys() - delivered.keys())),
            left_at={output: last for output, last in right.items() if last > delivered.get(output, BEGINNING)},
            retired=before.retired,
            begun={output: first for output, first in begun.items() if first is not None},
            lacks={output: lacks for output, last in right.items() if (lacks := self._lacks(output, last, clock))},
            had=had,
        )
        for output in again:
            # What only the void timeline changed comes, too.
            back = back.void(output)
        return back

    def _lacks(self, output: str, right: int, clock: int) -> tuple[int, int] | None:
        """Return what `lacks` says of an output that keeps what is `right` in a rewind to a clock."""
        low, high = self.lacks.get(output, (END, BEGINNING))
        if right < clock:
            return min(low, right), max(high, clock)
        return (low, high) if low < clock else None

    def _goes_on(self, before: OutputState, output: str, clock: int, is_same_life: bool) -> bool:
        """Return whether the sink has all that is right at a clock, and it was given in order since the record `before`."""
        has_all = is_same_life and output in self.delivered and self.begun.get(output, BEGINNING) <= clock
        return has_all and output not in before.voided and output not in before.cut_at

    def at_restart(self, outputs: Collection[str], retained: Sequence[int] = (), own: int = BEGINNING) -> OutputState:
        """Return the record for a start in which the task has these outputs. `own` is the task's clock.

        `retained` are the clocks that an output can be given.
        """
        delivered = {output: self.delivered.get(output, BEGINNING) for output in outputs}
        # An output that is left out is not given what it lacks, and is new when it comes back: its sink then says what it has.
        leaves = [output for output in self.delivered if output not in delivered]
        cut_at = {output: self.voided[output] for output in leaves if output in self.voided}
        had_more = any(self.cut_at.get(output, own) < own for output in leaves)
        return replace(
            self,
            delivered=delivered,
            voided={output: last for output, last in self.voided.items() if output in delivered},
            furthest=max(self.furthest, own) if had_more else self.furthest,
            cut_at={**dict.fromkeys((*self.left, *leaves), own), **self.cut_at, **cut_at},
            left=self._left_by(outputs),
            left_at=self._left_at(leaves),
            begun=_begun(self.begun, delivered, retained),
        )

    def at_reset(self, outputs: Collection[str], clock: int, born: int, own: int) -> OutputState:
        """Return the record for a start at the global clock, in which the task begins from zero at the clock `born`.

        `own` is the clock that it had.
        """
        known = {*outputs, *self.delivered, *self.left, *self.cut_at}
        return OutputState(
            delivered=dict.fromkeys(outputs, BEGINNING),
            furthest=max(self.furthest, own),
            # A task that others feed, too, begins just below the clock to which a start may have cut it back.
            cut_at={output: min(born, self.cut_at.get(output, born)) for output in sorted(known)},
            left=self._left_by(outputs),
            left_at=self._left_at(self.delivered),
            retired=self.retired,
            begun=_begun({}, dict.fromkeys(outputs, BEGINNING), (clock,)),
            lacks=self.lacks,
            had=self.had,
        )

    def at_rebuild(self, outputs: Collection[str], clock: int, own: int) -> OutputState:
        """Return the record for a start at the global clock that rebuilds the task from the beginning of its source."""
        return OutputState(
            delivered=dict.fromkeys(outputs, BEGINNING),
            furthest=max(self.furthest, own, *self.had.values()),
            retired=tuple(sorted({*self.retired, *self.delivered, *self.left})),
            begun=_begun({}, dict.fromkeys(outputs, BEGINNING), (clock,)),
            lacks=self.lacks,
        )

    def _left_by(self, outputs: Collection[str]) -> tuple[str, ...]:
        """Return the outputs that the task has had since it was built, and that are not among these."""
        return tuple(sorted({*self.left, *self.delivered} - {*outputs}))

    def _left_at(self, outputs: Iterable[str]) -> dict[str, int]:
        """Return what `left_at` says when these outputs leave, or begin again."""
        last = {output: max(self.delivered[output], self.left_at.get(output, BEGINNING)) for output in outputs}
        right = {output: min(clock, self.voided.get(output, END)) for output, clock in last.items()}
        return {**self.left_at, **{output: clock for output, clock in right.items() if clock > BEGINNING}}


IN_ORDER = "in order"
"""The kind of what feeds the parts of an ordered task that process its messages, as identities name it."""


def messages_processed(inputs: Mapping[str, Any] | None) -> str | None:
    """Return the task whose waiting messages a task with these inputs, as its identity has them, processes in order."""
    return next((fed[IN_ORDER] for fed in (inputs or {}).values() if IN_ORDER in fed), None)


@dataclass(frozen=True)
class TaskState:
    """The record of one task in an entry. Clocks are microseconds UTC."""

    identity: Mapping[str, Any]
    """The task's key columns, its monoid and its windows: what must stay as long as the state is kept."""

    born: int
    """The clock at which the task started from zero."""

    flow: str
    """The id of the flow that feeds the task: the name of its first task."""

    stored: StoredState

    late_rows: LateRows = field(default_factory=LateRows)
    """The rows that are bad for this task only, and the late and bad rows of the flows that it was in before."""

    outputs: OutputState = field(default_factory=OutputState)

    active: bool = True
    """True if the task is part of the newest start."""

    life: int = 0
    """The epoch of the start that built the task again from the beginning of its source; 0 if none did."""

    ended: tuple[str, ...] = ()
    """The inputs that have ended for ever since the task started from zero. Their rows stay in its state."""

    @property
    def has_states(self) -> bool:
        """Return whether it is the part of an ordered task that has the states of its keys, which are replaced."""
        return "replaced" in self.identity.get("window", {})

    @property
    def gives_once(self) -> bool:
        """Return whether outputs are given what closes, expires or is emitted, once."""
        return bool(self.identity.get("window")) and not self.has_states

    @property
    def processes(self) -> str | None:
        """The task whose waiting messages this one processes in order; None if it processes none."""
        return messages_processed(self.identity.get("inputs"))

    def is_at(self, clock: int, flow: FlowState) -> bool:
        """Return True if the state at this clock can be read from what is stored. `flow` is the task's."""
        if flow.upstream:
            # What other tasks give may have changed between two clocks that it has visited.
            return clock in self.stored.cuts and clock <= flow.visited
        return self.keeps_apart(clock, flow)

    def keeps_apart(self, clock: int, flow: FlowState) -> bool:
        """Return True if what sources gave below this clock can be told apart from the rest. `flow` is the task's."""
        own, stored = flow.progress, self.stored
        if clock in stored.cuts:
            return True
        # The state is zero at a clock below everything that is stored.
        if clock <= own.clock and (stored.first is None or stored.first >= clock):
            return True
        # Nothing can arrive below a clock that the task does not hold back.
        return not own.holds and clock > own.clock and clocks.clean_clock(clock, flow.coarse) == clock

    def end_inputs(self, names: Iterable[str]) -> TaskState:
        """Return the task when these inputs have ended."""
        return replace(self, ended=tuple(dict.fromkeys((*self.ended, *names))))

    def files(self) -> Iterable[Stored]:
        """Yield every file that an entry names directly for the task, but not for its flow."""
        yield from (run.file for run in self.stored.runs)
        yield from self.late_rows.files()


def cut_runs(runs: Sequence[Run], clock: int, shards: int) -> tuple[ShardRuns, ...]:
    """Return the runs below the clock, cut at the bounds of so many shards."""
    parts: list[list[Run]] = [[] for _ in range(shards)]
    for whole in runs:
        for shard in range(keys.shard_of(whole.low, shards), keys.shard_of(whole.high - 1, shards) + 1):
            low, high = keys.shard_range(shard, shards)
            parts[shard].append(replace(whole, low=max(low, whole.low), high=min(high, whole.high)))
    return tuple(ShardRuns(tuple(_cut_at(clock, some))) for some in parts)


def _cut_at(clock: int, runs: Sequence[Run]) -> Iterator[Run]:
    """Yield the runs of a shard as they are below the clock."""
    losing: list[Run] = []
    for run in runs:
        if run.last >= clock and (run.below is None or run.below > clock):
            losing.append(run)
        if run.first < clock:
            # What a run calls current holds the rows that it or an older one loses.
            is_stale = any(one.low < run.high and run.low < one.high for one in losing)
            limits = [limit for limit in (run.below, clock if is_stale else None) if limit is not None]
            yield replace(run, below=min(limits, default=None))


def _begun(known: Mapping[str, int], delivered: Mapping[str, int], retained: Sequence[int]) -> dict[str, int]:
    """Return `begun` when sinks have come to these clocks. One whose clock is gone is given everything with the next.

    It never falls. After a rewind, there may be clocks again below the one with which a writer of the old timeline begins.
    """
    begun = dict(known)
    for output, last in delivered.items():
        above = bisect_right(retained, last)
        if above < len(retained) and not clocks.is_among(retained, last):
            begun[output] = max(retained[above], known.get(output, BEGINNING))
    return begun


def _without(clocks: Mapping[str, int], output: str) -> dict[str, int]:
    return {name: clock for name, clock in clocks.items() if name != output}
