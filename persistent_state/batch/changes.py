"""Rows that a task gives to the tasks that it feeds between two clocks: its changes, or its windows that have closed.

Both clocks are kept apart in the task's runs, and so is each multiple of `every` between them. So equal clocks give equal rows,
whenever and wherever they are read.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.batch import in_order, joined
from persistent_state.batch.messages import Step
from persistent_state.batch.plan import EXACTLY_ONCE, FlowPlan, Plan, takes_back
from persistent_state.batch.rows import TakenBack
from persistent_state.batch.spans import Span, open_runs
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.inputs import INPUT, named
from persistent_state.joins import Join
from persistent_state.partials import fold
from persistent_state.partials.changed import Changed, are_equal
from persistent_state.partials.layout import Layout, as_numpy, between, one_chunk
from persistent_state.partials.since import Since
from persistent_state.partials.sort import same_keys
from persistent_state.partials.waiting import passed
from persistent_state.sources.base import Chunk
from persistent_state.sources.tasks import TIMESTAMP, Changes, ClosedWindows, Emitted, InOrder, TaskSource
from persistent_state.store import runs as runs_io
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log, fenced
from persistent_state.store.named_files import Run, ShardRuns
from persistent_state.store.net_changes import changed_between
from persistent_state.store.state_at import seen_below
from persistent_state.task import PersistentTask
from persistent_state.windows import TIME, WINDOW

Times = NDArray[np.int64]

NUMBER_BITS = 24
"""The bits of a row's number among those that a key emitted at a moment. Above them stands the key's hash, and above that the
rank of the row."""

BEFORE, AFTER = "before", "after"
"""The columns of a change that is one message: structs of what outputs show of the value; null where the key is not there."""


def span_of(flow: FlowPlan, input: str, shard: int, runs: ShardRuns, step: Step, entry: Entry) -> Span:
    """Return what a step of tasks that are fed asks of a shard of another task.

    Args:
        flow: The plans of the tasks that are fed.
        input: The name of their input that the other task is.
        shard: The number of the shard.
        runs: Its runs.
        step: The step.
        entry: The newest entry.
    """
    source, plan = flow.first.upstream[input], flow.first.feeders[input]
    since, every = step.since, None
    # Below the global clock the multiples of `every` are not apart any more.
    if isinstance(source, Changes) and since >= entry.clock:
        # Others may be fed by any of these tasks, every so often: what it is at each of these times is asked of it, too.
        apart = [each.settings.every or 0 for each in flow.tasks]
        every = source.microseconds or (math.gcd(*apart) or None)
    if isinstance(source, (ClosedWindows, Emitted)) and since == BEGINNING:
        # Of the windows that closed before the task began, some may be gone; so may rows that were emitted.
        since = entry.clock
    states: tuple[Run, ...] = ()
    if isinstance(source, InOrder):
        states = entry.tasks[flow.id].stored.in_shards(entry.shards)[shard].runs
    ended = _ended(plan, entry, since)
    return Span(source, shard, runs.runs, since, step.clock, entry.epoch, every, flow.first.takes_back, states, ended)


def _ended(plan: Plan, entry: Entry, since: int) -> int:
    """Return a clock that the runs of a task keep apart, and below which all had ended by another clock."""
    task, most = entry.tasks[plan.name], plan.layout.kind.all_ended(since)
    last = bisect_right(entry.retained, most)
    apart = (*entry.retained[max(0, last - 1) : last], *task.stored.cuts)
    return max((c for c in apart if task.born <= c <= most), default=BEGINNING)


def schema_of(plan: Plan, source: TaskSource, fed: PersistentTask) -> pa.Schema:
    """Return the schema of the rows that a task gives to another: its key, the window, its values, and the moment.

    The values are what outputs show of them. Where they are structs there is a column for each of the fields.

    Raises:
        InvalidInputError: Two columns have one name.
    """
    if isinstance(source, InOrder):
        assert isinstance(fed, (in_order.States, in_order.EmittedRows))
        return in_order.schema_of(plan, fed.ordered)
    if isinstance(source, Emitted):
        return in_order.emitted_schema(plan)
    keys = map(pa.field, plan.task.key_columns, plan.layout.key_types)
    windows = [pa.field(name, TIME) for name in plan.layout.kind.window_columns]
    values = _fields(plan.state.presented)
    if isinstance(source, Changes) and not takes_back(fed):
        values = [pa.field(name, pa.struct(values)) for name in (BEFORE, AFTER)]
    fields = [*keys, *windows, *values, pa.field(TIMESTAMP, TIME)]
    names = [field.name for field in fields]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInputError(
            f"task={plan.named} gives two columns {twice!r} to the tasks that it feeds: its key columns, {TIMESTAMP!r} and the "
            "fields of its value need different names; rename the field."
        )
    return pa.schema(fields)


def check(plan: Plan) -> None:
    """Refuse a task that can't be fed by the tasks that are to feed it.

    Raises:
        InvalidInputError: The task can't be made of what it is fed, or one of the tasks can't give that.
    """
    for name, source in plan.upstream.items():
        _check_connected(plan, plan.feeders[name])
        if isinstance(source, ClosedWindows):
            if not plan.feeders[name].layout.kind.window_columns:
                raise InvalidInputError(
                    f"task={plan.named} is fed by the closed windows of task={source.task}, which keeps no windows; give it "
                    f"Changes({source.task!r}), or let the task keep a WindowState."
                )
        elif isinstance(source, Changes) and source.every is None:
            _check_taken_back(plan, plan.feeders[name])


def _check_connected(plan: Plan, other: Plan) -> None:
    for each in (plan, other):
        if each.delivery != EXACTLY_ONCE:
            raise InvalidInputError(
                f"task={plan.named} is fed by task={other.name}, and delivery={each.delivery!r} is said for task={each.named}; "
                "tasks that are connected are exactly-once: leave it out."
            )
    if plan.update_way == "column":
        raise InvalidInputError(
            f"task={plan.named} says its update in process_column, and is fed by task={other.name}; say it in process_batch."
        )


def _check_taken_back(plan: Plan, other: Plan) -> None:
    """Refuse a task that can't be made of the changes of another between any two clocks."""
    way = f'or look at fixed times: Changes({other.name!r}, every="1 minute")'
    if other.layout.kind.expires:
        raise InvalidInputError(
            f"task={plan.named} is fed by the changes of task={other.name}, whose state is bounded in time; feed it by the "
            f"windows that have closed, ClosedWindows({other.name!r}), keep that state without a bound, {way}."
        )
    if plan.takes_back:
        return
    if isinstance(plan.task, in_order.Messages):
        raise InvalidInputError(
            f"task={plan.named} is fed by the changes of task={other.name}, and an ordered task can't take "
            f'back what it made of a row; look at fixed times: Changes({other.name!r}, every="1 minute").'
        )
    monoid = plan.state.monoid
    fed = f"task={plan.named} is fed by the changes of task={other.name}"
    beginning = f"{fed}: what it made of a row is taken back when the row"
    if monoid.is_group and monoid.exact:
        raise InvalidInputError(
            f"{beginning} changes. So it can't have windows, a ttl, a message_id or reads_state; leave these out, {way}."
        )
    lack = "rounds" if monoid.is_group else "is no group"
    raise InvalidInputError(
        f"{beginning} changes, and {monoid!r} {lack}; use Sum, Count, ExactSum, or a Struct of these, {way}."
    )


