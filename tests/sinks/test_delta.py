"""The Delta table: each clock as a whole and once, whoever writes it, and what users are told."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest
from deltalake.schema import PrimitiveType

from persistent_state.errors import FencedError, InvalidInputError, StoreUnavailableError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.sinks.base import Origin
from persistent_state.sinks.delta import OWNER, DeltaSink
from persistent_state.sinks.values import LocalValues
from tests.sentences import problem
from tests.sinks.test_parquet import FAR, NO_VALUES, USERS, in_order, of_every_type, origin, rows
from tests.store.servers import Servers, needed


def given(table: pa.Table) -> LocalValues:
    return LocalValues(table.schema, (partial(table.to_batches, max_chunksize=7),))


def opened(url: Path, what: Origin = USERS) -> DeltaSink:
    sink = DeltaSink(url)
    sink.open(what)
    return sink


def read(url: Path) -> pa.Table:
    return in_order(deltalake.DeltaTable(url).to_pyarrow_dataset().to_table())


# What a table holds


def test_every_clock_has_each_key_once(tmp_path: Path) -> None:
    said = [rows(clock, users) for clock, users in ((10, 50), (20, 0), (40, 200))]
    sink = DeltaSink(tmp_path / "table")
    assert sink.open(USERS) is None
    for table, clock in zip(said, (10, 20, 40), strict=True):
        sink.write_values(given(table), clock)
        assert DeltaSink(tmp_path / "table").open(USERS) == clock
    assert read(tmp_path / "table") == in_order(*said)
    place = deltalake.DeltaTable(tmp_path / "table")
    assert place.version() == 3, "one version for each clock"
    dataset = place.to_pyarrow_dataset()  # noqa: F841
    found = duckdb.sql("SELECT clock, count(*) FROM dataset GROUP BY ALL ORDER BY ALL").fetchall()
    assert found == [(10, 50), (40, 200)]


def test_keys_and_values_of_every_type_come_back(tmp_path: Path) -> None:
    what, table = of_every_type()
    opened(tmp_path / "table", what).write_values(given(table), 7)
    assert opened(tmp_path / "table", what).open(what) == 7
    assert in_order(read(tmp_path / "table").cast(what.schema)) == in_order(table)


def test_clocks_of_any_size_and_without_rows_are_recorded(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    for clock in FAR:
        sink.write_values(given(rows(clock, 2 if clock < 0 else 0)), clock)
        assert sink.open(USERS) == clock
    assert read(tmp_path / "table") == in_order(*(rows(clock, 2) for clock in FAR if clock < 0))


def test_a_global_state_has_no_key(tmp_path: Path) -> None:
    what = origin({})
    sink = opened(tmp_path / "table", what)
    for clock in (10, 20):
        sink.write_values(given(pa.table([[clock], [clock * 2]], schema=what.schema)), clock)
    assert read(tmp_path / "table").to_pylist() == [{"clock": 10, "value": 20}, {"clock": 20, "value": 40}]


def test_the_record_outlives_what_is_done_to_a_table(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    for clock in range(1, 6):
        sink.write_values(given(rows(clock, 3)), clock)
    place = deltalake.DeltaTable(tmp_path / "table")
    place.optimize.compact()
    place.vacuum(0, dry_run=False, enforce_retention_duration=False)
    deltalake.DeltaTable(tmp_path / "table").create_checkpoint()
    for log in sorted((tmp_path / "table" / "_delta_log").glob("*.json"))[:-1]:
        log.unlink()
    for clock in (5, 6):
        sink.write_values(given(rows(clock, 3)), clock)
    assert opened(tmp_path / "table").open(USERS) == 6
    assert read(tmp_path / "table") == in_order(*(rows(clock, 3) for clock in range(1, 7)))


def test_a_table_of_ones_own_with_partitions_is_taken(tmp_path: Path) -> None:
    url, schema = tmp_path / "table", USERS.schema
    deltalake.DeltaTable.create(url, pa.schema([schema.field(i) for i in (2, 0, 1)]), partition_by="clock")
    sink = opened(url)
    for clock in (10, 20):
        sink.write_values(given(rows(clock, 20)), clock)
    assert deltalake.DeltaTable(url).metadata().configuration == {OWNER: "shop/orders"}
    assert len(list(url.glob("clock=*"))) == 2
    assert in_order(read(url).select(schema.names)) == in_order(rows(10, 20), rows(20, 20))


# Clocks that come again, and writers at once


@pytest.mark.parametrize("first", [-10, 0, 10])
def test_a_clock_that_was_written_changes_nothing_when_it_comes_again(tmp_path: Path, first: int) -> None:
    late = opened(tmp_path / "table")
    sink = opened(tmp_path / "table")
    sink.write_values(given(rows(first, 20)), first)
    for again in (late, sink, opened(tmp_path / "table")):
        for clock in (first - 1, first):
            again.write_values(given(rows(clock, 40, add=1)), clock)
    assert read(tmp_path / "table") == rows(first, 20).sort_by("user")
    assert deltalake.DeltaTable(tmp_path / "table").version() == 1


@pytest.mark.parametrize("meanwhile", [10, 20])
def test_who_loses_to_a_writer_of_the_same_clock_has_nothing_to_do(tmp_path: Path, meanwhile: int) -> None:
    def after_another() -> list[pa.RecordBatch]:
        opened(tmp_path / "table").write_values(given(rows(meanwhile, 5)), meanwhile)
        return rows(10, 30, add=1).to_batches()

    opened(tmp_path / "table").write_values(LocalValues(USERS.schema, (after_another,)), 10)
    assert read(tmp_path / "table") == in_order(rows(meanwhile, 5))


def test_who_loses_to_a_writer_of_an_earlier_clock_is_to_come_again(tmp_path: Path) -> None:
    def after_another() -> list[pa.RecordBatch]:
        opened(tmp_path / "table").write_values(given(rows(5, 5)), 5)
        return rows(10, 30).to_batches()

    sink, values = opened(tmp_path / "table"), LocalValues(USERS.schema, (after_another,))
    told = problem(lambda: sink.write_values(values, 10), StoreUnavailableError)
    assert told.endswith("Concurrent transaction failed. Put it right, then try again.")
    assert read(tmp_path / "table") == in_order(rows(5, 5))
    sink.write_values(given(rows(10, 30)), 10)
    assert read(tmp_path / "table") == in_order(rows(5, 5), rows(10, 30))


def test_of_writers_at_once_one_is_seen(tmp_path: Path) -> None:
    url = tmp_path / "table"
    attempts = [(opened(url), rows(10, 50 + i, add=i)) for i in range(4)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda attempt: attempt[0].write_values(given(attempt[1]), 10), attempts))
    assert read(url) in [in_order(said) for _, said in attempts]


def test_rows_that_fail_leave_nothing_and_say_why(tmp_path: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from rows(10, 3).to_batches()
        raise InvalidInputError("a part=3 can't be read; restore it.")

    sink, values = opened(tmp_path / "table"), LocalValues(USERS.schema, (broken,))
    assert problem(lambda: sink.write_values(values, 10)) == "a part=3 can't be read; restore it."
    assert (sink.open(USERS), len(read(tmp_path / "table"))) == (None, 0)
    sink.write_values(given(rows(10, 3)), 10)
    assert read(tmp_path / "table") == in_order(rows(10, 3))


def test_values_are_asked_for_in_the_thread_that_writes(tmp_path: Path) -> None:
    asked = []

    def read() -> list[pa.RecordBatch]:
        asked.append(threading.get_ident())
        return rows(10, 3).to_batches()

    opened(tmp_path / "table").write_values(LocalValues(USERS.schema, (read,)), 10)
    assert asked == [threading.get_ident()]


def test_starts_at_once_agree_on_one_owner(tmp_path: Path) -> None:
    """Of those who are late by little, some are told to try again."""

    def attempt(task: str) -> str | None:
        what = origin(task=task)
        try:
            opened(tmp_path / "table", what).write_values(given(rows(10, 3)), 10)
        except (InvalidInputError, StoreUnavailableError):
            return None
        return task

    with ThreadPoolExecutor(8) as pool:
        wrote = {task for task in pool.map(attempt, ["a", "b"] * 4) if task}
    owner = deltalake.DeltaTable(tmp_path / "table").metadata().configuration[OWNER]
    assert {f"shop/{task}" for task in wrote} == {owner}, "who made the table wrote to it"
    assert read(tmp_path / "table") == in_order(rows(10, 3))
    assert deltalake.DeltaTable(tmp_path / "table").version() == 1


# What is told


@pytest.mark.parametrize("other", [origin(task="payments"), origin(application="store")])
def test_another_task_is_refused(tmp_path: Path, other: Origin) -> None:
    opened(tmp_path / "table")
    told = f"delta:{tmp_path}/table is of task='shop/orders', not '{other.application}/{other.task}'; name"
    assert problem(lambda: opened(tmp_path / "table", other)).startswith(told)
    assert deltalake.DeltaTable(tmp_path / "table").version() == 0


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize(
    "other",
    [
        origin({"user": pa.int64()}),
        origin({"user": pa.string(), "day": pa.date32()}),
        origin({}),
        origin(value=pa.float64()),
        origin(value=pa.list_(pa.int64())),
    ],
)
def test_a_table_with_other_columns_is_refused(tmp_path: Path, other: Origin, marked: bool) -> None:
    opened(tmp_path / "table") if marked else deltalake.DeltaTable.create(tmp_path / "table", USERS.schema)
    told = f"delta:{tmp_path}/table has columns={{'user': 'string', 'clock': 'int64', 'value': 'int64'}}, not {{"
    assert problem(lambda: opened(tmp_path / "table", other)).startswith(told)
    assert deltalake.DeltaTable(tmp_path / "table").version() == 0


def test_a_table_whose_columns_change_later_is_refused(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    deltalake.DeltaTable(tmp_path / "table").alter.add_columns([deltalake.Field("note", PrimitiveType("string"))])
    told = problem(lambda: sink.write_values(given(rows(10, 3)), 10))
    assert "'note': 'string'}, not {'user': 'string', " in told
    assert len(read(tmp_path / "table")) == 0


@pytest.mark.parametrize(
    "value",
    [
        pa.uint64(),
        pa.uint8(),
        pa.float16(),
        pa.time64("us"),
        pa.duration("us"),
        pa.month_day_nano_interval(),
        pa.timestamp("us", "Europe/Paris"),
        pa.timestamp("s"),
        pa.decimal128(20, -3),
        pa.struct([]),
        pa.list_(pa.struct([("a", pa.uint32())])),
    ],
    ids=str,
)
def test_values_that_delta_cannot_hold_are_refused(tmp_path: Path, value: pa.DataType) -> None:
    told = problem(lambda: opened(tmp_path / "table", origin(value=value)))
    assert told.startswith(
        "task=orders: a Delta table can't hold columns={'user': 'string', 'clock': 'int64', 'value': "
    )
    assert told.endswith("; use another sink.")
    assert not (tmp_path / "table").exists()


def test_columns_that_delta_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    told = problem(lambda: opened(tmp_path / "table", origin({"Value": pa.string()})))
    assert told.endswith(", of which some differ only in case; rename the key's.")


def test_a_place_that_goes_away_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    (tmp_path / "table").rename(tmp_path / "aside")
    (tmp_path / "table").write_text("in the way")
    for call in (lambda: sink.write_values(given(rows(10, 3)), 10), lambda: sink.open(USERS)):
        told = problem(call, StoreUnavailableError)
        assert told.startswith(f"delta:{tmp_path}/table: ")
        assert told.endswith(". Put it right, then try again.")
    (tmp_path / "table").unlink()
    (tmp_path / "aside").rename(tmp_path / "table")
    sink.write_values(given(rows(10, 3)), 10)
    assert read(tmp_path / "table") == in_order(rows(10, 3))


def test_paths_are_absolute_and_may_have_most_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sink = opened(Path("a b é☃?#'x"))
    assert (sink.name, repr(sink)) == (f"delta:{tmp_path}/a b é☃?#'x", f'DeltaSink("{tmp_path}/a b é☃?#\'x")')
    monkeypatch.chdir("/")
    sink.write_values(given(rows(10, 3)), 10)
    assert read(tmp_path / "a b é☃?#'x") == in_order(rows(10, 3))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("", {}),
        ("a%20b", {}),
        ("a[b]", {}),
        ("s3://bucket/table?token=hidden", {}),
        ("s3://user:hidden@bucket/table", {}),
        ("s3://bucket/table", {"secret": 3}),
    ],
)
def test_arguments_are_checked(url: str, options: dict[str, Any]) -> None:
    assert "hidden" not in problem(lambda: DeltaSink(url, storage_options=options))


def test_a_missing_package_is_told() -> None:
    program = """
