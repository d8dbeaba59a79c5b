"""The session of the command `run`: what can never start is told from what may another time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from persistent_state import InvalidInputError, StateError
from persistent_state.cli import spark_session
from persistent_state.cli.spark_session import _started, start_session, stop_session
from tests.processes import start_guarded
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The settings of the sessions that were started, which are none of Spark's."""
    for name in ("SPARK_REMOTE", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")  # It is put back afterwards.
        monkeypatch.delenv(name)
    started: list[dict[str, str]] = []
    monkeypatch.setattr(spark_session, "_started", lambda name, given: started.append(given))
    return started


@pytest.fixture
def no_server() -> Iterator[str]:
    """The address of a server that takes connections and never answers, as behind a firewall."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "master", ["local", "local[2]", "local[*]", "local[2, 4]", "spark://a:7077,b:7077", "yarn", "k8s://x"]
)
def test_a_master_of_spark_is_one(master: str, started: list[dict[str, str]]) -> None:
    start_session("name", master, [("spark.driver.memory", "2g"), ("spark.executor.memory", "512MB")])
    assert started[0]["spark.master"] == master


@pytest.mark.parametrize(
    ("environment", "master", "settings", "sentence"),
    [
        ({}, "locl[2]", {}, "master='locl[2]' is no master of Spark; give local[2]"),
        ({}, "local[x]", {}, "master='local[x]' is no master of Spark"),
        ({}, None, {"spark.master": "locl"}, "master='locl' is no master of Spark"),
        (
            {},
            None,
            {"spark.driver.memory": "2gg"},
            "spark.driver.memory=2gg is no size of memory; write it as 2g or 512m.",
        ),
        ({}, None, {"spark.executor.memory": "two"}, "spark.executor.memory=two is no size of memory"),
        (
            {"SPARK_REMOTE": "sc://a"},
            "local[2]",
            {},
            "master='local[2]' and SPARK_REMOTE are both given; leave one of them out.",
        ),
        ({}, "local[2]", {"spark.remote": "sc://a"}, "master='local[2]' and --conf spark.remote are both given"),
        ({"SPARK_REMOTE": "a:1"}, None, {}, "SPARK_REMOTE=a:1 is no URL of a server: [INVALID_CONNECT_URL]"),
        ({"SPARK_REMOTE": "sc://a/;hunter2"}, None, {}, "Parameter '***' should be provided as a key-value pair"),
        (
            {},
            None,
            {"spark.remote": "sc://a:port"},
            "spark.remote=sc://a:port is no URL of a server: Port could not be cast",
        ),
        ({"JAVA_HOME": "/no/java"}, None, {}, "Java 17 or newer is needed, and JAVA_HOME=/no/java has no bin/java"),
        ({"JAVA_HOME": "/no/java"}, None, {}, "; or run on this machine alone, without Spark and Java: add --local."),
    ],
)
def test_what_never_starts_is_not_tried(
    environment: dict[str, str],
    master: str | None,
    settings: dict[str, str],
    sentence: str,
    started: list[dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInputError) as refused:
        start_session("name", master, [*settings.items()])
    assert sentence in str(refused.value)
    assert started == []


def test_a_run_on_spark_without_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(InvalidInputError) as refused:
        start_session("name", None, [])
    assert str(refused.value) == (
        "package='pyspark' is missing for Spark; pip install pyspark, or run on this machine alone, without Spark and Java: "
        "add --local."
    )


def test_a_server_that_does_not_answer_is_named_once_its_time_is_over(
    no_server: str, started: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_session, "CONNECT_SECONDS", 0.5)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://{no_server}/;user_id=me;x-secret=hunter2")
    with pytest.raises(StateError) as failed:
        start_session("name", None, [])
    assert type(failed.value) is StateError
    assert str(failed.value).startswith(
        f"the Spark Connect server sc://{no_server}/ has taken no connection within 0.5 s;"
    )
    assert "hunter2" not in str(failed.value)
    assert started == []


def test_a_server_that_answers_is_used_and_needs_no_java(
    started: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    grpc, futures = pytest.importorskip("grpc"), pytest.importorskip("concurrent.futures")
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setattr(spark_session, "CONNECT_SECONDS", PATIENCE)
    monkeypatch.setenv("JAVA_HOME", "/no/java")
    try:
        start_session("name", None, [("spark.remote", f"sc://127.0.0.1:{port}")])
    finally:
        server.stop(None)
    assert started == [{"spark.remote": f"sc://127.0.0.1:{port}"}]


class Builder:
    """A builder of sessions that does something else."""

    def __init__(self, getOrCreate: Callable[[], Any]) -> None:
        self.getOrCreate = getOrCreate

    def config(self, key: str, value: str) -> Builder:
        return self

    def appName(self, name: str) -> Builder:
        return self


OF_JVM = (
    "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: {}\n\tat org.apache.spark.A\n"
)


@pytest.mark.parametrize(
    ("said", "kind", "why"),
    [
        (
            OF_JVM.format("java.lang.IllegalArgumentException: spark.a should be int"),
            InvalidInputError,
            "spark.a should",
        ),
        (OF_JVM.format("java.net.BindException: in use"), StateError, "session: java.net.BindException: in use. Look"),
        (
            OF_JVM.format("x.SparkException: no\nCaused by: java.lang.IllegalArgumentException"),
            StateError,
            "x.SparkException: no. ",
        ),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited.", StateError, "[JAVA_GATEWAY_EXITED]"),
        ("[CONNECT_URL_NOT_SET] Cannot create a session.", InvalidInputError, "[CONNECT_URL_NOT_SET]"),
        ("no place for https://me:hunter2@host", StateError, "https://***@host"),
        ("", StateError, "session: RuntimeError(''). Look"),
    ],
)
def test_what_spark_says_tells_whether_it_may_start_another_time(
    said: str, kind: type[StateError], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise RuntimeError(said)

    monkeypatch.setattr(SparkSession, "builder", Builder(fail))
    with pytest.raises(StateError) as failed:
        _started("name", {})
    assert type(failed.value) is kind
    assert why in str(failed.value)


def test_pyspark_does_not_take_the_signal_that_a_run_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)

    def take() -> str:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return "a session"

    monkeypatch.setattr(SparkSession, "builder", Builder(take))
    try:
        assert _started("name", {}) == "a session"
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)


def test_to_stop_a_session_raises_nothing_and_waits_for_no_server() -> None:
    stopped: list[str] = []

    def stop(error: BaseException) -> Callable[[], None]:
        def stop() -> None:
            stopped.append("stopped")
            raise error

        return stop

    stop_session(SimpleNamespace(stop=stop(RuntimeError())))  # type: ignore[arg-type]
    stop_session(SimpleNamespace(stop=stop(KeyboardInterrupt())))  # type: ignore[arg-type]
    assert stopped == ["stopped"] * 2

    policies: list[Any] = []
    client = SimpleNamespace(set_retry_policies=policies.extend)
    remote = type(
        "SparkSession", (), {"__module__": "pyspark.sql.connect.session", "client": client, "stop": lambda self: None}
    )
    stop_session(remote())
    assert [policy.max_retries for policy in policies] == [1]


EXITS = """
import sys, threading, time
from persistent_state.cli import commands, run
from tests.cli.test_run import Played, Session

commands.EXIT_SECONDS = 0.5
run.start_session = Session().make
app = Played("app", "memory://played").play(lambda: threading.Thread(target=time.sleep, args=[3600]).start())
if __name__ == "__main__":
    sys.argv[1:] = ["run", __file__ + ":app"]
    sys.exit(commands.main())
"""


def test_a_process_ends_soon_after_its_run_though_a_thread_goes_on(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text(EXITS)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = start_guarded([sys.executable, str(tmp_path / "exits.py")], cwd=ROOT, stdout=subprocess.DEVNULL, env=env)
    assert process.wait(PATIENCE) == 0
