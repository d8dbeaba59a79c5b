"""Refusals of a set-up that need no store, by topic.

A topic yields the sentences that refuse what it is given. `errors.refuse` raises the first one, so that a condition may rest on
those before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from monoids import Max, Min, Monoid, Product, Sum
from persistent_state.batch.plan import DELIVERIES, EXACTLY_ONCE, FAIL, KEEP, InputPlan, Plan, needs_order
from persistent_state.edges import parts as in_order
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import Duration, duration, show_duration
from persistent_state.event_time.inputs import UNNAMED
from persistent_state.inputs import Input
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.ordered import InOrderTask, OrderedTask
from persistent_state.outputs import Output, check_places, outputs_of_ordered
from persistent_state.partials import keys
from persistent_state.partials.kinds import kind_of
from persistent_state.redact import shown
from persistent_state.setup.added import Added, by_spark, edge_of
from persistent_state.sources.base import TIMESTAMP_UNITS, TimeReplayableSource
from persistent_state.sources.casts import all_types
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.files import FileSource
from persistent_state.sources.schemas import ONE_NAME_EACH, name_twice
from persistent_state.sources.tasks import TaskSource
from persistent_state.store.files import Files
from persistent_state.task import LOCAL_TIMESTAMP, BaseTask, PersistentTask, check_process_message, instance_of
from persistent_state.windows import length

LEAST_GRACE = 60_000_000
"""Microseconds for which replaced files stay at least. A collection comes once a minute."""

LEAST_GRACE_FAR = 600_000_000
"""The same where a listing may be late: there a driver that slept could not see that its number was used and collected."""


def of_grace(grace: Duration, files: Files | None = None) -> Iterator[str]:
    """Refuse a time for replaced files that is too short: for any store, or for the one with these files."""
    is_far = files is not None and not files.lists_at_once
    least = LEAST_GRACE_FAR if is_far else LEAST_GRACE
    if duration("grace", grace) < least:
        where = f" for store={shown(files.url)!r}, which is behind a network" if files is not None and is_far else ""
        yield f"{grace=} is too short{where}: others may still read what was replaced; give at least {show_duration(least)!r}."


def of_task(task: object) -> Iterator[str]:
    """Refuse an object that is not a task, such as the class of one, and a task with a wrong name, key, value or version."""
    if not isinstance(task, BaseTask):
        yield (
            f"task={task!r} is not a task; give an instance of your PersistentTask or OrderedTask, such as "
            f"{instance_of(task)}."
        )
        return
    # The types of attributes promise what is asked here.
    given: Any = task
    if not isinstance(given.name, str):
        yield f"task={task!r} has name={given.name!r}, which is not a text; give one."
    name = task.task_name
    if not _is_key(given.key):
        yield f"task={name} has key={given.key!r}; name a column, or several, or say None for one state of all messages."
    if isinstance(task, PersistentTask) and not isinstance(given.value, (str, type(None))):
        yield f"task={name} has value={given.value!r}; name the one column of the updates."
    # A log gives others back as something else: each start would take them for another version.
    if not isinstance(given.version, (str, int, type(None))):
        yield f"task={name} has version={given.version!r}; give a whole number or a text."
    if isinstance(task, OrderedTask):
        task.check()
    if isinstance(task, PersistentTask):
        check_process_message(task)


def of_inputs(task: str, inputs: Mapping[str, Input]) -> Iterator[str]:
    """Refuse an input that is not a source, a name that no input can have, and a source that can't be one of several."""
    if not inputs:
        yield f"task={task} has no input; give it a source."
    for name, each in inputs.items():
        yield from of_source(task, each.source)
        if not isinstance(name, str) or not re.fullmatch(r"\w*", name):
            yield f"task={task}: input {name!r} can't be a name; use letters, digits and '_'."
        if name == UNNAMED:
            yield (
                f"task={task}: input {name!r} can't be a name, as late rows call the input without a name so; use another "
                "one."
            )
        if len(inputs) > 1 and by_spark(each.source):
            yield (
                f"task={task}: Spark plans the source of input {name!r}, so it can't be one of several; use a FileSource, a "
                "KafkaSource or one of your own."
            )
        yield from of_input(task, name, each)


