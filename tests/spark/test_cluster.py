"""An application on a real standalone cluster with its store on S3, and the rules that hold where there are other machines."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from persistent_state import InvalidInputError, read_state
from persistent_state.batch.packets import DRIVER
from persistent_state.engine.run.commit import Commit
from persistent_state.protocol.global_clock import Keeping
from persistent_state.run.commit import Committer
from persistent_state.run.reports import Listener
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log
from persistent_state.store.verify import verify
from tests import core
from tests.fixtures.write_store import SCHEMA, Totals
from tests.soak import soak_or
from tests.spark import sessions, stream
from tests.spark.cluster import WORKERS, standalone
from tests.spark.conftest import Launch, Rehearsal
from tests.spark.stream import NAME, Stream, check_cut, check_end, progress
from tests.store.servers import Servers, needed
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.kills

KILLS = soak_or(ci=2, soak=20)
MOST_KILLS = KILLS + 4


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_executors_killed_in_mid_batch_are_replaced_and_no_file_tells_the_secret_of_the_store(
    servers: Servers,
    rehearsal: Rehearsal,
    launch: Launch,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    record_property: Callable[[str, object], None],
) -> None:
    with needed():
        server = servers["s3"]
    server.make("cluster")
    url, options = server.address("cluster", server.ports)
    secret = options["secret"] = f"secret-{uuid.uuid4().hex}"
    apart = tmp_path_factory.mktemp("secret") / "options.json"
    apart.write_text(json.dumps(options))
    sent = Stream(tmp_path / "stream", seed=41)
    for _ in range(MOST_KILLS * 2 + 2):
        sent.grow()
    scratch = tmp_path / "scratch"
    chance = random.Random(41)
    env = sessions.environment(rehearsal.java_options, SPARK_HOME=sessions.spark_home())
    with standalone(tmp_path / "cluster", env) as cluster:
        arguments = ["--master", cluster.url, "--store", url, "--options", str(apart), "--scratch", str(scratch)]
        driver = launch("-m", "tests.spark.victim", str(tmp_path), *arguments, folder=tmp_path)

        def told() -> bytes:
            return b"".join(file.read_bytes() for file in (tmp_path / "events").rglob("events_*"))

        kills = 0
        # Between two micro-batches an executor has nothing to lose.
        while kills < KILLS or b"ExecutorLostFailure" not in told():
            assert kills < MOST_KILLS, "no executor died in mid-batch"
            kills += 1
            begun = len(progress(tmp_path))
            until(lambda begun=begun: len(progress(tmp_path)) > begun, "a commit", driver)
            until(lambda: len(cluster.executors()) == WORKERS, "all executors", driver)
            time.sleep(chance.random() / 2)
            chance.choice(cluster.executors()).kill()
        assert telling(secret, tmp_path) == []
        begun = len(list((cluster.folder).glob("worker-*/work/app-*/*")))
        assert begun >= WORKERS + kills - 1, "the executors that died were replaced"
        assert driver.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    assert list(scratch.iterdir()) == []
    assert verify(url, storage_options=options).problems == ()
    copy(open_files(url, options), tmp_path / "store")
    check_cut(tmp_path, sent)
    end = check_end(tmp_path, sent)
    read = read_state(url, NAME, stream.Journal(), storage_options=options).to_pylist()
    assert {row["key"]: row["value"] for row in read} == stream.state(tmp_path, stream.Journal())
    assert b"SparkListenerTaskEnd" in told()
    assert (telling(secret, tmp_path), telling(secret, apart.parent)) == ([], [apart])
    record_property("told", f"{kills} executors killed, and both tasks hold: {end}")


def telling(secret: str, folder: Path) -> list[Path]:
    """The files in which it stands."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                if secret.encode() in (Path(place) / name).read_bytes():
                    found.append(Path(place) / name)
            except FileNotFoundError:
                pass
    return found


def copy(files: Files, to: Path) -> None:
    """All files of a store into a folder. A name is a folder's if there is something below it."""

    def walk(folder: str) -> Iterator[str]:
        for name in files.list(folder):
            path = f"{folder}/{name}" if folder else name
            below = list(walk(path))
            yield from below or [path]

    for path in walk(""):
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        (to / path).write_bytes(files.read(path))


MASTERS = ["spark://host:7077", "yarn", "k8s://https://host:443"]


class Stub(SimpleNamespace):
    """A session of a cluster, as far as it is asked before anything starts."""

    readStream: Any = None


def stub(master: str) -> Any:
    return Stub(sparkContext=SimpleNamespace(master=master, defaultParallelism=2))


@pytest.mark.parametrize("master", MASTERS)
@pytest.mark.parametrize(
    ("store", "scratch", "words"),
    [
        ("{folder}/store", "/shared", "is a folder of this machine"),
        ("file://{folder}/store", "/shared", "is a folder of this machine"),
        ("memory://apps", "/shared", "can't be reached by Spark's workers"),
        ("s3://bucket/apps", None, "give scratch="),
    ],
    ids=["a path", "a file url", "memory", "no scratch"],
)
def test_what_other_machines_can_not_reach_is_refused(
    tmp_path: Path, master: str, store: str, scratch: str | None, words: str
) -> None:
    Stream(tmp_path / "stream", seed=1).grow()
    where = store.format(folder=tmp_path)
    app = stream.application(tmp_path, shards=1, interval="10 seconds", store=where, scratch=scratch)
    with pytest.raises(InvalidInputError, match=words):
        app.start(stub(master))
    assert not (tmp_path / "store").exists()


def test_a_store_in_memory_is_refused_on_one_machine_too(tmp_path: Path) -> None:
    Stream(tmp_path / "stream", seed=1).grow()
    app = stream.application(tmp_path, shards=1, interval="10 seconds", store="memory://apps")
    with pytest.raises(InvalidInputError, match="use a folder, or run_local for tests"):
        app.start(stub("local[2]"))


def test_what_runs_in_foreach_batch_can_be_pickled_and_commits_through_the_store_alone(tmp_path: Path) -> None:
    plan = core.plan_of(Totals(), SCHEMA, files=open_files(tmp_path), shards=2)
    log = Log(plan.files, plan.application)
    entry = core.start(log, [plan])
    delivered = str(tmp_path / "delivered")
    listener = Listener("no run", lambda progress: Path(delivered).touch())
    given = Commit(Committer(core.alone(plan), entry.epoch, Keeping(), {}, listener), {}, {})
    rows = pa.RecordBatch.from_pylist([{"ts": 5, "shop": "a", "item": 1, "price": 3}], SCHEMA)
    made = core.answers(log, plan, rows)
    told = {"label": DRIVER, "answer": cloudpickle.dumps((0, [report.to_bytes() for report in made.reports]))}
    controls = [told, *({"label": i, "answer": cloudpickle.dumps([d])} for i, d in enumerate(made.descriptors))]
    # As in a process of its own, which has nothing but this.
    program = "import sys, cloudpickle; call, rows = cloudpickle.load(sys.stdin.buffer); call(rows, 0)"
    data = cloudpickle.dumps((given, SimpleNamespace(collect=partial(list, controls))))
    subprocess.run([sys.executable, "-c", program], input=data, check=True, cwd=sessions.ROOT)
    newest = log.newest()
    assert newest is not None
    assert (newest.number, newest.flow_of(plan.name).progress.batch) == (entry.number + 1, 1)
    assert core.state_at(newest, plan, None) == {("a", 1): {"sales": 1, "total": 3}}
    assert Path(delivered).exists()
