"""Refuse a start that can't work, before it fences a driver that works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

from persistent_state.engine import dataframe_source, micro_batch
from persistent_state.engine.queries import Part, Setup
from persistent_state.engine.session import check_scratch, check_store
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.protocol import refusals, restore
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.runs import named_by_newest
from persistent_state.store.task_state import TaskState
from persistent_state.task import PersistentTask


def check_machines(setup: Setup) -> None:
    """Refuse a store or scratch space that Spark's workers can't reach.

    Raises:
        InvalidInputError: The workers can't reach one of them.
    """
    check_store(setup.spark, setup.files)
    check_scratch(setup.spark, setup.scratch)


def check_start(setup: Setup, newest: Entry | None, reset: Sequence[str], rebuild: Sequence[str]) -> None:
    """Refuse tasks and sources that can't go on from the newest entry.

    Raises:
        InvalidInputError: A task or a source can't go on, can't be sent to workers, or can't be opened.
        StateError: The store or a source does not answer.
    """
    refusals.check(newest, setup.plans, reset, rebuild)
    if newest is None:
        check_parts(setup.files, setup.parts, {}, BEGINNING)
        return
    continued = {name: task for name, task in newest.tasks.items() if name not in (*reset, *rebuild)}
    check_parts(setup.files, setup.parts, continued, newest.clock)
    _check_dataframes(setup, continued, newest.clock, rebuild)


def check_parts(files: Files, parts: Sequence[Part], continued: Mapping[str, TaskState], clock: int) -> None:
    """Refuse a task that can't be sent to workers, and a source that can't be opened at its task's positions.

    `continued` holds the tasks that go on from the store, at the global `clock`; all others are new.

    Raises:
        InvalidInputError: A task or a source is refused.
    """
    for part in parts:
        check_task(part.plan.task)
        if part.plan.emits:
            micro_batch.check_values(part.plan)
        if isinstance(part.source, DataFrameSource):
            continue
        check_source(part.plan.name, part.source)
        task = continued.get(part.plan.name)
        # A copy, because Spark opens the source itself, and a source is opened once.
        source = cloudpickle.loads(cloudpickle.dumps(part.source))
        if task is None:
            source.open([], {})
        else:
            with named_by_newest():
                journal = lists.read(files, task.source.journal)
            source.open(journal, task.source.known_positions)
            # The source must still have the messages that it is to replay. Only the positions count here, so any time does.
            replayed = restore.restored_source(task, part.plan, clock, now=0)
            source.reach(replayed.next_positions, everything=False)


def check_task(task: PersistentTask) -> None:
    """Refuse a task that Spark can't send to its workers.

    Raises:
        InvalidInputError: The task can't be pickled; the message names the attribute at fault.
    """
    _check_pickles(f"task={task.task_name}", task)


def check_source(task: str, source: TimeReplayableSource | KafkaConnectorSource) -> None:
    """Refuse a source that Spark can't send to its workers.

    Raises:
        InvalidInputError: The source can't be pickled; the message names the attribute at fault.
    """
    _check_pickles(f"task={task}: the source {source!r}", source)


def _check_dataframes(setup: Setup, continued: Mapping[str, TaskState], clock: int, rebuild: Sequence[str]) -> None:
    """Refuse a function of a DataFrameSource that makes no DataFrame to replay from the clock of its task."""
    for part in setup.parts:
        if isinstance(part.source, DataFrameSource):
            task = continued.get(part.plan.name)
            begin = BEGINNING if part.plan.name in rebuild else clock
            begin = begin if task is None else min(clock, task.progress.clock)
            dataframe_source.opened(setup.spark, part.source, begin)


def _check_pickles(what: str, given: object) -> None:
    problem = _problem(given)
    if problem is None:
        return
    for name, value in _attributes(given):
        if (own := _problem(value)) is not None:
            raise InvalidInputError(
                f"{what} can't be sent to Spark's workers for its attribute {name!r}, a {type(value).__name__}: {own}. Make "
                "the attribute where it is used, or leave it out by __getstate__."
            )
    raise InvalidInputError(f"{what} can't be sent to Spark's workers: {problem}. Make what it uses where it is used.")


def _attributes(given: object) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, then what its classes hold: cloudpickle sends a class that workers can't import."""
    yield from getattr(given, "__dict__", {}).items()
    for kind in type(given).__mro__:
        if kind.__module__.split(".")[0] not in ("persistent_state", "abc", "builtins"):
            yield from ((name, value) for name, value in vars(kind).items() if not name.startswith(("__", "_abc_")))


def _problem(value: object) -> str | None:
    """Return in one line why a value can't be pickled, or None if it can."""
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        text = str(error).strip().split("\n")[0].rstrip(".")
        return text or type(error).__name__
    return None
