"""The entries of a log that hold the states of many clocks, each read once."""

from __future__ import annotations

from dataclasses import dataclass, field

from persistent_state.store import kept_entries
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log


@dataclass(frozen=True)
class Entries:
    """The entries of an application as they are at a moment.

    Ask for many clocks in ascending order: a log reads entries once if they are read in their order.

    Args:
        log: The log, which has read the newest entry.
        newest: The newest entry of the moment.
    """

    log: Log
    newest: Entry
    # The log keeps one entry, the newest. Those of kept clocks go on from each other in a log of their own.
    _older: Log = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_older", Log(self.log.files, self.log.application))

    def at(self, clock: int, task: str | None = None) -> Entry | None:
        """Return the entry from which the state at a clock is read, as `kept_entries.entry_at` does."""
        return kept_entries.entry_at(self.log, clock, task, newest=self.newest, older=self._older)

    def kept(self, number: int) -> Entry:
        """Return the entry of a kept clock, as `kept_entries.read` does."""
        return kept_entries.read(self._older, number)
