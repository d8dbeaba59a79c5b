"""Plans of tasks that are measured without an application."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from persistent_state.batch.plan import InputPlan, Plan
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.inputs import INPUT
from persistent_state.sources.tasks import TaskSource
from persistent_state.store.files import Files
from persistent_state.task import PersistentTask


def plan_of(
    application: str,
    files: Files,
    task: PersistentTask,
    schema: pa.Schema,
    settings: Settings,
    shards: int,
    *,
    timestamp: str = "ts",
    timestamp_unit: str | None = None,
    channel: str | None = None,
    edge: TaskSource | None = None,
    **more: Any,
) -> Plan:
    """Return the plan of a task with one input."""
    rows = InputPlan(INPUT, task, schema, timestamp, channel, settings, timestamp_unit=timestamp_unit, edge=edge)
    return Plan(application, files, task, {INPUT: rows}, settings, shards, **more)
