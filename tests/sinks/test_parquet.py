"""The Parquet table and the console: what readers see after any number of attempts, and what users are told."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from persistent_state.errors import DamagedError, FencedError, InvalidInputError, StateError, StoreUnavailableError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.sinks.base import Origin
from persistent_state.sinks.console import ConsoleSink
from persistent_state.sinks.parquet import ParquetSink, _marker
from persistent_state.sinks.values import LocalValues
from persistent_state.store.files import LocalFiles
from persistent_state.store.files.local import BytesLike
from tests.sentences import problem
from tests.store.servers import Servers, needed

DAY = 86_400_000_000
FAR = [BEGINNING + 1, -(10**15), -1, 0, 10**15, 2**63 - 1]


def origin(key: dict[str, pa.DataType] | None = None, value: pa.DataType | None = None, **other: str) -> Origin:
    key = {"user": pa.string()} if key is None else key
    schema = pa.schema([*key.items(), ("clock", pa.int64()), ("value", pa.int64() if value is None else value)])
    return Origin(**{"application": "shop", "task": "orders", **other}, key_columns=tuple(key), schema=schema)


USERS = origin()


def rows(clock: int, users: int, add: int = 0) -> pa.Table:
    """A row for each of so many users, whose values tell them and the clock apart."""
    names = [None, *(f"user-{i}" for i in range(1, users))][:users]
    values = [clock % 1000 * 1000 + i + add for i in range(users)]
    return pa.table([names, [clock] * users, values], schema=USERS.schema)


def given(table: pa.Table, parts: int = 2, seed: int = 0) -> LocalValues:
    """The rows of a table in any order, in so many parts."""
    order = pa.array(random.Random(seed).sample(range(len(table)), len(table)), pa.int64())
    return LocalValues.of(table.take(order), parts)


def opened(url: Path, what: Origin = USERS, *, files: int = 1) -> ParquetSink:
    sink = ParquetSink(url, files=files)
    sink.open(what)
    return sink


def in_order(*tables: pa.Table) -> pa.Table:
    """All rows by clock and key: equal for tables with the same rows."""
    table = pa.concat_tables(tables).combine_chunks()
    return table.sort_by([(name, "ascending") for name in ("clock", *table.column_names[:-2])])


def read(url: Path) -> pa.Table:
    return in_order(ParquetSink(url).dataset().to_table())


def data_files(url: Path) -> list[str]:
    return sorted(path.name for path in url.glob("*.parquet"))


class Breaking(LocalFiles):
    """Files of which those that have `broken` in their names can't be made."""

    broken = ""

    def create(self, path: str, data: BytesLike) -> None:
        if self.broken in path:
            raise StoreUnavailableError(
                f"path={path!r} in store={self.url!r}: the disk is on fire. Put it right, then try again."
            )
        super().create(path, data)


class WithoutSecondPart(Breaking):
    broken = "-0001-"


class WithoutMarkers(Breaking):
    broken = "_clocks"


# What a table holds


@pytest.mark.parametrize("files", [1, 3])
def test_every_clock_has_each_key_once(tmp_path: Path, files: int) -> None:
    said = [rows(clock, users) for clock, users in ((10, 50), (20, 1), (40, 200))]
    sink = opened(tmp_path / "table", files=files)
    for table in said:
        sink.write_values(given(table, parts=5), table["clock"][0].as_py())
    assert ParquetSink(tmp_path / "table").clocks() == [10, 20, 40]
    assert read(tmp_path / "table") == in_order(*said)
    assert len(sink.paths([40])) == files
    assert opened(tmp_path / "table").open(USERS) == 40


