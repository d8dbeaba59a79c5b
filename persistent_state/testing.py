"""Run a task, or a graph of tasks, without Spark, in tests."""

from __future__ import annotations

import itertools
import logging
import math
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, overload

import pyarrow as pa

from persistent_state.application import Application
from persistent_state.batch.packets import ACTED, PROCESSED
from persistent_state.batch.plan import KEEP, Plan
from persistent_state.drive.local import LocalDriver, flows_of
from persistent_state.edges.output_rows import output_rows
from persistent_state.errors import InvalidInputError, TaskFailedError
from persistent_state.event_time.clocks import BEGINNING, Bounds
from persistent_state.event_time.durations import LONGEST, Duration
from persistent_state.event_time.inputs import INPUT
from persistent_state.formatting import counted, values_in_python
from persistent_state.inputs import AnySource, Inputs
from persistent_state.ordered import InOrderTask
from persistent_state.partials import layout
from persistent_state.partials.since import Since
from persistent_state.protocol import takeover
from persistent_state.protocol.global_clock import Keeping
from persistent_state.setup.added import with_output, with_sources
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.files import FileSource
from persistent_state.sources.messages import MessageSource
from persistent_state.sources.schemas import AnySchema, arrow_schema
from persistent_state.store import late_rows
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.flow_state import LateRows
from persistent_state.store.log import Log
from persistent_state.store.state_at import read_side, seen_below
from persistent_state.task import LOCAL_TIMESTAMP, Message, PersistentTask, name_of_messages, name_of_rows

_logger = logging.getLogger("persistent_state")

_STORE = "memory://run-local"
_NO_LIMIT = timedelta(microseconds=LONGEST)
_NO_BOUNDS = Bounds()
_LACKED = re.compile(r"""(?:has no column|Field) \\?['"](.+?)\\?['"](?:, but| does not exist in schema)""")
"""The error of a message, and that of an Arrow batch, which lacks a column."""
_KEEPING = Keeping(clocks=2**31, grace=0)


