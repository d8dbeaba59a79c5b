"""What `docs/backup.md` says is so: each test names the heading whose sentences it tries."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from monoids import Sum
from persistent_state import (
    Application,
    DamagedError,
    DeltaSink,
    FileSource,
    InvalidInputError,
    Local,
    NonWindowState,
    NotThereError,
    OrderedTask,
    ParquetSink,
    PersistentTask,
    SqlSink,
    StoreUnavailableError,
    TumblingWindow,
    ValuesAtClock,
    WindowState,
    open_store,
    read_state,
    verify,
)
from persistent_state.cli.commands import main
from persistent_state.drive.output_sink import OutputSink
from persistent_state.errors import ExistsError
from persistent_state.protocol import backup, deliver
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.rewind_plan import OutputPlan
from persistent_state.run import rewinds
from persistent_state.sinks import Origin
from persistent_state.sinks.base import check_timeline
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files, MemoryFiles, open_files
from persistent_state.store.log import Log
from persistent_state.store.named_files import length_of
from tests import core
from tests.docstrings import ROOT
from tests.local_application import LocalApplication, compiled
from tests.protocol.test_rewind import World
from tests.sentences import problem
from tests.store.test_upgrades import Killed, Mortal
from tests.test_rewinds import Numbers, Stubborn, Table, application, giver_of, never, nothing

PAGE = ROOT / "docs/backup.md"
HEADINGS = {
    "Back up",
    "Copy the files instead",
    "Restore",
    "Go on from an older copy",
    "What the sources must have",
}
"""The headings of the page, each of which some tests below name."""

TestFunction = TypeVar("TestFunction", bound=Callable[..., None])
_named: set[str] = set()


def of(heading: str) -> Callable[[TestFunction], TestFunction]:
    """Mark a test of the sentences below a heading of the page."""
    assert heading in HEADINGS
    _named.add(heading)
    return lambda test: test


def test_each_heading_of_the_page_has_its_tests() -> None:
    assert {*re.findall("(?m)^## (.*)$", PAGE.read_text())} == HEADINGS == _named


# Back up: without engines, on stores in memory.


def backed_up(world: World, to: Files, last: int = 7, log: Log | None = None) -> tuple[Entry, int]:
    """The entry of a backup, and how many bytes were copied."""
    sizes = [0]
    entry = backup.backup(
        log or Log(world.files, "app"), Log(to, "app"), last, now=0, show=lambda done, size: sizes.append(done)
    )
    return entry, sizes[-1]


def files_of(files: Files) -> dict[str, bytes]:
    """What is stored of the application, by path."""
    folders = ["app/log", "app/kept", *(f"app/runs/{task}" for task in files.list("app/runs"))]
    paths = [f"{folder}/{file}" for folder in folders for file in files.list(folder)]
    return {path: bytes(files.read(path)) for path in paths}


class Green(World):
    """The application as it goes on from another store."""

    def __init__(self, world: World, files: Files) -> None:
        self.plan = replace(world.plan, files=files)
        LocalApplication.__init__(self, {"total": self.plan}, keeping=world.keeping)


def expected(upto: int, value: int = 1, since: int = 0) -> int:
    """The sum of what counts below the clock when this many messages were read. From `since` on each has this value."""
    rows = [10 * i + 5 for i in range(upto) if i not in (4, 8, 12, 16)]
    return sum(value if ts >= since else 1 for ts in rows if ts < upto * 10 - 10)


@of("Back up")
def test_a_backup_is_the_application_at_its_newest_clock_and_reads_its_store_only() -> None:
    world, there = World(), core.memory()
    world.read(20)
    before = files_of(world.files)
    entry, _ = backed_up(world, there)
    assert files_of(world.files) == before
    assert (entry.clock, [*entry.kept], entry.epoch) == (190, [190], world.newest.epoch)
    assert verify(there.url).problems == verify(there.url).unreferenced == ()
    assert read_state(there.url, "app", "total").to_pylist() == [{"value": expected(20)}]
    assert entry.late_counts_of("total") == world.newest.late_counts_of("total")
    # It goes on from there, and the application too.
    green = Green(world, there)
    green.start()
    green.read(30, value=100)
    world.read(30)
    assert (green.value(), world.value()) == (expected(30, 100, 190), expected(30))
    assert verify(there.url).problems == verify(world.files.url).problems == ()


@of("Back up")
@pytest.mark.rows_in_files
def test_only_what_is_new_is_copied_and_older_clocks_go() -> None:
    world, there, whole, copied, seen = World(), core.memory(), list[int](), list[int](), list[int]()
    for count in range(10, 40):
        world.read(count)
        before = files_of(there)
        entry, size = backed_up(world, there, last=3)
        after = files_of(there)
        new = after.keys() - before.keys()
        assert size == length_of(file for file in backup._named(there, entry) if file.path in new)
        assert size <= sum(len(after[path]) for path in new if "/runs/" in path)
        whole.append(sum(len(bytes(world.files.read(path))) for path in world.newest.files()))
        copied.append(size)
        seen += [entry.clock] if entry.clock not in seen else []
        assert [*entry.kept] == seen[-3:]
        assert [read_state(there.url, "app", "total", clock).to_pylist() for clock in entry.kept] == [
            [{"value": world.value(clock)}] for clock in entry.kept
        ]
        verified = verify(there.url)
        assert (verified.problems, verified.unreferenced) == ((), ())
    # A second call at once copies nothing, and writes nothing.
    assert (backed_up(world, there)[1], files_of(there)) == (0, after)
    assert sum(copied) < sum(whole) / 2
    assert Green(world, there).back(seen[-3]).clock == seen[-3]


@of("Back up")
@pytest.mark.parametrize("changes", range(1, 12))
def test_what_is_broken_off_is_no_backup_and_the_next_one_goes_on(changes: int) -> None:
    world, there = World(), core.memory()
    world.read(12)
    backed_up(world, there, last=1)
    before = verify(there.url)
    world.read(20)
    is_whole = True
    try:
        backed_up(world, Mortal(there.url, changes), last=1)
    except Killed:
        is_whole = core.newest(Log(there, "app")).clock == 190
    assert verify(there.url).problems == ()
    assert read_state(there.url, "app", "total").to_pylist() == [{"value": expected(20 if is_whole else 12)}]
    if not is_whole:
        assert verify(there.url).entries == before.entries
    left = files_of(there)
    _, size = backed_up(world, there, last=1)
    verified = verify(there.url)
    # The newest two entries stay, so that a slower backup finds its number taken.
    assert (verified.problems, verified.unreferenced, verified.entries) == ((), (), 2)
    assert read_state(there.url, "app", "total").to_pylist() == [{"value": expected(20)}]
    # What was there is only verified.
    assert all(files_of(there).get(path, data) == data for path, data in left.items())
    if is_whole:
        assert size == 0


class Moving(MemoryFiles):
    """Files of an application that goes on, and collects what it needs no more, when a run is read for the first time."""

    world: World

    def read(self, path: str) -> pa.Buffer:
        world = self.world
        if "/runs/" in path and world.clock < 290:
            world.read(30)
            core.collect(world.log, world.newest.epoch, now=10**12, keeping=Keeping(1, 0))
        return super().read(path)


@of("Back up")
@pytest.mark.rows_in_files
def test_files_that_go_meanwhile_are_those_of_an_older_entry() -> None:
    world, there = World(Keeping(1)), core.memory()
    world.read(20)
    files = Moving(world.files.url)
    object.__setattr__(files, "world", world)
    entry, _ = backed_up(world, there, log=Log(files, "app"))
    assert (entry.clock, verify(there.url).problems) == (290, ())
    assert read_state(there.url, "app", "total").to_pylist() == [{"value": expected(30)}]


@of("Back up")
def test_damage_is_named_and_not_copied() -> None:
    world, there = World(), core.memory()
    world.read(20)
    path = max(world.newest.files())
    data = bytearray(bytes(world.files.read(path)))
    data[len(data) // 2] ^= 1
    world.files.delete(path)
    world.files.create(path, bytes(data))
    with pytest.raises(DamagedError, match=f"{path} is damaged"):
        backed_up(world, there)
    world.files.delete(path)
    with pytest.raises(DamagedError, match=f"a file of the newest entry is gone.*{path}"):
        backed_up(world, there)
    assert Log(there, "app").newest() is None


@of("Back up")
def test_what_a_broken_off_backup_has_left_is_verified() -> None:
    world, there = World(), core.memory()
    world.read(20)
    path = max(world.newest.files())
    there.create(path, b"half")
    with pytest.raises(DamagedError, match=f"{path} is no copy of {path}; delete it, and do it again"):
        backed_up(world, there)
    assert Log(there, "app").newest() is None


@of("Back up")
def test_a_damaged_file_is_brought_back_from_a_backup() -> None:
    world, there = World(), core.memory()
    world.read(20)
    backed_up(world, there)
    for path in world.newest.files():
        world.files.delete(path)
    for path in {each.path for each in verify(world.files.url).problems} & {*files_of(there)}:
        world.files.create(path, bytes(there.read(path)))
    assert read_state(world.files.url, "app", "total").to_pylist() == [{"value": expected(20)}]
    assert not any("the newest state needs it" in each.what for each in verify(world.files.url).problems)


@of("Back up")
def test_a_place_that_is_no_backup_of_the_application_is_refused() -> None:
    world, there = World(), core.memory()
    with pytest.raises(InvalidInputError, match="keeps no clock yet"):
        backed_up(world, there)
    world.read(12)
    backed_up(world, there)
    older = core.memory()
    backed_up(world, older)
    world.read(20)
    backed_up(world, there)
    started = files_of(there)
    # The store is lost, and an older backup takes its place.
    green = Green(world, older)
    green.start()
    green.read(15)
    with pytest.raises(InvalidInputError, match=r"\(190\), which is later than the newest one here"):
        backed_up(green, there)
    assert files_of(there) == started
    with pytest.raises(InvalidInputError, match="is no backup: it was started"):
        backed_up(world, older)
    for to, last, why in ((world.files, 7, "is the application's own"), (core.memory(), 0, "keep at least one")):
        with pytest.raises(InvalidInputError, match=why):
            backed_up(world, to, last)


@of("Back up")
@pytest.mark.rows_in_files
def test_two_calls_at_a_time_make_one_backup() -> None:
    world, there = World(), core.memory()
    world.read(12)
    backed_up(world, there)
    world.read(20)

    def other(done: int, size: int) -> None:
        if done == size and not others:
            others.append(backed_up(world, there)[0].clock)

    others = list[int]()
    backup.backup(Log(world.files, "app"), Log(there, "app"), 7, now=0, show=other)
    world.read(21)
    others = []

    def later(done: int, size: int) -> None:
        if done == size and not others:
            world.read(30)
            others.append(backed_up(world, there)[0].clock)

    with pytest.raises(InvalidInputError, match="came first; back up again"):
        backup.backup(Log(world.files, "app"), Log(there, "app"), 7, now=0, show=later)
    assert verify(there.url).problems == ()
    assert [*core.newest(Log(there, "app")).kept] == [110, 190, 290]


@of("Back up")
def test_after_a_rewind_backups_of_what_is_void_are_kept_no_longer() -> None:
    world, there = World(), core.memory()
    for count in (8, 12, 16, 20):
        world.read(count)
        backed_up(world, there)
    world.back(95)
    world.start(world.plan)
    world.start(world.plan)
    world.read(14, value=100)
    # The clock 110 is there again, and is another one.
    assert 110 in world.newest.kept
    entry, _ = backed_up(world, there)
    assert ([*entry.kept], entry.clock, entry.timeline) == ([70, 130], 130, world.newest.timeline)
    assert verify(there.url).problems == ()
    assert [read_state(there.url, "app", "total", clock).to_pylist()[0]["value"] for clock in entry.kept] == [
        world.value(clock) for clock in entry.kept
    ]


@of("Back up")
def test_the_command_says_what_it_did_and_cron_sees_it_by_its_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world, place = World(), str(tmp_path / "backups")
    command = ["backup", world.files.url, "app", "--to", place]
    assert main(command) == 2
    assert "app keeps no clock yet" in capsys.readouterr().err
    world.read(20)
    assert main(command) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(
        r"application=app is backed up at clock=1970-01-01T00:00:00\.000190Z \(190\); [\d.]+ kB were new\n", out
    )
    assert main([*command, "--json", "--last", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == {"application": "app", "clock": 190, "store": place, "bytes": 0}
    assert main(["verify", place]) == main(["show", place, "app"]) == main(["state", place, "app", "total"]) == 0
    world.read(30)
    assert main([*command, "--last", "1"]) == 0
    assert [*core.newest(Log(open_files(place), "app")).kept] == [290]
    assert "persistent-state backup s3://bucket/apps shop --to s3://backups/apps" in PAGE.read_text()


# With sources and sinks of every kind, on this machine alone.

SALES = pa.schema([("paid_at", pa.timestamp("us", "UTC")), ("shop", pa.string()), ("cents", pa.int64())])
MINUTE = 60_000_000
MORNING = 1_767_258_000_000_000
"""2026-01-01T09:00Z."""


class Turnover(PersistentTask):
    key, value = "shop", "cents"

    def persistent_state(self) -> Any:
        return NonWindowState(Sum())


class Windows(PersistentTask):
    key, value = "shop", "cents"

    def persistent_state(self) -> Any:
        return WindowState(Sum(), TumblingWindow("2 minutes"))


class Numbered(OrderedTask):
    """Emits each sale with its number among those of its shop."""

    key = "shop"
    state = pa.int64()
    emits = pa.schema([("number", pa.int64()), ("cents", pa.int64())])

    def process(self, state: Any, message: Any, context: Any) -> Any:
        number = (state or 0) + 1
        context.emit(number=number, cents=message["cents"])
        return number


Sale: TypeAlias = tuple[int, str, int]


class Shop:
    """An application with a folder of files, and tables of every kind."""

    def __init__(self, folder: Path, slow: bool = False, retained: int = 10) -> None:
        self.folder, self.slow, self.retained = folder, slow, retained
        self.store, self.place = str(folder / "apps"), str(folder / "backups")
        self.sales: dict[str, list[Sale]] = {}
        for source in ("sales", "slow"):
            (folder / source).mkdir(parents=True)

    def table(self, name: str) -> SqlSink:
        return SqlSink(self.folder / "tables.db", name, history=name != "newest")

    def app(self) -> Application:
        folder = self.folder
        app = Application("shop", self.store, checkpoint_interval="1 minute", retained_checkpoints=self.retained)

        def sales(name: str = "sales") -> FileSource:
            return FileSource(folder / name, timestamp="paid_at", schema=SALES)

        lists = [
            self.table("newest"),
            self.table("history"),
            ParquetSink(folder / "parquet"),
            DeltaSink(folder / "delta"),
        ]
        app.add(Turnover(), sales(), sink=lists)
        app.add(Windows(), sales(), sink=[self.table("windows"), ParquetSink(folder / "windows")])
        app.add(Numbered(), sales(), sink=[self.table("emitted"), ParquetSink(folder / "emitted")])
        if self.slow:
            app.add(Slow(), sales("slow"))
        return app

    def arrive(self, *minutes: int, more: int = 0, source: str = "sales") -> None:
        for minute in minutes:
            sales = [
                (
                    MORNING + minute * MINUTE + second * 1_000_000,
                    f"shop{(minute + second) % 4}",
                    minute * 100 + second + more,
                )
                for second in range(0, 60, 7)
            ]
            rows = (
                f"{datetime.fromtimestamp(at / 1e6, timezone.utc).isoformat()},{shop},{cents}"
                for at, shop, cents in sales
            )
            (self.folder / source / f"{minute:03}.csv").write_text("\n".join(["paid_at,shop,cents", *rows, ""]))
            if source == "sales":
                self.sales[f"{minute:03}"] = sales

    def givers(self) -> list[deliver.Giver]:
        """What gives each sink its clocks."""
        outputs = rewinds._by_output(self.app()._rewind_setup().parts).values()
        places = [OutputSink(plan, output) for plan, output in outputs]
        return [
            place.giver(Log(open_files(self.store), self.app().name), place.write_here, lambda: 0) for place in places
        ]

    def run(self, drain: bool = True) -> int:
        """Run to the end of what is there, in this process, and return the clock."""
        givers = self.givers()
        for giver in givers:
            giver.open()
        played = LocalApplication(*compiled(self.app(), open_files(self.store)), keeping=Keeping(self.retained))
        played.now = MORNING + 24 * 60 * MINUTE
        played.start()
        for _ in (0, 1):
            for task in played.plans:
                while played.turn(task) is not None:
                    pass
        if drain:
            played.drain()
        for giver in givers:
            while giver.give_next(played.newest.epoch):
                pass
        return self.clock

    @property
    def clock(self) -> int:
        return core.newest(Log(open_files(self.store), "shop")).clock

    def back_up(self) -> None:
        assert main(["backup", self.store, "shop", "--to", self.place]) == 0

    def lose(self, copy: str | Path | None = None) -> None:
        """Lose the store, and bring it back from a copy."""
        shutil.rmtree(self.store)
        shutil.copytree(copy or self.place, self.store)

    def rows(self, table: str) -> list[dict[str, Any]]:
        with sqlite3.connect(self.folder / "tables.db") as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(f"SELECT * FROM {table}")]

    def folder_rows(self, table: str) -> list[dict[str, Any]]:
        return ParquetSink(self.folder / table).dataset().to_table().to_pylist()

    def check(self) -> None:
        """The state and all tables are what plain Python makes of the files that are there."""
        sales = sorted(sale for each in self.sales.values() for sale in each)
        clock, totals = self.clock, defaultdict[str, int](int)
        for at, shop, cents in sales:
            totals[shop] += cents if at < clock else 0
        state = {row["shop"]: row["value"] for row in read_state(self.store, "shop", "Turnover").to_pylist()}
        assert state == totals
        assert {row["shop"]: row["value"] for row in self.rows("newest")} == totals
        delta = DeltaTable(str(self.folder / "delta")).to_pyarrow_table().to_pylist()
        for history in (self.rows("history"), self.folder_rows("parquet"), delta):
            self.check_history(sales, history)
        for windows in (self.rows("windows"), self.folder_rows("windows")):
            self.check_windows(sales, windows)
        for emitted in (self.rows("emitted"), self.folder_rows("emitted")):
            self.check_emitted(sales, emitted)
        assert verify(self.store).problems == ()

    def check_history(self, sales: Sequence[Sale], rows: Sequence[dict[str, Any]]) -> None:
        clocks, before = sorted({micros(row["clock"]) for row in rows}), dict[str, int]()
        assert clocks[-1] == self.clock
        for clock in clocks:
            now = {shop: sum(c for at, s, c in sales if s == shop and at < clock) for shop in {s for _, s, _ in sales}}
            changed = {shop: value for shop, value in now.items() if value and before.get(shop) != value}
            given = [(row["shop"], row["value"]) for row in rows if micros(row["clock"]) == clock]
            assert sorted(given) == sorted(changed.items())
            before = now

    def check_windows(self, sales: Sequence[Sale], rows: Sequence[dict[str, Any]]) -> None:
        sums = defaultdict[tuple[str, int], int](int)
        for at, shop, cents in sales:
            start = at // (2 * MINUTE) * 2 * MINUTE
            if start + 2 * MINUTE <= self.clock:
                sums[shop, start] += cents
        assert sorted((row["shop"], micros(row["window_start"]), row["value"]) for row in rows) == sorted(
            (*key, value) for key, value in sums.items()
        )

    def check_emitted(self, sales: Sequence[Sale], rows: Sequence[dict[str, Any]]) -> None:
        numbers, expected = defaultdict[str, int](int), list[tuple[int, str, int, int]]()
        for at, shop, cents in sales:
            numbers[shop] += 1
            if at < self.clock:
                expected.append((at, shop, numbers[shop], cents))
        emitted = [(micros(row["timestamp"]), row["shop"], row["number"], row["cents"]) for row in rows]
        assert sorted(emitted) == expected


class Slow(Turnover):
    """A task of another source, which holds the clock."""


def micros(time: Any) -> int:
    """The microseconds UTC of a time in a table."""
    at = datetime.fromisoformat(time) if isinstance(time, str) else time
    return round(at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp() * 1e6)


@of("Restore")
@of("Go on from an older copy")
@pytest.mark.parametrize("by", ["backup", "files", "branch"])
def test_an_application_goes_on_from_a_copy_that_is_older_than_its_sinks(tmp_path: Path, by: str) -> None:
    shop = Shop(tmp_path)
    shop.arrive(*range(4))
    at = shop.run()
    if by == "backup":
        shop.back_up()
    elif by == "files":
        shutil.copytree(shop.store, shop.place)
    else:
        open_store(shop.store).application("shop").branch("shop", to=shop.place)
    shop.arrive(*range(4, 9))
    lost = shop.run()
    shop.check()
    shop.lose()
    # What comes now is not what came then, so that what is left of the lost run shows.
    shop.arrive(5, 6, more=1000)
    tables = {name: shop.rows(name) for name in ("newest", "history", "windows", "emitted")}
    before = files_in(shop.store)
    # An engine, as users have it, refuses before it changes anything.
    refused = problem(lambda: shop.app().run(Local(), drain=True))
    assert f"it holds clock=2026-01-01T09:09:00Z ({lost})" in refused
    assert 'persistent-state rewind MODULE:APP --to 2026-01-01T09:04:00Z, or rewind("2026-01-01T09:04:00Z")' in refused
    assert files_in(shop.store) == before
    planned = shop.app().plan_rewind("2026-01-01T09:04:00Z")
    assert planned.clock == at == planned.newest
    assert {(each.action, each.furthest) for each in planned.outputs} == {("retract", lost)}
    assert "Sinks are ahead of the store" in repr(planned)
    assert files_in(shop.store) == before
    assert {name: shop.rows(name) for name in tables} == tables
    done = shop.app().rewind(planned)
    assert all(each.is_done for each in done.outputs)
    if by == "branch":
        # It knows of no output: each begins anew.
        assert {each.clock for each in planned.outputs} == {None}
        shop.run()
        return
    assert {each.clock for each in planned.outputs} == {at}
    shop.check_history([sale for sale in every(shop) if sale[0] < at], shop.rows("history"))
    shop.run()
    shop.check()
    shop.arrive(9, 10)
    assert shop.run() > lost
    shop.check()


def files_in(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


@of("Restore")
def test_entries_that_are_left_of_the_lost_store_count_as_the_newer_ones() -> None:
    world, there = World(), core.memory()
    world.read(12)
    backed_up(world, there)
    world.read(20)
    for path, data in files_of(there).items():
        with suppress(ExistsError):
            world.files.create(path, data)
    assert core.newest(Log(world.files, "app")).clock == 190
    # In the place of the backups itself, it goes on.
    green = Green(world, there)
    green.start()
    green.read(20)
    assert (green.clock, green.value()) == (190, expected(20))


@of("Go on from an older copy")
def test_a_sink_is_ahead_of_a_copy_that_was_made_while_its_task_was_ahead_of_others(tmp_path: Path) -> None:
    shop = Shop(tmp_path, slow=True)
    shop.arrive(*range(6))
    shop.arrive(*range(3), source="slow")
    at = shop.run(drain=False)
    shop.back_up()
    newest = core.newest(Log(open_files(shop.place), "shop"))
    shop.arrive(3, 4, source="slow")
    lost = shop.run(drain=False)
    # To the copy, the task itself has come further than the sink.
    assert at < lost < newest.flow_of("Turnover").progress.clock
    shop.lose()
    shop.arrive(6)
    for giver in shop.givers():
        assert f"it holds clock=2026-01-01T09:04:00Z ({lost})" in problem(giver.open)
    shop.app().rewind(at)
    shop.run()
    shop.check()


@of("Go on from an older copy")
def test_an_older_clock_of_the_copy_is_gone_back_to(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for minutes in (range(2), range(2, 4)):
        shop.arrive(*minutes)
        shop.run()
        shop.back_up()
    older, newest = core.newest(Log(open_files(shop.place), "shop")).kept
    shop.arrive(*range(4, 6))
    shop.run()
    shop.lose()
    shop.arrive(2, 4, more=1000)
    assert shop.app().rewind(older).newest == newest
    shop.run()
    shop.check()


@of("Go on from an older copy")
@of("Copy the files instead")
@pytest.mark.parametrize("retained", [10, 1])
def test_outputs_that_are_behind_the_copy_or_empty_are_given_what_they_lack(tmp_path: Path, retained: int) -> None:
    shop = Shop(tmp_path, retained=retained)
    shop.arrive(*range(2))
    older = shop.run()
    shutil.copy(tmp_path / "tables.db", tmp_path / "older.db")
    for minute in (2, 3, 4):
        shop.arrive(minute)
        shop.run()
    shop.back_up()
    shop.lose()
    shutil.copy(tmp_path / "older.db", tmp_path / "tables.db")
    shutil.rmtree(tmp_path / "delta")
    shop.arrive(5)
    shop.run()
    if retained == 10:
        shop.check()
        return
    delta = DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().to_pylist()
    # It begins with every key. So does what the history has after its gap.
    begun = min(micros(row["clock"]) for row in delta)
    assert begun > older + MINUTE
    shop.check_history(every(shop), delta)
    history = [row for row in shop.rows("history") if micros(row["clock"]) > older]
    assert min(micros(row["clock"]) for row in history) == begun
    shop.check_history(every(shop), history)
    shop.check_history(every(shop), shop.folder_rows("parquet"))
    shop.check_emitted(every(shop), shop.folder_rows("emitted"))
    newest = {row["shop"]: row["value"] for row in read_state(shop.store, "shop", "Turnover").to_pylist()}
    assert {row["shop"]: row["value"] for row in shop.rows("newest")} == newest


def every(shop: Shop) -> list[Sale]:
    return sorted(sale for each in shop.sales.values() for sale in each)


def copied(world: World) -> Files:
    """A copy of the application's files."""
    there = core.memory()
    for path, data in files_of(world.files).items():
        there.create(path, data)
    return there


