"""Compile the tasks of an application to their plans, of which workers know all that they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from persistent_state.batch.of_input import OfInput
from persistent_state.batch.plan import Plan
from persistent_state.edges import parts as in_order
from persistent_state.edges.base import check
from persistent_state.errors import StateError
from persistent_state.event_time.clocks import FURTHEST, Settings
from persistent_state.event_time.durations import duration, positive
from persistent_state.event_time.inputs import INPUT
from persistent_state.inputs import AnySource, Input
from persistent_state.setup import graph
from persistent_state.setup.added import Added, edge_of
from persistent_state.setup.checks import of_plan, of_update, refuse
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.files import FileSource
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.store import lists
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from persistent_state.task import PersistentTask

SourceAsRead: TypeAlias = TimeReplayableSource | DataFrameSource
ColumnsOf: TypeAlias = "Callable[[PersistentTask, AnySource], tuple[SourceAsRead, pa.Schema, pa.DataType | None]]"
"""Returns a source as it is read, its columns, and the type of the updates that Spark computes of them for a task."""


def plans_of(
    application: str,
    added: Sequence[Added],
    settings: Settings,
    files: Files,
    shards: int,
    columns_of: ColumnsOf,
) -> dict[str, Plan]:
    """Return the plan of each task, so that each comes after those that feed it.

    Args:
        application: The application's name.
        added: Its tasks.
        settings: Its settings, whose interval is the checkpoint interval that the user says.
        files: The store.
        shards: How many tasks of Spark write the state.
        columns_of: Returns the columns of a source.

    Raises:
        InvalidInputError: A task does not fit what feeds it.
    """
    apart, plans = graph.every(added, settings.interval), dict[str, Plan]()
    settings = replace(settings, interval=graph.common_interval(added, settings.interval))
    for each in graph.topological(added):
        plan = Plan(
            application=application,
            files=files,
            task=each.task,
            schema=pa.schema([]),
            timestamp="",
            channel=None,
            settings=replace(settings, every=math.gcd(*apart.get(each.name, ())) or None),
            shards=shards,
            emits=bool(each.outputs.running),
            outputs=each.outputs.names,
            on_bad_row=each.on_bad_row,
            delivery=each.delivery,
            upstream=each.upstream,
            feeders={name: plans[source.task] for name, source in each.upstream.items()},
            without=each.without,
        )
        plan = _with_inputs(in_order.on_feeders(plan), each.inputs, columns_of)
        # First, as a task that can't be fed has no such columns either.
        check(plan)
        refuse(of_plan(plan))
        plans[plan.name] = plan
    return plans


def take_up_schemas(application: str, added: Iterable[Added], files: Files) -> None:
    """Let sources whose schema is that of a file take it from what they have read, before they are asked for it."""
    sources = [
        (each.name, name, source)
        for each in added
        for name, source in each.sources.items()
        if isinstance(source, FileSource) and source.takes_schema
    ]
    # What is wrong with the log is for the start to say.
    with suppress(StateError):
        newest = Log(files, application).newest() if sources else None
        for task, name, source in sources:
            if newest is not None and task in newest.tasks and name in newest.flow_of(task).inputs:
                source.go_on_from(lists.read(files, newest.flow_of(task).inputs[name].journal))


def _with_inputs(plan: Plan, inputs: Mapping[str, Input], columns_of: ColumnsOf) -> Plan:
    """Return the plan of a task with those of its inputs; of an only one without a name it is the plan itself.

    Raises:
        InvalidInputError: The task does not fit the rows of an input.
    """
    of_inputs: Mapping[str, Plan] = {name: _of_input(plan, name, of, columns_of) for name, of in inputs.items()}
    plan, of_inputs = in_order.on_inputs(plan, of_inputs)
    if [*of_inputs] == [INPUT]:
        return of_inputs[INPUT]
    of_inputs = {name: replace(of, among=tuple(of_inputs)) for name, of in of_inputs.items()}
    own = {name: of.settings for name, of in of_inputs.items()}
    return replace(plan, inputs=of_inputs, settings=replace(plan.settings, inputs=own))


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
    if (edge := edge_of(input)) is not None:
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
        refuse(of_plan(found), of_update(found, update))
    return found
