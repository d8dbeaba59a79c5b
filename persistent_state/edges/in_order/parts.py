"""An ordered task as three tasks of the graph: its messages wait in one, and a step makes its states and its rows in two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from persistent_state.batch.plan import InputPlan, Plan
from persistent_state.edges.in_order.messages import Messages, messages_in, messages_part, with_schemas
from persistent_state.edges.in_order.rows import EmittedRows
from persistent_state.edges.in_order.states import States
from persistent_state.edges.joins.pair import Join
from persistent_state.event_time.inputs import INPUT
from persistent_state.ordered import InOrderTask


def parts(task: InOrderTask) -> tuple[Messages, States, EmittedRows]:
    """Return the tasks of the graph that an ordered task is. They learn the columns of messages from their plans."""
    return Messages(task, {}), States(task), EmittedRows(task)


def on_messages(task: States | EmittedRows, messages: Plan) -> States | EmittedRows:
    """Return the task as it is on messages whose columns are known, given the plan of the task in which they wait."""
    return type(task)(messages_part(messages).ordered)


def on_feeders(plan: Plan) -> Plan:
    """Return the plan of a task with what the task learns from the plans of the tasks that feed it."""
    if not isinstance(plan.task, (States, EmittedRows)):
        return plan
    return replace(plan, task=on_messages(plan.task, plan.feeders[INPUT]))


def on_inputs(plan: Plan, inputs: Mapping[str, InputPlan]) -> tuple[Plan, Mapping[str, InputPlan]]:
    """Return the plan of a task with what the task learns from the plans of its inputs, and these."""
    if (waiting := messages_in(plan)) is None:
        return plan, inputs
    task, inputs = with_schemas(waiting.ordered, inputs)
    return replace(plan, task=task), inputs


def with_states(task: InOrderTask) -> States | str:
    """Return the part that has the states of an ordered task, or its name where only the store has their type."""
    # The type of the state of a join is that of its rows.
    return task.task_name if isinstance(task, Join) else States(task)
