"""An ordered task as tasks of the graph: one in which its messages wait, one that has its state, one that has its rows.

The messages wait in the first. A step of the other two reads those that the clock has passed, and the state and the timers of
their keys, and lets the task process them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from monoids.nested import codec_of
from persistent_state.batch.as_stored import as_stored
from persistent_state.batch.messages import ACTED, PROCESSED
from persistent_state.batch.plan import Plan
from persistent_state.batch.process import Emitted, KeyState, Program, process
from persistent_state.batch.row_messages import row_messages
from persistent_state.batch.rows import StepChunk, check_bad_rows
from persistent_state.batch.spans import Span, open_due, open_runs
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.inputs import INPUT, UNNAMED
from persistent_state.event_time.positions import NO_POSITION
from persistent_state.joins import AsOfJoin, IntervalJoin, Join, kept_columns, on_inputs, waiting_rows
from persistent_state.ordered import InOrderTask, OrderedPart, OrderedTask, Timer
from persistent_state.partials import fold
from persistent_state.partials.evolve import plain
from persistent_state.partials.keys import normal_type
from persistent_state.partials.layout import Levels, as_numpy, below, between, one_chunk
from persistent_state.partials.newest import Newest
from persistent_state.partials.sort import same_keys
from persistent_state.partials.type_names import name_of, named
from persistent_state.partials.waiting import Rows, passed
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.state import KeptState
from persistent_state.store.late_rows import PARTITION, SIDE_COLUMNS, UNFIT
from persistent_state.task import LOCAL_TIMESTAMP, Message, messages_of, rows_of
from persistent_state.windows import TIME, UntilPassed, UntilReplaced, length

Key: TypeAlias = str | Sequence[str] | None

STATE, EMITTED = "kept state", "emitted row"
"""The columns of what a step makes: the state of a key, or a row that was emitted for it. One of the two is null.

They stand beside the key columns, whose names are the user's."""

NUMBERS = 40
"""The bits of a row's number among those that were emitted for a key at a moment. Above them stands its rank."""


MOST = 1 << 17
"""About how many messages are processed at a time: what a process needs of memory does not grow with those that wait."""


class Messages(OrderedPart):
    """The task in which the messages of an ordered task wait.

    A message is a struct with a field for each input of the task, all null but one, which is its row. So inputs come and leave
    as fields of a type do. `schemas` are those of the inputs, by name. `input` is the one whose rows this task is given.
    """

    def __init__(
        self, task: InOrderTask, schemas: Mapping[str, pa.Schema], input: str = INPUT, key: Key | None = None
    ) -> None:
        self.name, self.key, self.ordered = messages_of(task.task_name), task.key if key is None else key, task
        self.message_id, self.horizon = task.message_id, task.horizon
        self.rows = {name: pa.struct(list(schema)) for name, schema in schemas.items()}
        self._input = input

    @property
    def hands_keys(self) -> bool:
        """Return whether user code is handed the keys."""
        return isinstance(self.ordered, OrderedTask)

    @property
    def is_unnamed(self) -> bool:
        """Return whether there is one input, which has no name."""
        return [*self.rows] == [INPUT]

    def persistent_state(self) -> KeptState[Any]:
        type = pa.struct([*self.rows.items()])
        if isinstance(self.ordered, Join) and self.rows:
            type = self.ordered.pair.waiting
        return KeptState(Rows(type), UntilPassed(_time_back(self.ordered)))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        if isinstance(self.ordered, Join):
            return waiting_rows(self.ordered.pair, self._input, batch)
        rows = pa.StructArray.from_arrays(batch.columns, fields=list(self.rows[self._input]))
        columns = [rows if name == self._input else pa.nulls(len(rows), type) for name, type in self.rows.items()]
        return pa.StructArray.from_arrays(columns, names=[*self.rows])

    def messages(self, times: NDArray[np.int64], values: pa.Array) -> Iterator[Message]:
        """Return an iterator of rows of this task as the messages that they are.

        One after the other, since Python looks at all objects that are alive again and again.
        """
        if len(self.rows) == 1:
            (name,) = self.rows
            return row_messages(_columns(values.field(name)), times.tolist(), name)
        inputs, of_each = np.zeros(len(times), np.intp), []
        for number, name in enumerate(self.rows):
            rows = values.field(name)
            own = np.asarray(rows.is_valid())
            inputs[own] = number
            of_each.append(row_messages(_columns(rows.drop_null()), times[own].tolist(), name))
        return (next(of_each[number]) for number in inputs.tolist())


