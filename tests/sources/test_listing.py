"""What lies in a folder is read, refused, or left out with a warning; nothing is missed or counts twice in silence."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import pickle
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from fsspec import AbstractFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Sum
from persistent_state import Application, NonWindowState, ParquetSink, PersistentTask, SqlSink, ValuesAtClock
from persistent_state.errors import InvalidInputError, StateError, StoreUnavailableError
from persistent_state.sources import file_warnings, folder, listing, moves
from persistent_state.sources.file_journal import files_in
from persistent_state.sources.files import FileSource
from persistent_state.sources.folder import Folder
from persistent_state.store.log import Log
from tests import core
from tests.soak import soak_or
from tests.sources.test_files import FILE, SCHEMA, Driver, bad, counted, encode, source, table, values, write

if TYPE_CHECKING:
    from persistent_state.run.setup import Setup

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    return lambda: [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


Warnings = Callable[[], list[str]]


SECONDS = 1_795_000_000
TIME = datetime.fromtimestamp(SECONDS, timezone.utc)


class Listed(AbstractFileSystem):
    """A file system with one file, of which it says this beside name and size."""

    protocol = "listed"

    def __init__(self, more: dict[str, Any]) -> None:
        super().__init__()
        self.more = more

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return {"name": path, "size": 1, "type": "file", **self.more}

    def find(self, path: str, *given: Any, **options: Any) -> dict[str, dict[str, Any]]:
        return {f"{path}/0.csv": self.info(f"{path}/0.csv")}


@pytest.fixture
def new_york() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("more", "modified"),
    [
        ({"mtime": SECONDS + 0.25, "created": 1.0}, SECONDS + 0.25),
        ({"LastModified": TIME}, SECONDS),
        ({"LastModified": SECONDS}, SECONDS),
        ({"LastModified": ""}, None),
        ({"mtime": TIME, "updated": "2020-01-01T00:00:00Z"}, SECONDS),
        ({"updated": "2026-11-18T11:06:40.000Z"}, SECONDS),
        ({"last_modified": TIME, "creation_time": TIME - timedelta(days=1)}, SECONDS),
        ({"last_modified": None}, None),
        ({"mtime": TIME.replace(tzinfo=None)}, SECONDS),
        ({"modificationTime": SECONDS * 1000 + 250}, SECONDS + 0.25),
        ({"created": TIME}, SECONDS),
        ({"modified": "Wed, 18 Nov 2026 11:06:40 GMT", "created": TIME}, SECONDS),
        ({"modify": "20261118110640"}, None),
        ({}, None),
    ],
    ids=[
        "local and SMB", "S3", "OSS", "S3 without a time", "GCS", "GCS as it is stored", "Azure", "no time", "no zone",
        "WebHDFS", "memory", "no ISO time", "FTP", "HTTP",
    ],
)  # fmt: skip
def test_the_time_of_a_file_is_taken_in_each_form_that_file_systems_give(
    more: dict[str, Any], modified: float | None, new_york: None
) -> None:
    (file,) = listing.store_listing(Listed(more), "in", ()).files
    assert file == listing.File("0.csv", 1, modified and int(modified * 1_000_000))


def test_a_journal_with_times_of_webhdfs_that_an_older_version_took_for_seconds_is_read() -> None:
    lines = [json.dumps({"file": 0, "path": "0.csv", "size": 1, "modified": SECONDS * 1000 * 1_000_000})]
    assert files_in(lines) == [listing.File("0.csv", 1, SECONDS * 1_000_000)]


def driver(folder: Path | str, before: Driver | None = None, start: int = 0, **options: Any) -> Driver:
    journal = before.journal if before else ()
    return Driver(lambda: source(folder, **options), journal, start, len(journal) * FILE)


def test_a_pipe_a_socket_and_links_are_left_out_with_one_warning_each(tmp_path: Path, warnings: Warnings) -> None:
    folder = tmp_path / "in"
    write(folder, "day/a.csv", table(0, 1))
    write(folder, ".data/b.csv", table(1, 1))
    write(tmp_path, "outside/c.csv", table(2, 1))
    os.mkfifo(folder / "pipe.csv")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "socket"))
    for name, target in [
        ("latest", "day"), ("out", "../outside"), ("up", ".."), ("loop", "loop"), ("nothing.csv", "gone"),
        ("again.csv", "day/a.csv"), ("b.csv", ".data/b.csv"), ("c.csv", "../outside/c.csv"),
    ]:  # fmt: skip
        (folder / name).symlink_to(target)
    read = driver(folder)
    assert sorted(values(read.rest())) == [0, 1, 2]
    assert sorted(text.replace(f" of FileSource({str(folder)!r}): left out:", "") for text in warnings()) == [
        "'again.csv' a link to 'day/a.csv', which is read itself.",
        "'latest', 'out', 'up' a link to a folder; give the source that folder itself.",
        "'loop' a link in a circle.",
        "'nothing.csv' a link to nothing.",
        "'pipe.csv', 'socket' a pipe, a socket or a device.",
    ]
    count = len(warnings())
    read.source.reach(read.position, False)
    assert len(warnings()) == count


def in_another_user(work: Callable[[], Any]) -> Any:
    """What a function returns or raises in a process that may not read all."""
    receive, send = multiprocessing.Pipe(duplex=False)
    if (child := os.fork()) == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            send.send(work())
        except BaseException as error:
            send.send(error if isinstance(error, StateError) else RuntimeError(repr(error)))
        finally:
            os._exit(0)
    assert receive.poll(60)
    found = receive.recv()
    os.waitpid(child, 0)
    return found


@pytest.fixture
def shut() -> Iterator[Path]:
    """A folder that others may come to, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        write(Path(made), "in/a.csv", table(0, 1))
        write(Path(made), "in/day/b.csv", table(1, 1))
        yield Path(made) / "in"


