"""What a task costs that another task feeds: by keys upstream, and its latency beside stages that topics connect.

    python -m benchmarks.graph [--keys N ...] [--changed N ...] [--clocks N] [--stages N ...] [--messages N] [--every SECONDS]
        [--repetitions N] [--json FILE]

Of `--keys`: a state of so many keys is on a local disk, in two shards, and a task is fed by its changes. Each clock changes so
many random keys, and one step follows. "first" is the first step, which builds the task from all keys, "step" the median of
those after it, and "processors" the mean of their processor seconds. The clocks of all numbers of keys take turns. No query
runs beside the steps: the upstream state is written without Spark.

Of `--stages`: a message comes to a topic every so many seconds, and a task keeps the newest number of each key. So many stages
behind it hand the number on, fed by `Changes` in one application, or by topics between applications. A message has arrived when
the sink of the last stage has been given its number. Its latency includes the time until a clock passes it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import monoids
from benchmarks.measure import cpu_seconds, write_json
from benchmarks.plans import plan_of
from benchmarks.streams import ROWS_PER_FILE, SCHEMA, START
from benchmarks.throughput import session
from examples.broker import Broker
from persistent_state import Application, Changes, KafkaSink, KafkaSource, NonWindowState, PersistentTask, ValuesAtClock
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive import local
from persistent_state.drive.turn import Part
from persistent_state.engine import Running
from persistent_state.event_time.clocks import FURTHEST, Settings
from persistent_state.kafka import Json
from persistent_state.outputs import Outputs
from persistent_state.protocol import commits, takeover
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources import Chunk, Reach
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.store.files.local import LocalFiles
from persistent_state.store.log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND = 1_000_000
SHARDS = 2
GROUPS = 1_000
PATIENCE = 120.0


class PerKey(PersistentTask):
    """The sum of a key, and the group that it is in now."""

    key = "k"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Struct(total=monoids.Sum(), group=monoids.Max()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        group = pa.array(batch["v"].to_numpy() % GROUPS)
        return pa.StructArray.from_arrays([batch["v"], group], names=["total", "group"])


class PerGroup(PersistentTask):
    """The sum of the keys that are in a group now."""

    key, value = "group", "total"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


class Stage:
    """A task of so many keys that is written without Spark, and one that is fed by it and steps on Spark."""

    def __init__(self, spark: SparkSession, folder: Path, keys: int, changed: int) -> None:
        from persistent_state.engine.run.spark_engine import SparkEngine
        from persistent_state.run.feeds import FedTask
        from persistent_state.run.setup import Setup
        from persistent_state.run.steps import Stepper

        self._keys, self._changed = keys, changed
        self._ids, self._chance = count(), np.random.default_rng(keys)
        files, settings = LocalFiles(str(folder)), Settings(SECOND)
        self._plan = plan_of("graph", files, PerKey(), SCHEMA, settings, SHARDS)
        source, fed = Changes("PerKey"), Settings(SECOND, ahead=FURTHEST)
        schema = source.schema(self._plan, PerGroup())
        feeders = {"": self._plan}
        derived = plan_of(
            "graph", files, PerGroup(), schema, fed, SHARDS, timestamp=TIMESTAMP, edge=source, feeders=feeders
        )
        flows = [FlowPlan((self._plan,)), FlowPlan((derived,))]
        self._log = Log(files, "graph")
        entry = takeover.take_over(self._log, flows, interval=SECOND, shards=SHARDS, writer="benchmark", now=START)
        nothing: Any = None
        parts = [FedTask(plan, fed_by, Outputs((), ())) for plan, fed_by in ((self._plan, nothing), (derived, source))]
        setup = Setup(
            SparkEngine(spark),
            "graph",
            files,
            parts,
            SECOND,
            SHARDS,
            Keeping(),
            None,
            0,
            False,
            False,
            None,
            None,
            writer="benchmark",
        )
        self._stepper = Stepper(setup)
        self._stepper.start(entry.epoch, ())
        self._position = self._seconds = 0

    def step(self) -> tuple[float, float]:
        """Change keys, and take the step that follows; return its seconds, and those of processors."""
        self._commit(self._keys if self._position == 0 else self._changed)
        if self._position == self._keys:
            # The clock has yet to pass the first messages.
            self._commit(self._changed)
        begin, cpu = time.perf_counter(), cpu_seconds()
        self._stepper.wake()
        while not self._stepper.is_settled and self._stepper.failed is None:
            time.sleep(0.001)
        if self._stepper.failed is not None:
            raise self._stepper.failed[1]
        return time.perf_counter() - begin, cpu_seconds() - cpu

    def stop(self) -> None:
        """End the stage."""
        self._stepper.stop()

    def _commit(self, rows: int) -> None:
        flow, entry = FlowPlan((self._plan,)), self._log.newest()
        assert entry is not None
        end = self._position + rows
        basis = commits.plan_batch(entry, flow, Reach({"": end}, {"": False}), START + self._seconds * SECOND)
        answers = local.merge(flow, Part(0, 1, basis).combine(flow, self._chunks(rows)), {}, self._new_id)
        commits.commit(
            self._log, entry.epoch, self._plan.settings, answers, now=START, new_id=self._new_id, keeping=Keeping()
        )
        self._position, self._seconds = end, self._seconds + 1

    def _chunks(self, rows: int) -> Iterator[Chunk]:
        """Yield the messages of the next second. The last one is at its end: the clock comes to its beginning."""
        keys = np.arange(rows) if self._position == 0 else self._chance.choice(self._keys, rows, replace=False)
        for first in range(0, rows, ROWS_PER_FILE):
            some = keys[first : first + ROWS_PER_FILE]
            stamps = START + self._seconds * SECOND + (first + np.arange(len(some))) * SECOND // rows
            values = self._chance.integers(0, GROUPS, len(some))
            batch = pa.record_batch([pa.array(stamps).cast(SCHEMA.field("ts").type), some, values], schema=SCHEMA)
            yield Chunk("", self._position + first, batch)

    def _new_id(self) -> str:
        return f"{next(self._ids):016x}"


def measure_keys(spark: SparkSession, sizes: Sequence[int], changed: int, clocks: int) -> list[dict[str, Any]]:
    """Return what a step costs by the number of keys upstream, of which so many change."""
    with tempfile.TemporaryDirectory(prefix="graph-") as folder:
        stages = {keys: Stage(spark, Path(folder) / str(keys), keys, changed) for keys in sizes}
        taken: dict[int, list[tuple[float, float]]] = {keys: [] for keys in sizes}
        for clock in range(clocks + 1):
            for keys, stage in stages.items():
                print(f"\rclock {clock} of {clocks}, {keys:,} keys", end="", flush=True, file=sys.stderr)
                taken[keys].append(stage.step())
        for stage in stages.values():
            stage.stop()
    print("\r" + " " * 60 + "\r", end="", flush=True, file=sys.stderr)
    # Those right after the first one verify what they read, which the others know to be sound.
    later = {keys: some[1 + clocks // 5 :] for keys, some in taken.items()}
    steps = {keys: statistics.median(seconds for seconds, _ in some) for keys, some in later.items()}
    return [
        {
            "keys": keys,
            "changed": changed,
            "first": taken[keys][0][0],
            "step": steps[keys],
            "most": max(seconds for seconds, _ in later[keys]),
            "processors": statistics.mean(cpu for _, cpu in later[keys]),
            "ratio": steps[keys] / steps[sizes[0]],
        }
        for keys in sizes
    ]


class Newest(PersistentTask):
    """The newest number of a key, as it comes."""

    key, value = "k", "n"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Max())


class Passing(PersistentTask):
    """The number of a key, as another task has it: of one row, the sum is the value. By topics it is the newest."""

    key, value = "k", "value"

    def __init__(self, number: int, by_topics: bool) -> None:
        self.name = f"Stage{number}"
        self._by_topics = by_topics

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Max() if self._by_topics else monoids.Sum())


@dataclass
class Arrivals:
    """Messages that come to a topic, when each came, and when its number was given to the last sink."""

    address: str
    topic: str
    messages: int
    every: float
    came: list[float] = field(default_factory=list)
    seen: dict[int, float] = field(default_factory=dict)

    def come(self) -> None:
        """Send the messages, and further ones until all have been seen, as a clock moves with a newer message only."""
        from confluent_kafka import Producer

        producer, begin = Producer({"bootstrap.servers": self.address, "linger.ms": 0}), time.perf_counter()
        for number in count():
            if len(self.seen) >= self.messages or number > self.messages + PATIENCE / self.every:
                return
            time.sleep(max(0.0, begin + number * self.every - time.perf_counter()))
            value = b'{"ts": %d, "k": %d, "n": %d}' % (time.time_ns() // 1000, number % 10, number)
            producer.produce(self.topic, value)
            producer.flush()
            self.came.append(time.perf_counter())

    def look(self, values: DataFrame, clock: int) -> None:
        """Take the values of a clock."""
        newest = max((row["value"] for row in values.select("value").collect()), default=-1)
        now = time.perf_counter()
        for number in range(min(newest + 1, self.messages)):
            self.seen.setdefault(number, now)

    def latencies(self) -> list[float]:
        """Return the seconds of each message but the first ones, which wait for the queries to start."""
        if len(self.seen) < self.messages:
            raise SystemExit(f"{len(self.seen)} of {self.messages} messages have arrived")
        return [self.seen[number] - self.came[number] for number in range(self.messages // 5, self.messages)]


def application(name: str, folder: Path) -> Application:
    return Application(name, str(folder), checkpoint_interval="100 milliseconds")


def source(broker: Broker, topic: str, timestamp: str, *columns: str) -> KafkaSource:
    schema = pa.schema([(column, pa.int64()) for column in (timestamp, *columns)])
    return KafkaSource(topic, broker.address, value=Json(schema), timestamp=timestamp)


def by_changes(spark: SparkSession, broker: Broker, arrivals: Arrivals, stages: int, folder: Path) -> list[Running]:
    app = application("changes", folder)
    look = ValuesAtClock(arrivals.look)
    app.add(Newest(), source(broker, arrivals.topic, "ts", "k", "n"))
    for number in range(1, stages + 1):
        fed_by = Changes("Newest" if number == 1 else f"Stage{number - 1}")
        app.add(Passing(number, by_topics=False), fed_by, look if number == stages else None)
    return [app.start(spark)]


def by_topics(spark: SparkSession, broker: Broker, arrivals: Arrivals, stages: int, folder: Path) -> list[Running]:
    def topic(number: int) -> str:
        return f"{arrivals.topic}-{number}"

    started = []
    for number in range(1, stages + 1):
        broker.make(topic(number))
    for number in range(stages + 1):
        app = application(f"topics{number}", folder)
        task: PersistentTask
        if number == 0:
            task, fed_by = Newest(), source(broker, arrivals.topic, "ts", "k", "n")
        else:
            task, fed_by = Passing(number, by_topics=True), source(broker, topic(number), "clock", "k", "value")
        last = number == stages
        app.add(task, fed_by, ValuesAtClock(arrivals.look if last else KafkaSink(topic(number + 1), broker.address)))
        started.append(app.start(spark))
    return started


CONTENDERS = {"changes": by_changes, "topics": by_topics}


def measure_stages(
    spark: SparkSession, broker: Broker, stages: int, messages: int, every: float, repetitions: int
) -> dict[str, list[float]]:
    """Return the latencies of all messages, by what connects the stages."""
    taken: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for repetition in range(repetitions):
        for name, start in CONTENDERS.items():
            print(f"\rpass {repetition + 1} of {repetitions}, {stages} {name}", end="", flush=True, file=sys.stderr)
            arrivals = Arrivals(broker.address, f"{name}-{stages}-{repetition}", messages, every)
            broker.make(arrivals.topic)
            with tempfile.TemporaryDirectory(prefix="graph-") as folder:
                started = start(spark, broker, arrivals, stages, Path(folder))
                coming = threading.Thread(target=arrivals.come)
                coming.start()
                coming.join()
                for running in started:
                    running.stop()
            taken[name] += arrivals.latencies()
    print("\r" + " " * 60 + "\r", end="", flush=True, file=sys.stderr)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--changed", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--clocks", type=int, default=50)
    parser.add_argument("--stages", type=int, nargs="*", default=[1, 2, 3, 4])
    parser.add_argument("--messages", type=int, default=40)
    parser.add_argument("--every", type=float, default=1.0, help="seconds from one message to the next")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    spark = session("2g")
    results: list[dict[str, Any]] = []
    if arguments.keys:
        print(f"{'changed':>10}{'keys':>14}{'first s':>10}{'step s':>10}{'most s':>10}{'processors':>12}{'ratio':>8}")
    for changed in arguments.changed if arguments.keys else ():
        for found in measure_keys(spark, arguments.keys, changed, arguments.clocks):
            results.append(found)
            print(
                f"{changed:>10,}{found['keys']:>14,}{found['first']:>10.2f}{found['step']:>10.3f}{found['most']:>10.3f}"
                f"{found['processors']:>12.3f}{found['ratio']:>8.2f}",
                flush=True,
            )
    if arguments.stages:
        print(f"{'stages':>10}" + "".join(f"{f'{name} p50':>14}{'p95':>8}" for name in CONTENDERS))
        with tempfile.TemporaryDirectory(prefix="graph-") as folder, Broker(Path(folder)) as broker:
            for stages in arguments.stages:
                taken = measure_stages(
                    spark, broker, stages, arguments.messages, arguments.every, arguments.repetitions
                )
                cuts = {name: statistics.quantiles(values, n=100) for name, values in taken.items()}
                results.append(
                    {"stages": stages, **{name: {"p50": cut[49], "p95": cut[94]} for name, cut in cuts.items()}}
                )
                print(
                    f"{stages:>10}" + "".join(f"{cut[49]:>14.2f}{cut[94]:>8.2f}" for cut in cuts.values()), flush=True
                )
    write_json(arguments.json, results)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
