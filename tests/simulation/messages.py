"""What the tasks of a world are fed, and what should become of it: messages, tasks, and folds in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

import monoids
from persistent_state.edges.base import Edge
from persistent_state.edges.changes import AFTER, BEFORE, Changes
from persistent_state.edges.in_order.step import OrderedMessages
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.state import NonWindowState, PersistentState, WindowState
from persistent_state.task import Message, PersistentTask
from persistent_state.windows import WINDOW, SessionWindow, SlidingWindow, TimeToLive, Windowing
from tests.core import us

if TYPE_CHECKING:
    from tests.simulation.ordered import Ordered

UNFIT_VALUE = 2**64 - 1
"""A value of the column `v` that no monoid here takes."""

SCHEMA = pa.schema(
    [
        ("ts", pa.int64()),
        ("k0", pa.int64()),
        ("k1", pa.string()),
        ("c", pa.string()),
        ("v", pa.uint64()),
        ("id", pa.int64()),
        ("strand", pa.string()),
        ("position", pa.int64()),
    ]
)

MONOIDS: dict[str, monoids.Monoid[Any]] = {
    "sum": monoids.Sum(),
    "count": monoids.Count(),
    "struct": monoids.Struct(count=monoids.Count(), sum=monoids.Sum(), min=monoids.Min(), max=monoids.Max()),
    "map": monoids.Map(pa.string(), monoids.Sum()),
    "list": monoids.List(pa.int64()),
    "first": monoids.First(pa.int64()),
    "last": monoids.Last(pa.int64()),
}

ORDERED = ("list", "last", "first")
"""The monoids of which the order of messages matters."""

GROUPS = ("sum", "count")
"""The monoids that are exact groups."""

FED = "fed"
"""The name of an input that is another task."""

PAIR = BEFORE, AFTER
"""The columns of a change that is one row."""


@dataclass(frozen=True)
class Row:
    """A row that a task gives to those that it feeds."""

    timestamp: int
    columns: Mapping[str, Any]
    place: int | tuple[int, int] = 0
    """Its place among those of one moment."""


def number_of(row: Mapping[str, Any]) -> int:
    """A number that every column of a row but its times has a part in."""
    number = sum(_number(value) for name, value in row.items() if name not in (TIMESTAMP, *WINDOW, *PAIR))
    for weight, value in zip((3, 5), (row[side] for side in PAIR if side in row), strict=False):
        # What is not there is not what is zero.
        number += weight * (-1 if value is None else sum(map(_number, value.values())))
    return number


def _number(value: Any) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, Mapping):
        return _number([*value.items()])
    if isinstance(value, (list, tuple)):
        return sum(_number(each) for each in value)
    return len(value) if isinstance(value, str) else 0


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of a partition, or a record that is none (`broken` says why).

    One that is not `placed` comes without its position.
    """

    partition: str
    position: int
    timestamp: int | None
    k0: int | None
    k1: str | None
    channel: str
    value: int | None
    broken: str | None = None
    placed: bool = True
    id: int | None = None

    @property
    def place(self) -> tuple[str, int]:
        return self.partition, self.position

    def row(self) -> tuple[Any, ...]:
        return self.timestamp, self.k0, self.k1, self.channel, self.value, self.id, self.partition, self.position


