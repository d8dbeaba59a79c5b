"""Run a task without Spark, in tests."""

from __future__ import annotations

import logging
import math
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from persistent_state.batch.combine import combine
from persistent_state.batch.messages import Answers
from persistent_state.batch.plan import KEEP, FlowPlan, Plan
from persistent_state.batch.shard import merge_shard
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.event_time.durations import Duration, duration, positive
from persistent_state.partials import layout
from persistent_state.partials.since import Since
from persistent_state.protocol import commits, takeover
from persistent_state.protocol.commits import Keeping
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.sources.schemas import AnySchema, arrow_schema
from persistent_state.store import late_rows
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.flow_state import LateRows
from persistent_state.store.log import Log
from persistent_state.store.state_at import read_side, seen_below
from persistent_state.task import Message, PersistentTask

_logger = logging.getLogger("persistent_state")

TIMESTAMP = "_timestamp"


@dataclass(frozen=True)
class LocalRun:
    """The result of `run_local`.

    A key is a plain value, a tuple if there are several key columns, () if there is none. Of a `WindowState` the keys are
    tuples that end with the window's start and end, in microseconds UTC.

    Attributes:
        states: By checkpoint clock (microseconds UTC) and key: the state. Of a `WindowState` it has the open windows.
        outputs: By checkpoint clock and key: what outputs show of the keys that changed since the clock before. Of a
            `WindowState` it has the windows that have closed since then.
        late: The late and bad rows, each with its `reason`, `timestamp`, `partition`, `channel`, `position` and `row`: the
            columns of the message.

    Example:
        >>> ran = LocalRun(states={10: {"ann": 3}, 20: {"ann": 7}}, outputs={10: {"ann": 3}, 20: {"ann": 7}}, late=[])
        >>> ran.clocks
        [10, 20]
        >>> ran.state
        {'ann': 7}
    """

    states: Mapping[int, Mapping[Any, Any]]
    outputs: Mapping[int, Mapping[Any, Any]]
    late: Sequence[Mapping[str, Any]]

    @property
    def clocks(self) -> list[int]:
        """The checkpoint clocks in microseconds UTC, ascending."""
        return sorted(self.states)

    @property
    def state(self) -> Mapping[Any, Any]:
        """The state of every message that was not late."""
        return self.states[self.clocks[-1]] if self.states else {}


def run_local(
    task: PersistentTask,
    messages: Iterable[Message],
    *,
    checkpoint_interval: Duration = "1 minute",
    allowed_delay: Duration = "0 seconds",
    batch_size: int = 100,
    schema: AnySchema | None = None,
    on_bad_row: str = KEEP,
    timestamp_unit: str | None = None,
) -> LocalRun:
    """Run a task over messages without Spark, drain it, and return its states, outputs and late rows.

    If rows did not count, the logger `persistent_state` has one warning that says how many and why. There is no wall clock, so
    no timestamp is too far ahead of it, and channels are never idle.

    Args:
        task: The task.
        messages: The messages, in the order of their arrival.
        checkpoint_interval: The time between checkpoint clocks: a text such as "1 minute", or a `timedelta`.
        allowed_delay: How far a message may be behind the newest message before it and not be late.
        batch_size: How many messages a micro-batch has.
        schema: The types of the messages' columns, as an Arrow schema, DDL or a schema of Spark; by default inferred from the
            values.
        on_bad_row: "keep" returns bad rows with the late ones, "fail" raises at the first one.
        timestamp_unit: The unit of integer timestamps, "s", "ms", "us" or "ns"; by default microseconds.

    Returns:
        What the task made of the messages.

    Raises:
        InvalidInputError: The task does not fit the messages.
        TaskFailedError: User code raised.

    Example:
        >>> from monoids import Sum
        >>> class Total(PersistentTask):
        ...     key = "account"
        ...     value = "amount"
        ...
        ...     def persistent_state(self):
        ...         return NonWindowState(Sum())
        >>> messages = [Message(1, {"account": "ann", "amount": 3}), Message(2, {"account": "ann", "amount": 4})]
        >>> ran = run_local(Total(), messages, checkpoint_interval="1 second")
        >>> ran.state
        {'ann': 7}
        >>> ran.outputs[ran.clocks[-1]]
        {'ann': 7}
    """
    messages = list(messages)
    if not messages and schema is None:
        return LocalRun({}, {}, [])
    source = _Messages(messages, None if schema is None else arrow_schema(schema), batch_size)
    interval = positive("checkpoint_interval", checkpoint_interval)
    plan = Plan(
        application="local",
        files=open_files(f"memory://run-local-{uuid.uuid4().hex}"),
        task=task,
        schema=source.schema,
        timestamp=TIMESTAMP,
        channel=None,
        settings=Settings(interval, duration("allowed_delay", allowed_delay), ahead=2**62),
        shards=1,
        # One that is given nothing meanwhile: what expires stays until all outputs are read.
        outputs=("outputs",),
        on_bad_row=on_bad_row,
        timestamp_unit=timestamp_unit,
    )
    plan.check()
    if task.update_way == "column":
        raise InvalidInputError(f"task={plan.name} says its update in process_column, which needs Spark; run it there.")
    try:
        return _run(plan, source, interval)
    finally:
        _delete_all(plan)