@dataclass(frozen=True)
class LocalRun:
    """The result of `run_local`.

    A key is a plain value, a tuple if there are several key columns, () if there are no key columns. For a `WindowState` the
    keys are tuples that end with the window's start and end, in microseconds UTC.

    Attributes:
        states: By checkpoint clock (microseconds UTC) and key: the state. For a `WindowState` it has the open windows.
        outputs: By checkpoint clock and key: what outputs show of the keys that changed since the clock before. For a
            `WindowState` it has the windows that have closed since then.
        late: The late and bad rows, each with its `reason`, `timestamp`, `partition`, `channel`, `position` and `row`: the
            columns of the message; of a task with several inputs, by the name of the input.
        emitted: The rows that an `OrderedTask` emitted, by their `timestamp` (microseconds UTC), those of a key in their order:
            the key columns, the columns of `emits`, and `timestamp`.
        copies: The number of messages that `message_id` left out, as an earlier one had their id.

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
    emitted: Sequence[Mapping[str, Any]] = ()
    copies: int = 0

    @property
    def clocks(self) -> list[int]:
        """The checkpoint clocks in microseconds UTC, ascending."""
        return sorted(self.states)

    @property
    def state(self) -> Mapping[Any, Any]:
        """The state of every message that was not late."""
        return self.states[self.clocks[-1]] if self.states else {}


@overload
def run_local(
    task: PersistentTask | InOrderTask,
    messages: Iterable[Message],
    *,
    batch_size: int = 100,
    checkpoint_interval: Duration = "1 minute",
    allowed_delay: Duration = "0 seconds",
    schema: AnySchema | None = None,
    on_bad_row: str = KEEP,
    timestamp_unit: str | None = None,
) -> LocalRun: ...


@overload
def run_local(
    task: Application,
    messages: Mapping[str, Iterable[Message] | Mapping[str, Iterable[Message]]],
    *,
    batch_size: int = 100,
) -> dict[str, LocalRun]: ...


def run_local(
    task: PersistentTask | InOrderTask | Application,
    messages: Any,
    *,
    batch_size: int = 100,
    checkpoint_interval: Duration | None = None,
    allowed_delay: Duration | None = None,
    schema: AnySchema | None = None,
    on_bad_row: str | None = None,
    timestamp_unit: str | None = None,
) -> LocalRun | dict[str, LocalRun]:
    """Run a task, or all tasks of an application, over messages without Spark, and return states, outputs and late rows.

    All messages are read, and the tasks are drained. If rows did not count, the logger `persistent_state` has one warning for
    each task that says how many and why. If none of a task's messages made an update, it has a warning of that, and if an
    `OrderedTask` returned no state and emitted no row for any of them. It has one of messages that lack a key column, whose key
    is None, and of those that lack the value column, which make no update. There is no wall clock, so no timestamp is too far
    ahead of it, and channels are never idle.

    If you give an application, its store, sources and sinks are not touched. The messages stand for the rows of the sources.
    Each source gives a list of them as one channel, in micro-batches that take turns. Everything else is as the application
    says it. A message that lacks the column of its source's timestamps has its timestamp there, if the source's schema has the
    column. Else, and for a task alone, write that column, too, if the task looks at it.

    Args:
        task: The task, or the application.
        messages: The messages, in the order of their arrival. For an application they are given by the name of each task that
            a source feeds, and if that has several sources, by the name of each such input. If tasks share a source, name one
            of them. Do not name another task that is an input. A list may be empty if the source has a schema.
        batch_size: How many messages of a source a micro-batch has.
        checkpoint_interval: The time between checkpoint clocks: a text such as "1 minute", or a `timedelta`; by default
            "1 minute". This and what follows is for a task alone.
        allowed_delay: How far a message may be behind the newest message before it and not be late; by default "0 seconds".
        schema: The types of the messages' columns, as an Arrow schema, DDL or a schema of Spark; by default inferred from the
            values. For an application the types are those of each source that has a schema.
        on_bad_row: "keep", the default, returns bad rows with the late ones, "fail" raises at the first one.
        timestamp_unit: The unit of integer timestamps, "s", "ms", "us" or "ns"; by default microseconds.

    Returns:
        What the task made of the messages; for an application, what each task made of them, by its name.

    Raises:
        InvalidInputError: The task does not fit the messages, or the messages do not fit the application.
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

        An application with a task that another one feeds:

        >>> class OfAll(PersistentTask):
        ...     value = "value"
        ...
        ...     def persistent_state(self):
        ...         return NonWindowState(Sum())
        >>> app = Application("bank", "memory://docs", checkpoint_interval="1 second")
        >>> app = app.add(Total(), FileSource("payments/", timestamp="time")).add(OfAll(), Changes("Total"))
        >>> ran = run_local(app, {"Total": messages})
        >>> ran["Total"].state, ran["OfAll"].state
        ({'ann': 7}, {(): 7})

        A task that processes its messages in order:

        >>> class Rises(OrderedTask):
        ...     key, state = "account", pa.int64()
        ...     emits = pa.schema([("by", pa.int64())])
        ...
        ...     def process(self, state, message, context):
        ...         if state is not None and message["amount"] > state:
        ...             context.emit(by=message["amount"] - state)
        ...         return message["amount"]
        >>> run_local(Rises(), reversed(messages), allowed_delay="1 second").emitted
        [{'account': 'ann', 'by': 1, 'timestamp': 2}]
    """
    if isinstance(task, Application):
        own = {
            "checkpoint_interval": checkpoint_interval,
            "allowed_delay": allowed_delay,
            "schema": schema,
            "on_bad_row": on_bad_row,
            "timestamp_unit": timestamp_unit,
        }
        for name, value in own.items():
            if value is not None:
                raise InvalidInputError(
                    f"{name}={value!r} is for a task alone; application={task.name} says that itself, so leave it out."
                )
        return _run(_on_messages(task, messages, batch_size))
    messages = [*messages]
    if not messages and schema is None:
        return LocalRun({}, {}, [])
    source = MessageSource(messages, None if schema is None else arrow_schema(schema), batch_size, timestamp_unit)
    app = Application(
        "local",
        _STORE,
        checkpoint_interval="1 minute" if checkpoint_interval is None else checkpoint_interval,
        allowed_delay="0 seconds" if allowed_delay is None else allowed_delay,
        max_ahead=_NO_LIMIT,
    )
    app.add(task, source, on_bad_row=KEEP if on_bad_row is None else on_bad_row)
    return _run(app)[task.task_name]


def _output(values: Any, clock: int) -> None:
    """Stand for the outputs of a task. It is given nothing meanwhile, so what expires stays until all outputs are read."""


def _on_messages(app: Application, messages: Any, batch_size: int) -> Application:
    """Return an application of the same tasks on messages in place of sources."""
    sources = _sources(app, messages, batch_size)
    local = replace(app, store=_STORE, max_ahead=_NO_LIMIT)
    local.added = with_sources(app.added, sources)
    return local


def _sources(app: Application, messages: Any, batch_size: int) -> dict[int, MessageSource]:
    """Return the messages of each source of an application, by the source's id.

    Raises:
        InvalidInputError: The messages are given to what no source feeds, or twice to one source, or not to each.
    """
    if not isinstance(messages, Mapping):
        raise InvalidInputError(
            f"messages of application={app.name} are given as a {type(messages).__name__}; give a mapping from the name of "
            "each task that a source feeds to its messages."
        )
    fed = dict[str, dict[str, Any]]()
    for added in app.added:
        if added.sources:
            fed[added.named] = added.sources
    found: dict[int, tuple[str, MessageSource]] = {}
    for task, given in messages.items():
        sources = fed.get(task)
        if not sources:
            raise InvalidInputError(
                f"messages are given to task={task}, which no source feeds; give them to those of {', '.join(fed)}."
            )
        way = "as a list" if [*sources] == [INPUT] else f"by the names of inputs, {', '.join(map(repr, sources))}"
        if not isinstance(given, Mapping):
            if len(sources) > 1:
                raise InvalidInputError(f"messages of task={task} are given as one list; give them {way}.")
            given = dict.fromkeys(sources, given)
        for input, some in given.items():
            if input not in sources:
                raise InvalidInputError(f"messages of task={task} are given to input {input!r}; give them {way}.")
            source, place = sources[input], _place(task, input)
            if id(source) in found:
                other, _ = found[id(source)]
                raise InvalidInputError(f"{place} shares its source with {other}; give messages to one of them.")
            rows, schema = [*some], _schema_of(source)
            if not rows and schema is None:
                raise InvalidInputError(
                    f"{place} has no messages, and its source tells no schema; give it a message, or the source a schema."
                )
            bounds = source.bounds if isinstance(source, TimeReplayableSource) else _NO_BOUNDS
            is_finite = isinstance(source, FileSource) and source.finite
            time = getattr(source, "timestamp", None), getattr(source, "timestamp_unit", None)
            local = MessageSource(rows, schema, batch_size, bounds=bounds, is_finite=is_finite, time=time)
            if pa.types.is_int64(local.schema.field(LOCAL_TIMESTAMP).type):
                # They are microseconds, as a Message has them, and there is no argument that could say so.
                local.timestamp_unit = "us"
            found[id(source)] = place, local
    for task, sources in fed.items():
        for input, source in sources.items():
            if id(source) not in found:
                raise InvalidInputError(f"{_place(task, input)} got no messages; give it some, or [] for none.")
    return {id: rows for id, (_, rows) in found.items()}


def _place(task: str, input: str) -> str:
    """Return a task's input as messages name it."""
    return f"input {input!r} of task={task}" if input else f"task={task}"


