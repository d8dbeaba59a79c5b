"""Rows of a source count or go aside, of whatever types of Arrow they are, and starts go on, however many went aside."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from monoids import Sum
from persistent_state import (
    Application,
    Context,
    FileSource,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentState,
    PersistentTask,
)
from persistent_state.sources.base import Chunk
from persistent_state.store.late_rows import MANY
from persistent_state.store.state_at import read_sides
from tests import core
from tests.local_application import LocalApplication, Rows, compiled

TEXT = pa.string()
TYPES = {
    "dictionary": pa.dictionary(pa.int8(), TEXT),
    "list of dictionaries": pa.list_(pa.dictionary(pa.int8(), TEXT)),
    "view": pa.string_view(),
    "struct of views": pa.struct([("x", pa.string_view())]),
    "run ends": pa.run_end_encoded(pa.int32(), TEXT),
    "required": TEXT,
    "struct that requires": pa.struct([pa.field("x", TEXT, False)]),
    "list that requires": pa.list_(pa.field("item", TEXT, False)),
}


class Source(Rows):
    """Rows of a number, a time, and a text of some type, of which any may be required."""

    most = 20

    def __init__(self, type: pa.DataType, is_required: bool) -> None:
        fields = [("ts", pa.int64()), ("n", pa.int64()), ("x", type)]
        super().__init__(pa.schema([pa.field(name, type, not is_required) for name, type in fields]))

    def read(self, split: range) -> Iterator[Chunk]:
        stamps, numbers = zip(*self.rows[split.start : split.stop], strict=True)
        values = pa.array([None if n % 3 == 0 else f"k{n}" for n in numbers], TEXT)
        type = self.schema.field("x").type
        if isinstance(type, pa.RunEndEncodedType):
            column: Any = pc.run_end_encode(values)
        elif pa.types.is_struct(type):
            column = pa.StructArray.from_arrays([values.cast(type[0].type)], fields=[*type], mask=values.is_null())
        elif pa.types.is_list(type):
            inner = values.dictionary_encode().cast(type.value_type) if "dict" in str(type) else values
            column = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), inner, type=type)
        else:
            column = values.dictionary_encode().cast(type) if pa.types.is_dictionary(type) else values.cast(type)
        columns = [pa.array(stamps, pa.int64()), pa.array(numbers, pa.int64()), column]
        yield Chunk(self.partition, split.start, pa.RecordBatch.from_arrays(columns, schema=self.schema))


class Total(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class TotalByMessage(PersistentTask):
    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        assert {*message} == {"ts", "n", "x"}
        state.update(message.timestamp, message["n"])


class TotalThatReads(TotalByMessage):
    reads_state: ClassVar[bool] = True


class TotalInOrder(OrderedTask):
    state = pa.int64()

    def process(self, state: int | None, message: Message, context: Context) -> int:
        return (state or 0) + message["n"]


def total(world: LocalApplication, task: str) -> Any:
    (kept,) = world.state(task).values()
    return kept["state"] if isinstance(kept, dict) else kept


@pytest.mark.parametrize("task", [Total, TotalByMessage, TotalThatReads, TotalInOrder])
@pytest.mark.parametrize("name", TYPES)
def test_rows_of_each_type_count_or_go_aside_and_starts_go_on(task: type[Any], name: str) -> None:
    source = Source(TYPES[name], is_required="require" in name)
    app = Application("app", "memory://none", checkpoint_interval=core.us(10))
    world = LocalApplication(*compiled(app.add(task(), source), core.memory()), parts=2)
    source.rows = [(None if n % 2 else n // 20 * 10, n) for n in range(20 * (MANY + 4))]
    for _ in range(3):
        # The second start reads the newest rows again, of which some went aside.
        world.start()
        world.play(f"{task.__name__}.messages" if task is TotalInOrder else task.__name__)
    world.drain()
    world.start()
    assert total(world, task.__name__) == sum(n for stamp, n in source.rows if stamp is not None)
    rows = [row["row"] for table in read_sides(world.files, "app", task.__name__) for row in table.to_pylist()]
    assert sorted(row["n"] for row in rows) == [n for stamp, n in source.rows if stamp is None]


def _journal_of_an_older_version(folder: Path) -> list[str]:
    """The line of the first file, with its schema as it is."""
    schema = pq.read_schema(folder / "0.parquet").remove_metadata().serialize()
    file = {"file": 0, "path": "0.parquet", "size": 1, "modified": 1.0}
    return [json.dumps({**file, "schema": base64.b64encode(schema).decode()})]


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_file_with_more_categories_than_the_first_one_is_read(has_begun: bool, tmp_path: Path) -> None:
    for number, names in enumerate([["a", "b"], [f"k{n}" for n in range(300)]]):
        times = pd.to_datetime(["2026-01-01"] * len(names), utc=True)
        pd.DataFrame({"ts": times, "k": pd.Categorical(names)}).to_parquet(tmp_path / f"{number}.parquet")
    assert pq.read_schema(tmp_path / "0.parquet").field("k").type == pa.dictionary(pa.int8(), TEXT)
    source = FileSource(tmp_path, timestamp="ts")
    source.go_on_from(_journal_of_an_older_version(tmp_path) if has_begun else [])
    source.open([], {})
    (split,) = source.splits({}, source.reach({}, True).ends, 1)
    chunks = [*source.read(split)]
    assert [chunk.bad for chunk in chunks] == [(), ()]
    assert [name for chunk in chunks for name in chunk.rows.column("k").to_pylist()][2:] == [
        f"k{n}" for n in range(300)
    ]
