"""A part of a micro-batch goes out in pieces where it is much: the shards make the same of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from monoids import List, Monoid, Sum
from persistent_state import Message, NonWindowState, PersistentState, PersistentTask
from persistent_state.batch import combine as combining
from persistent_state.batch import packets
from persistent_state.batch.combine import combine
from persistent_state.batch.judge import Sightings
from persistent_state.batch.lift import Read
from persistent_state.batch.packets import Answers, Basis, Blob, Report
from persistent_state.batch.plan import Plan
from persistent_state.batch.shard import merge_shard
from persistent_state.errors import DisagreementError
from persistent_state.event_time.clocks import Settings
from persistent_state.partials import few, fold
from persistent_state.protocol.commits import plan_batch
from persistent_state.sources.base import Chunk, Reach
from persistent_state.store import late_rows
from persistent_state.store.log import Log
from tests import core

SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.string()), ("value", pa.int64())])
ROWS = 4000


class Sums(PersistentTask):
    key = "key"
    value = "value"
    monoid: Monoid[Any] = Sum()

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)


class Once(Sums):
    message_id = "value"
    horizon = "1 second"


class Lists(Sums):
    monoid = List(pa.int64())
    value = None

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([[value] for value in batch.column("value").to_pylist()], pa.list_(pa.int64()))


class Reads(Sums):
    reads_state = True
    value = None

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, message["value"] + (state.get() > 0))


def chunks(keys: int) -> list[Chunk]:
    """Messages in order; the first half is far behind the second, and now and then one has no timestamp."""
    numbers = np.arange(ROWS)
    stamps = pa.array(numbers + 10_000 * (numbers > ROWS // 2), mask=numbers % 500 == 3)
    rows = pa.record_batch([stamps, pa.array([f"key-{n % keys}" for n in numbers]), pa.array(numbers)], schema=SCHEMA)
    return [Chunk("", first, rows.slice(first, 100)) for first in range(0, ROWS, 100)]


def planned(task: PersistentTask) -> tuple[Log, Plan, Basis]:
    plan = core.plan_of(task, SCHEMA, settings=Settings(10, ahead=2**62), shards=3)
    log = Log(plan.files, "app")
    entry, reach = core.start(log, [plan]), Reach({"": ROWS})
    return log, plan, plan_batch(entry, core.alone(plan), reach, 0)


def committed(task: PersistentTask, keys: int) -> tuple[Any, int]:
    """The state at every clock that is kept and the bad rows of a micro-batch, and in how many blobs it came."""
    log, plan, basis = planned(task)
    *blobs, report = combine(core.alone(plan), basis, 0, 1, chunks(keys))
    assert isinstance(report, Report)
    sent = [blob.to_bytes() for blob in blobs]
    some = [[blob for blob in map(Blob.from_bytes, sent) if blob.shard == shard] for shard in range(plan.shards)]
    flow = core.alone(plan)
    made = [
        each
        for shard, of_shard in enumerate(some)
        for each in merge_shard(flow, shard, of_shard[::-1], {}, core.new_id)[0]
    ]
    entry = core.commit(log, plan, Answers([report], made))
    aside = [
        row
        for table in late_rows.read_all(plan.files, entry.late_rows_of(plan.name))
        for row in table["position"].to_pylist()
    ]
    assert report.counts["messages"] == ROWS
    return ([core.state_at(entry, plan, clock) for clock in (*entry.retained, None)], sorted(aside)), len(blobs)


@pytest.mark.parametrize("keys", [1, 3, ROWS])
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_part_of_few_keys_sends_the_same_without_sorting_it(keys: int, is_behind: bool) -> None:
    def sent() -> list[bytes]:
        _, plan, basis = planned(Sums())
        basis = replace(basis, is_behind=is_behind, apart=(2_004, 10_005))
        return [each.to_bytes() for each in combine(core.alone(plan), basis, 0, 1, chunks(keys))]

    with mock.patch.object(few, "fold_few", wraps=few.fold_few) as folded:
        unsorted = sent()
    assert folded.call_count == (0 if keys == ROWS else ROWS // 100)
    with mock.patch.object(few, "may_fold", return_value=False):
        assert unsorted == sent()


def test_late_rows_go_out_in_pieces_and_each_once() -> None:
    _, plan, basis = planned(Sums())
    basis = replace(basis, clock=10**9)
    with mock.patch.object(fold, "SLICE_BYTES", 20_000), mock.patch.object(combining, "PIECE_BYTES", 3_000):
        sent = list(combine(core.alone(plan), basis, 0, 1, [*chunks(3), Chunk("", ROWS, whole_rows())]))
    late = [table for blob in sent if isinstance(blob, Blob) for table in blob.late]
    assert sum(len(table) for table in late) == 2 * ROWS
    # A piece is cut by rows, which are not all of one size.
    assert max(sum(table.nbytes for table in blob.late) for blob in sent if isinstance(blob, Blob)) < 2 * 3_000
    assert {blob.shard for blob in sent if isinstance(blob, Blob) and blob.late} == {0}


def whole_rows() -> pa.RecordBatch:
    """The rows of all chunks as one."""
    return pa.Table.from_batches([chunk.rows for chunk in chunks(3)]).combine_chunks().to_batches()[0]


@pytest.mark.parametrize("limits", [(1, 1 << 25), (7, 1 << 25), (1 << 16, 1), (1 << 16, 500), (1 << 16, 1 << 25)])
@pytest.mark.parametrize("task", [Sums(), Once(), Lists(), Reads()], ids=lambda task: task.task_name)
def test_what_a_blob_leaves_out_is_worked_out_again(task: PersistentTask, limits: tuple[int, int]) -> None:
    _, plan, basis = planned(task)
    with mock.patch.object(combining, "slim", lambda table: table):
        whole = [blob for blob in combine(core.alone(plan), basis, 0, 1, chunks(50)) if isinstance(blob, Blob)]
    slim = [Blob.from_bytes(replace_tables(blob).to_bytes()) for blob in whole]
    rows, size = limits
    with mock.patch.multiple(packets, GATHERED_ROWS=rows, GATHERED_BYTES=size):
        made = packets.whole_tables([table for blob in slim for table in blob.of(plan.name).tables])
    expected = [table for blob in whole for table in blob.of(plan.name).tables]
    assert len(expected) > 2
    assert [table.to_pylist() for table in made] == [table.to_pylist() for table in expected]
    assert [table.schema for table in made] == [table.schema for table in expected]


def replace_tables(blob: Blob) -> Blob:
    """The blob with tables as they are sent."""
    contents = {
        task: replace(content, tables=tuple(map(packets.slim, content.tables)))
        for task, content in blob.contents.items()
    }
    return replace(blob, contents=contents)


@pytest.mark.parametrize("keys", [5, ROWS])
@pytest.mark.parametrize("task", [Sums(), Once(), Lists(), Reads()], ids=lambda task: task.task_name)
def test_a_part_in_pieces_comes_to_the_same(task: PersistentTask, keys: int) -> None:
    whole, few = committed(task, keys)
    with mock.patch.object(fold, "SLICE_BYTES", 20_000), mock.patch.object(combining, "PIECE_BYTES", 3_000):
        in_pieces, many = committed(task, keys)
    assert in_pieces == whole
    # One for each shard, and one of late rows.
    assert few == 4
    # Where keys are few they are folded instead.
    assert many > 30 or (keys == 5 and isinstance(task, Sums) and many == 4)


def test_a_flow_that_is_behind_keeps_the_clocks_apart_that_it_passes() -> None:
    _, plan, basis = planned(Sums())
    rows = pa.record_batch([pa.array([21, 24, 25, 29]), pa.array(["a"] * 4), pa.array([1, 2, 4, 8])], schema=SCHEMA)
    sent = combine(core.alone(plan), replace(basis, is_behind=True, apart=(25,)), 0, 1, [Chunk("", 0, rows)])
    tables = [table for blob in sent if isinstance(blob, Blob) for table in blob.of(plan.name).tables]
    starts = sorted({start for table in packets.whole_tables(tables) for start in table["start"].to_pylist()})
    assert starts == [20, 25]


def test_a_channel_has_the_delay_of_the_input_whose_name_it_begins_with() -> None:
    plan = core.plan_of(Sums(), SCHEMA, settings=Settings(10, delay=3, ahead=2**62))
    entry = core.start(Log(plan.files, "app"), [plan])
    basis = plan_batch(entry, core.alone(plan), Reach({}), 0)
    read = Read(sightings=Sightings(newest={"a:b": 100}))
    # An only input without a name may call its channels so.
    assert combining._horizon(plan, basis, read) == 97
    of_each = {"a": replace(plan.settings, delay=7)}
    named = replace(plan, inputs={"a": plan.only}, settings=replace(plan.settings, inputs=of_each))
    assert combining._horizon(named, basis, read) == 93


def test_no_more_than_a_few_rows_wait_for_the_end_of_a_part() -> None:
    _, plan, basis = planned(Sums())
    read, waiting = 0, 0

    def told() -> Any:
        nonlocal read
        for chunk in chunks(ROWS):
            read += chunk.rows.num_rows
            yield chunk

    with mock.patch.object(fold, "SLICE_BYTES", 20_000):
        sent = 0
        for blob in combine(core.alone(plan), basis, 0, 1, told()):
            waiting = max(waiting, read - sent)
            sent += 0 if isinstance(blob, Report) else sum(len(table) for table in blob.of(plan.name).tables)
    assert waiting < ROWS / 4


def test_a_piece_that_is_missing_or_came_twice_is_noticed() -> None:
    _, plan, basis = planned(Sums())
    with mock.patch.object(fold, "SLICE_BYTES", 20_000):
        sent = combine(core.alone(plan), basis, 0, 1, chunks(ROWS))
        blobs = [blob for blob in sent if isinstance(blob, Blob) and blob.shard == 0]
    assert len(blobs) > 2
    for wrong in (blobs[1:], [*blobs, blobs[0]], [*blobs, blobs[-1]], blobs[:-1]):
        with pytest.raises(DisagreementError):
            merge_shard(core.alone(plan), 0, wrong, {}, core.new_id)