class Said(Table):
    """A table that says how far it is."""

    def last_clock(self, origin: Origin) -> int:
        check_timeline(self.name, self.record[0], origin)
        return self.record[1]


def behind(output: str) -> Green:
    """An application that is at clock 70, while its output was given clocks up to 110."""
    world = World()
    world.plan = replace(world.plan, outputs=(output,))
    world.start(world.plan)
    world.read(8)
    deliver.record(world.log, world.newest.epoch, "total", output, 70, 0)
    return Green(world, copied(world))


@of("Go on from an older copy")
@pytest.mark.parametrize(("kind", "furthest"), [(Said, 110), (Table, None)])
def test_a_sink_of_ones_own_goes_back_whether_it_says_how_far_it_is_or_not(
    kind: type[Table], furthest: int | None
) -> None:
    world, table = behind("table"), kind([0, 110])
    with pytest.raises(
        InvalidInputError,
        match=r"to its newest clock, and the sink goes back too: .* --to 1970-01-01T00:00:00\.000070Z",
    ):
        giver_of(world, table, []).open()
    app = application(world, table)
    plan = app.plan_rewind(70)
    assert plan.outputs == (OutputPlan("total", "table", "retract", furthest, 70, rows=7),)
    assert "takes back what is above the clock" in repr(plan)
    app.rewind(plan)
    assert (table.record, [back[:2] for back in table.backs]) == ([plan.timeline, 70], [(plan.timeline, 70)])
    given: list[int] = []
    entry = world.start(world.plan)
    giver = giver_of(world, table, given)
    giver.open()
    world.read(12)
    while giver.give_next(entry.epoch):
        pass
    assert given == [90, 100, 110]
    # A sink that is no further than the store has nothing to take back, and says so.
    assert application(world, Said([plan.timeline, 110])).plan_rewind(110).outputs[0].action == "none"