def _columns(rows: pa.StructArray) -> dict[str, pa.Array]:
    columns = dict(zip(rows.type.names, rows.flatten(), strict=True))
    columns.pop(LOCAL_TIMESTAMP, None)
    return columns


def names(task: str) -> list[str]:
    """Return the names of the tasks of the graph that an ordered task is."""
    return [messages_of(task), task, rows_of(task)]


def with_schemas(task: InOrderTask, inputs: Mapping[str, Plan]) -> tuple[Messages, dict[str, Plan]]:
    """Return the task in which messages of these inputs wait, and the plan of each input, once their schemas are known."""
    schemas = {name: plan.schema for name, plan in inputs.items()}
    for name, schema in schemas.items():
        _check_columns(task, name, schema)
    if isinstance(task, Join):
        schemas = {name: kept_columns(task, name, _without_local(plan)) for name, plan in inputs.items()}
        keys = {name: plan.task.key_columns for name, plan in inputs.items()}
        task = on_inputs(task, schemas, keys, {name: _beside(plan, schemas[name]) for name, plan in inputs.items()})
    tasks = {name: Messages(task, schemas, name, plan.task.key) for name, plan in inputs.items()}
    return Messages(task, schemas), {name: replace(plan, task=tasks[name]) for name, plan in inputs.items()}


def _check_columns(task: InOrderTask, input: str, columns: pa.Schema) -> None:
    """Refuse columns that can't wait.

    Raises:
        InvalidInputError: There is one.
    """
    for field in columns:
        type = plain(field.type)
        try:
            can_wait = named(name_of(type)) == type
        except ValueError:
            can_wait = False
        if not can_wait:
            where = f"input={input!r}" if input else "the source"
            raise InvalidInputError(
                f"task={task.task_name}: column {field.name!r} of {where} is {field.type}, which can't be kept; cast it, or "
                "leave it out, in the source's transform."
            )


def _without_local(plan: Plan) -> pa.Schema:
    """Return the columns of an input's rows without that which `run_local` adds to messages."""
    is_own = [name != LOCAL_TIMESTAMP or name != plan.timestamp for name in plan.schema.names]
    return pa.schema([field for field, own in zip(plan.schema, is_own, strict=True) if own])


def _beside(plan: Plan, kept: pa.Schema) -> dict[str, str]:
    """Return the columns of an input of a join that stand beside its rows as they are kept: of the key, and the timestamp."""
    found = {}
    for number, column in enumerate(plan.task.key_columns):
        type = kept.field(column).type if column in kept.names else None
        # Of floats a key has one zero and one NaN.
        if type is not None and not pa.types.is_floating(type) and normal_type(type) == type:
            found[column] = f"key{number}"
    if plan.timestamp in kept.names:
        type = plan.schema.field(plan.timestamp).type
        is_whole = pa.types.is_int64(type) and plan.timestamp_unit in (None, "us")
        if is_whole or pa.types.is_timestamp(type):
            found[plan.timestamp] = "start"
    return found


class States(OrderedPart):
    """The task that has the state of an ordered task."""

    value = STATE

    def __init__(self, task: InOrderTask) -> None:
        self.name, self.key, self.ordered = task.task_name, task.key, task

    def persistent_state(self) -> KeptState[Any]:
        task = self.ordered
        if not isinstance(task.state, pa.DataType):
            raise InvalidInputError(f"task={self.name} has state={task.state!r}; say the Arrow type of a key's state.")
        return KeptState(Newest(task.state), UntilReplaced(_time_to_live(task)))


class EmittedRows(OrderedPart):
    """The task that has the rows which an ordered task emits."""

    value = EMITTED

    def __init__(self, task: InOrderTask) -> None:
        self.name, self.key, self.ordered = rows_of(task.task_name), task.key, task

    def persistent_state(self) -> KeptState[Any]:
        return KeptState(Rows(_row_type(self.ordered)), UntilPassed())


def emits_rows(task: InOrderTask) -> bool:
    """Return whether a task emits rows. Those of a join are known once its inputs are."""
    return isinstance(task, Join) or task.emits is not None


