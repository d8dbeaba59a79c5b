"""The set-up of an application, as its starts and rewinds use it, and the engine that it runs on.

An engine decides where the parts and shards of micro-batches and steps run, and who reads values. All else of a run is the same
on every engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.drive.backoff import Patience
from persistent_state.drive.turn import DueStep
from persistent_state.errors import StateError
from persistent_state.event_time.clocks import Settings
from persistent_state.inputs import AnySource
from persistent_state.outputs import RunningValues, ValuesAtClock
from persistent_state.protocol import takeover
from persistent_state.protocol.global_clock import Keeping
from persistent_state.run.commit import Committer, GatheringCommitter, Hears
from persistent_state.run.feeds import FedTask, Feed, feeds_of
from persistent_state.run.progress import Progress
from persistent_state.run.wall_clock import new_id, now_us
from persistent_state.sinks.values import Values
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.log import MOST_KNOWN, Log
from persistent_state.store.state_at import StateAt
from persistent_state.task import PersistentTask


@dataclass(frozen=True)
class Setup:
    """The set-up of an application, which its first start and each start after a failure use."""

    runs_on: Engine | None
    """The engine. None only for a rewind of sources that Spark does not plan."""

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

    trigger: int | None
    """The least microseconds between the beginnings of two micro-batches. None begins each when the one before it ends."""

    on_progress: Callable[[Progress], None] | None

    metrics: tuple[str, int] | None = None
    """The host and the port at which the run shows its metrics. None if it shows none."""

    show_progress: bool | None = None
    """True if the run shows its progress to people. None leaves that to where it runs."""

    writer: str = field(default_factory=new_id)

    @property
    def engine(self) -> Engine:
        """The engine, which whatever runs has."""
        assert self.runs_on is not None, "a rewind runs nothing"
        return self.runs_on

    def committer(
        self,
        flow: FlowPlan,
        epoch: int,
        listener: Hears,
        turn: AbstractContextManager[object] | None = None,
    ) -> Committer:
        """Return what commits the micro-batches and steps of a flow, and reports each to the listener."""
        return Committer(flow, epoch, self.keeping, self.settings, listener, self.log, turn, self.to_the_end)

    def gathering_committer(self, flow: FlowPlan, epoch: int, listener: Hears) -> GatheringCommitter:
        """Return what gathers the micro-batches of a flow, commits them together, and reports that to the listener."""
        return GatheringCommitter(flow, epoch, self.keeping, self.settings, listener, self.log)

    def running_of(self, flow: FlowPlan) -> dict[str, Sequence[RunningValues]]:
        """Return the outputs of running values of a flow's tasks, by task."""
        return {part.plan.name: part.outputs.running for part in self.parts if part.plan.name in flow.by_name}

    @property
    def plans(self) -> list[Plan]:
        """The plan of each task."""
        return [part.plan for part in self.parts]

    @property
    def settings(self) -> dict[str, Settings]:
        """The settings of each task, by its name."""
        return {plan.name: plan.settings for plan in self.plans}

    @cached_property
    def log(self) -> Log:
        """The log of the application, which all threads of the run's driver share."""
        return Log(self.files, self.application, most=MOST_KNOWN)

    @cached_property
    def unsynced(self) -> dict[str, Plan]:
        """By name: the plans whose files a power cut may take until they are synced; none where the store has no such files."""
        files = self.files.unsynced
        return {} if files is None else {plan.name: replace(plan, files=files) for plan in self.plans}

    @cached_property
    def feeds(self) -> list[Feed]:
        """The sources, each with the tasks that are to be fed by it together."""
        return feeds_of(self.parts)

    def title_of(self, entry: Entry, flow: str) -> str:
        """Return a flow's tasks as messages name them."""
        return next(feed.plan for feed in self.feeds if flow in feed.plan.by_name).of(entry.tasks_of(flow)).title

    def take_over(self, *, reset: Sequence[str] = (), rebuild: Sequence[str] = (), after: int | None = None) -> Entry:
        """Write the entry of a new start, which fences every driver before it, and return the entry."""
        return takeover.take_over(
            self.log,
            [feed.plan for feed in self.feeds],
            interval=self.interval,
            shards=self.shards,
            writer=self.writer,
            now=now_us(),
            reset=reset,
            rebuild=rebuild,
            after=after,
        )


