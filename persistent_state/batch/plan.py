"""All that a worker needs to know about one task of a running application, and about its inputs; picklable and frozen."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa

from monoids import Monoid, Summary
from persistent_state.batch.part import TaskPart, named, part_of
from persistent_state.errors import InvalidInputError, StateError, TaskFailedError, at_definition, raised
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.inputs import INPUT
from persistent_state.partials import keys
from persistent_state.partials.kinds import kind_of
from persistent_state.partials.layout import Layout, Once
from persistent_state.sources.tasks import TaskSource
from persistent_state.state import KeptState
from persistent_state.store.files import Files
from persistent_state.store.state_at import failed_to_present
from persistent_state.task import PersistentTask
from persistent_state.windows import length

KEEP, FAIL = "keep", "fail"
EXACTLY_ONCE, AT_LEAST_ONCE, AT_MOST_ONCE = DELIVERIES = ("exactly-once", "at-least-once", "at-most-once")


COLUMN = "_persistent_state_update_"
"""The beginning of the name of a column that holds the updates which Spark computed for a task."""
UNFIT_COLUMN = "_persistent_state_unfit_"
"""The beginning of the name of a column with the reasons of rows that did not fit a task before Spark changed them."""


def without_case(name: str) -> str:
    """Return a task's name as a file system sees it that does not tell upper from lower case."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


@dataclass(frozen=True)
class InputPlan:
    """The rows of one input of a task, as the task sees them."""

    input: str
    """The name of the input."""
    task: PersistentTask
    """The task as these rows update it."""
    schema: pa.Schema
    """The columns of the rows."""
    timestamp: str
    """The column of the timestamps."""
    channel: str | None
    """The column that names the channels; None: each partition is one."""
    settings: Settings
    among: tuple[str, ...] = ()
    """The names of all inputs of the task; none if there is but one, and it has no name."""
    timestamp_unit: str | None = None
    """The unit of timestamps that are integers; None means microseconds, which are checked."""
    on_bad_row: str = KEEP
    has_positions: bool = True
    """True if the source distinguishes its rows by positions."""
    edge: TaskSource | None = None
    """The task that feeds the input; None if a source does."""

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.task.task_name

    @property
    def named(self) -> str:
        """The name by which a user knows the task: of a part of an ordered task that of the ordered one."""
        return named(self.task)

    @property
    def hands_keys(self) -> bool:
        """Return whether user code is handed the keys of the rows, one by one."""
        part = part_of(self.task)
        return part is not None and part.hands_keys

    @property
    def column(self) -> str:
        """The column of a chunk's rows, beside those of the schema, that holds the updates which Spark computed."""
        return COLUMN + self.name

    @property
    def unfit_column(self) -> str:
        """The column of a chunk's rows, beside those of the schema, that has the reason of each row that does not fit the task.

        Few sources have it.
        """
        return UNFIT_COLUMN + self.name

    @property
    def update_way(self) -> str:
        """The way in which the rows update the state.

        Raises:
            InvalidInputError: It is said in no way, or in several.
        """
        return self.task.update_way

    @property
    def is_fed_by_task(self) -> bool:
        """Return whether the rows come from another task."""
        return self.edge is not None

    @cached_property
    def layout(self) -> Layout:
        """The layout of the task's state, by the types that its key and its ids have here."""
        types = tuple(keys.normal_type(self.schema.field(name).type) for name in self.task.key_columns)
        once = None
        if self.task.message_id is not None:
            type = keys.normal_type(self.schema.field(self.task.message_id).type)
            once = Once(type, length("horizon", self.task.horizon or ""))
        return Layout(types, self.state.monoid, kind_of(self.state.windowing), once, self.named)

    @cached_property
    def state(self) -> KeptState[Any]:
        return state_of(self.task)


