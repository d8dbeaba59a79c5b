"""Choose the next checkpoint for each sink, and record how far each sink has come; free of Spark.

A checkpoint stays retained until every output has it, and the last checkpoint that an output has stays too: between the two
stands what changed. Where that is not so, as for an output that is new or voided, the sink is given every key.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from persistent_state.batch.plan import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE
from persistent_state.errors import FencedError, InvalidInputError
from persistent_state.event_time.clocks import BEGINNING, END, is_among, or_none, with_more
from persistent_state.formatting import clock_of_rewind, full_clock, show_clock
from persistent_state.protocol.next_entry import amend, newest_own
from persistent_state.store import kept_entries
from persistent_state.store.entry import Entry, Owed
from persistent_state.store.log import Log
from persistent_state.store.output_state import LEFT, OutputRecord


@dataclass(frozen=True)
class Due:
    """Values at `clock` that a sink is to be given: of what changed since `since` (`BEGINNING`: of all).

    What closed, expired or was emitted since then is known for any clock; what changed in windows that are open only since
    `recent`.
    """

    clock: int
    since: int
    recent: int


@dataclass(frozen=True)
class Delivered:
    """A sink's progress: it has the values at all clocks up to `clock` (None: none yet), and `behind` more are waiting."""

    clock: int | None
    behind: int


def due(entry: Entry, task: str, output: str, at_once: bool = False) -> Due | None:
    """Return what an output is given next, by the newest entry; None if its sink has all that there is.

    With `at_once` the output is given the task's own clocks too, and does not wait for the global clock.
    """
    known = entry.tasks[task]
    record = known.outputs[output]
    last = record.changes_since
    own = known.stored.cuts if at_once else ()
    waiting = _waiting(entry, task, output, own)
    if not waiting:
        return None
    is_apart = is_among(entry.retained, last) or last in own
    recent = last if record.is_right and is_apart else BEGINNING
    # States that are replaced differ only at the clocks that are kept.
    return Due(waiting[0], last if known.gives_once else recent, recent)


def behind(entry: Entry, task: str) -> Mapping[str, int]:
    """Return how many checkpoints are waiting for each output's sink."""
    return {output: len(_waiting(entry, task, output)) for output in entry.tasks[task].outputs.active}


def delivered(entry: Entry, task: str) -> Mapping[str, Delivered]:
    """Return the progress of each output's sink."""
    last = entry.tasks[task].outputs.delivered
    return {output: Delivered(or_none(last[output]), count) for output, count in behind(entry, task).items()}


def gone_meanwhile(before: Entry, entry: Entry) -> Iterator[tuple[str, str, int]]:
    """Yield each output that comes back with a start, and whose sink can't be given all that it missed.

    Args:
        before: The entry before that of the start.
        entry: The entry of the start.

    Returns:
        The task, the output, and a clock. Windows that closed by that clock while the output was left out may be gone, and so
        may what expired or was emitted.
    """
    for name, task in entry.tasks.items():
        if not task.gives_once or name not in before.tasks:
            continue
        was, floor = before.tasks[name].outputs, task.stored.floor
        for output in task.outputs.active:
            if was[output].status is LEFT and was[output].left_at < floor:
                yield name, output, floor