@needs_root
def test_a_file_that_may_not_be_read_waits_until_it_may_and_others_go_on(shut: Path, warnings: Warnings) -> None:
    (shut / "day/b.csv").chmod(0)
    asked = in_another_user(lambda: [json.loads(line)["path"] for line in driver(shut).source.reach({}, True).journal])
    assert asked == ["a.csv"]
    left = in_another_user(lambda: listing.local_listing(str(shut), ()).left_out)
    assert left == {"day/b.csv": "reading is not permitted; permit it, and it is read"}
    refused = in_another_user(lambda: driver(shut, finite=True))
    assert isinstance(refused, StoreUnavailableError)
    assert "file='day/b.csv' of FileSource" in str(refused)
    (shut / "day/b.csv").chmod(0o644)
    assert in_another_user(lambda: len(driver(shut).source.reach({}, True).journal)) == 2


@needs_root
@pytest.mark.parametrize(("folder", "mode"), [("day", 0), ("day", 0o311), (".", 0), (".", 0o311)])
def test_a_folder_that_can_not_be_listed_is_never_empty(shut: Path, folder: str, mode: int) -> None:
    (shut / folder).chmod(mode)
    refused = in_another_user(lambda: driver(shut))
    assert isinstance(refused, StoreUnavailableError)
    way = "Permit to list it, or move it out of the folder of the source if it is below, then try again."
    assert f"Permission denied: '{shut / folder}/'. {way}" in str(refused)


def test_the_lost_and_found_of_a_file_system_is_passed_over_and_a_folder_of_this_name_elsewhere_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.csv", table(0, 1))
    write(tmp_path, "lost+found/b.csv", table(1, 1))
    write(tmp_path, "day/lost+found/c.csv", table(2, 1))
    assert sorted(values(driver(tmp_path).rest())) == [0, 1, 2]
    monkeypatch.setattr(os.path, "ismount", lambda path: path == str(tmp_path))
    assert sorted(values(driver(tmp_path).rest())) == [0, 2]