def keeps_state(task: InOrderTask) -> bool:
    """Return whether the keys of a task have a state."""
    return not isinstance(task, IntervalJoin)


def _time_to_live(task: InOrderTask) -> int | None:
    """Return the time, in microseconds, for which a key may be silent before it is forgotten; None: for ever."""
    if isinstance(task, OrderedTask):
        return None if task.ttl is None else length("ttl", task.ttl)
    return task.tolerance if isinstance(task, AsOfJoin) else None


def _time_back(task: InOrderTask) -> int:
    """Return the time, in microseconds, for which a message is still needed after the clock has passed it."""
    return task.bounds.back if isinstance(task, IntervalJoin) else 0


def on_messages(task: States | EmittedRows, messages: Plan) -> States | EmittedRows:
    """Return the task as it is on messages whose columns are known, given the plan of the task in which they wait."""
    return type(task)(_messages(messages).ordered)


def _row_type(task: InOrderTask) -> pa.DataType:
    return pa.struct([] if task.emits is None else list(task.emits))


def most_ranks(messages: Plan) -> int:
    """Return how many ranks emitted rows have, given the plan of the task in which the messages wait.

    The first is that of timers. Each input has one.
    """
    return 1 + len(_messages(messages).rows)


def ranks_of(rows: pa.Table) -> NDArray[np.int64]:
    """Return the ranks of emitted rows, as they are stored."""
    ranks: NDArray[np.int64] = as_numpy(rows, "position") >> NUMBERS
    return ranks


def schema_of(messages: Plan, task: InOrderTask) -> pa.Schema:
    """Return the schema of what a step makes, given the plan of the task in which the messages wait."""
    keys = map(pa.field, messages.task.key_columns, messages.layout.key_types)
    assert task.state is not None
    made = [(STATE, Newest(task.state).type), (EMITTED, _row_type(task)), (TIMESTAMP, TIME)]
    return pa.schema([*keys, *(pa.field(*each) for each in made)])


def emitted_schema(plan: Plan) -> pa.Schema:
    """Return the columns of emitted rows, given the plan of the task that has them: the key's, those of `emits`, the moment."""
    assert isinstance(plan.task, EmittedRows)
    emits = pa.schema([]) if plan.task.ordered.emits is None else plan.task.ordered.emits
    keys = dict(zip(plan.task.key_columns, plan.layout.key_types, strict=True))
    columns = keys | {field.name: field.type for field in emits}
    return pa.schema([*columns.items(), (TIMESTAMP, TIME)])


def emitted_rows(plan: Plan, keys: Sequence[pa.Array], moments: pa.Array, rows: pa.StructArray) -> list[pa.Array]:
    """Return emitted rows as these columns. A key column that `emits` names, too, is as the task emitted it."""
    columns = dict(zip(plan.task.key_columns, keys, strict=True))
    columns |= dict(zip(rows.type.names, rows.flatten(), strict=True))
    return [*columns.values(), moments.cast(TIME)]


def read(plan: Plan, fed: Plan, span: Span, name: str) -> Iterator[StepChunk]:
    """Let a task process what the clock has passed, and yield what it makes of that.

    Args:
        plan: The plan of the task in which the messages wait.
        fed: The plan of the task that has the state.
        span: The runs of a shard of both.
        name: The partition that the rows are of.
    """
    assert isinstance(fed.task, States)
    task, state = fed.task.ordered, fed.layout.monoid.type.field("state").type
    assert isinstance(task, OrderedTask)
    ranks = {name: rank for rank, name in enumerate(_messages(plan).rows)}
    as_row = as_stored(_row_type(task)) if emits_rows(task) else dict
    program = Program(task, as_stored(state), as_row, ranks, _time_to_live(task), plan.settings.interval)
    waiting, due = open_runs(plan, span.changed_runs), open_due(fed, span)
    share = fold.SLICE // MOST
    for begin, end in fold.slices([*waiting, *due], share=share):
        came = [between(table, begin, end) for table in waiting]
        asked = [as_numpy(table, "hash")[_is_between(as_numpy(table, "start"), span)] for table in came]
        asked += [as_numpy(between(table, begin, end), "hash") for table in due]
        keys = pa.table({"hash": np.sort(np.concatenate([np.array([], np.uint64), *asked]))})
        if len(keys) == 0:
            continue
        opened = open_runs(fed, span.states, [as_numpy(keys, "hash")])
        # The states of a few keys may be large.
        for low, high in fold.slices([], begin, end, share, [keys], opened):
            levels = [fold.touched(level, between(keys, low, high)) for level in opened]
            states = fold.fold_keys([below(level, span.clock) for level in levels], fed.layout)
            messages = [between(table, low, high) for table in came]
            chunks = _processed(plan, fed, program, messages, states, span, name)
            yield from (replace(chunk, high=high) for chunk in chunks)


