"""Report how the tasks of a run fare: as log lines, as `Progress` to the user's function, and a summary at the end."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from persistent_state.batch.plan import FAIL, InputPlan, Plan
from persistent_state.drive.planner import HUNG
from persistent_state.errors import TaskFailedError
from persistent_state.event_time import positions
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import counted, show_clock
from persistent_state.metrics.of_run import Work
from persistent_state.protocol import holding
from persistent_state.run.failures import naming
from persistent_state.run.progress import Progress
from persistent_state.sources.formats import NO_FORMAT
from persistent_state.store.entry import Entry
from persistent_state.store.late_rows import (
    AHEAD,
    BEYOND,
    FOREIGN,
    JUMP,
    LATE,
    NO_COLUMN,
    NO_TIMESTAMP,
    OUTSIDE,
    UNFIT,
    UNFIT_KEY,
    UNREADABLE,
)

_logger = logging.getLogger("persistent_state")
_runs: dict[str, Reports] = {}

EVERY = 60.0
"""Seconds between two warnings about one task."""

MOST_REASONS = 5
"""The number of reasons that a warning names; it takes those with the most rows."""

MOST_PARTITIONS = 3
"""The number of partitions that a warning of open transactions names."""

_OF_ROWS = {LATE, AHEAD, BEYOND, FOREIGN, JUMP, NO_TIMESTAMP, UNFIT}
"""The reasons that concern rows. All others concern records that could not be made a row, and are not messages."""


class Reports:
    """The reports of one run, which hear of each of its commits. `newest` is the newest progress of each task."""

    def __init__(
        self,
        run: str,
        plans: Sequence[Plan],
        entry: Entry,
        is_to_the_end: bool,
        on_commit: Callable[[Progress], None],
        on_work: Callable[[Work], None] | None = None,
    ) -> None:
        # A run that ends by itself reports at its end, so a short one logs no warning before.
        first = time.monotonic() + (EVERY if is_to_the_end else 0.0)
        self._run = run
        self._on_commit = on_commit
        self._on_work = on_work
        self._settings = {plan.name: plan.settings for plan in plans}
        parts: dict[str, list[Plan]] = {}
        for plan in plans:
            parts.setdefault(plan.named, []).append(plan)
        self._of_tasks = [TaskReport(some, entry, first) for some in parts.values()]
        self._by_part = {name: report for report in self._of_tasks for name in report.parts}
        self.newest: dict[str, Progress] = {}
        self._pending: dict[str, Progress] = {}
        self._pending_due = first
        _runs[run] = self

    def hear(self, progress: Progress) -> None:
        """Take in a commit: log the warning that is due, and let the deliveries know."""
        self.newest[progress.task] = progress
        report, messages = self._by_part[progress.task], progress.messages - progress.replayed
        report.note_updates(progress.task, messages - progress.copies, progress.made_updates)
        report.note_copies(progress.task, progress.copies)
        if progress.processed is not None:
            report.note_processed(progress.task, progress.processed, progress.made_updates)
        report.note_dropped(progress.task, progress.replayed_or_late)
        if warning := report.note(progress.task, messages, progress.reasons, time.monotonic()):
            _logger.warning("%s", warning)
        if progress.pending is not None:
            self._pending[progress.task] = progress
        if (
            any(seconds >= HUNG for seconds in (progress.pending or {}).values())
            and time.monotonic() >= self._pending_due
        ):
            self._pending_due = time.monotonic() + EVERY
            _logger.warning("%s The clock waits for them.", _of_pending(progress.task, progress.pending or {}))
        self._on_commit(progress)

    def warn_of_drain(self, epoch: int, asked: Mapping[str, Mapping[str, float]]) -> None:
        """Warn of messages that can't be read yet and may be late, as the clock is to pass them.

        `asked` has by task what its source says now; of the others, their last progress says it.
        """
        known = {progress.task: progress.pending or {} for progress in self.pending(epoch)}
        for task, pending in {**known, **asked}.items():
            if pending:
                _logger.warning("%s The drain passes them: those below its clock are late.", _of_pending(task, pending))

    def pending(self, epoch: int) -> list[Progress]:
        """Return the newest progress in an epoch of each task whose sources have messages that can't be read yet."""
        return [progress for progress in self._pending.values() if progress.epoch == epoch and progress.pending]

    def measure(self, work: Work) -> None:
        """Take in what a commit took."""
        if self._on_work is not None:
            self._on_work(work)

    def end(self, entry: Entry | None, is_whole: bool) -> None:
        """Log a summary of each task by the newest entry, if the store returned one, and what the clock waits for."""
        if entry is None:
            return
        pending = self.pending(entry.epoch) if is_whole else []
        for report in self._of_tasks:
            level, line = report.end(entry, is_whole, bool(pending))
            _logger.log(level, "%s", line)
        for progress in pending:
            _logger.warning(
                "%s They are in no checkpoint, and the clock waits for them.",
                _of_pending(progress.task, progress.pending or {}),
            )
        if is_whole:
            holder = holding.holder(entry, self._settings)
            level = logging.WARNING if holder is not None and holder.why in holding.STUCK else logging.INFO
            _logger.log(level, "%s", holding.sentence(holder, is_at_end=True))

    def close(self) -> None:
        """Take in no further commits."""
        _runs.pop(self._run, None)