def test_a_clock_without_values_is_in_the_table(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    assert sink.open(USERS) is None
    sink.write_values(given(rows(10, 0)), 10)
    assert (sink.clocks(), sink.paths(), len(sink.dataset([10]).to_table())) == ([10], [], 0)
    assert sink.open(USERS) == 10


def test_a_table_without_clocks_has_columns(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    assert sink.clocks() == []
    assert sink.dataset().schema == USERS.schema
    assert sink.dataset().to_table() == sink.latest() == USERS.schema.empty_table()


def test_clocks_of_any_size_stay_in_order(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    for clock in FAR:
        sink.write_values(given(rows(clock, 2)), clock)
    assert opened(tmp_path / "table").open(USERS) == FAR[-1]
    assert sink.clocks() == FAR
    assert [pq.read_table(path)["clock"][0].as_py() for path in sorted(sink.paths())] == FAR
    assert read(tmp_path / "table") == in_order(*(rows(clock, 2) for clock in FAR))


def of_every_type() -> tuple[Origin, pa.Table]:
    time = datetime(2013, 1, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc)
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        "text": (pa.string(), ["", "é☃", None, "a"]),
        "a.b `c`": (pa.int64(), [2**63 - 1, None, -1, 0]),
        "at": (pa.timestamp("us", "UTC"), [time, None, datetime(1, 1, 1, tzinfo=timezone.utc), time]),
        "wall": (
            pa.timestamp("us"),
            [None, time.replace(tzinfo=None), datetime(9999, 12, 31), time.replace(tzinfo=None)],
        ),
        "price": (pa.decimal128(38, 2), [Decimal("0.01"), Decimal("-" + "9" * 36 + ".99"), None, Decimal(0)]),
        "bytes": (pa.binary(), [b"", b"\x00\xff", None, b"a"]),
        "is": (pa.bool_(), [True, None, False, True]),
        "number": (pa.float64(), [float("inf"), None, 0.1, 5e-324]),
        "day": (pa.date32(), [date(2013, 1, 31), None, date(1, 1, 1), date(9999, 12, 31)]),
    }
    value = pa.struct(
        [
            ("times", pa.list_(pa.timestamp("us", "UTC"))),
            (
                "amounts",
                pa.map_(pa.string(), pa.struct([("sum", pa.decimal128(20, 3)), ("of", pa.list_(pa.float64()))])),
            ),
            ("sketch", pa.binary()),
        ]
    )
    values = [
        {
            "times": [time, None],
            "amounts": [("a", {"sum": Decimal("1.5"), "of": [1.0, None]}), ("b", None)],
            "sketch": b"\0",
        },
        None,
        {"times": [], "amounts": [], "sketch": None},
        {"times": None, "amounts": None, "sketch": b""},
    ]
    what = origin({name: type for name, (type, _) in columns.items()}, value)
    given = [pa.array(column, type) for type, column in columns.values()]
    return what, pa.table([*given, [7] * 4, pa.array(values, value)], schema=what.schema)


def test_keys_and_values_of_every_type_come_back(tmp_path: Path) -> None:
    what, table = of_every_type()
    sink = opened(tmp_path / "table", what, files=2)
    sink.write_values(given(table), 7)
    assert read(tmp_path / "table") == in_order(table)
    by_duckdb = (
        duckdb.connect().sql(f"SET TimeZone = 'UTC'; SELECT * FROM read_parquet({sink.paths()})").to_arrow_table()
    )
    assert in_order(by_duckdb.cast(what.schema)) == in_order(table)


def test_a_global_state_has_no_key(tmp_path: Path) -> None:
    what = origin({})
    sink = opened(tmp_path / "table", what, files=3)
    for clock in (10, 20):
        sink.write_values(given(pa.table([[clock], [clock * 2]], schema=what.schema)), clock)
    assert sink.dataset().to_table().to_pylist() == [{"clock": 10, "value": 20}, {"clock": 20, "value": 40}]
    assert sink.latest().to_pylist() == [{"clock": 20, "value": 40}]


def test_duckdb_queries_the_dataset_by_name(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    for clock in (10, 20):
        sink.write_values(given(rows(clock, 30)), clock)
    table = sink.dataset()  # noqa: F841
    found = duckdb.sql(
        "SELECT clock, count(*), sum(value)::BIGINT FROM table GROUP BY ALL ORDER BY ALL".replace("table", '"table"')
    )
    assert found.fetchall() == [(clock, 30, pc.sum(rows(clock, 30)["value"]).as_py()) for clock in (10, 20)]


def test_the_latest_of_each_key_is_the_state(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table", files=2)
    assert len(sink.latest()) == 0
    for clock, users in ((-10, 5), (10, 50), (20, 3), (30, 20)):
        sink.write_values(given(rows(clock, users)), clock)
    assert in_order(sink.latest()) == in_order(rows(10, 50)[20:], rows(30, 20))
    assert in_order(sink.latest(29)) == in_order(rows(10, 50)[3:], rows(20, 3))
    assert in_order(sink.latest(-10)) == in_order(rows(-10, 5))
    assert len(sink.latest(-11)) == 0


def test_the_latest_tells_nan_null_and_numbers_apart(tmp_path: Path) -> None:
    what = origin({"a": pa.float64(), "b": pa.bool_()})
    keys = [(float("nan"), True), (None, True), (0.0, True), (0.0, False), (float("nan"), None)]
    sink = opened(tmp_path / "table", what)
    for clock, some in ((1, keys), (2, keys[1::2])):
        a, b = zip(*some, strict=True)
        sink.write_values(given(pa.table([a, b, [clock] * len(a), [clock] * len(a)], schema=what.schema)), clock)
    latest = {(str(row["a"]), row["b"]): row["value"] for row in sink.latest().to_pylist()}
    assert latest == {("nan", True): 1, ("None", True): 2, ("0.0", True): 1, ("0.0", False): 2, ("nan", None): 1}


# Clocks that come again


def test_a_clock_that_was_written_changes_nothing_when_it_comes_again(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    for clock in (10, 30):
        sink.write_values(given(rows(clock, 20)), clock)
    before = data_files(tmp_path / "table")
    for again in (sink, opened(tmp_path / "table", files=2)):
        for clock in (10, 20, 30):
            again.write_values(given(rows(clock, 40, add=1)), clock)
    assert sink.clocks() == [10, 30]
    assert data_files(tmp_path / "table") == before
    assert read(tmp_path / "table") == in_order(rows(10, 20), rows(30, 20))


@pytest.mark.parametrize("broken", [WithoutSecondPart, WithoutMarkers])
@pytest.mark.parametrize(("files", "parts", "add"), [(3, 4, 0), (1, 1, 0), (2, 7, 0), (3, 4, 5)])
def test_an_attempt_after_a_killed_one_is_whole_and_all_there_is(
    tmp_path: Path, broken: type[Breaking], files: int, parts: int, add: int
) -> None:
    """`add` stands for a program that presents other values, and gives more keys, than the killed one."""
    url = tmp_path / "table"
    opened(url).write_values(given(rows(10, 20)), 10)
    killed = opened(url, files=3)
    killed.place = broken(str(url))
    with pytest.raises(
        StoreUnavailableError,
        match=r"^path='[^']*' in store='[^']*': the disk is on fire\. Put it right, then try again\.$",
    ):
        killed.write_values(given(rows(20, 60), parts=4), 20)
    left = set(data_files(url))
    assert len(left) == (2 if broken is WithoutSecondPart else 4)
    assert killed.clocks() == [10]
    assert read(url) == in_order(rows(10, 20))

    second = opened(url, files=files)
    second.write_values(given(rows(20, 60 + add, add=add), parts=parts), 20)
    assert second.clocks() == [10, 20]
    assert read(url) == in_order(rows(10, 20), rows(20, 60 + add, add=add))
    if (files, add) == (3, 0):
        assert left < set(data_files(url)) or broken is WithoutMarkers
        assert len(data_files(url)) == 4, "what the killed one wrote was used"


def test_a_driver_that_is_late_adds_nothing_to_a_clock(tmp_path: Path) -> None:
    late = opened(tmp_path / "table")
    opened(tmp_path / "table", files=2).write_values(given(rows(10, 20)), 10)
    late.write_values(given(rows(10, 30, add=1)), 10)
    assert read(tmp_path / "table") == in_order(rows(10, 20))


def test_of_two_attempts_at_once_one_is_seen(tmp_path: Path) -> None:
    url = tmp_path / "table"
    attempts = [(opened(url, files=files), rows(10, 50 + files, add=files)) for files in (1, 3)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda attempt: attempt[0].write_values(given(attempt[1], parts=4), 10), attempts))
    assert read(url) in [in_order(said) for _, said in attempts]


# What is told


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (origin(task="payments"), "task='orders', not 'payments'"),
        (origin(application="store"), "application='shop', not 'store'"),
        (origin({"user": pa.int64()}), "columns={'user': 'string', .*}, not {'user': 'int64', .*}"),
        (origin({"user": pa.string(), "day": pa.date32()}), r"key=\['user'\], not \['user', 'day'\]"),
        (origin(value=pa.float64()), "columns={.*'value': 'int64'}, not {.*'value': 'double'}"),
    ],
)
def test_values_of_another_kind_are_refused(tmp_path: Path, other: Origin, told: str) -> None:
    opened(tmp_path / "table")
    with pytest.raises(
        InvalidInputError, match=f"^table='{tmp_path}/table' has {told}.*; write to a table of its own.$"
    ):
        opened(tmp_path / "table", other)
    assert opened(tmp_path / "table").clocks() == []


@pytest.mark.parametrize("value", [pa.struct([]), pa.list_(pa.struct([])), pa.month_day_nano_interval()])
def test_values_that_parquet_cannot_hold_are_refused(tmp_path: Path, value: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match=r"^task=orders: Parquet can't hold its values: .*; use another sink.$"):
        opened(tmp_path / "table", origin(value=value))
    assert not (tmp_path / "table").exists()


def test_columns_that_readers_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"can't tell columns=.*'Value', 'clock', 'value'.* apart; rename"):
        opened(tmp_path / "table", origin({"Value": pa.string()}))


@pytest.mark.parametrize(
    "ask",
    [ParquetSink.clocks, ParquetSink.paths, ParquetSink.dataset, ParquetSink.latest],
    ids=lambda ask: ask.__name__,
)
def test_a_table_that_is_not_there_is_told(tmp_path: Path, ask: Callable[[ParquetSink], object]) -> None:
    with pytest.raises(InvalidInputError, match=r"^there is no table in '.*/nowhere'; look at its address.$"):
        ask(ParquetSink(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def test_a_clock_that_is_not_there_is_told(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    sink.write_values(given(rows(10, 3)), 10)
    with pytest.raises(
        InvalidInputError,
        match=r"^clock=1970-01-01T00:00:00.000011Z \(11\) is not in table='.*'; use one of its clocks\(\)\.",
    ):
        sink.paths([10, 11])


def test_a_place_that_goes_away_is_told_and_nothing_is_seen(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    (tmp_path / "table").rename(tmp_path / "aside")
    (tmp_path / "table").write_text("in the way")
    with pytest.raises(StoreUnavailableError) as told:
        sink.write_values(given(rows(10, 3)), 10)
    assert re.fullmatch(
        r"path='1\d{19}-0000-orders-[0-9a-f]{16}\.parquet' in store=.*Put it right, then try again\.", str(told.value)
    )
    with pytest.raises(StoreUnavailableError, match=r"Put it right, then try again.$"):
        sink.open(USERS)
    (tmp_path / "table").unlink()
    (tmp_path / "aside").rename(tmp_path / "table")
    assert sink.clocks() == []
    sink.write_values(given(rows(10, 3)), 10)
    assert read(tmp_path / "table") == in_order(rows(10, 3))


def test_damage_is_told(tmp_path: Path) -> None:
    url = tmp_path / "table"
    sink = opened(url)
    sink.write_values(given(rows(10, 1000)), 10)
    path = Path(sink.paths()[0])
    data = bytearray(path.read_bytes())
    data[pq.read_metadata(path).row_group(0).column(2).data_page_offset + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        sink.dataset().to_table()
    for damaged in (next((url / "_clocks").iterdir()), url / "_table.json"):
        damaged.write_text("{")
        with pytest.raises(DamagedError, match=r"is not what was written; restore it.$"):
            sink.dataset()


def test_files_are_sorted_by_key_in_row_groups_of_many_rows(tmp_path: Path) -> None:
    sink = opened(tmp_path / "table")
    sink.write_values(given(rows(10, 140_000)), 10)
    (path,) = sink.paths()
    groups = pq.read_metadata(path)
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [131_072, 8_928]
    assert pq.read_table(path) == rows(10, 140_000).sort_by("user")


def test_a_task_may_have_any_name(tmp_path: Path) -> None:
    what = origin(task="_a/b*é " + "x" * 300)
    sink = opened(tmp_path / "table", what)
    sink.write_values(given(rows(10, 3)), 10)
    assert read(tmp_path / "table") == in_order(rows(10, 3))
    assert opened(tmp_path / "table", what).clocks() == [10]


@pytest.mark.parametrize(("files", "url"), [(0, "table"), (1, ""), (1, "ftp://somewhere/table")])
def test_arguments_are_checked(files: int, url: str) -> None:
    with pytest.raises(InvalidInputError):
        ParquetSink(url, files=files)


def test_a_table_in_an_object_store_keeps_its_secrets(servers: Servers) -> None:
    with needed():
        server = servers["s3"]
    server.make("parquet")
    url, options = server.address("parquet", server.ports)
    sink = ParquetSink(url, files=2, storage_options=options)
    assert sink.open(USERS) is None
    for clock in (-10, 20):
        sink.write_values(given(rows(clock, 40)), clock)
    reader = ParquetSink(url, storage_options=options)
    assert reader.open(USERS) == 20
    assert in_order(reader.dataset().to_table()) == in_order(rows(-10, 40), rows(20, 40))
    assert all(
        re.fullmatch(f"{url}/[01]\\d{{19}}-000[01]-orders-[0-9a-f]{{16}}.parquet", path) for path in reader.paths()
    )

    told = [repr(sink), sink.name]
    wrong = ParquetSink("s3://nowhere/store", storage_options=options)
    with pytest.raises(StateError) as error:
        wrong.open(USERS)
    sink.place = wrong.place
    with pytest.raises(StateError) as late:
        sink.write_values(given(rows(30, 3)), 30)
    for text in (*told, str(error.value), str(late.value)):
        assert not any(secret in text for secret in ("key-of-s3", "secret-of-s3")), text


# The console


def printed(
    capsys: pytest.CaptureFixture[str], sink: ConsoleSink, what: Origin, values: LocalValues, clock: int
) -> Sequence[str]:
    sink.open(what)
    sink.write_values(values, clock)
    return capsys.readouterr().out.splitlines()


def test_the_console_shows_the_first_keys_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, ConsoleSink(rows=3), USERS, given(rows(DAY, 12), parts=4), DAY) == [
        "orders: 3 of 12 keys at 1970-01-02T00:00:00Z (86400000000)",
        "user     value",
        "-------  -----",
        "null         0",
        "user-1       1",
        "user-10     10",
        "",
    ]


def test_the_console_shows_values_of_every_type(capsys: pytest.CaptureFixture[str]) -> None:
    what, table = of_every_type()
    head, names, _, *shown, last = printed(capsys, ConsoleSink(), what, given(table), 7)
    assert head == "orders: 4 keys at 1970-01-01T00:00:00.000007Z (7)"
    assert names.split()[:4] == ["text", "a.b", "`c`", "at"]
    assert (len(shown), last) == (4, "")
    assert "2013-01-31T23:59:59.999999Z" in shown[1]


def test_the_console_shows_a_global_state_and_none(capsys: pytest.CaptureFixture[str]) -> None:
    what = origin({})
    one = given(pa.table([[5], [70]], schema=what.schema))
    assert printed(capsys, ConsoleSink(), what, one, 5)[1:] == ["value", "-----", "   70", ""]
    assert printed(capsys, ConsoleSink(), USERS, given(rows(5, 0)), 5)[0].startswith("orders: 0 keys at ")
    assert ConsoleSink().name == "console"
    with pytest.raises(InvalidInputError, match="give at least 0"):
        ConsoleSink(rows=-1)


# Rewinds


def in_timeline(url: Path, timeline: int) -> ParquetSink:
    return opened(url, replace(USERS, timeline=timeline))


def write_late(sink: ParquetSink, values: LocalValues, clock: int) -> None:
    """Write as a driver whose timeline has ended, and which does not know it."""
    with pytest.raises(FencedError, match="was rewound"):
        sink.write_values(values, clock)


def unread() -> Iterator[pa.RecordBatch]:
    raise AssertionError("a table of all clocks has them")


NO_VALUES = LocalValues(USERS.schema, (unread,))


def test_a_rewind_takes_back_what_is_above_its_clock_and_what_late_writers_write(tmp_path: Path) -> None:
    url = tmp_path / "table"
    old = in_timeline(url, 0)
    for clock in (10, 20, 30):
        old.write_values(given(rows(clock, 3)), clock)
    assert old.rows_above(10, USERS) == 6
    late = in_timeline(url, 0)
    new = in_timeline(url, 4)
    new.rewind(10, NO_VALUES)
    assert (new.clocks(), new.open(replace(USERS, timeline=4)), new.rows_above(10, USERS)) == ([10], 10, 0)
    assert old.latest() == old.dataset([10]).to_table()
    with pytest.raises(InvalidInputError, match="is not in table"):
        old.paths([20])
    # A writer that knows nothing of it comes in between, before and after the same clock of the new timeline.
    write_late(late, given(rows(40, 3)), 40)
    new.write_values(given(rows(20, 3, add=7)), 20)
    late = ParquetSink(url)
    late._origin = USERS
    write_late(late, given(rows(20, 3, add=1)), 20)
    write_late(late, given(rows(50, 3)), 50)
    assert new.clocks() == [10, 20]
    assert read(url) == in_order(rows(10, 3), rows(20, 3, add=7))
    # Whoever lets it go back again changes nothing.
    new.rewind(10, NO_VALUES)
    assert new.clocks() == [10, 20]
    with pytest.raises(FencedError, match="was rewound"):
        in_timeline(url, 0)
    # To a clock of the first timeline, and to one of the second.
    in_timeline(url, 9).rewind(15, NO_VALUES)
    assert new.clocks() == [10]
    newest = in_timeline(url, 9)
    newest.write_values(given(rows(20, 2)), 20)
    assert read(url) == in_order(rows(10, 3), rows(20, 2))


def test_a_rewind_to_the_beginning_takes_all_and_what_late_writers_write(tmp_path: Path) -> None:
    url = tmp_path / "table"
    old = in_timeline(url, 0)
    opened(tmp_path / "other").write_values(given(rows(10, 3)), 10)
    for clock in (-10, 20):
        old.write_values(given(rows(clock, 3)), clock)
    # A rewind before, which the table has followed.
    first = in_timeline(url, 3)
    first.rewind(-10, NO_VALUES)
    first.write_values(given(rows(20, 2, add=5)), 20)
    new = in_timeline(url, 7)
    assert new.rows_above(BEGINNING, USERS) == 5
    new.rewind(BEGINNING, NO_VALUES)
    assert (new.clocks(), new.open(replace(USERS, timeline=7)), new.rows_above(BEGINNING, USERS)) == ([], None, 0)
    assert (ParquetSink(tmp_path / "other").clocks(), len(new.latest())) == ([10], 0)
    # Writers of both timelines that have ended know nothing of it.
    write_late(old, given(rows(30, 3)), 30)
    write_late(first, given(rows(40, 3)), 40)
    assert new.clocks() == []
    new.write_values(given(rows(-10, 2, add=7)), -10)
    first = ParquetSink(url)
    first._origin = replace(USERS, timeline=3)
    write_late(first, given(rows(-20, 3)), -20)
    # Asked again, it takes nothing back.
    new.rewind(BEGINNING, NO_VALUES)
    assert (new.clocks(), read(url)) == ([-10], in_order(rows(-10, 2, add=7)))
    with pytest.raises(FencedError, match="was rewound"):
        in_timeline(url, 3)


@pytest.mark.parametrize("to", [10, BEGINNING])
def test_a_rewind_that_is_killed_has_taken_back_all_or_nothing_and_is_made_again(tmp_path: Path, to: int) -> None:
    url, create = tmp_path / "table", LocalFiles.create
    opened(url)
    for clock in (10, 20):
        (url / "_clocks").mkdir(exist_ok=True)
        (url / _marker(clock, 0)).write_text('{"files": []}')

    def die_before(files: LocalFiles, path: str, data: BytesLike) -> None:
        raise StoreUnavailableError("killed")

    def die_after(files: LocalFiles, path: str, data: BytesLike) -> None:
        create(files, path, data)
        raise StoreUnavailableError("killed")

    new = in_timeline(url, 4)
    # Before its one file is there, and after that.
    for die, left in ((die_before, [10, 20]), (die_after, [10] if to == 10 else [])):
        with mock.patch.object(LocalFiles, "create", die), pytest.raises(StoreUnavailableError):
            new.rewind(to, NO_VALUES)
        assert new.clocks() == left
    new.rewind(to, NO_VALUES)
    assert new.open(replace(USERS, timeline=4)) == (10 if to == 10 else None)


def test_a_clock_that_a_killed_writer_left_half_written_is_not_ended_in_a_later_timeline(tmp_path: Path) -> None:
    url, create = tmp_path / "table", LocalFiles.create

    def die_at_marker(files: LocalFiles, path: str, data: BytesLike) -> None:
        if path.startswith("_clocks"):
            raise StoreUnavailableError("killed")
        create(files, path, data)

    old = opened(url, files=2)
    old.write_values(given(rows(10, 3)), 10)
    with mock.patch.object(LocalFiles, "create", die_at_marker), pytest.raises(StoreUnavailableError):
        old.write_values(given(rows(20, 3)), 20)
    left = {*url.glob("*.parquet")}
    assert len(left) > len(old.paths([10]))
    new = in_timeline(url, 4)
    new.rewind(10, NO_VALUES)
    new.write_values(given(rows(20, 2, add=7)), 20)
    assert left < {*url.glob("*.parquet")}
    as_mended = in_order(rows(10, 3), rows(20, 2, add=7))
    assert read(url) == as_mended
    # The writer was only slow, and ends what it began.
    write_late(old, given(rows(20, 3)), 20)
    assert read(url) == as_mended


def test_a_late_writer_adds_no_clock_below_the_rewind_either(tmp_path: Path) -> None:
    url = tmp_path / "table"
    old = in_timeline(url, 0)
    for clock in (10, 20):
        old.write_values(given(rows(clock, 3)), clock)
    # The next clock of the new timeline is 30, with all since 20. It comes after that of the late writer, and before.
    new = in_timeline(url, 4)
    new.rewind(30, NO_VALUES)
    write_late(old, given(rows(25, 3)), 25)
    assert (new.clocks(), new.open(replace(USERS, timeline=4))) == ([10, 20], 20)
    new.write_values(given(rows(30, 2)), 30)
    write_late(old, given(rows(27, 3)), 27)
    assert (new.clocks(), read(url)) == ([10, 20, 30], in_order(rows(10, 3), rows(20, 3), rows(30, 2)))
    # Nor is it believed later.
    in_timeline(url, 9).rewind(30, NO_VALUES)
    assert new.clocks() == [10, 20, 30]


def test_a_rewind_that_comes_after_a_later_one_takes_nothing_back(tmp_path: Path) -> None:
    url, create = tmp_path / "table", LocalFiles.create
    old, first, second = (in_timeline(url, timeline) for timeline in (0, 4, 9))

    def write(clock: int) -> None:
        create(old.place, _marker(clock, 0), b'{"files": []}')

    def come_between(files: LocalFiles, path: str, data: BytesLike) -> None:
        write(20)
        with mock.patch.object(LocalFiles, "create", create):
            second.rewind(30, NO_VALUES)
        create(files, path, data)

    write(10)
    with mock.patch.object(LocalFiles, "create", come_between), pytest.raises(FencedError, match="was rewound"):
        first.rewind(30, NO_VALUES)
    assert (second.clocks(), second.open(replace(USERS, timeline=9))) == ([10, 20], 20)


def test_a_rewind_of_an_older_version_counts(tmp_path: Path) -> None:
    url = tmp_path / "table"
    sink = in_timeline(url, 9)
    for clock in (10, 20, 30):
        sink.place.create(_marker(clock, 0), b'{"files": []}')
    sink.place.create(f"_rewinds/{4:020d}.json", b'{"clock": 20}')
    assert sink.clocks() == [10, 20]
    sink.rewind(25, NO_VALUES)
    assert (sink.clocks(), sink.open(replace(USERS, timeline=9))) == ([10, 20], 20)


def test_a_plan_refuses_what_a_start_would_and_changes_nothing(tmp_path: Path) -> None:
    assert (ParquetSink(tmp_path / "none").rows_above(10, USERS), [*tmp_path.iterdir()]) == (0, [])
    url = tmp_path / "table"
    sink = opened(url)
    sink.write_values(given(rows(20, 3)), 20)
    before = [*url.rglob("*")]
    for other in (origin(application="store"), origin(task="payments"), origin(value=pa.string())):
        with pytest.raises(InvalidInputError) as at_start:
            sink.open(other)
        assert problem(lambda other=other: sink.rows_above(10, other)) == str(at_start.value)
    assert ([*url.rglob("*")], sink.rows_above(10, USERS)) == (before, 3)


def test_only_the_newest_rewind_is_read(tmp_path: Path) -> None:
    url, known = tmp_path / "table", LocalFiles.read
    for timeline, clock in ((1, 90), (2, 50), (3, 70), (4, 10)):
        sink = in_timeline(url, timeline)
        for each in range(20, 100, 10):
            sink.place.create(_marker(each, timeline - 1), b'{"files": []}')
        sink.rewind(clock, NO_VALUES)
    sink.place.create(_marker(40, 4), b'{"files": []}')
    paths = list[str]()

    def recorded(files: LocalFiles, path: str) -> pa.Buffer:
        paths.append(path)
        return known(files, path)

    with mock.patch.object(LocalFiles, "read", recorded):
        assert sink.clocks() == [40]
    assert paths == [f"_rewinds/{4:020d}.json"]


def test_a_table_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    url = tmp_path / "table"
    opened(url)
    table = url / "_table.json"
    table.write_text(table.read_text().replace('"format": 3', '"format": 4'))
    for ask in (lambda: opened(url), ParquetSink(url).clocks):
        assert "has format=4, not 3; upgrade." in problem(ask)


@pytest.mark.parametrize("number", [1, 2])
def test_a_table_of_an_earlier_format_goes_back(tmp_path: Path, number: int) -> None:
    url = tmp_path / "table"
    opened(url)
    table = url / "_table.json"
    table.write_text(table.read_text().replace('"format": 3', f'"format": {number}'))
    for clock in ("1" + "0" * 17 + "10", "1" + "0" * 17 + "20"):
        (url / "_clocks").mkdir(exist_ok=True)
        (url / "_clocks" / f"{clock}.json").write_text('{"files": []}')
    sink = in_timeline(url, 3)
    sink.rewind(10, NO_VALUES)
    assert (sink.clocks(), ParquetSink(url).clocks()) == ([10], [10])
