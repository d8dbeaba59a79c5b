"""An ordered task as three tasks of the graph: its messages wait in one, and a step makes its states and its rows in two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from persistent_state.batch.plan import InputPlan, Plan
from persistent_state.edges.in_order.messages import Messages, messages_in, messages_part
from persistent_state.edges.in_order.rows import EmittedRows
from persistent_state.edges.in_order.states import States
from persistent_state.edges.in_order.step import OrderedMessages
from persistent_state.edges.joins.join import Join, JoinStates
from persistent_state.event_time.inputs import INPUT
from persistent_state.ordered import InOrderTask


def parts(task: InOrderTask) -> tuple[Messages, States, EmittedRows]:
    """Return the tasks of the graph that an ordered task is. They learn the columns of messages from their plans."""
    waits_in, states = (task.waits_in, JoinStates) if isinstance(task, Join) else (OrderedMessages, States)
    return waits_in(task, {}), states(task), EmittedRows(task)


def on_feeders(plan: Plan) -> Plan:
    """Return the plan of a task with what the task learns from the plans of the tasks that feed it."""
    if not isinstance(plan.task, (States, EmittedRows)):
        return plan
    return replace(plan, task=type(plan.task)(messages_part(plan.feeders[INPUT]).ordered))


def on_inputs(plan: Plan, inputs: Mapping[str, InputPlan]) -> tuple[Plan, Mapping[str, InputPlan]]:
    """Return the plan of a task with what the task learns from the plans of its inputs, and these."""
    if (waiting := messages_in(plan)) is None:
        return plan, inputs
    task, inputs = waiting.on_inputs(inputs)
    return replace(plan, task=task), inputs