def _schema_of(source: AnySource) -> pa.Schema | None:
    """Return the columns of a source; None if it has no schema."""
    try:
        schema = getattr(source, "schema", None)
    except Exception:
        # Some look at their first file for it, which a test may be unable to reach.
        return None
    return schema if isinstance(schema, pa.Schema) else None


def _run(app: Application) -> dict[str, LocalRun]:
    """Run an application whose sources are messages, and return what each task made of them."""
    if not app.added:
        raise InvalidInputError(f"application {app.name} has no task; add one.")
    files = open_files(f"{_STORE}-{uuid.uuid4().hex}")
    app.added = with_output(app.added, _output)
    plans = app._plans(files, 1, _columns_of)
    for plan in plans.values():
        if plan.update_way == "column":
            raise InvalidInputError(
                f"task={plan.name} says its update in process_column, which needs Spark; run it there."
            )
    _warn_of_absent(app, plans)
    try:
        driver = _Driver(app, plans, Log(files, app.name))
        entry = driver.run()
        return {name: _result(name, plans, entry, driver) for name in dict.fromkeys(added.named for added in app.added)}
    except TaskFailedError as error:
        cause = error.__cause__
        lacked = _LACKED.search(str(cause)) if isinstance(cause, KeyError) else None
        columns = {name for plan in plans.values() for each in plan.inputs.values() for name in each.schema.names}
        if lacked and not get_close_matches(lacked[1], columns, 1, 0.8):
            raise TaskFailedError(
                f"{error} A message has the columns that you write: if this is the column of the source's timestamps, write "
                "it, too."
            ) from cause
        raise
    finally:
        for plan in plans.values():
            _delete_all(plan)


