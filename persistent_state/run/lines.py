"""Show how the tasks of a run fare while it lasts, as a line for each, and a summary at its end.

Whatever goes wrong here ends what is shown, and never the run.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import Any, Protocol, TextIO

from persistent_state.batch.plan import Plan
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import counted, cut, show_clock, table
from persistent_state.protocol import holding
from persistent_state.run.progress import Progress
from persistent_state.show import words
from persistent_state.store.entry import Entry
from persistent_state.store.flow_state import OUTSIDE
from persistent_state.store.late_rows import LATE

EVERY = 0.5
"""Seconds between two drawings."""

SPAN = 30.0
"""The seconds over which a rate is measured: a micro-batch may take some."""

APART = 10.0
"""Seconds between two blocks of lines where nothing can be drawn over."""

_logger = logging.getLogger("persistent_state")


class Screen(Protocol):
    """A place where lines are shown."""

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines in the place of those before."""

    def end(self, lines: Sequence[str]) -> None:
        """Show these lines in the place of those before, and leave them there."""


class Terminal:
    """Lines at the end of a terminal, below what others write to it.

    The cursor waits on an empty line above them. So what others write begins there, and stays: only what is below the cursor is
    cleared for the next drawing.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def draw(self, lines: Sequence[str]) -> None:
        wide, high = _size(self._file)
        # More would scroll, and the cursor could not go back to where it was.
        shown = [cut(line, wide - 1) for line in lines[: max(1, high - 2)]]
        self._file.write("\r\x1b[J\n" + "\n".join(shown) + f"\x1b[{len(shown)}F")
        self._file.flush()

    def end(self, lines: Sequence[str]) -> None:
        self._file.write("\r\x1b[J" + "".join(f"{line}\n" for line in lines))
        self._file.flush()


def _size(file: TextIO) -> tuple[int, int]:
    """Return how many characters a line of a terminal has, and how many lines it has."""
    try:
        return os.get_terminal_size(file.fileno())
    except OSError:
        return shutil.get_terminal_size()


class Notebook:
    """Lines below the cell of a notebook that is executed."""

    def __init__(self) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found, unused-ignore]

        self._html: Any = HTML
        self._shown: Any = display(HTML(""), display_id=True)  # type: ignore[no-untyped-call, unused-ignore]

    def draw(self, lines: Sequence[str]) -> None:
        self._shown.update(self._html(f"<pre>{escape(chr(10).join(lines))}</pre>"))

    def end(self, lines: Sequence[str]) -> None:
        self.draw(lines)


class Plain:
    """Lines in a file or a pipe, one block below the other."""

    def __init__(self, file: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._file, self._now, self._next = file, now, now() + APART

    def draw(self, lines: Sequence[str]) -> None:
        if self._now() >= self._next:
            self._next = self._now() + APART
            self.end(lines)

    def end(self, lines: Sequence[str]) -> None:
        self._file.write("".join(f"{line}\n" for line in lines))
        self._file.flush()


def screen(wanted: bool | None, is_awaited: bool) -> Screen | None:
    """Return where a run shows its progress; None if it shows none.

    Args:
        wanted: Whether it is to show it; None shows it on a terminal and in a notebook.
        is_awaited: Whether the caller waits for the run. If not, lines would disturb typing at a prompt.
    """
    if wanted is False:
        return None
    if _is_notebook():
        return Notebook()
    if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return Terminal(sys.stderr) if wanted or is_awaited or not hasattr(sys, "ps1") else None
    return Plain(sys.stderr) if wanted else None


def _is_notebook() -> bool:
    """Return whether a kernel of a notebook runs this process."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