@of("Go on from an older copy")
def test_a_function_is_called_with_the_clock_whatever_it_has_and_a_function_alone_is_given_clocks_again() -> None:
    world, backs = behind("function nothing"), list[int]()
    plan = application(world, ValuesAtClock(nothing, on_rewind=backs.append)).rewind(70)
    assert ([each.action for each in plan.outputs], backs) == (["retract"], [70])
    world = behind("function nothing")
    plan = application(world, nothing).rewind(70)
    assert [each.action for each in plan.outputs] == ["none"]
    given: list[int] = []
    entry = world.start(world.plan)
    world.read(12)
    giver = deliver.Giver(
        world.log, "total", "function nothing", lambda _: None, lambda _, due: given.append(due.clock), lambda: 0
    )
    while giver.give_next(entry.epoch):
        pass
    assert given == [90, 100, 110]


@of("Go on from an older copy")
def test_a_sink_that_can_t_go_back_needs_a_place_of_its_own() -> None:
    world = behind("stubborn")
    application(world, Stubborn()).rewind(70)
    with pytest.raises(
        InvalidInputError, match=r"it holds clock=.* \(110\).*; it is of another store: name a place of its own\."
    ):
        deliver.Giver(world.log, "total", "stubborn", lambda _: 110, never, lambda: 0).open()