class RunningFlows(Protocol):
    """The flows of one start, each of which takes one micro-batch after the other until it comes to its end or is stopped."""

    def start(self, entry: Entry) -> None:
        """Start the flows that read sources, from where the entry says. If that fails, some may run, so call `stop`."""

    def start_to_meet(self, entry: Entry) -> bool:
        """Let each flow that need only read on to be where another of its source is read up to there, and end there.

        Returns:
            True if there is any such flow.
        """

    def start_more(self) -> None:
        """Start the flows that wait, as far as no more start at a time than may."""

    def start_again(self, flow: str) -> float | None:
        """Let a flow start again, after the machine was too slow for it. The flow must have committed nothing.

        Returns:
            The seconds to wait for that; None if there is to be no further try.
        """

    @property
    def active_flows(self) -> set[str]:
        """The flows that have neither come to their end nor been stopped. Some may have yet to start."""

    @property
    def are_waited_for(self) -> bool:
        """Return whether a flow has neither ended nor committed a micro-batch."""

    @property
    def under_way(self) -> Mapping[str, float]:
        """By flow: since when its micro-batch is under way, if one is."""

    @property
    def idle(self) -> Mapping[str, bool]:
        """By flow: whether it waits for messages, or for its trigger."""

    @property
    def unheard(self) -> list[str]:
        """The flows that have neither committed since the start nor found that there is nothing to read."""

    @property
    def failed_commit(self) -> tuple[str, Exception] | None:
        """The flow whose commit failed first, and its error; None if no commit failed."""

    @property
    def failed_flow(self) -> tuple[str, Exception] | None:
        """A flow that did not start or ended with an error, and the error; None if there is no such flow."""

    @property
    def is_one_stopped(self) -> bool:
        """Return whether a flow was stopped before it has read all, and not by this run."""

    def has_committed(self, flow: str) -> bool:
        """Return whether a micro-batch of the flow was committed and handed to its outputs since this start."""

    def stop(self) -> None:
        """Stop all flows, and wait until they have stopped."""


class Jobs(Protocol):
    """The jobs of a run's steps. Several threads call it."""

    def open(self) -> None:
        """Prepare for the steps of a start."""

    def take(self, entry: Entry, due: DueStep, committer: Committer) -> None:
        """Take a step that is due by an entry, commit it, and hand the running values to their outputs."""

    def cancel(self) -> None:
        """Let the steps that are under way fail, unless they are being committed already."""

    def keep(self) -> None:
        """Keep alive what the steps need, though none is due."""

    def close(self) -> None:
        """Let go of what the steps need. `open` may come again."""


class Engine(Protocol):
    """The engine that runs an application, as Spark does. It serves one run."""

    @property
    def mark(self) -> str:
        """The beginning of the names of its starts in the log, as `Entry.mark` says."""

    def shards(self, log: Log) -> int:
        """Return the number of shards of an application with this log whose user gives none.

        It is the store's own number if the newest start was on another engine.
        """

    def columns_of(
        self, task: PersistentTask, source: AnySource
    ) -> tuple[TimeReplayableSource | DataFrameSource, pa.Schema, pa.DataType | None]:
        """Return a source as it is read, its columns, and the type of the updates that the engine computes of them for a task.

        Raises:
            InvalidInputError: The engine can't read the source, or can't run the task.
        """

    def check(self, setup: Setup) -> None:
        """Refuse a store or scratch space that workers can't reach, and packages that can't run what they are sent.

        Raises:
            InvalidInputError: There is such.
        """

    def check_task(self, part: FedTask) -> None:
        """Refuse a task whose values, or whose functions of running values, the engine can't handle.

        Raises:
            InvalidInputError: The engine can't.
        """

    def check_output(self, plan: Plan, output: ValuesAtClock) -> None:
        """Refuse an output at clocks whose sink the engine can't give its values.

        Raises:
            InvalidInputError: The engine can't.
        """

    def check_opens(self, source: DataFrameSource, clock: int) -> None:
        """Refuse a source of DataFrames that can't be opened at a clock.

        Raises:
            InvalidInputError: It can't.
        """

    def open(self, setup: Setup) -> None:
        """Get ready what a run needs of the engine, until `close`. It may come again after that."""

    def flows(self, setup: Setup, on_commit: Callable[[], None], patience: Patience) -> RunningFlows:
        """Return the flows of a start, which do not run yet.

        Args:
            setup: The set-up of the application.
            on_commit: Called after a commit that another process has made. The run's reports hear of those of this process.
            patience: How long a machine may be too slow, over all starts of the run.
        """

    def jobs(self, setup: Setup) -> Jobs:
        """Return what takes the steps of a run."""

    def values(self, state: StateAt, plan: Plan) -> Values:
        """Return the values that an output shows of a task's state at a clock. They are read where the engine's workers are."""

    def stopped(self, of: str) -> str:
        """Return in words that a flow `of` an application was stopped, and not by its run."""

    def own_error(self, error: Exception, of: str) -> StateError:
        """Return the error of this package that is behind an error of the engine. `of` names what failed."""

    def may_pass(self, error: Exception) -> bool:
        """Return whether another try may get through after an error of a first start, although nothing is changed."""

    def is_lost(self, error: Exception) -> bool:
        """Return whether an error says that the engine is gone, so that this process can't use it any more."""

    def is_out_of_reach(self, error: BaseException) -> bool:
        """Return whether an error says that the engine runs elsewhere and does not answer, so that nothing more comes of it."""

    def naming_a_loss(self) -> AbstractContextManager[None]:
        """Raise an error that says that the engine is gone, in the block, as a StateError that says what to do."""

    def naming_errors(self, of: str) -> AbstractContextManager[None]:
        """Raise an error of the engine in the block as an error of this package that names what failed by `of`."""

    def close(self) -> None:
        """Let go of what the run needed of the engine. What fails changes nothing."""