def _run(plan: Plan, source: _Messages, interval: int) -> LocalRun:
    ids = (str(i) for i in range(2**62))
    keeping = Keeping(clocks=2**31, grace=0)
    log, flow = Log(plan.files, plan.application), FlowPlan((plan,))
    entry = takeover.take_over(log, [flow], interval=interval, shards=1, writer="local", now=0)
    cached: dict[str, Any] = {}
    while True:
        start = entry.flows[flow.id].source.next_positions
        reach = source.reach(start, everything=False)
        if reach.ends == start:
            break
        basis = commits.plan_batch(entry, flow, reach, now=0)
        chunks = (chunk for split in source.splits(start, reach.ends, parts=1) for chunk in source.read(split))
        blobs, report = combine(flow, basis, 0, 1, chunks)
        descriptors, cached = merge_shard(flow, 0, blobs, cached, lambda: next(ids))
        answers = Answers([report], descriptors)
        entry, _ = commits.commit(
            log, entry.epoch, plan.settings, answers, now=0, new_id=lambda: next(ids), keeping=keeping
        )
    return _result(plan, commits.close(log, entry.epoch, now=0, keeping=keeping))


def _result(plan: Plan, entry: Entry) -> LocalRun:
    task = entry.tasks[plan.name]
    runs = task.stored.runs
    states, outputs = {}, {}
    present = plan.state.aggregator.present if plan.state.aggregator else lambda value: value
    before = BEGINNING
    for clock in entry.retained:
        states[clock] = _as_dict(seen_below(plan.files, runs, plan.layout, clock), plan)
        values = _as_dict(seen_below(plan.files, runs, plan.layout, clock, Since(before), task.stored.floor), plan)
        try:
            outputs[clock] = {key: present(value) for key, value in values.items()}
        except Exception as error:
            raise plan.failed_to_present(error) from error
        before = clock
    if reasons := Counter(entry.late_counts_of(plan.name)):
        counts = ", ".join(f"{count:,} {reason!r}" for reason, count in reasons.most_common())
        _logger.warning(
            "task=%s: %s rows did not count: %s. See `late` of the run.", plan.name, reasons.total(), counts
        )
    return LocalRun(states, outputs, list(_late(plan, entry.late_rows_of(plan.name))))


def _late(plan: Plan, rows: LateRows) -> Iterator[dict[str, Any]]:
    """Yield the late and bad rows as `read_late_rows` returns them, without the column that stands for the timestamp."""
    for side in late_rows.all_of(plan.files, rows):
        for row in read_side(plan.files, side).to_pylist():
            columns = {name: value for name, value in row["row"].items() if name != TIMESTAMP}
            yield {**row, "row": columns}


def _as_dict(table: pa.Table, plan: Plan) -> dict[Any, Any]:
    values = plan.layout.monoid.from_arrow(layout.one_chunk(table["value"]))
    # One NaN for all: a dictionary finds it only as the very same object.
    names = table.column_names[1:-1]
    columns = [[math.nan if x != x else x for x in table[name].to_pylist()] for name in names]
    keys = list(zip(*columns, strict=True))
    if len(names) == 1:
        return {key: value for (key,), value in zip(keys, values, strict=True)}
    return dict(zip(keys or [()] * len(values), values, strict=True))


def _delete_all(plan: Plan) -> None:
    for folder in (f"{plan.application}/log", f"{plan.application}/runs/{plan.name}"):
        for name in plan.files.list(folder):
            plan.files.delete(f"{folder}/{name}")


def _timestamps(messages: Sequence[Message]) -> pa.Array:
    """Return the messages' timestamps as a column: integers, or times if they are datetimes.

    Raises:
        InvalidInputError: One is neither, or both kinds are mixed.
    """
    kinds = set()
    for i, message in enumerate(messages):
        if not isinstance(message, Message):
            raise InvalidInputError(
                f"message {i} is {message!r}, a {type(message).__name__}; give Message(timestamp, {{...}}), with the "
                "timestamp in microseconds UTC or as a datetime."
            )
        stamp: object = message.timestamp
        if stamp is None:
            continue
        is_whole = hasattr(stamp, "__index__") and not isinstance(stamp, bool)
        if not is_whole and not isinstance(stamp, datetime):
            raise InvalidInputError(
                f"message {i} has timestamp={stamp!r}; give whole microseconds UTC, or a datetime, which is in UTC if it "
                "tells no zone."
            )
        kinds.add(is_whole)
    if len(kinds) > 1:
        raise InvalidInputError(
            f"some of messages={len(messages)} have integers as timestamps and some datetimes; choose one."
        )
    stamps = [message.timestamp for message in messages]
    return pa.array(stamps, pa.timestamp("us", "UTC") if kinds == {False} else pa.int64())


class _Messages(TimeReplayableSource):
    """A source of messages in memory, as one partition."""

    timestamp = TIMESTAMP

    def __init__(self, messages: Sequence[Message], schema: pa.Schema | None, batch_size: int) -> None:
        if batch_size < 1:
            raise InvalidInputError(f"batch_size={batch_size}; a micro-batch holds at least one message.")
        stamps = _timestamps(messages)
        rows = pa.Table.from_pylist([dict(message) for message in messages], schema)
        if TIMESTAMP in rows.column_names:
            raise InvalidInputError(f"column {TIMESTAMP!r} of the messages stands for their timestamp here; rename it.")
        self._table = rows.add_column(0, TIMESTAMP, stamps).combine_chunks()
        self._batch_size = batch_size

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        pass

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        begin = start.get("", 0)
        end = self._table.num_rows if everything else min(begin + self._batch_size, self._table.num_rows)
        return Reach({"": end} if end > begin else dict(start))

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        return [(start.get("", 0), end.get("", 0))]

    def read(self, split: Any) -> Iterator[Chunk]:
        begin, end = split
        for batch in self._table.slice(begin, end - begin).combine_chunks().to_batches():
            yield Chunk("", begin, batch)
