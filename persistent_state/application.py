"""The application: tasks with their sources, one store, one checkpoint interval, and a start."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from persistent_state.batch.plan import DELIVERIES, EXACTLY_ONCE, KEEP, Plan
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.durations import Duration, duration, positive
from persistent_state.outputs import Output, Outputs, check_places, check_takes, outputs_of
from persistent_state.protocol.commits import Keeping
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.store.files import open_files
from persistent_state.task import PersistentTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persistent_state.engine.micro_batch import Progress
    from persistent_state.engine.run import Running


@dataclass(frozen=True)
class _Added:
    task: PersistentTask
    source: TimeReplayableSource | DataFrameSource
    outputs: Outputs
    on_bad_row: str


@dataclass
class Application:
    """Tasks that are checkpointed together, restart together and rescale together.

    `store` is where the state is: a folder or an fsspec URL; `storage_options` go to fsspec and appear nowhere.
    `checkpoint_interval` is the distance of checkpoint clocks in event time; a message up to `allowed_delay` behind the
    newest before it in its channel is never late. A channel silent for `idle_after` holds the clock no longer. Timestamps
    more than `max_ahead` beyond the wall clock are bad rows, and if `max_jump` is given, so are those more than that beyond
    their channel. The newest `retained_checkpoints` stay readable; each costs up to one more row per key that changed between
    them. `shards` is the number of parallel state writers (default: Spark's parallelism); it may change at any start. `scratch`
    is where Spark keeps its own checkpoints, as a path that Spark knows: on a cluster all machines must reach it; nothing in it
    is needed after the run. A failing run is started again up to `max_restarts` times without a new global clock. `delivery` is
    "exactly-once", "at-least-once" or "at-most-once": how often a message and an output count when something fails. It may
    change at any start. Durations are text such as "10 seconds" or "1 hour", or a `datetime.timedelta`.
    """

    name: str
    store: str
    _: KW_ONLY
    checkpoint_interval: Duration = "1 minute"
    allowed_delay: Duration = "0 seconds"
    idle_after: Duration | None = None
    max_ahead: Duration = "1 day"
    max_jump: Duration | None = None
    retained_checkpoints: int = 10
    shards: int | None = None
    scratch: str | None = None
    max_restarts: int = 5
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    delivery: str = EXACTLY_ONCE
    _added: list[_Added] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", self.name):
            raise InvalidInputError(
                f"application name={self.name!r} can't name a folder; use letters, digits, '_', '.', '-'."
            )
        self._settings()
        if self.retained_checkpoints < 1:
            raise InvalidInputError(
                f"retained_checkpoints={self.retained_checkpoints}; keep at least one, a restart needs it."
            )
        if self.shards is not None and self.shards < 1:
            raise InvalidInputError(f"shards={self.shards}; there must be at least one.")
        if self.max_restarts < 0:
            raise InvalidInputError(f"max_restarts={self.max_restarts}; say 0 for none.")
        if self.delivery not in DELIVERIES:
            raise InvalidInputError(f"delivery={self.delivery!r}; say one of {', '.join(map(repr, DELIVERIES))}.")

    def add(
        self,
        task: PersistentTask,
        source: TimeReplayableSource | DataFrameSource,
        sink: Output | Sequence[Output] | None = None,
        on_bad_row: str = KEEP,
    ) -> Application:
        """Add a task that is fed by a source.

        `sink` is where the task's values at each checkpoint clock go: a `Sink`, a function of (values, clock), or several
        outputs, which `ValuesAtClock` and `RunningValues` say more of. Bad rows are kept beside the late ones, or with
        on_bad_row="fail" stop the application.

        Raises:
            InvalidInputError: the application has a task of this name, or two outputs of the task have one; or two outputs
                write to one place that keeps a record.
        """
        _check_task(task)
        _check_source(task.task_name, source)
        if any(added.task.task_name == task.task_name for added in self._added):
            raise InvalidInputError(f"two tasks are named {task.task_name}; give one a name of its own.")
        outputs = outputs_of(task.task_name, sink)
        check_places({**{added.task.task_name: added.outputs for added in self._added}, task.task_name: outputs})
        self._added.append(_Added(task, source, outputs, on_bad_row))
        return self

    def start(
        self,
        spark: SparkSession,
        *,
        reset: Sequence[str] = (),
        rebuild: Sequence[str] = (),
        trigger: Duration | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Running:
        """Start on Spark and go on as messages arrive; wait with `await_termination()`, end with `stop()`.

        The state is restored at the global clock and the sources are replayed from there, or as `delivery` says. A failure
        starts all that again, after a second, then two, four, up to a minute; after `max_restarts` of them without a new global
        clock it is raised.

        Tasks named in `reset` start from zero at that clock instead, as a task does that is new to the application: what
        their sources deliver from below it is late. Those named in `rebuild` are built again from the beginning of their
        sources, and until they have caught up the global clock waits; their outputs need names that the store does not know.

        `trigger` is the least time between the beginnings of two micro-batches. `on_progress` is called after each commit; the
        logger `persistent_state.progress` tells the same as one line of JSON, at level INFO.

        Raises:
            InvalidInputError: the set-up can't work; nothing was changed.
        """
        seconds = f"{positive('trigger', trigger) / 1e6:f} seconds" if trigger is not None else None
        return self._start(spark, reset, rebuild, on_progress, trigger=seconds, to_the_end=False)

    def run(
        self,
        spark: SparkSession,
        *,
        reset: Sequence[str] = (),
        rebuild: Sequence[str] = (),
        drain: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Running:
        """Run to the end of what the sources hold now, and with `close` give every task one clock above all of it.

        Without `close` the newest messages stay above every checkpoint, since older ones may still come. The logger
        `persistent_state` tells of each task at the end what was read, what waits there, and which rows did not count; where
        some do, as a warning. SIGINT and SIGTERM stop it cleanly before the end. A failure starts again as in `start`.

        Raises:
            InvalidInputError: the set-up can't work; nothing was changed.
            StateError: the run failed; the next start goes on from the global clock.
        """
        running = self._start(spark, reset, rebuild, on_progress, trigger=None, to_the_end=True, drains=drain)
        running.await_termination()
        return running

    def _start(
        self,
        spark: SparkSession,
        reset: Sequence[str],
        rebuild: Sequence[str],
        on_progress: Callable[[Progress], None] | None,
        trigger: str | None,
        to_the_end: bool,
        drains: bool = False,
    ) -> Running:
        from persistent_state.engine import dataframe_source, kafka_connector
        from persistent_state.engine.run import Part, Setup, start

        if on_progress is not None:
            check_takes("on_progress", on_progress, "progress")
        if not self._added:
            raise InvalidInputError(f"application {self.name} has no task; add one.")
        files = open_files(self.store, self.storage_options)
        settings = self._settings()
        shards = self.shards or spark.sparkContext.defaultParallelism
        parts = []
        for added in self._added:
            source = kafka_connector.unopened(added.source)
            schema, update = dataframe_source.columns_of(spark, added.task, source)
            plan = Plan(
                application=self.name,
                files=files,
                task=added.task,
                schema=schema,
                timestamp=source.timestamp,
                timestamp_unit=source.timestamp_unit,
                channel=source.channel,
                settings=settings,
                shards=shards,
                emits=bool(added.outputs.running),
                outputs=added.outputs.names,
                on_bad_row=added.on_bad_row,
                has_order=not isinstance(source, DataFrameSource),
                has_positions=not isinstance(source, DataFrameSource) or source.position is not None,
                by_spark=isinstance(source, DataFrameSource),
                delivery=self.delivery,
            )
            plan.check()
            if update is not None:
                plan.check_update(update)
            source = added.source
            if isinstance(source, TimeReplayableSource):
                source = source.read_by(self.name)
            parts.append(Part(plan, source, added.outputs))
        setup = Setup(
            spark,
            self.name,
            files,
            parts,
            interval=settings.interval,
            shards=shards,
            keeping=Keeping(self.retained_checkpoints),
            scratch=self.scratch,
            max_restarts=self.max_restarts,
            to_the_end=to_the_end,
            drains=drains,
            trigger=trigger,
            on_progress=on_progress,
        )
        return start(setup, reset, rebuild)

    def _settings(self) -> Settings:
        return Settings(
            interval=positive("checkpoint_interval", self.checkpoint_interval),
            delay=duration("allowed_delay", self.allowed_delay),
            idle_after=positive("idle_after", self.idle_after) if self.idle_after is not None else None,
            ahead=duration("max_ahead", self.max_ahead),
            jump=positive("max_jump", self.max_jump) if self.max_jump is not None else None,
        )


def _check_task(task: object) -> None:
    """Refuse what is no task.

    Raises:
        InvalidInputError: it is none, such as the class of one.
    """
    if not isinstance(task, PersistentTask):
        hint = f"{task.__name__}()" if isinstance(task, type) else "MessageCount()"
        raise InvalidInputError(
            f"task={task!r} is not a task; give an instance of your PersistentTask, such as {hint}."
        )


def _check_source(task: str, source: object) -> None:
    """Refuse what is no source.

    Raises:
        InvalidInputError: it is none; the sentence says what could be meant.
    """
    if isinstance(source, (TimeReplayableSource, DataFrameSource)):
        return
    found = repr(source)
    if isinstance(source, (str, os.PathLike)):
        way = f"give FileSource({os.fspath(source)!r}, timestamp=...) for the files of a folder"
    elif type(source).__module__.startswith("pyspark.sql"):
        found, way = "a Spark DataFrame", "give DataFrameSource(stream, timestamp=...), of a streaming DataFrame"
    elif isinstance(source, type):
        way = f"give an instance of it, {source.__name__}(...)"
    else:
        way = "give a FileSource, a KafkaSource, a DataFrameSource or a TimeReplayableSource of your own"
    raise InvalidInputError(f"task={task}: source={found} is not a source; {way}.")