def _warn_of_absent(app: Application, plans: Mapping[str, Plan]) -> None:
    """Warn of messages that lack a key column or the value column of their task: it is null, as it is for a source's record."""
    for added in app.added:
        plan = plans[added.name]
        for input, of in added.inputs.items():
            if isinstance(of.source, MessageSource):
                task, place = plan.inputs[input].task, _place(plan.named, input)
                for column in task.key_columns:
                    of.source.warn_of_absent("key", column, ("counts under None", "count under None"), place)
                if task.value is not None:
                    of.source.warn_of_absent("value", task.value, ("makes no update", "make no update"), place)


def _columns_of(task: PersistentTask, source: AnySource) -> tuple[MessageSource, pa.Schema, None]:
    assert isinstance(source, MessageSource)
    return source, source.schema, None


class _Driver:
    """The driver of an application on messages, and what it has seen of them."""

    def __init__(self, app: Application, plans: Mapping[str, Plan], log: Log) -> None:
        # Tasks that only sources feed come first: what others make of them is known before the next messages.
        flows = sorted(flows_of(plans), key=lambda flow: bool(flow.first.upstream))
        sources = {
            added.name: Inputs(
                {name: of.source for name, of in added.inputs.items() if isinstance(of.source, MessageSource)}
            )
            for added in app.added
        }
        interval = flows[0].first.settings.interval
        takeover.take_over(log, flows, interval=interval, shards=1, writer="local", now=0)
        new_id = map(str, itertools.count()).__next__
        self._driver = LocalDriver(log, flows, sources, keeping=_KEEPING, now=lambda: 0, new_id=new_id)
        self.messages, self.copies, self._updated = Counter[str](), Counter[str](), set[str]()
        self._processed, self._acted = Counter[str](), Counter[str]()
        self.misfits = dict[str, str]()

    def run(self) -> Entry:
        """Read all messages, take all steps, give all tasks one clock, and return the last entry."""
        for answers in self._driver.drain():
            counts = sum((Counter(report.counts) for report in answers.reports), Counter[str]())
            for report in answers.reports:
                self.misfits = {**report.misfits, **self.misfits}
            for descriptor in answers.descriptors:
                self.messages[descriptor.task] += counts["messages"] - descriptor.copies
                self.copies[descriptor.task] += descriptor.copies
                self._updated |= {descriptor.task} if descriptor.runs else set()
                self._processed[descriptor.task] += counts[PROCESSED]
                self._acted[descriptor.task] += counts[ACTED]
        return self._driver.entry

    def made_no_update(self, task: str) -> bool:
        """Return whether messages of a task counted, and none of them made an update."""
        aside = sum(self._driver.entry.late_counts_of(task).values())
        return task not in self._updated and self.messages[task] > aside

    def had_no_effect(self, task: str) -> bool:
        """Return whether an ordered task has processed messages, and has kept and emitted nothing."""
        aside = sum(self._driver.entry.late_counts_of(task).values())
        return not self._acted[task] and self._processed[task] > aside