def read(fed: Plan, input: str, span: Span) -> Iterator[Chunk]:
    """Yield what a shard of a task gives between two clocks to another.

    Args:
        fed: The plan of the task that is fed.
        input: The name of its input.
        span: The runs of the shard, and the clocks.

    Raises:
        DamagedError: A file is not what was written, or is gone.
        FencedError: A file is gone, and a newer driver owns the application.
    """
    plan = fed.feeders[input]
    try:
        # All files are open before the first chunk comes.
        chunks = _read(fed, plan, span, named(input, plan.name))
        yield from (replace(chunk, input=input) for chunk in chunks)
    except FileNotFoundError:
        # The runs were rewritten, and collected. The clocks are kept apart in the new ones, so these give the same.
        with runs_io.named_by_newest():
            chunks = _read(fed, plan, _with_newest_runs(fed, plan, span), named(input, plan.name))
            yield from (replace(chunk, input=input) for chunk in chunks)


def _with_newest_runs(fed: Plan, plan: Plan, span: Span) -> Span:
    """Return the same span of the runs that the newest entry names."""
    entry = Log(plan.files, plan.application).newest()
    if entry is None or entry.epoch != span.epoch:
        raise fenced(plan.application, span.epoch)

    def runs_of(task: Plan) -> tuple[Run, ...]:
        return entry.tasks[task.name].stored.in_shards(entry.shards)[span.shard].runs

    # What was kept apart when the step was planned may be folded in these.
    return replace(span, runs=runs_of(plan), states=runs_of(fed) if span.states else (), ended=BEGINNING)


def _read(fed: Plan, plan: Plan, span: Span, name: str) -> Iterator[Chunk]:
    """Yield what `read` does, by the plan of the task that gives it."""
    if isinstance(span.source, ClosedWindows):
        since = Since(span.since)
        table = seen_below(plan.files, span.closed_runs(plan), plan.layout, span.clock, since, anew=True)
        values = _shown(plan, one_chunk(table["value"]))
        yield Chunk(**_rows(plan, table, values, as_numpy(table, WINDOW[1]), name))
    elif isinstance(span.source, Emitted):
        yield from _emitted(plan, span, name)
    elif isinstance(span.source, InOrder):
        assert isinstance(fed.task, in_order.States)
        if isinstance(join := fed.task.ordered, Join):
            yield from joined.read(plan, fed, join, span, name)
        else:
            yield from in_order.read(plan, fed, span, name)
    else:
        for some in changed_between(
            plan.files, plan.layout, span.runs, span.since, span.clock, every=span.every, ended=span.ended, anew=True
        ):
            yield from _messages(plan, span, some, name)


