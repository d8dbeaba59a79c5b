"""What a run does by Spark Connect, without a server: what is refused, what is asked, and how commits are followed."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import walk_packages
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from monoids import Sum
from persistent_state import (
    DataFrameSource,
    FileSource,
    InvalidInputError,
    NonWindowState,
    PersistentTask,
    StateError,
    TaskFailedError,
    engine,
)
from persistent_state.engine.run import queries
from persistent_state.engine.run.followed import Follower, Note, from_bytes, note_path, to_bytes
from persistent_state.engine.run.queries import Queries
from persistent_state.engine.run.spark_engine import SparkEngine
from persistent_state.engine.spark import connect
from persistent_state.engine.spark.connect import ASK_SECONDS, RemoteQuery
from persistent_state.engine.spark.failures import naming_a_lost_jvm
from persistent_state.engine.spark.versions import NOTHING_TO_READ
from persistent_state.metrics.of_run import Work
from persistent_state.outputs import Outputs
from persistent_state.protocol.deliver import Delivered
from persistent_state.run import running
from persistent_state.run.feeds import FedTask
from persistent_state.run.progress import Progress
from persistent_state.run.reports import Listener
from persistent_state.store.files import LocalFiles
from persistent_state.store.log import Log
from tests import core
from tests.run.test_start_checks import setup_of
from tests.words import SCHEMA, Words


class RemoteSession:
    """A session of Spark Connect, as far as it is asked."""

    version = "4.3.0"
    conf = SimpleNamespace(get=lambda name, default=None: "local[2]" if name == "spark.master" else default)

    def __init__(self, answer: object = None) -> None:
        self.answer = answer
        self.sessions = 0
        self.policies: list[object] = ["the user's"]
        self.client = SimpleNamespace(
            get_retry_policies=lambda: self.policies,
            set_retry_policies=lambda policies: setattr(self, "policies", policies),
            release_session=self.forget,
        )

    def cloneSession(self) -> Any:
        self.sessions += 1
        return self

    def forget(self) -> None:
        self.sessions -= 1

    def range(self, *_: Any) -> Any:
        return self

    def mapInArrow(self, function: Callable[..., Any], types: str) -> Any:
        self.function = function
        return self

    def collect(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return [self.answer] if self.answer else self.here()

    def here(self) -> Any:
        (batch,) = self.function([pa.record_batch({"id": [0]})])
        return batch.to_pylist()


RemoteSession.__module__ = "pyspark.sql.connect.session"


def progress(task: str = "Words", epoch: int = 1, batch: int = 1, messages: int = 3) -> Progress:
    return Progress(
        task=task,
        epoch=epoch,
        batch=batch,
        messages=messages,
        replayed=1,
        skipped=0,
        replayed_or_late=0,
        copies=0,
        late=0,
        bad=1,
        reasons={"no timestamp": 1},
        upstream_min=None,
        clock=10,
        global_clock=10,
        outputs={"console": Delivered(None, 2)},
    )


WORK = Work("Words", False, 3, 1, 0.5, 0.25, ("",), {"p": 4})


def test_no_module_of_the_engine_needs_what_a_client_lacks() -> None:
    names = [module.name for module in walk_packages(engine.__path__, "persistent_state.engine.")]
    program = (
        f"import sys; sys.modules['py4j'] = None; from importlib import import_module; [*map(import_module, {names})]"
    )
    # By this variable PySpark is what `pyspark-client` is.
    env = {**os.environ, "SPARK_SKIP_CONNECT_COMPAT_TESTS": "1"}
    subprocess.run([sys.executable, "-c", program], check=True, env=env)


class Unimplemented(Exception):
    """An error of gRPC, which has a status of that name."""

    def code(self) -> Any:
        return SimpleNamespace(name="UNIMPLEMENTED")


class TestServer:
    def test_a_server_that_has_the_same_and_reaches_the_store_is_taken(self, tmp_path: Path) -> None:
        session: Any = RemoteSession()
        connect.check_server(session, LocalFiles(str(tmp_path / "not" / "yet")))
        connect.check_server(session, core.memory())
        assert session.sessions == 0, "none is left on the server"
        assert [*tmp_path.iterdir()] == [], "no file is left"

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            ({"version": "0.0.0", "unfit": "", "is_there": True}, "has persistent-state 0.0.0, and this one"),
            (PySparkException("ModuleNotFoundError: No module named 'persistent_state'"), "has no persistent-state"),
            (PySparkException("ModuleNotFoundError: No module named 'shop'"), "install the same packages there"),
            (PySparkException("[PYTHON_VERSION_MISMATCH] Python in worker"), "has another minor version"),
        ],
        ids=["another version", "no library", "no module", "another Python"],
    )
    def test_a_server_that_lacks_something_is_refused_with_what_to_install(self, answer: object, words: str) -> None:
        session: Any = RemoteSession(answer)
        with pytest.raises(InvalidInputError, match=words):
            connect.check_server(session, core.memory())

    def test_a_server_whose_packages_do_not_go_together_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(connect.pyspark, "__version__", "4.1.0")
        monkeypatch.setattr(connect.pa, "__version__", "26.0.0")
        monkeypatch.setattr(connect.versions, "state_serializer", lambda: 'state_info_col["numRows"]')
        session: Any = RemoteSession()
        with pytest.raises(InvalidInputError, match=r"server can't run this: pyspark=4\.1\.0 does not work with"):
            connect.check_server(session, core.memory())

    def test_a_folder_that_is_another_on_the_server_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session: Any = RemoteSession()
        ours, exists = tmp_path / "ours", os.path.exists
        ours.mkdir()
        # The folder of the other machine has the same path, and is empty.
        monkeypatch.setattr(connect.os.path, "exists", lambda path: exists(path) and ours != Path(path).parent)
        with pytest.raises(InvalidInputError, match="the Spark Connect server has another there"):
            connect.check_server(session, LocalFiles(str(ours)))
        assert [*ours.iterdir()] == []

    def test_a_folder_in_which_nobody_can_write_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        session: Any = RemoteSession()
        with pytest.raises(InvalidInputError, match="can't be written to: Not a directory; let this process write"):
            connect.check_server(session, LocalFiles(str(tmp_path / "file")))

    @pytest.mark.parametrize("old", ["client", "server"])
    def test_a_start_that_could_have_no_session_of_its_own_changes_nothing(self, old: str, tmp_path: Path) -> None:
        """A takeover would fence a driver that works."""

        class OldSession(RemoteSession):
            cloneSession: Any = None

        def clone(session: Any) -> Any:
            raise Unimplemented

        class SessionOfOldServer(RemoteSession):
            cloneSession: Any = clone

        OldSession.__module__ = SessionOfOldServer.__module__ = RemoteSession.__module__
        spark: Any = OldSession() if old == "client" else SessionOfOldServer()
        files = LocalFiles(str(tmp_path / "store"))
        plan = core.plan_of(Words(), SCHEMA, files=files)
        core.start(log := Log(files, plan.application), [plan])
        (tmp_path / "words").mkdir()
        part = FedTask(plan, FileSource(tmp_path / "words", timestamp="ts", schema=SCHEMA), Outputs((), ()))
        with pytest.raises(InvalidInputError, match="install 4.1 or newer" if old == "client" else "use one of 4.1"):
            running.start(replace(setup_of(part), runs_on=SparkEngine(spark)), (), ())
        assert core.newest(log).epoch == 1

    def test_an_error_of_another_kind_is_none_of_what_is_installed(self) -> None:
        session: Any = RemoteSession(PySparkException("the disk is full"))
        with pytest.raises(PySparkException, match="the disk is full"):
            connect.check_server(session, core.memory())


class TestSources:
    def test_rows_that_spark_plans_are_refused_with_a_way_out(self, tmp_path: Path) -> None:
        session: Any = RemoteSession()
        with pytest.raises(
            InvalidInputError, match=r"whose plan can't be checked by Spark Connect; give it a FileSource"
        ):
            queries.columns_of(session, Words(), DataFrameSource(lambda spark, clock: spark, timestamp="ts"))

        class ByColumn(PersistentTask):
            key = "word"

            def persistent_state(self) -> NonWindowState[int]:
                return NonWindowState(Sum())

            def process_column(self, rows: Any) -> Any:
                return rows.ts

        files = FileSource(tmp_path, timestamp="ts", schema=SCHEMA)
        with pytest.raises(
            InvalidInputError, match=r"has a process_column, whose plan can't be checked by Spark Connect"
        ):
            queries.columns_of(session, ByColumn(), files)

    def test_rows_that_the_library_reads_are_taken(self, tmp_path: Path) -> None:
        session: Any = RemoteSession()
        files = FileSource(tmp_path, timestamp="ts", schema=SCHEMA)
        assert queries.columns_of(session, Words(), files) == (files, SCHEMA, None)


class Grpc(Exception):
    """An error of the client, as far as it is asked."""

    def __init__(self, code: str, text: str = "it failed") -> None:
        super().__init__(text)
        self.getGrpcStatusCode = lambda: SimpleNamespace(name=code)


Grpc.__module__ = "pyspark.errors.exceptions.connect"


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (Grpc("UNAVAILABLE", '<Rendezvous of RPC:\n\tdetails = "it failed to connect"\n>'), True),
        (Grpc("INTERNAL", "[INVALID_HANDLE.SESSION_NOT_FOUND] The handle is invalid."), True),
        (Grpc("INTERNAL", "[PYTHON_EXCEPTION] your function raised"), False),
        (ValueError("Cannot invoke RPC on closed channel!"), True),
        (ValueError("UNAVAILABLE is what your function raised"), False),
        (OSError("the disk is full"), False),
    ],
)
def test_a_lost_server_is_one_sentence_and_no_other_error_is(error: Exception, is_lost: bool) -> None:
    with pytest.raises(StateError if is_lost else type(error)) as raised, naming_a_lost_jvm():
        raise error
    assert ("the Spark Connect server is gone" in str(raised.value)) == is_lost
    assert ("(it failed to connect);" in str(raised.value)) == ("details" in str(error))


@dataclass
class FakeQuery:
    """A query that counts how often it is asked."""

    isActive_: bool = True
    asked: int = 0
    errors: int = 0
    message: str = "Getting offsets"
    error: Exception | None = None

    @property
    def isActive(self) -> bool:
        self.asked += 1
        return self.isActive_

    def exception(self) -> Exception | None:
        self.errors += 1
        return self.error

    @property
    def status(self) -> dict[str, str]:
        self.asked += 1
        return {"message": self.message}

    def stop(self) -> None:
        raise Grpc("INTERNAL", "[CONNECT_INVALID_PLAN.STREAMING_QUERY_NOT_FOUND] it was forgotten")


def test_a_query_is_asked_seldom_and_never_again_once_it_has_ended() -> None:
    now, query = [0.0], FakeQuery(error=ValueError("it failed"))
    remote = RemoteQuery(query, [], lambda: now[0])  # type: ignore[arg-type]
    assert all(remote.isActive for _ in range(100))
    assert query.asked == 0
    now[0] += ASK_SECONDS
    assert all(remote.isActive for _ in range(100))
    assert query.asked == 1
    query.isActive_ = False
    assert remote.isActive
    for _ in range(3):
        now[0] += ASK_SECONDS
        assert not remote.isActive
        assert str(remote.exception()) == "it failed"
    assert (query.asked, query.errors) == (2, 1)
    # The server has forgotten it by now.
    remote.stop()


def test_the_status_of_a_query_is_asked_seldom_and_never_again_once_it_has_ended() -> None:
    now, query = [0.0], FakeQuery()
    remote = RemoteQuery(query, [], lambda: now[0])  # type: ignore[arg-type]
    assert {remote.status["message"] for _ in range(100)} == {"Getting offsets"}
    assert query.asked == 1
    now[0], query.message = now[0] + ASK_SECONDS, NOTHING_TO_READ
    assert {remote.status["message"] for _ in range(100)} == {NOTHING_TO_READ}
    query.isActive_ = False
    assert not remote.isActive
    asked, now[0] = query.asked, now[0] + ASK_SECONDS
    assert remote.status["message"] == NOTHING_TO_READ
    assert query.asked == asked


class TestEndOfQueries:
    """Which flows are active, and which was stopped, where a query has no end of its own, as before Spark 4.2."""

    @pytest.fixture
    def queries(self) -> Queries:
        source: Any = None
        found = Queries(source, setup_of(FedTask(core.plan_of(Words(), SCHEMA), source, source)), source)
        a: Any = FakeQuery()
        b: Any = FakeQuery()
        found.by_flow = {"a": a, "b": b}
        found._endless = {"a", "b"}
        return found

    def test_a_flow_is_at_its_end_once_it_had_nothing_to_read_whatever_comes_later(self, queries: Queries) -> None:
        a: Any = queries.by_flow["a"]
        assert queries.active_flows == {"a", "b"}
        a.message = NOTHING_TO_READ
        assert queries.active_flows == {"b"}
        a.message = "Processing new data"
        assert queries.active_flows == {"b"}
        # It is at its end, and to stop it takes nothing away.
        a.isActive_ = False
        assert (queries.active_flows, queries.is_one_stopped) == ({"b"}, False)

    def test_a_query_that_was_stopped_before_its_end_is_told_from_one_that_failed(self, queries: Queries) -> None:
        a: Any = queries.by_flow["a"]
        assert not queries.is_one_stopped
        a.isActive_ = False
        assert (queries.active_flows, queries.is_one_stopped) == ({"b"}, True)
        a.error = ValueError("it failed")
        assert not queries.is_one_stopped

    def test_a_query_that_ends_by_itself_is_never_taken_for_a_stopped_one(self, queries: Queries) -> None:
        queries._endless = {"b"}
        a: Any = queries.by_flow["a"]
        a.isActive_ = False
        assert not queries.is_one_stopped

    def test_what_a_query_committed_is_heard_before_its_end_is_told(self, queries: Queries) -> None:
        looks: list[set[str]] = []
        follower: Any = SimpleNamespace(look=lambda: looks.append({*queries._was_active}))
        queries._follower = follower
        a: Any = queries.by_flow["a"]
        assert queries.active_flows == {"a", "b"}
        assert looks == []
        a.message = NOTHING_TO_READ
        assert queries.active_flows == {"b"}
        assert queries.active_flows == {"b"}
        assert looks == [{"a", "b"}]


def test_once_the_server_is_lost_nothing_is_tried_again() -> None:
    policies: list[object] = []
    session = SimpleNamespace(client=SimpleNamespace(set_retry_policies=policies.append))

    def stop() -> None:
        raise failures.pop(0)

    failures = [Grpc("INTERNAL", "it can't be stopped"), Grpc("UNAVAILABLE")]
    remote = RemoteQuery(SimpleNamespace(stop=stop), [session, session])  # type: ignore[arg-type]
    with pytest.raises(Grpc, match="can't be stopped"):
        remote.stop()
    assert policies == []
    with pytest.raises(Grpc):
        remote.stop()
    assert policies == [[], []]


def test_calls_of_a_session_are_tried_again_later_and_settings_of_the_user_stay() -> None:
    session: Any = RemoteSession()
    connect.try_again(session)
    assert session.policies == ["the user's"]

    def stop() -> None:
        raise Grpc("UNAVAILABLE")

    remote = RemoteQuery(SimpleNamespace(stop=stop), [session])  # type: ignore[arg-type]
    with pytest.raises(Grpc):
        remote.stop()
    assert session.policies == []
    connect.try_again(session)
    assert [policy.max_retries for policy in session.policies] == [7]


def test_a_note_is_read_as_it_was_written() -> None:
    told = [progress(), progress("Other", messages=4)]
    assert from_bytes(to_bytes(told, [WORK])) == (told, [WORK])


@dataclass
class Followed:
    """A log with a task, whose commits another process makes, and a follower of it."""

    heard: list[Progress] = field(default_factory=list)
    woken: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.files = core.memory()
        self.plan = core.plan_of(Words(), SCHEMA, files=self.files)
        self.log = Log(self.files, self.plan.application)
        self.start()

    def start(self) -> None:
        self.entry = core.start(self.log, [self.plan])
        listener = Listener("nobody", self.heard.append)
        spark: Any = None
        log = Log(self.files, self.plan.application)
        self.follower = Follower(log, spark, listener, lambda: self.woken.append(1))
        self.follower._epoch, self.follower._flows = self.entry.epoch, [self.plan.name]

    def commit(self, is_noted: bool = True) -> None:
        """Do what the server's process does in a micro-batch."""
        note: Note = pickle.loads(pickle.dumps(Note(LocalFiles("/none"), self.plan.application)))
        note._files = self.files
        batch = pa.record_batch({"ts": [5], "word": ["a"]}, SCHEMA)
        note.begin(self.plan.name)
        self.entry = core.play(self.log, self.plan, batch)
        known = self.entry.flow_of(self.plan.name).progress
        note.measure(WORK)
        note(replace(progress(epoch=self.entry.epoch, batch=known.batch)))
        if is_noted:
            note.finish(self.plan.name)


