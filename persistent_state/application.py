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
from persistent_state.kafka.connector import KafkaConnectorSource
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
    """A task with its source and its outputs."""

    task: PersistentTask
    source: TimeReplayableSource | DataFrameSource | KafkaConnectorSource
    outputs: Outputs
    on_bad_row: str
    delivery: str


@dataclass
class Application:
    """Tasks that are checkpointed together, restart together and rescale together.

    A duration is a text such as "10 seconds" or "1 hour", or a `datetime.timedelta`.

    Args:
        name: The application's name, which is a folder of the store: letters, digits, "_", "." and "-".
        store: Where the state is kept: a folder, or a URL of fsspec.
        checkpoint_interval: The time between checkpoint clocks, in event time.
        allowed_delay: How far a message may be behind the newest message before it in its channel and never be late.
        idle_after: How long a channel must be silent, by the wall clock, until the global clock no longer waits for it. By
            default the clock waits for ever.
        alignment: How far a channel is read ahead of the slowest live one before it waits, in event time. What waits above the
            clock is then bounded, however far apart the channels are. By default none waits. It has an effect on sources whose
            partitions are channels and that can wait: a `KafkaSource`, and sources of your own that have `hold`.
        max_ahead: A timestamp further ahead of the wall clock than this makes a bad row.
        max_jump: A timestamp further ahead of its channel than this makes a bad row. By default there is no limit.
        retained_checkpoints: How many checkpoints can be read. Each costs up to one more row per key that changed between them.
        shards: How many tasks of Spark write the state, by default Spark's parallelism. It may change at any start.
        scratch: A folder for Spark's own checkpoints, as Spark names it; on a cluster all machines must reach it. Nothing in it
            is needed after the run.
        max_restarts: How often a failing run is started again without a new global clock in between.
        storage_options: What fsspec needs to open the store, such as keys. They appear in no message.
        delivery: How often a message and an output count when something fails: "exactly-once", "at-least-once" or
            "at-most-once". It may change at any start.

    Raises:
        InvalidInputError: An argument is wrong.

    Example:
        >>> app = Application("word_counts", "memory://docs", checkpoint_interval="10 seconds", allowed_delay="2 seconds")
        >>> app.delivery
        'exactly-once'
    """

    name: str
    store: str
    _: KW_ONLY
    checkpoint_interval: Duration = "1 minute"
    allowed_delay: Duration = "0 seconds"
    idle_after: Duration | None = None
    alignment: Duration | None = None
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
        _checked_delivery(self.delivery)

    def add(
        self,
        task: PersistentTask,
        source: TimeReplayableSource | DataFrameSource | KafkaConnectorSource,
        sink: Output | Sequence[Output] | None = None,
        on_bad_row: str = KEEP,
        delivery: str | None = None,
    ) -> Application:
        """Add a task that is fed by a source.

        Args:
            task: An instance of your `PersistentTask`.
            source: Where its messages come from. Tasks that are given one object share it: it is read once for
                all of them that have the same delivery and way of reading.
            sink: Where its values at each checkpoint clock go: a `Sink`, a function of (values, clock), `ValuesAtClock`,
                `RunningValues`, or a list of these.
            on_bad_row: "keep" stores bad rows beside the late ones, "fail" stops the application at the first one.
            delivery: How often its messages and outputs count when something fails; by default what the application says.

        Returns:
            The application itself.

        Raises:
            InvalidInputError: The application has a task of this name, two outputs of the task have the same name, or two
                outputs write to one place that keeps a record, or `delivery` is none.
        """
        _check_task(task)
        _check_source(task.task_name, source)
        if any(added.task.task_name == task.task_name for added in self._added):
            raise InvalidInputError(f"two tasks are named {task.task_name}; give one a name of its own.")
        outputs = outputs_of(task.task_name, sink)
        check_places({**{added.task.task_name: added.outputs for added in self._added}, task.task_name: outputs})
        delivery = _checked_delivery(self.delivery if delivery is None else delivery)
        self._added.append(_Added(task, source, outputs, on_bad_row, delivery))
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
        """Start on Spark, and go on as messages arrive. Wait with `await_termination()`, end with `stop()`.

        The state is restored at the global clock and the sources are replayed from there, or as `delivery` says. After a
        failure the application starts again: after one second, then two, four, up to a minute.

        Args:
            spark: The session.
            reset: Tasks that start from zero at the global clock, as a task does that is new to the application. They read on
                with the tasks that share their source. For a task that is alone on it, messages below that clock are late.
            rebuild: Tasks that are built again from the beginning of their sources. The global clock waits until they have
                caught up. Their outputs need names that the store does not know.
            trigger: The least time between the beginnings of two micro-batches: a text such as "10 seconds", or a `timedelta`.
            on_progress: Called after each commit of a micro-batch. The logger `persistent_state.progress` writes the same as a
                line of JSON, at level INFO.

        Returns:
            A handle of the running application. It raises what failed the application after `max_restarts` restarts without a
            new global clock.

        Raises:
            InvalidInputError: The set-up can't work. Nothing was changed.
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
        """Run to the end of what the sources hold now.

        Without `drain` the newest messages stay above every checkpoint, since older messages may still come. At the end the
        logger `persistent_state` tells for each task what was read, what waits above the clock, and which rows did not count.
        SIGINT and SIGTERM stop the run cleanly before the end. After a failure the run starts again, as `start` does.

        Args:
            spark: The session.
            reset: As for `start`.
            rebuild: As for `start`.
            drain: Give every task one clock above all of its messages at the end, so that every message is in a checkpoint.
            on_progress: As for `start`.

        Returns:
            The handle of the application, which has ended.

        Raises:
            InvalidInputError: The set-up can't work. Nothing was changed.
            StateError: The run failed. The next start goes on from the global clock.
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
        from persistent_state.engine.feeds import Part
        from persistent_state.engine.queries import Setup
        from persistent_state.engine.run import start

        if on_progress is not None:
            check_takes("on_progress", on_progress, "progress")
        if not self._added:
            raise InvalidInputError(f"application {self.name} has no task; add one.")
        files = open_files(self.store, self.storage_options)
        settings = self._settings()
        shards = self.shards or spark.sparkContext.defaultParallelism
        parts = []
        # Tasks that were given one source object are to share it.
        shared: dict[int, TimeReplayableSource | KafkaConnectorSource] = {}
        for added in self._added:
            source = added.source
            if isinstance(source, KafkaConnectorSource):
                source = kafka_connector.frame_for_columns(source)
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
                has_positions=not isinstance(source, DataFrameSource) or source.position is not None,
                by_spark=isinstance(source, DataFrameSource),
                delivery=added.delivery,
            )
            plan.check()
            if update is not None:
                plan.check_update(update)
            source = added.source
            if not isinstance(source, DataFrameSource):
                source = shared.setdefault(id(source), source.read_by(self.name))
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
            alignment=positive("alignment", self.alignment) if self.alignment is not None else None,
        )


