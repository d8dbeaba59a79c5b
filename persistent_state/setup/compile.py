"""Compile the tasks of an application to their plans, which hold all that a worker needs to know."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from persistent_state.batch.of_input import OfInput
from persistent_state.batch.plan import InputPlan, Plan
from persistent_state.edges import parts as in_order
from persistent_state.edges.base import check
from persistent_state.errors import StateError, refuse
from persistent_state.event_time.clocks import FURTHEST, Settings
from persistent_state.event_time.durations import duration, positive
from persistent_state.event_time.inputs import INPUT
from persistent_state.inputs import AnySource, Input
from persistent_state.setup import graph
from persistent_state.setup.added import Added, by_spark, edge_of
from persistent_state.setup.checks import of_plan, of_rows, of_update
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.casts import plain_schema
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
        settings: Its settings, whose interval is the checkpoint interval of the user.
        files: The store.
        shards: How many tasks of Spark write the state.
        columns_of: Returns the columns of a source.

    Raises:
        InvalidInputError: A task does not fit what feeds it.
    """
    ordered, plans = graph.topological(added), dict[str, Plan]()
    times = graph.every(ordered, settings.interval)
    settings = replace(settings, interval=graph.common_interval(times, settings.interval))
    for each in ordered:
        plan = Plan(
            application=application,
            files=files,
            task=each.task,
            # The plans of its inputs are made from this one.
            inputs={},
            settings=replace(settings, every=math.gcd(*times.get(each.name, ())) or None),
            shards=shards,
            emits=bool(each.outputs.running),
            outputs=each.outputs.names,
            delivery=each.delivery,
            feeders={name: plans[source.task] for name, source in each.upstream.items()},
            without=each.without,
            by_spark=any(map(by_spark, each.sources.values())),
        )
        plan = _with_inputs(in_order.on_feeders(plan), each, columns_of)
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


def _with_inputs(plan: Plan, added: Added, columns_of: ColumnsOf) -> Plan:
    """Return the plan of a task with those of its inputs.

    Raises:
        InvalidInputError: The task does not fit the rows of an input.
    """
    plan, inputs = in_order.on_inputs(
        plan, {name: _of_input(plan, name, input, added.on_bad_row, columns_of) for name, input in added.inputs.items()}
    )
    if [*inputs] == [INPUT]:
        return replace(plan, task=inputs[INPUT].task, inputs=inputs, settings=inputs[INPUT].settings)
    inputs = {name: replace(of, among=tuple(inputs)) for name, of in inputs.items()}
    own = {name: of.settings for name, of in inputs.items()}
    return replace(plan, inputs=inputs, settings=replace(plan.settings, inputs=own))


def _of_input(plan: Plan, name: str, input: Input, on_bad_row: str, columns_of: ColumnsOf) -> InputPlan:
    """Return the plan of the rows of an input of a task.

    Raises:
        InvalidInputError: The task does not fit them.
    """
    task = plan.task if input == Input(input.source) else OfInput(plan.task, input)
    on_bad_row = on_bad_row if input.on_bad_row is None else input.on_bad_row
    if (edge := edge_of(input)) is not None:
        # The moments of changes are clocks, and no clock is broken.
        settings = replace(plan.settings, ahead=FURTHEST, delay=0, jump=None)
        schema = edge.schema(plan.feeders[name], plan.task)
        return InputPlan(name, task, schema, TIMESTAMP, None, settings, on_bad_row=on_bad_row, edge=edge)
    settings = plan.settings
    if input.allowed_delay is not None:
        settings = replace(settings, delay=duration("allowed_delay", input.allowed_delay))
    if input.idle_after is not None:
        settings = replace(settings, idle_after=positive("idle_after", input.idle_after))
    if isinstance(input.source, TimeReplayableSource):
        settings = replace(settings, bounds=input.source.bounds)
    source, schema, update = columns_of(task, input.source)
    rows = InputPlan(
        name,
        task,
        plain_schema(schema),
        source.timestamp,
        source.channel,
        settings,
        timestamp_unit=source.timestamp_unit,
        on_bad_row=on_bad_row,
        has_positions=not isinstance(source, DataFrameSource) or source.position is not None,
    )
    if update is not None:
        refuse(of_rows(rows, plan.by_spark), of_update(rows, update))
    return rows
