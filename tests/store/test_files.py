"""A file is created whole or not at all, by one winner, on every file system; crashes and power cuts included."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import signal
import stat
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistent_state.errors import Exists, InvalidInput, StoreUnavailable
from persistent_state.store.files import Files, open_files

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # These forks only make system calls.

SYSTEM_CALLS = ("open", "write", "fsync", "close", "link", "unlink", "mkdir", "rename", "replace")


@pytest.fixture(params=["local", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return open_files(str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path}")


@pytest.fixture
def local(tmp_path: Path) -> Files:
    return open_files(str(tmp_path / "store"))


def content(files: Files, path: str) -> bytes | None:
    try:
        return files.read(path).to_pybytes()
    except FileNotFoundError:
        return None


class TestEveryFileSystem:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"abc",
            bytearray(b"abc"),
            memoryview(array("q", range(5))),
            pa.py_buffer(b""),
            pa.array([1, 2, 3]).buffers()[1],
            os.urandom(3_000_000),
        ],
        ids=lambda data: f"{type(data).__name__}-{memoryview(data).nbytes}",
    )
    def test_what_is_created_is_read(self, files: Files, data: Any) -> None:
        files.create("a/b/c", data)
        assert files.read("a/b/c").to_pybytes() == bytes(data)

    def test_a_name_is_given_once(self, files: Files) -> None:
        files.create("a/b", b"first")
        for data in (b"second", b"first", b""):
            with pytest.raises(Exists, match="path='a/b'"):
                files.create("a/b", data)
        with pytest.raises(Exists):
            files.create("a", b"a folder has the name")
        assert content(files, "a/b") == b"first"
        assert files.list("a") == ["b"]

    def test_of_many_threads_one_wins(self, files: Files, request: pytest.FixtureRequest) -> None:
        interval = sys.getswitchinterval()
        request.addfinalizer(lambda: sys.setswitchinterval(interval))
        sys.setswitchinterval(1e-6)
        for turn in range(50):
            start = threading.Barrier(8)
            won: list[int] = []

            def race(thread: int, path: str, start: threading.Barrier, won: list[int]) -> None:
                start.wait()
                try:
                    files.create(path, bytes([thread]))
                    won.append(thread)
                except Exists:
                    pass

            threads = [threading.Thread(target=race, args=(i, f"turn/{turn}", start, won)) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [content(files, f"turn/{turn}")] == [bytes([thread]) for thread in won]

    def test_reading_what_is_absent_says_so(self, files: Files) -> None:
        files.create("a/b", b"")
        for path in ("a/c", "no/such/folder"):
            with pytest.raises(FileNotFoundError):
                files.read(path)

    def test_a_buffer_outlives_its_file(self, files: Files) -> None:
        data = os.urandom(100_000)
        files.create("a", data)
        buffer = files.read("a")
        files.delete("a")
        files.create("a", b"another")
        assert buffer.to_pybytes() == data

    def test_a_listing_is_of_now_and_direct(self, files: Files) -> None:
        other = open_files(files.url)
        assert files.list("") == files.list("log") == []
        for names in (["2"], ["1", "2"]):
            other.create(f"log/{names[0]}", b"")
            assert files.list("log") == names
        other.create("log/deeper/3", b"")
        other.create("logs", b"")
        assert files.list("log") == ["1", "2", "deeper"]
        assert files.list("") == ["log", "logs"]
        other.delete("log/1")
        assert files.list("log") == ["2", "deeper"]

    def test_deleting_what_is_absent_is_no_error(self, files: Files) -> None:
        files.delete("a/b")
        files.create("a/b", b"1")
        files.delete("a/b")
        files.delete("a/b")
        assert content(files, "a/b") is None
        files.create("a/b", b"2")
        assert content(files, "a/b") == b"2"

    def test_a_file_is_no_folder(self, files: Files) -> None:
        files.create("a", b"1")
        with pytest.raises(StoreUnavailable, match="path='a/b'"):
            files.create("a/b", b"2")
        assert content(files, "a") == b"1"

    @pytest.mark.parametrize("path", ["", "/a", "a/", "..", "../a", "a/../../b", "a//b", "./a"])
    def test_a_path_stays_inside_the_store(self, files: Files, path: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: files.create(path, b""),
            lambda: files.read(path),
            lambda: files.delete(path),
        ]
        if path:
            calls.append(lambda: files.list(path))
        for call in calls:
            with pytest.raises(InvalidInput, match="inside the store"):
                call()

    def test_a_temporary_name_cannot_be_created(self, files: Files) -> None:
        with pytest.raises(InvalidInput, match="temporary"):
            files.create("a/.tmp-b", b"")

    def test_it_is_a_value_that_travels(self, files: Files) -> None:
        files.create("a", b"1")
        there = pickle.loads(pickle.dumps(files))
        assert there == files == open_files(files.url)
        assert hash(there) == hash(files)
        assert content(there, "a") == b"1"

    def test_nothing_is_left_over(self, files: Files) -> None:
        assert files.leftovers("a", 0) == []
        files.create("a/b", b"1")
        with pytest.raises(Exists):
            files.create("a/b", b"1")
        assert files.leftovers("a", 0) == []

    @settings(max_examples=20)
    @given(data=st.data())
    def test_it_behaves_like_a_dictionary(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        root = tmp_path_factory.mktemp("model")
        names = st.sampled_from(["a/1", "a/2", "b/1", "c"])
        steps = data.draw(st.lists(st.tuples(st.sampled_from(["create", "delete"]), names, st.binary()), max_size=12))
        for files in (open_files(str(root)), open_files(f"memory://{root}")):
            model: dict[str, bytes] = {}
            for step, path, value in steps:
                if step == "delete":
                    files.delete(path)
                    model.pop(path, None)
                elif path in model:
                    with pytest.raises(Exists):
                        files.create(path, value)
                else:
                    files.create(path, value)
                    model[path] = value
                assert {path: content(files, path) for path in model} == model
                for folder in ("a", "b"):
                    assert [f"{folder}/{name}" for name in files.list(folder)] == sorted(
                        path for path in model if path.startswith(folder)
                    )


class TestWhatIsOpened:
    def test_a_local_path_may_be_written_in_many_ways(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        for url in ("x", "./x/", "~/x", tmp_path / "x", f"{tmp_path}/x", f"file://{tmp_path}/x", f"file:{tmp_path}/x/"):
            assert open_files(url).url == f"{tmp_path}/x"
        assert not (tmp_path / "x").exists()

    @pytest.mark.parametrize("url", ["s3://bucket/apps", "hdfs://host/apps", "simplecache::s3://bucket"])
    def test_another_protocol_is_refused_by_name(self, url: str) -> None:
        with pytest.raises(InvalidInput, match=f"protocol='{url.partition('://')[0]}', which is not supported"):
            open_files(url, key="secret")

    @pytest.mark.parametrize("url", ["file://host/a", "file:a", "file://", ""])
    def test_a_url_without_an_absolute_path_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidInput, match="url="):
            open_files(url)

    def test_options_of_a_local_path_are_refused_without_their_values(self) -> None:
        with pytest.raises(InvalidInput, match=r"\['token'\]") as refused:
            open_files("/x", token="secret")
        assert "secret" not in str(refused.value)

    def test_options_travel_but_are_never_shown(self) -> None:
        files = open_files("memory://options", token="secret")
        assert pickle.loads(pickle.dumps(files)).options == {"token": "secret"}
        assert "secret" not in f"{files!r} {files}"


class TestLocalDisk:
    def test_of_eight_processes_one_wins_each_of_many_rounds(self, local: Files, tmp_path: Path) -> None:
        processes, rounds = 8, 500
        fork = multiprocessing.get_context("fork")
        start = fork.Barrier(processes)

        def data(process: int, turn: int) -> bytes:
            return f"{process} of {turn}. ".encode() * 5_000

        def race(process: int) -> None:
            won = []
            for turn in range(rounds):
                start.wait()
                try:
                    local.create(f"race/{turn}", data(process, turn))
                    won.append(turn)
                except Exists:
                    # A loser acts on what it finds: already whole.
                    assert local.read(f"race/{turn}").to_pybytes() in [data(other, turn) for other in range(processes)]
            (tmp_path / f"won-{process}").write_text(json.dumps(won))

        racers = [fork.Process(target=race, args=(process,)) for process in range(processes)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert [racer.exitcode for racer in racers] == [0] * processes

        winners = {process: json.loads((tmp_path / f"won-{process}").read_text()) for process in range(processes)}
        assert sorted(turn for won in winners.values() for turn in won) == list(range(rounds))
        for process, won in winners.items():
            for turn in won:
                assert local.read(f"race/{turn}").to_pybytes() == data(process, turn)
        assert local.leftovers("race", 0) == []

    @pytest.mark.parametrize("taken", [False, True])
    def test_a_kill_between_any_two_system_calls_leaves_whole_or_nothing(self, tmp_path: Path, taken: bool) -> None:
        mine, first = b"mine" * 1_000, b"first" * 1_000
        seen = set()
        for moment in ("during", "after"):
            for number in range(1, 100):
                files = open_files(str(tmp_path / f"{moment}-{number}"))
                if taken:
                    files.create("a/b/c", first)
                killed = killed_at(moment, number, partial(files.create, "a/b/c", mine))
                found, left = content(files, "a/b/c"), files.leftovers("a/b", 0)
                assert found in ([first] if taken else [None, mine])
                assert files.list("a/b") == (["c"] if found else [])
                assert sorted(os.listdir(f"{files.url}/a/b") if os.path.isdir(f"{files.url}/a/b") else []) == sorted(
                    [name for name, _ in left] + files.list("a/b")
                )
                seen.add((found is not None, len(left)))

                if found:
                    with pytest.raises(Exists):
                        files.create("a/b/c", b"next")
                else:
                    files.create("a/b/c", b"next")
                for name, _ in left:
                    files.delete(f"a/b/{name}")
                assert files.leftovers("a/b", 0) == []
                assert content(files, "a/b/c") == (found or b"next")
                if not killed:
                    break
            else:
                pytest.fail("create never came to its end")
        assert seen == ({(True, 0), (True, 1)} if taken else {(False, 0), (False, 1), (True, 1), (True, 0)})

    @pytest.mark.parametrize("prepared", ["nothing", "by another", "by us", "taken"])
    def test_what_create_answered_survives_a_power_cut(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: str
    ) -> None:
        files = open_files(str(tmp_path / "store"))
        if prepared == "by another":
            (tmp_path / "store/a/b").mkdir(parents=True)
        if prepared in ("by us", "taken"):
            files.create("a/b/other", b"")
        if prepared == "taken":
            # Another process made the name, and was killed before it made it durable.
            (tmp_path / "store/a/b/c").write_bytes(b"first")
        known = prepared in ("by us", "taken")
        disk = Disk({f"{files.url}/a/b", f"{files.url}/a", files.url} if known else set())
        with disk.watching(monkeypatch):
            try:
                files.create("a/b/c", b"mine")
            except Exists:
                assert prepared == "taken"
        assert disk.linked == ([] if prepared == "taken" else [True])
        assert {f"{files.url}/a/b/c", f"{files.url}/a/b", f"{files.url}/a", files.url} <= disk.safe_names

    @pytest.mark.parametrize("call", ["open", "write", "fsync", "link", "mkdir"])
    def test_a_disk_that_fails_leaves_nothing_behind(
        self, local: Files, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, call, full)
            with pytest.raises(StoreUnavailable, match=r"path='a/b'.*No space left on device") as failed:
                local.create("a/b", b"1")
        assert isinstance(failed.value.__cause__, OSError)
        assert failed.value.__cause__.errno == errno.ENOSPC
        assert content(local, "a/b") is None
        assert local.leftovers("a", 0) == []
        local.create("a/b", b"2")
        assert content(local, "a/b") == b"2"

    def test_a_write_that_is_cut_short_is_continued(self, local: Files, monkeypatch: pytest.MonkeyPatch) -> None:
        write, data = os.write, array("q", range(1_000))
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda file, left: write(file, left[: len(left) // 3 + 1]))
            local.create("a", memoryview(data))
        assert content(local, "a") == data.tobytes()

    def test_a_file_system_without_hard_links_is_refused(self, local: Files, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> None:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

        with monkeypatch.context() as patched:
            patched.setattr(os, "link", refuse)
            with pytest.raises(InvalidInput, match="hard links"):
                local.create("a", b"1")
        assert local.list("") == []
        assert local.leftovers("", 0) == []

    def test_leftovers_are_temporary_files_with_their_age(self, local: Files, tmp_path: Path) -> None:
        local.create("a/b", b"1")
        for name, modified_us in ((".tmp-1", 5_000_000), (".tmp-2", 6_500_000), ("other", 0)):
            (tmp_path / "store/a" / name).write_bytes(b"")
            os.utime(tmp_path / "store/a" / name, ns=(0, modified_us * 1_000))
        assert local.leftovers("a", 7_000_000) == [(".tmp-1", 2.0), (".tmp-2", 0.5)]
        assert local.list("a") == ["b", "other"]
        local.delete("a/.tmp-1")
        assert local.leftovers("a", 7_000_000) == [(".tmp-2", 0.5)]

    def test_the_users_umask_decides_who_may_read(self, local: Files, tmp_path: Path) -> None:
        before = os.umask(0o027)
        try:
            local.create("a/b", b"1")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "store/a/b").stat().st_mode) == 0o640
        assert stat.S_IMODE((tmp_path / "store/a").stat().st_mode) == 0o750

    def test_a_store_that_was_removed_is_made_again(self, local: Files, tmp_path: Path) -> None:
        local.create("a/b", b"1")
        (tmp_path / "store/a/b").unlink()
        (tmp_path / "store/a").rmdir()
        local.create("a/b", b"2")
        assert content(local, "a/b") == b"2"


def killed_at(moment: str, number: int, act: Callable[[], None]) -> bool:
    """Act in a child that is killed in or after its system call of this number; in a write, half of it is done."""
    child = os.fork()
    if not child:
        try:
            die_at(moment, number)
            try:
                act()
            except Exists:
                os._exit(0)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def die_at(moment: str, number: int) -> None:
    calls = 0

    def deadly(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number and moment == "during":
                if name == "write":
                    call(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            answer = call(*args, **options)
            if calls == number and moment == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return wrapper

    for name in SYSTEM_CALLS:
        setattr(os, name, deadly(name, getattr(os, name)))


class Disk:
    """What a power cut would leave: a name is safe once its folder was synced after the name was made."""

    def __init__(self, safe_names: set[str]) -> None:
        self.safe_names = safe_names
        self.linked: list[bool] = []  # Was the file's content safe when it was given its name?
        self._open: dict[int, str] = {}
        self._synced: set[str] = set()

    @contextmanager
    def watching(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        open_, write, fsync, link = os.open, os.write, os.fsync, os.link

        def opened(path: str, *args: Any) -> int:
            file = open_(path, *args)
            self._open[file] = str(path)
            return file

        def written(file: int, data: bytes) -> int:
            self._synced.discard(self._open[file])
            return write(file, data)

        def synced(file: int) -> None:
            fsync(file)
            place = self._open[file]
            self._synced.add(place)
            if os.path.isdir(place):
                self.safe_names |= {os.path.join(place, name) for name in os.listdir(place)}

        def linked(source: str, target: str) -> None:
            link(source, target)
            self.linked.append(source in self._synced)

        with monkeypatch.context() as patched:
            for name, call in (("open", opened), ("write", written), ("fsync", synced), ("link", linked)):
                patched.setattr(os, name, call)
            yield