def _checked_delivery(delivery: str) -> str:
    """Return the delivery.

    Raises:
        InvalidInputError: There is none of this name.
    """
    if delivery not in DELIVERIES:
        raise InvalidInputError(f"delivery={delivery!r}; say one of {', '.join(map(repr, DELIVERIES))}.")
    return delivery


def _check_task(task: object) -> None:
    """Refuse what is not a task.

    Raises:
        InvalidInputError: It is not a task, but its class, for example.
    """
    if not isinstance(task, PersistentTask):
        hint = f"{task.__name__}()" if isinstance(task, type) else "MessageCount()"
        raise InvalidInputError(
            f"task={task!r} is not a task; give an instance of your PersistentTask, such as {hint}."
        )


def _check_source(task: str, source: object) -> None:
    """Refuse what is not a source.

    Raises:
        InvalidInputError: It is not a source. The message names the source that may be meant.
    """
    if isinstance(source, (TimeReplayableSource, DataFrameSource, KafkaConnectorSource)):
        return
    found = repr(source)
    if isinstance(source, (str, os.PathLike)):
        way = f"give FileSource({os.fspath(source)!r}, timestamp=...) for the files of a folder"
    elif type(source).__module__.startswith("pyspark.sql"):
        found, way = "a Spark DataFrame", "give DataFrameSource(stream, timestamp=...), of a streaming DataFrame"
    elif isinstance(source, type):
        way = f"give an instance of it, {source.__name__}(...)"
    else:
        way = "give a FileSource, KafkaSource, KafkaConnectorSource, DataFrameSource or a TimeReplayableSource of your own"
    raise InvalidInputError(f"task={task}: source={found} is not a source; {way}.")
