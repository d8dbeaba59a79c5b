"""Refuse what the first rows of an input show to be wrong: the unit of its timestamps, this machine's clock, or a name.

A task that has a clock is never stopped, nor one with an input of which a message was committed before: one broken clock
poisons nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.batch.packets import Basis, FirstRows, Report
from persistent_state.batch.plan import InputPlan
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.inputs import input_of
from persistent_state.formatting import counted, show_clock
from persistent_state.sources.casts import is_of_column
from persistent_state.store.late_rows import BEYOND, NO_TIMESTAMP
from persistent_state.task import LOCAL_TIMESTAMP

_USUAL = (946_684_800, 4_102_444_800)
"""The years 2000 to 2100 in seconds since 1970: when most messages are."""

_OTHERS = {"s": ("seconds", 1), "ms": ("milliseconds", 1_000), "ns": ("nanoseconds", 1_000_000_000)}
"""Units beside microseconds: what they are called, and how many make a second. Of no two are the usual years alike."""

_FEWEST = 100
"""The rows below which most may be ahead of the wall clock because some device's clock is wrong, and not this machine's. So few
may also be without a column by chance."""

_NEARLY_ALL = 0.9


def is_first(plan: InputPlan, basis: Basis) -> bool:
    """Return whether an input begins: no message of an earlier micro-batch has moved a clock or a channel of it."""
    return basis.clock == BEGINNING and plan.input not in basis.begun


def is_believed(plan: InputPlan, believed: Collection[str]) -> bool:
    """Return whether a channel of the input is among those that were `believed` before."""
    return any(input_of(name, plan.among) == plan.input for name in believed)


def count_ahead(plan: InputPlan, basis: Basis, timestamps: NDArray[np.int64]) -> FirstRows:
    """Return how many of the first timestamps of an input are ahead of the wall clock."""
    ahead = timestamps > basis.now + plan.settings.ahead
    example = int(timestamps[ahead.argmax()]) if ahead.any() else None
    return FirstRows(plan.named, len(timestamps), int(np.count_nonzero(ahead)), example)


def check_wall_clock(reports: Sequence[Report]) -> None:
    """Refuse the first micro-batch of an input if nearly all of its rows are ahead of the wall clock, by the parts' reports.

    Put aside they would be bad rows for good, and no rewind could bring them back. Files and partitions may be small, and parts
    many: so only the micro-batch as a whole shows it.

    Raises:
        InvalidInputError: They are.
    """
    for _, first in _first_rows(reports):
        if first.rows < _FEWEST or first.ahead < _NEARLY_ALL * first.rows:
            continue
        raise InvalidInputError(
            f"task={first.task}: of the first {first.rows:,} rows {first.ahead:,} are ahead of this machine's clock, "
            f"{show_clock(max(report.now for report in reports))}, by more than max_ahead: one is of "
            f"{show_clock(first.example)}. Put the machine's clock right, correct timestamp_unit, or give the application a "
            "greater max_ahead."
        )


def check_columns(reports: Sequence[Report], to_the_end: bool = False) -> None:
    """Refuse the first micro-batch of an input if none of its rows has a column that a task needs, by the parts' reports.

    All of them would count under the key null, or none would count. Later such rows are only named in a warning: which records
    are read together is not the same each time, and must not decide what counts.

    Args:
        reports: The parts' reports.
        to_the_end: True if the run ends at the present end of the sources. If the micro-batch is all that they have, a few rows
            are enough.

    Raises:
        InvalidInputError: There is such a column.
    """
    is_all = to_the_end and any(report.reach is not None and report.reach.unread == 0 for report in reports)
    notes = {about: texts[0] for report in reports for about, texts in report.notes.items()}
    for input, first in _first_rows(reports):
        for (task, column), rows in sorted(first.unseen.items()):
            if rows < max(first.rows, 1 if is_all else _FEWEST):
                continue
            # A transform may have made it of a column of another name.
            of_input = " ".join(note for about, note in sorted(notes.items()) if about[0] == input)
            raise InvalidInputError(
                f"task={task}: none of the first {counted(rows, 'row')} has the column {column!r}, without which they can't "
                f"count. {notes.get((input, column), of_input)} Correct the name, in the task or the schema; if records may be "
                "without it, let a transform fill it."
            )


def is_unread(reason: str) -> bool:
    """Return whether a record has no time that counts, or a value that does not fit its column, by its reason."""
    return reason in (NO_TIMESTAMP, BEYOND) or is_of_column(reason)


def check_readable(reports: Sequence[Report]) -> None:
    """Refuse the first micro-batch of an input of which nothing can be read or used, by the parts' reports.

    Raises:
        InvalidInputError: No row has a time and fits the schema, or each row makes an update of a task that does not fit.
    """
    misfits = {task: misfit for report in reports for task, misfit in report.misfits.items()}
    for _, first in _first_rows(reports):
        if first.rows == 0 and first.unread >= _FEWEST:
            raise InvalidInputError(
                f"task={first.task}: none of the first {first.unread:,} rows has a time and values that fit their columns. "
                f"{first.first_unread} Correct the schema or the source's options. In texts a time is "
                "ISO 8601: read another one as a string, and let a transform make the time. To start without "
                "rows that can't be read, read their columns as strings, and let a transform leave the rows out."
            )
        for task, rows in sorted(first.unfit.items()):
            if rows >= max(first.rows, _FEWEST):
                raise InvalidInputError(
                    f"task={task}: of the first {rows:,} rows each makes an update that does not fit: {misfits[task]}. Correct "
                    "the update, or give the task another state."
                )


def _first_rows(reports: Sequence[Report]) -> Iterator[tuple[str, FirstRows]]:
    """Yield each input that begins, with the counts of its first rows."""
    for input in sorted({input for report in reports for input in report.firsts}):
        yield input, reduce(FirstRows.plus, (report.firsts[input] for report in reports if input in report.firsts))


def check_unit(plan: InputPlan, timestamps: NDArray[np.int64]) -> None:
    """Refuse the first timestamps of an input if most of them are usual ones in another unit than microseconds.

    Raises:
        InvalidInputError: they are, and the source does not name their unit.
    """
    if plan.timestamp_unit is not None:
        return
    if not pa.types.is_int64(plan.schema.field(plan.timestamp).type):
        return
    for unit, (name, per_second) in _OTHERS.items():
        low, high = (bound * per_second for bound in _USUAL)
        is_usual = (timestamps >= low) & (timestamps < high)
        if 2 * np.count_nonzero(is_usual) > len(timestamps):
            first = int(timestamps[is_usual.argmax()])
            shown = show_clock(first)
            as_read = "after the year 9999" if shown == str(first) else shown
            begin = "the messages begin" if plan.timestamp == LOCAL_TIMESTAMP else f"column {plan.timestamp!r} begins"
            raise InvalidInputError(
                f"task={plan.named}: {begin} with the timestamp {first}; an int64 is microseconds, which makes that {as_read}, "
                f"and in {name} it would be {show_clock(first * 1_000_000 // per_second)}. Say timestamp_unit={unit!r}, or "
                "timestamp_unit='us' if microseconds are right."
            )


def unit_note(plan: InputPlan, timestamps: NDArray[np.int64]) -> str:
    """Return a sentence if the first timestamps of an input are usual ones in another unit than its source names; else "".

    The source may be right all the same. Those that would be ahead of the wall clock are refused, and "us" is how a source
    says that microseconds are right.

    Args:
        plan: The input.
        timestamps: Its first timestamps, in microseconds.
    """
    named = plan.timestamp_unit
    if named not in _OTHERS:
        return ""
    ticks = timestamps / 1_000_000 * _OTHERS[named][1]
    for unit, per_second in {"s": 1, "ms": 1_000, "us": 1_000_000}.items():
        is_usual = (ticks >= _USUAL[0] * per_second) & (ticks < _USUAL[1] * per_second)
        is_usual &= timestamps < _USUAL[0] * 1_000_000
        if 2 * np.count_nonzero(is_usual) > len(timestamps):
            place = is_usual.argmax()
            as_read, would_be = int(timestamps[place]), int(ticks[place] / per_second * 1_000_000)
            return (
                f"task={plan.named}: column {plan.timestamp!r} begins with {show_clock(as_read)} by timestamp_unit={named!r}, "
                f"and with timestamp_unit={unit!r} it would be {show_clock(would_be)}: if that is right, correct the unit, and "
                "name the task in reset."
            )
    return ""
