"""The command `run` in processes of its own: how it ends and what its exit status says; and what the manifests run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import fsspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persistent_state import ParquetSink, read_state
from persistent_state.cli import run
from tests.deployed import DEPLOY, commented_args, container_of, replaced
from tests.metrics.test_server import ask
from tests.spark import sessions
from tests.spark.conftest import Launch
from tests.spark.sessions import ROOT, Jvm
from tests.store.servers import Servers, free_port, needed
from tests.waiting import PATIENCE, until

DRIVER, SCHEDULE, ONCE = (
    DEPLOY / "kubernetes" / name for name in ("driver.yaml", "every-five-minutes.yaml", "once.yaml")
)
T = TypeVar("T")

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("word", pa.string())])
QUIET = (
    "--conf=spark.ui.enabled=false",
    "--conf=spark.log.level=ERROR",
    f"--conf=spark.driver.memory={sessions.MEMORY}",
)
"""Options that make a Spark small. The last one of a setting holds."""


def write(folder: Path, name: str, *messages: tuple[int, str]) -> None:
    """A file of words, each with its second."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = pa.table({"ts": [second * 1_000_000 for second, _ in messages], "word": [word for _, word in messages]})
    pq.write_table(rows.cast(SCHEMA), folder / f".{name}")
    (folder / f".{name}").rename(folder / f"{name}.parquet")


def places(folder: Path) -> dict[str, str]:
    """The environment of the application of the image."""
    return {"STORE": str(folder / "store"), "EVENTS": str(folder / "events"), "COUNTS": str(folder / "counts")}


class Ran:
    """A process of the command that was started."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process, self.folder = process, folder

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        """The lines that stdout has so far, all of which are JSON."""
        file = self.folder / "out"
        whole = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
        return [line for line in map(json.loads, whole) if event in ("", line["event"])]

    def ended(self, timeout: float = PATIENCE) -> dict[str, Any]:
        """The last line, once the process has ended with the status that it says."""
        status = self.process.wait(timeout)
        last = self.lines()[-1] if self.lines() else {}
        assert (last.get("event"), last.get("status")) == ("ended", status), (self.folder / "log").read_text()[-4000:]
        return last

    def await_line(self, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for such a line, and return the last one."""
        return self.until(lambda: [line for line in self.lines() if is_it(line)], "the line")[-1]

    def until(self, condition: Callable[[], T], what: str) -> T:
        """Wait until a condition holds, while the process runs."""
        return until(condition, what, self.process, self.folder / "log")