@pytest.mark.parametrize("name", ["r::1", "#", "%41", "?", "[1]", ":", "new\nline", "~x", "memory::x"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    write(tmp_path, f"{name}/a.csv", table(0, 1))
    assert values(driver(tmp_path / name).rest()) == [0]


@pytest.mark.parametrize(
    ("mark", "what"),
    [
        ("_delta_log/x", "Delta table"),
        ("sub/.hoodie/x", "Hudi table"),
        ("metadata/v1.metadata.json", "Iceberg table"),
        ("_spark_metadata/x", "Spark's file sink"),
        ("sub/_table.json", "ParquetSink"),
    ],
)
@pytest.mark.parametrize("is_local", [True, False])
def test_a_table_is_refused_at_first_and_a_source_that_has_begun_warns(
    tmp_path: Path, warnings: Warnings, mark: str, what: str, is_local: bool
) -> None:
    folder = tmp_path if is_local else f"memory://tables/{tmp_path.name}"
    place = mark.removesuffix("/x").removesuffix("/v1.metadata.json")

    def put(name: str) -> None:
        fsspec.filesystem("file" if is_local else "memory").pipe_file(f"{folder}/{name}", b"value\n1\n")

    put("a.csv")
    before = driver(folder)
    assert values(before.next()) == [1]
    (tmp_path / mark).parent.mkdir(parents=True, exist_ok=True)
    put(mark)
    put(f"{mark.rpartition('/')[0]}/more.metadata.json")
    with pytest.raises(InvalidInputError, match=rf"has '{place}'.*{what}.*(Use|Feed)"):
        driver(folder)
    assert warnings() == []
    before.next()
    driver(folder, before, FILE)
    assert len(warnings()) == 2
    assert all(what in text for text in warnings())


@pytest.mark.parametrize(
    ("mark", "folder", "what"),
    [
        ("metadata/v1.metadata.json", "data", "Iceberg table"),
        ("metadata/v1.metadata.json", "data/day=1", "Iceberg table"),
        ("_delta_log/x", "day=2026-01-01", "Delta table"),
        (".hoodie/x", "a/b", "Hudi table"),
        ("_spark_metadata/0", "day=1", "Spark's file sink"),
        ("_table.json", "clock=1", "ParquetSink"),
    ],
)
@pytest.mark.parametrize("is_local", [True, False])
def test_a_folder_within_a_table_is_refused_at_first_and_a_source_that_has_begun_warns(
    tmp_path: Path, warnings: Warnings, mark: str, folder: str, what: str, is_local: bool
) -> None:
    root = f"{tmp_path}/table" if is_local else f"memory://tables/{tmp_path.name}/table"
    system = fsspec.filesystem("file" if is_local else "memory", auto_mkdir=True)
    system.pipe_file(f"{root}/{folder}/a.csv", b"value\n1\n")
    before = driver(f"{root}/{folder}")
    assert values(before.next()) == [1]
    system.pipe_file(f"{root}/{mark}", b"{}")
    place = mark.removesuffix("/x").removesuffix("/0").removesuffix("/v1.metadata.json")
    with pytest.raises(InvalidInputError, match=rf"lies below the folder of '.*/table/{place}', so its files.*{what}"):
        driver(f"{root}/{folder}")
    assert warnings() == []
    driver(f"{root}/{folder}", before, FILE)
    assert ["its files are those of" in text and what in text for text in warnings()] == [True]
    # What lies beside the table does not.
    system.pipe_file(f"{root}-2/a.csv", b"value\n2\n")
    assert values(driver(f"{root}-2").next()) == [2]


def test_the_log_of_a_table_may_be_read_by_itself(tmp_path: Path) -> None:
    write(tmp_path, "_delta_log/0.json", '{"value": 1}\n')
    assert values(driver(tmp_path / "_delta_log").next()) == [1]


def test_a_file_that_is_moved_below_the_folder_does_not_count_twice(tmp_path: Path, warnings: Warnings) -> None:
    write(tmp_path, "0.csv", table(0, 2))
    write(tmp_path, "1.csv", table(2, 1))
    before = driver(tmp_path)
    assert values(before.next()) == [0, 1, 2]
    (tmp_path / "archive").mkdir()
    (tmp_path / "0.csv").rename(tmp_path / "archive/0.csv")
    write(tmp_path, "2.csv", table(3, 1))
    assert values(before.next()) == [3]
    assert len(before.journal) == 3
    assert warnings() == [
        f"'archive/0.csv' (read as '0.csv') of FileSource({str(tmp_path)!r}): not read, as it looks like a file that "
        "was read under another path, so that its rows would count twice. Move it back, as it was, or out of the folder; if it "
        "is another file, write it again under another name."
    ]
    with pytest.raises(
        InvalidInputError, match=r"'0.csv' .* is gone, and file='archive/0.csv' looks like it; move that back"
    ):
        driver(tmp_path, before).next()
    (tmp_path / "archive/0.csv").rename(tmp_path / "0.csv")
    again = driver(tmp_path, before)
    assert (values(again.rest()), len(again.journal)) == ([0, 1, 2, 3], 3)


def test_only_a_file_that_looks_like_one_that_is_gone_was_moved(tmp_path: Path, warnings: Warnings) -> None:
    write(tmp_path, "a/0.csv", table(0, 1), 1e9 + 0.5)
    write(tmp_path, "a/1.csv", table(1, 1), 1e9)
    write(tmp_path, "a/2.csv", "")
    before = driver(tmp_path)
    before.next()
    shutil.rmtree(tmp_path / "a")
    # Of one whole second, with another name; without rows; of another time and name; of another size.
    write(tmp_path, "c/3.csv", table(1, 1), 1e9)
    write(tmp_path, "c/2.csv", "")
    write(tmp_path, "c/4.csv", table(4, 1), 1e9 + 0.75)
    write(tmp_path, "c/0.csv", table(0, 2), 1e9 + 0.5)
    assert sorted(values(before.next())) == [0, 1, 1, 4]
    assert warnings() == []
    write(tmp_path, "d/1.csv", table(1, 1), 1e9)
    assert before.next() == []
    assert len(warnings()) == 1
    # It is said to be another file.
    (tmp_path / "d/1.csv").rename(tmp_path / "d/9.csv")
    os.utime(tmp_path / "d/9.csv")
    assert values(before.next()) == [1]


@pytest.mark.parametrize("name", ["0.csv.part", "0.csv._COPYING_", "upload-123", "0.txt", "0.csv.xz"])
def test_a_file_that_was_never_opened_is_read_under_its_right_name_and_never_missed(
    tmp_path: Path, warnings: Warnings, name: str
) -> None:
    write(tmp_path, name, encode(table(0, 1), ".csv"))
    before = driver(tmp_path)
    ((_, reason, _),) = bad(before.next())
    # It may grow, too.
    write(tmp_path, name, encode(table(0, 2), ".csv"))
    assert before.next() == []
    (tmp_path / name).rename(tmp_path / "0.csv")
    assert values(before.next()) == [0, 1]
    assert warnings() == []
    again = driver(tmp_path, before)
    chunks = again.rest()
    assert (values(chunks), [why for _, why, _ in bad(chunks)], again.journal) == ([0, 1], [reason], before.journal)
    source(tmp_path).check_again({}, before.journal, before.journal)


@pytest.mark.parametrize("modified", [1e9, 1e9 + 0.5])
@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("0.csv", "0.csv.gz"),
        ("0.csv.gz", "0.csv"),
        ("0.json", "0.csv"),
        ("key=a/value=some/0.csv", "key=b/0.csv"),
    ],
)
def test_a_file_that_gets_the_name_of_its_own_kind_is_read_and_its_bad_records_stay(
    tmp_path: Path, name: str, right: str, modified: float
) -> None:
    write(tmp_path, name, encode(table(0, 3), right), modified)
    before = driver(tmp_path)
    first = before.next()
    assert (values(first), len(bad(first)) > 0) == ([], True)
    (tmp_path / right).parent.mkdir(exist_ok=True)
    (tmp_path / name).rename(tmp_path / right)
    assert values(before.next()) == [0, 1, 2]
    again = driver(tmp_path, before)
    chunks = again.rest()
    # A replay reads the bytes of the file where they are now.
    assert (values(chunks), bad(chunks), len(again.journal)) == ([0, 1, 2], bad(first), 2)
    source(tmp_path).check_again({}, before.journal, before.journal)
    (tmp_path / right).unlink()
    with pytest.raises(InvalidInputError, match=r"2 of the 2 files of .* are gone"):
        source(tmp_path).check_again({}, before.journal, before.journal)


