"""The set-up of an application, as its starts and rewinds use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import SparkSession

from persistent_state.batch.plan import Plan
from persistent_state.engine.run.feeds import FedTask, Feed, feeds_of
from persistent_state.engine.run.progress import Progress
from persistent_state.engine.spark import connect
from persistent_state.engine.spark.wall_clock import new_id, now_us
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import takeover
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.log import Log


@dataclass(frozen=True)
class Setup:
    """The set-up of an application, which its first start and each start after a failure use."""

    session: SparkSession | None
    """None only for a rewind of sources that Spark does not plan."""

    application: str
    files: Files
    parts: Sequence[FedTask]
    interval: int
    shards: int
    keeping: Keeping
    scratch: str | None

    max_restarts: int
    """After this number of failures in a row without a new global clock the run raises the last failure."""

    to_the_end: bool
    """True if the run ends at the present end of the sources."""

    drains: bool
    """True if it then checkpoints and delivers all messages."""

    trigger: str | None
    """Spark's processing time. None begins each micro-batch when the one before it ends."""

    on_progress: Callable[[Progress], None] | None

    metrics: tuple[str, int] | None = None
    """The host and the port at which the run shows its metrics. None if it shows none."""

    show_progress: bool | None = None
    """True if the run shows its progress to people. None leaves that to where it runs."""

    writer: str = field(default_factory=new_id)

    @property
    def spark(self) -> SparkSession:
        """The session, which whatever runs has."""
        assert self.session is not None, "a rewind runs nothing"
        return self.session

    @property
    def is_remote(self) -> bool:
        """Return whether the session is one of Spark Connect: then commits are made in processes of its server."""
        return self.session is not None and connect.is_connect(self.session)

    @property
    def plans(self) -> list[Plan]:
        """The plan of each task."""
        return [part.plan for part in self.parts]

    @property
    def settings(self) -> dict[str, Settings]:
        """The settings of each task, by its name."""
        return {plan.name: plan.settings for plan in self.plans}

    @cached_property
    def feeds(self) -> list[Feed]:
        """The sources, each with the tasks that are to be fed by it together."""
        return feeds_of(self.parts)

    def title_of(self, entry: Entry, flow: str) -> str:
        """Return a flow's tasks as messages name them."""
        return next(feed.plan for feed in self.feeds if flow in feed.plan.by_name).of(entry.tasks_of(flow)).title

    def take_over(
        self, log: Log, *, reset: Sequence[str] = (), rebuild: Sequence[str] = (), after: int | None = None
    ) -> Entry:
        """Write the entry of a new start, which fences every driver before it, and return the entry."""
        return takeover.take_over(
            log,
            [feed.plan for feed in self.feeds],
            interval=self.interval,
            shards=self.shards,
            writer=self.writer,
            now=now_us(),
            reset=reset,
            rebuild=rebuild,
            after=after,
        )