import sys
sys.modules["deltalake"] = None
import pyarrow as pa
from persistent_state.sinks.base import Origin
from persistent_state.sinks.delta import DeltaSink
try:
    DeltaSink("/nowhere").open(Origin("a", "b", (), pa.schema([])))
except Exception as error:
    print(type(error).__name__, error)
"""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert told == (
        "InvalidInputError package='deltalake' is missing for delta:/nowhere; pip install 'persistent-state[delta]', "
        "in a checkout '.[delta]'.\n"
    )


def test_a_table_in_an_object_store_keeps_its_secrets(servers: Servers) -> None:
    with needed():
        server = servers["s3"]
    server.make("delta")
    options = {
        "AWS_ACCESS_KEY_ID": "key-of-s3",
        "AWS_SECRET_ACCESS_KEY": "secret-of-s3",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.ports[0]}",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "0",
    }
    url = "s3://delta/table"
    sinks = [DeltaSink(url, storage_options=options) for _ in range(2)]
    assert [sink.open(USERS) for sink in sinks] == [None] * 2

    def after_another() -> list[pa.RecordBatch]:
        sinks[0].write_values(given(rows(10, 5)), 10)
        return rows(10, 30, add=1).to_batches()

    sinks[1].write_values(LocalValues(USERS.schema, (after_another,)), 10)
    assert sinks[1].open(USERS) == 10
    found = deltalake.DeltaTable(url, storage_options=options).to_pyarrow_dataset().to_table()
    assert in_order(found) == in_order(rows(10, 5))

    down = DeltaSink(url, storage_options={**options, "AWS_ENDPOINT_URL": "http://127.0.0.1:9/secret-of-s3"})
    nowhere = DeltaSink("s3://nowhere/table", storage_options=options)
    told = [problem(lambda sink=sink: sink.open(USERS), StoreUnavailableError) for sink in (down, nowhere)]  # type: ignore[misc]
    for text in (*told, repr(down), down.name, repr(sinks[0])):
        assert "key-of-s3" not in text
        assert "secret-of-s3" not in text
        assert "\x1b" not in text
    assert told[0].startswith(f"delta:{url}: OSError: Generic S3 error Error performing ")


# Rewinds

CLOCKS_OF_TABLES = [
    USERS,
    replace(USERS, schema=USERS.schema.set(1, pa.field("clock", pa.timestamp("us", "UTC")))),
]


@pytest.mark.parametrize("what", CLOCKS_OF_TABLES, ids=["whole", "times"])
def test_a_plan_refuses_what_a_start_would_and_changes_nothing(tmp_path: Path, what: Origin) -> None:
    assert (DeltaSink(tmp_path / "none").rows_above(10, what), [*tmp_path.iterdir()]) == (0, [])
    url = tmp_path / "table"
    sink = opened(url, what)
    sink.write_values(given(rows(20, 3)), 20)
    version = deltalake.DeltaTable(url).version()
    for other in (
        replace(what, application="store"),
        replace(what, task="payments"),
        origin(value=pa.string()),
        origin(value=pa.uint64()),
    ):
        said = problem(lambda other=other: DeltaSink(url).open(other))
        assert problem(lambda other=other: DeltaSink(url).rows_above(10, other)) == said
    assert (deltalake.DeltaTable(url).version(), sink.rows_above(10, what)) == (version, 3)


@pytest.mark.parametrize("what", CLOCKS_OF_TABLES, ids=["whole", "times"])
def test_a_rewind_deletes_what_is_above_its_clock_in_one_version(tmp_path: Path, what: Origin) -> None:
    url, written = tmp_path / "table", {clock: rows(clock, 3) for clock in (10, 20, 30)}
    old = opened(url, what)
    for clock, table in written.items():
        old.write_values(given(table), clock)
    new = opened(url, replace(what, timeline=4))
    assert (new.rows_above(10, what), new.open(replace(what, timeline=4))) == (6, 30)
    version = deltalake.DeltaTable(url).version()
    new.rewind(10, NO_VALUES)
    assert (deltalake.DeltaTable(url).version(), new.rows_above(10, what)) == (version + 1, 0)
    assert in_order(read(url).cast(USERS.schema)) == in_order(written[10])
    for clock in (10, 20, 40):
        with pytest.raises(FencedError, match="was rewound"):
            old.write_values(given(rows(clock, 1)), clock)
    new.write_values(given(rows(20, 2, add=5)), 20)
    # Whoever lets it go back again changes nothing.
    new.rewind(10, NO_VALUES)
    assert in_order(read(url).cast(USERS.schema)) == in_order(written[10], rows(20, 2, add=5))
    with pytest.raises(FencedError):
        opened(url, what)
    last = opened(url, replace(what, timeline=9))
    assert last.open(replace(what, timeline=9)) == 20
    # Nothing is above it, and it is recorded all the same.
    last.rewind(25, NO_VALUES)
    with pytest.raises(FencedError):
        new.write_values(given(rows(30, 1)), 30)
    assert last.open(replace(what, timeline=9)) == 20


@pytest.mark.parametrize("what", CLOCKS_OF_TABLES, ids=["whole", "times"])
def test_a_rewind_to_the_beginning_takes_all_in_one_version(tmp_path: Path, what: Origin) -> None:
    url, other = tmp_path / "table", tmp_path / "other"
    old = opened(url, what)
    opened(other, what).write_values(given(rows(10, 3)), 10)
    for clock in (-10, 20):
        old.write_values(given(rows(clock, 3)), clock)
    # A rewind before, which the table has followed.
    first = opened(url, replace(what, timeline=3))
    first.rewind(-10, NO_VALUES)
    first.write_values(given(rows(20, 2, add=5)), 20)
    new = opened(url, replace(what, timeline=7))
    assert (new.rows_above(BEGINNING, what), new.open(replace(what, timeline=7))) == (5, 20)
    version = deltalake.DeltaTable(url).version()
    new.rewind(BEGINNING, NO_VALUES)
    assert (deltalake.DeltaTable(url).version(), new.rows_above(BEGINNING, what)) == (version + 1, 0)
    assert (len(read(url)), len(read(other)), new.open(replace(what, timeline=7))) == (0, 3, None)
    for ended in (old, first):
        with pytest.raises(FencedError, match="was rewound"):
            ended.write_values(given(rows(30, 1)), 30)
    new.write_values(given(rows(-10, 2)), -10)
    # Asked again, it takes nothing back.
    new.rewind(BEGINNING, NO_VALUES)
    assert in_order(read(url).cast(USERS.schema)) == in_order(rows(-10, 2))
    # An empty table goes back too, and so its writers are fenced.
    for timeline in (8, 9):
        last = opened(url, replace(what, timeline=timeline))
        last.rewind(BEGINNING, NO_VALUES)
        assert (len(read(url)), last.open(replace(what, timeline=timeline))) == (0, None)
    with pytest.raises(FencedError):
        new.write_values(given(rows(40, 1)), 40)


@pytest.mark.parametrize("to", [10, BEGINNING])
@pytest.mark.parametrize("has_rows", [True, False])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_rewind_that_is_killed_has_taken_back_all_or_nothing_and_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: int, has_rows: bool, is_there: bool
) -> None:
    """Before its commit, and after it: where rows are above the clock that deletes them, and else has none."""
    url = tmp_path / "table"
    old = opened(url)
    for clock in (10, 20) if has_rows else ():
        old.write_values(given(rows(clock, 3)), clock)
    before = read(url)
    place, name = (deltalake.DeltaTable, "delete") if has_rows else (deltalake, "write_deltalake")
    commit = getattr(place, name)

    def die(*arguments: Any, **options: Any) -> None:
        if is_there:
            commit(*arguments, **options)
        raise OSError("killed")

    new = opened(url, replace(USERS, timeline=4))
    with monkeypatch.context() as patch:
        patch.setattr(place, name, die)
        with pytest.raises(StoreUnavailableError):
            new.rewind(to, NO_VALUES)
    left = in_order(rows(10, 3 if has_rows and to == 10 else 0))
    assert read(url) == (left if is_there else before)
    if not is_there and has_rows:
        # The driver of before may still write in between.
        old.write_values(given(rows(30, 3)), 30)
    new.rewind(to, NO_VALUES)
    version = deltalake.DeltaTable(url).version()
    new.rewind(to, NO_VALUES)
    assert (read(url), deltalake.DeltaTable(url).version()) == (left, version)
    assert new.open(replace(USERS, timeline=4)) == (10 if has_rows and to == 10 else None)


@pytest.mark.parametrize("comes", ["in between", "before"])
@pytest.mark.parametrize("back", [10, BEGINNING])
def test_a_writer_of_the_timeline_that_has_ended_never_commits_beside_a_rewind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: str, back: int
) -> None:
    url = tmp_path / "table"
    old = opened(url)
    old.write_values(given(rows(10, 3)), 10)
    new = opened(url, replace(USERS, timeline=4))
    last = DeltaSink._last

    def meanwhile(sink: DeltaSink, what: Origin) -> Any:
        found = last(sink, what)
        monkeypatch.setattr(DeltaSink, "_last", last)
        if comes == "before":
            # The old one commits after the new one has looked.
            old.write_values(given(rows(20, 3)), 20)
        else:
            new.rewind(back, NO_VALUES)
        return found

    monkeypatch.setattr(DeltaSink, "_last", meanwhile)
    if comes == "before":
        with suppress(StoreUnavailableError):
            new.rewind(back, NO_VALUES)
        new.rewind(back, NO_VALUES)
    else:
        with pytest.raises(FencedError):
            old.write_values(given(rows(20, 3)), 20)
    assert read(url) == in_order(rows(10, 3 if back == 10 else 0))
    assert new.open(replace(USERS, timeline=4)) == (10 if back == 10 else None)