def _waiting(entry: Entry, name: str, output: str, own: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the clocks that an output's sink lacks, ascending: of the retained ones, and of the task's `own` ones."""
    task = entry.tasks[name]
    # Before a task began, it had no state. A task that is behind the global clock has yet to get there.
    clocks = with_more(entry.retained, own)
    last = max(task.born, task.outputs[output].delivered)
    return clocks[bisect_right(clocks, last) : bisect_right(clocks, entry.flow_of(name).visited)]


def record(log: Log, epoch: int, task: str, output: str, clock: int, now: int) -> Entry:
    """Write down that an output's sink has every checkpoint up to this clock, and none above.

    Raises:
        FencedError: a newer driver owns the application.
    """

    def change(entry: Entry) -> Entry:
        outputs = entry.tasks[task].outputs
        return _with_record(entry, task, output, outputs[output].give(clock, outputs.furthest))

    return amend(log, epoch, change, now)


def believe(log: Log, epoch: int, task: str, output: str, clock: int, now: int) -> Entry:
    """Write down how far an output's sink has come by its own record, which is the truth.

    Raises:
        FencedError: a newer driver owns the application.
    """

    def change(entry: Entry) -> Entry:
        return _with_believed(entry, task, output, clock)

    return amend(log, epoch, change, now)


def pay(log: Log, epoch: int, task: str, output: str, owed: Owed, clock: int | None, whole: bool, now: int) -> Entry:
    """Write down that an output's sink has gone back as it owed. Its own record then says `clock`; None if it keeps none.

    If it is not `whole`, it lacks values of the clock to which it went back, and is given everything with the next clock.

    Raises:
        FencedError: a newer driver owns the application, or it was rewound again.
    """

    def change(entry: Entry) -> Entry:
        if entry.owed(task, output) != owed:
            return entry
        paid = entry.with_owed(task, output, None)
        if task not in entry.tasks:
            return paid
        if clock is not None:
            paid = _with_believed(paid, task, output, clock)
        back = paid.tasks[task].outputs[output].go_back()
        return _with_record(paid, task, output, back if whole else back.void())

    return amend(log, epoch, change, now)


def _with_believed(entry: Entry, task: str, output: str, clock: int) -> Entry:
    """Return the entry in which a sink has come to this clock by its own record."""
    outputs = entry.tasks[task].outputs
    if output not in outputs.active:
        # It is not part of the newest start, and says so when it comes back.
        return entry
    own = entry.flow_of(task).progress.clock
    return _with_record(entry, task, output, outputs[output].believe(clock, own, entry.retained))


def _with_record(entry: Entry, task: str, output: str, record: OutputRecord) -> Entry:
    """Return the entry with this record of an output; itself if nothing changes."""
    known = entry.tasks[task]
    if record == known.outputs[output]:
        return entry
    return entry.with_task(task, replace(known, outputs=known.outputs.put(output, record)))


@dataclass
class Giver:
    """Gives the sink of one output what it has yet to get; `now` is a wall clock, and all other functions are the sink's.

    `open_sink` opens it for values of a timeline, and returns the last clock that it has, or None if it keeps no record.
    `write` gives it a clock. `go_back` takes back what is above a clock: its entry is one by which the state at the clock can
    be read, or None if no entry has it any more.

    `delivery` is the task's. Under at-least-once delivery, the sink is given a clock before the global clock reaches it.
    Under at-most-once delivery, the sink is given no clock a second time.

    The sink is open for one timeline. If the newest entry is of another one, the sink is opened again. An output that owes a
    rewind has its sink go back before anything else.
    """

    log: Log
    task: str
    output: str
    open_sink: Callable[[int], int | None]
    write: Callable[[Entry, Due], None]
    now: Callable[[], int]
    delivery: str = EXACTLY_ONCE
    go_back: Callable[[Entry | None, int], None] | None = None
    _timeline: int | None = None
    _applied: int | None = None
    _believed_in: int | None = None
    _given: tuple[int, int] | None = None

    def open(self) -> None:
        """Open the sink for values of the timeline of the newest entry.

        Raises:
            InvalidInputError: it holds what this application never said, or has to go back and can't.
        """
        timeline = 0
        while True:
            try:
                applied, is_fenced = self.open_sink(timeline), False
            except FencedError:
                applied, is_fenced = None, True
            newest = self.log.newest()
            now = newest.timeline if newest else 0
            if now != timeline:
                # Rewound, now or before.
                timeline = now
            elif is_fenced:
                raise InvalidInputError(
                    f"it holds values of a timeline to which application={self.log.application} has never come; it is of "
                    "another store, or this one was brought back from a copy from before a rewind: bring back a newer copy, or "
                    "name a place of its own."
                )
            else:
                break
        owed = newest.owed(self.task, self.output) if newest else None
        if owed is not None and self.go_back is None:
            raise InvalidInputError(
                f"application={self.log.application} was rewound to clock={clock_of_rewind(owed.clock)}, and it can't take "
                "back what is above that; name a place of its own."
            )
        if applied is not None and owed is None and applied > self._furthest(newest):
            raise InvalidInputError(
                f"it holds clock={full_clock(applied)}, to which application={self.log.application} has never come; "
                f"{self._way_back(newest)}"
            )
        self._applied, self._timeline = applied, timeline

    def _way_back(self, newest: Entry | None) -> str:
        """Return what helps where the sink is ahead of the store."""
        other = "it is of another store: name a place of its own."
        if newest is None or newest.clock not in newest.kept or self.go_back is None:
            return other
        to = show_clock(newest.clock)
        return (
            "if the store was brought back from an older copy, take the application back to its newest clock, and the sink "
            f'goes back too: persistent-state rewind MODULE:APP --to {to}, or rewind("{to}"). Else {other}'
        )

    @property
    def not_empty(self) -> str:
        """Return why the sink may hold something before it is given anything; "" if it holds nothing."""
        if self._timeline is None:
            return "does not answer: start again when it does."
        if self._applied is not None and self._applied != BEGINNING:
            return f"holds clock={full_clock(self._applied)} already: name a place of its own."
        return ""

    def give_next(self, epoch: int, within: float = 0.0) -> bool:
        """Give the sink the values at the next clock, and write that down. Return whether there was such a clock.

        A look that began less than `within` seconds ago may show that nothing is due. Before the sink is asked or given
        anything, the store is asked for the newest entry.

        Raises:
            FencedError: a newer driver owns the application.
        """
        if within and self._has_all(newest_own(self.log, epoch, within), epoch):
            return False
        entry = self.follow(epoch)
        if self._applied is not None and epoch != self._believed_in:
            # Once in each start: the log then knows that the sink has nothing above the clock to which it cut the task back.
            entry = believe(self.log, epoch, self.task, self.output, self._applied, self.now())
            self._believed_in = epoch
        found = due(entry, self.task, self.output, self.delivery == AT_LEAST_ONCE)
        if found is None:
            return False
        if self.delivery == AT_MOST_ONCE:
            self._applied = None
            record(self.log, epoch, self.task, self.output, found.clock, self.now())
            self.write(entry, found)
            return True
        given = entry.timeline, found.clock
        if given != self._given:
            # If the sink's answer is lost, it is unknown what the sink has.
            applied, self._applied = self._applied, None
            self.write(entry, found)
            self._given = given
            self._applied = None if applied is None else found.clock
        # If this fails, what is given is known here, and only this is done again.
        record(self.log, epoch, self.task, self.output, found.clock, self.now())
        return True

    def _has_all(self, entry: Entry, epoch: int) -> bool:
        """Return whether the sink has all that there is by an entry, and the log knows that."""
        is_open = entry.timeline == self._timeline and entry.owed(self.task, self.output) is None
        is_believed = self._applied is None or epoch == self._believed_in
        return is_open and is_believed and due(entry, self.task, self.output, self.delivery == AT_LEAST_ONCE) is None

    def follow(self, epoch: int) -> Entry:
        """Open the sink, let it go back if its output owes that, and return the newest entry, by which it owes nothing.

        Raises:
            FencedError: a newer driver owns the application.
            InvalidInputError: The sink can't go back.
        """
        if self._timeline is None:
            self.open()
        entry = newest_own(self.log, epoch)
        while entry.timeline != self._timeline:
            # If the application is rewound meanwhile, the sink is open for more than this entry knows.
            self._timeline = None
            self.open()
            entry = newest_own(self.log, epoch)
        owed = entry.owed(self.task, self.output)
        if owed is None:
            return entry
        if self.go_back is None:
            # What is said of this is said when it is opened.
            self._timeline = None
            return self.follow(epoch)
        then = self._entry_at(owed.clock)
        self._timeline = self._given = None
        self.go_back(then, owed.clock)
        # A writer of the old timeline may have given it a clock until then: it is asked again what it has.
        self.open()
        if self._applied is not None:
            self._applied = min(self._applied, owed.clock)
        is_whole = then is not None
        return pay(self.log, epoch, self.task, self.output, owed, self._applied, is_whole, self.now())

    def _entry_at(self, clock: int) -> Entry | None:
        """Return an entry by which the task can be read at a clock; None if no entry has it any more."""
        entry = newest = self.log.newest()
        if newest is not None and clock in newest.kept:
            # Since then the task may have begun anew: what its sink had is of the life of then.
            with suppress(FileNotFoundError):
                entry = kept_entries.read(self.log, newest.kept[clock].entry)
        if entry is None or self.task not in entry.tasks or clock not in entry.readable:
            return None
        is_there = entry.tasks[self.task].born <= clock <= entry.flow_of(self.task).visited
        return entry if is_there else None

    def _furthest(self, newest: Entry | None) -> int:
        """Return the last clock that the sink can have. Under at-least-once delivery it may be above the global clock."""
        if newest is None:
            return BEGINNING
        if self.task not in newest.tasks:
            return newest.clock
        outputs, flow = newest.tasks[self.task].outputs, newest.flow_of(self.task)
        # Under exactly-once delivery no sink is given a clock above the global one. If it has one, the store is an older copy.
        # At-most-once delivery may go on from at-least-once, which gives clocks above it.
        is_exactly_once = self.delivery == EXACTLY_ONCE and flow.source.again == END
        own = BEGINNING if is_exactly_once else flow.progress.clock
        return max(newest.clock, own, outputs.furthest, outputs[self.output].delivered)