@dataclass(frozen=True)
class Plan:
    """One task as planned by a driver: its inputs, where its state is, and how event time moves."""

    application: str
    files: Files
    task: PersistentTask
    """The task; of an only input without a name, as the rows of this input update it."""
    inputs: Mapping[str, InputPlan]
    """The plans of its inputs in their order, by name. There is always one."""
    settings: Settings
    """The settings of event time. `settings.of(name)` are those of an input."""
    shards: int
    emits: bool = False
    """True if the running values of touched keys are written."""
    outputs: tuple[str, ...] = ()
    """The names of the outputs at each clock."""
    delivery: str = EXACTLY_ONCE
    feeders: Mapping[str, Plan] = field(default_factory=dict)
    """By input: the plan of the task that feeds it."""
    without: tuple[str, ...] = ()
    """The names of inputs of earlier starts that have ended."""
    by_spark: bool = False
    """True if Spark plans the micro-batches: then the rows of a part may come in any order."""

    def __post_init__(self) -> None:
        # An only input without a name is the task itself, and what both have is never apart.
        assert self.has_names or (self.task is self.only.task and self.settings == self.only.settings), self.name

    @property
    def name(self) -> str:
        return self.task.task_name

    @property
    def named(self) -> str:
        """The name by which a user knows the task: of a part that of the whole."""
        return named(self.task)

    @property
    def part(self) -> TaskPart | None:
        """The task, if it is a part of one."""
        return part_of(self.task)

    @property
    def update_way(self) -> str:
        """The way in which the task updates its state; "inputs" if that is said by each input.

        Raises:
            InvalidInputError: It is said in no way, or in several.
        """
        return "inputs" if self.has_names else self.task.update_way

    @cached_property
    def takes_back(self) -> bool:
        """Return whether what the task made of a row can be taken back."""
        return takes_back(self.task)

    @property
    def fitting(self) -> str:
        """The kind of updates that fit, in words."""
        if self.part is not None:
            return self.part.fitting
        monoid = self.layout.monoid
        return f"{monoid.name} holds {monoid.type}{of_item(monoid)}"

    @property
    def without_updates(self) -> str:
        """The end of a sentence about messages of which none made an update, or had an effect."""
        if self.part is not None:
            return self.part.without_updates
        why = "" if self.task.value is None else f": its value column {self.task.value!r} is null in all of them"
        return f", and none of them made an update{why}"

    @property
    def is_in_order(self) -> bool:
        """Return whether the task processes in order the messages that wait in another."""
        return any(source.is_in_order for source in self.upstream.values())

    @property
    def has_names(self) -> bool:
        """Return whether the task's inputs have names."""
        return [*self.inputs] != [INPUT]

    @property
    def only(self) -> InputPlan:
        """The plan of the only input."""
        (of_input,) = self.inputs.values()
        return of_input

    @property
    def upstream(self) -> dict[str, TaskSource]:
        """The tasks that feed the task, by input."""
        return {name: of.edge for name, of in self.inputs.items() if of.edge is not None}

    @property
    def source_inputs(self) -> tuple[str, ...]:
        """The names of the inputs that are sources."""
        return tuple(name for name, of in self.inputs.items() if of.edge is None)

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """The bounds of each input that is a source."""
        return {name: self.settings.of(name).bounds.times for name in self.source_inputs}

    @property
    def layout(self) -> Layout:
        """The layout of the state. The first input has it; the others have the same."""
        return next(iter(self.inputs.values())).layout

    @cached_property
    def state(self) -> KeptState[Any]:
        return state_of(self.task)

    def present(self, column: pa.Array) -> pa.Array:
        """Return what outputs show of a column of values.

        Raises:
            TaskFailedError: user code raised, or gave what is not of the type that it said.
        """
        try:
            return self.state.present(column)
        except Exception as error:
            raise self.failed_to_present(error) from error

    def failed_to_present(self, error: Exception) -> TaskFailedError:
        """Return the error that says what the user's `present` raised."""
        return failed_to_present(self.named, self.state, error)

    @property
    def takes_late(self) -> bool:
        """Return whether a message below the clock is accepted all the same, as one at the clock.

        A window that has closed takes none in, nor does what is told apart by its time: there late is late.
        """
        return self.delivery == AT_LEAST_ONCE and not self.layout.kind.expires and self.layout.once is None

    @property
    def keeps_current(self) -> bool:
        """Return whether runs hold the current values of keys, which every micro-batch asks for."""
        of_time = self.layout.is_ordered or self.layout.kind.expires or self.layout.once is not None
        return (self.emits or self.task.reads_state) and not of_time

    @property
    def identity(self) -> dict[str, Any]:
        """Return what the store must have been written with for this task to go on from it, as JSON."""
        columns = [
            {"name": name, "type": str(type)}
            for name, type in zip(self.task.key_columns, self.layout.key_types, strict=True)
        ]
        once = {} if self.layout.once is None else {"message_id": str(self.layout.once.type)}
        fed: dict[str, Any] = {"inputs": {name: source.identity for name, source in self.upstream.items()}}
        if self.task.version is not None:
            fed["version"] = self.task.version
        declared = {"declared": self.declared} if self.declared else {}
        return {**self.state.identity(), "key": columns, **once, **(fed if self.upstream else {}), **declared}

    @property
    def declared(self) -> dict[str, dict[str, Any]]:
        """Return by input what the task declares of it that must stay as long as the state is kept, as JSON.

        `key` has the key columns of each of several inputs. `value` is the column of the updates of an input whose rows are
        taken back, or None where code says the updates. `side` is that of an input of a join.
        """
        found = {}
        for name, of in self.inputs.items():
            key = {"key": [*of.task.key_columns]} if self.has_names else {}
            value = {"value": of.task.value} if name in self.inputs_taken_back else {}
            part = part_of(of.task)
            sides = part.sides if part is not None and self.has_names else {}
            side = {"side": sides[name]} if name in sides else {}
            if of_input := {**key, **value, **side}:
                found[name] = of_input
        return found

    @property
    def inputs_taken_back(self) -> list[str]:
        """The names of the inputs whose rows are taken back when they change."""
        changes = [name for name, source in self.upstream.items() if source.is_of_state]
        return changes if changes and self.takes_back else []