@of("Go on from an older copy")
def test_a_sink_that_has_followed_a_later_rewind_is_refused() -> None:
    world, table = behind("table"), Said([5, 110])
    app, before = application(world, table), world.newest
    plan = app.plan_rewind(70)
    assert [each.action for each in plan.outputs] == ["refuse"]
    with pytest.raises(
        InvalidInputError, match="from a copy from before a rewind; bring back a newer one, or give it a place"
    ):
        app.rewind(plan)
    assert (world.newest, table.record) == (before, [5, 110])

    def fenced(timeline: int) -> int:
        check_timeline("table", 5, Origin("app", "total", (), pa.schema([]), timeline=timeline))
        return 110

    with pytest.raises(
        InvalidInputError, match="brought back from a copy from before a rewind: bring back a newer copy, or"
    ):
        deliver.Giver(world.log, "total", "table", fenced, never, lambda: 0).open()


@of("Back up")
@of("Go on from an older copy")
def test_each_table_that_has_followed_a_later_rewind_is_refused(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    for minutes in (range(2), range(2, 4)):
        shop.arrive(*minutes)
        at = shop.run()
    shop.back_up()
    shop.app().rewind(at - 2 * MINUTE)
    shop.run()
    shop.lose()
    assert "a timeline to which application=shop has never come" in problem(lambda: shop.run())
    outputs = shop.app().plan_rewind(at).outputs
    assert {each.action for each in outputs} == {"refuse"}
    assert len(outputs) == 8
    # A newer copy knows the rewind.
    assert all("bring back a newer one, or give it a place of its own" in each.why for each in outputs)


@of("Go on from an older copy")
def test_a_sink_that_does_not_answer_goes_back_at_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    class Away(Said):
        def last_clock(self, origin: Origin) -> int:
            if self.is_away:
                raise StoreUnavailableError("it does not answer; wait.")
            return super().last_clock(origin)

    world, table = behind("table"), Away([0, 110], is_away=True)
    plan = application(world, table).rewind(70)
    assert "it does not say how far it is: it does not answer; wait." in caplog.text
    assert (plan.outputs[0].action, plan.outputs[0].is_done, table.record) == ("retract", False, [0, 110])
    table.is_away = False
    entry = world.start(world.plan)
    giver_of(world, table, []).follow(entry.epoch)
    assert table.record == [plan.timeline, 70]


# Copies that are made file by file.


def in_folders(files: Files, paths: Sequence[str], there: Files) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            there.create(path, bytes(files.read(path)))


def paths_of(files: Files, of_log: bool) -> list[str]:
    return [path for path in files_of(files) if path.startswith("app/log/") == of_log]


@of("Copy the files instead")
@pytest.mark.parametrize("is_log_first", [True, False])
@pytest.mark.parametrize("is_collected", [True, False])
@pytest.mark.rows_in_files
def test_a_copy_is_whole_if_the_log_came_first_and_nothing_that_it_needs_has_gone(
    is_log_first: bool, is_collected: bool
) -> None:
    world, there = World(Keeping(3)), core.memory()
    world.read(20)
    in_folders(world.files, paths_of(world.files, is_log_first), there)
    # The application goes on meanwhile. What is not needed any more stays for the grace, and then goes.
    world.read(30)
    core.collect(world.log, world.newest.epoch, now=10**12 if is_collected else 0, keeping=Keeping(3, 600_000_000))
    in_folders(world.files, paths_of(world.files, not is_log_first), there)
    verified = verify(there.url)
    if is_log_first and not is_collected:
        assert verified.problems == ()
    else:
        assert any(each.what == "the newest state needs it" for each in verified.problems)
        assert main(["verify", there.url]) == 1
    is_read = False
    with suppress(DamagedError, NotThereError):
        assert read_state(there.url, "app", "total").to_pylist() == [{"value": expected(20 if is_log_first else 30)}]
        is_read = True
    assert is_read == (verified.problems == ())
    if is_read:
        green = Green(world, there)
        green.start()
        green.read(30)
        assert green.value() == expected(30)


@of("Copy the files instead")
@pytest.mark.rows_in_files
def test_problems_of_old_entries_alone_leave_the_copy_whole() -> None:
    world, there = World(Keeping(1)), core.memory()
    world.read(20)
    in_folders(world.files, paths_of(world.files, True), there)
    core.collect(world.log, world.newest.epoch, now=10**12, keeping=Keeping(1, 0))
    in_folders(world.files, paths_of(world.files, False), there)
    verified = verify(there.url)
    assert verified.problems
    of_files = {each.path for each in verified.problems}
    assert {each.path for each in verified.problems if each.what.startswith("no clock needs it")} == of_files
    assert read_state(there.url, "app", "total").to_pylist() == [{"value": expected(20)}]
    green = Green(world, there)
    green.start()
    green.read(30)
    assert green.value() == expected(30)


@of("Copy the files instead")
def test_a_copy_without_the_newest_entries_is_an_older_one() -> None:
    world = World()
    world.read(20)
    there = copied(world)
    for number in range(world.newest.number - 2, world.newest.number + 1):
        there.delete(world.log.path(number))
    assert verify(there.url).problems == ()
    assert core.newest(Log(there, "app")).clock < 190


class Snapped(MemoryFiles):
    """Files of which there is a snapshot after each change."""

    snapshots: list[dict[str, bytes]]

    def create(self, path: str, data: Any) -> None:
        super().create(path, data)
        self.snapshots.append(files_of(self))

    def delete(self, path: str) -> None:
        super().delete(path)
        self.snapshots.append(files_of(self))


@of("Copy the files instead")
@pytest.mark.rows_in_files
def test_a_snapshot_of_a_disk_at_any_moment_is_whole() -> None:
    world = World(Keeping(3))
    files = Snapped(world.files.url)
    object.__setattr__(files, "snapshots", [])
    world = Green(world, files)
    world.start()
    for count in range(4, 24):
        world.read(count)
        core.collect(world.log, world.newest.epoch, now=10**12, keeping=Keeping(3, 0))
    assert len(files.snapshots) > 60
    for snapshot in files.snapshots:
        there = core.memory()
        for path, data in snapshot.items():
            there.create(path, data)
        assert verify(there.url).problems == ()
        newest = core.newest(Log(there, "app"))
        if newest.clock > 0:
            value = sum(1 for i in range(24) if i not in (4, 8, 12, 16) and 10 * i + 5 < newest.clock)
            assert read_state(there.url, "app", "total").to_pylist() == [{"value": value}]


# Sources.


@of("What the sources must have")
def test_a_file_that_the_copy_knows_and_that_is_gone_is_refused(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.arrive(*range(4))
    # The last minute is read, and above the clock.
    at = shop.run(drain=False)
    shop.back_up()
    shop.arrive(4)
    shop.run()
    shop.lose()
    (tmp_path / "sales/003.csv").unlink()
    before = files_in(shop.store)
    assert "003.csv" in problem(lambda: shop.app().plan_rewind(at))
    assert files_in(shop.store) == before


@of("What the sources must have")
def test_a_file_that_came_after_the_copy_and_is_gone_is_missing_without_a_word(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.arrive(*range(4))
    at = shop.run()
    shop.back_up()
    shop.arrive(4, 5)
    shop.run()
    shop.lose()
    (tmp_path / "sales/004.csv").unlink()
    del shop.sales["004"]
    shop.app().rewind(at)
    shop.run()
    shop.check()


@of("What the sources must have")
def test_positions_that_a_source_has_no_more_are_refused() -> None:
    world = behind("table")
    before = world.newest
    with pytest.raises(InvalidInputError, match=r"no start could go on from .*position=7 is gone; the oldest is 9"):
        application(world, Said([0, 110]), Numbers(20, oldest=9)).rewind(70)
    assert world.newest == before
