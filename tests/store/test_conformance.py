"""Every kind of store keeps the contract of Files: on real servers, in many processes, and when the network fails."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import multiprocessing
import os
import pickle
import random
import sys
import tempfile
import threading
import time
import traceback
import uuid
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Sum
from persistent_state import (
    CommitUnknownError,
    DamagedError,
    FencedError,
    InvalidInputError,
    NonWindowState,
    PersistentTask,
    StoreRefusedError,
    StoreUnavailableError,
    read_state,
)
from persistent_state.cli.doctor.check import OK
from persistent_state.cli.doctor.store import CLOCK, CREATE, STORE, check_store
from persistent_state.errors import ExistsError
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import branch
from persistent_state.protocol.commits import close
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import blocks
from persistent_state.store import runs as runs_io
from persistent_state.store.files import Files, cache, open_files
from persistent_state.store.log import Log
from persistent_state.store.named_files import length_of
from persistent_state.store.verify import verified
from tests import core
from tests.protocol.test_rewind import World
from tests.store.counted import CountedFiles
from tests.store.proxy import Asked, Fault, Proxy
from tests.store.servers import Server, Servers, files_of, needed
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.stores,
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Failed to fetch container properties:UserWarning"),
]

NEAR = ["local", "memory"]
FAR = ["s3", "azure", "gcs", "hdfs"]
WITH_FOLDERS = ["local", "memory", "hdfs"]

fork = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the copies of this test's runs are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"persistent-state-{os.getuid()}"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients ask again at once, as they would after many seconds."""
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda delay, *result: sleep(min(delay, 0.01), *result))


def server_of(servers: Servers, kind: str) -> Server:
    with needed():
        return servers[kind]


def new_files(servers: Servers, kind: str, tmp_path: Path) -> Files:
    """An empty store."""
    if kind == "local":
        return open_files(tmp_path / "store")
    if kind == "memory":
        return open_files(f"memory://{tmp_path}")
    server, name = server_of(servers, kind), f"bucket-{uuid.uuid4()}"
    server.make(name)
    return files_of(server, name)


@pytest.fixture(params=NEAR + FAR)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def files(servers: Servers, kind: str, tmp_path: Path) -> Files:
    return new_files(servers, kind, tmp_path)


@pytest.fixture
def shaky(servers: Servers, kind: str) -> Iterator[tuple[Files, Files, Proxy]]:
    """An empty store, the same behind a proxy, and the proxy."""
    server, name = server_of(servers, kind), f"bucket-{uuid.uuid4()}"
    server.make(name)
    with Proxy(server.ports) as proxy:
        yield files_of(server, name), files_of(server, name, proxy.ports), proxy


def content(files: Files, path: str) -> bytes | None:
    try:
        return files.read(path).to_pybytes()
    except FileNotFoundError:
        return None


def gives_a_name(asked: Asked) -> bool:
    """Whether a request is the one that decides who has won."""
    return "op=RENAME" in asked.path or (asked.method in ("PUT", "POST") and "op=" not in asked.path)


def texts(options: Any) -> list[str]:
    """Return every text in storage options that may be a secret: all but where the store is."""
    if isinstance(options, dict):
        return [text for name, option in options.items() if name != "endpoint_url" for text in texts(option)]
    return [options] if isinstance(options, str) else []


def lists(asked: Asked) -> bool:
    marks = ("list-type=2", "comp=list", "/o?delimiter", "op=LISTSTATUS", "prefix=")
    return asked.method == "GET" and any(mark in asked.path for mark in marks)


def kind_of(asked: Asked) -> str:
    """The kind of a request to S3, as its prices go."""
    return "LIST" if lists(asked) else asked.method


def once(fault: Fault, which: Callable[[Asked], bool]) -> Callable[[Asked], Fault]:
    """This fault for the first such request."""
    done: list[Asked] = []

    def decide(asked: Asked) -> Fault:
        if done or not which(asked):
            return "none"
        done.append(asked)
        return fault

    return decide


