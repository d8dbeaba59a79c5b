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
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from persistent_state.errors import ExistsError, InvalidInputError, StoreUnavailableError
from persistent_state.store.files import Files, MemoryFiles, open_files

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # These forks only make system calls.

SYSTEM_CALLS = ("open", "write", "fsync", "close", "link", "unlink", "mkdir", "rename", "replace")


@pytest.fixture
def local(tmp_path: Path) -> Files:
    return open_files(str(tmp_path / "store"))


def content(files: Files, path: str) -> bytes | None:
    try:
        return files.read(path).to_pybytes()
    except FileNotFoundError:
        return None


class TestWhatIsOpened:
    def test_a_local_path_may_be_written_in_many_ways(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        for url in ("x", "./x/", "~/x", tmp_path / "x", f"{tmp_path}/x", f"file://{tmp_path}/x", f"file:{tmp_path}/x/"):
            assert open_files(url).url == f"{tmp_path}/x"
        assert not (tmp_path / "x").exists()

    @pytest.mark.parametrize(
        ("url", "known"),
        [
            ("s3a://bucket/apps/", "s3://bucket/apps"),
            ("gcs://bucket", "gs://bucket"),
            ("az://container/a/b", "abfs://container/a/b"),
            ("abfss://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
            ("webhdfs://user@host:9870/a", "webhdfs://user@host:9870/a"),
        ],
    )
    def test_a_store_far_away_is_opened_without_a_look(self, url: str, known: str) -> None:
        assert open_files(url).url == known

    @pytest.mark.parametrize("url", ["ftp://host/apps", "simplecache::s3://bucket", "s4://u:word@host/"])
    def test_another_protocol_is_refused_by_name_with_those_that_are_known(self, url: str) -> None:
        sentence = (
            f"protocol='{url.partition('://')[0]}' is not supported: use a local path, s3://, .*webhdfs:// or memory://"
        )
        with pytest.raises(InvalidInputError, match=sentence) as refused:
            open_files(url, {"key": "secret"})
        assert "secret" not in str(refused.value)
        assert "word" not in str(refused.value)

    def test_what_would_need_a_native_library_is_told_what_does_not(self) -> None:
        with pytest.raises(InvalidInputError, match=r"protocol='hdfs' is not supported: .*webhdfs://host:port/path"):
            open_files("hdfs://host:9000/apps")

    @pytest.mark.parametrize(
        "url",
        [
            "s3://",
            "s3:///a",
            "gs://bucket//a",
            "s3://bucket/../a",
            "abfs://@account.dfs.core.windows.net/a",
            "webhdfs://",
        ],
    )
    def test_a_url_that_names_no_place_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidInputError, match="names no place; write it as"):
            open_files(url)

    def test_a_name_node_without_a_port_is_refused(self) -> None:
        with pytest.raises(InvalidInputError, match="has no port"):
            open_files("webhdfs://host/a")

    @pytest.mark.parametrize(
        "url", ["s3://key:word@bucket/a", "abfs://c/a?sig=word", "gs://b/a#word", "webhdfs://u:word@h:1/"]
    )
    def test_a_secret_in_a_url_is_refused_and_not_repeated(self, url: str) -> None:
        with pytest.raises(InvalidInputError, match="give what is secret as a storage option") as refused:
            open_files(url)
        assert "word@" not in str(refused.value) + str(refused.value).replace("word", "word@", 1).replace(
            "password@", ""
        )

    @pytest.mark.parametrize(
        ("url", "extra"), [("s3://b", "s3"), ("abfs://b", "azure"), ("gs://b", "gcs"), ("webhdfs://h:1/b", "hdfs")]
    )
    def test_a_missing_package_is_named_by_its_extra(
        self, monkeypatch: pytest.MonkeyPatch, url: str, extra: str
    ) -> None:
        package = {"s3": "s3fs", "azure": "adlfs", "gcs": "gcsfs", "hdfs": "requests"}[extra]
        there = open_files(url)
        for name in [name for name in sys.modules if name.split(".")[0] in (package, "webhdfs") or "webhdfs" in name]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        # Where it is opened, and on a machine to which it was sent.
        for use in (lambda: open_files(url), lambda: there.list("")):
            with pytest.raises(
                InvalidInputError, match=rf"package='{package}' is missing.*'persistent-state\[{extra}\]'"
            ):
                use()

    @pytest.mark.parametrize(("url", "option"), [("s3://b", "no_such_option"), ("webhdfs://h:1/b", "token")])
    def test_a_wrong_storage_option_is_named_without_its_value(self, url: str, option: str) -> None:
        files = open_files(url, {option: "hidden", "user": "somebody"})
        with pytest.raises(InvalidInputError, match=rf"does not take the storage options.*'{option}'") as refused:
            files.list("")
        assert "hidden" not in str(refused.value)

    @pytest.mark.parametrize("url", ["file://host/a", "file:a", "file://", ""])
    def test_a_url_without_an_absolute_path_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidInputError, match="url="):
            open_files(url)

    def test_options_of_a_local_path_are_refused_without_their_values(self) -> None:
        with pytest.raises(InvalidInputError, match=r"\['token'\]") as refused:
            open_files("/x", {"token": "secret"})
        assert "secret" not in str(refused.value)

    def test_options_travel_but_are_never_shown(self) -> None:
        files = open_files("memory://options", {"token": "secret"})
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
                except ExistsError:
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
                    with pytest.raises(ExistsError):
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
            except ExistsError:
                assert prepared == "taken"
        assert disk.linked == ([] if prepared == "taken" else [True])
        assert {f"{files.url}/a/b/c", f"{files.url}/a/b", f"{files.url}/a", files.url} <= disk.safe_names

    def test_what_is_not_synced_survives_a_power_cut_once_it_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = open_files(str(tmp_path / "store"))
        unsynced = files.unsynced
        assert unsynced is not None
        files.create("a/b/other", b"")
        disk = Disk({f"{files.url}/a/b", f"{files.url}/a", files.url})
        with disk.watching(monkeypatch):
            for name in "cde":
                unsynced.create(f"a/b/{name}", b"mine")
            assert disk.linked == [False] * 3, "a file has its name before its bytes are safe"
            assert not {f"{files.url}/a/b/{name}" for name in "cde"} & disk.safe_names
            with pytest.raises(ExistsError):
                unsynced.create("a/b/c", b"next")
            files.sync(["a/b/c", "a/b/d"])
        assert {f"{files.url}/a/b/{name}" for name in "cd"} <= disk.safe_names
        assert disk.synced == {f"{files.url}/a/b{name}" for name in ("/c", "/d", "")}
        with pytest.raises(StoreUnavailableError):
            files.sync(["a/b/c", "a/b/gone"])
        assert MemoryFiles("memory://").unsynced is None

    @pytest.mark.parametrize("call", ["open", "write", "fsync", "link", "mkdir"])
    def test_a_disk_that_fails_leaves_nothing_behind(
        self, local: Files, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, call, full)
            with pytest.raises(StoreUnavailableError, match=r"path='a/b'.*No space left on device") as failed:
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
            with pytest.raises(InvalidInputError, match="hard links"):
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
            except ExistsError:
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
        self.synced: set[str] = set()

    @contextmanager
    def watching(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        open_, write, fsync, link = os.open, os.write, os.fsync, os.link

        def opened(path: str, *args: Any) -> int:
            file = open_(path, *args)
            self._open[file] = str(path)
            return file

        def written(file: int, data: bytes) -> int:
            self.synced.discard(self._open[file])
            return write(file, data)

        def synced(file: int) -> None:
            fsync(file)
            place = self._open[file]
            self.synced.add(place)
            if os.path.isdir(place):
                self.safe_names |= {os.path.join(place, name) for name in os.listdir(place)}

        def linked(source: str, target: str) -> None:
            link(source, target)
            self.linked.append(source in self.synced)

        with monkeypatch.context() as patched:
            for name, call in (("open", opened), ("write", written), ("fsync", synced), ("link", linked)):
                patched.setattr(os, name, call)
            yield