class TestFollower:
    def test_each_commit_of_another_process_is_heard_once_and_in_order(self) -> None:
        followed = Followed()
        for _ in range(2):
            followed.commit()
            followed.commit()
            followed.follower.look()
            followed.follower.look()
        assert [told.batch for told in followed.heard] == [1, 2, 3, 4]
        assert len(followed.woken) == 2
        assert followed.follower.finished == {"Words"}

    def test_a_commit_wakes_although_its_note_never_comes_and_the_next_note_is_heard(self) -> None:
        followed = Followed()
        followed.commit(is_noted=False)
        followed.follower.look()
        assert (len(followed.woken), followed.heard, followed.follower.finished) == (1, [], set())
        followed.commit()
        followed.follower.look()
        assert [told.batch for told in followed.heard] == [2]

    def test_nothing_is_heard_of_another_start(self) -> None:
        followed = Followed()
        old = followed.follower
        followed.start()
        followed.commit()
        old.look()
        assert followed.heard == []
        followed.follower.look()
        assert [told.epoch for told in followed.heard] == [2]

    def test_a_function_of_progress_that_raises_fails_the_run_and_not_the_commit(self) -> None:
        followed = Followed()

        def fail(progress: Progress) -> None:
            raise KeyError("no such thing")

        followed.follower._listener = Listener("nobody", fail)
        followed.commit()
        followed.follower.look()
        assert followed.follower.failed is not None
        flow, error = followed.follower.failed
        assert (flow, type(error)) == ("Words", TaskFailedError)
        assert "on_progress raised KeyError" in str(error)

    def test_a_note_that_can_not_be_written_harms_nothing(self) -> None:
        files = core.memory()
        note = Note(files, "app")
        note(progress())
        note.finish("Words")
        note.finish("Words")
        assert from_bytes(bytes(files.read(note_path("app", "Words", 1, 1))))[0] == [progress()]

    def test_an_error_of_a_commit_ends_its_query(self) -> None:
        with pytest.raises(OSError, match="the disk is full"):
            Note(core.memory(), "app").fail("Words", OSError("the disk is full"))


