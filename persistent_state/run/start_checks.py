"""Refuse a start that can't work, before it fences a driver that works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle

from persistent_state.batch.plan import Plan
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.inputs import open_source
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.protocol import refusals, restore
from persistent_state.protocol.fates import NEW, REBUILT, RESET, Fates, groups_that_continue
from persistent_state.run.feeds import Feed
from persistent_state.run.setup import Setup
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.tasks import TaskSource
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.runs import named_by_newest
from persistent_state.task import PersistentTask


def check_start(setup: Setup, newest: Entry | None, table: Fates) -> None:
    """Refuse tasks and sources that can't go on from the newest entry.

    Raises:
        InvalidInputError: A task or a source can't go on, can't be sent to workers, or can't be opened.
        StateError: The store or a source does not answer.
    """
    refusals.check(table, newest, setup.plans)
    for part in setup.parts:
        check_task(part.plan.task)
        setup.engine.check_task(part)
    for feed in setup.feeds:
        check_feed(setup, feed, newest, table)


@dataclass(frozen=True)
class Continued:
    """A flow that a start goes on with, its opened source, and the positions from which the source is read on."""

    group: restore.TaskGroup
    source: TimeReplayableSource
    positions: Mapping[str, int]


def check_feed(setup: Setup, feed: Feed, newest: Entry | None, table: Fates) -> list[Continued]:
    """Refuse a source that can't be sent to workers, or can't go on from the positions of a flow.

    Returns:
        The flows that go on; none if tasks feed them, or if Spark plans the source.

    Raises:
        InvalidInputError: The source is refused.
    """
    flow, source = feed.plan, feed.source
    if isinstance(source, TaskSource):
        return []
    clock = newest.clock if newest else BEGINNING
    groups = groups_that_continue(table, newest, flow) if newest else []
    begins = [BEGINNING] if table.plans(flow, REBUILT) else []
    if table.plans(flow, NEW, RESET) and all(group.flow.progress.clock < clock for group in groups):
        # Nobody is there whom they could come to.
        begins.append(clock)
    if isinstance(source, DataFrameSource):
        # It was opened from the beginning before. A function may make no DataFrame to replay from a clock.
        for begin in {*begins, *(min(clock, group.flow.progress.clock) for group in groups)} if newest else ():
            setup.engine.check_opens(source, begin)
        return []
    check_source(flow.title, source)
    if begins:
        copied(source).open([], {})
    return [_continued(setup.files, flow.first, copied(source), group, clock) for group in groups]


def _continued(
    files: Files, first: Plan, source: TimeReplayableSource, group: restore.TaskGroup, clock: int
) -> Continued:
    """Open the source of a flow that a start at the global clock goes on with.

    Raises:
        InvalidInputError: The source has no longer what it is to replay, or is another.
    """
    # Inputs that have ended are not read.
    group = replace(group, flow=group.flow.with_inputs(first.bounds))
    with named_by_newest():
        journals = lists.read_journals(files, group.flow)
    open_source(source, journals, group.flow.source.known_positions)
    # `now` decides nothing about the positions, and nothing else of the result is used.
    positions = restore.restored_source(group, first, clock, now=0).next_positions
    source.reach(positions, everything=False)
    return Continued(group, source, positions)


def copied(source: TimeReplayableSource | KafkaConnectorSource) -> TimeReplayableSource:
    """Return a copy, because the engine opens the source itself, and a source is opened once.

    Raises:
        InvalidInputError: The source can't be pickled.
    """
    check_pickles(f"the source {source!r}", source)
    copy: TimeReplayableSource = cloudpickle.loads(cloudpickle.dumps(source))
    return copy


def check_task(task: PersistentTask) -> None:
    """Refuse a task that can't be sent to workers.

    Raises:
        InvalidInputError: The task can't be pickled; the message names the attribute at fault.
    """
    check_pickles(f"task={task.task_name}", task)


def check_source(title: str, source: TimeReplayableSource | KafkaConnectorSource) -> None:
    """Refuse a source that can't be sent to workers.

    Raises:
        InvalidInputError: The source can't be pickled; the message names the attribute at fault.
    """
    check_pickles(f"{title}: the source {source!r}", source)


def check_pickles(what: str, given: object) -> None:
    """Refuse what can't be sent to another process; `what` names it.

    Raises:
        InvalidInputError: It can't be pickled; the message names the attribute at fault.
    """
    problem = _problem(given)
    if problem is None:
        return
    for name, value in _attributes(given):
        if (own := _problem(value)) is not None:
            raise InvalidInputError(
                f"{what} can't be sent to workers for its attribute {name!r}, a {type(value).__name__}: {own}. Make "
                "the attribute where it is used, or leave it out by __getstate__."
            )
    raise InvalidInputError(f"{what} can't be sent to workers: {problem}. Make what it uses where it is used.")


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