def moved_in_place(folder: Path) -> None:
    (folder / "new").mkdir()
    (folder / "0.csv").rename(folder / "new/0.csv")


def compressed_in_place(folder: Path, name: str = "0.csv.gz", modified: float | None = None) -> None:
    stamp = (folder / "0.csv").stat().st_mtime if modified is None else modified
    write(folder, name, encode(pa_csv.read_csv(folder / "0.csv"), name), stamp)
    (folder / "0.csv").unlink()


def copied_and_deleted(folder: Path) -> None:
    time.sleep(0.01)
    (folder / "new").mkdir()
    shutil.copyfile(folder / "0.csv", folder / "new/0.csv")
    (folder / "0.csv").unlink()


def rotated(folder: Path) -> None:
    moved_in_place(folder)
    write(folder, "0.csv", table(7, 1))


@pytest.mark.parametrize(
    ("move", "path"),
    [
        (moved_in_place, "new/0.csv"),
        (compressed_in_place, "0.csv.gz"),
        (partial(compressed_in_place, name="new/0.csv.bz2"), "new/0.csv.bz2"),
        (partial(compressed_in_place, modified=1e9), "0.csv.gz"),
        (copied_and_deleted, "new/0.csv"),
        (rotated, "new/0.csv"),
    ],
)
def test_a_file_that_is_moved_compressed_or_copied_and_deleted_counts_once_also_when_it_is_brought_back(
    tmp_path: Path, warnings: Warnings, move: Callable[[Path], None], path: str
) -> None:
    write(tmp_path, "0.csv", table(0, 2), 1e9 + 0.5)
    content = (tmp_path / "0.csv").read_bytes()
    before = driver(tmp_path)
    assert values(before.next()) == [0, 1]
    move(tmp_path)
    assert before.next() == []
    assert [text for text in warnings() if text.startswith(f"{path!r} (read as '0.csv') of")]
    if move is not rotated:
        with pytest.raises(InvalidInputError, match=rf"'0.csv' .* is gone, and file={path!r} looks like it; move that"):
            driver(tmp_path, before).next()
    # It is brought back by a copy, which makes it no other one.
    write(tmp_path, "0.csv", content, None if path == "new/0.csv" else 1e9 + 0.5)
    assert before.next() == []
    again = driver(tmp_path, before)
    if path == "new/0.csv":
        assert (values(again.rest()), len(again.journal)) == ([0, 1], 1)
    (tmp_path / path).unlink()
    again = driver(tmp_path, before)
    assert (values(again.rest()), len(again.journal)) == ([0, 1], 1)


def test_a_move_within_a_store_that_copies_and_deletes_does_not_count_twice(tmp_path: Path, warnings: Warnings) -> None:
    system, folder = fsspec.filesystem("memory"), f"memory://moves/{tmp_path.name}"
    for day in (1, 2):
        system.pipe_file(f"{folder}/{day}/orders.csv", b"value\n1\n")
    before = driver(folder)
    assert values(before.next()) == [1, 1]
    for day in (1, 2):
        system.mv(f"{folder}/{day}/orders.csv", f"{folder}/archive/{day}/orders.csv")
    assert before.next() == []
    (warning,) = warnings()
    assert all(f"'archive/{day}/orders.csv' (read as '{day}/orders.csv')" in warning for day in (1, 2))


@pytest.mark.parametrize(
    ("mark", "folder"),
    [
        ("metadata/build.metadata.json", "data"),
        ("metadata/v1.metadata.json", "landing"),
        ("_delta_log/x", "in/landing"),
        ("_table.json", "landing/day=1"),
        ("_spark_metadata/0", "landing"),
    ],
)
def test_a_folder_that_lies_beside_the_folders_of_a_table_is_read(
    tmp_path: Path, warnings: Warnings, mark: str, folder: str
) -> None:
    write(tmp_path, f"{folder}/a.csv", table(0, 1))
    write(tmp_path, mark, "{}")
    assert values(driver(tmp_path / folder).rest()) == [0]
    assert warnings() == []


def test_new_files_of_the_name_and_size_of_one_that_is_gone_are_read(tmp_path: Path, warnings: Warnings) -> None:
    for day in range(1, 5):
        write(tmp_path, f"day-{day}/0.csv", table(day, 1), 1e9 + day)
    before = driver(tmp_path)
    assert values(before.next()) == [1, 2, 3, 4]
    (tmp_path / "day-1/0.csv").unlink()
    for day in range(5, 9):
        write(tmp_path, f"day-{day}/0.csv", table(day, 1), 1e9 + day)
        assert values(before.next()) == [day]
    assert warnings() == []


def test_one_file_is_taken_for_one_that_is_gone_and_has_no_more_than_its_path_and_size(
    tmp_path: Path, warnings: Warnings
) -> None:
    write(tmp_path, "0.csv", table(1, 1), 1e9)
    before = driver(tmp_path)
    assert values(before.next()) == [1]
    (tmp_path / "0.csv").unlink()
    for day in (2, 3, 4):
        write(tmp_path, f"day-{day}/0.csv", table(day, 1), 1e9 + day)
    assert values(before.next()) == [3, 4]
    assert "'day-2/0.csv' (read as '0.csv')" in warnings()[0]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("modified", [1e9, 1e9 + 0.5])
