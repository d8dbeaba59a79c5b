"""Refusals of a set-up that need no store, by topic.

A topic yields the sentences that refuse what it is given. `refuse` raises the first one, and asks no further: a condition may
rest on those before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from persistent_state.batch.plan import DELIVERIES, EXACTLY_ONCE
from persistent_state.edges.in_order.rows import emits_rows
from persistent_state.edges.in_order.states import keeps_state
from persistent_state.edges.joins.pair import by_side
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.inputs import UNNAMED
from persistent_state.inputs import Input
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.ordered import InOrderTask, OrderedTask
from persistent_state.outputs import Output, check_places, outputs_of_ordered
from persistent_state.redact import shown
from persistent_state.setup.added import Added, edge_of
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.files import FileSource
from persistent_state.sources.tasks import TaskSource
from persistent_state.task import BaseTask, PersistentTask, check_process_message, instance_of


def refuse(*topics: Iterable[str]) -> None:
    """Refuse a set-up for the first of these topics that has a sentence.

    Raises:
        InvalidInputError: One has.
    """
    for sentence in chain(*topics):
        raise InvalidInputError(sentence)


def of_task(task: object) -> Iterator[str]:
    """Refuse what is not a task, but its class, for example, or has a wrong name, key, value or version."""
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
        yield f"task={name} has key={given.key!r}; name a column, or several, or say None."
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
    """Refuse inputs of a task of which one is not a source, or its name or its source can't be one of several."""
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
        if len(inputs) > 1 and isinstance(each.source, (DataFrameSource, KafkaConnectorSource)):
            yield (
                f"task={task}: Spark plans the source of input {name!r}, so it can't be one of several; use a FileSource, a "
                "KafkaSource or one of your own."
            )
        yield from of_input(task, name, each)


def of_source(task: str, source: object) -> Iterator[str]:
    """Refuse what is not a source, and name the source that may be meant."""
    if isinstance(source, (TimeReplayableSource, DataFrameSource, KafkaConnectorSource, TaskSource)):
        return
    found = repr(source)
    if isinstance(source, (str, os.PathLike)):
        way = f"give FileSource({os.fspath(source)!r}, timestamp=...) for the files of a folder"
    elif type(source).__module__.startswith("pyspark.sql"):
        found, way = "a Spark DataFrame", "give DataFrameSource(stream, timestamp=...), of a streaming DataFrame"
    elif isinstance(source, (list, tuple)):
        way = (
            'give several as a mapping from their names, such as {"orders": FileSource(...), "rates": FileSource(...)}'
        )
    elif isinstance(source, type):
        way = f"give an instance of it, {source.__name__}(...)"
    else:
        way = "give a FileSource, KafkaSource, KafkaConnectorSource, DataFrameSource or a TimeReplayableSource of your own"
    yield f"task={task}: source={found} is not a source; {way}."


def of_input(task: str, name: str, input: Input) -> Iterator[str]:
    """Refuse what an input of a task can't have."""
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
    """Refuse names of inputs that end: they are no list of names, or such an input is given all the same."""
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
    """Refuse a delivery that there is not."""
    if delivery not in DELIVERIES:
        yield f"delivery={delivery!r}; say one of {', '.join(map(repr, DELIVERIES))}."


def of_ordered(
    task: BaseTask, inputs: Mapping[str, Input], delivery: str, sink: Output | Sequence[Output] | None
) -> Iterator[str]:
    """Refuse what a task that processes its messages in order can't have. Of other tasks it refuses nothing."""
    if not isinstance(task, InOrderTask):
        return
    for name, each in inputs.items():
        for what, given in (("value", each.value), ("batch", each.batch)):
            if given is not None:
                yield f"task={task.task_name}: input={name!r} has {what}={given!r}, and it gets whole messages; leave it out."
    by_side(task, inputs)
    if delivery != EXACTLY_ONCE:
        yield (
            f"task={task.task_name} processes its messages in order, which is exactly-once, and delivery={delivery!r} is said "
            f"for it; say delivery={EXACTLY_ONCE!r} in add()."
        )
    states, _ = outputs_of_ordered(task.task_name, sink, emits_rows(task))
    if states.at_clock and not keeps_state(task):
        yield (
            f"task={task.task_name}: ValuesAtClock of sink={states.at_clock[0].output_name!r} asks for the states of keys, and "
            "this task has none; give the sink itself, which gets the emitted rows."
        )


def of_names(known: Iterable[Added], more: Iterable[Added]) -> Iterator[str]:
    """Refuse more tasks, which one task is in the graph, if the store would know a task that is there by one of their names."""
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
            found = [str(record[1]) for record in records if record[:1] in (("folder",), ("sqlite",))]
            places += [(f"the sink {output.place.name} of task={each.named}", place) for place in found]
    for each in tasks:
        for source in (of.source for of in each.inputs.values()):
            for what, place in places:
                if isinstance(source, FileSource) and source.reads(place):
                    yield (
                        f"task={each.named} reads all files below {source!r}, and {what} writes there; give one of the two "
                        "another folder."
                    )


def _is_key(key: object) -> bool:
    """Return whether this names a column, several, or none."""
    if isinstance(key, (str, type(None))):
        return True
    return isinstance(key, Sequence) and all(isinstance(column, str) for column in key)