def of_source(task: str, source: object) -> Iterator[str]:
    """Refuse an object that is not a source, and name the source that may be meant."""
    if isinstance(source, (TimeReplayableSource, DataFrameSource, KafkaConnectorSource, TaskSource)):
        return
    named = repr(source)
    if isinstance(source, (str, os.PathLike)):
        way = f"give FileSource({os.fspath(source)!r}, timestamp=...) for the files of a folder"
    elif type(source).__module__.startswith("pyspark.sql"):
        named, way = "a Spark DataFrame", "give DataFrameSource(stream, timestamp=...), of a streaming DataFrame"
    elif isinstance(source, (list, tuple)):
        way = (
            'give several as a mapping from their names, such as {"orders": FileSource(...), "rates": FileSource(...)}'
        )
    elif isinstance(source, type):
        way = f"give an instance of it, {source.__name__}(...)"
    else:
        way = "give a FileSource, KafkaSource, KafkaConnectorSource, DataFrameSource or a TimeReplayableSource of your own"
    yield f"task={task}: source={named} is not a source; {way}."


def of_input(task: str, name: str, input: Input) -> Iterator[str]:
    """Refuse a wrong key, value or batch function of an input, and settings of event time for one that a task feeds."""
    # The types of attributes promise what is asked here.
    given: Any = input
    if not _is_key(given.key):
        yield f"task={task}: input={name!r} has key={given.key!r}; name a column, or several."
    if not isinstance(given.value, (str, type(None))):
        yield f"task={task}: input={name!r} has value={given.value!r}; name the one column of the updates."
    if given.batch is not None and not callable(given.batch):
        yield f"task={task}: input={name!r} has batch={given.batch!r}; give a function of a batch."
    if edge_of(input) is not None:
        for what, time in (("allowed_delay", input.allowed_delay), ("idle_after", input.idle_after)):
            if time is not None:
                yield (
                    f"task={task}: input={name!r} has {what}={time!r}, and the clock of {input.source!r} is that task's; "
                    "leave it out."
                )


def of_without(task: str, inputs: Mapping[str, Input], without: object) -> Iterator[str]:
    """Refuse `without` if it is not a list of names, or names an input that is given."""
    if isinstance(without, str):
        yield f"task={task}: without={without!r} is a text; give a list, without=[{without!r}]."
    # Whether the task ever had them is not asked: the same code starts in a new store, too.
    if not isinstance(without, Collection) or not all(isinstance(name, str) for name in without):
        yield f"task={task}: without={without!r} is no list of names of inputs; give one, or leave it out."
        return
    for name in without:
        if name in inputs:
            yield f"task={task}: input={name!r} is given, and named in without; leave one of these out."


def of_delivery(delivery: str) -> Iterator[str]:
    """Refuse a delivery other than exactly-once, at-least-once and at-most-once."""
    if delivery not in DELIVERIES:
        yield f"delivery={delivery!r}; say one of {', '.join(map(repr, DELIVERIES))}."


def of_ordered(
    task: BaseTask, inputs: Mapping[str, Input], delivery: str, sink: Output | Sequence[Output] | None
) -> Iterator[str]:
    """Refuse inputs, a delivery and outputs that a task can't have which processes its messages in order.

    A task that does not process its messages in order is not refused.
    """
    if not isinstance(task, InOrderTask):
        return
    for name, each in inputs.items():
        for what, given in (("value", each.value), ("batch", each.batch)):
            if given is not None:
                yield f"task={task.task_name}: input={name!r} has {what}={given!r}, and it gets whole messages; leave it out."
    messages, with_states, with_rows = in_order.parts(task)
    messages.arranged(inputs)
    if delivery != EXACTLY_ONCE:
        yield (
            f"task={task.task_name} processes its messages in order, which is exactly-once, and delivery={delivery!r} is said "
            f"for it; say delivery={EXACTLY_ONCE!r} in add()."
        )
    states, _ = outputs_of_ordered(task.task_name, sink, with_rows.has_rows)
    if states.at_clock and not with_states.keeps_states:
        yield (
            f"task={task.task_name}: ValuesAtClock of sink={states.at_clock[0].output_name!r} asks for the states of keys, and "
            "this task has none; give the sink itself, which gets the emitted rows."
        )


