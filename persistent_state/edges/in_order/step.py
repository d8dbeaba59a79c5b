"""A step of an ordered task: the messages that the clock has passed, and the states and timers of their keys, are processed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from monoids.nested import codec_of
from persistent_state.batch.packets import ACTED, PROCESSED
from persistent_state.batch.plan import Plan
from persistent_state.batch.row_messages import row_messages
from persistent_state.batch.rows import StepChunk, check_bad_rows
from persistent_state.edges.base import Span, open_runs
from persistent_state.edges.in_order.as_stored import as_stored
from persistent_state.edges.in_order.messages import Messages
from persistent_state.edges.in_order.process import Emitted, KeyState, Program, process
from persistent_state.edges.in_order.rows import EMITTED, NUMBERS, row_type
from persistent_state.edges.in_order.states import STATE, States
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.inputs import INPUT, UNNAMED
from persistent_state.event_time.positions import NO_POSITION
from persistent_state.ordered import OrderedTask, Timer
from persistent_state.partials import fold
from persistent_state.partials.layout import Levels, as_numpy, below, between, one_chunk
from persistent_state.partials.sort import same_keys
from persistent_state.partials.waiting import passed
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.store.late_rows import PARTITION, SIDE_COLUMNS
from persistent_state.store.named_files import Run
from persistent_state.store.runs import read_due
from persistent_state.task import LOCAL_TIMESTAMP, Message
from persistent_state.windows import TIME

MESSAGES_AT_A_TIME = 1 << 17
"""About how many messages are processed at a time: what a process needs of memory does not grow with those that wait."""


class OrderedMessages(Messages):
    """The task in which the messages of an `OrderedTask` wait until a step processes them."""

    hands_keys = True
    keeps = "any, in order"

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        rows = pa.StructArray.from_arrays(batch.columns, fields=list(self.rows[self._input]))
        columns = [rows if name == self._input else pa.nulls(len(rows), type) for name, type in self.rows.items()]
        return pa.StructArray.from_arrays(columns, names=[*self.rows])

    def read(self, plan: Plan, fed: Plan, span: Span) -> Iterator[StepChunk]:
        task, state = cast(OrderedTask, self.ordered), fed.layout.monoid.type.field("state").type
        ranks = {name: rank for rank, name in enumerate(self.rows)}
        as_row = dict if task.emits is None else as_stored(row_type(task))
        ttl = cast(States, fed.task).ttl
        program = Program(task, as_stored(state), as_row, ranks, ttl, plan.settings.interval)
        waiting, due = open_runs(plan, span.changed_runs), _open_due(fed, span)
        share = fold.SLICE // MESSAGES_AT_A_TIME
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
                chunks = _processed(plan, fed, program, messages, states, span)
                yield from (replace(chunk, high=high) for chunk in chunks)

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


def _part(plan: Plan) -> OrderedMessages:
    return cast(OrderedMessages, plan.task)


def _is_between(times: NDArray[np.int64], span: Span) -> NDArray[np.bool_]:
    return (times >= span.since) & (times < span.clock)


def _processed(
    plan: Plan, fed: Plan, program: Program, came: Levels, states: pa.Table, span: Span
) -> Iterator[StepChunk]:
    """Yield what a task makes of messages, and of keys with these states."""
    before = dict(zip(_keys(plan, states), _kept_of(states), strict=True))
    now = {**before}
    processed = acted = 0
    # A key alone may have more messages than there is room for.
    for low, high in pairwise(cut(came, span, MESSAGES_AT_A_TIME)):
        messages = passed(came, plan.layout, low, high)
        begins = np.flatnonzero(~same_keys(messages, plan.layout)[: len(messages)])
        counts = np.diff(np.append(begins, len(messages)))
        own = dict(zip(_keys(plan, messages.take(pa.array(begins))), counts.tolist(), strict=True))
        waiting = _part(plan).messages(as_numpy(messages, "start"), one_chunk(messages["value"]))
        emitted: list[tuple[Any, int, Emitted]] = []
        bad: list[tuple[int, str]] = []
        misfits: dict[str, str] = {}
        first = 0
        # Those with messages come first, in the order of the rows.
        for key in dict.fromkeys([*own, *now]):
            some = [*islice(waiting, own.get(key, 0))]
            found = process(program, key[0] if len(key) == 1 else key, now.get(key, KeyState()), some, high)
            now[key] = found.kept
            processed, acted = processed + len(some), acted + found.acted
            for number, of_message in found.bad.items():
                bad.append((first + number, of_message.reason))
                misfits.setdefault(some[number].input, of_message.misfit)
            first += len(some)
            number, moment = 0, BEGINNING
            for row in found.rows:
                number, moment = (number + 1 if row.moment == moment else 0), row.moment
                emitted.append((key, number, row))
        if bad:
            places, reasons = zip(*bad, strict=True)
            aside = _aside(plan, messages.take(pa.array(places)), reasons, misfits)
            yield replace(_kept_chunk(plan, fed, [], high), aside=aside)
        if emitted:
            yield _emitted_chunk(plan, fed, emitted)
    changed = [(key, kept) for key, kept in now.items() if kept.differs(before.get(key, KeyState()))]
    if changed or processed:
        for_report = {PROCESSED: processed, ACTED: acted}
        yield replace(_kept_chunk(plan, fed, changed, span.clock), counts=for_report)


def cut(came: Levels, span: Span, most: int) -> list[int]:
    """Return clocks from the first to the last of a span, about so many messages apart."""
    if sum(map(len, came)) <= most:
        return [span.since, span.clock]
    times = np.concatenate([np.array([], np.int64), *(as_numpy(table, "start") for table in came)])
    times = np.sort(times[_is_between(times, span)])
    between_them = {int(time) for time in times[most::most]} - {span.since}
    return [span.since, *sorted(between_them), span.clock]


def _aside(plan: Plan, rows: pa.Table, reasons: Sequence[str], misfits: Mapping[str, str]) -> pa.Table:
    """Return bad messages as they stand in a file of late and bad rows. `misfits` has what did not fit first, by the input.

    Their strand is the partition that the step has read, since a start takes them back as it takes back the step. The one that
    they came from stands beside it.

    Raises:
        TaskFailedError: Bad rows of an input are to fail, and there is one.
    """
    channel, row = rows["channel"], one_chunk(rows["value"])
    inputs = [*_part(plan).rows]
    if plan.has_names:
        # Before a channel stands the place of its input, which gives messages of one moment their order.
        channel = pc.replace_substring_regex(channel, r"^\d+:", "")
    if inputs == [INPUT]:
        row = row.field(0)
    else:
        row = pa.StructArray.from_arrays(row.flatten(), names=[input or UNNAMED for input in inputs])
    count, position = len(rows), as_numpy(rows, "position")
    columns = {
        "reason": pa.array(reasons),
        "timestamp": rows["start"],
        "strand": pa.array([plan.name] * count),
        "channel": channel,
        "position": pa.array(position, mask=position == NO_POSITION),
        "record": pa.nulls(count, SIDE_COLUMNS["record"]),
        PARTITION: rows["strand"],
    }
    aside = pa.table({**columns, "row": row}).combine_chunks()
    for of_input in plan.inputs.values():
        own = row.field(of_input.input or UNNAMED).is_valid() if plan.has_names else pa.repeat(True, count)
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


def _kept_chunk(plan: Plan, fed: Plan, changed: Sequence[tuple[Any, KeyState]], clock: int) -> StepChunk:
    """Return what is kept of keys at a clock, as rows of the moment before it."""
    type = fed.layout.monoid.type
    columns = [
        codec_of(type.field("state").type).to_arrow([kept.state for _, kept in changed]),
        pa.array([[vars(timer) for timer in kept.timers] for _, kept in changed], type.field("timers").type),
        pa.array([kept.newest for _, kept in changed], pa.int64()),
    ]
    kept, count = pa.StructArray.from_arrays(columns, fields=list(type)), len(changed)
    keys = _columns_of_keys(plan, [key for key, _ in changed])
    return step_chunk(plan, fed, keys, {STATE: kept}, np.full(count, clock - 1), np.zeros(count, np.int64))


def _emitted_chunk(plan: Plan, fed: Plan, rows: Sequence[tuple[Any, int, Emitted]]) -> StepChunk:
    emitted = codec_of(fed.only.schema.field(EMITTED).type).to_arrow([row.row for _, _, row in rows])
    times = np.array([row.moment for _, _, row in rows], np.int64)
    at = np.array([((row.rank + 1) << NUMBERS) + number for _, number, row in rows], np.int64)
    keys = _columns_of_keys(plan, [key for key, _, _ in rows])
    return step_chunk(plan, fed, keys, {EMITTED: emitted}, times, at)


def _columns_of_keys(plan: Plan, keys: Sequence[tuple[Any, ...]]) -> list[pa.Array]:
    return [pa.array([key[i] for key in keys], type) for i, type in enumerate(plan.layout.key_types)]


def step_chunk(
    plan: Plan, fed: Plan, keys: Sequence[pa.Array], values: dict[str, pa.Array], times: Any, at: Any
) -> StepChunk:
    """Return states of keys, or rows that were emitted for them, as a chunk.

    Args:
        plan: The plan of the task in which the messages wait.
        fed: The plan of the task that has the states.
        keys: The key columns.
        values: A column of states, or of rows, by its name.
        times: The moments.
        at: What puts rows of one key and moment in order.
    """
    columns = dict(zip(plan.task.key_columns, keys, strict=True)) | values
    columns[TIMESTAMP] = pa.array(times).cast(TIME)
    arrays = [columns.get(field.name, pa.nulls(len(at), field.type)) for field in fed.only.schema]
    return StepChunk(plan.name, 0, pa.RecordBatch.from_arrays(arrays, schema=fed.only.schema), at=at)


def timed_runs(span: Span) -> list[Run]:
    """Return the runs of states that may hold a timer between the clocks.

    The timers of a key that were due before were called: then the key has a newer row.
    """
    return [
        run
        for run in span.states
        if run.due is not None and run.last_due is not None and run.due < span.clock and run.last_due >= span.since
    ]


def _open_due(fed: Plan, span: Span) -> list[pa.Table]:
    """Return, for each run with timers, the hashes of the keys that have a timer between the clocks."""
    hashes = fed.files.for_each(
        lambda run: read_due(fed.files, run, span.since, span.clock, anew=True), timed_runs(span)
    )
    return [pa.table({"hash": of_run}) for of_run in hashes]
