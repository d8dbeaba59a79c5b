"""From Kafka to Kafka on this machine alone: each record counts once, also of workers that die.

`tests/spark/test_kafka_sink.py` kills its drivers.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.broker import Broker
from monoids import Sum
from persistent_state import (
    Application,
    KafkaSink,
    KafkaSource,
    Local,
    NonWindowState,
    PersistentTask,
    RunningValues,
)
from persistent_state.kafka import Decoded, Decoder, Json, topics
from persistent_state.kafka.sink import as_json
from persistent_state.sinks import Values
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests.kafka.deliverer import consume, newest
from tests.kafka.topics import made_anew, new_topic, produce
from tests.sentences import problem
from tests.spark.sessions import new_session
from tests.waiting import PATIENCE, until


class PerDigit(PersistentTask):
    """The sum of the numbers with the same last digit."""

    key, value = "digit", "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Digits(Decoder):
    """Numbers with their last digit. A worker dies of its first records, until a file is there."""

    schema = pa.schema([("n", pa.int64()), ("digit", pa.int64())])

    def __init__(self, died: Path) -> None:
        self.died = str(died)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        if not Path(self.died).exists():
            Path(self.died).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        numbers = [json.loads(value or b"{}")["n"] for value in values]
        return Decoded(pa.record_batch({"n": numbers, "digit": [n % 10 for n in numbers]}, self.schema))


class Encoded:
    """The records of values. A worker dies of those of its second transaction, until a file is there."""

    def __init__(self, died: Path) -> None:
        self.died = str(died)
        self.calls = 0

    def __call__(self, rows: pa.RecordBatch) -> tuple[list[str], list[str]]:
        self.calls += 1
        if self.calls == 2 and not Path(self.died).exists():
            Path(self.died).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return as_json(1, rows)


def application(
    folder: Path, address: str, read: str, written: str, start: int, shards: int | None = None
) -> Application:
    """The sums of one topic, in another."""
    source = KafkaSource(read, address, value=Digits(folder / f"died {start}"), max_offsets_per_batch=40)
    settings: dict[str, Any] = {"checkpoint_interval": "1 second", "allowed_delay": "1 minute", "shards": shards}
    app = Application("digits", str(folder / "store"), **settings)
    encode = Encoded(folder / f"died of a part {start}")
    return app.add(PerDigit(), source, KafkaSink(written, address, partitions=2, rows_per_transaction=2, encode=encode))


def main(folder: str, address: str, read: str, written: str, start: str, shards: str) -> None:
    """Go on until the process is killed: on this machine alone, at each second start on Spark."""
    number = int(start)
    # So often Spark begins again what a worker has died of.
    engine: Any = new_session("digits", "local[2,4]") if number % 2 else Local(number % 4 // 2 + 1)
    application(Path(folder), address, read, written, number, int(shards)).start(engine).await_termination()


def test_records_count_once_from_topic_to_topic(broker: Broker, tmp_path: Path) -> None:
    read, written = new_topic(broker, 2), new_topic(broker, 2)
    for start in range(3):
        produce(broker, read, range(100 * start, 100 * start + 100), 2, millis=lambda n: 1_700_000_000_000 + 1000 * n)
        assert application(tmp_path, broker.address, read, written, start).run(Local(2), drain=True).restarts == 0
        assert (tmp_path / f"died {start}").exists()
        assert (tmp_path / f"died of a part {start}").exists()
        total = sum(row["value"] for row in newest(broker, written).values())
        assert total == sum(range(100 * start + 100))
    given = [(message.key(), json.loads(message.value())["clock"]) for message in consume(broker, written)]
    assert len(given) == len({*given}), "no value is seen twice"


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_run_that_has_a_consumer_open_does_not_read_a_topic_that_was_made_again_as_the_old_one(
    broker: Broker, tmp_path: Path, fail_on_data_loss: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a single broker says is so.
    monkeypatch.setattr(topics, "PATIENCE", 0.5)
    topic, sums = new_topic(broker, 1), dict[int, int]()

    def hear(values: Values, number: int) -> None:
        sums.update({row["n"] % 10: row["value"] for batch in values.batches() for row in batch.to_pylist()})

    class PerNumber(PerDigit):
        key = "n"

    schema = pa.schema([("n", pa.int64())])
    source = KafkaSource(topic, broker.address, value=Json(schema), fail_on_data_loss=fail_on_data_loss)
    app = Application("numbers", str(tmp_path / "store"), checkpoint_interval="1 second", allowed_delay="1 minute")
    app.add(PerNumber(), source, RunningValues(hear, as_="arrow"))
    running = app.start(Local(2))
    for number in range(8):
        produce(broker, topic, [number], 1)
        until(lambda number=number: sums.get(number) == number, "a record", lambda: running.is_active)
    made_anew(broker, topic)
    if fail_on_data_loss:
        said = problem(lambda: running.await_termination(PATIENCE))
        assert "was deleted and made again" in said or "is not there" in said
        return
    # There are more records than the old topic had.
    produce(broker, topic, [9] * 20, 1)
    until(lambda: sums.get(9) == 9 * 20, "the records of the new topic", lambda: running.is_active)
    running.stop()
    assert sums == {**dict(zip(range(8), range(8), strict=True)), 9: 180}


def entries(folder: Path) -> int:
    """The number of the newest entry of a store."""
    entry = Log(open_files(str(folder / "store")), "digits").newest() if (folder / "store").exists() else None
    return entry.number if entry else 0