MergeJournals: TypeAlias = "Callable[[Sequence[str], Sequence[str], Mapping[str, int]], Sequence[str] | None]"
"""Returns the journal of two flows by their own journals; None if a position may not mean the same record to both.

The mapping is, by partition, the lesser of the positions from which the flows go on. Neither ever reads before that again.
"""


@dataclass(frozen=True)
class FlowPlan:
    """The tasks that one source feeds together: it is read once for all of them.

    Their plans differ in nothing that has to do with reading, so that the `first` speaks for all. A start calls
    `merge_journals` for two flows of which neither's journal is the beginning of the other's; None: they stay apart.
    """

    tasks: tuple[Plan, ...]
    merge_journals: MergeJournals | None = None

    @property
    def first(self) -> Plan:
        return self.tasks[0]

    @property
    def id(self) -> str:
        """The id of the flow in the log: the name of its first task."""
        return self.first.name

    @property
    def is_derived(self) -> bool:
        """Return whether tasks feed the flow, and no source."""
        return not self.first.source_inputs

    @property
    def is_fed_by_windows(self) -> bool:
        """Return whether the flow is fed by windows that close, and by nothing else: its tasks can't be built from state."""
        return self.is_derived and not any(source.is_of_state for source in self.first.upstream.values())

    @property
    def is_in_order(self) -> bool:
        """Return whether the flow processes in order the messages that wait in another task."""
        return self.first.is_in_order

    @property
    def title(self) -> str:
        """The tasks as messages name them."""
        names = [*dict.fromkeys(plan.named for plan in self.tasks)]
        return f"task={names[0]}" if len(names) == 1 else f"tasks={', '.join(names)}"

    @property
    def by_name(self) -> dict[str, Plan]:
        return {plan.name: plan for plan in self.tasks}

    def rows(self, input: str) -> tuple[InputPlan, ...]:
        """Return the plans of the rows of an input, one for each task."""
        return tuple(plan.inputs[input] for plan in self.tasks)

    def of(self, names: Collection[str]) -> FlowPlan:
        """Return the plan of some of the tasks."""
        return replace(self, tasks=tuple(plan for plan in self.tasks if plan.name in names))


def state_of(task: PersistentTask) -> KeptState[Any]:
    """Return the state that a task keeps.

    Raises:
        InvalidInputError: Its code raised, or gave something else.
    """
    try:
        state: object = task.persistent_state()
    except StateError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"persistent_state of task={named(task)} raised {raised(error)}; correct it."
        ) from error
    if not isinstance(state, KeptState):
        raise InvalidInputError(
            f"task={named(task)}: persistent_state(){at_definition(task.persistent_state)} gives no state; return one, such as "
            "NonWindowState(Sum())."
        )
    return state


def of_item(monoid: Monoid[Any]) -> str:
    """Return the end of a sentence about a value that does not fit: what makes one of an item, if anything does."""
    return f"; {monoid.name}(...).of(item) makes one of an item" if isinstance(monoid, Summary) else ""


def needs_order(plan: Plan | InputPlan) -> str:
    """Return in words why messages of one time must have an order."""
    if part_of(plan.task) is not None:
        return "it takes messages in their order"
    return f"{plan.layout.monoid.name} does not commute"


def takes_back(task: PersistentTask) -> bool:
    """Return whether what a task made of a row can be taken back: it is the sum of a group, without bounds in time."""
    state = state_of(task)
    is_plain = state.windowing is None and task.message_id is None and not task.reads_state
    return is_plain and bool(state.monoid.is_group) and bool(state.monoid.exact)
