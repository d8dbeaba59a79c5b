"""A value that Python does not have, such as a date of the year 0, makes a row bad for a task that asks for it alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from monoids import Aggregator, Count, List
from persistent_state import (
    Application,
    Context,
    InvalidInputError,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentState,
    PersistentTask,
    TaskFailedError,
)
from persistent_state.cli.commands import main
from persistent_state.formatting import plain
from persistent_state.open_state import OpenStore
from persistent_state.serve.lookups import Lookups, Question
from persistent_state.store.files import LocalFiles
from persistent_state.store.state_at import read_sides
from persistent_state.testing import run_local
from tests import core
from tests.local_application import LocalApplication, Rows, compiled

Use = Callable[[Message], object]

DATES = pa.array([0, -719_529], pa.int32()).cast(pa.date32())
INSTANTS = pa.array([0, 253_402_299_000_000_000], pa.int64()).cast(pa.timestamp("us", "Europe/Oslo"))
LENGTHS = pa.array([0, 2**62], pa.int64()).cast(pa.duration("s"))
"""Of each the second is the one that Python does not have. That instant is beyond the year 9999 in Oslo alone."""


def ticks(zone: str | None, tick: int) -> pa.Array:
    return pa.array([0, tick], pa.int64()).cast(pa.timestamp("us", zone))


COLUMNS = {
    "date": DATES,
    "instant": INSTANTS,
    "local": ticks(None, 2**62),
    "second": pa.array([0, -(2**62)], pa.int64()).cast(pa.timestamp("s")),
    "duration": LENGTHS,
    "struct": pa.StructArray.from_arrays([DATES], names=["x"]),
    "list": pa.ListArray.from_arrays([0, 1, 2], INSTANTS),
    "map": pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "a"]), LENGTHS),
}

REASON = "value beyond what Python has: column d"


class Notes(PersistentTask):
    key = "k"

    def __init__(self, use: Use) -> None:
        self.use = use

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(List(pa.int64()))

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, [message["n"]])
        self.use(message)
        state.update(message.timestamp, [-message["n"]])


class NotesThatReads(Notes):
    reads_state: ClassVar[bool] = True

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        super().process_message(state, message)
        assert state.get()[-1] == -message["n"]


class NotesInOrder(OrderedTask):
    key = "k"
    state = pa.list_(pa.int64())

    def __init__(self, use: Use) -> None:
        self.use = use

    def process(self, state: Any, message: Message, context: Context) -> Any:
        state = state or []
        state.append(message["n"])
        self.use(message)
        state.append(-message["n"])
        return state


def looks(message: Message) -> object:
    return message["d"]


def looks_at_all(message: Message) -> object:
    return dict(message)


def wraps(message: Message) -> object:
    try:
        return message["d"]
    except Exception:
        raise RuntimeError("no d") from None


def looks_elsewhere(message: Message) -> object:
    return message["k"]


def makes_do(message: Message) -> object:
    try:
        return message["d"]
    except Exception:
        return None


def played(task: type[Any], use: Use, column: pa.Array, **given: Any) -> tuple[list[int], dict[str, int]]:
    """The notes, and the counts of rows aside by their reasons, of messages 1 to 4. The second and third are beyond Python."""
    schema = pa.schema([("ts", pa.int64()), ("k", pa.string()), ("n", pa.int64()), ("d", column.type)])
    app = Application("app", "memory://none", checkpoint_interval=core.us(10))
    world = LocalApplication(*compiled(app.add(task(use), Rows(schema), **given), core.memory()))
    name = task.__name__ + (".messages" if issubclass(task, OrderedTask) else "")
    outcomes = []
    for _ in range(2):
        # The second time as a start that reads all again: it decides as the first one did.
        world.start(rebuild=outcomes and [*world.plans])
        values = column.take(pa.array([0, 1, 1, 0, 0]))
        if not outcomes:
            world.play(name, [*zip([1, 2, 3, 4, 25], ["a"] * 5, [1, 2, 3, 4, 5], values, strict=True)])
        world.drain()
        states = world.state(task.__name__)
        (kept,) = states.values()
        kept = kept["state"] if isinstance(kept, dict) else kept
        aside = [row["row"]["n"] for rows in read_sides(world.files, "app", task.__name__) for row in rows.to_pylist()]
        assert aside == ([2, 3] if world.newest.late_counts_of(task.__name__) else [])
        outcomes.append(([n for n in kept if abs(n) < 5], dict(world.newest.late_counts_of(task.__name__))))
    assert outcomes[0] == outcomes[1]
    return outcomes[0]


TASKS = [Notes, NotesThatReads, NotesInOrder]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_row_is_bad_whose_value_python_does_not_have(task: type[Any], column: pa.Array) -> None:
    assert played(task, looks, column) == ([1, -1, 4, -4], {REASON: 2})


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("use", [looks_at_all, wraps])
def test_however_the_task_comes_to_the_value(task: type[Any], use: Use) -> None:
    assert played(task, use, DATES) == ([1, -1, 4, -4], {REASON: 2})


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("use", [looks_elsewhere, makes_do])
def test_a_row_counts_whose_task_does_not_ask_for_the_value_or_has_another_for_it(task: type[Any], use: Use) -> None:
    assert played(task, use, DATES) == ([1, -1, 2, -2, 3, -3, 4, -4], {})


@pytest.mark.parametrize("task", TASKS)
def test_the_task_fails_if_bad_rows_are_to_fail(task: type[Any]) -> None:
    sentence = rf"met a bad row \({REASON}\) at channel='p' partition='p' position=1 key=\{{'k': 'a'\}}; correct it"
    with pytest.raises(TaskFailedError, match=sentence):
        played(task, looks, DATES, on_bad_row="fail")


ZONED = pa.timestamp("us", "W. Europe Standard Time")
ZONED_TYPES = [
    ZONED,
    pa.list_(pa.struct([("x", ZONED)])),
    pa.map_(ZONED, pa.int64()),
    pa.struct([("x", pa.dictionary(pa.int32(), ZONED))]),
]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("type", ZONED_TYPES, ids=str)
def test_a_zone_that_this_machine_does_not_know_is_refused(task: type[Any], type: pa.DataType) -> None:
    sentence = f"^task={task.__name__}: column 'd' has times in zone='W. Europe Standard Time', which this machine"
    with pytest.raises(InvalidInputError, match=sentence):
        played(task, looks, pa.nulls(2, type))


class Quiet(PersistentTask):
    key = "k"

    def __init__(self, use: Use) -> None:
        pass

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(List(pa.int64()))


class ByBatch(Quiet):
    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([[n, -n] for n in batch["n"].to_pylist()], pa.list_(pa.int64()))


class ByValue(Quiet):
    value = "n"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Aggregator(lambda n: [n, -n], List(pa.int64()), list, pa.list_(pa.int64())))


ZONED_COLUMN = pa.array([0, 1], pa.int64()).cast(ZONED)


@pytest.mark.parametrize("task", [ByBatch, ByValue])
def test_an_unknown_zone_is_read_by_a_task_that_is_not_handed_its_values(task: type[Any]) -> None:
    assert played(task, looks, ZONED_COLUMN) == ([1, -1, 2, -2, 3, -3, 4, -4], {})


class ByZonedValue(ByValue):
    value = "d"


def test_an_unknown_zone_of_a_value_that_is_prepared_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^task=ByZonedValue: column 'd' has times in zone="):
        played(ByZonedValue, looks, ZONED_COLUMN)


class ByZonedBatch(ByValue):
    value = None

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return batch["d"]


def test_an_unknown_zone_in_a_batch_of_values_to_prepare_makes_bad_rows() -> None:
    with pytest.raises(TaskFailedError, match=r"met a bad row \(value does not fit\) at channel"):
        played(ByZonedBatch, looks, ZONED_COLUMN, on_bad_row="fail")


class ByZonedKey(ByBatch):
    key = "d"


def test_a_bad_row_with_a_key_in_an_unknown_zone_is_named() -> None:
    finer = pa.array([1, 2], pa.int64()).cast(pa.timestamp("ns", "W. Europe Standard Time"))
    with pytest.raises(TaskFailedError, match=r"position=0 key=\{'d': '1970-01-01T00:00:00.000000001Z'\}; correct it"):
        played(ByZonedKey, looks, finer, on_bad_row="fail")


KEYS = {
    "date": (DATES, "-0001-12-31"),
    "local": (COLUMNS["local"], "148108-07-06T14:00:27.387904"),
    "instant": (INSTANTS.cast(pa.timestamp("us", "UTC")), None),
    "utc": (ticks("UTC", 253_402_300_800_000_000), "10000-01-01T00:00:00.000000Z"),
}
"""Columns of keys. The second value has a text if Python does not have it."""


class CountOf(PersistentTask):
    key = "d"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Count())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        state.update(message.timestamp, 1)


@pytest.mark.parametrize(("column", "text"), KEYS.values(), ids=KEYS)
def test_a_key_that_python_does_not_have_is_its_text_wherever_a_state_is_read(
    column: pa.Array, text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = pa.schema([("ts", pa.int64()), ("d", column.type)])
    app = Application("app", str(tmp_path), checkpoint_interval=core.us(10))
    files = LocalFiles(str(tmp_path))
    world = LocalApplication(*compiled(app.add(CountOf(), Rows(schema)), files))
    world.start()
    world.play("CountOf", [*zip([1, 2, 3, 25], column.take(pa.array([0, 1, 1, 0])), strict=True)])
    world.drain()

    state = OpenStore(files).application("app").task("CountOf").at()
    table = state.to_arrow()
    assert dict(zip(table["d"].combine_chunks(), table["value"].to_pylist(), strict=True)) == {
        column[0]: 2,
        column[1]: 2,
    }
    key, shown = (text, text) if text else (column[1].as_py(), plain(column[1]))
    assert state.get_many([key, column[0].as_py(), {"d": key}]) == [2, 2, 2]
    assert Lookups(OpenStore(files)).answer(Question("app", "CountOf", columns={"d": shown}))["value"] == 2
    assert Lookups(OpenStore(files)).answer(Question("app", "CountOf", key=json.dumps({"d": shown})))["key"] == {
        "d": shown
    }
    for way in ("table", "csv", "json"):
        assert main(["state", str(tmp_path), "app", "CountOf", "--format", way]) == 0
        assert shown in capsys.readouterr().out

    assert sorted(state.to_pandas()["value"]) == [2, 2]
    if pa.types.is_date(column.type):
        assert sorted(state.to_pandas()["d"]) == ["-0001-12-31", "1970-01-01"]

    messages = [Message(place, {"d": value.value}) for place, value in enumerate(column)]
    assert run_local(CountOf(), messages, schema=pa.schema([schema.field("d")])).state == {column[0].as_py(): 1, key: 1}