@dataclass(frozen=True)
class Listener:
    """A function of progress that can be pickled. It calls the run of this id, if that is in this process, and the user."""

    run: str
    on_progress: Callable[[Progress], None] | None

    def __call__(self, progress: Progress) -> None:
        if (run := _runs.get(self.run)) is not None:
            run.hear(progress)
        if self.on_progress is not None:
            with naming("on_progress", TaskFailedError):
                self.on_progress(progress)

    def measure(self, work: Work) -> None:
        """Tell the run of this id, if that is in this process, what a commit took."""
        if (run := _runs.get(self.run)) is not None:
            run.measure(work)


class TaskReport:
    """The counts of one task since the entry that the run began with. Times are seconds of any one clock.

    The first warning comes at `first` at the earliest. Later ones come at most every `EVERY` seconds, and only if more rows did
    not count. `parts` are the names in the log of the tasks that it is: of an ordered task several, of which the first is given
    its messages.
    """

    def __init__(self, plans: Sequence[Plan], entry: Entry, first: float) -> None:
        self.parts = [plan.name for plan in plans]
        plan = plans[0]
        task, source = entry.tasks[plan.name], entry.flow_of(plan.name).source
        self._plan = plan
        self._before = {name: Counter(entry.late_counts_of(name)) for name in self.parts}
        self._of_parts: dict[str, Counter[str]] = {}
        self._aside: Counter[str] = Counter()
        self._outside = 0
        self._messages = 0
        self._without_copies = 0
        self._copies = 0
        self._made_updates = False
        self._processed = 0
        self._had_effect = False
        self._dropped = 0
        self._reported = 0
        self._due = first
        self._born = task.born if task.born != BEGINNING and not source.positions else None
        left = [name for name, other in entry.tasks.items() if not other.active and other.identity == task.identity]
        found = max(left, key=lambda name: entry.flow_of(name).progress.clock, default=None)
        self._left = found and found.removesuffix(plan.name.removeprefix(plan.named))

    def note(self, part: str, messages: int, reasons: Mapping[str, int], now: float) -> str | None:
        """Take in a micro-batch of so many new messages, and return the warning that is due after it, or None.

        `reasons` counts all late and bad rows that the store has of the `part` of the task that took the micro-batch.
        """
        self._messages += messages if part == self._plan.name else 0
        self._of_parts[part] = Counter(reasons) - self._before[part]
        self._aside = sum(self._of_parts.values(), Counter())
        self._outside = self._aside.pop(OUTSIDE, 0)
        if now < self._due or self._aside.total() <= self._reported:
            return None
        self._due = now + EVERY
        return f"task={self._plan.named}: {self._of_aside()}"

    def note_updates(self, part: str, messages: int, made_updates: bool) -> None:
        """Take in whether a micro-batch of so many new messages, without copies, made an update."""
        if part == self._plan.name:
            self._without_copies += messages
            self._made_updates |= made_updates

    def note_copies(self, part: str, messages: int) -> None:
        """Take in how many messages of a micro-batch were left out, as earlier ones had their ids."""
        if part == self._plan.name:
            self._copies += messages

    def note_processed(self, part: str, messages: int, had_effect: bool) -> None:
        """Take in whether a step of an ordered task, which processed so many messages, had an effect."""
        if part == self._plan.named:
            self._processed += messages
            self._had_effect |= had_effect

    def note_dropped(self, part: str, rows: int) -> None:
        """Take in how many rows of a micro-batch were dropped, as a source without positions can't tell replayed from late."""
        if part == self._plan.name:
            self._dropped += rows

    @property
    def _lacks_updates(self) -> bool:
        """Return whether messages counted and none of them made an update, or an ordered task kept and emitted nothing."""
        if self._processed and not self._had_effect:
            bad = self._of_parts.get(self._plan.named, Counter())
            return self._processed > sum(n for reason, n in bad.items() if reason.startswith((UNFIT, UNREADABLE)))
        aside = sum(n for reason, n in self._aside.items() if _is_of_rows(reason)) + self._outside
        return not self._made_updates and self._without_copies > aside

    def end(self, entry: Entry, is_whole: bool, is_pending: bool = False) -> tuple[int, str]:
        """Return the level and the text of the summary, by the newest entry.

        A run that `is_whole` has read its source to the end, and the summary says what the checkpoint lacks. If messages are
        pending, no run makes a checkpoint above them.
        """
        source = entry.flow_of(self._plan.name).source
        newest = positions.newest_read(source.positions.values())
        is_above = is_whole and newest is not None and newest >= entry.clock
        is_news = bool(self._aside) and (is_whole or self._aside.total() > self._reported)
        is_empty = is_whole and not self._messages and entry.clock == BEGINNING
        at = "There is no checkpoint yet"
        if entry.clock != BEGINNING:
            at = f"The newest checkpoint is at clock={show_clock(entry.clock)} ({entry.clock})"
        if is_above:
            at += f": messages up to {show_clock(newest)} wait above it for newer ones"
            at += "" if is_pending else "; run(drain=True) checkpoints them now"
        read = f"{counted(self._messages, 'message')} read{self._plan.without_updates if self._lacks_updates else ''}"
        if self._copies:
            read += f"; {counted(self._copies, 'copy', 'copies')} of earlier ones left out by message_id"
        sentences = [f"task={self._plan.named}: {read}.", f"{at}."]
        if self._outside:
            sentences.append(f"{counted(self._outside, 'row')} of it {OUTSIDE}.")
        if self._dropped:
            sentences.append(
                f"{counted(self._dropped, 'row')} below the clock of the start were dropped, late ones among them if there "
                "were any: without position= the source can't tell these, or those of an update, from rows that come again."
            )
        if self._aside:
            sentences.append(self._of_aside())
        is_warning = is_above or is_news or is_empty or self._lacks_updates or self._dropped > 0
        return logging.WARNING if is_warning else logging.INFO, " ".join(sentences)

    def _of_aside(self) -> str:
        """Return how many rows did not count, why, and where they are."""
        self._reported = self._aside.total()
        bad = self._reported - self._aside[LATE]
        rows = self._messages + sum(n for reason, n in self._aside.items() if not _is_of_rows(reason))
        reasons = [f"{n:,} {reason!r}{self._hint(reason)}" for reason, n in self._aside.most_common(MOST_REASONS)]
        if more := len(self._aside) - len(reasons):
            reasons.append(f"and {counted(more, 'more reason')}")
        is_kept = any(of.on_bad_row != FAIL for of in self._plan.inputs.values())
        stop = ", or stop at the first with on_bad_row='fail'" if bad and is_kept else ""
        of = f" of {rows:,}" if rows >= self._reported else ""
        return (
            f"{self._reported:,}{of} rows did not count: {', '.join(reasons)}. See open_store(store).application("
            f"{self._plan.application!r}).late_rows({self._plan.named!r}){stop}."
        )

    def _hint(self, reason: str) -> str:
        """Return in parentheses what usually causes a reason, or nothing."""
        plan = self._plan
        inputs = plan.inputs.values()
        if reason == LATE and self._born is not None and self._aside[LATE] >= self._messages:
            hint = f"the task is new to the application and begins at its clock, {show_clock(self._born)}; "
            hint += f"rebuild=[{plan.named!r}] of a start builds it from the beginning of its source"
            if self._left is not None:
                hint += f"; if it is task={self._left} under another name, give it name={self._left!r}"
        elif reason == LATE:
            hint = "they came after the clock had passed them; allowed_delay waits for longer"
        elif reason == NO_TIMESTAMP:
            columns = " or ".join(dict.fromkeys(repr(each.timestamp) for each in inputs))
            hint = f"column {columns} is null or missing"
            if any(other.startswith("its first line ") for other in self._aside):
                hint += "; the first line of a CSV file must name the columns"
        elif reason == BEYOND:
            hint = "it is no time within 146,000 years of 1970; timestamp_unit says what an int64 counts"
        elif reason == UNFIT:
            hint = plan.fitting
        elif reason.startswith(UNREADABLE):
            hint = "Python has dates and times of the years 1 to 9999; a task of batches is handed others as Arrow has them"
        elif reason == AHEAD:
            hint = f"max_ahead says how far is right; after a wrong clock rebuild=[{plan.named!r}] of a start reads them again"
        elif reason == FOREIGN:
            hint = "an input that has a name calls its channels so; give the other input a name, too"
        elif reason.endswith(NO_FORMAT):
            hint = "give the source format="
        else:
            return ""
        if reason in (LATE, AHEAD) and any(map(_has_no_unit, inputs)) and self._aside[reason] >= self._messages:
            hint += "; an int64 is microseconds, unless timestamp_unit says another unit"
        return f" ({hint})"


def _of_pending(task: str, pending: Mapping[str, float]) -> str:
    """Return which messages of a task's sources can't be read yet, since when, and what to do."""
    longest = sorted(pending.items(), key=lambda item: -item[1])
    named = ", ".join(f"{name!r} for {seconds:,.0f} s" for name, seconds in longest[:MOST_PARTITIONS])
    more = f" and {len(longest) - MOST_PARTITIONS:,} more" if len(longest) > MOST_PARTITIONS else ""
    return (
        f"task={task}: messages of {named}{more} are in an open transaction, or behind one. They are read when that "
        "ends: let its producer commit it, or abort it."
    )


def _is_of_rows(reason: str) -> bool:
    return reason in _OF_ROWS or reason.startswith((NO_COLUMN, UNFIT_KEY, UNREADABLE))


def _has_no_unit(plan: InputPlan) -> bool:
    return pa.types.is_int64(plan.schema.field(plan.timestamp).type) and plan.timestamp_unit is None
