"""Values at clocks and emitted rows from Spark to a real Kafka: each is seen once, whatever step the driver is killed at.

And from Kafka to Kafka by Spark and by this machine alone in turns, whenever the drivers are killed.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.broker import Broker
from monoids import Sum
from persistent_state import Application, FileSource, KafkaSink, Local, TumblingWindow, ValuesAtClock, WindowState
from tests.kafka.deliverer import consume, newest
from tests.kafka.test_local import application as digits
from tests.kafka.test_local import entries
from tests.kafka.topics import new_topic, produce
from tests.soak import soak_or
from tests.spark.conftest import Launch
from tests.spark.courier import EMITTED, SECRET, TOPIC, is_marked
from tests.spark.sessions import Jvm
from tests.spark.teller import SPAN, START, rows_of, write
from tests.spark.test_rewinds import FILES, SECOND, Revenue, World, expected
from tests.spark.test_rewinds import SCHEMA as ORDERS
from tests.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = soak_or(
    ci=("put", "committed", "record"),
    soak=("begin", "begun", "put", "commit", "committed", "given", "record") * 3,
)
"""At those of CI what others see has changed, or is about to. tests/kafka/test_transactions.py kills at each, without Spark."""

KILLED = soak_or(ci=4, soak=40)
"""Drivers that are killed at any moment, each on the other engine than the one before it."""

FIRST = 1_700_000_000
"""The second of the first record of a topic, of which each has a second of its own."""


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_after_a_rewind_the_newest_record_of_each_key_is_its_state(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    world, to = World(tmp_path), 30 * SECOND
    for topic in ("revenue", "windows"):
        broker.make(topic, 2)

    def application(factor: int) -> Application:
        app = Application("shop", str(tmp_path / "store"), checkpoint_interval="10 seconds", retained_checkpoints=50)
        source = FileSource(tmp_path / "orders", timestamp="at", schema=ORDERS, max_files_per_batch=1)
        early = ValuesAtClock(KafkaSink("windows", broker.address), early=True)
        app.add(Revenue(factor), source, KafkaSink("revenue", broker.address, partitions=2))
        return app.add(RevenueOfWindows(factor), source, early)

    def check() -> None:
        assert {shop: row["value"] for shop, row in newest(broker, "revenue").items()} == world.state()

    application(2).run(spark, drain=True)
    check()
    before, windows = newest(broker, "revenue"), consume(broker, "windows")
    plan = application(3).plan_rewind(to)
    assert [each.action for each in plan.outputs] == ["retract", "retract"]
    assert plan.outputs[0].rows == 4 + FILES - 3
    assert (newest(broker, "revenue"), len(consume(broker, "windows"))) == (before, len(windows))
    done = application(3).rewind(plan)
    assert [each.is_done for each in done.outputs] == [True, True]
    # Windows that were open then have their early values of then.
    as_then = kept(message for message in windows if int(dict(message.headers())["clock"]) <= to)
    assert {row["final"] for row in as_then.values()} == {True, False}
    assert kept(consume(broker, "windows")) == as_then != kept(windows)
    assert world.state() == world.state(to) != {}
    check()
    application(3).run(spark, drain=True)
    check()
    assert world.state() == expected(lambda at: 2 if at < to else 3)


class RevenueOfWindows(Revenue):
    def persistent_state(self) -> WindowState[int]:  # type: ignore[override]
        return WindowState(Sum(), window=TumblingWindow("20 seconds"))


def kept(messages: Iterable[Any]) -> dict[bytes, dict[str, Any]]:
    """The newest value of each key, without the clock."""
    found: dict[bytes, dict[str, Any]] = {}
    for message in messages:
        found.pop(message.key(), None)
        if message.value() is not None:
            row = json.loads(message.value())
            found[message.key()] = {name: row[name] for name in row if name != "clock"}
    return found


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_each_value_and_each_emitted_row_is_seen_once_whatever_step_the_driver_is_killed_at(
    launch: Launch, jvms: Sequence[Jvm], broker: Broker, tmp_path: Path
) -> None:
    for topic in (TOPIC, EMITTED):
        broker.make(topic, 2)
    files = 0

    def drive(link: int, *more: str) -> int:
        nonlocal files
        for _ in range(2):
            write(tmp_path, files)
            files += 1
        options = ("--servers", broker.address, "--partitions", str((2, 1, 3)[link % 3]), *more)
        env = jvms[link % len(jvms)].env
        return launch("-m", "tests.spark.courier", str(tmp_path), *options, folder=tmp_path, **env).wait(PATIENCE)

    for link, step in enumerate(STEPS):
        code = drive(link, "--die", step, "--nth", "2")
        assert code == -signal.SIGKILL, (step, (tmp_path / "log").read_text()[-4000:])
    assert drive(len(STEPS), "--drain") == 0, (tmp_path / "log").read_text()[-4000:]

    values = [json.loads(message.value()) for message in consume(broker, TOPIC)]
    found = [(value["key"], value["clock"], value["value"]) for value in values]
    # A step may take two clocks at once, on a busy machine. The global clock then jumps over the first, which is not given.
    given = {clock for _, clock, _ in found}
    assert len(given) > files // 2
    totals: dict[int, int] = {}
    seen: Counter[int] = Counter()
    changed: set[int] = set()
    wanted, marks = [], []
    for file in range(files):
        clock = START + (file + 1) * SPAN
        for key, _, amount, *_ in rows_of(file):
            totals[key] = totals.get(key, 0) + amount
            seen[key] += 1
            changed.add(key)
            marks += [(key, seen[key], amount)] if is_marked(amount) else []
        if clock in given or file == files - 1:
            wanted += [(key, clock, totals[key]) for key in changed]
            changed.clear()
    assert sorted(found) == sorted(wanted)
    emitted = [json.loads(message.value()) for message in consume(broker, EMITTED)]
    assert sorted((row["key"], row["nth"], row["amount"]) for row in emitted) == sorted(marks)
    texts = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("events" in path.parts for path in texts)
    assert [path for path in texts if SECRET.encode() in path.read_bytes()] == []
    for key in totals:
        clocks = [clock for found_key, clock, _ in found if found_key == key]
        assert clocks == sorted(clocks)


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_records_count_once_from_topic_to_topic_by_both_engines_in_turns_whenever_their_driver_is_killed(
    launch: Launch, jvms: Sequence[Jvm], broker: Broker, tmp_path: Path
) -> None:
    read, written, chance = new_topic(broker, 2), new_topic(broker, 2), random.Random(41)
    program = "from tests.kafka.test_local import main; import sys; main(*sys.argv[1:])"
    for start in range(KILLED):
        produce(broker, read, range(200 * start, 200 * start + 200), 2, millis=lambda n: 1000 * (FIRST + n))
        options = [str(tmp_path), broker.address, read, written, str(start), "2" if 2 * start < KILLED else "3"]
        wanted = entries(tmp_path) + chance.randint(1, 4)
        driver = launch("-c", program, *options, folder=tmp_path, **jvms[start // 2 % 2].env)
        until(lambda wanted=wanted: entries(tmp_path) >= wanted, "entries", driver, tmp_path / "log")
        time.sleep(chance.random() / 2)
        driver.kill()
        assert driver.wait(PATIENCE) == -signal.SIGKILL, (tmp_path / "log").read_text()[-4000:]
    digits(tmp_path, broker.address, read, written, KILLED).run(Local(2), drain=True)

    given = [
        (row["clock"] // 1_000_000 - FIRST, row["digit"], row["value"])
        for row in (json.loads(message.value()) for message in consume(broker, written))
    ]
    # At each clock a digit is given if it has more numbers than at the clock before, with the sum of those below the clock.
    wanted_rows, before = [], 0
    for clock in sorted({clock for clock, *_ in given}):
        numbers = range(min(clock, 200 * KILLED))
        changed = {n % 10 for n in numbers[before:]}
        wanted_rows += [(clock, digit, sum(numbers[digit::10])) for digit in changed]
        before = len(numbers)
    assert before == 200 * KILLED
    assert sorted(given) == sorted(wanted_rows)
    for digit in range(10):
        clocks = [clock for clock, of, _ in given if of == digit]
        assert clocks == sorted(clocks)