def start(launch: Launch, folder: Path, args: Sequence[str], env: Mapping[str, str], path: Path | None = None) -> Ran:
    """Start the command. Of a JVM that is there, the workers look for modules in `path`, as nobody gives them another one."""
    folder.mkdir()
    told = {**sessions.patched(folder, sessions.FOR_OTHERS), **env}
    if path is None:
        return Ran(launch("-m", "persistent_state", *args, *QUIET, folder=folder, **told), folder)
    told["PYTHONPATH"] = os.pathsep.join([told["PYTHONPATH"], str(path)])
    of_workers = f"--conf=spark.executorEnv.PYTHONPATH={told['PYTHONPATH']}"
    return Ran(launch("-m", "persistent_state", *args, *QUIET, of_workers, folder=folder, **told), folder)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_a_job_that_runs_every_five_minutes_gives_each_clock_once_and_closes_nothing(
    launch: Launch, jvms: Sequence[Jvm], tmp_path: Path
) -> None:
    args, env = container_of(SCHEDULE)["args"], {**places(tmp_path), **jvms[0].env}
    events, runs = tmp_path / "events", iter(range(9))

    def job(*more: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        ran = start(launch, tmp_path / f"run-{next(runs)}", [*args, *more], env, DEPLOY)
        last = ran.ended()
        return last, ran.lines("progress")

    write(events, "0", (10, "to"), (70, "be"), (200, "or"))
    first, told = job()
    assert (first["result"], first["clock"]) == ("done", 120_000_000)
    assert sum(line["messages"] - line["replayed"] for line in told) == 3
    counts = ParquetSink(env["COUNTS"])
    given = counts.latest()
    # Nothing came: the next run reads again what waits above the clock, and gives nothing out.
    idle, told = job()
    assert (idle["result"], idle["clock"]) == ("done", 120_000_000)
    assert sum(line["messages"] - line["replayed"] for line in told) == 0
    assert counts.latest() == given
    # A message that is late for the clock of a drain is none for what a run without it leaves open.
    write(events, "1", (150, "be"), (400, "to"))
    third, told = job()
    assert third["clock"] == 300_000_000
    assert [line["late"] for line in told][-1] == 0
    drained, _ = job("--drain")
    assert drained["result"] == "done"
    found = {row["word"]: row["value"] for row in read_state(env["STORE"], "word-count", "WordCount").to_pylist()}
    assert found == Counter(["to", "be", "or", "be", "to"])
    rows = counts.latest()
    assert {row["word"]: row["value"] for row in rows.to_pylist()} == found
    # A rebuild wants another place for the counts.
    rebuild = start(launch, tmp_path / "refused", commented_args(ONCE), env, DEPLOY).ended()
    assert rebuild["status"] == run.MEND
    assert "give it another place" in rebuild["error"]
    env["COUNTS"] = str(tmp_path / "counts-2")
    rebuild = start(launch, tmp_path / "rebuilt", [*commented_args(ONCE), "--drain"], env, DEPLOY).ended()
    assert rebuild["result"] == "done"
    assert {row["word"]: row["value"] for row in ParquetSink(env["COUNTS"]).latest().to_pylist()} == found


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_the_manifest_runs_on_s3_answers_its_probes_and_ends_in_its_time(
    launch: Launch, servers: Servers, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with needed():
        server = servers["s3"]
    server.make("running")
    s3 = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.ports[0]}", "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    container = container_of(DRIVER)
    env = {each["name"]: each["value"].replace("//bucket/", "//running/") for each in container["env"]} | s3
    files = fsspec.filesystem("s3", key="key", secret="secret", endpoint_url=s3["AWS_ENDPOINT_URL"])
    write(tmp_path, "0", (10, "to"), (70, "be"), (200, "or"))
    files.put(str(tmp_path / "0.parquet"), "running/events/0.parquet")
    # Beside the machine that the driver runs on, this is what the manifest says.
    port = free_port()
    args = replaced(container["args"], metrics=f"127.0.0.1:{port}")
    # The path of a socket may have some hundred characters, which folders of tests leave too few of.
    sockets = tmp_path_factory.getbasetemp().parents[1]
    ran = start(launch, tmp_path / "run", [*args, f"--conf=spark.python.unix.domain.socket.dir={sockets}"], env, DEPLOY)

    def answers(probe: str) -> bool:
        try:
            return ask(f"http://127.0.0.1:{port}{container[probe]['httpGet']['path']}")[0] == 200
        except OSError:
            return False

    ran.until(lambda: answers("startupProbe"), "an answer")
    ran.await_line(lambda line: line.get("global_clock") == 120_000_000)
    assert answers("livenessProbe")
    assert answers("readinessProbe")
    ran.process.send_signal(signal.SIGTERM)
    last = ran.ended()
    # Had it taken longer than its time, it would have ended with another status.
    assert (last["status"], last["result"], last["clock"]) == (run.DONE, "done", 120_000_000)
    options = {"key": "key", "secret": "secret", "endpoint_url": s3["AWS_ENDPOINT_URL"]}
    state = read_state(env["STORE"], "word-count", "WordCount", storage_options=options)
    assert {row["word"]: row["value"] for row in state.to_pylist()} == {"to": 1, "be": 1}
    # Its JVM has ended with it.
    session = ran.process.pid

    def has_java() -> bool:
        java = (each for each in psutil.process_iter(["name"]) if each.info["name"] == "java")
        return any(sessions._session(each.pid) == session for each in java)

    until(lambda: not has_java(), "the end of the JVM")


PROGRAM = """
import os, time
from pathlib import Path
import monoids
from persistent_state import Application, FileSource, NonWindowState, PersistentTask


class Words(PersistentTask):
    key = "word"

    def __init__(self, slow, patience):
        self.slow, self.patience = slow, patience

    def persistent_state(self):
        return NonWindowState(monoids.Sum())

    def process_message(self, state, message):
        if message["word"] == "bad":
            raise ValueError("a bad word")
        if message["word"] == "slow":
            Path(self.slow).touch()
            time.sleep(self.patience)
        state.update(message.timestamp, 1)


def app():
    app = Application("words", os.environ["STORE"], checkpoint_interval="1 minute", max_restarts=0)
    words = Words(os.environ.get("SLOW"), float(os.environ.get("PATIENCE", 0)))
    return app.add(words, FileSource(os.environ["EVENTS"], timestamp="ts", schema="ts timestamp, word string"))
"""
"""An application in a file that is in no folder that Python looks at."""


def test_a_file_that_python_would_not_find_can_be_run_and_user_code_that_raises_is_to_be_mended(
    launch: Launch, tmp_path: Path
) -> None:
    module = tmp_path / "words.py"
    module.write_text(PROGRAM)
    write(tmp_path / "events", "0", (10, "good"), (70, "bad"))
    ran = start(launch, tmp_path / "run", ["run", f"{module}:app", "--master=local[2]"], places(tmp_path))
    last = ran.ended()
    assert (last["status"], last["result"]) == (run.MEND, "mend it")
    assert f"ValueError('a bad word') at {module}:19 in process_message" in last["error"]


def test_processes_of_spark_import_compiled_modules(launch: Launch, tmp_path: Path) -> None:
    write(tmp_path / "events", "0", (10, "a"), (70, "b"))
    settings = {"XDG_CACHE_HOME": str(tmp_path / "cache"), **places(tmp_path)}
    args = ["run", f"{DEPLOY / 'word_count.py'}:app", "--master=local[2]", "--follow"]
    ran = start(launch, tmp_path / "run", args, settings)
    ran.await_line(lambda line: line["event"] == "progress")
    (home,) = tmp_path.glob("cache/persistent-state/*")
    library = str(home / "python" / "lib" / "pyspark.zip")
    below = psutil.Process(ran.process.pid).children(recursive=True)
    assert any(process.environ().get("PYTHONPATH", "").startswith(library) for process in below)
    ran.process.terminate()
    assert ran.ended()["status"] == run.DONE


def test_a_module_that_starts_its_application_is_refused_in_the_worker_that_imports_it(
    launch: Launch, jvms: Sequence[Jvm], tmp_path: Path
) -> None:
    start = "from pyspark.sql import SparkSession\n\napp().run(SparkSession.getActiveSession())\n"
    (tmp_path / "starting_words.py").write_text(PROGRAM + start)
    write(tmp_path / "events", "0", (10, "good"))
    driver = "from tests.spark import sessions; sessions.new_session('words'); import starting_words"
    env = {**places(tmp_path), "PYTHONPATH": f"{tmp_path}:{sessions.QUICK_PYTHON}:{ROOT}"}
    process = launch("-c", driver, folder=tmp_path, **env)
    assert process.wait(PATIENCE) == 1
    log = (tmp_path / "log").read_text()
    assert log.splitlines()[-1] == (
        f"persistent_state.errors.InvalidInputError: application=words is started at {tmp_path}/starting_words.py:32 in "
        '<module> while a worker of Spark loads its module; put that below `if __name__ == "__main__":`.'
    )


def test_a_newer_run_fences_an_older_one_and_one_that_is_stopped_in_the_middle_is_to_be_tried_again(
    launch: Launch, jvms: Sequence[Jvm], tmp_path: Path
) -> None:
    write(tmp_path / "events", "0", (10, "good"), (70, "good"))
    env = {**places(tmp_path), "SLOW": str(tmp_path / "slow"), "PATIENCE": "3600"}
    (tmp_path / "words.py").write_text(PROGRAM)
    args = ["run", "words:app", "--master=local[2]"]
    older_env, newer_env = ({**env, **jvm.env} for jvm in jvms)
    older = start(launch, tmp_path / "older", [*args, "--follow"], older_env, tmp_path)
    older.await_line(lambda line: line["event"] == "progress")
    newer = start(launch, tmp_path / "newer", args, newer_env, tmp_path)
    assert newer.ended()["status"] == run.DONE
    fenced = older.ended()
    assert (fenced["status"], fenced["result"]) == (run.FENCED, "fenced")
    assert "a newer driver owns words" in fenced["error"]
    # A run that is asked to end in the middle of a micro-batch leaves it to the next one.
    write(tmp_path / "events", "1", (100, "slow"), (200, "good"))
    slow = start(launch, tmp_path / "stopped", args, older_env, tmp_path)
    slow.until((tmp_path / "slow").exists, "the message")
    slow.process.send_signal(signal.SIGTERM)
    stopped = slow.ended()
    assert (stopped["status"], stopped["result"]) == (run.TRY_AGAIN, "try again")
    again = start(launch, tmp_path / "again", [*args, "--drain"], {**newer_env, "PATIENCE": "0"}, tmp_path)
    assert again.ended()["status"] == run.DONE
    counts = read_state(env["STORE"], "words", "Words").to_pylist()
    assert {row["word"]: row["value"] for row in counts} == {"good": 3, "slow": 1}


def test_a_store_that_is_down_is_to_be_tried_again(launch: Launch, jvms: Sequence[Jvm], tmp_path: Path) -> None:
    write(tmp_path / "events", "0", (10, "to"))
    nobody = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "s",
    }
    env = {**places(tmp_path), **nobody, "STORE": "s3://bucket/apps", **jvms[0].env}
    last = start(launch, tmp_path / "run", ["run", "word_count:app", "--master=local[2]"], env, DEPLOY).ended()
    assert (last["status"], last["result"]) == (run.TRY_AGAIN, "try again")
    assert "Could not connect to the endpoint" in last["error"]
