"""The progress of a task by one commit: what `on_progress` is called with, and the line of it in the log."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from persistent_state.batch.packets import ACTED, PROCESSED, Advance
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol import deliver
from persistent_state.protocol.deliver import Delivered
from persistent_state.store.entry import Entry
from persistent_state.store.late_rows import LATE, OUTSIDE, REPLAYED_OR_LATE

_logger = logging.getLogger("persistent_state.progress")
_lock = threading.Lock()


@dataclass(frozen=True)
class Progress:
    """One committed micro-batch of a task, or one step of a task that other tasks feed. All clocks are microseconds UTC.

    Attributes:
        task: The task's name.
        epoch: The number of the application's start that committed it.
        batch: The number of the micro-batch in this epoch.
        messages: The messages of the micro-batch.
        replayed: How many of these messages an earlier start had read before.
        skipped: Rows of the micro-batch that were delivered again and did not count, by their positions.
        replayed_or_late: Rows from below the clock of the start, of a source without positions. It is unknown which of the two
            a row is.
        copies: Messages of the micro-batch with an id that an earlier message had.
        late: All late rows of the task so far.
        bad: All bad rows of the task so far.
        reasons: By reason: the number of all late and bad rows so far, and of those outside the bounds of their input.
        upstream_min: The upstream min clock; None if no channel is live.
        clock: The task's checkpoint clock, -2**63 before the first.
        global_clock: The global clock, -2**63 before the first.
        outputs: By output at clocks: the last clock that its sink has, and how many clocks it is behind.
        unread: How many positions, such as Kafka's offsets, the source had beyond the micro-batch when it was planned; None if
            the source does not know.
        slowest: The live channel that is furthest behind: the clock follows it. None if no channel is live.
        waits_for: What the global clock waits for, after this commit, as a sentence.
        made_updates: True if any message of the micro-batch made an update, and after a step. After a step of an `OrderedTask`
            that processed messages: True if a key had a state, or a row was emitted.
        processed: After a step of an `OrderedTask`: how many messages it processed. None otherwise.
        pending: By partition: for how many seconds it has had positions that can't be read yet, as those of a transaction that
            is open. None after a step that asked no source.

    Example:
        >>> def warn(progress):
        ...     if progress.late + progress.bad:
        ...         print(f"{progress.task}: {dict(progress.reasons)} rows did not count")

        `app.start(spark, on_progress=warn)` calls the function after each commit.
    """

    task: str
    epoch: int
    batch: int
    messages: int
    replayed: int
    skipped: int
    replayed_or_late: int
    copies: int
    late: int
    bad: int
    reasons: Mapping[str, int]
    upstream_min: int | None
    clock: int
    global_clock: int
    outputs: Mapping[str, Delivered]
    unread: int | None = None
    slowest: str | None = None
    waits_for: str = ""
    pending: Mapping[str, float] | None = None
    made_updates: bool = True
    processed: int | None = None


def hand_on(committed: Progress, on_progress: Callable[[Progress], None] | None) -> None:
    """Log the line of a progress, and call the function of progress."""
    _logger.info("%s", line_of(committed))
    if on_progress is not None:
        # Flows commit in threads of their own; the function of progress is called by one at a time.
        with _lock:
            on_progress(committed)


def progress_of(
    entry: Entry, after: Advance, name: str, waits_for: str, copies: int = 0, made_updates: bool = True
) -> Progress:
    """Return the progress of a task whose flow a micro-batch or a step has moved, by the entry that commits it."""
    flow, counts = entry.flow_of(name), after.counts
    processed = counts.get(PROCESSED)
    reasons = entry.late_counts_of(name)
    late = reasons.get(LATE, 0)
    return Progress(
        task=name,
        epoch=entry.epoch,
        batch=flow.progress.batch,
        messages=counts.get("messages", 0),
        replayed=counts.get("replayed", 0),
        skipped=counts.get("skipped", 0),
        replayed_or_late=counts.get(REPLAYED_OR_LATE, 0),
        copies=copies,
        late=late,
        bad=sum(reasons.values()) - late - reasons.get(OUTSIDE, 0),
        reasons=reasons,
        upstream_min=after.upstream_min,
        clock=flow.visited,
        global_clock=entry.clock,
        outputs=deliver.delivered(entry, name),
        unread=after.unread,
        slowest=after.slowest,
        waits_for=waits_for,
        pending=after.pending,
        made_updates=made_updates if not processed else counts.get(ACTED, 0) > 0,
        processed=processed,
    )


def line_of(progress: Progress) -> str:
    """Return the progress as a line of JSON, in which a clock that is not there yet is null."""
    fields = asdict(progress)
    absent = [name for name in ("clock", "global_clock") if fields[name] == BEGINNING]
    return json.dumps(fields | dict.fromkeys(absent))