def batch_of(sent: Sequence[Sent]) -> pa.RecordBatch:
    """Messages as a source delivers them."""
    columns = zip(*(message.row() for message in sent), strict=True) if sent else [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def named(input: str, name: str) -> str:
    """What an input calls so, among all inputs of a task. The one without a name calls it as all do."""
    return f"{input}:{name}" if input else name


def input_of(name: str) -> str:
    """The input of a partition or a channel; in a world, no other name has a colon."""
    input, colon, _ = name.partition(":")
    return input if colon else ""


@dataclass(frozen=True)
class Job:
    """A task as the oracle sees it: which messages it is fed, what it folds them to, and by what key.

    One that may have several `inputs` has them in this order, those of which are part of a start.
    """

    name: str
    source: str
    kind: str
    way: str
    keys: tuple[str, ...]
    by_partition: bool
    windowing: Windowing | None = None
    horizon: int | None = None
    inputs: tuple[str, ...] = ()
    fed: Edge | None = None
    """What another task feeds it, beside its sources."""
    ordered: Ordered | None = None
    """The ordered task whose messages wait in it."""

    @property
    def is_windowed(self) -> bool:
        """Whether there is a value for each key and window."""
        return isinstance(self.windowing, (SlidingWindow, SessionWindow))

    @property
    def is_made_of_state(self) -> bool:
        """Whether what another task feeds it is a function of the state of that task."""
        is_group = self.kind in GROUPS and self.windowing is None and self.ordered is None
        return isinstance(self.fed, Changes) and is_group

    @property
    def is_fed_pairs(self) -> bool:
        """Whether a change is one row to it, with what was before and what is after."""
        return isinstance(self.fed, Changes) and not self.is_made_of_state

    @property
    def zero(self) -> Any:
        return MONOIDS[self.kind].zero

    def channel_of(self, sent: Sent) -> str:
        return sent.partition if self.by_partition else sent.channel

    def order_of(self, sent: Sent | Row) -> tuple[Any, ...]:
        """What decides which of two messages comes first. Those of another task come after those of all sources."""
        if isinstance(sent, Row):
            return sent.timestamp, len(self.inputs), "", sent.place
        place = self.inputs.index(input_of(sent.partition)) if self.inputs else 0
        return sent.timestamp, place, self.channel_of(sent), sent.position

    def key_of(self, sent: Sent | Row) -> tuple[Any, ...]:
        if isinstance(sent, Row):
            return tuple(sent.columns[name] for name in self.keys)
        return tuple(sent.k0 if name == "k0" else sent.k1 for name in self.keys)

    def updates_of(self, sent: Sent | Row) -> list[Any] | None:
        """The values that a message adds; None if they do not fit."""
        if isinstance(sent, Row):
            return [self.update_of(sent.columns)]
        if self.ordered is not None:
            return self.ordered.updates_of(sent)
        if sent.value is None:
            return []
        if sent.value == UNFIT_VALUE:
            return None
        return updates(self.kind, self.way, sent.k1, sent.value)

    def update_of(self, row: Mapping[str, Any]) -> Any:
        """What it makes of a row of another task."""
        number = number_of(row)
        return {"count": 1, "list": [number]}.get(self.kind, number)

    def fold(self, messages: Iterable[Sent | Row]) -> dict[tuple[Any, ...], Any]:
        """By key, the values of all messages, put together in the order of the contract."""
        result: dict[tuple[Any, ...], Any] = {}
        if self.kind in ORDERED:
            messages = sorted(messages, key=self.order_of)
        for sent in messages:
            key = self.key_of(sent)
            for value in self.updates_of(sent) or []:
                result[key] = plus(self.kind, result[key], value) if key in result else value
        return result

    def task(self, note: Callable[[str, int, Any], None]) -> PersistentTask:
        """The task as a user would write it; one that reads its state notes what it read."""
        if self.ordered is not None:
            return OrderedMessages(self.ordered.task(), {"": SCHEMA})
        return {"value": ByValue, "batch": ByBatch, "message": ByMessage, "reads": Reading}[self.way](self, note)


def updates(kind: str, way: str, k1: str | None, value: int) -> list[Any]:
    if kind == "sum":
        return [value]
    if kind == "count":
        return [1]
    if kind == "struct":
        return [{"count": 1, "sum": value, "min": value, "max": value}]
    if kind == "map":
        return [{k1 or "none": value}]
    if kind == "list":
        return [[value]] if way == "batch" or value % 3 else [[value], [-value, 0]]
    return [value] if way == "batch" or value % 3 else [value, -value]


def plus(kind: str, a: Any, b: Any) -> Any:
    """Both together, in plain Python."""
    if kind == "struct":
        return {
            "count": a["count"] + b["count"],
            "sum": a["sum"] + b["sum"],
            "min": min(a["min"], b["min"]),
            "max": max(a["max"], b["max"]),
        }
    if kind == "map":
        return {key: a.get(key, 0) + b.get(key, 0) for key in {**a, **b}}
    if kind in ("last", "first"):
        return b if kind == "last" else a
    return a + b


class _Task(PersistentTask):
    def __init__(self, job: Job, note: Callable[[str, int, Any], None]) -> None:
        self.job = job
        self.note = note
        self.name = job.name
        self.key = job.keys or None
        if job.horizon is not None:
            self.message_id, self.horizon = "id", f"{job.horizon} microseconds"

    def persistent_state(self) -> NonWindowState[Any] | WindowState[Any]:
        monoid, windowing = MONOIDS[self.job.kind], self.job.windowing
        if windowing is None or isinstance(windowing, TimeToLive):
            return NonWindowState(monoid, ttl=windowing and us(windowing.ttl))
        return WindowState(monoid, windowing)


class ByValue(_Task):
    def __init__(self, job: Job, note: Callable[[str, int, Any], None]) -> None:
        super().__init__(job, note)
        self.value = "v"


class ByBatch(_Task):
    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        kind, values = self.job.kind, batch.column("v").to_pylist()
        if kind == "sum":
            return batch.column("v")
        # An unfit value stays one whatever it is wrapped into.
        types = {
            "count": pa.uint64(),
            "struct": pa.struct([(name, pa.uint64()) for name in ("count", "sum", "min", "max")]),
            "map": pa.map_(pa.string(), pa.uint64()),
            "list": pa.list_(pa.uint64()),
            "first": pa.uint64(),
            "last": pa.uint64(),
        }
        rows = [
            None if v is None else v if kind == "count" and v == UNFIT_VALUE else updates(kind, "batch", k, v)[0]
            for v, k in zip(values, batch.column("k1").to_pylist(), strict=True)
        ]
        rows = [list(row.items()) if kind == "map" and row is not None else row for row in rows]
        return pa.array(rows, types[kind])


class ByMessage(_Task):
    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        value = message["v"]
        if value is None:
            if message["position"] % 2:
                state.update(message.timestamp, None)
        elif value == UNFIT_VALUE:
            state.update(message.timestamp, "unfit")
        else:
            for update in updates(self.job.kind, self.job.way, message["k1"], value):
                state.update(message.timestamp, update)


class Reading(ByMessage):
    reads_state: ClassVar[bool] = True

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        self.note(message["strand"], message["position"], state.get())
        super().process_message(state, message)