def _result(name: str, plans: Mapping[str, Plan], entry: Entry, driver: _Driver) -> LocalRun:
    plan = plans[name]
    task = entry.tasks[name]
    runs = task.stored.runs
    states, outputs = {}, {}
    aggregator = plan.state.aggregator
    present = aggregator.present if aggregator else lambda value: value
    before = BEGINNING
    is_ordered = plan.is_in_order
    for clock in entry.retained:
        states[clock] = _as_dict(seen_below(plan.files, runs, plan.layout, clock), plan)
        if is_ordered:
            states[clock] = {key: present(kept) for key, kept in states[clock].items()}
        changed = seen_below(plan.files, runs, plan.layout, clock, Since(before), task.stored.floor)
        try:
            outputs[clock] = {key: present(value) for key, value in _as_dict(changed, plan).items()}
            if aggregator and aggregator.type is not None:
                # An output of a real run is a column of this type.
                plan.state.present(layout.one_chunk(changed["value"]))
        except Exception as error:
            raise plan.failed_to_present(error) from error
        before = clock
    names = [name_of_messages(name), name] if is_ordered else [name]
    reasons = sum((Counter(entry.late_counts_of(each)) for each in names), Counter[str]())
    # The user has asked for these to be left out.
    reasons.pop(late_rows.OUTSIDE, None)
    if reasons:
        hints = {late_rows.UNFIT: f" ({driver.misfits.get(name, plan.fitting)})"}
        counts = ", ".join(f"{count:,} {reason!r}{hints.get(reason, '')}" for reason, count in reasons.most_common())
        is_kept = any(of.on_bad_row == KEEP for of in plans[names[0]].inputs.values())
        stop = ", or stop at the first with on_bad_row='fail'" if is_kept and {*reasons} != {late_rows.LATE} else ""
        rows = counted(reasons.total(), "row")
        _logger.warning("task=%s: %s did not count: %s. See `late` of the run%s.", plan.name, rows, counts, stop)
    if driver.made_no_update(names[0]) or driver.had_no_effect(name):
        read = driver.messages[names[0]]
        _logger.warning("task=%s: %s read%s.", name, counted(read, "message"), plan.without_updates)
    late = [row for each in names for row in _late(plans[names[0]], entry.late_rows_of(each))]
    emitted = _emitted(plans[name_of_rows(name)], entry) if is_ordered else ()
    return LocalRun(states, outputs, late, emitted, driver.copies[names[0]])


def _emitted(plan: Plan, entry: Entry) -> list[dict[str, Any]]:
    """Return the rows that an ordered task emitted, given the plan of the task that has them."""
    stored = entry.tasks[plan.name].stored
    table = seen_below(plan.files, stored.runs, plan.layout, entry.clock, Since(BEGINNING), stored.floor)
    rows = output_rows(plan)
    found, moment = rows.of(table.remove_column(0)), rows.schema.names[-1]
    # Timestamps are microseconds here.
    found = found.set_column(found.num_columns - 1, moment, table.column(table.num_columns - 2))
    return sorted(found.to_pylist(), key=lambda row: row[moment])


def _late(plan: Plan, rows: LateRows) -> Iterator[dict[str, Any]]:
    """Yield the late and bad rows as `OpenApplication.late_rows` does, without the column that stands for the timestamp."""
    for side in late_rows.all_of(plan.files, rows):
        for row in late_rows.readable(read_side(plan.files, side)).to_pylist():
            if plan.has_names:
                shown = {input: some and _without_timestamp(some) for input, some in row["row"].items()}
            else:
                shown = _without_timestamp(row["row"])
            yield {**row, "row": shown}


def _without_timestamp(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != LOCAL_TIMESTAMP}


def _as_dict(table: pa.Table, plan: Plan) -> dict[Any, Any]:
    values = plan.layout.monoid.from_arrow(layout.one_chunk(table["value"]))
    # One NaN for all: a dictionary finds it only as the very same object.
    names = table.column_names[1:-1]
    columns = [[math.nan if x != x else x for x in values_in_python(table[name])] for name in names]
    keys = list(zip(*columns, strict=True))
    if len(names) == 1:
        return {key: value for (key,), value in zip(keys, values, strict=True)}
    return dict(zip(keys or [()] * len(values), values, strict=True))


def _delete_all(plan: Plan) -> None:
    for folder in (f"{plan.application}/log", f"{plan.application}/runs/{plan.name}"):
        for name in plan.files.list(folder):
            plan.files.delete(f"{folder}/{name}")
