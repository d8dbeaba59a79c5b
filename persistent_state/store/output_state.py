"""The record of a task's outputs in an entry: what the sink of each has, and what starts have made void of it.

Each output has one record, whose transitions are methods that return the record after them. Starts and rewinds change the
records of all outputs of a task: these are methods of `OutputState`. Clocks are microseconds UTC.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from persistent_state.event_time import clocks
from persistent_state.event_time.clocks import BEGINNING, END


class Status(Enum):
    """The standing of an output with its task."""

    NEW = "new"
    """The task never had the output, or had it only in a timeline that is void."""

    ACTIVE = "active"
    """The newest start with the task has the output."""

    LEFT = "left"
    """The task has had the output since it was built, and the newest start with the task does not have it."""

    RETIRED = "retired"
    """The task had the output before it was rebuilt: the name stays taken."""


NEW, ACTIVE, LEFT, RETIRED = Status


@dataclass(frozen=True)
class OutputRecord:
    """The record of one output: what its sink has, may have and lacks. By default nothing is known of the output."""

    status: Status = NEW

    delivered: int = BEGINNING
    """The last clock that the sink of an active output is known to have; `BEGINNING` if it has none."""

    right_up_to: int = END
    """The clock up to which the sink's values are right, if it has clocks that a start has cut away since; else `END`."""

    cut_at: int | None = None
    """The lowest clock to which starts have cut the task back since the sink last answered; None if none has.

    What the sink has above that clock may be void. A sink that keeps no record answers when it is given all that it may have.
    For an output that left it is the task's clock then, if that is lower.
    """

    begun: int = BEGINNING
    """The clock at which the sink was given everything, or a later one; `BEGINNING` if that was the first clock.

    Below that clock the sink lacks clocks. Older versions wrote the global clock of the start in which the output came.
    """

    left_at: int = BEGINNING
    """The clock up to which the sink was known to be right when the output left, or its task began from zero.

    It stands until the sink answers, or is given something.
    """

    lacks: tuple[int, int] | None = None
    """The clocks between which the sink may lack what earlier entries say that it has.

    Its place was emptied, or it went back further than to the clock of a rewind.
    """

    had: int | None = None
    """The highest clock that the sink may have, if it may have clocks above that of a rewind.

    It is forgotten when the sink has taken these clocks back, or has been given as many again.
    """

    @property
    def is_known(self) -> bool:
        """True if the task has had the output since it was built."""
        return self.status in (ACTIVE, LEFT)

    @property
    def known(self) -> int:
        """The last clock that the sink has for sure; `BEGINNING` if it may have none."""
        return max(self.delivered, self.left_at)

    @property
    def right(self) -> int:
        """The clock up to which what the sink has for sure is right."""
        return min(self.known, self.right_up_to)

    @property
    def is_right(self) -> bool:
        """True if all values that the sink has are right."""
        return self.right_up_to == END

    @property
    def changes_since(self) -> int:
        """The clock since which the sink is given what changed: the last one that it was given whose values are right."""
        return min(self.delivered, self.right_up_to)

    def may_have(self, furthest: int) -> int:
        """Return a bound of what the sink may have above the clocks that it has for sure; `BEGINNING` if it has no more.

        `furthest` is that of the task's outputs.
        """
        had = BEGINNING if self.had is None else self.had
        return had if self.cut_at is None else max(furthest, self.cut_at, had)

    def give(self, clock: int, furthest: int) -> OutputRecord:
        """Return the record when the sink was given every checkpoint up to this clock.

        It has none above, unless starts have cut the task back. `furthest` is that of the task's outputs.
        """
        has_all = clock >= self.may_have(furthest)
        return replace(
            self,
            delivered=clock,
            right_up_to=END,
            left_at=BEGINNING,
            cut_at=None if has_all else self.cut_at,
            had=None if has_all else self.had,
        )

    def void(self) -> OutputRecord:
        """Return the record when the sink lacks values of its clock, and is given everything with the next one."""
        return replace(self, right_up_to=self.changes_since) if self.status is ACTIVE else self

    def believe(self, clock: int, own: int, retained: Sequence[int]) -> OutputRecord:
        """Return the record when the sink's own says that it has come to this clock. `own` is the task's clock."""
        right, lacks = self.right_up_to, self.lacks
        # A start of an older version did not write where it cut the task back.
        cut = own if self.cut_at is None else self.cut_at
        if clock > cut and self.is_right:
            # A driver gave the sink that clock before a start cut the task back, and died before the log said so.
            right = min(self.delivered, cut)
        elif self.delivered < clock <= cut:
            # The driver that gave it that died before the log said so. What it lacked was part of that.
            right = END
        begun = self.begun
        if max(clock, self.known) > BEGINNING:
            # With which clock a sink begins that never had one was written at the start.
            begun = _begun(begun, clock, retained)
        if clock < self.known and not clocks.is_among(retained, clock):
            lacks = (min(clock, lacks[0] if lacks else END), END if begun == BEGINNING else begun)
        return OutputRecord(self.status, clock, right, begun=begun, lacks=lacks)

    def go_back(self) -> OutputRecord:
        """Return the record when the sink has gone back as it owed."""
        return replace(self, had=None)

    def cut_back(self, clock: int, furthest: int) -> OutputRecord:
        """Return the record when a start takes the task back to this clock."""
        if not self.is_known:
            return self
        is_first = self.is_right and self.delivered > clock
        # A sink may have been given more than the log says. The first of several cuts is the lowest.
        is_cut = self.cut_at is None and furthest > clock
        return replace(
            self,
            right_up_to=clock if is_first else self.right_up_to,
            cut_at=clock if is_cut else self.cut_at,
        )

    def go_on(self, own: int, retained: Sequence[int]) -> OutputRecord:
        """Return the record for a start that has the output. `own` is the task's clock."""
        cut_at = own if self.status is LEFT and self.cut_at is None else self.cut_at
        return replace(self, status=ACTIVE, cut_at=cut_at, begun=_begun(self.begun, self.delivered, retained))

    def leave(self, own: int) -> OutputRecord:
        """Return the record for a start that does not have the output. `own` is the task's clock.

        The sink is not given what it lacks, and is new when the output comes back: it then says what it has.
        """
        cut_at = own if self.cut_at is None else self.cut_at
        return self._gone(cut_at if self.is_right else self.right_up_to)

    def reset(self, born: int) -> OutputRecord:
        """Return the record when the task begins from zero at the clock `born`, as of an output that left."""
        # A task that others feed, too, begins just below the clock to which a start may have cut it back.
        return replace(self._gone(born if self.cut_at is None else min(born, self.cut_at)), begun=BEGINNING)

    def _gone(self, cut_at: int) -> OutputRecord:
        left_at = self.right if self.right > BEGINNING else self.left_at
        return replace(self, status=LEFT, delivered=BEGINNING, right_up_to=END, cut_at=cut_at, left_at=left_at)

    def begin(self, clock: int) -> OutputRecord:
        """Return the record of an output of a task that was reset or rebuilt: it is given everything at this clock first."""
        return replace(self, status=ACTIVE, begun=_begun(BEGINNING, BEGINNING, (clock,)))

    def retire(self) -> OutputRecord:
        """Return the record when the task is rebuilt."""
        return OutputRecord(NEW if self.status is NEW else RETIRED, lacks=self.lacks)

    def right_at(self, clock: int, was: OutputRecord, is_same_life: bool) -> int:
        """Return the clock up to which what the sink has is right when the task goes back to a kept clock.

        `was` is the record when that clock was the newest, and `is_same_life` says that the task has not begun from zero since.
        `BEGINNING` means that nothing is right.
        """
        # An output that was retired by then belongs to an earlier life, and has been given nothing since.
        if was.status is RETIRED or self._goes_on(was, clock, is_same_life):
            return clock
        # `was` says what the sink had. The clocks above that are still retained there, and the sink is given them again.
        low, high = self.lacks or (END, END)
        return min(clock, was.right, low if clock < high else END)

    def rewind(
        self, was: OutputRecord, clock: int, is_same_life: bool, *, again: bool, had: int | None
    ) -> OutputRecord:
        """Return the record when the task goes back to a kept clock, and the output with it.

        `was` and `is_same_life` are those of `right_at`. An output that is given clocks `again` keeps what it has. One of which
        nothing is right, and that there was not then, is forgotten: it is new when it comes again. `had` is the highest clock
        of a sink that may have more than is right.
        """
        forgotten = OutputRecord(RETIRED if was.status is RETIRED else NEW, had=had)
        if was.status is RETIRED or was.status is self.status is NEW:
            return forgotten
        right = self.right_at(clock, was, is_same_life)
        if right == BEGINNING and was.status is NEW and not again:
            return forgotten
        goes_on = self._goes_on(was, clock, is_same_life)
        last = self if goes_on else was
        # One that is not active has no clock delivered.
        delivered = min(last.delivered, right)
        back = OutputRecord(
            status=ACTIVE if last.status is ACTIVE else LEFT,
            delivered=delivered,
            cut_at=right,
            begun=last.begun,
            left_at=right if right > delivered else BEGINNING,
            lacks=self._lacks_after(right, clock),
            had=had,
        )
        # What only the void timeline changed comes, too.
        return back.void() if again else back

    def _goes_on(self, was: OutputRecord, clock: int, is_same_life: bool) -> bool:
        """Return whether the sink has all that is right at a clock, and it was given in order since the record `was`."""
        has_all = is_same_life and self.status is ACTIVE and self.begun <= clock
        return has_all and was.is_right and was.cut_at is None

    def _lacks_after(self, right: int, clock: int) -> tuple[int, int] | None:
        """Return `lacks` of an output that keeps what is `right` in a rewind to a clock."""
        low, high = self.lacks or (END, BEGINNING)
        if right < clock:
            return min(low, right), max(high, clock)
        return (low, high) if low < clock else None


