"""This machine as the engine of a run: threads plan and commit, and worker processes run parts and shards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa

from persistent_state.batch.plan import Plan
from persistent_state.drive import turn
from persistent_state.drive.backoff import Patience
from persistent_state.drive.output_values import local_values
from persistent_state.drive.turn import DueStep
from persistent_state.edges.output_rows import output_rows
from persistent_state.errors import InvalidInputError, StateError, raised
from persistent_state.inputs import AnySource
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.local.flows import LocalFlows
from persistent_state.local.pool import Calls, Pool, StoppedError
from persistent_state.local.settings import Local
from persistent_state.local.turns import Turns
from persistent_state.local.values import WorkerValues
from persistent_state.outputs import ARROW, ValuesAtClock
from persistent_state.run.commit import Committer
from persistent_state.run.feeds import FedTask
from persistent_state.run.setup import Setup
from persistent_state.run.wall_clock import now_us
from persistent_state.sinks.base import takes_frames
from persistent_state.sinks.function import Function
from persistent_state.sinks.given_types import given_types
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.store.entry import LOCAL, Entry
from persistent_state.store.files import MemoryFiles
from persistent_state.store.log import Log
from persistent_state.store.state_at import StateAt
from persistent_state.task import PersistentTask


class LocalEngine:
    """The `Engine` of this machine. Its workers start at `open`, and end at `close`."""

    def __init__(self, local: Local) -> None:
        self._workers = local.workers
        self._pool: Pool | None = None
        self._lock = threading.Lock()

    @property
    def mark(self) -> str:
        """The beginning of the names of its starts in the log."""
        return LOCAL

    def shards(self, log: Log) -> int:
        """Return the number that the store has; one for each worker at the first start."""
        newest = log.newest()
        return self._workers if newest is None else newest.shards

    def columns_of(
        self, task: PersistentTask, source: AnySource
    ) -> tuple[TimeReplayableSource | DataFrameSource, pa.Schema, pa.DataType | None]:
        """Return a source, its columns, and None: no Column computes updates.

        Raises:
            InvalidInputError: Only Spark reads the source, or runs the task.
        """
        if isinstance(source, (DataFrameSource, KafkaConnectorSource)):
            raise InvalidInputError(
                f"task={task.task_name} reads {source!r}, which only Spark can do; give it a FileSource, a KafkaSource or a "
                "source of your own, or start the application with a Spark session."
            )
        if task.update_way == "column":
            raise InvalidInputError(
                f"task={task.task_name} has a process_column, which only Spark computes; give it a process_batch, or start the "
                "application with a Spark session."
            )
        assert isinstance(source, TimeReplayableSource), source
        return source, source.schema, None

    def check(self, setup: Setup) -> None:
        """Refuse a store that workers can't reach.

        Raises:
            InvalidInputError: The store is in memory.
        """
        if isinstance(setup.files, MemoryFiles):
            raise InvalidInputError(
                "store=memory:// can't be reached by workers, which are processes; use a folder, or run_local for tests."
            )

    def check_task(self, part: FedTask) -> None:
        """Refuse functions of running values that want a DataFrame.

        Raises:
            InvalidInputError: There is one.
        """
        for output in part.outputs.running:
            if output.as_ != ARROW:
                raise InvalidInputError(_wants_frames(part.plan, repr(output.function), "RunningValues(function, "))

    def check_output(self, plan: Plan, output: ValuesAtClock) -> None:
        """Refuse a sink that wants a DataFrame.

        Raises:
            InvalidInputError: It does.
        """
        place = output.place
        if isinstance(place, Function) and output.as_ != ARROW:
            raise InvalidInputError(_wants_frames(plan, repr(output.sink), "ValuesAtClock(function, "))
        if takes_frames(place):
            raise InvalidInputError(
                f"task={plan.named}: sink={place.name!r} defines write(), which needs a DataFrame of Spark; define "
                "write_values(values, clock)."
            )

    def check_opens(self, source: DataFrameSource, clock: int) -> None:
        """Refuse nothing: `columns_of` has refused such a source.

        Raises:
            AssertionError: Always.
        """
        raise AssertionError(source)

    def open(self, setup: Setup) -> None:
        """Start the workers, unless they run."""
        with self._lock:
            if self._pool is None:
                self._pool = Pool(self._workers, _known(setup))

    def flows(self, setup: Setup, on_commit: Callable[[], None], patience: Patience) -> LocalFlows:
        """Return the flows of a start. All commits are made in this process."""
        return LocalFlows(setup, self.calls(), self._workers)

    def jobs(self, setup: Setup) -> LocalJobs:
        """Return what takes the steps of a run."""
        return LocalJobs(self, setup, self._workers)

    def values(self, state: StateAt, plan: Plan) -> WorkerValues:
        """Return the values that an output shows of a task's state at a clock, which workers read."""
        schema = output_rows(plan).schema_at_clock(state.since is not None and state.since.early)
        values = local_values(state, plan, given_types(schema))
        return WorkerValues(values.schema, values.readers, self.calls(), self._workers)

    def stopped(self, of: str) -> str:
        """Raise: nothing but the run itself can stop its threads.

        Raises:
            AssertionError: Always.
        """
        raise AssertionError(of)

    def own_error(self, error: Exception, of: str) -> StateError:
        """Return an error as one of this package. `of` names what failed."""
        if isinstance(error, StateError):
            return error
        return StateError(f"{of}: {raised(error)}; nothing is lost. Fix the cause.")

    def may_pass(self, error: Exception) -> bool:
        """Return False: nothing of a first start fails because the machine is slow."""
        return False

    def is_lost(self, error: Exception) -> bool:
        """Return False: workers that die are replaced."""
        return False

    def is_out_of_reach(self, error: BaseException) -> bool:
        """Return False: it is this machine."""
        return False

    def naming_a_loss(self) -> AbstractContextManager[None]:
        """Do nothing: the engine can't be lost."""
        return nullcontext()

    def naming_errors(self, of: str) -> AbstractContextManager[None]:
        """Do nothing: errors of workers are of this package."""
        return nullcontext()

    def calls(self) -> Calls:
        """Return calls in the workers.

        Raises:
            StoppedError: The run has ended. A sink that goes on after that starts no worker.
        """
        with self._lock:
            if self._pool is None:
                raise StoppedError("the run has ended; the next start does it again.")
            return Calls(self._pool)

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


