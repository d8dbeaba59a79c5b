"""Read what a join makes of the messages that the clock has passed: joined rows, and the newest right rows of keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import cast

import numpy as np
import pyarrow as pa

from persistent_state.batch.plan import Plan
from persistent_state.batch.rows import StepChunk
from persistent_state.edges.base import Span, open_runs
from persistent_state.edges.in_order.messages import messages_part
from persistent_state.edges.in_order.rows import EMITTED
from persistent_state.edges.in_order.states import STATE
from persistent_state.edges.in_order.step import cut, step_chunk
from persistent_state.edges.joins.as_of import AsOfJoin, as_of, newest_rights
from persistent_state.edges.joins.interval import IntervalJoin, interval
from persistent_state.edges.joins.pair import Join
from persistent_state.edges.joins.sides import Joined, column_of
from persistent_state.event_time.clocks import BEGINNING, END
from persistent_state.partials import fold
from persistent_state.partials.layout import Levels, as_numpy, below, between, from_clock, one_chunk
from persistent_state.partials.waiting import rows_passed

SHARE = 4
"""The part of a slice that is joined at a time: a message may be joined with several."""


def read(plan: Plan, fed: Plan, join: Join, span: Span, name: str) -> Iterator[StepChunk]:
    """Let a join join what the clock has passed.

    Args:
        plan: The plan of the task in which the messages wait.
        fed: The plan of the task that has the state.
        join: The join.
        span: The runs of a shard of both.
        name: The partition that the rows are of.
    """
    since = reaches_back(plan, span)
    waiting = open_runs(plan, span.runs_from(since))
    for low, high in fold.slices(waiting, share=SHARE):
        came = [below(from_clock(between(table, low, high), since), span.clock) for table in waiting]
        if not any(map(len, came)):
            continue
        chunks = (
            _as_of(plan, fed, join, span, came, name)
            if isinstance(join, AsOfJoin)
            else _interval(plan, fed, cast(IntervalJoin, join), span, came, name)
        )
        yield from (replace(chunk, high=high) for chunk in chunks)


def reaches_back(plan: Plan, span: Span) -> int:
    """Return the time of the first messages that the task in which they wait, of this plan, still has for the step."""
    return max(BEGINNING, span.since - messages_part(plan).back)


def _most() -> int:
    """Return about how many messages of a key are joined at a time."""
    return max(1, 2 * fold.SLICE // SHARE)


def _interval(plan: Plan, fed: Plan, join: IntervalJoin, span: Span, came: Levels, name: str) -> Iterator[StepChunk]:
    for first, last in pairwise(cut(came, span, _most())):
        messages = rows_passed(came, plan.layout, max(reaches_back(plan, span), first - join.bounds.back), last)
        for some in interval(messages, plan.layout, join.pair, join.bounds, first, last):
            yield _emitted(plan, fed, messages, some, name)


def _as_of(plan: Plan, fed: Plan, join: AsOfJoin, span: Span, came: Levels, name: str) -> Iterator[StepChunk]:
    # Those of each table are in order, so that a stable sort has little to do.
    hashes = np.sort(np.concatenate([as_numpy(table, "hash") for table in came]), kind="stable")
    stored = [below(level, span.clock) for level in open_runs(fed, span.states, [hashes])]
    stored = [fold.touched(level, pa.table({"hash": hashes})) for level in stored]
    new: list[pa.Table] = []
    # A key alone may have more messages than there is room for.
    for first, last in pairwise(cut(came, span, _most())):
        messages = rows_passed(came, plan.layout, first, last)
        kept = fold.fold_keys([*stored, *new], fed.layout)
        for some in as_of(messages, kept, plan.layout, join.pair, join.tolerance):
            yield _emitted(plan, fed, messages, some, name)
        newest = newest_rights(messages, plan.layout, join.pair)
        new.append(_states(messages.take(pa.array(newest)), fed, join))
    changed = fold.fold_keys(new, fed.layout)
    if count := len(changed):
        keys = [one_chunk(changed[key]) for key in plan.layout.key_names]
        values = {STATE: one_chunk(changed["value"])}
        yield step_chunk(plan, fed, keys, values, np.full(count, span.clock - 1), np.zeros(count, np.int64), name)


def _emitted(plan: Plan, fed: Plan, messages: pa.Table, rows: Joined, name: str) -> StepChunk:
    of = pa.array(rows.rows)
    keys = [one_chunk(messages[key]).take(of) for key in plan.layout.key_names]
    return step_chunk(plan, fed, keys, {EMITTED: rows.values}, rows.moments, rows.numbers, name)


def _states(rows: pa.Table, fed: Plan, join: Join) -> pa.Table:
    """Return right rows as the state has them."""
    type, count = fed.layout.monoid.type, len(rows)
    times, timers = one_chunk(rows["start"]), type.field("timers").type
    no_timers = pa.ListArray.from_arrays(np.zeros(count + 1, np.int32), pa.array([], timers.value_type))
    pair = join.pair
    fields = pair.schemas[pair.right]
    right = [column_of(rows, pair, pair.right, name) for name in fields.names]
    columns = [pa.StructArray.from_arrays(right, fields=list(fields)), no_timers, times]
    made = {
        "start": times,
        "newest": times,
        "due": pa.array(np.full(count, END)),
        "value": pa.StructArray.from_arrays(columns, fields=list(type)),
    }
    return pa.table(
        [made[name] if name in made else rows[name] for name in fed.layout.schema.names], schema=fed.layout.schema
    )