def _messages(plan: Plan) -> Messages:
    assert isinstance(plan.task, Messages)
    return plan.task


def _is_between(times: NDArray[np.int64], span: Span) -> NDArray[np.bool_]:
    return (times >= span.since) & (times < span.clock)


def _processed(
    plan: Plan, fed: Plan, program: Program, came: Levels, states: pa.Table, span: Span, name: str
) -> Iterator[StepChunk]:
    """Yield what a task makes of messages, and of keys with these states."""
    before = dict(zip(_keys(plan, states), _kept_of(states), strict=True))
    now = {**before}
    processed = acted = 0
    # A key alone may have more messages than there is room for.
    for low, high in pairwise(cut(came, span, MOST)):
        messages = passed(came, plan.layout, low, high)
        begins = np.flatnonzero(~same_keys(messages, plan.layout)[: len(messages)])
        counts = np.diff(np.append(begins, len(messages)))
        own = dict(zip(_keys(plan, messages.take(pa.array(begins))), counts.tolist(), strict=True))
        waiting = _messages(plan).messages(as_numpy(messages, "start"), one_chunk(messages["value"]))
        emitted: list[tuple[Any, int, Emitted]] = []
        bad: list[int] = []
        misfits: dict[str, str] = {}
        first = 0
        # Those with messages come first, in the order of the rows.
        for key in dict.fromkeys([*own, *now]):
            some = [*islice(waiting, own.get(key, 0))]
            found = process(program, key[0] if len(key) == 1 else key, now.get(key, KeyState()), some, high)
            now[key] = found.kept
            processed, acted = processed + len(some), acted + found.acted
            for number, misfit in found.bad.items():
                bad.append(first + number)
                misfits.setdefault(some[number].input, misfit)
            first += len(some)
            number, moment = 0, BEGINNING
            for row in found.rows:
                number, moment = (number + 1 if row.moment == moment else 0), row.moment
                emitted.append((key, number, row))
        if bad:
            aside = _aside(plan, messages.take(pa.array(bad)), misfits, name)
            yield replace(_kept_chunk(plan, fed, [], high, name), aside=aside)
        if emitted:
            yield _emitted_chunk(plan, fed, emitted, name)
    changed = [(key, kept) for key, kept in now.items() if kept.differs(before.get(key, KeyState()))]
    if changed or processed:
        for_report = {PROCESSED: processed, ACTED: acted}
        yield replace(_kept_chunk(plan, fed, changed, span.clock, name), counts=for_report)


def cut(came: Levels, span: Span, most: int) -> list[int]:
    """Return clocks from the first to the last of a span, about so many messages apart."""
    if sum(map(len, came)) <= most:
        return [span.since, span.clock]
    times = np.concatenate([np.array([], np.int64), *(as_numpy(table, "start") for table in came)])
    times = np.sort(times[_is_between(times, span)])
    between_them = {int(time) for time in times[most::most]} - {span.since}
    return [span.since, *sorted(between_them), span.clock]


