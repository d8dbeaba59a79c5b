"""Report to sources what the global clock has passed of their positions, in a thread: no commit waits for a source."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from persistent_state.drive.worker import LogWorker
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.inputs import AnySource, sources_of
from persistent_state.run.feeds import Feed, copied, flows_of
from persistent_state.run.setup import Setup
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.store.entry import Entry
from persistent_state.store.log import RECENT

POLL_SECONDS = 10.0
"""Time between two looks at the log while no commit of this process wakes the thread."""

STOP_SECONDS = 2.0
"""The time that a stop waits for a source whose `committed` is being called."""

_logger = logging.getLogger("persistent_state")


@dataclass
class _Listener:
    """A source that wants to know, with the positions that it was given last; `has_failed` if it raised then."""

    feed: Feed
    source: TimeReplayableSource
    told: Mapping[str, int] = field(default_factory=dict)
    has_failed: bool = False


class PassedPositions:
    """The teller of the sources of a run. Call `start` first, `wake` after each commit, and `stop` at the end."""

    def __init__(self, setup: Setup) -> None:
        self._log = setup.log
        # On copies: what a source keeps for this would go where the source is read.
        self._listeners = [_Listener(feed, copied(feed.source)) for feed in setup.feeds if _wants_to_know(feed.source)]
        self._epoch: Callable[[], int] = lambda: 0
        name = f"persistent-state {setup.application} tells sources"
        self._worker = LogWorker(name, self.tell, POLL_SECONDS, looks_last=True)

    def start(self, epoch: Callable[[], int]) -> None:
        """Report from now on. `epoch` returns the epoch of this driver's newest start."""
        self._epoch = epoch
        if self._listeners:
            self._worker.start()
            self._worker.wake()

    def wake(self) -> None:
        """Look at the log now: something was committed."""
        self._worker.wake()

    def stop(self) -> None:
        """Report what was passed until now, and no more."""
        self._worker.stop(STOP_SECONDS)

    def tell(self) -> None:
        """Report to each source what has been passed since the last report."""
        for listener in self._listeners:
            try:
                # An old look shows that there is nothing to report. A report can't be taken back: it has a look of its own.
                if self._unreported(listener, RECENT) is None:
                    continue
                if (positions := self._unreported(listener)) is not None:
                    listener.source.committed(positions)
                    listener.told, listener.has_failed = positions, False
            except Exception as error:
                # Any error of a source's: the run goes on.
                if not listener.has_failed:
                    _logger.warning(
                        "%r was not told which positions the global clock has passed; it is told again after later commits, "
                        "and this is said once: %s",
                        listener.feed.source,
                        error,
                    )
                listener.has_failed = True

    def _unreported(self, listener: _Listener, within: float = 0.0) -> dict[str, int] | None:
        """Return the positions to report to a source; None if they were reported, or a newer driver reports to it now."""
        entry = self._log.newest(within)
        if entry is None or entry.epoch != self._epoch():
            return None
        positions = passed(entry, listener.feed)
        return None if positions == listener.told else positions


def passed(entry: Entry, feed: Feed) -> dict[str, int]:
    """Return, by partition of a source, the position before which no flow of its tasks needs a row for a restart."""
    lowest: dict[str, int] = {}
    for place, id in enumerate(flows_of(feed, entry)):
        flow = entry.flows[id]
        clock = min(entry.clock, flow.progress.clock)
        positions = flow.source.replays_from(clock) if clock != BEGINNING else {}
        if place == 0:
            lowest = positions
        # A partition that one of them has yet to begin was not passed.
        lowest = {name: min(at, positions[name]) for name, at in lowest.items() if name in positions}
    return lowest


def _wants_to_know(source: AnySource) -> bool:
    replayable = (each for each in sources_of(source) if isinstance(each, TimeReplayableSource))
    return any(type(each).committed is not TimeReplayableSource.committed for each in replayable)