def of_names(known: Iterable[Added], more: Iterable[Added]) -> Iterator[str]:
    """Refuse a task if one of the names that it has in the store is taken.

    Args:
        known: The tasks of the graph that were added before.
        more: The tasks of the graph that the new task is.
    """
    taken = {each.name: each.named for each in known}
    for each in more:
        if taken.get(each.name) == each.named:
            yield f"two tasks are named {each.named}; give one a name of its own."
        if each.name in taken:
            yield (
                f"task={each.named} and task={taken[each.name]} need the name {each.name} in the store; give one another name."
            )


def of_places(tasks: Sequence[Added], store: str, application: str, scratch: str | None) -> Iterator[str]:
    """Refuse two outputs that write to one place, and a place in a folder whose files are read.

    Such a place is the store, Spark's scratch folder, or the folder of a sink.
    """
    check_places({each.name: each.outputs for each in tasks})
    # The files of an application lie in a folder of its name.
    places = [(f"the store {shown(store)!r}", place) for place in (store, f"{store}/{application}")]
    if isinstance(scratch, str):
        places.append((f"scratch={shown(scratch)!r}", scratch))
    for each in tasks:
        for output in each.outputs.at_clock:
            records = (record for record in output.place.records(each.name) if isinstance(record, tuple))
            folders = [str(record[1]) for record in records if record[:1] in (("folder",), ("sqlite",))]
            places += [(f"the sink {output.place.name} of task={each.named}", place) for place in folders]
    for each in tasks:
        for source in (of.source for of in each.inputs.values()):
            for what, place in places:
                if isinstance(source, FileSource) and source.reads(place):
                    yield (
                        f"task={each.named} reads all files below {source!r}, and {what} writes there; give one of the two "
                        "another folder."
                    )


def of_plan(plan: Plan) -> Iterator[str]:
    """Refuse a task that can never work on its rows, or on those of its inputs together."""
    if plan.has_names:
        yield from _of_inputs_together(plan)
    else:
        yield from of_rows(plan.only, plan.by_spark)


def of_rows(plan: InputPlan, is_by_spark: bool) -> Iterator[str]:
    """Refuse a task that can never work on the rows of an input. `is_by_spark` says whether Spark plans the source."""
    name = plan.named
    if not name or not all(c.isalnum() or c in "_.-" for c in name) or name[0] == ".":
        yield f"task name={name!r} can't name a folder; use letters, digits, '_', '.' and '-'."
    way = plan.update_way
    yield from _of_columns(plan)
    yield from _of_zones(plan)
    yield from _of_key(plan)
    yield from _of_channel(plan)
    yield from _of_timestamp(plan)
    if way == "value" and plan.task.value is not None:
        yield from of_update(plan, plan.schema.field(plan.task.value).type)
    yield from _of_order(plan, is_by_spark)
    for column in (taken for taken in plan.schema.names if taken.startswith("_persistent_state_")):
        if not column == plan.timestamp == LOCAL_TIMESTAMP:
            yield f"task={name}: the name of column {column!r} is this package's own; rename it."
    if plan.on_bad_row not in (KEEP, FAIL):
        yield f"task={name}: on_bad_row={plan.on_bad_row!r}; say 'keep' or 'fail'."


def of_update(plan: InputPlan, type: pa.DataType) -> Iterator[str]:
    """Refuse a column of updates that can never fit: the monoid can't take its type, and nothing prepares its items."""
    monoid = plan.layout.monoid
    if plan.state.prepare is None and not monoid.accepts(type):
        column = "the column" if plan.task.value is None else f"column {plan.task.value!r}"
        yield (
            f"task={plan.named}: {monoid.name} holds {monoid.type} and can't take {column} of {type}; "
            f"cast the column or choose another monoid{_such_as(monoid, type)}."
        )


def _such_as(monoid: Monoid[Any], type: pa.DataType) -> str:
    """Return the words that name the same monoid for floats, if the column has floats; else ""."""
    is_known = monoid.__class__ in (Sum, Product, Min, Max)
    return f", such as {monoid.name}(pa.float64())" if is_known and pa.types.is_floating(type) else ""


