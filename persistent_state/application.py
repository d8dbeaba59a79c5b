"""The application: tasks with their sources, one store, one checkpoint interval, and a start."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from persistent_state.clock import Settings
from persistent_state.driver import Keeping
from persistent_state.errors import InvalidInput
from persistent_state.plain import UNITS
from persistent_state.plan import KEEP, Plan
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.store.files import open_files
from persistent_state.task import PersistentTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persistent_state.engine.query import Progress, Sink
    from persistent_state.engine.running import Running

LONGEST = 2**62
"""The longest duration in microseconds; event time is 64 bits."""


def duration(text: str) -> int:
    """Microseconds of a duration such as "10 seconds" or "1 hour".

    Raises:
        InvalidInput: the text is not a whole number and a unit.
    """
    found = re.fullmatch(r"\s*(\d+)\s+([a-z]+?)s?\s*", str(text))
    if not found or found[2] not in UNITS:
        raise InvalidInput(f"duration={text!r}; say a whole number and one of {', '.join(UNITS)}s.")
    length = int(found[1]) * UNITS[found[2]]
    if length > LONGEST:
        raise InvalidInput(f"duration={text!r} is longer than {LONGEST // UNITS['day']} days; say less.")
    return length


def positive(name: str, text: str) -> int:
    """Microseconds of a duration that can't be nothing.

    Raises:
        InvalidInput: it is, or the text is no duration.
    """
    length = duration(text)
    if length == 0:
        raise InvalidInput(f"{name}={text!r}; it must be longer than nothing.")
    return length


@dataclass(frozen=True)
class _Added:
    task: PersistentTask
    source: TimeReplayableSource | DataFrameSource
    sink: Sink | None
    on_bad_row: str


@dataclass
class Application:
    """Tasks that are checkpointed together, restart together and rescale together.

    `store` is where the state is: a folder or an fsspec URL; `storage_options` go to fsspec and appear nowhere.
    `checkpoint_interval` is the distance of checkpoint clocks in event time; a message up to `allowed_delay` behind the
    newest before it in its channel is never late. A channel silent for `idle_after` holds the clock no longer. Timestamps
    more than `max_ahead` beyond the wall clock are bad rows, and if `max_jump` is given, so are those more than that beyond
    their channel. The newest `checkpoints` stay readable; each costs up to one more row per key that changed between them.
    `shards` is the number of parallel state writers (default: Spark's parallelism); it may change at any start. `scratch` is
    where Spark keeps its own checkpoints, as a path that Spark knows: on a cluster all machines must reach it; nothing in
    it is needed after the run. A failing run is started again up to `restarts` times without a new global clock.
    """

    name: str
    store: str
    checkpoint_interval: str = "1 minute"
    allowed_delay: str = "0 seconds"
    idle_after: str | None = None
    max_ahead: str = "1 day"
    max_jump: str | None = None
    checkpoints: int = 10
    shards: int | None = None
    scratch: str | None = None
    restarts: int = 5
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)
    _added: list[_Added] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", self.name):
            raise InvalidInput(
                f"application name={self.name!r} can't name a folder; use letters, digits, '_', '.', '-'."
            )
        self._settings()
        if self.checkpoints < 1:
            raise InvalidInput(f"checkpoints={self.checkpoints}; keep at least one, a restart needs it.")
        if self.shards is not None and self.shards < 1:
            raise InvalidInput(f"shards={self.shards}; there must be at least one.")
        if self.restarts < 0:
            raise InvalidInput(f"restarts={self.restarts}; say 0 for none.")

    def add(
        self,
        task: PersistentTask,
        source: TimeReplayableSource | DataFrameSource,
        sink: Sink | None = None,
        on_bad_row: str = KEEP,
    ) -> Application:
        """Add a task that is fed by a source.

        `sink(values, batch)` is called after each commit with a DataFrame of the running values of the keys that a
        micro-batch touched; they are provisional: after a restart those above the clock come again, and `batch` counts
        from 0 again. Bad rows are kept beside the late ones, or with on_bad_row="fail" stop the application.
        """
        if any(added.task.task_name == task.task_name for added in self._added):
            raise InvalidInput(f"two tasks are named {task.task_name}; give one a name of its own.")
        self._added.append(_Added(task, source, sink, on_bad_row))
        return self

    def start(
        self,
        spark: SparkSession,
        *,
        anew: Sequence[str] = (),
        trigger: str | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Running:
        """Start on Spark and go on as messages arrive; wait with `await_end()`, end with `stop()`.

        The state is restored at the global clock and the sources are replayed from there. A failure starts all that again,
        after a second, then two, four, up to a minute; after `restarts` of them without a new global clock it is raised.

        Tasks named in `anew` start from zero at that clock instead, as a task does that is new to the application: what
        their sources deliver from below it is late. `trigger` is the least time between the beginnings of two
        micro-batches. `on_progress` is called after each commit; the logger `persistent_state.progress` tells the same as
        one line of JSON, at level INFO.

        Raises:
            InvalidInput: the set-up can't work; nothing was changed.
        """
        seconds = f"{positive('trigger', trigger) / 1e6:f} seconds" if trigger is not None else None
        return self._start(spark, anew, on_progress, trigger=seconds, to_the_end=False)

    def run(
        self,
        spark: SparkSession,
        *,
        anew: Sequence[str] = (),
        close: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Running:
        """Run to the end of what the sources hold now, and with `close` give every task one clock above all of it.

        SIGINT and SIGTERM stop it cleanly before the end. A failure starts again as in `start`.

        Raises:
            InvalidInput: the set-up can't work; nothing was changed.
            StateError: the run failed; the next start goes on from the global clock.
        """
        running = self._start(spark, anew, on_progress, trigger=None, to_the_end=True)
        running.await_end()
        if close and not running.was_asked_to_stop:
            running.close()
        return running

    def _start(
        self,
        spark: SparkSession,
        anew: Sequence[str],
        on_progress: Callable[[Progress], None] | None,
        trigger: str | None,
        to_the_end: bool,
    ) -> Running:
        from persistent_state.engine import rows, running

        if not self._added:
            raise InvalidInput(f"application {self.name} has no task; add one.")
        files = open_files(self.store, **self.storage_options)
        settings = self._settings()
        shards = self.shards or spark.sparkContext.defaultParallelism
        parts = []
        for added in self._added:
            source = added.source
            schema, update = rows.columns_of(spark, added.task, source)
            plan = Plan(
                application=self.name,
                files=files,
                task=added.task,
                schema=schema,
                timestamp=source.timestamp,
                channel=source.channel,
                settings=settings,
                shards=shards,
                emits=added.sink is not None,
                on_bad_row=added.on_bad_row,
                has_order=not isinstance(source, DataFrameSource),
                has_positions=not isinstance(source, DataFrameSource) or source.position is not None,
            )
            plan.check()
            if update is not None:
                plan.check_update(update)
            parts.append(running.Part(plan, source, added.sink))
        setup = running.Setup(
            spark,
            self.name,
            files,
            parts,
            interval=settings.interval,
            shards=shards,
            keeping=Keeping(self.checkpoints),
            scratch=self.scratch,
            restarts=self.restarts,
            to_the_end=to_the_end,
            trigger=trigger,
            on_progress=on_progress,
        )
        return running.start(setup, anew)

    def _settings(self) -> Settings:
        return Settings(
            interval=positive("checkpoint_interval", self.checkpoint_interval),
            delay=duration(self.allowed_delay),
            idle_after=positive("idle_after", self.idle_after) if self.idle_after is not None else None,
            ahead=duration(self.max_ahead),
            jump=positive("max_jump", self.max_jump) if self.max_jump is not None else None,
        )