class Lines:
    """The lines of one run, drawn on a screen from `start` to `close`. Times are seconds of the clock `now`."""

    def __init__(
        self,
        application: str,
        plans: Sequence[Plan],
        screen: Screen,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        # An ordered task has several plans, of which the first is given its messages.
        parts: dict[str, list[str]] = {}
        for plan in plans:
            parts.setdefault(plan.named, []).append(plan.name)
        self._of_tasks = {name: _Task(name, some) for name, some in parts.items()}
        self._by_part = {part: task for task in self._of_tasks.values() for part in task.parts}
        self._application, self._screen, self._now = application, screen, now
        self._begun, self._lock, self._closed = now(), threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"persistent-state {application} lines", daemon=True)

    def start(self) -> None:
        """Draw from now on, in a thread."""
        self._thread.start()

    def hear(self, progress: Progress) -> None:
        """Take in a commit."""
        with self._lock:
            if (task := self._by_part.get(progress.task)) is not None:
                task.hear(progress)

    def draw(self) -> None:
        """Draw the lines as they are now."""
        now = self._now()
        with self._lock:
            rows = [task.line(now) for task in self._of_tasks.values()]
        self._screen.draw(_aligned(rows))

    def close(self, entry: Entry | None) -> None:
        """Draw no more, and show the summary by the newest entry. Later calls do nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        try:
            if self._thread.ident is not None:
                self._thread.join()
            self._screen.end([*self._summary(entry)])
        except Exception as error:
            _logger.debug("application %s can't show its summary: %r", self._application, error)

    def _follow(self) -> None:
        try:
            while not self._closed.wait(EVERY):
                self.draw()
        except Exception as error:
            _logger.debug("application %s shows its progress no more: %r", self._application, error)

    def _summary(self, entry: Entry | None) -> list[str]:
        seconds = max(self._now() - self._begun, 1e-9)
        clock = "" if entry is None else f", clock {show_clock(entry.clock)}"
        heads = ("task", "messages", "a second", "clock", "late", "bad")
        rows = [task.row(entry, seconds) for task in self._of_tasks.values()]
        waits = [] if entry is None else [holding.sentence(holding.holder(entry))]
        return [
            f"{self._application}: {words.length(int(seconds * 1e6))}{clock}",
            *table(heads, rows, right={1, 2, 4, 5}),
            *waits,
        ]


class _Task:
    """The counts of one task, which is one or several in the log: `parts` has their names there."""

    def __init__(self, name: str, parts: Sequence[str]) -> None:
        self.name, self.parts = name, parts
        self._messages = 0
        self._newest: dict[str, Progress] = {}
        self._counted = deque[tuple[float, int]]()

    def hear(self, progress: Progress) -> None:
        self._newest[progress.task] = progress
        if progress.task == self.parts[0]:
            self._messages += progress.messages - progress.replayed

    def line(self, now: float) -> tuple[str, ...]:
        """Return the cells of the task's line."""
        if not self._newest:
            return (self.name, "no commit yet", "", "", "")
        self._counted.append((now, self._messages))
        while len(self._counted) > 2 and self._counted[1][0] <= now - SPAN:
            self._counted.popleft()
        since, before = self._counted[0]
        rate = (self._messages - before) / (now - since) if now > since else 0.0
        clock = min(progress.clock for progress in self._newest.values())
        return (
            self.name,
            counted(self._messages, "message"),
            f"{rate:,.0f}/s",
            f"clock {show_clock(clock)}",
            ", ".join(self._lags()),
        )

    def _lags(self) -> list[str]:
        """Return what the task lacks, and what did not count."""
        unread = self._newest[self.parts[0]].unread if self.parts[0] in self._newest else None
        behind = max((each.behind for told in self._newest.values() for each in told.outputs.values()), default=0)
        late, bad = (sum(getattr(told, what) for told in self._newest.values()) for what in ("late", "bad"))
        counts = {"unread": unread or 0, "to deliver": behind, "late": late, "bad": bad}
        return [f"{count:,} {what}" for what, count in counts.items() if count]

    def row(self, entry: Entry | None, seconds: float) -> tuple[str, ...]:
        """Return the cells of the task's row in the summary of a run of `seconds` seconds."""
        clock, late, bad = BEGINNING, 0, 0
        if entry is not None:
            clock = min(entry.flow_of(part).visited for part in self.parts)
            reasons: list[Mapping[str, int]] = [entry.late_counts_of(part) for part in self.parts]
            late = sum(some.get(LATE, 0) for some in reasons)
            bad = sum(sum(some.values()) - some.get(OUTSIDE, 0) for some in reasons) - late
        return (
            self.name,
            f"{self._messages:,}",
            f"{self._messages / seconds:,.0f}",
            show_clock(clock),
            f"{late:,}",
            f"{bad:,}",
        )


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows as lines whose cells stand below one another."""
    heads = ("",) * len(rows[0])
    return [*table(heads, rows, right={1, 2})][2:]


def begin(application: str, plans: Sequence[Plan], wanted: bool | None, is_awaited: bool) -> Lines | None:
    """Show the progress of a run from now on, where it is to be shown."""
    with suppress(Exception):
        if (where := screen(wanted, is_awaited)) is not None:
            lines = Lines(application, plans, where)
            lines.start()
            return lines
    return None