def _emitted(plan: Plan, span: Span, name: str) -> Iterator[Chunk]:
    """Yield the rows of a shard that an ordered task has emitted."""
    layout, levels = plan.layout, open_runs(plan, span.changed_runs)
    for low, high in fold.slices(levels):
        table = passed([between(level, low, high) for level in levels], layout, span.since, span.clock)
        if len(table) == 0:
            continue
        keys = [one_chunk(table[key]) for key in layout.key_names]
        columns = in_order.emitted_rows(plan, keys, one_chunk(table["start"]), one_chunk(table["value"]))
        rows = pa.RecordBatch.from_arrays(columns, schema=in_order.emitted_schema(plan))
        yield Chunk(name, 0, rows, at=_places(table, layout, in_order.most_ranks(plan.feeders[INPUT])))


def _places(table: pa.Table, layout: Layout, ranks: int) -> Times:
    """Return what puts emitted rows of one moment in order.

    They come by rank, of which there are so many, then by the hash of the key, and those of a key as it emitted them.
    """
    starts, numbers = as_numpy(table, "start"), np.arange(len(table))
    begins = ~same_keys(table, layout)
    begins[1:] |= starts[1:] != starts[:-1]
    numbers -= np.maximum.accumulate(np.where(begins, numbers, 0))
    bits = (ranks - 1).bit_length()
    places: Times = in_order.ranks_of(table) << (63 - bits)
    places |= _at(table) >> (NUMBER_BITS + bits) << NUMBER_BITS | numbers
    return places


def _messages(plan: Plan, span: Span, some: Changed, name: str) -> Iterator[Chunk]:
    """Yield the messages that changes are. Where nothing differs there is none, though messages may have come."""
    before, after = (_shown(plan, _left(plan, values)) for values in (some.before, some.after))
    # What was added is taken away again as user code made it, which can tell the two zeros apart.
    differs = ~are_equal(before, after, signed_zeros=span.takes_back)
    if not differs.any():
        return
    picked, mask = some.take(differs), pa.array(differs)
    before, after = before.filter(mask), after.filter(mask)
    if not span.takes_back:
        both = pa.StructArray.from_arrays([before, after], names=[BEFORE, AFTER])
        yield Chunk(**_rows(plan, picked.rows, both, picked.clocks, name))
        return
    for kind, values in ((TakenBack, before), (Chunk, after)):
        there = values.is_valid()
        rows, at = picked.rows.filter(there), picked.clocks[np.asarray(there)]
        yield kind(**_rows(plan, rows, values.filter(there), at, name))


def _left(plan: Plan, values: pa.Array) -> pa.Array:
    """Return a task's values; null where nothing is left of all that the task was fed.

    The task keeps such a key with the zero. Which of these keys it has depends on the clocks that it has visited, and what it
    feeds must not depend on them.
    """
    if not any(isinstance(source, Changes) for source in plan.upstream.values()) or not plan.takes_back:
        return values
    monoid, rows = plan.layout.monoid, np.arange(len(values))
    zeros = monoid.to_arrow([monoid.zero]).take(pa.array(np.zeros_like(rows)))
    return values.take(pa.array(rows, mask=are_equal(values, zeros)))


def _shown(plan: Plan, values: pa.Array) -> pa.Array:
    """Return what outputs show of a column of values as structs; null where there is no value, and nowhere else."""
    there = values.is_valid()
    shown = plan.present(values.drop_null())
    if not pa.types.is_struct(shown.type):
        shown = pa.StructArray.from_arrays([shown], fields=_fields(plan.state.presented))
    elif shown.null_count:
        # A value that is presented as null is there all the same: its fields are null.
        shown = pa.StructArray.from_arrays(shown.flatten(), fields=list(shown.type))
    place = np.cumsum(np.asarray(there)) - 1
    return shown.take(pa.array(place, mask=~np.asarray(there)))


def _rows(plan: Plan, table: pa.Table, values: pa.StructArray, clocks: Times, name: str) -> dict[str, Any]:
    """Return the arguments of a chunk of these values, whose moment is the last before a clock.

    Nobody reads a row of them again, so no position is remembered. It is of the key: so rows of one moment have an order.
    """
    columns = [one_chunk(table[key]) for key in plan.layout.key_names]
    columns += [one_chunk(table[edge]).cast(TIME) for edge in plan.layout.kind.window_columns]
    times = pa.array(clocks - 1).cast(TIME)
    names = [*plan.task.key_columns, *plan.layout.kind.window_columns, *values.type.names, TIMESTAMP]
    rows = pa.RecordBatch.from_arrays([*columns, *values.flatten(), times], names=names)
    return {
        "partition": name,
        "first": 0,
        "rows": rows,
        "at": _at(table),
    }


def _at(table: pa.Table) -> NDArray[np.int64]:
    return (as_numpy(table, "hash") >> np.uint64(1)).astype(np.int64)


def _fields(type: pa.DataType) -> list[pa.Field]:
    return list(type) if pa.types.is_struct(type) else [pa.field("value", type)]
