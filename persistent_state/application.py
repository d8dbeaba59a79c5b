"""The application: tasks with their sources, one store, one checkpoint interval, and a start."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from persistent_state.batch.plan import EXACTLY_ONCE, KEEP, Plan
from persistent_state.errors import InvalidInputError, check_takes, check_whole, refuse
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.durations import Duration, duration, positive, show_duration
from persistent_state.formatting import Clock
from persistent_state.inputs import AnySource, Input
from persistent_state.local.settings import Local
from persistent_state.metrics.server import address
from persistent_state.ordered import InOrderTask
from persistent_state.outputs import Output
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.rewind_plan import RewindPlan
from persistent_state.redact import shown
from persistent_state.setup import checks
from persistent_state.setup.added import Added, inputs_of, tasks_of
from persistent_state.setup.compile import ColumnsOf, plans_of, take_up_schemas
from persistent_state.setup.loading import of_place
from persistent_state.show import definition, html
from persistent_state.show.tables import Table
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log, check_name
from persistent_state.task import PersistentTask

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persistent_state.run.progress import Progress
    from persistent_state.run.running import Running
    from persistent_state.run.setup import Engine, Setup

_logger = logging.getLogger("persistent_state")


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
        max_jump: A timestamp further ahead of its channel than this makes a bad row. By default there is no limit. A
            start refuses it with a task on a `DataFrameSource` or a `KafkaConnectorSource`.
        retained_checkpoints: How many of the newest checkpoints are kept. Each costs up to one more row per key that changed
            between them.
        retain: Older checkpoints that are kept, as pairs of durations (every, span): with `("1 hour", "2 days")` the last
            checkpoint of each hour, for two days of event time.
        grace: How long files and log entries stay that were replaced, by the wall clock, as a reader may need them. At least a
            minute, and behind a network ten. docs/stores.md says what it costs, and who relies on it.
        shards: Into how many ranges of keys the state is divided, by default Spark's parallelism. It may change at any start.
            Tasks of Spark share them. Under `Local` the default is what the store has, and one for each worker of the first
            start. The first start on Spark after `Local` also keeps what the store has.
        scratch: A folder for Spark's own checkpoints, as Spark names it; on a cluster all machines must reach it. Nothing in it
            is needed after the run.
        max_restarts: How often a failing run is started again without a new global clock in between.
        storage_options: What fsspec needs to open the store, such as keys. They appear in no message.
        delivery: How often a message and an output count when something fails: "exactly-once", "at-least-once" or
            "at-most-once". It may change at any start.

    Attributes:
        added: The tasks with their inputs and outputs, as `add` was given them. An `OrderedTask` is several.

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
    retain: Sequence[tuple[Duration, Duration]] = ()
    grace: Duration = "10 minutes"
    shards: int | None = None
    scratch: str | None = None
    max_restarts: int = 5
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    delivery: str = EXACTLY_ONCE
    added: tuple[Added, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        self._settings()
        for whole in ("retained_checkpoints", "max_restarts", *(() if self.shards is None else ("shards",))):
            check_whole(whole, getattr(self, whole))
        if self.retained_checkpoints < 1:
            raise InvalidInputError(
                f"retained_checkpoints={self.retained_checkpoints}; keep at least one, a restart needs it."
            )
        self._keeping()
        if self.shards is not None and self.shards < 1:
            raise InvalidInputError(f"shards={self.shards}; there must be at least one.")
        if self.max_restarts < 0:
            raise InvalidInputError(f"max_restarts={self.max_restarts}; say 0 for none.")
        refuse(checks.of_delivery(self.delivery))

    def _repr_html_(self) -> str:
        facts = {
            "store": shown(self.store),
            "checkpoint interval": str(self.checkpoint_interval),
            "allowed delay": str(self.allowed_delay),
            **({} if self.idle_after is None else {"idle after": str(self.idle_after)}),
            **({} if self.alignment is None else {"alignment": str(self.alignment)}),
            "retained checkpoints": f"{self.retained_checkpoints:,}",
            "delivery": self.delivery,
        }
        # An ordered task is several, of which the first is given its messages.
        parts = dict[str, list[Added]]()
        for added in self.added:
            parts.setdefault(added.named, []).append(added)
        rows = [
            (
                name,
                definition.reads({input: of.source for input, of in some[0].inputs.items()}),
                ", ".join(some[0].task.key_columns) or "-",
                definition.state(some[0].task),
                ", ".join(output for added in some for output in definition.outputs(added.outputs)) or "-",
            )
            for name, some in parts.items()
        ]
        tasks = Table(("task", "reads", "key", "state", "outputs"), rows)
        return html.definition(f"Application {self.name}", facts, tasks)

    def add(
        self,
        task: PersistentTask | InOrderTask,
        source: AnySource | Mapping[str, AnySource | Input],
        sink: Output | Sequence[Output] | None = None,
        on_bad_row: str = KEEP,
        delivery: str | None = None,
        without: Sequence[str] = (),
    ) -> Application:
        """Add a task that is fed by a source, by several, or by other tasks.

        Args:
            task: An instance of your `PersistentTask` or `OrderedTask`, or a join.
            source: Where its messages come from. Tasks that are given one object share it: it is read once for
                all of them that have the same delivery and way of reading. Several inputs have names, as in
                `{"orders": KafkaSource(...), "rates": Changes("Rates")}`. The clock waits for all of them. When messages have
                the same time, those of the first input come first. An `Input` says what is different in one of them.
            sink: Where its values at each checkpoint clock go: a `Sink`, a function of (values, clock), `ValuesAtClock`,
                `RunningValues`, or a list of these. If an `OrderedTask` has `emits`, a sink alone is given the emitted rows,
                and `ValuesAtClock` the states.
            on_bad_row: "keep" stores bad rows beside the late ones, "fail" stops the application at the first one.
            delivery: How often its messages and outputs count when something fails; by default what the application says.
            without: Inputs that the task had at earlier starts, and that end. Those that it never had are no error.

        Returns:
            The application itself.

        Raises:
            InvalidInputError: The application has a task of this name, two outputs of the task have the same name, or two
                outputs write to one place that keeps a record, or `delivery` is not one of the three.
        """
        refuse(checks.of_task(task))
        inputs, delivery = inputs_of(source), self.delivery if delivery is None else delivery
        refuse(
            checks.of_inputs(task.task_name, inputs),
            checks.of_without(task.task_name, inputs, without),
            checks.of_delivery(delivery),
            checks.of_ordered(task, inputs, delivery, sink),
        )
        more = tasks_of(task, inputs, sink, on_bad_row, delivery, tuple(without))
        added = (*self.added, *more)
        refuse(checks.of_names(self.added, more), checks.of_places(added, self.store, self.name, self.scratch))
        self.added = added
        return self

    def start(
        self,
        spark: SparkSession | Local,
        *,
        reset: Sequence[str] = (),
        rebuild: Sequence[str] = (),
        trigger: Duration | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        metrics: int | str | None = None,
        show_progress: bool | None = None,
    ) -> Running:
        """Start, and go on as messages arrive. Wait with `await_termination()`, end with `stop()`.

        The state is restored at the global clock and the sources are replayed from there, or as `delivery` says. After a
        failure the application starts again: after one second, then two, four, up to a minute.

        Args:
            spark: The session, or `Local(workers=2)` to run on this machine without Spark.
            reset: Tasks that start from zero at the global clock, as a task does that is new to the application. They read on
                with the tasks that share their source. For a task that is alone on it, messages below that clock are late.
                Derived tasks are rebuilt.
            rebuild: Tasks that are rebuilt: from the beginning of their sources, or derived tasks from the state of their
                upstream tasks. The global clock waits until they have caught up. Their outputs need places that the store does
                not know.
            trigger: The least time between the beginnings of two micro-batches: a text such as "10 seconds", or a `timedelta`.
            on_progress: Called after each commit of a micro-batch. The logger `persistent_state.progress` writes the same as a
                line of JSON, at level INFO.
            metrics: A port at which this machine can ask for metrics, until the run ends: at `/metrics` those that
                docs/metrics.md lists, at `/health` that the run is alive, at `/ready` whether it commits. 0 takes a free port;
                `Running.metrics_url` names it. A text such as "0.0.0.0:9108" lets other machines ask, too.
            show_progress: Whether stderr, or a notebook, shows a line for each task while the run lasts, and a summary at its
                end. By default a notebook and a terminal show it, but not while you type at a prompt of Python.

        Returns:
            A handle of the running application. It raises what failed the application after `max_restarts` restarts without a
            new global clock.

        Raises:
            InvalidInputError: The set-up can't work. Nothing was changed.
        """
        least = None if trigger is None else positive("trigger", trigger)
        return self._start(spark, reset, rebuild, on_progress, metrics, show_progress, trigger=least, to_the_end=False)

    def run(
        self,
        spark: SparkSession | Local,
        *,
        reset: Sequence[str] = (),
        rebuild: Sequence[str] = (),
        drain: bool = False,
        on_progress: Callable[[Progress], None] | None = None,
        metrics: int | str | None = None,
        show_progress: bool | None = None,
    ) -> Running:
        """Run to the end of what the sources hold now.

        Without `drain` the newest messages stay above every checkpoint, since older messages may still come. At the end the
        logger `persistent_state` says for each task what was read, what waits above the clock, and which rows did not count.
        SIGINT and SIGTERM stop the run cleanly before the end, and then do what they do without a run. After a failure the run
        starts again, as `start` does.

        Args:
            spark: As for `start`.
            reset: As for `start`.
            rebuild: As for `start`.
            drain: Give every task one clock above all of its messages at the end, so that every message is in a checkpoint.
            on_progress: As for `start`.
            metrics: As for `start`.
            show_progress: As for `start`. A prompt of Python shows it, too, as it waits for the end.

        Returns:
            The handle of the application, which has ended.

        Raises:
            InvalidInputError: The set-up can't work. Nothing was changed.
            StateError: The run failed, or one of its queries was stopped through Spark. The next start goes on from the global
                clock.
            KeyboardInterrupt: SIGINT has stopped the run.
            SystemExit: SIGTERM has, and the program has no handler of its own for it.
        """
        return self._start(
            spark, reset, rebuild, on_progress, metrics, show_progress, trigger=None, to_the_end=True, drains=drain
        )

    def _start(
        self,
        spark: SparkSession | Local,
        reset: Sequence[str],
        rebuild: Sequence[str],
        on_progress: Callable[[Progress], None] | None,
        metrics: int | str | None,
        show_progress: bool | None,
        trigger: int | None,
        to_the_end: bool,
        drains: bool = False,
    ) -> Running:
        from persistent_state.run.running import run, start

        refuse(of_place(self.name, "started"))
        if on_progress is not None:
            check_takes("on_progress", on_progress, "progress")
        endpoint = None if metrics is None else address(metrics)
        engine = self._engine(spark)
        setup = self._setup(
            engine,
            engine.columns_of,
            to_the_end=to_the_end,
            drains=drains,
            trigger=trigger,
            on_progress=on_progress,
            metrics=endpoint,
            show_progress=show_progress,
        )
        if setup.interval > self._settings().interval:
            _logger.info(
                "application %s: tasks are fed by Changes(every=), so its checkpoints are %s apart, and outputs wait for them",
                self.name,
                show_duration(setup.interval),
            )
        begin = run if to_the_end else start
        return begin(setup, self._with_parts("reset", reset), self._with_parts("rebuild", rebuild))

    def _engine(self, spark: SparkSession | Local) -> Engine:
        """Return the engine that runs the application.

        Raises:
            InvalidInputError: It is not a session, or one that has been stopped.
        """
        if isinstance(spark, Local):
            from persistent_state.local.engine import LocalEngine

            return LocalEngine(spark)
        # By its class: to ask a session that has been stopped is an error. Without PySpark there can be none.
        if self.added and not hasattr(type(spark), "readStream"):
            # A url of a server may have a token behind the semicolon.
            given = shown(str(spark).partition(";")[0])
            raise InvalidInputError(
                f"spark={given} is not a session; give one, such as SparkSession.builder.getOrCreate(), or Local()."
            )
        from persistent_state.engine.run.spark_engine import SparkEngine
        from persistent_state.engine.spark.session import check_session

        check_session(spark)
        return SparkEngine(spark)

    def plan_rewind(self, to: Clock, *, outputs: Mapping[str, str] | None = None) -> RewindPlan:
        """Plan to go back to a kept clock, and look whether sources and sinks can follow. Nothing is changed.

        No Spark session is needed, but for sources that Spark plans.

        Args:
            to: A time: microseconds UTC, ISO text (UTC unless it says a zone) or a `datetime` with a zone. The application goes
                back to the newest kept clock at or below it. Or the name of a kept clock.
            outputs: By the name of an output: "retract" takes back what its sink has above the clock, which is the default
                where the sink can; "again" leaves it there, and the clocks above come again. Where several tasks have an output
                of one name, it is "task/name".

        Returns:
            The plan: the clock, the tasks, what is read again from where, and what each output does. An output that can't go
            back has the action "refuse", and `rewind` refuses the plan. Print the plan to read it.

        Raises:
            InvalidInputError: There is no such clock, or a source lacks what is to be read again.
            StateError: The store or a source does not answer, or is damaged.

        Example:
            >>> Application("shop", "memory://docs").plan_rewind("2026-11-20T14:00")
            Traceback (most recent call last):
            ...
            persistent_state.errors.InvalidInputError: application shop has no task; add one.
        """
        from persistent_state.run import rewinds

        return rewinds.plan(self._rewind_setup(), to, outputs or {})

    def rewind(self, to: Clock | RewindPlan, *, outputs: Mapping[str, str] | None = None) -> RewindPlan:
        """Go back to a kept clock, with every output. What was above the clock is void from then on.

        A driver that runs is fenced: it stops, and changes nothing any more. Start the application again afterwards, with other
        code if you like. Each sink goes back at once if it answers, else at the next start. All of them together have a minute.
        One that takes longer goes on until the process ends, which waits ten seconds for it.

        Args:
            to: A plan, as `plan_rewind` returned it, or a time or a name, as `plan_rewind` takes it.
            outputs: As for `plan_rewind`; a plan has them already.

        Returns:
            The plan. It says for each output whether its sink has gone back.

        Raises:
            FencedError: The application was started, or taken back, since the plan was made. Nothing changed.
            InvalidInputError: It can't go back so. Nothing changed.
            CommitUnknownError: The store did not answer. Plan again, and look at the timeline.
        """
        from persistent_state.run import rewinds

        refuse(of_place(self.name, "rewound"))
        setup = self._rewind_setup()
        if not isinstance(to, RewindPlan):
            to = rewinds.plan(setup, to, outputs or {})
        elif outputs is not None:
            raise InvalidInputError(
                f"{outputs=} is given, and the plan has what outputs do; leave it out, or plan again."
            )
        else:
            rewinds.check_sources(setup, to)
        return rewinds.rewind(setup, to)

    def _rewind_setup(self) -> Setup:
        from persistent_state.run.rewinds import columns_of, is_planned_by_spark

        engine: Engine | None = None
        if any(is_planned_by_spark(of.source) for added in self.added for of in added.inputs.values()):
            from persistent_state.engine.run.spark_engine import of_active_session

            engine = of_active_session()
        return self._setup(engine, partial(columns_of, engine), to_the_end=True, shards=1)

    def _setup(
        self,
        engine: Engine | None,
        columns_of: ColumnsOf,
        to_the_end: bool,
        shards: int | None = None,
        drains: bool = False,
        trigger: int | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        metrics: tuple[str, int] | None = None,
        show_progress: bool | None = None,
    ) -> Setup:
        """Return the set-up of the application.

        Raises:
            InvalidInputError: It has no task, or one that does not fit.
        """
        from persistent_state.run.feeds import FedTask
        from persistent_state.run.setup import Setup
        from persistent_state.run.wall_clock import new_id

        if not self.added:
            raise InvalidInputError(f"application {self.name} has no task; add one.")
        files = open_files(self.store, self.storage_options)
        refuse(checks.of_grace(self.grace, files))
        shards = self.shards or shards or (1 if engine is None else engine.shards(Log(files, self.name)))
        take_up_schemas(self.name, self.added, files)
        plans = self._plans(files, shards, columns_of)
        # Tasks that were given one source object are to share it.
        shared: dict[int, AnySource] = {}

        def read_by(source: AnySource) -> AnySource:
            if isinstance(source, DataFrameSource):
                return source
            return shared.setdefault(id(source), source.read_by(self.name))

        added = {each.name: each for each in self.added}
        parts = [FedTask(plan, added[name].source(read_by), added[name].outputs) for name, plan in plans.items()]
        return Setup(
            engine,
            self.name,
            files,
            parts,
            interval=parts[0].plan.settings.interval,
            shards=shards,
            keeping=self._keeping(),
            scratch=self.scratch,
            max_restarts=self.max_restarts,
            to_the_end=to_the_end,
            drains=drains,
            trigger=trigger,
            on_progress=on_progress,
            metrics=metrics,
            show_progress=show_progress,
            writer=f"{'' if engine is None else engine.mark}{new_id()}",
        )

    def _keeping(self) -> Keeping:
        """Return what is kept, and for how long.

        Raises:
            InvalidInputError: A rule of `retain` is not valid, or `grace` is too short.
        """
        rules = []
        for rule in self.retain:
            if isinstance(rule, str) or len(rule) != 2:
                raise InvalidInputError(
                    f'retain has {rule!r}; give pairs of durations (every, span), such as ("1 hour", "2 days").'
                )
            every, span = (positive("retain", length) for length in rule)
            if span < every:
                raise InvalidInputError(
                    f"retain has {rule!r}, which keeps nothing: the second duration is to be at least the first."
                )
            rules.append((every, span))
        refuse(checks.of_grace(self.grace))
        return Keeping(self.retained_checkpoints, grace=duration("grace", self.grace), retain=tuple(rules))

    def _with_parts(self, argument: str, names: Sequence[str]) -> list[str]:
        """Return names of tasks with those of the tasks of the graph that an ordered one is.

        Raises:
            InvalidInputError: It is no list of names, or a name is of such a task of the graph.
        """
        if isinstance(names, str):
            raise InvalidInputError(f"{argument}={names!r} is a text; give a list, {argument}=[{names!r}].")
        parts = dict[str, list[str]]()
        for added in self.added:
            parts.setdefault(added.named, []).append(added.name)
        whole = {part: name for name, some in parts.items() for part in some if part != name}
        if wrong := next((name for name in names if name in whole), None):
            raise InvalidInputError(f"{argument}={wrong!r} is a part of task={whole[wrong]}; name that.")
        return [part for name in names for part in parts.get(name, [name])]

    def _plans(self, files: Files, shards: int, columns_of: ColumnsOf) -> dict[str, Plan]:
        """Return the plan of each task, so that each comes after those that feed it.

        Raises:
            InvalidInputError: A task does not fit what feeds it.
        """
        return plans_of(self.name, self.added, self._settings(), files, shards, columns_of)

    def _settings(self) -> Settings:
        return Settings(
            interval=positive("checkpoint_interval", self.checkpoint_interval),
            delay=duration("allowed_delay", self.allowed_delay),
            idle_after=positive("idle_after", self.idle_after) if self.idle_after is not None else None,
            ahead=duration("max_ahead", self.max_ahead),
            jump=positive("max_jump", self.max_jump) if self.max_jump is not None else None,
            alignment=positive("alignment", self.alignment) if self.alignment is not None else None,
        )