@pytest.mark.parametrize("is_remote", [False, True], ids=["classic", "Connect"])
@pytest.mark.parametrize(
    ("settings", "slots"),
    [
        ({"master": "local[4]"}, [1, 4, 4]),
        ({"master": "local[4]", "dynamicAllocation.enabled": "true"}, [1, 4, 4]),
        ({"master": "yarn"}, [1, 4, 4]),
        ({"master": "yarn", "dynamicAllocation.enabled": "true"}, [1, 4, 16]),
        ({"master": "yarn", "executor.instances": "4", "executor.cores": "2"}, [1, 4, 8]),
        ({"master": "spark://a:7077", "cores.max": "12"}, [1, 4, 12]),
    ],
)
def test_shards_are_shared_by_the_tasks_that_run_at_a_time_unless_executors_come_and_go(
    monkeypatch: pytest.MonkeyPatch, is_remote: bool, settings: dict[str, str], slots: list[int]
) -> None:
    monkeypatch.setattr(connect, "parallelism", lambda spark: 4)
    conf = {f"spark.{name}": value for name, value in settings.items()}
    remote: Any = RemoteSession()
    remote.conf = SimpleNamespace(get=conf.get)
    context = SimpleNamespace(getConf=lambda: SimpleNamespace(get=conf.get), master=settings["master"])
    classic: Any = SimpleNamespace(sparkContext=context)
    monkeypatch.setattr(connect, "is_connect", lambda spark: spark is remote)
    assert [connect.slots(remote if is_remote else classic, shards) for shards in (1, 4, 16)] == slots