def _of_columns(plan: InputPlan) -> Iterator[str]:
    """Refuse rows that have a column twice, or lack one that the task names."""
    name, task = plan.named, plan.task
    source = "the source" if plan.edge is None else f"{plan.edge!r}, which feeds it,"
    if (twice := name_twice(plan.schema)) is not None:
        yield f"task={name}: {source} has {twice!r} twice; {ONE_NAME_EACH}."
    wanted = {
        "timestamp": plan.timestamp,
        "channel": plan.channel,
        "value": task.value,
        "message id": task.message_id,
    }
    for role, column in [*wanted.items(), *(("key", column) for column in task.key_columns)]:
        if column is not None and plan.schema.get_field_index(column) < 0:
            known = ", ".join(known for known in plan.schema.names if known != LOCAL_TIMESTAMP) or "no columns"
            struct, point, _ = column.partition(".")
            if point and struct in plan.schema.names:
                known += f"; take a field out of {struct!r} by the source's transform"
            yield f"task={name}: the {role} column {column!r} is not in {source.rstrip(',')}; it has {known}."


def _of_zones(plan: InputPlan) -> Iterator[str]:
    """Refuse columns that user code asks for, and whose time zone this machine lacks: Python has none of their values."""
    for name in _handed(plan):
        for type in all_types([plan.schema.field(name).type]):
            if pa.types.is_timestamp(type) and type.tz and not _is_zone(type.tz):
                yield (
                    f"task={plan.named}: column {name!r} has times in zone={type.tz!r}, which this machine does not know; "
                    "give a schema with a zone such as 'UTC' or 'Europe/Oslo'."
                )


def _handed(plan: InputPlan) -> tuple[str, ...]:
    """Return the columns whose values user code may be handed as objects of Python: those of messages, or of `prepare`."""
    # A part of an ordered task takes rows as batches, and hands them on as messages, with their keys.
    if plan.update_way == "message" or plan.hands_keys:
        return tuple(plan.schema.names)
    return () if plan.task.value is None or plan.state.prepare is None else (plan.task.value,)


def _is_zone(name: str) -> bool:
    try:
        pa.lib.string_to_tzinfo(name)
    except (KeyError, ValueError, OSError):
        return False
    return True


def _of_key(plan: InputPlan) -> Iterator[str]:
    """Refuse columns that can't be the key, or the id of messages."""
    name, task = plan.named, plan.task
    if (task.message_id is None) != (task.horizon is None):
        yield (
            f"task={name}: message_id={task.message_id!r} and horizon={task.horizon!r} go together; give both or neither."
        )
    for column in task.key_columns:
        # Each of several inputs names its own columns, and the key has another name in the state.
        if column in _state_columns(plan) and not plan.among:
            yield (
                f"task={name}: the key column {column!r} has the name of a column of the state; {_other_name(plan, column)}."
            )
        if task.key_columns.count(column) > 1:
            yield f"task={name}: the key names column {column!r} twice; name it once."
        yield from _of_type(plan, column, f"task={name}, column {column!r}")
    if task.message_id is not None:
        length("horizon", task.horizon or "")
        yield from _of_type(plan, task.message_id, f"task={name}, message id {task.message_id!r}")


def _of_type(plan: InputPlan, column: str, named: str) -> Iterator[str]:
    """Refuse a column whose values can't be keys."""
    try:
        keys.normal_type(plan.schema.field(column).type)
    except InvalidInputError as error:
        yield f"{named}: {error}"


def _of_channel(plan: InputPlan) -> Iterator[str]:
    """Refuse a column of channels that can't name them."""
    if plan.channel is None:
        return
    column = plan.schema.field(plan.channel).type
    type = column.value_type if pa.types.is_dictionary(column) else column
    if not (pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_integer(type)):
        yield f"task={plan.named}: the channel column {plan.channel!r} is {column}; make it text or integers."


