"""Follow the commits that a server's process makes: by the log, and by a note of each micro-batch that says what it took.

With Spark Connect the function of foreachBatch runs in a Python of the server. The log says what is committed, and all work
follows from that. A note is for people: messages that were read are counted in no entry. Nothing else needs a note that never
comes, as its process was killed after the commit.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from pyspark.sql import SparkSession

from persistent_state.drive.worker import LogWorker
from persistent_state.engine.spark import connect
from persistent_state.errors import FencedError, StateError
from persistent_state.metrics.of_run import Work
from persistent_state.protocol.deliver import Delivered
from persistent_state.protocol.next_entry import newest_own
from persistent_state.run.commit import committing
from persistent_state.run.progress import Progress, hand_on
from persistent_state.run.reports import Listener
from persistent_state.store.files import Files
from persistent_state.store.log import Log

POLL_SECONDS, IDLE_SECONDS = 0.25, 5.0
"""The least and the most time between two looks at the log."""

_logger = logging.getLogger("persistent_state")


def note_path(application: str, flow: str, epoch: int, batch: int) -> str:
    """Return the path of the note of a micro-batch. No entry names it, so a collection takes it away."""
    return f"{application}/runs/{flow}/{epoch:06d}-{batch:09d}-note"


class Note:
    """A listener that goes to the server with a flow: it writes a note of each commit, and lets an error end the query."""

    def __init__(self, files: Files, application: str) -> None:
        self._files, self._application = files, application
        self._progress: list[Progress] = []
        self._work: list[Work] = []

    def __call__(self, progress: Progress) -> None:
        """Take in the progress of a task."""
        self._progress.append(progress)

    def measure(self, work: Work) -> None:
        """Take in what the commit took."""
        self._work.append(work)

    def begin(self, flow: str) -> None:
        """Begin with the next micro-batch of a flow."""
        self._progress, self._work = [], []

    def fail(self, flow: str, error: Exception) -> None:
        """Let the error end the query, by which the client learns of it."""
        raise error

    def finish(self, flow: str) -> None:
        """Write the note: the micro-batch is committed, and handed to its functions of running values."""
        if not self._progress:
            return
        path = note_path(self._application, flow, self._progress[0].epoch, self._progress[0].batch)
        # The micro-batch counts all the same.
        with suppress(StateError):
            self._files.create(path, to_bytes(self._progress, self._work))


def to_bytes(progress: Sequence[Progress], work: Sequence[Work]) -> bytes:
    """Return a note as JSON."""
    return json.dumps({"progress": list(map(asdict, progress)), "work": list(map(asdict, work))}).encode()


def from_bytes(data: bytes) -> tuple[list[Progress], list[Work]]:
    """Return what a note says."""
    record = json.loads(data)

    def read_progress(fields: dict[str, Any]) -> Progress:
        outputs = {name: Delivered(**each) for name, each in fields.pop("outputs").items()}
        return Progress(**fields, outputs=outputs)

    def read_work(fields: dict[str, Any]) -> Work:
        return Work(**{**fields, "inputs": tuple(fields["inputs"])})

    return list(map(read_progress, record["progress"])), list(map(read_work, record["work"]))


def pause_after(silence: float) -> float:
    """Return the seconds until the next look at a log that has had no new entry for this long, in seconds.

    They are an eighth of that. So a look comes late by an eighth of the time between two entries, and idle runs cost little.
    """
    return min(max(POLL_SECONDS, silence / 8), IDLE_SECONDS)


class Follower:
    """A thread that looks at the log from `follow` on until `end`, and lets the run hear of what the server commits.

    `failed`, `finished` and `under_way` are those of a `Watch`: when a micro-batch begins is not known here, and a commit that
    fails ends its query. `on_commit` is called after each new entry.
    """

    def __init__(self, log: Log, spark: SparkSession, listener: Listener, on_commit: Callable[[], None]) -> None:
        self.failed: tuple[str, Exception] | None = None
        self.finished: set[str] = set()
        self.under_way: Mapping[str, float] = {}
        self._log, self._spark, self._listener, self._on_commit = log, spark, listener, on_commit
        self._epoch, self._flows = 0, list[str]()
        self._heard: dict[str, int] = {}
        self._seen = 0
        self._turn = threading.Lock()
        self._kept = self._news = time.monotonic()
        self._worker = LogWorker(f"persistent-state {log.application} follows", self._look_and_keep, self._pause)

    def follow(self, epoch: int, flows: Collection[str]) -> None:
        """Follow the flows of this start from now on."""
        self._epoch, self._flows = epoch, [*flows]
        self._worker.start()

    def look(self) -> None:
        """Look at the log now, and hear what is new."""
        with self._turn:
            try:
                self._look()
            except FencedError:
                # The supervisor finds out by itself.
                pass
            except StateError as error:
                _logger.debug("application %s was not followed: %s", self._log.application, error)
            except Exception as error:
                # Any error: a thread that ended here would report nothing more, without a word.
                _logger.warning("application %s was not followed, and is again soon: %r", self._log.application, error)

    def _look(self) -> None:
        entry = newest_own(self._log, self._epoch)
        if entry.number != self._seen:
            self._seen, self._news = entry.number, time.monotonic()
            self._on_commit()
        for flow in self._flows:
            if flow in entry.flows:
                self._hear(flow, entry.flows[flow].progress.batch)

    def _hear(self, flow: str, newest: int) -> None:
        """Hear the notes of a flow's micro-batches up to the newest. A missing one is left out once there is a later one."""
        for batch in range(self._heard.get(flow, 0) + 1, newest + 1):
            try:
                data = self._log.files.read(note_path(self._log.application, flow, self._epoch, batch))
            except FileNotFoundError:
                continue
            self._heard[flow] = batch
            reports, work = from_bytes(bytes(data))
            try:
                for each in work:
                    self._listener.measure(each)
                with committing():
                    for progress in reports:
                        hand_on(progress, self._listener)
            except Exception as error:
                self.failed = self.failed or (flow, error)
            self.finished.add(flow)

    def _pause(self) -> float:
        return pause_after(time.monotonic() - self._news)

    def _look_and_keep(self) -> None:
        self.look()
        if time.monotonic() > self._kept + connect.KEEP_SECONDS:
            self._kept = time.monotonic()
            # If it fails, the session is lost, and what needs it says so.
            with suppress(Exception):
                connect.keep(self._spark)

    def stop(self) -> None:
        """Go on: the last notes come until the queries have stopped."""

    def end(self) -> None:
        """Hear what there is to hear, and follow no more."""
        if self._worker.is_alive:
            self.look()
        self._worker.stop(0)
