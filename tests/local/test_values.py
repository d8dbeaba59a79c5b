"""Workers read what a sink is given, and call its function for each part: once for each row, whatever dies or raises."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persistent_state import Local, ParquetSink, StateError, TaskFailedError
from persistent_state.errors import InvalidInputError
from persistent_state.local.pool import Calls, Pool
from persistent_state.local.values import WorkerValues
from persistent_state.sinks import LocalValues, Sink, Values
from persistent_state.store.files import LocalFiles
from tests.local.test_engine import SECOND, START, application, expected, state, write
from tests.sentences import problem
from tests.sinks.test_values import ROWS, rows_of

CLOCKS = [START + seconds * SECOND for seconds in (10, 20, 30)]


def dies(deaths: Path, times: int) -> None:
    """Let the process die that calls this, until it has been called so often."""
    if (count := len(deaths.read_text()) if deaths.exists() else 0) < times:
        deaths.write_text("x" * (count + 1))
        os.kill(os.getpid(), signal.SIGKILL)


class Each:
    """Calls that are made in this process, of which it keeps how many items there were at a time."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        made = [*map(function, items)]
        self.counts.append(len(made))
        return made


def values_of(calls: Any, parts: int, rows: pa.Table = ROWS, most: int = 2) -> WorkerValues:
    return WorkerValues(rows.schema, LocalValues.of(rows, parts).readers, calls, most)


@pytest.mark.parametrize("parts", [0, 1, 5])
@pytest.mark.parametrize(("most", "by"), [(None, None), (2, None), (9, None), (3, ["key"]), (4, [])])
def test_parts_have_the_rows_that_they_have_where_one_process_reads_all(
    parts: int, most: int | None, by: list[str] | None
) -> None:
    for rows in (ROWS, ROWS.slice(0, 1)):
        here, calls = LocalValues.of(rows, parts), Each()
        values = values_of(calls, parts, rows)
        assert values.map_parts(rows_of, parts=most, by=by) == here.map_parts(rows_of, parts=most, by=by)
        assert pa.Table.from_batches(values.batches(), ROWS.schema) == pa.Table.from_batches(
            here.batches(), ROWS.schema
        )
        assert max(calls.counts, default=0) <= 2, "micro-batches get a worker in between"
    assert problem(values.to_spark) == problem(here.to_spark)
    assert "give parts=" in problem(lambda: values.map_parts(rows_of, by=["key"]))


def test_a_row_is_sent_once_though_its_batch_is_a_slice() -> None:
    table = pa.table({"value": [*range(100_000)]})
    sent: list[int] = []

    class Sent(Each):
        def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
            made = super().each(function, items)
            sent.extend(map(len, made))
            return made

    values = WorkerValues(table.schema, [partial(table.to_batches, 1000)], Sent(), 1)  # type: ignore[arg-type]
    assert sum(batch.num_rows for batch in values.batches()) == 100_000
    assert sum(sent) < 1.2 * table.nbytes


def test_workers_call_side_by_side_and_return_what_the_function_does() -> None:
    def work(part: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int]:
        return os.getpid(), sum(batch.num_rows for batch in batches)

    pool = Pool(2, [])
    try:
        values = values_of(Calls(pool), 2)
        for by in (None, ["key"]):
            made = values.map_parts(work, parts=2, by=by)
            assert sum(rows for _, rows in made) == 100
            assert {pid for pid, _ in made} <= pool.pids
        lock = threading.Lock()
        said = problem(lambda: values.map_parts(lambda part, batches: lock.locked()), InvalidInputError)
        assert said == (
            "its function of map_parts() can't be sent to workers: cannot pickle '_thread.lock' object. Make what it uses "
            "where it is used."
        )
    finally:
        pool.close()


class Totals(Sink):
    """A sink that adds up each clock by parts. What a part does beside that is given by `more`, which is called in a worker."""

    name = "totals"

    def __init__(self, more: Callable[[], object]) -> None:
        self.more = more
        self.given: dict[int, tuple[dict[str, int], set[int]]] = {}

    def open(self, origin: Any) -> None: ...

    def write_values(self, values: Values, clock: int) -> None:
        more = self.more

        def read(part: int, batches: Iterator[pa.RecordBatch]) -> tuple[dict[str, int], int]:
            rows = {row["shop"]: row["value"] for batch in batches for row in batch.to_pylist()}
            more()
            return rows, os.getpid()

        parts = values.map_parts(read)
        self.given[clock] = (
            {name: value for rows, _ in parts for name, value in rows.items()},
            {pid for _, pid in parts},
        )

    def __copy__(self) -> Totals:
        return self


def test_a_sink_gets_each_clock_from_workers_though_some_of_them_die(tmp_path: Path) -> None:
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    sink = Totals(partial(dies, tmp_path / "deaths", 2))
    running = application(tmp_path, sink=sink).run(Local(2), drain=True)
    assert running.restarts == 0
    assert (tmp_path / "deaths").read_text() == "xx"
    assert {clock: rows for clock, (rows, _) in sink.given.items() if rows} == {
        clock: expected((clock - START) // SECOND) for clock in CLOCKS
    }
    assert not any(os.getpid() in pids for _, pids in sink.given.values())


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_function_of_which_each_worker_dies_or_that_raises_ends_a_drain_and_names_task_and_sink(
    tmp_path: Path,
) -> None:
    def raises() -> None:
        raise KeyError("no such shop")

    def refused(more: Callable[[], object], kind: type[StateError]) -> str:
        return problem(lambda: application(tmp_path, sink=Totals(more), max_restarts=0).run(Local(), drain=True), kind)

    write(tmp_path / "in", 0, range(10))
    said = refused(partial(dies, tmp_path / "deaths", 10**6), TaskFailedError)
    assert said == (
        "task=PerShop, sink='totals': 3 workers in a row died of its function of map_parts() for part=0, the last one by "
        "signal 9, as when memory is short. Give the machine more memory, or mend the code that ends the process."
    )
    # Three for each try: the drain may have begun before the first one.
    assert (tmp_path / "deaths").read_text() in ("xxx", "xxxxxx")
    said = refused(raises, StateError)
    assert said.startswith(
        "task=PerShop, sink='totals': its function of map_parts() raised KeyError('no such shop') at "
    )
    assert "test_values.py:" in said
    assert state(tmp_path) == expected(10), "the state is there"


class Dying(LocalFiles):
    """Files of a folder, of which the process that has created one of values dies the first two times, before it says so."""

    def create(self, path: str, data: Any) -> None:
        super().create(path, data)
        if path.endswith(".parquet"):
            dies(Path(self.url) / "deaths", 2)


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_worker_that_dies_behind_its_file_leaves_no_second_one_that_counts(tmp_path: Path) -> None:
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    table = ParquetSink(tmp_path / "out", files=2)
    table.place = Dying(table.place.url)
    assert application(tmp_path, sink=table).run(Local(2), drain=True).restarts == 0
    assert (tmp_path / "out" / "deaths").read_text() == "xx"
    files = sorted(str(path) for path in (tmp_path / "out").glob("*.parquet"))
    assert sorted(ParquetSink(tmp_path / "out").paths()) == files, "each file counts, and there is no other one"
    rows = ParquetSink(tmp_path / "out").dataset().to_table().sort_by([("clock", "ascending"), ("shop", "ascending")])
    given = [(row["shop"], row["value"]) for row in rows.to_pylist()]
    assert given == [pair for clock in CLOCKS for pair in expected((clock - START) // SECOND).items()]