def _of_timestamp(plan: InputPlan) -> Iterator[str]:
    """Refuse a column that can't hold timestamps, or a unit that does not go with its type."""
    stamp, unit = plan.schema.field(plan.timestamp).type, plan.timestamp_unit
    if not (pa.types.is_timestamp(stamp) or pa.types.is_int64(stamp) or pa.types.is_date32(stamp)):
        yield (
            f"task={plan.named}: the timestamp column {plan.timestamp!r} is {stamp}; "
            "make it a timestamp, or int64 microseconds UTC, by its type in the schema or in the source's transform."
        )
    if unit not in (None, *TIMESTAMP_UNITS):
        yield f"task={plan.named}: timestamp_unit={unit!r}; say one of {', '.join(map(repr, TIMESTAMP_UNITS))}."
    if unit is not None and not pa.types.is_int64(stamp):
        yield (
            f"task={plan.named}: timestamp_unit={unit!r} is for integers, and the timestamp column "
            f"{plan.timestamp!r} is {stamp}, which has a unit of its own; leave it out."
        )


def _of_order(plan: InputPlan, is_by_spark: bool) -> Iterator[str]:
    """Refuse rows whose order is needed, and is not known."""
    if plan.layout.is_ordered and not plan.has_positions:
        yield (
            f"task={plan.named}: {needs_order(plan)}, and its source gives messages of one time no order; name a column of "
            "positions, as in DataFrameSource(..., position='offset')."
        )
    if plan.settings.jump is not None and is_by_spark:
        yield (
            f"task={plan.named}: max_jump={plan.settings.jump} microseconds is measured from row to row, and Spark hands over "
            "a DataFrame's rows in parts of any order; leave it out, or use another source."
        )


def _of_inputs_together(plan: Plan) -> Iterator[str]:
    """Refuse inputs that don't fit the task, or each other."""
    for name, of_input in plan.inputs.items():
        try:
            sentence = next(_of_one_of_several(plan, of_input), None)
        except InvalidInputError as error:
            sentence = str(error)
        if sentence is not None:
            yield f"input={name!r}: {sentence}"
    if taken := next((column for column in plan.task.key_columns if column in _state_columns(plan)), None):
        yield (
            f"task={plan.named}: the key column {taken!r} has the name of a column of the state; give the key of the task "
            "another name, as its inputs say which of their columns it is."
        )


def _of_one_of_several(plan: Plan, of_input: InputPlan) -> Iterator[str]:
    """Refuse one of several inputs that does not fit the task, or the first input."""
    yield from of_rows(of_input, plan.by_spark)
    if of_input.update_way == "column":
        yield f"task={plan.named} says its update in process_column, and has several inputs; say it in process_batch."
    if plan.by_spark:
        yield f"task={plan.named}: Spark plans this source, so it can't be one of several; use another source."
    if plan.task.reads_state:
        yield f"task={plan.named} reads its state, and has several inputs; leave out reads_state."
    if (types := of_input.layout.key_types) != plan.layout.key_types:
        yield (
            f"task={plan.named}: the key has the types {_named_types(types)} here and "
            f"{_named_types(plan.layout.key_types)} in the first input; cast the columns."
        )
    if of_input.layout.once != plan.layout.once:
        yield (
            f"task={plan.named}: message_id={plan.task.message_id!r} has another type here than in the first "
            "input; cast the column."
        )


def _state_columns(plan: Plan | InputPlan) -> tuple[str, ...]:
    """Return the columns that the state has beside the key."""
    return ("value", *kind_of(plan.state.windowing).window_columns)


def _other_name(plan: InputPlan, column: str) -> str:
    """Return in words what gives a key column another name."""
    if not plan.is_fed_by_task:
        return "rename it in the source's transform"
    of_input = f"Input({plan.edge!r}, key={column!r})"
    return f"name its input, as in {{'of': {of_input}}}, and give the key of the task another name"


def _named_types(types: Sequence[pa.DataType]) -> str:
    return ", ".join(map(str, types)) or "of no column"


def _is_key(key: object) -> bool:
    """Return whether this names a column or several, or is None. An empty list is more often a mistake than meant as None."""
    if isinstance(key, (str, type(None))):
        return True
    return isinstance(key, Sequence) and len(key) > 0 and all(isinstance(column, str) for column in key)
