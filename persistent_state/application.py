"""The application: tasks with their sources, one store, one checkpoint interval, and a start."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from persistent_state.batch.of_input import OfInput
from persistent_state.batch.plan import DELIVERIES, EXACTLY_ONCE, KEEP, Plan
from persistent_state.edges.base import Edge, check
from persistent_state.edges.in_order import parts as in_order
from persistent_state.edges.in_order.edge import InOrder
from persistent_state.edges.in_order.rows import emits_rows
from persistent_state.edges.in_order.states import keeps_state
from persistent_state.edges.joins.pair import by_side
from persistent_state.errors import InvalidInputError, StateError, check_whole
from persistent_state.event_time.clocks import FURTHEST, Settings
from persistent_state.event_time.durations import Duration, duration, positive, show_duration
from persistent_state.event_time.inputs import INPUT, UNNAMED
from persistent_state.formatting import Clock
from persistent_state.inputs import AnySource, Input, Inputs
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.metrics.server import address
from persistent_state.ordered import InOrderTask, OrderedTask, named
from persistent_state.outputs import Output, Outputs, check_places, check_takes, outputs_of, outputs_of_ordered
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.rewind_plan import RewindPlan
from persistent_state.redact import shown
from persistent_state.show import definition, html
from persistent_state.show.tables import Table
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.files import FileSource
from persistent_state.sources.tasks import TIMESTAMP, TaskSource
from persistent_state.store import lists
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log, check_name
from persistent_state.task import BaseTask, PersistentTask, check_process_message, instance_of, messages_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persistent_state.engine.progress import Progress
    from persistent_state.engine.run import Running
    from persistent_state.engine.setup import Setup

_logger = logging.getLogger("persistent_state")

SourceAsRead: TypeAlias = TimeReplayableSource | DataFrameSource
ColumnsOf: TypeAlias = "Callable[[PersistentTask, AnySource], tuple[SourceAsRead, pa.Schema, pa.DataType | None]]"


@dataclass(frozen=True)
class _Added:
    """A task with its inputs and its outputs."""

    task: PersistentTask
    inputs: Mapping[str, Input]
    outputs: Outputs
    on_bad_row: str
    delivery: str
    without: tuple[str, ...]

    @property
    def named(self) -> str:
        """The name by which a user knows the task; of a part of an ordered task that of the ordered one."""
        return named(self.task)

    @property
    def upstream(self) -> dict[str, Edge]:
        """The tasks that feed it, by input."""
        edges = {name: _edge(of) for name, of in self.inputs.items()}
        return {name: edge for name, edge in edges.items() if edge is not None}

    def source(self, read_by: Callable[[AnySource], AnySource]) -> AnySource:
        """Return the source of the task's flow: the only one, or several as one. One of the tasks, if it is derived.

        `read_by` returns a source as the application reads it.
        """
        if [*self.inputs] == [INPUT] or len(self.upstream) == len(self.inputs):
            return read_by(next(iter(self.inputs.values())).source)
        sources = {name: read_by(of.source) for name, of in self.inputs.items() if name not in self.upstream}
        return Inputs({name: source for name, source in sources.items() if isinstance(source, TimeReplayableSource)})


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
    retain: Sequence[tuple[Duration, Duration]] = ()
    shards: int | None = None
    scratch: str | None = None
    max_restarts: int = 5
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    delivery: str = EXACTLY_ONCE
    _added: list[_Added] = field(default_factory=list, init=False, repr=False)

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
        _checked_delivery(self.delivery)

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
        parts = dict[str, list[_Added]]()
        for added in self._added:
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
        _check_task(task)
        inputs = _inputs(task.task_name, source)
        _check_without(task.task_name, inputs, without)
        delivery = _checked_delivery(self.delivery if delivery is None else delivery)
        if isinstance(task, InOrderTask):
            added = _in_parts(task, inputs, sink, on_bad_row, delivery, without)
        else:
            outputs = outputs_of(task.task_name, sink)
            added = [_Added(task, inputs, outputs, on_bad_row, delivery, tuple(without))]
        taken = {each.task.task_name: named(each.task) for each in self._added}
        for name in (each.task.task_name for each in added):
            if taken.get(name) == task.task_name:
                raise InvalidInputError(f"two tasks are named {task.task_name}; give one a name of its own.")
            if name in taken:
                raise InvalidInputError(
                    f"task={task.task_name} and task={taken[name]} need the name {name} in the store; give one another name."
                )
        check_places({each.task.task_name: each.outputs for each in (*self._added, *added)})
        _check_apart([*self._added, *added], self)
        self._added += added
        return self

    def start(
        self,
        spark: SparkSession,
        *,
        reset: Sequence[str] = (),
        rebuild: Sequence[str] = (),
        trigger: Duration | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        metrics: int | str | None = None,
        show_progress: bool | None = None,
    ) -> Running:
        """Start on Spark, and go on as messages arrive. Wait with `await_termination()`, end with `stop()`.

        The state is restored at the global clock and the sources are replayed from there, or as `delivery` says. After a
        failure the application starts again: after one second, then two, four, up to a minute.

        Args:
            spark: The session.
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
        seconds = f"{positive('trigger', trigger) / 1e6:f} seconds" if trigger is not None else None
        return self._start(
            spark, reset, rebuild, on_progress, metrics, show_progress, trigger=seconds, to_the_end=False
        )

    def run(
        self,
        spark: SparkSession,
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
            spark: The session.
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
        spark: SparkSession,
        reset: Sequence[str],
        rebuild: Sequence[str],
        on_progress: Callable[[Progress], None] | None,
        metrics: int | str | None,
        show_progress: bool | None,
        trigger: str | None,
        to_the_end: bool,
        drains: bool = False,
    ) -> Running:
        from persistent_state.engine.queries import columns_of
        from persistent_state.engine.run import run, start
        from persistent_state.engine.session import check_session

        if on_progress is not None:
            check_takes("on_progress", on_progress, "progress")
        endpoint = None if metrics is None else address(metrics)
        session: object = spark
        if session is None and self._added:
            raise InvalidInputError(
                "spark=None is not a session; give one, such as SparkSession.builder.getOrCreate()."
            )
        check_session(spark)
        settings = self._settings()
        if settings.interval > positive("checkpoint_interval", self.checkpoint_interval):
            _logger.info(
                "application %s: tasks are fed by Changes(every=), so its checkpoints are %s apart, and outputs wait for them",
                self.name,
                show_duration(settings.interval),
            )
        setup = self._setup(
            spark,
            partial(columns_of, spark),
            to_the_end=to_the_end,
            drains=drains,
            trigger=trigger,
            on_progress=on_progress,
            metrics=endpoint,
            show_progress=show_progress,
        )
        begin = run if to_the_end else start
        return begin(setup, self._with_parts("reset", reset), self._with_parts("rebuild", rebuild))

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
        from persistent_state.engine import rewinds

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
        from persistent_state.engine import rewinds

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
        from persistent_state.engine.rewinds import columns_of, session

        return self._setup(session(), columns_of, to_the_end=True, shards=1)

    def _setup(
        self,
        spark: SparkSession | None,
        columns_of: ColumnsOf,
        to_the_end: bool,
        shards: int | None = None,
        drains: bool = False,
        trigger: str | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        metrics: tuple[str, int] | None = None,
        show_progress: bool | None = None,
    ) -> Setup:
        """Return the set-up of the application.

        Raises:
            InvalidInputError: It has no task, or one that does not fit.
        """
        from persistent_state.engine.connect import parallelism
        from persistent_state.engine.feeds import FedTask
        from persistent_state.engine.setup import Setup

        if not self._added:
            raise InvalidInputError(f"application {self.name} has no task; add one.")
        files = open_files(self.store, self.storage_options)
        shards = self.shards or shards or (1 if spark is None else parallelism(spark))
        self._take_up_schemas(files)
        plans = self.plans(files, shards, columns_of)
        # Tasks that were given one source object are to share it.
        shared: dict[int, AnySource] = {}

        def read_by(source: AnySource) -> AnySource:
            if isinstance(source, DataFrameSource):
                return source
            return shared.setdefault(id(source), source.read_by(self.name))

        parts = [
            FedTask(plans[added.task.task_name], added.source(read_by), added.outputs) for added in self._in_order()
        ]
        return Setup(
            spark,
            self.name,
            files,
            parts,
            interval=self._settings().interval,
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
        )

    def _take_up_schemas(self, files: Files) -> None:
        """Let sources whose schema is that of a file take it from what they have read, before they are asked for it."""
        sources = [
            (added.task.task_name, name, of.source)
            for added in self._added
            for name, of in added.inputs.items()
            if isinstance(of.source, FileSource) and of.source.takes_schema
        ]
        # What is wrong with the log is for the start to say.
        with suppress(StateError):
            newest = Log(files, self.name).newest() if sources else None
            for task, name, source in sources:
                if newest is not None and task in newest.tasks and name in newest.flow_of(task).inputs:
                    source.go_on_from(lists.read(files, newest.flow_of(task).inputs[name].journal))

    def _keeping(self) -> Keeping:
        """Return which checkpoints are kept.

        Raises:
            InvalidInputError: A rule of `retain` is not valid.
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
        return Keeping(self.retained_checkpoints, retain=tuple(rules))

    def _with_parts(self, argument: str, names: Sequence[str]) -> list[str]:
        """Return names of tasks with those of the tasks of the graph that an ordered one is.

        Raises:
            InvalidInputError: It is no list of names, or a name is of such a task of the graph.
        """
        if isinstance(names, str):
            raise InvalidInputError(f"{argument}={names!r} is a text; give a list, {argument}=[{names!r}].")
        parts = dict[str, list[str]]()
        for added in self._added:
            parts.setdefault(added.named, []).append(added.task.task_name)
        whole = {part: name for name, some in parts.items() for part in some if part != name}
        if wrong := next((name for name in names if name in whole), None):
            raise InvalidInputError(f"{argument}={wrong!r} is a part of task={whole[wrong]}; name that.")
        return [part for name in names for part in parts.get(name, [name])]

    def plans(
        self,
        files: Files,
        shards: int,
        columns_of: ColumnsOf,
    ) -> dict[str, Plan]:
        """Return the plan of each task, so that each comes after those that feed it. The library calls this.

        Args:
            files: The store.
            shards: How many tasks of Spark write the state.
            columns_of: Returns a source as it is read, its columns, and the type of the updates that Spark computes of them
                for a task.

        Raises:
            InvalidInputError: A task does not fit what feeds it.
        """
        settings, plans, every = self._settings(), dict[str, Plan](), self._every()
        for added in self._in_order():
            apart = every.get(added.task.task_name, ())
            plan = Plan(
                application=self.name,
                files=files,
                task=added.task,
                schema=pa.schema([]),
                timestamp="",
                channel=None,
                settings=replace(settings, every=math.gcd(*apart) or None),
                shards=shards,
                emits=bool(added.outputs.running),
                outputs=added.outputs.names,
                on_bad_row=added.on_bad_row,
                delivery=added.delivery,
                upstream=added.upstream,
                feeders={name: plans[source.task] for name, source in added.upstream.items()},
                without=added.without,
            )
            plan = in_order.on_feeders(plan)
            of_inputs: Mapping[str, Plan] = {
                name: _of_input(plan, name, of, columns_of) for name, of in added.inputs.items()
            }
            plan, of_inputs = in_order.on_inputs(plan, of_inputs)
            if [*of_inputs] == [INPUT]:
                plan = of_inputs[INPUT]
            else:
                among = tuple(of_inputs)
                inputs = {name: replace(of, among=among) for name, of in of_inputs.items()}
                of_each = {name: each.settings for name, each in inputs.items()}
                plan = replace(plan, inputs=inputs, settings=replace(plan.settings, inputs=of_each))
            # First, as a task that can't be fed has no such columns either.
            check(plan)
            plan.check()
            plans[plan.name] = plan
        return plans

    def _in_order(self) -> list[_Added]:
        """Return the tasks so that each comes after those that feed it.

        Raises:
            InvalidInputError: A task is fed by one that is not added, or by itself in the end.
        """
        by_name = {added.task.task_name: added for added in self._added}
        order: dict[str, _Added] = {}
        every_task = {name: added.task for name, added in by_name.items()}

        def visit(name: str, path: tuple[str, ...]) -> None:
            if name in path:
                tasks = [*dict.fromkeys(by_name[each].named for each in path[path.index(name) :])]
                circle = " -> ".join((*tasks, tasks[0]))
                raise InvalidInputError(f"tasks feed each other in a circle: {circle}; let one of them read a source.")
            if name in order:
                return
            for source in by_name[name].upstream.values():
                if why := source.misfit(every_task):
                    raise InvalidInputError(f"task={by_name[name].named} is fed by {source!r}, and {why}.")
                if source.task not in by_name:
                    known = ", ".join(known for known, added in by_name.items() if added.named == known)
                    raise InvalidInputError(
                        f"task={by_name[name].named} is fed by task={source.named}, which is not added; the tasks are {known}."
                    )
                visit(source.task, (*path, name))
            order[name] = by_name[name]

        for name in by_name:
            visit(name, ())
        return list(order.values())

    def _every(self) -> dict[str, set[int]]:
        """Return by task: the times, in microseconds, after which others are fed its changes, or those of what it feeds.

        Raises:
            InvalidInputError: One is no multiple of the checkpoint interval.
        """
        interval, found = positive("checkpoint_interval", self.checkpoint_interval), dict[str, set[int]]()
        # Each comes before those that feed it.
        for added in reversed(self._in_order()):
            for source in added.upstream.values():
                name = added.task.task_name
                found.setdefault(source.task, set()).update(source.apart(name, interval, found.get(name, set())))
        return found

    def _settings(self) -> Settings:
        every = {every for some in self._every().values() for every in some}
        return Settings(
            # All tasks that are fed `every` so often have come to a checkpoint.
            interval=math.lcm(positive("checkpoint_interval", self.checkpoint_interval), *every),
            delay=duration("allowed_delay", self.allowed_delay),
            idle_after=positive("idle_after", self.idle_after) if self.idle_after is not None else None,
            ahead=duration("max_ahead", self.max_ahead),
            jump=positive("max_jump", self.max_jump) if self.max_jump is not None else None,
            alignment=positive("alignment", self.alignment) if self.alignment is not None else None,
        )


def _checked_delivery(delivery: str) -> str:
    """Return the delivery.

    Raises:
        InvalidInputError: `delivery` is not one of the three.
    """
    if delivery not in DELIVERIES:
        raise InvalidInputError(f"delivery={delivery!r}; say one of {', '.join(map(repr, DELIVERIES))}.")
    return delivery


def _check_task(task: object) -> None:
    """Refuse what is not a task.

    Raises:
        InvalidInputError: It is not a task, but its class, for example, or its name, its key or its value is not valid.
    """
    if not isinstance(task, BaseTask):
        raise InvalidInputError(
            f"task={task!r} is not a task; give an instance of your PersistentTask or OrderedTask, such as {instance_of(task)}."
        )
    if not isinstance(task.name, str):
        raise InvalidInputError(f"task={task!r} has name={task.name!r}, which is not a text; give one.")
    name, key = task.task_name, task.key
    if not isinstance(key, (str, type(None))) and not (
        isinstance(key, Sequence) and all(isinstance(column, str) for column in key)
    ):
        raise InvalidInputError(f"task={name} has key={key!r}; name a column, or several, or say None.")
    if isinstance(task, PersistentTask) and not isinstance(task.value, (str, type(None))):
        raise InvalidInputError(f"task={name} has value={task.value!r}; name the one column of the updates.")
    # A log gives others back as something else: each start would take them for another version.
    if not isinstance(task.version, (str, int, type(None))):
        raise InvalidInputError(f"task={name} has version={task.version!r}; give a whole number or a text.")
    if isinstance(task, OrderedTask):
        task.check()
    if isinstance(task, PersistentTask):
        check_process_message(task)


def _in_parts(
    task: InOrderTask,
    inputs: Mapping[str, Input],
    sink: Output | Sequence[Output] | None,
    on_bad_row: str,
    delivery: str,
    without: Sequence[str],
) -> list[_Added]:
    """Return an ordered task as the tasks of the graph that it is."""
    for name, each in inputs.items():
        for what, given in (("value", each.value), ("batch", each.batch)):
            if given is not None:
                raise InvalidInputError(
                    f"task={task.task_name}: input={name!r} has {what}={given!r}, and it gets whole messages; leave it out."
                )
    inputs = by_side(task, inputs)
    if delivery != EXACTLY_ONCE:
        raise InvalidInputError(
            f"task={task.task_name} processes its messages in order, which is exactly-once, and delivery={delivery!r} is said "
            f"for it; say delivery={EXACTLY_ONCE!r} in add()."
        )
    states, rows = outputs_of_ordered(task.task_name, sink, emits_rows(task))
    if states.at_clock and not keeps_state(task):
        raise InvalidInputError(
            f"task={task.task_name}: ValuesAtClock of sink={states.at_clock[0].output_name!r} asks for the states of keys, and "
            "this task has none; give the sink itself, which gets the emitted rows."
        )
    fed = {INPUT: Input(InOrder(messages_of(task.task_name)))}
    nothing = Outputs((), ())
    messages, with_states, with_rows = in_order.parts(task)
    return [
        _Added(messages, inputs, nothing, on_bad_row, delivery, tuple(without)),
        _Added(with_states, fed, states, on_bad_row, delivery, ()),
        _Added(with_rows, fed, rows, on_bad_row, delivery, ()),
    ]


def _check_apart(tasks: Sequence[_Added], application: Application) -> None:
    """Refuse a store, Spark's scratch folder, or the folder of a sink, in a folder whose files are read.

    Raises:
        InvalidInputError: One is.
    """
    store, scratch = application.store, application.scratch
    # The files of an application lie in a folder of its name.
    places = [(f"the store {shown(store)!r}", place) for place in (store, f"{store}/{application.name}")]
    if isinstance(scratch, str):
        places.append((f"scratch={shown(scratch)!r}", scratch))
    for each in tasks:
        for output in each.outputs.at_clock:
            records = (record for record in output.place.records(each.task.task_name) if isinstance(record, tuple))
            found = [str(record[1]) for record in records if record[:1] in (("folder",), ("sqlite",))]
            places += [(f"the sink {output.place.name} of task={each.named}", place) for place in found]
    for each in tasks:
        for source in (of.source for of in each.inputs.values()):
            for what, place in places:
                if isinstance(source, FileSource) and source.reads(place):
                    raise InvalidInputError(
                        f"task={each.named} reads all files below {source!r}, and {what} writes there; give one of the two "
                        "another folder."
                    )


def _inputs(task: str, source: AnySource | Mapping[str, AnySource | Input]) -> dict[str, Input]:
    """Return the inputs of a task, by name.

    Raises:
        InvalidInputError: One is not a source, or a name or a source can't be one of several.
    """
    given = source if isinstance(source, Mapping) else {INPUT: source}
    if not given:
        raise InvalidInputError(f"task={task} has no input; give it a source.")
    inputs = {name: each if isinstance(each, Input) else Input(each) for name, each in given.items()}
    for name, each in inputs.items():
        _check_source(task, each.source)
        if not isinstance(name, str) or not re.fullmatch(r"\w*", name):
            raise InvalidInputError(f"task={task}: input {name!r} can't be a name; use letters, digits and '_'.")
        if name == UNNAMED:
            raise InvalidInputError(
                f"task={task}: input {name!r} can't be a name, as late rows call the input without a name so; use another one."
            )
        if len(inputs) > 1 and isinstance(each.source, (DataFrameSource, KafkaConnectorSource)):
            raise InvalidInputError(
                f"task={task}: Spark plans the source of input {name!r}, so it can't be one of several; use a FileSource, a "
                "KafkaSource or one of your own."
            )
        _check_input(task, name, each)
    return inputs


def _edge(input: Input) -> Edge | None:
    """Return the other task that an input is; None if it is a source."""
    return input.source if isinstance(input.source, Edge) else None


def _check_input(task: str, name: str, input: Input) -> None:
    """Refuse what an input can't have.

    Raises:
        InvalidInputError: It has that.
    """
    if not isinstance(input.key, (str, type(None))) and not (
        isinstance(input.key, Sequence) and all(isinstance(column, str) for column in input.key)
    ):
        raise InvalidInputError(f"task={task}: input={name!r} has key={input.key!r}; name a column, or several.")
    if not isinstance(input.value, (str, type(None))):
        raise InvalidInputError(
            f"task={task}: input={name!r} has value={input.value!r}; name the one column of the updates."
        )
    if input.batch is not None and not callable(input.batch):
        raise InvalidInputError(f"task={task}: input={name!r} has batch={input.batch!r}; give a function of a batch.")
    if _edge(input) is not None:
        for what, given in (("allowed_delay", input.allowed_delay), ("idle_after", input.idle_after)):
            if given is not None:
                raise InvalidInputError(
                    f"task={task}: input={name!r} has {what}={given!r}, and the clock of {input.source!r} is that task's; "
                    "leave it out."
                )


def _check_without(task: str, inputs: Mapping[str, Input], without: Sequence[str]) -> None:
    """Refuse to end what can't be ended.

    Raises:
        InvalidInputError: It is no list of names, or an input is given all the same.
    """
    if isinstance(without, str):
        raise InvalidInputError(f"task={task}: without={without!r} is a text; give a list, without=[{without!r}].")
    # Whether the task ever had them is not asked: the same code starts in a new store, too.
    if not isinstance(without, Collection) or not all(isinstance(name, str) for name in without):
        raise InvalidInputError(
            f"task={task}: without={without!r} is no list of names of inputs; give one, or leave it out."
        )
    for name in without:
        if name in inputs:
            raise InvalidInputError(
                f"task={task}: input={name!r} is given, and named in without; leave one of these out."
            )


def _of_input(
    plan: Plan,
    name: str,
    input: Input,
    columns_of: ColumnsOf,
) -> Plan:
    """Return a task's plan of the rows of one of its inputs.

    Raises:
        InvalidInputError: The task does not fit them.
    """
    settings, source, task = plan.settings, input.source, plan.task
    if input != Input(source):
        task = OfInput(task, input)
    if (edge := _edge(input)) is not None:
        # The moments of changes are clocks, and no clock is broken.
        settings = replace(settings, ahead=FURTHEST, delay=0, jump=None)
        schema, update = edge.schema(plan.feeders[name], plan.task), None
        timestamp, unit, channel = TIMESTAMP, None, None
    else:
        if input.allowed_delay is not None:
            settings = replace(settings, delay=duration("allowed_delay", input.allowed_delay))
        if input.idle_after is not None:
            settings = replace(settings, idle_after=positive("idle_after", input.idle_after))
        if isinstance(source, TimeReplayableSource):
            settings = replace(settings, bounds=source.bounds)
        source, schema, update = columns_of(task, source)
        timestamp, unit, channel = source.timestamp, source.timestamp_unit, source.channel
    found = replace(
        plan,
        task=task,
        schema=schema,
        timestamp=timestamp,
        timestamp_unit=unit,
        channel=channel,
        settings=settings,
        on_bad_row=plan.on_bad_row if input.on_bad_row is None else input.on_bad_row,
        has_positions=not isinstance(source, DataFrameSource) or source.position is not None,
        by_spark=isinstance(source, DataFrameSource),
        input=name,
    )
    if update is not None:
        found.check()
        found.check_update(update)
    return found


def _check_source(task: str, source: object) -> None:
    """Refuse what is not a source.

    Raises:
        InvalidInputError: It is not a source. The message names the source that may be meant.
    """
    if isinstance(source, (TimeReplayableSource, DataFrameSource, KafkaConnectorSource, TaskSource)):
        return
    found = repr(source)
    if isinstance(source, (str, os.PathLike)):
        way = f"give FileSource({os.fspath(source)!r}, timestamp=...) for the files of a folder"
    elif type(source).__module__.startswith("pyspark.sql"):
        found, way = "a Spark DataFrame", "give DataFrameSource(stream, timestamp=...), of a streaming DataFrame"
    elif isinstance(source, (list, tuple)):
        way = (
            'give several as a mapping from their names, such as {"orders": FileSource(...), "rates": FileSource(...)}'
        )
    elif isinstance(source, type):
        way = f"give an instance of it, {source.__name__}(...)"
    else:
        way = "give a FileSource, KafkaSource, KafkaConnectorSource, DataFrameSource or a TimeReplayableSource of your own"
    raise InvalidInputError(f"task={task}: source={found} is not a source; {way}.")
