"""The columns and rows that outputs show of tasks of each kind."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from monoids import Average
from persistent_state.edges.in_order.rows import EmittedRows
from persistent_state.edges.output_rows import output_rows
from persistent_state.ordered import OrderedTask
from persistent_state.state import KeptState, NonWindowState, WindowState
from persistent_state.task import PersistentTask
from persistent_state.windows import TumblingWindow
from tests import core

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.string()), ("v", pa.float64())])


class Mean(PersistentTask):
    key, value = "k", "v"

    def __init__(self, state: KeptState[Any]) -> None:
        self.state = state

    def persistent_state(self) -> KeptState[Any]:
        return self.state


class Fraud(OrderedTask):
    key, state, emits = "k", pa.int64(), pa.schema([("k", pa.int64()), ("n", pa.int64())])


def test_values_have_the_key_the_clock_and_what_people_see() -> None:
    rows = output_rows(core.plan_of(Mean(NonWindowState(Average())), SCHEMA))
    assert (rows.schema.names, rows.key, rows.is_unique) == (["k", "value"], ("k",), True)
    assert rows.schema_at_clock().names == ["k", "clock", "value"]
    monoid = rows.plan.layout.monoid
    table = pa.table({"k": ["a"], "value": monoid.to_arrow([monoid.plus(monoid.of(1.0), monoid.of(4.0))])})
    assert rows.of(table).to_pylist() == [{"k": "a", "value": 2.5}]


def test_values_of_windows_name_the_window() -> None:
    rows = output_rows(core.plan_of(Mean(WindowState(Average(), TumblingWindow("1 minute"))), SCHEMA))
    assert rows.key == ("k", "window_start", "window_end")
    assert rows.schema_at_clock(early=True).names == [*rows.key, "clock", "final", "value"]


def test_emitted_rows_have_the_columns_that_the_task_gave_them() -> None:
    rows = output_rows(core.plan_of(EmittedRows(Fraud()), SCHEMA))
    assert (rows.schema.names, rows.key, rows.is_unique) == (["k", "n", "timestamp"], ("k",), False)
    assert rows.schema_at_clock().names == ["k", "n", "timestamp", "clock"]
    emitted = pa.array([{"k": 7, "n": 1}], pa.struct(list(Fraud.emits)))
    table = pa.table({"key0": ["a"], "timestamp": [5], "value": emitted})
    (row,) = (
        rows.of(table).cast(pa.schema([("k", pa.int64()), ("n", pa.int64()), ("timestamp", pa.int64())])).to_pylist()
    )
    # The task emitted another key.
    assert row == {"k": 7, "n": 1, "timestamp": 5}
