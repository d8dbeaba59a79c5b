"""What a step reads of a task: it is the same where a collection has taken the files that it was planned with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from monoids import Aggregator, Count, List, Sum
from persistent_state import (
    Application,
    Changes,
    DamagedError,
    FencedError,
    FileSource,
    Message,
    NonWindowState,
    PersistentTask,
    run_local,
)
from persistent_state.edges import base
from persistent_state.edges.base import Span
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources.base import Chunk
from persistent_state.store.log import Log
from tests import core

EVENTS = pa.schema([("ts", pa.int64()), ("shop", pa.int64()), ("amount", pa.int64())])
# Clocks that stay, so that what is between them can still be read.
KEEPING = Keeping(100, 0)


class PerShop(PersistentTask):
    key, value = "shop", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class FromTenOn(PerShop):
    """The sum of a shop, of which outputs show nothing below 10."""

    name = "PerShop"

    def __init__(self, shown: pa.DataType, as_shown: Callable[[int], Any]) -> None:
        self.shown, self.as_shown = shown, as_shown

    def persistent_state(self) -> NonWindowState[int]:
        present = Aggregator(
            lambda amount: amount, Sum(), lambda sum: self.as_shown(sum) if sum >= 10 else None, self.shown
        )
        return NonWindowState(present)


class Total(PersistentTask):
    value = "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def rows_of(chunks: Iterable[Chunk]) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(type(chunk).__name__, chunk.rows.to_pylist()) for chunk in chunks]


@pytest.mark.rows_in_files
def test_a_shard_whose_runs_were_collected_is_read_from_those_that_took_their_place() -> None:
    plan, source = core.plan_of(PerShop(), EVENTS), Changes("PerShop")
    fed = core.changed(core.plan_of(Total(), EVENTS), edge=source, feeders={"": plan})
    log = Log(plan.files, plan.application)
    core.start(log, [plan])

    def play(second: int) -> None:
        rows = [{"ts": 10 * second + 5, "shop": shop, "amount": second} for shop in range(second % 5 + 1)]
        core.play(log, plan, pa.RecordBatch.from_pylist(rows, EVENTS), keeping=KEEPING)

    def shard() -> Span:
        entry = log.newest()
        assert entry is not None
        return Span(source, 0, entry.tasks[plan.name].stored.runs, 20, 40, entry.epoch)

    for second in range(6):
        play(second)
    planned, told = shard(), rows_of(base.read_span(fed, "", shard()))
    assert [kind for kind, rows in told if rows] == ["TakenBack", "Chunk"]
    for second in range(6, 30):
        play(second)
    assert not {*planned.runs} & {*shard().runs}
    for run in planned.runs:
        plan.files.delete(run.file.path)
    assert rows_of(base.read_span(fed, "", planned)) == told
    for run in shard().runs:
        plan.files.delete(run.file.path)
    with pytest.raises(DamagedError):
        rows_of(base.read_span(fed, "", planned))
    # The runs of a newer start may be those of other shards.
    core.start(log, [plan])
    with pytest.raises(FencedError, match=r"a newer driver owns app; this one \(epoch 1\) has stopped"):
        rows_of(base.read_span(fed, "", planned))


class Told(PersistentTask):
    """All changes that there were, in order."""

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(List(pa.string()))

    def process_message(self, state: Any, message: Message) -> None:
        state.update(message.timestamp, [f"{message['shop']}: {message['before']} -> {message['after']}"])


class Shops(PersistentTask):
    """How many shops there are."""

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Count())

    def process_message(self, state: Any, message: Message) -> None:
        state.update(message.timestamp, 1)


@pytest.mark.parametrize(
    ("upstream", "column"),
    [
        (FromTenOn(pa.int64(), lambda sum: sum), "value"),
        (FromTenOn(pa.struct({"sum": pa.int64()}), lambda sum: {"sum": sum}), "sum"),
    ],
    ids=["a number", "a struct"],
)
def test_a_key_whose_value_is_presented_as_null_is_there(upstream: PersistentTask, column: str) -> None:
    source = FileSource("in/", timestamp="ts", schema=EVENTS)
    app = Application("app", "memory://changes", checkpoint_interval=core.us(10), max_ahead="100000 days")
    app.add(upstream, source).add(Shops(), Changes("PerShop")).add(Told(), Changes("PerShop", every=core.us(10)))
    messages = [
        Message(time, {"ts": time, "shop": 1, "amount": amount}) for time, amount in ((5, 1), (15, 20), (25, -20))
    ]
    ran = run_local(app, {"PerShop": messages})
    assert ran["Shops"].state == {(): 1}
    nothing, sum = {column: None}, {column: 21}
    assert ran["Told"].state == {(): [f"1: None -> {nothing}", f"1: {nothing} -> {sum}", f"1: {sum} -> {nothing}"]}