@pytest.mark.parametrize("name", ["new/0.csv", "0.csv.gz"])
def test_a_copy_is_read_and_named(
    tmp_path: Path, warnings: Warnings, name: str, modified: float, is_known: bool
) -> None:
    write(tmp_path, "0.csv", table(0, 1), modified)
    before = driver(tmp_path)
    if is_known:
        before.next()
    write(tmp_path, name, table(0, 1), modified)
    if not is_known:
        before = driver(tmp_path)
    before.rest()
    assert len(before.journal) == 2
    assert warnings() == [
        f"{name!r} (as '0.csv') of FileSource({str(tmp_path)!r}): read, although it looks like a copy of another file that is "
        "read. If it is one, its rows count twice: move it out of the folder, and name the task in rebuild."
    ]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_file_that_has_several_names_by_links_is_read_once(
    tmp_path: Path, warnings: Warnings, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    folder = tmp_path / "in"
    write(folder, "b.csv", table(0, 1), 1e9)
    write(tmp_path, "outside.csv", table(1, 1), 1e9)
    (folder / "c.csv").symlink_to(tmp_path / "outside.csv")
    before = driver(folder)
    if is_known:
        assert values(before.next()) == [0, 1]
    (folder / "day").mkdir()
    os.link(folder / "b.csv", folder / "day/a.csv")
    os.link(tmp_path / "outside.csv", folder / "day/d.csv")
    (folder / "day/e.csv").symlink_to(tmp_path / "outside.csv")
    # As a writer does that gives a whole file its name by a link, and dies.
    write(folder, "_draft.csv", table(2, 1), 1e9)
    os.link(folder / "_draft.csv", folder / "f.csv")
    if not is_known:
        before = driver(folder)
    assert values(before.next()) == [0, 1, 2][2 * is_known :]
    names = "'day/a.csv' (as 'b.csv'), 'day/d.csv' (as 'c.csv'), 'day/e.csv' (as 'c.csv')"
    if not is_known:
        # The file itself comes before links to it.
        names = "'c.csv' (as 'day/d.csv'), 'day/a.csv' (as 'b.csv'), 'day/e.csv' (as 'day/d.csv')"
    assert warnings() == [
        f"{names} of FileSource({str(folder)!r}): left out, as a link makes the two one file, which is read once. If its rows "
        "are to count twice, put a copy in place of the link."
    ]
    with monkeypatch.context() as patch:
        asked: list[str] = []
        inode = Folder.inode
        patch.setattr(Folder, "inode", lambda folder, path: asked.append(path) or inode(folder, path))
        assert before.next() == []
        # Later listings look at no file that is read.
        assert len(asked) == 3
    after = driver(folder, before)
    assert sorted(values(after.rest())) == [0, 1, 2]
    write(folder, ".a.csv", table(0, 1), 2e9)
    (folder / ".a.csv").rename(folder / "day/a.csv")
    assert values(after.next()) == [0]


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_file_that_takes_the_place_of_a_known_one_by_a_link_is_read(
    tmp_path: Path, warnings: Warnings, link: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "in").mkdir()
    read = driver(tmp_path / "in")
    for day in (1, 2):
        # The file of a day, and its link, which comes first in the order of names.
        write(tmp_path, f"{day}.csv", table(day, 1), 1e9 + day + 0.5)
        os.link(tmp_path / f"{day}.csv", tmp_path / f"in/{day}.csv")
        link(tmp_path / f"{day}.csv", tmp_path / "in/.newest.csv")
        (tmp_path / "in/.newest.csv").rename(tmp_path / "in/+newest.csv")
        assert values(read.next()) == [day]
    assert len(read.journal) == 2


def test_a_link_under_folders_or_a_name_that_say_other_rows_is_read(tmp_path: Path, warnings: Warnings) -> None:
    write(tmp_path, "value=1/day=1/0.json", '{"ts": "2026-01-01"}\n')
    for name in ("value=1/day=1/0.csv", "value=1/day=2/0.json", "value=2/day=1/0.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(tmp_path / "value=1/day=1/0.json", tmp_path / name)
    read = driver(tmp_path).rest()
    assert (sorted(values(read)), [reason.partition(":")[0] for _, reason, _ in bad(read)]) == (
        [1, 2],
        ["its first line names no column of the schema"],
    )
    assert [text.partition(" of ")[0] for text in warnings()] == ["'value=1/day=2/0.json' (as 'value=1/day=1/0.json')"]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("modified", [1e9, 1e9 + 0.5])
def test_a_copy_of_the_same_bytes_under_another_name_is_read_and_named_on_this_machine(
    tmp_path: Path, warnings: Warnings, monkeypatch: pytest.MonkeyPatch, modified: float, is_known: bool
) -> None:
    for i in range(2):
        write(tmp_path, f"{i}.csv", table(i, 1), modified)
    write(tmp_path, "other.csv", table(0, 2), modified)
    opened: list[str] = []
    ends = Folder.ends
    monkeypatch.setattr(Folder, "ends", lambda folder, path: opened.append(path) or ends(folder, path))
    before = driver(tmp_path)
    if is_known:
        before.next()
    for name in ("0-copy.csv", "1-copy.csv"):
        shutil.copy2(tmp_path / f"{name[0]}.csv", tmp_path / name)
    write(tmp_path, "late.csv", table(0, 1), modified + 1)
    if not is_known:
        before = driver(tmp_path)
    before.next()
    assert len(before.journal) == 6
    assert not {"other.csv", "late.csv"} & {*opened}
    (warning,) = warnings()
    # The second by name of two new files is taken for the copy.
    pairs = ["'0-copy.csv' (as '0.csv')", "'1-copy.csv' (as '1.csv')"]
    if not is_known:
        pairs = ["'0.csv' (as '0-copy.csv')", "'1.csv' (as '1-copy.csv')"]
    assert warning.startswith(
        f"{', '.join(pairs)} of FileSource({str(tmp_path)!r}): read, although it looks like a copy"
    )


def given_another_name(folder: Path) -> str:
    (folder / "a/0.csv").rename(folder / "a/1.csv")
    return "a/1.csv"


def copied_beside(folder: Path) -> str:
    write(folder, "b/0.csv", (folder / "a/0.csv").read_bytes(), 2e9)
    (folder / "a/0.csv").unlink()
    return "b/0.csv"


@pytest.mark.parametrize("move", [given_another_name, copied_beside])
def test_a_file_that_was_read_again_under_another_name_is_not_to_be_brought_back(
    tmp_path: Path, move: Callable[[Path], str]
) -> None:
    write(tmp_path, "a/0.csv", table(0, 2), 1e9)
    write(tmp_path, "a/other.csv", table(2, 1), 1e9)
    before = driver(tmp_path)
    assert values(before.next()) == [0, 1, 2]
    path = move(tmp_path)
    looks = rf"'a/0.csv' of .* is gone, and file='{path}', which {{}}, looks like it. If that is the same one, {{}}. Else bring"
    with pytest.raises(InvalidInputError, match=looks.format("is new", f"move it back, {re.escape(folder.OR)}")):
        driver(tmp_path, before).next()
    # Nothing says that it is the same file.
    assert values(before.next()) == [0, 1]
    twice = "name the task in rebuild, .*: brought back, it would count twice"
    with pytest.raises(InvalidInputError, match=looks.format("was read", twice)):
        driver(tmp_path, before).next()
    (tmp_path / path).unlink()
    with pytest.raises(InvalidInputError, match=r"'a/0.csv' of .* is gone; bring it back, or name the task in rebuild"):
        driver(tmp_path, before).next()


def add(folder: Path, number: int) -> None:
    write(folder, f"{number}.csv.part", f"value\n{number}\n", 1e9 + number + 0.5)


def rename(folder: Path, path: Path) -> None:
    path.rename(path.with_name(path.name.removesuffix(".part")))


def archive(folder: Path, path: Path) -> None:
    (folder / "archive").mkdir(exist_ok=True)
    path.rename(folder / "archive" / path.name)


def copy_and_delete(folder: Path, path: Path) -> None:
    write(folder, f"old/{path.relative_to(folder)}", path.read_bytes(), 2e9 + path.stat().st_mtime % 1e9)
    path.unlink()


def compress(folder: Path, path: Path) -> None:
    write(path.parent, f"{path.name}.gz", gzip.compress(path.read_bytes()), int(path.stat().st_mtime))
    path.unlink()


@pytest.mark.soak
@settings(max_examples=soak_or(ci=60, soak=3_000))
@given(
    st.lists(
        st.tuples(st.sampled_from([rename, archive, copy_and_delete, compress]), st.integers(1, 9)),
        min_size=1,
        max_size=8,
    )
)
def test_each_row_counts_once_whatever_moves_between_listings(
    moves: list[tuple[Callable[[Path, Path], None], int]],
) -> None:
    """A file is moved once after it was read, as one that is moved twice looks like the first place no more."""
    with tempfile.TemporaryDirectory() as made:
        folder, found = Path(made), list[int]()
        for number in range(1, 4):
            add(folder, number)
        read = driver(folder)
        read.next()
        for move, number in moves:
            path = folder / (f"{number}.csv.part" if move is rename else f"{number}.csv")
            if path.exists():
                move(folder, path)
            found += values(read.next())
            # A start at the same place knows what its journal says.
            read = driver(folder, read, read.position.get("", 0))
            found += values(read.next())
        for path in folder.rglob("*.part"):
            rename(folder, path)
        found += values(read.next())
        assert sorted(found) == [1, 2, 3]


def test_partitions_that_are_alike_are_kept_apart_by_their_folders(tmp_path: Path, warnings: Warnings) -> None:
    for day in (1, 2, 3):
        write(tmp_path, f"value={day}/0.csv", "ts\n2026-01-01\n", 1e9)
    before = driver(tmp_path)
    assert values(before.next()) == [1, 2, 3]
    for day in (1, 2):
        write(tmp_path, f"old/value={day}/0.csv.gz", gzip.compress((tmp_path / f"value={day}/0.csv").read_bytes()), 1e9)
        (tmp_path / f"value={day}/0.csv").unlink()
    write(tmp_path, "value=4/0.csv", "ts\n2026-01-01\n", 1e9)
    assert values(before.next()) == [4]
    (warning,) = warnings()
    assert all(f"'old/value={day}/0.csv.gz' (read as 'value={day}/0.csv')" in warning for day in (1, 2))


def test_files_that_are_alike_by_chance_are_read_in_silence(tmp_path: Path, warnings: Warnings) -> None:
    # Of one whole second and size, and of one name and size.
    for i in range(3):
        write(tmp_path, f"{i}.csv", table(i, 1), 1e9)
        write(tmp_path, f"{i}/orders.csv", table(i, 1), 2e9 + i)
        # As partitions are written, all within a tick of the clock of files.
        write(tmp_path, f"value={i}/0.csv", table(0, 1), 3e9 + 0.5)
        write(tmp_path, f"{i + 10}.csv", table(i, 1), 3e9 + 0.75)
    before = driver(tmp_path)
    assert len(before.rest()) == 12
    write(tmp_path, "3/orders.csv", table(3, 1), 3e9)
    write(tmp_path, "value=3/0.csv", table(0, 1), 4e9)
    (tmp_path / "1/orders.csv").unlink()
    shutil.rmtree(tmp_path / "value=0")
    assert values(before.next()) == [3, 3]
    assert warnings() == []


def test_a_listing_of_many_files_that_are_alike_takes_linear_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compared(count: int) -> int:
        calls: list[str] = []
        monkeypatch.setattr(moves, "_is_like", counted(is_like, calls))
        known = [listing.File(f"{i}/orders.csv", 7, 10**15) for i in range(count)]
        found = [listing.File(f"new/{i}/orders.csv.gz", 7, 10**15) for i in range(count)]
        found += [listing.File(f"new/{i}/orders.csv", 7, 10**15) for i in range(count)]
        moves.moved_and_copied(source(tmp_path)._reader, known, found, lambda known: True, {})
        return len(calls)

    is_like = moves._is_like

    assert compared(100) < 12 * compared(10)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_known_file_that_is_written_again_or_appended_to_is_named_once(
    tmp_path: Path, warnings: Warnings, is_local: bool
) -> None:
    folder = tmp_path if is_local else f"memory://changed/{tmp_path.name}"

    def put(name: str, content: bytes) -> None:
        fsspec.filesystem("file" if is_local else "memory").pipe_file(f"{folder}/{name}", content)

    for i, name in enumerate(("a.csv", "b.csv", "c.csv")):
        put(name, b"value\n%d\n" % i)
    before = driver(folder)
    before.next()
    time.sleep(0.01)
    put("a.csv", b"value\n0\n2\n")
    put("b.csv", b"value\n2\n")
    assert before.next() == before.next() == []
    appended, again = warnings()
    assert appended.startswith("'a.csv' of FileSource")
    assert ": the size has changed since it was listed. What was written since is not read, and" in appended
    assert again.startswith("'b.csv' of FileSource")
    assert ": written again since it was listed." in again


def test_a_link_that_is_replayed_is_as_it_was_until_its_file_is_written_again(
    tmp_path: Path, warnings: Warnings
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(tmp_path, "outside.csv", "value\n1\n", 1e9)
    (folder / "a.csv").symlink_to(tmp_path / "outside.csv")
    before = driver(folder)
    before.next()
    assert values(driver(folder, before).next()) == [1]
    assert warnings() == []
    write(tmp_path, "outside.csv", "value\n2\n", 3e9)
    assert before.next() == []
    assert ["'a.csv'" in text and "written again" in text for text in warnings()] == [True]
    assert values(driver(folder, before).next()) == [2]
    assert len(warnings()) == 2


def test_many_files_are_named_in_one_warning(tmp_path: Path, warnings: Warnings) -> None:
    for i in range(7):
        (tmp_path / f"{i}.csv").symlink_to("gone")
    driver(tmp_path)
    assert [text.partition(" of FileSource")[0] for text in warnings()] == ["'0.csv', '1.csv', '2.csv' and 4 more"]


def test_a_replayed_file_of_the_same_size_is_named_however_many_came_since(
    tmp_path: Path, warnings: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_warnings, "_WATCHED", 1)
    monkeypatch.setattr(file_warnings, "_IN_TURN", 0)
    for i, name in enumerate(("a.csv", "b.csv")):
        write(tmp_path, name, f"value\n{i}\n", 1e9)
    before = driver(tmp_path)
    before.next()
    write(tmp_path, "a.csv", "value\n2\n", 2e9)
    assert before.next() == []
    assert warnings() == []
    assert values(driver(tmp_path, before).next()) == [2, 1]
    assert ["'a.csv'" in text and "written again" in text for text in warnings()] == [True]


@pytest.mark.parametrize("changed", range(7))
def test_each_known_file_is_looked_at_in_turn_however_many_came_since(
    tmp_path: Path, warnings: Warnings, monkeypatch: pytest.MonkeyPatch, changed: int
) -> None:
    monkeypatch.setattr(file_warnings, "_WATCHED", 1)
    monkeypatch.setattr(file_warnings, "_IN_TURN", 2)
    looked_at: list[str] = []

    def counted(source: FileSource, path: str) -> listing.File | None:
        looked_at.append(path)
        return on_this_machine(source, path)

    on_this_machine = Folder.local_file
    monkeypatch.setattr(Folder, "local_file", counted)
    for i in range(7):
        write(tmp_path, f"{i}.csv", f"value\n{i}\n", 1e9)
    read = driver(tmp_path)
    read.next()
    write(tmp_path, f"{changed}.csv", "value\n1\n2\n", 2e9)
    for _ in range(3):
        assert read.next() == []
    assert [text.partition(" of FileSource")[0] for text in warnings()] == [f"'{changed}.csv'"]
    assert len(looked_at) <= 3 * 4


@pytest.mark.parametrize(
    ("time", "name", "is_alike"), [(None, "b.csv", False), (None, "in/a.csv", True), (7, "b.csv", True)]
)
def test_files_without_a_time_are_not_alike_by_that_they_have_none(time: int | None, name: str, is_alike: bool) -> None:
    gone, other = listing.File("a.csv", 3, time), listing.File(name, 3, time)
    assert [*moves.alike(gone, [other])] == [other] * is_alike


def test_a_process_of_spark_does_not_repeat_what_a_start_has_warned_of(tmp_path: Path, warnings: Warnings) -> None:
    os.mkfifo(tmp_path / "a.csv")
    opened = pickle.loads(pickle.dumps(source(tmp_path)))
    opened._maker = 0
    opened.open([], {})
    assert warnings() == []
    os.mkfifo(tmp_path / "b.csv")
    opened.reach({}, False)
    assert ["'b.csv'" in text for text in warnings()] == [True]


class Total(PersistentTask):
    value = "value"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Other(Total):
    pass


@pytest.mark.parametrize("begins", ["", "file://", "local://"])
@pytest.mark.parametrize(
    "name",
    [
        "{}/in",
        "{}/in/out",
        "{}//in/./x/../out/",
        "file://{}/in/out",
        "file:{}/in/out",
        "local://{}/in/out",
        "{}/link/out",
    ],
)
def test_a_sink_or_a_store_within_the_folder_of_a_source_is_refused(tmp_path: Path, name: str, begins: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to("in")
    place = name.format(tmp_path)
    read = source(f"{begins}{tmp_path}/in")
    sentence = (
        r"task={} reads all files below FileSource\(.*\), and the {} .*writes there; give one of the two another folder"
    )
    with pytest.raises(InvalidInputError, match=sentence.format("Total", "store")):
        Application("a", store=place).add(Total(), read)
    if name.startswith("local"):
        # A sink refuses that itself.
        return
    with pytest.raises(InvalidInputError, match=sentence.format("Total", "sink")):
        Application("a", store=str(tmp_path / "store")).add(Total(), read, ParquetSink(place))
    with pytest.raises(InvalidInputError, match=r"reads all files below .*, and scratch='.*' writes there; give one"):
        Application("a", store=str(tmp_path / "store"), scratch=place).add(Total(), read)
    app = Application("a", store=str(tmp_path / "store"))
    app.add(Total(), source(tmp_path / "other"), ParquetSink(place))
    with pytest.raises(InvalidInputError, match=sentence.format("Other", "sink")):
        app.add(Other(), read)


def test_a_source_of_the_files_of_its_own_application_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"and the store '.*' writes there"):
        Application("a", store=str(tmp_path)).add(Total(), source(tmp_path / "a"))
    Application("b", store=str(tmp_path)).add(Total(), source(tmp_path / "a"))


def test_a_sink_beside_the_folder_or_under_an_ignored_name_is_taken(tmp_path: Path) -> None:
    read = source(tmp_path / "in")
    beside = [ParquetSink(str(tmp_path / name)) for name in ("in/_out", "in-out", "in/tmp/x")]
    sinks = [*(ValuesAtClock(sink, name=sink.place.url) for sink in beside), SqlSink(f"sqlite:///{tmp_path}/db", "t")]
    Application("a", store=str(tmp_path / "in/_apps")).add(Total(), read, sinks)
    with pytest.raises(InvalidInputError, match="writes there"):
        Application("a", store="s").add(Total(), read, SqlSink(f"sqlite:///{tmp_path}/in/db", "t"))


@pytest.mark.parametrize(
    ("folder", "place"),
    [
        ("memory://in", "memory:///in//out/"),
        ("s3://bucket/in", "s3a://bucket/in/out"),
        ("gs://bucket/in/", "gcs://bucket/in"),
        ("az://bucket/in", "abfss://bucket/in/out"),
    ],
)
def test_a_store_has_one_place_however_its_url_is_written(folder: str, place: str) -> None:
    assert source(folder).reads(place)
    assert source(place).reads(folder) == (not place.rstrip("/").endswith("out"))
    assert not source(folder).reads(place.replace("/in", "/in-2"))


def test_a_later_start_has_the_schema_of_the_first_one(tmp_path: Path) -> None:
    write(tmp_path / "in", "b.parquet", table(0, 1))

    def begun() -> tuple[FileSource, Setup]:
        read = source(tmp_path / "in", schema=None)
        app = Application("a", store=str(tmp_path / "store"), max_ahead="36500 days")
        app.add(Total(), read)
        return read, app._rewind_setup()

    read, setup = begun()
    ((plan, _, _),) = [(part.plan, part.source, part.outputs) for part in setup.parts]
    core.start(log := Log(setup.files, "a"), [plan])
    write(tmp_path / "in", "a.parquet", pa.table({"ts": [1.5], "value": ["x"]}))
    read.open([], {})
    assert core.play_source(log, plan, read)
    write(tmp_path / "in", "0.parquet", b"")
    for gone in ("b.parquet", "a.parquet"):
        _, setup = begun()
        assert [part.plan.only.schema for part in setup.parts] == [SCHEMA]
        (tmp_path / "in" / gone).unlink()