def in_another_process(act: Callable[[], object]) -> object:
    """What a forked process answers, or the error that it met, as text."""
    ours, theirs = fork.Pipe()

    def run() -> None:
        try:
            theirs.send(act())
        except BaseException as error:
            theirs.send(f"{type(error).__name__}: {error}")

    process = fork.Process(target=run)
    process.start()
    assert ours.poll(PATIENCE), "no answer from the other process"
    answer: object = ours.recv()
    process.join()
    return answer


class TestTheContract:
    def test_what_is_created_is_read(self, files: Files) -> None:
        datas: list[Any] = [
            b"",
            b"abc",
            bytearray(b"abc"),
            memoryview(array("q", range(5))),
            pa.py_buffer(b""),
            pa.array([1, 2, 3]).buffers()[1],
            os.urandom(3_000_000),
        ]
        for i, data in enumerate(datas):
            files.create(f"a/b/{i}", data)
            assert files.read(f"a/b/{i}").to_pybytes() == bytes(data)

    def test_a_name_is_given_once(self, files: Files, kind: str) -> None:
        files.create("a/b", b"first")
        for data in (b"second", b"first", b""):
            with pytest.raises(ExistsError, match="path='a/b'"):
                files.create("a/b", data)
        if kind in WITH_FOLDERS:
            with pytest.raises(ExistsError):
                files.create("a", b"a folder has the name")
        assert content(files, "a/b") == b"first"
        assert files.list("a") == ["b"]

    def test_of_many_threads_one_wins(self, files: Files, kind: str, request: pytest.FixtureRequest) -> None:
        interval = sys.getswitchinterval()
        request.addfinalizer(lambda: sys.setswitchinterval(interval))
        sys.setswitchinterval(1e-6)
        for turn in range(50 if kind in NEAR else 4):
            start = threading.Barrier(8)
            won: list[int] = []

            def race(thread: int, path: str, start: threading.Barrier, won: list[int]) -> None:
                start.wait()
                try:
                    files.create(path, bytes([thread]))
                    won.append(thread)
                except ExistsError:
                    pass

            threads = [threading.Thread(target=race, args=(i, f"turn/{turn}", start, won)) for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert [content(files, f"turn/{turn}")] == [bytes([thread]) for thread in won]

    @pytest.mark.parametrize("kind", FAR)
    def test_of_many_processes_one_wins_each_round(self, files: Files, tmp_path: Path) -> None:
        # That of local disks is in test_files.py: it is quicker, and races many more rounds.
        processes, rounds = 4, 10
        start = fork.Barrier(processes)

        def data(process: int, turn: int) -> bytes:
            return f"{process} of {turn}. ".encode() * 20_000

        def race(process: int) -> None:
            won = []
            for turn in range(rounds):
                start.wait()
                try:
                    files.create(f"race/{turn}", data(process, turn))
                    won.append(turn)
                except ExistsError:
                    # A loser acts on what it finds: already whole.
                    assert content(files, f"race/{turn}") in [data(other, turn) for other in range(processes)]
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
                assert content(files, f"race/{turn}") == data(process, turn)
        assert files.leftovers("race", 0) == []

    @pytest.mark.parametrize(("kind", "size"), [("s3", 101 * 2**20), ("azure", 65 * 2**20), ("gcs", 51 * 2**20)])
    def test_a_file_that_a_client_would_send_in_parts_has_one_winner_too(self, files: Files, size: int) -> None:
        block = os.urandom(2**20)
        datas = [bytes([i]) + block * (size // len(block)) for i in range(2)]
        won: list[int] = []

        def race(i: int) -> None:
            with contextlib.suppress(ExistsError):
                files.create("big", datas[i])
                won.append(i)

        threads = [threading.Thread(target=race, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert files.read("big").equals(pa.py_buffer(datas[won[0]]))

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
        other = open_files(files.url, files.options)
        assert files.list("") == files.list("log") == []
        for names in (["2"], ["1", "2"]):
            other.create(f"log/{names[0]}", b"")
            assert files.list("log") == names
        other.create("log/deeper/3", b"")
        other.create("logs", b"")
        assert files.list("log") == ["1", "2", "deeper"]
        assert files.list("") == ["log", "logs"]
        assert files.list("lo") == []
        other.delete("log/1")
        assert files.list("log") == ["2", "deeper"]

    @pytest.mark.parametrize("kind", ["local", *FAR])
    def test_a_process_sees_what_another_has_made_and_deleted(self, files: Files) -> None:
        files.create("log/1", b"1")
        assert files.list("log") == ["1"]

        def act() -> object:
            seen = files.list("log"), content(files, "log/1")
            files.create("log/2", b"2")
            files.delete("log/1")
            return seen

        assert in_another_process(act) == (["1"], b"1")
        assert files.list("log") == ["2"]
        assert (content(files, "log/1"), content(files, "log/2")) == (None, b"2")

    def test_names_may_have_any_character_but_a_slash(self, files: Files) -> None:
        names = sorted(["größe", "a b", "50%", "a+b&c=d", "x~(1),'y'", "%2e", "000003-000000012-0001-9f2c.arrow"])
        for name in names:
            files.create(f"of {name}/{name}", name.encode())
        assert files.list("") == sorted(f"of {name}" for name in names)
        for name in names:
            assert files.list(f"of {name}") == [name]
            assert content(files, f"of {name}/{name}") == name.encode()
            files.delete(f"of {name}/{name}")
            assert content(files, f"of {name}/{name}") is None

    def test_a_folder_of_many_files_is_listed_whole(self, files: Files, kind: str) -> None:
        # More than a page of a server's answer where a file costs little to make.
        names = [f"{i:05}" for i in range(1_005 if kind == "s3" else 20)]
        for name in names:
            files.create(f"many/{name}", b"")
        assert files.list("many") == names

    def test_deleting_what_is_absent_is_no_error(self, files: Files) -> None:
        files.delete("a/b")
        files.create("a/b", b"1")
        files.delete("a/b")
        files.delete("a/b")
        assert content(files, "a/b") is None
        files.create("a/b", b"2")
        assert content(files, "a/b") == b"2"

    @pytest.mark.parametrize("kind", WITH_FOLDERS)
    def test_a_file_is_no_folder(self, files: Files) -> None:
        files.create("a", b"1")
        with pytest.raises(StoreUnavailableError, match="path='a/b'"):
            files.create("a/b", b"2")
        assert content(files, "a") == b"1"

    def test_a_path_stays_inside_the_store(self, files: Files) -> None:
        for path in ("", "/a", "a/", "..", "../a", "a/../../b", "a//b", "./a"):
            calls: list[Callable[[], object]] = [
                lambda path=path: files.create(path, b""),
                lambda path=path: files.read(path),
                lambda path=path: files.delete(path),
            ]
            if path:
                calls.append(lambda path=path: files.list(path))
            for call in calls:
                with pytest.raises(InvalidInputError, match="inside the store"):
                    call()

    def test_a_temporary_name_cannot_be_created(self, files: Files) -> None:
        with pytest.raises(InvalidInputError, match="temporary"):
            files.create("a/.tmp-b", b"")

    def test_it_is_a_value_that_travels(self, files: Files) -> None:
        files.create("a", b"1")
        there = pickle.loads(pickle.dumps(files))
        assert there == files == open_files(files.url, files.options)
        assert hash(there) == hash(files)
        assert content(there, "a") == b"1"

    def test_nothing_is_left_over(self, files: Files) -> None:
        assert files.leftovers("a", 0) == []
        files.create("a/b", b"1")
        with pytest.raises(ExistsError):
            files.create("a/b", b"1")
        assert files.leftovers("a", 0) == []

    def test_the_doctor_proves_that_one_wins_and_leaves_nothing(self, files: Files) -> None:
        found = list(check_store(files.url, files.options, time.time))
        assert [(check.check, check.status) for check in found] == [(name, OK) for name in (STORE, CREATE, CLOCK)]
        assert files.list("") == []

    def test_it_says_when_a_file_was_made(self, files: Files, kind: str) -> None:
        before = time.time()
        files.create("a/b", b"1")
        made = files.modified("a/b")
        if kind == "memory":
            assert made is None
            return
        assert made is not None
        assert before - 1 <= made <= time.time()
        with pytest.raises(FileNotFoundError):
            files.modified("a/c")

    def test_it_behaves_like_a_dictionary(self, servers: Servers, kind: str, tmp_path: Path) -> None:
        files, paths = new_files(servers, kind, tmp_path), ["a/1", "a/2", "b/1", "c"]
        steps = st.lists(
            st.tuples(st.sampled_from(["create", "delete"]), st.sampled_from(paths), st.binary()), max_size=12
        )

        @settings(max_examples=20 if kind in NEAR else 4)
        @given(steps)
        def behaves(steps: list[tuple[str, str, bytes]]) -> None:
            root = uuid.uuid4().hex
            model: dict[str, bytes] = {}
            for step, path, value in steps:
                if step == "delete":
                    files.delete(f"{root}/{path}")
                    model.pop(path, None)
                elif path in model:
                    with pytest.raises(ExistsError):
                        files.create(f"{root}/{path}", value)
                else:
                    files.create(f"{root}/{path}", value)
                    model[path] = value
            assert {path: content(files, f"{root}/{path}") for path in paths} == {
                path: model.get(path) for path in paths
            }
            for folder in ("a", "b"):
                names = sorted(path[2:] for path in model if path.startswith(folder))
                assert files.list(f"{root}/{folder}") == names

        behaves()


ROW = pa.schema([("ts", pa.int64()), ("n", pa.int64())])


class Total(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


def rows(*stamps: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(stamps, pa.int64()), pa.array([1] * len(stamps), pa.int64())], schema=ROW
    )


def plan_on(files: Files) -> Any:
    return core.plan_of(Total(), ROW, files=files, settings=Settings(interval=10, ahead=2**62), shards=2)


def chain(files: Files) -> list[int]:
    """The numbers of the log, which is one line from the first that is kept to the last."""
    log = Log(files, "app")
    entries = [log.read(number) for number in log.numbers()]
    for older, newer in itertools.pairwise(entries):
        assert (newer.number, newer.previous) == (older.number + 1, older.checksum)
    return [entry.number for entry in entries]


class TestTheCore:
    @pytest.mark.rows_in_files
    def test_a_driver_runs_is_fenced_by_another_and_collected_after(self, files: Files) -> None:
        plan, first, second = plan_on(files), Log(files, "app"), Log(files, "app")
        core.start(first, [plan])
        for stamp in (5, 25, 45):
            core.play(first, plan, rows(stamp, stamp + 1))
        late = core.answers(first, plan, rows(65))
        core.start(second, [plan])
        with pytest.raises(FencedError):
            core.commit(first, plan, late)
        keeping = Keeping(clocks=1, grace=0)
        for now, stamp in enumerate((45, 65, 85), 1):
            core.play(second, plan, rows(stamp), now=now, keeping=keeping)
        entry = second.newest()
        assert entry is not None
        gone = core.collect(second, entry.epoch, now=100, keeping=keeping)
        assert any("/runs/" in path for path in gone)
        assert any("/log/" in path for path in gone)
        assert all(content(files, path) is None for path in gone)
        assert chain(files)[-1] == entry.number
        closed = close(second, entry.epoch, now=101, keeping=keeping)
        found = core.state_at(closed, plan, None)
        assert found == {(): 7}
        table = read_state(files.url, "app", Total(), storage_options=files.options)
        assert table["value"].to_pylist() == [core.state_at(closed, plan, closed.clock)[()]]


@pytest.mark.rows_in_files
class TestDamage:
    @pytest.mark.parametrize("kind", ["local", *FAR])
    @pytest.mark.parametrize("bit", [0, -1])
    def test_one_bit_of_a_run_or_an_entry_is_found_and_named(
        self, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bit: int
    ) -> None:
        plan, log = plan_on(files), Log(files, "app")
        core.start(log, [plan])
        entry = core.play(log, plan, rows(5, 25))
        run = entry.tasks[plan.name].stored.runs[0]
        stored = run.file
        paths = stored.path, log.path(entry.number)
        whole = {path: files.read(path).to_pybytes() for path in paths}
        for path in paths:
            data, place = bytearray(whole[path]), bit
            if path == stored.path and stored.start:
                place = stored.start + bit % stored.length
            data[place] ^= 1
            files.delete(path)
            files.create(path, data)

        def look() -> object:
            # A process that has neither verified the run before nor found a copy.
            tempfile.tempdir = str(tmp_path / "elsewhere")
            blocks._indexes.clear()
            told = []
            for _ in range(2):
                with pytest.raises(DamagedError) as damaged:
                    runs_io.read_run(files, run)
                told.append(str(damaged.value))
            return told

        (tmp_path / "elsewhere").mkdir()
        for _ in range(2):
            told = in_another_process(look)
            assert isinstance(told, list)
            assert all(stored.path in text for text in told)
        with pytest.raises(DamagedError, match=paths[1]):
            Log(files, "app").newest()
        # It was kept nowhere.
        for path in paths:
            files.delete(path)
            files.create(path, whole[path])
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
        assert runs_io.read_run(files, run).num_rows == run.rows
        assert Log(files, "app").newest() == entry


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("kind", FAR)
class TestAShakyNetwork:
    def test_an_entry_whose_answer_was_lost_is_recognised_and_there_once(
        self, shaky: tuple[Files, Files, Proxy]
    ) -> None:
        steady, files, proxy = shaky
        plan, log = plan_on(files), Log(files, "app")
        core.start(log, [plan])
        made = core.answers(log, plan, rows(5, 25))
        proxy.decide = once("lost answer", gives_a_name)
        entry = core.commit(log, plan, made)
        assert proxy.faults() == ["lost answer"]
        assert chain(steady) == [1, 2] == [1, entry.number]
        assert Log(steady, "app").newest() == entry

    def test_a_lost_answer_is_no_excuse_for_taking_what_another_made(self, shaky: tuple[Files, Files, Proxy]) -> None:
        steady, files, proxy = shaky
        steady.create("a", b"another's")
        proxy.decide = once("lost answer", gives_a_name)
        with pytest.raises(ExistsError):
            files.ensure("a", b"mine")
        assert proxy.faults() == ["lost answer"]
        assert content(steady, "a") == b"another's"

    @pytest.mark.rows_in_files
    def test_a_run_whose_answer_was_lost_is_used(self, shaky: tuple[Files, Files, Proxy]) -> None:
        steady, files, proxy = shaky
        plan, log = plan_on(files), Log(files, "app")
        core.start(log, [plan])
        proxy.decide = once("lost answer", gives_a_name)
        made = core.answers(log, plan, rows(5, 25))
        assert proxy.faults() == ["lost answer"]
        assert core.state_at(core.commit(log, plan, made), plan_on(steady), None) == {(): 2}

    @pytest.mark.parametrize("fault", ["lost request", "reset", "unavailable", "slow"])
    def test_a_commit_outlives_a_request_that_fails_once(self, shaky: tuple[Files, Files, Proxy], fault: Fault) -> None:
        steady, files, proxy = shaky
        plan, log = plan_on(files), Log(files, "app")
        core.start(log, [plan])
        made = core.answers(log, plan, rows(5, 25))
        proxy.decide = once(fault, gives_a_name)
        entry = core.commit(log, plan, made)
        assert proxy.faults() == [fault]
        assert chain(steady) == [1, entry.number]

    @pytest.mark.parametrize("fault", ["lost answer", "unavailable"])
    def test_without_an_answer_a_commit_is_unknown_and_the_entry_whole_or_absent(
        self, shaky: tuple[Files, Files, Proxy], fault: Fault
    ) -> None:
        steady, files, proxy = shaky
        plan, log = plan_on(files), Log(files, "app")
        core.start(log, [plan])
        made = core.answers(log, plan, rows(5, 25))
        proxy.decide = lambda asked: fault if gives_a_name(asked) else "none"
        with pytest.raises(CommitUnknownError):
            core.commit(log, plan, made)
        assert chain(steady) == ([1, 2] if fault == "lost answer" else [1])

    def test_whatever_fails_is_the_store_and_every_file_is_whole_or_absent(
        self, shaky: tuple[Files, Files, Proxy], kind: str
    ) -> None:
        steady, files, proxy = shaky
        dice = random.Random(kind)
        faults: list[Fault] = ["lost request", "lost answer", "reset", "unavailable", "slow"]
        outcomes: set[str] = set()
        for turn in range(48):
            # Now and then so often that no client gets through by asking again.
            often = 0.97 if turn % 4 == 3 else 0.3
            proxy.decide = lambda asked, often=often: dice.choice(faults) if dice.random() < often else "none"
            path = f"a/{dice.randrange(3)}"
            before = content(steady, path)
            data = f"{turn} ".encode() * dice.choice([0, 1, 30_000])
            step = dice.choice(["create", "create", "read", "list", "delete"])
            after: set[bytes | None] = {before}
            try:
                if step == "create":
                    after = {before, data}
                    files.create(path, data)
                    after = {data}
                    assert before is None
                elif step == "read":
                    assert content(files, path) == before
                elif step == "list":
                    assert files.list("a") == [str(i) for i in range(3) if content(steady, f"a/{i}") is not None]
                else:
                    after = {before, None}
                    files.delete(path)
                    after = {None}
                outcomes.add("done")
            except StoreUnavailableError:
                outcomes.add("unavailable")
            except ExistsError:
                outcomes.add(f"{step}: exists")
            assert content(steady, path) in after
        assert outcomes == {"done", "create: exists", "unavailable"}
        assert set(proxy.faults()) == set(faults)

    def test_a_listing_of_yesterday_forks_no_log(self, shaky: tuple[Files, Files, Proxy]) -> None:
        steady, files, proxy = shaky
        # The driver's listings: a shard that sees an old one makes nothing of it but an error.
        plan, first = plan_on(steady), Log(files, "app")
        proxy.decide = lambda asked: "yesterday" if lists(asked) else "none"
        core.start(first, [plan])
        for stamp in (5, 25, 45):
            core.play(first, plan, rows(stamp))
        # What the newest entry alone names stays, though it is in no listing.
        entry = first.newest()
        assert entry is not None
        core.collect(first, entry.epoch, now=100, keeping=Keeping(clocks=1, grace=0))
        late = core.answers(first, plan, rows(65))
        second = Log(files, "app")
        core.start(second, [plan], now=200)
        assert core.state_at(core.play(second, plan, rows(45, 65)), plan, None) == {(): 4}
        with pytest.raises(FencedError):
            core.commit(first, plan, late)
        assert "yesterday" in proxy.faults()
        assert chain(steady) == [1, 2, 3, 4, 5, 6]

    @pytest.mark.parametrize("fault", ["reset", "lost answer", "unavailable"])
    def test_no_message_shows_an_option(self, servers: Servers, kind: str, fault: Fault) -> None:
        server = server_of(servers, kind)
        with Proxy(server.ports) as proxy:
            url, options = server.address("nowhere", proxy.ports)
            proxy.decide = lambda asked: fault
            files = open_files(url, options)
            for call in (lambda: files.list(""), lambda: files.read("a"), lambda: files.create("a", b"")):
                with pytest.raises(StoreUnavailableError) as failed:
                    call()
                shown = io.StringIO()
                traceback.print_exception(failed.value, file=shown)
                assert not [text for text in texts(options) if text in shown.getvalue() + repr(files)]
                assert "\n" not in str(failed.value)


def test_the_counted_store_counts_the_requests_that_a_server_of_s3_gets(servers: Servers) -> None:
    server, name, counted = server_of(servers, "s3"), f"b{uuid.uuid4().hex}", CountedFiles(core.memory().url)
    server.make(name)

    def made(files: Files) -> Iterator[object]:
        """Ask for everything once, and yield after each request."""
        for path in ("a/b", "a/c", "log/1"):
            yield files.create(path, b"0123456789")
        yield from (files.read("a/b"), files.read_ranges("a/b", [(0, 2), (5, 7)]), files.modified("a/b"))
        yield from (files.list("a"), files.list("nowhere"), files.delete("a/c"))
        with pytest.raises(ExistsError):
            files.create("a/b", b"other")
        with pytest.raises(FileNotFoundError):
            files.read("log/2")
        yield

    with Proxy(server.ports) as proxy:
        files = files_of(server, name, proxy.ports)
        before = files.requests_by_kind()
        for _ in zip(made(files), made(counted), strict=True):
            sent = Counter(kind_of(asked) for asked, _ in proxy.seen)
            assert sent == counted.requests, [asked for asked, _ in proxy.seen]
        known = {kind: count - before[kind] for kind, count in files.requests_by_kind().items()}
        # Metrics do not know that the client lists the folder above one that is not there.
        assert sent == {**known, "LIST": known["LIST"] + 1}


@pytest.mark.parametrize("kind", NEAR + FAR)
def test_each_request_is_counted_by_its_kind(files: Files) -> None:
    before = files.requests_by_kind()
    files.create("a/b", b"0123456789")
    with pytest.raises(ExistsError):
        files.create("a/b", b"other")
    files.read("a/b")
    files.list("a")
    files.modified("a/b")
    files.delete("a/b")
    after = files.requests_by_kind()
    grown = {kind: count - before[kind] for kind, count in after.items() if count > before[kind]}
    # The memory of a process has no times.
    assert grown == {"PUT": 2, "GET": 1, "LIST": 1, "DELETE": 1, **({} if "memory" in files.url else {"HEAD": 1})}


@pytest.mark.parametrize("kind", FAR)
def test_a_client_of_a_parent_is_not_used_by_its_child(files: Files) -> None:
    files.create("a", b"1")
    parent = files._reach("")[0]  # type: ignore[attr-defined]

    def act() -> object:
        child = files._reach("")[0]  # type: ignore[attr-defined]
        files.create("b", b"2")
        return id(child) != id(parent), content(files, "a"), files.list("")

    # The child is forked while the parent's client has connections and, where it has one, a thread.
    assert in_another_process(act) == (True, b"1", ["a", "b"])
    assert content(files, "b") == b"2"


@pytest.mark.parametrize("kind", NEAR + FAR)
def test_a_store_copies_a_file_itself_if_it_can(servers: Servers, kind: str, tmp_path: Path) -> None:
    one, other = new_files(servers, kind, tmp_path / "one"), new_files(servers, kind, tmp_path / "other")
    can = kind in ("s3", "gcs")
    one.create("a/b", b"old")
    for files, path in ((one, "c/d"), (other, "a/b")):
        assert files.copy_from(one, "a/b", path) == can
        assert content(files, path) == (b"old" if can else None)
        assert files.list(path[0]) == ([path[2]] if can else [])
    # It is a file of its own.
    one.delete("a/b")
    assert content(other, "a/b") == (b"old" if can else None)
    if can:
        with pytest.raises(FileNotFoundError):
            other.copy_from(one, "a/b", "e")
        assert content(other, "e") is None
    # Another server, or other rights, cannot be told from the options.
    assert not other.copy_from(replace(one, options={**one.options, "more": 1}), "c/d", "e")
    assert not other.copy_from(open_files(tmp_path), "c/d", "e")


@pytest.mark.rows_in_files
@pytest.mark.parametrize("kind", FAR)
def test_an_application_branches_to_each_kind_of_store_within_it_and_from_it(files: Files) -> None:
    world, told = World(), list[tuple[int, int]]()
    world.read(12)
    places = [(world.files, "app"), (files, "green"), (files, "blue"), (core.memory(), "app")]
    for (source, name), (target, new) in itertools.pairwise(places):
        branch.branch(
            Log(source, name), Log(target, new), 110, now=0, new_id=core.new_id, tell=lambda *sizes: told.append(sizes)
        )
        found = verified(target, new)
        assert found.problems == found.unreferenced == ()
        entry = core.newest(Log(target, new))
        assert told[-1] == (length_of({*entry.tasks["total"].files(), *entry.flow_of("total").files()}),) * 2
    last, _ = places[-1]
    assert read_state(last.url, "app", "total").to_pylist() == [{"value": world.value(110)}]


@pytest.mark.parametrize("kind", FAR)
def test_a_bucket_that_is_missing_is_named_when_something_is_created(servers: Servers, kind: str) -> None:
    files = files_of(server_of(servers, kind), f"missing-{uuid.uuid4()}")
    assert files.list("") == files.list("a/b") == []
    assert content(files, "a") is None
    if kind == "hdfs":
        files.create("a", b"")  # A folder there is made as needed.
    else:
        with pytest.raises(InvalidInputError, match="bucket that does not exist; make it first"):
            files.create("a", b"")


def test_credentials_that_are_refused_are_no_reason_to_try_again(servers: Servers) -> None:
    import base64

    url, options = server_of(servers, "azure").address("bucket", server_of(servers, "azure").ports)
    wrong = base64.b64encode(b"wrong").decode()
    parts = [
        f"AccountKey={wrong}" if part.startswith("AccountKey=") else part
        for part in options["connection_string"].split(";")
    ]
    with pytest.raises(StoreRefusedError, match=r"is refused: .*Check the credentials") as refused:
        open_files(url, {"connection_string": ";".join(parts)}).list("")
    assert wrong not in str(refused.value)


class TestTheCopiesOfRuns:
    @pytest.fixture
    def far(self, servers: Servers, tmp_path: Path) -> Files:
        return new_files(servers, "s3", tmp_path)

    def test_what_was_written_or_fetched_is_not_fetched_again(self, far: Files, copies: Path) -> None:
        stored = runs_io.write_bytes(far, "a", b"1" * 1_000)
        assert [place.name for place in copies.iterdir()] == [stored.checksum]
        assert copies.stat().st_mode & 0o777 == 0o700
        far.delete("a")
        assert runs_io.read_bytes(far, stored).to_pybytes() == b"1" * 1_000
        # Another process has it too.
        assert in_another_process(lambda: runs_io.read_bytes(far, stored).to_pybytes()) == b"1" * 1_000
        (copies / stored.checksum).unlink()
        with pytest.raises(FileNotFoundError):
            runs_io.read_bytes(far, stored)

    def test_a_damaged_copy_is_fetched_again(self, far: Files, copies: Path) -> None:
        stored = runs_io.write_bytes(far, "a", b"1" * 1_000)
        for damaged in (b"1" * 999 + b"2", b"", b"1" * 1_001):
            place = copies / stored.checksum
            place.unlink()
            place.write_bytes(damaged)
            cache._verified.clear()
            assert runs_io.read_bytes(far, stored).to_pybytes() == b"1" * 1_000
            assert place.read_bytes() == b"1" * 1_000

    def test_the_copies_used_longest_ago_go_beyond_the_bound_and_what_is_mapped_stays(
        self, far: Files, copies: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "BOUND", 4_500)
        monkeypatch.setattr(cache, "SLACK", 0)
        stored = [runs_io.write_bytes(far, str(i), bytes([i]) * 1_000) for i in range(4)]
        mapped = runs_io.read_bytes(far, stored[1])
        for age, one in enumerate(stored):
            os.utime(copies / one.checksum, (age, age))
        runs_io.read_bytes(far, stored[0])
        stored += [runs_io.write_bytes(far, str(i), bytes([i]) * 1_000) for i in (4, 5)]
        kept = {place.name for place in copies.iterdir()}
        assert kept == {stored[i].checksum for i in (0, 3, 4, 5)}
        assert mapped.to_pybytes() == bytes([1]) * 1_000
        for i, one in enumerate(stored):
            assert runs_io.read_bytes(far, one).to_pybytes() == bytes([i]) * 1_000

    @pytest.mark.parametrize("prepared", ["open to others", "a link", "a file"])
    def test_a_folder_that_another_could_have_prepared_is_not_used(
        self, far: Files, copies: Path, tmp_path: Path, prepared: str
    ) -> None:
        if prepared == "a file":
            copies.write_bytes(b"")
        elif prepared == "a link":
            (tmp_path / "there").mkdir(mode=0o700)
            copies.symlink_to(tmp_path / "there")
        else:
            copies.mkdir()
            copies.chmod(0o755)
        stored = runs_io.write_bytes(far, "a", b"1")
        assert runs_io.read_bytes(far, stored).to_pybytes() == b"1"
        assert prepared == "a file" or list(copies.iterdir()) == []

    def test_a_local_store_has_no_copies(self, tmp_path: Path, copies: Path) -> None:
        near = open_files(tmp_path / "store")
        runs_io.read_bytes(near, runs_io.write_bytes(near, "a", b"1"))
        assert not copies.exists()