def _aside(plan: Plan, rows: pa.Table, misfits: Mapping[str, str], name: str) -> pa.Table:
    """Return bad messages as they stand in a file of late and bad rows. `misfits` has what did not fit first, by the input.

    Their strand is the partition that the step has read, since a start takes them back as it takes back the step. The one that
    they came from stands beside it.

    Raises:
        TaskFailedError: Bad rows of an input are to fail, and there is one.
    """
    channel, row = rows["channel"], one_chunk(rows["value"])
    inputs = [*_messages(plan).rows]
    if plan.inputs:
        # Before a channel stands the place of its input, which gives messages of one moment their order.
        channel = pc.replace_substring_regex(channel, r"^\d+:", "")
    if _messages(plan).is_unnamed:
        row = row.field(0)
    else:
        row = pa.StructArray.from_arrays(row.flatten(), names=[input or UNNAMED for input in inputs])
    count, position = len(rows), as_numpy(rows, "position")
    columns = {
        "reason": pa.array([UNFIT] * count),
        "timestamp": rows["start"],
        "strand": pa.array([name] * count),
        "channel": channel,
        "position": pa.array(position, mask=position == NO_POSITION),
        "record": pa.nulls(count, SIDE_COLUMNS["record"]),
        PARTITION: rows["strand"],
    }
    aside = pa.table({**columns, "row": row}).combine_chunks()
    for of_input in plan.inputs.values() or [plan]:
        own = row.field(of_input.input or UNNAMED).is_valid() if plan.inputs else pa.repeat(True, count)
        if len(some := aside.filter(own)):
            check_bad_rows(of_input, some, misfits[of_input.input])
    return aside


def _keys(plan: Plan, table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [table[name].to_pylist() for name in plan.layout.key_names]
    # One NaN for all: a dictionary finds it only as the very same object.
    columns = [[math.nan if key != key else key for key in column] for column in columns]
    return list(zip(*columns, strict=True)) if columns else [()] * len(table)


def _kept_of(states: pa.Table) -> list[KeyState]:
    """Return what is kept of each key. One that is forgotten has no timers."""
    values = one_chunk(states["value"])
    found = codec_of(values.type.field("state").type).from_arrow(values.field("state"))
    timers = [tuple(Timer(**timer) for timer in some or ()) for some in values.field("timers").to_pylist()]
    return [KeyState(*each) for each in zip(found, timers, values.field("newest").to_pylist(), strict=True)]


def _kept_chunk(plan: Plan, fed: Plan, changed: Sequence[tuple[Any, KeyState]], clock: int, name: str) -> StepChunk:
    """Return what is kept of keys at a clock, as rows of the moment before it."""
    type = fed.layout.monoid.type
    columns = [
        codec_of(type.field("state").type).to_arrow([kept.state for _, kept in changed]),
        pa.array([[vars(timer) for timer in kept.timers] for _, kept in changed], type.field("timers").type),
        pa.array([kept.newest for _, kept in changed], pa.int64()),
    ]
    kept, count = pa.StructArray.from_arrays(columns, fields=list(type)), len(changed)
    keys = _columns_of_keys(plan, [key for key, _ in changed])
    return step_chunk(plan, fed, keys, {STATE: kept}, np.full(count, clock - 1), np.zeros(count, np.int64), name)


def _emitted_chunk(plan: Plan, fed: Plan, rows: Sequence[tuple[Any, int, Emitted]], name: str) -> StepChunk:
    emitted = codec_of(fed.schema.field(EMITTED).type).to_arrow([row.row for _, _, row in rows])
    times = np.array([row.moment for _, _, row in rows], np.int64)
    at = np.array([((row.rank + 1) << NUMBERS) + number for _, number, row in rows], np.int64)
    keys = _columns_of_keys(plan, [key for key, _, _ in rows])
    return step_chunk(plan, fed, keys, {EMITTED: emitted}, times, at, name)


def _columns_of_keys(plan: Plan, keys: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([key[i] for key in keys], type) for i, type in enumerate(plan.layout.key_types)]


def step_chunk(
    plan: Plan, fed: Plan, keys: Sequence[pa.Array], values: dict[str, pa.Array], times: Any, at: Any, name: str
) -> StepChunk:
    """Return states of keys, or rows that were emitted for them, as a chunk.

    Args:
        plan: The plan of the task in which the messages wait.
        fed: The plan of the task that has the state.
        keys: The key columns.
        values: A column of states, or of rows, by its name.
        times: The moments.
        at: What puts rows of one key and moment in order.
        name: The partition that the rows are of.
    """
    columns = dict(zip(plan.task.key_columns, keys, strict=True)) | values
    columns[TIMESTAMP] = pa.array(times).cast(TIME)
    arrays = [columns.get(field.name, pa.nulls(len(at), field.type)) for field in fed.schema]
    return StepChunk(name, 0, pa.RecordBatch.from_arrays(arrays, schema=fed.schema), at=at)
