"""The record of one task in an entry, in parts: what a micro-batch, a start and a sink make of each part stands with the part.

What a task shares with others of its flow is in `flow_state`. A micro-batch changes a part by `after_batch`. A start changes
it by `cut_back`, which takes back what is at or above a clock, or by a method that keeps everything: `protocol/restore.py`
chooses, by the delivery. In the bytes of an entry the fields of all parts stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from persistent_state.store.output_state import OutputState


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

    @cached_property
    def inline(self) -> int:
        """The bytes of the runs that are in the entry."""
        return sum(shard.inline for shard in self.shards)

    def in_shards(self, shards: int) -> tuple[ShardRuns, ...]:
        """Return the runs of each of `shards` shards."""
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
        """Return the record for a start that takes back what is at or above the clock, with the runs in `shards` shards."""
        return replace(self, cuts=(clock,), shards=cut_runs(self.runs, clock, shards))

    def keep_all(self, shards: int) -> StoredState:
        """Return the record for a start that takes nothing back, with the runs in `shards` shards."""
        return replace(self, shards=cut_runs(self.runs, END, shards))


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
        """Return True if what sources gave below this clock can be distinguished from the rest. `flow` is the task's."""
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
        yield from chain.from_iterable(shard.files() for shard in self.stored.shards)
        yield from self.late_rows.files()


def cut_runs(runs: Sequence[Run], clock: int, shards: int) -> tuple[ShardRuns, ...]:
    """Return the runs below the clock, cut at the bounds of this number of shards."""
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