@dataclass(frozen=True)
class OutputState:
    """The record of a task's outputs, and of what starts have made void of what their sinks have."""

    records: Mapping[str, OutputRecord] = field(default_factory=dict)
    """By output: what is known of it."""

    furthest: int = BEGINNING
    """A bound of what sinks were given: none was given a clock above both the task's own and this one, but those that `had`."""

    def __getitem__(self, output: str) -> OutputRecord:
        """Return the record of an output; one that says nothing if the task does not know the output."""
        return self.records.get(output, OutputRecord())

    def with_status(self, *of: Status) -> dict[str, OutputRecord]:
        """Return the records of the outputs that are one of these."""
        return {output: record for output, record in self.records.items() if record.status in of}

    @property
    def active(self) -> dict[str, OutputRecord]:
        """The records of the outputs of the newest start with the task."""
        return self.with_status(ACTIVE)

    @property
    def delivered(self) -> dict[str, int]:
        """By active output: the last clock that its sink is known to have; `BEGINNING` if it has none."""
        return {output: record.delivered for output, record in self.active.items()}

    def may_have(self, output: str) -> int:
        """Return a bound of what a sink may have above the clocks that it has for sure; `BEGINNING` if it has no more."""
        return self[output].may_have(self.furthest)

    def put(self, output: str, record: OutputRecord) -> OutputState:
        """Return the record with this one of an output."""
        return _of({**self.records, output: record}, self.furthest)

    def cut_back(self, clock: int, own: int) -> OutputState:
        """Return the record when a start takes the task back from its own clock to this one."""
        furthest = max(self.furthest, own) if own > clock else self.furthest
        return _of({output: record.cut_back(clock, furthest) for output, record in self.records.items()}, furthest)

    def rewind(
        self, before: OutputState, clock: int, is_same_life: bool, again: Collection[str], had: Mapping[str, int]
    ) -> OutputState:
        """Return the record when the task goes back to a kept clock, and its outputs with it: see `OutputRecord.rewind`."""
        names = dict.fromkeys((*before.records, *self.records, *had))
        back = {
            each: self[each].rewind(before[each], clock, is_same_life, again=each in again, had=had.get(each))
            for each in names
        }
        return _of(back, clock)

    def at_restart(self, outputs: Collection[str], retained: Sequence[int] = (), own: int = BEGINNING) -> OutputState:
        """Return the record for a start in which the task has these outputs. `own` is the task's clock.

        `retained` are the clocks that an output can be given.
        """
        stay = {each: self[each].go_on(own, retained) for each in outputs}
        others = {each: record for each, record in self.records.items() if each not in stay}
        left = {each: record.leave(own) for each, record in others.items() if record.is_known}
        cuts = (each.cut_at for each in others.values() if each.status is ACTIVE and each.cut_at is not None)
        furthest = max(self.furthest, own) if any(cut < own for cut in cuts) else self.furthest
        return _of({**stay, **others, **left}, furthest)

    def at_reset(self, outputs: Collection[str], clock: int, born: int, own: int) -> OutputState:
        """Return the record for a start at the global clock, in which the task begins from zero at the clock `born`.

        `own` is the clock that it had.
        """
        begin = {each: self[each].reset(born).begin(clock) for each in outputs}
        others = {each: record for each, record in self.records.items() if each not in begin}
        left = {each: record.reset(born) for each, record in others.items() if record.is_known}
        return _of({**begin, **others, **left}, max(self.furthest, own))

    def at_rebuild(self, outputs: Collection[str], clock: int, own: int) -> OutputState:
        """Return the record for a start at the global clock that rebuilds the task from the beginning of its source."""
        begin = {each: self[each].retire().begin(clock) for each in outputs}
        retired = {each: record.retire() for each, record in self.records.items() if each not in begin}
        had = (record.had for record in self.records.values() if record.had is not None)
        return _of({**begin, **retired}, max(self.furthest, own, *had))


def _of(records: Mapping[str, OutputRecord], furthest: int) -> OutputState:
    """Return the record of outputs, without those of which nothing is known."""
    return OutputState({output: each for output, each in records.items() if each != OutputRecord()}, furthest)


def _begun(known: int, last: int, retained: Sequence[int]) -> int:
    """Return `begun` when a sink has come to a clock. One whose clock is gone is given everything with the next.

    It never falls. After a rewind, there may be clocks again below the one with which a writer of the old timeline begins.
    """
    above = bisect_right(retained, last)
    if above < len(retained) and not clocks.is_among(retained, last):
        return max(retained[above], known)
    return known