class LocalJobs:
    """The `Jobs` of this machine: the parts and shards of a step run in workers."""

    def __init__(self, engine: LocalEngine, setup: Setup, most: int) -> None:
        self._engine, self._setup, self._most = engine, setup, most
        self._calls: Calls | None = None

    def open(self) -> None:
        """Prepare for the steps of a start."""
        self._calls = self._engine.calls()

    def take(self, entry: Entry, due: DueStep, committer: Committer) -> None:
        """Take a step, and commit it, as `Jobs.take` does."""
        assert self._calls is not None, "it is open"
        parts = turn.step(entry, due, now=now_us(), most=self._most)
        turns = Turns(self._calls, due.flow, committer.commit, None, self._setup.running_of(due.flow))
        turns.take(parts, due.step.clock)

    def cancel(self) -> None:
        """Let the steps fail that are under way, unless they are being committed already."""
        if self._calls is not None:
            self._calls.cancel()

    def keep(self) -> None:
        """Do nothing: workers live as long as the run."""

    def close(self) -> None:
        """Do nothing: the engine ends the workers."""


def _known(setup: Setup) -> list[object]:
    """Return what all workers know, so that no call need send it: the files, the plans of all tasks and the sources."""
    known: list[object] = [setup.files]
    for plan in setup.unsynced.values():
        known += [plan, plan.layout, plan.files]
    for part in setup.parts:
        known += [part.plan, part.plan.layout, part.plan.files]
        if isinstance(part.source, TimeReplayableSource):
            known.append(part.source)
    return known


def _wants_frames(plan: Plan, function: str, way: str) -> str:
    return (
        f"task={plan.named}: sink={function} is a function of a DataFrame, which only Spark has; let it take Arrow, and say "
        f"so: {way}as_={ARROW!r})."
    )
