"""The rows of a DataFrame are lifted in chunks of many rows, however few of them Spark puts into an Arrow batch."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.engine.read import dataframe_source
from persistent_state.engine.read.dataframe_source import chunks_of
from tests import core

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("at", pa.int64()), ("device", pa.string())])


class Sums(PersistentTask):
    key = "k"
    value = "at"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def batches(sizes: list[int]) -> list[pa.RecordBatch]:
    numbers = np.arange(sum(sizes))
    devices = pa.array([f"device-{n % 3}" for n in numbers])
    table = pa.table([pa.array(numbers)] * 3 + [devices], schema=SCHEMA)
    ends = np.cumsum(sizes).tolist()
    return [
        table.slice(end - size, size).combine_chunks().to_batches()[0] for end, size in zip(ends, sizes, strict=True)
    ]


@pytest.mark.parametrize(("channel", "position"), [(None, None), ("device", None), (None, "at"), ("device", "at")])
def test_small_batches_are_lifted_together(channel: str | None, position: str | None) -> None:
    sent = batches([4, 4, 4, 30, 2, 3])
    flow = core.alone(core.plan_of(Sums(), SCHEMA))
    with mock.patch.object(dataframe_source, "GATHERED", 10):
        found = list(chunks_of(iter(sent), flow, channel, position))
    assert [chunk.rows.num_rows for chunk in found] == [12, 30, 5]
    whole = pa.Table.from_batches([chunk.rows for chunk in found])
    assert whole.equals(pa.Table.from_batches(sent))
